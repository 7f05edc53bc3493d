"""One name of the store that is not a directory, brought into the directory below.

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
from ckptfs.sync import below, lay
from ckptfs.sync.ledger import Record
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
    seen = None if fresh else below.look(out.down.fd, name)
    twin = out.twins.get(inode.ino)
    if _is_settled(out, name, inode, record, seen, twin):
        out.tally.unchanged += 1
        return
    if twin is not None and seen is not None and (seen.st_dev, seen.st_ino) == twin.identity:
        _note_twin(out, key, name, inode, record)
        return
    prepare()
    if record is not None and record.is_dir and seen is not None:
        clear_directory(out, out.down, name, record, seen)
        out.owe(key, name, None)
        record = seen = None
    _require_noted(out, record, seen)
    if twin is not None and _link(out, twin, name, seen):
        _note_twin(out, key, name, inode, record)
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
    return (seen.st_dev, seen.st_ino) == twin.identity


def _require_noted(out: Outlet, record: Record | None, seen: os.stat_result | None) -> None:
    if (record is None) != (seen is None):
        raise Late
    if record is not None and seen is not None and not out.as_noted(record, seen):
        raise Late


# -- several names ---------------------------------------------------------------------------------


def _note_twin(out: Outlet, key: Ino, name: bytes, inode: Inode, record: Record | None) -> None:
    """The name below is the same file as another that was brought down before."""
    if record is None:
        out.tally.added += 1
    elif record.is_of(inode):
        out.tally.unchanged += 1
    else:
        out.tally.modified += 1
    out.note(key, name, inode, out.digest(inode), out.xattrs_digest(inode))


def _link(out: Outlet, twin: Twin, name: bytes, seen: os.stat_result | None) -> bool:
    """Make the name below a link to another name of the inode; False where that cannot be."""
    try:
        with below.directory_at(out.down.root_fd, twin.path[:-1]) as source:
            temp, _ = out.make_temp(partial(_link_from, out, source, twin.path[-1]))
    except OSError as error:
        if error.errno in _NO_LINK:
            return False
        raise
    made = below.look_at(out.down.fd, temp)
    if (made.st_dev, made.st_ino) != twin.identity:
        below.discard(out.down.fd, temp)
        raise Late
    out.stir(made)
    out.stir(seen)
    out.swap_in(temp, name)
    return True


def _link_from(out: Outlet, source: int, old: bytes, new: bytes) -> None:
    os.link(old, new, src_dir_fd=source, dst_dir_fd=out.down.fd, follow_symlinks=False)


# -- one file --------------------------------------------------------------------------------------


def _change(
    out: Outlet, key: Ino, name: bytes, inode: Inode, record: Record, seen: os.stat_result
) -> None:
    """Something stands below that the store has changed since, or that has several names."""
    same_type = stat.S_IFMT(inode.mode) == stat.S_IFMT(seen.st_mode)
    if same_type and _may_keep(out, inode, seen) and out.digest(inode) == record.digest:
        changed = _dress(out, name, inode, record, seen)
        out.note(key, name, inode, record.digest, out.xattrs_digest(inode))
        out.tally.modified += changed
        out.tally.unchanged += not changed
        return
    _write(out, key, name, inode, seen)
    out.tally.modified += 1


def _may_keep(out: Outlet, inode: Inode, seen: os.stat_result) -> bool:
    """Whether the file below may stay: not if names share it there that the store has apart."""
    if seen.st_nlink == 1:
        return True
    claimed = out.claims.setdefault((seen.st_dev, seen.st_ino), inode.ino)
    return inode.nlink > 1 and claimed == inode.ino


def _dress(out: Outlet, name: bytes, inode: Inode, record: Record, seen: os.stat_result) -> bool:
    """Give the file below other attributes; say whether it had others."""
    changed = False
    if inode.is_file and out.xattrs_digest(inode) != record.xattrs:
        fd, _ = below.open_file(out.down.fd, name)
        try:
            below.set_user_xattrs(fd, lay.xattrs_of(out.fs, out.view, inode))
        finally:
            os.close(fd)
        changed = True
    if (inode.mode, inode.uid, inode.gid, inode.mtime_ns) != (
        seen.st_mode,
        seen.st_uid,
        seen.st_gid,
        seen.st_mtime_ns,
    ):
        lay.dress_at(out.down.fd, name, inode)
        changed = True
    if changed:
        out.stir(below.look(out.down.fd, name))
    return changed


def _write(out: Outlet, key: Ino, name: bytes, inode: Inode, seen: os.stat_result | None) -> None:
    """Write the file under a temporary name and let it take its own when it is complete."""
    temp, (digest, xattrs) = out.make_temp(partial(lay.lay, out.fs, out.view, inode, out.down.fd))
    out.stir(seen)
    out.swap_in(temp, name)
    out.wrote(inode.size if inode.is_file else 0)
    out.note(key, name, inode, digest, xattrs)
