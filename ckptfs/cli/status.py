"""`ckptfs status` and `ckptfs watch`: where a workspace lives, how it is, what happens to it."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from contextlib import suppress

from ckptfs.cli import output
from ckptfs.cli.output import JsonObject
from ckptfs.cli.workspace import find_workspace
from ckptfs.config import Workspace
from ckptfs.connect import LocalSession, open_workspace
from ckptfs.control import runtime
from ckptfs.control.client import PATIENCE_SHORT, Client
from ckptfs.errors import (
    DaemonGone,
    NotMounted,
    StoreError,
    StoreInUse,
    StoreMissing,
    StoreReadOnly,
)

#: What is told of a daemon that died or failed.
_NOTED = ("pid", "state", "started_ns", "version", "reason", "failed_ns")
#: The states in which the workspace is there for programs.
_MOUNTED = (runtime.SERVING, runtime.UNMOUNTING)
#: Not mounted, and another process has the store open: ``pid`` is its number.
_IN_USE = "in-use"


def status(args: Namespace) -> int:
    workspace = find_workspace(args)
    try:
        record = _record(workspace)
    except DaemonGone:
        # It ended, or stopped serving, between our look and our question: look again.
        record = _record(workspace)
    if args.space:
        with open_workspace(workspace) as session:
            record.update(session.call("space"))
    output.result(record, _human(record), as_json=args.json)
    return 0


def _record(workspace: Workspace) -> JsonObject:
    daemon = runtime.living(workspace)
    return _of_store(workspace) if daemon is None else _of_daemon(workspace, daemon)


def _place(workspace: Workspace) -> JsonObject:
    return {
        "workspace": str(workspace.path),
        "store": str(workspace.store),
        "log": str(workspace.log),
    }


def _of_daemon(workspace: Workspace, daemon: runtime.Daemon) -> JsonObject:
    from ckptfs.daemon import mounts

    mount = mounts.mount_at(workspace.path)
    record = {
        **_place(workspace),
        "mounted": daemon.state in _MOUNTED,
        "visible": mount is not None and mount.is_ours,
        "state": daemon.state,
        "other_mount": None,
        "pid": daemon.pid,
        "version": daemon.version,
        "started_ns": daemon.started_ns,
        "options": daemon.options,
        "fork": None,
        "fork_of": None,
        "fork_names": None,
        "forks_not_mounted": None,
        "unseen": None,
        "expired_for_room": None,
        "short_of_room": None,
        "room": None,
        "read_only": None,
        "scan": None,
        "server": None,
        "server_reason": None,
        "cpus_awake": None,
        "cpus_awake_reason": None,
        "checkpoint_count": None,
        "moments": None,
        "store_bytes": None,
        "inodes": None,
        "unsaved": None,
    }
    if daemon.state == runtime.SERVING:
        with Client(workspace) as client:
            answer = client.call("status", patience=PATIENCE_SHORT)
        record.update({key: answer.get(key) for key in record if key in answer})
        record["workspace"] = str(workspace.path)  # a sandbox may have it at another path
        record["state"] = runtime.SERVING
    return record


def _of_store(workspace: Workspace) -> JsonObject:
    """Without a daemon: the store itself has the figures, the mount table the rest."""
    from ckptfs.connect import open_store
    from ckptfs.daemon import mounts

    died = _died(workspace)
    mount = mounts.mount_at(workspace.path)
    dead = mount is not None and mount.is_ours and mounts.is_dead(workspace.path)
    other = _other(workspace)
    record = {
        **_place(workspace),
        "mounted": False,
        "state": "dead" if dead else "covered" if other else "unmounted",
        "other_mount": other,
        "pid": None,
        "died": died,
        "checkpoint_count": None,
        "moments": None,
        "store_bytes": None,
        "inodes": None,
        "unsaved": None,
        "directory_current": None,
    }
    try:
        with open_store(workspace.store) as session:
            record.update(session.call("figures"))
            if not (dead or other) and isinstance(session, LocalSession):
                record["directory_current"] = session.is_directory_current()
        if not dead:
            record["unsaved"] = None  # the directory may have changed; to look takes a scan
    except (StoreReadOnly, StoreMissing):
        if not dead:
            raise  # else it is seen from a sandbox, and what it is stands there
    except StoreInUse as error:
        record |= {"state": _IN_USE, "pid": error.pid}
    except StoreError as error:
        if died is None:
            raise
        record["store_error"] = error.message
    return record


def _other(workspace: Workspace) -> JsonObject | None:
    """The user who mounted the directory with another history, and the store of that mount."""
    mount = runtime.foreign_mount(workspace)
    if mount is None:
        return None
    return {"uid": mount.owner, "user": runtime.mounted_by(mount), "store": mount.known_store}


def _died(workspace: Workspace) -> JsonObject | None:
    """Of a daemon that did not end in order: who it was, since when, when it last committed, and
    what is known of the reason."""
    note = runtime.left_behind(workspace)
    if note is None:
        return None
    committed_ns = None
    with suppress(OSError):
        committed_ns = (workspace.store / "data.mdb").stat().st_mtime_ns
    return {**{key: note.get(key) for key in _NOTED}, "last_commit_ns": committed_ns}


#: How many forks are named.
_FORKS_NAMED = 5

#: What is said of each part of a store (`ckptfs.history.account`).
_PARTS = {
    "live": "files as they are now",
    "saved": "only in checkpoints that were saved, tagged or pinned; `ckptfs delete` frees it",
    "hour": "only in automatic checkpoints, of the last hour",
    "day": "only in automatic checkpoints, of the last day",
    "week": "only in automatic checkpoints, of the last week",
    "older": "only in automatic checkpoints that are older",
    "moments": "only in moments",
    "deleted": "in deleted checkpoints; becomes free within seconds, while mounted",
    "records": "names, attributes and block maps of the files",
    "history-records": "the same of checkpoints, not packed; `ckptfs compact` packs it",
    "packed-records": "the same of checkpoints, packed",
    "ledger": "how the lower directory looked when it was last in step",
    "overhead": "indexes, and what pages are not filled with",
    "free": "free, for new data; `ckptfs compact` gives it back to the disk",
    "heap-free": "free in the heap; goes back to the disk by itself",
    "journal": "what was synced since the last commit; goes with the mount",
    "log": "the daemon's log",
    "other": "settings, locks, files that a repair kept",
}


def _space(record: JsonObject) -> list[tuple[str, str]]:
    """Where the store's bytes are, if they were counted."""
    rows = []
    for part in record.get("parts", ()):
        if part["bytes"]:
            words = _PARTS[part["part"]]
            if part["latest_ns"] is not None:
                words += f"; expires until {output.time_text(part['latest_ns'])} ({part['rule']})"
            if part["part"] == "live":
                words += f", {output.bytes_text(record['shared_bytes'])} also in checkpoints"
            size = output.bytes_text(part["bytes"])
            rows.append((f"  {part['part']}", f"{size:>10}  {words}"))
    return rows


