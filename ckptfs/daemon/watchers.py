"""Waking the programs that watch files, after a restore.

inotify tells of what programs do through the kernel; of what a server does to its own tree it
tells nothing. So what a restore changed is touched through the mount, by a thread and after the
answer: the mode and the modification time are set to what they are, and a file is opened for
writing and closed. Requests of that thread change nothing (`ckptfs.fuse.hooks.touching`).

Only watched files are touched. The kernel lists the watches in /proc: those of the same user's
processes, or all for root.
"""

from __future__ import annotations

import ctypes
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

import trio

from ckptfs import config, interrupts
from ckptfs.daemon.slices import Slices
from ckptfs.fs import Filesystem
from ckptfs.fuse.hooks import touching
from ckptfs.history import Changed
from ckptfs.history.diff.tree import TreeReader
from ckptfs.interrupts import Steps
from ckptfs.model import ROOT_INO, Ino, Place
from ckptfs.service import Service
from ckptfs.store import View
from ckptfs.store.format import inode_entity

#: At most so many paths are touched for one restore: it costs the daemon some requests for each,
#: and a program that watches more than this reads everything again anyway.
PATHS_MAX = 1_000
#: After a look at who watches, no other one comes for so many times as long as it took.
_REST_TIMES = 20
#: The clock is looked at after so many inodes that the kernel is asked for.
_STRIDE = 64

P = ParamSpec("P")
T = TypeVar("T")

_UTIME_OMIT = (1 << 30) - 2
_AT_FDCWD = -100

# A name itself, neither read nor followed; and a directory on the way to one.
_PIN = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_WAY = _PIN | os.O_DIRECTORY


class WatchNotifier:
    """Takes what was changed, and wakes those who watch it when there is time."""

    def __init__(self, service: Service, mountpoint: Path, slices: Slices) -> None:
        self._service = service
        self._slices = slices
        self._mountpoint = mountpoint
        self._pending: list[Changed] = []
        self._woken = trio.Event()
        self._idle = trio.Event()
        self._idle.set()

    def add(self, changed: Changed) -> None:
        """Take what was changed; the sets are the notifier's from here on."""
        if changed.entries or changed.inodes:
            self._pending.append(changed)
            self._idle = trio.Event()
            self._woken.set()

    async def idle(self) -> None:
        """Return when all notifications are done: the thread would keep the mount busy."""
        await self._idle.wait()

    async def run(self) -> None:
        while True:
            await self._woken.wait()
            self._woken = trio.Event()
            pending, self._pending = self._pending, []
            begun = trio.current_time()
            watched = await _in_thread(watched_inodes, self._mountpoint)
            look_s = trio.current_time() - begun
            steps = self._paths(pending, watched)
            paths = await self._slices.run(steps, in_turn=False) if watched else []
            if paths:
                await _in_thread(touch, self._mountpoint, paths)
            await self._slices.run(_let_go(pending), in_turn=False)
            if not self._pending:
                self._idle.set()
            # A purge adds something with every slice, and a look goes through all of /proc.
            await trio.sleep(_REST_TIMES * look_s)

    def _paths(self, pending: list[Changed], watched: set[Ino]) -> Steps[list[bytes]]:
        """What to touch, as paths below the mountpoint."""
        fs = self._service.fs
        fs.flush()
        tree = TreeReader(fs.store, fs.head)
        places: dict[Place, None] = {}
        for changed in pending:
            places.update(dict.fromkeys((yield from _places(fs, tree, changed, watched))))
        found = []
        for place in places:
            with suppress(LookupError):  # of a later restore
                found.append(tree.path(place))
            if len(found) >= PATHS_MAX:
                break
        return found


def heard(
    fs: Filesystem, before: View, nameless: set[Ino], changed: Changed
) -> Steps[tuple[Changed, dict[Place, Ino]]]:
    """The part of a change that the kernel may know, and `vanished` of that. Without lookup counts:
    it has never heard of an inode that neither was in the head before nor was ``nameless``, nor of
    the entries of such a directory."""
    if before.epoch == fs.head.epoch and not fs.can_ask:
        # A purge: what was there before is nowhere any more.
        return Changed(set(changed.inodes), set(changed.entries)), {}
    known, after = Changed(set(), set()), fs.head
    parents: dict[Ino, bool] = {}
    for number, ino in enumerate(changed.inodes):
        if number % _STRIDE == 0 and interrupts.is_due():
            yield from _pause(fs)
        if _is_known(fs, before, nameless, ino):
            known.inodes.add(ino)
    for number, entry in enumerate(changed.entries):
        if number % _STRIDE == 0 and interrupts.is_due():
            yield from _pause(fs)
        parent = entry[0]
        if parent not in parents:
            parents[parent] = _is_known(fs, before, nameless, parent)
        if parents[parent]:
            known.entries.add(entry)
    return known, (yield from _vanished(fs, before, after, known))


def _is_known(fs: Filesystem, before: View, nameless: set[Ino], ino: Ino) -> bool:
    if fs.can_ask:
        return fs.is_used(ino)
    if ino in nameless or fs.store.inodes.get(before.bare, inode_entity(ino)) is not None:
        return True
    return fs.is_excluded(ino)


def _pause(fs: Filesystem) -> Steps[None]:
    """Give way; what came meanwhile is in the tables afterwards."""
    yield
    fs.flush()


