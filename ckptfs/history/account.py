"""Where the bytes of a store's files are: all of them, so that people see what takes room, and what
to do about it.

Each allocated byte is in one *part*. The bytes of files count once, however many files and
checkpoints share them: as the workspace's if it has them, else as those of a checkpoint that was
saved, else by the age of the newest automatic checkpoint that has them, else as those of moments.
Which checkpoints have a version is told by the epochs that wrote it and the next one; where history
has branches that is an estimate, the sum is not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import accumulate
from typing import NamedTuple

from ckptfs import interrupts
from ckptfs.fs import Filesystem
from ckptfs.history.checkpoints import Checkpoint, checkpoints
from ckptfs.history.retention import RetentionPolicy
from ckptfs.model import BLOCK_SIZE, NO_CONTENT, ContentId, Epoch, Ino
from ckptfs.store import Store
from ckptfs.store.directory import DATA_FILE
from ckptfs.store.disk_space import allocated_bytes
from ckptfs.store.format import (
    BLOCK_HEADER,
    NO_EPOCH,
    VERSIONED,
    epoch_of,
    unpack_inode,
    unpack_mapping,
    unpack_u64,
)
from ckptfs.store.heap import FILE as HEAP_FILE
from ckptfs.store.journal_format import FILE as JOURNAL_FILE
from ckptfs.store.pages import Pages, Usage
from ckptfs.store.tables import Versioned

_HOUR_NS = 3_600_000_000_000
_DAY_NS = 24 * _HOUR_NS

#: Parts with the bytes of files. Where several have the same block, it is of the first of these.
#: The ages are those of automatic checkpoints; *deleted* is what no checkpoint has any more.
LIVE, SAVED, HOUR, DAY, WEEK, OLDER, MOMENTS, DELETED = range(8)
_CONTENT = ("live", "saved", "hour", "day", "week", "older", "moments", "deleted")
_AGES = ((HOUR, _HOUR_NS), (DAY, _DAY_NS), (WEEK, 7 * _DAY_NS))
#: Tables that are parts, or belong to one, with all of their pages.
_WHOLE_TABLES = {
    b"changes": "history-records",
    b"authors": "history-records",
    b"epochs": "history-records",
    b"rest": "packed-records",
    b"below": "ledger",
}
#: All parts, in the order in which they are told.
PARTS = (
    *_CONTENT,
    "records",
    "history-records",
    "packed-records",
    "ledger",
    "overhead",
    "free",
    "heap-free",
    "journal",
    "log",
    "other",
)
_LOG_FILE = "ckptfs.log"

#: Later than every epoch: of what was not replaced.
_NEVER = Epoch(1 << 32)
#: In place of an epoch: of a content that the workspace has.
_STILL = Epoch(-1)

#: LMDB gives a record of more than about half a page pages of its own, after a header.
_OWN_PAGES_FROM = 2040
_NODE_BYTES, _PAGE_HEADER = 24, 16


class Part(NamedTuple):
    """Some of the store's bytes. ``rule`` says what makes them free: a setting, a verb, ``umount``,
    or ``itself`` where no more is needed than a little time; empty for what stays. ``latest_ns`` is
    when the last of them goes by that setting."""

    part: str
    bytes: int
    rule: str
    latest_ns: int | None


class Space(NamedTuple):
    """``live_bytes`` are what the workspace holds now, ``shared_bytes`` those of them that
    checkpoints hold too; ``history_bytes`` would go with all checkpoints. ``store_bytes`` are those
    of all files of the store, of which ``reclaimable_bytes`` are free and go back to the disk with
    `compact`. ``parts`` has all of them."""

    live_bytes: int
    shared_bytes: int
    history_bytes: int
    store_bytes: int
    reclaimable_bytes: int
    parts: list[Part]


def measure(fs: Filesystem, policy: RetentionPolicy | None = None) -> Space:
    """Reads all inodes and the whole block map: a second for a million blocks. Everything must be
    committed. ``policy`` is that by which checkpoints expire, if they do."""
    fs.flush()
    store = fs.store
    content = _Content(store, fs.clock())
    files = allocated_bytes(store.files)
    with closing(Pages(store.files / DATA_FILE)) as pages:
        usage = pages.usage()
    sums = _sums(store, usage, content, files)
    rules = _Rules(checkpoints(store), policy)
    parts = [Part(name, sums[name], *rules.of(name)) for name in PARTS]
    return Space(
        live_bytes=content.live_bytes,
        shared_bytes=content.shared_bytes,
        history_bytes=content.history_bytes,
        store_bytes=sum(files.values()),
        reclaimable_bytes=store.reusable_bytes(),
        parts=parts,
    )


def _sums(store: Store, usage: Usage, content: _Content, files: dict[str, int]) -> Counter[str]:
    """The bytes of each part."""
    sums: Counter[str] = Counter()
    for rank, name in enumerate(_CONTENT):
        sums[name] = content.in_data[rank]
    for table, name in _WHOLE_TABLES.items():
        sums[name] += usage.table_bytes(table)
    for versioned in (store.inodes, store.dirents, store.links, store.xattrs, store.blockmap):
        inline = content.inline_bytes if versioned is store.blockmap else 0
        size = usage.table_bytes(VERSIONED[versioned.kind]) - inline
        live = int(size * _live_share(store, versioned))
        sums["records"] += live
        sums["history-records"] += size - live
    used = usage.used_bytes()
    sums["overhead"] = used - sums.total()
    sums["free"] = files.get(DATA_FILE, 0) - used
    sums["heap-free"] = files.get(HEAP_FILE, 0) - sum(content.in_heap)
    for rank, name in enumerate(_CONTENT):
        sums[name] += content.in_heap[rank]
    sums["journal"], sums["log"] = files.get(JOURNAL_FILE, 0), files.get(_LOG_FILE, 0)
    known = (DATA_FILE, HEAP_FILE, JOURNAL_FILE, _LOG_FILE)
    sums["other"] = sum(size for name, size in files.items() if name not in known)
    for name in ("free", "heap-free"):
        if sums[name] < 0:  # a disk that compresses takes less than it is given
            sums["overhead"] += sums[name]
            sums[name] = 0
    return sums


def _live_share(store: Store, table: Versioned) -> float:
    """Which part of a table's records the workspace sees."""
    live = total = 0
    sight = _Sight(store)
    for entity, suffix, record in interrupts.checked(table.rows()):
        size = len(entity) + len(record) + _NODE_BYTES
        total += size
        if sight.is_live(entity, suffix):
            live += size if record else 0
    return live / total if total else 0.0


