"""`Team`: snapshots of a team of agents, its workspaces and its state as one.

Every deed takes the team's lock, and first finishes or takes back what one that was killed left.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ckptfs import config as places
from ckptfs.errors import CkptfsError, NotMounted, TeamBusy, TeamInvalid, TeamUnknown
from ckptfs.team import bundles, files, members, names
from ckptfs.team.bundles import Meta, Part, Snapshot
from ckptfs.team.files import DataDir, Reading
from ckptfs.team.members import Located
from ckptfs.team.restoring import Restoring

Record = dict[str, Any]

#: Seconds to wait for another command about the same team.
_LOCK_PATIENCE = 30.0
_LOOK_AGAIN = 0.05
#: So many of the snapshots that restores take before them are kept.
_KEPT = 10
#: How often the state is read again, while the workspaces stand still, until it is of one moment.
_READ_TRIES = 20


class Team:
    """A team of agents, by its name in a data directory."""

    def __init__(self, name: str, data_dir: str | os.PathLike[str] | None = None) -> None:
        self.name = names.require_identifier(name, "a team")
        self.data_dir = places.team_dir() if data_dir is None else Path(data_dir).absolute()
        self._place = bundles.place(self.data_dir, self.name)

    # -- deeds -------------------------------------------------------------------------------------

    def snapshot(self, tag: str = "") -> Meta:
        """Take a snapshot: all workspaces and the team's state, as of one moment."""
        names.require_tag(tag)
        with self._opened() as data_dir:
            located = members.locate(data_dir, self.name, self._config(data_dir))
            absent = members.unmounted(located.places)
            if absent:
                listed = ", ".join(place.title for place in absent)
                raise TeamInvalid(
                    f"the workspace of {listed}",
                    "it is not mounted, so it cannot be held still",
                    hint=NotMounted(absent[0].workspace.path).hint,
                )
            return self._take(data_dir, located, tag, bundles.MANUAL).meta

    def snapshots(self) -> list[Meta | CkptfsError]:
        """All snapshots, newest first; for one that is damaged, what is wrong with it."""
        with self._opened():
            return [self._loaded(number) for number in reversed(bundles.numbers(self._place))]

    def restore(
        self,
        snapshot: str,
        *,
        dry_run: bool = False,
        confirm: Callable[[Record], None] | None = None,
    ) -> Record:
        """Make every workspace and the team's state what they were: all, or none.

        The state before becomes a snapshot first; restoring that undoes it. ``confirm`` is shown
        the plan and raises if it is not to be.
        """
        with self._opened() as data_dir:
            found = bundles.find(self._place, self.name, snapshot)
            restoring = Restoring(data_dir, self._place, found)
            plan = restoring.plan()
            if dry_run:
                return {**plan, "dry_run": True, "before": None}
            if confirm is not None:
                confirm(plan)
                restoring.require_unchanged(plan)
            located = Located(restoring.places, found.meta.without_workspace)
            tag = f"before restore of {found.meta.id}"
            before = self._take(data_dir, located, tag, bundles.BEFORE_RESTORE)
            held = restoring.restore(before)
            for number in bundles.of_kind(self._place, self.name, bundles.BEFORE_RESTORE)[:-_KEPT]:
                self._delete(bundles.load(self._place, self.name, number))
            return {**plan, "dry_run": False, "before": before.meta.id, "held": held}

    def delete(self, snapshot: str) -> Meta:
        """Delete a snapshot, and its checkpoints with it."""
        with self._opened():
            found = bundles.find(self._place, self.name, snapshot)
            self._delete(found)
            return found.meta

    def _delete(self, found: Snapshot) -> None:
        for part in found.meta.parts:
            workspace = places.Workspace(Path(part.workspace), Path(part.store))
            if workspace.store.is_dir():
                members.forget(workspace, part.checkpoint)
        # Last: as long as it is there, whoever was interrupted can do it again.
        (self._place / f"{found.meta.id}.json").unlink(missing_ok=True)
        bundles.sync_directory(self._place)

    # -- the parts of it ---------------------------------------------------------------------------

    @contextmanager
    def _opened(self) -> Iterator[DataDir]:
        """The data directory, with the team's lock, after what was left undone is in order."""
        if not (self.data_dir / "teams" / self.name / files.CONFIG).is_file():
            raise TeamUnknown(self.name, self.data_dir)
        self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked():
            data_dir = DataDir(self.data_dir)
            try:
                Restoring.recover(data_dir, self._place, self.name)
                yield data_dir
            finally:
                data_dir.close()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self._place / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + _LOCK_PATIENCE
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > deadline:
                        raise TeamBusy(self.name, "another command is at work on it") from error
                    time.sleep(_LOOK_AGAIN)
            yield
        finally:
            os.close(fd)

    def _config(self, data_dir: DataDir) -> Any:
        path = f"teams/{self.name}/{files.CONFIG}"
        content = data_dir.read(path)
        try:
            return json.loads(b"" if content is None else content.data)
        except ValueError as error:
            raise TeamInvalid(path, f"it is no JSON ({error})") from error

    def _loaded(self, number: str) -> Meta | CkptfsError:
        try:
            return bundles.load(self._place, self.name, number).meta
        except CkptfsError as error:
            return error

    def _take(self, data_dir: DataDir, located: Located, tag: str, kind: str) -> Snapshot:
        now_ns = time.time_ns()
        number = bundles.new_id(now_ns)
        reading = Reading(data_dir, self.name)
        reading.catch_up()  # so that little is left to read while all stand still
        asked: Record = {
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
        return self._kept(data_dir, meta, reading)

    def _kept(self, data_dir: DataDir, meta: Meta, reading: Reading) -> Snapshot:
        contents = reading.contents()
        box = files.inboxes(self.name) + "/"
        full = replace(
            meta,
            counts=bundles.counts(contents, self.name),
            remarks={**files.broken(contents), **reading.left_out},
            held=[path for path in contents if path.startswith(box) and data_dir.is_held(path)],
        )
        snapshot = Snapshot(full, contents)
        try:
            bundles.write(self._place, snapshot)
        except BaseException:
            for part in meta.parts:
                workspace = places.Workspace(Path(part.workspace), Path(part.store))
                members.forget(workspace, part.checkpoint)
            raise
        return snapshot
