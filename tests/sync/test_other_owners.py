"""Root's store and a directory of other users: whose is what, on both sides, and with which rights.

Nobody attacks here; `test_attackers.py` does.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckptfs.model import BLOCK_SIZE, Attributes
from ckptfs.sync import SyncResult, export_tree, lower, materialise
from tests.support.trees import File
from tests.sync.pair import Pair

NOBODY = 65_534
THIRD = 65_533

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: files of others")


@pytest.fixture
def theirs(memory_path: Path) -> Iterator[Pair]:
    """A pair whose lower directory is another user's."""
    pair = Pair(memory_path)
    os.chown(pair.lower, NOBODY, NOBODY)
    pair.scan()
    yield pair
    pair.close()


def give(pair: Pair, name: str, mode: int, uid: int, gid: int | None = None) -> None:
    attributes = Attributes(mode=mode, uid=uid, gid=uid if gid is None else gid)
    pair.fs.setattr(pair.fs.head, pair.inode(name).ino, attributes)


def _set_attribute(pair: Pair, name: str) -> None:
    pair.fs.setxattr(pair.fs.head, pair.inode(name).ino, b"user.note", b"kept")


def owner(path: Path) -> tuple[int, int, int]:
    seen = path.lstat()
    return stat.S_IMODE(seen.st_mode), seen.st_uid, seen.st_gid


def agreed(pair: Pair, result: SyncResult) -> None:
    assert result.skipped == result.conflicts == ()
    pair.assert_equal()
    assert not pair.scan().changed
    assert not pair.write_back().changed


