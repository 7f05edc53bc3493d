"""When a moment is due: a checkpoint just before a change destroys what nothing else has.

A *moment* is a checkpoint that nobody reads until something is gone. One is due before a change
takes away content that is in no checkpoint, if that content

* was made or changed by another call than the one that takes it away, or
* has stood unchanged for some time: a second, or the shortest pause between two edits where the
  process may be a harness, each of whose edits is a step of its own.

What one call makes and destroys within a second (lock files, temporary files, a configure script's
probes) needs none. Once a moment is taken nothing is unsaved, so there are no more of them than
turns between those who make things and those who destroy them.

Owns the table of who made each piece of unsaved content and when, by inode number. Knows neither
files nor how a checkpoint is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ckptfs.history.processes import Key

_MS = 1_000_000
#: Content that has stood for so long is kept, whoever made it.
STOOD_NS = 1_000 * _MS
#: Edits of one process that are further apart than this may be steps of a harness. Gaps of 50 ms
#: are promised; agents whose model answers at once were seen to leave 20.
EDIT_NS = 15 * _MS
#: Content that one call keeps changing is kept when it has been unsaved for so long.
UNSAVED_NS = 10_000 * _MS
#: Of a larger file that one process keeps changing in place, a database or an image, a version is
#: kept this often.
LARGE_BYTES = 1 << 20
LARGE_NS = 60_000 * _MS

#: How many pieces of content are remembered. Beyond that all are forgotten, and what is unsaved
#: then counts as somebody else's.
CONTENTS_MAX = 65_536

#: For how long a process that changed a file is taken to be still at it.
_WRITING_NS = 60_000 * _MS

#: Long before anything.
_NEVER = -(1 << 62)

#: The call of a process that cannot be seen, and of content that several made together.
UNKNOWN: Key = (0, 0)
SEVERAL: Key = (-1, 0)


#: Names that programs give to what they make for themselves and remove at once, and some that only
#: look like it.
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
    which other bytes stay, 0 if none do; ``unlinked`` is the name that is removed, if one is;
    ``is_dir`` tells of a directory, which is empty, ``is_tree`` of one with all that is in it.
    ``renamed`` tells that it only gets another name."""

    ino: int
    in_place: int = 0
    unlinked: bytes = b""
    is_dir: bool = False
    is_tree: bool = False
    renamed: bool = False


class Content(NamedTuple):
    """``round`` tells which seal it is unsaved since; ``since_ns`` when it began to be; ``kept_ns``
    when a version of it was kept last; ``stood`` that a part of it stood for the time that counts
    before more was added."""

    pid: int
    call: Key
    last_ns: int
    since_ns: int
    round: int
    kept_ns: int = _NEVER
    stood: bool = False


class Moments:
    """``is_own`` tells whether an inode is unsaved, for content of which nothing is known;
    ``may_be_harness`` whether each edit by a process may be a step."""

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
        self._sealed_ns = _NEVER
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
        """The last checkpoint is gone: what it alone had is unsaved again."""
        self._has_gaps = True

    @property
    def may_lose(self) -> bool:
        """Whether anything unsaved is known or suspected; else a change can destroy nothing."""
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
        """A process made or changed an inode; 0 is one that brings what others wrote. Without
        ``content`` it changed only what is said of it: its mode, its times, its names. ``new`` is
        what it has just made."""
        known = self._contents.get(ino)
        if known is not None and not pid:
            pid, call = known.pid, known.call
        if known is None and len(self._contents) >= CONTENTS_MAX:
            self._forget()
        if known is None or known.round != self._round:
            # Where something may be missing, what is changed may be unsaved work of others.
            call = SEVERAL if self._has_gaps and not new else call
            kept_ns = self._sealed_ns if known is not None else _NEVER
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
        """The same for many that nobody knew before."""
        made = Content(pid, call, now_ns, now_ns, self._round)
        self._contents.update(dict.fromkeys(inodes, made))
        self._is_clean = False
        if len(self._contents) >= CONTENTS_MAX:
            self._forget()

    def changed_by(self, call: Key) -> list[int]:
        """What a call made or changed since the last seal."""
        current = ((i, c) for i, c in self._contents.items() if c.round == self._round)
        return [ino for ino, content in current if content.call == call]

    def is_writing(self, ino: int, pid: int, now_ns: int) -> bool:
        """Whether a process was the last to change an inode, and not long ago."""
        known = self._contents.get(ino)
        return known is not None and known.pid == pid and now_ns - known.last_ns <= _WRITING_NS

    def is_due(self, loss: Loss, pid: int, call: Key, now_ns: int) -> bool:
        """Whether a process is about to destroy what has to be kept."""
        if loss.is_tree:
            return self.may_lose
        known = self._contents.get(loss.ino)
        if known is None or known.round != self._round:
            # A directory is the head's own also if only something in it was removed.
            plain = not loss.is_dir and not loss.renamed
            return self._has_gaps and plain and self._is_own(loss.ino)
        if not pid:
            # Pages of a mapping have no sender: they may be of whoever changed the file last.
            return self._has_stood(known, loss, known.pid, now_ns, min(EDIT_NS, self.stood_ns))
        if known.call != call:
            return True
        if loss.renamed:
            return False
        if loss.is_dir:
            return False  # who made it can make it again
        patience_ns = self._patience_ns(known, loss, pid, now_ns)
        return self._has_stood(known, loss, pid, now_ns, patience_ns)

    def _patience_ns(self, known: Content, loss: Loss, pid: int, now_ns: int) -> int:
        """For how long content may have stood that the same call destroys."""
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
        """Make room: first what is saved, then everything."""
        current = {ino: c for ino, c in self._contents.items() if c.round == self._round}
        if len(current) > CONTENTS_MAX // 2:
            current = {}
            self._has_gaps = True
        self._contents = current
