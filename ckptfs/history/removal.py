"""Removing epochs: what happens to the records of a deleted checkpoint.

A deleted checkpoint is *hidden* at once: its epoch loses its description and has no view any more.
Its records go in small steps. A record that the only child does not override moves to the child;
the others are dropped and their blocks released. An epoch with several children stays hidden until
only one of them is left. Every visible view is complete between any two steps, so the work may
stop, be committed and continue anywhere. Why a checkpoint is deleted is not known here.

Two things are not in `changes` and are looked up: the blocks of a content that the epoch itself
allocated, and whether the child still uses a content or an xattr at all (the blocks of a deleted
file get no tombstones; docs/FORMAT.md, "Content"). This relies on:

- An epoch that has block-map records of a content has an inode record that names it.
- A content belongs to one inode for ever; a copy of a file gets a new content.
- A content that a view does not name is named by no view below it: contents are never reused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from ckptfs import interrupts
from ckptfs.errors import Interrupted
from ckptfs.fs import Filesystem
from ckptfs.fs.authorship import hand_over
from ckptfs.history.checkpoints import Checkpoint
from ckptfs.history.forks import hand_over as hand_over_left_out
from ckptfs.history.merge import hand_over as hand_over_merged
from ckptfs.history.restore import leave_limbo
from ckptfs.interrupts import Steps
from ckptfs.model import NO_CONTENT, Epoch, Ino, Inode
from ckptfs.store import Store, View
from ckptfs.store.format import (
    GONE,
    NO_EPOCH,
    CorruptRecord,
    pack_u64,
    unpack_inode,
    unpack_mapping,
    unpack_u64,
)
from ckptfs.store.tables import Versioned

#: Large removals are committed in parts of about this many bytes of records. Requests wait for a
#: commit: for one of this size some 10 ms. Smaller ones together take longer.
_COMMIT_BYTES = 4 << 20
#: The clock is looked at after this many records: some take 50 microseconds.
_STRIDE = 4


def delete(fs: Filesystem, doomed: Iterable[Checkpoint]) -> None:
    """Delete checkpoints and all that only they held. The caller commits."""
    hide(fs, doomed)
    spare_none(fs)
    interrupts.finish(freeing(fs))


def freeing(fs: Filesystem, on_records: Callable[[int], None] = lambda done: None) -> Steps[bool]:
    """Free hidden epochs while the client waits, and leave the rest to the next clean-up; True if
    all is free. The checkpoints are gone either way. ``on_records`` hears how far it is. It
    begins with a yield: whatever hid them is done before its turn to free comes."""
    reaper = Reaper(fs)
    try:
        yield
        while not reaper.step():
            on_records(reaper.done)
            yield
            if needs_commit(fs.store):
                fs.commit()
                yield
        yield from giving_back(fs)
    except Interrupted:
        return False
    return True


def giving_back(fs: Filesystem) -> Steps[None]:
    """Commit until all that was let go of in the heap is a hole."""
    while fs.store.heap.is_waiting:
        fs.commit()
        yield


def hide(fs: Filesystem, doomed: Iterable[Checkpoint]) -> None:
    """Make checkpoints unreachable; `reap` or a `Reaper` frees what they hold."""
    for checkpoint in doomed:
        fs.store.describe_epoch(checkpoint.epoch, {})


def spare_none(fs: Filesystem) -> None:
    """Room is asked for: do not keep a hidden epoch for a write-back, which then has to look at
    everything."""
    agreed = fs.store.metadata.agreed()
    if agreed is not None and agreed.epoch in fs.store.epoch_tree.hidden:
        fs.store.metadata.put_agreed(None)


def reap(fs: Filesystem) -> None:
    """Free everything that only hidden epochs hold, unless another process has to."""
    if fs.store.read_only:
        return
    spare_none(fs)
    reaper = Reaper(fs)
    while not reaper.step():
        fs.commit()


def needs_commit(store: Store) -> bool:
    """Whether work that changes much should commit what it did so far."""
    return store.dirty_bytes > _COMMIT_BYTES or store.pressed


class Reaper:
    """Frees hidden epochs in bounded steps, so that a daemon can serve requests between them."""

    def __init__(self, fs: Filesystem) -> None:
        self._fs = fs
        self._work: Iterator[None] = iter(())
        self._subject: tuple[Epoch, Epoch | None] | None = None
        #: Epochs whose records are damaged: they stay, so that nothing they alone have is lost.
        self._stuck: dict[Epoch, CorruptRecord] = {}
        #: Hidden epochs that are still to be looked at, the newest last.
        self._waiting: list[Epoch] = []
        #: How many records it went through.
        self.done = 0

    def step(self, budget_s: float | None = None) -> bool:
        """Work for about that long, or until a commit is due or the slice used up; True if nothing
        is left to do. Damaged epochs are left alone, and their error is raised when everything else
        is done."""
        self._fs.flush()
        leave_limbo(self._fs)
        deadline = None if budget_s is None else time.monotonic() + budget_s
        store = self._fs.store
        while (subject := self._next_subject()) is not None:
            if subject != self._subject:
                self._subject = subject
                self._work = _removal(store, *subject)
            try:
                for _ in self._work:
                    self.done += 1
                    interrupts.between()
                    if self.done % _STRIDE == 0 and _is_due(store, deadline):
                        return False
            except CorruptRecord as error:
                self._stuck[subject[0]] = error
            self._subject = None
        for damage in self._stuck.values():
            raise damage
        return True

    def _next_subject(self) -> tuple[Epoch, Epoch | None] | None:
        """The hidden epoch to remove next and its only child, if it has one.

        The newest first: in a row of hidden epochs each record then moves once, past the whole row.
        What comes to be hidden meanwhile is looked at after those.
        """
        tree = self._fs.store.epoch_tree
        agreed = self._fs.store.metadata.agreed() if tree.hidden else None
        # What changed since both sides agreed tells a write-back where to look.
        kept = None if agreed is None else agreed.epoch

        def is_ready(epoch: Epoch) -> bool:
            is_hidden = epoch in tree.hidden and epoch not in self._stuck and epoch != kept
            return is_hidden and len(tree.children(epoch)) < 2

        while not self._waiting or not is_ready(self._waiting[-1]):
            if self._waiting:
                self._waiting.pop()
            elif any(map(is_ready, tree.hidden)):
                self._waiting = sorted(tree.hidden)
            else:
                return None
        epoch = self._waiting[-1]
        return epoch, next(iter(tree.children(epoch)), None)


def _is_due(store: Store, deadline: float | None) -> bool:
    if needs_commit(store) or interrupts.is_due():
        return True
    return deadline is not None and time.monotonic() >= deadline


def _removal(store: Store, epoch: Epoch, child: Epoch | None) -> Iterator[None]:
    """Remove one epoch; yields after each entity."""
    for line, anchor in store.anchors().items():
        if epoch == anchor:
            # The child sees the same, and nothing that it takes over is packed
            # (ckptfs.store.packed).
            store.set_anchor(line, NO_EPOCH if child is None else child)
    heir = _NoHeir() if child is None else _Heir(store, epoch, store.view(child))
    gone = store.view(epoch)
    for entity in store.changes.walk(epoch, store.inodes.kind):
        yield from _remove_inode(store, gone, entity, heir)
    tables = {table.kind: table for table in (store.dirents, store.links)}
    # By the invariants above none of these is left; if one is, it is kept, never lost.
    tables |= {table.kind: table for table in (store.blockmap, store.xattrs)}
    for key in store.changes.walk(epoch):
        if key[:1] in tables:
            yield from _hand_over(store, gone, tables[key[:1]], key[1:], heir, wanted=True)
    if next(store.changes.walk(epoch), None) is not None:
        # Then a record is missing from the list too, and its views must go on seeing it.
        raise CorruptRecord(f"epoch {epoch} lists a change of which it has no record")
    hand_over(store, epoch, child)
    hand_over_merged(store, epoch, store.epoch_tree.children(epoch))
    hand_over_left_out(store, epoch, store.epoch_tree.children(epoch))
    store.remove_epoch(epoch)


def _remove_inode(store: Store, gone: View, entity: bytes, heir: _Heir | _NoHeir) -> Iterator[None]:
    """An inode's record, after everything that can only be found through it."""
    record = store.inodes.own(gone, entity)
    if record:
        inode = unpack_inode(Ino(unpack_u64(entity)), record)
        if inode.content != NO_CONTENT:
            for block in _blocks(store, gone, inode):
                # Asked anew each time: the head may have cut the file since the last step.
                wanted = heir.names(inode)
                yield from _hand_over(store, gone, store.blockmap, block, heir, wanted=wanted)
        if store.xattrs_used:
            for attribute in store.changes.walk(gone.epoch, store.xattrs.kind, entity):
                wanted = heir.has(inode.ino)
                yield from _hand_over(store, gone, store.xattrs, attribute, heir, wanted=wanted)
    yield from _hand_over(store, gone, store.inodes, entity, heir, wanted=True)


