"""Records that two views see differently, against reading every record of both."""

from __future__ import annotations

from pathlib import Path

from ckptfs.fs import Filesystem
from ckptfs.history.diff.changed import Changed, changed_between
from ckptfs.model import ROOT_INO, Ino
from ckptfs.store import View
from ckptfs.store.format import unpack_u64
from tests.history.edits import edits


def records(fs: Filesystem, view: View) -> tuple[dict[Ino, object], dict[tuple[Ino, bytes], bytes]]:
    """Every inode with its bytes and xattrs, and every entry, of a view."""
    fs.flush()
    inodes: dict[Ino, object] = {}
    for entity, record in fs.store.inodes.walk(view, b""):
        ino = Ino(unpack_u64(entity))
        inode = fs.getattr(view, ino)
        data = bytes(fs.read(view, ino, 0, inode.size)) if inode.is_file else b""
        xattrs = [(name, fs.getxattr(view, ino, name)) for name in fs.listxattr(view, ino)]
        inodes[ino] = (record, data, xattrs)
    entries = {
        (Ino(unpack_u64(entity[:8])), entity[8:-1]): record
        for entity, record in fs.store.dirents.walk(view, b"")
    }
    return inodes, entries


def touched_by_reading(fs: Filesystem, a: View, b: View) -> Changed:
    (inodes_a, entries_a), (inodes_b, entries_b) = records(fs, a), records(fs, b)
    return Changed(
        {i for i in inodes_a.keys() | inodes_b.keys() if inodes_a.get(i) != inodes_b.get(i)},
        {e for e in entries_a.keys() | entries_b.keys() if entries_a.get(e) != entries_b.get(e)},
    )


def test_equal_views_have_nothing_changed(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.put("a", b"1")
        saved = work.save()
        assert changed_between(work.store, saved, work.fs.head) == Changed(set(), set())
        assert changed_between(work.store, saved, saved) == Changed(set(), set())


def test_only_the_written_file_has_changed(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        for number in range(50):
            work.put(f"f{number}", b"x")
        saved = work.save()
        work.write("f7", 0, b"y")
        work.fs.flush()
        assert changed_between(work.store, saved, work.fs.head) == Changed(
            {work.at("f7").ino}, set()
        )


def test_an_inode_that_is_still_dirty_has_changed(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.put("a", b"1")
        saved = work.save()
        work.change("a", mode=0o600)
        assert changed_between(work.store, saved, work.fs.head).inodes == {work.at("a").ino}


def test_bytes_that_changed_under_the_same_attributes_are_found(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.put("a", b"1")
        before = work.at("a")
        saved = work.save()
        work.write("a", 0, b"2")
        work.change("a", mtime_ns=before.mtime_ns, ctime_ns=before.ctime_ns)
        work.fs.flush()
        assert changed_between(work.store, saved, work.fs.head).inodes == {before.ino}


def test_views_on_two_branches_are_compared_by_their_common_ancestor(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.mkdir("d")
        work.put("d/kept", b"kept")
        work.put("d/gone", b"gone")
        work.put("big", bytes(200_000))
        first = work.save()
        work.remove("d/gone")
        work.write("big", 70_000, b"!")
        second = work.save()
        work.put("d/new", b"new")
        work.move("d", "e")
        third = work.save()
        work.go_back(first)
        work.link("big", "second name")
        work.fs.setxattr(work.fs.head, work.at("d").ino, b"user.k", b"v")
        work.put("d/kept", b"other")
        work.fs.flush()
        views = (first, second, third, work.fs.head)
        for a in views:
            for b in views:
                assert changed_between(work.store, a, b) == touched_by_reading(work.fs, a, b)
        assert (ROOT_INO, b"e") in changed_between(work.store, third, work.fs.head).entries
