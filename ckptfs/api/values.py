"""What the API takes, returns and makes known: frozen values, made from the records of the verbs.

Ids are strings here. Paths are strings relative to the workspace, as `os.fsdecode` makes them. Two
attributes are fetched when they are first looked at, because they can be large: a checkpoint's
``files_changed`` and a difference's ``diff_content``.

Events come to handlers of a service, which hear what the service itself does, in the thread that
does it and before the call returns; and as a stream from a daemon, of what any process does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import cached_property
from types import TracebackType
from typing import Any, ClassVar, NamedTuple

from ckptfs.control.client import Client
from ckptfs.errors import UsageError
from ckptfs.service.arguments import JsonObject

#: What an agent keeps with a checkpoint: documents by name, bytes or anything that JSON can say.
State = Mapping[str, Any]


def moment(time_ns: int) -> datetime:
    return datetime.fromtimestamp(time_ns / 1_000_000_000, UTC)


class _Unchosen(int):
    """A default, to be told from the same number if the caller chose it."""


@dataclass(frozen=True)
class CheckpointConfig:
    """How a service treats its workspace."""

    #: Mounted: take checkpoints before commands change things, not only when asked to.
    auto_checkpoint: bool = True
    #: Given, after a save the oldest that are neither tagged, pinned nor needed for undo go, down
    #: to this many, those that people saved by hand among them. Not given, or None, what the
    #: workspace's own settings say holds: a hundred, and nothing goes that was saved by hand.
    max_checkpoints: int | None = _Unchosen(100)
    #: Patterns as in .gitignore for what lives in the workspace but in no checkpoint.
    exclude_patterns: list[str] = field(default_factory=list)
    #: Mount if the machine can; otherwise, and where it cannot, work on the plain directory.
    mount: bool = True
    #: Unmount in `close`, if this service mounted.
    unmount_on_close: bool = False
    #: A command to run after a restore, with the restore as JSON on its stdin. The workspace's
    #: setting `hooks.on_restore` if None.
    on_restore: list[str] | None = None

    def __post_init__(self) -> None:
        if self.max_checkpoints is not None and self.max_checkpoints < 1:
            raise UsageError(
                f"Cannot keep {self.max_checkpoints} checkpoints: max_checkpoints counts from 1.",
                hint="None sets no limit.",
            )
        for name in ("exclude_patterns", "on_restore"):
            if isinstance(getattr(self, name), str | bytes):
                raise UsageError(
                    f"Cannot take {name}: it is one text, where a list of texts belongs.",
                    hint=f"{name}=[{getattr(self, name)!r}]",
                )

    @property
    def limit(self) -> int | None:
        """How many checkpoints the program itself wants to be kept; None if it did not say."""
        return None if isinstance(self.max_checkpoints, _Unchosen) else self.max_checkpoints


@dataclass(frozen=True)
class Checkpoint:
    """One state of the workspace that can be gone back to."""

    id: str
    message: str
    #: When it was taken; aware, in UTC.
    timestamp: datetime
    metadata: dict[str, str]
    #: How it came about: manual, auto, mount, offline, restore, ...
    kind: str = "manual"
    tag: str = ""
    pinned: bool = False
    #: The process that brought it about: pid, command, session; empty where it is not known.
    cause: dict[str, Any] = field(default_factory=dict)
    #: The names of the state documents it carries.
    state: tuple[str, ...] = ()
    #: What was run there: command, exit_code, duration_ms, time_ns; the last one last.
    runs: tuple[JsonObject, ...] = ()
    #: Whether `save` took it just now; False if nothing had changed and it is the last one.
    created: bool = True
    _files: Callable[[], list[str]] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def files_changed(self) -> list[str]:
        """The files that it added, changed, renamed or deleted against the one before."""
        return [] if self._files is None else self._files()

    def __getstate__(self) -> JsonObject:
        """For pickle and copy: with what changed, without the way to ask for it."""
        found = {**self.__dict__, "files_changed": self.files_changed}
        return {**found, "_files": None}


@dataclass(frozen=True)
class FileChange:
    """One path that differs."""

    path: str
    #: Where it was before, if it was renamed.
    old_path: str | None
    #: added, deleted, renamed, type, modified, target, mode, owner, xattr, times.
    kinds: tuple[str, ...]
    #: type, mode, uid, gid, size, mtime_ns, target; None on the side where it is not.
    old: JsonObject | None
    new: JsonObject | None

    @property
    def is_directory(self) -> bool:
        node = self.new or self.old or {}
        return node.get("type") == "directory"


@dataclass(frozen=True)
class CheckpointDiff:
    """What differs between two moments. An id that is None is now, or before the first one."""

    from_id: str | None
    to_id: str | None
    added_files: list[str]
    modified_files: list[str]
    deleted_files: list[str]
    #: Old and new path; a directory that was renamed stands for all below it.
    renamed_files: list[tuple[str, str]]
    #: Every path that differs, directories and changes of mode or owner included.
    changes: list[FileChange]
    _text: Callable[[], str] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def diff_content(self) -> str:
        """The text diff, as `ckptfs diff` prints it. Bytes that are no UTF-8 are surrogates."""
        return "" if self._text is None else self._text()

    def __getstate__(self) -> JsonObject:
        return {**self.__dict__, "diff_content": self.diff_content, "_text": None}

    def __bool__(self) -> bool:
        return bool(self.changes)


@dataclass(frozen=True)
class RestoreResult:
    """What a restore did, or would do."""

    checkpoint_id: str
    dry_run: bool
    #: Paths in the workspace, those of directories too.
    added_paths: list[str]
    modified_paths: list[str]
    deleted_paths: list[str]
    #: The checkpoint of the state before, which `undo` goes to; None if there is none.
    before_id: str | None = None
    #: Of a dry run: a restore with it is refused if anything changed since.
    token: str = ""
    #: The state documents of the checkpoint.
    state: dict[str, Any] = field(default_factory=dict)
    #: With ``only_changed_by``: what was left as it is, by path, and why.
    skipped: dict[str, str] = field(default_factory=dict)
    #: What became of the command that `on_restore` names: "", "done", or why it failed.
    hook: str = ""
    #: False if the restore is done, but something kept its paths from being found, such as damage:
    #: then none are named, and the daemon's log says what it was.
    paths_known: bool = True


@dataclass(frozen=True)
class ConflictedPath:
    """What both sides of a merge changed. ``resolution`` is empty if nothing was decided."""

    path: str
    kind: str
    resolution: str


@dataclass(frozen=True)
class MergeResult:
    """What a merge did, or would do."""

    checkpoint_id: str
    dry_run: bool
    changed: bool
    added_paths: list[str]
    modified_paths: list[str]
    deleted_paths: list[str]
    conflicts: list[ConflictedPath]
    #: The checkpoints of the state before, which `undo` goes to, and of the result.
    before_id: str | None
    after_id: str | None
    #: A merge with it is refused if anything changed since.
    token: str

    @classmethod
    def from_record(cls, record: JsonObject, *, dry_run: bool) -> MergeResult:
        lists = ("added_paths", "modified_paths", "deleted_paths")
        ids = {name: record[name] for name in ("before", "after")}
        return cls(
            checkpoint_id=str(record["checkpoint"]),
            dry_run=dry_run,
            changed=record["changed"],
            conflicts=[
                ConflictedPath(each["path"], each["kind"], each["resolution"] or "")
                for each in record["conflicts"]
            ],
            before_id=None if ids["before"] is None else str(ids["before"]),
            after_id=None if ids["after"] is None else str(ids["after"]),
            token=record["token"],
            **{name: list(record[name]) for name in lists},
        )


@dataclass(frozen=True)
class ComparedState:
    """What a state changed since the one that all have in common."""

    name: str
    added: int
    modified: int
    deleted: int
    lines_added: int
    lines_removed: int
    #: The commands that were last run there: command, exit_code, duration_ms, time_ns.
    runs: list[JsonObject]


@dataclass(frozen=True)
class ComparedPath:
    """A path, the states that changed it, and whether they made the same of it."""

    path: str
    changed_by: list[str]
    alike: bool


@dataclass(frozen=True)
class Comparison:
    """Several states, each against the newest that all of them have in common."""

    #: None: the beginning.
    base_id: str | None
    states: list[ComparedState]
    paths: list[ComparedPath]

    @classmethod
    def from_record(cls, record: JsonObject) -> Comparison:
        names = [each.name for each in fields(ComparedState)]
        base = record["base"]
        return cls(
            base_id=None if base is None else str(base["id"]),
            states=[ComparedState(**{key: it[key] for key in names}) for it in record["states"]],
            paths=[ComparedPath(**each) for each in record["paths"]],
        )


@dataclass(frozen=True)
class FileVersion:
    """One checkpoint in which a path differs from the one before."""

    change: FileChange
    #: None for what is not saved yet.
    checkpoint: Checkpoint | None
    #: The process that wrote it, if that is known: pid, command, session.
    writer: JsonObject | None


@dataclass(frozen=True)
class PruneDecision:
    id: str
    keep: bool
    reason: str


class Compacted(NamedTuple):
    """The size of the store's file before and after."""

    before_bytes: int
    after_bytes: int


