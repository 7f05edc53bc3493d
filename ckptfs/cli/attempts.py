"""`ckptfs exec`, `try`, `race` and `bisect`: commands that run in scratch trees.

The scratch tree stands in the place of the workspace for the command (`ckptfs.cli.inside`), so that
absolute paths hold. It ends with the command; what it was then is a checkpoint, which a merge takes
over, or which goes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ckptfs import bisection
from ckptfs.cli import output
from ckptfs.cli.inside import words_inside
from ckptfs.cli.output import JsonObject
from ckptfs.cli.run import supervise
from ckptfs.cli.workspace import find_workspace, this_command
from ckptfs.commands import quoted, shown
from ckptfs.config import Workspace
from ckptfs.connect import Session, open_workspace
from ckptfs.errors import CheckpointUnknown, CkptfsError, MergeConflict, UsageError

#: What may be answered; anything else is asked again. The end of the input leaves it.
_ANSWERS = {
    **dict.fromkeys(("t", "take"), "take"),
    **dict.fromkeys(("l", "look"), "look"),
    **dict.fromkeys(("n", "no", "leave", "\n", ""), "drop"),
}
#: How many paths are named before they are only counted.
_NAMED = 10
#: The exit code by which a command says that it cannot be run on this state.
_CANNOT_RUN = 125
#: From here on an exit code says that the command was killed, or was not there.
_NO_VERDICT = 126


class Scratch(NamedTuple):
    """A tree that a command runs in. ``base`` is the checkpoint that it began at."""

    name: str
    path: str
    base: int


class Ran(NamedTuple):
    exit_code: int
    duration_ms: int


def _begin(workspace: Workspace, start: str = "") -> Scratch:
    """A new tree, of now or of a checkpoint."""
    with open_workspace(workspace) as session:
        made = session.call("scratch", {"start": start, **this_command()})
    return Scratch(made["name"], made["path"], made["base"])


def _end(workspace: Workspace, scratch: Scratch, *, keep: bool = False) -> int:
    """The tree is done with; with ``keep`` the number of the checkpoint of what it was."""
    with open_workspace(workspace) as session:
        done = session.call("scratch_end", {"name": scratch.name, "keep": keep, **this_command()})
    return int(done["checkpoint"]) if keep else -1


@contextmanager
def _scratch(workspace: Workspace, start: str = "") -> Iterator[Scratch]:
    """A tree for as long as the block lasts."""
    scratch = _begin(workspace, start)
    try:
        yield scratch
    finally:
        with suppress(CkptfsError):
            _end(workspace, scratch)


@contextmanager
def _unwinding() -> Iterator[None]:
    """Let a signal that ends us end the commands and their trees first."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    heard = [s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) != signal.SIG_IGN]
    before = [signal.signal(each, leave) for each in heard]
    try:
        yield
    finally:
        for each, handler in zip(heard, before, strict=True):
            signal.signal(each, handler)


def _require_command(args: Namespace, example: str) -> Workspace:
    if args.stray or not args.words:
        raise UsageError(
            f"Cannot {args.verb}: name the command behind `--`.", hint=f"Such as: {example}"
        )
    return find_workspace(args)


def _run(workspace: Workspace, scratch: Scratch, words: Sequence[str]) -> Ran:
    """Run a command in a scratch tree, on our terminal."""
    started = time.monotonic()
    code = supervise(words_inside(scratch.path, str(workspace.path), list(words)))
    return Ran(code, _ms_since(started))


def _ms_since(started: float) -> int:
    return int((time.monotonic() - started) * 1000)


def _note_run(session: Session, checkpoint: int, words: Sequence[str], ran: Ran) -> None:
    session.call("ran", {"checkpoint": str(checkpoint), "ran": quoted(words), **ran._asdict()})


def _kept(workspace: Workspace, scratch: Scratch, words: Sequence[str], ran: Ran) -> JsonObject:
    """End a tree, and tell what the command left: the checkpoint of it, and what it changed."""
    number = _end(workspace, scratch, keep=True)
    with open_workspace(workspace) as session:
        _note_run(session, number, words, ran)
        found = session.call("diff", {"older": str(scratch.base), "newer": str(number)})
    counted = {key: found[key] for key in ("added", "modified", "deleted", "changes")}
    return {"checkpoint": number, **ran._asdict(), **counted, "merged": False, "conflicts": []}


