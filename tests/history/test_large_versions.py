"""Versions of a large file: edits cost their size, insertions little; the newest version is kept as
it is, whatever becomes of the others."""

from __future__ import annotations

import functools
import random

import pytest

from ckptfs.history import checkpoints, compression, purge, removal, seal
from ckptfs.history.shifted import LARGE
from ckptfs.history.upkeep import Worker
from ckptfs.model import BLOCK_SIZE
from ckptfs.store import check
from ckptfs.store.format import CODEC_DELTA, CODEC_DELTA_OF_TWO, CODEC_RAW, block_header
from ckptfs.store.repair.consistency import make_consistent
from tests.direct import get, reopened
from tests.history.edits import Edits, take_a_step

BLOCKS = 24
DIFFERENCES = {CODEC_DELTA, CODEC_DELTA_OF_TWO}


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


def steps_to_whole(work: Edits) -> list[int]:
    blocks = work.store.blocks

    @functools.cache
    def steps(key: bytes) -> int:
        return max((1 + steps(base) for base in blocks.differs_from(key)), default=0)

    return [steps(key) for key in blocks.keys()]


def codecs(work: Edits) -> list[int]:
    return [record[0] for _, record in work.store.blocks._blocks.walk()]


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
        (lambda data: noise(8, 5 * BLOCK_SIZE + 100) + data, 100),
        (lambda data: noise(8, BLOCK_SIZE // 2) + data, 100),
        (lambda data: data[:500_000] + noise(8, 40_000) + data[500_000:], 1_100),
        (lambda data: data[:300_000] + data[340_000:], 100),
        (lambda data: noise(8, 50 * BLOCK_SIZE + 1_000) + data, 100),
    ],
    ids=[
        "a byte in front",
        "a byte less",
        "300 in the middle",
        "an edit",
        "blocks in front",
        "half a block in front",
        "40,000 in the middle",
        "40,000 less",
        "more in front than there was",
    ],
)
def test_a_version_costs_what_differs(work: Edits, changed, most: int) -> None:  # type: ignore[no-untyped-def]
    """``most`` is by block, beside what is new. The block that was cut in two costs its smaller
    part."""
    before = noise(1)
    after = changed(before)
    put(work, before)
    save(work)
    put(work, after)
    save(work)
    shrink(work)
    removed = max(0, len(before) - len(after))
    assert stored(work) < len(after) + removed + 5_000 + BLOCKS * most
    assert not DIFFERENCES & live_codecs(work)
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
    assert 2 < max(steps_to_whole(work)) <= 16
    assert stored(work) < 3 * len(versions[0])
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
    assert not DIFFERENCES & set(codecs(work))


