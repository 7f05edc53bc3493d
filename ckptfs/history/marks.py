"""Checkpoints that mark a moment in somebody's work: before an agent's tool, around a command.

They expire like those that take themselves. An agent often looks around without changing anything;
then one checkpoint serves for all that happens in that state, and tells of the last of it: the one
that goes on to change something.
"""

from __future__ import annotations

from dataclasses import replace

from ckptfs.fs import Filesystem
from ckptfs.history.checkpoints import Cause, Checkpoint, describe, seal

#: The kind of what a program marked by the control file (`ckptfs.fuse.control_files`).
MARK = "mark"

#: What may be marked by a verb: the steps of an agent, and commands.
KINDS = frozenset({"hook", "run"})

#: What tells one tool call of an agent from another, and those that found the same state before it.
TOOL_USE = "tool_use_id"
EARLIER = "earlier_tool_use_ids"
_EARLIER_MAX = 64


def mark(
    fs: Filesystem,
    kind: str,
    message: str,
    same: Checkpoint | None,
    *,
    metadata: dict[str, str] | None = None,
    cause: Cause | None = None,
    weak: bool = False,
) -> Checkpoint:
    """The checkpoint of the workspace as it is, taken now unless there is one that can serve.

    ``same`` is the one that the workspace still equals, if there is one. A ``weak`` mark is content
    with any. The caller commits.
    """
    if same is not None and weak:
        return same
    metadata = metadata or {}
    if same is not None and _serves(same, kind, metadata):
        described = replace(same, message=message, metadata=_merged(same.metadata, metadata))
        describe(fs.store, described)
        return described
    return seal(fs, kind, message, fs.clock(), metadata=metadata, cause=cause)


def _serves(same: Checkpoint, kind: str, metadata: dict[str, str]) -> bool:
    """Whether it was taken for the same purpose in the same session."""
    return same.kind == kind and same.metadata.get("session") == metadata.get("session")


def _merged(old: dict[str, str], new: dict[str, str]) -> dict[str, str]:
    merged = {**old, **new}
    if (before := old.get(TOOL_USE)) and before != merged[TOOL_USE]:
        earlier = [*old.get(EARLIER, "").split(), before][-_EARLIER_MAX:]
        merged[EARLIER] = " ".join(earlier)
    return merged
