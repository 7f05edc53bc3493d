"""Scan: bring what changed in a lower directory into the store.

Walks the lower directory beside the ledger and looks at the store only where they differ, so a
directory that nobody touched costs one stat per entry. Never writes to the lower directory, except
to remove unfinished files that an interrupted write-back left there.
"""

from __future__ import annotations

import contextlib
import os
import stat
from functools import partial

from ckptfs.fs import Filesystem
from ckptfs.model import ROOT_INO, Attributes, Inode
from ckptfs.sync import leaves, lower, moves
from ckptfs.sync.content import digest_of_xattrs
from ckptfs.sync.descent import count_entries, descend
from ckptfs.sync.frames import TEMP_PREFIX, Frame, Scene
from ckptfs.sync.intake import Intake, agrees, merged
from ckptfs.sync.leaf import Leaf
from ckptfs.sync.ledger import (
    NEVER,
    ROOT_PLACE,
    SIGNATURE_SIZE,
    Ledger,
    Record,
    agreement,
    decode,
    encode,
    ino_of,
    is_directory,
    seen_again,
    signature,
)
from ckptfs.sync.lower import tame
from ckptfs.sync.results import ScanResult, Tally, Watcher, is_fatal
from ckptfs.sync.ticks import next_tick
from ckptfs.sync.traversal import traverse
from ckptfs.sync.vanish import vanish

#: The virtual directory of the mount: nothing else can have its name at the root.
RESERVED = b".checkpoints"


def scan(fs: Filesystem, dir_fd: int, *, progress: Watcher | None = None) -> ScanResult:
    """Bring what changed below since the last agreement into the head, and commit."""
    with descend(dir_fd) as down:
        total = count_entries(dir_fd) if progress is not None else None
        tally = Tally(progress, total)
        ledger = Ledger(fs.store)
        moves.recover(fs, ledger, down.root_fd)
        scene = Scene(Intake(fs, tally), ledger, down, tally)
        scene.interrupted = moves.was_interrupted(fs)
        try:
            _walk(scene)
        finally:
            fs.new_entries.flush()  # also if it failed: others will look for what came in
        _note_links(scene)
        moves.end(fs)
        fs.commit()
        if ledger.changed:
            next_tick(fs)
        return tally.result()


# -- the walk --------------------------------------------------------------------------------------


def _walk(scene: Scene) -> None:
    root = Frame(
        None,
        b"",
        ROOT_INO,
        lower.look_into(scene.down.fd),
        old=scene.ledger.get(*ROOT_PLACE),
        empty=_is_nothing_known(scene),
    )
    traverse(
        root,
        look=partial(_list, scene),
        enter=partial(_enter, scene),
        finish=partial(_finish, scene),
        leave=scene.down.leave,
    )


def _is_nothing_known(scene: Scene) -> bool:
    """Whether neither the store nor the ledger has anything in the root."""
    view = scene.intake.view
    alone = view.inodes == 1 and view.excluded is None and not scene.interrupted
    return alone and not scene.ledger.children(ROOT_INO)


def _list(scene: Scene, frame: Frame) -> None:
    """Look at every entry of a directory: files are done with at once, directories wait."""
    known = {} if frame.fresh else scene.ledger.children(frame.key)
    tally = scene.tally
    try:
        for name, entry in lower.entries_in(scene.down.fd):
            value = known.pop(name, None)
            if frame.fresh and entry.is_file(follow_symlinks=False):
                _take_new_file(scene, frame, name)
                continue
            try:
                seen = tame(entry.stat(follow_symlinks=False))
            except FileNotFoundError:
                # Gone since it was listed.
                if value is not None:
                    known[name] = value
                continue
            if stat.S_ISDIR(seen.st_mode):
                frame.waiting.append((name, seen, value))
            elif value is not None and value[:SIGNATURE_SIZE] == signature(seen):
                tally.unchanged += 1
                if seen.st_nlink > 1:
                    _remember_link(scene, frame, name, seen, value)
            else:
                _take(scene, frame, name, seen, value)
            tally.step()
    except OSError as error:
        if is_fatal(error):
            raise
        # An incomplete list says nothing about what is missing from it.
        tally.skip(scene.down.path(), error)
        return
    for name, value in known.items():
        vanish(scene, frame, name, value)


