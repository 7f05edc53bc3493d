"""The state of a team in its data directory: reading it as of one moment, and restoring it.

    teams/TEAM/config.json                  tasks/TEAM/*.json
    teams/TEAM/events/*.json                sessions/TEAM/*.json
    teams/TEAM/inboxes/AGENT/msg-*          costs/TEAM/*.json

A message is `msg-X.json`, or `msg-X.consumed` once an agent has claimed it; while the agent works
on it, the file is locked with flock(2). Files are opened relative to descriptors of directories,
and no link is followed, so no name leads anywhere else.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ckptfs.errors import TeamInvalid
from ckptfs.team import trust

CONFIG = "config.json"
#: A file of a team is a small document; a larger one is refused.
_SIZE_MAX = 256 << 20

#: Inode number, size, times: the same as long as a file is unchanged.
Signature = tuple[int, int, int, int]


class Found(NamedTuple):
    """The team's files at one moment."""

    signatures: dict[str, Signature]
    #: Files that cannot be state: path and reason.
    left_out: dict[str, str]


class Content(NamedTuple):
    signature: Signature
    data: bytes


def directories(team: str) -> dict[str, str]:
    """The directories of a team's files by kind, without the inboxes: they are one level deeper."""
    return {
        "events": f"teams/{team}/events",
        "tasks": f"tasks/{team}",
        "sessions": f"sessions/{team}",
        "costs": f"costs/{team}",
    }


def inboxes(team: str) -> str:
    return f"teams/{team}/inboxes"


def kind_of(path: str, team: str) -> str | None:
    """The kind of the file at a path; None if a team has no file there."""
    if path == f"teams/{team}/{CONFIG}":
        return "config"
    above, _, name = path.rpartition("/")
    if not trust.is_state_file(name):
        return None
    for kind, directory in directories(team).items():
        if above == directory:
            return kind
    box, _, agent = above.rpartition("/")
    try:
        return "inboxes" if box == inboxes(team) and _is_agent(agent) else None
    except TeamInvalid:
        return None


def _is_agent(name: str) -> bool:
    return bool(trust.require_identifier(name, "an inbox"))