def _blocks(store: Store, gone: View, inode: Inode) -> Iterator[bytes]:
    """The block-map entities that the epoch wrote under the inode's content."""
    prefix = pack_u64(inode.content)
    if inode.content_epoch != gone.epoch:
        return store.changes.walk(gone.epoch, store.blockmap.kind, prefix)
    versions = store.blockmap.versions(prefix)
    return (entity for entity, suffix, _ in versions if suffix == gone.suffix)


def _hand_over(
    store: Store,
    gone: View,
    table: Versioned,
    entity: bytes,
    heir: _Heir | _NoHeir,
    *,
    wanted: bool,
) -> Iterator[None]:
    """Move the epoch's record of an entity to the heir, or drop it if the heir has no use for
    it."""
    store.note()
    record = table.forget(gone, entity)
    if record is not None and not heir.take(table, entity, record, wanted=wanted):
        _release(store, table, record)
    yield


def _release(store: Store, table: Versioned, record: bytes) -> None:
    if record and table is store.blockmap and (key := unpack_mapping(record).key):
        store.blocks.release(key)


class _NoHeir:
    """The heir of an epoch without children."""

    def names(self, inode: Inode) -> bool:
        return False

    def has(self, ino: Ino) -> bool:
        return False

    def take(self, table: Versioned, entity: bytes, record: bytes, *, wanted: bool) -> bool:
        return False


class _Heir:
    """The only child of an epoch that goes."""

    def __init__(self, store: Store, gone: Epoch, child: View) -> None:
        self._store = store
        self._child = child.bare
        #: The child as it will be: its own records on top of what lies above the epoch that goes.
        self._after = child.without(store.view(gone))

    def has(self, ino: Ino) -> bool:
        return self._store.inodes.get(self._child, pack_u64(ino)) is not None

    def names(self, inode: Inode) -> bool:
        """Whether the inode still has that content in the child."""
        record = self._store.inodes.get(self._child, pack_u64(inode.ino))
        return record is not None and unpack_inode(inode.ino, record).content == inode.content

    def take(self, table: Versioned, entity: bytes, record: bytes, *, wanted: bool) -> bool:
        """Take the record over, unless the child has its own or a tombstone would hide nothing;
        True if it was taken. The child's own tombstone goes once it hides nothing."""
        own = table.own(self._after, entity)
        if own is None:
            if not wanted or (record == GONE and table.inherited(self._after, entity) is None):
                return False
            table.put(self._after, entity, record)
            return True
        if own == GONE and table.inherited(self._after, entity) is None:
            table.forget(self._after, entity)
        return False
