"""Long computations in threads rest while others have something to do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from itertools import count

import pytest
import trio
import zstandard

from ckptfs import interrupts
from ckptfs.daemon import housekeeping
from ckptfs.daemon.housekeeping import is_crowded
from ckptfs.store import codec
from tests.support.waiting import wait_until

TEXT = b"".join(b"line %d of a text that is packed\n" % number for number in range(40_000))


def test_packing_asks_between_its_pieces_whether_to_rest() -> None:
    asked: list[float] = []
    with interrupts.resting(lambda: asked.append(time.monotonic())):
        frame = codec.compress_pack(TEXT)
    assert len(asked) >= len(TEXT) // (128 << 10)
    assert zstandard.ZstdDecompressor().decompress(frame) == TEXT
    assert zstandard.frame_content_size(frame) == len(TEXT)
    codec.compress_pack(TEXT)
    assert interrupts._state.rest is None, "elsewhere nothing waits"


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests came so far."""
    count = [0]
    monkeypatch.setattr(housekeeping, "requests", lambda: count[0])
    monkeypatch.setattr(housekeeping, "_LOOK_S", 0.01)
    monkeypatch.setattr(housekeeping, "_QUIET_S", 0.05)
    return count


def test_a_job_rests_once_for_the_requests_that_came(
    requests: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until they have paused for a moment."""
    monkeypatch.setattr(housekeeping, "_QUIET_S", 600)

    def job() -> int:
        interrupts.rest()
        requests[0] += 3
        before = time.monotonic()
        interrupts.rest()
        assert time.monotonic() - before >= 3 * 0.01
        interrupts.rest()
        return 7

    result, spent = trio.run(trio.to_thread.run_sync, housekeeping._timed, job)
    assert result == 7 and spent < 0.05, "to rest is not to work"


def test_a_job_rests_while_others_want_all_processors(
    requests: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "_CROWDED_S", 0.02)
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(2 + (os.cpu_count() or 1))
    ]

    def job() -> float:
        before = time.monotonic()
        for _ in range(10):
            interrupts.rest()
        return time.monotonic() - before

    try:
        wait_until(is_crowded, "the processors are busy")
        took, _ = trio.run(trio.to_thread.run_sync, housekeeping._timed, job)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert isinstance(took, float) and took >= 0.02, "it rested at least once"


@pytest.fixture
def endless_requests(requests: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = count()
    monkeypatch.setattr(housekeeping, "requests", lambda: next(numbers))


def test_a_job_goes_on_beside_requests_that_never_end(endless_requests: None) -> None:
    def job() -> None:
        for _ in range(3):
            interrupts.rest()

    trio.run(trio.to_thread.run_sync, housekeeping._timed, job)


def test_a_job_that_rests_does_not_hold_up_the_end(
    endless_requests: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "_QUIET_S", 600)

    def job() -> None:
        interrupts.rest()

    async def main() -> None:
        with trio.move_on_after(0.05):
            await trio.to_thread.run_sync(housekeeping._timed, job)

    began = time.monotonic()
    trio.run(main)
    assert time.monotonic() - began < 60
