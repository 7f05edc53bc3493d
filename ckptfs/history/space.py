"""How much room the workspace takes, and whose it is.

Counts the bytes of files as they are stored: inline, or in blocks that are counted once however
many files share them. Records and page borders are not counted; the store's file is larger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ckptfs.fs import Filesystem
from ckptfs.model import Ino
from ckptfs.store import Store
from ckptfs.store.format import pack_u64, unpack_inode, unpack_mapping, unpack_u64


class Space(NamedTuple):
    """``live_bytes`` are what the workspace holds now, ``shared_bytes`` those of them that
    checkpoints hold too; ``history_bytes`` would go with all checkpoints. ``store_bytes`` is the
    file, of which ``reclaimable_bytes`` are free and go back to the disk with `compact`."""

    live_bytes: int
    shared_bytes: int
    history_bytes: int
    store_bytes: int
    reclaimable_bytes: int


def measure(fs: Filesystem) -> Space:
    """Reads the whole block map: a second for a million blocks."""
    fs.flush()
    store = fs.store
    live: dict[bytes, int] = {}
    past: dict[bytes, int] = {}
    for piece, size, is_live, is_past in _pieces(store):
        if is_live:
            live[piece] = size
        if is_past:
            past[piece] = size
    sizes = dict(store.blocks.sizes())
    shared = live.keys() & past.keys()
    return Space(
        live_bytes=_total(live, live, sizes),
        shared_bytes=_total(shared, live, sizes),
        history_bytes=_total(past.keys() - shared, past, sizes),
        store_bytes=store.size_bytes(),
        reclaimable_bytes=store.reusable_bytes(),
    )


def _total(pieces: Iterable[bytes], inline: dict[bytes, int], stored: dict[bytes, int]) -> int:
    return sum(stored.get(piece, inline[piece]) for piece in pieces)


def _pieces(store: Store) -> Iterator[tuple[bytes, int, bool, bool]]:
    """(name, bytes, in the workspace, in a checkpoint) of what each block-map record holds. A block
    is named by its key; inline bytes, which are never shared by two files, by where they are."""
    head = store.head
    live = {head.suffix} if store.excluded is None else {head.suffix, store.excluded.suffix}
    named = _contents(store)
    last = b""
    for entity, suffix, record in store.blockmap.versions(b""):
        visible = entity != last and suffix in head.seen
        if visible:
            last = entity
        if not record:
            continue
        mapping = unpack_mapping(record)
        name = mapping.key or entity + suffix
        yield name, mapping.length, visible and entity[:8] in named, suffix not in live


def _contents(store: Store) -> set[bytes]:
    """The contents of the files in the workspace, packed."""
    return {
        pack_u64(unpack_inode(Ino(unpack_u64(entity)), record).content)
        for entity, record in store.inodes.walk(store.head, b"")
    }
