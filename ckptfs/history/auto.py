"""When to take a checkpoint by itself that people read: before each step, or as the policy says.

Owns the policies and what they remember between two changes. Refuses to know where changes come
from, how a checkpoint is taken, and how a process becomes a step. The finer checkpoints that keep
what a change destroys are in `ckptfs.history.moments`.

A *burst* is a run of changes by one step in which no pause is as long as the quiet time. The state
before a burst is what people want back, so that is when a checkpoint is taken. What others do
meanwhile does not cut a burst in two, so commands that run side by side are one checkpoint each,
not one for each turn they take.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

from ckptfs.errors import UsageError
from ckptfs.history.checkpoints import Cause
from ckptfs.history.processes import TRUST_NS, Actor, Key
from ckptfs.model import Clock

SECOND_NS = 1_000_000_000
QUIET_NS = 2 * SECOND_NS
#: A command that pauses and goes on gets a further checkpoint no sooner than this.
AGAIN_NS = 60 * SECOND_NS
#: Long before any event, and long after.
NEVER = -(1 << 62)
_FOREVER = 1 << 62

PolicyKind = Literal["command", "quiet", "interval", "off"]
#: Why a checkpoint is due; "" is not.
Reason = Literal["", "command", "quiet", "interval", "moment"]


#: So many bursts are remembered without a look at their age.
_BURSTS = 128
#: Steps that follow each other faster than this are taken for a loop.
LOOP_NS = SECOND_NS // 4


class Policy(NamedTuple):
    """``allowance`` is how many steps may follow each other faster than the quiet time and each get
    a checkpoint, and one more for each quiet time that passes. Of those that follow each other
    without any pause ``loop_allowance`` get one, and one more in ten seconds: a loop that is typed
    at a prompt starts a thousand commands, which would push a day's history out."""

    kind: PolicyKind = "command"
    quiet_ns: int = QUIET_NS
    interval_ns: int = 0
    allowance: int = 32
    loop_allowance: int = 6
    loop_ns: int = 10 * SECOND_NS


class Due(NamedTuple):
    """A checkpoint to take now. ``idle_ns`` is for how long its state had stood when it was due."""

    cause: Cause
    message: str
    reason: Reason
    idle_ns: int = 0


class _Burst:
    """When a step last changed something, and when a checkpoint was last taken before it did."""

    __slots__ = ("last_ns", "marked_ns")

    def __init__(self, last_ns: int) -> None:
        self.last_ns = last_ns
        self.marked_ns = NEVER


class _Allowance:
    """So many at once, and one more for each time that passes: each spends one of these times of
    the future."""

    def __init__(self, most: int, each_ns: int) -> None:
        self._ahead_ns = (most - 1) * each_ns
        self._each_ns = each_ns
        self._spent_ns = NEVER

    def has_some(self, now_ns: int) -> bool:
        return self._spent_ns - now_ns <= self._ahead_ns

    def spend(self, now_ns: int) -> None:
        self._spent_ns = max(self._spent_ns, now_ns) + self._each_ns


def cause_of(step: Actor | None) -> Cause:
    """A step as a checkpoint remembers it."""
    return Cause(step.pid, step.command, step.session) if step else Cause()


def message_of(step: Actor | None, *, before: bool = True) -> str:
    command = "unknown process" if step is None else step.command or "a command"
    return f"{'before' if before else 'after'}: {command}"