# -- exec ------------------------------------------------------------------------------------------


def execute(args: Namespace) -> int:
    """Run a command on an old state; what it writes is gone afterwards."""
    workspace = _require_command(args, "ckptfs exec @-1 -- make test")
    with _scratch(workspace, args.checkpoint) as scratch:
        ran = _run(workspace, scratch, args.words)
    with open_workspace(workspace) as session:
        _note_run(session, scratch.base, args.words, ran)
    return ran.exit_code


# -- try -------------------------------------------------------------------------------------------


def attempt(args: Namespace) -> int:
    """Run a command in a scratch tree, show what it changed, and take it, or not."""
    workspace = _require_command(args, "ckptfs try -- ./migrate.sh")
    scratch = _begin(workspace)
    try:
        ran = _run(workspace, scratch, args.words)
    except BaseException:
        _end_quietly(workspace, scratch)
        raise
    try:
        record = _kept(workspace, scratch, args.words, ran)
    except (CkptfsError, KeyboardInterrupt):
        output.note(
            f"ckptfs: The command ended with {ran.exit_code}, and the workspace is as it was. What "
            "the command did is kept for a day: `ckptfs forks` lists it once the fork has ended."
        )
        raise
    if not record["changes"]:  # the state that it was run on is that of the workspace
        with open_workspace(workspace) as session:
            _note_run(session, scratch.base, args.words, ran)
    try:
        decision = _decide(args, workspace, record)
    except KeyboardInterrupt:
        _say(args, record | {"decision": "drop"}, _tried_text(record, "drop"))
        raise
    if decision == "take":
        record |= _take(workspace, record, args.words)
    _say(args, record | {"decision": decision}, _tried_text(record, decision))
    return ran.exit_code or (MergeConflict.exit_code if record["conflicts"] else 0)


def _decide(args: Namespace, workspace: Workspace, record: JsonObject) -> str:
    """take or drop."""
    if not record["changes"]:
        return "drop"
    if args.yes_if_ok:
        return "take" if record["exit_code"] == 0 else "drop"
    if args.keep or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return "drop"
    output.note("\n".join(_change_lines(record)))
    tree = workspace.path / ".checkpoints" / str(record["checkpoint"])
    while True:
        answer = _asked("Take it [t], look at it [l], or leave it [n]? ")
        if answer != "look":
            return answer
        output.note(
            "A shell in what it left, to look at; `exit` comes back to the question. ckptfs "
            "commands in it are about the workspace."
        )
        subprocess.run([os.environ.get("SHELL") or "sh"], cwd=tree, check=False)


def _asked(question: str) -> str:
    """What is answered now, not what was typed while the command ran."""
    with suppress(termios.error):
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    while True:
        output.note(question)
        line = sys.stdin.readline()
        answer = _ANSWERS.get(line.strip().lower() or line)
        if answer is not None:
            return answer


def _take(workspace: Workspace, record: JsonObject, words: Sequence[str]) -> JsonObject:
    """Merge what a command left. Where the workspace is then what it left and nothing else, how it
    ended is true of the workspace, too."""
    from ckptfs.api import merging

    number = str(record["checkpoint"])
    with open_workspace(workspace) as session:
        merged = merging.merge(session, workspace, {"source": number, **this_command()})
        after = merged["after"]
        if after is not None:
            others = session.call("diff", {"older": number, "newer": str(after)})["changes"]
            if not others:
                ran = Ran(record["exit_code"], record["duration_ms"])
                _note_run(session, after, words, ran)
    return {"merged": merged["changed"], "conflicts": merged["conflicts"]}


def _change_lines(record: JsonObject) -> list[str]:
    changes = record["changes"]
    lines = [f"{each['status']} {output.safe(each['path'])}" for each in changes[:_NAMED]]
    if len(changes) > _NAMED:
        lines.append(f"... and {len(changes) - _NAMED:,} more")
    return lines


