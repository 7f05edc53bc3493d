"""Verbs whose plan another process makes (`Verb.is_planned`): when one is made, and how often.

What does not take long is planned and done at once, between two requests. Anything else is planned
beside the requests, by a reader process, and then done if the plan still holds. How a plan is made,
and how the verb is carried out, the caller says.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf
from typing import NamedTuple

from ckptfs import interrupts
from ckptfs.errors import ReaderEnded
from ckptfs.fs import Filesystem
from ckptfs.history import merge_ahead
from ckptfs.service.arguments import JsonObject

log = logging.getLogger(__name__)

#: So often a process decides what a verb is to do, if programs change what that is about meanwhile;
#: then it is decided between two requests.
_PLANS_MAX = 3


class Work(NamedTuple):
    """A verb, as the caller has it carried out."""

    name: str
    #: Does it in one step, by the plan that waits or by one of its own; `OverBudget` if reading
    #: takes longer than so many seconds.
    carry_out: Callable[[float], Awaitable[JsonObject]]
    #: Makes a plan beside the requests, part by part.
    plan: Callable[[Callable[[bytes], None]], Awaitable[None]]
    #: Has the kernel send what programs wrote meanwhile and it still keeps to itself.
    sync: Callable[[], Awaitable[None]]


async def perform(fs: Filesystem, work: Work, reading_s: float) -> JsonObject:
    """Carry out a verb, of which reading may take so long between two requests, if that can be."""
    try:
        for _ in range(_PLANS_MAX):
            with suppress(interrupts.OverBudget):
                return await work.carry_out(reading_s)
            is_planned = await _plan(fs, work)
            # Pages that were written through mappings are noted when they come, no earlier.
            await work.sync()
            if not is_planned:
                break
        return await work.carry_out(inf)
    finally:
        merge_ahead.end(fs)


async def _plan(fs: Filesystem, work: Work) -> bool:
    """Have a plan made; False if there is no process for it. One that ended before its time may
    have met what would end this one, too."""
    try:
        await work.plan(merge_ahead.begin(fs).add)
    except ReaderEnded as error:
        if error.started:
            raise
        merge_ahead.end(fs)
        log.warning("%s is decided between requests: %s", work.name, error)
        return False
    return True
