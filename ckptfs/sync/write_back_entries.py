"""Write-back of one name: a file, link or node into the lower directory, or a deletion there.

Decides between leaving the lower file as it is, giving it other attributes, linking it to another
name of the same inode, and writing it anew under a temporary name. Compares every entry with the
ledger before it is replaced or removed: what the ledger does not have, or has otherwise, stays,
with the directories above it, until a scan has brought it in. The walk is `write_back`'s.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from functools import partial

from ckptfs.model import Ino, Inode
from ckptfs.sync import content, lower, materialise
from ckptfs.sync.intent_log import TEMP_PREFIX
from ckptfs.sync.ledger import NEVER, Record, decode, ino_of, is_directory
from ckptfs.sync.lower import Descent
from ckptfs.sync.materialise import FirstLink
from ckptfs.sync.write_back_state import Stale, WriteBackState


def put_entry(
    state: WriteBackState,
    key: Ino,
    name: bytes,
    inode: Inode,
    record: Record | None,
    prepare: Callable[[], None],
    *,
    new: bool,
) -> None:
    """Write one name back. Calls ``prepare`` before it changes anything in the directory. ``new``:
    this write-back made the directory, so it is empty."""
    seen = None if new else lower.find(state.down.fd, name)
    first = state.first_links.get(inode.ino)
    if _is_current(state, name, inode, record, seen, first):
        state.tally.unchanged += 1
        return
    if first is not None and seen is not None and lower.identity(seen) == first.identity:
        _note_link(state, key, name, inode, record, first)
        return
    prepare()
    if record is not None and record.is_dir and seen is not None:
        clear_directory(state, state.down, name, record, seen)
        state.defer(key, name, None)
        record = seen = None
    _require_noted(state, record, seen)
    if first is not None and _link(state, first, name, seen):
        _note_link(state, key, name, inode, record, first)
    elif record is None or seen is None:
        _write(state, key, name, inode, None)
        state.tally.added += 1
    else:
        _change(state, key, name, inode, record, seen)


def _is_current(
    state: WriteBackState,
    name: bytes,
    inode: Inode,
    record: Record | None,
    seen: os.stat_result | None,
    first: FirstLink | None,
) -> bool:
    """Whether one of an inode's several names is as it should be, and links to the same inode."""
    if record is None or seen is None or not record.is_of(inode) or not record.matches(seen):
        return False
    if first is None:
        if not _may_keep(state, inode, seen):
            return False
        state.remember(name, inode, seen)
        return True
    return lower.identity(seen) == first.identity


def _require_noted(
    state: WriteBackState, record: Record | None, seen: os.stat_result | None
) -> None:
    if (record is None) != (seen is None):
        raise Stale
    if record is not None and seen is not None and not state.as_noted(record, seen):
        raise Stale


# -- hard links ------------------------------------------------------------------------------------


def _note_link(
    state: WriteBackState,
    key: Ino,
    name: bytes,
    inode: Inode,
    record: Record | None,
    first: FirstLink,
) -> None:
    """The name is a link to a lower file that was written back before."""
    if record is None:
        state.tally.added += 1
    elif record.is_of(inode):
        state.tally.unchanged += 1
    else:
        state.tally.modified += 1
    state.note(key, name, inode, first.identity, state.digest(inode), state.xattrs_digest(inode))


def _link(
    state: WriteBackState, first: FirstLink, name: bytes, seen: os.stat_result | None
) -> bool:
    """Make the name a link to another name of the inode; False where only a copy is possible."""
    link = partial(materialise.link_to, first, state.down.root_fd, state.down.fd)
    try:
        temp, made = state.make_temp(link)
    except OSError as error:
        if error.errno == errno.ESTALE:
            raise Stale from error
        raise
    if made is None:
        return False
    state.note_own_change(made)
    state.note_own_change(seen)
    state.swap_in(temp, name)
    return True


# -- one file --------------------------------------------------------------------------------------


