"""How much memory waits for a commit, and what a commit takes besides."""

from __future__ import annotations

import os
import tracemalloc

import pytest

from ckptfs.fs import Filesystem
from ckptfs.fuse import MountOptions
from ckptfs.fuse.hooks import unguarded
from ckptfs.fuse.requests import Requests
from ckptfs.model import BLOCK_SIZE, Ino
from ckptfs.store import environment
from ckptfs.store.blocks import Buffer
from tests.direct import put

_BLOCKS = 128


def _large(fs: Filesystem) -> Ino:
    """A file of some whole blocks, committed."""
    ino = Ino(put(fs, b"large", os.urandom(_BLOCKS * BLOCK_SIZE)))
    fs.commit()
    return ino


def _write_into_each_block(fs: Filesystem, ino: Ino) -> None:
    for number in range(_BLOCKS):
        fs.write(fs.head, ino, number * BLOCK_SIZE + 100, b"some")


def test_short_writes_count_as_much_as_they_take(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    ino = _large(fs)
    store = fs.store
    assert store.memory_bytes == 0
    _write_into_each_block(fs, ino)
    assert store.memory_bytes == _BLOCKS * BLOCK_SIZE
    fs.flush()
    assert _BLOCKS * BLOCK_SIZE <= store.memory_bytes < 1.01 * _BLOCKS * BLOCK_SIZE
    # The same blocks once more take the place of those.
    _write_into_each_block(fs, ino)
    fs.flush()
    assert store.memory_bytes < 1.01 * _BLOCKS * BLOCK_SIZE
    assert store.dirty_bytes < _BLOCKS * 8_192 and not store.is_due
    monkeypatch.setattr(environment, "MEMORY_MAX", _BLOCKS * BLOCK_SIZE)
    assert store.is_due
    fs.commit()
    assert store.memory_bytes == 0 and not store.is_due


def test_short_writes_end_in_commits_before_they_take_too_much(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    ino, store, most = _large(fs), fs.store, _BLOCKS // 8 * BLOCK_SIZE
    monkeypatch.setattr(environment, "MEMORY_MAX", most)
    requests = Requests(fs, MountOptions(), unguarded())
    commits = store.commits
    for number in range(_BLOCKS):
        requests.write(ino, number * BLOCK_SIZE + 100, b"some", os.getpid(), keep_set_id=True)
        assert store.memory_bytes <= most + BLOCK_SIZE
    # Two each time: the slots of what was replaced become holes after the second.
    assert store.commits - commits == 2 * 7


def test_a_commit_has_no_block_twice(fs: Filesystem) -> None:
    """What waited is freed as it goes into the transaction, not when all of it is there."""
    ino = _large(fs)
    digest, seen = fs.store.blocks.digest, list[int]()

    def noting(data: Buffer, seed: int) -> bytes:
        seen.append(tracemalloc.get_traced_memory()[0])
        return digest(data, seed)

    tracemalloc.start()
    try:
        _write_into_each_block(fs, ino)
        fs.store.blocks.digest = noting
        fs.commit()
    finally:
        tracemalloc.stop()
        fs.store.blocks.digest = digest
    assert len(seen) >= _BLOCKS
    assert seen[0] - seen[-1] > 0.9 * _BLOCKS * BLOCK_SIZE
