"""A merge that was planned beforehand, and whether its plan still holds.

Deciding a merge reads all that both sides changed. A daemon has another process do that, on what
was committed last (`ckptfs.daemon.reading`), while programs go on. What changes from then on is
noted here. The plan holds if nothing of that is named by a step of it: then the result is the same
as if the merge had come first, and the change after it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import NamedTuple
from weakref import WeakKeyDictionary

from ckptfs.fs import Filesystem
from ckptfs.history.merge_steps import Directory, MergePlan, Rewrite
from ckptfs.model import Epoch, Ino, Inode, Place
from ckptfs.store.format import NO_EPOCH, dirent_entity, inode_entity, unpack_u64
from ckptfs.store.tables import Versioned

#: So many steps are handed over at once, fewer if their merged texts have so many bytes; a longer
#: text is cut. To take a part takes the daemon half a millisecond, the last one of a text half a
#: millisecond more for each MiB.
_STEPS = 128
_BYTES = 256 << 10
#: How a part begins, where more follows of what it is a part of, and where nothing does.
_MORE, _LAST = b"+", b"."
#: What the parts have: fields of a plan, all but one of which are lists, and the token.
_EPOCHS, _TOKEN = "epochs", "token"
_LISTS = [field.name for field in fields(MergePlan) if field.name != _EPOCHS]

#: A kind of records, and which of them.
Entity = tuple[bytes, bytes]


class Ahead(NamedTuple):
    """A plan that was made beforehand and holds, and the token of the state that it is of;
    ``is_outdated`` says that something changed since, which it does not name."""

    plan: MergePlan
    token: str
    is_outdated: bool


def parts_of(plan: MergePlan, token: str) -> Iterator[bytes]:
    """A plan, and the token of the state that it is of, in parts, for `PlannedAhead.add` in another
    process of ours."""
    yield from _cut(pickle.dumps((_TOKEN, token)))
    yield from _cut(pickle.dumps((_EPOCHS, plan.epochs)))
    for name in _LISTS:
        for steps in _groups(getattr(plan, name)):
            yield from _cut(pickle.dumps((name, steps)))


def _groups(steps: list[object]) -> Iterator[list[object]]:
    group: list[object] = []
    size = 0
    for step in steps:
        group.append(step)
        size += len(step.text or b"") if isinstance(step, Rewrite) else 0
        if len(group) == _STEPS or size >= _BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _cut(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _BYTES):
        stop = start + _BYTES
        yield (_MORE if stop < len(data) else _LAST) + data[start:stop]


class PlannedAhead:
    """A plan, and what changed since this began; the plan is of a state that was committed later
    than that. Everything must be flushed."""

    def __init__(self, fs: Filesystem) -> None:
        self._fs = fs
        self._plan, self._token = MergePlan(), ""
        #: What was cut, until its last part comes.
        self._received: list[bytes] = []
        self._began = fs.head.suffix
        self._noted: set[Entity] = set()
        store = fs.store
        tables = (store.inodes, store.dirents, store.links, store.blockmap, store.xattrs)
        self._unfollow = [_follow(table, self._noted) for table in tables]

    def add(self, part: bytes) -> None:
        """Take a part of the plan, from a process that this one began."""
        self._received.append(part[len(_LAST) :])
        if part.startswith(_MORE):
            return
        name, value = pickle.loads(b"".join(self._received))
        self._received.clear()
        if name == _EPOCHS:
            self._plan.epochs = value
        elif name == _TOKEN:
            self._token = value
        else:
            getattr(self._plan, name).extend(value)

    def close(self) -> None:
        """Note nothing any more."""
        for unfollow in self._unfollow:
            unfollow()

    def take(self, theirs: Epoch) -> Ahead | None:
        """The plan, unless it does not hold any more, or is not of the state that is merged now:
        a line that became a checkpoint meanwhile may have changed behind it, and a reference may
        have come to name another one."""
        try:
            self._fs.flush()
        finally:
            self.close()
        if self._plan.epochs[2] != theirs or not self._holds():
            return None
        return Ahead(self._plan, self._token, bool(self._noted))

    # -- whether it holds -------------------------------------------------------------------------

    def _holds(self) -> bool:
        fs = self._fs
        if self._began not in fs.head.seen or not self._is_of_these_states():
            return False
        if not self._noted:
            return True
        return not (
            self._noted.intersection(self._named())
            or self._theirs_changed()
            or self._removed_are_used()
            or self._directories_moved()
        ) and all(map(self._is_there, self._targets()))

    def _is_of_these_states(self) -> bool:
        """Whether the base and theirs are what they were: a checkpoint may have been deleted."""
        store = self._fs.store
        base, _, theirs = self._plan.epochs
        known = {epoch for epoch in (base, theirs) if epoch != NO_EPOCH}
        return all(epoch in store.epochs for epoch in known) and not (
            known & set(store.epoch_tree.hidden)
        )

    def _named(self) -> Iterator[Entity]:
        """What the steps name: what they free or take, and what they give other bytes or
        attributes."""
        plan = self._plan
        for remove in plan.removes:
            yield self._entry(remove.place)
            if not remove.inode.is_dir:  # its times change with what is in it
                yield from self._inodes(remove.inode)
        for move in plan.moves:
            yield self._entry(move.source)
            yield from self._taken(move.to, move.name)
        for make in plan.makes:
            yield from self._taken(make.to, make.name)
            yield from self._inodes(make.inode)
        for rewrite in plan.rewrites:
            yield from self._inodes(rewrite.ours, rewrite.theirs)
            yield from map(self._entry, rewrite.names)
        for describe in plan.describes:
            yield from self._inodes(describe.ours, describe.theirs)

    def _taken(self, to: Directory, name: bytes) -> Iterator[Entity]:
        if not to.is_new:
            yield self._entry((to.ino, name))

    def _entry(self, place: Place) -> Entity:
        return self._fs.store.dirents.kind, dirent_entity(*place)

    def _inodes(self, *inodes: Inode) -> Iterator[Entity]:
        return ((self._fs.store.inodes.kind, inode_entity(inode.ino)) for inode in inodes)

    def _theirs_changed(self) -> bool:
        """Whether another line, whose state is merged as it is, may have changed meanwhile. What
        changes there changes an inode that stays, if only that of a directory."""
        store, theirs = self._fs.store, self._plan.epochs[2]
        heads = [head for head in store.heads.values() if head.epoch == theirs]
        tables = {table.kind: table for table in (store.inodes, store.dirents, store.xattrs)}
        return any(
            tables[kind].own(head, entity) is not None
            for head in heads
            for kind, entity in self._noted
            if kind in tables
        )

    def _removed_are_used(self) -> bool:
        """Whether something came into, or went from, a directory that is to go."""
        kind = self._fs.store.dirents.kind
        removed = {step.inode.ino for step in self._plan.removes if step.inode.is_dir}
        return any(
            noted == kind and unpack_u64(entity[:8]) in removed for noted, entity in self._noted
        )

    def _directories_moved(self) -> bool:
        """Whether a directory may stand elsewhere by now, where the plan moves directories: one
        could come to be in itself."""
        if not any(move.inode.is_dir for move in self._plan.moves):
            return False
        store, head = self._fs.store, self._fs.head
        for kind, entity in self._noted:
            if kind == store.dirents.kind:
                record = store.dirents.get(head, entity)
                if not record or self._fs.getattr(head, Ino(unpack_u64(record))).is_dir:
                    return True
        return False

    def _targets(self) -> set[Directory]:
        return {make.to for make in self._plan.makes} | {move.to for move in self._plan.moves}

    def _is_there(self, to: Directory) -> bool:
        try:
            return to.is_new or self._fs.getattr(self._fs.head, to.ino).nlink > 0
        except OSError:
            return False


def _follow(table: Versioned, noted: set[Entity]) -> Callable[[], bool]:
    kind = table.kind
    return table.follow(lambda entity: noted.add((kind, entity)))


#: The plan that waits for its merge.
_ahead: WeakKeyDictionary[Filesystem, PlannedAhead] = WeakKeyDictionary()


def begin(fs: Filesystem) -> PlannedAhead:
    """Note what changes from here on, for a plan that is to come."""
    end(fs)
    fs.flush()
    _ahead[fs] = planned = PlannedAhead(fs)
    return planned


def take(fs: Filesystem, theirs: Epoch) -> Ahead | None:
    """The plan that waits, if it holds for a merge of that state."""
    planned = _ahead.pop(fs, None)
    return None if planned is None else planned.take(theirs)


def end(fs: Filesystem) -> None:
    """Forget the plan that waits."""
    planned = _ahead.pop(fs, None)
    if planned is not None:
        planned.close()
