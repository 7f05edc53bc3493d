"""Restoring: the workspace, or some paths, or what one author changed, as it was."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from ckptfs import history, interrupts
from ckptfs.errors import PathUnknown, TreeMoved
from ckptfs.history import Cause, Checkpoint, Plan, Restored, Touched, authors, excluded
from ckptfs.history.authors import Skipped
from ckptfs.history.paths import seek
from ckptfs.service.refusals import given, nothing_in_the_way, paths_known
from ckptfs.store import View

if TYPE_CHECKING:
    from ckptfs.service.service import Service


def plan_restore(
    service: Service, checkpoint: str, patterns: Sequence[bytes] | None = None
) -> Plan:
    """What a restore would do, path by path."""
    target = service.find(checkpoint)
    with nothing_in_the_way():
        return history.plan(service.fs, target, _select(service, target, patterns))


def restore(
    service: Service,
    checkpoint: str,
    patterns: Sequence[bytes] | None = None,
    *,
    token: str = "",
    backup: bool = True,
    cause: Cause | None = None,
) -> Restored | None:
    """Make the workspace, or some paths of it, what it was at a checkpoint; None if it is.
    Without patterns it is all of it; an empty list of them is refused.

    What it is now is saved first, unless ``backup`` says otherwise. With the token of a plan it
    is refused if anything changed since.
    """
    target = service.find(checkpoint)
    service.fs.flush()
    with interrupts.stoppable():
        paths = _select(service, target, patterns)
        if token and history.token_of(service.fs, target, paths) != token:
            raise TreeMoved
        with nothing_in_the_way():
            differs = history.would_change(service.fs, target, paths)
    if not differs:
        return None
    if paths:
        restored = _restore_paths(service, target, paths, cause)
    else:
        restored = history.restore(service.fs, target, cause=cause)
        service.fs.sync()
        service.unannounced.append(restored.touched)
    if not backup:
        service.delete([restored.before])
    return restored


def plan_selective(
    service: Service, checkpoint: str, patterns: Sequence[bytes] | None, wanted: str
) -> tuple[Plan, list[Skipped]]:
    """What a restore of one author's changes would do, and what it would leave alone."""
    target = service.find(checkpoint)
    paths = _select(service, target, patterns)
    choice = authors.choose(service.fs, target, wanted, paths)
    return choice.plan(service.fs, paths), choice.skipped


def restore_selective(
    service: Service,
    checkpoint: str,
    patterns: Sequence[bytes] | None,
    wanted: str,
    *,
    token: str = "",
    backup: bool = True,
    cause: Cause | None = None,
) -> tuple[Restored | None, list[Skipped]]:
    """Make what one author changed what it was at a checkpoint, and leave the rest alone."""
    target = service.find(checkpoint)
    service.fs.flush()
    with interrupts.stoppable():
        paths = _select(service, target, patterns)
        if token and authors.token(service.fs, target, paths, wanted) != token:
            raise TreeMoved
        choice = authors.choose(service.fs, target, wanted, paths)
    if not choice.mine:
        return None, choice.skipped
    touched = Touched(set(), set())
    service.unannounced.append(touched)  # first: also if it fails, the kernel has to hear of it
    restored = authors.restore_choice(service.fs, choice, touched_here=touched, cause=cause)
    service.fs.sync()
    if not backup:
        service.delete([restored.before])
    return restored, choice.skipped


def acting(service: Service, cause: Cause) -> AbstractContextManager[None]:
    """Who is to be noted for what a verb changes."""
    return authors.acting(service.fs, cause)


def _restore_paths(
    service: Service, target: Checkpoint, paths: list[bytes], cause: Cause | None
) -> Restored:
    touched = Touched(set(), set())
    service.unannounced.append(touched)  # first: also if it fails, the kernel has to hear of it
    restored = history.restore_paths(service.fs, target, paths, touched_here=touched, cause=cause)
    service.fs.sync()
    return restored


def _select(service: Service, target: Checkpoint, wanted: Sequence[bytes] | None) -> list[bytes]:
    patterns = given(wanted, "restore")
    service.fs.flush()
    for pattern in patterns:
        if excluded.is_excluded(service.fs, pattern):
            raise _kept_out(pattern, target)
    views = (service.fs.head, service.fs.view_of(target.epoch))
    reason = f"neither checkpoint {target.id} nor the workspace has it"
    with paths_known("restore", reason, named=b", ".join(patterns)):
        paths = history.select(service.fs, views, patterns)
        kept = [path for path in paths if not _is_kept_out(service, path, views)]
        for pattern in patterns if len(kept) < len(paths) else ():
            found = history.select(service.fs, views, [pattern])
            if all(_is_kept_out(service, path, views) for path in found):
                raise _kept_out(pattern, target)
    return kept


def _is_kept_out(service: Service, path: bytes, views: Iterable[View]) -> bool:
    """Whether a path is excluded, or would be if it were restored."""
    if excluded.is_excluded(service.fs, path):
        return True
    found = [seek(service.fs, view, path) for view in views]
    is_dir = any(inode is not None and inode.is_dir for inode in found)
    return excluded.would_be_excluded(service.fs, path, is_dir=is_dir)


def _kept_out(path: bytes, target: Checkpoint) -> PathUnknown:
    reason = f"it is excluded from history (`cp -a` from .checkpoints/{target.id} can copy it)"
    return PathUnknown(path, reason, verb="restore")
