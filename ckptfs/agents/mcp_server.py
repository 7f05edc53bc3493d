"""The workspace as tools of the Model Context Protocol. Needs the extra `ckptfs[mcp]`.

Each tool is a few lines over the API; its annotations say whether it changes anything. Tools run in
threads, and several may call the API at once. An error of ckptfs becomes an error of the tool, in
the same words, for the model to read. Answers are structured (`mcp_answers`).
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import IO, Annotated, Any, Literal, ParamSpec, TypeVar

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.types import ToolAnnotations
from pydantic import Field, StrictInt, ValidationError

from ckptfs import __version__
from ckptfs.agents import mcp_answers as answers
from ckptfs.agents.mcp_answers import (
    NAMED_MAX,
    TEXT_MAX,
    Change,
    CheckpointDetails,
    CheckpointInfo,
    CheckpointList,
    Comparison,
    DeletedFork,
    Difference,
    FileHistory,
    ForkInfo,
    Forks,
    Merge,
    Restore,
    Status,
    Tried,
)
from ckptfs.agents.own_hooks import gone_text, hooks_in
from ckptfs.api import CheckpointService
from ckptfs.config import Workspace
from ckptfs.errors import (
    CheckpointUnknown,
    CkptfsError,
    MergeConflict,
    PathUnknown,
    TreeMoved,
)
from ckptfs.service.verbs import FILES, VERBS, Verb

_INSTRUCTIONS = """\
Checkpoints of the workspace {path}. Everything in it is covered: ignored files, build output, what
shell commands do. Take one before you try something risky, look at differences
instead of guessing what changed, and go back when something went wrong: a restore loses nothing, it
saves the state before it.
A checkpoint is named by its id, its tag, `latest`, `@-2` (two back) or a time such as "10 minutes
ago". `latest` moves with every checkpoint, and a restore takes one: for several restores use the
id. Paths are relative to the workspace."""

_LOOKS = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
_ADDS = ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False
)
_REPLACES = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False
)

#: A command may do anything, outside of the workspace.
_ANYTHING = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True
)
#: The tool that runs commands.
_RUNS = "command_try"

Reference = Annotated[
    Annotated[str, Field(max_length=300)] | StrictInt,
    Field(description="id, tag, `latest`, `@-N` or a time"),
]
Limit = Annotated[int, Field(description="at most so many", ge=1, le=500)]
Chars = Annotated[int, Field(description="at most so many characters", ge=0, le=1_000_000)]
Paths = Annotated[
    list[str],
    Field(
        description="only these files and directories; leave it out for all",
        min_length=1,
        max_length=1000,
    ),
]

P = ParamSpec("P")
R = TypeVar("R")


def make_server(
    workspace: Workspace, *, read_only: bool = False, commands: bool = False
) -> MCPServer[Any]:
    """A server for one workspace; a read-only one has only the tools that change nothing. With
    ``commands`` it runs commands for the model: as the user who started it, and outside of any
    sandbox that the model's own commands are in."""
    tools = Tools(CheckpointService(workspace.path, workspace.store))
    return MCPServer(
        "ckptfs",
        version=__version__,
        instructions=_INSTRUCTIONS.format(path=workspace.path),
        log_level="WARNING",
        tools=[
            _make_tool(_telling(getattr(tools, verb.tool)), _hints(verb))
            for verb in VERBS.values()
            if verb.tool and (verb.only_reads or not read_only) and (verb.tool != _RUNS or commands)
        ],
    )


def _hints(verb: Verb) -> ToolAnnotations:
    """What a tool changes, from the declaration of its verb."""
    if verb.tool == _RUNS:
        return _ANYTHING
    if verb.only_reads:
        return _LOOKS
    return _REPLACES if verb.changes == FILES or verb.tool == "fork_delete" else _ADDS


