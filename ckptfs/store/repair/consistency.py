"""Consistency: make the records of a store fit each other again, and keep all that is whole.

After it every invariant of docs/FORMAT.md holds that can be made to hold. A file whose name is lost
gets back the one in its own record, or a name that says it was recovered. Bytes that are lost read
as an error from then on, never as something else. A checkpoint that still has a problem is hidden.
"""

from __future__ import annotations

import stat
import struct
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ckptfs.model import BLOCK_SIZE, FILE_SIZE_MAX, NO_CONTENT, ROOT_INO, Epoch, Ino, Inode, Place
from ckptfs.store import format as fmt
from ckptfs.store.blocks import LOST
from ckptfs.store.check import Problem, check, versioned
from ckptfs.store.repair.salvage import ino_of

if TYPE_CHECKING:
    from ckptfs.store.environment import Store
    from ckptfs.store.epochs import View
    from ckptfs.store.tables import Versioned

#: A file with more blocks than this is not searched for gaps.
_GAPS_MAX = 1 << 20

#: No store has given out such numbers.
_NUMBER_MAX = 1 << 62
_KINDS = (fmt.INLINE, fmt.REFERENCE)
#: Tables whose entities end in a name and a NUL.
_NAMED = (b"d", b"l", b"x")
_ENTITY_MIN = {b"i": 8, b"d": 10, b"l": 18, b"b": 16, b"x": 10}


def make_consistent(store: Store) -> list[Problem]:
    """Repair the records; the problems that are left. The caller commits."""
    store.note()
    _drop_nonsense(store)
    _notice_losses(store)
    _give_up_blocks(store)
    for epoch in sorted(_shown(store)):
        _View(store, store.view(epoch).bare).repair()
    _fix_orphans(store)
    _fix_numbers(store)
    _recount_blocks(store)
    _list_changes(store)
    problems = check(store, every_view=True)
    hide_broken(store, problems)
    return check(store) if problems else []


def _shown(store: Store) -> list[Epoch]:
    return [epoch for epoch, record in store.epochs.items() if record.info or not record.sealed]


def hide_broken(store: Store, problems: Iterable[Problem]) -> None:
    """Hide the checkpoints that still have a problem."""
    for epoch in {problem.epoch for problem in problems} - {fmt.NO_EPOCH}:
        if store.epochs[epoch].sealed:
            store.describe_epoch(epoch, {})


# -- records ---------------------------------------------------------------------------------------


def _drop_nonsense(store: Store) -> None:
    """Records that cannot be understood, or that belong to no epoch."""
    known = {*store.epochs, *(view.epoch for view in store.excluded_views.values())}
    for table in versioned(store):
        for entity, suffix, record in table.versions(b""):
            bad = len(suffix) != fmt.SUFFIX_SIZE or fmt.epoch_of(suffix) not in known
            bad = bad or not _is_entity(table, entity)
            if bad or not _makes_sense(table, record):
                whole = _healed(table, record)
                if bad or whole is None:
                    table.erase(entity + suffix)
                else:
                    table.rewrite(entity + suffix, whole)
    owners: dict[int, int] = {}
    for entity, suffix, record in store.inodes.versions(b""):
        content = fmt.unpack_inode(ino_of(entity), record).content if record else NO_CONTENT
        if content != NO_CONTENT and owners.setdefault(content, ino_of(entity)) != ino_of(entity):
            store.inodes.erase(entity + suffix)


def _is_entity(table: Versioned, entity: bytes) -> bool:
    """Whether a key can be one that was given to the table."""
    if len(entity) < _ENTITY_MIN[table.kind] or ino_of(entity) > _NUMBER_MAX:
        return False
    if table.kind == b"b":
        return len(entity) == 16 and fmt.block_number(entity) <= FILE_SIZE_MAX // BLOCK_SIZE
    return table.kind not in _NAMED or entity[-1] == 0


def _makes_sense(table: Versioned, record: bytes) -> bool:
    if not record:
        return True
    try:
        if table.kind == b"i":
            inode = fmt.unpack_inode(Ino(0), record)
            return stat.S_IFMT(inode.mode) != 0 and max(inode.content, inode.parent) <= _NUMBER_MAX
        if table.kind == b"d":
            return 0 < fmt.unpack_u64(record) <= _NUMBER_MAX
        if table.kind == b"b":
            return record[:1] in _KINDS and bool(fmt.unpack_mapping(record))
    except (struct.error, IndexError, ValueError):
        return False
    return record[:1] == fmt.PRESENT


def _healed(table: Versioned, record: bytes) -> bytes | None:
    """What an inode's record was before one bit of it flipped, if that is all."""
    if table.kind != b"i" or not record:
        return None
    whole = fmt.bit_corrected(record)
    return whole if whole is not None and _makes_sense(table, whole) else None


def _notice_losses(store: Store) -> None:
    """Where a change is listed and its record is lost, an older one would show through: what was
    changed is unknown from then on, and says so."""
    tables = {table.kind: table for table in versioned(store)}
    for epoch in store.epochs:
        view = store.view(epoch).bare
        for key in list(store.changes.walk(epoch)):
            table, entity = tables.get(key[:1]), key[1:]
            if table is None or len(entity) < _ENTITY_MIN[table.kind]:
                continue
            if table.own(view, entity) is None:
                table.rewrite(entity + view.suffix, _unknown(table, view, entity))