class AutoCheckpointer:
    """The policy of one mounted workspace at work. Asked before every change, in the path of the
    writer: for a step that goes on it answers after a few comparisons.

    ``unsaved`` tells whether the head has changes since the last checkpoint; it is asked only where
    one would be due. The clock must not jump: a monotonic one.
    """

    def __init__(
        self,
        policy: Policy,
        clock: Clock = time.monotonic_ns,
        unsaved: Callable[[], bool] = lambda: True,
    ) -> None:
        self._clock = clock
        self._unsaved = unsaved
        self.policy = policy
        self._bursts: dict[Key, _Burst] = {}
        #: With so many it is looked which of them can be forgotten.
        self._bursts_max = _BURSTS
        self._last: Actor | None = None
        self._changed_ns = NEVER
        self._saved_ns = clock()
        #: What is left of the two allowances.
        self._allowance = _Allowance(policy.allowance, policy.quiet_ns)
        self._loop_allowance = _Allowance(policy.loop_allowance, policy.loop_ns)

    def before_change(self, step: Actor | None, now_ns: int) -> Due | None:
        """Whether a checkpoint is due before a change by this step goes ahead. None is a step that
        nobody knows: its changes are no beginning, and keep the burst before them going. Whoever
        gets a `Due` must take the checkpoint."""
        if step is None:
            self._note_late(now_ns)
            return None
        burst = self._bursts.get(step.key)
        begins = burst is None or now_ns - burst.last_ns >= self.policy.quiet_ns
        if burst is None:
            burst = self._begin(step.key, now_ns)
        reason = self._reason(step, burst, now_ns) if begins or self._is_timed else ""
        burst.last_ns = now_ns
        idle_ns = now_ns - self._changed_ns if self._changed_ns != NEVER else 0
        self._last, self._changed_ns = step, now_ns
        return Due(cause_of(step), message_of(step), reason, idle_ns) if reason else None

    def lasting(self, step: Actor) -> int:
        """Until when `before_change` has nothing to say about this step, if it goes on and no other
        comes between; 0 if it may have."""
        burst = self._bursts.get(step.key)
        if burst is None or self._last is None or self._last.key != step.key:
            return 0
        deadline_ns = _FOREVER
        if self.policy.kind == "interval":
            deadline_ns = self._saved_ns + self.policy.interval_ns
        return min(burst.last_ns + min(self.policy.quiet_ns, TRUST_NS), deadline_ns)

    def tick(self) -> Due | None:
        """To be called now and then, about once a second: whether time alone makes one due. Quiet
        and intervals can be seen without a change; then no writer meets the checkpoint."""
        now_ns = self._clock()
        if not self._is_timed or not self._is_over(now_ns) or not self._unsaved():
            return None
        reason: Reason = "quiet" if self.policy.kind == "quiet" else "interval"
        self.saved()
        message = message_of(self._last, before=False)
        return Due(cause_of(self._last), message, reason, now_ns - self._changed_ns)

    def saved(self) -> None:
        """A checkpoint was taken, or the head moved, for whatever reason."""
        self._saved_ns = self._clock()

    # -- the parts of a decision -------------------------------------------------------------------

    @property
    def _is_timed(self) -> bool:
        return self.policy.kind in ("quiet", "interval")

    def _is_over(self, now_ns: int) -> bool:
        """Whether the time of the policy has passed."""
        if self.policy.kind == "interval":
            return now_ns - self._saved_ns >= self.policy.interval_ns
        return now_ns - self._changed_ns >= self.policy.quiet_ns

    def _reason(self, step: Actor, burst: _Burst, now_ns: int) -> Reason:
        """Why a checkpoint is due before a change that may begin something."""
        policy = self.policy
        if policy.kind == "off":
            return ""
        if self._is_timed:
            reason: Reason = "interval" if policy.kind == "interval" else "quiet"
            return reason if self._is_over(now_ns) and self._unsaved() else ""
        again = now_ns - burst.marked_ns < AGAIN_NS and not step.edits
        looping = now_ns - self._changed_ns < LOOP_NS
        allowance = self._loop_allowance if looping else self._allowance
        if again or not allowance.has_some(now_ns):
            return ""
        burst.marked_ns = now_ns
        if not self._unsaved():
            return ""  # the state before the step is a checkpoint already
        allowance.spend(now_ns)
        return "quiet" if now_ns - self._changed_ns >= policy.quiet_ns else "command"

    def _begin(self, key: Key, now_ns: int) -> _Burst:
        """A burst of a step that is not known; those are forgotten that nothing depends on."""
        if len(self._bursts) >= self._bursts_max:
            old_ns = now_ns - max(self.policy.quiet_ns, AGAIN_NS)
            self._bursts = {k: b for k, b in self._bursts.items() if b.last_ns >= old_ns}
            self._bursts_max = max(_BURSTS, 2 * len(self._bursts))
        self._bursts[key] = burst = _Burst(now_ns)
        return burst

    def _note_late(self, now_ns: int) -> None:
        """Data without a sender belong to whoever changed something last. They keep a burst going
        but do not wake it up again: the kernel may hold them back for half a minute."""
        self._changed_ns = now_ns
        burst = self._bursts.get(self._last.key) if self._last else None
        if burst is not None and now_ns - burst.last_ns < self.policy.quiet_ns:
            burst.last_ns = now_ns


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
