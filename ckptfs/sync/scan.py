"""Scan: bring what changed in the lower directory into the store; import does it with no ledger.

A scan walks the lower directory beside the ledger and looks at the store only where the two differ,
so an untouched directory costs one stat per entry. It never writes to the lower directory, except
to remove unfinished files that an interrupted write-back left there.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ckptfs import errors
from ckptfs.fs import Filesystem
from ckptfs.model import ROOT_INO, Attributes, Inode
from ckptfs.sync import agreed, decide, intent_log, lower
from ckptfs.sync.content import Entry, digest_of_xattrs
from ckptfs.sync.ingest import Ingest, agrees, merged
from ckptfs.sync.ledger import (
    NEVER,
    ROOT_PLACE,
    SIGNATURE_SIZE,
    VERSION,
    EmptyLedger,
    Ledger,
    Record,
    agreement,
    decode,
    encode,
    ino_of,
    is_directory,
    seen_again,
    signature,
    wait_for_tick,
)
from ckptfs.sync.results import ImportResult, ScanResult, Tally, Watcher, is_fatal, reason_of
from ckptfs.sync.scan_stack import Frame, ScanState

#: The virtual directory of the mount: nothing else can have its name at the root.
RESERVED = b".checkpoints"


def scan(fs: Filesystem, dir_fd: int, *, progress: Watcher | None = None) -> ScanResult:
    """Bring what changed in the lower directory since the last agreement into the head; commit."""
    with lower.descend(dir_fd) as down:
        ledger = Ledger(fs.store)
        tally = Tally(progress, _expected(fs, ledger, dir_fd) if progress is not None else None)
        intent_log.recover(fs, ledger, down.root_fd)
        state = ScanState(Ingest(fs, tally), ledger, down, tally)
        state.interrupted = intent_log.was_interrupted(fs)
        first = _is_nothing_known(state)
        _walk(state)
        note_links(state)
        _note_agreed(state, first=first)
        intent_log.end(fs)
        fs.commit()
        if ledger.changed:
            wait_for_tick(fs)
        return tally.result()


def _expected(fs: Filesystem, ledger: Ledger, dir_fd: int) -> int:
    """How many entries there may be: about as many as the store has, if it has seen them."""
    if ledger.get(*ROOT_PLACE) is None:
        return lower.count_entries(dir_fd)
    return count_stored(fs)


def count_stored(fs: Filesystem) -> int:
    """How many entries the store has."""
    excluded = fs.head.excluded
    return fs.head.inodes + (0 if excluded is None else excluded.inodes)


def _note_agreed(state: ScanState, *, first: bool) -> None:
    """After an interrupted write-back the next one has to look at everything. A first scan that
    left nothing out leaves both sides in agreement; after others `agreed.settle` finds out."""
    if state.interrupted:
        agreed.forget(state.ingest.fs)
    elif first and not (state.ledger.owes or state.tally.skipped or state.tally.conflicts):
        agreed.note(state.ingest.fs)


def import_tree(fs: Filesystem, source: Path, *, progress: Watcher | None = None) -> ImportResult:
    """Fill the head from another directory, as ``cp -a`` would, and commit.

    What both have is overwritten, but a file never replaces a directory nor the reverse: the one
    from the source then comes in beside it. A directory that had content keeps its attributes.
    """
    try:
        fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise errors.SourceMissing(source, reason_of(error).lower()) from error
    try:
        tally = Tally(progress, lower.count_entries(fd) if progress is not None else None)
        with lower.descend(fd) as down:
            _walk(ScanState(Ingest(fs, tally), EmptyLedger(), down, tally))
    finally:
        os.close(fd)
    fs.commit()
    return tally.result()


# -- the walk --------------------------------------------------------------------------------------


def _walk(state: ScanState) -> None:
    root = Frame(
        None,
        b"",
        ROOT_INO,
        lower.fstat(state.down.fd),
        old=state.ledger.get(*ROOT_PLACE),
        empty=_is_nothing_known(state),
    )
    try:
        lower.traverse(
            root,
            visit=partial(list_directory, state),
            enter=partial(enter_directory, state),
            finish=partial(finish_directory, state),
            leave=state.down.leave,
        )
    finally:
        state.ingest.fs.new_entries.flush()  # also after a failure: others look for what came in


def _is_nothing_known(state: ScanState) -> bool:
    """Whether neither the store nor the ledger has anything in the root."""
    entries = state.ingest.fs.entries(state.ingest.view, ROOT_INO)
    known = next(iter(entries), None) is not None or state.interrupted
    return not known and not state.ledger.children(ROOT_INO)


def list_directory(state: ScanState, frame: Frame) -> None:
    """Bring in the files of a directory; the directories in it wait."""
    known = {} if frame.is_new else state.ledger.children(frame.key)
    no_record = frame.is_new or state.importing
    tally = state.tally
    try:
        for name, entry in _entries(state, frame, known):
            value = known.pop(name, None)
            try:
                if entry is None:
                    seen = lower.lstat(state.down.fd, name)
                elif no_record and entry.is_file(follow_symlinks=False):
                    _bring_in_file(state, frame, name)
                    continue
                else:
                    seen = lower.clamp_times(entry.stat(follow_symlinks=False))
            except OSError as error:
                _without_stat(state, name, error)
                if value is not None:
                    known[name] = value
                continue
            if stat.S_ISDIR(seen.st_mode):
                frame.waiting.append((name, seen, value))
            elif value is not None and value[:SIGNATURE_SIZE] == signature(seen):
                tally.unchanged += 1
                if seen.st_nlink > 1:
                    _remember_link(state, frame, name, seen, value)
            else:
                _bring_in(state, frame, name, seen, value)
            tally.step()
        decide.place_small(state, frame)
    except OSError as error:
        if is_fatal(error):
            raise
        # An incomplete list says nothing about what is missing from it.
        tally.skip(state.down.path(), error)
        return
    for name, value in known.items():
        decide.delete_in_store(state, frame, name, value)


def _entries(
    state: ScanState, frame: Frame, known: dict[bytes, bytes]
) -> Iterator[tuple[bytes, os.DirEntry[str] | None]]:
    """(name, entry) of a directory. Without the entry, and without those that are as recorded,
    where a compiled loop passes over them."""
    if not known or lower.pass_unchanged is None:
        yield from lower.entries_in(state.down.fd)
        return
    unchanged, names = lower.pass_unchanged(state.down.fd, known, VERSION)
    state.tally.unchanged += unchanged
    state.tally.step(unchanged)
    for name in dict.fromkeys(names):
        if name not in known:
            # Listed twice, and passed over once: it must not look new.
            known.update(state.ledger.children(frame.key, {name}))
        yield name, None


def _without_stat(state: ScanState, name: bytes, error: OSError) -> None:
    """An entry that is gone since it was listed is none. Another one that cannot be looked at, such
    as a dead mount, is left out of an import; it ends the listing of a scan, since the store may
    know it."""
    if isinstance(error, FileNotFoundError):
        return
    if not state.importing:
        raise error
    _skip(state, name, error)


def _remember_link(
    state: ScanState, frame: Frame, name: bytes, seen: os.stat_result, value: bytes
) -> None:
    """An interrupted scan may have seen only some of an unchanged file's names: the others become
    links to the inode that stands for it."""
    inode = state.stored(frame, name)
    if inode is not None and inode.ino == ino_of(value):
        state.ingest.join_group(seen, inode)


def _bring_in_file(state: ScanState, frame: Frame, name: bytes) -> None:
    """A file without a record: opening it shows all that is needed."""
    state.tally.step()
    if _pass_over(state, frame, name):
        return
    try:
        if frame.is_new and decide.bring_in_small(state, frame, name):
            return
        with Entry(state.down.fd, name) as entry:
            if frame.is_new:
                decide.bring_in_new(state, frame, entry)
            else:
                decide.overwrite(state, frame, entry)
    except OSError as error:
        _skip(state, name, error)
    state.ingest.commit_if_large()


def _bring_in(
    state: ScanState, frame: Frame, name: bytes, seen: os.stat_result, value: bytes | None
) -> None:
    """A file, link or node that is new or differs from its record."""
    if value is None and _pass_over(state, frame, name):
        return
    if value is not None and is_directory(value):
        decide.delete_in_store(state, frame, name, value)
        value = None
    try:
        with Entry(state.down.fd, name, seen) as entry:
            if state.importing:
                decide.overwrite(state, frame, entry)
            else:
                decide.bring_in(state, frame, entry, None if value is None else decode(value))
    except OSError as error:
        _skip(state, name, error)
    state.ingest.commit_if_large()


def _skip(state: ScanState, name: bytes, error: OSError) -> None:
    if is_fatal(error):
        raise error
    state.tally.skip(state.down.path(name), error)


def _pass_over(state: ScanState, frame: Frame, name: bytes) -> bool:
    """Whether a name is not the user's; a scan removes this store's own unfinished files."""
    if frame.parent is None and name == RESERVED:
        state.tally.skip(name, "the name belongs to the workspace's own directory of checkpoints")
        return True
    if not name.startswith(intent_log.TEMP_PREFIX):
        return False
    prefix = None if state.importing else intent_log.temp_prefix(state.ingest.fs)
    if prefix is not None and name.startswith(prefix):
        _remove_unfinished(state, frame, name)
    else:
        state.tally.skip(state.down.path(name), "unfinished file of a ckptfs store")
    return True


def _remove_unfinished(state: ScanState, frame: Frame, name: bytes) -> None:
    """Remove a file of our own, and put the directory's times back."""
    fd = state.down.fd
    with contextlib.suppress(OSError):
        lower.unlink(fd, name)
        os.utime(fd, ns=(frame.seen.st_atime_ns, frame.seen.st_mtime_ns))
        frame.seen = lower.fstat(fd)


