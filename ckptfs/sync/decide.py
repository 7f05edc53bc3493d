"""Deciding on one name, given what each side did since they last agreed, and carrying it out.

The decision table is pure: it sees no file, no store and no ledger. docs/design/in-place.md has it
with its reasons. The rest applies it to files, links and nodes that changed in the lower directory,
and to names that are gone from it. The walk is `scan`'s.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, cast

from ckptfs.model import BLOCK_SIZE, Attributes, Ino, Inode
from ckptfs.sync import lower
from ckptfs.sync.content import Entry, digest_of_one
from ckptfs.sync.ingest import agrees, attributes_of, merged
from ckptfs.sync.ledger import (
    NEVER,
    Record,
    agreement,
    decode,
    ino_of,
    is_directory,
    partial_record,
    seen_again,
)
from ckptfs.sync.lower import SET_ID, Seen
from ckptfs.sync.scan_stack import Frame, ScanState

if TYPE_CHECKING:
    import os

#: So many small files, and bytes of them, are brought in together.
_SMALL_MAX = 256
_SMALL_BYTES = 1 << 20

# -- the table -------------------------------------------------------------------------------------


class Side(Enum):
    """What became of a name on one side since the last agreement."""

    #: As it was, which includes that it was not there.
    SAME = auto()
    #: Other content, other attributes, another file, or new.
    CHANGED = auto()
    #: It was there and is not any more.
    GONE = auto()


class Action(Enum):
    #: Nothing to bring in. What the store changed waits for the write-back.
    LEAVE = auto()
    #: Take over what the lower directory has.
    BRING_IN = auto()
    #: Both changed: compare, and keep both where they differ.
    COMPARE = auto()
    #: Edited in the lower directory, deleted in the store: bring it in again.
    BRING_BACK = auto()
    #: Deleted in the lower directory, untouched in the store: delete it there.
    DELETE = auto()
    #: Deleted in the lower directory, newer or gone in the store: only forget the agreement.
    FORGET = auto()


_TABLE = {
    (Side.SAME, Side.SAME): Action.LEAVE,
    (Side.SAME, Side.CHANGED): Action.LEAVE,
    (Side.SAME, Side.GONE): Action.LEAVE,
    (Side.CHANGED, Side.SAME): Action.BRING_IN,
    (Side.CHANGED, Side.CHANGED): Action.COMPARE,
    (Side.CHANGED, Side.GONE): Action.BRING_BACK,
    (Side.GONE, Side.SAME): Action.DELETE,
    (Side.GONE, Side.CHANGED): Action.FORGET,
    (Side.GONE, Side.GONE): Action.FORGET,
}


def decide(lower: Side, store: Side) -> Action:
    return _TABLE[lower, store]


def bring_in(state: ScanState, frame: Frame, entry: Entry, record: Record | None) -> None:
    """Do with a changed entry of the lower directory what the table says."""
    state.ingest.on_partial = partial(_note_partial, state, frame, entry)
    inode = state.stored(frame, entry.name)
    action = decide(_lower_side(entry, record), store_side(state, inode, record))
    if action is Action.BRING_IN:
        if inode is None or record is None:
            _add(state, frame, entry)
        else:
            _update(state, frame, entry, inode, record)
    elif action is Action.COMPARE and inode is not None:
        _compare(state, frame, entry, inode, record)
    elif action is Action.BRING_BACK and record is not None:
        _bring_back(state, frame, entry, record)
    elif record is not None:
        if inode is not None and inode.ino == record.ino:
            state.ingest.join_group(entry.seen, inode)
        _note_unchanged(state, frame, entry, record)


def bring_in_new(state: ScanState, frame: Frame, entry: Entry) -> None:
    """`bring_in` in a new directory: neither the store nor the ledger has the name."""
    if not state.importing and not entry.is_small:
        state.ingest.on_partial = partial(_note_partial, state, frame, entry)
    _add(state, frame, entry)


def bring_in_small(state: ScanState, frame: Frame, name: bytes) -> bool:
    """The same for a small file, if a compiled loop can read it; False if not. It waits for others
    of its directory, which `place_small` takes together."""
    read = lower.read_small
    found = None if read is None else read(state.down.fd, name, BLOCK_SIZE)
    if found is None:
        return False
    waiting = state.small
    waiting.append((name, *found))
    state.small_bytes += len(found[1])
    if len(waiting) >= _SMALL_MAX or state.small_bytes >= _SMALL_BYTES:
        place_small(state, frame)
    return True


def place_small(state: ScanState, frame: Frame) -> None:
    """Bring in the small files that wait; all are of this directory."""
    waiting, state.small, state.small_bytes = state.small, [], 0
    if not waiting:
        return
    files = [
        (name, cast("os.stat_result", tuple.__new__(Seen, attributes)), data)
        for name, attributes, data, _ in waiting
    ]
    inodes = state.ingest.place_all(state.place(frame), files)
    state.tally.added += len(files)
    if not state.importing:
        for (name, seen, data), inode, (_, _, _, now_ns) in zip(
            files, inodes, waiting, strict=True
        ):
            value = agreement(seen, inode, digest=digest_of_one(data), now_ns=now_ns)
            state.ledger.put(frame.key, name, value)
    state.ingest.commit_if_large()


def _lower_side(entry: Entry, record: Record | None) -> Side:
    """A doubtful record that matches needs the content read; every other one here differs."""
    if record is None or not record.matches(entry.seen):
        return Side.CHANGED
    same = entry.digest == record.digest and entry.xattrs_digest == record.xattrs
    return Side.SAME if same else Side.CHANGED


def store_side(state: ScanState, inode: Inode | None, record: Record | None) -> Side:
    """What became of a name in the store since the agreement."""
    if record is None:
        return Side.SAME if inode is None else Side.CHANGED
    if inode is None:
        return Side.GONE
    return Side.SAME if state.ingest.untouched(inode, record) else Side.CHANGED


# -- import ----------------------------------------------------------------------------------------


def overwrite(state: ScanState, frame: Frame, entry: Entry) -> None:
    """Import: the entry replaces what the store has under its name, unless that is a directory."""
    present = state.stored(frame, entry.name)
    if present is None:
        _add(state, frame, entry)
    elif present.is_dir:
        _add_beside(state, frame, entry, state.ingest.add)
    elif _is_there(state, entry, present):
        state.tally.unchanged += 1
    else:
        state.ingest.replace(entry, state.place(frame), entry.name, present)
        state.tally.modified += 1


def _is_there(state: ScanState, entry: Entry, present: Inode) -> bool:
    """Whether the store has the very same already, hard links included."""
    same = _is_same(state, entry, present)
    if not same or entry.seen.st_nlink == 1:
        return same and present.nlink == 1
    group = state.ingest.groups.get(entry.identity)
    if group is None:
        state.ingest.join_group(entry.seen, present)
    return group is None or group.ino == present.ino


# -- the ledger ------------------------------------------------------------------------------------


def _note(
    state: ScanState, frame: Frame, entry: Entry, inode: Inode, *, clean: bool = True
) -> None:
    value = agreement(
        entry.seen,
        inode,
        digest=entry.digest,
        xattrs=entry.xattrs_digest,
        clean=clean,
        now_ns=entry.read_ns,
    )
    state.ledger.put(frame.key, entry.name, value)


def _note_link(
    state: ScanState, frame: Frame, entry: Entry, inode: Inode, *, clean: bool = True
) -> None:
    """`_note` for the inode that the store has under the very name."""
    _note(state, frame, entry, inode, clean=clean)
    if clean and (inode.nlink > 1 or entry.seen.st_nlink > 1):
        state.linked.append((frame.key, state.place(frame), entry.name))


def _note_partial(state: ScanState, frame: Frame, entry: Entry, inode: Inode) -> None:
    """Only a part of the content is in the store, and is about to be committed."""
    state.ledger.put(frame.key, entry.name, partial_record(entry.seen, inode))


def _note_unchanged(state: ScanState, frame: Frame, entry: Entry, record: Record) -> None:
    """Record the new attributes; the store has nothing to take over."""
    value = seen_again(
        record,
        entry.seen,
        digest=entry.digest,
        xattrs=entry.xattrs_digest,
        now_ns=entry.read_ns,
    )
    state.ledger.put(frame.key, entry.name, value)
    state.tally.unchanged += 1


# -- changed in the lower directory only -----------------------------------------------------------


def _add(state: ScanState, frame: Frame, entry: Entry) -> None:
    inode = state.ingest.add(entry, state.place(frame), entry.name, new=frame.is_new)
    state.tally.added += 1
    if not state.importing:
        clean = inode.nlink == 1 or _is_same(state, entry, inode)
        _note_link(state, frame, entry, inode, clean=clean)


def _is_same(state: ScanState, entry: Entry, inode: Inode) -> bool:
    """Whether nothing is left to write back. A link may lead to an inode that the store changed."""
    return (
        agrees(entry.seen, inode)
        and entry.digest == state.ingest.digest(inode)
        and entry.xattrs == state.ingest.xattrs(inode)
    )


def _update(state: ScanState, frame: Frame, entry: Entry, inode: Inode, record: Record) -> None:
    ingest = state.ingest
    taken = _replace(state, frame, entry, inode, record)
    changed = taken is not None
    if taken is None:
        inode, given = _take_rights(state, entry, inode, record, store_same=True)
        changed, taken = _rewrite(state, frame, entry, inode)
        changed = changed or given
        if ingest.merge_xattrs(taken, entry.xattrs, record, store_same=True):
            changed = True
        if record.is_partial:
            wanted: Attributes | None = attributes_of(entry.seen)
        else:
            wanted = merged(entry.seen, record, taken, store_same=True, take_mtime=changed)
        taken = ingest.apply_attributes(taken, wanted)
        changed = changed or wanted is not None
    _note_link(state, frame, entry, taken, clean=taken.nlink == 1 or _is_same(state, entry, taken))
    _count(state, changed)


def _replace(
    state: ScanState, frame: Frame, entry: Entry, inode: Inode, record: Record
) -> Inode | None:
    """Give the name another inode, attributes included, if the type changed or the hard links are
    grouped otherwise. None if the inode can stay."""
    ingest, seen = state.ingest, entry.seen
    group = ingest.groups.get(entry.identity) if seen.st_nlink > 1 else None
    if group is not None and group.ino == inode.ino:
        return None
    same_file = record.lower_ino == seen.st_ino
    outranked = group is not None and (group.places is None or not same_file)
    shared = inode.nlink > 1 and not same_file
    other_type = stat.S_IFMT(inode.mode) != stat.S_IFMT(seen.st_mode)
    other_node = not entry.is_file and entry.digest != record.digest
    if outranked or shared or other_type or other_node:
        return ingest.replace(entry, state.place(frame), entry.name, inode)
    return None


def _take_rights(
    state: ScanState, entry: Entry, inode: Inode, record: Record, *, store_same: bool
) -> tuple[Inode, bool]:
    """Give the inode the lower file's owner and mode before its content: an interrupted pass must
    not leave the rights of one file on the bytes of another."""
    if not entry.is_file or _lower_rights(entry) == _rights(inode.mode, inode.uid, inode.gid):
        return inode, False
    wanted = merged(entry.seen, record, inode, store_same=store_same, take_mtime=False)
    if record.is_partial:
        wanted = attributes_of(entry.seen)
    if wanted is None:
        # The lower file could not be given to the store's owner.
        bare = inode.mode & ~SET_ID
        return (
            inode
            if bare == inode.mode
            else state.ingest.apply_attributes(inode, Attributes(mode=bare))
        ), False
    rights = Attributes(mode=wanted.mode, uid=wanted.uid, gid=wanted.gid)
    return state.ingest.apply_attributes(inode, rights), True


def _rewrite(state: ScanState, frame: Frame, entry: Entry, inode: Inode) -> tuple[bool, Inode]:
    """Give the inode the lower file's content; return whether it had another."""
    ingest = state.ingest
    try:
        changed = entry.is_file and ingest.rewrite(entry, inode)
    except OSError:
        # Half of it may be written. The next scan must not take that for an edit.
        _note_partial(state, frame, entry, ingest.fs.getattr(ingest.view, inode.ino))
        raise
    ingest.join_group(entry.seen, inode)
    return changed, ingest.fs.getattr(ingest.view, inode.ino)


