"""Making and changing entries of the store after entries below.

Owns how a file, link or node is taken over with its content, attributes, extended attributes and
hard links. Whether it should be is decided elsewhere; the ledger is not known here.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ckptfs.fs import Filesystem
from ckptfs.model import NAME_MAX, ROOT_INO, Attributes, Ino, Inode
from ckptfs.sync import content, lower
from ckptfs.sync.leaf import Leaf, special_digest
from ckptfs.sync.ledger import Record
from ckptfs.sync.results import Tally

#: The transaction is committed when it holds about this much.
COMMIT_BYTES = 32 << 20

#: What the name of a second version ends in.
_SUFFIX = b".below"


class Group(NamedTuple):
    """The inode that the hard links of one file below stand for. ``places`` are the names that this
    pass gave it, if this pass made it."""

    ino: Ino
    places: list[tuple[Ino, bytes]] | None


class Intake:
    """What one pass knows while it brings things in."""

    def __init__(self, fs: Filesystem, tally: Tally) -> None:
        self.fs = fs
        self.view = fs.head
        self.tally = tally
        #: Files below with several names, by device and inode number.
        self.groups: dict[tuple[int, int], Group] = {}
        #: Told of an inode that is committed before all of its content is there.
        self.half_done: Callable[[Inode], None] = lambda inode: None
        #: Inodes as they were before this pass first touched them: a change of our own, such as the
        #: ctime of a file that lost one of its names, must not look like a change of the store.
        self._before: dict[Ino, Inode] = {}

    # -- looking ----------------------------------------------------------------------------------

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
            if not taken and (fd is None or lower.look(fd, candidate) is None):
                return candidate
            number += 1

    def path(self, parent: Ino, name: bytes) -> bytes:
        """Where the store has a name."""
        names = [name]
        while parent != ROOT_INO:
            inode = self.fs.getattr(self.view, parent)
            names.append(inode.name)
            parent = inode.parent
        return b"/".join(reversed(names))

    def untouched(self, inode: Inode, record: Record) -> bool:
        """Whether the store, this pass aside, still has what it had at the agreement."""
        return record.is_of(self._before.get(inode.ino, inode))

    def touch(self, inode: Inode) -> None:
        """Say that this pass is about to change the inode. What has one name is looked at once, so
        only the others need remembering."""
        if inode.nlink > 1 and not inode.is_dir:
            self._before.setdefault(inode.ino, inode)

    def digest(self, inode: Inode) -> bytes:
        if inode.is_file:
            return content.digest_stored(self.fs, self.view, inode)
        return special_digest(inode.mode, inode.rdev, inode.target)

    def xattrs(self, inode: Inode) -> dict[bytes, bytes]:
        fs, view, ino = self.fs, self.view, inode.ino
        return {name: fs.getxattr(view, ino, name) for name in fs.listxattr(view, ino)}

    # -- making -----------------------------------------------------------------------------------

    def add(self, leaf: Leaf, parent: Ino, name: bytes, *, fresh: bool = False) -> Inode:
        """A new name in the store for an entry below: a further link if the file came in before.
        ``fresh``: the directory was empty when this pass came to it, and is dressed by it."""
        if leaf.seen.st_nlink == 1:
            if fresh and leaf.is_small:
                return self._place(leaf, parent, name)
            return self.create(leaf, parent, name)
        group = self.groups.get(leaf.identity)
        if group is not None:
            inode = self._link(group, parent, name)
            if inode is not None:
                return inode
        inode = self.create(leaf, parent, name)
        self.groups[leaf.identity] = Group(inode.ino, [(parent, name)])
        return inode

    def _link(self, group: Group, parent: Ino, name: bytes) -> Inode | None:
        self._before.setdefault(group.ino, self.fs.getattr(self.view, group.ino))
        try:
            inode = self.fs.link(self.view, group.ino, parent, name)
        except OSError as error:
            # Or one of the two names is kept out of history: then it is two files.
            if error.errno in (errno.EMLINK, errno.EXDEV):
                return None
            raise
        if group.places is not None:
            group.places.append((parent, name))
        return inode

    def _place(self, leaf: Leaf, parent: Ino, name: bytes) -> Inode:
        """What most files are: small, with one name, in a new directory."""
        data = leaf.read_small()
        if leaf.closed_since():
            raise lower.exchanged()
        inode = self.fs.insert(self.view, parent, name, leaf.seen, data)
        self.tally.bytes += len(data)
        if leaf.xattrs:
            self.set_xattrs(inode, leaf.xattrs)
            return self.fs.getattr(self.view, inode.ino)
        return inode

    def create(self, leaf: Leaf, parent: Ino, name: bytes) -> Inode:
        """A new inode, whatever other names the file has below."""
        fs, view, seen = self.fs, self.view, leaf.seen
        mode, uid, gid = seen.st_mode, seen.st_uid, seen.st_gid
        if stat.S_ISLNK(mode):
            inode = fs.symlink(view, parent, name, leaf.target, uid, gid)
        else:
            inode = fs.mknod(view, parent, name, mode, uid, gid, seen.st_rdev)
            if leaf.is_file:
                self._fill(leaf, parent, name, inode)
        self.set_xattrs(inode, leaf.xattrs)
        return fs.setattr(view, inode.ino, attributes_of(seen))

    def _fill(self, leaf: Leaf, parent: Ino, name: bytes, inode: Inode) -> None:
        try:
            self._copy(leaf, inode)
        except OSError:
            # Half a file is worse than none: it would be taken for the user's.
            self.fs.unlink(self.view, parent, name)
            raise
        self.tally.bytes += leaf.seen.st_size

    def _copy(self, leaf: Leaf, inode: Inode) -> None:
        if leaf.is_small:
            data = leaf.read_small()
            if data:
                self.fs.write(self.view, inode.ino, 0, data)
        else:
            pause = partial(self._pause, inode.ino)
            leaf.found(content.copy_in(self.fs, self.view, inode, leaf.fd, leaf.seen, pause))
        if leaf.closed_since():
            raise lower.exchanged()

    def make_directory(
        self, parent: Ino, name: bytes, seen: os.stat_result, *, fresh: bool = False
    ) -> Inode:
        """A new directory; its attributes are set when it is filled (`dress_filled`). ``fresh`` as
        for `add`."""
        fs, view = self.fs, self.view
        if fresh:
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

    def replace(self, leaf: Leaf, parent: Ino, name: bytes, inode: Inode) -> Inode:
        """Another inode under a name that is not a directory's."""
        self.remove(parent, name, inode)
        return self.add(leaf, parent, name)

    def rewrite(self, leaf: Leaf, inode: Inode) -> bool:
        """Give a file the content of one below; say whether it had another."""
        self.touch(inode)
        pause = partial(self._pause, inode.ino)
        changed, digest = content.update_in(self.fs, self.view, inode, leaf.fd, leaf.seen, pause)
        leaf.found(digest)
        closed = leaf.closed_since()
        if closed is not None:
            rights = Attributes(mode=closed.st_mode, uid=closed.st_uid, gid=closed.st_gid)
            self.fs.setattr(self.view, inode.ino, rights)
        if changed:
            self.tally.bytes += leaf.seen.st_size
        return changed

    def has_bytes_of(self, leaf: Leaf, inode: Inode) -> bool:
        """Whether a file of the store reads like one below, byte by byte."""
        return content.is_equal(self.fs, self.view, inode, leaf.fd, leaf.seen)

    def join_group(self, seen: os.stat_result, inode: Inode) -> None:
        """Say that the hard links of a file below stand for this inode, which had its name before
        this pass; names that the pass gave to another for the same file are moved over."""
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

    def dress(self, inode: Inode, wanted: Attributes | None) -> Inode:
        if wanted is None:
            return self.fs.getattr(self.view, inode.ino)
        self.touch(inode)
        return self.fs.setattr(self.view, inode.ino, wanted)

    def dress_filled(self, inode: Inode, seen: os.stat_result, xattrs: dict[bytes, bytes]) -> Inode:
        """A directory that this pass made, or found empty, and has filled."""
        self.set_xattrs(inode, xattrs)
        if not xattrs and agrees(seen, inode) and seen.st_atime_ns == inode.atime_ns:
            return inode
        return self.dress(inode, attributes_of(seen))

    def merge_xattrs(
        self, inode: Inode, xattrs: dict[bytes, bytes], record: Record, *, store_same: bool
    ) -> bool:
        """Take over extended attributes that changed below only; say whether any did."""
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
        """In the middle of a file: a transaction may not hold all of a large one."""
        if self.fs.store.dirty_bytes >= COMMIT_BYTES:
            self.half_done(self.fs.getattr(self.view, ino))
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
    """Whether both sides have the same attributes, content aside."""
    return (
        seen.st_mode == inode.mode
        and seen.st_uid == inode.uid
        and seen.st_gid == inode.gid
        and seen.st_mtime_ns == inode.mtime_ns
    )


def merged(
    seen: os.stat_result, record: Record, inode: Inode, *, store_same: bool, take_mtime: bool
) -> Attributes | None:
    """The attributes to take over: what changed below, unless the store changed it too. None if
    there are none. ``take_mtime``: the content came from below, and its time goes with it."""

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
        # A change of owner takes the set-id bits away unless the mode is said too.
        mode = inode.mode
    return Attributes(mode=mode, uid=uid, gid=gid, mtime_ns=mtime_ns)
