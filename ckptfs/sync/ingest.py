"""Ingest: make and change entries of the store from entries of the lower directory.

Owns how a file, link or node comes in with its content, attributes, extended attributes and hard
links. `decide` decides whether it does.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from ckptfs.fs import Filesystem
from ckptfs.model import NAME_MAX, ROOT_INO, Attributes, Ino, Inode, Place
from ckptfs.sync import content, lower
from ckptfs.sync.content import Entry
from ckptfs.sync.ledger import Record
from ckptfs.sync.results import Tally

#: The transaction is committed when it holds about this much.
COMMIT_BYTES = 32 << 20

#: Ends the name of a second version.
_SUFFIX = b".below"


class Group(NamedTuple):
    """The inode for the hard links of one lower file. ``places`` are the names that this pass gave
    it, if this pass made it."""

    ino: Ino
    places: list[tuple[Ino, bytes]] | None


class Ingest:
    """The store's side of one pass."""

    def __init__(self, fs: Filesystem, tally: Tally) -> None:
        self.fs = fs
        self.view = fs.head
        self.tally = tally
        #: Lower files with several names, by device and inode number.
        self.groups: dict[tuple[int, int], Group] = {}
        #: Names that this pass gave to one inode, and then to another.
        self.moved: list[Place] = []
        #: Called with an inode that is committed before all of its content is in.
        self.on_partial: Callable[[Inode], None] = lambda inode: None
        #: Inodes as they were before this pass first touched them: our own change, such as the
        #: ctime of a file that lost one of its names, must not look like a change of the store.
        self._before: dict[Ino, Inode] = {}

    # -- reading the store ------------------------------------------------------------------------

    def find(self, parent: Ino, name: bytes) -> Inode | None:
        self.fs.new_entries.flush()
        try:
            return self.fs.lookup(self.view, parent, name)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
                return None
            raise

    def alive(self, ino: Ino) -> Inode | None:
        try:
            inode = self.fs.getattr(self.view, ino)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESTALE):
                return None
            raise
        return inode if inode.nlink else None

    def free_name(self, place: Ino, name: bytes, fd: int | None = None) -> bytes:
        """A name beside ``name`` that neither the store nor the lower directory has."""
        number = 1
        while True:
            suffix = _SUFFIX if number == 1 else b"%s-%d" % (_SUFFIX, number)
            candidate = name[: NAME_MAX - len(suffix)] + suffix
            taken = self.find(place, candidate) is not None
            if not taken and (fd is None or lower.find(fd, candidate) is None):
                return candidate
            number += 1

    def path(self, parent: Ino, name: bytes) -> bytes:
        """The store's path of a name."""
        names = [name]
        while parent != ROOT_INO:
            inode = self.fs.getattr(self.view, parent)
            names.append(inode.name)
            parent = inode.parent
        return b"/".join(reversed(names))

    def untouched(self, inode: Inode, record: Record) -> bool:
        """Whether the store has what it had at the agreement, apart from this pass's changes."""
        return record.is_of(self._before.get(inode.ino, inode))

    def touch(self, inode: Inode) -> None:
        """This pass is about to change the inode. An inode with one name is looked at once, so only
        the others are remembered."""
        if inode.nlink > 1 and not inode.is_dir:
            self._before.setdefault(inode.ino, inode)

    def digest(self, inode: Inode) -> bytes:
        return content.digest_stored(self.fs, self.view, inode)

    def xattrs(self, inode: Inode) -> dict[bytes, bytes]:
        return content.xattrs_stored(self.fs, self.view, inode)

    # -- making -----------------------------------------------------------------------------------

    def add(self, entry: Entry, parent: Ino, name: bytes, *, new: bool = False) -> Inode:
        """A new name in the store: a further link if the file came in before. ``new``: the
        directory was empty when this pass came to it, and this pass sets its attributes."""
        if entry.seen.st_nlink == 1:
            if new and entry.is_small:
                return self._place(entry, parent, name)
            return self.create(entry, parent, name)
        group = self.groups.get(entry.identity)
        if group is not None:
            inode = self._link(group, parent, name)
            if inode is not None:
                return inode
        inode = self.create(entry, parent, name)
        self.groups[entry.identity] = Group(inode.ino, [(parent, name)])
        return inode

    def _link(self, group: Group, parent: Ino, name: bytes) -> Inode | None:
        self._before.setdefault(group.ino, self.fs.getattr(self.view, group.ino))
        try:
            inode = self.fs.link(self.view, group.ino, parent, name)
        except OSError as error:
            # EXDEV: one of the two names is excluded, so they are two files.
            if error.errno in (errno.EMLINK, errno.EXDEV):
                return None
            raise
        if group.places is not None:
            group.places.append((parent, name))
        return inode

    def _place(self, entry: Entry, parent: Ino, name: bytes) -> Inode:
        """The common case: a small file with one name, in a new directory."""
        data = entry.read_small()
        if entry.closed_since():
            raise lower.exchanged()
        (inode,) = self.place_all(parent, [(name, entry.seen, data)])
        if entry.xattrs:
            self.set_xattrs(inode, entry.xattrs)
            return self.fs.getattr(self.view, inode.ino)
        return inode

    def place_all(
        self, parent: Ino, files: Sequence[tuple[bytes, os.stat_result, bytes]]
    ) -> list[Inode]:
        """Files that fit one block each under free names of a new directory."""
        self.tally.bytes += sum(len(data) for _, _, data in files)
        return self.fs.insert_files(self.view, parent, files)

    def create(self, entry: Entry, parent: Ino, name: bytes) -> Inode:
        """A new inode, whatever other names the lower file has."""
        fs, view, seen = self.fs, self.view, entry.seen
        mode, uid, gid = seen.st_mode, seen.st_uid, seen.st_gid
        if stat.S_ISLNK(mode):
            inode = fs.symlink(view, parent, name, entry.target, uid, gid)
        else:
            inode = fs.mknod(view, parent, name, mode, uid, gid, seen.st_rdev)
            if entry.is_file:
                self._fill(entry, parent, name, inode)
        self.set_xattrs(inode, entry.xattrs)
        return fs.setattr(view, inode.ino, attributes_of(seen))

    def _fill(self, entry: Entry, parent: Ino, name: bytes, inode: Inode) -> None:
        try:
            self._copy(entry, inode)
        except OSError:
            # Half a file is worse than none: it would pass for the user's.
            self.fs.unlink(self.view, parent, name)
            raise
        self.tally.bytes += entry.seen.st_size

    def _copy(self, entry: Entry, inode: Inode) -> None:
        if entry.is_small:
            data = entry.read_small()
            if data:
                self.fs.write(self.view, inode.ino, 0, data)
        else:
            pause = partial(self._pause, inode.ino)
            entry.found(content.copy_in(self.fs, self.view, inode, entry.fd, entry.seen, pause))
        if entry.closed_since():
            raise lower.exchanged()

    def make_directory(
        self, parent: Ino, name: bytes, seen: os.stat_result, *, new: bool = False
    ) -> Inode:
        """A new directory; `finish_directory` sets its attributes when it is filled. ``new`` as for
        `add`."""
        fs, view = self.fs, self.view
        if new:
            return fs.insert_directory(view, parent, name, seen)
        inode = fs.mkdir(view, parent, name, seen.st_mode, seen.st_uid, seen.st_gid)
        if inode.gid != seen.st_gid or inode.mode != seen.st_mode:
            wanted = Attributes(mode=seen.st_mode, uid=seen.st_uid, gid=seen.st_gid)
            inode = fs.setattr(view, inode.ino, wanted)
        return inode

    # -- changing ---------------------------------------------------------------------------------

    def remove(self, parent: Ino, name: bytes, inode: Inode) -> None:
        self.touch(inode)
        if inode.is_dir:
            self.fs.rmdir(self.view, parent, name)
        else:
            self.fs.unlink(self.view, parent, name)

    def replace(self, entry: Entry, parent: Ino, name: bytes, inode: Inode) -> Inode:
        """Give a name another inode; it must not be a directory's."""
        self.remove(parent, name, inode)
        return self.add(entry, parent, name)

    def rewrite(self, entry: Entry, inode: Inode) -> bool:
        """Give a file the content of a lower file; return whether it had another."""
        self.touch(inode)
        pause = partial(self._pause, inode.ino)
        changed, digest = content.update_in(self.fs, self.view, inode, entry.fd, entry.seen, pause)
        entry.found(digest)
        closed = entry.closed_since()
        if closed is not None:
            rights = Attributes(mode=closed.st_mode, uid=closed.st_uid, gid=closed.st_gid)
            self.fs.setattr(self.view, inode.ino, rights)
        if changed:
            self.tally.bytes += entry.seen.st_size
        return changed

    def has_bytes_of(self, entry: Entry, inode: Inode) -> bool:
        """Whether a file of the store equals a lower file, byte by byte."""
        return content.is_equal(self.fs, self.view, inode, entry.fd, entry.seen)

    def join_group(self, seen: os.stat_result, inode: Inode) -> None:
        """The hard links of a lower file stand for this inode, which had its name before this pass.
        Names that the pass gave to another inode for the same file move over."""
        if seen.st_nlink == 1:
            return
        identity = (seen.st_dev, seen.st_ino)
        group = self.groups.get(identity)
        if group is None:
            self.groups[identity] = Group(inode.ino, None)
        elif group.places is not None and group.ino != inode.ino:
            self.groups[identity] = Group(inode.ino, None)
            self._move_names(group.ino, group.places, self.groups[identity])

    def _move_names(self, old: Ino, places: list[tuple[Ino, bytes]], group: Group) -> None:
        for parent, name in places:
            other = self.find(parent, name)
            if other is None or other.ino != old:
                continue
            if self.fs.excludes(old) == self.fs.excludes(group.ino):
                self.remove(parent, name, other)
                self._link(group, parent, name)
                self.moved.append((parent, name))

    def apply_attributes(self, inode: Inode, wanted: Attributes | None) -> Inode:
        if wanted is None:
            return self.fs.getattr(self.view, inode.ino)
        self.touch(inode)
        return self.fs.setattr(self.view, inode.ino, wanted)

    def finish_directory(
        self, inode: Inode, seen: os.stat_result, xattrs: dict[bytes, bytes]
    ) -> Inode:
        """Set the attributes of a directory that this pass made, or found empty, and has filled."""
        self.set_xattrs(inode, xattrs)
        if not xattrs and agrees(seen, inode) and seen.st_atime_ns == inode.atime_ns:
            return inode
        return self.apply_attributes(inode, attributes_of(seen))

    def merge_xattrs(
        self, inode: Inode, xattrs: dict[bytes, bytes], record: Record, *, store_same: bool
    ) -> bool:
        """Take over extended attributes that changed in the lower directory only; return whether
        any did."""
        if content.digest_of_xattrs(xattrs) == record.xattrs:
            return False
        present = self.xattrs(inode)
        if not store_same and content.digest_of_xattrs(present) != record.xattrs:
            return False
        if present == xattrs:
            return False
        self.touch(inode)
        for name in present.keys() - xattrs.keys():
            self.fs.removexattr(self.view, inode.ino, name)
        self.set_xattrs(inode, {n: v for n, v in xattrs.items() if present.get(n) != v})
        return True

    def set_xattrs(self, inode: Inode, xattrs: dict[bytes, bytes]) -> None:
        for name, value in xattrs.items():
            self.fs.setxattr(self.view, inode.ino, name, value)

    # -- going on ---------------------------------------------------------------------------------

    def commit_if_large(self) -> None:
        if self.fs.store.dirty_bytes >= COMMIT_BYTES or self.fs.store.pressed:
            self.fs.commit()

    def _pause(self, ino: Ino) -> None:
        """In the middle of a file: a transaction may be too small for a large one."""
        if self.fs.store.dirty_bytes >= COMMIT_BYTES:
            self.on_partial(self.fs.getattr(self.view, ino))
            self.fs.commit()


