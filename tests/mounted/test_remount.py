"""What is there after an unmount, and after the daemon was killed."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import lmdb
import pytest

from tests.support.errnos import fails
from tests.support.mounting import Workspace, is_mounted, scratch, succeed
from tests.support.trees import (
    Fifo,
    File,
    Link,
    Same,
    Tree,
    facts,
    fsync,
    make_durable,
    plant,
    stats,
    tree,
)
from tests.support.waiting import wait_for_exit, wait_until


def last_commit(store: Path) -> int:
    """The number of the last commit that is whole."""
    with lmdb.open(str(store), readonly=True, lock=False, create=False, max_dbs=0) as env:
        return int(env.info()["last_txnid"])


EVERYTHING: Tree = {
    "file": File("content", mode=0o640, mtime_ns=1_234_567_890_123_456_789),
    "empty": "",
    "large": os.urandom(500_000),
    "dir": {"sub": {"deep": "x"}, "void": {}},
    "link": Link("dir/sub/deep"),
    "twin": Same("large"),
    "pipe": Fifo(0o600),
    "\udcff": "not utf-8",
}


def work(path: Path) -> None:
    """A bit of every kind of change, on top of `EVERYTHING`."""
    os.rename(path / "dir/sub", path / "moved")
    os.link(path / "file", path / "moved/again")
    os.truncate(path / "large", 100_001)
    with open(path / "large", "r+b") as file:
        file.seek(300_000)
        file.write(b"after a hole")
    os.chmod(path / "empty", 0o4711)
    os.utime(path / "moved", ns=(1, 2))
    (path / "dir/void").rmdir()
    plant(path, {"late": {f"n{number}": str(number) for number in range(50)}})
    for number in range(0, 50, 2):
        (path / f"late/n{number}").unlink()
    with open(path / "appended", "ab") as file:
        file.write(b"one ")
        file.flush()
        file.write(b"two")


def test_everything_stat_says_is_the_same_after_a_remount(own_mount: Workspace) -> None:
    """Times, modes, sizes, blocks, link counts and inode numbers; content and links too."""
    plant(own_mount.path, EVERYTHING)
    work(own_mount.path)
    make_durable(own_mount.path)
    before, content = stats(own_mount.path), facts(own_mount.path)
    own_mount.remount()
    assert stats(own_mount.path) == before
    assert facts(own_mount.path) == content
    own_mount.remount()
    assert stats(own_mount.path) == before


@pytest.mark.needs_root
def test_owners_and_devices_are_the_same_after_a_remount(own_mount: Workspace) -> None:
    plant(own_mount.path, {"file": "x", "link": Link("file")})
    os.chown(own_mount.path / "file", 1234, 4_000_000_000)
    os.chown(own_mount.path / "link", 1, 2, follow_symlinks=False)
    os.mknod(own_mount.path / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    before = stats(own_mount.path)
    own_mount.remount()
    assert stats(own_mount.path) == before


def test_inode_numbers_are_not_given_twice(own_mount: Workspace) -> None:
    """A program that remembers inode numbers must not take a new file for an old one."""
    plant(own_mount.path, {"old": "x", "dir": {}})
    old = (own_mount.path / "old").stat().st_ino
    directory = (own_mount.path / "dir").stat().st_ino
    own_mount.remount()
    (own_mount.path / "old").unlink()
    own_mount.remount()
    plant(own_mount.path, {"new": "y", "newer": {}})
    inodes = {(own_mount.path / name).stat().st_ino for name in ("new", "newer", "dir")}
    if not own_mount.plain:
        assert old not in inodes
    assert (own_mount.path / "dir").stat().st_ino == directory
    assert len(inodes) == 3


def test_files_deleted_while_open_are_gone_after_a_remount(own_mount: Workspace) -> None:
    plant(own_mount.path, {"kept": "x", "doomed": "y" * 100_000})
    fd = os.open(own_mount.path / "doomed", os.O_RDWR)
    os.unlink(own_mount.path / "doomed")
    os.write(fd, b"z" * 200_000)
    os.close(fd)
    own_mount.remount()
    assert tree(own_mount.path) == {"kept": "x"}


def test_the_attributes_of_the_root_are_kept(own_mount: Workspace) -> None:
    os.chmod(own_mount.path, 0o711)
    os.utime(own_mount.path, ns=(5_000_000_005, 6_000_000_006))
    before = stats(own_mount.path)["."]
    own_mount.remount()
    assert stats(own_mount.path)["."] == before


# --- a daemon that dies ----------------------------------------------------------------------


def durable(path: Path, content: bytes) -> None:
    """Write, fsync the file, fsync its directory: what a database or an editor does."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fsync(path.parent)


