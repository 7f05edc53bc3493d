"""Salvage: a new data file with every record of a damaged one that can still be read.

Goes by the pages, without LMDB, which a damaged file could end (`ckptfs.store.pages`). What must be
there for a store to open (its version, its counters, its epochs) is made up from the records where
it is lost. Whether the records fit each other is for `ckptfs.store.repair.consistency`.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lmdb

from ckptfs.model import BLOCK_SIZE, Epoch, Ino
from ckptfs.store import format as fmt
from ckptfs.store import heap, journal_format, metadata
from ckptfs.store.packed import ChunkError, unpack_chunk
from ckptfs.store.pages import Meta, Pages

if TYPE_CHECKING:
    from lmdb import _Database as Database

#: Tables without which there are no files to save.
_NEEDED = frozenset({b"inodes", b"dirents", b"blockmap", b"blocks"})
#: Records in a transaction of the copy.
_BATCH = 1_000
_MAP_SIZE = 1 << 40
#: Once a counter is lost, so many numbers behind the last one in use are not given out again.
_LEFT_OUT = 1 << 16
#: Records and facts of forks, whose number follows.
_OF_FORKS = (fmt.FORK, fmt.FORK_FACTS)


def salvage(damaged: Path, fresh: Path, tables: tuple[bytes, ...]) -> list[str]:
    """Write what can be read of the file into the new directory ``fresh``; say what could not."""
    with contextlib.closing(Pages(damaged)) as pages:
        meta = _readable_state(pages)
        if meta is None:
            return []
        fresh.mkdir(mode=0o700)
        with lmdb.open(
            os.fspath(fresh),
            map_size=_MAP_SIZE,
            max_dbs=len(tables),
            mode=0o600,
            sync=False,
            lock=False,
        ) as env:
            dbs = {name: env.open_db(name) for name in tables}
            pages.broken.clear()
            if meta is not pages.metas[0]:
                pages.broken.append("the newest state cannot be read: this is the one before it")
            for name, records in pages.tables(meta):
                if name in dbs:
                    _copy(env, dbs[name], records)
            lost = _fix_names(env, dbs[fmt.META])
            lost += filter(None, [_replay(damaged.parent, env, tables, meta)])
            lost += _unpack(env, dbs)
            _complete(env, dbs)
            _complete_facts(env, dbs)
            _complete_heap(env, dbs, damaged.parent)
            env.sync(True)
        return [*pages.broken, *lost]


def version_of(damaged: Path) -> int:
    """The version of a file's format; 0 if it cannot be read."""
    with contextlib.closing(Pages(damaged)) as pages, contextlib.suppress(fmt.CorruptRecord):
        meta = _readable_state(pages)
        for name, records in pages.tables(meta) if meta is not None else ():
            if name == fmt.META:
                return fmt.unpack_u32(dict(records).get(fmt.META_FORMAT, b""))
    return 0


def _readable_state(pages: Pages) -> Meta | None:
    """The newest of the two states in the file whose tables can be found."""
    for meta in pages.metas:
        pages.broken.clear()
        if {name for name, _ in pages.tables(meta)} >= _NEEDED:
            return meta
    return None


def _replay(store: Path, env: lmdb.Environment, tables: tuple[bytes, ...], meta: Meta) -> str:
    """Take what the journal has, and what is wrong with it. The new file has nothing to do with it
    any more: without its key it is not taken for a part of the store."""
    fault = journal_format.replay(store, env, tables, follows=meta.transaction, partly=True)
    with env.begin(write=True) as txn:
        txn.delete(fmt.META_JOURNAL, db=env.open_db(fmt.META, txn=txn))
    return fault


def _copy(env: lmdb.Environment, db: Database, records: Iterator[tuple[bytes, bytes]]) -> None:
    batch: list[tuple[bytes, bytes]] = []
    for record in records:
        batch.append(record)
        if len(batch) == _BATCH:
            _put(env, db, batch)
            batch = []
    _put(env, db, batch)


def _put(env: lmdb.Environment, db: Database, batch: list[tuple[bytes, bytes]]) -> None:
    with env.begin(write=True) as txn:
        for key, value in batch:
            if 0 < len(key) <= env.max_key_size():
                txn.put(key, value, db=db)


