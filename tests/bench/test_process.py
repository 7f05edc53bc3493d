import os
from pathlib import Path

from bench import process
from bench.machine import mount_of

MOUNTINFO = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:28 / /home/a\\040b rw - xfs /dev/vdb rw,noquota
31 22 0:29 / /home/a rw - tmpfs tmpfs rw
"""


def test_the_deepest_mount_holds_a_path() -> None:
    assert mount_of(Path("/home/a b/c"), MOUNTINFO) == ("xfs", "/dev/vdb", "rw,noquota")
    assert mount_of(Path("/home/a/c"), MOUNTINFO) == ("tmpfs", "tmpfs", "rw")
    assert mount_of(Path("/home/ab"), MOUNTINFO) == ("ext4", "/dev/vda", "rw")


def test_only_a_mount_of_this_run_is_our_daemon() -> None:
    run = Path("/cache/run-7")
    ours = ["python", "-m", "ckptfs", "mount", "/cache/run-7/w", "--store", "/cache/run-7/s"]
    assert process.is_daemon_of(ours, run)
    assert process.is_daemon_of(["python", "/bin/ckptfs", *ours[3:]], run)
    assert not process.is_daemon_of(ours, Path("/cache/run-71"))
    assert not process.is_daemon_of(["tail", "-f", "/cache/run-7/s/log"], run)
    assert not process.is_daemon_of(["python", "-m", "ckptfs", "status", "/cache/run-7/w"], run)


def test_this_process_lives_and_uses_memory_and_time() -> None:
    assert process.is_alive(os.getpid())
    assert process.cpu_ns(os.getpid()) > 0
    assert process.memory(os.getpid()).own > 1_000_000
