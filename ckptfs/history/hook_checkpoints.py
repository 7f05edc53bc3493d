"""Checkpoints that mark a moment in somebody's work: before an agent's tool, around a command.

They expire like those that take themselves. An agent often looks around without changing anything;
then one checkpoint serves for all that happens in that state, and tells of the last of it: the one
that goes on to change something.

How the tool ended is told afterwards (`record_result`), and which subagents an agent has at work
(`Subagents`), so that its checkpoints name them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from weakref import WeakKeyDictionary

from ckptfs.fs import Filesystem
from ckptfs.history.checkpoints import Cause, Checkpoint, checkpoints, describe, seal
from ckptfs.store import Store

#: The kind of what a program marked by the control file (`ckptfs.fuse.control_files`).
MARK = "mark"

#: What may be marked by a verb: the steps of an agent, and commands.
KINDS = frozenset({"hook", "run"})

#: What tells one tool call of an agent from another, and those that found the same state before it.
TOOL_USE = "tool_use_id"
EARLIER = "earlier_tool_use_ids"
_EARLIER_MAX = 64
#: How the tool ended: "ok", "failed", "failed (exit code)" or "interrupted".
RESULT = "result"
#: The subagents that were at work, by name.
SUBAGENT = "subagent"

#: How many checkpoints back a tool's own is looked for: it was the newest of its session.
_LOOKED_AT = 500


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
    """What both tell; how another tool ended, and who ran it, is not the new one's."""
    merged = {key: value for key, value in old.items() if key not in (RESULT, SUBAGENT)} | new
    if (before := old.get(TOOL_USE)) and before != merged[TOOL_USE]:
        earlier = [*old.get(EARLIER, "").split(), before][-_EARLIER_MAX:]
        merged[EARLIER] = " ".join(earlier)
    return merged


def record_result(
    store: Store, result: str, *, session: str, tool: str, tool_use_id: str
) -> Checkpoint | None:
    """Tell the checkpoint that was taken before a tool how the tool ended. The caller commits.

    It is found by the id of the call, else by session and tool, newest first. None if there is
    none, or if the checkpoint tells of a later call by now.
    """
    recent = [
        item
        for item in islice(reversed(checkpoints(store)), _LOOKED_AT)
        if "hook" in (item.kind, item.metadata.get("kind"))
    ]
    found = _by_id(recent, tool_use_id) if tool_use_id else None
    if found is None:
        found = _by_tool(recent, session, tool, without_id=bool(tool_use_id))
    if found is None or tool_use_id in found.metadata.get(EARLIER, "").split():
        return None
    told = replace(found, metadata={**found.metadata, RESULT: result})
    if told != found:
        describe(store, told)
    return told


def _by_id(recent: list[Checkpoint], tool_use_id: str) -> Checkpoint | None:
    for item in recent:
        ids = (item.metadata.get(TOOL_USE), *item.metadata.get(EARLIER, "").split())
        if tool_use_id in ids:
            return item
    return None


def _by_tool(
    recent: list[Checkpoint], session: str, tool: str, *, without_id: bool
) -> Checkpoint | None:
    """The newest that tells of this tool in this session; ``without_id`` if the call had an id, so
    that a checkpoint with another one cannot be meant."""
    for item in recent if tool else ():
        about = (item.metadata.get("session", ""), item.metadata.get("tool", ""))
        if about == (session, tool) and not (without_id and item.metadata.get(TOOL_USE)):
            return item
    return None


class Subagents:
    """Which subagents are at work, by session. Of a daemon's lifetime: an agent that outlives it
    tells of the next one anew."""

    _SESSIONS_MAX = 64

    def __init__(self) -> None:
        #: By session, the names by their ids; the session that was heard of last is last.
        self._running: dict[str, dict[str, str]] = {}

    def started(self, session: str, ident: str, name: str) -> None:
        running = self._running.pop(session, {})
        self._running[session] = {**running, ident: name}
        for oldest in list(self._running)[: -self._SESSIONS_MAX]:
            del self._running[oldest]

    def stopped(self, session: str, ident: str, name: str) -> None:
        """By its id; an agent that gave none when it started is known by its name."""
        running = self._running.get(session, {})
        running.pop(ident if ident in running else name, None)

    def forget(self, session: str) -> None:
        self._running.pop(session, None)

    def names(self, session: str) -> str:
        return ", ".join(dict.fromkeys(self._running.get(session, {}).values()))


_subagents: WeakKeyDictionary[Store, Subagents] = WeakKeyDictionary()


def subagents_of(store: Store) -> Subagents:
    return _subagents.setdefault(store, Subagents())
