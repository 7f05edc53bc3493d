"""rename and renameat2: every pair of types, every flag, and what stays as it was on failure."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.errnos import fails
from tests.support.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2
from tests.support.trees import Fifo, Link, Node, Same, plant, tree

#: What stands at "old" and "new", and the errno, or None where "old" takes the place of "new".
MATRIX: dict[str, tuple[Node, Node, int | None]] = {
    "file over file": ("old", "new", None),
    "file over link": ("old", Link("nowhere"), None),
    "file over fifo": ("old", Fifo(), None),
    "file over empty directory": ("old", {}, errno.EISDIR),
    "file over full directory": ("old", {"x": ""}, errno.EISDIR),
    "link over file": (Link("target"), "new", None),
    "link over link": (Link("target"), Link("other"), None),
    "link over directory": (Link("target"), {}, errno.EISDIR),
    "fifo over file": (Fifo(), "new", None),
    "directory over empty directory": ({"inside": "x"}, {}, None),
    "empty directory over empty directory": ({}, {}, None),
    "directory over full directory": ({"inside": "x"}, {"x": ""}, errno.ENOTEMPTY),
    "directory over file": ({"inside": "x"}, "new", errno.ENOTDIR),
    "directory over link to directory": ({"inside": "x"}, Link("."), errno.ENOTDIR),
}


@pytest.mark.parametrize("where", ["same directory", "another directory"])
@pytest.mark.parametrize("old, new, number", MATRIX.values(), ids=MATRIX.keys())
def test_a_rename_over_a_name_replaces_it_or_is_refused(
    mount: Path, old: Node, new: Node, number: int | None, where: str
) -> None:
    target = "new" if where == "same directory" else "dir/new"
    plant(mount, {"old": old, "dir": {}})
    plant((mount / target).parent, {"new": new})
    before = tree(mount)
    if number is not None:
        with fails(number):
            os.rename(mount / "old", mount / target)
        assert tree(mount) == before
        return
    ino = os.lstat(mount / "old").st_ino
    os.rename(mount / "old", mount / target)
    expected = {"new": before["old"]}
    assert tree(mount) == (
        {"dir": {}, **expected} if where == "same directory" else {"dir": expected}
    )
    assert os.lstat(mount / target).st_ino == ino


FREE: Mapping[str, Node] = {
    "file": "content",
    "directory": {"deep": {"x": "1"}},
    "link": Link("nowhere"),
    "fifo": Fifo(),
}


@pytest.mark.parametrize("node", FREE.values(), ids=FREE.keys())
def test_a_rename_to_a_free_name_keeps_the_inode(mount: Path, node: Node) -> None:
    plant(mount, {"old": node, "dir": {}})
    expected = tree(mount)["old"]
    os.rename(mount / "old", mount / "new")
    assert tree(mount) == {"dir": {}, "new": expected}
    os.rename(mount / "new", mount / "dir/newer")
    assert tree(mount) == {"dir": {"newer": expected}}
    os.rename(mount / "dir/newer", mount / "dir/newer")
    assert tree(mount) == {"dir": {"newer": expected}}


def test_a_directory_cannot_be_moved_into_itself(mount: Path) -> None:
    plant(mount, {"a": {"b": {"c": {}}}})
    for target in ("a/x", "a/b/x", "a/b/c/x"):
        with fails(errno.EINVAL):
            os.rename(mount / "a", mount / target)
    with fails(errno.ENOTEMPTY):
        os.rename(mount / "a/b/c", mount / "a")
    assert tree(mount) == {"a": {"b": {"c": {}}}}


def test_a_rename_of_nothing_is_refused(mount: Path) -> None:
    plant(mount, {"file": "x"})
    with fails(errno.ENOENT):
        os.rename(mount / "none", mount / "file")
    with fails(errno.ENOENT):
        os.rename(mount / "file", mount / "none/file")
    with fails(errno.ENOTDIR):
        os.rename(mount / "file", mount / "file/x")
    assert tree(mount) == {"file": "x"}


def test_rename_over_another_name_of_the_same_file_does_nothing(mount: Path) -> None:
    plant(mount, {"a": "x", "b": Same("a")})
    os.rename(mount / "a", mount / "b")
    assert tree(mount) == {"a": "x", "b": "x"}
    assert (mount / "a").stat().st_nlink == 2


def test_a_rename_of_one_of_several_names_leaves_the_others(mount: Path) -> None:
    plant(mount, {"a": "x", "b": Same("a"), "c": "other", "dir": {}})
    os.rename(mount / "b", mount / "dir/b")
    os.rename(mount / "dir/b", mount / "c")
    assert tree(mount) == {"a": "x", "c": "x", "dir": {}}
    assert (mount / "a").stat().st_nlink == 2
    assert (mount / "a").stat().st_ino == (mount / "c").stat().st_ino


def test_the_replaced_file_loses_one_name(mount: Path) -> None:
    plant(mount, {"new": "replaced", "kept": Same("new"), "old": "x"})
    fd = os.open(mount / "new", os.O_RDONLY)
    try:
        os.rename(mount / "old", mount / "new")
        assert os.fstat(fd).st_nlink == 1
        assert os.read(fd, 99) == b"replaced"
    finally:
        os.close(fd)
    assert tree(mount) == {"kept": "replaced", "new": "x"}


def test_an_open_file_that_is_replaced_lives_on(mount: Path) -> None:
    plant(mount, {"new": "replaced", "old": "x"})
    fd = os.open(mount / "new", os.O_RDWR)
    try:
        os.rename(mount / "old", mount / "new")
        assert os.fstat(fd).st_nlink == 0
        os.pwrite(fd, b"REP", 0)
        assert os.pread(fd, 99, 0) == b"REPlaced"
    finally:
        os.close(fd)
    assert tree(mount) == {"new": "x"}


def test_an_open_file_follows_its_rename(mount: Path) -> None:
    plant(mount, {"old": "x", "dir": {}})
    with open(mount / "old", "a") as file:
        os.rename(mount / "old", mount / "dir/new")
        file.write("y")
    assert tree(mount) == {"dir": {"new": "xy"}}


def test_dotdot_of_a_moved_directory_leads_to_its_new_parent(mount: Path) -> None:
    plant(mount, {"a": {"sub": {}}, "b": {}})
    os.rename(mount / "a/sub", mount / "b/sub")
    assert os.stat(f"{mount}/b/sub/..").st_ino == (mount / "b").stat().st_ino
    assert (mount / "a").stat().st_nlink == 2
    assert (mount / "b").stat().st_nlink == 3


@pytest.mark.parametrize("new", ["new", {}, {"x": ""}, Link("nowhere"), Same("old")])
def test_noreplace_over_anything_fails(mount: Path, new: Node) -> None:
    plant(mount, {"old": "x", "new": new})
    before = tree(mount)
    with fails(errno.EEXIST):
        renameat2(mount / "old", mount / "new", RENAME_NOREPLACE)
    assert tree(mount) == before


def test_a_rename_without_replacing_takes_a_free_name(mount: Path) -> None:
    plant(mount, {"old": "x", "dir": {"y": ""}})
    renameat2(mount / "old", mount / "dir/new", RENAME_NOREPLACE)
    renameat2(mount / "dir", mount / "dir2", RENAME_NOREPLACE)
    assert tree(mount) == {"dir2": {"new": "x", "y": ""}}


EXCHANGES: dict[str, tuple[Node, Node]] = {
    "two files": ("a", "b"),
    "file and full directory": ("a", {"x": {"y": "z"}}),
    "two full directories": ({"1": "a"}, {"2": {}}),
    "link and file": (Link("nowhere"), "b"),
    "fifo and directory": (Fifo(), {}),
}


@pytest.mark.parametrize("where", ["b", "dir/b"])
@pytest.mark.parametrize("one, other", EXCHANGES.values(), ids=EXCHANGES.keys())
def test_an_exchange_swaps_two_names(mount: Path, one: Node, other: Node, where: str) -> None:
    plant(mount, {"a": one, "dir": {}})
    plant((mount / where).parent, {"b": other})
    first, second = tree(mount)["a"], tree((mount / where).parent)["b"]
    inos = os.lstat(mount / "a").st_ino, os.lstat(mount / where).st_ino
    renameat2(mount / "a", mount / where, RENAME_EXCHANGE)
    assert tree(mount)["a"] == second
    assert tree((mount / where).parent)["b"] == first
    assert (os.lstat(mount / where).st_ino, os.lstat(mount / "a").st_ino) == inos
    links = 2 + sum(entry.is_dir(follow_symlinks=False) for entry in os.scandir(mount / "dir"))
    assert (mount / "dir").stat().st_nlink == links


def test_exchange_moves_dotdot_too(mount: Path) -> None:
    plant(mount, {"a": {"x": {}}, "b": {"y": {}}})
    renameat2(mount / "a/x", mount / "b/y", RENAME_EXCHANGE)
    assert os.stat(f"{mount}/a/x/..").st_ino == (mount / "a").stat().st_ino
    assert os.stat(f"{mount}/b/y/..").st_ino == (mount / "b").stat().st_ino


def test_an_impossible_exchange_is_refused(mount: Path) -> None:
    plant(mount, {"a": {"b": {}}, "file": "x"})
    with fails(errno.ENOENT):
        renameat2(mount / "file", mount / "none", RENAME_EXCHANGE)
    with fails(errno.EINVAL):
        renameat2(mount / "a", mount / "a/b", RENAME_EXCHANGE)
    with fails(errno.EINVAL):
        renameat2(mount / "a/b", mount / "a", RENAME_EXCHANGE)
    with fails(errno.EINVAL):
        renameat2(mount / "a", mount / "file", RENAME_EXCHANGE | RENAME_NOREPLACE)
    assert tree(mount) == {"a": {"b": {}}, "file": "x"}


def test_out_of_the_workspace_is_another_file_system(shared: object, mount: Path) -> None:
    """EXDEV, which makes mv copy. On a plain directory /dev/shm or /tmp is elsewhere."""
    plant(mount, {"file": "x"})
    outside = next(
        path for path in ("/dev/shm", "/run", "/") if os.stat(path).st_dev != mount.stat().st_dev
    )
    with fails(errno.EXDEV):
        os.rename(mount / "file", Path(outside, "ckptfs-test-never-made"))
    with fails(errno.EXDEV):
        os.link(mount / "file", Path(outside, "ckptfs-test-never-made"))
    assert tree(mount) == {"file": "x"}


def test_a_rename_hides_no_moment(mount: Path) -> None:
    """A name that is replaced again and again is there, whole, whenever somebody looks."""
    plant(mount, {"name": "0" * 100})
    with open(mount / "name") as held:
        for number in range(200):
            (mount / "next").write_text(str(number % 10) * 100)
            os.rename(mount / "next", mount / "name")
            assert (mount / "name").read_text() == str(number % 10) * 100
        assert held.read() == "0" * 100
    assert os.listdir(mount) == ["name"]