def _remember_link(
    scene: Scene, frame: Frame, name: bytes, seen: os.stat_result, value: bytes
) -> None:
    """An unchanged file with several names, of which an interrupted scan may have seen only some:
    further ones are to be links to the inode that stands for it."""
    inode = scene.stored(frame, name)
    if inode is not None and inode.ino == ino_of(value):
        scene.intake.join_group(seen, inode)


def _take_new_file(scene: Scene, frame: Frame, name: bytes) -> None:
    """A file in a directory that is itself new: nothing is known of it, so one look is enough."""
    scene.tally.step()
    if _pass_over(scene, frame, name):
        return
    try:
        with Leaf(scene.down.fd, name) as leaf:
            leaves.take_new(scene, frame, leaf)
    except OSError as error:
        _skip(scene, name, error)
    scene.intake.commit_if_large()


def _take(
    scene: Scene, frame: Frame, name: bytes, seen: os.stat_result, value: bytes | None
) -> None:
    """A file, link or node that is new or differs from its record."""
    if value is None and _pass_over(scene, frame, name):
        return
    if value is not None and is_directory(value):
        vanish(scene, frame, name, value)
        value = None
    try:
        with Leaf(scene.down.fd, name, seen) as leaf:
            leaves.take(scene, frame, leaf, None if value is None else decode(value))
    except OSError as error:
        _skip(scene, name, error)
    scene.intake.commit_if_large()


def _skip(scene: Scene, name: bytes, error: OSError) -> None:
    if is_fatal(error):
        raise error
    scene.tally.skip(scene.down.path(name), error)


def _pass_over(scene: Scene, frame: Frame, name: bytes) -> bool:
    """Whether a name is none of the user's; unfinished files of our own are removed."""
    if frame.parent is None and name == RESERVED:
        scene.tally.skip(name, "the name belongs to the workspace's own directory of checkpoints")
        return True
    if not name.startswith(TEMP_PREFIX):
        return False
    prefix = moves.temp_prefix(scene.intake.fs)
    if prefix is not None and name.startswith(prefix):
        _remove_unfinished(scene, frame, name)
    else:
        scene.tally.skip(scene.down.path(name), "unfinished file of another ckptfs store")
    return True


def _remove_unfinished(scene: Scene, frame: Frame, name: bytes) -> None:
    """Remove a file of our own so that nothing tells it was there."""
    fd = scene.down.fd
    with contextlib.suppress(OSError):
        lower.unlink(fd, name)
        os.utime(fd, ns=(frame.seen.st_atime_ns, frame.seen.st_mtime_ns))
        frame.seen = lower.look_into(fd)


# -- directories -----------------------------------------------------------------------------------


def _enter(
    scene: Scene, frame: Frame, name: bytes, seen: os.stat_result, value: bytes | None
) -> Frame | None:
    """Go into a directory; None if it is passed over or cannot be read."""
    if value is None and _pass_over(scene, frame, name):
        return None
    if value is not None and not is_directory(value):
        vanish(scene, frame, name, value)
        value = None
    record = None if value is None else decode(value)
    if seen.st_dev != scene.down.device:
        scene.tally.skip(scene.down.path(name), "another file system is mounted here")
        if record is None and scene.stored(frame, name) is None:
            _make(scene, frame, name, name, seen)
        return None
    try:
        seen = scene.down.enter(name)
    except OSError as error:
        _skip(scene, name, error)
        return None
    if record is not None and value is not None:
        if not _is_anothers(scene, record, seen):
            return Frame(frame, name, record.ino, seen, old=record)
        vanish(scene, frame, name, value)
    return _enter_new(scene, frame, name, seen)


