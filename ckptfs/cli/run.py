"""`ckptfs run`: a command between two checkpoints, run as if the shell had started it; and `ckptfs
task`: named stretches of work.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress

from ckptfs.cli import output
from ckptfs.cli.output import JsonObject
from ckptfs.cli.workspace import find_workspace, this_command
from ckptfs.commands import quoted, shown
from ckptfs.config import Workspace
from ckptfs.connect import Session, open_workspace
from ckptfs.control import runtime
from ckptfs.control.client import Client
from ckptfs.errors import CkptfsError, NotMounted, UsageError, reason_of

#: What a shell ends with for a command that it cannot start.
NOT_FOUND = 127
NOT_EXECUTABLE = 126

#: How many paths the summary names, and how much of a command is sent for the history.
_NAMED = 10
_COMMAND_MAX = 16 << 10


def run(args: Namespace) -> int:
    if args.stray or not args.words:
        raise UsageError(
            "Cannot run: name the command behind `--`.",
            hint="Such as: ckptfs run --on-failure restore -- make test",
        )
    workspace = find_workspace(args)
    if args.harness and args.on_failure != "keep":
        raise UsageError(
            "Cannot run: --harness becomes the command, so nothing is left that could look at how "
            "it ends. Nothing was run.",
            hint="Leave out --on-failure, or --harness.",
        )
    if args.harness:
        return _become(args, workspace)
    typed = quoted(args.words)[:_COMMAND_MAX]
    command = shown(typed)
    before = _before(workspace, typed)
    started = time.monotonic()
    try:
        code = supervise(args.words)
    except OSError as error:
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        reason = reason_of(error)
        message = f"Cannot run {args.words[0]}: {reason}."
        refused = {"kind": "not-run", "message": message, "hint": "", "exit_code": code}
        record = _record(command, code, before, before["id"]) | {"error": refused}
        _say(args, record, f"ckptfs: {output.safe(message)}")
        _release(workspace, before)
        return code
    took_ms = int((time.monotonic() - started) * 1000)
    try:
        _after(args, workspace, typed, before, code, took_ms)
    except CkptfsError as error:
        if args.json:
            record = _record(command, code, before, None) | {"error": error.record()}
            _say(args, record, "")
        else:
            output.failure(error, as_json=False)
    return code


def _become(args: Namespace, workspace: Workspace) -> int:
    """Become the command, which keeps our process id, and by it is known to be a harness."""
    if runtime.living(workspace) is None:
        runtime.require_uncovered(workspace)
        raise NotMounted(workspace.path)
    with Client(workspace) as client:
        client.call("harness", {"pid": os.getpid()})
    try:
        os.execvp(args.words[0], args.words)
    except OSError as error:
        reason = reason_of(error)
        output.note(f"ckptfs: Cannot run {output.safe(args.words[0])}: {reason}.")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def _record(command: str, code: int, before: JsonObject, after: int | None) -> JsonObject:
    """What `--json` tells, of a command that changed nothing as far as we know."""
    return {
        "command": command,
        "exit_code": code,
        "before": before["id"],
        "after": after,
        "added": 0,
        "modified": 0,
        "deleted": 0,
        "changes": [],
        "restored": False,
    }


def _say(args: Namespace, record: JsonObject, text: str) -> None:
    """All that we say goes to stderr: the standard output is the command's."""
    output.note(json.dumps(output.portable(record)) if args.json else text)


def _mark(session: Session, moment: str, typed: str, **metadata: str) -> JsonObject:
    """A checkpoint around the command as it was typed; the settings say what is recorded of it."""
    asked = {"kind": "run", "message": moment, "ran": typed, "weak": True}
    asked |= {"metadata": {"command": typed, **metadata}, "pid": os.getpid(), "command": typed}
    return session.call("mark", asked)


def _before(workspace: Workspace, typed: str) -> JsonObject:
    """The checkpoint to go back to; pinned while the command runs, which may take days."""
    with open_workspace(workspace) as session:
        found = _mark(session, "before", typed)
        if not found["pinned"]:
            session.call("pin", {"checkpoints": [str(found["id"])]})
        return found


