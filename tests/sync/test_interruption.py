"""A pass that dies at any step leaves what the next one reads rightly."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptfs.model import BLOCK_SIZE
from ckptfs.sync import content, ingest
from tests.support.trees import File, Link, Same, facts
from tests.sync.interruption import dying_at
from tests.sync.pair import Pair

START = {
    "edit": "one",
    "drop": "two",
    "mode": "three",
    "b": "four",
    "twin": Same("b"),
    "l": Link("edit"),
    "d": {"x": "5", "sub": {"y": "6"}, "gone": {"z": "7"}},
    "e": {"p": "8"},
    "f": {"q": "9"},
    "type": {"in": "10"},
}


def edit_files(pair: Pair) -> None:
    pair.write("edit", "changed")
    pair.remove("drop")
    pair.chmod("mode", 0o700)
    pair.touch("mode", 12345)
    pair.write("new", "new")
    pair.symlink("link", "somewhere")
    pair.mknod("pipe", stat.S_IFIFO | 0o600)


def edit_links(pair: Pair) -> None:
    pair.write("b", "through one name")
    pair.link("edit", "d/edit2")
    pair.remove("twin")
    pair.write("twin", "apart")


def edit_directories(pair: Pair) -> None:
    pair.remove("d/gone")
    pair.mkdir("made")
    pair.mkdir("made/inner")
    pair.write("made/inner/file", "x")
    pair.chmod("e", 0o700)
    pair.remove("type")
    pair.write("type", "a file now")


def move_directories(pair: Pair) -> None:
    pair.rename("e", "f", 2)
    pair.mkdir("far")
    pair.rename("d/sub", "far/sub")
    pair.write("far/sub/y", "moved and changed")
    pair.remove("d")
    pair.rename("type", "d")


SCENES = [edit_files, edit_links, edit_directories, move_directories]


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("scene", SCENES)
def test_a_write_back_may_end_at_any_step(
    memory_path: Path, scene: Callable[[Pair], None], done: bool
) -> None:
    step = 0
    while True:
        step += 1
        root = memory_path / str(step)
        root.mkdir()
        pair = Pair(root)
        pair.plant(START)  # type: ignore[arg-type]
        pair.scan()
        scene(pair)
        pair.fs.commit()
        wanted = pair.stored()
        with dying_at(step, done=done) as steps:
            pair.write_back()
        _assert_read_rightly(pair, wanted)
        pair.close()
        if steps.count < step:
            return


def _assert_read_rightly(pair: Pair, wanted: dict[str, object]) -> None:
    """The next scan takes nothing of the lower directory for a change; the write-back completes."""
    pair.reopen()
    result = pair.scan()
    assert result.conflicts == result.skipped == ()
    assert pair.stored() == wanted
    result = pair.write_back()
    assert result.conflicts == result.skipped == ()
    assert pair.stored() == wanted == facts(pair.lower)
    assert not [path for path in pair.lower.rglob("*") if ".ckptfs-tmp-" in path.name]
    assert not pair.scan().changed


def test_a_scan_may_end_at_any_step(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a commit behind every entry, a scan that dies at any of them is just gone on with."""
    monkeypatch.setattr(ingest, "COMMIT_BYTES", 1)
    step = 0
    while True:
        step += 1
        root = memory_path / str(step)
        root.mkdir()
        pair = Pair(root)
        pair.plant(START)  # type: ignore[arg-type]
        with dying_at(step, done=step % 2 == 0) as steps:
            pair.scan()
        pair.reopen()
        result = pair.scan()
        assert result.conflicts == result.skipped == ()
        pair.assert_equal()
        pair.close()
        if steps.count < step:
            return


@pytest.mark.parametrize("known", [False, True], ids=["new", "changed"])
def test_a_scan_may_end_in_the_middle_of_a_large_file(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """A large file is committed in parts; a scan that dies between them goes on with it."""
    monkeypatch.setattr(ingest, "COMMIT_BYTES", 1)
    monkeypatch.setattr(content, "_CHUNK", BLOCK_SIZE)
    for step in (1, 2, 3, 4):
        root = memory_path / str(step)
        root.mkdir()
        pair = Pair(root)
        if known:
            pair.plant({"large": os.urandom(7 * BLOCK_SIZE + 5)})
            pair.scan()
        pair.plant({"large": os.urandom(8 * BLOCK_SIZE + 9)})
        with dying_at(step, done=True) as steps:
            pair.scan()
        assert steps.count == step
        pair.reopen()
        assert pair.exists("large")
        result = pair.scan()
        assert result.conflicts == result.skipped == ()
        pair.assert_equal()
        assert not pair.write_back().changed
        pair.close()


def test_a_scan_may_end_between_a_large_files_content_and_its_attributes(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "COMMIT_BYTES", 2 * BLOCK_SIZE)
    pair = Pair(memory_path)
    pair.plant({"dir": {"large": File(os.urandom(3 * BLOCK_SIZE), mode=0o4750, mtime_ns=77)}})
    with dying_at(1, done=True) as steps:
        pair.scan()
    assert steps.count == 1
    pair.reopen()
    assert pair.inode("dir/large").size == 3 * BLOCK_SIZE
    assert pair.scan().modified == 1
    pair.assert_equal()
    pair.close()


def test_a_file_that_cannot_be_read_to_its_end_is_no_edit(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.plant({"f": os.urandom(20 * BLOCK_SIZE)})
    pair.scan()
    pair.plant({"f": os.urandom(20 * BLOCK_SIZE), "g": os.urandom(20 * BLOCK_SIZE)})
    preadv = os.preadv

    def failing(fd: int, room: list[memoryview], offset: int) -> int:
        name = os.readlink(f"/proc/self/fd/{fd}")
        if offset >= 16 * BLOCK_SIZE and name.startswith(str(pair.lower)):
            raise OSError(errno.EIO, "bad disk")
        return preadv(fd, room, offset)

    monkeypatch.setattr(os, "preadv", failing)
    result = pair.scan()
    assert {item.path for item in result.skipped} == {b"f", b"g"}
    assert not pair.exists("g")
    monkeypatch.undo()
    result = pair.scan()
    assert result.conflicts == result.skipped == ()
    pair.assert_equal()
