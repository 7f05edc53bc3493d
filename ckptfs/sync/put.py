"""One name of the store that is not a directory, brought into the lower directory.

Decides between leaving the file below as it is, giving it other attributes, linking it to another
name of the same inode, and writing it anew under a temporary name. The walk is elsewhere.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from functools import partial

from ckptfs.model import Ino, Inode
from ckptfs.sync import credentials, lay, lower
from ckptfs.sync.descent import directory_at
from ckptfs.sync.ledger import NEVER, Record
from ckptfs.sync.outlet import Late, Outlet, Twin
from ckptfs.sync.removal import clear_directory

#: Why a hard link below may be impossible where a copy is not.
_NO_LINK = (errno.EPERM, errno.EMLINK, errno.EXDEV, errno.ENOTSUP, errno.ENOENT, errno.EACCES)


def put_leaf(
    out: Outlet,
    key: Ino,
    name: bytes,
    inode: Inode,
    record: Record | None,
    prepare: Callable[[], None],
    *,
    fresh: bool,
) -> None:
    """Bring one name down. ``prepare`` is called before anything is changed in its directory;
    ``fresh`` says that this write-back made it, so that nothing can stand there."""
    seen = None if fresh else lower.look(out.down.fd, name)
    twin = out.twins.get(inode.ino)
    if _is_settled(out, name, inode, record, seen, twin):
        out.tally.unchanged += 1
        return
    if twin is not None and seen is not None and lower.identity(seen) == twin.identity:
        _note_twin(out, key, name, inode, record, twin)
        return
    prepare()
    if record is not None and record.is_dir and seen is not None:
        clear_directory(out, out.down, name, record, seen)
        out.owe(key, name, None)
        record = seen = None
    _require_noted(out, record, seen)
    if twin is not None and _link(out, twin, name, seen):
        _note_twin(out, key, name, inode, record, twin)
    elif record is None or seen is None:
        _write(out, key, name, inode, None)
        out.tally.added += 1
    else:
        _change(out, key, name, inode, record, seen)


def _is_settled(
    out: Outlet,
    name: bytes,
    inode: Inode,
    record: Record | None,
    seen: os.stat_result | None,
    twin: Twin | None,
) -> bool:
    """Whether one of an inode's several names is as it should be, on both sides and among them."""
    if record is None or seen is None or not record.is_of(inode) or not record.matches(seen):
        return False
    if twin is None:
        if not _may_keep(out, inode, seen):
            return False
        out.remember(name, inode, seen)
        return True
    return lower.identity(seen) == twin.identity


def _require_noted(out: Outlet, record: Record | None, seen: os.stat_result | None) -> None:
    if (record is None) != (seen is None):
        raise Late
    if record is not None and seen is not None and not out.as_noted(record, seen):
        raise Late


# -- several names ---------------------------------------------------------------------------------


def _note_twin(
    out: Outlet, key: Ino, name: bytes, inode: Inode, record: Record | None, twin: Twin
) -> None:
    """The name below is the same file as another that was brought down before."""
    if record is None:
        out.tally.added += 1
    elif record.is_of(inode):
        out.tally.unchanged += 1
    else:
        out.tally.modified += 1
    out.note(key, name, inode, twin.identity, out.digest(inode), out.xattrs_digest(inode))


def _link(out: Outlet, twin: Twin, name: bytes, seen: os.stat_result | None) -> bool:
    """Make the name below a link to another name of the inode; False where that cannot be."""
    try:
        with directory_at(out.down.root_fd, twin.path[:-1]) as source:
            make = partial(lower.link, source, twin.path[-1], twin.identity, out.down.fd)
            temp, made = out.make_temp(make)
    except OSError as error:
        if error.errno == errno.ESTALE:
            raise Late from error
        if error.errno in _NO_LINK:
            return False
        raise
    out.stir(made)
    out.stir(seen)
    out.swap_in(temp, name)
    return True


# -- one file --------------------------------------------------------------------------------------


