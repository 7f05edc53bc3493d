"""`check`: every invariant of docs/FORMAT.md, one small function each.

Reads only. Each function yields the problems that it finds; what to do about them is the caller's.
"""

from __future__ import annotations

import json
import stat
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, ParamSpec

from xxhash import xxh3_128_intdigest

from ckptfs import interrupts
from ckptfs.model import BLOCK_SIZE, MAIN_LINE, NO_CONTENT, ROOT_INO, Epoch, Ino, Inode
from ckptfs.store import format as fmt
from ckptfs.store.blocks import LOST
from ckptfs.store.epochs import View
from ckptfs.store.metadata import NEXT_CHECKPOINT
from ckptfs.store.sweep import Sweep

if TYPE_CHECKING:
    from ckptfs.store.environment import Store
    from ckptfs.store.tables import Versioned

P = ParamSpec("P")

Inodes = dict[Ino, Inode]
#: The places where each inode stands.
Names = dict[Ino, list[tuple[Ino, bytes]]]

#: Progress is reported after so many blocks.
_STRIDE = 256


#: Hears how far a check is: what it looks at, how many of them are done, and how many there are.
OnProgress = Callable[[str, int, int], None]


class Problem(NamedTuple):
    invariant: str
    message: str
    #: The key, in hexadecimal, of a block that cannot be read.
    block: str = ""
    #: The epoch whose view it is in; `NO_EPOCH` where it is not of one view.
    epoch: Epoch = fmt.NO_EPOCH


def versioned(store: Store) -> tuple[Versioned, ...]:
    return (store.inodes, store.dirents, store.links, store.blockmap, store.xattrs)


def show(table: Versioned, entity: bytes) -> str:
    return f"record {table.kind.decode()}:{entity.hex()}"


def check(
    store: Store,
    *,
    deep: bool = True,
    every_view: bool = False,
    progress: OnProgress | None = None,
) -> list[Problem]:
    """Everything that is wrong with the store; empty when nothing is.

    Without ``deep`` the bytes of blocks are not read, which are most of what there is to read. What
    is wrong in many views is told of the first; with ``every_view`` of each of them.
    """
    store.pending.flush()
    problems: list[Problem] = []
    for look in (_chunks, _anchor, _fragments, _heap, _epochs, _orphans, _authors):
        problems += _problems(look, store)
    sweep = Sweep(store, _counting(store, progress))
    nonsense = _problems(_swept, sweep)
    if not nonsense:
        for following in (_counters, _changes, _contents, _block_uses):
            problems += _problems(following, store, sweep)
    problems += nonsense
    if deep:
        problems += _problems(_blocks, store, progress)
    # Of a packed record that is in the way, some views know nothing.
    unsure = nonsense or any(item.invariant == "packed" for item in problems)
    suspects = sweep.suspects
    for epoch in _shown(store) if unsure or (suspects and every_view) else sorted(suspects):
        problems += [item._replace(epoch=epoch) for item in _problems(_view, store, epoch)]
    problems += _problems(_excluded, store)
    return problems


def _shown(store: Store) -> list[Epoch]:
    """Every epoch that has a view. A hidden epoch may be half removed."""
    return [epoch for epoch, record in store.epochs.items() if record.info or not record.sealed]


def _swept(sweep: Sweep) -> Iterator[Problem]:
    sweep.run()
    yield from ()


def _counting(store: Store, progress: OnProgress | None) -> Callable[[int], None]:
    """Tells how many records were looked at; of packed ones it is not known how many there are."""
    if progress is None:
        return lambda done: None
    total = sum(table.count() for table in versioned(store))

    told = 0

    def tell(done: int) -> None:
        nonlocal told
        if done >= told + _STRIDE:
            told = done
            progress("records", done, max(done, total))

    return tell


def _problems(
    look: Callable[P, Iterable[Problem]], *args: P.args, **kwargs: P.kwargs
) -> list[Problem]:
    """What a look finds, also if a record is such nonsense that it cannot go on."""
    try:
        return list(look(*args, **kwargs))
    except (struct.error, LookupError, ValueError, OSError) as error:
        what = look.__name__.strip("_").replace("_", " ")
        return [Problem("records", f"a record makes no sense to the check of {what}: {error!r}")]


