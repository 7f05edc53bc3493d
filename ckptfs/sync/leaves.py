"""One name below that changed and is not a directory: what to do with it, and doing it.

Applies the decision table (`decide`) to files, links and nodes. The walk is elsewhere.
"""

from __future__ import annotations

import stat
from functools import partial

from ckptfs.model import Attributes, Inode
from ckptfs.sync.decide import Action, Side, decide
from ckptfs.sync.frames import Frame, Scene
from ckptfs.sync.intake import agrees, attributes_of, merged
from ckptfs.sync.leaf import Leaf
from ckptfs.sync.ledger import Record, agreement, half_done, seen_again
from ckptfs.sync.lower import SET_ID


def take(scene: Scene, frame: Frame, leaf: Leaf, record: Record | None) -> None:
    """Bring one changed entry of the lower directory to where the table says."""
    scene.intake.half_done = partial(_note_half, scene, frame, leaf)
    inode = scene.stored(frame, leaf.name)
    action = decide(_lower_side(leaf, record), store_side(scene, inode, record))
    if action is Action.BRING_IN:
        if inode is None or record is None:
            _add(scene, frame, leaf)
        else:
            _update(scene, frame, leaf, inode, record)
    elif action is Action.COMPARE and inode is not None:
        _compare(scene, frame, leaf, inode, record)
    elif action is Action.BRING_BACK and record is not None:
        _bring_back(scene, frame, leaf, record)
    elif record is not None:
        if inode is not None and inode.ino == record.ino:
            scene.intake.join_group(leaf.seen, inode)
        _note_unchanged(scene, frame, leaf, record)


def take_new(scene: Scene, frame: Frame, leaf: Leaf) -> None:
    """`take` in a directory that is itself new: neither the store nor the ledger has the name."""
    if not leaf.is_small:
        scene.intake.half_done = partial(_note_half, scene, frame, leaf)
    _add(scene, frame, leaf)


def _lower_side(leaf: Leaf, record: Record | None) -> Side:
    """A doubtful record that matches is settled by reading; every other that gets here differs."""
    if record is None or not record.matches(leaf.seen):
        return Side.CHANGED
    same = leaf.digest == record.digest and leaf.xattrs_digest == record.xattrs
    return Side.SAME if same else Side.CHANGED


def store_side(scene: Scene, inode: Inode | None, record: Record | None) -> Side:
    """What became of a name in the store since the agreement."""
    if record is None:
        return Side.SAME if inode is None else Side.CHANGED
    if inode is None:
        return Side.GONE
    return Side.SAME if scene.intake.untouched(inode, record) else Side.CHANGED


# -- the ledger ------------------------------------------------------------------------------------


def _note(scene: Scene, frame: Frame, leaf: Leaf, inode: Inode, *, clean: bool = True) -> None:
    value = agreement(
        leaf.seen,
        inode,
        digest=leaf.digest,
        xattrs=leaf.xattrs_digest,
        clean=clean,
        now_ns=leaf.read_ns,
    )
    scene.ledger.put(frame.key, leaf.name, value)


def _note_link(scene: Scene, frame: Frame, leaf: Leaf, inode: Inode, *, clean: bool = True) -> None:
    """`_note` for the inode that the store has under the name itself."""
    _note(scene, frame, leaf, inode, clean=clean)
    if clean and (inode.nlink > 1 or leaf.seen.st_nlink > 1):
        scene.linked.append((frame.key, scene.place(frame), leaf.name))


def _note_half(scene: Scene, frame: Frame, leaf: Leaf, inode: Inode) -> None:
    """A part of the content is about to be committed, or all there will be."""
    scene.ledger.put(frame.key, leaf.name, half_done(leaf.seen, inode))


def _note_unchanged(scene: Scene, frame: Frame, leaf: Leaf, record: Record) -> None:
    """Only what the lower directory looks like is news."""
    value = seen_again(
        record,
        leaf.seen,
        digest=leaf.digest,
        xattrs=leaf.xattrs_digest,
        now_ns=leaf.read_ns,
    )
    scene.ledger.put(frame.key, leaf.name, value)
    scene.tally.unchanged += 1


# -- only below changed ----------------------------------------------------------------------------


def _add(scene: Scene, frame: Frame, leaf: Leaf) -> None:
    inode = scene.intake.add(leaf, scene.place(frame), leaf.name, fresh=frame.fresh)
    _note_link(scene, frame, leaf, inode, clean=inode.nlink == 1 or _is_same(scene, leaf, inode))
    scene.tally.added += 1


def _is_same(scene: Scene, leaf: Leaf, inode: Inode) -> bool:
    """Whether nothing is left to write back: a link may lead to an inode the store has changed."""
    return (
        agrees(leaf.seen, inode)
        and leaf.digest == scene.intake.digest(inode)
        and leaf.xattrs == scene.intake.xattrs(inode)
    )


