"""The way down a tree below: which directories are open, and that each is the one it should be.

Names, links and attributes are `lower`'s business; the store is not known here.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator

from ckptfs.sync import lower


class Descent:
    """The open directories from a root down to where we are.

    At most ``limit`` of them are kept open. The way back to one that was closed goes through
    "..", and is taken only if that is the very directory we came from. The root stays open always:
    while the mount covers it, ".." would lead onto the mount.
    """

    def __init__(self, root_fd: int, *, limit: int = 100) -> None:
        self._limit = limit
        self._fds: list[int | None] = [os.open(b".", lower.DIRECTORY, dir_fd=root_fd)]
        root = os.fstat(self.fd)
        self.device = root.st_dev
        self._identities = [(root.st_dev, root.st_ino)]
        self.names: list[bytes] = []

    @property
    def fd(self) -> int:
        fd = self._fds[-1]
        if fd is None:
            raise AssertionError("the innermost directory is always open")
        return fd

    @property
    def root_fd(self) -> int:
        fd = self._fds[0]
        if fd is None:
            raise AssertionError("the root is always open")
        return fd

    def path(self, *names: bytes) -> bytes:
        return b"/".join((*self.names, *names))

    def enter(self, name: bytes) -> os.stat_result:
        fd = lower.open_directory(self.fd, name)
        seen = lower.look_into(fd)
        if seen.st_dev != self.device:
            os.close(fd)
            raise OSError(errno.EXDEV, "another file system is mounted here")
        self._fds.append(fd)
        self._identities.append((seen.st_dev, seen.st_ino))
        self.names.append(name)
        self._close_one_too_many()
        return seen

    def enter_new(self, name: bytes) -> os.stat_result:
        """`enter` a directory that we just made, not one that took its name meanwhile: that one
        has entries, or an owner who is neither we nor the owner of the directory we are in."""
        owner = os.fstat(self.fd).st_uid
        seen = self.enter(name)
        try:
            is_ours = seen.st_uid in (os.geteuid(), owner) and not lower.names_in(self.fd)
        except OSError:
            self.leave()
            raise
        if not is_ours:
            self.leave()
            raise lower.exchanged()
        return seen

    def enter_known(
        self, name: bytes, is_known: Callable[[os.stat_result], bool]
    ) -> os.stat_result:
        """`enter` a directory that was looked at before, and no other that took its name."""
        seen = self.enter(name)
        if not is_known(seen):
            self.leave()
            raise lower.exchanged()
        return seen

    def leave_to(self, depth: int) -> None:
        """`leave` until this many directories below the root."""
        while len(self.names) > depth:
            self.leave()

    def _close_one_too_many(self) -> None:
        depth = len(self._fds) - self._limit
        if depth > 0:
            fd = self._fds[depth]
            if fd is not None:
                os.close(fd)
                self._fds[depth] = None

    def leave(self) -> None:
        left = self.fd
        try:
            if self._fds[-2] is None:
                self._fds[-2] = self._reopen(left, self._identities[-2])
        finally:
            self._fds.pop()
            self._identities.pop()
            self.names.pop()
            os.close(left)

    def _reopen(self, inner: int, identity: tuple[int, int]) -> int:
        fd = os.open(b"..", lower.DIRECTORY, dir_fd=inner)
        seen = os.fstat(fd)
        if (seen.st_dev, seen.st_ino) != identity:
            os.close(fd)
            raise OSError(errno.ESTALE, "a directory was moved while it was looked at")
        return fd

    def close(self) -> None:
        for fd in self._fds:
            if fd is not None:
                os.close(fd)
        self._fds.clear()


@contextlib.contextmanager
def descend(root_fd: int) -> Iterator[Descent]:
    descent = Descent(root_fd)
    try:
        yield descent
    finally:
        descent.close()


@contextlib.contextmanager
def directory_at(root_fd: int, names: tuple[bytes, ...]) -> Iterator[int]:
    """A directory that is not on the way we are on, opened component by component."""
    fd = os.open(b".", lower.DIRECTORY, dir_fd=root_fd)
    try:
        for name in names:
            inner = lower.open_directory(fd, name)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)


def count_entries(dir_fd: int) -> int:
    """How many entries there are, for a progress bar; what cannot be read is not counted."""
    count = 0
    with descend(dir_fd) as down:
        waiting = [_directories_in(down)]
        while waiting:
            found, names = waiting[-1]
            count += found
            waiting[-1] = (0, names)
            if names:
                with contextlib.suppress(OSError):
                    down.enter(names.pop())
                    waiting.append(_directories_in(down))
            else:
                waiting.pop()
                if waiting:
                    down.leave()
    return count


def _directories_in(down: Descent) -> tuple[int, list[bytes]]:
    count, names = 0, []
    with contextlib.suppress(OSError), os.scandir(down.fd) as entries:
        for entry in entries:
            count += 1
            if entry.is_dir(follow_symlinks=False):
                names.append(os.fsencode(entry.name))
    return count, names