def _fragments(store: Store) -> Iterator[Problem]:
    """What a journal has left is in the blocks once a store is open."""
    for key, _ in store.fragments.left():
        yield Problem("fragments", f"{key.hex()} is in no block")


def _heap(store: Store) -> Iterator[Problem]:
    """Every block in the heap has a slot that was given out, is in the file, and is no other's.
    Slots that are to become holes are no block's."""
    freed = list(store.heap.freed())
    if None in freed:
        yield Problem("heap", "a slot that was freed is damaged")
    length = min(store.ids.slot, store.heap.length())
    taken = bytearray(length)
    for slot in freed:
        if slot is not None and slot < length:
            taken[slot] = 1
    for key, slot in store.blocks.slots():
        if slot is None:
            yield Problem("heap", f"block {key.hex()} does not say where it is", key.hex())
        elif slot >= length:
            yield Problem("heap", f"block {key.hex()} is behind the end of the heap", key.hex())
        elif taken[slot]:
            yield Problem("heap", f"block {key.hex()} shares its slot {slot}", key.hex())
        else:
            taken[slot] = 1


def _epochs(store: Store) -> Iterator[Problem]:
    """Every parent exists and is sealed; heads exist and are not sealed, and are no two lines'."""
    for epoch, record in store.epochs.items():
        parent = store.epochs.get(record.parent)
        if record.parent != fmt.NO_EPOCH and (parent is None or not parent.sealed):
            yield Problem("epochs", f"epoch {epoch} has no sealed parent {record.parent}")
    for head in store.heads.values():
        found = store.epochs.get(head.epoch)
        if found is None or found.sealed:
            yield Problem("epochs", f"the head {head.epoch} is not an open epoch")
    if len(store.head_epochs) != len(store.heads):
        yield Problem("epochs", "two lines have one head")


def _counters(store: Store, sweep: Sweep) -> Iterator[Problem]:
    """A number that is to be given out next was never given out."""
    last = (sweep.last_ino, sweep.last_content, max(store.epochs, default=0))
    names = ("inode", "content", "epoch")
    for what, used, following in zip(names, last, store.ids.next_ids(), strict=True):
        if used >= following:
            yield Problem("counters", f"{what} {used} is there, and {following} comes next")
    ids = [int(record.info["id"]) for record in store.epochs.values() if "id" in record.info]
    number = store.metadata.number(NEXT_CHECKPOINT, 0)
    if max(ids, default=-1) >= number:
        yield Problem("counters", f"checkpoint {max(ids)} is there, and {number} comes next")


def _contents(store: Store, sweep: Sweep) -> Iterator[Problem]:
    """A content belongs to one inode for ever."""
    for content, inodes in sweep.shared.items():
        yield Problem("contents", f"content {content} is of the inodes {sorted(inodes)}")


def _orphans(store: Store) -> Iterator[Problem]:
    """The orphans are the inodes of the heads that have no name, but for state documents, which
    have one in their record."""
    listed = {fmt.line_key_of(key) for key, _ in store.orphans.walk()}
    nameless = set(_nameless(store))
    for ino, _ in sorted(listed - nameless):
        yield Problem("orphans", f"inode {ino} is listed as an orphan and is none")
    for ino, _ in sorted(nameless - listed - set(_inherited(store, nameless))):
        yield Problem("orphans", f"inode {ino} has no name and is not listed as an orphan")


def _nameless(store: Store) -> Iterator[tuple[Ino, int]]:
    """(inode, line) of what a head has without a name."""
    heads = {line: head.seen for line, head in store.heads.items()}
    for entity, found in groupby(store.inodes.versions(b""), key=itemgetter(0)):
        versions = [(suffix, record) for _, suffix, record in found]
        if all(not record or fmt.has_links(record) for _, record in versions):
            continue
        ino = Ino(fmt.unpack_u64(entity))
        for line, seen in heads.items():
            record = next((record for suffix, record in versions if suffix in seen), b"")
            inode = fmt.unpack_inode(ino, record) if record else None
            if inode is not None and not inode.nlink and not inode.name:
                yield ino, line


