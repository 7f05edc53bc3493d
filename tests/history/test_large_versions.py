"""Versions of a large file: edits cost their size, insertions little; the newest version is kept as
it is, whatever becomes of the others."""

from __future__ import annotations

import random

import pytest

from ckptfs.history import checkpoints, compression, purge, removal, seal
from ckptfs.model import BLOCK_SIZE
from ckptfs.store import check
from ckptfs.store.format import CODEC_DELTA
from tests.direct import get, reopened
from tests.history.edits import Edits

BLOCKS = 24


def noise(seed: int, size: int = BLOCKS * BLOCK_SIZE) -> bytes:
    return random.Random(seed).randbytes(size)


def put(work: Edits, data: bytes, name: str = "large") -> None:
    """As a program does that writes a new file and renames it over the old one."""
    work.put("new", data)
    work.move("new", name)


def save(work: Edits) -> None:
    seal(work.fs, "auto", "", work.fs.clock())
    work.fs.commit()


def shrink(work: Edits) -> None:
    compression.compress(work.fs)
    compression.repack(work.fs)
    work.store.blocks.forget_decoded()
    work.fs.commit()
    assert check(work.store) == []


def stored(work: Edits) -> int:
    return sum(size for _, size in work.store.blocks.sizes())


def live_codecs(work: Edits) -> set[int]:
    view, inode = work.fs.head, work.at("large")
    prefix = inode.content.to_bytes(8, "big")
    records = [record for _, record in work.store.blockmap.walk(view, prefix)]
    return {(work.store.blocks._blocks.get(record[5:21]) or b"\xff")[0] for record in records}


@pytest.mark.parametrize(
    ("changed", "most"),
    [
        (lambda data: b"x" + data, 100),
        (lambda data: data[1:], 100),
        (lambda data: data[:500_000] + noise(7, 300) + data[500_000:], 400),
        (lambda data: data[:700_000] + noise(7, 4_096) + data[704_096:], 300),
        (lambda data: noise(8, 5 * BLOCK_SIZE + 100) + data, 500),
    ],
    ids=["a byte in front", "a byte less", "300 in the middle", "an edit", "blocks in front"],
)
def test_a_version_costs_what_differs(work: Edits, changed, most: int) -> None:  # type: ignore[no-untyped-def]
    """``most`` is by block, beside what is new."""
    before = noise(1)
    after = changed(before)
    put(work, before)
    save(work)
    put(work, after)
    save(work)
    shrink(work)
    assert stored(work) < len(after) + 5_000 + BLOCKS * most
    assert CODEC_DELTA not in live_codecs(work)
    first, second = (work.fs.view_of(c.epoch) for c in checkpoints(work.store))
    assert get(work.fs, b"large", first) == before
    assert get(work.fs, b"large", second) == after


def test_many_versions_are_few_steps_away_from_a_whole_one(work: Edits) -> None:
    versions = [noise(1)]
    put(work, versions[0])
    save(work)
    for number in range(20):
        versions.append(bytes([number]) + versions[-1])
        put(work, versions[-1])
        save(work)
        shrink(work)
    chains = [len(work.store.blocks.chain(key)) for key in work.store.blocks.keys()]
    assert 2 < max(chains) <= 10
    assert stored(work) < 5 * len(versions[0])
    work.fs = reopened(work.fs)
    work.store = work.fs.store
    for checkpoint, data in zip(checkpoints(work.store), versions, strict=True):
        assert get(work.fs, b"large", work.fs.view_of(checkpoint.epoch)) == data


def test_any_version_can_go(work: Edits) -> None:
    versions = [b"x" * number + noise(1) for number in range(4)]
    for data in versions:
        put(work, data)
        save(work)
        shrink(work)
    known = checkpoints(work.store)
    removal.delete(work.fs, [known[1], known[3]])
    work.remove("large")
    save(work)
    removal.delete(work.fs, checkpoints(work.store)[2:])
    shrink(work)
    left = [get(work.fs, b"large", work.fs.view_of(c.epoch)) for c in checkpoints(work.store)]
    assert left == [versions[0], versions[2]]
    purge.purge(work.fs, [b"large"])
    work.fs.commit()
    assert check(work.store) == []
    assert work.store.blocks.count() == 0


def test_a_copy_in_the_workspace_stays_as_it_is(work: Edits) -> None:
    before = noise(1)
    put(work, before, "copy")
    put(work, before)
    save(work)
    put(work, b"x" + before)
    save(work)
    shrink(work)
    codecs = {record[0] for _, record in work.store.blocks._blocks.walk()}
    assert CODEC_DELTA not in codecs
