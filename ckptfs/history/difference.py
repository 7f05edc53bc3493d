"""What a restore of the whole workspace changes: the records in which the head and a checkpoint
differ, with what the restore needs to know of them.

To find that takes most of the time of a restore. A daemon has it found beforehand, in slices
(`preparing`). What changes meanwhile, in the head by programs or in a checkpoint by a purge, is
noted and compared once more when the restore begins, which is one step and takes what is there.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

from ckptfs import interrupts
from ckptfs.fs import Filesystem
from ckptfs.history.checkpoints import Checkpoint
from ckptfs.history.diff.changed import epochs_between
from ckptfs.interrupts import Steps
from ckptfs.model import NO_CONTENT, ContentId, Ino, Inode, Place
from ckptfs.store.format import dirent_name, has_links, inode_entity, unpack_inode, unpack_u64

#: Of so many files it is known that a user sees them change: one is enough.
_VISIBLE_MAX = 1000

#: Called with how many records were compared.
OnRecords = Callable[[int], None]


class Difference:
    """The head against one checkpoint. ``inodes`` and ``entries`` differ; ``names`` are the names
    at the checkpoint of the files among them that both have; ``nameless`` are inodes of the
    checkpoint that have none; ``not_files`` are inodes of the head that are known to be something
    else, which an inode stays."""

    def __init__(self, fs: Filesystem, target: Checkpoint) -> None:
        self._fs = fs
        self._store = store = fs.store
        self.target = target.epoch
        self._goal = store.view(target.epoch)
        #: The head when this began: a later one that does not descend from it is another.
        self._began = fs.head.suffix
        self._compare = {
            store.inodes.kind: self._compare_inode,
            store.dirents.kind: self._compare_entry,
            store.blockmap.kind: self._compare_block,
            store.xattrs.kind: self._compare_xattr,
        }
        self.inodes: set[Ino] = set()
        self.entries: set[Place] = set()
        self.names: dict[Ino, list[Place]] = {}
        self.nameless: set[Ino] = set()
        self.not_files: set[Ino] = set()
        self._visible: set[Ino] = set()
        #: Contents of which a block differs, and the inodes that have one and are equal otherwise.
        self._contents: set[ContentId] = set()
        self._equal: dict[ContentId, Ino] = {}
        #: Inodes of which an extended attribute differs.
        self._with_xattrs: set[Ino] = set()
        self._noted: set[tuple[bytes, bytes]] = set()
        self._unfollow = [self._follow(kind) for kind in self._compare]

    def _follow(self, kind: bytes) -> Callable[[], bool]:
        tables = (self._store.inodes, self._store.dirents, self._store.blockmap, self._store.xattrs)
        table = next(table for table in tables if table.kind == kind)
        return table.follow(lambda entity: self._noted.add((kind, entity)))

    def find(self, on_records: OnRecords = lambda done: None) -> Steps[None]:
        """Compare every record that was written between the two."""
        store, done = self._store, 0
        store.pending.flush()
        for epoch in epochs_between(store, self._fs.head.epoch, self.target):
            for key in store.changes.walk(epoch):
                compare = self._compare.get(key[:1])
                if compare is not None:
                    compare(key[1:])
                done += 1
                if done % 16 == 0 and interrupts.is_due():
                    on_records(done)
                    yield
                    store.pending.flush()
        # What changed meanwhile. The restore itself compares what changes from here on.
        for number in range(len(self._noted)):
            kind, entity = self._noted.pop()
            self._compare[kind](entity)
            if number % 16 == 0 and interrupts.is_due():
                yield
                store.pending.flush()

    def catch_up(self) -> bool:
        """Compare what changed since; False if the head has become another, or if something may
        have been missed."""
        self._store.pending.flush()
        noted, self._noted = self._noted, set()
        for kind, entity in noted:
            self._compare[kind](entity)
        return bool(self._unfollow) and self._began in self._fs.head.seen

    def close(self) -> bool:
        """Note nothing any more; whether all was noted until here."""
        ended = [unfollow() for unfollow in reversed(self._unfollow)]
        was_open, self._unfollow = bool(ended), []
        return was_open and all(ended)

    def complete(self) -> None:
        """Add what is known only when all records are compared."""
        found = {ino for content, ino in self._equal.items() if content in self._contents}
        for ino in (found | self._with_xattrs) - self.inodes:
            self.inodes.add(ino)
            record = self._store.inodes.get(self._goal, inode_entity(ino))
            if record:
                self._name(unpack_inode(ino, record))

    @property
    def is_visible(self) -> bool:
        """Whether a user sees that something differs; False may mean that it takes a closer
        look."""
        return bool(self.entries or self._visible)

    # -- one record -------------------------------------------------------------------------------

    def _compare_inode(self, entity: bytes) -> None:
        ino = Ino(unpack_u64(entity))
        table = self._store.inodes
        old, new = table.get(self._fs.head.bare, entity), table.get(self._goal, entity)
        self._forget(ino)
        if old != new:
            self.inodes.add(ino)
            if new and not has_links(new):
                self.nameless.add(ino)
            if old and new:
                self._compare_files(unpack_inode(ino, old), unpack_inode(ino, new))
        elif new and (content := unpack_inode(ino, new).content) != NO_CONTENT:
            self._equal[content] = ino

    def _forget(self, ino: Ino) -> None:
        self.inodes.discard(ino)
        self.nameless.discard(ino)
        self._visible.discard(ino)
        self.names.pop(ino, None)

    def _name(self, new: Inode) -> None:
        if new.is_file and new.nlink:
            self.names[new.ino] = list(self._fs.places_of(self._goal, new))

    def _compare_files(self, old: Inode, new: Inode) -> None:
        self._name(new)
        if len(self._visible) < _VISIBLE_MAX and old.is_file and _shown(old) != _shown(new):
            self._visible.add(new.ino)

    def _compare_entry(self, entity: bytes) -> None:
        place = Ino(unpack_u64(entity[:8])), dirent_name(entity)
        table = self._store.dirents
        if table.get(self._fs.head.bare, entity) != table.get(self._goal, entity):
            self.entries.add(place)
        else:
            self.entries.discard(place)

    def _compare_block(self, entity: bytes) -> None:
        table = self._store.blockmap
        if table.get(self._fs.head.bare, entity) != table.get(self._goal, entity):
            self._contents.add(ContentId(unpack_u64(entity[:8])))

    def _compare_xattr(self, entity: bytes) -> None:
        table = self._store.xattrs
        if table.get(self._fs.head.bare, entity) != table.get(self._goal, entity):
            self._with_xattrs.add(Ino(unpack_u64(entity[:8])))


def _shown(inode: Inode) -> tuple[object, ...]:
    """What a list of changes goes by, besides the bytes of a file."""
    return (inode.mode, inode.size, inode.uid, inode.gid, inode.mtime_ns)


# -- beforehand ------------------------------------------------------------------------------------

#: What was found beforehand and waits for its restore.
_prepared: WeakKeyDictionary[Filesystem, Difference] = WeakKeyDictionary()


def preparing(
    fs: Filesystem, target: Checkpoint, on_records: OnRecords = lambda done: None
) -> Steps[None]:
    """Find what a restore to a checkpoint changes, for the `take` that follows. The caller sees to
    it that only one is prepared at a time, and drops what was found at last."""
    drop(fs)
    fs.flush()
    found = Difference(fs, target)
    try:
        yield from found.find(on_records)
        _prepared[fs] = found
    finally:
        if _prepared.get(fs) is not found:
            found.close()


def prepared(fs: Filesystem, target: Checkpoint) -> Difference | None:
    """What was found for a restore to this checkpoint."""
    found = _prepared.get(fs)
    return found if found is not None and found.target == target.epoch else None


def drop(fs: Filesystem) -> None:
    """Forget what was found."""
    found = _prepared.pop(fs, None)
    if found is not None:
        found.close()


def is_visible(fs: Filesystem, target: Checkpoint) -> bool:
    """Whether it is known that a user would see a restore to this checkpoint."""
    found = prepared(fs, target)
    return found is not None and found.catch_up() and found.is_visible


def take(fs: Filesystem, target: Checkpoint) -> Difference:
    """What a restore that begins now changes; all of it is compared now, if need be."""
    found = prepared(fs, target)
    if found is None or not found.catch_up() or not found.close():
        drop(fs)
        found = Difference(fs, target)
        interrupts.at_once(found.find())
        found.close()
    _prepared.pop(fs, None)
    found.complete()
    return found