def _tried_text(record: JsonObject, decision: str) -> str:
    code, how, number = record["exit_code"], output.changes_text(record), record["checkpoint"]
    ended = "It ended well" if code == 0 else f"It failed ({code})"
    if not record["changes"]:
        return f"ckptfs: {ended}, and changed nothing."
    if record["conflicts"]:
        return (
            f"ckptfs: {ended}, but the workspace changed meanwhile, in the same places. Nothing "
            f"was merged.\n  `ckptfs merge {number}` tells more."
        )
    if decision == "take":
        return f"ckptfs: {ended}; merged: {how}. `ckptfs undo` takes it back."
    first = f"ckptfs: {ended}; the workspace is as it was. What it did: {how}"
    lines = [first, *_change_lines(record)]
    return "\n  ".join(
        [*lines, f"Checkpoint {number} has it for a day: `ckptfs merge {number}` takes it."]
    )


def _say(args: Namespace, record: JsonObject, text: str) -> None:
    """On stderr: the standard output is the command's."""
    if args.json:
        import json

        output.note(json.dumps(output.portable(record)))
    elif text:
        output.note(text)


# -- race ------------------------------------------------------------------------------------------


class _Runner(NamedTuple):
    scratch: Scratch
    number: int
    process: subprocess.Popen[bytes]
    log: Path
    started: float


def race(args: Namespace) -> int:
    """Several attempts side by side, each in a tree of its own; the best one may be taken."""
    workspace = _require_command(args, "ckptfs race -n 3 --take best -- claude -p 'fix it'")
    if args.count < 1:
        raise UsageError("Cannot race: -n counts from 1. Nothing was run.")
    logs = Path(tempfile.mkdtemp(prefix="ckptfs-race-"))
    results: list[JsonObject] = []
    cut_short: list[int] = []
    try:
        with _unwinding(), ExitStack() as stack:
            runners = []
            for number in range(1, args.count + 1):
                scratch = _begin(workspace)
                stack.callback(_leave, workspace, scratch, cut_short)
                runners.append(_start(workspace, scratch, args, logs, number))
                stack.callback(_stop, runners[-1].process)
            for runner in runners:
                results.append(_result(workspace, runner, args))
    except BaseException:
        numbers = sorted([*cut_short, *(each["checkpoint"] for each in results)])
        if numbers:
            output.note(
                f"ckptfs: The attempts were ended, and the workspace is as it was. {_days(numbers)}"
                f"; output is in {logs}."
            )
        else:
            shutil.rmtree(logs, ignore_errors=True)
        raise
    results.sort(key=_rank)
    best = results[0]
    taken = best if args.take == "best" and best["exit_code"] == 0 else None
    if taken is not None:
        taken |= _take(workspace, taken, args.words)
    kept = _removed_if_empty(logs, results)
    record = {"attempts": results, "taken": taken["attempt"] if taken else None, "logs": kept}
    output.result(record, _race_text(results, record), as_json=args.json)
    if taken is not None and taken["conflicts"]:
        return MergeConflict.exit_code
    return int(best["exit_code"])


def _removed_if_empty(logs: Path, results: Sequence[JsonObject]) -> str:
    """Where the output of the attempts is; nowhere if there was none."""
    if any(log.stat().st_size for log in logs.iterdir()):
        return str(logs)
    shutil.rmtree(logs)
    for each in results:
        each["log"] = ""
    return ""


def _end_quietly(workspace: Workspace, scratch: Scratch) -> None:
    with suppress(CkptfsError):  # it has ended where all went well
        _end(workspace, scratch)


def _leave(workspace: Workspace, scratch: Scratch, kept: list[int]) -> None:
    """End a tree whose command did not come to its end, and keep what it was."""
    with suppress(CkptfsError):  # it has ended where all went well
        kept.append(_end(workspace, scratch, keep=True))


def _days(numbers: Sequence[int]) -> str:
    return f"Checkpoints {', '.join(map(str, numbers))} have them for a day"


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