class DataDir:
    """The data directory of teams, held open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            trust.require_own(os.fstat(self._fd), f"the data directory {path}")
        except TeamInvalid:
            os.close(self._fd)
            raise

    def close(self) -> None:
        os.close(self._fd)

    @contextlib.contextmanager
    def directory(self, path: str, *, make: bool = False) -> Iterator[int | None]:
        """A directory in it, reached without links; None if there is none."""
        fd = self._open(path, make=make)
        try:
            yield fd
        finally:
            if fd is not None:
                os.close(fd)

    @contextlib.contextmanager
    def snapshots(self, team: str, *, make: bool) -> Iterator[int | None]:
        """The directory of a team's snapshots, which must be the caller's own."""
        fd = self._open(f"ckptfs/{team}", make=make, mode=0o700)
        try:
            if fd is not None:
                trust.require_own(os.fstat(fd), f"the directory {self.path}/ckptfs/{team}")
            yield fd
        finally:
            if fd is not None:
                os.close(fd)

    def _open(self, path: str, *, make: bool, mode: int = 0o755) -> int | None:
        fd = os.dup(self._fd)
        for name in path.split("/"):
            try:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, mode, dir_fd=fd)
                inner = os.open(name, trust.DIRECTORY, dir_fd=fd)
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise TeamInvalid(path, "a part of it is no directory") from error
                raise
            finally:
                os.close(fd)
            fd = inner
            if os.geteuid() == 0:
                # Another user could swap what root writes into that user's directory.
                self._require_roots(fd, path)
        return fd

    def _require_roots(self, fd: int, path: str) -> None:
        try:
            trust.require_own(os.fstat(fd), f"{self.path}/{path}")
        except TeamInvalid:
            os.close(fd)
            raise

    # -- listing -----------------------------------------------------------------------------------

    def look(self, team: str) -> Found:
        """The files that the team has now."""
        found = Found({}, {})
        with self.directory(f"teams/{team}") as fd:
            if fd is not None:
                self._look_at(fd, f"teams/{team}", [CONFIG], found)
        places = list(directories(team).values())
        with self.directory(inboxes(team)) as fd:
            for name in [] if fd is None else sorted(os.listdir(fd)):
                try:
                    places.append(f"{inboxes(team)}/{trust.require_identifier(name, 'an inbox')}")
                except TeamInvalid as error:
                    found.left_out[f"{inboxes(team)}/{name}"] = str(error)
        for place in places:
            with self.directory(place) as fd:
                if fd is not None:
                    self._look_at(fd, place, sorted(os.listdir(fd)), found)
        return found

    def _look_at(self, fd: int, place: str, listed: list[str], found: Found) -> None:
        for name in listed:
            path = f"{place}/{name}"
            if name.startswith("."):
                continue  # it is being written
            try:
                seen = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(seen.st_mode) and (name == CONFIG or trust.is_state_file(name)):
                found.signatures[path] = _signature(seen)
            elif not stat.S_ISDIR(seen.st_mode):
                found.left_out[path] = "it is no file of JSON with a plain name"

    # -- reading -----------------------------------------------------------------------------------

    def read(self, path: str) -> Content | None:
        """A file's bytes, and its signature when they were read; None if it is gone."""
        above, _, name = path.rpartition("/")
        with self.directory(above) as fd:
            if fd is None:
                return None
            try:
                file = os.open(name, trust.FILE, dir_fd=fd)
            except FileNotFoundError:
                return None
        with open(file, "rb") as opened:
            seen = os.fstat(file)
            if seen.st_size > _SIZE_MAX:
                raise TeamInvalid(path, "it is too large")
            return Content(_signature(seen), opened.read())

    def read_own(self, path: str) -> bytes | None:
        """A file that says where the members work, and must be the caller's own; None if absent."""
        above, _, name = path.rpartition("/")
        with self.directory(above) as fd:
            try:
                return None if fd is None else trust.read(fd, name, f"{self.path}/{path}")
            except FileNotFoundError:
                return None

    def is_held(self, path: str) -> bool:
        """Whether another process has the file locked."""
        with self.locked(path) as locked:
            return not locked

    @contextlib.contextmanager
    def locked(self, path: str) -> Iterator[bool]:
        """Lock a message against a claim meanwhile; False if another process has it. A file that is
        gone counts as locked."""
        above, _, name = path.rpartition("/")
        with self.directory(above) as fd:
            try:
                file = -1 if fd is None else os.open(name, trust.FILE, dir_fd=fd)
            except FileNotFoundError:
                file = -1
        try:
            if file >= 0:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    yield False
                    return
            yield True
        finally:
            if file >= 0:
                os.close(file)


def _signature(seen: os.stat_result) -> Signature:
    return (seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)


class Reading:
    """The contents of a team's files; `catch_up` reads what changed."""

    def __init__(self, data_dir: DataDir, team: str) -> None:
        self._data_dir = data_dir
        self._team = team
        self._known: dict[str, Content] = {}
        self.left_out: dict[str, str] = {}

    def catch_up(self) -> bool:
        """Read what changed since the last time; return whether the contents are of one moment:
        nothing changed between the listing before and the one after."""
        before = self._data_dir.look(self._team)
        self._known = {p: c for p, c in self._known.items() if p in before.signatures}
        for path, signature in before.signatures.items():
            known = self._known.get(path)
            if known is not None and known.signature == signature:
                continue
            content = self._data_dir.read(path)
            if content is not None:
                self._known[path] = content
        self.left_out = before.left_out
        signatures = {path: content.signature for path, content in self._known.items()}
        return signatures == before.signatures == self._data_dir.look(self._team).signatures

    def contents(self) -> dict[str, bytes]:
        return {path: self._known[path].data for path in sorted(self._known)}


