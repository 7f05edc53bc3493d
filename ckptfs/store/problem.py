"""What `check` says is wrong, and the words for records in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ckptfs.store.environment import Store
    from ckptfs.store.tables import Versioned


class Problem(NamedTuple):
    invariant: str
    message: str
    #: The key, in hexadecimal, of a block that cannot be read.
    block: str = ""


def versioned(store: Store) -> tuple[Versioned, ...]:
    return (store.inodes, store.dirents, store.links, store.blockmap, store.xattrs)


def show(table: Versioned, entity: bytes) -> str:
    return f"record {table.kind.decode()}:{entity.hex()}"
