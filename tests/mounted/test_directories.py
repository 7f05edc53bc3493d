"""Making and removing directories, link counts, and the errors POSIX gives for each misuse."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.errnos import fails
from tests.support.trees import Fifo, Link, Tree, plant, tree


def test_a_new_directory_is_empty_and_has_two_links(mount: Path) -> None:
    (mount / "dir").mkdir()
    assert os.listdir(mount / "dir") == []
    assert (mount / "dir").stat().st_nlink == 2


def test_a_directory_has_a_link_more_for_each_subdirectory(mount: Path) -> None:
    (mount / "dir").mkdir()
    plant(mount / "dir", {"a": {}, "b": {"deeper": {}}, "c": {}, "file": "", "link": Link("a")})
    assert (mount / "dir").stat().st_nlink == 2 + 3
    (mount / "dir/a").rmdir()
    assert (mount / "dir").stat().st_nlink == 2 + 2
    (mount / "dir/b/deeper").rename(mount / "dir/deeper")
    assert (mount / "dir").stat().st_nlink == 2 + 3
    assert (mount / "dir/b").stat().st_nlink == 2
    (mount / "dir/c").rename(mount / "c")
    assert (mount / "dir").stat().st_nlink == 2 + 2
    (mount / "dir/b").rename(mount / "dir/deeper")
    assert (mount / "dir").stat().st_nlink == 2 + 1


def test_mkdir_over_anything_that_exists_is_refused(mount: Path) -> None:
    before: Tree = {
        "dir": {"x": "kept"},
        "file": "kept",
        "fifo": Fifo(),
        "dangling": Link("nowhere"),
    }
    plant(mount, before)
    for name in before:
        with fails(errno.EEXIST):
            (mount / name).mkdir()
    assert tree(mount) == dict(sorted(before.items()))


def test_rmdir_of_a_directory_with_content_is_refused(mount: Path) -> None:
    plant(mount, {"file": {"x": ""}, "dir": {"x": {}}, "dangling": {"x": Link("nowhere")}})
    for name in os.listdir(mount):
        with fails(errno.ENOTEMPTY, errno.EEXIST):
            (mount / name).rmdir()
    assert tree(mount) == {"dangling": {"x": Link("nowhere")}, "dir": {"x": {}}, "file": {"x": ""}}


def test_rmdir_works_after_the_content_has_gone(mount: Path) -> None:
    plant(mount, {"dir": {"file": "", "sub": {}}})
    (mount / "dir/file").unlink()
    (mount / "dir/sub").rename(mount / "sub")
    (mount / "dir").rmdir()
    assert tree(mount) == {"sub": {}}


MISUSE: dict[str, tuple[Callable[[Path], object], int]] = {
    "rmdir of a file": (lambda here: os.rmdir(here / "file"), errno.ENOTDIR),
    "rmdir of a link to a directory": (lambda here: os.rmdir(here / "link"), errno.ENOTDIR),
    "rmdir of nothing": (lambda here: os.rmdir(here / "none"), errno.ENOENT),
    "unlink of a directory": (lambda here: os.unlink(here / "dir"), errno.EISDIR),
    "unlink of nothing": (lambda here: os.unlink(here / "none"), errno.ENOENT),
    "open a directory to write": (lambda here: os.open(here / "dir", os.O_WRONLY), errno.EISDIR),
    "open a directory to read and write": (
        lambda here: os.open(here / "dir", os.O_RDWR),
        errno.EISDIR,
    ),
    "create over a directory": (
        lambda here: os.open(here / "dir", os.O_CREAT | os.O_WRONLY),
        errno.EISDIR,
    ),
    "truncate a directory": (lambda here: os.truncate(here / "dir", 0), errno.EISDIR),
    "read a directory": (lambda here: _read(here / "dir"), errno.EISDIR),
    "a file as a directory": (lambda here: os.stat(here / "file/x"), errno.ENOTDIR),
    "create below a file": (
        lambda here: os.open(here / "file/x", os.O_CREAT | os.O_WRONLY),
        errno.ENOTDIR,
    ),
    "mkdir below a file": (lambda here: os.mkdir(here / "file/x"), errno.ENOTDIR),
    "list a file": (lambda here: os.listdir(here / "file"), errno.ENOTDIR),
    "a file with a slash": (lambda here: os.stat(f"{here}/file/"), errno.ENOTDIR),
    "unlink of a file with a slash": (lambda here: os.unlink(f"{here}/file/"), errno.ENOTDIR),
    "O_DIRECTORY of a file": (
        lambda here: os.open(here / "file", os.O_RDONLY | os.O_DIRECTORY),
        errno.ENOTDIR,
    ),
    "create below nothing": (
        lambda here: os.open(here / "none/x", os.O_CREAT | os.O_WRONLY),
        errno.ENOENT,
    ),
    "mkdir below nothing": (lambda here: os.mkdir(here / "none/x"), errno.ENOENT),
    "symlink below nothing": (lambda here: os.symlink("t", here / "none/x"), errno.ENOENT),
    "open nothing": (lambda here: os.open(here / "none", os.O_RDONLY), errno.ENOENT),
    "chmod of nothing": (lambda here: os.chmod(here / "none", 0o600), errno.ENOENT),
    "truncate of nothing": (lambda here: os.truncate(here / "none", 0), errno.ENOENT),
    "readlink of a file": (lambda here: os.readlink(here / "file"), errno.EINVAL),
    "readlink of a directory": (lambda here: os.readlink(here / "dir"), errno.EINVAL),
}


def _read(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, 1)
    finally:
        os.close(fd)


@pytest.mark.parametrize("call, number", MISUSE.values(), ids=MISUSE.keys())
def test_a_misused_call_is_refused_and_changes_nothing(
    mount: Path, call: Callable[[Path], object], number: int
) -> None:
    before: Tree = {"dir": {"inside": "kept"}, "file": "kept", "link": Link("dir")}
    plant(mount, before)
    with fails(number):
        call(mount)
    assert tree(mount) == before


def test_a_removed_current_directory_is_empty_and_takes_no_entries(mount: Path) -> None:
    (mount / "dir").mkdir()
    home = os.open(".", os.O_RDONLY)
    os.chdir(mount / "dir")
    try:
        (mount / "dir").rmdir()
        with fails(errno.ENOENT):
            os.getcwd()
        assert os.listdir(".") == []
        with fails(errno.ENOENT):
            os.mkdir("new")
        with fails(errno.ENOENT):
            os.open("new", os.O_CREAT | os.O_WRONLY)
    finally:
        os.fchdir(home)
        os.close(home)
    assert os.listdir(mount) == []


def test_a_removed_directory_held_open_takes_nothing_new(mount: Path) -> None:
    (mount / "dir").mkdir()
    held = os.open(mount / "dir", os.O_RDONLY)
    try:
        (mount / "dir").rmdir()
        assert os.fstat(held).st_nlink == 0
        for create in (os.mkdir, lambda name, dir_fd: os.symlink("t", name, dir_fd=dir_fd)):
            with fails(errno.ENOENT):
                create("new", dir_fd=held)
        (mount / "dir").mkdir()
        assert os.fstat(held).st_ino != (mount / "dir").stat().st_ino
    finally:
        os.close(held)


def test_a_directory_that_comes_back_is_a_new_one(mount: Path) -> None:
    for round_number in range(20):
        (mount / "dir").mkdir()
        assert os.listdir(mount / "dir") == []
        (mount / "dir/file").write_text(str(round_number))
        (mount / "dir/file").unlink()
        (mount / "dir").rmdir()
        assert not (mount / "dir").exists()


def test_the_current_directory_follows_a_rename(mount: Path) -> None:
    plant(mount, {"dir": {}, "other": {}})
    home = os.open(".", os.O_RDONLY)
    os.chdir(mount / "dir")
    try:
        os.rename(mount / "dir", mount / "other/moved")
        Path("file").write_text("here")
        assert os.getcwd() == str(mount / "other/moved")
        assert os.stat("..").st_ino == (mount / "other").stat().st_ino
    finally:
        os.fchdir(home)
        os.close(home)
    assert tree(mount) == {"other": {"moved": {"file": "here"}}}
