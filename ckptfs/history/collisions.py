"""Collisions: a session is about to write a file that another one changed since the first read it.

What a session has read is known by what its hooks say, not by the kernel's requests: a file that
one program has read is answered to the next one from the page cache, without a request. So nothing
here runs with a request. A session knows a file as of the time when it last read it, or announced
that it would write it.

Who changed a file is known by hooks, too: the session that announced a write of it, or else the one
whose command was running when the file changed. A file that changed in no session's tool is no
collision, nor is one that changed while a command of the writing session was running.

Kept in memory for the lifetime of a daemon, within bounds, for each line of work on its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from ckptfs.fs import Filesystem
from ckptfs.history.paths import seek

#: What the setting `collisions` may say.
OFF, TELL, REFUSE = "off", "tell", "refuse"
CHOICES = (OFF, TELL, REFUSE)

#: Under which key the metadata of a checkpoint has them, one on a line.
COLLISION = "collision"

_SESSIONS_MAX = 64
_PATHS_MAX = 4096
_COMMANDS_MAX = 64

_Value = TypeVar("_Value")


class Collision(NamedTuple):
    path: bytes
    changed_by: str
    read_by: str


class _Write(NamedTuple):
    """An announced write of a file: when, and by which tool call."""

    time_ns: int
    call: str


class _Command:
    """A command of a session, from its announcement until it ended."""

    def __init__(self, start_ns: int, call: str) -> None:
        self.start_ns = start_ns
        self.call = call
        self.end_ns: int | None = None

    def ran_at(self, time_ns: int) -> bool:
        return self.start_ns <= time_ns and (self.end_ns is None or time_ns <= self.end_ns)


class _Session:
    """What one session has read and written, and which commands it ran; the latest is last."""

    def __init__(self) -> None:
        self.reads: dict[bytes, int] = {}
        self.writes: dict[bytes, _Write] = {}
        self.commands: list[_Command] = []

    def known_ns(self, path: bytes) -> int | None:
        """As of when the session knows a file; None if it does not."""
        times = [self.reads.get(path)]
        if (write := self.writes.get(path)) is not None:
            times.append(write.time_ns)
        return max((time for time in times if time is not None), default=None)

    def ran_at(self, time_ns: int) -> _Command | None:
        return next((each for each in reversed(self.commands) if each.ran_at(time_ns)), None)

    def end_command(self, now_ns: int, call: str | None = None) -> None:
        """A command ended: the one of this tool call, or any, since another tool begins. Only the
        last command can be running: the one before it ended when it began."""
        if not self.commands:
            return
        last = self.commands[-1]
        if last.end_ns is None and call in (None, last.call):
            last.end_ns = now_ns


class Collisions:
    """Those of one line of work."""

    def __init__(self) -> None:
        #: The session that reported last is last.
        self._sessions: dict[str, _Session] = {}

    def read(self, session: str, paths: Iterable[bytes], now_ns: int) -> None:
        found = self._session(session)
        for path in paths:
            _put_last(found.reads, path, now_ns)

    def runs(self, session: str, call: str, now_ns: int) -> None:
        """A tool of which it is not known what it writes: a command."""
        found = self._session(session)
        found.end_command(now_ns)
        found.commands.append(_Command(now_ns, call))
        del found.commands[:-_COMMANDS_MAX]

    def writes(self, session: str, call: str, paths: Iterable[bytes], now_ns: int) -> None:
        found = self._session(session)
        found.end_command(now_ns)
        for path in paths:
            _put_last(found.writes, path, _Write(now_ns, call))

    def ended(self, session: str, call: str, now_ns: int, *, well: bool) -> None:
        """A tool call ended. A write that failed has not happened."""
        found = self._sessions.get(session)
        if found is None:
            return
        found.end_command(now_ns, call)
        if not well:
            for path in [path for path, write in found.writes.items() if write.call == call]:
                del found.writes[path]

    def of(self, fs: Filesystem, session: str, paths: Iterable[bytes]) -> list[Collision]:
        """The collisions if the session wrote these files now."""
        own = self._sessions.get(session)
        if own is None:
            return []
        found = []
        for path in paths:
            known_ns = own.known_ns(path)
            inode = seek(fs, fs.head, path) if known_ns is not None else None
            if known_ns is None or inode is None or inode.ctime_ns <= known_ns:
                continue
            if other := self._changer(session, path, known_ns, inode.ctime_ns):
                found.append(Collision(path, other, session))
        return found

    def _changer(self, session: str, path: bytes, known_ns: int, changed_ns: int) -> str:
        """The other session that changed a file since ``known_ns``; empty if none is known to
        have done so."""
        others = {name: each for name, each in self._sessions.items() if name != session}
        announced = {
            write.time_ns: name
            for name, each in others.items()
            if (write := each.writes.get(path)) and known_ns < write.time_ns <= changed_ns
        }
        if announced:
            return announced[max(announced)]
        if self._sessions[session].ran_at(changed_ns) is not None:
            return ""
        running = {
            command.start_ns: name
            for name, each in others.items()
            if (command := each.ran_at(changed_ns)) is not None
        }
        return running[max(running)] if running else ""

    def _session(self, name: str) -> _Session:
        found = self._sessions.pop(name, None) or _Session()
        self._sessions[name] = found
        for oldest in list(self._sessions)[:-_SESSIONS_MAX]:
            del self._sessions[oldest]
        return found


def _put_last(known: dict[bytes, _Value], path: bytes, value: _Value) -> None:
    known.pop(path, None)
    known[path] = value
    while len(known) > _PATHS_MAX:
        del known[next(iter(known))]


_collisions: WeakKeyDictionary[Filesystem, Collisions] = WeakKeyDictionary()


def collisions_of(fs: Filesystem) -> Collisions:
    return _collisions.setdefault(fs, Collisions())