def _start(
    workspace: Workspace, scratch: Scratch, args: Namespace, logs: Path, number: int
) -> _Runner:
    log = logs / f"{number}.log"
    environment = {**os.environ, "CKPTFS_FORK": scratch.name, "CKPTFS_ATTEMPT": str(number)}
    words = words_inside(scratch.path, str(workspace.path), args.words)
    with log.open("wb") as file:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment
        )
    return _Runner(scratch, number, process, log, time.monotonic())


def _result(workspace: Workspace, runner: _Runner, args: Namespace) -> JsonObject:
    code = runner.process.wait()
    ran = Ran(code if code >= 0 else 128 - code, _ms_since(runner.started))
    score = _score(workspace, runner, args) if args.score else None
    kept = _kept(workspace, runner.scratch, args.words, ran)
    return {"attempt": runner.number, "score": score, **kept, "log": str(runner.log)}


def _score(workspace: Workspace, runner: _Runner, args: Namespace) -> float | None:
    """The number that the scoring command prints; None if it fails, or prints none."""
    words = words_inside(runner.scratch.path, str(workspace.path), ["sh", "-c", args.score])
    environment = {**os.environ, "CKPTFS_ATTEMPT": str(runner.number)}
    done = subprocess.run(words, stdout=subprocess.PIPE, env=environment, check=False)
    printed = done.stdout.decode(errors="replace").split()
    try:
        return float(printed[-1]) if done.returncode == 0 and printed else None
    except ValueError:
        return None


def _rank(result: JsonObject) -> tuple[bool, float, int]:
    """The best one first: it passed, has the highest score, took the least time."""
    score = result["score"]
    return (
        result["exit_code"] != 0,
        -(score if score is not None else float("-inf")),
        result["duration_ms"],
    )


def _race_text(results: list[JsonObject], record: JsonObject) -> str:
    lines = ["attempt  exit  score     time      changes"]
    for each in results:
        score = "" if each["score"] is None else f"{each['score']:g}"
        took = output.duration_text(each["duration_ms"])
        counts = output.changes_text(each)
        lines.append(
            f"{each['attempt']:>7}  {each['exit_code']:>4}  {score:<8}  {took:<8}  {counts}"
        )
    if record["taken"]:
        lines.append(f"Merged attempt {record['taken']}. `ckptfs undo` takes it back.")
    numbers = [each["checkpoint"] for each in results]
    output_is = f"output is in {record['logs']}" if record["logs"] else "there was no output"
    lines.append(f"{_days(numbers)}; {output_is}.")
    return "\n".join(lines)


# -- bisect ----------------------------------------------------------------------------------------


def bisect(args: Namespace) -> int:
    """The first checkpoint on which a command fails, in few runs."""
    workspace = _require_command(args, "ckptfs bisect run -- pytest -x")
    if args.jobs < 1:
        raise UsageError("Cannot bisect: -j counts from 1. Nothing was run.")
    with open_workspace(workspace) as session:
        row = _row(session, args)
    search = _Search(args, workspace, row)
    try:
        with _unwinding():
            found = search.first_bad()
    except (KeyboardInterrupt, SystemExit):
        if search.count:
            output.note("ckptfs: What was tested is remembered: the same command goes on there.")
        raise
    record: JsonObject = {
        "checkpoints": [row[place]["id"] for place in found.suspects],
        "run_count": search.count,
        "tested": [
            {"checkpoint": row[place]["id"], "verdict": verdict}
            for place, verdict in sorted(found.tested.items())
        ],
    }
    output.result(record, _bisect_text(row, found, search.count), as_json=args.json)
    return 0


def _row(session: Session, args: Namespace) -> list[JsonObject]:
    """The checkpoints from the good one to the bad one, oldest first."""
    known = session.call("list", {"limit": None})["checkpoints"]
    first = session.call("get", {"checkpoint": args.good})["id"] if args.good else known[0]["id"]
    last = session.call("get", {"checkpoint": args.bad})["id"] if args.bad else known[-1]["id"]
    row = [item for item in known if first <= item["id"] <= last]
    if len(row) < 2:
        raise CheckpointUnknown(
            str(args.bad or last), reason="There is nothing to search: name two checkpoints"
        )
    return row