def _vanished(
    fs: Filesystem, before: View, after: View, changed: Changed
) -> Steps[dict[Place, Ino]]:
    """The files that changed names led to and that no program gets at again by name: deleted, or
    another generation now. A watch on one of them shall hear of it."""
    old, new = TreeReader(fs.store, before), TreeReader(fs.store, after)
    found = {}
    for place in changed.entries:
        if interrupts.is_due():
            yield from _pause(fs)
            # What they have read is let go of piece by piece, too.
            old, new = TreeReader(fs.store, before), TreeReader(fs.store, after)
        ino = old.entry(place)
        was, now = old.inode(ino), new.inode(ino)
        if ino is None or was is None or was.is_dir:
            continue
        if now is None or (now.is_file and ino in changed.inodes):
            found[place] = ino
    return found


def _let_go(pending: list[Changed]) -> Steps[None]:
    """Free what is done with. A million names at once would take half a second."""
    for changed in pending:
        for done in (changed.entries, changed.inodes):
            while done:
                done.pop()
                if len(done) % _STRIDE == 0 and interrupts.is_due():
                    yield


def _places(
    fs: Filesystem, tree: TreeReader, changed: Changed, watched: set[Ino]
) -> Steps[list[Place]]:
    """The names in watched directories that lead to something changed, and in place of those that
    lead nowhere now the directory itself."""
    found: list[Place] = []
    entries = [entry for entry in changed.entries if entry[0] in watched]
    found += [entry for entry in entries if tree.entry(entry) is not None]
    for ino in changed.inodes:
        if interrupts.is_due():
            yield from _pause(fs)
        inode = tree.inode(ino)
        if inode is not None and inode.parent and (ino in watched or inode.parent in watched):
            found += tree.places(inode)
    for parent in {entry[0] for entry in entries if tree.entry(entry) is None}:
        directory = tree.inode(parent)
        if directory is not None:
            # The root's own path is empty.
            found.append((directory.parent or ROOT_INO, directory.name))
    return found


async def _in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return await trio.to_thread.run_sync(partial(function, *args, **kwargs), abandon_on_cancel=True)


# -- who watches -----------------------------------------------------------------------------------


def watched_inodes(mountpoint: Path) -> set[Ino]:
    """The watched inodes of this mount. Sends it a request, so it must not run in the daemon's
    loop."""
    try:
        device = os.stat(mountpoint).st_dev
    except OSError:
        return set()
    wanted = b"sdev:%x" % (os.major(device) << 20 | os.minor(device))
    return {
        ino
        for info in _inotify_infos()
        for line in info.splitlines()
        if (ino := _watched(line, wanted)) is not None
    }


def _watched(line: bytes, wanted: bytes) -> Ino | None:
    """From "inotify wd:1 ino:2f sdev:30 mask:fce ...", all in hexadecimal."""
    words = line.split()
    if len(words) < 4 or words[0] != b"inotify" or words[3] != wanted:
        return None
    return Ino(int(words[2].removeprefix(b"ino:"), 16))


def _inotify_infos() -> Iterator[bytes]:
    for process in os.listdir("/proc"):
        if not process.isdecimal():
            continue
        base = f"/proc/{process}"
        with suppress(OSError):  # ended meanwhile, or not ours to look at
            for number in os.listdir(f"{base}/fd"):
                with suppress(OSError):
                    if os.readlink(f"{base}/fd/{number}") == "anon_inode:inotify":
                        yield Path(f"{base}/fdinfo/{number}").read_bytes()


# -- touching --------------------------------------------------------------------------------------


def touch(mountpoint: Path, paths: Iterable[bytes]) -> None:
    """Make the kernel tell of each path, and change nothing."""
    thread = threading.get_native_id()
    touching.add(thread)
    try:
        root = os.open(mountpoint, _WAY)
        try:
            for path in paths:
                with suppress(OSError):  # gone again, or not ours to write
                    _touch(root, path)
        finally:
            os.close(root)
    except OSError:
        pass  # unmounted meanwhile
    finally:
        touching.discard(thread)


def _touch(root: int, path: bytes) -> None:
    """Others may exchange what stands under the names of a path at any moment, also for a link
    that leads out of the workspace. So what is looked at is pinned, and touched by descriptor."""
    fd = _pin(root, path)
    try:
        seen = os.fstat(fd)
        if seen.st_dev == os.fstat(root).st_dev and not stat.S_ISLNK(seen.st_mode):
            _touch_pinned(f"/proc/self/fd/{fd}", seen)
    finally:
        os.close(fd)


def _pin(root: int, path: bytes) -> int:
    """An O_PATH descriptor of a path in the mountpoint, without following any link."""
    *above, name = path.split(b"/")
    directory = config.open_each(os.dup(root), above, _WAY)
    return config.open_each(directory, [name or b"."], _PIN)


def _touch_pinned(pinned: str, seen: os.stat_result) -> None:
    if stat.S_ISREG(seen.st_mode):
        # First, before any watcher reacts: a write between the stat and this would lose its time.
        _set_modified(os.fsencode(pinned), seen.st_mtime_ns)
    os.chmod(pinned, stat.S_IMODE(seen.st_mode))
    # A program cannot be started while it is open for writing.
    if stat.S_ISREG(seen.st_mode) and not seen.st_mode & 0o111:
        os.close(os.open(pinned, os.O_WRONLY | os.O_CLOEXEC))


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _set_modified(path: bytes, time_ns: int) -> None:
    """Set the modification time alone, which the kernel reports as a change of content; Python's
    own call sets both times, which it reports as a change of attributes."""
    seconds, nanoseconds = divmod(time_ns, 1_000_000_000)
    times = (_Timespec * 2)(_Timespec(0, _UTIME_OMIT), _Timespec(seconds, nanoseconds))
    ctypes.CDLL(None).utimensat(_AT_FDCWD, path, times, 0)
