"""A store's directory: whose it is, what its files are, and a hold on it that no rename redirects.

Everything is looked at through one descriptor before anything is written. Who can write to a store
decides what becomes of its user's files, so the directory and its files must belong to the caller,
and others must not be able to write to them. `files` leads to the directory through the descriptor:
renaming a directory above it can put another one in its place, and what is open stays.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import lmdb

from ckptfs import errors, locating
from ckptfs.model import Epoch
from ckptfs.store import format as fmt
from ckptfs.store.journal_format import JournalDamaged
from ckptfs.store.pages import Pages

DATA_FILE = "data.mdb"
LOCK_FILE = "lock"
#: Of LMDB, beside its data file.
LMDB_LOCK_FILE = "lock.mdb"
#: Only written to and never read, so its mode is as harmless as its content.
_LOG = "ckptfs.log"
#: What is opened to be written.
_WRITTEN = (DATA_FILE, LMDB_LOCK_FILE, LOCK_FILE, "journal", "heap", _LOG)

#: What stands in the directory of a store, and how the names of the rest begin.
_OF_A_STORE = frozenset(
    {"journal", "heap", "lock.mdb", "lock", "daemon.json", "control.sock", "config.toml"}
)
_BEGINNINGS = ("data.mdb", "ckptfs.", ".daemon.json.", ".config.toml.")

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ROOT = 0
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
#: Addresses only, as many as the writer's own map has.
_SNAPSHOT_MAP = 1 << 40
#: The name of a directory that is needed while LMDB opens its files, and after how many seconds one
#: that is not locked was left by a process that is gone.
_TEMPORARY = re.compile(r"ckptfs-[0-9a-f]{32}")
_LEFT_S = 60


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
            if not existed:  # a file system that gives new directories another owner
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

        Write access to a store is access to this user's files, and to the daemon."""
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
        """Note in the lock file who holds it, if the disk has room for that."""
        try:
            os.ftruncate(self._lock_fd, 0)
            os.pwrite(self._lock_fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    return "a directory" if stat.S_ISDIR(mode) else "not a regular file"


# -- is this a store, is it whole, and if not, why -------------------------------------------------

#: Why no store is made in a directory.
_TAKEN = "it exists and is not empty"
#: What to do about a store with nothing in it, not even the version of its format.
_UNFINISHED = "Nothing is in it yet: `ckptfs mount` or `ckptfs import` takes it over."

#: How an LMDB file begins: the header of its first page, then this.
_MAGIC_AT = 16
_MAGIC = (0xBEEFC0DE).to_bytes(4, sys.byteorder)

#: With less than this left, a commit that fails is put down to the disk.
_FULL = 16 << 20
#: What LMDB says of a file whose content is wrong.
_DAMAGE = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.BadChecksumError)


def store_exists(path: Path) -> bool:
    """Whether there is something to open: not where the making of a store was interrupted, unless
    another process is about to finish it."""
    if not (path / DATA_FILE).exists():
        return False
    try:
        with contextlib.closing(open_directory(path)) as directory:
            directory.lock(make=False)
            return not is_unfinished(directory)
    except (errors.StoreError, OSError):
        return True  # opening it says what is wrong


def open_environment(files: Path, map_size: int, tables: int) -> lmdb.Environment:
    with _lock_file_in_memory(files) as path:
        return lmdb.open(
            os.fspath(path), map_size=map_size, max_dbs=tables, mode=0o600, max_spare_txns=0
        )


def open_snapshot(files: Path, tables: int) -> lmdb.Environment:
    """The data file that another process has open, to read only and without a lock file: that
    process holds the snapshot. The map has room for what that process adds before it is read."""
    return lmdb.open(
        os.fspath(files),
        map_size=_SNAPSHOT_MAP,
        readonly=True,
        lock=False,
        max_dbs=tables,
        max_spare_txns=0,
    )


@contextlib.contextmanager
def _lock_file_in_memory(files: Path) -> Iterator[Path]:
    """A directory that leads to the data file, and to memory in place of LMDB's lock file.

    LMDB writes to its lock file through a mapping. On a file system that needs room for a page that
    is overwritten (btrfs), a full disk or quota ends the process there: SIGBUS. The memory is this
    process's own; the store's lock keeps other writers out, `Store.hold_snapshot` serves readers.
    """
    with contextlib.ExitStack() as undo:
        try:
            memory = os.memfd_create(f"ckptfs-{LMDB_LOCK_FILE}")
            undo.callback(os.close, memory)
            lock_file = f"/proc/self/fd/{memory}"
            os.stat(lock_file)
            path = undo.enter_context(_temporary_directory())
            (path / LMDB_LOCK_FILE).symlink_to(lock_file)
            (path / DATA_FILE).symlink_to(files.absolute() / DATA_FILE)
        except OSError:  # nowhere is room for a name: LMDB's own file it is
            path = files
        yield path