def _count(state: ScanState, changed: bool) -> None:
    if changed:
        state.tally.modified += 1
    else:
        state.tally.unchanged += 1


# -- both changed ----------------------------------------------------------------------------------


def _compare(
    state: ScanState, frame: Frame, entry: Entry, inode: Inode, record: Record | None
) -> None:
    """Find out whether both sides really changed, and to what."""
    if stat.S_IFMT(inode.mode) != stat.S_IFMT(entry.seen.st_mode):
        _keep_both(state, frame, entry)
        return
    in_store = state.ingest.digest(inode)
    if record is None:
        if in_store == entry.digest:
            _agree(state, frame, entry, inode, same_content=True)
        else:
            _keep_both(state, frame, entry)
    elif entry.digest == in_store:
        _merge_same_content(state, frame, entry, inode, record)
    elif entry.digest == record.digest and _may_keep_content(entry, inode, record):
        _merge_attributes(state, frame, entry, inode, record, same_content=False)
    elif in_store == record.digest and _may_take_content(entry, inode, record):
        _merge_content(state, frame, entry, inode, record)
    else:
        _keep_both(state, frame, entry)


Rights = tuple[int, int, int]


def _rights(mode: int, uid: int, gid: int) -> Rights:
    """Who owns a file, and with whose rights it runs. These belong to the content: one side's
    rights never go on the other side's bytes, which another user may have written."""
    return uid, gid, mode & SET_ID


