"""The ledger: what the lower directory was when it last agreed with the store.

Owns the record behind every name of the lower directory, and its bytes in the store's `below`
table. Decides nothing and touches no file.

The ledger is a tree of its own, keyed by *our* directory inode and a name. It says where an inode
of the store stands in the lower directory; the store may have moved it since. A record holds both
sides of the last agreement, so that each side can be asked, without reading content, whether it
changed since.
"""

from __future__ import annotations

import os
import stat
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

from ckptfs.fs import Filesystem
from ckptfs.model import ROOT_INO, ContentId, Ino, Inode
from ckptfs.store import Store

# version | mode, uid, gid | inode number, size (or device number), mtime, ctime
_SIGNATURE = struct.Struct("<BIIIQQqq")
# ino, ctime, content of the inode in the store
_STORED = struct.Struct("<QqQ")
_BODY = struct.Struct("<BIIIQQqqQqQ")
SIGNATURE_SIZE = _SIGNATURE.size
DIGEST_SIZE = 16

VERSION = 1
#: Set in the version byte of a record that was made so soon after the file's last change that a
#: later change could have the same times: its signature does not prove that the file is unchanged.
_DOUBT = 0x80

#: How old a change must be for its times to tell it from a later one. Kernels before 6.13 stamp
#: files with the last timer tick, at most 10 ms ago.
RACY_NS = 20_000_000

#: In place of the store's ctime: the store has changed the inode since. No inode ever has this
#: ctime, so the next write-back looks at the entry.
NEVER = -1

#: In its place, too, for a directory that a scan has made in the store and not filled yet: its
#: attributes are still to be taken over.
UNFINISHED = -2

#: The directory and the name under which the root's own record stands; no inode is 0.
ROOT_PLACE = (Ino(0), b"/")


class Record(NamedTuple):
    """One agreement. The first fields are the lower entry, `ino` to `content` the inode that it
    stood for, `digest` and `xattrs` what both contained (empty for directories, and for none)."""

    mode: int
    uid: int
    gid: int
    lower_ino: int
    #: The device number instead, for a device node.
    size: int
    mtime_ns: int
    ctime_ns: int
    ino: Ino
    stored_ctime_ns: int
    content: ContentId
    digest: bytes
    xattrs: bytes
    doubtful: bool

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_partial(self) -> bool:
        """Whether the content, and then the attributes, were still coming in."""
        return self.ctime_ns == NEVER

    def is_of(self, inode: Inode) -> bool:
        """Whether the inode is still what it was at the agreement."""
        return (
            self.ino == inode.ino
            and self.stored_ctime_ns == inode.ctime_ns
            and self.content == inode.content
        )

    def matches(self, seen: os.stat_result) -> bool:
        """Whether the lower entry has the recorded attributes, doubtful or not."""
        return (
            self.mode == seen.st_mode
            and self.lower_ino == seen.st_ino
            and self.ctime_ns == seen.st_ctime_ns
            and self.mtime_ns == seen.st_mtime_ns
            and self.size == (seen.st_size or seen.st_rdev)
            and self.uid == seen.st_uid
            and self.gid == seen.st_gid
        )

    def is_directory(self, seen: os.stat_result) -> bool:
        """Whether this is the recorded directory, whatever changed in it. Where a file system does
        not keep inode numbers, unchanged times prove it: moving another directory to its place
        changes that one's ctime, which no program can set."""
        return stat.S_ISDIR(seen.st_mode) and (
            self.lower_ino == seen.st_ino
            or (self.ctime_ns, self.mtime_ns) == (seen.st_ctime_ns, seen.st_mtime_ns)
        )


def signature(seen: os.stat_result, version: int = VERSION) -> bytes:
    """The beginning of a record of this very entry."""
    return _SIGNATURE.pack(
        version,
        seen.st_mode,
        seen.st_uid,
        seen.st_gid,
        seen.st_ino,
        seen.st_size or seen.st_rdev,
        seen.st_mtime_ns,
        seen.st_ctime_ns,
    )


