"""This checkout beside another ckptfs: which rows are slower, and which faster.

The other one is this checkout without automatic checkpoints, or another revision, which is unpacked
into the bench's cache and built there, with an environment of its own. Both then do the same rows
in one run, in turns, as ckptfs and the disk do otherwise.
"""

import shutil
import subprocess
import tarfile
import venv
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.kit import Kit, NotToBeHad, fetch
from bench.outcome import Comparison, Outcome
from bench.product import HERE, Installation
from bench.programs import unpack
from bench.registry import Workload
from bench.report import comparison_text, median_text, print_facts, print_skipped
from bench.scale import Scale
from bench.stats import Spread, spread

#: What two runs of the very same differ by, so a row within it did not change.
NOISE = 0.05
_STYLES = {"slower": "bold red", "faster": "green", "failed": "bold red"}


def build(kit: Kit, revision: str) -> Installation:
    """The revision, ready to run; built once for each commit."""
    commit = _commit(revision)
    home = kit.cache / "revisions" / commit
    built = Installation(f"{revision} ({commit[:7]})", home / "checkout", home / "venv/bin/python")
    if not (home / "ready").exists():
        kit.tell(f"building {built.name}")
        shutil.rmtree(home, ignore_errors=True)
        _unpack(commit, built.checkout)
        venv.create(home / "venv", with_pip=True, symlinks=True)
        # In place, as this checkout has it: a command is started there and finds it first.
        options = ("--quiet", "--disable-pip-version-check", "--editable")
        fetch(
            f"building {revision}", built.python, "-m", "pip", "install", *options, built.checkout
        )
        (home / "ready").touch()
    return built


def _commit(revision: str) -> str:
    command = [
        "git",
        "rev-parse",
        "--verify",
        "--quiet",
        "--end-of-options",
        f"{revision}^{{commit}}",
    ]
    done = subprocess.run(command, cwd=HERE.checkout, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotToBeHad(f"Cannot compare: there is no revision {revision}. Nothing was measured.")
    return done.stdout.strip()


def _unpack(commit: str, target: Path) -> None:
    target.mkdir(parents=True)
    command = ["git", "archive", "--format=tar", commit]
    with subprocess.Popen(command, cwd=HERE.checkout, stdout=subprocess.PIPE) as git:
        assert git.stdout is not None
        with tarfile.open(fileobj=git.stdout, mode="r|") as archive:
            unpack(archive, target)


def change(ratio: Spread | None) -> str:
    """slower or faster if even the mildest repetition says so, beyond the noise."""
    if ratio is None:
        return ""
    if ratio.low > 1 + NOISE:
        return "slower"
    return "faster" if ratio.high < 1 - NOISE else ""


def percent_text(ratio: Spread) -> str:
    return f"{100 * (ratio.median - 1):+.0f} %"


def print_changes(
    console: Console, outcome: Outcome, scale: Scale, facts: Mapping[str, str]
) -> None:
    print_facts(console, scale, facts)
    table = Table(title=f"This checkout beside {outcome.baseline}: change of the time")
    table.add_column("workload")
    for heading in (outcome.baseline, "this checkout", "change", "spread"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("note")
    for workload in outcome.workloads:
        table.add_row(*_cells(outcome, workload, scale))
    for comparison in outcome.comparisons:
        table.add_row(*_verb_cells(comparison))
    console.print(table)
    console.print(f"Marked is what every repetition shows, by more than {NOISE:.0%}.")
    print_skipped(console, outcome)


def _cells(outcome: Outcome, workload: Workload, scale: Scale) -> list[str]:
    ratio = outcome.ratio(workload.name, outcome.subject)
    failures = [outcome.failure(workload.name, each) for each in outcome.everyone]
    return [
        workload.title.format(scale=scale),
        *(median_text(outcome, workload, each) for each in outcome.everyone),
        *_change_cells(ratio, "failed" if any(failures) else change(ratio)),
        "; ".join(filter(None, [*failures, taken_text(outcome, workload)])),
    ]


def taken_text(outcome: Outcome, workload: Workload) -> str:
    """How many checkpoints this checkout took by itself in the row, of all repetitions the fewest:
    where it is none, a row tells only what being ready for one costs."""
    taken = [each.checkpoints for each in outcome.of(workload.name, outcome.subject)]
    fewest = min(taken, default=0)
    return f"{fewest:,} checkpoint{'s'[: fewest != 1]} taken" if fewest else ""


def _verb_cells(comparison: Comparison) -> list[str]:
    """A verb takes a millisecond, and some of many repetitions always hit a disk that is busy:
    its change is judged by the middle half of them."""
    base, ours = comparison.columns.values()
    ratios = sorted(mine / theirs for mine, theirs in zip(ours, base, strict=True))
    quarter = len(ratios) // 4
    ratio = spread(ratios[quarter : len(ratios) - quarter])
    medians = (comparison_text(comparison, each) for each in comparison.columns)
    return [comparison.title, *medians, *_change_cells(ratio, change(ratio)), ""]


def _change_cells(ratio: Spread | None, word: str) -> list[str]:
    return [
        percent_text(ratio) if ratio else "",
        f"{ratio.low:.2f} to {ratio.high:.2f}" if ratio else "",
        f"[{_STYLES[word]}]{word}[/]" if word else "",
    ]
