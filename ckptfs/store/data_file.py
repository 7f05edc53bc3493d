"""The data file as a whole: it is held for those who read it, copied for a backup, and exchanged
for a copy without its free pages.

Methods of `Store`, by themselves: they are about its files, and what is in these is not looked at.
How such a copy is made beside a store that goes on is `ckptfs.store.compaction`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb

from ckptfs import errors, interrupts
from ckptfs.interrupts import Steps
from ckptfs.store import compaction, tables
from ckptfs.store import format as fmt
from ckptfs.store.directory import (
    DATA_FILE,
    StoreDirectory,
    commit_error,
    data_file_identity,
    open_environment,
)
from ckptfs.store.disk_space import BESIDE_COPY
from ckptfs.store.heap import copy as copy_heap
from ckptfs.store.pages import Pages
from ckptfs.store.transaction import Failed

if TYPE_CHECKING:
    from ckptfs.store.environment import Store

#: How long one step of work that can wait may take.
_STEP_S = 0.005


def backup(store: Store, dest: Path, *, also: Sequence[str] = ()) -> None:
    """Copy the last commit into a new store at ``dest``, an absent or empty directory. The one
    thing that another thread may do while the store is in use. ``also`` are small files of the
    store to copy with it, as far as they are there."""
    store._map.expect_blocks()
    try:
        dest.mkdir(mode=0o700, exist_ok=True)
        with hold_snapshot(store), contextlib.closing(StoreDirectory.open(dest)) as copy:
            for table in store._tables:
                tables.require_whole(table)
            copy.close_to_others()
            compaction.snapshot(store._env, copy.files, lambda part: _complete(store, part, also))
        compaction.sync(dest.parent)
    except (lmdb.Error, OSError) as error:
        raise errors.BackupFailed(dest, str(error)) from error


@contextlib.contextmanager
def hold_snapshot(store: Store) -> Iterator[None]:
    """Meanwhile nothing that the last commit, or one after it, is made of is used again: other
    threads read it, and other processes, which LMDB's lock file does not know. Such a process
    opens the data file without a lock file, and begins one read transaction."""
    with contextlib.ExitStack() as held:
        with store._exchanging:
            held.enter_context(store.heap.held())
            held.enter_context(store._env.begin())
            held.callback(_release, store)
            store._space.copies += 1
        yield


def _release(store: Store) -> None:
    store._space.copies -= 1


def _complete(store: Store, part: Path, also: Sequence[str]) -> None:
    """Put what else belongs to a store into the directory of its copy."""
    copy_heap(store.files, part)
    for name in also:
        with contextlib.suppress(FileNotFoundError):
            compaction.copy_file(store.files / name, part / name)


# -- another data file ----------------------------------------------------------------------------


def compact(store: Store) -> None:
    """Give free pages back to the disk, and slots of the heap that no block names. On a failure
    everything is as it was."""
    interrupts.finish(compaction.steps(store))
    interrupts.finish(reclaim(store))


def outlook(store: Store) -> compaction.Outlook:
    """What a compaction would make of the data file, about."""
    size = (store.files / DATA_FILE).stat().st_size
    with contextlib.closing(Pages(store.files / DATA_FILE)) as pages:
        return compaction.Outlook(size, pages.copied_bytes())


def begin_copy(store: Store, niceness: int) -> compaction.Copy:
    """Commit, and have that copied; what changes from here on is noted. Ends another copy."""
    end_copy(store, store._copy)
    store.commit()
    if store._space.live_bytes() > store._space.disk.disk():
        raise errors.StoreFull(store.path, "the disk has no space for the compact copy")
    map_size = int(store._env.info()["map_size"])
    try:
        copy = compaction.Copy(store.files, store._directory.fd, map_size, niceness)
    except OSError as error:
        compaction.remove_leftover(store.files / DATA_FILE)
        raise errors.CompactFailed(store.path, str(error)) from error
    copy.hold.enter_context(hold_snapshot(store))
    store._copy = copy
    store._txn.abort()  # nothing is in it
    store._begin()
    return copy


def end_copy(store: Store, copy: compaction.Copy | None) -> None:
    """The copy is adopted, or given up."""
    if copy is not None:
        copy.close()
    if store._copy is None or store._copy is copy:  # else it is the next one's that is prepared
        store._copy = None
        store._readers.main.prepare(None, 0)


def require_space_beside_copy(store: Store) -> None:
    """Refuse to let a copy take what the writes of others need."""
    if store._space.disk.disk() < BESIDE_COPY:
        raise errors.StoreFull(store.path, "the disk has no space left beside the compact copy")


def verified(store: Store) -> Iterator[None]:
    """Refuse what is damaged, a few pages at a time: in a copy nothing would notice it."""
    for table in store._tables:
        yield from tables.verified(table)


def record(store: Store, table: int, key: bytes) -> bytes | None:
    """What a table has, by its place, under a whole key."""
    return tables.record(store._tables[table], key)


def prepare_copy(store: Store, copy: compaction.Copy, budget_s: float) -> bool:
    """Have the pages of the copy known before it is adopted; True when all are."""
    return store._readers.main.prepare(os.fsencode(copy.path), round(budget_s * 1e9))


def exchange(store: Store, copy: compaction.Copy) -> bool:
    """Put the copy in the data file's place, with what changed since it was made; False if the
    data file must stay what it is for now."""
    with store._exchanging:
        if store.is_read:
            return False
        _exchange(store, copy)
        store._fresh_commits = -1 if copy.is_changed else store.commits
    return True


def _exchange(store: Store, copy: compaction.Copy) -> None:
    """Until the rename the data file has all that there is, without the journal."""
    store.commit()
    for _ in compaction.bring_over(store, copy):
        pass
    for records in copy.endings():
        copy.put(records)
        prepare_copy(store, copy, 0.0)
    copy.finish()
    # What is purged must not stay there. The copy has no key for it, so it does not matter
    # which of both lasts first, this or the rename.
    store._journal.discard()
    store._copy = None
    store._txn.abort()
    map_size = int(store._env.info()["map_size"])
    store._env.close()
    is_renamed = False
    try:
        os.replace(copy.path, store.files / DATA_FILE)
        is_renamed = True
        store._readers.exchange(os.fsencode(store.files / DATA_FILE))
        compaction.sync(store.files)
    except OSError as error:
        if not is_renamed:
            raise
        # After a power cut it is perhaps not: what comes next could be lost.
        failure = errors.StoreUnwritten(store.path, str(error))
        store._budget.fail(failure)
        raise failure from error
    finally:
        _reopen(store, map_size)


def _reopen(store: Store, map_size: int) -> None:
    """Go on in whichever file is the data file now."""
    try:
        store._env = open_environment(store.files, map_size, len(fmt.TABLES))
        store._identity = data_file_identity(store.path)
        store._map.moved()
        store._dbs = {name: store._env.open_db(name) for name in store._dbs}
        for table, db in zip(store._tables, store._dbs.values(), strict=True):
            tables.use(table, db)
        store._begin()
        store._follow()
    except (lmdb.Error, OSError) as error:
        failure = commit_error(store.path, error)
        store._budget.fail(failure)
        for table in store._tables:
            table.bind(Failed(failure))
        raise failure from error
    store._refresh_readers()


def reclaim(store: Store) -> Steps[None]:
    """Give back the slots of the heap that no block names, also those that are not in `freed`,
    in steps as `compaction.steps` has them. If a block's slot is damaged, give back none: it
    could be any of them. Slots are given out once, so one that is free stays so."""
    used = bytearray(store.ids.slot)
    until = time.monotonic() + _STEP_S
    for _, slot in store.blocks.slots() if used else ():
        if slot is None or slot >= store.ids.slot:
            return
        if slot < len(used):
            used[slot] = 1
        if time.monotonic() > until:
            yield 0.0
            until = time.monotonic() + _STEP_S
    for _ in store.heap.reclaim(used):
        yield 0.0
