"""Damage: which files, in which checkpoints, a damaged block belongs to."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from ckptfs.fs import Filesystem
from ckptfs.history.checkpoints import checkpoints
from ckptfs.history.paths import path_of
from ckptfs.model import BLOCK_SIZE, Ino
from ckptfs.store import View
from ckptfs.store.blocks import LOST
from ckptfs.store.format import Mapping, block_number, unpack_inode, unpack_mapping, unpack_u64


@dataclass
class Affected:
    """Bytes of a file that cannot be read, and the checkpoints that have them."""

    path: bytes
    offset: int
    length: int
    checkpoints: list[int] = field(default_factory=list)
    #: The workspace as it is has them, too.
    now: bool = False


def affected(fs: Filesystem, keys: Collection[bytes]) -> list[Affected]:
    """The files that refer to one of these blocks, or have damaged inline bytes; the latter not if
    the blocks are the lost ones. Reads the whole block map."""
    blocks = {
        entity
        for entity, _, record in fs.store.blockmap.versions(b"")
        if record and _is_bad(unpack_mapping(record), keys)
    }
    if not blocks:
        return []
    owners = _owners(fs, {unpack_u64(entity[:8]) for entity in blocks})
    found: dict[tuple[bytes, int], Affected] = {}
    views = [(item.id, fs.view_of(item.epoch)) for item in checkpoints(fs.store)]
    for number, view in [*views, (None, fs.head)]:
        for path, offset, length in _in_view(fs, view, blocks, keys, owners):
            item = found.setdefault((path, offset), Affected(path, offset, length))
            if number is None:
                item.now = True
            else:
                item.checkpoints.append(number)
    return [found[key] for key in sorted(found)]


def _is_bad(mapping: Mapping, keys: Collection[bytes]) -> bool:
    return mapping.key in keys or (LOST not in keys and not mapping.is_whole)


def _owners(fs: Filesystem, contents: set[int]) -> dict[int, Ino]:
    """The inode of each content."""
    found: dict[int, Ino] = {}
    for entity, _, record in fs.store.inodes.versions(b""):
        if record:
            inode = unpack_inode(Ino(unpack_u64(entity)), record)
            if inode.content in contents:
                found[inode.content] = inode.ino
    return found


def _in_view(
    fs: Filesystem,
    view: View,
    blocks: set[bytes],
    keys: Collection[bytes],
    owners: dict[int, Ino],
) -> Iterator[tuple[bytes, int, int]]:
    for entity in blocks:
        record = fs.store.blockmap.get(view, entity)
        content = unpack_u64(entity[:8])
        if not record or not _is_bad(unpack_mapping(record), keys) or content not in owners:
            continue
        try:
            inode = fs.getattr(view, owners[content])
            if inode.content == content and inode.nlink:
                path = path_of(fs.store, view, (inode.parent, inode.name))
                yield path, block_number(entity) * BLOCK_SIZE, unpack_mapping(record).length
        except OSError:
            continue  # this view does not have the file