class _Sight:
    """Which versions the heads see. Those of an entity come one after the other, newest first."""

    def __init__(self, store: Store) -> None:
        self._heads = [head.seen for head in store.heads.values()]
        self._last = b""
        #: The heads that have seen no version of the last entity yet.
        self._waiting = self._heads

    def is_live(self, entity: bytes, suffix: bytes) -> bool:
        """Whether a head sees this version: the newest of those that it may see."""
        if entity != self._last:
            self._last, self._waiting = entity, self._heads
        waiting = [seen for seen in self._waiting if suffix not in seen]
        found = len(waiting) < len(self._waiting)
        self._waiting = waiting
        return found


# -- the bytes of files ----------------------------------------------------------------------------


class _Content:
    """What the files of the workspace and of history take, by rank: in the data file and in the
    heap."""

    def __init__(self, store: Store, now_ns: int) -> None:
        self.in_data, self.in_heap = [0] * len(_CONTENT), [0] * len(_CONTENT)
        self.live_bytes = self.shared_bytes = self.history_bytes = 0
        #: What is in records of the block map.
        self.inline_bytes = 0
        self._store = store
        self._holders = _Holders(checkpoints(store), now_ns)
        #: By block: its rank, whether the workspace has it and whether a checkpoint does.
        self._blocks: dict[bytes, tuple[int, bool, bool]] = {}
        self._ends = _ends(store)
        for entity, suffix, record, rank, is_live, is_past in self._versions():
            self._add(entity + suffix, record, rank, is_live, is_past)
        self._add_blocks()

    def _versions(self) -> Iterator[tuple[bytes, bytes, bytes, int, bool, bool]]:
        store, ends, holders = self._store, self._ends, self._holders
        open_suffixes = {head.suffix for head in store.heads.values()}
        open_suffixes.update(view.suffix for view in store.excluded_views.values())
        sight, last, newer = _Sight(store), b"", _NEVER
        for entity, suffix, record in interrupts.checked(store.blockmap.versions(b"")):
            if entity != last:
                last, newer = entity, _NEVER
            epoch, replaced = epoch_of(suffix), newer
            newer = epoch
            seen = sight.is_live(entity, suffix)
            if not record:
                continue
            end = ends.get(ContentId(unpack_u64(entity[:8])), NO_EPOCH)
            is_live = seen and end == _STILL
            rank = LIVE
            if not is_live:
                rank = holders.rank(epoch, replaced if end == _STILL else min(replaced, end))
            yield entity, suffix, record, rank, is_live, suffix not in open_suffixes

    def _add(self, key: bytes, record: bytes, rank: int, is_live: bool, is_past: bool) -> None:
        mapping = unpack_mapping(record)
        if mapping.key:
            first, was_live, was_past = self._blocks.get(mapping.key, (DELETED, False, False))
            both = min(first, rank), was_live or is_live, was_past or is_past
            self._blocks[mapping.key] = both
            return
        self._count(mapping.length, is_live, is_past)
        if not self._store.packed.used or self._store.blockmap.has_row(key):
            self.in_data[rank] += mapping.length
            self.inline_bytes += mapping.length

    def _count(self, size: int, is_live: bool, is_past: bool) -> None:
        self.live_bytes += size if is_live else 0
        self.shared_bytes += size if is_live and is_past else 0
        self.history_bytes += size if is_past and not is_live else 0

    def _add_blocks(self) -> None:
        blocks = self._store.blocks
        in_heap = {key for key, _ in blocks.slots()}
        packs, _ = blocks.by_pack()
        for key, size in interrupts.checked(blocks.sizes()):
            # What only other blocks refer to is there for history.
            rank, is_live, is_past = self._blocks.get(key, (OLDER, False, False))
            if key in in_heap:
                self.in_heap[rank] += BLOCK_SIZE
            elif key not in packs:
                self.in_data[rank] += size if blocks.pack_of(key) else _room(size)
            self._count(size, is_live, is_past)


