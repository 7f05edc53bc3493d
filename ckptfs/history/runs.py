"""Runs: which commands were run on a checkpoint's state, how each ended and how long it took.

`ckptfs run` reports the command that it ran, a hook what an agent's tool ran. The references `@ok`
and `@ok:NAME` lead to the newest checkpoint whose last run, or last run of that program, passed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple
from weakref import WeakKeyDictionary

from ckptfs.commands.wrappers import commands_in, program_name
from ckptfs.history.checkpoints import Checkpoint, Run, describe
from ckptfs.model import Clock
from ckptfs.store import Store

#: How many commands a checkpoint remembers.
_RUNS_MAX = 16


def record_run(store: Store, checkpoint: Checkpoint, run: Run) -> Checkpoint:
    """Note a run with the checkpoint, in place of an earlier one of the same command. The caller
    commits."""
    others = [each for each in checkpoint.runs if each.command != run.command]
    described = replace(checkpoint, runs=(*others, run)[-_RUNS_MAX:])
    describe(store, described)
    return described


def last_run(checkpoint: Checkpoint, name: str = "") -> Run | None:
    """The last run there, of any command or of those that ``name`` names."""
    found = [run for run in checkpoint.runs if not name or _is_called(run, name)]
    return found[-1] if found else None


def newest_passed(known: Iterable[Checkpoint], name: str = "") -> Checkpoint | None:
    """The first checkpoint whose last run passed."""
    for checkpoint in known:
        run = last_run(checkpoint, name)
        if run is not None and run.passed:
            return checkpoint
    return None


def _is_called(run: Run, name: str) -> bool:
    """Whether a command runs the program of that name, or begins with these words. `pip install
    pytest` does not run pytest."""
    first, *rest = name.split()
    wanted = [program_name(first), *rest]
    if not all(word in run.command for word in wanted):
        return False
    return any(list(words[: len(wanted)]) == wanted for words in commands_in(run.command))


# -- what an agent's tools run ---------------------------------------------------------------------


class Begun(NamedTuple):
    command: str
    time_ns: int


class ToolRuns:
    """The commands that tools are running, for the lifetime of a daemon: by session, and the id of
    the call or else the tool."""

    _MAX = 256

    def __init__(self) -> None:
        self._begun: dict[tuple[str, str], Begun] = {}

    def began(self, session: str, call: str, command: str, clock: Clock) -> None:
        self._begun.pop((session, call), None)
        self._begun[session, call] = Begun(command, clock())
        for oldest in list(self._begun)[: -self._MAX]:
            del self._begun[oldest]

    def ended(self, session: str, call: str, result: str, clock: Clock) -> Run | None:
        """The run that a tool's result is of; None if it ran no command, or was cut short."""
        begun = self._begun.pop((session, call), None)
        code = exit_code_of(result)
        if begun is None or code is None:
            return None
        now = clock()
        return Run(begun.command, code, max(0, now - begun.time_ns) // 1_000_000, now)


def exit_code_of(result: str) -> int | None:
    """The exit code that the words of a tool's result mean; None if it did not come to its end."""
    if result == "ok":
        return 0
    if not result.startswith("failed"):
        return None
    code = result.removeprefix("failed").strip(" ()")
    return int(code) if code.removeprefix("-").isdecimal() else 1


_tool_runs: WeakKeyDictionary[Store, ToolRuns] = WeakKeyDictionary()


def tool_runs_of(store: Store) -> ToolRuns:
    return _tool_runs.setdefault(store, ToolRuns())