def _telling(function: Callable[P, R]) -> Callable[P, R]:
    """Hand errors of ckptfs on to the model; anything else is a fault, and logged as one."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except CkptfsError as error:
            raise ToolError(answers.text(f"{error.message} {_hint(error)}".strip())) from error

    return call


#: What to do about an error, where the hint for people names what only they can type.
_HINTS = {
    CheckpointUnknown.kind: "checkpoint_list names the checkpoints.",
    PathUnknown.kind: "checkpoint_diff and file_history name paths as they are wanted here.",
    MergeConflict.kind: "Without confirm=true they are listed; with a resolution they are settled.",
    TreeMoved.kind: "Make another dry run and look at what it would do now.",
}


def _hint(error: CkptfsError) -> str:
    """A hint that a model can follow: none of the command line's."""
    if error.kind in _HINTS:
        return _HINTS[error.kind]
    return "" if "`" in error.hint or "--" in error.hint else error.hint


class Tools:
    """What a model can call; the docstrings are what it reads."""

    def __init__(self, service: CheckpointService) -> None:
        self._service = service

    def checkpoint_create(
        self,
        message: Annotated[str, Field(description="what this state is", max_length=2000)],
        tag: Annotated[str, Field(description="a name to find it by", max_length=200)] = "",
    ) -> CheckpointInfo:
        """Save the workspace as it is now. Costs nothing, whatever the size; takes no checkpoint if
        nothing changed since the last one, unless a tag is given."""
        return answers.checkpoint(self._service.save(message, tag=tag))

    def checkpoint_list(self, limit: Limit = 20, moments: bool = False) -> CheckpointList:
        """List the checkpoints, newest first. Many take themselves, before a command or a tool
        changes something; their message says which. With moments also those between them that
        were taken just before something would have been lost."""
        found = self._service.list(limit + 1, moments=moments)
        return CheckpointList(
            checkpoints=[answers.checkpoint(item) for item in found[:limit]],
            more=len(found) > limit,
        )

    def checkpoint_show(self, checkpoint_id: Reference, max_chars: Chars = 0) -> CheckpointDetails:
        """Show one checkpoint and the paths that it changed; with max_chars also the text diff."""
        found = self._service.get(str(checkpoint_id))
        changed = self._service.show(found.id)
        return CheckpointDetails(
            checkpoint=answers.checkpoint(found),
            difference=answers.difference(changed, max_chars, content=max_chars > 0),
        )

    def checkpoint_diff(
        self,
        from_id: Reference = "",
        to_id: Reference = "",
        paths: Paths | None = None,
        max_chars: Chars = TEXT_MAX,
    ) -> Difference:
        """What differs between two checkpoints. Without to_id: up to now; without both: what
        changed since the last checkpoint. max_chars=0 lists the paths only."""
        found = self._service.diff(str(from_id), str(to_id), paths=paths)
        return answers.difference(found, max_chars, content=max_chars > 0)

    def checkpoint_restore(
        self,
        checkpoint_id: Reference,
        paths: Paths | None = None,
        confirm: Annotated[bool, Field(description="really do it")] = False,
        token: Annotated[
            str, Field(description="of the dry run: refuses if anything changed since")
        ] = "",
    ) -> Restore:
        """Make the workspace, or only some paths, what it was. Without confirm=true it is a dry run
        that names what would change. The state before is saved first, so it can be taken back."""
        workspace = self._service.workspace.path
        hooked = hooks_in(workspace) if confirm else {}
        found = self._service.restore(
            str(checkpoint_id), paths, dry_run=not confirm, token=token, state=False
        )
        still = hooks_in(workspace) if hooked else {}
        gone = {name: path for name, path in hooked.items() if name not in still}
        return answers.restore(found, gone_text(gone))

    def checkpoint_compare(
        self,
        states: Annotated[
            list[Reference],
            Field(description="checkpoints or forks; `now` is the workspace", min_length=2),
        ],
    ) -> Comparison:
        """Compare what several states changed since the newest one that all have in common: paths
        that several changed, alike or not, lines, and how the commands ended that ran there."""
        return answers.comparison(self._service.compare(*map(str, states)))

    def checkpoint_merge(
        self,
        source: Annotated[Reference, Field(description="a fork, `main` or a checkpoint")],
        paths: Paths | None = None,
        resolution: Annotated[
            Literal["", "markers", "ours", "theirs"],
            Field(description="what becomes of conflicts; empty: they keep it from being done"),
        ] = "",
        resolutions: Annotated[
            dict[str, Literal["markers", "ours", "theirs"]], Field(description="the same by path")
        ] = {},  # noqa: B006 - the model's schema shows it, and it is only read
        confirm: Annotated[bool, Field(description="really do it")] = False,
        token: Annotated[
            str, Field(description="of the dry run: refuses if anything changed since")
        ] = "",
    ) -> Merge:
        """Bring what another state changed into the workspace, three-way and by lines. Without
        confirm=true it is a dry run that names what would change and the conflicts. Conflicts
        change nothing until a resolution is given. The state before is saved first."""
        found = self._service.merge(
            str(source),
            paths,
            dry_run=not confirm,
            resolution=resolution,
            resolutions=resolutions,
            token=token,
        )
        return answers.merge(found)

    def fork_create(
        self,
        name: Annotated[str, Field(description="a new name", min_length=1, max_length=200)],
        start: Annotated[Reference, Field(description="a checkpoint; empty: now")] = "",
    ) -> ForkInfo:
        """Make a second copy of the workspace to work in, at once whatever its size, with unsaved
        and ignored files in it. checkpoint_merge brings back what was done there."""
        self._service.call("fork", name=name, start=str(start))
        return self._fork(name)

    def fork_list(self) -> Forks:
        """List the forks of the workspace: where they are and how much each changed."""
        return Forks(forks=[answers.fork(found) for found in self._service.call("forks")["forks"]])

    def fork_delete(
        self,
        name: Annotated[str, Field(description="the fork", min_length=1)],
        confirm: Annotated[bool, Field(description="really do it")] = False,
    ) -> DeletedFork:
        """End a fork. Without confirm=true it only says which. Its last state is a checkpoint for
        a day; it is refused while a program runs in it."""
        found = self._fork(name)
        if not confirm:
            following = "Nothing was changed. Call again with confirm=true to delete it."
            return DeletedFork(done=False, fork=found, checkpoint_id=None, next=following)
        last = str(self._service.delete_fork(name).id)
        following = f"fork_create with start={last} brings it back."
        return DeletedFork(done=True, fork=found, checkpoint_id=last, next=following)

    def _fork(self, name: str) -> ForkInfo:
        for found in self._service.call("forks")["forks"]:
            if found["name"] == name:
                return answers.fork(found)
        raise ToolError(f"There is no fork {name}. fork_list names the forks.")

    def command_try(
        self,
        command: Annotated[
            list[str], Field(description="the program and its arguments", min_length=1)
        ],
        seconds: Annotated[int, Field(description="at most so long", ge=1, le=3600)] = 600,
        max_chars: Chars = TEXT_MAX,
    ) -> Tried:
        """Run a command in a fork of the workspace, at the workspace's own path. The workspace
        stays as it is; what the command left is a checkpoint, for checkpoint_diff to look at and
        for checkpoint_merge to take."""
        return _tried(self._service.workspace, command, seconds, max_chars)

    def file_history(
        self,
        path: Annotated[str, Field(description="a file or directory", min_length=1)],
        limit: Limit = 20,
    ) -> FileHistory:
        """List the checkpoints in which a file, or anything below a directory, changed. Follows
        renames, and knows files that are gone."""
        found = self._service.log(path)
        return FileHistory(
            path=path,
            versions=[answers.version(item) for item in found[:limit]],
            more=len(found) > limit,
        )

    def workspace_status(self) -> Status:
        """Where the workspace and its history are, and how much changed since the last
        checkpoint."""
        changed = self._service.diff()
        return answers.status(self._service.status(), len(changed.changes))