# -- directories -----------------------------------------------------------------------------------


def enter_directory(
    state: ScanState, frame: Frame, name: bytes, seen: os.stat_result, value: bytes | None
) -> Frame | None:
    """Enter a directory; None if it is passed over or cannot be read."""
    if value is None and _pass_over(state, frame, name):
        return None
    if value is not None and not is_directory(value):
        decide.delete_in_store(state, frame, name, value)
        value = None
    record = None if value is None else decode(value)
    if seen.st_dev != state.down.device:
        state.tally.skip(state.down.path(name), "another file system is mounted here")
        if record is None and state.stored(frame, name) is None:
            _make(state, frame, name, name, seen)
        return None
    try:
        seen = state.down.enter(name)
    except OSError as error:
        _skip(state, name, error)
        return None
    if record is not None and value is not None:
        if not _is_anothers(state, record, seen):
            return Frame(frame, name, record.ino, seen, old=record)
        decide.delete_in_store(state, frame, name, value)
    return _enter_new(state, frame, name, seen)


# The owner of the directory above can put any directory under a name, also one that only root may
# enter. Root must neither fill it with what was meant for another nor open it up. An ordinary
# user's pass has no rights to lend, and trusts the name: not every file system keeps inode numbers.


def _is_replaced(old: Record, seen: os.stat_result) -> bool:
    """Whether root finds another directory where the ledger has one."""
    return os.geteuid() == 0 and not old.is_directory(seen)