# Who owns the directory above can put any directory under a name, also one that only root may
# enter. Root must not fill that with what was meant for another, nor open it up. An ordinary user's
# pass has no rights to lend, and trusts the name alone: not every file system keeps inode numbers.


def _is_replaced(old: Record, seen: os.stat_result) -> bool:
    """Whether another directory stands where root's ledger knows one."""
    return os.geteuid() == 0 and not old.is_directory(seen)


def _is_anothers(scene: Scene, old: Record, seen: os.stat_result) -> bool:
    """Whether that other one is also of another owner than the one the store has."""
    if not _is_replaced(old, seen):
        return False
    inode = scene.intake.alive(old.ino)
    return inode is not None and inode.uid != seen.st_uid


def _may_merge(scene: Scene, inode: Inode, seen: os.stat_result) -> bool:
    """Whether a directory of the store and one below without a record may become one."""
    return os.geteuid() != 0 or inode.uid == seen.st_uid or _is_as_made(scene, seen)


def _is_as_made(scene: Scene, seen: os.stat_result) -> bool:
    """Whether an interrupted write-back may have made the directory and not dressed it yet."""
    return scene.interrupted and seen.st_mode & 0o777 == 0o700


def _enter_new(scene: Scene, frame: Frame, name: bytes, seen: os.stat_result) -> Frame:
    """A directory without a record: made in the store, or merged with the one it has."""
    inode = scene.stored(frame, name)
    if inode is None:
        made = _make(scene, frame, name, name, seen)
        return Frame(frame, name, made.ino, seen, made=made)
    mergeable = inode.is_dir and not scene.has_lower_place(inode.ino)
    if mergeable and _may_merge(scene, inode, seen):
        scene.ledger.put(frame.key, name, agreement(seen, inode, clean=False))
        return Frame(frame, name, inode.ino, seen)
    place = scene.place(frame)
    kept = scene.intake.free_name(place, name)
    made = _make(scene, frame, name, kept, seen)
    frame.kept = True
    scene.tally.conflict(scene.down.path(), scene.intake.path(place, kept))
    return Frame(frame, name, made.ino, seen, made=made)


def _make(
    scene: Scene, frame: Frame, name: bytes, stored_name: bytes, seen: os.stat_result
) -> Inode:
    place = scene.place(frame)
    made = scene.intake.make_directory(place, stored_name, seen, fresh=frame.fresh)
    scene.ledger.put(frame.key, name, agreement(seen, made, finished=False))
    scene.tally.added += 1
    return made


def _finish(scene: Scene, frame: Frame) -> None:
    """Everything in the directory is done with: its own attributes, and its record."""
    old = frame.old
    listed = old is not None and not frame.unfinished and old.matches(frame.seen)
    if listed and frame.before is None and not frame.kept:
        return
    xattrs = lower.user_xattrs(scene.down.fd)
    value = _directory_record(scene, frame, xattrs)
    if value is not None:
        place = ROOT_PLACE if frame.parent is None else (frame.parent.key, frame.name)
        scene.ledger.put(*place, value)
    scene.intake.commit_if_large()


def _directory_record(scene: Scene, frame: Frame, xattrs: dict[bytes, bytes]) -> bytes | None:
    place = frame.find(scene.intake)
    digest = digest_of_xattrs(xattrs)
    if place is None:
        return seen_again(frame.old, frame.seen, xattrs=digest) if frame.old else None
    inode = scene.intake.fs.getattr(scene.intake.view, place)
    if frame.old is None or frame.unfinished:
        inode, clean = _dress_new(scene, frame, inode, xattrs)
    else:
        inode, clean = _dress_known(scene, frame, frame.old, inode, xattrs)
    clean = clean and not frame.kept and frame.key == place
    return agreement(frame.seen, inode, xattrs=digest, clean=clean, key=frame.key)


