"""Symbolic links and hard links."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from tests.support.errnos import fails
from tests.support.syscalls import link_following
from tests.support.trees import Link, Same, plant, tree

TARGETS = {
    "relative": "file",
    "absolute": "/etc/passwd",
    "dangling": "no/such/file",
    "itself": "link",
    "dots": "../../..",
    "with spaces and newline": " a \n b ",
    "60 bytes": "x" * 60,
    "over a block of ext4": "y/" * 1000,
    "4095 bytes": "z" * 4095,
}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
def test_a_symlink_says_its_target(mount: Path, target: str) -> None:
    os.symlink(target, mount / "link")
    assert os.readlink(mount / "link") == target
    info = os.lstat(mount / "link")
    assert stat.S_ISLNK(info.st_mode)
    assert stat.S_IMODE(info.st_mode) == 0o777
    assert info.st_size == len(target)
    assert info.st_nlink == 1


def test_a_symlink_target_may_be_any_bytes(mount: Path) -> None:
    link = os.fsencode(mount / "link")
    os.symlink(b"\xff\xfe\n", link)
    assert os.readlink(link) == b"\xff\xfe\n"


def test_a_symlink_target_that_is_too_long_is_refused(mount: Path) -> None:
    with fails(errno.ENAMETOOLONG):
        os.symlink("x" * 4096, mount / "link")
    with fails(errno.ENOENT):
        os.symlink("", mount / "empty")
    assert os.listdir(mount) == []


def test_a_dangling_link_comes_alive(mount: Path) -> None:
    plant(mount, {"link": Link("file")})
    with fails(errno.ENOENT):
        os.stat(mount / "link")
    with open(mount / "link", "w") as file:
        file.write("through the link")
    assert tree(mount) == {"file": "through the link", "link": Link("file")}


def test_links_in_a_circle_are_refused(mount: Path) -> None:
    plant(mount, {"a": Link("b"), "b": Link("a"), "self": Link("self")})
    for name in ("a", "b", "self"):
        with fails(errno.ELOOP):
            os.stat(mount / name)
        with fails(errno.ELOOP):
            os.open(mount / name / "x", os.O_RDONLY)


def test_a_chain_of_forty_links_is_followed_and_no_longer_one(mount: Path) -> None:
    plant(mount, {"l0": "end"})
    for number in range(1, 60):
        os.symlink(f"l{number - 1}", mount / f"l{number}")
    assert (mount / "l40").read_text() == "end"
    with fails(errno.ELOOP):
        (mount / "l41").read_text()


def test_o_nofollow_follows_no_link(mount: Path) -> None:
    plant(mount, {"file": "x", "link": Link("file")})
    with fails(errno.ELOOP):
        os.open(mount / "link", os.O_RDONLY | os.O_NOFOLLOW)
    os.close(os.open(mount / "file", os.O_RDONLY | os.O_NOFOLLOW))


def test_a_link_to_a_directory_is_followed_and_removed_alone(mount: Path) -> None:
    plant(mount, {"dir": {"file": "x"}, "link": Link("dir")})
    assert (mount / "link/file").read_text() == "x"
    (mount / "link/new").write_text("y")
    (mount / "link").unlink()
    assert tree(mount) == {"dir": {"file": "x", "new": "y"}}


def test_a_symlink_over_an_existing_name_is_refused(mount: Path) -> None:
    plant(mount, {"file": "kept", "dir": {}, "link": Link("nowhere")})
    for name in ("file", "dir", "link"):
        with fails(errno.EEXIST):
            os.symlink("other", mount / name)
    assert tree(mount) == {"dir": {}, "file": "kept", "link": Link("nowhere")}


def test_hard_links_are_one_file(mount: Path) -> None:
    plant(mount, {"a": "first", "dir": {}})
    os.link(mount / "a", mount / "b")
    os.link(mount / "b", mount / "dir/c")
    assert {(mount / name).stat().st_ino for name in ("a", "b", "dir/c")} == {
        (mount / "a").stat().st_ino
    }
    assert (mount / "a").stat().st_nlink == 3
    (mount / "b").write_text("second, and longer")
    (mount / "dir/c").chmod(0o600)
    assert (mount / "a").read_text() == "second, and longer"
    assert stat.S_IMODE((mount / "a").stat().st_mode) == 0o600
    assert (mount / "a").stat().st_size == len("second, and longer")


def test_a_file_lives_until_its_last_name_goes(mount: Path) -> None:
    plant(mount, {"a": "content", "b": Same("a"), "dir": {"c": Same("a")}})
    assert (mount / "a").stat().st_nlink == 3
    (mount / "a").unlink()
    assert (mount / "b").stat().st_nlink == 2
    (mount / "b").unlink()
    assert (mount / "dir/c").stat().st_nlink == 1
    assert tree(mount) == {"dir": {"c": "content"}}


def test_an_open_file_sees_its_link_count(mount: Path) -> None:
    plant(mount, {"a": "content"})
    fd = os.open(mount / "a", os.O_RDONLY)
    try:
        counts = [os.fstat(fd).st_nlink]
        os.link(mount / "a", mount / "b")
        counts.append(os.fstat(fd).st_nlink)
        os.unlink(mount / "a")
        counts.append(os.fstat(fd).st_nlink)
        os.unlink(mount / "b")
        counts.append(os.fstat(fd).st_nlink)
    finally:
        os.close(fd)
    assert counts == [1, 2, 1, 0]


def test_what_cannot_be_hard_linked(mount: Path, elsewhere: Path) -> None:
    plant(mount, {"dir": {}, "file": "x", "other": "y"})
    with fails(errno.EPERM):
        os.link(mount / "dir", mount / "dir2")
    with fails(errno.EEXIST):
        os.link(mount / "file", mount / "other")
    with fails(errno.EEXIST):
        os.link(mount / "file", mount / "file")
    with fails(errno.ENOENT):
        os.link(mount / "none", mount / "new")
    with fails(errno.ENOENT):
        os.link(mount / "file", mount / "none/new")
    with fails(errno.ENOTDIR):
        os.link(mount / "file", mount / "other/new")
    assert tree(mount) == {"dir": {}, "file": "x", "other": "y"}
    assert (mount / "file").stat().st_nlink == 1


def test_a_hard_link_to_a_symlink_is_of_the_link_itself(mount: Path) -> None:
    plant(mount, {"file": "x", "link": Link("file")})
    os.link(mount / "link", mount / "link2", follow_symlinks=False)
    assert os.readlink(mount / "link2") == "file"
    assert os.lstat(mount / "link").st_nlink == 2
    assert os.stat(mount / "file").st_nlink == 1
    link_following(mount / "link", mount / "file2")
    assert os.stat(mount / "file").st_nlink == 2


def test_a_fifo_can_have_two_names(mount: Path) -> None:
    os.mkfifo(mount / "fifo")
    os.link(mount / "fifo", mount / "dir_fifo")
    assert (mount / "fifo").stat().st_nlink == 2
    assert stat.S_ISFIFO((mount / "dir_fifo").stat().st_mode)


def test_one_file_can_have_many_links(mount: Path) -> None:
    plant(mount, {"file": "x"})
    for number in range(500):
        os.link(mount / "file", mount / f"l{number}")
    assert (mount / "file").stat().st_nlink == 501
    for number in range(0, 500, 2):
        os.unlink(mount / f"l{number}")
    assert (mount / "file").stat().st_nlink == 251
    assert (mount / "l499").read_text() == "x"
    assert len(os.listdir(mount)) == 251


def test_an_open_file_can_be_linked_as_long_as_it_has_a_name(mount: Path) -> None:
    plant(mount, {"file": "x"})
    fd = os.open(mount / "file", os.O_RDONLY)
    try:
        link_following(f"/proc/self/fd/{fd}", mount / "again")
        assert (mount / "again").read_text() == "x"
        os.unlink(mount / "file")
        os.unlink(mount / "again")
        with fails(errno.ENOENT):
            link_following(f"/proc/self/fd/{fd}", mount / "late")
    finally:
        os.close(fd)
