"""What an ordinary user may not do is left out and said, and never taken for something else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs.model import Attributes
from ckptfs.sync import export_tree, import_tree
from tests.support.trees import Directory, File, facts, tree
from tests.sync.pair import Pair
from tests.sync.test_write_back import settled

NOBODY = 65_534


@pytest.fixture
def user(memory_path: Path) -> Iterator[Pair]:
    """A pair that an ordinary user made; the test runs as that user."""
    root = os.geteuid() == 0
    if root:
        os.chown(memory_path, NOBODY, NOBODY)
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
    try:
        pair = Pair(memory_path)
        pair_uid = os.geteuid()
        yield pair
        pair.close()
        assert os.geteuid() == pair_uid
    finally:
        if root:
            os.seteuid(0)
            os.setegid(0)


def test_what_cannot_be_read_is_reported_and_not_deleted(user: Pair) -> None:
    user.plant({"a": "x", "d": {"b": "y"}, "e": {}})
    user.scan()
    (user.lower / "a").write_text("unseen")
    (user.lower / "d/b").write_text("unseen")
    user.plant({"secret": File("s", mode=0)})
    (user.lower / "a").chmod(0)
    (user.lower / "d").chmod(0)
    result = user.scan()
    assert {item.path for item in result.skipped} == {b"secret", b"a", b"d"}
    assert all(item.reason == "Permission denied" for item in result.skipped)
    # What was known of them stays, and what is in the store too.
    assert (user.read("a"), user.read("d/b")) == (b"x", b"y")
    assert not user.exists("secret")
    result = user.write_back()
    assert {item.path for item in result.skipped} == {b"d"}
    (user.lower / "d").chmod(0o755)
    (user.lower / "a").chmod(0o644)
    (user.lower / "secret").chmod(0o600)
    assert user.scan().skipped == ()
    assert (user.read("a"), user.read("d/b"), user.read("secret")) == (b"unseen", b"unseen", b"s")
    user.write_back()
    settled(user)


def test_read_only_directories_are_written(user: Pair) -> None:
    """As package caches have them: the owner may change the mode, so the write-back does."""
    user.plant({"cache": Directory({"p": Directory({"f": "1", "g": "2"}, mode=0o555)}, mode=0o555)})
    user.scan()
    user.write("cache/p/f", "changed")
    user.remove("cache/p/g")
    user.write("cache/p/h", "new")
    assert user.write_back().skipped == ()
    settled(user)
    user.remove("cache")
    assert user.write_back().skipped == ()
    assert tree(user.lower) == {}
    settled(user)


def test_foreign_owners_and_devices_are_written_as_far_as_permitted(
    user: Pair, memory_path: Path
) -> None:
    inode = user.write("theirs", "x")
    user.fs.setattr(user.fs.head, inode.ino, Attributes(uid=1, gid=1))
    user.mknod("device", stat.S_IFCHR | 0o600, os.makedev(5, 1))
    for _ in range(2):
        result = user.write_back()
        assert [item.path for item in result.skipped] == [b"device"]
    assert (user.lower / "theirs").stat().st_uid == os.geteuid()
    # An owner that could not be set is no change of the lower directory.
    assert not user.scan().changed
    assert user.inode("theirs").uid == 1
    assert user.exists("device")
    result = export_tree(user.fs, user.fs.head, memory_path / "out")
    assert [item.path for item in result.skipped] == [b"device"]
    assert (memory_path / "out/theirs").read_text() == "x"


def test_import_leaves_out_what_cannot_be_read(user: Pair, memory_path: Path) -> None:
    source = memory_path / "source"
    source.mkdir()
    (source / "a").write_text("a")
    (source / "b").write_text("b")
    (source / "b").chmod(0)
    (source / "c").mkdir(mode=0)
    result = import_tree(user.fs, source)
    assert {item.path for item in result.skipped} == {b"b", b"c"}
    assert user.names() == {".", "a"}
    (source / "c").chmod(0o755)


def test_a_directory_of_another_user_is_reported_and_the_rest_written(user: Pair) -> None:
    """Nothing may be written there; the rest is, and the store keeps all."""
    user.plant({"d": {"f": "x"}, "g": "y"})
    user.scan()
    if os.getuid() == 0:
        os.seteuid(0)
        os.chown(user.lower / "d", 0, 0)
        os.seteuid(NOBODY)
    else:
        pytest.skip("needs a second user")
    user.scan()
    user.write("d/new", "never gets there")
    user.write("g", "does")
    result = user.write_back()
    assert {item.path for item in result.skipped} == {b"d", b"d/new"}
    assert (user.lower / "g").read_text() == "does"
    assert user.read("d/new") == b"never gets there"
    assert not user.scan().changed
    assert facts(user.lower)["d/f"].content == b"x"


def test_read_only_files_get_their_attributes(user: Pair) -> None:
    """setxattr(2) asks for the right to write, which the mode takes from the owner, too."""
    user.plant({"old": File("x", mode=0o444)})
    user.scan()
    user.write("new", "y")
    user.chmod("new", 0o444)
    for name in ("old", "new"):
        user.fs.setxattr(user.fs.head, user.inode(name).ino, b"user.note", b"kept")
    assert user.write_back().skipped == ()
    settled(user)
    for name in ("old", "new"):
        assert os.getxattr(user.lower / name, "user.note") == b"kept"
    out = user.root / "out"
    assert export_tree(user.fs, user.fs.head, out).skipped == ()
    assert os.getxattr(out / "new", "user.note") == b"kept"


def test_an_export_needs_no_permission_to_list_the_directory_above(user: Pair) -> None:
    """Like a directory of one's own in a /home that only its names lead into."""
    user.write("a", "x")
    above = user.root / "above"
    (above / "empty").mkdir(parents=True)
    above.chmod(0o311)
    try:
        for name in ("empty", "new"):
            assert export_tree(user.fs, user.fs.head, above / name).skipped == ()
            assert (above / name / "a").read_text() == "x"
    finally:
        above.chmod(0o755)
