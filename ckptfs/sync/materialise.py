"""Materialise: write entries of a view into a directory, with content, attributes and hard links.

Mounted and plain workspaces (`write_back`) and `export_tree` use the same calls. Each makes or
changes one entry relative to a descriptor; the caller decides whether, where and under which name.
The ledger is not known here.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ckptfs import config, errors
from ckptfs.fs import Filesystem
from ckptfs.model import BLOCK_SIZE, ROOT_INO, Ino, Inode
from ckptfs.store import View
from ckptfs.sync import content, lower
from ckptfs.sync.results import ExportResult, Tally, Watcher, is_fatal, reason_of

Identity = tuple[int, int]

#: The reason for a file that got no set-id bits; see `lower.permitted_mode`.
NO_SET_ID = "written without its set-id bits, since it could not be given to its owner"


class Written(NamedTuple):
    """A new entry: the digests of its content and of its extended attributes, its identity, and
    whether it has the mode that it should have."""

    digest: bytes
    xattrs: bytes
    identity: Identity
    whole: bool


def write_entry(fs: Filesystem, view: View, inode: Inode, dir_fd: int, name: bytes) -> Written:
    """Make a new file, link or node, complete."""
    if inode.is_file:
        return _write_file(fs, view, inode, dir_fd, name)
    fd = lower.make_special(
        dir_fd, name, inode.mode, inode.uid, rdev=inode.rdev, target=inode.target
    )
    try:
        now = apply_attributes_pinned(fd, inode)
        digest = content.special_digest(inode.mode, inode.rdev, inode.target)
        return Written(digest, b"", lower.identity(now), whole=True)
    finally:
        os.close(fd)


def _write_file(fs: Filesystem, view: View, inode: Inode, dir_fd: int, name: bytes) -> Written:
    fd = lower.create(dir_fd, name)
    try:
        digest = _fill(fs, view, inode, fd)
        applied = apply_attributes(fs, view, inode, fd)
        return Written(digest, applied.xattrs, lower.identity(applied.now), applied.whole)
    finally:
        os.close(fd)


def _fill(fs: Filesystem, view: View, inode: Inode, fd: int) -> bytes:
    if inode.size > BLOCK_SIZE or inode.allocated < inode.size:
        return content.copy_out(fs, view, inode, fd)
    data = fs.read(view, inode.ino, 0, BLOCK_SIZE)
    if data:
        content.write_all(fd, data, 0)
    return content.digest_of_one(data)


class Applied(NamedTuple):
    """The attributes that an open file or directory got."""

    xattrs: bytes
    #: As it was before the mode and the times.
    now: os.stat_result
    whole: bool


def apply_attributes(fs: Filesystem, view: View, inode: Inode, fd: int) -> Applied:
    """Give an open file or directory its attributes; the times last: the rest changes them."""
    now = _give(fd, inode)
    xattrs = content.xattrs_stored(fs, view, inode)
    if xattrs:
        # Before the mode, which may forbid it even to the owner.
        lower.set_user_xattrs(fd, xattrs)
    mode = lower.permitted_mode(inode.mode, inode.uid, inode.gid, now)
    # After the owner: a change of owner clears set-id bits.
    os.fchmod(fd, mode)
    os.utime(fd, ns=(inode.atime_ns, inode.mtime_ns))
    return Applied(content.digest_of_xattrs(xattrs), now, mode == stat.S_IMODE(inode.mode))


def apply_attributes_pinned(fd: int, inode: Inode) -> os.stat_result:
    """`apply_attributes` for a pinned entry: everything but extended attributes."""
    path = lower.by_descriptor(fd)
    now = _give(fd, inode, path)
    mode = lower.permitted_mode(inode.mode, inode.uid, inode.gid, now)
    # Only if it differs: chmod(2) clears the set-group-id bit of a file if the owner for whom we
    # act is not in its group.
    if not stat.S_ISLNK(now.st_mode) and mode != stat.S_IMODE(now.st_mode):
        os.chmod(path, mode)
    os.utime(path, ns=(inode.atime_ns, inode.mtime_ns))
    return now


def _give(fd: int, inode: Inode, path: str | None = None) -> os.stat_result:
    """Give it to its owner, if we may; return its attributes then."""
    seen = os.fstat(fd)
    if (seen.st_uid, seen.st_gid) == (inode.uid, inode.gid):
        return seen
    lower.set_owner(fd if path is None else path, inode.uid, inode.gid, seen)
    return os.fstat(fd)


# -- hard links ------------------------------------------------------------------------------------


class FirstLink(NamedTuple):
    """The first name that was written for an inode with several; the others become links to it."""

    path: tuple[bytes, ...]
    identity: Identity


#: Why a hard link may be impossible where a copy is not.
_NO_LINK = (errno.EPERM, errno.EMLINK, errno.EXDEV, errno.ENOTSUP, errno.ENOENT, errno.EACCES)


def link_to(first: FirstLink, root_fd: int, dir_fd: int, name: bytes) -> os.stat_result | None:
    """Link a name to an inode that was written before; None where only a copy is possible. ESTALE:
    another entry has the first name by now."""
    try:
        with lower.directory_at(root_fd, first.path[:-1]) as source:
            return lower.link(source, first.path[-1], first.identity, dir_fd, name)
    except OSError as error:
        if error.errno in _NO_LINK:
            return None
        raise


# -- export ----------------------------------------------------------------------------------------


def export_tree(
    fs: Filesystem, view: View, dest: Path, *, progress: Watcher | None = None
) -> ExportResult:
    """Write a whole view into a directory that is absent or empty."""
    fs.flush()
    root = fs.getattr(view, ROOT_INO)
    fd = _open_destination(dest, root.uid)
    try:
        with lower.descend(fd) as down:
            export = _Export(fs, view, down, Tally(progress, view.inodes))
            lower.traverse(
                _Frame(root),
                visit=partial(_write_files, export),
                enter=partial(_enter, export),
                finish=partial(_finish, export),
                leave=down.leave,
            )
    finally:
        os.close(fd)
    return export.tally.result()


def _open_destination(dest: Path, uid: int) -> int:
    """The empty directory to write to, whatever its name becomes. ``uid`` owns it if it has to be
    made."""
    path = Path(os.path.realpath(dest.parent)) / dest.name
    try:
        above = config.open_directory(path.parent)
        try:
            return _open_empty(above, os.fsencode(path.name), uid)
        finally:
            os.close(above)
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            raise errors.DestinationInvalid(dest) from None
        raise errors.DestinationInvalid(dest, reason_of(error).lower()) from error


def _open_empty(above: int, name: bytes, uid: int) -> int:
    with suppress(FileExistsError):
        lower.make_directory(above, name, uid)
    fd = lower.open_directory(above, name)
    if lower.names_in(fd):
        os.close(fd)
        raise OSError(errno.ENOTEMPTY, "it is not empty")
    return fd


class _Export:
    """What one export works with."""

    def __init__(self, fs: Filesystem, view: View, down: lower.Descent, tally: Tally) -> None:
        self.fs = fs
        self.view = view
        self.down = down
        self.tally = tally
        self.first_links: dict[Ino, FirstLink] = {}

    def skip(self, error: OSError, *name: bytes) -> None:
        if is_fatal(error):
            raise error
        self.tally.skip(self.down.path(*name), error)


class _Frame:
    """A directory that is being written, and those in it that are still to be."""

    __slots__ = ("inode", "waiting")

    def __init__(self, inode: Inode) -> None:
        self.inode = inode
        self.waiting: list[tuple[bytes, Inode]] = []


def _write_files(export: _Export, frame: _Frame) -> None:
    """Write the files of a directory; the directories in it wait."""
    for name, inode in export.fs.entries(export.view, frame.inode.ino):
        if inode.is_dir:
            frame.waiting.append((name, inode))
            continue
        try:
            _write(export, name, inode)
            export.tally.added += 1
        except OSError as error:
            export.skip(error, name)
        export.tally.step()


def _write(export: _Export, name: bytes, inode: Inode) -> None:
    down = export.down
    if inode.nlink > 1 and _link(export, name, inode):
        return
    try:
        written = write_entry(export.fs, export.view, inode, down.fd, name)
    except FileExistsError:
        raise  # it is not ours
    except BaseException:
        lower.discard(down.fd, name)
        raise
    if not written.whole:
        export.tally.skip(down.path(name), NO_SET_ID)
    if inode.is_file:
        export.tally.bytes += inode.size
    if inode.nlink > 1:
        first = FirstLink((*down.names, name), written.identity)
        export.first_links.setdefault(inode.ino, first)


def _link(export: _Export, name: bytes, inode: Inode) -> bool:
    first = export.first_links.get(inode.ino)
    if first is None:
        return False
    try:
        return link_to(first, export.down.root_fd, export.down.fd, name) is not None
    except OSError as error:
        if error.errno == errno.ESTALE:
            return False
        raise


def _enter(export: _Export, _: _Frame, name: bytes, inode: Inode) -> _Frame | None:
    export.tally.step()
    try:
        lower.make_directory(export.down.fd, name, inode.uid)
        export.down.enter_new(name)
    except OSError as error:
        export.skip(error, name)
        return None
    export.tally.added += 1
    return _Frame(inode)


def _finish(export: _Export, frame: _Frame) -> None:
    try:
        apply_attributes(export.fs, export.view, frame.inode, export.down.fd)
    except OSError as error:
        export.skip(error)
