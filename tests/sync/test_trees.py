"""Import and export."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ckptfs import errors
from ckptfs.history import seal
from ckptfs.sync import export_tree, import_tree
from tests.support.trees import Link, facts, plant, stats
from tests.sync.pair import Pair, stored_facts
from tests.sync.test_scan import EVERYTHING


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    source.mkdir(mode=0o750)
    plant(source, EVERYTHING)  # type: ignore[arg-type]
    return source


def test_an_import_is_faithful_and_only_reads(pair: Pair, source: Path) -> None:
    before, atimes = stats(source), _atimes(source)
    result = import_tree(pair.fs, source)
    assert (result.added, result.unchanged, result.skipped) == (13, 0, ())
    assert stats(source) == before
    assert _atimes(source) == atimes
    assert pair.stored() == facts(source)
    assert list(pair.store.ledger.children(pair.inode("").ino)) == []


def _atimes(path: Path) -> dict[str, int]:
    return {
        name: os.lstat(os.path.join(top, name)).st_atime_ns
        for top, _, names in os.walk(path)
        for name in names
        if stat.S_ISREG(os.lstat(os.path.join(top, name)).st_mode)
    }


def test_an_import_again_changes_nothing(pair: Pair, source: Path) -> None:
    import_tree(pair.fs, source)
    result = import_tree(pair.fs, source)
    assert (result.added, result.deleted, result.conflicts) == (0, 0, ())
    assert pair.stored() == facts(source)


def test_an_import_overwrites_files_and_keeps_directories(pair: Pair, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    plant(source, {"f": "new", "d": {"x": "new"}, "dir": "a file", "file": {"in": "dir"}})
    pair.write("f", "old")
    pair.mkdir("d", 0o700)
    pair.write("d/own", "stays")
    pair.mkdir("dir")
    pair.write("file", "stays")
    result = import_tree(pair.fs, source)
    assert set(result.conflicts) == {(b"dir", b"dir.below"), (b"file", b"file.below")}
    assert (pair.read("f"), pair.read("d/own"), pair.read("d/x")) == (b"new", b"stays", b"new")
    assert (pair.read("file"), pair.read("dir.below")) == (b"stays", b"a file")
    assert pair.read("file.below/in") == b"dir"
    assert pair.inode("d").mode & 0o777 == 0o700


def test_an_import_leaves_out_the_name_of_the_checkpoints_directory(
    pair: Pair, source: Path
) -> None:
    (source / ".checkpoints").mkdir()
    result = import_tree(pair.fs, source)
    assert [item.path for item in result.skipped] == [b".checkpoints"]


def test_an_import_of_what_is_not_there_is_refused(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(errors.SourceMissing):
        import_tree(pair.fs, tmp_path / "nothing")
    (tmp_path / "file").touch()
    with pytest.raises(errors.SourceMissing):
        import_tree(pair.fs, tmp_path / "file")


def test_an_export_is_faithful(pair: Pair, source: Path, tmp_path: Path) -> None:
    import_tree(pair.fs, source)
    for dest in (tmp_path / "absent", tmp_path / "empty"):
        if dest.name == "empty":
            dest.mkdir()
        result = export_tree(pair.fs, pair.fs.head, dest)
        assert (result.added, result.skipped) == (13, ())
        assert facts(dest) == facts(source)


def test_a_checkpoint_can_be_exported(pair: Pair, tmp_path: Path) -> None:
    pair.write("f", "then")
    checkpoint = seal(pair.fs, "manual", "", 1)
    pair.write("f", "now")
    view = pair.fs.view_of(checkpoint.epoch)
    export_tree(pair.fs, view, tmp_path / "out")
    assert (tmp_path / "out/f").read_text() == "then"
    assert stored_facts(pair.fs, view) == facts(tmp_path / "out")


def test_an_export_keeps_holes(pair: Pair, tmp_path: Path) -> None:
    with (pair.lower / "sparse").open("wb") as file:
        file.seek(1 << 33)
        file.write(b"end")
    pair.scan()
    export_tree(pair.fs, pair.fs.head, tmp_path / "out")
    seen = (tmp_path / "out/sparse").stat()
    assert seen.st_size == (1 << 33) + 3 and seen.st_blocks * 512 < 1 << 20


def test_an_export_refuses_a_destination_with_content(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").touch()
    (tmp_path / "file").touch()
    for dest in ("full", "file", "not/there"):
        with pytest.raises(errors.DestinationInvalid):
            export_tree(pair.fs, pair.fs.head, tmp_path / dest)
    assert not (tmp_path / "not").exists()


def test_an_export_does_not_follow_a_link_at_the_destination(pair: Pair, tmp_path: Path) -> None:
    """A link in the tree never leads anything outside of the destination."""
    (tmp_path / "outside").mkdir()
    plant(pair.lower, {"l": Link(str(tmp_path / "outside"))})
    pair.scan()
    export_tree(pair.fs, pair.fs.head, tmp_path / "out")
    assert os.readlink(tmp_path / "out/l") == str(tmp_path / "outside")
    assert os.listdir(tmp_path / "outside") == []


def test_import_and_export_report_their_progress(pair: Pair, source: Path, tmp_path: Path) -> None:
    told = []
    import_tree(pair.fs, source, progress=told.append)
    assert told[-1].files == told[-1].total_files == 13
    export_tree(pair.fs, pair.fs.head, tmp_path / "out", progress=told.append)
    assert told[-1].files == 13
