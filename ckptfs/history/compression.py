"""Making history smaller: compressing the blocks of sealed epochs, and packing their records.

Blocks are compressed epoch by epoch in small steps; a writer never waits for it. A block of which
an older version exists is stored as a difference from that version, which for an edited file is
next to nothing. This module knows which versions belong together; the store knows how bytes are
encoded.

Records that the workspace does not see are packed into chunks (`ckptfs.store.packed`): replaced
versions, tombstones and what they hide, block maps of deleted files, and the lists of what each
epoch changed. What the workspace sees stays in the tables, where a request finds it as fast as
ever.
"""

from __future__ import annotations

import errno
import itertools
import operator
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from ckptfs import interrupts
from ckptfs.fs import Filesystem
from ckptfs.history.checkpoints import checkpoints
from ckptfs.model import BLOCK_SIZE, NO_CONTENT, ContentId, Epoch, Ino, Inode
from ckptfs.store import Store, View
from ckptfs.store.blocks import PACKED_MAX
from ckptfs.store.format import (
    NO_EPOCH,
    PACK_MAX,
    block_entity,
    block_number,
    dirent_entity,
    pack_reference,
    pack_u32,
    pack_u64,
    suffix_of,
    unpack_inode,
    unpack_mapping,
    unpack_u64,
)
from ckptfs.store.metadata import COMPRESSED
from ckptfs.store.packed import Record
from ckptfs.store.tables import ByEpoch, Versioned

#: How many rewritten bytes to commit at once: the old pages are not free until then.
COMMIT_BYTES = 16 << 20


