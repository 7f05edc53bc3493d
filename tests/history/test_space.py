from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs.history import checkpoints, excluded, removal, seal
from ckptfs.history.account import PARTS, Space, measure
from ckptfs.history.checkpoints import MOMENT
from ckptfs.history.retention import RetentionPolicy
from ckptfs.service import Service
from tests.history.edits import Edits, edits

DAY_NS = 24 * 3_600_000_000_000


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Edits]:
    with edits(tmp_path / "store") as made:
        yield made


def test_bytes_are_live_shared_or_only_in_history(work: Edits) -> None:
    work.put("kept", b"k" * 5000)
    work.put("twice", b"k" * 5000)
    work.put("changed", b"c" * 6000)
    work.put("removed", b"r" * 7000)
    work.put("small", b"s" * 100)
    seal(work.fs, "manual", "", work.fs.clock())
    work.put("changed", b"C" * 3000)
    work.remove("removed")
    work.put("new", b"n" * 4000)
    found = measure(work.fs)
    assert found.live_bytes == 5000 + 3000 + 100 + 4000
    assert found.shared_bytes == 5000 + 100
    assert found.history_bytes == 6000 + 7000


def test_reclaimable_bytes_are_gone_after_compact(work: Edits) -> None:
    for number in range(50):
        work.put(f"{number}", bytes([number]) * 60_000)
    work.fs.commit()
    for number in range(50):
        work.remove(f"{number}")
    work.fs.commit()
    before = measure(work.fs)
    assert before.reclaimable_bytes > 50 * 60_000
    assert before.live_bytes == before.history_bytes == 0
    work.store.compact()
    after = measure(work.fs)
    assert after.store_bytes < before.store_bytes - 40 * 60_000
    assert after.reclaimable_bytes < 100_000


# -- every byte of the files is somewhere ----------------------------------------------------------


def parts(work: Edits, policy: RetentionPolicy | None = None) -> dict[str, int]:
    """The parts of the store, after a commit. Their sum is what its files take."""
    work.fs.commit()
    found = measure(work.fs, policy)
    sizes = {part.part: part.bytes for part in found.parts}
    assert tuple(sizes) == PARTS
    allocated = [path.lstat().st_blocks * 512 for path in work.store.path.rglob("*")]
    assert sum(sizes.values()) == found.store_bytes == sum(allocated)
    assert min(sizes.values()) >= 0, sizes
    return sizes


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def sealed(work: Edits, kind: str, age_ns: int = 0) -> None:
    seal(work.fs, kind, "", work.fs.clock() - age_ns)


def test_the_parts_are_all_bytes_after_a_varied_history(work: Edits) -> None:
    work.mkdir("d")
    excluded.apply(work.fs, ("*.o",))
    for number in range(40):
        work.put(f"d/{number}", noise(300 + number * 700))
    work.put("large", noise(3_000_000))
    work.put("build.o", noise(500_000))
    parts(work)
    for number in range(60):
        work.put(f"d/{number % 40}", noise(1_000 + number * 311))
        work.write("large", number * 40_000, noise(5_000 + number))
        sealed(work, ("auto", "manual", MOMENT)[number % 3])
    parts(work)
    work.remove("large")
    work.remove("d/3")
    sealed(work, "auto")
    parts(work)
    Service(work.fs).delete(checkpoints(work.store)[10:40])
    assert parts(work)["free"] > 0
    Service(work.fs).compact()
    sizes = parts(work)
    assert sizes["packed-records"] > 0 and sizes["free"] < 200_000
    assert sizes["live"] > 500_000
    for number in range(20):
        work.put(f"d/{number}", noise(900 + number))
        work.fs.sync()
    removal.hide(work.fs, checkpoints(work.store)[:3])
    (work.store.path / "ckptfs.log").write_bytes(bytes(10_000))
    assert parts(work)["log"] == 12_288


def test_the_bytes_of_files_are_where_they_are_held(work: Edits) -> None:
    """Each file is held by the checkpoints from the one after it was made to the last one before it
    was removed."""
    life = {"live": (0, 9), "older": (0, 2), "day": (0, 3), "saved": (0, 4), "moments": (5, 6)}
    kinds = ("auto", "auto", "auto", "manual", "auto", MOMENT)
    ages_ns = (9 * DAY_NS, 8 * DAY_NS, DAY_NS // 2, DAY_NS // 4, 0, 0)
    for number, (kind, age_ns) in enumerate(zip(kinds, ages_ns, strict=True)):
        for size, (name, (made, removed)) in enumerate(life.items(), 200_000):
            if made == number:
                work.put(name, noise(size))
            if removed == number:
                work.remove(name)
        sealed(work, kind, age_ns)
    work.remove("moments")
    sizes = {name: size for name, size in parts(work).items() if name in life}
    assert all(200_000 <= size < 250_000 for size in sizes.values()), sizes


def test_what_is_free_in_the_heap_is_told_apart(work: Edits) -> None:
    work.put("large", noise(4_000_000))
    assert parts(work)["live"] >= 4_000_000
    work.remove("large")
    sizes = parts(work)
    assert sizes["live"] < 100_000


def test_the_rule_that_frees_a_part_is_named(work: Edits) -> None:
    work.put("f", noise(100_000))
    sealed(work, "auto")
    sealed(work, MOMENT)
    policy = RetentionPolicy(daily_ns=DAY_NS, moments_ns=5)
    work.fs.commit()
    found: Space = measure(work.fs, policy)
    rules = {part.part: part.rule for part in found.parts}
    assert rules["live"] == "" and rules["free"] == "compact" and rules["saved"] == "delete"
    assert rules["hour"] == "retention.daily" and rules["moments"] == "moments.keep"
    latest = {part.part: part.latest_ns for part in found.parts}
    assert latest["moments"] == checkpoints(work.store)[1].time_ns + 5
    assert latest["hour"] == checkpoints(work.store)[0].time_ns + DAY_NS
    rules = {part.part: part.rule for part in measure(work.fs).parts}
    assert rules["moments"] == rules["hour"] == "delete", "without retention"