def _signature_at(seen: os.stat_result, now_ns: int | None) -> bytes:
    """`signature`, with doubt if the entry changed just before ``now_ns``."""
    doubtful = now_ns is not None and seen.st_ctime_ns > now_ns - RACY_NS
    return signature(seen, VERSION | _DOUBT if doubtful else VERSION)


def stored(inode: Inode) -> bytes:
    """What follows the signature in a record of an entry in agreement with this inode."""
    return _STORED.pack(inode.ino, inode.ctime_ns, inode.content)


STORED_SLICE = slice(SIGNATURE_SIZE, SIGNATURE_SIZE + _STORED.size)
_INO_SLICE = slice(SIGNATURE_SIZE, SIGNATURE_SIZE + 8)
_STORED_CTIME_SLICE = slice(SIGNATURE_SIZE + 8, SIGNATURE_SIZE + 16)
_NEVER = struct.pack("<q", NEVER)


def agreement(
    seen: os.stat_result,
    inode: Inode,
    *,
    digest: bytes = b"",
    xattrs: bytes = b"",
    clean: bool = True,
    finished: bool = True,
    key: Ino | None = None,
    now_ns: int | None = None,
) -> bytes:
    """The record of a lower entry that stands for an inode. Not ``clean``: the store has something
    else to write back. ``key`` is the directory's inode in the ledger if the store has another by
    now. ``now_ns`` is when the content was read."""
    ctime_ns = UNFINISHED if not finished else inode.ctime_ns if clean else NEVER
    stored = _STORED.pack(inode.ino if key is None else key, ctime_ns, inode.content)
    return _signature_at(seen, now_ns) + stored + digest + xattrs


def partial_record(seen: os.stat_result, inode: Inode) -> bytes:
    """The record of a file of which the store has only a part: the store counts as unchanged, and
    no lower entry matches it, so the next scan continues with the file."""
    value = agreement(seen, inode, digest=bytes(DIGEST_SIZE))
    record = decode(value)
    return value if record is None else encode(record._replace(ctime_ns=NEVER))


def doubted_if_recent(value: bytes, now_ns: int) -> bytes:
    """The record as made now: doubtful if the file changed just before."""
    if is_directory(value) or _SIGNATURE.unpack_from(value)[7] <= now_ns - RACY_NS:
        return value
    return bytes((VERSION | _DOUBT,)) + value[1:]


def seen_again(
    record: Record,
    seen: os.stat_result,
    *,
    digest: bytes = b"",
    xattrs: bytes = b"",
    now_ns: int | None = None,
) -> bytes:
    """The record with the lower entry as it is now; the store's side stays as recorded."""
    stored = _STORED.pack(record.ino, record.stored_ctime_ns, record.content)
    return _signature_at(seen, now_ns) + stored + digest + xattrs


def decode(value: bytes) -> Record | None:
    """The record, or None if its version is unknown or it is cut short. No agreement is the safe
    reading: then nothing is deleted, and nothing overwritten without comparing."""
    if len(value) < _BODY.size or value[0] & ~_DOUBT != VERSION:
        return None
    _, mode, uid, gid, lower_ino, size, mtime, ctime, ino, stored_ctime, content = (
        _BODY.unpack_from(value)
    )
    tail = value[_BODY.size :]
    split = 0 if stat.S_ISDIR(mode) else DIGEST_SIZE
    return Record(
        mode,
        uid,
        gid,
        lower_ino,
        size,
        mtime,
        ctime,
        ino,
        stored_ctime,
        content,
        tail[:split],
        tail[split:],
        bool(value[0] & _DOUBT),
    )


def encode(record: Record) -> bytes:
    return (
        _BODY.pack(
            VERSION | _DOUBT if record.doubtful else VERSION,
            *record[:10],
        )
        + record.digest
        + record.xattrs
    )


def is_directory(value: bytes) -> bool:
    return stat.S_ISDIR(int.from_bytes(value[1:5], "little"))


def ino_of(value: bytes) -> Ino:
    return Ino(int.from_bytes(value[_INO_SLICE], "little"))


