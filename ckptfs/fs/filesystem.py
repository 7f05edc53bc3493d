"""The file system: POSIX operations on a view of a store.

Every operation takes the view it runs in, raises ``OSError`` with the errno POSIX names, and has
done everything or nothing when it returns. It knows neither FUSE nor checkpoints. The operations
stand in the modules beside this one, by what they work on; here is the state that they share.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from functools import partial
from weakref import WeakKeyDictionary, WeakValueDictionary

from ckptfs.fs import bulk, clones, content, inodes, names, ranges, renames
from ckptfs.fs.authorship import Authorship
from ckptfs.fs.buffers import DirtyInodes, NewEntries, PartialBlocks
from ckptfs.fs.exclusion import Exclusion, home_for, is_own
from ckptfs.model import MAIN_LINE, Clock, Epoch, Ino, Inode, wall_clock
from ckptfs.store import Store, View, pending


def nothing() -> None:
    """The callback where no request waits for a reply."""


def ignore(what: object) -> None:
    """The callback for changes where no mount follows them."""


#: By store, the file systems of its lines.
_open: WeakKeyDictionary[Store, WeakValueDictionary[int, Filesystem]] = WeakKeyDictionary()


def filesystems(store: Store) -> list[Filesystem]:
    """Those that are open on a store, each of another line."""
    found = _open.get(store)
    return [fs for line, fs in found.items() if line in store.heads] if found else []


class Filesystem:
    def __init__(self, store: Store, clock: Clock = wall_clock, *, line: int = MAIN_LINE) -> None:
        self.store = store
        #: Whose head it writes.
        self.line = line
        #: The facts of the store that belong to its line.
        self.facts = store.metadata.of_line(line)
        self.clock = clock
        self._is_closed = False
        store.pending.flush()  # what other lines have waiting is in tables that are read here
        #: What is kept out of history.
        self.exclusion = Exclusion(store, line, lambda ino: self.changing(ino))
        self.authorship = Authorship(store, self._get_head)
        #: The signature of the present author: the inodes that it changed.
        self.signing = self.authorship.unsigned
        #: The blocks of which short writes have filled parts.
        self.partial = PartialBlocks(store, self._get_head)
        self.new_entries = NewEntries(store)
        self.dirty_inodes = DirtyInodes(store, self._get_head, self._other_views)
        #: How many handles are open on an inode.
        self.held: dict[Ino, int] = {}
        #: Inodes without a name that may still be in use.
        self.unlinked: set[Ino] = set()
        #: Files that the kernel knows and whose size changed without a request: it may take another
        #: place for their end.
        self.resized: set[Ino] = set()
        #: Those of them that never had one, and may get one.
        self.nameless: set[Ino] = set()
        #: Those of them that the kernel forgot while a handle was still open.
        self.forgotten: set[Ino] = set()
        #: Files held open while a restore took them away or changed them: they live on in the view
        #: that they were opened in.
        self.limbo: dict[Ino, View] = {}
        #: How often a restore made a file another under the same number, if it ever did. The kernel
        #: keeps size and times of a file that it knows, so it has to hear that this is not that.
        #: Without the compiled server this is about a hundred bytes for each file that a restore
        #: changed, until the unmount; with it only what the kernel knows counts.
        self.generations: dict[Ino, int] = {}
        #: Set while a kernel may know inodes that are not open (a current directory, an O_PATH
        #: descriptor): a nameless inode then lives until the kernel forgets it.
        self.keep_unlinked = False
        #: Tells whether an inode may be in use. A mount that does not see open handles goes by what
        #: the kernel knows.
        self.is_used: Callable[[Ino], bool] = self.is_held
        #: Whether such a mount can make the kernel forget what is not open, before it is decided by
        #: what the kernel knows; ``is_used`` then tells of all that the kernel knows.
        self.can_ask = False
        #: Called with each inode that the kernel may know before it changes or goes, whatever view
        #: it is in; or else with what it has become, if that is what its user sees.
        self.changing: Callable[[Ino], object] = ignore
        self.changed: Callable[[Inode], object] = ignore
        #: Called by a removal or a renaming before the first record of it changes, when nothing can
        #: refuse it any more: the request that waits for it may be replied to.
        self.acknowledge: Callable[[], object] = nothing
        self.head.lead()
        _open.setdefault(store, WeakValueDictionary())[line] = self
        if not store.read_only:
            if not self.head.inodes:
                inodes.make_root(self, 0o755, os.getuid(), os.getgid())
            inodes.reap_orphans(self)
        self._register()
        self.flush()

    @property
    def head(self) -> View:
        """The head of its line: the view that may be written."""
        return self.store.heads[self.line]

    @head.setter
    def head(self, view: View) -> None:
        self.store.set_head(self.line, view)

    def _get_head(self) -> View:
        return self.store.heads[self.line]

    def close(self) -> None:
        """Have its line served no more; what it acknowledged stays, unless the line is gone."""
        if self.line in self.store.heads:
            self.flush()
        self._is_closed = True
        self.store.pending.forget(self.line)
        if _open[self.store].get(self.line) is self:
            del _open[self.store][self.line]

    def view_of(self, epoch: Epoch) -> View:
        return self.store.view(epoch)

    def is_excluded(self, ino: Ino) -> bool:
        """Whether an inode of the workspace is kept out of history."""
        excluded = self.head.excluded
        return excluded is not None and is_own(self, excluded, ino)

    def excludes(self, ino: Ino, name: bytes = b"", *, is_dir: bool = False) -> bool:
        """Whether a change to an inode, or to a name in it, is none of history's."""
        view = self.head
        if view.excluded is None:
            return False
        if not name:
            return is_own(self, view.excluded, ino)
        found = names.find(self, view, ino, name)
        if found is not None:
            return is_own(self, view.excluded, found)
        try:
            return home_for(self, view, ino, name, is_dir=is_dir) is view.excluded
        except OSError:
            return False  # the directory is gone; the change itself will say so

    def is_held(self, ino: Ino) -> bool:
        """Whether a handle is open on an inode."""
        return ino in self.held

    def _other_views(self) -> Iterable[View]:
        """Every view besides the head that may have dirty inodes."""
        excluded = self.head.excluded
        if excluded is None and not self.limbo:
            return ()
        views = set(self.limbo.values())
        return views if excluded is None else views | {excluded}

    def _register(self) -> None:
        """Have what waits here flushed with all that waits in the store."""
        register = partial(self.store.pending.register, line=self.line)
        blocks, dirty = self.partial, self.dirty_inodes
        # The journal's fragments name a content, which two lines may have and change.
        log = blocks.log if self.line == MAIN_LINE else blocks.flush
        register(
            pending.PARTIAL_BLOCKS,
            blocks.flush,
            log=log,
            holds=blocks.holds,
            size_bytes=blocks.size_bytes,
        )
        register(pending.NEW_ENTRIES, self.new_entries.flush, holds=self.new_entries.holds)
        register(pending.DIRTY_INODES, dirty.flush, log=dirty.log, holds=dirty.holds)
        register(pending.BORDERS, self.exclusion.flush, holds=self.exclusion.holds)
        register(pending.AUTHORS, self.authorship.flush, holds=self.authorship.holds)
        register(
            pending.ORPHANS,
            lambda: inodes.record_orphans(self),
            holds=lambda read: inodes.holds_orphan(self, read),
        )

    def flush(self) -> None:
        """Put every acknowledged change into the transaction, for a reader of the tables. Every
        verb begins with that: after `close` nothing would put there what it changes."""
        if self._is_closed:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        self.store.pending.flush()

    def commit(self) -> None:
        """Make every acknowledged operation durable."""
        self.store.commit()

    def sync(self) -> None:
        """The same for a caller that may ask again soon."""
        if not self.store.sync():
            self.commit()

    seek = names.seek
    lookup = names.lookup
    entries = names.entries
    numbers = names.numbers
    seek_number = names.seek_number
    readlink = names.readlink
    mknod = names.mknod
    make_nameless = names.make_nameless
    mkdir = names.mkdir
    symlink = names.symlink
    link = names.link
    unlink = names.unlink
    rmdir = names.rmdir
    rename = renames.rename
    insert = bulk.insert
    insert_files = bulk.insert_files
    insert_directory = bulk.insert_directory
    insert_all = bulk.insert_all
    is_simple = bulk.is_simple
    insert_copies = bulk.insert_copies
    overwrite_with = bulk.overwrite_with
    flush_copies = bulk.flush_copies
    apply_attributes = bulk.apply_attributes

    getattr = inodes.getattr
    setattr = inodes.setattr
    #: Of the head's own epoch: no checkpoint has the inode as it is.
    is_own = is_own
    hold = inodes.hold
    drop = inodes.drop
    forget = inodes.forget
    erase = inodes.erase

    read = content.read
    read_pieces = content.read_pieces
    write, write_pieces = content.write, content.write_pieces
    record_of = content.record_of
    extents = content.extents

    allocate = ranges.allocate
    punch = ranges.punch
    seek_data = ranges.seek_data
    seek_hole = ranges.seek_hole
    copy_range = ranges.copy_range
    share_record = ranges.share_record

    clone = clones.clone
    renumber = clones.renumber
    places_of = clones.places_of

    getxattr = inodes.getxattr
    listxattr = inodes.listxattr
    setxattr = inodes.setxattr
    removexattr = inodes.removexattr