def _unknown(table: Versioned, view: View, entity: bytes) -> bytes:
    """What stands for a record that is lost: nothing, or bytes that cannot be read."""
    before = table.inherited(view, entity) if table.kind == b"b" else None
    return fmt.pack_reference(fmt.unpack_mapping(before).length, LOST) if before else fmt.GONE


def _give_up_blocks(store: Store) -> None:
    """Blocks that are damaged go; what names them says from then on that its bytes are lost."""
    blocks = store.blocks
    packs, order = blocks.by_pack()
    lengths = {key: len(blocks.read(key)) for key in order if blocks.is_whole(key)}
    for key in order:
        length_max = fmt.PACK_MAX if key in packs else BLOCK_SIZE
        if key not in lengths or lengths[key] > length_max:
            blocks.erase(key)
            lengths.pop(key, None)
    for entity, suffix, record in store.blockmap.versions(b""):
        mapping = fmt.unpack_mapping(record) if record else None
        if mapping is not None and not mapping.is_whole:
            store.blockmap.rewrite(entity + suffix, fmt.pack_reference(mapping.length, LOST))
        if mapping is None or not mapping.key:
            continue
        length = lengths.get(mapping.key)
        if length is None and mapping.key != LOST:
            lost = fmt.pack_reference(min(mapping.length, BLOCK_SIZE), LOST)
            store.blockmap.rewrite(entity + suffix, lost)
        elif length is not None and length != mapping.length:
            store.blockmap.rewrite(entity + suffix, fmt.pack_reference(length, mapping.key))


def _recount_blocks(store: Store) -> None:
    used: Counter[bytes] = Counter()
    for _, _, record in store.blockmap.versions(b""):
        if record and (key := fmt.unpack_mapping(record).key):
            used[key] += 1
    store.blocks.recount(used)


def _list_changes(store: Store) -> None:
    """`changes` follows from the records."""
    store.changes.clear()
    born: dict[bytes, Epoch] = {}
    for entity, _, record in store.inodes.versions(b""):
        if record:
            inode = fmt.unpack_inode(ino_of(entity), record)
            born[fmt.pack_u64(inode.content)] = inode.content_epoch
    for table in versioned(store):
        for entity, suffix, _ in table.versions(b""):
            epoch = fmt.epoch_of(suffix)
            if table is not store.blockmap or born.get(entity[:8]) != epoch:
                store.changes.add(epoch, table.kind, entity)


def _fix_orphans(store: Store) -> None:
    for key, _ in list(store.orphans.walk()):
        store.orphans.delete(key)
    for line, head in store.heads.items():
        for entity, record in store.inodes.walk(head, b""):
            inode = fmt.unpack_inode(ino_of(entity), record)
            if not inode.nlink and not inode.name:
                store.orphans.put(fmt.line_key(inode.ino, line), b"")


def _fix_numbers(store: Store) -> None:
    inodes, contents = [0], [0]
    for entity, _, record in store.inodes.versions(b""):
        inodes.append(ino_of(entity))
        if record:
            contents.append(fmt.unpack_inode(ino_of(entity), record).content)
    store.ids.skip(max(inodes), max(contents))


# -- one tree --------------------------------------------------------------------------------------


