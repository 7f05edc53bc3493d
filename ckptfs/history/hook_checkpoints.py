"""Hook checkpoints: taken when a hook or a command asks for one, before an agent's tool call.

They expire like automatic ones. An agent often looks around without changing anything; then one
checkpoint serves for all tool calls in that state, and describes the last of them, which goes on to
change something.

The result of the tool call is added afterwards (`record_result`). `Subagents` knows which subagents
are running, so that checkpoints name them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from weakref import WeakKeyDictionary

from ckptfs.fs import Filesystem
from ckptfs.history.checkpoints import Cause, Checkpoint, checkpoints, describe, seal
from ckptfs.history.collisions import COLLISION
from ckptfs.store import Store

#: The kind of a checkpoint that a program asked for by the control file
#: (`ckptfs.fuse.control_files`).
MARK = "mark"

#: The kinds that a verb may ask for: steps of an agent, and commands.
KINDS = frozenset({"hook", "run"})

#: The id of an agent's tool call, and the ids of earlier calls that found the same state.
TOOL_USE = "tool_use_id"
EARLIER = "earlier_tool_use_ids"
_EARLIER_MAX = 64
#: How the tool call ended: "ok", "failed", "failed (exit code)" or "interrupted".
RESULT = "result"
#: The names of the subagents that were running.
SUBAGENT = "subagent"

#: How many checkpoints back to look for that of a tool call: it was the newest of its session.
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
    """A checkpoint of the workspace as it is: a new one, unless an existing one can serve.

    ``same`` is the checkpoint that the workspace still equals, if there is one. With ``weak`` any
    such checkpoint will do. The caller commits.
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
    """The metadata of both, without the earlier call's result, subagents and collision."""
    gone = (RESULT, SUBAGENT, COLLISION)
    merged = {key: value for key, value in old.items() if key not in gone} | new
    if (before := old.get(TOOL_USE)) and before != merged[TOOL_USE]:
        earlier = [*old.get(EARLIER, "").split(), before][-_EARLIER_MAX:]
        merged[EARLIER] = " ".join(earlier)
    return merged


def record_result(
    store: Store, result: str, *, session: str, tool: str, tool_use_id: str
) -> Checkpoint | None:
    """Add the result of a tool call to the checkpoint that was taken before it. The caller commits.

    The checkpoint is found by the id of the call, else by session and tool, newest first. None if
    there is none, or if it describes a later call by now.
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
    described = replace(found, metadata={**found.metadata, RESULT: result})
    if described != found:
        describe(store, described)
    return described


def _by_id(recent: list[Checkpoint], tool_use_id: str) -> Checkpoint | None:
    for item in recent:
        ids = (item.metadata.get(TOOL_USE), *item.metadata.get(EARLIER, "").split())
        if tool_use_id in ids:
            return item
    return None


def _by_tool(
    recent: list[Checkpoint], session: str, tool: str, *, without_id: bool
) -> Checkpoint | None:
    """The newest checkpoint of this tool in this session. With ``without_id`` the call had an id,
    so a checkpoint with another id cannot be meant."""
    for item in recent if tool else ():
        about = (item.metadata.get("session", ""), item.metadata.get("tool", ""))
        if about == (session, tool) and not (without_id and item.metadata.get(TOOL_USE)):
            return item
    return None


class Subagents:
    """The running subagents by session, for the lifetime of a daemon: an agent that outlives it
    reports its next subagent to the next daemon."""

    _SESSIONS_MAX = 64

    def __init__(self) -> None:
        #: By session, names by id; the session that reported last is last.
        self._running: dict[str, dict[str, str]] = {}

    def started(self, session: str, ident: str, name: str) -> None:
        running = self._running.pop(session, {})
        self._running[session] = {**running, ident: name}
        for oldest in list(self._running)[: -self._SESSIONS_MAX]:
            del self._running[oldest]

    def stopped(self, session: str, ident: str, name: str) -> None:
        """Found by id, or by name if it started without an id."""
        running = self._running.get(session, {})
        running.pop(ident if ident in running else name, None)

    def forget(self, session: str) -> None:
        self._running.pop(session, None)

    def names(self, session: str) -> str:
        return ", ".join(dict.fromkeys(self._running.get(session, {}).values()))


_subagents: WeakKeyDictionary[Store, Subagents] = WeakKeyDictionary()


def subagents_of(store: Store) -> Subagents:
    return _subagents.setdefault(store, Subagents())