#: Seconds that a command gets to end after it was asked to.
_ENDING = 5
#: The longest account of what a command changed that is read, in bytes.
_RECORD_MAX = 64 << 20


def _tried(workspace: Workspace, command: list[str], seconds: int, most: int) -> Tried:
    words = ["try", "--keep", "--json", "-w", str(workspace.path), "--", *command]
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as told:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ckptfs", *words],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=told,
            cwd="/",
            start_new_session=True,
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            _stop(process)
            raise ToolError(
                f"The command did not end within {seconds} seconds and was stopped. "
                "The workspace is as it was."
            ) from None
        before, _, last = tail(told, _RECORD_MAX).rstrip("\n").rpartition("\n")
        output = (tail(said, 4 * most) + before)[-most:] if most else ""
    return _as_tried(last, output)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a command and its fork; what does not end when it is asked to is killed, with what it
    started, and the daemon ends the fork."""
    process.terminate()
    try:
        process.wait(_ENDING)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def tail(file: IO[bytes], most: int) -> str:
    """The end of a file, of which so many bytes are read."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - most))
    return file.read(most).decode(errors="replace")


def _as_tried(line: str, output: str) -> Tried:
    try:
        record = json.loads(line)
    except ValueError:
        raise ToolError(f"{output}{line[-TEXT_MAX:]}".strip()) from None
    if "checkpoint" not in record:
        raise ToolError(record.get("error", {}).get("message", line))
    number, changes = record["checkpoint"], record["changes"]
    following = (
        f"checkpoint_merge with source {number} takes it; nothing else is needed to leave it."
    )
    return Tried(
        exit_code=record["exit_code"],
        checkpoint_id=str(number),
        changes=[
            Change(
                path=answers.text(each["path"]), old_path=each.get("old_path"), how=each["kinds"]
            )
            for each in changes[:NAMED_MAX]
        ],
        total=len(changes),
        output=output,
        next=following if changes else "It changed nothing.",
    )


