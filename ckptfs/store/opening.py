"""Opening: is this a store, is it whole, who else has it, and why not.

Everything here looks before anything is written: a directory that is refused is left as it was.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import lmdb

from ckptfs import errors
from ckptfs.model import Epoch
from ckptfs.store import batches
from ckptfs.store.directory import DATA_FILE, LMDB_LOCK_FILE, LOCK_FILE, StoreDirectory
from ckptfs.store.format import SUFFIX_SIZE, VERSIONED, suffix_of, unpack_u32
from ckptfs.store.pages import Pages

#: Why no store is made in a directory.
_TAKEN = "it exists and is not empty"
#: What to do about a store with nothing in it, not even the version of its format.
_UNFINISHED = "Nothing is in it yet: `ckptfs mount` or `ckptfs import` takes it over."

#: The table in which the version of the format stands, and where.
META = b"meta"
FORMAT = b"format"
EPOCHS = b"epochs"
#: The tables whose keys end in an epoch.

#: How an LMDB file begins: the header of its first page, then this.
_MAGIC_AT = 16
_MAGIC = (0xBEEFC0DE).to_bytes(4, sys.byteorder)

#: With less than this left, a commit that fails is put down to the disk.
_FULL = 16 << 20
#: What LMDB says of a file whose content is wrong.
_DAMAGE = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.BadChecksumError)


def open_environment(path: Path, map_size: int, tables: int) -> lmdb.Environment:
    return lmdb.open(
        os.fspath(path), map_size=map_size, max_dbs=tables, mode=0o600, max_spare_txns=0
    )


def require_store(directory: StoreDirectory) -> int:
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
        raise refusal(path, error) from error
    except lmdb.Error as error:
        raise not_lmdb(path, error) from error
    if version is None and is_unfinished(directory):
        raise errors.NotAStore(path, "the making of it was interrupted", hint=_UNFINISHED)
    if version is None:
        raise errors.NotAStore(path)
    return version


def existing(path: Path) -> StoreDirectory:
    """The directory of a store, or the reason why it cannot be used."""
    try:
        return StoreDirectory.open(path)
    except OSError as error:
        raise refusal(path, error) from error


def new(path: Path) -> StoreDirectory:
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
            lock(directory)
        except BaseException:
            directory.close()
            raise
    except OSError as error:
        raise refusal(path, error) from error
    return directory


def lock(directory: StoreDirectory) -> None:
    """Take the store for this process. It must be known to be a store, or to be none yet."""
    try:
        directory.lock()
        directory.sign()
    except OSError as error:
        raise refusal(directory.path, error) from error


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
    """Whether the data file is empty, and nobody has used the store, which leaves more files."""
    size = os.stat(DATA_FILE, dir_fd=directory.fd, follow_symlinks=False).st_size
    return size == 0 and directory.names() <= {DATA_FILE, LMDB_LOCK_FILE, LOCK_FILE}


def _version(directory: StoreDirectory) -> int | None:
    """The version in a store's data file, None if it has none. Changes nothing, not even a lock."""
    _require_lmdb(directory)
    with _reader(directory.files) as env:
        try:
            meta = env.open_db(META, create=False)
        except lmdb.NotFoundError:
            return None
        with env.begin() as txn:
            version = txn.get(FORMAT, db=meta)
    return None if version is None else unpack_u32(bytes(version))


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
    require_pages(directory, only_if_short=True)


def require_pages(directory: StoreDirectory, *, only_if_short: bool = False) -> None:
    """Refuse a file that LMDB would not survive: it takes the numbers in its pages for granted, and
    a page behind the end of a file that was cut short ends the process."""
    epochs = _Epochs()
    with contextlib.closing(Pages(directory.files / DATA_FILE)) as pages:
        if only_if_short and not pages.is_short():
            return
        faults = pages.faults(epochs.meet) or epochs.faults()
    if faults:
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        raise errors.StoreCorrupt(directory.path, f"{faults[0]}{more}")


class _Epochs:
    """The epochs of a file, and those of which it has records: a key in which a bit flipped would
    hide a record, and an older one would show in its place."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()
        self._met: set[bytes] = set()

    def meet(self, table: bytes, keys: Iterator[bytes]) -> None:
        tails = {key[-SUFFIX_SIZE:] for key in keys}
        if table in VERSIONED.values():
            self._met |= tails
        elif table == EPOCHS:
            self._known = tails

    def faults(self) -> list[str]:
        known = {suffix_of(Epoch(unpack_u32(key))) for key in self._known}
        return [f"there are records of the lost epoch {tail.hex()}" for tail in self._met - known]


def _foreign_files(directory: StoreDirectory) -> bool:
    """Whether a directory holds more than the files that come before a store is made in it."""
    names = {name for name in directory.names() if not name.startswith("ckptfs.")} - {LOCK_FILE}
    if is_unfinished(directory):
        names -= {DATA_FILE, LMDB_LOCK_FILE}
    return bool(names)


def refusal(path: Path, error: OSError) -> errors.StoreError:
    if error.errno == errno.ENOENT and not path.exists():
        return errors.StoreMissing(path)  # it went away under us
    if error.errno == errno.EROFS:
        return errors.StoreReadOnly(path)
    if error.errno == errno.ENOSPC:
        return errors.StoreFull(path)
    if error.errno == errno.ENOTDIR:
        return errors.NotAStore(path, "it is not a directory")
    if error.errno == errno.EACCES and os.access(path, os.R_OK | os.X_OK):
        return errors.StoreReadOnly(path)
    return errors.StoreUnreadable(path, os.strerror(error.errno or 0).lower())


def opening_failed(
    path: Path, error: batches.JournalDamaged | lmdb.Error | OSError
) -> errors.StoreError:
    """What to say of an error that the opening of a store met."""
    if isinstance(error, batches.JournalDamaged):
        return errors.StoreCorrupt(path, str(error))
    return not_lmdb(path, error) if isinstance(error, lmdb.Error) else refusal(path, error)


def not_lmdb(path: Path, error: lmdb.Error) -> errors.StoreError:
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
    return errors.StoreUnreadable(path, str(error))


def identity(path: Path) -> tuple[int, int] | None:
    """Which file is a store's data file; None if there is none."""
    try:
        found = os.stat(path / DATA_FILE)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def commit_failed(path: Path, error: lmdb.Error | OSError) -> errors.StoreError:
    """Why nothing more can be written. Damage only where LMDB says so: most often it is the disk
    that failed, and what was committed before is whole."""
    full = _is_full(path) or os.strerror(errno.EDQUOT) in str(error)
    if full or isinstance(error, lmdb.DiskError | lmdb.MapFullError):
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