@contextlib.contextmanager
def _temporary_directory() -> Iterator[Path]:
    """For a moment; rather in memory than on a disk that may be full. Locked as long as it is
    used, so that the next one to come here can tell what a process left that was killed."""
    name = f"ckptfs-{os.urandom(16).hex()}"
    places = ("/dev/shm", os.environ.get("XDG_RUNTIME_DIR"), os.environ.get("TMPDIR"), "/tmp")
    for place in filter(None, places):
        path = Path(place, name)
        with contextlib.suppress(OSError):
            _remove_left(place)
            path.mkdir(mode=0o700)
            break
    else:
        raise FileNotFoundError(errno.ENOENT, "no directory for a moment")
    with _locked(path) as fd:
        try:
            yield path
        finally:
            with contextlib.suppress(OSError):
                _remove_temporary(path, fd)


def _remove_left(place: str) -> None:
    """Remove what killed processes of this user left. One that is young may not be locked yet."""
    for name in filter(_TEMPORARY.fullmatch, os.listdir(place)):
        path = Path(place, name)
        with contextlib.suppress(OSError):
            status = path.lstat()
            if status.st_uid == os.geteuid() and time.time() - status.st_mtime > _LEFT_S:
                with _locked(path) as fd:
                    _remove_temporary(path, fd)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    fd = os.open(path, _DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield fd
    finally:
        os.close(fd)


def _remove_temporary(path: Path, fd: int) -> None:
    for name in (LMDB_LOCK_FILE, DATA_FILE):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=fd)
    path.rmdir()


def read_version(directory: StoreDirectory) -> int:
    """The version of the store's format, or the reason why this is no store that can be used.

    Reads under the lock where there is one already; whatever the answer is, nothing is written."""
    path = directory.path
    try:
        if not directory.has(DATA_FILE):
            raise errors.NotAStore(path)
        directory.require_closed()
        directory.lock(make=False)
        version = None if _never_written(directory) else _version(directory)
    except OSError as error:
        raise open_error(path, error) from error
    except lmdb.Error as error:
        raise lmdb_error(path, error) from error
    if version is None and is_unfinished(directory):
        raise errors.NotAStore(path, "the making of it was interrupted", hint=_UNFINISHED)
    if version is None:
        raise errors.NotAStore(path)
    return version


def open_directory(path: Path) -> StoreDirectory:
    """The directory of a store, or the reason why it cannot be used."""
    try:
        return StoreDirectory.open(path)
    except OSError as error:
        raise open_error(path, error) from error


def create_directory(path: Path) -> StoreDirectory:
    """The directory of a store that is to be made: absent until now, or empty. It is locked."""
    try:
        if path.exists() and not path.is_dir():
            raise errors.NotAStore(path, _TAKEN)
        directory = StoreDirectory.make(path)
        try:
            if _foreign_files(directory):
                raise errors.NotAStore(path, _TAKEN)
            directory.close_to_others()
            directory.require_closed()
            lock_directory(directory)
        except BaseException:
            directory.close()
            raise
    except OSError as error:
        raise open_error(path, error) from error
    return directory


def lock_directory(directory: StoreDirectory) -> None:
    """Take the store for this process. It must be known to be a store, or to be none yet."""
    try:
        directory.lock()
        directory.sign()
    except OSError as error:
        raise open_error(directory.path, error) from error


def is_unfinished(directory: StoreDirectory) -> bool:
    """Whether the making of a store was interrupted here before there was anything in it."""
    try:
        if not directory.has(DATA_FILE):
            return False
        if _never_written(directory):
            return True
        return _version(directory) is None and _is_blank(directory.files)
    except (OSError, lmdb.Error, errors.StoreError):
        return False


def _never_written(directory: StoreDirectory) -> bool:
    """Whether the data file is empty, and the store was never used, which leaves more files."""
    size = os.stat(DATA_FILE, dir_fd=directory.fd, follow_symlinks=False).st_size
    return size == 0 and directory.names() <= {DATA_FILE, LMDB_LOCK_FILE, LOCK_FILE}


def _version(directory: StoreDirectory) -> int | None:
    """The version in a store's data file, None if it has none. Changes nothing, not even a lock."""
    _require_lmdb(directory)
    with _reader(directory.files) as env:
        try:
            meta = env.open_db(fmt.META, create=False)
        except lmdb.NotFoundError:
            return None
        with env.begin() as txn:
            version = txn.get(fmt.META_FORMAT, db=meta)
    return None if version is None else fmt.unpack_u32(bytes(version))


def _is_blank(path: Path) -> bool:
    """Whether nothing but empty tables is in the file."""
    with _reader(path) as env, env.begin() as txn:
        names = [bytes(name) for name in txn.cursor().iternext(values=False)]
    with _reader(path) as env:
        tables = [env.open_db(name, create=False) for name in names]
        with env.begin() as txn:
            return not any(txn.stat(table)["entries"] for table in tables)


def _reader(path: Path) -> lmdb.Environment:
    return lmdb.open(os.fspath(path), readonly=True, lock=False, max_dbs=64)