def _dress_new(
    scene: Scene, frame: Frame, inode: Inode, xattrs: dict[bytes, bytes]
) -> tuple[Inode, bool]:
    """A directory without a record. Where the store had one of its own, that one's attributes
    stay; but the root was there before the store was, so it is like one that came in now. Root
    leaves the one below as closed as it is."""
    intake, seen = scene.intake, frame.seen
    own_root = frame.parent is None and not scene.interrupted
    if frame.fresh or frame.unfinished or own_root:
        return intake.dress_filled(inode, seen, xattrs), True
    if os.geteuid() == 0 and not _is_as_made(scene, seen):
        inode = _dress_as_lower(scene, inode, seen)
    return inode, agrees(seen, inode) and intake.xattrs(inode) == xattrs


def _dress_as_lower(scene: Scene, inode: Inode, seen: os.stat_result) -> Inode:
    if (inode.mode, inode.uid, inode.gid) == (seen.st_mode, seen.st_uid, seen.st_gid):
        return inode
    wanted = Attributes(mode=seen.st_mode, uid=seen.st_uid, gid=seen.st_gid)
    return scene.intake.dress(inode, wanted)


def _dress_known(
    scene: Scene, frame: Frame, old: Record, inode: Inode, xattrs: dict[bytes, bytes]
) -> tuple[Inode, bool]:
    intake, before = scene.intake, frame.before
    store_same = before is not None and old.is_of(before)
    if _is_replaced(old, frame.seen):
        inode = _dress_as_lower(scene, inode, frame.seen)
    changed = intake.merge_xattrs(inode, xattrs, old, store_same=store_same)
    wanted = merged(frame.seen, old, inode, store_same=store_same, take_mtime=store_same)
    if scene.interrupted and before is not None and before.mtime_ns == inode.mtime_ns:
        # Nothing in it was news, so what an unfinished write-back did to it is not either.
        wanted = _without_our_own(frame.seen, old, wanted)
        store_same = store_same and frame.seen.st_mtime_ns == inode.mtime_ns
    if wanted is not None:
        # Times alone follow from what changed inside, which is counted there.
        owner = wanted.uid is not None or wanted.gid is not None
        changed = changed or owner or wanted.mode != inode.mode
    scene.tally.modified += changed
    return intake.dress(inode, wanted), store_same


def _without_our_own(
    seen: os.stat_result, old: Record, wanted: Attributes | None
) -> Attributes | None:
    """Leave out the times, and the write permission that a write-back gives itself."""
    if wanted is None or (seen.st_uid, seen.st_gid) != (old.uid, old.gid):
        return wanted
    if seen.st_mode in (old.mode, old.mode | 0o700):
        return None
    return wanted._replace(mtime_ns=None)


# -- links, at the end -----------------------------------------------------------------------------


def _note_links(scene: Scene) -> None:
    """Every further link changed the inode's ctime: record what it came to be."""
    for key, place, name in scene.linked:
        record = scene.ledger.get(key, name)
        inode = scene.intake.find(place, name)
        if record is None or inode is None:
            continue
        agreed = record.ino == inode.ino or _is_as_noted(scene, record, inode)
        current = record._replace(
            ino=inode.ino,
            stored_ctime_ns=inode.ctime_ns if agreed else NEVER,
            content=inode.content,
        )
        if current != record:
            scene.ledger.put(key, name, encode(current))


def _is_as_noted(scene: Scene, record: Record, inode: Inode) -> bool:
    """Whether an inode that a name was moved over to is what its record says of the file below."""
    attributes = (inode.mode, inode.uid, inode.gid, inode.mtime_ns)
    return (
        attributes == (record.mode, record.uid, record.gid, record.mtime_ns)
        and scene.intake.digest(inode) == record.digest
        and digest_of_xattrs(scene.intake.xattrs(inode)) == record.xattrs
    )