class _Search:
    def __init__(self, args: Namespace, workspace: Workspace, row: list[JsonObject]) -> None:
        self._args = args
        self._workspace = workspace
        self._row = row
        self._command = shown(quoted(args.words))
        #: How many runs were needed.
        self.count = 0

    def first_bad(self) -> bisection.Found:
        """Raises UsageError if the ends are not as they should be."""
        last = len(self._row) - 1
        ends = self._test([0, last]) if self._args.jobs > 1 else {}
        for place, wanted in ((last, bisection.BAD), (0, bisection.GOOD)):
            verdict = ends.get(place) or self._test([place])[place]
            if verdict != wanted:
                self._refuse(place, verdict)
        return bisection.first_bad(len(self._row), self._test, at_once=self._args.jobs)

    def _refuse(self, place: int, verdict: str) -> None:
        number = self._row[place]["id"]
        wanted = "fail" if place else "pass"
        raise UsageError(
            f"Cannot bisect: on checkpoint {number} the command does not {wanted} ({verdict}).",
            hint="Name a good one with --from and a bad one with --to.",
        )

    def _test(self, places: Sequence[int]) -> dict[int, str]:
        known = {place: self._remembered(place) for place in places}
        left = [place for place, verdict in known.items() if not verdict]
        return {place: verdict for place, verdict in known.items() if verdict} | self._run(left)

    def _remembered(self, place: int) -> str:
        """What an earlier run of the same command said there."""
        for run in reversed(self._row[place]["runs"]):
            judged = run["exit_code"] < _NO_VERDICT
            if run["command"] == self._command and judged and not self._args.again:
                return _verdict(run["exit_code"])
        return ""

    def _run(self, places: Sequence[int]) -> dict[int, str]:
        with ExitStack() as stack:
            started = {place: stack.enter_context(self._started(place)) for place in places}
            return {place: self._ended(place, process) for place, process in started.items()}

    @contextmanager
    def _started(self, place: int) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
        with _scratch(self._workspace, str(self._row[place]["id"])) as scratch:
            words = words_inside(scratch.path, str(self._workspace.path), self._args.words)
            # What is tested tells by its exit code; only one at a time may talk.
            out = None if self._args.jobs == 1 else subprocess.DEVNULL
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            try:
                yield process, time.monotonic()
            finally:
                _stop(process)

    def _ended(self, place: int, begun: tuple[subprocess.Popen[bytes], float]) -> str:
        process, started = begun
        code = process.wait()
        self.count += 1
        ran = Ran(code if code >= 0 else 128 - code, _ms_since(started))
        number = self._row[place]["id"]
        if ran.exit_code >= _NO_VERDICT:
            raise UsageError(
                f"Cannot bisect: on checkpoint {number} the command ended with {ran.exit_code}, "
                "which says that it was killed or could not be started."
            )
        with open_workspace(self._workspace) as session:
            _note_run(session, number, self._args.words, ran)
        verdict = _verdict(ran.exit_code)
        took = output.duration_text(ran.duration_ms)
        output.note(f"ckptfs: checkpoint {number} is {verdict} ({took})")
        return verdict


def _verdict(code: int) -> str:
    if code == _CANNOT_RUN:
        return bisection.SKIPPED
    return bisection.GOOD if code == 0 else bisection.BAD


def _bisect_text(row: list[JsonObject], found: bisection.Found, count: int) -> str:
    runs = output.count_text(count, "run", "runs")
    if len(found.suspects) == 1:
        first = row[found.suspects[0]]
        message = output.safe(first["message"])
        return (
            f"The first bad checkpoint is {first['id']} ({message}), found in {runs}.\n"
            f"`ckptfs show {first['id']}` shows what it changed."
        )
    numbers = ", ".join(str(row[place]["id"]) for place in found.suspects)
    return f"The first bad checkpoint is one of {numbers}: the others could not be tested ({runs})."
