"""Watching changes go by, to say when a checkpoint is due before one of them.

`AutoCheckpointer` is asked before every change, in the path of the writer, so nearly always it must
answer after a few comparisons: the same process changes something again, a moment after it last
did. Only when that does not hold is /proc read and `ckptfs.history.auto` asked, which decides.
Takes no checkpoint itself and knows nothing of FUSE.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from ckptfs.history import auto
from ckptfs.history.auto import AutoState, Decision, Event, Policy, Reason
from ckptfs.history.checkpoints import Cause
from ckptfs.history.processes import Actor
from ckptfs.model import Clock

#: For how long a process id means the process it meant: ids come again only after a whole round,
#: and no machine starts 32,768 processes in a second.
TRUST_NS = auto.SECOND_NS
#: For how long a shell that has forked is watched for the command that it becomes.
_NAMING_NS = auto.SECOND_NS
#: How many process ids are remembered at once.
_RECENT_MAX = 1024

#: No process has this id; it makes the next event take the long way.
_NO_PID = -1
_FOREVER = 1 << 62


class Due(NamedTuple):
    """A checkpoint to take now. ``idle_ns`` is for how long its state had stood when it was due;
    ``renames`` is a better cause and message for the one that was due before, if one was found."""

    cause: Cause
    message: str
    reason: Reason
    idle_ns: int
    renames: Due | None = None


def cause_of(actor: Actor | None) -> Cause:
    """An actor as a checkpoint remembers it."""
    return Cause(actor.pid, actor.command, actor.session) if actor else Cause()


def message_of(actor: Actor | None, *, before: bool = True) -> str:
    command = actor.command if actor and actor.command else "unknown process"
    return f"{'before' if before else 'after'}: {command}"


class AutoCheckpointer:
    """The policy of one mounted workspace at work.

    ``who`` turns a process id into an actor, or None (`ckptfs.history.processes.Who`); ``unsaved``
    tells whether the head has changes since the last checkpoint, and is asked only on the long
    way. The clock must not jump: a monotonic one.
    """

    def __init__(
        self,
        policy: Policy,
        clock: Clock = time.monotonic_ns,
        who: Callable[[int], Actor | None] = lambda pid: None,
        unsaved: Callable[[], bool] = lambda: True,
    ) -> None:
        self._clock = clock
        self._who = who
        self._unsaved = unsaved
        self._state = AutoState(saved_ns=clock())
        self._recent: dict[int, tuple[Actor | None, int]] = {}
        # The short way: the process of the last change, when its actor last changed something, and
        # what forbids it.
        self._pid = _NO_PID
        self._last_ns = auto.NEVER
        #: When other actors last changed something, where that is later than the state knows.
        self._times: dict[auto.Key, int] = {}
        self._late_ns = auto.NEVER
        self._exposed = True
        #: Whether it is known whose the unsaved changes are.
        self._accounted = False
        #: The request whose actor had no good name yet, and until when to look again.
        self._naming: tuple[int, int] | None = None
        self._renames: Due | None = None
        self.set_policy(policy)

    def set_policy(self, policy: Policy) -> None:
        self._catch_up()
        self._policy = policy
        self._fresh_ns = min(policy.quiet_ns, TRUST_NS)
        self._start_over()

    @property
    def policy(self) -> Policy:
        return self._policy

    def before_change(
        self, pid: int, destroying: bool = False, loses: Callable[[], bool] | None = None
    ) -> Due | None:
        """Whether a checkpoint is due before a change by this process or thread goes ahead.

        ``destroying`` tells that the change takes content away, ``loses`` whether that content is
        unsaved; it is asked only where nothing else matters any more. A ``pid`` of 0 is a change
        that nobody knows the origin of. Whoever gets a `Due` must take the checkpoint.
        """
        now_ns = self._clock()
        if (
            pid == self._pid
            and now_ns - self._last_ns < self._fresh_ns
            and now_ns < self._deadline_ns
            and not (destroying and self._exposed)
        ):
            self._last_ns = now_ns
            return None
        actor = self._actor(pid, now_ns) if pid else None
        if actor is None and not destroying and self._accounted:
            self._note_late(now_ns)
            return None
        return self._long_way(pid, actor, destroying, now_ns, loses)

    def lasting(self, pid: int) -> int:
        """Until when `before_change` has nothing to say about this process, if it goes on, takes
        nothing away, and no other process comes between; 0 if it may have."""
        if pid != self._pid:
            return 0
        return min(self._last_ns + self._fresh_ns, self._deadline_ns)

    def _note_late(self, now_ns: int) -> None:
        """What `auto` does with data without a sender, once the unsaved changes have an owner."""
        self._late_ns = now_ns
        if self._naming is not None:
            self._look_again(now_ns)
        if now_ns - self._last_ns < self._policy.quiet_ns:
            self._last_ns = now_ns

    def _long_way(
        self,
        pid: int,
        actor: Actor | None,
        destroying: bool,
        now_ns: int,
        loses: Callable[[], bool] | None,
    ) -> Due | None:
        if actor is not None and self._goes_on(actor, destroying, now_ns):
            self._switch(actor, pid, now_ns)
            return None
        state = self._catch_up()
        event = Event("destroy" if destroying else "change", actor, now_ns, unsaved=True)
        decision = self._decide(state, event)
        if decision.reason == "guard" and loses is not None and not loses():
            decision = self._decide(state, event._replace(kind="change"))
        self._follow(decision.state, actor, pid)
        if not decision.due:
            return None
        renames = self.second_look()
        unnamed = actor is not None and actor.provisional
        self._naming = (pid, now_ns + _NAMING_NS) if unnamed else None
        idle_ns = now_ns - state.changed_ns if state.changed_ns != auto.NEVER else 0
        return Due(cause_of(actor), message_of(actor), decision.reason, idle_ns, renames)

    def _decide(self, state: AutoState, event: Event) -> Decision:
        """Looking whether the head is unsaved costs more than deciding, so ask only if it matters:
        not where changes are known of and nothing would be due even so."""
        if state.unsaved_by:
            decision = auto.decide(state, event, self._policy)
            if not decision.due:
                return decision
        return auto.decide(state, event._replace(unsaved=self._unsaved()), self._policy)

    def _actor(self, pid: int, now_ns: int) -> Actor | None:
        known = self._recent.get(pid)
        if known is not None and now_ns - known[1] < TRUST_NS:
            return known[0]
        actor = self._who(pid)
        if len(self._recent) >= _RECENT_MAX:
            self._recent.clear()
        self._recent[pid] = (actor, now_ns)
        return actor

    def _goes_on(self, actor: Actor, destroying: bool, now_ns: int) -> bool:
        """Whether a decision could only be that a burst goes on: that of the actor which the short
        way is on, or another's where it is known already that the unsaved changes are mixed."""
        state = self._state
        if state.last is None or self._pid < 0 or now_ns >= self._deadline_ns:
            return False
        burst = state.bursts.get(actor.key)
        if burst is None:
            return False
        if actor.key == state.last.key:
            last_ns = self._last_ns
        elif state.unsaved_by in (auto.SEVERAL, burst.number):
            last_ns = self._times.get(actor.key, burst.last_ns)
        else:
            return False
        if now_ns - last_ns >= self._policy.quiet_ns:
            return False
        return not (destroying and auto.exposed(state, burst))

    def _switch(self, actor: Actor, pid: int, now_ns: int) -> None:
        """Put the short way under another process, and perhaps another actor."""
        state = self._state
        if state.last is not None and actor.key != state.last.key:
            self._times[state.last.key] = self._last_ns
            self._state = state._replace(last=actor)
            self._exposed = auto.exposed(state, state.bursts[actor.key])
        self._pid = pid
        self._last_ns = now_ns

    def _catch_up(self) -> AutoState:
        """Bring into the state what went the short way since the last decision."""
        state = self._state
        if state.last:
            self._times[state.last.key] = self._last_ns
        bursts = dict(state.bursts)
        for key, last_ns in self._times.items():
            if key in bursts:
                bursts[key] = bursts[key]._replace(last_ns=last_ns)
        changed_ns = max(state.changed_ns, self._late_ns, *self._times.values(), auto.NEVER)
        self._times.clear()
        self._state = state._replace(bursts=bursts, changed_ns=changed_ns)
        return self._state

    def _follow(self, state: AutoState, actor: Actor | None, pid: int) -> None:
        """Go on from a decision; the short way is for an actor that is known."""
        self._state = state
        self._accounted = True
        burst = state.bursts.get(state.last.key) if state.last else None
        self._last_ns = burst.last_ns if burst else auto.NEVER
        self._leave_short_way()
        if actor is not None and burst is not None:
            self._pid = pid
            self._exposed = auto.exposed(state, burst)

    def _leave_short_way(self) -> None:
        self._pid = _NO_PID
        self._set_deadline()

    def _start_over(self) -> None:
        """Let the next event take the long way, whosever it is."""
        self._accounted = False
        self._leave_short_way()

    def _set_deadline(self) -> None:
        on_time = self._policy.kind == "interval"
        self._deadline_ns = self._state.saved_ns + self._policy.interval_ns if on_time else _FOREVER

    # -- between requests --------------------------------------------------------------------------

    def tick(self) -> Due | None:
        """To be called now and then, about once a second: whether time alone makes one due."""
        if self._policy.kind not in ("quiet", "interval"):
            return None
        state, now_ns = self._catch_up(), self._clock()
        event = Event("tick", None, now_ns, self._unsaved())
        decision = auto.decide(state, event, self._policy)
        if not decision.due:
            return None
        self._state = decision.state
        renames, self._naming = self.second_look(), None
        self._start_over()
        cause, message = cause_of(state.last), message_of(state.last, before=False)
        return Due(cause, message, decision.reason, now_ns - state.changed_ns, renames)

    def saved(self) -> None:
        """A checkpoint was taken, or the head moved, for another reason."""
        self._state = auto.saved(self._catch_up(), self._clock())
        self._start_over()

    def second_look(self) -> Due | None:
        """A better cause and message for the checkpoint that was last due, once there is one.

        A shell opens the target of ``>`` before it becomes the command. Cheap when there is nothing
        to look for; to be called when requests pause.
        """
        if self._naming is not None:
            self._look_again(self._clock())
        renames, self._renames = self._renames, None
        return renames

    def _look_again(self, now_ns: int) -> None:
        if self._naming is None:
            return
        pid, until_ns = self._naming
        actor = self._who(pid)
        if actor is not None and actor.provisional and now_ns < until_ns:
            return
        self._naming = None
        if actor is not None and not actor.provisional:
            self._recent[pid] = (actor, now_ns)
            self._renames = Due(cause_of(actor), message_of(actor), "command", 0)
