"""Other mount namespaces that have a copy of the mount: a container or sandbox that was started
while the workspace was mounted. An unmount ends for them, too, soon and with words."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ckptfs.errors import MountpointBusy, RefusedInSandbox, StoreGone
from tests.support.mounting import MEMORY, Workspace, is_mounted, scratch, succeed
from tests.support.waiting import wait_for_exit, wait_until

pytestmark = pytest.mark.needs_mount

_CLONE_NEWNS = 0x20000
_libc = ctypes.CDLL(None, use_errno=True)

#: How a process gets a mount namespace of its own, as root and as anybody.
AS_ROOT = ["unshare", "--mount"]
AS_USER = ["unshare", "--user", "--map-root-user", "--mount"]
UNSHARE = AS_ROOT if os.geteuid() == 0 else AS_USER
SANDBOX = ["bwrap", "--dev-bind", "/", "/"]

#: Adds a line to a file until that fails; says in another file how many it added.
WRITER = """
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
count = 0
try:
    while True:
        os.write(file, b"line\\n")
        count += 1
        if count == 10:
            open(sys.argv[2] + ".begun", "w").close()
except OSError:
    pass
with open(sys.argv[2] + ".new", "w") as told:
    told.write(str(count))
os.rename(sys.argv[2] + ".new", sys.argv[2])
"""


@pytest.fixture(autouse=True)
def apart() -> Iterator[None]:
    """A mount namespace for each of these tests: whatever else starts on the machine with one of
    its own then gets no copy of what is mounted here."""
    if os.geteuid() != 0:
        yield
        return
    where = os.getcwd()
    with open("/proc/self/ns/mnt") as before:
        assert _libc.unshare(_CLONE_NEWNS) == 0
        try:
            subprocess.run(["mount", "--make-rprivate", "/"], check=True)
            yield
        finally:
            assert _libc.setns(before.fileno(), _CLONE_NEWNS) == 0
            os.chdir(where)


@pytest.fixture
def work() -> Iterator[Workspace]:
    with scratch(MEMORY) as base:
        made = Workspace(base)
        made.path.mkdir()
        (made.path / "state").write_text("old")
        made.mount()
        (made.path / "state").write_text("new")
        try:
            yield made
        finally:
            made.finish()


@contextmanager
def copy(command: list[str], *run: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a mount namespace that has a copy of every mount."""
    process = subprocess.Popen([*command, *(run or ("sleep", "120"))], start_new_session=True)
    try:
        own = os.readlink("/proc/self/ns/mnt")
        wait_until(lambda: _descendants_apart(process.pid, own), "it has a namespace of its own")
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _descendants_apart(pid: int, own: str) -> bool:
    """Whether the process, or its last child, runs its command in another namespace."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        last = int(children[-1]) if children else pid
        name = Path(f"/proc/{last}/comm").read_text().strip()
        return os.readlink(f"/proc/{last}/ns/mnt") != own and name not in ("unshare", "bwrap")
    except OSError:
        return False


def unmount(work: Workspace, *options: str) -> tuple[dict[str, object], str]:
    done = succeed(work.cli("umount", "--json", *options, work.path))
    assert work.pid is not None
    wait_for_exit(work.pid)
    work.pid = None
    record = json.loads(done.stdout)
    assert isinstance(record, dict)
    return record, done.stderr


def test_umount_ends_it_in_every_namespace_and_names_the_processes(work: Workspace) -> None:
    """Nothing that was acknowledged over there is lost."""
    log, count = work.path / "log", work.path.parent / "count"
    with copy(UNSHARE, sys.executable, "-c", WRITER, str(log), str(count)) as writer:
        wait_until(Path(f"{count}.begun").exists, "somebody writes in the other namespace")
        record, said = unmount(work)
        wait_until(count.exists, "the writer met the end")
        writer.wait(20)
    (name,) = record["cut_off"]  # type: ignore[misc]
    assert str(name).startswith("python") and str(name) in said
    assert not is_mounted(work.path) and (work.path / "state").read_text() == "new"
    lines = log.read_text().splitlines()
    # The one that was on its way may have arrived, though nobody heard so.
    assert set(lines) == {"line"} and 0 <= len(lines) - int(count.read_text()) <= 1
    assert work.status()["state"] == "unmounted"


@pytest.mark.needs_program("bwrap")
def test_a_sandbox_that_ends_by_itself_is_waited_for(work: Workspace) -> None:
    with copy(SANDBOX, "sleep", "1"):
        record, said = unmount(work)
    assert record["cut_off"] == [] and "ended for them" not in said
    assert "Waiting up to 3 s for other mount namespaces that have it: " in said
    assert (work.path / "state").read_text() == "new"


def test_a_store_that_goes_away_ends_it_in_every_namespace(work: Workspace) -> None:
    subprocess.run(["sync", "-f", work.path], check=True)
    with copy(UNSHARE):
        shutil.rmtree(work.store)
        gone = work.cli("umount", work.path)
        assert gone.returncode == StoreGone.exit_code and "brought up to date" in gone.stderr
        assert not is_mounted(work.path) and (work.path / "state").read_text() == "new"
    assert work.pid is not None
    wait_for_exit(work.pid)
    work.pid = None


#: Changes a file by a mapping, and again when it is asked to end.
MAPPER = """
import mmap, os, sys, time
file = os.open(sys.argv[1], os.O_RDWR)
pages = mmap.mmap(file, 4096)
pages[0] = ord("1")
open(sys.argv[2] + ".begun", "w").close()
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
pages[0] = ord("2")
"""


@contextmanager
def fork_mapped_elsewhere(work: Workspace) -> Iterator[tuple[Path, Path]]:
    """A fork of which another namespace, which has nothing else of the workspace, has a file
    mapped; and the path whose appearance ends that."""
    (work.path / "file").write_bytes(b"0" * 4096)
    made = json.loads(succeed(work.cli("fork", "idea", "--json", "-w", work.path)).stdout)
    fork, flag, inside = Path(made["forks"][0]["path"]), work.path.parent / "end", work.path.parent
    inside /= "inside"
    inside.mkdir()
    only_the_fork = 'set -e; mount --bind "$1" "$2"; umount -l "$1" "$3"; shift 3; exec "$@"'
    shell = ["sh", "-c", only_the_fork, "sh", str(fork), str(inside), str(work.path)]
    run = [sys.executable, "-c", MAPPER, str(inside / "file"), str(flag)]
    with copy(AS_ROOT, *shell, *run):
        wait_until(Path(f"{flag}.begun").exists, "somebody has the fork's file mapped")
        yield fork, flag


@pytest.mark.needs_root
@pytest.mark.compiled_only
def test_a_fork_that_another_namespace_has_open_is_waited_for(work: Workspace) -> None:
    """What it changes in mapped pages meanwhile is kept."""
    with fork_mapped_elsewhere(work) as (fork, flag):
        command = [sys.executable, "-m", "ckptfs", "umount", work.path]
        asking = subprocess.Popen(
            command, env={**os.environ, **work.env}, stderr=subprocess.PIPE, text=True
        )
        assert asking.stderr is not None
        assert "Waiting up to 3 s" in asking.stderr.readline()
        flag.touch()
        asking.communicate(timeout=20)
    assert asking.returncode == 0 and work.pid is not None
    wait_for_exit(work.pid)
    work.mount()
    assert (fork / "file").read_bytes()[:2] == b"20"


@pytest.mark.deep
@pytest.mark.needs_root
@pytest.mark.compiled_only
def test_a_deleted_fork_ends_in_every_namespace_and_names_the_processes(work: Workspace) -> None:
    with fork_mapped_elsewhere(work):
        gone = work.cli("fork", "--delete", "idea", "--json", "-w", work.path)
    (record,) = json.loads(succeed(gone).stdout)["forks"]
    (user,) = record["cut_off"]
    assert user.startswith("python")
    last = work.path / ".checkpoints" / str(record["checkpoint"])
    assert (last / "file").read_bytes()[:2] == b"10"


@pytest.mark.needs_program("bwrap")
def test_force_does_not_wait(work: Workspace) -> None:
    with copy(SANDBOX):
        record, _ = unmount(work, "--force")
    assert not is_mounted(work.path) and (work.path / "state").read_text() == "new"
    assert record["write_back"]


def test_an_interrupted_umount_says_that_it_goes_on(work: Workspace) -> None:
    before = _sockets(work)
    with copy(UNSHARE):
        command = [sys.executable, "-m", "ckptfs", "umount", work.path]
        asking = subprocess.Popen(
            command, env={**os.environ, **work.env}, stderr=subprocess.PIPE, text=True
        )
        wait_until(lambda: _sockets(work) > before + 1, "the daemon was asked")
        asking.send_signal(signal.SIGINT)
        _, said = asking.communicate(timeout=20)
        assert asking.returncode == 130 and "goes on unmounting" in said
        assert work.pid is not None
        wait_for_exit(work.pid)
        work.pid = None
    assert not is_mounted(work.path) and (work.path / "state").read_text() == "new"


def _sockets(work: Workspace) -> int:
    """How many sockets the daemon has: one more with each client, and another one for each that it
    owes the end of an unmount."""
    found = 0
    for link in Path(f"/proc/{work.pid}/fd").iterdir():
        with suppress(OSError):
            found += os.readlink(link).startswith("socket:")
    return found


@pytest.mark.needs_root
def test_a_second_mount_in_this_namespace_is_named(work: Workspace) -> None:
    other = work.path.parent / "other"
    other.mkdir()
    subprocess.run(["mount", "--bind", work.path, other], check=True)
    refused = work.cli("umount", work.path)
    assert refused.returncode == MountpointBusy.exit_code and str(other) in refused.stderr
    assert (work.path / "state").read_text() == "new"
    unmount(work, "--force")
    subprocess.run(["umount", other], check=True)
    assert (work.path / "state").read_text() == "new"


@pytest.mark.needs_root
def test_a_namespace_that_follows_is_not_waited_for(work: Workspace) -> None:
    """As services of systemd have it: what is unmounted here is unmounted there."""
    shared = work.path.parent / "shared"
    shared.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", shared], check=True)
    subprocess.run(["mount", "--make-shared", shared], check=True)
    try:
        inner = Workspace(shared)
        inner.store, inner.env = work.path.parent / "inner store", work.env
        inner.mount()
        with copy(["unshare", "--mount", "--propagation", "slave"]):
            record, _ = unmount(inner)
            assert record["cut_off"] == []
    finally:
        subprocess.run(["umount", "-l", shared], check=True)


@pytest.mark.needs_root
def test_a_daemon_in_a_namespace_of_its_own_is_found_from_outside() -> None:
    with scratch(MEMORY) as base:
        made = Workspace(base)
        made.path.mkdir()
        command = [sys.executable, "-m", "ckptfs", "mount", made.path, "--store", made.store]
        inside = "; ".join(["set -e", '"$@"', f"echo new > {made.path}/state"])
        subprocess.run(
            ["unshare", "--mount", "sh", "-c", inside, "sh", *map(str, command)],
            env={**os.environ, **made.env},
            check=True,
            capture_output=True,
        )
        assert not is_mounted(made.path)
        assert "another mount namespace" in made.cli("status", "-w", made.path).stdout
        # To unmount what one does not see is for a signal.
        assert made.cli("umount", made.path).returncode == RefusedInSandbox.exit_code
        pid = made.status()["pid"]
        os.kill(pid, signal.SIGTERM)
        wait_for_exit(pid)
        assert (made.path / "state").read_text() == "new\n"


@pytest.mark.needs_root
def test_a_directory_unmounted_by_hand_is_current_while_another_namespace_has_it(
    work: Workspace,
) -> None:
    """The directory is in sight, so it is current at once, and `status` says what goes on."""
    with copy(UNSHARE):
        subprocess.run(["umount", work.path], check=True)
        state = work.path / "state"
        wait_until(lambda: state.read_text() == "new", "the directory is current")
        assert work.status()["state"] == "waiting for the last open file"
        record, _ = unmount(work, "--force")
        assert record["mounted"] is False