def _lower_rights(entry: Entry) -> Rights:
    return _rights(entry.seen.st_mode, entry.seen.st_uid, entry.seen.st_gid)


def _opens_up(mode: int, than: int, entry: Entry, record: Record) -> bool:
    """Whether a mode permits more than another, and another lower file took the name: the mode of
    the one must not open up the other."""
    return entry.seen.st_ino != record.lower_ino and bool(mode & ~than & 0o777)


def _may_keep_content(entry: Entry, inode: Inode, record: Record) -> bool:
    """Whether the store's content may take the lower file's changed attributes."""
    known = (_rights(*record[:3]), _rights(inode.mode, inode.uid, inode.gid))
    taken = entry.seen.st_mode if inode.mode == record.mode else inode.mode
    return _lower_rights(entry) in known and not _opens_up(taken, inode.mode, entry, record)


def _may_take_content(entry: Entry, inode: Inode, record: Record) -> bool:
    """Whether the lower file's content may take the store's changed attributes."""
    stored = _rights(inode.mode, inode.uid, inode.gid)
    known = (_rights(*record[:3]), _lower_rights(entry))
    kept = entry.seen.st_mode if inode.mode == record.mode else inode.mode
    return stored in known and not _opens_up(kept, entry.seen.st_mode, entry, record)