def _room(size: int) -> int:
    """What a block takes in the data file: bytes of a page, or pages of its own."""
    record = BLOCK_HEADER + size
    if record + _NODE_BYTES < _OWN_PAGES_FROM:
        return size
    return -(-(record + _PAGE_HEADER) // 4096) * 4096


def _ends(store: Store) -> dict[ContentId, Epoch]:
    """By content, the epoch from which on its file has another one, or is gone."""
    ends: dict[ContentId, Epoch] = {}
    sight, last, newer = _Sight(store), b"", _NEVER
    for entity, suffix, record in interrupts.checked(store.inodes.versions(b"")):
        if entity != last:
            last, newer = entity, _NEVER
        seen = sight.is_live(entity, suffix)
        if record:
            content = unpack_inode(Ino(unpack_u64(entity)), record).content
            if seen and content != NO_CONTENT:
                ends[content] = _STILL
            else:
                ends.setdefault(content, newer)
        newer = epoch_of(suffix)
    return ends


class _Holders:
    """Which checkpoints have what was written in one epoch and replaced in another."""

    def __init__(self, known: Iterable[Checkpoint], now_ns: int) -> None:
        items = sorted(known, key=lambda item: item.epoch)
        self._epochs = [item.epoch for item in items]
        self._ranks = [_rank_by_age(now_ns - item.time_ns) for item in items]
        #: Up to each: how many stay whatever their age, and which is the newest that is no moment.
        self._saved = [0, *accumulate(bool(item.protection) for item in items)]
        shown = (-1 if item.is_moment else index for index, item in enumerate(items))
        self._shown = [-1, *accumulate(shown, max)]

    def rank(self, begin: Epoch, end: Epoch) -> int:
        first, behind = bisect_left(self._epochs, begin), bisect_left(self._epochs, end)
        if first >= behind:
            return DELETED
        if self._saved[behind] > self._saved[first]:
            return SAVED
        newest = self._shown[behind]
        return self._ranks[newest] if newest >= first else MOMENTS


def _rank_by_age(age_ns: int) -> int:
    return next((rank for rank, most_ns in _AGES if age_ns <= most_ns), OLDER)


# -- what makes them free --------------------------------------------------------------------------


class _Rules:
    """Which rule frees the bytes of a part, and when the last of them goes by it."""

    def __init__(self, known: list[Checkpoint], policy: RetentionPolicy | None) -> None:
        self._policy = policy
        self._moment_ns = max((item.time_ns for item in known if item.is_moment), default=None)
        open_ns = (item.time_ns for item in known if not item.is_moment and not item.protection)
        self._open_ns = max(open_ns, default=None)

    def of(self, part: str) -> tuple[str, int | None]:
        if part == "moments":
            return self._by_age("moments.keep", self._moment_ns, "moments_ns")
        if part in ("hour", "day", "week", "older"):
            return self._by_age("retention.daily", self._open_ns, "daily_ns")
        return _RULES.get(part, ""), None

    def _by_age(self, setting: str, newest_ns: int | None, age: str) -> tuple[str, int | None]:
        if self._policy is None:
            return "delete", None
        kept_ns: int = getattr(self._policy, age)
        return setting, None if newest_ns is None else newest_ns + kept_ns


_RULES = {
    "saved": "delete",
    "deleted": "itself",
    "history-records": "compact",
    "free": "compact",
    "heap-free": "itself",
    "journal": "umount",
}