def _unsaved(record: JsonObject) -> list[tuple[str, str]]:
    """What the last checkpoint does not have, of a workspace whose store is all there is to it."""
    if not (record["mounted"] or record["state"] == "dead"):
        return []
    counts = record["unsaved"]
    many = "thousands of paths; `ckptfs diff --name-status` lists them"
    return [("unsaved", many if counts is None else output.changes_text(counts))]


def _obituary(died: JsonObject) -> str:
    since = output.time_text(died["started_ns"]) if died.get("started_ns") else "?"
    committed = output.time_text(died["last_commit_ns"]) if died["last_commit_ns"] else "?"
    how = f"ended without a word while {died['state']}"
    if died["state"] == runtime.FAILED:
        how = f"failed at {output.time_text(died['failed_ns'])}: {died['reason'].rstrip('.')}"
    return f"process {died['pid']}, since {since}, {how}; its last commit was at {committed}"


def _keeping(record: JsonObject) -> list[tuple[str, str]]:
    """Where less is kept than one might think."""
    policy = str(record["options"].get("auto", ""))
    if policy == "off":
        return [("automatic", f"off; {output.NOTHING_KEPT}")]
    rows = [("automatic", policy)]
    if record["unseen"]:
        words = (
            f"{record['unseen']:,} changes came from processes that cannot be seen from here: what "
            "they destroy is kept by its age alone, and without a name"
        )
        rows.append(("not seen", words))
    return rows


def _room(record: JsonObject) -> list[tuple[str, str]]:
    """What a disk without room costs."""
    rows = []
    if record["room"] is not None:
        rows.append(("room", output.disk_space_text(record["room"])))
    if record["expired_for_room"]:
        gone = output.count_text(record["expired_for_room"], "checkpoint", "checkpoints")
        words = f"{gone} since the mount, because the disk had no room; the log says which"
        rows.append(("expired", words))
    return rows


def _served(record: JsonObject) -> list[tuple[str, str]]:
    """What replies to programs, where that is known."""
    rows = []
    if record["server"] == "compiled":
        rows.append(("served by", "the compiled server"))
    elif record["server"] is not None:
        rows.append(("served by", output.portable_text(record["server_reason"])))
    if record["scan"] is not None and not record["scan"]["ended"]:
        words = (
            f"{record['scan']['files']:,} of about {record['scan']['total_files']:,} entries; "
            "changes and most commands wait for its end"
        )
        rows.append(("compared", words))
    if record["cpus_awake"]:
        words = "do not sleep deeply while requests come; setting serve.keep_cpus_awake"
        rows.append(("CPUs", words))
    return rows


