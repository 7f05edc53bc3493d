"""Another user at work in a directory while a pass of root's is under way.

Every system call of the pass that names something, or acts on it, is a step. Before one of them the
other user, a process of its own, does to the directory what the kernel lets it do. A test tries
every step, so that no window between a check and an act is left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.peer import Peer

#: What a pass looks at or changes something with. `read` and `pread` are where a digest is made.
_CALLS = (
    "stat", "fstat", "open", "readlink", "listdir", "pread", "chmod", "fchmod", "chown", "fchown",
    "utime", "link", "rename", "unlink", "mkdir", "rmdir", "symlink", "mknod", "pwrite",
    "setxattr", "removexattr", "close",
)  # fmt: skip

Deed = Callable[[], None]


class Steps:
    """Counts the calls, and lets the deeds happen before those that they are for."""

    def __init__(self, deeds: dict[int, Deed]) -> None:
        self.count = 0
        self._deeds = deeds
        self._busy = False

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            if not self._busy:
                self.count += 1
                deed = self._deeds.get(self.count)
                if deed is not None:
                    self._busy = True
                    try:
                        deed()
                    finally:
                        self._busy = False
            return call(*args, **options)

        return step


@contextmanager
def attacked(deeds: dict[int, Deed]) -> Iterator[Steps]:
    """Let each deed happen before the step of its number in the pass inside."""
    steps = Steps(deeds)
    saved = [(name, getattr(os, name)) for name in _CALLS]
    for name, call in saved:
        setattr(os, name, steps.wrap(call))
    try:
        yield steps
    finally:
        for name, call in saved:
            setattr(os, name, call)


class Kept(NamedTuple):
    """What nobody but root may change of something that is root's alone."""

    mode: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    xattrs: tuple[str, ...]
    has_name: bool


class Held:
    """Something of root's, held by a descriptor whatever its name becomes."""

    def __init__(self, path: Path, *, safe: bool = False) -> None:
        """``safe``: it stands where only root can take its name away."""
        self._fd = os.open(path, os.O_RDONLY)
        self._safe = safe
        self.before = self.now()

    def now(self) -> Kept:
        seen = os.fstat(self._fd)
        size = seen.st_size if not os.path.isdir(f"/proc/self/fd/{self._fd}") else 0
        mtime_ns = seen.st_mtime_ns if size else 0
        attributes = tuple(os.listxattr(self._fd))
        return Kept(
            seen.st_mode,
            seen.st_uid,
            seen.st_gid,
            size,
            mtime_ns,
            attributes,
            has_name=seen.st_nlink > 0 or not self._safe,
        )

    def close(self) -> None:
        os.close(self._fd)


def by(user: Peer, function: Callable[..., object], *arguments: object) -> Deed:
    """A deed of the other user; what the kernel does not let it do is not done."""

    def deed() -> None:
        with suppress(OSError):
            user(function, *arguments)

    return deed


def swap(new: str, old: str) -> None:
    """Put one thing in the place of another, whatever that is; the other stays beside it."""
    aside = f"{old}.aside"
    with suppress(FileNotFoundError):
        os.rename(old, aside)
    os.rename(new, old)


def swap_back(new: str, old: str) -> None:
    """What `swap` did, undone."""
    os.rename(old, new)
    os.rename(f"{old}.aside", old)


def swap_unfinished(new: str, directory: str) -> None:
    """Put something in the place of whatever root has not finished yet in a directory."""
    for name in os.listdir(directory):
        if name.startswith(".ckptfs-tmp-"):
            os.rename(f"{directory}/{name}", f"{directory}/moved")
            os.rename(new, f"{directory}/{name}")
            return


def swap_first(new: str, places: list[str]) -> None:
    """Put something in the place of whichever of these was made last."""
    there = [place for place in places if os.path.lexists(place)]
    if there:
        os.rename(new, max(there, key=lambda place: os.lstat(place).st_ctime_ns))


def put_link(target: str, place: str) -> None:
    """Put a symbolic link in the place of a directory, which stays beside it, or of nothing."""
    with suppress(FileNotFoundError):
        os.rename(place, f"{place}.aside")
    os.symlink(target, place)