@contextmanager
def unless_disk_full() -> Iterator[None]:
    """Give up quietly on a full disk: making things smaller takes space before it frees any."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


#: Fewer inline bytes than this are not worth the two records that a block of their own takes.
_INLINE_STAYS = 128


class Compressor:
    """Compresses the checkpoints taken since the last time, once they are old enough: what was just
    written is read next, and reading it should cost nothing extra."""

    def __init__(self, fs: Filesystem, min_age_ns: int = 0) -> None:
        self._fs = fs
        self._min_age_ns = min_age_ns
        self._epoch: Epoch | None = None
        self._work: Iterator[int] = iter(())

    def step(self, budget_s: float | None = None) -> bool:
        """Work for about that long; True if nothing is left to do. Commits now and then."""
        deadline = None if budget_s is None else time.monotonic() + budget_s
        store = self._fs.store
        with unless_disk_full():
            while (epoch := self._next_epoch()) is not None:
                if epoch != self._epoch:
                    self._epoch, self._work = epoch, _encode_epoch(store, epoch)
                for size in self._work:
                    interrupts.between()
                    store.charge(size)
                    if store.dirty_bytes > COMMIT_BYTES:
                        self._fs.commit()
                    if deadline is not None and time.monotonic() >= deadline:
                        return False
                store.charge()
                store.metadata.put_number(COMPRESSED, epoch)
                self._epoch = None
        return True

    def _next_epoch(self) -> Epoch | None:
        store = self._fs.store
        done = store.metadata.number(COMPRESSED, 0)
        latest_ns = self._fs.clock() - self._min_age_ns
        ready = (c.epoch for c in checkpoints(store) if c.epoch > done and c.time_ns <= latest_ns)
        return min(ready, default=None)


def compress(fs: Filesystem) -> None:
    """Compress everything that checkpoints hold, however long it takes. The caller commits."""
    Compressor(fs).step()


def compress_inline(fs: Filesystem) -> None:
    """Compress small files that are inline in the block map and that only history has; those of
    the workspace stay inline, since they are read next. The caller commits."""
    fs.flush()
    store = fs.store
    packing = _Packing(store)
    with unless_disk_full():
        for checkpoint in checkpoints(store):
            for key, base in _moved_out_of_line(store, checkpoint.epoch):
                length = store.blocks.encode(key, base)
                if length:
                    packing.add(key, length)
                interrupts.between()
                store.charge(length)
                if store.dirty_bytes > COMMIT_BYTES:
                    fs.commit()
    packing.finish()


def repack(fs: Filesystem) -> None:
    """Put all versions of a file and of its neighbours together into large packs, where what they
    have in common takes nearly no space. Packs that are half full already stay as they are. The
    caller commits."""
    fs.flush()
    store = fs.store
    blocks = store.blocks
    full = blocks.full_packs(PACK_MAX // 2)
    packing = _Packing(store, PACK_MAX)
    with unless_disk_full():
        for key, length in _by_name(store):
            if packing.has(key) or blocks.pack_of(key) in full:
                continue
            store.charge(length)
            packing.add(key, length)
            if store.dirty_bytes > COMMIT_BYTES:
                fs.commit()
    packing.finish()


class _Packing:
    """Collects blocks until they fill a pack."""

    def __init__(self, store: Store, size: int = BLOCK_SIZE) -> None:
        self._blocks = store.blocks
        self._size = size
        self._waiting: dict[bytes, None] = {}
        self._packed: set[bytes] = set()
        self._total = 0

    def has(self, key: bytes) -> bool:
        return key in self._waiting or key in self._packed

    def add(self, key: bytes, length: int) -> None:
        if self._total + length > self._size:
            self.finish()
        self._waiting[key] = None
        self._total += length

    def finish(self) -> None:
        self._blocks.pack(self._waiting, for_good=self._size > BLOCK_SIZE)
        self._packed.update(self._waiting)
        self._waiting, self._total = {}, 0


class _Stored(NamedTuple):
    key: bytes
    length: int
    number: int
    is_live: bool


def _by_name(store: Store) -> Iterator[tuple[bytes, int]]:
    """(key, length) of the blocks that are worth packing, name by name, newest first."""
    entries = ((entity, record) for entity, _, record in store.dirents.versions(b""))
    for _, versions in itertools.groupby(entries, key=operator.itemgetter(0)):
        interrupts.between()
        stored = list(_stored(store, dict.fromkeys(record for _, record in versions if record)))
        several = len({block.number for block in stored}) < len({block.key for block in stored})
        for block in stored:
            # A large block of the workspace stays as it is if there is little to gain: a random
            # read would have to decode its whole pack.
            gains = several and store.blocks.is_compressed(block.key)
            # Blocks that compression left in the heap get no smaller, and waste no page borders.
            history = not block.is_live and not store.blocks.is_in_heap(block.key)
            if block.length <= PACKED_MAX or gains or history:
                yield block.key, block.length


def _stored(store: Store, inodes: Iterable[bytes]) -> Iterator[_Stored]:
    """The blocks that checkpoints have of these inodes, newest first."""
    head = store.head.bare
    open_epochs = {head.suffix, *([store.excluded.suffix] if store.excluded else [])}
    for ino in inodes:
        now = _content(store.inodes.get(head, ino))
        records = (record for _, _, record in store.inodes.versions(ino) if record)
        for content in dict.fromkeys(map(_content, records)):
            versions = store.blockmap.versions(pack_u64(content)) if content else ()
            for entity, suffix, record in sorted(versions, key=operator.itemgetter(1)):
                mapping = unpack_mapping(record) if record else None
                if mapping is not None and mapping.key and suffix not in open_epochs:
                    is_live = content == now and store.blockmap.get(head, entity) == record
                    number = block_number(entity)
                    yield _Stored(mapping.key, mapping.length, number, is_live)


def _content(record: bytes | None) -> ContentId:
    return NO_CONTENT if record is None else unpack_inode(Ino(0), record).content


def _encode_epoch(store: Store, epoch: Epoch) -> Iterator[int]:
    """Encode the blocks that the epoch wrote; yield the number of bytes read after each."""
    packing = _Packing(store)
    for key, base in _written(store, epoch):
        length = store.blocks.encode(key, base)
        if length:
            packing.add(key, length)
        yield BLOCK_SIZE
    packing.finish()


def _written(store: Store, epoch: Epoch) -> Iterator[tuple[bytes, bytes | None]]:
    """(key, key of the older version) of each block that the epoch wrote, in the order in which its
    files were made: files made together are alike."""
    for _, _, record, base in _records(store, epoch):
        if key := unpack_mapping(record).key:
            yield key, base


def _moved_out_of_line(store: Store, epoch: Epoch) -> Iterator[tuple[bytes, bytes | None]]:
    """The same for inline bytes, which get a block of their own here."""
    view = store.view(epoch)
    for inode, entity, record, base in _records(store, epoch):
        mapping = unpack_mapping(record)
        if mapping.key or mapping.length < _INLINE_STAYS or not mapping.is_whole:
            continue
        if _is_live(store, inode) and store.blockmap.get(store.head.bare, entity) == record:
            continue
        key = store.blocks.add(mapping.inline)
        store.blockmap.put_unlisted(view, entity, pack_reference(mapping.length, key))
        yield key, base


def _is_live(store: Store, inode: Inode) -> bool:
    """Whether the workspace still has the file with this content."""
    record = store.inodes.get(store.head.bare, pack_u64(inode.ino))
    return record is not None and unpack_inode(inode.ino, record).content == inode.content


def _records(store: Store, epoch: Epoch) -> Iterator[tuple[Inode, bytes, bytes, bytes | None]]:
    """What the epoch wrote into the block map, as file, entity, record, and key of the older
    version."""
    view = store.view(epoch)
    parent = store.epochs[epoch].parent
    before = store.view(parent) if parent in store.epochs else None
    for entity in store.changes.walk(epoch, store.inodes.kind):
        interrupts.between()
        record = store.inodes.own(view, entity)
        if not record:
            continue
        inode = unpack_inode(Ino(unpack_u64(entity)), record)
        if inode.content != NO_CONTENT:
            older = _older_content(store, before, inode)
            for block, found in _blocks(store, view, inode):
                yield inode, block, found, _key_before(store, before, older, block_number(block))


def _blocks(store: Store, view: View, inode: Inode) -> Iterator[tuple[bytes, bytes]]:
    """(entity, record) of what the view's epoch wrote into the block map of the inode's content."""
    prefix = pack_u64(inode.content)
    for entity, suffix, record in store.blockmap.versions(prefix):
        if suffix == view.suffix and record:
            yield entity, record


def _older_content(store: Store, before: View | None, inode: Inode) -> ContentId:
    """The content of the same file one epoch earlier, or of the file that had its name then: many
    programs write a new file and rename it over the old one."""
    if before is None:
        return NO_CONTENT
    record = store.inodes.get(before, pack_u64(inode.ino))
    if record is None:
        entry = store.dirents.get(before, dirent_entity(inode.parent, inode.name))
        record = None if entry is None else store.inodes.get(before, entry)
    return NO_CONTENT if record is None else unpack_inode(inode.ino, record).content


def _key_before(store: Store, before: View | None, content: ContentId, number: int) -> bytes | None:
    if before is None or content == NO_CONTENT:
        return None
    record = store.blockmap.get(before, block_entity(content, number))
    return unpack_mapping(record).key or None if record else None


# -- packed records --------------------------------------------------------------------------------

#: A chunk ends at about this many bytes or records. Chunks of half the size take a tenth more
#: space. A chunk is decoded in 2 ms, and is back in its table in 10.
CHUNK_BYTES = 256 << 10
_CHUNK_RECORDS = 4_000


def pack_records(fs: Filesystem, chunk_bytes: int = CHUNK_BYTES) -> None:
    """Pack all records that the workspace does not see. The caller commits."""
    unpack_records(fs)
    fs.flush()
    store = fs.store
    parent = store.epochs[store.head.epoch].parent
    # If some could not be unpacked, all stay as they are: chunks must not overlap.
    if parent == NO_EPOCH or store.packed.used:
        return
    store.anchor = store.head.epoch
    with unless_disk_full():
        _pack_all(fs, _Sight(store, parent), chunk_bytes)


def unpack_records(fs: Filesystem, budget_s: float | None = None) -> bool:
    """Bring records back into their tables for about that long; True if all are back, or the disk
    has no space for more."""
    deadline = None if budget_s is None else time.monotonic() + budget_s
    store = fs.store
    with unless_disk_full():
        while store.packed.used:
            interrupts.between()
            store.charge(CHUNK_BYTES)
            store.packed.unpack_some()
            if store.dirty_bytes > COMMIT_BYTES or store.pressed:
                fs.commit()
            if deadline is not None and time.monotonic() >= deadline:
                return not store.packed.used
    return True


def head_reads_packed(fs: Filesystem) -> bool:
    """Whether the workspace has to look for its records among the packed ones, which is slower:
    after a restore, or after the checkpoint that it came from was deleted."""
    packed = fs.store.packed
    return packed.used and packed.concerns(fs.store.head)


def _pack_all(fs: Filesystem, sight: _Sight, chunk_bytes: int) -> None:
    store = fs.store
    versioned = (store.dirents, store.blockmap, store.links, store.xattrs, store.inodes)
    unseen = [(table.kind, sight.unseen(table)) for table in versioned]
    lists = [(table.kind, _records_of_sealed(table, sight)) for table in store.by_epoch]
    for kind, entities in (*lists, *unseen):
        for chunk in _chunks(entities, chunk_bytes):
            interrupts.between()
            store.charge(chunk_bytes)
            store.packed.pack(kind, chunk)
            if store.dirty_bytes > COMMIT_BYTES:
                fs.commit()


def _chunks(entities: Iterator[list[Record]], chunk_bytes: int) -> Iterator[list[Record]]:
    """Collect the records of entities into chunks; an entity is never split."""
    chunk: list[Record] = []
    size = 0
    for records in entities:
        chunk += records
        size += sum(len(key) + len(value) for key, value in records)
        if size >= chunk_bytes or len(chunk) >= _CHUNK_RECORDS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _records_of_sealed(table: ByEpoch, sight: _Sight) -> Iterator[list[Record]]:
    """The records of sealed epochs, one by one."""
    for epoch in sorted(sight.sealed):
        for record in table.walk(pack_u32(epoch)):
            yield [record]


class _Sight:
    """What the head sees of sealed epochs: what its parent does."""

    def __init__(self, store: Store, parent: Epoch) -> None:
        self._view: View = store.view(parent)
        self.sealed = {epoch for epoch, record in store.epochs.items() if record.sealed}
        self._suffixes = {suffix_of(epoch) for epoch in self.sealed}
        self._blockmap = store.blockmap
        self._contents = set(_contents(store, self._view))

    def unseen(self, table: Versioned) -> Iterator[list[Record]]:
        """Of each entity the records that the head does not see, in order."""
        for entity, versions in groupby(table.versions(b""), key=itemgetter(0)):
            interrupts.between()
            found = list(self._unseen(table, entity, versions))
            if found:
                yield found

    def _unseen(
        self, table: Versioned, entity: bytes, versions: Iterator[tuple[bytes, bytes, bytes]]
    ) -> Iterator[Record]:
        # A content that no inode has there is not looked at.
        hidden = table is self._blockmap and entity[:8] not in self._contents
        for _, suffix, record in versions:
            if not hidden and suffix in self._view.seen:
                hidden = True
                if record:
                    continue
            if suffix in self._suffixes:
                yield entity + suffix, record


def _contents(store: Store, view: View) -> Iterator[bytes]:
    for _, record in store.inodes.walk(view, b""):
        interrupts.between()
        content = unpack_inode(Ino(0), record).content
        if content != NO_CONTENT:
            yield pack_u64(content)
