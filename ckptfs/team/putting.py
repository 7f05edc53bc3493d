"""Making the files of a team what a snapshot has: exactly those, and nothing lost or doubled.

A message that another process holds locked is being worked on: it is neither taken away nor given
out a second time. Each file is written whole under another name and renamed. Doing it twice does no
harm, so one that was cut short is finished by doing it again.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

from ckptfs.team import files, own
from ckptfs.team.files import DataDir


class Changes(NamedTuple):
    """What is, or would be, done to a team's files; paths."""

    added: list[str]
    modified: list[str]
    deleted: list[str]
    #: Messages that another process is working on, left as they are.
    held: list[str]


def plan(data_dir: DataDir, team: str, wanted: dict[str, bytes]) -> Changes:
    """What `put` would do now."""
    return _Work(data_dir, team, wanted).planned()


def put(data_dir: DataDir, team: str, wanted: dict[str, bytes]) -> Changes:
    """Make the team's files these."""
    return _Work(data_dir, team, wanted).done()


def _message(path: str) -> str:
    """What a message is called, claimed or not."""
    return path.removesuffix(".json").removesuffix(".consumed")


class _Work:
    def __init__(self, data_dir: DataDir, team: str, wanted: dict[str, bytes]) -> None:
        self._data_dir = data_dir
        self._team = team
        self._wanted = wanted
        self._present = set(data_dir.look(team).signatures)
        self._box = files.inboxes(team) + "/"
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
        """A message that changed from claimed to not, or back, changes its name in one step: at no
        moment is it there twice or not at all."""
        claimed = {_message(path): path for path in found.deleted if self._is_message(path)}
        for path in found.added:
            other = claimed.get(_message(path)) if self._is_message(path) else None
            if other is None:
                continue
            above, _, name = path.rpartition("/")
            with self._data_dir.locked(other) as free, self._data_dir.directory(above) as fd:
                if free and fd is not None:
                    with suppress(FileNotFoundError):
                        os.rename(other.rpartition("/")[2], name, src_dir_fd=fd, dst_dir_fd=fd)

    def _write(self, path: str) -> None:
        above, _, name = path.rpartition("/")
        with self._data_dir.directory(above, make=True) as fd:
            if fd is None:
                raise FileNotFoundError(path)
            now = self._data_dir.read(path)
            if now is not None and now.data == self._wanted[path]:
                return
            own.write(fd, name, self._wanted[path])

    def _delete(self, path: str) -> None:
        above, _, name = path.rpartition("/")
        with self._data_dir.locked(path) as free, self._data_dir.directory(above) as fd:
            if free and fd is not None:  # one that was claimed just now is left to its claimer
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=fd)
                os.fsync(fd)
