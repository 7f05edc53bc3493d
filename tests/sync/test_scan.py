"""Directory to store: what comes in, and what a second scan does not do again."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckptfs.model import BLOCK_SIZE, TIME_MAX_NS
from ckptfs.store import Store
from ckptfs.sync import import_tree, lower
from tests.support.trees import Directory, Fifo, File, Link, Same
from tests.sync.pair import Pair

EVERYTHING = {
    "empty": "",
    "small": File("hello", mode=0o4755, mtime_ns=1_234_567_890_123_456_789),
    "block": b"x" * BLOCK_SIZE,
    "large": bytes(range(256)) * 1024,
    "dir": Directory({"inner": {"deep": "d"}, "none": {}}, mode=0o1777, mtime_ns=77),
    "link": Link("nowhere/at all"),
    "pipe": Fifo(mode=0o640),
    "twin": Same("dir/inner/deep"),
    "\udcff\udcfe\n": "a name of any bytes",
    "n" * 255: "a long one",
}


@pytest.fixture(autouse=True, params=["compiled", "python"])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(lower, "pass_unchanged", None)
        monkeypatch.setattr(lower, "read_small", None)


def test_everything_comes_in(pair: Pair) -> None:
    pair.plant(EVERYTHING)
    os.utime(pair.lower / "link", ns=(5, 6), follow_symlinks=False)
    result = pair.scan()
    pair.assert_equal()
    assert (result.added, result.modified, result.deleted) == (13, 0, 0)
    assert result.conflicts == result.skipped == ()
    assert pair.inode("twin").ino == pair.inode("dir/inner/deep").ino


def test_a_second_scan_finds_nothing(pair: Pair) -> None:
    pair.plant(EVERYTHING)
    pair.scan()
    before = pair.stored()
    for _ in range(2):
        result = pair.scan()
        assert not result.changed and not result.skipped and result.bytes == 0
        assert result.unchanged == 10
    assert pair.stored() == before


def test_inode_numbers_survive_an_edit_of_the_lower_file(pair: Pair) -> None:
    pair.plant({"a": "one", "d": {"b": "two"}})
    pair.scan()
    a, b = pair.inode("a").ino, pair.inode("d/b").ino
    (pair.lower / "a").write_text("three")
    new = pair.lower / "d/new"
    new.write_text("saved by rename")
    new.rename(pair.lower / "d/b")
    result = pair.scan()
    assert (result.added, result.modified, result.deleted) == (0, 2, 0)
    assert (pair.inode("a").ino, pair.inode("d/b").ino) == (a, b)
    pair.assert_equal()


def test_only_changed_blocks_are_written(pair: Pair) -> None:
    path = pair.lower / "large"
    path.write_bytes(os.urandom(10 * BLOCK_SIZE))
    pair.scan()
    before = pair.inode("large")
    with path.open("r+b") as file:
        file.seek(5 * BLOCK_SIZE + 10)
        file.write(b"changed")
    pair.scan()
    assert pair.inode("large").content == before.content
    pair.assert_equal()


def test_a_touch_changes_times_only(pair: Pair) -> None:
    pair.plant({"a": "one"})
    pair.scan()
    before = pair.inode("a")
    os.utime(pair.lower / "a", ns=(1, 2))
    result = pair.scan()
    after = pair.inode("a")
    assert (after.mtime_ns, after.content, after.size) == (2, before.content, 3)
    assert result.modified == 1 and result.bytes == 0


def test_an_edit_that_keeps_size_and_mtime_is_seen(pair: Pair) -> None:
    pair.plant({"a": File("one", mtime_ns=5)})
    pair.scan()
    pair.plant({"a": File("two", mtime_ns=5)})
    assert pair.scan().modified == 1
    assert pair.read("a") == b"two"


def test_modes_and_owners_come_in(pair: Pair) -> None:
    pair.plant({"a": "", "d": {}})
    pair.scan()
    (pair.lower / "a").chmod(0o6711)
    (pair.lower / "d").chmod(0o2750)
    if os.geteuid() == 0:
        os.chown(pair.lower / "d", 12, 34)
    assert pair.scan().modified == 2
    pair.assert_equal()


def test_deletions_come_in(pair: Pair) -> None:
    pair.plant({"a": "", "d": {"e": {"f": "", "g": Link("x")}}, "keep": ""})
    pair.scan()
    (pair.lower / "a").unlink()
    (pair.lower / "d/e/f").unlink()
    (pair.lower / "d/e/g").unlink()
    (pair.lower / "d/e").rmdir()
    (pair.lower / "d").rmdir()
    assert pair.scan().deleted == 5
    pair.assert_equal()
    assert pair.names() == {".", "keep"}
    assert dict(pair.store.ledger.children(pair.inode("").ino)).keys() == {b"keep"}


@pytest.mark.parametrize(
    "old, new",
    [("file", Link("t")), (Link("t"), "file"), (Link("t"), Link("u")), ({"x": "y"}, "file"),
     ("file", {"x": "y"}), ({"x": {}}, Link("t")), (Fifo(), "file"), ("file", Fifo())],
)  # fmt: skip
def test_changes_of_type_come_in(pair: Pair, old: object, new: object) -> None:
    pair.plant({"a": old})  # type: ignore[dict-item]
    pair.scan()
    os.rename(pair.lower / "a", pair.root / "aside")
    pair.plant({"a": new})  # type: ignore[dict-item]
    result = pair.scan()
    assert result.conflicts == ()
    pair.assert_equal()


def test_sparse_files_stay_sparse(pair: Pair) -> None:
    path = pair.lower / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 30)
        file.write(b"data")
        file.seek((1 << 39) + 5)
        file.write(b"more")
    pair.scan()
    inode = pair.inode("sparse")
    assert inode.size == 1 << 40 and inode.allocated <= 2 * BLOCK_SIZE
    assert bytes(pair.fs.read(pair.fs.head, inode.ino, (1 << 39) + 5, 6)) == b"more\0\0"
    with path.open("r+b") as file:
        file.truncate(1 << 31)
    pair.scan()
    inode = pair.inode("sparse")
    assert inode.size == 1 << 31 and inode.allocated <= BLOCK_SIZE
    with path.open("r+b") as file:
        file.truncate(1 << 29)
    pair.scan()
    assert pair.inode("sparse").allocated == 0


def test_sockets_come_in(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pair.lower)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        pair.scan()
        pair.assert_equal()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_devices_come_in(pair: Pair) -> None:
    os.mknod(pair.lower / "null", 0o020666, os.makedev(1, 3))
    pair.scan()
    pair.assert_equal()


def test_hard_links_come_and_go(pair: Pair) -> None:
    pair.plant({"m": "content", "d": {}})
    pair.scan()
    ino = pair.inode("m").ino
    for new in ("a", "z", "d/q"):
        os.link(pair.lower / "m", pair.lower / new)
    assert pair.scan().added == 3
    pair.assert_equal()
    assert {pair.inode(name).ino for name in ("a", "m", "z", "d/q")} == {ino}
    assert not pair.scan().changed

    # One name is replaced by a copy of its own, one removed, the file itself edited in place.
    (pair.lower / "a").unlink()
    (pair.lower / "a").write_text("apart")
    (pair.lower / "z").unlink()
    with (pair.lower / "m").open("a") as file:
        file.write(" and more")
    pair.scan()
    pair.assert_equal()
    assert pair.inode("m").ino == pair.inode("d/q").ino != pair.inode("a").ino
    assert not pair.scan().changed


def test_all_names_of_a_file_may_be_deleted(pair: Pair) -> None:
    pair.plant({"a": "x", "b": Same("a"), "c": Same("a")})
    pair.scan()
    for name in "abc":
        (pair.lower / name).unlink()
    assert pair.scan().deleted == 3
    pair.assert_equal()


def test_a_name_may_move_from_one_group_of_links_to_another(pair: Pair) -> None:
    pair.plant({"a": "one", "b": Same("a"), "c": "two", "d": Same("c")})
    pair.scan()
    (pair.lower / "b").unlink()
    os.link(pair.lower / "c", pair.lower / "b")
    pair.scan()
    pair.assert_equal()


def test_user_xattrs_come_in(pair: Pair) -> None:
    pair.plant({"a": "x", "d": {}})
    try:
        os.setxattr(pair.lower / "a", "user.one", b"1")
    except OSError:
        pytest.skip("no user xattrs here")
    os.setxattr(pair.lower / "d", "user.two", b"\0\xff")
    pair.scan()
    head, fs = pair.fs.head, pair.fs
    assert fs.getxattr(head, pair.inode("a").ino, b"user.one") == b"1"
    assert fs.getxattr(head, pair.inode("d").ino, b"user.two") == b"\0\xff"
    os.removexattr(pair.lower / "a", "user.one")
    os.setxattr(pair.lower / "a", "user.three", b"3")
    assert pair.scan().modified == 1
    assert fs.listxattr(head, pair.inode("a").ino) == [b"user.three"]


# -- what is passed over ---------------------------------------------------------------------------


def test_the_reserved_name_is_left_out_at_the_root_only(pair: Pair) -> None:
    pair.plant({".checkpoints": {"x": "y"}, "d": {".checkpoints": "fine"}})
    result = pair.scan()
    assert pair.names() == {".", "d", "d/.checkpoints"}
    assert [item.path for item in result.skipped] == [b".checkpoints"]


def test_unfinished_files_of_this_store_are_removed_and_of_others_reported(pair: Pair) -> None:
    from ckptfs.sync.intent_log import make_temp_prefix

    own = os.fsdecode(make_temp_prefix(pair.fs)) + "7"
    pair.plant({own: "half", "d": {own: "half"}, ".ckptfs-tmp-feed-1": "another's"})
    result = pair.scan()
    assert pair.names() == {".", "d"}
    assert not (pair.lower / own).exists() and not (pair.lower / "d" / own).exists()
    assert (pair.lower / ".ckptfs-tmp-feed-1").exists()
    assert [item.path for item in result.skipped] == [b".ckptfs-tmp-feed-1"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a tmpfs")
def test_other_file_systems_are_not_entered(pair: Pair) -> None:
    pair.plant({"d": {"inside": "x"}, "new": {}})
    (pair.lower / "new").rmdir()
    pair.scan()
    (pair.lower / "new").mkdir()
    for name in ("d", "new"):
        subprocess.run(["mount", "-t", "tmpfs", "none", pair.lower / name], check=True)
    try:
        (pair.lower / "d/covering").write_text("y")
        (pair.lower / "new/covering").write_text("y")
        result = pair.scan()
    finally:
        for name in ("d", "new"):
            subprocess.run(["umount", pair.lower / name], check=True)
    assert {item.path for item in result.skipped} == {b"d", b"new"}
    assert pair.names() == {".", "d", "d/inside", "new"}
    assert not pair.scan().skipped
    assert pair.names() == {".", "d", "d/inside", "new"}


def test_a_link_to_a_directory_is_a_link(pair: Pair, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("s")
    pair.plant({"d": {"x": "y"}})
    pair.scan()
    (pair.lower / "d/x").unlink()
    (pair.lower / "d").rmdir()
    (pair.lower / "d").symlink_to(outside)
    pair.scan()
    assert pair.names() == {".", "d"}
    pair.assert_equal()


def test_deep_trees_come_in_and_go(pair: Pair) -> None:
    """Deeper than descriptors and the interpreter's stack would allow one each."""
    fd = os.open(pair.lower, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    assert pair.scan().added == 1501
    assert not pair.scan().changed
    # Python's own rmtree is recursive.
    subprocess.run(["rm", "-r", pair.lower / "d/d/d"], check=True)
    assert pair.scan().deleted == 1499
    pair.assert_equal()


def test_a_scan_reports_its_progress(pair: Pair) -> None:
    pair.plant({f"f{n}": "x" * n for n in range(600)})
    told = []
    pair.scan(progress=told.append)
    assert len(told) >= 3
    assert told[-1].files == told[-1].total_files == 600
    assert told[-1].bytes == sum(range(600))


@pytest.mark.parametrize("name", ["f", "d", "l", "."])
def test_times_beyond_64_bits_of_nanoseconds_are_clamped(pair: Pair, name: str) -> None:
    pair.plant({"f": "x", "d": {}, "l": Link("t")})
    far = 13_569_465_600 * 10**9 + 1
    os.utime(pair.lower / name, ns=(far, far), follow_symlinks=False)
    kept = os.lstat(pair.lower / name).st_mtime_ns
    pair.scan()
    if kept > TIME_MAX_NS:
        assert pair.inode("" if name == "." else name).mtime_ns == TIME_MAX_NS
    assert not pair.scan().changed
    assert not pair.write_back().changed
    assert os.lstat(pair.lower / name).st_mtime_ns == kept


def test_a_name_that_is_listed_twice_comes_in_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Btrfs does that with a file that an editor deletes and makes again meanwhile."""
    pair.plant({"f": "x", "dir": {"g": "y"}})
    scandir = os.scandir

    @contextmanager
    def twice(fd: int) -> Iterator[list[os.DirEntry[str]]]:
        with scandir(fd) as entries:
            yield list(entries) * 2

    monkeypatch.setattr(os, "scandir", twice)
    assert pair.scan().added == 3
    monkeypatch.undo()
    pair.assert_equal()


def test_a_name_that_is_listed_twice_is_not_new(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.plant({"f": "x", "g": "y"})
    pair.scan()
    pass_unchanged = lower.pass_unchanged
    if pass_unchanged is None:
        return

    def twice(fd: int, known: dict[bytes, bytes], version: int) -> tuple[int, list[bytes]]:
        count, names = pass_unchanged(fd, known, version)
        return count, [*names, b"f", b"f", *names]

    monkeypatch.setattr(lower, "pass_unchanged", twice)
    assert not pair.scan().changed
    pair.assert_equal()


def test_files_of_a_new_root_keep_out_of_the_reserved_name(pair: Pair) -> None:
    pair.plant({".checkpoints": "a file", "f": "x"})
    result = pair.scan()
    assert result.added == 1 and [item.path for item in result.skipped] == [b".checkpoints"]
    assert pair.exists("f") and not pair.exists(".checkpoints")


@pytest.mark.parametrize("verb", ["scan", "import"])
def test_what_came_in_before_a_failure_can_be_found(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    pair.plant({name: name for name in "abc"})
    pread, count = os.pread, 0

    def failing(fd: int, size: int, offset: int) -> bytes:
        nonlocal count
        count += 1
        if count == 3:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return pread(fd, size, offset)

    monkeypatch.setattr(lower, "read_small", None)  # it reads without it
    monkeypatch.setattr(os, "pread", failing)
    with pytest.raises(OSError, match="Too many open files"):
        pair.scan() if verb == "scan" else import_tree(pair.fs, pair.lower)
    monkeypatch.undo()
    assert sum(pair.exists(name) for name in "abc") == 2
    pair.fs.commit()
    pair.check()


def test_a_scan_looks_at_the_map_of_the_store_now_and_then(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every record that it comes by would count as this process's memory to its end."""
    pair.plant({str(number): {} for number in range(200)})
    pair.scan()
    trimmed: list[Store] = []
    monkeypatch.setattr(Store, "trim", lambda store: trimmed.append(store))
    pair.scan()
    assert len(trimmed) == 3