def test_what_was_synced_survives_a_kill(own_mount: Workspace) -> None:
    data = os.urandom(1_000_000)
    durable(own_mount.path / "file", data)
    (own_mount.path / "dir").mkdir()
    os.symlink("file", own_mount.path / "dir/link")
    fsync(own_mount.path / "dir")
    own_mount.kill()
    own_mount.mount()
    assert (own_mount.path / "file").read_bytes() == data
    assert os.readlink(own_mount.path / "dir/link") == "file"


def test_fdatasync_brings_the_size_along(own_mount: Workspace) -> None:
    fd = os.open(own_mount.path / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    fsync(own_mount.path)
    for number in range(50):
        os.write(fd, b"line %03d\n" % number)
        os.fdatasync(fd)
    assert (own_mount.store / "journal").exists(), "most of it is there alone"
    own_mount.kill()
    close_quietly(fd)
    own_mount.mount()
    lines = (own_mount.path / "log").read_text().splitlines()
    assert lines == [f"line {number:03}" for number in range(50)]


def test_o_sync_writes_survive_a_kill(own_mount: Workspace) -> None:
    fd = os.open(own_mount.path / "log", os.O_CREAT | os.O_WRONLY | os.O_DSYNC)
    os.write(fd, b"x" * 70_000)
    own_mount.kill()
    close_quietly(fd)
    own_mount.mount()
    assert (own_mount.path / "log").read_bytes() == b"x" * 70_000


def test_a_save_by_rename_survives_a_kill_whole(own_mount: Workspace) -> None:
    durable(own_mount.path / "text", b"old")
    durable(own_mount.path / "text.new", b"new and longer")
    os.rename(own_mount.path / "text.new", own_mount.path / "text")
    fsync(own_mount.path)
    own_mount.kill()
    own_mount.mount()
    assert tree(own_mount.path) == {"text": "new and longer"}


def test_a_whole_synced_tree_survives_a_kill(own_mount: Workspace) -> None:
    plant(own_mount.path, EVERYTHING)
    work(own_mount.path)
    make_durable(own_mount.path)
    content = facts(own_mount.path)
    own_mount.kill()
    own_mount.mount()
    assert facts(own_mount.path) == content


def test_a_half_written_tree_is_the_truth_of_one_moment(own_mount: Workspace) -> None:
    """Files made in order, no sync: after a kill there is a beginning of the sequence."""
    for number in range(400):
        (own_mount.path / f"{number:04}").write_text("x" * number)
    own_mount.kill()
    own_mount.mount()
    names = sorted(os.listdir(own_mount.path))
    assert names == [f"{number:04}" for number in range(len(names))]


@pytest.mark.needs_mount
def test_what_is_old_enough_survives_a_kill_unasked(own_mount: Workspace) -> None:
    """Nobody syncs, and requests never pause: a commit comes every second all the same. It is given
    two more, since the machine may be busy."""
    made: list[float] = []
    while not made or made[-1] - made[0] < 5:
        (own_mount.path / f"{len(made):06}").write_text("x")
        made.append(time.monotonic())
    own_mount.kill()
    killed = time.monotonic()
    own_mount.mount()
    old = sum(1 for at in made if at < killed - 3)
    assert old > 100
    assert len(os.listdir(own_mount.path)) >= old


@pytest.mark.needs_mount
def test_what_is_left_alone_for_a_moment_survives_a_kill(own_mount: Workspace) -> None:
    before = last_commit(own_mount.store)
    (own_mount.path / "file").write_text("x")
    wait_until(lambda: last_commit(own_mount.store) > before, "the daemon commits")
    own_mount.kill()
    own_mount.mount()
    assert (own_mount.path / "file").read_text() == "x"


@pytest.mark.needs_mount
def test_a_dead_mountpoint_says_so_until_it_is_mounted_again(own_mount: Workspace) -> None:
    durable(own_mount.path / "file", b"x")
    own_mount.kill()
    with fails(errno.ENOTCONN):
        os.listdir(own_mount.path)
    own_mount.mount()
    assert tree(own_mount.path) == {"file": "x"}


@pytest.mark.needs_mount
def test_umount_clears_a_dead_mountpoint(own_mount: Workspace) -> None:
    durable(own_mount.path / "file", b"x")
    own_mount.kill()
    succeed(own_mount.cli("umount", own_mount.path))
    assert not is_mounted(own_mount.path)
    own_mount.mount()
    assert tree(own_mount.path) == {"file": "x"}


@pytest.mark.needs_mount
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_daemon_that_is_told_to_end_loses_nothing(
    own_mount: Workspace, number: signal.Signals
) -> None:
    """What a shutdown of the machine does. Nothing was synced, and all of it is there."""
    plant(own_mount.path, EVERYTHING)
    content = facts(own_mount.path)
    pid, own_mount.pid = own_mount.pid, None
    assert pid is not None
    os.kill(pid, number)
    wait_for_exit(pid)
    assert not is_mounted(own_mount.path)
    own_mount.mount()
    assert facts(own_mount.path) == content


def test_a_daemon_killed_again_and_again_loses_nothing_synced(own_mount: Workspace) -> None:
    for number in range(3):
        durable(own_mount.path / f"f{number}", b"%d" % number * 30_000)
        own_mount.kill()
        own_mount.mount()
        assert sorted(os.listdir(own_mount.path)) == [f"f{n}" for n in range(number + 1)]
    for number in range(3):
        assert (own_mount.path / f"f{number}").read_bytes() == b"%d" % number * 30_000


def close_quietly(fd: int) -> None:
    """Close a descriptor whose file system has gone."""
    try:
        os.close(fd)
    except OSError as error:
        assert error.errno in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)