def attributes_of(seen: os.stat_result) -> Attributes:
    return Attributes(
        mode=seen.st_mode,
        uid=seen.st_uid,
        gid=seen.st_gid,
        atime_ns=seen.st_atime_ns,
        mtime_ns=seen.st_mtime_ns,
    )


def agrees(seen: os.stat_result, inode: Inode) -> bool:
    """Whether both sides have the same attributes."""
    return (
        seen.st_mode == inode.mode
        and seen.st_uid == inode.uid
        and seen.st_gid == inode.gid
        and seen.st_mtime_ns == inode.mtime_ns
    )


def merged(
    seen: os.stat_result, record: Record, inode: Inode, *, store_same: bool, take_mtime: bool
) -> Attributes | None:
    """The attributes to take over: those that changed in the lower directory and not in the store.
    None if there are none. ``take_mtime``: the content came in, and its time goes with it."""

    def pick(lower: int, then: int, now: int) -> int | None:
        return lower if lower not in (then, now) and (store_same or now == then) else None

    mode = pick(seen.st_mode, record.mode, inode.mode)
    uid = pick(seen.st_uid, record.uid, inode.uid)
    gid = pick(seen.st_gid, record.gid, inode.gid)
    mtime_ns = pick(seen.st_mtime_ns, record.mtime_ns, inode.mtime_ns)
    if take_mtime and seen.st_mtime_ns != inode.mtime_ns:
        mtime_ns = seen.st_mtime_ns
    if mode is None and uid is None and gid is None and mtime_ns is None:
        return None
    if mode is None:
        # A change of owner clears the set-id bits unless the mode is set too.
        mode = inode.mode
    return Attributes(mode=mode, uid=uid, gid=gid, mtime_ns=mtime_ns)
