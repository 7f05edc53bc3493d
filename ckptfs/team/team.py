"""`Team`: snapshots of a team of agents, its workspaces and its state as one.

A command that changes something takes the team's lock, and first finishes or takes back what a
killed one left. A command that only reads changes nothing, not even that.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ckptfs import config as places
from ckptfs.errors import (
    CkptfsError,
    NotMounted,
    SnapshotUnknown,
    TeamBusy,
    TeamInvalid,
    TeamUnknown,
)
from ckptfs.team import files, members, restore, snapshots, trust
from ckptfs.team.files import DataDir, Reading
from ckptfs.team.members import Located
from ckptfs.team.restore import Restore
from ckptfs.team.snapshots import Meta, Part, Snapshot

JsonObject = dict[str, Any]

#: Seconds to wait for another command about the same team.
_LOCK_PATIENCE = 30.0
_LOOK_AGAIN = 0.05
#: How many of the snapshots that restores take first are kept.
_KEPT = 10
#: How often the state is read again, while the workspaces are frozen, until it is of one moment.
_READ_TRIES = 20
_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class Team:
    """A team of agents, by its name in a data directory."""

    def __init__(self, name: str, data_dir: str | os.PathLike[str] | None = None) -> None:
        self.name = trust.require_identifier(name, "a team")
        self.data_dir = places.team_dir() if data_dir is None else Path(data_dir).absolute()
        self._private = trust.private_path(self.data_dir, self.name)

    # -- commands ----------------------------------------------------------------------------------

    def snapshot(self, tag: str = "") -> Meta:
        """Take a snapshot: all workspaces and the team's state, as of one moment."""
        trust.require_tag(tag)
        with self._opened() as (data_dir, directory, _):
            located = members.locate(data_dir, self.name, self._config(data_dir))
            absent = members.unmounted(located.places)
            if absent:
                listed = ", ".join(place.title for place in absent)
                raise TeamInvalid(
                    f"the workspace of {listed}",
                    "it is not mounted, so it cannot be held still",
                    hint=NotMounted(absent[0].workspace.path).hint,
                )
            return self._take(data_dir, directory, located, tag, snapshots.MANUAL).meta

    def snapshots(self) -> list[Meta | CkptfsError]:
        """All snapshots, newest first; for an unusable one, its error. Changes nothing."""
        with self._looking() as (_, directory):
            listed = reversed(snapshots.numbers(directory))
            found = [self._loaded(directory, number) for number in listed]
            return [item for item in found if not isinstance(item, SnapshotUnknown)]

    def is_half_done(self) -> bool:
        """Whether a restore was cut short. The next command that changes something finishes it or
        takes it back."""
        private = trust.open_private(self._private, make=False)
        if private is None:
            return False
        try:
            return restore.read_journal(private) is not None
        finally:
            os.close(private)

    def restore(
        self,
        snapshot: str,
        *,
        dry_run: bool = False,
        confirm: Callable[[JsonObject], None] | None = None,
    ) -> JsonObject:
        """Restore every workspace and the team's state: all, or none.

        The state before becomes a snapshot first; restoring that undoes it. ``confirm`` gets the
        plan and raises to refuse it.
        """
        if dry_run:
            with self._looking() as (data_dir, directory):
                found = snapshots.find(directory, self.name, snapshot)
                return {**Restore(data_dir, found).plan(), "dry_run": True, "before": None}
        with self._opened() as (data_dir, directory, private):
            found = snapshots.find(directory, self.name, snapshot)
            restoring = Restore(data_dir, found)
            plan = restoring.plan()
            if confirm is not None:
                confirm(plan)
                restoring.require_unchanged(plan)
            located = Located(restoring.places, found.meta.without_workspace)
            tag = f"before restore of {found.meta.id}"
            before = self._take(data_dir, directory, located, tag, snapshots.BEFORE_RESTORE)
            held = restoring.restore(before, private)
            for number in snapshots.of_kind(directory, self.name, snapshots.BEFORE_RESTORE)[
                :-_KEPT
            ]:
                self._delete(directory, snapshots.load(directory, self.name, number))
            return {**plan, "dry_run": False, "before": before.meta.id, "held": held}

    def delete(self, snapshot: str) -> Meta:
        """Delete a snapshot, and its checkpoints with it."""
        with self._opened() as (_, directory, _):
            found = snapshots.find(directory, self.name, snapshot)
            self._delete(directory, found)
            return found.meta

    def _delete(self, directory: int, found: Snapshot) -> None:
        for part in found.meta.parts:
            with suppress(TeamInvalid):  # a deleted workspace has no checkpoint to delete
                workspace = members.resolve(part.workspace, part.store)
                if workspace.store.is_dir():
                    members.forget(workspace, part.checkpoint)
        # Last: after an interruption the command can be repeated.
        snapshots.delete(directory, found.meta.id)

    # -- the parts of it ---------------------------------------------------------------------------

    @contextmanager
    def _looking(self) -> Iterator[tuple[DataDir, int | None]]:
        """The data directory and its directory of snapshots, if there is one, for reading."""
        if not (self.data_dir / "teams" / self.name / files.CONFIG).is_file():
            raise TeamUnknown(self.name, self.data_dir)
        data_dir = DataDir(self.data_dir)
        try:
            with data_dir.snapshots(self.name, make=False) as directory:
                yield data_dir, directory
        finally:
            data_dir.close()

    @contextmanager
    def _opened(self) -> Iterator[tuple[DataDir, int, int]]:
        """The same for changing, with the team's lock, after `Restore.recover`; and the caller's
        own directory for the journal."""
        with self._looking() as (data_dir, _), self._locked() as private:
            with data_dir.snapshots(self.name, make=True) as directory:
                if directory is None:
                    raise AssertionError("it was made just now")
                Restore.recover(data_dir, directory, private, self.name)
                yield data_dir, directory, private

    @contextmanager
    def _locked(self) -> Iterator[int]:
        private = trust.open_private(self._private, make=True)
        if private is None:
            raise AssertionError("it was made just now")
        try:
            fd = os.open("lock", _LOCK, 0o600, dir_fd=private)
            try:
                self._wait_for(fd)
                yield private
            finally:
                os.close(fd)
        finally:
            os.close(private)

    def _wait_for(self, fd: int) -> None:
        deadline = time.monotonic() + _LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise TeamBusy(self.name, "another command is at work on it") from error
                time.sleep(_LOOK_AGAIN)

    def _config(self, data_dir: DataDir) -> Any:
        path = f"teams/{self.name}/{files.CONFIG}"
        data = data_dir.read_own(path)
        try:
            return json.loads(data or b"")
        except ValueError as error:
            raise TeamInvalid(path, f"it is no JSON ({error})") from error

    def _loaded(self, directory: int | None, number: str) -> Meta | CkptfsError:
        try:
            return snapshots.load(directory, self.name, number).meta
        except CkptfsError as error:
            return error

    def _take(
        self, data_dir: DataDir, directory: int, located: Located, tag: str, kind: str
    ) -> Snapshot:
        now_ns = time.time_ns()
        number = snapshots.new_id(now_ns)
        reading = Reading(data_dir, self.name)
        reading.catch_up()  # so that little is left to read while all are frozen
        asked: JsonObject = {
            "message": f"team {self.name}: {tag}" if tag else f"team {self.name}",
            "metadata": {"team": self.name, "team_snapshot": number},
            "pin": True,
            "pid": os.getpid(),
            "command": f"ckptfs team snapshot {self.name}",
        }
        saved = members.save_all(
            self.name,
            located.places,
            asked,
            lambda: any(reading.catch_up() for _ in range(_READ_TRIES)),
        )
        parts = [
            Part(place.members, str(place.workspace.path), str(place.workspace.store), checkpoint)
            for place, checkpoint in zip(located.places, saved, strict=True)
        ]
        meta = Meta(number, self.name, tag, now_ns, kind, parts, located.without)
        return self._kept(data_dir, directory, meta, reading)

    def _kept(self, data_dir: DataDir, directory: int, meta: Meta, reading: Reading) -> Snapshot:
        contents = reading.contents()
        box = files.inboxes(self.name) + "/"
        full = replace(
            meta,
            counts=snapshots.counts(contents, self.name),
            remarks={**files.broken(contents), **reading.left_out},
            held=[path for path in contents if path.startswith(box) and data_dir.is_held(path)],
        )
        snapshot = Snapshot(full, contents)
        try:
            snapshots.write(directory, snapshot)
        except BaseException:
            for part in meta.parts:
                workspace = places.Workspace(Path(part.workspace), Path(part.store))
                members.forget(workspace, part.checkpoint)
            raise
        return snapshot