def _is_anothers(state: ScanState, old: Record, seen: os.stat_result) -> bool:
    """Whether that other directory also has another owner than the store's."""
    if not _is_replaced(old, seen):
        return False
    inode = state.ingest.alive(old.ino)
    return inode is not None and inode.uid != seen.st_uid


def _may_merge(state: ScanState, inode: Inode, seen: os.stat_result) -> bool:
    """Whether a directory of the store and a lower one without a record may become one."""
    return (
        state.importing or os.geteuid() != 0 or inode.uid == seen.st_uid or _is_as_made(state, seen)
    )


def _is_as_made(state: ScanState, seen: os.stat_result) -> bool:
    """Whether an interrupted write-back may have made it, and not applied its attributes yet."""
    return state.interrupted and seen.st_mode & 0o777 == 0o700


def _enter_new(state: ScanState, frame: Frame, name: bytes, seen: os.stat_result) -> Frame:
    """A directory without a record: make it in the store, or merge it with the store's."""
    inode = state.stored(frame, name)
    if inode is None:
        made = _make(state, frame, name, name, seen)
        return Frame(frame, name, made.ino, seen, made=made)
    mergeable = inode.is_dir and not state.has_lower_place(inode.ino)
    if mergeable and _may_merge(state, inode, seen):
        state.ledger.put(frame.key, name, agreement(seen, inode, clean=False))
        return Frame(frame, name, inode.ino, seen)
    place = state.place(frame)
    kept = state.ingest.free_name(place, name)
    made = _make(state, frame, name, kept, seen)
    frame.kept = True
    state.tally.conflict(state.down.path(), state.ingest.path(place, kept))
    return Frame(frame, name, made.ino, seen, made=made)


def _make(
    state: ScanState, frame: Frame, name: bytes, stored_name: bytes, seen: os.stat_result
) -> Inode:
    place = state.place(frame)
    made = state.ingest.make_directory(place, stored_name, seen, new=frame.is_new)
    state.ledger.put(frame.key, name, agreement(seen, made, finished=False))
    state.tally.added += 1
    return made


def finish_directory(state: ScanState, frame: Frame) -> None:
    """All entries are in: take over the directory's own attributes, and record it."""
    state.trim_now_and_then()
    if state.importing and not frame.is_new:
        return
    old = frame.old
    listed = old is not None and not frame.unfinished and old.matches(frame.seen)
    if listed and frame.before is None and not frame.kept:
        return
    xattrs = lower.user_xattrs(state.down.fd)
    value = _directory_record(state, frame, xattrs)
    if value is not None:
        place = ROOT_PLACE if frame.parent is None else (frame.parent.key, frame.name)
        state.ledger.put(*place, value)
    state.ingest.commit_if_large()


