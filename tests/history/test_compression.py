"""Compressed blocks: the same bytes in less room, through edits, deletions and purges."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptfs.history import checkpoints, compression, packing, purge, removal, restore, seal
from ckptfs.history.upkeep import Worker, finish
from ckptfs.interrupts import finish as finish_steps
from ckptfs.model import BLOCK_SIZE
from ckptfs.service import Service
from ckptfs.service.storage import compacting
from ckptfs.store import check
from ckptfs.store.blocks import CorruptBlock, Member
from ckptfs.store.format import (
    CODEC_DELTA,
    CODEC_RAW,
    CODEC_SLICE,
    CODEC_ZSTD,
    PACK_MAX,
)
from ckptfs.store.pack_usage import PackUsage
from tests.direct import get, reopened, shown
from tests.history.edits import Edits
from tests.history.leftovers import leftovers

WORDS = "epoch head view block change handle checkpoint workspace store fsync rename".split()


def text(seed: int, size: int = 40_000) -> bytes:
    """Text that compresses as source code does."""
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) + str(rng.randrange(999)) for _ in range(size // 8)).encode()


def save(work: Edits) -> None:
    seal(work.fs, "auto", "", work.fs.clock())


def codecs(work: Edits) -> list[int]:
    return sorted(record[0] for _, record in work.store.blocks._blocks.walk())


def stored_bytes(work: Edits) -> int:
    return sum(size for _, size in work.store.blocks.sizes())


def compress(work: Edits) -> None:
    """Compress; whatever can be seen must be as before."""
    fs = work.fs
    fs.flush()
    views = [fs.view_of(c.epoch) for c in checkpoints(work.store)] + [fs.head]
    before = [shown(fs, view) for view in views]
    compression.compress(fs)
    work.store.blocks.forget_decoded()
    assert [shown(fs, view) for view in views] == before
    assert check(work.store) == []


def test_what_is_sealed_is_compressed_and_the_head_is_not(work: Edits) -> None:
    work.put("text", text(1))
    work.put("noise", os.urandom(50_000))
    save(work)
    work.put("new", text(2))
    compress(work)
    assert codecs(work) == [CODEC_RAW, CODEC_RAW, CODEC_ZSTD]
    assert stored_bytes(work) < 50_000 + len(text(2)) + len(text(1)) // 2


@pytest.mark.parametrize("way", ["in place", "cut", "by rename"])
def test_an_edited_file_takes_only_its_edits(work: Edits, way: str) -> None:
    work.put("file", text(1))
    save(work)
    compress(work)
    before = stored_bytes(work)
    for number in range(10):
        edited = text(1)[: 5_000 * number] + b"EDIT%d" % number + text(1)[5_000 * number :]
        if way == "by rename":
            work.put("file~", edited)
            work.move("file~", "file")
        elif way == "cut":
            work.put("file", edited)
        else:
            work.write("file", 0, edited)
        save(work)
    compress(work)
    assert codecs(work) == [CODEC_ZSTD] + [CODEC_DELTA] * 10
    assert stored_bytes(work) - before < 10 * 200


def test_a_base_stays_as_long_as_a_difference_needs_it(work: Edits) -> None:
    work.put("file", text(1))
    save(work)
    work.put("file", text(1) + b"more")
    save(work)
    compress(work)
    removal.delete(work.fs, checkpoints(work.store)[:1])
    assert codecs(work) == [CODEC_ZSTD, CODEC_DELTA]
    assert get(work.fs, b"file") == text(1) + b"more"
    work.remove("file")
    removal.delete(work.fs, checkpoints(work.store))
    assert codecs(work) == []


def test_going_back_and_forth_makes_no_ring(work: Edits) -> None:
    a, b, c = text(1), text(1) + b"b", text(1) + b"c"
    for data in (a, b, a, c, b, a):
        work.put("file", data)
        save(work)
        compress(work)
    for checkpoint in checkpoints(work.store)[:5]:
        removal.delete(work.fs, [checkpoint])
        assert check(work.store) == []
    assert get(work.fs, b"file") == a


def test_a_file_that_goes_on_changing_takes_only_its_last_changes(work: Edits) -> None:
    """Far from its first version, it still takes only what changed since the one before."""
    words = text(1, 20_000).split()
    rng = random.Random(3)
    for _ in range(60):
        for _ in range(40):
            words[rng.randrange(len(words))] = b"%d" % rng.randrange(10**9)
        work.put("file", b" ".join(words))
        save(work)
    compress(work)
    assert codecs(work).count(CODEC_DELTA) > 50
    blocks = work.store.blocks
    ways = [len(blocks.chain(key)) for key in blocks.keys()]
    assert 10 < max(ways) <= 17
    assert stored_bytes(work) < 60 * 1000 + 6 * 20_000
    # Without its middle a way goes on, and what nobody needs goes.
    removal.delete(work.fs, checkpoints(work.store)[1:50])
    work.fs.commit()
    compress(work)


def test_purge_finds_the_same_bytes_inline_or_not(work: Edits) -> None:
    work.put("gone", text(1, 1000))
    save(work)
    work.put("gone", b"")
    save(work)
    work.put("copy", text(1, 1000))
    assert purge.purge(work.fs, [b"gone"]).elsewhere == [b"copy"]
    work.fs.commit()


def test_the_same_bytes_again_are_the_same_block(work: Edits) -> None:
    work.put("a", text(1))
    save(work)
    compress(work)
    work.put("b", text(1))
    save(work)
    assert codecs(work) == [CODEC_ZSTD]


def test_small_files_are_put_together(work: Edits) -> None:
    for number in range(40):
        work.put(f"{number:02}", b"import common\n" * 100 + text(number, 3_000))
    save(work)
    compress(work)
    assert codecs(work).count(CODEC_SLICE) == 40
    assert codecs(work).count(CODEC_ZSTD) == 4
    before = stored_bytes(work)
    for number in range(36):
        work.remove(f"{number:02}")
    removal.delete(work.fs, checkpoints(work.store))
    assert codecs(work) == [CODEC_ZSTD] + [CODEC_SLICE] * 4
    compression.repack(work.fs)
    assert codecs(work) == [CODEC_ZSTD] + [CODEC_SLICE] * 4
    assert before > 3 * stored_bytes(work)


def test_packs_that_are_not_full_are_put_together(work: Edits) -> None:
    for number in range(20):
        work.put(f"{number}a", text(number, 3_000))
        work.put(f"{number}b", text(number + 100, 3_000))
        save(work)
    compress(work)
    assert codecs(work).count(CODEC_ZSTD) == 20
    before = [shown(work.fs, work.fs.view_of(c.epoch)) for c in checkpoints(work.store)]
    compression.repack(work.fs)
    work.store.blocks.forget_decoded()
    assert codecs(work).count(CODEC_ZSTD) == 1
    assert [shown(work.fs, work.fs.view_of(c.epoch)) for c in checkpoints(work.store)] == before
    compression.repack(work.fs)
    assert codecs(work).count(CODEC_ZSTD) == 1


def record_bytes(work: Edits) -> int:
    return sum(len(record) for _, record in work.store.blocks._blocks.walk())


def repack(work: Edits) -> None:
    """Whatever can be seen must be as before."""
    fs = work.fs
    views = [fs.view_of(c.epoch) for c in checkpoints(work.store)] + [fs.head]
    before = [shown(fs, view) for view in views]
    compression.repack(fs)
    work.store.blocks.forget_decoded()
    assert [shown(fs, view) for view in views] == before
    assert check(work.store) == []


def test_all_versions_of_a_file_are_in_one_pack(work: Edits) -> None:
    for number in range(10):
        work.put("file", text(1)[: 1_000 * number] + b"EDIT%d" % number + text(1)[1_000 * number :])
        work.put("other", text(2) + b"%d" % number)
        save(work)
    compress(work)
    with_differences = record_bytes(work)
    repack(work)
    # The differences and what they were taken from, in one.
    assert codecs(work) == [CODEC_ZSTD] + [CODEC_SLICE] * 20
    assert record_bytes(work) < with_differences
    for number in range(10, 15):
        work.put("file", text(1) + b"%d" % number)
        save(work)
    compress(work)
    repack(work)
    assert codecs(work) == [CODEC_ZSTD] + [CODEC_SLICE] * 25
    removal.delete(work.fs, checkpoints(work.store)[:-1])
    assert codecs(work) == [CODEC_ZSTD] + [CODEC_SLICE] * 2


def full_packs(work: Edits) -> set[bytes]:
    usage = PackUsage()
    for _ in work.store.blocks.survey(usage):
        pass
    return usage.filled(PACK_MAX // 2)


def test_versions_join_those_of_the_same_name_in_a_few_rounds(work: Edits) -> None:
    """Whatever is packed as it comes, each version is packed a few times and not with each that
    follows, and what is left of old packs is given back."""
    packed = 0
    put_pack = work.store.blocks.put_pack

    def counted(members: list[Member], whole: bytes, frame: bytes) -> None:
        nonlocal packed
        packed += len(members)
        put_pack(members, whole, frame)

    work.store.blocks.put_pack = counted  # type: ignore[method-assign]
    for number in range(96):
        work.put("file", text(1) + b"%d" % number)
        save(work)
        if number % 4 == 3:
            compression.compress(work.fs)
            compression.repack(work.fs)
    assert packed < 96 * 6
    work.store.blocks.forget_decoded()
    assert check(work.store) == []
    assert stored_bytes(work) < 100_000


def test_a_pack_that_is_full_stays(work: Edits) -> None:
    for number in range(100):
        work.put("file", text(1) + b"%d" % number)
        save(work)
    compress(work)
    repack(work)
    full = full_packs(work)
    assert len(full) == 2
    work.put("file", text(1))
    save(work)
    compress(work)
    repack(work)
    assert full_packs(work) == full


def test_what_does_not_compress_is_packed_once_only_history_has_it(work: Edits) -> None:
    work.put("gone", os.urandom(2 * BLOCK_SIZE))
    work.put("kept", os.urandom(2 * BLOCK_SIZE))
    save(work)
    work.remove("gone")
    save(work)
    compress(work)
    repack(work)
    assert codecs(work) == [CODEC_RAW] * 2 + [CODEC_ZSTD] + [CODEC_SLICE] * 2


def test_what_is_large_and_never_changed_stays_for_itself(work: Edits) -> None:
    """It may be read here and there."""
    work.put("large", text(1, 300_000))
    work.put("small", text(2, 3_000))
    work.put("small too", text(3, 3_000))
    save(work)
    compress(work)
    before = codecs(work)
    repack(work)
    assert codecs(work) == before
    assert before.count(CODEC_SLICE) == 2


def test_purged_bytes_do_not_live_on_in_a_large_pack(work: Edits) -> None:
    for version in range(5):
        for number in range(5):
            work.put(f"{number}", b"secret %d %d" % (number, version) + text(number))
        save(work)
    compress(work)
    repack(work)
    purge.purge(work.fs, [b"3"])
    blocks = work.store.blocks
    assert not any(b"secret 3" in bytes(blocks.read(key)) for key in blocks.keys())
    repack(work)
    assert get(work.fs, b"4") == b"secret 4 4" + text(4)


def test_a_new_version_is_a_difference_from_one_in_a_pack(work: Edits) -> None:
    for number in range(5):
        work.put(f"{number}", text(number, 5_000))
    save(work)
    work.put("3", text(3, 5_000) + b"more")
    save(work)
    compress(work)
    assert codecs(work) == [CODEC_ZSTD, CODEC_DELTA] + [CODEC_SLICE] * 5
    removal.delete(work.fs, checkpoints(work.store)[:1])
    assert get(work.fs, b"3") == text(3, 5_000) + b"more"


def test_a_file_may_have_the_digest_of_the_pack_that_others_would_make(work: Edits) -> None:
    """It has the digest of the pack that they would make."""
    one, two = text(1, 4_000), text(2, 4_000)
    work.put("older", one + two[:-1])
    save(work)
    work.put("older", one + two)
    save(work)
    compress(work)
    work.put("one", one)
    work.put("two", two)
    save(work)
    compress(work)
    work.remove("older")
    removal.delete(work.fs, checkpoints(work.store))
    assert get(work.fs, b"one") + get(work.fs, b"two") == one + two


def test_the_same_small_file_is_packed_once(work: Edits) -> None:
    for name in ("a", "b", "c"):
        work.put(name, text(1, 4_000))
    work.put("d", text(2, 4_000))
    save(work)
    compress(work)
    assert codecs(work) == [CODEC_ZSTD, CODEC_SLICE, CODEC_SLICE]


def test_what_is_young_waits(work: Edits) -> None:
    work.put("file", text(1))
    save(work)
    finish(work.fs, compression.compression_steps(work.fs, 10**9))
    assert codecs(work) == [CODEC_RAW]
    work.fs.clock.now_ns += 10**9
    finish(work.fs, compression.compression_steps(work.fs, 10**9))
    assert codecs(work) == [CODEC_ZSTD]


def test_small_noise_stays_as_it_is(work: Edits) -> None:
    for number in range(5):
        work.put(f"{number}", os.urandom(5_000))
    save(work)
    compress(work)
    assert codecs(work) == [CODEC_RAW] * 5


def test_room_is_given_back_within_one_transaction(work: Edits) -> None:
    for number in range(50):
        work.put(f"{number}", text(number))
    save(work)
    compress(work)
    work.fs.commit()
    work.store.compact()
    assert work.store.size_bytes() < 2 * stored_bytes(work)


def test_compression_goes_on_after_a_restart(work: Edits) -> None:
    for number in range(30):
        work.put(f"{number}", text(number))
    save(work)
    compressor = Worker(work.fs, compression.compression_steps(work.fs))
    while CODEC_ZSTD not in codecs(work):
        assert not compressor.step(0)
    assert codecs(work).count(CODEC_ZSTD) < 30
    work.fs = reopened(work.fs)
    work.store = work.fs.store
    compressor = Worker(work.fs, compression.compression_steps(work.fs))
    while not compressor.step(0):
        pass
    assert codecs(work) == [CODEC_ZSTD] * 30


def test_commits_may_come_between_any_two_steps(work: Edits) -> None:
    for number in range(600):
        work.put(f"{number}", text(number, 2_500))
    save(work)
    compressor = Worker(work.fs, compression.compression_steps(work.fs))
    while not compressor.step(0):
        work.fs.store.dirty = True
        work.fs.commit()
    assert codecs(work).count(CODEC_SLICE) == 600


def test_an_epoch_may_be_deleted_between_two_steps(work: Edits) -> None:
    for number in range(30):
        work.put(f"{number}", text(number))
    save(work)
    work.put("0", text(77))
    save(work)
    compressor = Worker(work.fs, compression.compression_steps(work.fs))
    assert not compressor.step(0)
    removal.delete(work.fs, checkpoints(work.store)[:1])
    assert compressor.step()
    assert codecs(work) == [CODEC_ZSTD] * 30


def test_a_damaged_frame_is_an_error_of_the_disk(work: Edits) -> None:
    work.put("file", text(1))
    save(work)
    compress(work)
    blocks = work.store.blocks
    (key,) = blocks.keys()
    record = blocks._record(key)
    blocks.forget_decoded()
    blocks._blocks.put(key, record[:100] + b"damage" + record[106:])
    with pytest.raises(CorruptBlock):
        blocks.read(key)
    assert {problem.invariant for problem in check(work.store)} == {"blocks"}
    blocks._blocks.put(key, record)


def test_purged_bytes_do_not_live_on_in_a_pack(work: Edits) -> None:
    for number in range(5):
        work.put(f"{number}", b"secret" + text(number, 5_000))
    save(work)
    compress(work)
    purge.purge(work.fs, [b"3"])
    blocks = work.store.blocks
    assert not any(text(3, 5_000) in bytes(blocks.read(key)) for key in blocks.keys())
    assert get(work.fs, b"4") == b"secret" + text(4, 5_000)


def test_purged_bytes_do_not_live_on_as_the_base_of_others(work: Edits) -> None:
    """The name of the purged file went to another one, which is kept as the difference."""
    work.put("a", text(1))
    save(work)
    work.move("a", "b")
    work.put("a", text(1)[100:])
    save(work)
    compress(work)
    assert codecs(work) == [CODEC_ZSTD, CODEC_DELTA]
    purge.purge(work.fs, [b"b"])
    assert codecs(work) == [CODEC_ZSTD]
    assert get(work.fs, b"a") == text(1)[100:]


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["put", "move", "save", "save", "back", "delete", "compress"]),
            st.sampled_from("abc"),
            st.integers(0, 5),
        ),
        max_size=30,
    )
)
def test_random_histories_read_the_same_when_they_are_compressed(
    tmp_path_factory: pytest.TempPathFactory, steps: list
) -> None:
    work = Edits(tmp_path_factory.mktemp("rest") / "store")
    base = text(1, 6_000)
    for what, name, number in steps:
        known = checkpoints(work.store)
        if what == "put":
            work.put(name, base[: 1000 * number] + b"#%d" % number + base[1000 * number :])
            work.put(f"{name}{number}", text(number, 4_000))
            work.put(f"small {name}", text(number, 600))
        elif what == "move" and name.encode() in shown(work.fs, work.fs.head).nodes:
            work.move(name, "abc"[number % 3])
        elif what == "save":
            save(work)
        elif what == "back" and known:
            restore(work.fs, known[number % len(known)])
        elif what == "delete" and known:
            removal.delete(work.fs, [known[number % len(known)]])
        elif what == "compress":
            compress(work)
            repack(work)
            packing.pack_records(work.fs)
    compress(work)
    repack(work)
    compress(work)
    removal.delete(work.fs, checkpoints(work.store))
    work.fs.commit()
    assert check(work.store) == []
    assert leftovers(work.store) == []
    work.store.close()


def test_compact_tells_how_far_each_part_of_it_is_and_of_how_much(work: Edits) -> None:
    for number in range(70):
        work.put(f"file{number}", text(number, 400))
    save(work)
    heard: list[dict[str, Any]] = []
    finish_steps(compacting(Service(work.fs), heard.append))
    told = {record["phase"]: record for record in heard}
    for phase in ("compressing", "looking through names", "packing"):
        assert told[phase]["files"] == 64, told
        assert 70 <= told[phase]["total_files"] <= 72, phase


def test_a_checkpoint_counts_what_was_written_before_compact_and_not_what_compact_wrote(
    work: Edits,
) -> None:
    def saved(number: int, *, compact: bool) -> int:
        work.put("file", text(number, 400_000))
        if compact:
            Service(work.fs).compact()
        return seal(work.fs, "auto", "", work.fs.clock()).bytes

    for number in range(4):
        usual = saved(number, compact=False)
    assert usual > 300_000
    assert saved(4, compact=True) == pytest.approx(usual, rel=0.1)
    assert saved(5, compact=False) == pytest.approx(usual, rel=0.1)


def test_packing_as_it_goes_leaves_no_packs_half_empty(work: Edits) -> None:
    """New versions take the others of their names with them into a new pack, out of an old one."""
    for version in range(6):
        for name in range(0, 40, 1 if version < 3 else 2):
            work.put(f"{name}", text(name, 18_000) + b"%d" % version)
        save(work)
        if version % 3 == 2:
            compression.compress(work.fs)
            finish(work.fs, compression.repacking_steps(work.fs))
    usage = PackUsage()
    for _ in work.store.blocks.survey(usage):
        pass
    assert usage.stored_bytes
    assert usage.wasted_bytes <= usage.stored_bytes // 8


def test_the_emptiest_packs_are_not_full_until_little_is_wasted() -> None:
    usage = PackUsage()
    for number in range(10):
        pack = bytes([number])
        usage.packs[pack] = (1_000, 100)
        usage.used[pack] = 550 + 50 * number
    assert len(usage.filled(500)) == 10
    assert usage.wasted_bytes * 8 > usage.stored_bytes
    left = usage.filled(500, 16)
    assert left == {bytes([number]) for number in (7, 8, 9)}
