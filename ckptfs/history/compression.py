"""Making history smaller: compressing the blocks of sealed epochs.

Blocks are compressed epoch by epoch in small steps; a writer never waits for it. A block of which
an older version exists is stored as a difference from that version, which for an edited file is
next to nothing. Later, all versions of a name go into large packs together. This module knows which
versions belong together; the store knows how bytes are encoded.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Generator, Iterator

from ckptfs import interrupts
from ckptfs.fs import Filesystem
from ckptfs.history.checkpoints import checkpoints
from ckptfs.history.shifted import LARGE, Stored, relate_versions
from ckptfs.history.upkeep import Job, Steps, finish, pause
from ckptfs.model import BLOCK_SIZE, NO_CONTENT, ContentId, Epoch, Ino, Inode
from ckptfs.store import Store, View, codec
from ckptfs.store.blocks import PACKED_MAX, Member
from ckptfs.store.format import (
    PACK_MAX,
    block_entity,
    block_number,
    dirent_entity,
    pack_u64,
    unpack_inode,
    unpack_mapping,
    unpack_u64,
)
from ckptfs.store.metadata import COMPRESSED, REPACKED
from ckptfs.store.pack_usage import PackUsage

#: Hears how far a piece of work is: what it does, how much is done, of how much.
Watch = Callable[[str, int, int], None]


def _unwatched(_what: str, _done: int, _total: int) -> None:
    """Nothing is told to the daemon, which works by itself."""


#: A name's versions that are in large packs already are packed anew with its new ones if they are
#: no more than so many times as many: so each is packed a few times, however many follow.
_OLD_PER_NEW = 4
#: When more than this share of what packs take belongs to blocks that are gone, all names are
#: looked through, and the emptiest packs are emptied until it is half of that.
_WASTE_SHARE = 8
#: Names are packed in parts of this many: all of a part are in memory.
_NAMES_MAX = 20_000
#: Blocks are read for a pack, and names looked through, so many in a step.
_STRIDE = 8
#: And blocks of one file so many.
_BLOCKS_STRIDE = 128


def compress(fs: Filesystem) -> None:
    """Compress everything that checkpoints hold, however long it takes. The caller commits."""
    finish(fs, compression_steps(fs))


def repack(fs: Filesystem) -> None:
    """The same for large packs."""
    finish(fs, repacking_steps(fs, everything=True))


def compression_steps(fs: Filesystem, min_age_ns: int = 0, *, watch: Watch = _unwatched) -> Steps:
    """Compress the checkpoints taken since the last time, once they are old enough: what was just
    written is read next, and reading it should cost nothing extra."""
    fs.flush()
    store = fs.store
    while (epoch := _next_epoch(fs, min_age_ns)) is not None:
        yield from _encode_epoch(store, epoch, watch)
        yield from pause(store)
        store.charge()
        store.metadata.put_number(COMPRESSED, epoch)


def _next_epoch(fs: Filesystem, min_age_ns: int) -> Epoch | None:
    done = fs.store.metadata.number(COMPRESSED, 0)
    latest_ns = fs.clock() - min_age_ns
    ready = (c.epoch for c in checkpoints(fs.store) if c.epoch > done and c.time_ns <= latest_ns)
    return min(ready, default=None)


def _encode_epoch(store: Store, epoch: Epoch, watch: Watch) -> Steps:
    """Encode the blocks that the epoch wrote."""
    waiting: list[bytes] = []
    total = 0
    files, all_files = 0, 0
    if watch is not _unwatched:
        all_files = yield from _files_of(store, epoch)
    for number, (key, base) in enumerate(_written(store, epoch)):
        if key is None:
            watch("compressing", files, all_files)
            files += 1
        if not key:
            if not number % _STRIDE:
                yield from pause(store)
            continue
        store.charge(BLOCK_SIZE)
        length = store.blocks.encode(key, base)
        if total + length > BLOCK_SIZE:
            store.blocks.pack(waiting)
            waiting, total = [], 0
        if length:
            waiting.append(key)
            total += length
        yield from pause(store)
    store.blocks.pack(waiting)


def _files_of(store: Store, epoch: Epoch) -> Generator[Job | None, object, int]:
    """How many inodes the epoch wrote."""
    count = 0
    for count, _ in enumerate(store.changes.walk(epoch, store.inodes.kind), 1):
        if not count % _STRIDE:
            yield from pause(store)
    return count


# -- large packs -----------------------------------------------------------------------------------


def repacking_steps(
    fs: Filesystem, *, everything: bool = False, watch: Watch = _unwatched
) -> Steps:
    """Put all versions of a file and of its neighbours together into large packs, where what they
    have in common takes nearly no space. Of the files that changed since the last time, once that
    is enough to fill half a pack; or of all, also where packs have become half empty."""
    fs.flush()
    store = fs.store
    last = store.metadata.number(COMPRESSED, 0)
    if not everything and not (yield from _is_due(store, last)):
        return
    usage = yield from _usage(store)
    if not everything:
        full = usage.filled(PACK_MAX // 2)
        yield from _pack_round(store, full, _names_since(store, last), watch)
        # What goes into new packs leaves the old ones emptier.
        usage = yield from _usage(store)
        everything = usage.wasted_bytes > usage.stored_bytes // _WASTE_SHARE
    if everything:
        full = usage.filled(PACK_MAX // 2, 2 * _WASTE_SHARE)
        yield from _pack_round(store, full, _all_names(store), watch)
    store.metadata.put_number(REPACKED, last)


def _usage(store: Store) -> Generator[Job | None, object, PackUsage]:
    usage = PackUsage()
    for number, _ in enumerate(store.blocks.survey(usage)):
        if not number % _STRIDE:
            yield from pause(store)
    return usage


def _pack_round(store: Store, full: set[bytes], names: Iterator[bytes], watch: Watch) -> Steps:
    """Pack the blocks of these names; those in full packs only where they are worth it."""
    packed: set[bytes] = set()
    part: set[bytes] = set()
    for number, name in enumerate(names):
        part.add(name)
        if len(part) == _NAMES_MAX:
            yield from _pack_names(store, sorted(part), full, packed, watch)
            part.clear()
        if not number % _STRIDE:
            yield from pause(store)
    yield from _pack_names(store, sorted(part), full, packed, watch)


def _is_due(store: Store, last: int) -> Generator[Job | None, object, bool]:
    size = 0
    for number, inode in enumerate(_changed_since(store, last)):
        size += min(inode.size, PACK_MAX)
        if size >= PACK_MAX // 2:
            return True
        if not number % _STRIDE:
            yield from pause(store)
    return False


def _changed_since(store: Store, last: int) -> Iterator[Inode]:
    """The files with content that epochs wrote since the last time, up to the last one that was
    compressed."""
    done = store.metadata.number(REPACKED, 0)
    for epoch in sorted(e for e in store.epochs if done < e <= last):
        if epoch not in store.epochs:
            continue
        view = store.view(epoch)
        for entity in store.changes.walk(epoch, store.inodes.kind):
            record = store.inodes.own(view, entity)
            inode = unpack_inode(Ino(unpack_u64(entity)), record) if record else None
            if inode is not None and inode.content != NO_CONTENT and inode.name:
                yield inode


def _names_since(store: Store, last: int) -> Iterator[bytes]:
    for inode in _changed_since(store, last):
        yield dirent_entity(inode.parent, inode.name)


def _all_names(store: Store) -> Iterator[bytes]:
    for name, _ in itertools.groupby(store.dirents.versions(b""), key=operator.itemgetter(0)):
        yield name


def _pack_names(
    store: Store, names: list[bytes], full: set[bytes], packed: set[bytes], watch: Watch
) -> Steps:
    """Pack the blocks of these names, name by name."""
    waiting: list[bytes] = []
    total = 0
    found = yield from _blocks_of_names(store, names, watch)
    for number, stored in enumerate(found):
        watch("packing", number, len(found))
        yield from relate_versions(store, stored)
        for key, length in _worth_packing(store, stored, full):
            if key in packed:
                continue
            packed.add(key)
            if total + length > PACK_MAX:
                yield from _pack_together(store, waiting)
                waiting, total = [], 0
            waiting.append(key)
            total += length
        if not number % _STRIDE:
            yield from pause(store)
    yield from _pack_together(store, waiting)


def _pack_together(store: Store, keys: list[bytes]) -> Steps:
    members: list[Member] = []
    for number, key in enumerate(keys):
        member = store.blocks.member(key)
        if member is not None:
            members.append(member)
        if not number % _STRIDE:
            yield from pause(store)
    if len(members) < 2:
        store.blocks.pack(keys)
        return
    whole = b"".join(member.data for member in members)
    store.charge(len(whole))
    frame = yield functools.partial(codec.compress_pack, whole)
    assert isinstance(frame, bytes)
    store.blocks.put_pack(members, whole, frame)
    store.pending.flush()


def _worth_packing(
    store: Store, everything: list[Stored], full: set[bytes]
) -> list[tuple[bytes, int]]:
    """(key, length) of those that are to be packed of the blocks that a name had, the newest
    first."""
    stored = list({block.key: block for block in reversed(everything)}.values())[::-1]
    several = len({block.number for block in stored}) < len(stored)
    is_large = any(block.number >= LARGE for block in stored)
    blocks = store.blocks
    new, old = 0, 0
    found: list[tuple[bytes, int, bool]] = []
    for block in stored:
        # A large block of the workspace stays as it is if there is little to gain: a random
        # read would have to decode its whole pack. Of a large file other versions are kept by it.
        gains = several and not is_large and blocks.is_compressed(block.key)
        # Blocks that compression left in the heap get no smaller, and waste no page borders.
        history = not block.is_live and not blocks.is_in_heap(block.key)
        if is_large and blocks.is_difference(block.key):
            continue  # it is as small as it gets
        if block.length <= PACKED_MAX or gains or history:
            is_old = blocks.pack_of(block.key) in full
            old, new = old + is_old, new + (not is_old)
            found.append((block.key, block.length, is_old))
    if old > _OLD_PER_NEW * new:
        # Differences from what is in a pack take nearly no space either, for the time being.
        found = [f for f in found if not (f[2] or blocks.is_difference(f[0]))]
    elif not new:
        return []
    return [(key, length) for key, length, _ in found]


def _blocks_of_names(
    store: Store, names: list[bytes], watch: Watch
) -> Generator[Job | None, object, list[list[Stored]]]:
    """Of each name the blocks that checkpoints have of all files that had it, newest first. Each
    table is read in the order of its keys, so each chunk of packed records is decoded once."""
    inodes: list[list[bytes]] = []
    every: set[bytes] = set()
    for number, name in enumerate(names):
        watch("looking through names", number, len(names))
        versions = store.dirents.versions(name)
        inodes.append(list(dict.fromkeys(record for _, _, record in versions if record)))
        every.update(inodes[-1])
        if not number % _STRIDE:
            yield from pause(store)
    contents: dict[bytes, dict[ContentId, bool]] = {}
    live: dict[ContentId, bool] = {}
    for number, ino in enumerate(sorted(every)):
        contents[ino] = _contents(store, ino)
        live.update(contents[ino])
        if not number % _STRIDE:
            yield from pause(store)
    blocks: dict[ContentId, list[Stored]] = {}
    for number, content in enumerate(sorted(live)):
        watch("looking through contents", number, len(live))
        blocks[content] = yield from _stored(store, content, is_live=live[content])
        if not number % _STRIDE:
            yield from pause(store)
    found: list[list[Stored]] = []
    for number, several in enumerate(inodes):
        found.append([block for ino in several for c in contents[ino] for block in blocks[c]])
        if not number % _STRIDE:
            yield from pause(store)
    return found


def _contents(store: Store, ino: bytes) -> dict[ContentId, bool]:
    """The contents that an inode had, the newest first, and whether a line has them now."""
    now = {_content(store.inodes.get(head.bare, ino)) for head in store.heads.values()}
    records = (record for _, _, record in store.inodes.versions(ino) if record)
    return {content: content in now for content in map(_content, records) if content}


def _stored(
    store: Store, content: ContentId, *, is_live: bool
) -> Generator[Job | None, object, list[Stored]]:
    """The blocks that checkpoints have of a content, newest first."""
    heads = [head.bare for head in store.heads.values()]
    open_epochs = {head.suffix for head in heads}
    open_epochs.update(view.suffix for view in store.excluded_views.values())
    found: list[Stored] = []
    versions = sorted(store.blockmap.versions(pack_u64(content)), key=operator.itemgetter(1))
    for number, (entity, suffix, record) in enumerate(versions, 1):
        if not number % _BLOCKS_STRIDE:
            yield from pause(store)
        mapping = unpack_mapping(record) if record else None
        if mapping is not None and mapping.key and suffix not in open_epochs:
            here = is_live and any(store.blockmap.get(head, entity) == record for head in heads)
            found.append(Stored(mapping.key, mapping.length, block_number(entity), here))
    return found


def _content(record: bytes | None) -> ContentId:
    return NO_CONTENT if record is None else unpack_inode(Ino(0), record).content


def _written(store: Store, epoch: Epoch) -> Iterator[tuple[bytes | None, bytes | None]]:
    """(key, key of the older version) of each block that the epoch wrote, in the order in which its
    files were made: files made together are alike. The key is None for each inode, before its
    blocks, and empty where there is no block."""
    for record, base in _records(store, epoch):
        yield unpack_mapping(record).key if record else None, base


def _records(store: Store, epoch: Epoch) -> Iterator[tuple[bytes, bytes | None]]:
    """What the epoch wrote into the block map, as record and key of the older version; an empty
    record for each inode."""
    view = store.view(epoch)
    parent = store.epochs[epoch].parent
    before = store.view(parent) if parent in store.epochs else None
    for entity in store.changes.walk(epoch, store.inodes.kind):
        interrupts.between()
        yield b"", None
        record = store.inodes.own(view, entity)
        if not record:
            continue
        inode = unpack_inode(Ino(unpack_u64(entity)), record)
        if inode.content != NO_CONTENT:
            # Versions of a large file are related later, so that the newest stays whole.
            is_large = inode.size > LARGE * BLOCK_SIZE
            older = NO_CONTENT if is_large else _older_content(store, before, inode)
            for block, found in _blocks(store, view, inode):
                yield found, _key_before(store, before, older, block_number(block))


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
