"""Making a store for something, and taking it away again if nothing comes of that."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from ckptfs import errors, interrupts
from ckptfs.store import opening
from ckptfs.store.directory import DATA_FILE
from ckptfs.store.environment import Store

#: What stands in the directory of a store, and how the names of the rest begin.
_OF_A_STORE = frozenset(
    {"journal", "heap", "lock.mdb", "lock", "daemon.json", "control.sock", "config.toml"}
)
_BEGINNINGS = ("data.mdb", "ckptfs.", ".daemon.json.", ".config.toml.")


def is_made(path: Path) -> bool:
    """Whether there is something to open: not where the making of a store was interrupted, unless
    another process is about to finish it."""
    if not (path / DATA_FILE).exists():
        return False
    try:
        with closing(opening.existing(path)) as directory:
            directory.lock(make=False)
            return not opening.is_unfinished(directory)
    except (errors.StoreError, OSError):
        return True  # whoever opens it says what is wrong


@contextmanager
def new_store(path: Path, *, keep: Callable[[], bool] = lambda: False) -> Iterator[Store]:
    """A new store, which goes again if what follows fails or is interrupted, unless ``keep`` says
    that it is in use by then."""
    existed = path.exists()
    store: Store | None = None
    try:
        with interrupts.deferred():  # half a store has nobody who would take it away
            store = Store.create(path)
        yield store
    except BaseException:
        if store is not None:
            with interrupts.deferred():
                store.close(commit=False)
                if not keep():
                    _take_away(path, keep_directory=existed)
        raise
    store.close()


def _take_away(path: Path, *, keep_directory: bool) -> None:
    with suppress(OSError):
        if not remove_files(path) and not keep_directory:
            path.rmdir()


def remove_files(files: Path) -> list[str]:
    """Delete what is a store's own in its directory; the names of the rest."""
    for entry in list(os.scandir(files)):
        if not (entry.name in _OF_A_STORE or entry.name.startswith(_BEGINNINGS)):
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
    return sorted(os.listdir(files))