@dataclass(frozen=True)
class WorkspaceStatus:
    workspace: str
    store: str
    mounted: bool
    checkpoints: int
    store_bytes: int
    inodes: int
    #: Process, version, start and options of the daemon; empty for a plain directory.
    daemon: JsonObject = field(default_factory=dict)


@dataclass(frozen=True)
class Fork:
    """A second line of work; ``added``, ``modified`` and ``deleted`` are paths since it parted."""

    name: str
    #: Where it is mounted; empty if it is not.
    path: str
    #: The checkpoint where it parted, if there still is one.
    base_id: str | None
    timestamp: datetime
    checkpoints: int
    added: int
    modified: int
    deleted: int


# -- from records ----------------------------------------------------------------------------------


def fork_of(record: JsonObject) -> Fork:
    base = record["base_id"]
    return Fork(
        name=record["name"],
        path=record["path"],
        base_id=None if base is None else str(base),
        timestamp=moment(record["time_ns"]),
        checkpoints=record["checkpoint_count"],
        added=record["added"],
        modified=record["modified"],
        deleted=record["deleted"],
    )


def checkpoint_of(record: JsonObject, files: Callable[[], list[str]] | None = None) -> Checkpoint:
    return Checkpoint(
        id=str(record["id"]),
        message=record["message"],
        timestamp=moment(record["time_ns"]),
        metadata=dict(record["metadata"]),
        kind=record["kind"],
        tag=record["tag"],
        pinned=record["pinned"],
        cause={key: value for key, value in record["cause"].items() if value},
        state=tuple(record.get("state_names", ())),
        runs=tuple(record.get("runs", ())),
        created=record.get("changed", True),
        _files=files,
    )


