"""Automatic checkpoints: when one is due, before a step or before a change that destroys something.

Decides only. Where changes come from, how a checkpoint is taken, and which step a process belongs
to are not known here.

`AutoCheckpointer` takes the checkpoints that lists show. A *burst* is a run of changes by one step
without a pause as long as the quiet time. The state before a burst is what people want back, so
that is when a checkpoint is taken. Changes by others do not split a burst, so commands that run
side by side get one checkpoint each, not one for each turn they take.

`Moments` takes *moments*: checkpoints that lists hide. One is due before a change destroys content
that is in no checkpoint, if that content

* was made or changed by another call than the one that destroys it, or
* has been unchanged for some time: a second, or the shortest pause between two edits where the
  process may be a harness, each of whose edits is a step of its own.

What one call makes and destroys within a second (lock files, temporary files, the probes of a
configure script) needs none. Once a moment is taken nothing is unsaved, so there are at most as
many moments as turns between those who make content and those who destroy it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from ckptfs.errors import UsageError
from ckptfs.history.checkpoints import Cause
from ckptfs.history.steps import TRUST_NS, Key, Step
from ckptfs.model import Clock

SECOND_NS = 1_000_000_000
QUIET_NS = 2 * SECOND_NS
#: A command that pauses and goes on gets a further checkpoint no sooner than this.
AGAIN_NS = 60 * SECOND_NS
#: Long before any event, and long after.
NEVER = -(1 << 62)
_FOREVER = 1 << 62

PolicyKind = Literal["command", "quiet", "interval", "off"]
#: Why a checkpoint is due; empty if none is.
Reason = Literal["", "command", "quiet", "interval", "moment"]


#: This many bursts are remembered whatever their age.
_BURSTS = 128
#: Steps that follow each other faster than this count as a loop.
LOOP_NS = SECOND_NS // 4


class Policy(NamedTuple):
    """Up to ``allowance`` steps that follow each other faster than the quiet time get a checkpoint
    each, and one more for each quiet time that passes. Of steps without any pause between them only
    ``loop_allowance`` do, and one more in ten seconds: a loop typed at a prompt starts a thousand
    commands, which would push a day's history out."""

    kind: PolicyKind = "command"
    quiet_ns: int = QUIET_NS
    interval_ns: int = 0
    allowance: int = 32
    loop_allowance: int = 6
    loop_ns: int = 10 * SECOND_NS


class Due(NamedTuple):
    """A checkpoint to take now, of a state that had not changed for ``idle_ns``."""

    cause: Cause
    message: str
    reason: Reason
    idle_ns: int = 0


class _Burst:
    """When a step last changed something, and when a checkpoint was last taken before that."""

    __slots__ = ("last_ns", "marked_ns")

    def __init__(self, last_ns: int) -> None:
        self.last_ns = last_ns
        self.marked_ns = NEVER


class _Allowance:
    """A token bucket: ``most`` at once, and one more for each period. What is spent is kept as the
    time up to which the periods are used."""

    def __init__(self, most: int, each_ns: int) -> None:
        self._ahead_ns = (most - 1) * each_ns
        self._each_ns = each_ns
        self._spent_ns = NEVER

    def has_some(self, now_ns: int) -> bool:
        return self._spent_ns - now_ns <= self._ahead_ns

    def spend(self, now_ns: int) -> None:
        self._spent_ns = max(self._spent_ns, now_ns) + self._each_ns


def cause_of(step: Step | None) -> Cause:
    """A step as a checkpoint remembers it."""
    return Cause(step.pid, step.command, step.session) if step else Cause()


def message_of(step: Step | None, *, before: bool = True) -> str:
    command = "unknown process" if step is None else step.command or "a command"
    return f"{'before' if before else 'after'}: {command}"


