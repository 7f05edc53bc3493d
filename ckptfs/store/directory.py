"""A store's directory: whose it is, what its files are, and a hold on it that no rename redirects.

Everything is looked at through one descriptor before anything is written. Who can write to a store
decides what becomes of its user's files, so the directory and its files must belong to the caller,
and others must not be able to write to them. `files` leads to the directory through the descriptor:
whoever may rename the directories above can put another one in its place, and what is open stays.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path

from ckptfs import errors, locating

DATA_FILE = "data.mdb"
LOCK_FILE = "lock"
#: Of LMDB, beside its data file.
LMDB_LOCK_FILE = "lock.mdb"
#: Only written to and never read, so its mode is as harmless as its content.
_LOG = "ckptfs.log"
#: What is opened to be written.
_WRITTEN = (DATA_FILE, LMDB_LOCK_FILE, LOCK_FILE, "journal", "heap", _LOG)

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ROOT = 0


class StoreDirectory:
    """An open directory that belongs to the caller, or to an owner whom the caller trusts."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd
        pinned = Path(f"/proc/self/fd/{fd}")
        self.files = pinned if pinned.exists() else path
        self._lock_fd = -1

    @classmethod
    def open(cls, path: Path) -> StoreDirectory:
        """The directory of an existing store. Looks only; raises OSError and `StoreError`."""
        if not path.exists():
            raise errors.StoreMissing(path)
        if path.is_symlink():
            hint = f"Name the directory that it leads to: --store {os.path.realpath(path)}"
            raise errors.StoreUntrusted(path, "it is a symbolic link", hint=hint)
        if not path.is_dir():
            raise errors.NotAStore(path, "it is not a directory")
        directory = cls(path, os.open(path, _DIRECTORY))
        try:
            directory._require_owner()
        except BaseException:
            directory.close()
            raise
        return directory

    @classmethod
    def make(cls, path: Path) -> StoreDirectory:
        """The directory of a new store, made if there is none. `close_to_others` comes later."""
        existed = path.exists()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            return cls.open(path)
        except BaseException:
            if not existed:  # a file system that gives new directories to somebody else
                with contextlib.suppress(OSError):
                    path.rmdir()
            raise

    def close(self) -> None:
        """Let go of the directory and of its lock."""
        for fd in (self._lock_fd, self.fd):
            if fd >= 0:
                os.close(fd)
        self._lock_fd = self.fd = -1

    # -- who may write to it ----------------------------------------------------------------------

    def require_closed(self) -> None:
        """Refuse a store that others can write to, and one whose files are not what ckptfs makes.

        Whoever can write to a store can make anything of this user's files, and of the daemon."""
        if os.fstat(self.fd).st_mode & _OTHERS_WRITE:
            raise errors.StoreExposed(self.path)
        for name in _WRITTEN:
            with contextlib.suppress(FileNotFoundError):
                self._require_file(name, os.stat(name, dir_fd=self.fd, follow_symlinks=False))

    def close_to_others(self) -> None:
        os.fchmod(self.fd, 0o700)

    def _require_owner(self) -> None:
        owner = os.fstat(self.fd).st_uid
        if owner != os.geteuid() and owner not in locating.trusted_owners():
            raise errors.StoreUntrusted.owned_by(self.path, owner, locating.user_name(owner))

    def _require_file(self, name: str, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise errors.StoreUntrusted(self.path, f"its {name} is {_kind(found.st_mode)}")
        if found.st_mode & _OTHERS_WRITE and name != _LOG:
            raise errors.StoreExposed(self.path, name)
        owner = os.fstat(self.fd).st_uid
        if found.st_uid not in {os.geteuid(), _ROOT, owner, *locating.trusted_owners()}:
            whose = locating.user_name(found.st_uid)
            raise errors.StoreUntrusted(self.path, f"its {name} belongs to {whose}")
        # A repair gives data file and heap a second name for a moment, and may be killed there. In
        # another user's directory a second name may be that of any file of the caller.
        if found.st_nlink > 1 and (name == LOCK_FILE or owner != os.geteuid()):
            raise errors.StoreUntrusted(self.path, f"its {name} has another name elsewhere")

    # -- what is in it ----------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def names(self) -> set[str]:
        return set(os.listdir(self.fd))

    # -- its lock ---------------------------------------------------------------------------------

    def lock(self, *, make: bool = True) -> None:
        """Take the exclusive lock, which ends with the process. The file stays as it was; without
        ``make`` nothing happens if there is none."""
        if self._lock_fd >= 0 or not (make or self.has(LOCK_FILE)):
            return
        fd = os.open(LOCK_FILE, _LOCK | (os.O_CREAT if make else 0), 0o600, dir_fd=self.fd)
        try:
            self._require_file(LOCK_FILE, os.fstat(fd))
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(fd, 32, 0).strip()
            os.close(fd)
            pid = int(holder) if holder.isdigit() else None
            raise errors.StoreInUse(self.path, pid) from error
        except BaseException:
            os.close(fd)
            raise
        self._lock_fd = fd

    def sign(self) -> None:
        """Note in the lock file who holds it."""
        os.ftruncate(self._lock_fd, 0)
        os.pwrite(self._lock_fd, f"{os.getpid()}\n".encode(), 0)


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    return "a directory" if stat.S_ISDIR(mode) else "not a regular file"