def change_of(record: JsonObject) -> FileChange:
    return FileChange(
        path=record["path"],
        old_path=record.get("old_path") if "renamed" in record["kinds"] else None,
        kinds=tuple(record["kinds"]),
        old=record["old"],
        new=record["new"],
    )


def diff_of(record: JsonObject, text: Callable[[], str] | None = None) -> CheckpointDiff:
    changes = [change_of(item) for item in record["changes"]]
    files = [change for change in changes if not change.is_directory]
    renamed = [(item.old_path, item.path) for item in changes if item.old_path is not None]
    return CheckpointDiff(
        from_id=_id(record["from"]["saved"]),
        to_id=_id(record["to"]["saved"]),
        added_files=[item.path for item in files if "added" in item.kinds],
        modified_files=[item.path for item in files if _is_modified(item)],
        deleted_files=[item.path for item in files if "deleted" in item.kinds],
        renamed_files=renamed,
        changes=changes,
        _text=text,
    )


def _is_modified(change: FileChange) -> bool:
    """Also a renamed file, if more than its name is different."""
    return bool(set(change.kinds) - {"added", "deleted", "renamed"})


def _id(checkpoint: JsonObject | None) -> str | None:
    return None if checkpoint is None else str(checkpoint["id"])


def restore_of(record: JsonObject, state: dict[str, Any], *, dry_run: bool) -> RestoreResult:
    before = record.get("before")
    return RestoreResult(
        checkpoint_id=str(record["checkpoint"]),
        dry_run=dry_run,
        added_paths=list(record.get("added_paths") or ()),
        modified_paths=list(record.get("modified_paths") or ()),
        deleted_paths=list(record.get("deleted_paths") or ()),
        before_id=None if before is None else str(before),
        token=record.get("token", ""),
        state=state,
        skipped={item["path"]: item["reason"] for item in record.get("skipped", ())},
        hook=record.get("hook", ""),
        paths_known=record.get("added_paths", ()) is not None,
    )