@as_root
def test_every_owner_comes_back(theirs: Pair) -> None:
    """As on any file system: what root made in the user's directory is root's."""
    for name, mode, uid in (
        ("roots", 0o600, 0),
        ("tool", 0o4755, 0),
        ("users", 0o644, NOBODY),
        ("own tool", 0o4711, NOBODY),
        ("third", 0o640, THIRD),
    ):
        theirs.write(name, name)
        give(theirs, name, stat.S_IFREG | mode, uid)
    for name, uid in (("dir", NOBODY), ("roots dir", 0), ("third dir", THIRD)):
        theirs.mkdir(name)
        theirs.write(f"{name}/file", "x")
        give(theirs, name, stat.S_IFDIR | 0o2750, uid)
        theirs.symlink(f"{name}/link", "file")
        give(theirs, f"{name}/link", stat.S_IFLNK | 0o777, uid)
        theirs.mknod(f"{name}/pipe", stat.S_IFIFO | 0o600)
        give(theirs, f"{name}/pipe", stat.S_IFIFO | 0o620, uid, THIRD)
    theirs.mknod("device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    give(theirs, "device", stat.S_IFCHR | 0o660, NOBODY)
    theirs.link("third", "dir/third")
    agreed(theirs, theirs.write_back())
    out = theirs.root / "out"
    assert export_tree(theirs.fs, theirs.fs.head, out).skipped == ()
    assert owner(out / "third dir") == (0o2750, THIRD, THIRD)


@as_root
def test_changed_attributes_come_back(theirs: Pair) -> None:
    theirs.plant({"a": File("a", 0o644), "b": File("b", 0o4755), "c": "c", "d": {"e": "e"}})
    for name in ("a", "b", "c", "d", "d/e"):
        os.chown(theirs.lower / name, NOBODY, NOBODY)
    (theirs.lower / "b").chmod(0o4755)
    theirs.scan()
    numbers = {name: (theirs.lower / name).stat().st_ino for name in "abc"}
    give(theirs, "a", stat.S_IFREG | 0o600, NOBODY)
    give(theirs, "b", stat.S_IFREG | 0o4750, NOBODY)
    give(theirs, "c", stat.S_IFREG | 0o644, THIRD)
    give(theirs, "d", stat.S_IFDIR | 0o555, NOBODY)
    agreed(theirs, theirs.write_back())
    now = {name: (theirs.lower / name).stat().st_ino for name in "abc"}
    # Attributes alone are changed in place; rights and owners come with a new file.
    assert now["a"] == numbers["a"] and now["b"] != numbers["b"] and now["c"] != numbers["c"]
    theirs.write("d/e", "in a directory that its owner may not write to")
    theirs.write("d/new", "likewise")
    agreed(theirs, theirs.write_back())
    theirs.remove("d")
    agreed(theirs, theirs.write_back())


@as_root
def test_a_new_time_leaves_the_set_group_id_bit(theirs: Pair) -> None:
    """The owner of the directory may not be in the group of the file: chmod(2) would clear it."""
    theirs.plant({"tool": File("run me", 0o755)})
    os.chown(theirs.lower / "tool", NOBODY, THIRD)
    (theirs.lower / "tool").chmod(0o2755)
    theirs.scan()
    theirs.touch("tool", 1_000_000_000)
    agreed(theirs, theirs.write_back())
    assert owner(theirs.lower / "tool") == (0o2755, NOBODY, THIRD)


@as_root
def test_a_read_only_file_of_another_user_gets_its_attributes(theirs: Pair) -> None:
    theirs.plant({"object": File("x", 0o444)})
    os.chown(theirs.lower / "object", NOBODY, NOBODY)
    theirs.scan()
    _set_attribute(theirs, "object")
    agreed(theirs, theirs.write_back())
    assert owner(theirs.lower / "object") == (0o444, NOBODY, NOBODY)
    assert os.getxattr(theirs.lower / "object", "user.note") == b"kept"


@as_root
def test_directories_of_several_owners_are_moved(theirs: Pair) -> None:
    for name, uid in (("users", NOBODY), ("roots", 0)):
        theirs.mkdir(name)
        theirs.mkdir(f"{name}/sub", 0o555)
        theirs.write(f"{name}/sub/file", name)
        give(theirs, name, stat.S_IFDIR | 0o755, uid)
        give(theirs, f"{name}/sub", stat.S_IFDIR | 0o555, uid)
    agreed(theirs, theirs.write_back())
    theirs.rename("users/sub", "roots/moved")
    theirs.rename("roots/sub", "users/moved")
    assert theirs.write_back().skipped == ()
    for name, uid in (("users/moved", 0), ("roots/moved", NOBODY)):
        assert owner(theirs.lower / name) == (0o555, uid, uid)
    assert (theirs.lower / "users/moved/file").read_text() == "roots"
    assert (theirs.lower / "roots/moved/file").read_text() == "users"


@as_root
def test_a_file_that_only_root_may_read_stays_so(theirs: Pair) -> None:
    """Root reads through a hard link what the owner of the directory may not; its mode and owner
    come with it."""
    secret = theirs.root / "secret"
    secret.write_text("root's alone")
    secret.chmod(0o600)
    os.link(secret, theirs.lower / "linked")
    theirs.scan()
    inode = theirs.inode("linked")
    assert (stat.S_IMODE(inode.mode), inode.uid) == (0o600, 0)


# -- rights and content ----------------------------------------------------------------------------


def _as_root_4755(pair: Pair) -> None:
    give(pair, "f", stat.S_IFREG | 0o4755, 0)


def _root_4755_lower(pair: Pair) -> None:
    os.chown(pair.lower / "f", 0, 0)
    (pair.lower / "f").chmod(0o4755)


def _text_lower(pair: Pair) -> None:
    (pair.lower / "f").write_text("edited below")


def _text_in_store(pair: Pair) -> None:
    pair.write("f", "edited in the store")


@as_root
@pytest.mark.parametrize(
    ("lower", "store"), [(_text_lower, _as_root_4755), (_root_4755_lower, _text_in_store)]
)
def test_rights_of_one_side_are_not_put_on_the_content_of_the_other(
    theirs: Pair, lower: Callable[[Pair], None], store: Callable[[Pair], None]
) -> None:
    theirs.plant({"f": File("f", 0o755)})
    os.chown(theirs.lower / "f", NOBODY, NOBODY)
    theirs.scan()
    lower(theirs)
    store(theirs)
    result = theirs.scan()
    assert [item.kept_as for item in result.conflicts] == [b"f.below"]
    theirs.write_back()
    found = {name: (theirs.inode(name), theirs.read(name)) for name in ("f", "f.below")}
    for inode, data in found.values():
        if inode.mode & stat.S_ISUID:
            assert (inode.uid, data) == (0, b"f")
    theirs.assert_equal()


@as_root
def test_the_mode_of_one_file_does_not_open_another(theirs: Pair) -> None:
    """Somebody put a closed file under the name of one that was opened in the store."""
    theirs.plant({"f": File("for all", 0o600), "closed": File("for root", 0o600)})
    theirs.scan()
    theirs.chmod("f", 0o644)
    os.rename(theirs.lower / "closed", theirs.lower / "f")
    result = theirs.write_back()
    assert [item.path for item in result.conflicts] == [b"f"]
    for name in ("f", "f.below"):
        if theirs.read(name) == b"for root":
            assert not theirs.inode(name).mode & 0o077
    theirs.assert_equal()


@as_root
@pytest.mark.parametrize("size", [8, 4 * BLOCK_SIZE])
def test_a_file_that_is_closed_while_it_is_read_stays_closed(
    theirs: Pair, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Opened for all when the scan comes to it, and closed before its content is written."""
    path = theirs.lower / "f"
    path.write_bytes(b"public!\n" * (size // 8))
    path.chmod(0o644)
    pread, preadv = os.pread, os.preadv

    def closing(read: Callable[..., object]) -> Callable[..., object]:
        def wrapped(fd: int, *args: object) -> object:
            if os.readlink(f"/proc/self/fd/{fd}") == str(path) and path.stat().st_mode & 0o077:
                path.chmod(0o600)
                path.write_bytes(b"secret!\n" * (size // 8))
            return read(fd, *args)

        return wrapped

    monkeypatch.setattr(lower, "read_small", None)  # it reads without these
    monkeypatch.setattr(os, "pread", closing(pread))
    monkeypatch.setattr(os, "preadv", closing(preadv))
    theirs.scan()
    monkeypatch.undo()
    if theirs.exists("f") and b"secret" in theirs.read("f"):
        assert not theirs.inode("f").mode & 0o077
    theirs.scan()
    assert stat.S_IMODE(theirs.inode("f").mode) == 0o600
    theirs.assert_equal()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes an ordinary user")
def test_an_ordinary_user_never_lends_its_rights(memory_path: Path) -> None:
    """A program that another user made set-user-id, and that cannot be given to that one."""
    os.chown(memory_path, NOBODY, NOBODY)
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        pair = Pair(memory_path)
        pair.scan()
        pair.write("theirs", "run me as whoever owns me")
        give(pair, "theirs", stat.S_IFREG | 0o4755, THIRD)
        pair.write("own", "x")
        give(pair, "own", stat.S_IFREG | 0o4755, NOBODY)
        result = pair.write_back()
        assert [(item.path, item.reason) for item in result.skipped] == [
            (b"theirs", materialise.NO_SET_ID)
        ]
        assert owner(pair.lower / "theirs")[:2] == (0o755, NOBODY)
        assert owner(pair.lower / "own")[:2] == (0o4755, NOBODY)
        assert pair.write_back().skipped == ()
        assert not pair.scan().changed
        assert stat.S_IMODE(pair.inode("theirs").mode) == 0o4755
        exported = export_tree(pair.fs, pair.fs.head, memory_path / "out")
        assert [item.path for item in exported.skipped] == [b"theirs"]
        pair.close()
    finally:
        os.seteuid(0)
        os.setegid(0)
