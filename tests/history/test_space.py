from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs.history import seal
from ckptfs.history.space import measure
from tests.history.edits import Edits, edits


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
