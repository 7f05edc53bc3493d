"""The members of a team and their workspaces: finding them, and saving all at one moment."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from ckptfs import config as places
from ckptfs.config import Workspace
from ckptfs.connect import open_workspace
from ckptfs.control import runtime
from ckptfs.control.client import PATIENCE_SHORT, Client
from ckptfs.errors import CkptfsError, ControlError, TeamBusy, TeamInvalid, WorkspaceError
from ckptfs.service.arguments import JsonObject
from ckptfs.team import trust
from ckptfs.team.files import CONFIG, DataDir

#: For how many seconds the workspaces are frozen; each further try takes more.
_HOLDS = (0.5, 1.0, 2.0, 2.0)
#: Fields of a member in which programs keep its directory.
_DIRECTORY_FIELDS = ("workspace", "workspaceDir", "cwd")


class TeamWorkspace(NamedTuple):
    """A workspace, and the members that work in it."""

    members: list[str]
    workspace: Workspace

    @property
    def title(self) -> str:
        return f"{', '.join(self.members)} ({self.workspace.path})"


class Located(NamedTuple):
    places: list[TeamWorkspace]
    without: list[str]


def locate(data_dir: DataDir, team: str, config: Any) -> Located:
    """The members' workspaces: from the team's config, else from the registry of work trees, else
    the default directory. The lead of a team with work trees is in their repository: there git
    keeps the heads and indexes of all of them."""
    trees, repository = _work_trees(data_dir, team)
    lead = config.get("leadAgentId") if isinstance(config, dict) else None
    by_path: dict[str, TeamWorkspace] = {}
    without = []
    for member in _members(config):
        name = trust.require_identifier(member.get("name"), "a member")
        directory = next((member[key] for key in _DIRECTORY_FIELDS if member.get(key)), None)
        directory = directory or trees.get(name)
        if not directory and repository and lead and member.get("agentId") == lead:
            directory = repository
        directory = directory or data_dir.path / "workspaces" / team / name
        workspace = _workspace_of(directory)
        if workspace is None:
            without.append(name)
            continue
        known = by_path.setdefault(str(workspace.path), TeamWorkspace([], workspace))
        known.members.append(name)
    found = list(by_path.values())
    _require_apart(data_dir, found)
    return Located(found, without)


def _members(config: Any) -> list[dict[str, Any]]:
    members = config.get("members", []) if isinstance(config, dict) else None
    if not isinstance(members, list) or not all(isinstance(member, dict) for member in members):
        raise TeamInvalid(CONFIG, "it does not list the members of the team")
    return members


def _work_trees(data_dir: DataDir, team: str) -> tuple[dict[str, str], str]:
    """Where the members have work trees, and the repository of these; empty if there are none."""
    data = data_dir.read_own(f"workspaces/{team}/workspace-registry.json")
    if data is None:
        return {}, ""
    try:
        record = json.loads(data)
        trees = {
            str(item["agent_name"]): str(item["worktree_path"]) for item in record["workspaces"]
        }
        return trees, str(record.get("repo_root") or "")
    except (ValueError, KeyError, TypeError) as error:
        raise TeamInvalid("workspace-registry.json", f"it is damaged ({error})") from error


def _workspace_of(directory: str | os.PathLike[str]) -> Workspace | None:
    """The workspace that a directory is, or lies in."""
    if not os.path.isabs(directory):
        raise TeamInvalid(f"the directory {os.fspath(directory)!r} of a member", "it is relative")
    try:
        return places.find(places.resolve(directory))
    except WorkspaceError:
        return None


def resolve(workspace: str, store: str, members: Sequence[str] = ()) -> Workspace:
    """The workspace that a snapshot or a journal names. Only the caller's registry says that a path
    is a workspace, and which store it has."""
    known = places.lookup(places.resolve(workspace))
    whose = f" of {', '.join(members)}" if members else ""
    what = f"the workspace {workspace}{whose}"
    if known is None:
        raise TeamInvalid(what, "it is none of ckptfs now")
    if known.store != Path(store):
        raise TeamInvalid(what, f"it has another store, {known.store}")
    with suppress(FileNotFoundError):
        trust.require_own(os.stat(known.store), f"the store {known.store}")
    return known


def _require_apart(data_dir: DataDir, found: Sequence[TeamWorkspace]) -> None:
    """Refuse a data directory in a workspace: frozen files cannot be read."""
    here = places.resolve(data_dir.path)
    for place in found:
        if here.is_relative_to(place.workspace.path):
            reason = f"it lies in the workspace of {', '.join(place.members)}"
            raise TeamInvalid(f"the data directory {here}", reason)


def unmounted(found: Sequence[TeamWorkspace]) -> list[TeamWorkspace]:
    return [place for place in found if not _is_mounted(place.workspace)]


def _is_mounted(workspace: Workspace) -> bool:
    daemon = runtime.living(workspace)
    return daemon is not None and daemon.state == runtime.SERVING


def save_all(
    team: str, found: Sequence[TeamWorkspace], asked: JsonObject, meanwhile: Callable[[], bool]
) -> list[int]:
    """A checkpoint of every workspace, all of the same moment; their numbers.

    ``meanwhile`` is called while all are frozen, and returns whether it succeeded. A workspace that
    is not mounted cannot be frozen, and is saved before.
    """
    plain = {
        place.workspace.path: _save_plain(place.workspace, asked) for place in unmounted(found)
    }
    mounted = [place for place in found if place.workspace.path not in plain]
    try:
        saved = _save_mounted(team, mounted, asked, meanwhile)
    except BaseException:
        for place in found:
            if place.workspace.path in plain:
                forget(place.workspace, plain[place.workspace.path])
        raise
    numbers = plain | {
        place.workspace.path: number for place, number in zip(mounted, saved, strict=True)
    }
    return [numbers[place.workspace.path] for place in found]


def _save_plain(workspace: Workspace, asked: JsonObject) -> int:
    with open_workspace(workspace, patience=PATIENCE_SHORT) as session:
        number: int = session.call("save", asked)["id"]
        return number


def _save_mounted(
    team: str, mounted: Sequence[TeamWorkspace], asked: JsonObject, meanwhile: Callable[[], bool]
) -> list[int]:
    reason = ""
    for seconds in _HOLDS:
        numbers: list[int | None] = [None] * len(mounted)
        try:
            if _save_at_once(mounted, asked, seconds, meanwhile, numbers):
                return [number for number in numbers if number is not None]
            reason = "its state keeps changing"
        except ControlError as error:
            reason = str(error)
        except BaseException:
            _forget_all(mounted, numbers)
            raise
        _forget_all(mounted, numbers)
        time.sleep(seconds / 10)
    raise TeamBusy(team, f"not all of its workspaces could be held still at once ({reason})")


def _save_at_once(
    mounted: Sequence[TeamWorkspace],
    asked: JsonObject,
    seconds: float,
    meanwhile: Callable[[], bool],
    numbers: list[int | None],
) -> bool:
    """All are frozen before the first is saved, and each still is when it is saved: so there was a
    moment at which all equalled their checkpoints. Returns what ``meanwhile`` returned."""
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(place.workspace)) for place in mounted]
        for client in clients:
            client.call("sync")
        _everywhere(clients, "freeze", {"seconds": seconds})
        went_well = meanwhile()
        for client in clients:
            client.send_request("save", asked)
        failures = []
        for index, client in enumerate(clients):
            try:
                numbers[index] = client.receive_result(patience=PATIENCE_SHORT)["id"]
            except ControlError as error:
                failures.append(error)  # the others' checkpoints have to be deleted again
        if failures:
            raise failures[0]
        with suppress(ControlError):  # a freeze whose time is up has ended
            _everywhere(clients, "thaw", {})
    return went_well


def _everywhere(clients: Sequence[Client], op: str, args: JsonObject) -> None:
    for client in clients:
        client.send_request(op, args)
    for client in clients:
        client.receive_result(patience=PATIENCE_SHORT)


def _forget_all(mounted: Sequence[TeamWorkspace], numbers: Sequence[int | None]) -> None:
    for place, number in zip(mounted, numbers, strict=True):
        if number is not None:
            forget(place.workspace, number)


def forget(workspace: Workspace, number: int) -> None:
    """Delete a checkpoint of a snapshot, if it is still there."""
    with suppress(CkptfsError), open_workspace(workspace, patience=PATIENCE_SHORT) as session:
        session.call("unpin", {"checkpoints": [str(number)]})
        session.call("delete", {"checkpoints": [str(number)]})