class _View:
    """One view; what is repaired in it is written at its own epoch."""

    def __init__(self, store: Store, view: View) -> None:
        self._store = store
        self._view = view
        self._inodes = {
            ino: fmt.unpack_inode(ino, record)
            for entity, record in store.inodes.walk(view, b"")
            if (ino := ino_of(entity))
        }
        self._names: dict[Place, Ino] = {}

    def repair(self) -> None:
        self._fix_root()
        self._fix_names()
        self._fix_directories()
        self._fix_links()
        self._fix_sizes()
        self._drop_xattrs()
        self._store.recount_epoch(self._view.epoch, len(self._inodes))

    def _save(self, inode: Inode) -> None:
        if self._inodes.get(inode.ino) != inode:
            self._inodes[inode.ino] = inode
            self._store.inodes.put(self._view, fmt.inode_entity(inode.ino), fmt.pack_inode(inode))

    def _fix_root(self) -> None:
        root = self._inodes.get(ROOT_INO)
        if root is None:
            numbers = [0] * (len(Inode._fields) - 4)
            self._save(Inode._make((ROOT_INO, stat.S_IFDIR | 0o755, *numbers, b"", b"")))
        elif not root.is_dir or root.name or root.parent:
            mode = stat.S_IFDIR | stat.S_IMODE(root.mode)
            self._save(root._replace(mode=mode, parent=Ino(0), name=b"", target=b""))

    def _fix_names(self) -> None:
        """Entries that stand in a directory and lead to something, one of them where the inode says
        that it is; an inode that lost all of its names gets one."""
        for entity, record in list(self._store.dirents.walk(self._view, b"")):
            place = (ino_of(entity), fmt.dirent_name(entity))
            ino = Ino(fmt.unpack_u64(record))
            parent = self._inodes.get(place[0])
            if ino in self._inodes and ino != ROOT_INO and parent is not None and parent.is_dir:
                self._names[place] = ino
            else:
                self._store.dirents.drop(self._view, entity)
        places = self._places()
        for ino, inode in list(self._inodes.items()):
            here = places.get(ino, [])
            if ino == ROOT_INO or (inode.parent, inode.name) in here:
                continue
            if here:
                self._save(inode._replace(parent=here[0][0], name=here[0][1]))
            elif inode.nlink:
                self._name(inode)

    def _places(self) -> dict[Ino, list[Place]]:
        found: dict[Ino, list[Place]] = {}
        for place, ino in self._names.items():
            found.setdefault(ino, []).append(place)
        return found

    def _name(self, inode: Inode) -> None:
        """Give a nameless inode the name in its record if that is free, else one in the root."""
        above = self._inodes.get(inode.parent)
        place = (inode.parent, inode.name)
        fits = inode.name and b"/" not in inode.name and b"\0" not in inode.name
        if not fits or above is None or not above.is_dir or place in self._names:
            place = (ROOT_INO, b"recovered-%d" % inode.ino)
        self._put_name(place, inode)

    def _put_name(self, place: Place, inode: Inode) -> None:
        self._names[place] = inode.ino
        self._store.dirents.put(self._view, fmt.dirent_entity(*place), fmt.pack_u64(inode.ino))
        self._save(inode._replace(parent=place[0], name=place[1]))

    def _drop_name(self, place: Place) -> None:
        del self._names[place]
        self._store.dirents.drop(self._view, fmt.dirent_entity(*place))

    def _fix_directories(self) -> None:
        """One name each, and a way up to the root."""
        for place, ino in list(self._names.items()):
            inode = self._inodes[ino]
            if inode.is_dir and (inode.parent, inode.name) != place:
                self._drop_name(place)
        for ino in list(self._inodes):
            inode = self._inodes[ino]
            if inode.is_dir and ino != ROOT_INO and inode.nlink and not self._reaches_root(ino):
                self._drop_name((inode.parent, inode.name))
                self._put_name((ROOT_INO, b"recovered-%d" % ino), inode)

    def _reaches_root(self, ino: Ino) -> bool:
        seen: set[Ino] = set()
        while ino != ROOT_INO:
            if ino in seen or ino not in self._inodes:
                return False
            seen.add(ino)
            ino = self._inodes[ino].parent
        return True

    def _fix_links(self) -> None:
        """`links` and the link counts follow from the names."""
        store, view = self._store, self._view
        places = self._places()
        wanted = {
            fmt.link_entity(ino, *place)
            for place, ino in self._names.items()
            if place != (self._inodes[ino].parent, self._inodes[ino].name)
        }
        for entity, _ in list(store.links.walk(view, b"")):
            if entity not in wanted:
                store.links.drop(view, entity)
            wanted.discard(entity)
        for entity in wanted:
            store.links.put(view, entity, fmt.PRESENT)
        subdirs = Counter(
            place[0] for place, ino in self._names.items() if self._inodes[ino].is_dir
        )
        for ino, inode in list(self._inodes.items()):
            if inode.is_dir:
                named = ino == ROOT_INO or ino in places
                self._save(inode._replace(nlink=2 + subdirs[ino] if named else 0))
            else:
                self._save(inode._replace(nlink=len(places.get(ino, []))))

    def _fix_sizes(self) -> None:
        held: Counter[int] = Counter()
        ends: dict[int, int] = {}
        for entity, record in self._store.blockmap.walk(self._view, b""):
            mapping, named = fmt.unpack_mapping(record), ino_of(entity)
            held[named] += mapping.length
            ends[named] = fmt.block_number(entity) * BLOCK_SIZE + mapping.length
        for inode in list(self._inodes.values()):
            if inode.is_file:
                content = inode.content
                size = max(inode.size, ends.get(content, 0)) if content else inode.size
                missed = self._fill_gaps(inode) if held[content] < inode.allocated else 0
                allocated = held[content] + missed if content else 0
                self._save(inode._replace(allocated=allocated, size=size))

    def _fill_gaps(self, inode: Inode) -> int:
        """The file once held more than there is: what looks like a hole may have been bytes."""
        if inode.content == NO_CONTENT or inode.size > _GAPS_MAX * BLOCK_SIZE:
            return 0
        filled = 0
        for number in range((inode.size + BLOCK_SIZE - 1) // BLOCK_SIZE):
            entity = fmt.block_entity(inode.content, number)
            if self._store.blockmap.get(self._view, entity) is None:
                length = min(BLOCK_SIZE, inode.size - number * BLOCK_SIZE)
                self._store.blockmap.put(self._view, entity, fmt.pack_reference(length, LOST))
                filled += length
        return filled

    def _drop_xattrs(self) -> None:
        for entity, _ in list(self._store.xattrs.walk(self._view, b"")):
            if ino_of(entity) not in self._inodes:
                self._store.xattrs.forget(self._view, entity)
