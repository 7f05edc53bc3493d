"""Named forks: where each is mounted, and making, renaming and deleting them.

A fork is mounted below the store, under its name, or at a path that its user chose. `.forks/NAME`
in the workspace is a symbolic link there: without root a mount cannot stand inside the workspace,
since fusermount3 acts as root, whom a user's mount keeps out; so it stands nowhere inside, with or
without root, and the daemon never walks through its own mount. A fork that was acknowledged is
mounted again by the next daemon.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trio

from ckptfs.config import Workspace
from ckptfs.control import runtime
from ckptfs.daemon import mounts
from ckptfs.daemon.lines import Line, Lines
from ckptfs.daemon.shutdown import let_go
from ckptfs.errors import (
    CkptfsError,
    ForkBusy,
    ForkInvalid,
    ForksTooMany,
    MountpointBusy,
    OverlappingTrees,
    UsageError,
)
from ckptfs.fuse import Connection
from ckptfs.fuse.forks_dir import NAME, ForkPoint
from ckptfs.fuse.nodes import FORKS_ROOT
from ckptfs.history import Cause, Checkpoint, forks
from ckptfs.model import ROOT_INO, Ino
from ckptfs.service.arguments import OnProgress
from ckptfs.store.forks import Fork

log = logging.getLogger(__name__)

#: How many may stand at once. Each is a mount, of which fusermount3 allows a user 1,000, and a
#: few descriptors.
FORKS_MAX = 500
#: Seconds for which an unmount is tried again while the kernel says EBUSY, and between two tries.
_BUSY_PATIENCE = 2.0
_LOOK_AGAIN = 0.02


class Wish(NamedTuple):
    """A fork that is wanted: ``start`` is the checkpoint to begin at, empty for now; ``at`` where
    to mount it, empty for the usual place; what matches ``without`` is left out."""

    name: str
    start: str = ""
    at: str = ""
    without: Sequence[str] = ()
    copies: int = 1

    def each(self) -> list[Wish]:
        """Several get numbers behind their names and places."""
        if self.copies == 1:
            return [self]
        numbers = range(1, self.copies + 1)
        return [
            self._replace(name=f"{self.name}-{n}", at=self.at and f"{self.at}-{n}", copies=1)
            for n in numbers
        ]


class NamedForks:
    """All of a mounted workspace."""

    def __init__(self, lines: Lines, workspace: Workspace) -> None:
        self._lines = lines
        self._workspace = workspace
        self._store = lines.main.service.fs.store
        lines.on_end = self._ended

    def points(self) -> Mapping[bytes, ForkPoint]:
        """What stands in `.forks`."""
        return {
            os.fsencode(line.name): ForkPoint(line.number, os.fsencode(line.path))
            for line in self._lines
            if line.name and line.is_served and not forks.is_scratch(line.name)
        }

    def all(self) -> list[Fork]:
        return [fork for fork in self._store.forks if not forks.is_scratch(fork.name)]

    # -- making ------------------------------------------------------------------------------------

    async def create(self, line: Line, wish: Wish, cause: Cause) -> list[Line]:
        """Let forks begin in a line, and mount them; all or none."""
        self._lines.require_forks()
        self._require_room(wish.copies)
        wishes = wish.each()
        for each in wishes:
            _require_own_name(each.name)
            forks.require_name(self._store, each.name)
            if each.at:
                await trio.to_thread.run_sync(self._require_place, Path(each.at))
        fs = line.service.fs
        made: list[Fork] = []
        mounted: list[Line] = []
        try:
            for each in wishes:
                made.append(
                    forks.create(
                        fs, each.name, each.start, at=each.at, without=each.without, cause=cause
                    )
                )
            fs.commit()
            for fork in made:
                mounted.append(await self._mount(fork, self._place(fork)))
        except BaseException:
            with trio.CancelScope(shield=True):
                for each_line in mounted:
                    await self._lines.end(each_line, detach=True)
                    mounts.remove_point(each_line.path)
            self._take_back(made, cause)
            raise
        await self._announce(made)
        return mounted

    def _require_room(self, wanted: int) -> None:
        if wanted < 1:
            raise UsageError("Cannot make less than one fork. Nothing was changed.")
        standing = len(self.all())
        if standing + wanted > FORKS_MAX:
            raise ForksTooMany(standing, FORKS_MAX)

    def _require_place(self, place: Path) -> None:
        """Refuse a directory that a fork cannot be mounted on. In a thread: the path may lead
        through a mount of ours."""
        if not place.is_absolute() or Path(os.path.realpath(place)) != place:
            raise UsageError(f"Cannot mount a fork at {place}: it is no resolved path.")
        others = [line.path for line in self._lines]
        for other in (*others, self._workspace.store):
            if place.is_relative_to(other) or other.is_relative_to(place):
                raise OverlappingTrees(place, other)
        runtime.check_apart(place, self._workspace)
        runtime.check_dest(place)

    def _take_back(self, made: Sequence[Fork], cause: Cause) -> None:
        service = self._lines.main.service
        last = [forks.delete(service.fs, fork.name, cause) for fork in made]
        service.fs.commit()
        if last:
            service.delete(last)

    def _place(self, fork: Fork) -> Path:
        return Path(fork.at) if fork.at else self._workspace.forks / fork.name

    async def _mount(self, fork: Fork, place: Path) -> Line:
        if place.parent != self._workspace.forks:
            await trio.to_thread.run_sync(self._require_place, place)
        await trio.to_thread.run_sync(mounts.make_point, place)
        try:
            return await self._lines.add(fork, place)
        except BaseException:
            mounts.remove_point(place)
            raise

    async def _announce(self, changed: Sequence[Fork], *names: str) -> None:
        """Have the kernel ask for `.forks` again, and for what stands in it."""
        known = [os.fsencode(name) for name in (*names, *(fork.name for fork in changed))]
        root, inside = (ROOT_INO, NAME), {(Ino(FORKS_ROOT), name) for name in known}
        nodes = {Ino(FORKS_ROOT), *(Ino(FORKS_ROOT + fork.number) for fork in changed)}
        await self._lines.main.invalidate({root, *inside}, nodes)

    async def _ended(self, line: Line) -> None:
        if line.number in self._store.forks:
            await self._announce([self._store.forks[line.number]])

    # -- changing ----------------------------------------------------------------------------------

    async def delete(
        self, name: str, cause: Cause, *, force: bool, asking: int
    ) -> tuple[Checkpoint, list[str]]:
        """End a fork; the checkpoint of its last state, and who lost it in other mount namespaces.
        Refused while a process is in it, unless ``force`` says that it is dead for that one
        then."""
        fork = self._find(name)
        line = self._lines.get(fork.number)
        cut_off = []
        if line is not None:
            cut_off = await self._unmount(line, "delete", force=force, asking=asking)
        place = line.path if line is not None else self._place(fork)
        await trio.to_thread.run_sync(mounts.remove_point, place)
        fs = self._lines.main.service.fs
        last = forks.delete(fs, name, cause)
        fs.commit()
        await self._announce([fork])
        return last, cut_off

    async def rename(self, old: str, new: str, *, asking: int) -> Line | None:
        """Give a fork another name, and with it another place if it has the usual one: then no
        process may be in it. One that is not mounted is mounted again. Returns it as it is mounted,
        if it is."""
        fork = self._find(old)
        _require_own_name(new)
        if new != old:
            forks.require_name(self._store, new)
        line = self._lines.get(fork.number)
        if new == old or line is None:
            renamed = forks.rename(self._store, old, new)
        elif fork.at:
            renamed = forks.rename(self._store, old, new)
            line.name = line.hub.fork = new
        else:
            await trio.to_thread.run_sync(runtime.check_dest, self._workspace.forks / new)
            await self._unmount(line, "rename", force=False, asking=asking)
            await trio.to_thread.run_sync(mounts.remove_point, line.path)
            renamed = forks.rename(self._store, old, new)
        self._lines.main.service.fs.commit()
        if self._lines.get(fork.number) is None:
            await self._mount_again(renamed)
        await self._announce([renamed], old)
        return self._lines.get(fork.number)

    def _find(self, name: str) -> Fork:
        """Raises ForkUnknown."""
        _require_own_name(name)
        return forks.find(self._store, name)

    async def _unmount(self, line: Line, verb: str, *, force: bool, asking: int) -> list[str]:
        """Unmount one; who lost it in other mount namespaces."""
        line.locate()
        cut_off = []
        if not force:
            found = partial(mounts.holders, line.path, but=asking)
            users = await trio.to_thread.run_sync(found)
            if users:
                raise ForkBusy(line.name, verb, users)
            cut_off = await _let_go([line], asking)
        try:
            await self._end_patiently(line, detach=force)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            raise ForkBusy(line.name, verb) from error
        return cut_off

    # -- with the workspace ------------------------------------------------------------------------

    def forget_places(self) -> None:
        """Let all forks be mounted at the usual places from now on. A store that is new here may be
        a copy, and then those places are the original's; or its maker chose them."""
        moved = [fork for fork in self.all() if fork.at]
        for fork in moved:
            log.info("the store is new here: fork %s is not mounted at %s", fork.name, fork.at)
            forks.move(self._store, fork.name, "")
        if moved:
            self._lines.main.service.fs.commit()

    async def mount_all(self) -> None:
        """Mount what is not mounted. One that cannot be is left in the store, and named in the
        log; one whose own place is taken gets the usual one."""
        if self._lines.connections.reason:
            return
        for fork in self.all():
            if self._lines.get(fork.number) is None:
                await self._mount_again(fork)
        await self._announce(self.all())

    async def _mount_again(self, fork: Fork) -> None:
        places = [self._place(fork), self._workspace.forks / fork.name]
        for place in places[: 2 if fork.at else 1]:
            try:
                await self._mount(fork, place)
            except (CkptfsError, OSError) as error:
                log.warning("cannot mount fork %s at %s: %s", fork.name, place, error)
            else:
                return

    async def require_idle(self, asking: int) -> None:
        """Refuse an unmount of the workspace while a process is in a fork."""
        places = [line.path for line in self._lines if line.name]
        if places:
            found = partial(mounts.holders_by_mount, places, but=asking)
            for place, users in (await trio.to_thread.run_sync(found)).items():
                raise MountpointBusy(place, users)

    async def let_go(self, asking: int, on_progress: OnProgress | None) -> list[str]:
        """Wait a moment until nobody uses a fork in another mount namespace; who still does."""
        return await _let_go([line for line in self._lines if line.name], asking, on_progress)

    async def unmount_all(self) -> None:
        """Unmount all before the workspace is; or none, if one of them is busy."""
        for line in list(self._lines):
            if not line.name:
                continue
            try:
                await self._end_patiently(line, detach=False)
            except OSError as error:
                await self.mount_all()
                if error.errno != errno.EBUSY:
                    raise
                raise MountpointBusy(line.path) from error
            leaving = partial(mounts.leave, self._workspace.store, line.path)
            await trio.to_thread.run_sync(leaving)
        with suppress(OSError):
            os.rmdir(self._workspace.forks)

    async def detach_with(self, path: Path, detach: Callable[[], Awaitable[None]]) -> None:
        """Detach the workspace, which is mounted at this path, and all forks with it. Programs go
        on in those that they use. The daemon lives as long as the workspace's mount does, so that
        is held until the last fork has ended."""
        held = await trio.to_thread.run_sync(os.open, path, os.O_PATH | os.O_CLOEXEC)
        try:
            await detach()
        except BaseException:
            await trio.to_thread.run_sync(os.close, held)
            raise
        connections = []
        for line in list(self._lines):
            if line.connection is not None and line.is_served:
                connections.append(line.connection)
                try:
                    place = mounts.uncovered(line.device, line.path)
                    await trio.to_thread.run_sync(partial(mounts.unmount, place, detach=True))
                except OSError as error:
                    log.warning("fork %s stays mounted: %s", line.name, error)
                else:
                    leaving = partial(mounts.leave, self._workspace.store, line.path)
                    await trio.to_thread.run_sync(leaving)
        with suppress(OSError):
            os.rmdir(self._workspace.forks)
        self._lines.nursery.start_soon(_release, held, connections)

    async def _end_patiently(self, line: Line, *, detach: bool) -> None:
        """Others may look at a mount for a moment, as they do at all of them."""
        deadline = trio.current_time() + _BUSY_PATIENCE
        while True:
            try:
                await self._lines.end(line, detach=detach)
            except OSError as error:
                if error.errno != errno.EBUSY or trio.current_time() > deadline:
                    raise
                await trio.sleep(_LOOK_AGAIN)
            else:
                return


async def _release(held: int, connections: Sequence[Connection]) -> None:
    for connection in connections:
        await connection.ended.wait()
    await trio.to_thread.run_sync(os.close, held)


async def _let_go(
    lines: Sequence[Line], asking: int, on_progress: OnProgress | None = None
) -> list[str]:
    """Only who has something of them open: every sandbox that is started has a copy of each."""
    copies = [line.copies for line in lines if line.copies is not None]

    def users() -> list[str]:
        found = (each.users(but=asking) for each in copies)
        return list(dict.fromkeys(itertools.chain.from_iterable(found)))

    return await let_go(partial(trio.to_thread.run_sync, users), on_progress)


def _require_own_name(name: str) -> None:
    if forks.is_scratch(name):
        raise ForkInvalid(name, "the trees of `try` and the like have such names")