def _unpack(env: lmdb.Environment, dbs: dict[bytes, Database]) -> Iterator[str]:
    """Bring packed records back to their tables, where the repair looks for them; say which could
    not be read."""
    with env.begin(write=True) as txn:
        for name, data in list(txn.cursor(dbs[b"rest"])):
            table = dbs.get(fmt.PACKABLE.get(bytes(name)[:1], b""))
            try:
                chunk = unpack_chunk(bytes(data))
            except ChunkError as error:
                yield f"packed records cannot be read: {error}"
                continue
            for key, value in zip(*chunk, strict=True):
                if table is not None and 0 < len(key) <= env.max_key_size():
                    txn.put(key, value, overwrite=False, db=table)
        txn.drop(dbs[b"rest"], delete=False)


# -- what a store must have to open ----------------------------------------------------------------


def _complete(env: lmdb.Environment, dbs: dict[bytes, Database]) -> None:
    """Make up what is lost of the tables `epochs` and `meta`."""
    with env.begin(write=True) as txn:
        epochs = _epochs(txn, dbs)
        forks = _fork_heads(txn, dbs, epochs)
        head = _number(txn, dbs, fmt.HEAD)
        if head not in epochs or epochs[Epoch(head)].sealed:
            others = {e for e, record in epochs.items() if not record.sealed}
            head = max((e for e in others - forks if not fmt.is_excluded(e)), default=0)
        if not head:
            sealed = [epoch for epoch, record in epochs.items() if record.sealed]
            parent = max(sealed, default=fmt.NO_EPOCH)
            head = max((e for e in epochs if not fmt.is_excluded(e)), default=0) + 1
            epochs[Epoch(head)] = fmt.EpochRecord(parent, sealed=False, inodes=0, info={})
        # What a fork that is lost kept out of history goes with it.
        lines = {fmt.EXCLUDED_EPOCH, *_excluded_of_forks(txn, dbs)}
        for epoch in [each for each in epochs if fmt.is_excluded(each) and each not in lines]:
            del epochs[epoch]
            txn.delete(fmt.pack_u32(epoch), db=dbs[b"epochs"])
        heads = {head, *lines, *forks}
        for epoch, record in epochs.items():
            if epoch not in heads and not record.sealed:
                record = record._replace(sealed=True)
            txn.put(fmt.pack_u32(epoch), fmt.pack_epoch(record), db=dbs[b"epochs"])
        last_epoch = max(epoch for epoch in epochs if not fmt.is_excluded(epoch))
        anchor = _number(txn, dbs, fmt.ANCHOR)
        following = {
            fmt.HEAD: head,
            fmt.ANCHOR: anchor if anchor in epochs else fmt.NO_EPOCH,
            fmt.NEXT_EPOCH: _following(txn, dbs, fmt.NEXT_EPOCH, last_epoch),
            fmt.NEXT_INO: _following(txn, dbs, fmt.NEXT_INO, _last_ino(txn, dbs)),
            fmt.NEXT_CONTENT: _following(txn, dbs, fmt.NEXT_CONTENT, _last(txn, dbs[b"blockmap"])),
        }
        for name, number in following.items():
            txn.put(name, fmt.pack_number(number), db=dbs[fmt.META])
        txn.delete(fmt.FORKS, db=dbs[fmt.META])
        if forks:
            txn.put(fmt.FORKS, fmt.pack_number(len(forks)), db=dbs[fmt.META])
        txn.put(fmt.META_FORMAT, fmt.pack_u32(fmt.FORMAT_VERSION), db=dbs[fmt.META])


def _fork_heads(
    txn: lmdb.Transaction, dbs: dict[bytes, Database], epochs: dict[Epoch, fmt.EpochRecord]
) -> set[Epoch]:
    """The heads of forks. One whose record or head is lost is none any more; its checkpoints
    stay."""
    found: set[Epoch] = set()
    facts = dbs[b"facts"]
    for key, value in [(bytes(key), bytes(value)) for key, value in txn.cursor(facts)]:
        if not key.startswith(fmt.FORK):
            continue
        fork = _fork(value)
        epoch = Epoch(0 if fork is None else fork["head"])
        if fork is None or epoch in found or epoch not in epochs or epochs[epoch].sealed:
            txn.delete(key, db=facts)
        else:
            txn.put(key, fmt.pack_fork(fork), db=facts)
            found.add(epoch)
    return found


