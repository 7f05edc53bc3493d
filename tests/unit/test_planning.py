"""A verb that is planned beside the requests: how often, and which plan it is carried out by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path

import pytest
import trio

from ckptfs import interrupts
from ckptfs.daemon import planning
from ckptfs.errors import ReaderEnded
from ckptfs.history import merge_ahead
from ckptfs.service import Service
from ckptfs.service.arguments import JsonObject
from ckptfs.service.service import perform
from tests.history.edits import edits
from tests.history.test_merge import Lines


class Merge:
    """A merge of theirs, for which programs do something after each plan."""

    def __init__(self, lines: Lines, *, reading_s: float = 0) -> None:
        self._lines = lines
        self._service = Service(lines.edits.fs)
        self._asked = {"source": str(lines.theirs.id)}
        #: How long the last attempt may read; all others may not at all.
        self._reading_s = reading_s
        self.done: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.parts = -1
        #: Whether there was a process that could end.
        self.started = False

    async def carry_out(self, limit_s: float) -> JsonObject:
        limit_s = self._reading_s if limit_s == inf else 0
        with interrupts.watching(lambda: False), interrupts.limited(limit_s):
            return perform(self._service, "merge", self._asked)

    async def plan(self, add: Callable[[bytes], None]) -> None:
        self.done.append("plan")
        parts = list(merge_ahead.parts_of(self._lines.plan(), "token"))
        for part in parts[: self.parts]:
            add(part)
        if self.parts > 0:
            raise ReaderEnded("merge", "ended", started=self.started)
        add(parts[-1])

    async def sync(self) -> None:
        self.done.append("sync")
        self.meanwhile()

    def perform(self) -> JsonObject:
        work = planning.Work("merge", self.carry_out, self.plan, self.sync)
        return trio.run(planning.perform, self._lines.edits.fs, work, 0.0)


@pytest.fixture
def lines(memory: Path) -> Iterator[Lines]:
    with edits(memory / "store") as work:
        lines = Lines(work)
        work.put("text", b"base")
        lines.part()
        work.put("text", b"theirs")
        work.put("new", b"theirs")
        lines.come_back()
        yield lines


def test_what_may_take_its_time_is_planned_once(lines: Lines) -> None:
    merge = Merge(lines)
    assert merge.perform()["changed"]
    assert merge.done == ["plan", "sync"]
    assert lines.text(b"new") == b"theirs"


def test_the_last_plan_is_not_thrown_away(lines: Lines) -> None:
    merge = Merge(lines)

    def use_the_name() -> None:
        if merge.done.count("plan") < 3:
            lines.edits.put("new", b"ours")
            lines.edits.remove("new")

    merge.meanwhile = use_the_name
    assert merge.perform()["changed"]
    assert merge.done == ["plan", "sync"] * 3
    assert lines.text(b"text") == b"theirs"


def test_what_programs_wrote_through_mappings_counts(lines: Lines) -> None:
    """It comes with the sync, behind the plan."""
    merge = Merge(lines)
    merge.meanwhile = lambda: lines.edits.write("text", 0, b"ours")
    found = merge.perform()
    assert [each["path"] for each in found["conflicts"]] == ["text"]
    assert lines.text(b"text") == b"ours"


def test_a_part_of_a_plan_is_none(lines: Lines) -> None:
    merge = Merge(lines, reading_s=inf)
    merge.parts = 2
    assert merge.perform()["changed"]
    assert merge.done == ["plan", "sync"]
    assert (lines.text(b"text"), lines.text(b"new")) == (b"theirs", b"theirs")


def test_what_ended_the_process_that_plans_is_not_tried_here(lines: Lines) -> None:
    """It may have been the kernel, for want of memory, and would end the daemon next."""
    merge = Merge(lines, reading_s=inf)
    merge.parts, merge.started = 2, True
    with pytest.raises(ReaderEnded):
        merge.perform()
    assert merge.done == ["plan"]
    assert lines.text(b"text") == b"base"