def _inherited(store: Store, nameless: set[tuple[Ino, int]]) -> Iterator[tuple[Ino, int]]:
    """Those of forks that were in use where the fork parted: no program of the fork has them."""
    for ino, line in nameless:
        if line != MAIN_LINE:
            epoch = store.forks[line].base
            record = None
            if epoch in store.epochs:
                record = store.inodes.get(store.view(epoch).bare, fmt.pack_u64(ino))
            if epoch not in store.epochs or (record and not fmt.has_links(record)):
                yield ino, line


def _authors(store: Store) -> Iterator[Problem]:
    """A record of an author is of an epoch that exists, and of an author who is described."""
    described: set[bytes] = set()
    for key, value in store.authors.walk():
        if fmt.unpack_u32(key[:4]) not in store.epochs:
            yield Problem("authors", f"author {key[4:8].hex()} is of a lost epoch")
        if not fmt.author_number(key)[1]:
            described.add(key[:8])
            json.loads(value)
        elif key[:8] not in described or len(value) % 8:
            yield Problem("authors", f"{key.hex()} is of an unknown author, or makes no sense")


def _changes(store: Store, sweep: Sweep) -> Iterator[Problem]:
    """Every record belongs to an epoch that exists, and is listed in `changes` if it must be; every
    listed change has its record, and its epoch exists."""
    for table, entity, epoch in sweep.lost:
        yield Problem("versions", f"{show(table, entity)} is of the lost epoch {epoch}")
    kinds = {table.kind for table in versioned(store)}
    listed = dict.fromkeys(sweep.written, 0)
    lost: set[Epoch] = set()
    for epoch, key in store.changes.all():
        suffix = fmt.suffix_of(epoch)
        if suffix not in listed:
            lost.add(epoch)
        elif key[:1] not in kinds:
            yield Problem("changes", f"epoch {epoch} lists the unknown kind {key[:1]!r}")
        else:
            listed[suffix] += xxh3_128_intdigest(key)
    for epoch in sorted(lost):
        yield Problem("changes", f"the lost epoch {epoch} is listed")
    if differing := {suffix for suffix in listed if listed[suffix] != sweep.written[suffix]}:
        yield from _changes_of(store, differing)


def _changes_of(store: Store, suffixes: set[bytes]) -> Iterator[Problem]:
    """The same for some epochs, change by change."""
    listed = {
        (suffix, key) for suffix in suffixes for key in store.changes.walk(fmt.epoch_of(suffix))
    }
    born = _content_epochs(store)
    for table in versioned(store):
        for entity, suffix, _ in table.versions(b""):
            if suffix not in suffixes or (suffix, table.kind + entity) in listed:
                listed.discard((suffix, table.kind + entity))
                continue
            epoch = fmt.epoch_of(suffix)
            if table is not store.blockmap or born.get(entity[:8]) != epoch:
                yield Problem("changes", f"epoch {epoch} does not list {show(table, entity)}")
    tables = {table.kind: table for table in versioned(store)}
    for suffix, key in sorted(listed):
        if key[:1] in tables:
            what = show(tables[key[:1]], key[1:])
            yield Problem("changes", f"epoch {fmt.epoch_of(suffix)} lists {what}, which it lacks")


def _content_epochs(store: Store) -> dict[bytes, Epoch]:
    """In which epoch each content was allocated, by its packed id."""
    found: dict[bytes, Epoch] = {}
    for entity, _, record in store.inodes.versions(b""):
        if record:
            inode = fmt.unpack_inode(Ino(fmt.unpack_u64(entity)), record)
            found[fmt.pack_u64(inode.content)] = inode.content_epoch
    return found


def _block_uses(store: Store, sweep: Sweep) -> Iterator[Problem]:
    """Every block is counted as often as block-map records and other blocks name it: then the keys
    of blocks, which are digests, make the same sum as often as they are named and counted."""
    blocks = store.blocks
    named = sweep.named + sum(int.from_bytes(base) for _, base in blocks.bases())
    if named != sum(int.from_bytes(key) * blocks.uses(key) for key in blocks.keys()):
        yield from _uses_of_each(store)
    for key in blocks.counted():
        if blocks.uses(key) < 2 or not blocks.has(key):
            yield Problem("block uses", f"block {key.hex()} has a needless count")