class Ledger:
    """The records in the store's transaction; they are durable with the next commit."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._table = store.ledger
        #: Whether anything was put or forgotten.
        self.changed = False
        self._is_as_agreed = True
        #: Whether a record was put that is not in agreement: the store has something to write back.
        self.owes = False

    def get(self, directory: Ino, name: bytes) -> Record | None:
        value = self._table.get(directory, name)
        return None if value is None else decode(value)

    def children(self, directory: Ino, names: set[bytes] | None = None) -> dict[bytes, bytes]:
        """Name to undecoded record, of all names or of some: most are only compared."""
        if names is None:
            return dict(self._table.children(directory))
        found = ((name, self._table.get(directory, name)) for name in names)
        return {name: value for name, value in found if value is not None}

    def put(self, directory: Ino, name: bytes, value: bytes) -> None:
        self.changed = True
        if self._is_as_agreed:
            old = self._table.get(directory, name)
            if old is None or old[STORED_SLICE] != value[STORED_SLICE]:
                self._drop_note()
        self.owes = self.owes or value[_STORED_CTIME_SLICE] == _NEVER
        self._table.put(directory, name, value)

    def forget(self, directory: Ino, name: bytes) -> None:
        self._store.note()
        self.changed = True
        self._drop_note()
        self._table.delete(directory, name)

    def _drop_note(self) -> None:
        """The ledger has the store's side of an entry otherwise than the epoch with which it
        agreed: that ends in the same transaction. Once all is changed, `agreed` may note another.
        """
        if self._is_as_agreed:
            self._is_as_agreed = False
            self._store.metadata.put_agreed(None)

    def forget_tree(self, directory: Ino, name: bytes) -> None:
        """Forget an entry, and everything in it if it is a directory."""
        value = self._table.get(directory, name)
        self.forget(directory, name)
        doomed = [ino_of(value)] if value is not None and is_directory(value) else []
        if (directory, name) == ROOT_PLACE:
            # The root has a record of its own only once a scan has ended.
            doomed = [ROOT_INO]
        while doomed:
            parent = doomed.pop()
            for child, record in self.children(parent).items():
                self.forget(parent, child)
                if is_directory(record):
                    doomed.append(ino_of(record))

    def move(self, old: tuple[Ino, bytes], new: tuple[Ino, bytes], value: bytes) -> None:
        """The same entry under another name; a directory's children go with it by its inode."""
        self.forget(*old)
        self.put(*new, value)

    def adopt(self, old: Ino, new: Ino) -> None:
        """Move the records of one directory inode's entries to another."""
        for name, value in self.children(old).items():
            self.forget(old, name)
            self.put(new, name, value)

    def walk(self, root: Ino) -> Iterator[tuple[Ino, bytes, bytes]]:
        """(directory, name, undecoded record) of everything in ``root``."""
        waiting = [root]
        while waiting:
            directory = waiting.pop()
            for name, value in self._table.children(directory):
                if is_directory(value):
                    waiting.append(ino_of(value))
                yield directory, name, value


class EmptyLedger:
    """The ledger of a directory that is only read once, as an import does: nothing is recorded."""

    changed = owes = False

    def get(self, directory: Ino, name: bytes) -> Record | None:
        return None

    def children(self, directory: Ino, names: set[bytes] | None = None) -> dict[bytes, bytes]:
        return {}

    def put(self, directory: Ino, name: bytes, value: bytes) -> None:
        pass

    def forget(self, directory: Ino, name: bytes) -> None:
        pass

    def walk(self, root: Ino) -> Iterator[tuple[Ino, bytes, bytes]]:
        return iter(())


# -- the store's clock -----------------------------------------------------------------------------

# The ledger knows a change in the store by its ctime. With a coarse clock a change may come in the
# very tick of an agreement; it would look like the agreement, and never be written back.

_CLOCK_READS = 100
_BETWEEN_READS_S = 0.000_5


def wait_for_tick(fs: Filesystem) -> None:
    """Return when every later change has a later ctime than all before. A clock that stands still,
    as in a test, is not waited for."""
    start = fs.clock()
    for _ in range(_CLOCK_READS):
        if fs.clock() > start:
            return
        time.sleep(_BETWEEN_READS_S)