HOLDS_THE_STORE = """
import sys
from pathlib import Path
from ckptfs.store import Store
store = Store.open(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
store.close()
"""


def test_a_mount_waits_for_a_verb_that_has_the_store_open(own_mount: Workspace) -> None:
    (own_mount.path / "file").write_text("content")
    own_mount.umount()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS_THE_STORE, own_mount.store],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as verb:
        assert verb.stdout is not None and verb.stdin is not None
        assert verb.stdout.readline() == b"open\n"
        ending = threading.Timer(1, verb.stdin.close)
        ending.start()
        try:
            own_mount.mount()
        finally:
            ending.join()
    assert (own_mount.path / "file").read_text() == "content"


def test_an_import_leaves_out_a_dead_mount_and_nothing_else(own_mount: Workspace) -> None:
    source = own_mount.path.parent
    for number in range(20):  # some are listed behind it
        (source / f"file {number}").write_text("content")
    own_mount.kill()
    with scratch() as base:
        store = base / "new"
        made = own_mount.cli("import", source, "--store", store, "--json")
        found = json.loads(succeed(made).stdout)
        assert own_mount.path.name in [item["path"] for item in found["skipped"]]
        read = own_mount.cli("export", base / "out", "--store", store)
        succeed(read)
        assert len(list((base / "out").glob("file *"))) == 20
    own_mount.mount()
