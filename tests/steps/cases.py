"""One cell of the matrix: a harness, a destroyer and the pause between steps; run, then judged.

Judged with what a user has: `ckptfs list`, `ckptfs list --moments`, `ckptfs log PATH`, `ckptfs
restore ID PATH` and `.checkpoints`. The verbs run in this process, since starting Python for each
would take longer than all the rest.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from ckptfs.cli import entry
from tests.steps.destroyers import DESTROYERS
from tests.steps.harnesses import HARNESSES, drafted, perform
from tests.steps.plans import Plan, Version
from tests.support.mounting import Workspace, workspace

SERVERS = {"compiled": "on", "pyfuse3": "off"}

_numbers = count(1)


class Case(NamedTuple):
    harness: str
    destroyer: str
    #: Seconds between the end of a step and the beginning of the next.
    gap: float

    @property
    def missing(self) -> str:
        """Why it cannot run here, if it cannot."""
        destroyer = DESTROYERS[self.destroyer]
        if destroyer.missing:
            return f"{destroyer.needs} is not installed"
        return HARNESSES[self.harness].missing

    def __str__(self) -> str:
        return f"{self.harness}-{self.destroyer}-{self.gap * 1000:.0f}ms"


class CaseDirectory:
    """A directory of a case's own in a workspace, and one outside of it."""

    def __init__(self, work: Workspace) -> None:
        self.work = work
        self.name = f"c{next(_numbers)}"
        self.path = work.path / self.name
        self.path.mkdir()
        self.outside = work.store.parent / f"outside-{self.name}"
        self.outside.mkdir()

    def past(self, checkpoint: int) -> Path:
        """The directory as it was."""
        return self.work.path / ".checkpoints" / str(checkpoint) / self.name


@dataclass(frozen=True)
class Done:
    """A case that has run."""

    case: Case
    plan: Plan
    place: CaseDirectory

    def losses(self) -> list[str]:
        return losses(self.place, self.plan.lost)


def run(case: Case, work: Workspace) -> Done:
    """Run a case in a directory of its own."""
    harness = HARNESSES[case.harness]
    place = CaseDirectory(work)
    plan = DESTROYERS[case.destroyer].make(place.name, place.outside)
    if harness.drafts:
        plan = drafted(plan)
    perform(harness, plan, case.gap, place.path, place.outside)
    return Done(case, plan, place)


# -- looking for what was lost --------------------------------------------------------------------


def losses(place: CaseDirectory, lost: Iterable[Version]) -> list[str]:
    """Every version that a user would not find again, with what is wrong."""
    lost = list(lost)
    listed = set(checkpoints(place.work))
    logged = {path: _logged(place, path) for path in {version.path for version in lost}}
    # Before the first restore, which takes a checkpoint of what it replaces.
    found = {version: _holding(place, version, listed & logged[version.path]) for version in lost}
    reasons = {
        version: _restored(place, version, found[version][0])
        if found[version]
        else _unfound(place, version, listed, logged[version.path])
        for version in lost
    }
    return [f"{version}: {reason}" for version, reason in reasons.items() if reason]


def _restored(place: CaseDirectory, version: Version, number: int) -> str:
    """What goes wrong when a version is restored; empty if nothing does."""
    path = place.path / version.path
    code, said = command(place.work, "restore", str(number), str(path), "--force", "--json")
    if code:
        return f"restore {number} ended with {code}: {said}"
    return "" if path.read_bytes() == version.bytes else f"restore {number} gave other bytes"


def _unfound(place: CaseDirectory, version: Version, listed: set[int], logged: set[int]) -> str:
    holding = _holding(place, version, listed)
    if not holding:
        return "in no checkpoint"
    return f"in checkpoints {holding}, none of which `log` names (it names {sorted(logged)})"


def _holding(place: CaseDirectory, version: Version, numbers: set[int]) -> list[int]:
    """Which of these checkpoints have a version, by `.checkpoints`."""
    wanted = version.bytes
    return [
        number for number in sorted(numbers) if _bytes(place.past(number) / version.path) == wanted
    ]


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _logged(place: CaseDirectory, path: str) -> set[int]:
    code, said = command(place.work, "log", str(place.path / path), "--json")
    if code:
        return set()  # a path that no checkpoint has ever seen
    versions = json.loads(said)["versions"]
    return {version["saved"]["id"] for version in versions if version["saved"]}


@cache
def have_moments() -> bool:
    code, said = _call(["list", "--help"])
    assert code == 0
    return "--moments" in said


def checkpoints(work: Workspace) -> dict[int, dict[str, Any]]:
    """What `list`, and `list --moments` where there is one, show."""
    return {record["id"]: record for record in listed(work) + moments(work)}


def listed(work: Workspace) -> list[dict[str, Any]]:
    return _list(work)


def moments(work: Workspace) -> list[dict[str, Any]]:
    return _list(work, "--moments") if have_moments() else []


def _list(work: Workspace, *options: str) -> list[dict[str, Any]]:
    code, said = command(work, "list", "--json", *options)
    assert code == 0, said
    found = json.loads(said)["checkpoints"]
    assert isinstance(found, list)
    return found


def story(work: Workspace) -> str:
    """The history as a user reads it, for a failure's message."""
    options = ["--moments"] if have_moments() else []
    return command(work, "list", "--all", *options)[1]


def command(work: Workspace, verb: str, *words: str) -> tuple[int, str]:
    """A verb's exit code and all that it printed."""
    with mock.patch.dict(os.environ, work.env):
        return _call([verb, *words, "-w", str(work.path)])


def _call(words: list[str]) -> tuple[int, str]:
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with redirect_stdout(said), redirect_stderr(said):
        code = entry.run(words)
    said.seek(0)
    return code, said.read()


# -- many cases -----------------------------------------------------------------------------------


@contextmanager
def mounted(server: str, *options: str) -> Iterator[Workspace]:
    """A workspace whose requests are served one way or the other."""
    with mock.patch.dict(os.environ, {"CKPTFS_SERVER": SERVERS[server]}):
        with workspace("--no-write-back", *options) as made:
            yield made


def report_of(server: str, cases: list[Case], side_by_side: int) -> str:
    """Run cases in several workspaces at once, and say what was lost in which; empty if nothing.

    In one workspace cases run one after the other: a checkpoint for one would save another's
    content. More than the processors is sensible where they mostly wait.
    """
    share = [cases[start::side_by_side] for start in range(min(side_by_side, len(cases)))]
    with ExitStack() as stack:
        places = [stack.enter_context(mounted(server)) for _ in share]
        with ThreadPoolExecutor(len(share)) as pool:
            rows = pool.map(_run_all, share, places)
            outcomes = [outcome for row in rows for outcome in row]
        return "\n".join(filter(None, map(_verdict, outcomes)))


def _run_all(cases: list[Case], work: Workspace) -> list[Done | str]:
    return [_attempt(case, work) for case in cases]


def _attempt(case: Case, work: Workspace) -> Done | str:
    """A case that could not even run must not hide what becomes of the others."""
    try:
        return run(case, work)
    except Exception as error:
        return f"{case}: {error}"


def _verdict(outcome: Done | str) -> str:
    if isinstance(outcome, str):
        return outcome
    found = outcome.losses()
    return f"{outcome.case} ({outcome.place.name}): {'; '.join(found)}" if found else ""
