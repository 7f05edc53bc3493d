"""Write-back: bring what changed in the store into the lower directory.

Walks the head beside the ledger and touches the lower directory only where they differ. Before it
changes an entry it makes sure that the entry is what the ledger says; if someone changed it
meanwhile, a scan decides first. Files are written under a temporary name and renamed, so that under
a user's name there is never half a file.
"""

from __future__ import annotations

import errno
import os
import stat
from functools import partial

from ckptfs.fs import Filesystem
from ckptfs.model import ROOT_INO, Inode
from ckptfs.sync import credentials, lay, lower, moves
from ckptfs.sync.content import digest_of_xattrs
from ckptfs.sync.descent import descend
from ckptfs.sync.ledger import (
    NEVER,
    ROOT_PLACE,
    STORED_SLICE,
    Ledger,
    Record,
    agreement,
    decode,
    encode,
    stored,
)
from ckptfs.sync.outlet import Late, Outlet
from ckptfs.sync.put import put_leaf
from ckptfs.sync.removal import clear_directory, remove
from ckptfs.sync.results import (
    Skipped,
    SyncResult,
    Tally,
    Watcher,
    WriteBackResult,
    is_fatal,
)
from ckptfs.sync.scan import scan
from ckptfs.sync.ticks import next_tick
from ckptfs.sync.traversal import traverse

_LATE = "it changed below while it was being written back"


def write_back(fs: Filesystem, dir_fd: int, *, progress: Watcher | None = None) -> WriteBackResult:
    """Make the lower directory what the head is, as far as it can be, and commit."""
    first, late = _push(fs, dir_fd, progress)
    if not late:
        return first
    # Something changed below under the mount: let the decision table have it, then try again.
    scanned = scan(fs, dir_fd)
    second, late = _push(fs, dir_fd, progress)
    return _joined(first, scanned, second, late)


def push(
    fs: Filesystem, dir_fd: int, *, progress: Watcher | None = None
) -> tuple[WriteBackResult, bool]:
    """The same without a scan: what changed below meanwhile is left for a `write_back`. Also says
    whether anything was. Nothing in the head changes, so it may be mounted."""
    result, late = _push(fs, dir_fd, progress)
    return result, bool(late)


def _joined(
    first: SyncResult, scanned: SyncResult, second: SyncResult, late: list[bytes]
) -> SyncResult:
    left = [Skipped(path, _LATE) for path in late]
    return second._replace(
        added=first.added + second.added,
        modified=first.modified + second.modified,
        deleted=first.deleted + second.deleted,
        bytes=first.bytes + second.bytes,
        conflicts=scanned.conflicts,
        skipped=tuple(dict.fromkeys((*scanned.skipped, *second.skipped, *left))),
    )


def _push(fs: Filesystem, dir_fd: int, progress: Watcher | None) -> tuple[SyncResult, list[bytes]]:
    tally = Tally(progress, fs.head.inodes)
    ledger = Ledger(fs.store)
    fs.flush()
    next_tick(fs)
    with descend(dir_fd) as down:
        moves.recover(fs, ledger, down.root_fd)
        out = Outlet(fs, ledger, down, tally)
        _walk(out)
        out.finish()
    fs.commit()
    return tally.result(), out.late


# -- the walk --------------------------------------------------------------------------------------


class Frame:
    """One directory of the store that is being brought down."""

    __slots__ = (
        "doomed",
        "fresh",
        "inode",
        "name",
        "old",
        "parent",
        "ready",
        "trusted",
        "waiting",
    )

    def __init__(
        self,
        parent: Frame | None,
        name: bytes,
        inode: Inode,
        old: Record | None,
        *,
        fresh: bool = False,
    ) -> None:
        self.parent = parent
        self.name = name
        self.inode = inode
        self.old = old
        #: Made below by this write-back.
        self.fresh = fresh
        #: Directories in it that are still to be gone into: name, inode, record.
        self.waiting: list[tuple[bytes, Inode, bytes | None]] = []
        #: Names that the ledger has and the store has not.
        self.doomed: list[bytes] = []
        #: Prepared for changes in it; they move its times, so it must be dressed at the end.
        self.ready = False
        #: Its attributes below are what the ledger says: they may be overwritten.
        self.trusted = True


