"""When to take a checkpoint by itself: a pure decision about events, actors and the clock.

Owns the policies and what they have to remember between two changes. Refuses to know where events
come from, how a checkpoint is taken, and how a process becomes an actor. `AutoCheckpointer` in
`ckptfs.history.watch` is the part with a clock and a memory.

A *burst* is a run of changes by one actor in which no pause is as long as the quiet time. The
state before a burst is what people want back, so that is when a checkpoint is taken; whatever
others do meanwhile does not cut a burst in two, so commands that run side by side are one
checkpoint each, not one for each turn they take.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from ckptfs.errors import UsageError
from ckptfs.history.processes import Actor

SECOND_NS = 1_000_000_000
QUIET_NS = 2 * SECOND_NS
#: Long before any event.
NEVER = -(1 << 62)

PolicyKind = Literal["command", "quiet", "interval", "off"]
#: ``destroy`` takes away content that only the head has: an unlink, a truncation, a rename over an
#: existing file. ``tick`` is no change; it only lets time pass.
EventKind = Literal["change", "destroy", "tick"]
#: Why a checkpoint is due; "" is not.
Reason = Literal["", "command", "quiet", "interval", "guard"]

#: Whose the unsaved changes are, where that is no burst's number.
NOBODY = 0
SEVERAL = -1

#: The actor of a destroying request whose process cannot be seen.
UNKNOWN = Actor(0, 0, "")

Key = tuple[int, int]


class Policy(NamedTuple):
    """``allowance`` is how many commands may follow each other faster than the quiet time and each
    get a checkpoint: a loop typed at a prompt starts a thousand, which would push a day's history
    out. One more is allowed for each quiet time that passes."""

    kind: PolicyKind = "command"
    quiet_ns: int = QUIET_NS
    interval_ns: int = 0
    allowance: int = 32


class Event(NamedTuple):
    """``actor`` is None if nobody knows whose doing it is: data that the kernel held back arrive
    without a sender. ``unsaved`` tells whether the head differs from the checkpoint below it."""

    kind: EventKind
    actor: Actor | None
    now_ns: int
    unsaved: bool


class Burst(NamedTuple):
    """``guarded`` is how many bursts had begun when a checkpoint was last taken before this one
    destroyed something."""

    number: int
    last_ns: int
    guarded: int = 0


class AutoState(NamedTuple):
    """What a decision leaves for the next. Never changed in place."""

    #: The bursts that may still go on.
    bursts: Mapping[Key, Burst] = {}
    #: Who changed something last, as far as it is known.
    last: Actor | None = None
    begun: int = 0
    #: The burst that all unsaved changes belong to, or NOBODY or SEVERAL.
    unsaved_by: int = NOBODY
    changed_ns: int = NEVER
    saved_ns: int = NEVER
    #: Until when the allowance is spent; see `_allowed`.
    spent_ns: int = NEVER


class Decision(NamedTuple):
    state: AutoState
    reason: Reason

    @property
    def due(self) -> bool:
        """Whether to take a checkpoint now, before the change goes ahead."""
        return self.reason != ""


def decide(state: AutoState, event: Event, policy: Policy) -> Decision:
    """Whether a checkpoint is due before this event, and what to remember.

    A caller that is told so takes one: the state that comes back counts on it.
    """
    state = _believe(state, event.unsaved)
    if event.kind == "tick":
        return _tick(state, event, policy)
    if event.kind == "change" and event.actor is None:
        return Decision(_late(state, event, policy), "")
    actor = event.actor or UNKNOWN
    burst = _burst(state, actor, event.now_ns, policy)
    reason = _reason(state, event, burst, policy)
    return Decision(_after(state, event, actor, burst, reason, policy), reason)


def exposed(state: AutoState, burst: Burst) -> bool:
    """Whether something unsaved that is not of this burst's own making has no guard against it.

    One checkpoint guards against the whole burst, until a further burst begins; else two programs
    that take turns would get one for every turn.
    """
    foreign = state.unsaved_by not in (NOBODY, burst.number)
    return foreign and burst.guarded < max(state.begun, burst.number)


def saved(state: AutoState, now_ns: int) -> AutoState:
    """A checkpoint was taken for another reason: somebody asked for it."""
    return state._replace(unsaved_by=NOBODY, saved_ns=now_ns)


# -- the parts of a decision -----------------------------------------------------------------------


def _believe(state: AutoState, unsaved: bool) -> AutoState:
    """Changes may come and be saved without an event: trust what is said about the head."""
    if not unsaved:
        return state._replace(unsaved_by=NOBODY)
    if state.unsaved_by == NOBODY:
        return state._replace(unsaved_by=SEVERAL)
    return state


def _tick(state: AutoState, event: Event, policy: Policy) -> Decision:
    """Quiet and intervals can be seen without a change; then no writer meets the checkpoint."""
    calm = event.now_ns - state.changed_ns >= policy.quiet_ns
    over = event.now_ns - state.saved_ns >= policy.interval_ns
    if policy.kind == "quiet" and event.unsaved and calm:
        return Decision(saved(state, event.now_ns), "quiet")
    if policy.kind == "interval" and event.unsaved and over:
        return Decision(saved(state, event.now_ns), "interval")
    return Decision(state, "")


def _late(state: AutoState, event: Event, policy: Policy) -> AutoState:
    """Data without a sender belong to whoever changed something last. They are no beginning, and
    keep a burst going but do not wake it up again: the kernel may hold them back for half a
    minute."""
    going_on = state.bursts.get(state.last.key) if state.last else None
    bursts = state.bursts
    if state.last and going_on and event.now_ns - going_on.last_ns < policy.quiet_ns:
        bursts = {**bursts, state.last.key: going_on._replace(last_ns=event.now_ns)}
    unsaved_by = state.unsaved_by or (going_on.number if going_on else SEVERAL)
    return state._replace(bursts=bursts, changed_ns=event.now_ns, unsaved_by=unsaved_by)


def _burst(state: AutoState, actor: Actor, now_ns: int, policy: Policy) -> Burst:
    """The burst that a change belongs to, as it was before the change; last_ns is NEVER for one
    that begins with it."""
    going_on = state.bursts.get(actor.key)
    if going_on is not None and now_ns - going_on.last_ns < policy.quiet_ns:
        return going_on
    return Burst(state.begun + 1, NEVER)


def _reason(state: AutoState, event: Event, burst: Burst, policy: Policy) -> Reason:
    if not event.unsaved:
        return ""
    calm = event.now_ns - state.changed_ns >= policy.quiet_ns
    begins = burst.last_ns == NEVER and event.actor is not None
    if policy.kind == "command" and begins and _allowed(state, event.now_ns, policy):
        return "quiet" if calm else "command"
    if policy.kind == "quiet" and calm:
        return "quiet"
    if policy.kind == "interval" and event.now_ns - state.saved_ns >= policy.interval_ns:
        return "interval"
    return "guard" if event.kind == "destroy" and exposed(state, burst) else ""


def _allowed(state: AutoState, now_ns: int, policy: Policy) -> bool:
    """Every checkpoint before a command spends one quiet time of the future, and ``allowance`` of
    them may be spent ahead."""
    return state.spent_ns - now_ns <= (policy.allowance - 1) * policy.quiet_ns


def _after(
    state: AutoState, event: Event, actor: Actor, burst: Burst, reason: Reason, policy: Policy
) -> AutoState:
    """The state once the change, and the checkpoint before it if one was due, have happened."""
    now_ns = event.now_ns
    begun = max(state.begun, burst.number)
    bursts = dict(state.bursts)
    if begun != state.begun:
        bursts = {k: b for k, b in bursts.items() if now_ns - b.last_ns < policy.quiet_ns}
    guarded = begun if reason and event.kind == "destroy" else burst.guarded
    bursts[actor.key] = Burst(burst.number, now_ns, guarded)
    alone = reason or state.unsaved_by in (NOBODY, burst.number)
    spent_ns = state.spent_ns
    if reason and policy.kind == "command" and reason != "guard":
        spent_ns = max(spent_ns, now_ns) + policy.quiet_ns
    return AutoState(
        bursts,
        event.actor or state.last,
        begun,
        burst.number if alone else SEVERAL,
        now_ns,
        now_ns if reason else state.saved_ns,
        spent_ns,
    )


# -- policies as text ------------------------------------------------------------------------------

_UNITS_NS = {"": SECOND_NS, "s": SECOND_NS, "m": 60 * SECOND_NS, "h": 3600 * SECOND_NS}
_INTERVAL = re.compile(r"interval[ :=]+(\d{1,9})\s*([smh]?)")


def parse_policy(text: str) -> Policy:
    """A policy as users write it: command, quiet, off, or "interval 30" (seconds; also 5m, 1h)."""
    words = text.strip().lower()
    match words:
        case "command" | "quiet" | "off":
            return Policy(words)
    found = _INTERVAL.fullmatch(words)
    if found and int(found[1]):
        return Policy("interval", interval_ns=int(found[1]) * _UNITS_NS[found[2]])
    raise UsageError(
        f"There is no policy {text!r} for automatic checkpoints. Nothing was changed.",
        hint='Use command, quiet, off, or an interval such as "interval 30" (seconds), '
        "interval:5m or interval:1h.",
    )


def policy_text(policy: Policy) -> str:
    """The policy as `parse_policy` reads it."""
    if policy.kind != "interval":
        return policy.kind
    return f"interval:{policy.interval_ns // SECOND_NS}s"
