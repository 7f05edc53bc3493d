"""Write-behind: what the compiled server may acknowledge before the store has it, and its flush.

`pending.c` holds the pending creates. It needs from the file system a *lease*, under which a
process may make files, directories and links without asking, and `flush`, which puts them into the
workspace. Between a lease and the next `flush` nothing else changes the tree.
"""

from __future__ import annotations

from functools import partial
from operator import itemgetter
from time import monotonic_ns

from ckptfs.fs import Filesystem
from ckptfs.fs.buffers import Piece
from ckptfs.fs.bulk import Create, InodeChange
from ckptfs.fuse.hooks import Guard, bytes_lost, touching
from ckptfs.fuse.server.interface import Lease
from ckptfs.model import Ino
from ckptfs.store.blocks import Buffer

#: How many bytes of files one lease is for.
BYTES = 2 << 20
#: What must be free beyond those: the records of as many files as the server holds at once.
_RECORDS = 1 << 20

#: How many numbers one lease is for: as many as the server holds at once (PENDING_MAX).
_NUMBERS = 128

#: Where a create has its size.
_SIZE = 6
#: Where a change tells whether a program made it.
_IS_CHANGED = 8
#: How many records a create has.
_RECORDS_EACH = 5


class WriteBehind:
    def __init__(self, fs: Filesystem, guard: Guard) -> None:
        self._fs = fs
        self._guard = guard
        #: How many servers write to the store. With more than one, each leases numbers of its own.
        self.servers = 1
        #: The numbers of the last lease, from the first unused one to the end.
        self._numbers = range(0)

    def lease(self, pid: int) -> Lease | None:
        """For how long and for how much this process need not ask, or None. Not where some names
        are kept out of history, since each would have to be judged, nor while something lives on
        that a restore took away, since the two would have to be distinguished."""
        fs = self._fs
        if fs.head.excluded is not None or fs.limbo or pid in touching:
            return None
        if fs.store.is_due:
            fs.commit()
        until_ns = self._guard.lasting(pid)
        if until_ns <= monotonic_ns():
            return None
        if not fs.store.has_space((BYTES + _RECORDS) * self.servers):
            return None
        return self._first_number(), until_ns, BYTES

    def _first_number(self) -> int:
        """The first of the inode numbers that nothing else gives out before the flush. With one
        server they are the next ones: nothing else happens meanwhile."""
        ids = self._fs.store.ids
        self._return_numbers()
        first = ids.ino
        if self.servers > 1:
            ids.skip(first + _NUMBERS - 1, 0)
            self._numbers = range(first, ids.ino)
        return first

    def _return_numbers(self) -> None:
        """Numbers of the last lease were not used; they go back if none was given out since."""
        ids = self._fs.store.ids
        if self._numbers and self._numbers.stop == ids.ino:
            ids.ino = self._numbers.start
        self._numbers = range(0)

    def joins(self, pid: int) -> bool:
        """Whether the process acts together with the one that has the lease."""
        return self._guard.lasting(pid) > 0 and pid not in touching

    def names_version(self) -> tuple[int, int]:
        """As long as this is the same, no name has come into any directory."""
        return self._fs.head.epoch, self._fs.store.dirents.changed

    def record(self, data: Buffer) -> bytes:
        """Put the bytes of a file, at most one block, into the store ahead of the file; return what
        `flush` takes for them. Until then no file names them."""
        return self._fs.record_of(data)

    def flush(
        self,
        creates: list[Create],
        changes: list[InodeChange],
        makers: list[int],
        pid: int,
    ) -> None:
        """Put what was made under a lease into the workspace, and what changed of the attributes
        of inodes that were there before. ``makers`` are the processes that made each of them."""
        fs = self._fs
        self._guard(pid, None)
        view = fs.head
        if creates:
            self._use_numbers(creates[-1][0])
            size = sum(map(itemgetter(_SIZE), creates))
            fs.store.note_space(size, _RECORDS_EACH * len(creates))
            fs.insert_all(view, creates)
            self._guard.made_all([create[0] for create in creates], makers)
        for change in changes:
            fs.apply_attributes(view, change)
            if change[_IS_CHANGED]:
                self._guard.made(change[0], content=False)

    def _use_numbers(self, last: int) -> None:
        self._numbers = range(max(self._numbers.start, last + 1), self._numbers.stop)
        self._return_numbers()
        self._fs.store.ids.skip(last, 0)

    def may_acknowledge(self, node: int, offset: int, size: int, pid: int) -> bool:
        """Whether a process goes on with whole blocks behind the end of a file that it was writing
        to, and that cannot fail: so it may be acknowledged first."""
        fs = self._fs
        if fs.head.excluded is not None or fs.limbo or pid in touching:
            return False
        if not self._guard.is_writing(node, pid) or fs.store.is_due:
            return False
        inode = fs.getattr(fs.head, Ino(node))
        return inode.is_file and inode.size == offset and fs.store.has_space(size + _RECORDS)

    def write_acknowledged(
        self, node: int, pieces: list[Piece], pid: int, time_ns: int, keep_set_id: bool
    ) -> None:
        """Go on with a process's writes to a file: no beginning of anything. The last one was
        acknowledged at ``time_ns``."""
        fs = self._fs
        first = min([offset for offset, _ in pieces])
        overwritten = partial(bytes_lost, fs, fs.head, Ino(node), first, in_place=True)
        self._guard(pid, overwritten, begins=False)
        fs.write_pieces(fs.head, Ino(node), pieces, keep_set_id=keep_set_id, now_ns=time_ns)
        self._guard.made(node)

    def link_flushed(self, node: int, parent: int, name: bytes, pid: int, time_ns: int) -> None:
        """Link a file that was flushed, with the time of change that was acknowledged."""
        self._guard(pid, None)
        self._fs.link(self._fs.head, Ino(node), Ino(parent), name, time_ns)
        self._guard.made(node, content=False)

    def fail(self) -> None:
        """Something that was acknowledged could not be put into the workspace: better to stop than
        to go on without it."""
        self._fs.store.fail()
