"""Trees that are deeper than the interpreter's stack."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs import history
from ckptfs.history import excluded
from ckptfs.history.log import history_of
from ckptfs.service import Service
from tests.direct import assert_clean
from tests.history.edits import Edits
from tests.history.test_undo import save

#: More levels than the interpreter allows calls.
LEVELS = 1_500

LEAF = b"/".join([b"top", *[b"d"] * LEVELS, b"leaf"])


def _build(work: Edits) -> None:
    parent = work.mkdir("top")
    for _ in range(LEVELS):
        parent = work.fs.mkdir(work.fs.head, parent, b"d", 0o755, 0, 0).ino
    work.fs.mknod(work.fs.head, parent, b"leaf", 0o100644, 0, 0)


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Edits]:
    """Checkpoint 0 is empty, 1 has the deep tree."""
    work = Edits(tmp_path / "store")
    save(work)
    _build(work)
    save(work)
    yield work
    assert_clean(work.fs)
    work.store.close()


def test_a_path_is_restored_and_taken_back(deep: Edits) -> None:
    service = Service(deep.fs)
    service.restore("0", [b"top"])
    assert deep.fs.seek(deep.fs.head, 1, b"top") is None
    service.restore("1", [b"top"])
    assert deep.at(LEAF).is_file
    service.undo()
    assert deep.fs.seek(deep.fs.head, 1, b"top") is None


def test_the_deepest_file_alone_is_restored(deep: Edits) -> None:
    service = Service(deep.fs)
    service.restore("0")
    service.restore("1", [LEAF])
    assert deep.at(LEAF).is_file


def test_the_history_of_the_deepest_file_is_found(deep: Edits) -> None:
    Service(deep.fs).restore("0", [b"top"])
    versions = history_of(deep.fs, LEAF)
    assert [sorted(version.change.kinds) for version in versions] == [["deleted"], ["added"]]


def test_an_excluded_tree_hides_one_that_a_restore_brings(deep: Edits) -> None:
    history.restore(deep.fs, history.checkpoints(deep.fs.store)[0])
    excluded.apply(deep.fs, ("top/",))
    deep.mkdir("top")
    deep.put("top/kept", b"excluded")
    Service(deep.fs).restore("1")
    assert deep.at("top/kept").is_file
    assert [name for name, _ in deep.fs.entries(deep.fs.head, deep.at("top").ino)] == [b"kept"]


def test_a_path_below_an_excluded_one_would_be_excluded(deep: Edits) -> None:
    excluded.apply(deep.fs, ("top/",))
    assert excluded.would_be_excluded(deep.fs, LEAF, is_dir=False)
    assert not excluded.would_be_excluded(deep.fs, LEAF[1:], is_dir=False)
