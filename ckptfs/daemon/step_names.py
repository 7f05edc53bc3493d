"""Names that checkpoints get later, once it shows what the step before which they were taken is.

A shell opens the target of ``>`` before it becomes the command, and which files a harness edits
shows when they are edited.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from time import monotonic_ns
from typing import NamedTuple

from ckptfs import history
from ckptfs.commands import printable
from ckptfs.fs import Filesystem
from ckptfs.history import Checkpoint
from ckptfs.history.auto import Moments, cause_of, message_of
from ckptfs.history.checkpoints import numbered
from ckptfs.history.steps import TRUST_NS, Actor, Caller, Who
from ckptfs.model import ROOT_INO, Ino

#: How many files are looked at to name an edit.
_EDITED_MAX = 1000
#: How many checkpoints wait for their name at once.
_WAITING_MAX = 16


class _Waiting(NamedTuple):
    number: int
    caller: Caller
    since_ns: int


class StepNames:
    """The checkpoints that have no good name yet."""

    def __init__(self, fs: Filesystem, who: Who, moments: Moments) -> None:
        self._fs = fs
        self._who = who
        self._moments = moments
        self._waiting: list[_Waiting] = []

    def expect(self, checkpoint: Checkpoint, caller: Caller) -> None:
        """A checkpoint was taken before a step whose name shows later, if that is so."""
        if caller.step.provisional or caller.step.edits:
            waiting = _Waiting(checkpoint.id, caller, monotonic_ns())
            self._waiting = [*self._waiting, waiting][-_WAITING_MAX:]

    def settle(self) -> None:
        """Name what can be named. Also to be called before a seal: what was edited since the last
        is known until then."""
        self._waiting = [one for one in self._waiting if not self._name(one)]

    def _name(self, waiting: _Waiting) -> bool:
        """Whether nothing is left to wait for."""
        step = waiting.caller.step
        if step.edits:
            self._rename(waiting.number, self._edit_of(waiting.caller), step)
            return True
        found = self._who(waiting.caller.pid)
        if found is not None and found.step.provisional:
            return monotonic_ns() - waiting.since_ns >= TRUST_NS
        if found is not None:
            self._rename(waiting.number, message_of(found.step), found.step)
        return True

    def _edit_of(self, caller: Caller) -> str:
        changed = self._moments.changed_by(caller.call)[:_EDITED_MAX]
        return edit_message(path_of(self._fs, Ino(ino)) for ino in changed) or "before: edit"

    def _rename(self, number: int, message: str, step: Actor) -> None:
        """Somebody may have tagged, pinned or deleted it meanwhile."""
        found = numbered(self._fs.store, number)
        if found is not None:
            better = replace(found, message=message, cause=cause_of(step))
            history.describe(self._fs.store, better)


def edit_message(paths: Iterable[bytes]) -> str:
    """What a harness edited, in words; empty if nothing is left of it."""
    files = [path for path in paths if path]
    if not files:
        return ""
    if len(files) == 1:
        return f"before: edit: {printable(os.fsdecode(files[0]))}"
    return f"before: edit: {len(files):,} files"


def path_of(fs: Filesystem, ino: Ino) -> bytes:
    """Where a file of the workspace is; empty for a directory, and for what has no name."""
    names: list[bytes] = []
    try:
        inode = fs.getattr(fs.head, ino)
        if inode.is_dir:
            return b""
        while inode.ino != ROOT_INO:
            if not inode.parent:
                return b""
            names.append(inode.name)
            inode = fs.getattr(fs.head, inode.parent)
    except OSError:
        return b""  # damaged, or gone: a name is not worth a failure
    return b"/".join(reversed(names))