def _uses_of_each(store: Store) -> Iterator[Problem]:
    """The same, block by block."""
    used: Counter[bytes] = Counter()
    for _, _, record in store.blockmap.versions(b""):
        if record and (key := fmt.unpack_mapping(record).key):
            used[key] += 1
    used.update(base for _, base in store.blocks.bases())
    del used[LOST]
    for key in interrupts.checked(store.blocks.keys()):
        counted = store.blocks.uses(key)
        if counted != used.pop(key, 0):
            yield Problem("block uses", f"block {key.hex()} is counted {counted} times, wrongly")
    for key in used:
        yield Problem("block uses", f"block {key.hex()} is named and missing", key.hex())


def _blocks(store: Store, progress: OnProgress | None) -> Iterator[Problem]:
    """Every block is named by the digest of its bytes and not longer than a block, or than a pack
    if it is one, and block-map records say how long it is."""
    blocks = store.blocks
    lengths: dict[bytes, int] = {}
    count = blocks.count()
    packs, order = blocks.by_pack()
    for number, key in enumerate(order):
        interrupts.check()
        if not blocks.is_whole(key):
            message = f"the bytes of block {key.hex()} do not match its digest"
            yield Problem("blocks", message, key.hex())
        else:
            lengths[key] = len(blocks.read(key))
            if lengths[key] > (fmt.PACK_MAX if key in packs else BLOCK_SIZE):
                yield Problem("blocks", f"block {key.hex()} is longer than a block")
        if progress is not None and not number % _STRIDE:
            progress("blocks", number, count)
    for entity, _, record in store.blockmap.versions(b""):
        mapping = fmt.unpack_mapping(record) if record else None
        if mapping is not None and not mapping.is_whole:
            yield Problem("blocks", f"the bytes in {show(store.blockmap, entity)} are damaged")
        if mapping is not None and lengths.get(mapping.key, mapping.length) != mapping.length:
            yield Problem("blocks", f"{show(store.blockmap, entity)} has the wrong length")


# -- packed records --------------------------------------------------------------------------------


def _chunks(store: Store) -> Iterator[Problem]:
    """Chunks can be read, their keys are in order, also from one to the next, no entity is in two
    of them, and nothing in them stands in its table as well or is of an epoch that is open."""
    tables = {table.kind: table for table in versioned(store)}
    open_epochs = {epoch for epoch, record in store.epochs.items() if not record.sealed}
    last = (b"", b"")
    for kind, first, chunk in store.packed.chunks():
        here = [(kind, key) for key in chunk.keys]
        if not here or first > chunk.keys[0] or [last, *here] != sorted({last, *here}):
            yield Problem("packed", f"the chunk {kind.decode()}:{first.hex()} is out of order")
        table = tables.get(kind)
        for key in chunk.keys if table is not None else ():
            epoch = fmt.epoch_of(key[-fmt.SUFFIX_SIZE :])
            if epoch in open_epochs or fmt.is_excluded(epoch):
                yield Problem("packed", f"{kind.decode()}:{key.hex()} is of an open epoch")
        if table is not None and last[0] == kind and here and _entity(last) == _entity(here[0]):
            yield Problem("packed", f"{kind.decode()}:{first.hex()} is of an entity in two chunks")
        last = here[-1] if here else last
    for key in store.packed.duplicates():
        yield Problem("packed", f"{key.hex()} is packed and in its table")


def _entity(key: tuple[bytes, bytes]) -> bytes:
    return key[1][: -fmt.SUFFIX_SIZE]


def _anchor(store: Store) -> Iterator[Problem]:
    """Nothing that an anchor sees is packed, but for tombstones that hide nothing in the tables,
    and the blocks of contents that it has not."""
    for anchor in sorted({*store.anchors().values()} & store.epochs.keys()):
        yield from _seen_by_anchor(store, store.view(anchor).bare)