def _change(
    state: WriteBackState, key: Ino, name: bytes, inode: Inode, record: Record, seen: os.stat_result
) -> None:
    """A lower file that the store has changed since, or that has several names."""
    same_type = stat.S_IFMT(inode.mode) == stat.S_IFMT(seen.st_mode)
    # Names that this pass does not come to may be those of another file in the store.
    others = state.dirty is not None and seen.st_nlink > inode.nlink
    may_stay = (
        same_type
        and not others
        and _may_keep(state, inode, seen)
        and not _needs_new(inode, record, seen)
    )
    if may_stay and state.digest(inode) == record.digest:
        # The digest took time: `_apply_attributes` checks the lower file again.
        changed = _apply_attributes(state, name, inode, record)
        if changed is not None:
            made = lower.identity(seen)
            state.note(key, name, inode, made, record.digest, state.xattrs_digest(inode))
            state.tally.modified += changed
            state.tally.unchanged += not changed
            return
    _write(state, key, name, inode, seen)
    state.tally.modified += 1


def _needs_new(inode: Inode, record: Record, seen: os.stat_result) -> bool:
    """Whether a file has to be written anew to get its attributes. Another user may still have the
    lower file open, or mapped. So a file that runs with another's rights, or gets another owner,
    must be an inode that only we ever had. So must a file with a wider mode, if the lower file
    never was the store's: a user may have put a file there that is closed to that user."""
    if not inode.is_file:
        return False
    other_owner = (inode.uid, inode.gid) != (seen.st_uid, seen.st_gid)
    gets_set_id = inode.mode != seen.st_mode and bool(inode.mode & lower.SET_ID)
    opens_up = bool(inode.mode & ~seen.st_mode & 0o777) and record.stored_ctime_ns == NEVER
    # Only root can change the owner, whichever way the file is written.
    return gets_set_id or opens_up or (other_owner and os.geteuid() == 0)


def _may_keep(state: WriteBackState, inode: Inode, seen: os.stat_result) -> bool:
    """Whether the lower file may stay: not if its names are different files in the store."""
    if seen.st_nlink == 1:
        return True
    claimed = state.claims.setdefault((seen.st_dev, seen.st_ino), inode.ino)
    return inode.nlink > 1 and claimed == inode.ino


def _apply_attributes(
    state: WriteBackState, name: bytes, inode: Inode, record: Record
) -> bool | None:
    """Give the lower file its attributes, by descriptor; return whether it had others, or None if
    the directory's owner may not change them: then the file has to be written anew."""
    xattrs = None
    if inode.is_file and state.xattrs_digest(inode) != record.xattrs:
        xattrs = content.xattrs_stored(state.fs, state.view, inode)
    fd, now = lower.pin(state.down.fd, name)
    try:
        if not state.as_noted(record, now):
            raise Stale
        directory = os.fstat(state.down.fd)
        if lower.is_other(directory) and now.st_uid != directory.st_uid:
            return None
        with lower.acting_for(directory):
            changed = _apply_pinned(fd, inode, xattrs, now)
        if changed:
            state.note_own_change(lower.fstat(fd))
        return changed
    except OSError as error:
        if error.errno != errno.EACCES:
            raise
        return None  # its owner may not write to it, and so not set extended attributes
    finally:
        os.close(fd)


def _apply_pinned(
    fd: int, inode: Inode, xattrs: dict[bytes, bytes] | None, now: os.stat_result
) -> bool:
    """Runs with another's rights, so it must not read the store."""
    if xattrs is not None:
        lower.set_user_xattrs(lower.by_descriptor(fd), xattrs)
    given = (now.st_mode, now.st_uid, now.st_gid, now.st_mtime_ns)
    if (inode.mode, inode.uid, inode.gid, inode.mtime_ns) == given:
        return xattrs is not None
    materialise.apply_attributes_pinned(fd, inode)
    return True


def _write(
    state: WriteBackState, key: Ino, name: bytes, inode: Inode, seen: os.stat_result | None
) -> None:
    """Write the file under a temporary name, and rename it when it is complete."""
    temp, written = state.make_temp(
        partial(materialise.write_entry, state.fs, state.view, inode, state.down.fd)
    )
    state.note_own_change(seen)
    state.swap_in(temp, name)
    state.wrote(inode.size if inode.is_file else 0)
    state.note(key, name, inode, written.identity, written.digest, written.xattrs)
    if not written.whole:
        state.tally.skip(state.down.path(name), materialise.NO_SET_ID)


# -- deletions -------------------------------------------------------------------------------------