def lines(seed: int, size: int = BLOCKS * BLOCK_SIZE) -> bytes:
    """Text that compresses as a table of numbers does."""
    rng = random.Random(seed)
    return b"".join(b"%d: %d\n" % (n, rng.randrange(10**9)) for n in range(size // 15))[:size]


def test_versions_of_a_large_text_that_grows_in_the_middle_cost_little(work: Edits) -> None:
    """Also those that a version was kept by when it was the newest."""
    versions = [lines(1)]
    put(work, versions[0])
    save(work)
    shrink(work)
    one = stored(work)
    for number in range(6):
        data = versions[-1]
        versions.append(data[:400_000] + lines(10 + number, 30_000) + data[400_000:])
        put(work, versions[-1])
        save(work)
        shrink(work)
    assert stored(work) < one * 1.6
    assert not DIFFERENCES & live_codecs(work)
    for checkpoint, data in zip(checkpoints(work.store), versions, strict=True):
        assert get(work.fs, b"large", work.fs.view_of(checkpoint.epoch)) == data


def test_a_block_that_several_versions_have_is_kept_by_the_newest(work: Edits) -> None:
    """What comes before the first insertion is the same in both older versions."""
    versions = [noise(1)]
    for size, at in ((1_000, 18 * BLOCK_SIZE), (40_000, 2 * BLOCK_SIZE)):
        data = versions[-1]
        versions.append(data[:at] + noise(size, size) + data[at:])
    for data in versions:
        put(work, data)
        save(work)
    shrink(work)
    assert stored(work) < len(versions[-1]) + 2 * BLOCKS * 100 + BLOCK_SIZE // 2
    for checkpoint, data in zip(checkpoints(work.store), versions, strict=True):
        assert get(work.fs, b"large", work.fs.view_of(checkpoint.epoch)) == data


def test_versions_that_have_nothing_in_common_stay_whole(work: Edits) -> None:
    for seed in range(3):
        put(work, noise(seed))
        save(work)
    shrink(work)
    assert not DIFFERENCES & set(codecs(work))


def shifted_half_a_block(work: Edits) -> bytes:
    """A version whose blocks are each kept by two of the next."""
    before = noise(1)
    put(work, before)
    save(work)
    put(work, noise(2, BLOCK_SIZE // 2) + before)
    save(work)
    shrink(work)
    return before


def test_both_bases_stay_as_long_as_they_are_needed(work: Edits) -> None:
    before = shifted_half_a_block(work)
    assert codecs(work).count(CODEC_DELTA_OF_TWO) >= BLOCKS - 1
    work.remove("large")
    save(work)
    removal.delete(work.fs, checkpoints(work.store)[1:])
    shrink(work)
    (left,) = checkpoints(work.store)
    assert get(work.fs, b"large", work.fs.view_of(left.epoch)) == before
    removal.delete(work.fs, [left])
    work.fs.commit()
    assert check(work.store) == []
    assert work.store.blocks.count() == 0


def test_a_purged_version_leaves_nothing_in_what_was_kept_by_it(work: Edits) -> None:
    before = noise(1)
    secret = noise(2, BLOCK_SIZE // 2)
    work.put("large", before)
    save(work)
    work.put("draft", secret + before)
    save(work)
    work.move("draft", "large")
    save(work)
    shrink(work)
    assert CODEC_DELTA_OF_TWO in codecs(work)
    purge.purge(work.fs, [b"draft"])
    work.fs.commit()
    work.store.blocks.forget_decoded()
    assert check(work.store) == []
    assert not DIFFERENCES & set(codecs(work))
    blocks = work.store.blocks
    assert not any(secret[:64] in bytes(blocks.read(key)) for key in blocks.keys())
    first = checkpoints(work.store)[0]
    assert get(work.fs, b"large", work.fs.view_of(first.epoch)) == before


@pytest.mark.parametrize("whose", ["the first base", "the second base"])
def test_a_damaged_base_is_found_and_given_up_with_what_needs_it(work: Edits, whose: str) -> None:
    shifted_half_a_block(work)
    blocks = work.store.blocks
    needed = [blocks.differs_from(key) for key in blocks.keys()]
    base = next(bases for bases in needed if len(bases) == 2)[whose == "the second base"]
    users = {key for key, other in blocks.bases() if other == base}
    blocks._blocks.put(base, block_header(CODEC_RAW, 0) + b"something else")
    blocks.forget_decoded()
    found = {problem.block for problem in check(work.store) if problem.block}
    assert found == {base.hex(), *(key.hex() for key in users)}
    make_consistent(work.store)
    blocks.forget_decoded()
    assert check(work.store) == []
    assert not blocks.has(base) and not any(map(blocks.has, users))


def changed_at_random(rng: random.Random, data: bytes) -> bytes:
    """Some bytes inserted, removed, overwritten or moved, here or there."""
    at, size = rng.randrange(len(data)), rng.choice((1, 700, 5_000, 40_000, 3 * BLOCK_SIZE + 9))
    new = rng.choice((noise, lines))(rng.randrange(10**6), size)
    way = rng.randrange(4)
    if way == 0 or len(data) < (LARGE + 2) * BLOCK_SIZE:
        return data[:at] + new + data[at:]
    if way == 1:
        return data[:at] + data[at + size :]
    if way == 2:
        return data[:at] + new + data[at + size :]
    return data[at:] + data[:at]


class Lived:
    """A history of two large files that is made at random, and what each checkpoint must show."""

    def __init__(self, work: Edits, seed: int) -> None:
        self.work, self.rng = work, random.Random(seed)
        self.now: dict[str, bytes] = {}
        self.then: dict[int, dict[str, bytes]] = {}
        self.upkeep: Worker | None = None

    def edit(self) -> None:
        name = self.rng.choice(("large", "text"))
        data = self.now.get(name) or (lines if name == "text" else noise)(self.rng.randrange(99))
        self.now[name] = changed_at_random(self.rng, data)
        if self.rng.random() < 0.5:
            put(self.work, self.now[name], name)
        else:
            self.work.put(name, self.now[name])

    def save(self) -> None:
        save(self.work)
        self.then[checkpoints(self.work.store)[-1].id] = dict(self.now)

    def delete(self) -> None:
        known = checkpoints(self.work.store)
        if len(known) > 2:
            gone = self.rng.choice(known)
            removal.delete(self.work.fs, [gone])
            del self.then[gone.id]
            self.upkeep = None

    def purge(self) -> None:
        name = self.rng.choice(("large", "text"))
        purge.purge(self.work.fs, [name.encode()])
        for state in (self.now, *self.then.values()):
            state.pop(name, None)
        self.upkeep = None

    def pack(self) -> None:
        for _ in range(self.rng.choice((5, 40, 400))):
            self.upkeep = take_a_step(self.work.fs, self.upkeep)
            if self.upkeep is None:
                break

    def reopen(self) -> None:
        self.work.fs.commit()
        self.work.fs = reopened(self.work.fs)
        self.work.store = self.work.fs.store
        self.upkeep = None

    def require_all(self) -> None:
        self.work.store.blocks.forget_decoded()
        for checkpoint in checkpoints(self.work.store):
            view = self.work.fs.view_of(checkpoint.epoch)
            for name, data in self.then[checkpoint.id].items():
                assert get(self.work.fs, name.encode(), view) == data, (checkpoint.id, name)
        for name, data in self.now.items():
            assert get(self.work.fs, name.encode()) == data, name


@pytest.mark.parametrize("seed", range(8))
def test_every_version_reads_back_whatever_happens_to_the_others(work: Edits, seed: int) -> None:
    lived = Lived(work, seed)
    seen: set[int] = set()
    for _ in range(120):
        act = lived.rng.choices(
            (lived.edit, lived.save, lived.pack, lived.delete, lived.reopen, lived.purge),
            (8, 6, 8, 2, 1, 0.3),
        )[0]
        act()
        seen |= set(codecs(work))
    lived.require_all()
    shrink(work)
    lived.require_all()
    assert CODEC_DELTA_OF_TWO in seen | set(codecs(work))
