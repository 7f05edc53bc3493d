"""What a checkpoint would free: told before, and measured after it is gone."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptfs import history
from ckptfs.history import Checkpoint, compression, removal
from ckptfs.history.space import Freed
from ckptfs.model import BLOCK_SIZE
from tests.history.edits import Edits, edits


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Edits]:
    with edits(tmp_path / "store") as found:
        yield found


def sealed(work: Edits, kind: str = "auto") -> Checkpoint:
    return history.seal(work.fs, kind, "", work.fs.clock())


def stored(work: Edits) -> int:
    return sum(size for _, size in work.store.blocks.sizes())


def freed_by(work: Edits, checkpoint: Checkpoint) -> int:
    before = stored(work)
    removal.delete(work.fs, [checkpoint])
    return before - stored(work)


def nearly(told: int, freed: int) -> bool:
    """Headers of blocks are counted here and not there."""
    return freed <= told <= freed + 100


def test_a_file_that_only_the_checkpoint_has_is_freed(work: Edits) -> None:
    work.put("file", os.urandom(300_000))
    found = sealed(work)
    work.remove("file")
    told = Freed(work.store)(found)
    assert told > 299_000 and nearly(told, freed_by(work, found))


def test_what_is_still_there_is_not_freed(work: Edits) -> None:
    work.put("file", os.urandom(300_000))
    found = sealed(work)
    work.move("file", "other")
    work.change("other", mode=0o600)
    assert Freed(work.store)(found) == freed_by(work, found) == 0


def test_what_an_older_one_keeps_is_not_freed(work: Edits) -> None:
    work.put("file", os.urandom(300_000))
    older = sealed(work, "manual")
    work.put("other", os.urandom(100_000))
    found = sealed(work)
    work.remove("file")
    work.remove("other")
    told = Freed(work.store)(found)
    assert 99_000 < told < 101_000
    assert Freed(work.store)(found, {older.id}) > 399_000
    assert nearly(told, freed_by(work, found))


def test_of_a_file_changed_in_place_the_changed_blocks_are_freed(work: Edits) -> None:
    work.put("file", os.urandom(10 * BLOCK_SIZE))
    sealed(work, "manual")
    work.write("file", 2 * BLOCK_SIZE, os.urandom(BLOCK_SIZE))
    found = sealed(work)
    work.write("file", 2 * BLOCK_SIZE, os.urandom(2 * BLOCK_SIZE))
    work.fs.flush()
    told = Freed(work.store)(found)
    assert nearly(told, BLOCK_SIZE) and nearly(told, freed_by(work, found))


def test_what_is_compressed_frees_less(work: Edits) -> None:
    work.put("file", b"the same line again\n" * 20_000)
    found = sealed(work)
    work.remove("file")
    sealed(work)
    compression.compress(work.fs)
    assert Freed(work.store)(found) < 100_000


def test_an_epoch_with_two_children_frees_nothing(work: Edits) -> None:
    work.put("file", os.urandom(300_000))
    found = sealed(work)
    work.remove("file")
    sealed(work)
    history.restore(work.fs, found)
    work.put("file", os.urandom(100))
    assert Freed(work.store)(found) == 0


CHANGES = st.tuples(
    st.sampled_from(["put", "write", "remove", "seal", "seal", "keep"]),
    st.sampled_from(["a", "b", "c"]),
    st.integers(1, 3),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(CHANGES, min_size=5, max_size=40))
def test_deleting_the_oldest_first_frees_what_was_estimated(
    changes: list[tuple[str, str, int]],
) -> None:
    """Any history of unlike bytes, from which the automatic ones go one by one."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as base, edits(Path(base) / "s") as work:
        for verb, name, blocks in changes:
            _apply(work, verb, name, blocks)
        sealed(work)
        gone: set[int] = set()
        freed_by_plan = Freed(work.store)
        every = history.checkpoints(work.store)
        told = 0
        doomed = [item for item in every if item.kind == "auto"]
        for item in doomed:
            told += freed_by_plan(item, gone)
            gone.add(item.id)
        before = stored(work)
        removal.delete(work.fs, doomed)
        freed = before - stored(work)
        assert freed <= told <= freed + 2 * len(changes) * 3 * len(doomed)


def _apply(work: Edits, verb: str, name: str, blocks: int) -> None:
    found = work.fs.seek(work.fs.head, work.at("").ino, name.encode())
    if verb in ("seal", "keep"):
        sealed(work, "auto" if verb == "seal" else "manual")
    elif verb == "put":
        work.put(name, os.urandom(blocks * BLOCK_SIZE))
    elif verb == "write" and found is not None:
        work.write(name, (blocks - 1) * BLOCK_SIZE, os.urandom(BLOCK_SIZE))
    elif verb == "remove" and found is not None:
        work.remove(name)
