"""The border between Python and the compiled server, written down once: what each side may call.

`Callbacks` is what C calls; `binding.Bound` provides it. `CompiledServer` is the server of one
mount, `ServerModule` the extension module. C calls by position and holds the interpreter's lock.
Callbacks fail with exceptions; `errno_of` turns them into the reply. Every buffer that C passes is
valid during the call only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from mmap import mmap
from typing import Protocol

from ckptfs.fs.buffers import PartialBlock, Piece
from ckptfs.fs.bulk import Create, InodeChange
from ckptfs.fuse.listings import Item
from ckptfs.model import Ino, Inode
from ckptfs.store import View
from ckptfs.store.blocks import Buffer
from ckptfs.store.snapshot import SnapshotReader

#: Number of the first new inode, end by the monotonic clock, bytes.
Lease = tuple[int, int, int]


class Callbacks(Protocol):
    """The file system as the server sees it. Nodes are FUSE node ids; times are nanoseconds."""

    #: Looked at without a call: nodes in use that have no name, nodes that a restore replaced while
    #: they were in use, the generations of numbers that a restore gave to other files, and by file
    #: and number the blocks in the partial-block buffer.
    unlinked: set[Ino]
    limbo: dict[Ino, View]
    generations: dict[Ino, int]
    #: Directories to compare with the lower directory before anything in them is shown.
    uncompared: Mapping[Ino, object]
    partial: dict[Ino, dict[int, PartialBlock]]
    #: Files whose size changed without a request.
    resized: set[Ino]

    # -- requests, as in `Requests` ---------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> Inode | None: ...
    def getattr(self, node: int) -> Inode: ...
    def setattr(
        self,
        node: int,
        mode: int | None,
        uid: int | None,
        gid: int | None,
        size: int | None,
        atime_ns: int | None,
        mtime_ns: int | None,
        ctime_ns: int | None,
        now: int,
        pid: int,
        keep_set_id: bool,
    ) -> Inode: ...
    def readlink(self, node: int) -> bytes: ...
    def mknod(
        self, parent: int, name: bytes, mode: int, rdev: int, pid: int, uid: int, gid: int
    ) -> Inode: ...
    def make_nameless(self, parent: int, mode: int, pid: int, uid: int, gid: int) -> Inode: ...
    def mkdir(self, parent: int, name: bytes, mode: int, pid: int, uid: int, gid: int) -> Inode: ...
    def symlink(
        self, parent: int, name: bytes, target: bytes, pid: int, uid: int, gid: int
    ) -> Inode: ...
    def link(self, node: int, parent: int, name: bytes, pid: int) -> Inode: ...
    def unlink(self, parent: int, name: bytes, pid: int) -> object: ...
    def rmdir(self, parent: int, name: bytes, pid: int) -> object: ...
    def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int, pid: int
    ) -> object: ...
    def read_pieces(self, node: int, offset: int, size: int) -> list[Buffer]: ...
    def write(self, node: int, offset: int, data: Buffer, pid: int, keep_set_id: bool) -> int: ...
    def allocate(
        self, node: int, offset: int, length: int, mode: int, pid: int, keep_set_id: bool
    ) -> object: ...
    def end_of(self, node: int, offset: int) -> int: ...
    def seek(self, node: int, offset: int, whence: int) -> int: ...
    def copy_range(
        self,
        node: int,
        offset: int,
        target: int,
        target_offset: int,
        length: int,
        pid: int,
        keep_set_id: bool,
    ) -> int: ...
    def sync(self) -> object: ...
    def forget(self, node: int) -> object: ...
    def entries(self, node: int, cookie: int) -> Iterator[tuple[bytes, Item, int]]: ...
    def adopt(self, node: int, stream: int, given: list[bytes]) -> object: ...

    # -- control files ----------------------------------------------------------------------------

    def control_read(self, node: int, offset: int, size: int, uid: int) -> Buffer: ...
    def control_write(self, node: int, offset: int, data: Buffer, uid: int, pid: int) -> int: ...
    def control_forget(self, node: int) -> object: ...

    # -- write-behind, as in `WriteBehind` --------------------------------------------------------

    def lease(self, pid: int) -> Lease | None: ...
    def joins(self, pid: int) -> bool: ...
    def names_version(self) -> object: ...
    def record(self, data: Buffer) -> bytes: ...
    def share_record(self, node: int, length: int) -> bytes | None: ...
    def flush(
        self, creates: list[Create], changes: list[InodeChange], makers: list[int], pid: int
    ) -> object: ...
    def link_flushed(
        self, node: int, parent: int, name: bytes, pid: int, time_ns: int
    ) -> object: ...
    def may_acknowledge(self, node: int, offset: int, size: int, pid: int) -> bool: ...
    def write_acknowledged(
        self, node: int, pieces: list[Piece], pid: int, time_ns: int, keep_set_id: bool
    ) -> object: ...
    def fail(self) -> object: ...

    # -- the gate, as in `hooks.Gate` -------------------------------------------------------------

    def compare(self, node: int) -> object: ...
    def compare_all(self) -> object: ...

    # -- what a server without libfuse has no handler for, as in `Fallback` -----------------------

    def other(
        self, opcode: int, unique: int, node: int, uid: int, pid: int, body: bytes
    ) -> bytes | None: ...

    def errno_of(self, error: BaseException) -> int: ...

    # -- the digests of what files hold, in the store and in the block map ------------------------

    def block_digest(self, data: Buffer, seed: int) -> bytes: ...
    def inline_digest(self, data: Buffer) -> bytes: ...


class CompiledServer(SnapshotReader, Protocol):
    """The server of one mount. A process may have several."""

    #: What `serve` returns.
    LEFT: int
    TURN: int
    ENDED: int

    def serve(self, fd: int, spin_ns: int, turn_ns: int, others: int) -> int:
        """Reply to requests, those of the companions included, until one is left to libfuse (LEFT),
        the mount of a companion ends (ENDED), or other tasks get their turn (TURN): the monotonic
        clock is past ``turn_ns``, or while no request comes something can be read from ``others``,
        a descriptor. Everything is flushed then."""

    def open(self, fd: int) -> object:
        """Reply to the requests of this FUSE descriptor, without libfuse, as a companion."""

    def join(self, other: CompiledServer) -> int:
        """Serve an open server in the same loop. The descriptor that is returned is readable while
        a companion has a request."""

    def part(self, other: CompiledServer) -> object:
        """Serve a companion no longer."""

    def reply(self, unique: int, error: int, body: bytes) -> object:
        """Reply to a request that `Callbacks.other` left for later."""

    def ended(self) -> bool:
        """Whether the kernel has ended the connection of an open server."""

    def close(self) -> object:
        """The mount is over: drop what belongs to it."""

    def hooked(self) -> bool:
        """Whether pyfuse3 comes here for its requests, and the kernel is new enough."""

    def requests(self) -> int:
        """How many requests were read here, for companions, too."""

    def set_priority(self, niceness: int, raised: int, has_session: bool) -> object:
        """The niceness of the thread that serves, and the one that it gets on a crowded machine;
        and with it the session of the process, if that is its own."""

    def leave_client(self) -> object:
        """Other tasks have their turn: the thread that serves may run on any CPU again, and after a
        pause of the requests it has its own priority, until the next one."""

    def is_referenced(self, node: int) -> bool:
        """Whether the kernel has looked up a live inode and not forgotten it."""

    def is_cached(self, node: int) -> bool:
        """Whether a listing may give no more than the number of a live inode."""

    def invalidate_inode(self, node: int) -> object:
        """A live inode is about to change or go."""

    def update_inode(self, inode: Inode) -> object:
        """A live inode has become this."""

    def close_gate(self) -> object:
        """Let changes wait, and have directories compared before they are shown."""

    def open_gate(self) -> object:
        """Everything is compared. What waited is answered with the next request."""

    def holds_changes(self) -> bool:
        """Whether a change waits for the gate."""

    def acknowledge(self) -> object:
        """The change that is being made can be refused no more: reply to the request, if there is
        one that can do with that."""

    def look_up(self, parent: int, name: bytes) -> tuple[int, ...] | bool | None:
        """A name in the committed snapshot; False if it is not there, None if that is not sure."""

    def names_in(self, directory: int) -> list[tuple[bytes, int]] | None:
        """The names of a directory in the committed snapshot; None if they are not sure."""

    def bytes_at(self, ino: int, offset: int, size: int) -> bytes | None:
        """Bytes of a file in the committed snapshot, those of one block; None if they are not
        sure."""


class ServerModule(Protocol):
    """The extension module."""

    #: Constants of both sides, by name; `binding.CONSTANTS` has Python's.
    CONSTANTS: dict[str, int]
    HISTORY_NAME: str
    FORKS_NAME: str
    Server: Callable[[Callbacks], CompiledServer]

    def decode_inode(
        self, ino: int, record: bytes
    ) -> tuple[tuple[int, ...], int, bytes] | None: ...

    def pass_unchanged(
        self, directory: int, known: dict[bytes, bytes], version: int
    ) -> tuple[int, list[bytes]]: ...

    def read_small(
        self, directory: int, name: bytes, limit: int
    ) -> tuple[tuple[int, ...], bytes, int] | None: ...

    def sound_ends(
        self, page: bytes, ordered: bool, end: int
    ) -> tuple[int, bytes, bytes, list[bytes]] | None: ...

    def sound_leaves(
        self, file: mmap, numbers: list[int], borders: list[bytes | None], end: int
    ) -> tuple[int, list[bytes]] | None: ...

    def overwrite(
        self,
        blocks: dict[int, PartialBlock],
        pieces: Sequence[Piece],
        unlogged: dict[PartialBlock, None],
    ) -> int: ...
