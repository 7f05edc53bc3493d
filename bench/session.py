"""One run from beginning to end, and nothing left behind after it, whatever happens.

Owns the run's directory, the contestants' lives and the signals.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from bench import contestants, process, sources
from bench.child import ChildFailed
from bench.figures import Measure, Site
from bench.machine import file_system_of
from bench.outcome import Outcome
from bench.product import ProductFailed
from bench.programs import ProgramFailed
from bench.registry import Workload
from bench.runner import Run, run_workloads
from bench.scale import Scale

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Plan:
    scale: Scale
    chosen: Sequence[Workload]
    """The rows of the table."""
    needed: Sequence[Workload]
    """Those and the ones they build on."""
    figures: dict[str, Measure]
    work_dir: Path
    cache_dir: Path
    under_test: Path | None
    keep: bool
    tell: Callable[[str], None]


def run_plan(plan: Plan) -> tuple[Outcome, bool]:
    """The outcome, and whether the run got to its end; interrupted, it is what there is so far."""
    plan.work_dir.mkdir(parents=True, exist_ok=True)
    sweep(plan.work_dir, plan.tell)
    base = plan.work_dir / f"run-{os.getpid()}"
    baseline = contestants.PlainDirectory(file_system_of(plan.work_dir), base / "plain")
    rival = _rival(plan, base)
    outcome = Outcome((baseline.name, rival.name), tuple(plan.chosen))
    try:
        with _signals_interrupt(), _directories(plan, base), ExitStack() as stack:
            for each in (baseline, rival):
                stack.callback(each.stop)
                each.start()
            stack.callback(_ignore_signals)
            _fill(plan, outcome, [baseline, rival], base)
    except KeyboardInterrupt:
        plan.tell("interrupted")
        return outcome, False
    return outcome, True


def _rival(plan: Plan, base: Path) -> contestants.Contestant:
    if plan.under_test is None:
        return contestants.CkptfsMount(base)
    return contestants.PlainDirectory("under test", plan.under_test / base.name)


def _fill(
    plan: Plan, outcome: Outcome, everyone: Sequence[contestants.Contestant], base: Path
) -> None:
    if plan.needed:
        plan.tell(f"source tree of {plan.scale.tree_files:,} files")
        tar = sources.tree_tar(plan.cache_dir, plan.scale.tree_files)
        run_workloads(Run(everyone, plan.scale, tar, outcome, plan.tell), plan.needed)
    for rival in everyone:
        if isinstance(rival, contestants.CkptfsMount):
            _take_figures(plan, outcome, Site(rival, base, plan.scale))


def _take_figures(plan: Plan, outcome: Outcome, site: Site) -> None:
    for name, measure in plan.figures.items():
        plan.tell(f"figure: {name}")
        try:
            outcome.figures += measure(site)
        except (ProductFailed, ChildFailed, ProgramFailed, OSError, RuntimeError) as error:
            outcome.figure_failures[name] = str(error)


@contextmanager
def _directories(plan: Plan, base: Path) -> Iterator[None]:
    mine = [base] if plan.under_test is None else [base, plan.under_test / base.name]
    for each in mine:
        each.mkdir(parents=True)
    try:
        yield
    finally:
        for each in mine:
            if plan.keep:
                plan.tell(f"kept {each}")
            else:
                remove(each)


def sweep(work_dir: Path, tell: Callable[[str], None]) -> None:
    """Clear away what a run that was killed outright has left."""
    for old in work_dir.glob("run-*"):
        owner = old.name.removeprefix("run-")
        if owner.isdigit() and not process.is_alive(int(owner)):
            tell(f"clearing {old}, left by a run that was killed")
            contestants.kill_daemons(old, 0)
            for point in _mounts_below(old):
                contestants.detach(point)
            remove(old)


def remove(directory: Path) -> None:
    """Remove a run's directory, unless something is still mounted in it: that is not ours."""
    if not _mounts_below(directory):
        subprocess.run(["rm", "-rf", directory], check=False)


def _mounts_below(directory: Path) -> list[Path]:
    points = map(Path, contestants.mount_points())
    return [each for each in points if each.is_relative_to(directory)]


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    before = {each: signal.signal(each, _interrupt) for each in _ENDING}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    _ignore_signals()
    raise KeyboardInterrupt


def _ignore_signals() -> None:
    """From here on a run cleans up after itself, and that is not to be interrupted."""
    for each in _ENDING:
        signal.signal(each, signal.SIG_IGN)


def default_cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "ckptfs-bench"
