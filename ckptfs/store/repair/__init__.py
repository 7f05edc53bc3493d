"""`check --repair`: a store made whole again from what is left of it.

Nothing is done in place. A new data file is written beside the damaged one, checked, and put in its
place only then; the damaged one stays, under another name, until the user deletes it. Killed at any
moment, the store is the old one or the new one.
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from ckptfs import errors
from ckptfs.store import compaction, heap, journal_format
from ckptfs.store import format as fmt
from ckptfs.store.check import Problem
from ckptfs.store.directory import (
    DATA_FILE,
    LOCK_FILE,
    StoreDirectory,
    lock_directory,
    open_directory,
)
from ckptfs.store.environment import Store
from ckptfs.store.pages import Pages
from ckptfs.store.repair.consistency import make_consistent
from ckptfs.store.repair.salvage import salvage, version_of

#: The new store while it is made, inside the old one's directory.
_SCRATCH = "ckptfs.repair"


class Repaired(NamedTuple):
    #: Where the damaged file is now.
    kept_as: Path
    #: What could not be read of it.
    unreadable: list[str]
    #: What is still wrong.
    left: list[Problem]


def faults(path: Path) -> list[str]:
    """What is wrong with the structure of a store's file that no process has open. What is no store
    at all is refused by opening it; it is not touched here."""
    if not os.path.isfile(path / LOCK_FILE) or not os.path.isfile(path / DATA_FILE):
        return []
    with closing(open_directory(path)) as directory:
        try:
            directory.require_closed()
            directory.lock(make=False)
            with closing(Pages(directory.files / DATA_FILE)) as pages:
                return pages.faults()
        except (OSError, ValueError):
            return []


def repair(path: Path) -> Repaired:
    """Save all that is whole. The store must not be open."""
    with closing(open_directory(path)) as directory:
        if not directory.has(DATA_FILE):
            raise errors.NotAStore(path)
        directory.require_closed()
        directory.lock(make=False)
        return _repair(directory)


def _repair(directory: StoreDirectory) -> Repaired:
    path, files = directory.path, directory.files
    scratch = files / _SCRATCH
    try:
        version = version_of(files / DATA_FILE)
        if version in fmt.UNRELEASED_FORMATS:  # not one bit away from a released one
            raise errors.StoreVersionUnknown(path, version, fmt.FORMAT_VERSION)
        shutil.rmtree(scratch, ignore_errors=True)
        unreadable = salvage(files / DATA_FILE, scratch, fmt.TABLES)
        if not scratch.exists():
            raise errors.StoreCorrupt(path, "nothing of it can be read")
        lock_directory(directory)
        with suppress(FileNotFoundError):
            os.link(files / heap.FILE, scratch / heap.FILE)
        left = _made_consistent(scratch)
        return Repaired(path / _adopt(files, scratch).name, unreadable, left)
    except ValueError as error:
        raise errors.NotAStore(path) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _made_consistent(scratch: Path) -> list[Problem]:
    """Repair the records of the new store. Killed or broken off, the damaged one still has its
    whole heap; what the two have in it may be named wrongly in either, so nothing becomes a
    hole."""
    store = Store.open(scratch)
    try:
        with store.heap.held():
            left = make_consistent(store)
            store.heap.keep()
            store.commit()
            return left
    finally:
        store.close(commit=False)


def _adopt(path: Path, scratch: Path) -> Path:
    """Put the new file in the old one's place, which then stands beside it."""
    kept_as = _free_name(path / time.strftime(f"ckptfs.damaged-%Y%m%d-%H%M%S-{os.getpid()}.mdb"))
    compaction.sync(scratch / DATA_FILE)
    os.link(path / DATA_FILE, kept_as)
    os.replace(scratch / DATA_FILE, path / DATA_FILE)
    if (path / journal_format.FILE).exists():
        os.replace(path / journal_format.FILE, kept_as.with_suffix(".journal"))
    compaction.sync(path)
    return kept_as


def _free_name(path: Path) -> Path:
    """The path, or one like it that nothing has yet: a store may be repaired twice in a second."""
    names = (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(2))
    return next(name for name in itertools.chain((path,), names) if not name.exists())