def _change(
    out: Outlet, key: Ino, name: bytes, inode: Inode, record: Record, seen: os.stat_result
) -> None:
    """Something stands below that the store has changed since, or that has several names."""
    same_type = stat.S_IFMT(inode.mode) == stat.S_IFMT(seen.st_mode)
    may_stay = same_type and _may_keep(out, inode, seen) and not _needs_new(inode, record, seen)
    if may_stay and out.digest(inode) == record.digest:
        # The digest took its time; what stands below is looked at again behind it.
        changed = _dress(out, name, inode, record)
        if changed is not None:
            made = lower.identity(seen)
            out.note(key, name, inode, made, record.digest, out.xattrs_digest(inode))
            out.tally.modified += changed
            out.tally.unchanged += not changed
            return
    _write(out, key, name, inode, seen)
    out.tally.modified += 1


def _needs_new(inode: Inode, record: Record, seen: os.stat_result) -> bool:
    """Whether a file has to be written anew to get its attributes. Who could write to the file
    below may still have it open, or mapped: what runs with another's rights, or is another's from
    now on, must be an inode that nobody but us ever had. So must one that lets more people in,
    if the file below never was the store's: somebody put it there, and it may be closed to him."""
    if not inode.is_file:
        return False
    other_owner = (inode.uid, inode.gid) != (seen.st_uid, seen.st_gid)
    gets_set_id = inode.mode != seen.st_mode and bool(inode.mode & lower.SET_ID)
    opens_up = bool(inode.mode & ~seen.st_mode & 0o777) and record.stored_ctime_ns == NEVER
    # Without root's rights the owner stays what it is, whichever way it is written.
    return gets_set_id or opens_up or (other_owner and os.geteuid() == 0)


def _may_keep(out: Outlet, inode: Inode, seen: os.stat_result) -> bool:
    """Whether the file below may stay: not if names share it there that the store has apart."""
    if seen.st_nlink == 1:
        return True
    claimed = out.claims.setdefault((seen.st_dev, seen.st_ino), inode.ino)
    return inode.nlink > 1 and claimed == inode.ino


def _dress(out: Outlet, name: bytes, inode: Inode, record: Record) -> bool | None:
    """Give the file below other attributes, by descriptor; say whether it had others, or None if
    the owner of the directory may not: then it has to be written anew."""
    xattrs = None
    if inode.is_file and out.xattrs_digest(inode) != record.xattrs:
        xattrs = lay.xattrs_of(out.fs, out.view, inode)
    fd, now = lower.pin(out.down.fd, name)
    try:
        if not out.as_noted(record, now):
            raise Late
        directory = os.fstat(out.down.fd)
        if credentials.is_other(directory) and now.st_uid != directory.st_uid:
            return None
        with credentials.acting_for(directory):
            changed = _dress_pinned(fd, inode, xattrs, now)
        if changed:
            out.stir(lower.look_into(fd))
        return changed
    except OSError as error:
        if error.errno != errno.EACCES:
            raise
        return None  # extended attributes of a file that its owner may not write to
    finally:
        os.close(fd)


def _dress_pinned(
    fd: int, inode: Inode, xattrs: dict[bytes, bytes] | None, now: os.stat_result
) -> bool:
    """The store is not read here: with another's rights its files might not be open to us."""
    if xattrs is not None:
        lower.set_user_xattrs(lower.by_descriptor(fd), xattrs)
    given = (now.st_mode, now.st_uid, now.st_gid, now.st_mtime_ns)
    if (inode.mode, inode.uid, inode.gid, inode.mtime_ns) == given:
        return xattrs is not None
    lay.dress_pinned(fd, inode)
    return True


def _write(out: Outlet, key: Ino, name: bytes, inode: Inode, seen: os.stat_result | None) -> None:
    """Write the file under a temporary name and let it take its own when it is complete."""
    temp, laid = out.make_temp(partial(lay.lay, out.fs, out.view, inode, out.down.fd))
    out.stir(seen)
    out.swap_in(temp, name)
    out.wrote(inode.size if inode.is_file else 0)
    out.note(key, name, inode, laid.identity, laid.digest, laid.xattrs)
    if not laid.whole:
        out.tally.skip(out.down.path(name), lay.NO_SET_ID)