def _walk(out: Outlet) -> None:
    root = Frame(None, b"", out.fs.getattr(out.view, ROOT_INO), out.ledger.get(*ROOT_PLACE))
    _check_attributes(out, root)
    traverse(
        root,
        look=partial(_list, out),
        enter=partial(_enter, out),
        finish=partial(_finish, out),
        leave=out.down.leave,
    )


def _list(out: Outlet, frame: Frame) -> None:
    """Look at every entry of a directory: files are done with at once, directories wait."""
    known = out.ledger.children(frame.inode.ino)
    tally = out.tally
    for name, inode in out.fs.entries(out.view, frame.inode.ino):
        value = known.pop(name, None)
        if stat.S_ISDIR(inode.mode):
            frame.waiting.append((name, inode, value))
        elif value is not None and value[STORED_SLICE] == stored(inode) and inode.nlink == 1:
            tally.unchanged += 1
        else:
            _put(out, frame, name, inode, value)
        tally.step()
    frame.doomed = list(known)


def _put(out: Outlet, frame: Frame, name: bytes, inode: Inode, value: bytes | None) -> None:
    """A file, link or node that is new or changed in the store, or has several names."""
    try:
        record = None if value is None else decode(value)
        prepare = partial(_prepare, out, frame)
        put_leaf(out, frame.inode.ino, name, inode, record, prepare, fresh=frame.fresh)
    except Late:
        out.late.append(out.down.path(name))
    except OSError as error:
        _skip(out, name, error)
    out.flush_if_large()


def _skip(out: Outlet, name: bytes, error: OSError) -> None:
    if is_fatal(error):
        error.filename = out.down.path(name)  # relative to the workspace
        raise error
    out.tally.skip(out.down.path(name), error)


def _prepare(out: Outlet, frame: Frame) -> None:
    """Make sure that we may change entries of the directory we are in."""
    if frame.ready:
        return
    frame.ready = True
    moves.begin(out.fs)
    seen = os.fstat(out.down.fd)
    mode = stat.S_IMODE(seen.st_mode)
    if mode & 0o300 != 0o300 and credentials.needs_mode(seen):
        # A read-only directory of the user's own, as package caches have them.
        os.fchmod(out.down.fd, mode | 0o700)


# -- directories -----------------------------------------------------------------------------------


def _enter(
    out: Outlet, frame: Frame, name: bytes, inode: Inode, value: bytes | None
) -> Frame | None:
    """Make sure that the directory stands below, and go into it; None if that cannot be."""
    try:
        record = _stand(out, frame, name, inode, None if value is None else decode(value))
        if record is None:
            _enter_made(out, frame, name, inode)
        else:
            out.down.enter_known(name, record.is_directory)
    except Late:
        out.late.append(out.down.path(name))
        return None
    except OSError as error:
        if error.errno == errno.ESTALE:
            out.late.append(out.down.path(name))
        else:
            _skip(out, name, error)
        return None
    inner = Frame(frame, name, inode, record, fresh=record is None)
    _check_attributes(out, inner)
    return inner


def _enter_made(out: Outlet, frame: Frame, name: bytes, inode: Inode) -> None:
    made, key = out.down.enter_new(name), frame.inode.ino
    # Before anything in it: no record may stand in the ledger that cannot be reached from its root.
    out.owe(key, name, agreement(made, inode, clean=False))
    out.places[inode.ino] = (key, name)
    out.tally.added += 1