def remove(state: WriteBackState, key: Ino, name: bytes) -> None:
    """Remove an entry of the current directory, if the ledger still has it there."""
    record = state.ledger.get(key, name)
    if record is None or (record.is_dir and record.ino in state.moved):
        # It was moved to its new place, or will be.
        return
    seen = lower.find(state.down.fd, name)
    if seen is not None:
        if record.is_dir:
            clear_directory(state, state.down, name, record, seen)
        else:
            _unlink(state, state.down.fd, name, record, seen)
    state.defer(key, name, None)


def _unlink(
    state: WriteBackState, fd: int, name: bytes, record: Record, seen: os.stat_result
) -> None:
    if not state.as_noted(record, seen):
        raise Stale
    state.note_own_change(seen)
    lower.unlink(fd, name)
    state.tally.deleted += 1


class _Frame:
    """A lower directory that is being emptied."""

    __slots__ = ("key", "name", "waiting")

    def __init__(self, name: bytes, key: Ino) -> None:
        self.name = name
        self.key = key
        self.waiting: list[tuple[bytes, Record]] = []


def clear_directory(
    state: WriteBackState, down: Descent, name: bytes, record: Record, seen: os.stat_result
) -> None:
    """Remove a directory of ``down`` with all that the ledger has in it; `Stale` if more is there.

    Directories in it that the store has moved elsewhere are parked. The caller forgets the record
    of the directory itself.
    """
    if record.ino not in state.moved and not stat.S_ISDIR(seen.st_mode):
        raise Stale
    depth = len(down.names)
    try:
        if record.ino in state.moved:
            state.park(record.ino)
            return
        complete = _clear(state, down, name, record)
    except OSError as error:
        if error.errno == errno.ESTALE:
            raise Stale from error
        raise
    finally:
        down.leave_to(depth)
    if not complete:
        raise Stale


def _clear(state: WriteBackState, down: Descent, name: bytes, record: Record) -> bool:
    """Empty and remove a directory; return whether all of it is gone."""
    complete = True
    frames = [_go_in(state, down, name, record)]
    while frames:
        frame = frames[-1]
        if frame.waiting:
            frames.append(_go_in(state, down, *frame.waiting.pop()))
            continue
        complete = _empty(state, down, frame) and complete
        frames.pop()
        down.leave()
        complete = _remove_empty(state, down, frame.name) and complete
        if frames and complete:
            state.defer(frames[-1].key, frame.name, None)
    return complete


def _go_in(state: WriteBackState, down: Descent, name: bytes, of: Record) -> _Frame:
    """Enter a directory and find the directories in it; park those that the store has moved."""
    seen = down.enter_known(name, of.is_directory)
    if seen.st_mode & 0o300 != 0o300 and lower.needs_mode(seen):
        with contextlib.suppress(OSError):
            os.fchmod(down.fd, 0o700)
    frame = _Frame(name, of.ino)
    for inner, value in state.ledger.children(of.ino).items():
        if not is_directory(value):
            continue
        if ino_of(value) in state.moved:
            state.park(ino_of(value))
            continue
        record, there = decode(value), lower.find(down.fd, inner)
        if record is not None and there is not None and stat.S_ISDIR(there.st_mode):
            frame.waiting.append((inner, record))
    return frame


def _empty(state: WriteBackState, down: Descent, frame: _Frame) -> bool:
    """Remove the files of a directory; return whether all of them are gone."""
    complete = True
    known = state.ledger.children(frame.key)
    for name in lower.names_in(down.fd):
        value = known.pop(name, None)
        record = None if value is None else decode(value)
        seen = lower.find(down.fd, name)
        if seen is None:
            continue
        if value is None and name.startswith(TEMP_PREFIX):
            lower.discard(down.fd, name)
        elif record is None or record.is_dir or not state.as_noted(record, seen):
            complete = False
        else:
            _unlink(state, down.fd, name, record, seen)
            state.defer(frame.key, name, None)
    for name in known:
        state.defer(frame.key, name, None)
    return complete


def _remove_empty(state: WriteBackState, down: Descent, name: bytes) -> bool:
    try:
        lower.rmdir(down.fd, name)
    except OSError:
        return False
    state.tally.deleted += 1
    return True