def _seen_by_anchor(store: Store, view: View) -> Iterator[Problem]:
    contents = {
        fmt.pack_u64(fmt.unpack_inode(Ino(0), record).content)
        for _, record in store.inodes.walk(view, b"")
    }
    for table in versioned(store):
        for entity, found in groupby(table.versions(b""), key=itemgetter(0)):
            seen = [(suffix, record) for _, suffix, record in found if suffix in view.seen]
            if not seen or (table is store.blockmap and entity[:8] not in contents):
                continue
            suffix, record = seen[0]
            is_needed = bool(record) or any(table.has_row(entity + old) for old, _ in seen[1:])
            if is_needed and store.packed.get(table.kind, entity + suffix) is not None:
                yield Problem("packed", f"{show(table, entity)} is packed, and the head needs it")


# -- one view --------------------------------------------------------------------------------------


def _view(store: Store, epoch: Epoch) -> list[Problem]:
    view = store.view(epoch).bare
    inodes, names = _inodes_of(store, view), _names_of(store, view)
    found = [
        *_root(inodes),
        *_named(inodes, names),
        *_directories(inodes, names),
        *_files(store, view, inodes),
        *_other_names(store, view, inodes, names),
        *_xattrs(store, view, inodes),
        *_counted(view, inodes),
    ]
    return [item._replace(message=f"epoch {epoch}: {item.message}") for item in found]


def _inodes_of(store: Store, view: View) -> Inodes:
    return {
        (ino := Ino(fmt.unpack_u64(entity))): fmt.unpack_inode(ino, record)
        for entity, record in store.inodes.walk(view, b"")
    }


def _names_of(store: Store, view: View) -> Names:
    names: Names = {}
    for entity, record in store.dirents.walk(view, b""):
        place = (Ino(fmt.unpack_u64(entity[:8])), fmt.dirent_name(entity))
        names.setdefault(Ino(fmt.unpack_u64(record)), []).append(place)
    return names


def _root(inodes: Inodes) -> Iterator[Problem]:
    if ROOT_INO not in inodes or not inodes[ROOT_INO].is_dir:
        yield Problem("root", "there is no root directory")


def _named(inodes: Inodes, names: Names) -> Iterator[Problem]:
    """Every entry stands in a directory and leads to an inode; an inode's own name is one of its
    entries; a link count is the number of names."""
    for ino, places in interrupts.checked(names.items()):
        if ino not in inodes:
            yield Problem("entries", f"{places[0][1]!r} leads to the lost inode {ino}")
        for parent, name in places:
            if parent not in inodes or not inodes[parent].is_dir:
                yield Problem("entries", f"{name!r} stands in {parent}, which is no directory")
    for ino, inode in interrupts.checked(inodes.items()):
        places = names.get(ino, [])
        if ino != ROOT_INO and inode.nlink and (inode.parent, inode.name) not in places:
            yield Problem("names", f"inode {ino} is not where it says it is")
        if not inode.is_dir and inode.nlink != len(places):
            yield Problem("nlink", f"inode {ino} has {len(places)} names and nlink {inode.nlink}")


def _directories(inodes: Inodes, names: Names) -> Iterator[Problem]:
    """A directory has one name, leads up to the root, and counts its subdirectories."""
    subdirs: Counter[Ino] = Counter()
    good = {ROOT_INO}
    for ino, inode in interrupts.checked(inodes.items()):
        if inode.is_dir and ino != ROOT_INO and inode.nlink:
            subdirs[inode.parent] += 1
            if len(names.get(ino, [])) != 1:
                yield Problem("directories", f"directory {ino} has {len(names.get(ino, []))} names")
            if not _reaches_root(inodes, ino, good):
                yield Problem("directories", f"directory {ino} does not lead up to the root")
    for ino, inode in inodes.items():
        if inode.is_dir and inode.nlink and inode.nlink != 2 + subdirs[ino]:
            yield Problem("nlink", f"directory {ino} counts {inode.nlink - 2} subdirectories")


def _reaches_root(inodes: Inodes, ino: Ino, good: set[Ino]) -> bool:
    """``good`` are those from which the way up is known to lead there."""
    seen: set[Ino] = set()
    while ino not in good:
        if ino in seen or ino not in inodes:
            return False
        seen.add(ino)
        ino = inodes[ino].parent
    good |= seen
    return True


