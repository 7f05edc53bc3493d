"""Write-back: bring what changed in the store into the lower directory.

Walks the head beside the ledger, where the head may have changed since both sides agreed
(`agreed`), and touches the lower directory only where the two differ. Before it changes an entry it
checks that the entry is what the ledger says; if it is not, a scan decides first. Files are written
under a temporary name and renamed, so a user's name never has half a file.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from functools import partial

from ckptfs.fs import Filesystem
from ckptfs.model import ROOT_INO, Inode
from ckptfs.sync import agreed, intent_log, lower, materialise
from ckptfs.sync.content import digest_of_xattrs, xattrs_stored
from ckptfs.sync.ledger import (
    NEVER,
    ROOT_PLACE,
    STORED_SLICE,
    Ledger,
    Record,
    agreement,
    decode,
    encode,
    ino_of,
    stored,
    wait_for_tick,
)
from ckptfs.sync.lower import descend, traverse
from ckptfs.sync.results import (
    Skipped,
    SyncResult,
    Tally,
    Watcher,
    WriteBackResult,
    is_fatal,
)
from ckptfs.sync.scan import scan
from ckptfs.sync.write_back_entries import clear_directory, put_entry, remove
from ckptfs.sync.write_back_state import Stale, WriteBackState

log = logging.getLogger(__name__)

_STALE = "it changed in the lower directory while it was being written back"


def write_back(fs: Filesystem, dir_fd: int, *, progress: Watcher | None = None) -> WriteBackResult:
    """Make the lower directory what the head is, as far as it can be, and commit."""
    first, stale = _push(fs, dir_fd, progress)
    if not stale:
        return first
    # The lower directory changed under the mount: let the decision table have it, then try again.
    scanned = scan(fs, dir_fd)
    second, stale = _push(fs, dir_fd, progress)
    return _joined(first, scanned, second, stale)


def push(
    fs: Filesystem, dir_fd: int, *, progress: Watcher | None = None
) -> tuple[WriteBackResult, bool]:
    """The same without a scan: changes in the lower directory are left for a `write_back`; also
    returns whether there were any. Nothing in the head changes, so it may be mounted."""
    result, stale = _push(fs, dir_fd, progress)
    return result, bool(stale)


def _joined(
    first: SyncResult, scanned: SyncResult, second: SyncResult, stale: list[bytes]
) -> SyncResult:
    left = [Skipped(path, _STALE) for path in stale]
    return second._replace(
        added=first.added + second.added,
        modified=first.modified + second.modified,
        deleted=first.deleted + second.deleted,
        bytes=first.bytes + second.bytes,
        conflicts=scanned.conflicts,
        skipped=tuple(dict.fromkeys((*scanned.skipped, *second.skipped, *left))),
    )


def _push(fs: Filesystem, dir_fd: int, progress: Watcher | None) -> tuple[SyncResult, list[bytes]]:
    ledger = Ledger(fs.store)
    fs.flush()
    wait_for_tick(fs)
    with descend(dir_fd) as down:
        intent_log.recover(fs, ledger, down.root_fd)
        dirty = _dirty(fs, ledger)
        tally = Tally(progress, fs.head.inodes if dirty is None else dirty.size)
        state = WriteBackState(fs, ledger, down, tally, dirty)
        _walk(state)
        state.finish()
    if state.stale or tally.skipped:
        agreed.forget(fs)
    else:
        # The ledger is that of this head now. On the way from an older note to a head that a
        # restore branches off, what was written back here would not be met.
        agreed.note(fs)
    fs.commit()
    return tally.result(), state.stale


def _dirty(fs: Filesystem, ledger: Ledger) -> agreed.Dirty | None:
    """What the store may have changed since both sides agreed; None if that is not known."""
    try:
        if intent_log.was_interrupted(fs):
            raise agreed.Unknown("a write-back was interrupted")
        return agreed.find(fs, ledger, fs.store.metadata.agreed())
    except agreed.Unknown as reason:
        log.info("comparing the whole workspace with the lower directory: %s", reason)
        return None


# -- the walk --------------------------------------------------------------------------------------


class Frame:
    """A directory of the store that is being written back."""

    __slots__ = (
        "deleted",
        "inode",
        "is_new",
        "name",
        "old",
        "parent",
        "ready",
        "trusted",
        "waiting",
        "whole",
    )

    def __init__(
        self,
        parent: Frame | None,
        name: bytes,
        inode: Inode,
        old: Record | None,
        *,
        new: bool = False,
        whole: bool = False,
    ) -> None:
        """``whole``: every entry has to be looked at."""
        self.parent = parent
        self.name = name
        self.inode = inode
        self.old = old
        #: This write-back made it in the lower directory.
        self.is_new = new
        self.whole = new or whole
        #: Directories in it that are still to be entered: name, inode, record.
        self.waiting: list[tuple[bytes, Inode, bytes | None]] = []
        #: Names that the ledger has and the store no longer has.
        self.deleted: list[bytes] = []
        #: Prepared for changes in it. They move its times, so its attributes come at the end.
        self.ready = False
        #: The lower directory's attributes are as recorded: they may be overwritten.
        self.trusted = True


def _walk(state: WriteBackState) -> None:
    root = Frame(None, b"", state.fs.getattr(state.view, ROOT_INO), state.ledger.get(*ROOT_PLACE))
    _check_attributes(state, root)
    traverse(
        root,
        visit=partial(_list, state),
        enter=partial(_enter, state),
        finish=partial(_finish, state),
        leave=state.down.leave,
    )


def _list(state: WriteBackState, frame: Frame) -> None:
    """Write back the files of a directory; the directories in it wait."""
    directory, names = frame.inode.ino, _names(state, frame)
    known = state.ledger.children(directory, names)
    tally = state.tally
    for name, inode in agreed.entries(state.fs, directory, names):
        value = known.pop(name, None)
        if stat.S_ISDIR(inode.mode):
            if _is_dirty(state, frame, inode, value):
                frame.waiting.append((name, inode, value))
        elif value is not None and value[STORED_SLICE] == stored(inode) and inode.nlink == 1:
            tally.unchanged += 1
        else:
            _put(state, frame, name, inode, value)
        tally.step()
    frame.deleted = list(known)


def _names(state: WriteBackState, frame: Frame) -> set[bytes] | None:
    """The names of a directory to look at; None for all."""
    if state.dirty is None or frame.whole:
        return None
    return state.dirty.names.get(frame.inode.ino)


def _is_dirty(state: WriteBackState, frame: Frame, inode: Inode, value: bytes | None) -> bool:
    """Whether there is anything to do in a directory, or with it."""
    return (
        state.dirty is None
        or frame.is_new
        or inode.ino in state.dirty.names
        or value is None
        or value[STORED_SLICE] != stored(inode)
    )


def _put(
    state: WriteBackState, frame: Frame, name: bytes, inode: Inode, value: bytes | None
) -> None:
    """A file, link or node that is new or changed in the store, or has several names."""
    try:
        record = None if value is None else decode(value)
        prepare = partial(_prepare, state, frame)
        put_entry(state, frame.inode.ino, name, inode, record, prepare, new=frame.is_new)
    except Stale:
        state.stale.append(state.down.path(name))
    except OSError as error:
        _skip(state, name, error)
    state.flush_if_large()


def _skip(state: WriteBackState, name: bytes, error: OSError) -> None:
    if is_fatal(error):
        error.filename = state.down.path(name)  # relative to the workspace
        raise error
    state.tally.skip(state.down.path(name), error)


def _prepare(state: WriteBackState, frame: Frame) -> None:
    """Make sure that we may change entries of the current directory."""
    if frame.ready:
        return
    frame.ready = True
    intent_log.begin(state.fs)
    seen = os.fstat(state.down.fd)
    mode = stat.S_IMODE(seen.st_mode)
    if mode & 0o300 != 0o300 and lower.needs_mode(seen):
        # A read-only directory of the user's own, as package caches have them.
        os.fchmod(state.down.fd, mode | 0o700)


# -- directories -----------------------------------------------------------------------------------


def _enter(
    state: WriteBackState, frame: Frame, name: bytes, inode: Inode, value: bytes | None
) -> Frame | None:
    """Make sure that the lower directory has the directory, and enter it; None if it cannot."""
    try:
        record = _ensure_directory(
            state, frame, name, inode, None if value is None else decode(value)
        )
        if record is None:
            _enter_made(state, frame, name, inode)
        else:
            state.down.enter_known(name, record.is_directory)
    except Stale:
        state.stale.append(state.down.path(name))
        return None
    except OSError as error:
        if error.errno == errno.ESTALE:
            state.stale.append(state.down.path(name))
        else:
            _skip(state, name, error)
        return None
    # What the ledger has of another directory was that one's: its entries have to be compared.
    other = value is None or ino_of(value) != inode.ino
    inner = Frame(frame, name, inode, record, new=record is None, whole=other)
    _check_attributes(state, inner)
    return inner


def _enter_made(state: WriteBackState, frame: Frame, name: bytes, inode: Inode) -> None:
    made, key = state.down.enter_new(name), frame.inode.ino
    # Before anything in it: every record of the ledger must be reachable from its root.
    state.defer(key, name, agreement(made, inode, clean=False))
    state.places.put(inode.ino, (key, name))
    state.tally.added += 1


def _ensure_directory(
    state: WriteBackState, frame: Frame, name: bytes, inode: Inode, record: Record | None
) -> Record | None:
    """Make sure that the directory stands under its name; return its record, None if it is new."""
    seen = lower.find(state.down.fd, name)
    if (record is None) != (seen is None):
        raise Stale
    if record is None or seen is None:
        return _make_or_move(state, frame, name, inode)
    if not record.is_dir:
        _prepare(state, frame)
        remove(state, frame.inode.ino, name)
        return _make_or_move(state, frame, name, inode)
    if not stat.S_ISDIR(seen.st_mode):
        raise Stale
    if record.ino == inode.ino:
        return record
    moved = record.ino in state.moved or inode.ino in state.moved
    # Root's own directory does not become another user's with what is in it.
    if moved or (os.geteuid() == 0 and inode.uid != record.uid):
        _prepare(state, frame)
        clear_directory(state, state.down, name, record, seen)
        state.defer(frame.inode.ino, name, None)
        return _make_or_move(state, frame, name, inode)
    return _adopt(state, frame, name, inode, record)


def _adopt(
    state: WriteBackState, frame: Frame, name: bytes, inode: Inode, record: Record
) -> Record:
    """The store has a new directory in the place of a deleted one: the lower directory becomes the
    new one, and is then compared name by name."""
    state.ledger.adopt(record.ino, inode.ino)
    adopted = record._replace(ino=inode.ino, stored_ctime_ns=NEVER)
    state.ledger.put(frame.inode.ino, name, encode(adopted))
    state.places.forget(record.ino)
    state.places.put(inode.ino, (frame.inode.ino, name))
    return adopted


def _make_or_move(state: WriteBackState, frame: Frame, name: bytes, inode: Inode) -> Record | None:
    """Make the directory under a free name, or move it there from its old place."""
    _prepare(state, frame)
    key = frame.inode.ino
    if inode.ino in state.moved and _move(state, frame, name, inode):
        state.tally.modified += 1
        return state.ledger.get(key, name)
    lower.make_directory(state.down.fd, name, inode.uid)
    return None


def _move(state: WriteBackState, frame: Frame, name: bytes, inode: Inode) -> bool:
    if not state.is_in_lower(inode.ino):
        state.forget_moved(inode.ino)
        return False
    try:
        state.move_here(inode.ino, frame.inode.ino, name)
    except OSError:
        # Some file systems cannot rename directories: remove it there, and copy it here.
        state.remove_moved(inode.ino, clear_directory)
        return False
    return True


def _check_attributes(state: WriteBackState, frame: Frame) -> None:
    seen, old = lower.fstat(state.down.fd), frame.old
    if old is not None and (seen.st_mode, seen.st_uid, seen.st_gid) != (old.mode, old.uid, old.gid):
        frame.trusted = False
        state.stale.append(state.down.path())


def _finish(state: WriteBackState, frame: Frame) -> None:
    """All entries are written: remove what the store deleted, then apply the attributes."""
    for name in frame.deleted:
        try:
            _prepare(state, frame)
            remove(state, frame.inode.ino, name)
        except Stale:
            state.stale.append(state.down.path(name))
        except OSError as error:
            _skip(state, name, error)
    old, inode = frame.old, frame.inode
    if not frame.trusted or (old is not None and old.is_of(inode) and not frame.ready):
        return
    try:
        _apply_attributes(state, frame)
    except OSError as error:
        if is_fatal(error):
            raise
        state.tally.skip(state.down.path(), error)
    state.flush_if_large()


def _apply_attributes(state: WriteBackState, frame: Frame) -> None:
    old, inode, fd = frame.old, frame.inode, state.down.fd
    xattrs = xattrs_stored(state.fs, state.view, inode)
    digest = digest_of_xattrs(xattrs)
    materialise.apply_attributes(state.fs, state.view, inode, fd)
    if old is not None and old.xattrs != digest:
        lower.set_user_xattrs(fd, xattrs)
        os.utime(fd, ns=(inode.atime_ns, inode.mtime_ns))
    if old is not None and (inode.mode, inode.uid, inode.gid) != (old.mode, old.uid, old.gid):
        state.tally.modified += 1
    place = ROOT_PLACE if frame.parent is None else (frame.parent.inode.ino, frame.name)
    state.defer(*place, agreement(lower.fstat(fd), inode, xattrs=digest))
