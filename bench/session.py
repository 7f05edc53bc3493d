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

from bench import contestants, growth, material, process
from bench.child import ChildFailed
from bench.figures import Measure, Site
from bench.fuse_rivals import FUSE_RIVALS, SLOW, SLOW_WITHOUT
from bench.kit import Kit, NotToBeHad
from bench.machine import file_system_of
from bench.outcome import Figure, Outcome
from bench.product import HERE, Installation, ProductFailed
from bench.programs import ProgramFailed
from bench.registry import Workload, without_missing
from bench.runner import Run, run_workloads
from bench.scale import SMALL, Scale
from bench.workloads import HEAVY_SCENES

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Plan:
    scale: Scale
    chosen: Sequence[Workload]
    """The rows of the table."""
    needed: Sequence[Workload]
    """Those and the ones they build on."""
    figures: dict[str, Measure]
    rivals: Sequence[str]
    """Who else takes part: other file systems, and tools that keep a history."""
    work_dir: Path
    kit: Kit
    under_test: Path | None
    base: Installation | None
    """Another ckptfs, which is the baseline then: another revision, or without checkpoints."""
    verbs: bool
    """Whether the verbs of the two revisions are compared too."""
    keep: bool
    tell: Callable[[str], None]


def run_plan(plan: Plan) -> tuple[Outcome, bool]:
    """The outcome, and whether the run got to its end; interrupted, it is what there is so far."""
    plan.work_dir.mkdir(parents=True, exist_ok=True)
    sweep(plan.work_dir, plan.tell)
    base = plan.work_dir / f"run-{os.getpid()}"
    pair = (_baseline(plan, base), _under_test(plan, base))
    outcome = Outcome(tuple(each.name for each in pair), tuple(plan.chosen))
    try:
        with _signals_interrupt(), _directories(plan, base), ExitStack() as stack:
            found, missing = _gather(plan)
            needed = _leave_out(plan, outcome, missing)
            for each in pair:
                stack.callback(each.stop)
                each.start()
            rivals = _start_rivals(plan, outcome, base, stack) if needed else []
            stack.callback(_ignore_signals)
            _run_rows(plan, outcome, found, needed, (pair, rivals))
            _take_figures(plan, outcome, pair[1], base)
            if plan.base is not None and plan.verbs:
                plan.tell("verbs")
                both = (plan.base, HERE)
                outcome.comparisons += growth.side_by_side(base, both, plan.scale.repeats)
    except KeyboardInterrupt:
        plan.tell("interrupted")
        return outcome, False
    return outcome, True


def _baseline(plan: Plan, base: Path) -> contestants.Contestant:
    if plan.base is not None:
        return contestants.CkptfsMount(base / "base", plan.base)
    return contestants.PlainDirectory(file_system_of(plan.work_dir), base / "plain")


def _under_test(plan: Plan, base: Path) -> contestants.Contestant:
    if plan.under_test is None:
        return contestants.CkptfsMount(base)
    return contestants.PlainDirectory("under test", plan.under_test / base.name)


def _gather(plan: Plan) -> tuple[dict[str, Path], dict[str, str]]:
    """Everything from outside, before anything is started."""
    plan.kit.provide(plan.rivals)
    return material.gather(
        (want for each in plan.needed for want in each.wants), plan.kit, plan.scale
    )


def _leave_out(plan: Plan, outcome: Outcome, missing: dict[str, str]) -> list[Workload]:
    """The workloads that can be run; the outcome tells of the others."""
    needed, skipped = without_missing(plan.needed, missing)
    chosen = {each.name for each in plan.chosen}
    outcome.workloads = tuple(each for each in needed if each.name in chosen)
    outcome.skipped |= {name: why for name, why in skipped.items() if name in chosen}
    return needed


def _start_rivals(
    plan: Plan, outcome: Outcome, base: Path, stack: ExitStack
) -> list[contestants.Contestant]:
    """The other file systems; one that cannot be had is left out with a word."""
    started = []
    for name in (each for each in plan.rivals if each in FUSE_RIVALS):
        try:
            rival = FUSE_RIVALS[name](plan.kit, base)
            stack.callback(rival.stop)
            rival.start()
        except NotToBeHad as error:
            plan.tell(f"without {name}: {error}")
            outcome.skipped[name] = str(error)
        else:
            started.append(rival)
    return started


def _run_rows(
    plan: Plan,
    outcome: Outcome,
    found: dict[str, Path],
    needed: Sequence[Workload],
    sides: tuple[Sequence[contestants.Contestant], Sequence[contestants.Contestant]],
) -> None:
    """All rows by everyone; then the small ones by the slow, with the baseline beside them."""
    pair, rivals = sides
    quick = [each for each in rivals if each.name not in SLOW]
    slow = [each for each in rivals if each.name in SLOW]
    outcome.contestants = tuple(each.name for each in (*pair, *quick))
    if needed:
        everyone = [*pair, *quick]
        run_workloads(Run(everyone, plan.scale, found, outcome, plan.tell, HEAVY_SCENES), needed)
    few = [each for each in needed if each.scene not in SLOW_WITHOUT]
    if slow and few:
        wanted = (want for each in few for want in each.wants)
        small, _ = material.gather(wanted, plan.kit, SMALL)
        everyone = [pair[0], *slow]
        outcome.aside = Outcome(tuple(each.name for each in everyone), outcome.workloads)
        run_workloads(Run(everyone, SMALL, small, outcome.aside, plan.tell), few)


def _take_figures(
    plan: Plan, outcome: Outcome, under_test: contestants.Contestant, base: Path
) -> None:
    if not isinstance(under_test, contestants.CkptfsMount):
        return
    site = Site(under_test, base, plan.scale, plan.kit, tuple(plan.rivals), outcome.skipped)
    for name, measure in plan.figures.items():
        plan.tell(f"figure: {name}")
        try:
            for found in measure(site):
                if isinstance(found, Figure):
                    outcome.figures.append(found)
                else:
                    outcome.comparisons.append(found)
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