def _release(workspace: Workspace, before: JsonObject) -> None:
    if not before["pinned"]:
        with suppress(CkptfsError), open_workspace(workspace) as session:
            session.call("unpin", {"checkpoints": [str(before["id"])]})


def _after(
    args: Namespace,
    workspace: Workspace,
    typed: str,
    before: JsonObject,
    code: int,
    took_ms: int,
) -> None:
    with open_workspace(workspace) as session:
        after = _mark(session, "after", typed, exit_code=str(code))
        ended = {"ran": typed, "exit_code": code, "duration_ms": took_ms}
        session.call("ran", {"checkpoint": str(after["id"]), **ended})
        asked = {"older": str(before["id"]), "newer": str(after["id"])}
        found = session.call("diff", asked)
        record = _record(shown(typed), code, before, after["id"])
        record |= {key: found[key] for key in ("added", "modified", "deleted", "changes")}
        if code and found["changes"] and _goes_back(args.on_failure, code):
            record |= {"restored": True}
    if record["restored"]:
        # By the API, since a command may be waiting to hear of restores.
        from ckptfs.api import CheckpointService

        service = CheckpointService(workspace.path, workspace.store)
        record |= {"undo": service.restore(str(before["id"]), state=False).before_id}
    _release(workspace, before)
    _say(args, record, _summary(record))


def _goes_back(on_failure: str, code: int) -> bool:
    if on_failure != "ask":
        return on_failure == "restore"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        output.note("ckptfs: There is no terminal to ask at; the changes are kept.")
        return False
    output.note(f"ckptfs: The command failed ({code}). Put the workspace back? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _summary(record: JsonObject) -> str:
    command, changes = output.safe(record["command"]), record["changes"]
    if not changes:
        return f"ckptfs: {command} changed nothing (checkpoint {record['before']})."
    span = f"checkpoints {record['before']} and {record['after']}"
    lines = [f"ckptfs: {command} changed the workspace: {output.changes_text(record)} ({span})."]
    lines += [f"  {change['status']} {output.safe(change['path'])}" for change in changes[:_NAMED]]
    if len(changes) > _NAMED:
        lines.append(f"  ... and {len(changes) - _NAMED:,} more")
    if record["restored"]:
        lines.append(
            f"  It failed ({record['exit_code']}), so all of this was put back; "
            f"`ckptfs undo` takes that back (checkpoint {record['undo']})."
        )
    return "\n".join(lines)


# -- supervising the command -----------------------------------------------------------------------
#
# The command stays in our process group, so the terminal talks to it as to us

#: The terminal sends these to the whole group; what a process sends to us is meant for the command.
_HANDED_ON = frozenset(
    {
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGUSR1,
        signal.SIGUSR2,
    }
)
#: Python ignores these, and what a program ignores its children ignore, too.
_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)

#: How long a command that the terminal stopped may take to be seen continued, in seconds.
_CONTINUED_WITHIN = 0.05