# -- exact arguments -------------------------------------------------------------------------------

#: How much of a wrong value is quoted.
_SHOWN = 60


class ExactTool(Tool):
    """A tool that refuses arguments it does not name, and says so in plain words.

    The SDK's own tool ignores them. An unknown argument is a mistake of the model's, and acting
    without it is worse than not acting: a restore of one path without that path is a restore of
    everything.
    """

    async def run(
        self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False
    ) -> Any:
        try:
            self.fn_metadata.validate_arguments(arguments)
        except ValidationError as error:
            raise ToolError(self._refusal(error)) from error
        return await super().run(arguments, context, convert_result)

    def _refusal(self, error: ValidationError) -> str:
        names = ", ".join(self.fn_metadata.arg_model.model_fields) or "none"
        found = dict.fromkeys(_reason(dict(item)) for item in error.errors())
        return (
            f"Cannot call {self.name}: {'; '.join(found)}. Nothing was changed. It takes: {names}."
        )


def _make_tool(function: Callable[..., Any], annotations: ToolAnnotations) -> ExactTool:
    description = inspect.cleandoc(function.__doc__ or "")
    made = ExactTool.from_function(
        function, description=description, annotations=annotations, structured_output=True
    )
    assert isinstance(made, ExactTool)
    model = made.fn_metadata.arg_model
    model.model_config["extra"] = "forbid"
    model.model_rebuild(force=True)
    made.parameters = model.model_json_schema(by_alias=True)
    return made


def _reason(item: dict[str, Any]) -> str:
    """One thing that is wrong; of a union's branches each says its own."""
    name = str(item["loc"][0]) if item["loc"] else "it"
    if item["type"] == "extra_forbidden":
        return f"there is no argument {name!r}"
    if item["type"] == "missing":
        return f"the argument {name!r} is missing"
    words = str(item["msg"]).removeprefix("Value error, ")
    return f"{name} is {_shown(item['input'])}: {words[:1].lower()}{words[1:]}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