def _directory_record(state: ScanState, frame: Frame, xattrs: dict[bytes, bytes]) -> bytes | None:
    place = frame.find(state.ingest)
    digest = digest_of_xattrs(xattrs)
    if place is None:
        return seen_again(frame.old, frame.seen, xattrs=digest) if frame.old else None
    inode = state.ingest.fs.getattr(state.ingest.view, place)
    if frame.old is None or frame.unfinished:
        inode, clean = _apply_new(state, frame, inode, xattrs)
    else:
        inode, clean = _apply_known(state, frame, frame.old, inode, xattrs)
    clean = clean and not frame.kept and frame.key == place
    return agreement(frame.seen, inode, xattrs=digest, clean=clean, key=frame.key)


def _apply_new(
    state: ScanState, frame: Frame, inode: Inode, xattrs: dict[bytes, bytes]
) -> tuple[Inode, bool]:
    """The attributes of a directory without a record. If the store had one of its own, that one's
    stay; but the root is older than the store, so it counts as new. A pass of root's takes over
    owner and mode, to leave the lower directory as closed as it is."""
    ingest, seen = state.ingest, frame.seen
    own_root = frame.parent is None and not state.interrupted
    if frame.is_new or frame.unfinished or own_root:
        return ingest.finish_directory(inode, seen, xattrs), True
    if os.geteuid() == 0 and not _is_as_made(state, seen):
        inode = _apply_lower(state, inode, seen)
    return inode, agrees(seen, inode) and ingest.xattrs(inode) == xattrs


def _apply_lower(state: ScanState, inode: Inode, seen: os.stat_result) -> Inode:
    if (inode.mode, inode.uid, inode.gid) == (seen.st_mode, seen.st_uid, seen.st_gid):
        return inode
    wanted = Attributes(mode=seen.st_mode, uid=seen.st_uid, gid=seen.st_gid)
    return state.ingest.apply_attributes(inode, wanted)


def _apply_known(
    state: ScanState, frame: Frame, old: Record, inode: Inode, xattrs: dict[bytes, bytes]
) -> tuple[Inode, bool]:
    ingest, before = state.ingest, frame.before
    store_same = before is not None and old.is_of(before)
    if _is_replaced(old, frame.seen):
        inode = _apply_lower(state, inode, frame.seen)
    changed = ingest.merge_xattrs(inode, xattrs, old, store_same=store_same)
    wanted = merged(frame.seen, old, inode, store_same=store_same, take_mtime=store_same)
    if state.interrupted and before is not None and before.mtime_ns == inode.mtime_ns:
        # Nothing in it changed, so its times are the unfinished write-back's own doing.
        wanted = _without_our_own(frame.seen, old, wanted)
        store_same = store_same and frame.seen.st_mtime_ns == inode.mtime_ns
    if wanted is not None:
        # Times follow from what changed inside, and that is counted already.
        owner = wanted.uid is not None or wanted.gid is not None
        changed = changed or owner or wanted.mode != inode.mode
    state.tally.modified += changed
    return ingest.apply_attributes(inode, wanted), store_same


def _without_our_own(
    seen: os.stat_result, old: Record, wanted: Attributes | None
) -> Attributes | None:
    """Without the times, and without the write permission that a write-back gives itself."""
    if wanted is None or (seen.st_uid, seen.st_gid) != (old.uid, old.gid):
        return wanted
    if seen.st_mode in (old.mode, old.mode | 0o700):
        return None
    return wanted._replace(mtime_ns=None)


# -- links, at the end -----------------------------------------------------------------------------


def note_links(state: ScanState) -> None:
    """Each further link changed the inode's ctime: record the last one."""
    for key, place, name in state.linked:
        record = state.ledger.get(key, name)
        inode = state.ingest.find(place, name)
        if record is None or inode is None:
            continue
        agreed = record.ino == inode.ino or _is_as_noted(state, record, inode)
        current = record._replace(
            ino=inode.ino,
            stored_ctime_ns=inode.ctime_ns if agreed else NEVER,
            content=inode.content,
        )
        if current != record:
            state.ledger.put(key, name, encode(current))


def _is_as_noted(state: ScanState, record: Record, inode: Inode) -> bool:
    """Whether the inode that now has the name equals what the record says of the lower file."""
    attributes = (inode.mode, inode.uid, inode.gid, inode.mtime_ns)
    return (
        attributes == (record.mode, record.uid, record.gid, record.mtime_ns)
        and state.ingest.digest(inode) == record.digest
        and digest_of_xattrs(state.ingest.xattrs(inode)) == record.xattrs
    )
