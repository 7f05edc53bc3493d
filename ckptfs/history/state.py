"""State documents: what an agent keeps with a checkpoint besides its files.

A document is a file that no directory has: an inode without a name in the tree, with the document's
name in its record. So it is versioned, shared by block, compressed, checked and freed like every
other file. A document that is saved again is written into the same inode, where only the blocks
that differ are new. Which documents a checkpoint carries, and in which inodes, is part of its
description.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import Any, BinaryIO, NamedTuple

from ckptfs.errors import StateInvalid
from ckptfs.fs import Filesystem, inodes
from ckptfs.history.checkpoints import Checkpoint, checkpoints
from ckptfs.history.diff.changed import inode_in
from ckptfs.model import BLOCK_SIZE, Attributes, Ino, Inode
from ckptfs.store import blockmap
from ckptfs.store.format import pack_u64, unpack_u64

#: Facts of the store: under which inode the head has the document of that name.
FACT = b"state:"


class Draft(NamedTuple):
    """A document to be saved."""

    name: str
    is_json: bool
    data: BinaryIO


class Document(NamedTuple):
    """A document that a checkpoint carries."""

    name: str
    is_json: bool
    size: int
    ino: Ino


def keep(fs: Filesystem, drafts: Sequence[Draft], *, compress: bool = True) -> dict[str, Any]:
    """Write documents into the head; returns their description for the checkpoint to be sealed
    next.

    With ``compress`` a changed block is stored at once as a difference from the one before: in a
    conversation that grows, the last block changes with every turn.
    """
    described = {}
    for draft in drafts:
        ino = _ino_for(fs, draft.name)
        size = _write(fs, ino, draft.data, compress=compress)
        described[draft.name] = {"ino": ino, "bytes": size, "json": draft.is_json}
    _drop(fs, keeping=set(described))
    return described


def tidy(fs: Filesystem) -> None:
    """Drop documents of the head that no checkpoint carries any more."""
    if not any(True for _ in fs.facts.walk(FACT)):
        return
    _drop(fs, keeping={name for found in checkpoints(fs.store) for name in found.state})


def documents(checkpoint: Checkpoint) -> list[Document]:
    return [
        Document(name, bool(found["json"]), int(found["bytes"]), Ino(found["ino"]))
        for name, found in checkpoint.state.items()
    ]


def read(fs: Filesystem, checkpoint: Checkpoint, name: str, offset: int, length: int) -> bytes:
    """A piece of a document. Raises StateInvalid if the checkpoint has none of that name."""
    for found in documents(checkpoint):
        if found.name == name:
            view = fs.view_of(checkpoint.epoch)
            return bytes(fs.read(view, found.ino, offset, min(length, found.size - offset)))
    raise StateInvalid(name, f"checkpoint {checkpoint.id} does not carry it")


def is_document(inode: Inode) -> bool:
    """Whether an inode without a name in the tree is a state document."""
    return not inode.nlink and bool(inode.name)


def _ino_for(fs: Filesystem, name: str) -> Ino:
    """The head's inode for a document; a new one if it has none, or if a restore went back to a
    checkpoint without it."""
    key = FACT + os.fsencode(name)
    known = fs.facts.get(key)
    if known is not None:
        ino = Ino(unpack_u64(known))
        inode = inode_in(fs.store, fs.head.bare, ino)
        if inode is not None and is_document(inode):
            return ino
    mode = stat.S_IFREG | stat.S_IRUSR | stat.S_IWUSR
    made = inodes.make(fs, fs.head.bare, mode, os.geteuid(), os.getegid(), name=os.fsencode(name))
    inodes.save(fs, fs.head.bare, made._replace(nlink=0))
    fs.facts.put(key, pack_u64(made.ino))
    return made.ino


def _write(fs: Filesystem, ino: Ino, data: BinaryIO, *, compress: bool) -> int:
    """Write a document, only the blocks that differ; returns the size."""
    size = 0
    #: By block number, the former keys of changed blocks.
    replaced: dict[int, bytes] = {}
    while piece := data.read(BLOCK_SIZE):
        if fs.read(fs.head.bare, ino, size, BLOCK_SIZE) != piece:
            number = size // BLOCK_SIZE
            if compress and (key := _key(fs, ino, number)):
                replaced[number] = key
            fs.write(fs.head.bare, ino, size, piece)
        size += len(piece)
    if fs.getattr(fs.head.bare, ino).size != size:
        fs.setattr(fs.head.bare, ino, Attributes(size=size))
    fs.flush()
    for number, before in replaced.items():
        now = _key(fs, ino, number)
        if now and now != before and fs.store.blocks.has(before):
            fs.store.charge(BLOCK_SIZE)
            fs.store.blocks.encode(now, before)
    return size


def _key(fs: Filesystem, ino: Ino, number: int) -> bytes:
    """The key of a document's block, which is flushed; empty if it has none."""
    inode = fs.getattr(fs.head.bare, ino)
    found = blockmap.find(fs.store, fs.head.bare, inode, number)
    return found.key if found is not None else b""


def _drop(fs: Filesystem, keeping: set[str]) -> None:
    for key, value in list(fs.facts.walk(FACT)):
        if os.fsdecode(key[len(FACT) :]) in keeping:
            continue
        inode = inode_in(fs.store, fs.head.bare, Ino(unpack_u64(value)))
        if inode is not None and is_document(inode):
            fs.erase(fs.head.bare, inode)
        fs.facts.delete(key)