class AutoCheckpointer:
    """The policy of one mounted workspace. Asked before every change, while the writer waits: for a
    step that goes on it answers after a few comparisons.

    ``unsaved`` returns whether the head has changes since the last checkpoint; it is called only
    where one would be due. The clock must be monotonic.
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
        #: Beyond this many, old ones are dropped.
        self._bursts_max = _BURSTS
        self._last: Step | None = None
        self._changed_ns = NEVER
        self._saved_ns = clock()
        #: What is left of the two allowances.
        self._allowance = _Allowance(policy.allowance, policy.quiet_ns)
        self._loop_allowance = _Allowance(policy.loop_allowance, policy.loop_ns)

    def before_change(self, step: Step | None, now_ns: int) -> Due | None:
        """The checkpoint that is due before a change by this step, if one is; the caller must take
        it. None is an unknown step: its changes begin no burst, and prolong the current one."""
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

    def lasting(self, step: Step) -> int:
        """Until when `before_change` returns None for this step, if it goes on and no other step
        comes between; 0 if that is not certain."""
        burst = self._bursts.get(step.key)
        if burst is None or self._last is None or self._last.key != step.key:
            return 0
        deadline_ns = _FOREVER
        if self.policy.kind == "interval":
            deadline_ns = self._saved_ns + self.policy.interval_ns
        return min(burst.last_ns + min(self.policy.quiet_ns, TRUST_NS), deadline_ns)

    def tick(self) -> Due | None:
        """The checkpoint that is due by time alone; to be called about once a second. Quiet and
        intervals are noticed without a change, so that no writer waits for the checkpoint."""
        now_ns = self._clock()
        if not self._is_timed or not self._is_over(now_ns) or not self._unsaved():
            return None
        reason: Reason = "quiet" if self.policy.kind == "quiet" else "interval"
        self.saved()
        message = message_of(self._last, before=False)
        return Due(cause_of(self._last), message, reason, now_ns - self._changed_ns)

    def saved(self) -> None:
        """A checkpoint was taken, or the head moved, for any reason."""
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

    def _reason(self, step: Step, burst: _Burst, now_ns: int) -> Reason:
        """Why a checkpoint is due before a change that may begin a burst."""
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
        """Begin a burst, and drop those that are too old to matter."""
        if len(self._bursts) >= self._bursts_max:
            old_ns = now_ns - max(self.policy.quiet_ns, AGAIN_NS)
            self._bursts = {k: b for k, b in self._bursts.items() if b.last_ns >= old_ns}
            self._bursts_max = max(_BURSTS, 2 * len(self._bursts))
        self._bursts[key] = burst = _Burst(now_ns)
        return burst

    def _note_late(self, now_ns: int) -> None:
        """Data without a sender belong to the last writer. They prolong its burst but do not revive
        it: the kernel may hold them back for half a minute."""
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


_MS = 1_000_000
#: Content that has not changed for this long is kept, no matter which call made it.
STOOD_NS = 1_000 * _MS
#: Edits of one process that are further apart than this may be steps of a harness. Gaps of 50 ms
#: are promised; agents whose model answers at once were seen to leave 20.
EDIT_NS = 15 * _MS
#: Content that one call keeps changing is kept once it has been unsaved for this long.
UNSAVED_NS = 10_000 * _MS
#: A larger file that one process keeps changing in place, such as a database or an image, is kept
#: this often.
LARGE_BYTES = 1 << 20
LARGE_NS = 60_000 * _MS

#: How many inodes are remembered. Beyond that all are forgotten, and what is unsaved then counts as
#: another call's.
CONTENTS_MAX = 65_536

#: For how long a process that changed a file counts as still writing it.
_WRITING_NS = 60_000 * _MS

#: The call of an unknown process, and of content that several calls made together.
UNKNOWN: Key = (0, 0)
SEVERAL: Key = (-1, 0)


#: Names of files that programs make for themselves and remove at once, and names that only look
#: like that.
_TEMPORARY = re.compile(
    rb"-journal$|-wal$|-shm$|[.]lock$|[.]lck$|[.]tmp([.]|$)|[.]sw[px]$|[.]part$|[.]pid$|~$"
    rb"|^[.]#|^#.*#$|^4913$|^tmp[a-z0-9_]{8}$"
)
_LASTING = re.compile(
    rb"^(yarn|cargo|poetry|gemfile|composer|pipfile|flake|uv|bun|pdm|mix|podfile|pubspec|pnpm"
    rb"|packages|deno|go|conan|paket|chart)[.]lock$",
    re.IGNORECASE,
)


def _is_temporary(name: bytes) -> bool:
    return bool(_TEMPORARY.search(name)) and not _LASTING.match(name)


class Loss(NamedTuple):
    """What a change takes away: an inode's name or bytes. ``in_place`` is the size of a file of
    which other bytes stay, 0 if none do; ``unlinked`` is the name that is removed, if any;
    ``is_dir`` means an empty directory, ``is_tree`` one with everything in it, ``renamed`` that the
    inode only gets another name."""

    ino: int
    in_place: int = 0
    unlinked: bytes = b""
    is_dir: bool = False
    is_tree: bool = False
    renamed: bool = False


class Content(NamedTuple):
    """The unsaved content of an inode. ``round`` counts the seals before it; it is unsaved since
    ``since_ns``, and a version of it was kept last at ``kept_ns``. ``stood`` means that a part of
    it was unchanged for long enough before more was added."""

    pid: int
    call: Key
    last_ns: int
    since_ns: int
    round: int
    kept_ns: int = NEVER
    stood: bool = False


class Moments:
    """Who made each piece of unsaved content and when, by inode number. ``is_own`` returns whether
    an inode that is not in the table is unsaved; ``may_be_harness`` whether each edit by a process
    may be a step."""

    def __init__(
        self,
        is_own: Callable[[int], bool],
        may_be_harness: Callable[[int], bool],
        stood_ns: int = STOOD_NS,
    ) -> None:
        self._is_own = is_own
        self._may_be_harness = may_be_harness
        self.stood_ns = stood_ns
        self._contents: dict[int, Content] = {}
        self._round = 0
        self._sealed_ns = NEVER
        #: Something unsaved may be missing in the table.
        self._has_gaps = True
        #: Nothing was noted since the last seal.
        self._is_clean = False

    def sealed(self, now_ns: int) -> None:
        """A checkpoint was taken: nothing is unsaved."""
        self._round += 1
        self._sealed_ns = now_ns
        self._has_gaps = False
        self._is_clean = True

    def unsealed(self) -> None:
        """The last checkpoint was deleted: what only it held is unsaved again."""
        self._has_gaps = True

    @property
    def may_lose(self) -> bool:
        """Whether anything may be unsaved; otherwise a change can destroy nothing."""
        return self._has_gaps or not self._is_clean

    def note(
        self,
        ino: int,
        pid: int,
        call: Key,
        now_ns: int,
        *,
        content: bool = True,
        new: bool = False,
    ) -> None:
        """A process made or changed an inode; process 0 writes back pages of others. Without
        ``content`` only attributes or names changed. ``new`` means that it was just created."""
        known = self._contents.get(ino)
        if known is not None and not pid:
            pid, call = known.pid, known.call
        if known is None and len(self._contents) >= CONTENTS_MAX:
            self._forget()
        if known is None or known.round != self._round:
            # While the table may have gaps, this may be unsaved work of others.
            call = SEVERAL if self._has_gaps and not new else call
            kept_ns = self._sealed_ns if known is not None else NEVER
            found = Content(pid, call, now_ns, now_ns, self._round, kept_ns)
        else:
            found = self._changed(known, pid, call, now_ns, content=content)
        self._contents[ino] = found
        self._is_clean = False

    def _changed(
        self, known: Content, pid: int, call: Key, now_ns: int, *, content: bool
    ) -> Content:
        call = call if call == known.call else SEVERAL
        if not content:
            return known._replace(pid=pid, call=call)
        stood = known.stood or now_ns - known.last_ns >= self.stood_ns
        return known._replace(pid=pid, call=call, last_ns=now_ns, stood=stood)

    def note_new(self, inodes: Iterable[int], pid: int, call: Key, now_ns: int) -> None:
        """The same for many inodes that were just created."""
        made = Content(pid, call, now_ns, now_ns, self._round)
        self._contents.update(dict.fromkeys(inodes, made))
        self._is_clean = False
        if len(self._contents) >= CONTENTS_MAX:
            self._forget()

    def changed_by(self, call: Key) -> list[int]:
        """The inodes that a call made or changed since the last seal."""
        current = ((i, c) for i, c in self._contents.items() if c.round == self._round)
        return [ino for ino, content in current if content.call == call]

    def is_writing(self, ino: int, pid: int, now_ns: int) -> bool:
        """Whether a process was the last to change an inode, a short while ago."""
        known = self._contents.get(ino)
        return known is not None and known.pid == pid and now_ns - known.last_ns <= _WRITING_NS

    def is_due(self, loss: Loss, pid: int, call: Key, now_ns: int) -> bool:
        """Whether a process is about to destroy content that has to be kept."""
        if loss.is_tree:
            return self.may_lose
        known = self._contents.get(loss.ino)
        if known is None or known.round != self._round:
            # A directory counts as unsaved even if only an entry in it was removed.
            plain = not loss.is_dir and not loss.renamed
            return self._has_gaps and plain and self._is_own(loss.ino)
        if not pid:
            # Pages of a mapping have no sender: they may be the last writer's.
            return self._has_stood(known, loss, known.pid, now_ns, min(EDIT_NS, self.stood_ns))
        if known.call != call:
            return True
        if loss.renamed:
            return False
        if loss.is_dir:
            return False  # its maker can make it again
        patience_ns = self._patience_ns(known, loss, pid, now_ns)
        return self._has_stood(known, loss, pid, now_ns, patience_ns)

    def _patience_ns(self, known: Content, loss: Loss, pid: int, now_ns: int) -> int:
        """How old content may be that the same call destroys without a moment."""
        if now_ns - known.last_ns < EDIT_NS or pid != known.pid:
            return self.stood_ns
        if _is_temporary(loss.unlinked) or not self._may_be_harness(pid):
            return self.stood_ns
        return min(EDIT_NS, self.stood_ns)

    def _has_stood(
        self, known: Content, loss: Loss, pid: int, now_ns: int, patience_ns: int
    ) -> bool:
        rested = known.stood or now_ns - known.last_ns >= patience_ns
        if loss.in_place > LARGE_BYTES and pid == known.pid:
            return rested and now_ns - known.kept_ns >= LARGE_NS
        return rested or now_ns - known.since_ns >= UNSAVED_NS

    def _forget(self) -> None:
        """Drop what is saved; if that is not enough, everything."""
        current = {ino: c for ino, c in self._contents.items() if c.round == self._round}
        if len(current) > CONTENTS_MAX // 2:
            current = {}
            self._has_gaps = True
        self._contents = current
