"""The store: one LMDB environment, its lock, its one open write transaction, its counters.

Owns opening, creating, committing and closing. Every read and write of the program runs inside the
write transaction that is always open here, on the thread that opened the store, so half an
operation is never seen, and no cache has to agree with the disk. What records mean is not known
here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import lmdb

from ckptfs import errors, interrupts
from ckptfs.model import MAIN_LINE, Epoch
from ckptfs.store import compaction, data_file, journal_format, memory_map, pending
from ckptfs.store import format as fmt
from ckptfs.store.blockmap import JournalFragments, replay_fragments
from ckptfs.store.blocks import Blocks
from ckptfs.store.directory import (
    DATA_FILE,
    StoreDirectory,
    attach_error,
    commit_error,
    create_directory,
    data_file_identity,
    lock_directory,
    open_directory,
    open_environment,
    open_error,
    open_snapshot,
    read_version,
    remove_store_files,
    require_whole_pages,
)
from ckptfs.store.disk_space import StoreSpace
from ckptfs.store.epochs import Lineage, View, alone, view_of
from ckptfs.store.forks import Fork, Forks
from ckptfs.store.heap import Heap, HeapFailed
from ckptfs.store.journal import SIZE_MAX as JOURNAL_MAX
from ckptfs.store.journal import Journal
from ckptfs.store.metadata import Counters, IdAllocator, LedgerTable, Metadata
from ckptfs.store.packed import PackedRecords
from ckptfs.store.pages import Pages
from ckptfs.store.pending import Pending
from ckptfs.store.snapshot import NO_READER, SnapshotReader, SnapshotReaders
from ckptfs.store.tables import ByEpoch, Changes, Plain, Versioned
from ckptfs.store.transaction import Failed, Noting

if TYPE_CHECKING:
    from ckptfs.store.transaction import Records, Transaction

#: A reservation of addresses, not of disk: without LMDB's writemap it costs nothing.
MAP_SIZE = 1 << 40

#: How much may wait for a commit, as counted against the disk.
DIRTY_BYTES_MAX = 64 << 20
#: How much of this process's memory that may take: a block of which four bytes change counts as a
#: few KiB against the disk, and is in memory as a whole.
MEMORY_MAX = 96 << 20

#: Beyond this much of the map in this process's memory, `trim` lets it go.
_RESIDENT_MAX = 64 << 20

#: What stores have open to write, until they are closed. LMDB's lock belongs to the thread that
#: began a transaction, and is in a list of that thread. If a store that nobody closed were
#: collected in another one, the lock would be unmapped and stay in that list, through which the
#: thread's next commit, of whatever store, would write.
_open: dict[object, tuple[lmdb.Environment, Transaction]] = {}


class Store:
    """An open store. ``heads`` are the views that may be written, by line."""

    def __init__(
        self, directory: StoreDirectory, env: lmdb.Environment, *, read_only: bool = False
    ) -> None:
        #: It is another process's, and shows what that committed last.
        self.read_only = read_only
        #: The store by its name, for messages and for other processes.
        self.path = path = directory.path
        #: The same directory for everything that is opened in it: the one that was checked.
        self.files = files = directory.files
        self._data_file = os.fsencode(files / DATA_FILE)
        self._directory = directory
        self._env = env
        self._key = object()
        self._open_space()
        self.ids = IdAllocator()
        self.new_ino, self.new_content = self.ids.new_ino, self.ids.new_content
        self._open_tables()
        self.pending = Pending()
        self._register()
        self._readers = SnapshotReaders()
        self.forks = Forks(self.metadata)
        #: Which file the data file is, and whether it is known to be gone.
        self._identity = data_file_identity(path)
        self._abandoned = False
        self._journal = Journal(files)
        #: The copy of the data file that is being made.
        self._copy: compaction.Copy | None = None
        #: The number of the last commit when the data file was new.
        self._fresh_commits = -1
        #: Held while the environment is another one: a backup comes in a thread of its own.
        self._exchanging = threading.Lock()
        self._open_lineage()
        self._counters = Counters(self._meta, path)
        #: What `_flush_counters` put last.
        self._kept_numbers: tuple[tuple[bytes, int], ...] = ()
        #: By line, how many inodes the record of what is kept out of history counts.
        self._counted_excluded: dict[int, int] = {}
        self._begin()
        try:
            self.packed.look()
            #: Whether any extended attribute was ever set: most workspaces have none to look for.
            self.xattrs_used = next(self.xattrs.versions(b""), None) is not None
        except BaseException:  # the caller closes the environment
            _open.pop(self._key, None)
            raise

    def _open_space(self) -> None:
        """The budget's functions are called before and while something is written."""
        self._space = space = StoreSpace(self.path, self.files / DATA_FILE)
        self._budget = budget = space.budget
        self.note, self.note_space = budget.note, budget.note_space
        self.charge, self.require, self.has_space = budget.charge, budget.require, budget.has_space
        self.place = budget.place
        self.statvfs, self.disk_bytes = space.disk.statvfs, space.disk.size
        self.reusable_bytes = space.reusable_bytes
        self.free_bytes, self.spare_bytes = space.free_bytes, space.spare_bytes

    def _open_tables(self) -> None:
        self._dbs = dbs = {name: self._env.open_db(name) for name in fmt.TABLES}
        plain = {name: Plain(dbs[name]) for name in fmt.UNVERSIONED}
        self._meta = plain[b"meta"]
        self._epochs = plain[b"epochs"]
        self.packed = PackedRecords(plain[b"rest"], self.note)
        #: Two tables whose records may be packed, besides the versioned ones.
        self.by_epoch = (
            ByEpoch(plain[b"changes"], b"c", self.packed),
            ByEpoch(plain[b"authors"], b"a", self.packed),
        )
        changes, self.authors = self.by_epoch
        self.changes = Changes(changes)
        self.orphans = plain[b"orphans"]
        self.borders = plain[b"borders"]
        #: By line, the view of what it keeps out of history, once there is such a thing.
        self.excluded_views: dict[int, View] = {}
        self.fragments = JournalFragments(plain[b"pieces"])
        self.metadata = Metadata(plain[b"facts"], self.note)
        self.ledger = LedgerTable(plain[b"below"], self.note)
        self._map = memory_map.MemoryMap(self.path / DATA_FILE)
        self.heap = Heap(self.files, self.ids, plain[b"freed"], self._space.spare)
        self.blocks = Blocks(plain[b"blocks"], plain[b"refs"], self.heap, self._map.expect_blocks)
        #: Called before bytes of files are read, in blocks or not.
        self.expect_blocks = self._map.expect_blocks
        self.inodes = Versioned(dbs[b"inodes"], b"i", self.changes, self.packed)
        self.dirents = Versioned(dbs[b"dirents"], b"d", self.changes, self.packed)
        self.links = Versioned(dbs[b"links"], b"l", self.changes, self.packed)
        self.blockmap = Versioned(dbs[b"blockmap"], b"b", self.changes, self.packed)
        self.xattrs = Versioned(dbs[b"xattrs"], b"x", self.changes, self.packed)
        self._tables: tuple[Plain | Versioned, ...] = (
            self.inodes,
            self.dirents,
            self.links,
            self.blockmap,
            self.xattrs,
            *plain.values(),
        )

    def _open_lineage(self) -> None:
        self._lineage = lineage = Lineage(self._epochs, self.ids, self._budget.mark)
        self.epoch_tree, self.epochs = lineage.tree, lineage.records
        self.heads = lineage.heads
        self.open_epoch, self.seal_epoch = lineage.open, lineage.seal
        self.describe_epoch, self.recount_epoch = lineage.describe, lineage.recount
        self.remove_epoch, self.view = lineage.remove, lineage.view

    @classmethod
    def create(cls, path: Path, *, map_size: int = MAP_SIZE) -> Store:
        """Make a new store at a path that is absent or an empty directory."""
        store = cls._attach(create_directory(path), map_size)
        try:
            store._meta.put(fmt.META_FORMAT, fmt.pack_u32(fmt.FORMAT_VERSION))
            store.set_head(MAIN_LINE, store.open_epoch(fmt.NO_EPOCH, inodes=0))
            store.commit()
            compaction.sync(store.files)  # the names of its files, and then its own
            with contextlib.suppress(PermissionError):  # it may be searched, not listed
                compaction.sync(path.parent)
        except BaseException:
            store.close(commit=False)
            raise
        store._check_reads()
        return store

    @classmethod
    def open(cls, path: Path, *, map_size: int = MAP_SIZE, verify: bool = False) -> Store:
        """Open a store. With ``verify`` every page of its tree is looked at first: a damaged one
        could end the process later."""
        directory = open_directory(path)
        try:
            version = read_version(directory)
            if version not in fmt.READABLE_FORMATS:
                raise errors.StoreVersionUnknown(path, version, fmt.FORMAT_VERSION)
            lock_directory(directory)
            if verify:
                require_whole_pages(directory)
        except BaseException:
            directory.close()
            raise
        store = cls._attach(directory, map_size)
        try:
            store._load()
        except (struct.error, LookupError, ValueError) as error:
            store.close(commit=False)
            raise errors.StoreCorrupt(path, "its numbers and epochs make no sense") from error
        except OSError as error:
            store.close(commit=False)
            raise open_error(path, error) from error
        except BaseException:
            store.close(commit=False)
            raise
        store._check_reads()
        return store

    @classmethod
    def open_snapshot(cls, path: Path, directory_fd: int) -> Store:
        """What the process that has the store open committed last, to read only: nothing is locked
        or written. That process holds the snapshot (`hold_snapshot`) and handed over its descriptor
        of the directory, so these are the files that it has."""
        directory = StoreDirectory(path, directory_fd)
        try:
            env = open_snapshot(directory.files, len(fmt.TABLES))
            store = cls(directory, env, read_only=True)
            store._load()
        except (lmdb.Error, OSError) as error:
            raise attach_error(path, error) from error
        except (struct.error, LookupError, ValueError) as error:
            raise errors.StoreCorrupt(path, "its numbers and epochs make no sense") from error
        return store

    @property
    def directory_fd(self) -> int:
        """A descriptor of the store's directory, for `open_snapshot` in another process."""
        return self._directory.fd

    @classmethod
    def _attach(cls, directory: StoreDirectory, map_size: int) -> Store:
        files = directory.files
        with contextlib.ExitStack() as undo:
            undo.callback(directory.close)
            try:
                compaction.remove_leftover(files / DATA_FILE)
                env = open_environment(files, map_size, len(fmt.TABLES))
                undo.callback(env.close)
                journal_format.replay(files, env, fmt.TABLES)
                store = cls(directory, env)
            except (journal_format.JournalDamaged, lmdb.Error, OSError) as error:
                raise attach_error(directory.path, error) from error
            undo.pop_all()
        return store

    def allow_two_bases(self) -> None:
        """To be called before a block becomes a difference from two others: releases that do not
        know such blocks would take them for damage, so from here on they refuse the store. That is
        on disk before the first of them is."""
        version = self._meta.get(fmt.META_FORMAT)
        if version is None or fmt.unpack_u32(version) < fmt.FORMAT_TWO_BASES:
            self.note()
            self._meta.put(fmt.META_FORMAT, fmt.pack_u32(fmt.FORMAT_TWO_BASES))
            self.commit()

    def _load(self) -> None:
        numbers, kept = self.ids, self._counters
        kept.require_known_names()
        numbers.ino = kept.get(fmt.NEXT_INO)
        numbers.content = kept.get(fmt.NEXT_CONTENT)
        numbers.epoch = kept.get(fmt.NEXT_EPOCH)
        numbers.slot = kept.get(fmt.NEXT_SLOT)
        for key, value in self._epochs.walk():
            epoch, record = Epoch(fmt.unpack_u32(key)), fmt.unpack_epoch(value)
            if fmt.is_excluded(epoch):
                found = alone(epoch, writable=True, inodes=record.inodes)
                self.excluded_views[fmt.EXCLUDED_EPOCH - epoch] = found
            else:
                self.epoch_tree.put(epoch, record)
        self.set_head(MAIN_LINE, view_of(self.epochs, Epoch(kept.get(fmt.HEAD))))
        self._load_forks()
        anchor = Epoch(kept.get(fmt.ANCHOR))
        self.packed.anchor = fmt.suffix_of(anchor) if anchor in self.epochs else b""
        self._require_numbers()
        self.metadata.require_counters(self.path)
        self.heap.look(read_only=self.read_only)
        if not self.read_only:
            replay_fragments(self)

    def _load_forks(self) -> None:
        count = self._counters.find(fmt.FORKS)
        if count:
            self.forks.load()
        if len(self.forks) != count:
            raise errors.StoreCorrupt(self.path, "the record of a fork is missing")
        for fork in self.forks:
            self.heads[fork.number] = head = self._lineage.view(fork.head)
            if fork.number in self.excluded_views:
                head.lead()
                head.see_excluded(self.excluded_views[fork.number])
        self._note_fork_anchors()

    def _require_numbers(self) -> None:
        """A number that was given out must not be given out again, nor a checkpoint be written."""
        if not all(head.writable for head in self.heads.values()):
            raise errors.StoreCorrupt(self.path, "its numbers make no sense: the head is sealed")
        self._counters.require_above(fmt.NEXT_INO, self._last(b"i"))
        self._counters.require_above(fmt.NEXT_CONTENT, self._last(b"b"))
        self._counters.require_above(fmt.NEXT_EPOCH, max(self.epochs))

    def _last(self, kind: bytes) -> int:
        """The highest number that the keys of a table, or of a packed chunk, begin with."""
        with contextlib.closing(self._txn.cursor(self._dbs[fmt.VERSIONED[kind]])) as cursor:
            standing = cursor.item()[0] if cursor.last() else bytes(8)
        return fmt.unpack_u64(max(standing, self.packed.last(kind))[:8])

    @property
    def head(self) -> View:
        """The main line's, for this package alone: other layers know whose head they mean."""
        return self.heads[MAIN_LINE]

    @property
    def head_epochs(self) -> set[Epoch]:
        return {head.epoch for head in self.heads.values()}

    def set_head(self, line: int, view: View) -> None:
        """Let a line go on in a view."""
        view.lead()
        if line in self.excluded_views:
            view.see_excluded(self.excluded_views[line])
        self.heads[line] = view
        if line != MAIN_LINE:
            self.forks.put(self.forks[line]._replace(head=view.epoch))
        self._readers.goes_on(line, view)

    def add_fork(
        self,
        name: str,
        base: Epoch,
        time_ns: int,
        *,
        at: str = "",
        without: tuple[str, ...] = (),
    ) -> Fork:
        """A second head below a sealed epoch. Costs the same whatever the tree's size."""
        number = self.forks.next_number()
        view = self.open_epoch(base, inodes=self.view(base).inodes)
        fork = Fork(number, name, view.epoch, base, time_ns, at, without)
        self.forks.put(fork)
        self.heads[number] = view
        return fork

    def end_fork(self, number: int) -> None:
        """Forget a fork, whose head is sealed. Nothing may use its file system any more."""
        self.attach_reader(NO_READER, number)
        del self.heads[number]
        self.forks.remove(number)
        self._note_fork_anchors()
        self.pending.forget(number)

    @property
    def excluded(self) -> View | None:
        """What the main line keeps out of history."""
        return self.excluded_views.get(MAIN_LINE)

    def open_excluded(self, line: int = MAIN_LINE) -> View:
        """The epoch of what a line keeps out of history; from now on its head sees it."""
        found = self.excluded_views.get(line)
        if found is None:
            self._readers.invalidate(line)
            self._put_excluded(line, 0)
            found = self.excluded_views[line] = alone(fmt.excluded_epoch(line), writable=True)
            self.heads[line].lead()
            self.heads[line].see_excluded(found)
        return found

    def close_excluded(self, line: int) -> None:
        """A fork goes, and what it kept out of history is gone."""
        if self.excluded_views.pop(line, None) is not None:
            self.dirty = True
            self._counted_excluded.pop(line, None)
            self._epochs.delete(fmt.pack_u32(fmt.excluded_epoch(line)))

    def _put_excluded(self, line: int, inodes: int) -> None:
        self.dirty = True
        record = fmt.EpochRecord(fmt.NO_EPOCH, sealed=False, inodes=inodes, info={})
        self._epochs.put(fmt.pack_u32(fmt.excluded_epoch(line)), fmt.pack_epoch(record))

    @property
    def anchor(self) -> Epoch:
        """The epoch of whose view nothing is packed (ckptfs.store.packed), if there is one."""
        return fmt.epoch_of(self.packed.anchor) if self.packed.anchor else fmt.NO_EPOCH

    @anchor.setter
    def anchor(self, epoch: Epoch) -> None:
        self.dirty = True
        self.packed.anchor = fmt.suffix_of(epoch) if epoch != fmt.NO_EPOCH else b""
        self._counters.put(fmt.ANCHOR, epoch)

    def anchors(self) -> dict[int, Epoch]:
        """By line, the epoch of whose view nothing is packed, or none."""
        return {MAIN_LINE: self.anchor} | {fork.number: fork.anchor for fork in self.forks}

    def set_anchor(self, line: int, epoch: Epoch) -> None:
        if self.anchors()[line] == epoch:
            return
        if line == MAIN_LINE:
            self.anchor = epoch
        else:
            self.forks.put(self.forks[line]._replace(anchor=epoch))
            self._note_fork_anchors()

    def _note_fork_anchors(self) -> None:
        epochs = {fork.anchor for fork in self.forks} & self.epochs.keys()
        self.packed.fork_anchors = tuple(map(fmt.suffix_of, sorted(epochs, reverse=True)))

    # -- transactions -----------------------------------------------------------------------------

    def _begin(self) -> None:
        if self.read_only:
            self._txn = cast("Transaction", self._env.begin())
            for table in self._tables:
                table.bind(self._txn)
            self._space.begin(self._env, self._txn, self._dbs.values())
            return
        self._txn = cast("Transaction", self._env.begin(write=True))
        _open[self._key] = self._env, self._txn
        # After a commit that failed the journal has what was synced and is nowhere else.
        wanted = self._journal.wanted and not self._budget.failure
        if wanted and not self._space.has_plenty(JOURNAL_MAX):
            self._journal.try_to_discard()
        tables = tuple(self._dbs.values())
        writing: Records = self._txn
        if self._copy is not None:
            writing = Noting(writing, tables, self._copy.changed)
        writing = self._journal.begin(writing, tables, self._env)
        for table in self._tables:
            table.bind(writing)
        self._space.begin(self._env, self._txn, self._dbs.values())

    def commit(self) -> None:
        """Make everything so far durable: LMDB's own synced commit. Cheap when nothing changed.

        After one that failed there are no others: what comes next was done on top of what is lost.
        The store on disk is what the last good one made it; the next opening goes on from there.
        What a commit frees is usable after the next one, which therefore comes at once.
        """
        if self.read_only:
            return
        with self._failing():
            # Holes that took too long after the commit before.
            was_waiting = self.heap.is_waiting
            if self._space.wants_another_commit() or was_waiting:
                self._budget.mark()
            self.pending.flush()
            if not self.dirty:
                return
            self._commit()
            frees = self.heap.is_waiting and not was_waiting
            if frees or self._space.wants_another_commit():
                self._budget.mark()
                self.pending.flush()
                self._commit()
        self._refresh_readers()

    def _commit(self) -> None:
        if self._space.wants_another_commit():
            self._meta.put(fmt.META_FORMAT, self._meta.get(fmt.META_FORMAT) or b"")
        self.heap.flush()
        if not self._readers.main.free_is_whole():
            self._txn.abort()
            raise lmdb.CorruptedError("a list of free pages is not what was committed")
        self._txn.commit()
        self._follow()
        self.blocks.committed()
        self._space.disk.written(self.dirty_bytes)
        self.heap.committed(at_once=self._space.is_nearly_full)
        self._begin()

    def attach_reader(self, reader: SnapshotReader, line: int = MAIN_LINE) -> None:
        """Let a reader follow the last commit of a line, and what changes after it. Everything must
        be committed. That of the main line has the pages of the file verified, too."""
        self._readers.put(line, reader)
        self.dirents.mark_changes(self._readers.touch())
        self.inodes.mark_changes(self._readers.touch())
        if line == MAIN_LINE:
            reader.guard(fmt.TABLES, fmt.CorruptRecord, self._refuse_changes)
            for place, table in enumerate(self._tables):
                table.guard(place, reader)
            self._follow()
        if reader is not NO_READER:
            self._refresh_reader(line)

    def _follow(self) -> None:
        """Have it known what the pages of the last commit are."""
        if not self._readers.main.committed(self._data_file):
            raise lmdb.CorruptedError("a page was damaged before it was copied")

    def _refuse_changes(self) -> None:
        """A page is damaged in which something was to be changed. The operation may be half done,
        so nothing is committed any more."""
        reason = "a page that was to be changed is not what was committed"
        self._budget.fail(self._budget.failure or errors.StoreCorrupt(self.path, reason))
        self._readers.invalidate_all()

    def _refresh_readers(self) -> None:
        for line in self._readers.lines():
            self._refresh_reader(line)

    def _refresh_reader(self, line: int) -> None:
        """Not where the head sees more than what its own tables have."""
        head = self.heads[line]
        if head.excluded is not None or (self.packed.used and self.packed.concerns(head)):
            self._readers.invalidate(line)
        else:
            self._readers.refresh(line, head, self._data_file)

    def sync(self) -> bool:
        """The same as `commit` to the caller, and quicker if called again and again: what changed
        goes into the journal, and a commit comes later. False if only a commit will do, which the
        caller has to see to."""
        with self._failing():
            (self.pending.log if self._journal.is_open else self.pending.flush)()
            if not self.dirty:
                return True
            self.heap.flush()
            if self._journal.append():
                return True
            if self._journal.want():
                self._meta.put(fmt.META_JOURNAL, fmt.pack_journal_key(self._journal.key))
        return False

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """What LMDB or the heap cannot do ends everything: from then on nothing is accepted, and
        nothing is read either: what is committed is older than what was read before."""
        if self._budget.failure is not None:
            raise self._budget.failure
        if not self._abandoned and self._is_gone():
            raise errors.StoreGone(self.path)
        try:
            yield
        except (lmdb.Error, HeapFailed) as error:
            failure = commit_error(self.path, error)
            self._budget.fail(failure)
            self._readers.invalidate_all()
            with contextlib.suppress(lmdb.Error):
                self._begin()
            for table in self._tables:
                table.bind(Failed(failure))
            raise failure from error

    def _is_gone(self) -> bool:
        """Whether the data file was deleted or moved away: the next opening would not find what is
        written to it."""
        return data_file_identity(self.path) != self._identity

    @property
    def failed(self) -> bool:
        """Whether nothing can be written, or read, any more."""
        return self._budget.failure is not None

    @property
    def is_missing(self) -> bool:
        """Whether a request was refused since the store is gone: the next commit says so."""
        return self._space.disk.is_missing

    def abandon(self) -> None:
        """Go on with a store that is gone, to bring away what it has: nothing lasts any more."""
        self._abandoned = True
        self._space.disk.abandon()

    @property
    def commits(self) -> int:
        """The number of the last commit: as long as it stays the same nothing was committed."""
        return int(self._env.info()["last_txnid"])

    def _register(self) -> None:
        """The buffers of the store itself; `ckptfs.fs` has its own."""
        register = self.pending.register
        register(pending.COUNTERS, self._flush_counters, holds=self._holds_counter)
        register(pending.PACKED_RECORDS, self.packed.flush, holds=self.packed.holds)
        register(pending.LEDGER, self.ledger.flush, holds=self.ledger.holds)
        register(pending.FREED_SLOTS, self._flush_freed)

    def _check_reads(self) -> None:
        """In tests: have a read past a buffer raise."""
        if pending.is_checked():
            tables = dict(zip(fmt.TABLES, self._tables, strict=True))
            pending.check_reads(self.pending, tables, self.authors, self.changes)

    def _flush_freed(self) -> None:
        if self.dirty:
            self.heap.flush_freed()

    def _holds_counter(self, read: pending.Read) -> bool:
        """Whether the head's count of inodes, or a number that was given out, waits."""
        if read.table == "epochs":
            return any(
                self.epochs[head.epoch].inodes != head.inodes
                and read.asks_for(fmt.pack_u32(head.epoch))
                for head in self.heads.values()
            )
        return read.table == "meta" and any(
            read.asks_for(name) and self._counters.is_dirty(name, number)
            for name, number in self._numbered()
        )

    def _flush_counters(self) -> None:
        if not self.dirty:
            return
        for head in self.heads.values():
            record = self.epochs[head.epoch]
            if record.inodes != head.inodes:
                self._lineage.put(head.epoch, record._replace(inodes=head.inodes))
        if not self.forks and self._kept_numbers and self._kept_numbers[-1][0] == fmt.FORKS:
            self._counters.drop(fmt.FORKS)
        for line, excluded in self.excluded_views.items():
            if self._counted_excluded.get(line) != excluded.inodes:
                self._put_excluded(line, excluded.inodes)
                self._counted_excluded[line] = excluded.inodes
        numbers = self._numbered()
        if numbers != self._kept_numbers:
            for name, number in numbers:
                self._counters.put(name, number)
            self._kept_numbers = numbers

    def _numbered(self) -> tuple[tuple[bytes, int], ...]:
        return (
            (fmt.NEXT_INO, self.ids.ino),
            (fmt.NEXT_CONTENT, self.ids.content),
            (fmt.NEXT_EPOCH, self.ids.epoch),
            (fmt.HEAD, self.head.epoch),
            (fmt.ANCHOR, self.anchor),
            (fmt.NEXT_SLOT, self.ids.slot),
            *([(fmt.FORKS, len(self.forks))] if self.forks else []),
        )

    def close(self, *, commit: bool = True) -> None:
        """In the thread that opened it."""
        committed = False
        with contextlib.ExitStack() as ends:  # whatever becomes of one, the others end, too
            ends.callback(self._directory.close)
            ends.callback(lambda: self.heap.close(committed=committed))
            ends.callback(lambda: self._journal.close(committed=committed))
            ends.callback(_open.pop, self._key, None)
            ends.callback(lambda: self._env.close())
            ends.callback(lambda: self._txn.abort())
            ends.callback(self._readers.detach)
            ends.callback(lambda: self.end_copy(self._copy))
            if commit:
                self.commit()
                committed = True

    def page_faults(self) -> list[str]:
        """What is wrong with the structure of the data file, as last committed."""
        with contextlib.closing(Pages(self.files / DATA_FILE)) as pages:
            return pages.faults()

    # -- the data file as a whole (ckptfs.store.data_file) -----------------------------------------

    backup = data_file.backup
    hold_snapshot = data_file.hold_snapshot
    compact = data_file.compact
    outlook = data_file.outlook
    begin_copy = data_file.begin_copy
    end_copy = data_file.end_copy
    require_space_beside_copy = data_file.require_space_beside_copy
    verified = data_file.verified
    record = data_file.record
    prepare_copy = data_file.prepare_copy
    exchange = data_file.exchange
    reclaim = data_file.reclaim

    @property
    def is_read(self) -> bool:
        """Whether the data file must stay the same one: a snapshot of it is held."""
        return self._space.copies > 0

    @property
    def is_copied(self) -> bool:
        """Whether a copy of the data file is being made."""
        return self._copy is not None

    @property
    def awaits_readers(self) -> bool:
        """Whether a copy of the data file waits for those who read it, and goes before others."""
        return self._copy is not None and self._copy.goes_before_readers

    @property
    def is_fresh(self) -> bool:
        """Whether the data file has nothing but what is there: it was copied, and nothing was
        committed since the copying began."""
        return self.commits == self._fresh_commits

    # -- space ------------------------------------------------------------------------------------

    @property
    def dirty(self) -> bool:
        """Whether there is anything to commit."""
        return self._budget.dirty

    @dirty.setter
    def dirty(self, dirty: bool) -> None:
        self._budget.dirty = dirty

    @property
    def dirty_bytes(self) -> int:
        """What waits for the commit."""
        return self._budget.bytes

    @property
    def memory_bytes(self) -> int:
        """What waits for the commit, or for the transaction, as it is in memory: blocks."""
        return self.blocks.uncommitted_bytes + self.pending.size_bytes()

    @property
    def is_due(self) -> bool:
        """Whether so much waits that a commit should come before the next write."""
        return self.dirty_bytes > DIRTY_BYTES_MAX or self.memory_bytes > MEMORY_MAX

    @property
    def accepted_bytes(self) -> int:
        """What was accepted since the store was opened; equal bytes count each time."""
        return self._budget.accepted_bytes

    @property
    def pressed(self) -> bool:
        """Whether a commit should come before the next operation: the disk is nearly full."""
        return self._budget.pressed or self._space.wants_another_commit()

    def fail(self) -> None:
        """Something that was acknowledged could not be written: as after a failed commit, nothing
        more is."""
        self._budget.fail(self._budget.failure or errors.StoreUnwritten(self.path))

    @property
    def is_full(self) -> bool:
        """Whether a write of the largest size would be refused."""
        return self._space.is_full

    def size_bytes(self) -> int:
        """How much disk the store's files take."""
        return (self.files / DATA_FILE).stat().st_blocks * 512 + self.heap.size_bytes()

    def trim(self) -> None:
        """Keep the mapped file from counting as memory in use (ckptfs.store.memory_map)."""
        try:
            if memory_map.resident_file_bytes() > _RESIDENT_MAX:
                self._map.release()
                self._readers.release()
        except OSError as error:  # without a descriptor to spare for a look it is done later
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise

    def expect_records(self) -> None:
        """Called now and then while requests are served: most of them ask for records."""
        if not self._space.copies:
            self._map.expect_records()


@contextlib.contextmanager
def new_store(path: Path, *, keep: Callable[[], bool] = lambda: False) -> Iterator[Store]:
    """A new store, which is removed again if what follows fails or is interrupted, unless ``keep``
    says that it is in use by then."""
    existed = path.exists()
    store: Store | None = None
    try:
        with interrupts.deferred():  # nothing else would remove half a store
            store = Store.create(path)
        yield store
    except BaseException:
        if store is not None:
            with interrupts.deferred():
                store.close(commit=False)
                if not keep():
                    _remove(path, keep_directory=existed)
        raise
    store.close()


def _remove(path: Path, *, keep_directory: bool) -> None:
    with contextlib.suppress(OSError):
        if not remove_store_files(path) and not keep_directory:
            path.rmdir()