def _require_lmdb(directory: StoreDirectory) -> None:
    with (directory.files / DATA_FILE).open("rb") as data:
        head = data.read(_MAGIC_AT + len(_MAGIC))
    if head[_MAGIC_AT:] != _MAGIC:
        raise errors.NotAStore(directory.path, "its data file is not an LMDB file")
    require_whole_pages(directory, only_if_short=True)


def require_whole_pages(directory: StoreDirectory, *, only_if_short: bool = False) -> None:
    """Refuse a file that LMDB would not survive: it takes the numbers in its pages for granted, and
    a page behind the end of a file that was cut short ends the process."""
    epochs = _Epochs()
    with contextlib.closing(Pages(directory.files / DATA_FILE)) as pages:
        if only_if_short and not pages.is_short():
            return
        tables = {fmt.EPOCHS, *fmt.VERSIONED.values()}
        faults = pages.faults(epochs.meet, tables, fmt.SUFFIX_SIZE) or epochs.faults()
    if faults:
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        raise errors.StoreCorrupt(directory.path, f"{faults[0]}{more}")


class _Epochs:
    """The epochs of a file, and those of which it has records: a key in which a bit flipped would
    hide a record, and an older one would show in its place."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()
        self._met: set[bytes] = set()

    def meet(self, table: bytes, ends: Iterator[bytes]) -> None:
        tails = {end[-fmt.SUFFIX_SIZE :] for end in ends}
        if table == fmt.EPOCHS:
            self._known = tails
        else:
            self._met |= tails

    def faults(self) -> list[str]:
        known = {fmt.suffix_of(Epoch(fmt.unpack_u32(key))) for key in self._known}
        return [f"there are records of the lost epoch {tail.hex()}" for tail in self._met - known]


def _foreign_files(directory: StoreDirectory) -> bool:
    """Whether a directory holds more than the files that come before a store is made in it."""
    names = {name for name in directory.names() if not name.startswith("ckptfs.")} - {LOCK_FILE}
    if is_unfinished(directory):
        names -= {DATA_FILE, LMDB_LOCK_FILE}
    return bool(names)


def open_error(path: Path, error: OSError) -> errors.StoreError:
    if error.errno == errno.ENOENT and not path.exists():
        return errors.StoreMissing(path)  # it went away under us
    if error.errno == errno.EROFS:
        return errors.StoreReadOnly(path)
    if error.errno in _NO_ROOM:
        return errors.StoreFull(path)
    if error.errno == errno.ENOTDIR:
        return errors.NotAStore(path, "it is not a directory")
    if error.errno == errno.EACCES and os.access(path, os.R_OK | os.X_OK):
        return errors.StoreReadOnly(path)
    return errors.StoreUnreadable(path, os.strerror(error.errno or 0).lower())


def attach_error(path: Path, error: JournalDamaged | lmdb.Error | OSError) -> errors.StoreError:
    """What to say of an error that the opening of a store met."""
    if isinstance(error, JournalDamaged):
        return errors.StoreCorrupt(path, str(error))
    return lmdb_error(path, error) if isinstance(error, lmdb.Error) else open_error(path, error)


def lmdb_error(path: Path, error: lmdb.Error) -> errors.StoreError:
    if not path.exists():
        return errors.StoreMissing(path)
    if isinstance(error, lmdb.DiskError):
        return errors.StoreFull(path, str(error))
    if isinstance(error, lmdb.ReadonlyError):
        return errors.StoreReadOnly(path)
    if isinstance(error, lmdb.InvalidError | lmdb.VersionMismatchError):
        return errors.NotAStore(path, "its data file is not an LMDB file")
    if isinstance(error, lmdb.CorruptedError):
        return errors.StoreCorrupt(path, str(error))
    return errors.StoreUnreadable(path, str(error).rpartition(": ")[2])  # not LMDB's path to it


def data_file_identity(path: Path) -> tuple[int, int] | None:
    """Which file is a store's data file; None if there is none."""
    try:
        found = os.stat(f"{path}/{DATA_FILE}")  # asked at every sync
    except OSError:
        return None
    return found.st_dev, found.st_ino


def commit_error(path: Path, error: lmdb.Error | OSError) -> errors.StoreError:
    """Why nothing more can be written. Damage only where LMDB says so: most often it is the disk
    that failed, and what was committed before is whole."""
    quota = errno.EDQUOT in (getattr(error, "code", 0), getattr(error, "errno", 0))
    if quota or _is_full(path) or isinstance(error, lmdb.DiskError | lmdb.MapFullError):
        return errors.StoreFull(path, str(error))
    if isinstance(error, _DAMAGE):
        return errors.StoreCorrupt(path, str(error))
    return errors.StoreUnwritten(path, str(error))


def _is_full(path: Path) -> bool:
    """A write that finds only part of its space ends with EIO."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _FULL


def remove_store_files(files: Path) -> list[str]:
    """Delete what is a store's own in its directory; the names of the rest."""
    for entry in list(os.scandir(files)):
        if not (entry.name in _OF_A_STORE or entry.name.startswith(_BEGINNINGS)):
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
    return sorted(os.listdir(files))