def _excluded_of_forks(txn: lmdb.Transaction, dbs: dict[bytes, Database]) -> set[Epoch]:
    """The excluded epochs that the forks that are left may have."""
    keys = [bytes(key) for key, _ in txn.cursor(dbs[b"facts"])]
    return {
        fmt.excluded_epoch(int(key[len(fmt.FORK) :])) for key in keys if key.startswith(fmt.FORK)
    }


def _fork(value: bytes) -> dict[str, Any] | None:
    """The record of a fork, also if one bit of it flipped."""
    try:
        return fmt.unpack_fork(value)
    except fmt.CorruptRecord:
        whole = fmt.bit_corrected(value)
        return None if whole is None else fmt.unpack_fork(whole)


def _complete_heap(env: lmdb.Environment, dbs: dict[bytes, Database], store: Path) -> None:
    """Nothing of the heap may be overwritten or become a hole: `compact` finds what is free."""
    slots = []
    with env.begin(write=True) as txn:
        for _, record in txn.cursor(dbs[b"blocks"]):
            if record[:1] == bytes((fmt.CODEC_HEAP,)):
                with contextlib.suppress(fmt.CorruptRecord):
                    slots.append(fmt.unpack_number(bytes(record[fmt.BLOCK_HEADER :])))
        with contextlib.suppress(FileNotFoundError):
            slots.append(-(-(store / heap.FILE).stat().st_size // BLOCK_SIZE) - 1)
        with contextlib.suppress(fmt.CorruptRecord):
            kept = bytes(txn.get(fmt.NEXT_SLOT, db=dbs[fmt.META]) or b"")
            slots.append(fmt.unpack_number(kept) - 1)
        following = max(slots, default=-1) + 1
        txn.put(fmt.NEXT_SLOT, fmt.pack_number(following), db=dbs[fmt.META])
        txn.drop(dbs[b"freed"], delete=False)


def _number(txn: lmdb.Transaction, dbs: dict[bytes, Database], name: bytes) -> int:
    """A counter, also if one bit of it flipped; 0 if it is lost."""
    value = bytes(txn.get(name, db=dbs[fmt.META]) or b"")
    try:
        return fmt.unpack_number(fmt.intact(value) or b"")
    except fmt.CorruptRecord:
        return 0


def _following(txn: lmdb.Transaction, dbs: dict[bytes, Database], name: bytes, used: int) -> int:
    """What a counter is to be: as it was if that can be read, else what the records say. The
    numbers of what came and went since are lost with it, so some are left out."""
    kept = _number(txn, dbs, name)
    return kept if used < kept else used + 1 + _LEFT_OUT


def _last_ino(txn: lmdb.Transaction, dbs: dict[bytes, Database]) -> int:
    """The highest inode that is there, or that the ledger of the lower directory names."""
    return max(_last(txn, dbs[b"inodes"]), _last(txn, dbs[b"below"]), _last(txn, dbs[b"orphans"]))


def _fix_names(env: lmdb.Environment, meta: Database) -> list[str]:
    """Give what is under an unknown name the one that it had before a bit of it flipped."""
    faults = []
    with env.begin(write=True) as txn:
        names = {bytes(name) for name in txn.cursor(meta).iternext(values=False)}
        for name in names - fmt.META_NAMES:
            value = bytes(txn.pop(name, db=meta) or b"")
            before = [known for known in fmt.META_NAMES - names if _differ_by_a_bit(known, name)]
            faults += [] if before else [f"the record {name!r} of the table meta makes no sense"]
            for known in before:
                txn.put(known, value, db=meta)
    return faults


def _differ_by_a_bit(one: bytes, other: bytes) -> bool:
    both = zip(one, other, strict=False)
    return len(one) == len(other) and sum((a ^ b).bit_count() for a, b in both) == 1


def _complete_facts(env: lmdb.Environment, dbs: dict[bytes, Database]) -> None:
    """Put counters right that are facts of the workspace. What was lost leaves no trace in
    `changes`, so the next write-back has to look at everything."""
    with env.begin(write=True) as txn:
        txn.delete(metadata.AGREED, db=dbs[b"facts"])
        for name in metadata.COUNTERS:
            value = bytes(txn.get(name, db=dbs[b"facts"]) or b"")
            number = max(_fact(value) or 0, _used(txn, dbs, name))
            if number:
                txn.put(name, fmt.pack_number(number), db=dbs[b"facts"])
            else:
                txn.delete(name, db=dbs[b"facts"])


def _fact(value: bytes) -> int | None:
    try:
        return fmt.unpack_number(value)
    except fmt.CorruptRecord:
        whole = fmt.bit_corrected(value)
        return None if whole is None else fmt.unpack_number(whole)


def _used(txn: lmdb.Transaction, dbs: dict[bytes, Database], name: bytes) -> int:
    """What a counter among the facts is at least; 0 if nothing was counted."""
    if name == metadata.NEXT_CHECKPOINT:
        return 1 + max((int(r.info.get("id", -1)) for r in _epochs(txn, dbs).values()), default=-1)
    if name == metadata.NEXT_FORK:
        keys = [bytes(key) for key, _ in txn.cursor(dbs[b"facts"])]
        digits = (key[len(fmt.FORK) :][:10] for key in keys if key.startswith(_OF_FORKS))
        forks = [int(number) for number in digits if number.isdigit()]
        # Checkpoints of deleted forks name theirs.
        forks += [int(r.info["fork"]) for r in _epochs(txn, dbs).values() if "fork" in r.info]
        return 1 + max(forks, default=-1)
    if name == metadata.NEXT_AUTHOR:
        numbers = (fmt.author_number(bytes(key)) for key, _ in txn.cursor(dbs[b"authors"]))
        return 1 + max((max(pair) for pair in numbers), default=-1)
    return 0


def _last(txn: lmdb.Transaction, db: Database) -> int:
    """The first number in the last key of a table."""
    cursor = txn.cursor(db)
    return fmt.unpack_u64(bytes(cursor.key())[:8].ljust(8, b"\0")) if cursor.last() else 0


def _epochs(txn: lmdb.Transaction, dbs: dict[bytes, Database]) -> dict[Epoch, fmt.EpochRecord]:
    """The epochs, with those made up again that records belong to or that others come from."""
    found: dict[Epoch, fmt.EpochRecord] = {}
    for key, value in txn.cursor(dbs[b"epochs"]):
        with contextlib.suppress(struct.error, ValueError):
            found[Epoch(fmt.unpack_u32(bytes(key)))] = _epoch(bytes(value))
    last = max(_number(txn, dbs, b"next_epoch"), *found, 1)
    wanted = {epoch for epoch in _epochs_of_records(txn, dbs) if 0 < epoch < last}
    wanted |= {record.parent for record in found.values() if 0 < record.parent < last}
    for epoch in sorted(wanted - found.keys()):
        before = max((e for e in found if e < epoch), default=fmt.NO_EPOCH)
        # Hidden: what it alone has is not shown, but those that come from it see its records.
        found[epoch] = fmt.EpochRecord(before, sealed=True, inodes=0, info={})
    for epoch, record in found.items():
        if record.parent not in found or record.parent >= epoch or fmt.is_excluded(epoch):
            found[epoch] = record._replace(parent=fmt.NO_EPOCH)
    return found


def _epoch(value: bytes) -> fmt.EpochRecord:
    """The epoch in a record, also if one bit of it flipped."""
    try:
        return fmt.unpack_epoch(value)
    except fmt.CorruptRecord:
        whole = fmt.bit_corrected(value)
        if whole is None:
            raise
        return fmt.unpack_epoch(whole)


def _epochs_of_records(txn: lmdb.Transaction, dbs: dict[bytes, Database]) -> set[Epoch]:
    suffixes = {
        bytes(key)[-fmt.SUFFIX_SIZE :]
        for name in fmt.VERSIONED.values()
        for key in txn.cursor(dbs[name]).iternext(values=False)
    }
    return {fmt.epoch_of(suffix) for suffix in suffixes if len(suffix) == fmt.SUFFIX_SIZE}


def ino_of(entity: bytes) -> Ino:
    """The first number of an entity."""
    return Ino(fmt.unpack_u64(entity[:8]))
