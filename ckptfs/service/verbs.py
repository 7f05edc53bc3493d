"""Every verb of a workspace, declared once.

The socket, the client, a session without a daemon, the events, the API, MCP and the command line
read these declarations; nothing else lists verbs. To add one is to write its function, declare it
here, and give it words in `ckptfs.cli`. Costs the standard library only and a fraction of a
millisecond, since every client imports it; the functions are imported when they are called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ckptfs.errors import UsageError
from ckptfs.service.arguments import (
    FLAG,
    INTEGER,
    METADATA,
    NUMBER,
    OUTSIDE,
    PATH,
    PATHS,
    REFERENCE,
    REFERENCES,
    TEXT,
    TEXTS,
    Parameter,
    decode,
    objects,
)

#: The module of a verb that the daemon of a mounted workspace carries out itself.
DAEMON = ""

#: What a verb changes. One that changes nothing ends wherever it is when its caller goes away.
NOTHING, HISTORY, FILES = "nothing", "history", "files"

#: Which clients may ask for a verb: one in a sandbox, too, through the mount; one that reaches the
#: socket; or one to whom paths mean what they mean to the daemon.
SANDBOX, SOCKET, SAME_PATHS = "sandbox", "socket", "same paths"

#: What a verb makes known when it is done.
CREATED, RESTORED, PRUNED = "checkpoint_created", "checkpoint_restored", "checkpoints_pruned"
COLLIDED = "collision"
FORKED, FORK_DELETED = "fork_created", "fork_deleted"

#: An event names at most this many paths of each kind; the answer of the verb names more.
_NAMED_MAX = 100


class Verb(NamedTuple):
    """A verb. Its function is ``do_`` and its name, in a module of this package: it takes a `Call`
    and the parameters by name, and returns a JSON object."""

    name: str
    module: str
    clients: str
    parameters: tuple[Parameter, ...] = ()
    #: The fields of its answer.
    result: str = ""
    changes: str = HISTORY
    #: It may make another checkpoint the head. ``head_`` and its name is a function beside the
    #: first, which says which.
    moves_head: bool = False
    #: It has to see what programs wrote a moment ago: the kernel's own cache goes out first, and
    #: a directory that is not mounted is looked at.
    needs_sync: bool = False
    #: Whether it is about the workspace as it is now, where that depends on its arguments.
    about_now: Callable[[Mapping[str, Any]], bool] | None = None
    #: Behind a dead daemon it is about the store, which has more than the directory.
    of_the_store: bool = False
    #: It may rightly take hours.
    takes_long: bool = False
    #: It works on what was committed, in a thread beside the requests.
    in_thread: bool = False
    #: What it does is decided by much reading: a daemon has another process do that. ``plan_`` and
    #: its name is a function beside the first, which gives the parts of the plan.
    is_planned: bool = False
    #: Its function is a generator, which a daemon runs in slices between requests.
    in_slices: bool = False
    #: It reads so much that a process of its own does it from the start, beside the requests. Any
    #: other that only reads is moved there once it has taken too long.
    in_process: bool = False
    #: Its client stays connected, for as long as it likes.
    stays: bool = False
    event: str = ""
    #: The method of `agents.mcp_server.Tools` that offers it to models.
    tool: str = ""

    @property
    def only_reads(self) -> bool:
        return self.changes == NOTHING

    def reads(self, values: Mapping[str, Any]) -> bool:
        """Whether it changes nothing with these values: then it may run on what was committed, in
        another process."""
        return self.only_reads or values.get("dry_run") is True

    def changes_files(self, values: Mapping[str, Any]) -> bool:
        """Whether it changes files; not where only a checkpoint's state documents are wanted."""
        return self.changes == FILES and values.get("files") is not False

    def names(self, state: str, values: Mapping[str, Any]) -> bool:
        """Whether one of its references is this name."""
        for parameter in self.parameters:
            if parameter.kind is REFERENCE and values[parameter.name] == state:
                return True
            if parameter.kind is REFERENCES and state in values[parameter.name]:
                return True
        return False

    def needs_directory(self, values: Mapping[str, Any]) -> bool:
        """Whether it has to see the directory of a workspace that is not mounted as it is."""
        if self.about_now is not None:
            return self.about_now(values)
        return (self.needs_sync or self.changes == FILES) and values.get("files") is not False

    def decode(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The values of its parameters. Raises UsageError before anything happens."""
        return decode(self.name, self.parameters, args)


#: Every request may name its caller. ``session`` is that of a coding agent.
CALLER = (
    Parameter("pid", INTEGER, 0),
    Parameter("command", TEXT, ""),
    Parameter("session", TEXT, ""),
)

_CHECKPOINT = Parameter("checkpoint", REFERENCE)
_CHECKPOINTS = Parameter("checkpoints", REFERENCES)
_PATHS = Parameter("paths", PATHS, None)
_NAME = Parameter("name", TEXT)
_MESSAGE = Parameter("message", TEXT, "")
_DRY_RUN = Parameter("dry_run", FLAG, False)
_TOKEN = Parameter("token", TEXT, "")
_FILES = Parameter("files", FLAG, True)
_NAMES = Parameter("names", FLAG, False)
_ONLY = Parameter("only", TEXT, "")
_BACKUP = Parameter("backup", FLAG, True)
_TIMES = Parameter("times", FLAG, False)
_WITH_FILES = Parameter("files", FLAG, False)
_SESSION = Parameter("session", TEXT, "")

_STATE = objects(
    "a list of staged documents",
    _NAME,
    Parameter("json", FLAG),
    Parameter("file", TEXT),
)
_RESULTS = objects(
    "a list of tools' results",
    Parameter("result", TEXT),
    _SESSION,
    Parameter("tool", TEXT, ""),
    Parameter("tool_use_id", TEXT, ""),
)

_CONTENTS = objects(
    "a list of staged contents",
    Parameter("path", PATH),
    Parameter("file", TEXT),
    Parameter("clean", FLAG),
)

_SAVED = "id kind message time_ns tag pinned metadata cause bytes runs state_names"
_DIFFERENCE = "from to changes files added modified deleted renamed"
_NAMED = "added_paths modified_paths deleted_paths skipped state_names"
_RESTORED = f"checkpoint changed before entries inodes {_NAMED}"
_PASS = "added modified deleted unchanged bytes conflicts skipped conflict_count skipped_count"

_SPACE = "live_bytes shared_bytes history_bytes store_bytes reclaimable_bytes parts"

_DECLARED = (
    # -- looking
    Verb(
        "figures",
        "queries",
        SANDBOX,
        result="checkpoint_count moments store_bytes inodes unsaved",
        changes=NOTHING,
    ),
    Verb(
        "list",
        "queries",
        SANDBOX,
        (
            Parameter("limit", INTEGER, None),
            Parameter("since", TEXT, ""),
            Parameter("path", PATH, None),
            Parameter("moments", FLAG, False),
        ),
        result="checkpoints more moments",
        changes=NOTHING,
        tool="checkpoint_list",
    ),
    Verb("get", "queries", SANDBOX, (_CHECKPOINT,), result=_SAVED, changes=NOTHING),
    Verb(
        "diff",
        "queries",
        SANDBOX,
        (
            Parameter("older", REFERENCE, ""),
            Parameter("newer", REFERENCE, ""),
            _PATHS,
            _TIMES,
            _WITH_FILES,
        ),
        result=_DIFFERENCE,
        changes=NOTHING,
        needs_sync=True,
        about_now=lambda values: values["newer"] in ("", "@", "now"),
        tool="checkpoint_diff",
    ),
    Verb(
        "compare",
        "queries",
        SANDBOX,
        (Parameter("states", REFERENCES),),
        result="base states paths",
        changes=NOTHING,
        needs_sync=True,
        tool="checkpoint_compare",
    ),
    Verb(
        "show",
        "queries",
        SANDBOX,
        (_CHECKPOINT, _PATHS, _TIMES, _WITH_FILES),
        result=_DIFFERENCE,
        changes=NOTHING,
        tool="checkpoint_show",
    ),
    Verb(
        "contents",
        "queries",
        SANDBOX,
        (Parameter("view", INTEGER), Parameter("paths", PATHS), Parameter("limit", INTEGER)),
        result="contents",
        changes=NOTHING,
    ),
    Verb(
        "log",
        "queries",
        SANDBOX,
        (Parameter("path", PATH),),
        result="path versions",
        changes=NOTHING,
        needs_sync=True,
        of_the_store=True,
        tool="file_history",
    ),
    Verb(
        "forks", "queries", SANDBOX, result="forks last_states", changes=NOTHING, tool="fork_list"
    ),
    Verb("restores", "queries", SANDBOX, result="restores", changes=NOTHING),
    # -- checkpoints and the documents that they carry
    Verb(
        "save",
        "checkpoints",
        SANDBOX,
        (
            Parameter("message", TEXT),
            Parameter("tag", TEXT, ""),
            Parameter("pin", FLAG, False),
            Parameter("metadata", METADATA, {}),
            Parameter("state", _STATE, []),
            Parameter("allow_empty", FLAG, False),
            Parameter("max_checkpoints", INTEGER, None),
        ),
        result=f"{_SAVED} changed reference pruned",
        needs_sync=True,
        event=CREATED,
        tool="checkpoint_create",
    ),
    Verb(
        "state",
        "checkpoints",
        SANDBOX,
        (_CHECKPOINT,),
        result="checkpoint documents",
        changes=NOTHING,
    ),
    Verb(
        "state_read",
        "checkpoints",
        SANDBOX,
        (_CHECKPOINT, _NAME, Parameter("offset", INTEGER), Parameter("length", INTEGER)),
        result="base64",
        changes=NOTHING,
    ),
    Verb(
        "state_stage",
        "checkpoints",
        SANDBOX,
        (Parameter("data", TEXT), Parameter("file", TEXT, "")),
        result="file",
    ),
    Verb("state_unstage", "checkpoints", SANDBOX, (Parameter("file", TEXT),)),
    # -- going back
    Verb(
        "plan",
        "restore",
        SANDBOX,
        (
            Parameter("checkpoint", REFERENCE, ""),
            Parameter("back", TEXT, ""),
            Parameter("steps", INTEGER, None),
            _PATHS,
            _ONLY,
            _FILES,
        ),
        result=f"checkpoint token {_NAMED}",
        changes=NOTHING,
        needs_sync=True,
    ),
    Verb(
        "restore",
        "restore",
        SANDBOX,
        (_CHECKPOINT, _PATHS, _TOKEN, _BACKUP, _FILES, _NAMES, _ONLY),
        result=_RESTORED,
        changes=FILES,
        moves_head=True,
        needs_sync=True,
        event=RESTORED,
        tool="checkpoint_restore",
    ),
    Verb(
        "rewind",
        "restore",
        SANDBOX,
        (Parameter("steps", INTEGER), _PATHS, _TOKEN, _BACKUP, _FILES, _NAMES, _ONLY),
        result=_RESTORED,
        changes=FILES,
        moves_head=True,
        needs_sync=True,
        event=RESTORED,
    ),
    *(
        Verb(
            name,
            "restore",
            SANDBOX,
            (_TOKEN, Parameter("if_unchanged", FLAG, False), _NAMES),
            result=_RESTORED,
            changes=FILES,
            moves_head=True,
            needs_sync=True,
            event=RESTORED,
        )
        for name in ("undo", "redo")
    ),
    Verb(
        "merge",
        "merge",
        SANDBOX,
        (
            Parameter("source", REFERENCE),
            _PATHS,
            Parameter("resolution", TEXT, ""),
            Parameter("resolutions", METADATA, {}),
            Parameter("contents", _CONTENTS, []),
            _TOKEN,
            _DRY_RUN,
        ),
        result="checkpoint changed before after token views conflicts "
        "added_paths modified_paths deleted_paths",
        changes=FILES,
        is_planned=True,
        needs_sync=True,
        event=RESTORED,
        tool="checkpoint_merge",
    ),
    # -- what is kept
    Verb(
        "tag",
        "checkpoints",
        SANDBOX,
        (_CHECKPOINT, Parameter("tag", TEXT), Parameter("move", FLAG, False)),
        result="checkpoints",
    ),
    Verb("pin", "checkpoints", SANDBOX, (_CHECKPOINTS,), result="checkpoints"),
    Verb("unpin", "checkpoints", SANDBOX, (_CHECKPOINTS,), result="checkpoints"),
    Verb(
        "delete",
        "checkpoints",
        SANDBOX,
        (_CHECKPOINTS, Parameter("tagged", FLAG, True)),
        result="checkpoints",
        takes_long=True,
        in_slices=True,
        event=PRUNED,
    ),
    Verb(
        "prune",
        "settings",
        SANDBOX,
        (_DRY_RUN,),
        result="dry_run checkpoints",
        takes_long=True,
        in_slices=True,
        event=PRUNED,
    ),
    Verb("exclude", "settings", SANDBOX, (Parameter("patterns", TEXTS, []),), result="patterns"),
    # -- the store
    Verb(
        "space",
        "storage",
        SANDBOX,
        result=_SPACE,
        changes=NOTHING,
        takes_long=True,
        in_process=True,
    ),
    Verb(
        "compact",
        "storage",
        SANDBOX,
        result="before_bytes after_bytes",
        takes_long=True,
        in_slices=True,
    ),
    Verb(
        "purge",
        "storage",
        SANDBOX,
        (Parameter("paths", PATHS), _DRY_RUN),
        result="file_count path_count live_paths past_paths dry_run elsewhere",
        changes=FILES,
        needs_sync=True,
        takes_long=True,
        in_slices=True,
    ),
    Verb(
        "check",
        "storage",
        SANDBOX,
        (Parameter("deep", FLAG, True),),
        result="problems affected lost",
        changes=NOTHING,
        takes_long=True,
        in_process=True,
    ),
    Verb(
        "backup",
        "storage",
        SAME_PATHS,
        (Parameter("dest", OUTSIDE),),
        result="dest bytes",
        needs_sync=True,
        of_the_store=True,
        takes_long=True,
        in_thread=True,
    ),
    Verb(
        "import",
        "trees",
        SAME_PATHS,
        (Parameter("source", OUTSIDE), Parameter("merge", FLAG, False)),
        result=_PASS,
        changes=FILES,
        takes_long=True,
    ),
    Verb(
        "export",
        "trees",
        SAME_PATHS,
        (Parameter("dest", OUTSIDE), Parameter("checkpoint", REFERENCE, None)),
        result=_PASS,
        needs_sync=True,
        about_now=lambda values: values["checkpoint"] is None,
        takes_long=True,
    ),
    # -- for agents that work in steps
    Verb(
        "mark",
        "checkpoints",
        SANDBOX,
        (
            Parameter("kind", TEXT),
            Parameter("message", TEXT),
            Parameter("ran", TEXT, ""),
            Parameter("metadata", METADATA, {}),
            Parameter("weak", FLAG, False),
            Parameter("with_subagents", FLAG, False),
            Parameter("writes", PATHS, []),
        ),
        result=f"{_SAVED} changed collisions refuse",
        needs_sync=True,
        event=CREATED,
    ),
    Verb(
        "ran",
        "checkpoints",
        SANDBOX,
        (
            _CHECKPOINT,
            Parameter("ran", TEXT),
            Parameter("exit_code", INTEGER),
            Parameter("duration_ms", INTEGER),
        ),
        result=_SAVED,
    ),
    Verb("result", "checkpoints", SANDBOX, (Parameter("results", _RESULTS),), result="checkpoints"),
    Verb(
        "read",
        "checkpoints",
        SANDBOX,
        (Parameter("reader", TEXT), Parameter("paths", PATHS)),
        result="count",
    ),
    Verb(
        "subagent",
        "checkpoints",
        SANDBOX,
        (
            Parameter("session", TEXT),
            Parameter("running", FLAG, False),
            Parameter("id", TEXT, ""),
            Parameter("name", TEXT, ""),
        ),
        result="running",
    ),
    Verb(
        "task_announce",
        "checkpoints",
        SANDBOX,
        (_NAME, _MESSAGE),
        result="name checkpoint current",
        needs_sync=True,
    ),
    Verb(
        "task_finish",
        "checkpoints",
        SANDBOX,
        (_NAME,),
        result="name checkpoint current",
        needs_sync=True,
    ),
    Verb(
        "task_start",
        "checkpoints",
        SANDBOX,
        (_NAME,),
        result=f"name changed checkpoint was {_SAVED}",
        needs_sync=True,
        event=CREATED,
    ),
    Verb(
        "task_done",
        "checkpoints",
        SANDBOX,
        (_MESSAGE,),
        result=f"name checkpoint current {_SAVED}",
        needs_sync=True,
        event=CREATED,
    ),
    Verb("task_list", "checkpoints", SANDBOX, result="tasks", changes=NOTHING, needs_sync=True),
    Verb(
        "task_revert",
        "checkpoints",
        SANDBOX,
        (_NAME, Parameter("force", FLAG, False), _DRY_RUN),
        result="dry_run name paths count conflicts before after changed",
        changes=FILES,
        needs_sync=True,
        event=RESTORED,
    ),
    # -- the mount
    Verb("status", DAEMON, SANDBOX, changes=NOTHING, tool="workspace_status"),
    Verb("sync", DAEMON, SANDBOX),
    Verb("watch", DAEMON, SANDBOX, result="watching", changes=NOTHING, stays=True),
    Verb("harness", DAEMON, SANDBOX, (Parameter("pid", INTEGER),), result="pid", changes=NOTHING),
    Verb(
        "umount",
        DAEMON,
        SAME_PATHS,
        (
            Parameter("lazy", FLAG, False),
            Parameter("force", FLAG, False),
            Parameter("write_back", FLAG, True),
        ),
        result="detached write_back cut_off",
        takes_long=True,
    ),
    Verb(
        "scratch",
        DAEMON,
        SAME_PATHS,
        (Parameter("start", REFERENCE, ""),),
        result="name path base",
        tool="command_try",
    ),
    Verb(
        "scratch_end",
        DAEMON,
        SAME_PATHS,
        (_NAME, Parameter("keep", FLAG, False)),
        result="name checkpoint",
    ),
    Verb(
        "fork",
        DAEMON,
        SAME_PATHS,
        (
            _NAME,
            Parameter("start", REFERENCE, ""),
            Parameter("at", OUTSIDE, ""),
            Parameter("without", TEXTS, []),
            Parameter("count", INTEGER, 1),
        ),
        result="forks",
        takes_long=True,
        event=FORKED,
        tool="fork_create",
    ),
    Verb(
        "fork_delete",
        DAEMON,
        SAME_PATHS,
        (_NAME, Parameter("force", FLAG, False)),
        result="name checkpoint cut_off",
        event=FORK_DELETED,
        tool="fork_delete",
    ),
    Verb(
        "fork_rename",
        DAEMON,
        SAME_PATHS,
        (_NAME, Parameter("new", TEXT)),
        result="name was path",
    ),
    Verb("freeze", DAEMON, SOCKET, (Parameter("seconds", NUMBER, None),), result="frozen"),
    Verb("thaw", DAEMON, SOCKET, result="frozen"),
)

VERBS = {verb.name: verb for verb in _DECLARED}


def find(name: str) -> Verb:
    """The verb of that name. Raises UsageError."""
    found = VERBS.get(name)
    if found is None:
        raise UsageError(
            f"There is no verb {name!r}. Nothing was changed.", hint=f"Verbs: {', '.join(VERBS)}."
        )
    return found


# -- events ----------------------------------------------------------------------------------------


class Event(NamedTuple):
    """What a verb that is done makes known."""

    kind: str
    data: dict[str, Any]
    #: The checkpoint that it is about, if it is about one.
    checkpoint: int | None = None


def events_of(verb: Verb, result: dict[str, Any]) -> Iterator[Event]:
    """The events of a verb, from its answer. One that changed nothing makes none."""
    if verb.event == CREATED:
        if result.get("changed", True) and "id" in result:
            yield Event(CREATED, result, result["id"])
        yield from _pruned(result.get("pruned", []))
        if found := result.get("collisions"):
            about = {"collisions": found, "refuse": result["refuse"]}
            yield Event(COLLIDED, about, result["id"])
    elif result.get("dry_run"):
        return
    elif verb.event == FORKED:
        yield from (Event(FORKED, fork, fork["base_id"]) for fork in result["forks"])
    elif verb.event == FORK_DELETED:
        yield Event(FORK_DELETED, result, result["checkpoint"])
    elif verb.event == RESTORED:
        yield Event(RESTORED, _short(result), result.get("checkpoint"))
    elif verb.event == PRUNED:
        gone = [item["id"] for item in result["checkpoints"] if not item.get("keep")]
        yield from _pruned(gone)


def _pruned(numbers: list[int]) -> Iterator[Event]:
    if numbers:
        yield Event(PRUNED, {"ids": [str(number) for number in numbers]})


def _short(result: dict[str, Any]) -> dict[str, Any]:
    """A restore without thousands of names."""
    kinds = ("added_paths", "modified_paths", "deleted_paths")
    return result | {kind: result[kind][:_NAMED_MAX] for kind in kinds if result.get(kind)}