def _merge_same_content(
    state: ScanState, frame: Frame, entry: Entry, inode: Inode, record: Record
) -> None:
    """Both sides have the same digest. An attacker can make digests collide, so the bytes are
    compared before the store's content takes over rights."""
    safe = not entry.is_file or _may_keep_content(entry, inode, record)
    if safe or state.ingest.has_bytes_of(entry, inode):
        _merge_attributes(state, frame, entry, inode, record, same_content=True)
    else:
        _keep_both(state, frame, entry)


def _agree(
    state: ScanState, frame: Frame, entry: Entry, inode: Inode, *, same_content: bool
) -> None:
    """Record the lower entry; as in agreement only if nothing is left to write back."""
    if same_content:
        state.ingest.join_group(entry.seen, inode)
    clean = same_content and _is_same(state, entry, inode)
    _note_link(state, frame, entry, inode, clean=clean)
    state.tally.unchanged += 1


def _merge_attributes(
    state: ScanState,
    frame: Frame,
    entry: Entry,
    inode: Inode,
    record: Record,
    *,
    same_content: bool,
) -> None:
    """The store's content stays; attributes are merged."""
    ingest = state.ingest
    wanted = merged(entry.seen, record, inode, store_same=False, take_mtime=False)
    taken = ingest.merge_xattrs(inode, entry.xattrs, record, store_same=False)
    inode = ingest.apply_attributes(inode, wanted)
    _agree(state, frame, entry, inode, same_content=same_content)
    if taken or wanted is not None:
        state.tally.unchanged -= 1
        state.tally.modified += 1


def _merge_content(
    state: ScanState, frame: Frame, entry: Entry, inode: Inode, record: Record
) -> None:
    """The store changed attributes only: take over the content."""
    ingest = state.ingest
    taken = _replace(state, frame, entry, inode, record)
    if taken is None:
        inode, _ = _take_rights(state, entry, inode, record, store_same=False)
        _, taken = _rewrite(state, frame, entry, inode)
        ingest.merge_xattrs(taken, entry.xattrs, record, store_same=False)
        wanted = merged(entry.seen, record, taken, store_same=False, take_mtime=True)
        taken = ingest.apply_attributes(taken, wanted)
    _note_link(state, frame, entry, taken, clean=_is_same(state, entry, taken))
    state.tally.modified += 1


