"""`check` of records at rest: the invariants of docs/FORMAT.md that are about chunks.

Reads only. Each function yields the problems that it finds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptfs.model import Ino
from ckptfs.store import format as fmt
from ckptfs.store.problem import Problem, show, versioned

if TYPE_CHECKING:
    from ckptfs.store.environment import Store


def chunks(store: Store) -> Iterator[Problem]:
    """Chunks can be read, their keys are in order, also from one to the next, no entity is in two
    of them, and nothing in them stands in its table as well or is of an epoch that is open."""
    tables = {table.kind: table for table in versioned(store)}
    open_epochs = {epoch for epoch, record in store.epochs.items() if not record.sealed}
    last = (b"", b"")
    for kind, first, chunk in store.rest.chunks():
        here = [(kind, key) for key in chunk.keys]
        if not here or first > chunk.keys[0] or [last, *here] != sorted({last, *here}):
            yield Problem("rest", f"the chunk {kind.decode()}:{first.hex()} is out of order")
        table = tables.get(kind)
        for key in chunk.keys if table is not None else ():
            if fmt.epoch_of(key[-fmt.SUFFIX_SIZE :]) in {*open_epochs, fmt.EXCLUDED_EPOCH}:
                yield Problem("rest", f"{kind.decode()}:{key.hex()} rests, and is of an open epoch")
        if table is not None and last[0] == kind and here and _entity(last) == _entity(here[0]):
            yield Problem("rest", f"{kind.decode()}:{first.hex()} is of an entity in two chunks")
        last = here[-1] if here else last
    for key in store.rest.doubles():
        yield Problem("rest", f"{key.hex()} is at rest and in its table")


def _entity(key: tuple[bytes, bytes]) -> bytes:
    return key[1][: -fmt.SUFFIX_SIZE]


def at_rest(store: Store) -> Iterator[Problem]:
    """Nothing that the anchor sees is at rest, but for tombstones and the blocks of contents that
    it has not."""
    anchor = store.epochs.get(store.anchor)
    if anchor is None:
        return
    view = store.view(store.anchor).bare
    contents = {
        fmt.pack_u64(fmt.unpack_inode(Ino(0), record).content)
        for _, record in store.inodes.walk(view, b"")
    }
    for table in versioned(store):
        last = b""
        for entity, suffix, record in table.versions(b""):
            if entity == last or suffix not in view.seen:
                continue
            last = entity
            if not record or (table is store.blockmap and entity[:8] not in contents):
                continue
            if store.rest.get(table.kind, entity + suffix) is not None:
                yield Problem("rest", f"{show(table, entity)} rests, and the head needs it")