def _update(scene: Scene, frame: Frame, leaf: Leaf, inode: Inode, record: Record) -> None:
    intake = scene.intake
    taken = _replace(scene, frame, leaf, inode, record)
    changed = taken is not None
    if taken is None:
        inode, given = _take_rights(scene, leaf, inode, record, store_same=True)
        changed, taken = _rewrite(scene, frame, leaf, inode)
        changed = changed or given
        if intake.merge_xattrs(taken, leaf.xattrs, record, store_same=True):
            changed = True
        if record.is_half_done:
            wanted: Attributes | None = attributes_of(leaf.seen)
        else:
            wanted = merged(leaf.seen, record, taken, store_same=True, take_mtime=changed)
        taken = intake.dress(taken, wanted)
        changed = changed or wanted is not None
    _note_link(scene, frame, leaf, taken, clean=taken.nlink == 1 or _is_same(scene, leaf, taken))
    _count(scene, changed)


def _replace(scene: Scene, frame: Frame, leaf: Leaf, inode: Inode, record: Record) -> Inode | None:
    """Give the name another inode, where the type or the hard links below ask for one; that one has
    its attributes already. None if the inode can stay."""
    intake, seen = scene.intake, leaf.seen
    group = intake.groups.get(leaf.identity) if seen.st_nlink > 1 else None
    if group is not None and group.ino == inode.ino:
        return None
    same_file = record.lower_ino == seen.st_ino
    outranked = group is not None and (group.places is None or not same_file)
    shared = inode.nlink > 1 and not same_file
    other_type = stat.S_IFMT(inode.mode) != stat.S_IFMT(seen.st_mode)
    other_node = not leaf.is_file and leaf.digest != record.digest
    if outranked or shared or other_type or other_node:
        return intake.replace(leaf, scene.place(frame), leaf.name, inode)
    return None


def _take_rights(
    scene: Scene, leaf: Leaf, inode: Inode, record: Record, *, store_same: bool
) -> tuple[Inode, bool]:
    """Give the inode owner and mode from below before the content comes: a pass that ends in the
    middle must not leave the rights of one file on the bytes of another."""
    if not leaf.is_file or _lower_rights(leaf) == _rights(inode.mode, inode.uid, inode.gid):
        return inode, False
    wanted = merged(leaf.seen, record, inode, store_same=store_same, take_mtime=False)
    if record.is_half_done:
        wanted = attributes_of(leaf.seen)
    if wanted is None:
        # The store has an owner that the file below could not be given to.
        bare = inode.mode & ~SET_ID
        return (
            inode if bare == inode.mode else scene.intake.dress(inode, Attributes(mode=bare))
        ), False
    rights = Attributes(mode=wanted.mode, uid=wanted.uid, gid=wanted.gid)
    return scene.intake.dress(inode, rights), True


def _rewrite(scene: Scene, frame: Frame, leaf: Leaf, inode: Inode) -> tuple[bool, Inode]:
    """Give the inode the content from below; say whether it had another."""
    intake = scene.intake
    try:
        changed = leaf.is_file and intake.rewrite(leaf, inode)
    except OSError:
        # Read or written to the middle only. The next scan must not take that for an edit.
        _note_half(scene, frame, leaf, intake.fs.getattr(intake.view, inode.ino))
        raise
    intake.join_group(leaf.seen, inode)
    return changed, intake.fs.getattr(intake.view, inode.ino)


def _count(scene: Scene, changed: bool) -> None:
    if changed:
        scene.tally.modified += 1
    else:
        scene.tally.unchanged += 1


# -- both changed ----------------------------------------------------------------------------------


def _compare(scene: Scene, frame: Frame, leaf: Leaf, inode: Inode, record: Record | None) -> None:
    """Find out whether both sides really changed, and to what."""
    if stat.S_IFMT(inode.mode) != stat.S_IFMT(leaf.seen.st_mode):
        _keep_both(scene, frame, leaf)
        return
    in_store = scene.intake.digest(inode)
    if record is None:
        if in_store == leaf.digest:
            _agree(scene, frame, leaf, inode, same_content=True)
        else:
            _keep_both(scene, frame, leaf)
    elif leaf.digest == in_store:
        _merge_same_content(scene, frame, leaf, inode, record)
    elif leaf.digest == record.digest and _may_keep_content(leaf, inode, record):
        _merge_attributes(scene, frame, leaf, inode, record, same_content=False)
    elif in_store == record.digest and _may_take_content(leaf, inode, record):
        _merge_content(scene, frame, leaf, inode, record)
    else:
        _keep_both(scene, frame, leaf)


Rights = tuple[int, int, int]


def _rights(mode: int, uid: int, gid: int) -> Rights:
    """In whose name a file speaks, and with whose rights it runs. These belong to the content: one
    side's must never be put on the other side's bytes, which somebody else may have written."""
    return uid, gid, mode & SET_ID


def _lower_rights(leaf: Leaf) -> Rights:
    return _rights(leaf.seen.st_mode, leaf.seen.st_uid, leaf.seen.st_gid)