def _keep_both(state: ScanState, frame: Frame, entry: Entry) -> None:
    """The store keeps the name; the lower entry comes in beside it. The ledger then has the lower
    name for the newcomer, as if the store had moved it there: that is all the write-back needs to
    put the store's version under the name."""
    inode = _add_beside(state, frame, entry, state.ingest.create)
    frame.kept = True
    _note(state, frame, entry, inode)


def _add_beside(
    state: ScanState, frame: Frame, entry: Entry, make: Callable[[Entry, Ino, bytes], Inode]
) -> Inode:
    place = state.place(frame)
    name = state.ingest.free_name(place, entry.name, entry.dir_fd)
    inode = make(entry, place, name)
    state.tally.added += 1
    state.tally.conflict(state.down.path(entry.name), state.ingest.path(place, name))
    return inode


# -- deleted in the store --------------------------------------------------------------------------


def _bring_back(state: ScanState, frame: Frame, entry: Entry, record: Record) -> None:
    """Edited in the lower directory, deleted in the store: the edit wins. Other attributes on the
    same content are no edit."""
    if entry.digest == record.digest and stat.S_IFMT(record.mode) == stat.S_IFMT(
        entry.seen.st_mode
    ):
        _note_unchanged(state, frame, entry, record)
        return
    _add(state, frame, entry)
    kept_as = state.ingest.path(state.place(frame), entry.name)
    state.tally.conflict(state.down.path(entry.name), kept_as)


# -- deleted in the lower directory ----------------------------------------------------------------


def delete_in_store(state: ScanState, frame: Frame, name: bytes, value: bytes) -> None:
    """The ledger has a name that the lower directory no longer has: delete it in the store too, if
    that has not changed it."""
    place = frame.find(state.ingest)
    if not is_directory(value):
        _delete_one(state, frame.key, place, name, value)
        return
    directories = _deleted_directories(state, frame.key, place, name, value)
    for key, where, child, record in reversed(directories):
        _delete_directory(state, key, where, child, record)


def _delete_one(state: ScanState, key: Ino, place: Ino | None, name: bytes, value: bytes) -> None:
    """Delete one entry if the store still has what was agreed; forget it in any case."""
    inode = None if place is None else state.ingest.find(place, name)
    action = decide(Side.GONE, store_side(state, inode, decode(value)))
    if action is Action.DELETE and place is not None and inode is not None:
        state.ingest.remove(place, name, inode)
        state.tally.deleted += 1
    state.ledger.forget(key, name)
    state.ingest.commit_if_large()


def _deleted_directories(
    state: ScanState, key: Ino, place: Ino | None, name: bytes, value: bytes
) -> list[tuple[Ino, Ino | None, bytes, bytes]]:
    """The directories of a deleted tree, outermost first; deletes their other entries."""
    found = [(key, place, name, value)]
    for _, outer_place, outer_name, outer_value in found:
        inner_key = ino_of(outer_value)
        inode = None if outer_place is None else state.ingest.find(outer_place, outer_name)
        # A directory that the store moved or replaced stays: only its records are forgotten.
        inner_place = inode.ino if inode is not None and inode.ino == inner_key else None
        for child, record in state.ledger.children(inner_key).items():
            if is_directory(record):
                found.append((inner_key, inner_place, child, record))
            else:
                _delete_one(state, inner_key, inner_place, child, record)
    return found


def _delete_directory(
    state: ScanState, key: Ino, place: Ino | None, name: bytes, value: bytes
) -> None:
    state.ledger.forget(key, name)
    if place is None:
        return
    inode = state.ingest.find(place, name)
    record = decode(value)
    if inode is None or record is None or inode.ino != record.ino or not inode.is_dir:
        return
    if record.stored_ctime_ns == NEVER:
        # The store's own, not written back yet.
        return
    if next(iter(state.ingest.fs.entries(state.ingest.view, inode.ino)), None) is None:
        state.ingest.remove(place, name, inode)
        state.tally.deleted += 1