def _stand(
    out: Outlet, frame: Frame, name: bytes, inode: Inode, record: Record | None
) -> Record | None:
    """Let the lower directory stand under its name; return the record it then has."""
    seen = lower.look(out.down.fd, name)
    if (record is None) != (seen is None):
        raise Late
    if record is None or seen is None:
        return _bring(out, frame, name, inode)
    if not record.is_dir:
        _prepare(out, frame)
        remove(out, frame.inode.ino, name)
        return _bring(out, frame, name, inode)
    if not stat.S_ISDIR(seen.st_mode):
        raise Late
    if record.ino == inode.ino:
        return record
    moved = record.ino in out.moved or inode.ino in out.moved
    # A directory that root had for itself does not become another's with what is in it.
    if moved or (os.geteuid() == 0 and inode.uid != record.uid):
        _prepare(out, frame)
        clear_directory(out, out.down, name, record, seen)
        out.owe(frame.inode.ino, name, None)
        return _bring(out, frame, name, inode)
    return _adopt(out, frame, name, inode, record)


def _adopt(out: Outlet, frame: Frame, name: bytes, inode: Inode, record: Record) -> Record:
    """The store has a new directory in the place of a deleted one: what stands below becomes it,
    and is then compared name by name."""
    out.ledger.adopt(record.ino, inode.ino)
    adopted = record._replace(ino=inode.ino, stored_ctime_ns=NEVER)
    out.ledger.put(frame.inode.ino, name, encode(adopted))
    out.places.pop(record.ino, None)
    out.places[inode.ino] = (frame.inode.ino, name)
    return adopted


def _bring(out: Outlet, frame: Frame, name: bytes, inode: Inode) -> Record | None:
    """Make the lower directory under a free name, or move it there from where it stands."""
    _prepare(out, frame)
    key = frame.inode.ino
    if inode.ino in out.moved and _move(out, frame, name, inode):
        out.tally.modified += 1
        return out.ledger.get(key, name)
    lower.make_directory(out.down.fd, name, inode.uid)
    return None


def _move(out: Outlet, frame: Frame, name: bytes, inode: Inode) -> bool:
    if not out.is_in_lower(inode.ino):
        out.forget_moved(inode.ino)
        return False
    try:
        out.move_here(inode.ino, frame.inode.ino, name)
    except OSError:
        # Not every file system renames directories: remove it there, and copy it here.
        out.remove_moved(inode.ino, clear_directory)
        return False
    return True


def _check_attributes(out: Outlet, frame: Frame) -> None:
    seen, old = lower.look_into(out.down.fd), frame.old
    if old is not None and (seen.st_mode, seen.st_uid, seen.st_gid) != (old.mode, old.uid, old.gid):
        frame.trusted = False
        out.late.append(out.down.path())


def _finish(out: Outlet, frame: Frame) -> None:
    """Everything in the directory is done with: what the store deleted, then its attributes."""
    for name in frame.doomed:
        try:
            _prepare(out, frame)
            remove(out, frame.inode.ino, name)
        except Late:
            out.late.append(out.down.path(name))
        except OSError as error:
            _skip(out, name, error)
    old, inode = frame.old, frame.inode
    if not frame.trusted or (old is not None and old.is_of(inode) and not frame.ready):
        return
    try:
        _dress(out, frame)
    except OSError as error:
        if is_fatal(error):
            raise
        out.tally.skip(out.down.path(), error)
    out.flush_if_large()


def _dress(out: Outlet, frame: Frame) -> None:
    old, inode, fd = frame.old, frame.inode, out.down.fd
    xattrs = lay.xattrs_of(out.fs, out.view, inode)
    digest = digest_of_xattrs(xattrs)
    lay.dress(out.fs, out.view, inode, fd)
    if old is not None and old.xattrs != digest:
        lower.set_user_xattrs(fd, xattrs)
        os.utime(fd, ns=(inode.atime_ns, inode.mtime_ns))
    if old is not None and (inode.mode, inode.uid, inode.gid) != (old.mode, old.uid, old.gid):
        out.tally.modified += 1
    place = ROOT_PLACE if frame.parent is None else (frame.parent.inode.ino, frame.name)
    out.owe(*place, agreement(lower.look_into(fd), inode, xattrs=digest))