def _opens_up(mode: int, than: int, leaf: Leaf, record: Record) -> bool:
    """Whether a mode lets more people in than another, and another file took the name below: one
    that was open in place of this one must not open it, nor the reverse."""
    return leaf.seen.st_ino != record.lower_ino and bool(mode & ~than & 0o777)


def _may_keep_content(leaf: Leaf, inode: Inode, record: Record) -> bool:
    """Whether the store's content can take the attributes that changed below."""
    known = (_rights(*record[:3]), _rights(inode.mode, inode.uid, inode.gid))
    taken = leaf.seen.st_mode if inode.mode == record.mode else inode.mode
    return _lower_rights(leaf) in known and not _opens_up(taken, inode.mode, leaf, record)


def _may_take_content(leaf: Leaf, inode: Inode, record: Record) -> bool:
    """Whether the content from below can take the attributes that changed in the store."""
    stored = _rights(inode.mode, inode.uid, inode.gid)
    known = (_rights(*record[:3]), _lower_rights(leaf))
    kept = leaf.seen.st_mode if inode.mode == record.mode else inode.mode
    return stored in known and not _opens_up(kept, leaf.seen.st_mode, leaf, record)


def _merge_same_content(
    scene: Scene, frame: Frame, leaf: Leaf, inode: Inode, record: Record
) -> None:
    """Both sides came to the same digest. That can be made to collide, so the bytes are compared
    before the store's take on rights from below."""
    safe = not leaf.is_file or _may_keep_content(leaf, inode, record)
    if safe or scene.intake.has_bytes_of(leaf, inode):
        _merge_attributes(scene, frame, leaf, inode, record, same_content=True)
    else:
        _keep_both(scene, frame, leaf)


def _agree(scene: Scene, frame: Frame, leaf: Leaf, inode: Inode, *, same_content: bool) -> None:
    """Note what is below; in agreement with the store only if nothing is left to write back."""
    if same_content:
        scene.intake.join_group(leaf.seen, inode)
    clean = same_content and _is_same(scene, leaf, inode)
    _note_link(scene, frame, leaf, inode, clean=clean)
    scene.tally.unchanged += 1


def _merge_attributes(
    scene: Scene,
    frame: Frame,
    leaf: Leaf,
    inode: Inode,
    record: Record,
    *,
    same_content: bool,
) -> None:
    """The content needs nothing from below; attributes may."""
    intake = scene.intake
    wanted = merged(leaf.seen, record, inode, store_same=False, take_mtime=False)
    taken = intake.merge_xattrs(inode, leaf.xattrs, record, store_same=False)
    inode = intake.dress(inode, wanted)
    _agree(scene, frame, leaf, inode, same_content=same_content)
    if taken or wanted is not None:
        scene.tally.unchanged -= 1
        scene.tally.modified += 1


def _merge_content(scene: Scene, frame: Frame, leaf: Leaf, inode: Inode, record: Record) -> None:
    """The store changed attributes only: the content below is newer."""
    intake = scene.intake
    taken = _replace(scene, frame, leaf, inode, record)
    if taken is None:
        inode, _ = _take_rights(scene, leaf, inode, record, store_same=False)
        _, taken = _rewrite(scene, frame, leaf, inode)
        intake.merge_xattrs(taken, leaf.xattrs, record, store_same=False)
        wanted = merged(leaf.seen, record, taken, store_same=False, take_mtime=True)
        taken = intake.dress(taken, wanted)
    _note_link(scene, frame, leaf, taken, clean=_is_same(scene, leaf, taken))
    scene.tally.modified += 1


def _keep_both(scene: Scene, frame: Frame, leaf: Leaf) -> None:
    """The store keeps the name; what is below comes in beside it. The ledger then says that the
    name below stands for the newcomer, as if the store had moved it there: that is all the
    write-back needs to put the store's version under the name."""
    place = scene.place(frame)
    name = scene.intake.free_name(place, leaf.name, leaf.dir_fd)
    inode = scene.intake.create(leaf, place, name)
    frame.kept = True
    _note(scene, frame, leaf, inode)
    scene.tally.added += 1
    scene.tally.conflict(scene.down.path(leaf.name), scene.intake.path(place, name))


# -- deleted in the store --------------------------------------------------------------------------


def _bring_back(scene: Scene, frame: Frame, leaf: Leaf, record: Record) -> None:
    """Edited below, deleted in the store: an edit is worth more than a deletion. Other attributes
    on the same content are no edit."""
    if leaf.digest == record.digest and stat.S_IFMT(record.mode) == stat.S_IFMT(leaf.seen.st_mode):
        _note_unchanged(scene, frame, leaf, record)
        return
    _add(scene, frame, leaf)
    kept_as = scene.intake.path(scene.place(frame), leaf.name)
    scene.tally.conflict(scene.down.path(leaf.name), kept_as)
