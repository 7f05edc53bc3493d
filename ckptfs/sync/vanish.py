"""What the ledger knows and the lower directory no longer has: deleted in the store too, or kept.

Applies the decision table to names that are gone below. The walk is elsewhere.
"""

from __future__ import annotations

from ckptfs.model import Ino
from ckptfs.sync.decide import Action, Side, decide
from ckptfs.sync.frames import Frame, Scene
from ckptfs.sync.leaves import store_side
from ckptfs.sync.ledger import NEVER, decode, ino_of, is_directory


def vanish(scene: Scene, frame: Frame, name: bytes, value: bytes) -> None:
    """A name that the ledger knows and the lower directory no longer has."""
    place = frame.find(scene.intake)
    if not is_directory(value):
        _vanish_one(scene, frame.key, place, name, value)
        return
    directories = _vanished_directories(scene, frame.key, place, name, value)
    for key, where, child, record in reversed(directories):
        _vanish_directory(scene, key, where, child, record)


def _vanish_one(scene: Scene, key: Ino, place: Ino | None, name: bytes, value: bytes) -> None:
    """Delete it in the store too, if that still has what was below; forget it in any case."""
    inode = None if place is None else scene.intake.find(place, name)
    action = decide(Side.GONE, store_side(scene, inode, decode(value)))
    if action is Action.DELETE and place is not None and inode is not None:
        scene.intake.remove(place, name, inode)
        scene.tally.deleted += 1
    scene.ledger.forget(key, name)
    scene.intake.commit_if_large()


def _vanished_directories(
    scene: Scene, key: Ino, place: Ino | None, name: bytes, value: bytes
) -> list[tuple[Ino, Ino | None, bytes, bytes]]:
    """The directories of a vanished tree, outermost first; their other entries are done with."""
    found = [(key, place, name, value)]
    for _, outer_place, outer_name, outer_value in found:
        inner_key = ino_of(outer_value)
        inode = None if outer_place is None else scene.intake.find(outer_place, outer_name)
        # A directory that the store moved or replaced stays as it is: all below is forgotten.
        inner_place = inode.ino if inode is not None and inode.ino == inner_key else None
        for child, record in scene.ledger.children(inner_key).items():
            if is_directory(record):
                found.append((inner_key, inner_place, child, record))
            else:
                _vanish_one(scene, inner_key, inner_place, child, record)
    return found


def _vanish_directory(scene: Scene, key: Ino, place: Ino | None, name: bytes, value: bytes) -> None:
    scene.ledger.forget(key, name)
    if place is None:
        return
    inode = scene.intake.find(place, name)
    record = decode(value)
    if inode is None or record is None or inode.ino != record.ino or not inode.is_dir:
        return
    if record.stored_ctime_ns == NEVER:
        # The store's own, never yet brought down.
        return
    if next(iter(scene.intake.fs.entries(scene.intake.view, inode.ino)), None) is None:
        scene.intake.remove(place, name, inode)
        scene.tally.deleted += 1