# -- events ----------------------------------------------------------------------------------------

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointEvent:
    """Something that happened. ``kind`` is one of the constants."""

    INITIALIZED: ClassVar[str] = "initialized"
    CHECKPOINT_CREATED: ClassVar[str] = "checkpoint_created"
    CHECKPOINT_RESTORED: ClassVar[str] = "checkpoint_restored"
    CHECKPOINTS_PRUNED: ClassVar[str] = "checkpoints_pruned"
    COLLISION: ClassVar[str] = "collision"
    FORK_CREATED: ClassVar[str] = "fork_created"
    FORK_DELETED: ClassVar[str] = "fork_deleted"
    ERROR: ClassVar[str] = "error"

    kind: str
    workspace: str
    timestamp: datetime
    #: The checkpoint that it is about, if it is about one.
    checkpoint_id: str | None = None
    #: What else is known: the record of the checkpoint or restore, the ids of pruned checkpoints
    #: (``ids``), the ``collisions``, the error (``kind``, ``message``, ``hint``).
    data: dict[str, Any] = field(default_factory=dict)
    #: The name of the fork that it happened in; empty for the workspace itself.
    fork: str = ""


#: The kinds of events that there are.
EVENTS = (
    CheckpointEvent.INITIALIZED,
    CheckpointEvent.CHECKPOINT_CREATED,
    CheckpointEvent.CHECKPOINT_RESTORED,
    CheckpointEvent.CHECKPOINTS_PRUNED,
    CheckpointEvent.COLLISION,
    CheckpointEvent.FORK_CREATED,
    CheckpointEvent.FORK_DELETED,
    CheckpointEvent.ERROR,
)

Handler = Callable[[CheckpointEvent], object]


def event_of(record: JsonObject) -> CheckpointEvent:
    found = record.get("checkpoint")
    return CheckpointEvent(
        kind=record["event"],
        workspace=record["workspace"],
        timestamp=moment(record["time_ns"]),
        checkpoint_id=None if found is None else str(found),
        data=record["data"],
        fork=record.get("fork", ""),
    )


class Handlers:
    """Who wants to hear what. A handler that fails is logged; what it heard of has happened."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: dict[str, list[Handler]] = {kind: [] for kind in EVENTS}

    def add(self, kind: str, handler: Handler) -> Callable[[], None]:
        """Returns the function that takes the handler away again."""
        if kind not in self._wanted:
            raise UsageError(f"There is no event {kind!r}.", hint=f"Events: {', '.join(EVENTS)}.")
        with self._lock:
            self._wanted[kind].append(handler)

        def remove() -> None:
            with self._lock:
                if handler in self._wanted[kind]:
                    self._wanted[kind].remove(handler)

        return remove

    def emit(self, event: CheckpointEvent) -> None:
        with self._lock:
            listening = list(self._wanted[event.kind])
        for handler in listening:
            try:
                handler(event)
            except Exception:
                log.exception("a handler of %s failed", event.kind)


class EventStream:
    """Events of a mounted workspace, of whichever process, as an iterator that waits for the next.

    It ends when the workspace is unmounted or `close` is called, also from another thread. A reader
    that falls behind by more than the daemon keeps for it is cut off: `DaemonGone` is raised.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._events = client.watch()

    def __iter__(self) -> Iterator[CheckpointEvent]:
        return self

    def __next__(self) -> CheckpointEvent:
        return event_of(next(self._events))

    def close(self) -> None:
        self._client.hang_up()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()