def _files(store: Store, view: View, inodes: Inodes) -> Iterator[Problem]:
    """A file's allocation is the sum of its blocks, and no block lies behind its end."""
    allocated: Counter[bytes] = Counter()
    ends: dict[bytes, int] = {}
    for entity, record in store.blockmap.walk(view, b""):
        mapping = fmt.unpack_mapping(record)
        allocated[entity[:8]] += mapping.length
        ends[entity[:8]] = fmt.block_number(entity) * BLOCK_SIZE + mapping.length
    for inode in inodes.values():
        if not stat.S_ISREG(inode.mode):
            continue
        content = fmt.pack_u64(inode.content)
        held = allocated[content] if inode.content != NO_CONTENT else 0
        if held != inode.allocated:
            yield Problem("allocated", f"file {inode.ino} holds {held}, not {inode.allocated}")
        if inode.content != NO_CONTENT and ends.get(content, 0) > inode.size:
            yield Problem("size", f"file {inode.ino} has a block behind its end")


def _other_names(
    store: Store,
    view: View,
    inodes: Inodes,
    names: Names,
) -> Iterator[Problem]:
    """`links` holds every name of a file but the one in its inode."""
    listed = {
        (Ino(fmt.unpack_u64(entity[:8])), fmt.link_place(entity))
        for entity, _ in store.links.walk(view, b"")
    }
    wanted = {
        (ino, place)
        for ino, places in names.items()
        for place in places
        if ino in inodes and place != (inodes[ino].parent, inodes[ino].name)
    }
    for ino, (_, name) in listed ^ wanted:
        yield Problem("links", f"inode {ino} and its name {name!r} are not listed rightly")


def _xattrs(store: Store, view: View, inodes: Inodes) -> Iterator[Problem]:
    """An extended attribute that the epoch itself wrote is one of an inode that is there. Those of
    earlier epochs stay when the inode goes."""
    for entity, _ in store.xattrs.walk(view, b""):
        ino = Ino(fmt.unpack_u64(entity[:8]))
        if ino not in inodes and store.xattrs.own(view, entity) is not None:
            yield Problem("xattrs", f"the lost inode {ino} has attributes")


def _counted(view: View, inodes: Inodes) -> Iterator[Problem]:
    if view.inodes != len(inodes):
        yield Problem("inodes", f"{view.inodes} inodes are counted and {len(inodes)} are there")


# -- what is kept out of history -------------------------------------------------------------------


def _excluded(store: Store) -> Iterator[Problem]:
    """An excluded epoch and the head without it make one tree, and have nothing in common."""
    for line, excluded in store.excluded_views.items():
        if line in store.heads:
            yield from _excluded_in(store, line, excluded)
        else:
            yield Problem("excluded", f"there is no fork {line} for what it excluded")


def _excluded_in(store: Store, line: int, excluded: View) -> Iterator[Problem]:
    head = store.heads[line].bare
    mine, its = _inodes_of(store, excluded), _inodes_of(store, head)
    names, others = _names_of(store, excluded), _names_of(store, head)
    for ino in mine.keys() & its.keys():
        yield Problem("excluded", f"inode {ino} is in history and excluded")
    places = {place for found in names.values() for place in found}
    for place in places & {place for found in others.values() for place in found}:
        yield Problem("excluded", f"{place[1]!r} in {place[0]} is in history and excluded")
    for ino in names.keys() - mine.keys():
        yield Problem("excluded", f"{names[ino][0][1]!r} leads to {ino}, which is not excluded")
    found = ((*fmt.line_key_of(key), value) for key, value in store.borders.walk())
    borders = {ino: fmt.unpack_border(value) for ino, of, value in found if of == line}
    for ino in {parent for parent, _ in places if parent not in mine} - borders.keys():
        yield Problem("excluded", f"directory {ino} is not known as a border")
    for ino in borders.keys() - its.keys():
        yield Problem("excluded", f"the border {ino} is no directory of history")
    whole = its | mine
    for ino in borders.keys() & its.keys():
        whole[ino] = its[ino]._replace(nlink=its[ino].nlink + borders[ino].subdirs)
    yield from _named(whole, others | names)
    yield from _directories(whole, others | names)
    yield from _files(store, excluded, mine)
    yield from _other_names(store, excluded, mine, names)
    yield from _xattrs(store, excluded, mine)
    yield from _counted(excluded, mine)
