"""A daemon gives free pages back by itself, when that pays."""

from __future__ import annotations

import itertools
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from ckptfs.daemon import giving_back
from ckptfs.daemon.giving_back import GivingBack
from ckptfs.daemon.slices import Slices
from ckptfs.fs import Filesystem
from ckptfs.service import Service
from ckptfs.store.compaction import Outlook
from tests.direct import get, put

_MIB = 1 << 20


def _free_pages(fs: Filesystem, count: int) -> None:
    for number in range(count):
        put(fs, b"gone %d" % number, os.urandom(30_000))
    put(fs, b"kept", b"kept" * 1000)
    fs.commit()
    for number in range(count):
        fs.unlink(fs.head, 1, b"gone %d" % number)
    fs.commit()
    fs.commit()


def _run(fs: Filesystem, work: Callable[[GivingBack], Awaitable[None]], share: int = 50) -> None:
    """With a clock that jumps to whatever is waited for."""

    async def main() -> None:
        own = GivingBack(Service(fs), Slices(), lambda: share)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(own.run)
            await work(own)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def _size(fs: Filesystem) -> int:
    return (fs.store.path / "data.mdb").stat().st_size


def test_free_pages_go_back_at_idle(fs: Filesystem) -> None:
    _free_pages(fs, 300)
    before = _size(fs)

    async def wait(_: GivingBack) -> None:
        with trio.fail_after(100_000):
            while _size(fs) == before:  # noqa: ASYNC110 - a file is no event
                await trio.sleep(1)

    _run(fs, wait)
    assert _size(fs) < before // 4
    fs.store.compact()
    assert get(fs, b"kept") == b"kept" * 1000


@pytest.mark.parametrize("reason", ["little to gain", "no share", "a snapshot is held"])
def test_nothing_is_copied_where_that_makes_no_sense(fs: Filesystem, reason: str) -> None:
    _free_pages(fs, 1 if reason == "little to gain" else 300)
    before = (fs.store.path / "data.mdb").stat().st_ino

    async def wait(_: GivingBack) -> None:
        await trio.sleep(1_000)

    if reason == "a snapshot is held":
        with fs.store.hold_snapshot():
            _run(fs, wait)
    else:
        _run(fs, wait, share=0 if reason == "no share" else 50)
    assert (fs.store.path / "data.mdb").stat().st_ino == before


def test_the_next_one_waits_until_the_last_has_paid_for_itself(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one per cent of a processor a second copy comes a hundred times its cost later."""
    times: list[float] = []
    ours = GivingBack._give_back

    async def noted(self: GivingBack) -> None:
        times.append(trio.current_time())
        await ours(self)

    monkeypatch.setattr(GivingBack, "_give_back", noted)
    monkeypatch.setattr(giving_back, "pays", lambda outlook: True)
    _free_pages(fs, 5)

    async def keep_changing(own: GivingBack) -> None:
        with trio.fail_after(100_000):
            while len(times) < 3:
                own.notify()
                await trio.sleep(1)

    _run(fs, keep_changing, share=1)
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(wait > giving_back._IDLE_S + 1 for wait in waits), waits


def test_what_pays() -> None:
    assert not giving_back.pays(Outlook(100 * _MIB, 85 * _MIB))
    assert giving_back.pays(Outlook(100 * _MIB, 75 * _MIB))
    assert not giving_back.pays(Outlook(_MIB // 2, _MIB // 3))


def test_a_battery_is_seen(tmp_path: Path) -> None:
    assert not giving_back.is_on_battery(tmp_path)
    (tmp_path / "BAT0").mkdir()
    for status, expected in (("Charging", False), ("Discharging", True), ("Full", False)):
        (tmp_path / "BAT0/status").write_text(status + "\n")
        assert giving_back.is_on_battery(tmp_path) == expected