def supervise(words: Sequence[str]) -> int:
    """Run a command to its end. Returns its exit code, or 128 and the signal that ended it.

    Raises OSError if it cannot be started.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    watched = {signal.SIGCHLD, *(s for s in _HANDED_ON if signal.getsignal(s) != signal.SIG_IGN)}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        child = os.posix_spawnp(
            words[0], list(words), os.environ, setsigmask=before, setsigdef=_RESTORED
        )
        return _watch(child, watched)
    finally:
        while signal.sigtimedwait(watched, 0) is not None:
            pass  # it was meant for the command, which has ended
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(child: int, watched: set[signal.Signals]) -> int:
    while True:
        heard = signal.sigwaitinfo(watched)
        if heard.si_signo != signal.SIGCHLD:
            # A positive code is the kernel's own: then the whole group has heard it.
            if heard.si_code <= 0:
                os.kill(child, heard.si_signo)
            continue
        while (found := os.waitpid(child, os.WNOHANG | os.WUNTRACED))[0]:
            if not os.WIFSTOPPED(found[1]):
                code = os.waitstatus_to_exitcode(found[1])
                return code if code >= 0 else 128 - code
            _stop_with(child)


def _stop_with(child: int) -> None:
    """The command was stopped: stop as well, so that the shell sees it, and go on with it."""
    time.sleep(_CONTINUED_WITHIN)
    if _is_stopped(child):
        os.kill(os.getpid(), signal.SIGSTOP)
        os.kill(child, signal.SIGCONT)


def _is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return stat.read().rpartition(b")")[2].split()[0] == b"T"


# -- task ------------------------------------------------------------------------------------------

#: How many paths are named before they are only counted.
_PLANNED = 20
#: States in which a task has work that a new start adds to; of a reverted one there is none left.
_TAKEN_UP = ("open", "done")


def task(args: Namespace) -> int:
    if args.action in ("start", "revert") and args.subject is None:
        raise UsageError(f"Cannot {args.action} a task: name it.", hint="See `ckptfs task --help`.")
    if args.action == "list" and args.subject is not None:
        raise UsageError("Cannot list: it takes no name.", hint="See `ckptfs task --help`.")
    with open_workspace(find_workspace(args)) as session:
        record, text = _ACTIONS[args.action](session, args)
    output.result(record, text, as_json=args.json)
    return 0


def _start(session: Session, args: Namespace) -> tuple[JsonObject, str]:
    record = session.call("task_start", {"name": args.subject, **this_command()})
    name = output.safe(record["name"])
    if not record["changed"]:
        return record, f"Task {name} is the current one already."
    at, was = f"at checkpoint {record['checkpoint']}", record["was"]
    if was not in _TAKEN_UP:
        return record, f"Started task {name} {at}."
    text = (
        f"Took up task {name} again {at}; it was {was}. A revert takes back its earlier work too."
    )
    return record, text


def _done(session: Session, args: Namespace) -> tuple[JsonObject, str]:
    record = session.call("task_done", {"message": args.subject or "", **this_command()})
    text = f"Task {output.safe(record['name'])} is done at checkpoint {record['checkpoint']}."
    if record["current"]:
        text += f" Task {output.safe(record['current'])} goes on."
    return record, text


def _list(session: Session, args: Namespace) -> tuple[JsonObject, str]:
    record = session.call("task_list")
    record["tasks"].reverse()
    return record, "\n".join(map(_line, record["tasks"])) or "There are no tasks."


def _line(found: JsonObject) -> str:
    count = "?" if found["count"] is None else output.paths_text(found["count"])
    words = f"{output.safe(found['name'])}  {output.safe(found['message'])}".rstrip()
    return f"{found['state']:<8}  {output.time_text(found['started_ns'])}  {count:>12}  {words}"


def _revert(session: Session, args: Namespace) -> tuple[JsonObject, str]:
    wishes = {"name": args.subject, "force": args.force, "dry_run": args.dry_run}
    record = session.call("task_revert", {**wishes, **this_command()})
    name = output.safe(record["name"])
    if record["dry_run"]:
        return record, _plan_text(record, name)
    if not record["changed"]:
        return record, f"Task {name} changed nothing; no checkpoint was taken."
    names = output.paths_text(record["count"])
    back = f"`ckptfs undo` takes it back (checkpoint {record['before']})."
    return record, f"Reverted task {name}: {names}. {back}"


def _plan_text(record: JsonObject, name: str) -> str:
    if not record["count"]:
        return f"Task {name} changed nothing."
    lines = [
        f"To revert task {name}:",
        *output.some_paths(record["paths"], _PLANNED, record["count"]),
    ]
    if record["conflicts"]:
        lines.append("Others changed these after it; only --force takes them back:")
        lines += [
            f"  {output.safe(found['path'])}"
            + (f" (task {output.safe(found['task'])})" if found["task"] else "")
            for found in record["conflicts"][:_PLANNED]
        ]
    return "\n".join(lines)


_ACTIONS = {"start": _start, "done": _done, "list": _list, "revert": _revert}