def _counted(record: JsonObject) -> str:
    moments = record["moments"]
    between = f", and {moments:,} moment{'s'[: moments != 1]} between them" if moments else ""
    return f"{record['checkpoint_count']:,}{between}"


def _state(record: JsonObject) -> str:
    state = str(record["state"])
    if record["mounted"]:
        since = output.time_text(record["started_ns"])
        words = "mounted read-only" if record.get("read_only") else "mounted"
        if state != runtime.SERVING:
            words += f", {state}"
        if not record["visible"]:
            words += ", but not here: in another mount namespace"
        return f"{words} (process {record['pid']}, since {since})"
    if state == "dead":
        how = "failed" if (record["died"] or {}).get("state") == runtime.FAILED else "died"
        return f"its daemon {how}; `ckptfs mount` or `ckptfs umount` brings it in order"
    if other := record.get("other_mount"):
        who = f" by {other['user']}" if other["user"] else ""
        store = f"the store {other['store']}" if other["store"] else "another store"
        return f"mounted{who} with {store}, not with this history"
    if state == _IN_USE:
        user = f"process {record['pid']}" if record["pid"] else "another process"
        return f"not mounted; {user} is using its store"
    return state


def _forks(record: JsonObject) -> list[tuple[str, str]]:
    """Which line it is, and which others there are."""
    rows = []
    if record.get("fork"):
        rows.append(("fork", f"{record['fork']}, of {record['fork_of']}"))
    if names := record.get("fork_names"):
        shown = ", ".join(names[:_FORKS_NAMED])
        more = f" and {len(names) - _FORKS_NAMED} more" if len(names) > _FORKS_NAMED else ""
        rows.append(("forks", f"{shown}{more}; `ckptfs forks` tells more"))
    for fork in record.get("forks_not_mounted") or ():
        rows.append(("not mounted", output.unmounted_fork_text(fork)))
    return rows


def _human(record: JsonObject) -> str:
    rows = [("workspace", record["workspace"]), ("state", _state(record)), *_forks(record)]
    if record.get("directory_current") is False:
        behind = "older than the store; `ckptfs mount` or `ckptfs umount` brings it up to date"
        rows.append(("directory", behind))
    if error := record.get("store_error"):
        rows.append(("trouble", error))
    if died := record.get("died"):
        rows.append(("last daemon", _obituary(died)))
    if record["checkpoint_count"] is not None:
        rows.append(("checkpoints", _counted(record)))
        rows += _unsaved(record)
        rows.append(("entries", f"{record['inodes']:,}"))
    if record["mounted"]:
        rows += _keeping(record)
        rows += _served(record)
        rows += _room(record)
    rows.append(("store", record["store"]))
    if record["store_bytes"] is not None:
        rows[-1] = ("store", f"{record['store']} ({output.bytes_text(record['store_bytes'])})")
    rows += _space(record)
    rows.append(("log", record["log"]))
    width = max(12, *(len(name) for name, _ in rows))
    return "\n".join(
        f"{name:<{width}} {output.painted(output.safe(value), _colour_of(name, record))}"
        for name, value in rows
    )


def _colour_of(name: str, record: JsonObject) -> str:
    """Whether programs can work there is what one looks for; all else is plain."""
    if name != "state":
        return output.RED if name in ("trouble", "last daemon") else ""
    if record["state"] == runtime.SERVING:
        return output.GREEN
    return output.RED if record["state"] in ("dead", runtime.FAILED) else output.YELLOW


# -- watch -----------------------------------------------------------------------------------------


def watch(args: Namespace) -> int:
    workspace = find_workspace(args)
    daemon = runtime.living(workspace)
    if daemon is None and runtime.is_dead(workspace.path):
        raise DaemonGone(workspace.path, runtime.why_gone(workspace))
    if daemon is None:
        runtime.require_uncovered(workspace)
    if daemon is None or daemon.state != runtime.SERVING:
        raise NotMounted(workspace.path)
    with Client(workspace) as client:
        for event in client.watch():
            print(json.dumps(output.portable(event)) if args.json else _event_line(event))
            sys.stdout.flush()
    return 0


def _event_line(event: JsonObject) -> str:
    data, number = event["data"], event["checkpoint"]
    words = [output.time_text(event["time_ns"]), event["event"]]
    if number is not None:
        words.append(str(number))
    if event["event"] == "checkpoints_pruned":
        words.append(", ".join(data["ids"]))
    words.append(output.safe(data.get("message", "")))
    return "  ".join(word for word in words if word)