def broken(contents: dict[str, bytes]) -> dict[str, str]:
    """Files that are no JSON, and why."""
    found = {}
    for path, data in contents.items():
        try:
            json.loads(data)
        except (ValueError, RecursionError) as error:
            found[path] = f"it is no JSON ({error})"
    return found


# -- restoring -------------------------------------------------------------------------------------

# A message that another process has locked is being worked on: it is neither taken away nor given
# out a second time. Restoring twice does no harm, so one that was cut short is done again.


class Changes(NamedTuple):
    """What a restore does to a team's files; paths."""

    added: list[str]
    modified: list[str]
    deleted: list[str]
    #: Messages that another process is working on, left as they are.
    held: list[str]


def plan(data_dir: DataDir, team: str, wanted: dict[str, bytes]) -> Changes:
    """What `restore` would do now."""
    return _Restore(data_dir, team, wanted).planned()


def restore(data_dir: DataDir, team: str, wanted: dict[str, bytes]) -> Changes:
    """Make the team's files exactly these."""
    return _Restore(data_dir, team, wanted).done()


def _message(path: str) -> str:
    """The name of a message, claimed or not."""
    return path.removesuffix(".json").removesuffix(".consumed")


class _Restore:
    def __init__(self, data_dir: DataDir, team: str, wanted: dict[str, bytes]) -> None:
        self._data_dir = data_dir
        self._team = team
        self._wanted = wanted
        self._present = set(data_dir.look(team).signatures)
        self._box = inboxes(team) + "/"
        held = {path for path in self._present if self._is_message(path) and data_dir.is_held(path)}
        self._held = {_message(path): path for path in held}

    def _is_message(self, path: str) -> bool:
        return path.startswith(self._box)

    def _is_held(self, path: str) -> bool:
        return self._is_message(path) and _message(path) in self._held

    def planned(self) -> Changes:
        added, modified = [], []
        for path, data in self._wanted.items():
            if self._is_held(path):
                continue
            now = self._data_dir.read(path) if path in self._present else None
            if now is None:
                added.append(path)
            elif now.data != data:
                modified.append(path)
        deleted = [path for path in self._present - set(self._wanted) if not self._is_held(path)]
        return Changes(
            sorted(added), sorted(modified), sorted(deleted), sorted(self._held.values())
        )

    def done(self) -> Changes:
        found = self.planned()
        self._reclaim(found)
        for path in (*found.added, *found.modified):
            self._write(path)
        for path in found.deleted:
            self._delete(path)
        return found

    def _reclaim(self, found: Changes) -> None:
        """Rename messages that are claimed on one side and not on the other: at no moment is one
        there twice or not at all."""
        claimed = {_message(path): path for path in found.deleted if self._is_message(path)}
        for path in found.added:
            other = claimed.get(_message(path)) if self._is_message(path) else None
            if other is None:
                continue
            above, _, name = path.rpartition("/")
            with self._data_dir.locked(other) as free, self._data_dir.directory(above) as fd:
                if free and fd is not None:
                    with contextlib.suppress(FileNotFoundError):
                        os.rename(other.rpartition("/")[2], name, src_dir_fd=fd, dst_dir_fd=fd)

    def _write(self, path: str) -> None:
        above, _, name = path.rpartition("/")
        with self._data_dir.directory(above, make=True) as fd:
            if fd is None:
                raise FileNotFoundError(path)
            now = self._data_dir.read(path)
            if now is not None and now.data == self._wanted[path]:
                return
            trust.write(fd, name, self._wanted[path])

    def _delete(self, path: str) -> None:
        above, _, name = path.rpartition("/")
        with self._data_dir.locked(path) as free, self._data_dir.directory(above) as fd:
            if free and fd is not None:  # a message that was claimed just now stays
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=fd)
                os.fsync(fd)
