"""Take the samples: every workload by every contestant in turn, again and again.

Owns the order of things and the clock. Refuses to know what any workload does.
"""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench import process, quiet
from bench.child import ChildFailed, ChildTimedOut, in_child
from bench.contestants import CkptfsMount, Contestant
from bench.kit import NotToBeHad
from bench.outcome import Outcome, Sample
from bench.registry import WorkDirectory, Workload, by_scene
from bench.scale import Scale

_TIMEOUT_S = 900.0

Tell = Callable[[str], None]


@dataclass
class Run:
    contestants: Sequence[Contestant]
    scale: Scale
    material: Mapping[str, Path]
    outcome: Outcome
    tell: Tell
    heavy_scenes: frozenset[str] = frozenset()
    """Scenes that take long, and are repeated less."""
    broken: set[tuple[str, str]] = field(default_factory=set)
    """(workload, contestant) without a result in the scene that runs now."""
    lost: set[str] = field(default_factory=set)
    """Contestants that had to be started anew, and so lost the files of the scene that runs now."""
    gone: set[str] = field(default_factory=set)
    """Rivals that did not even start anew: the run goes on without them."""


def run_workloads(run: Run, workloads: Sequence[Workload]) -> None:
    """Scene after scene, then all of it again: a slow minute then hits one repetition of each."""
    scenes = by_scene(workloads)
    for repetition in range(run.scale.repeats):
        for scene, members in scenes.items():
            if scene in run.heavy_scenes and repetition >= run.scale.heavy_repeats:
                continue
            run.tell(f"repetition {repetition + 1} of {run.scale.repeats}: {scene}")
            _run_scene(run, f"{scene}-{repetition}", members, repetition)


def taking_part(run: Run, repetition: int) -> list[Contestant]:
    """Rivals beyond the first two sit out the later repetitions: they are there for the scale of
    things, and some are slow."""
    now = run.contestants[: None if repetition < run.scale.rival_repeats else 2]
    return [each for each in now if each.name not in run.gone]


def _run_scene(run: Run, name: str, members: Sequence[Workload], repetition: int) -> None:
    run.broken.clear()
    run.lost.clear()
    everyone = taking_part(run, repetition)
    for each in everyone:
        _in_place(run, each, partial(_open_scene, each.root / name))
    # Who goes first changes from one repetition to the next.
    order = everyone if repetition % 2 == 0 else list(reversed(everyone))
    for workload in members:
        for contestant in order:
            place = WorkDirectory(contestant.root / name, run.scale, repetition, run.material)
            _take_sample(run, workload, contestant, place)
    for each in everyone:
        if each.name not in run.lost:
            _in_place(run, each, partial(shutil.rmtree, each.root / name))


def _open_scene(root: Path) -> None:
    """A new directory, and a few files so that its surroundings are in the caches.

    The scene before ended with cold caches, and the first row of this one is not a cold one.
    """
    for number in range(256):
        path = root / "first" / f"{number % 16}" / f"{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d" % number * 300)


def _take_sample(
    run: Run, workload: Workload, contestant: Contestant, place: WorkDirectory
) -> None:
    key = (workload.name, contestant.name)
    obstacle = _obstacle(run, workload, contestant)
    if obstacle:
        run.broken.add(key)
        run.outcome.failures.setdefault(key, obstacle)
        return
    try:
        sample = in_child(lambda: measure(workload, contestant, place, run.contestants), _TIMEOUT_S)
    except ChildFailed as error:
        run.broken.add(key)
        run.outcome.failures[key] = str(error)
        run.tell(f"{workload.name} on {contestant.name} failed: {error}")
        _heal(run, contestant, isinstance(error, ChildTimedOut))
    else:
        run.outcome.add(workload.name, contestant.name, sample)


def _obstacle(run: Run, workload: Workload, contestant: Contestant) -> str:
    if contestant.name in run.lost:
        return "not run: an earlier workload of the scene brought it down"
    missing = [each for each in workload.needs if (each, contestant.name) in run.broken]
    return f"not run: it needs {missing[0]}" if missing else ""


def measure(
    workload: Workload, contestant: Contestant, place: WorkDirectory, everyone: Sequence[Contestant]
) -> Sample:
    steps = workload.steps(place)
    next(steps)
    # Asked before the daemon comes to rest: an answer takes it some work.
    newest_before = _newest_checkpoint(contestant)
    notes = quiet.settle(everyone)
    if workload.cold:
        notes += quiet.evict(everyone)
    cpu_before = _daemon_cpu_ns(contestant)
    start = time.monotonic_ns()
    for _ in steps:
        raise RuntimeError(f"workload {workload.name} has more than one yield")
    elapsed = time.monotonic_ns() - start
    cpu = _daemon_cpu_ns(contestant) - cpu_before
    own = 0 if contestant.pid is None else process.memory(contestant.pid).own
    taken = _newest_checkpoint(contestant) - newest_before
    return Sample(place.repetition, elapsed / 1e9, cpu / 1e9, own, tuple(notes), taken)


def _newest_checkpoint(contestant: Contestant) -> int:
    return contestant.newest_checkpoint() if isinstance(contestant, CkptfsMount) else 0


def _daemon_cpu_ns(contestant: Contestant) -> int:
    return 0 if contestant.pid is None else process.cpu_ns(contestant.pid)


def _in_place(run: Run, contestant: Contestant, action: Callable[[], object]) -> None:
    """Something around the measurements; if even that fails, the contestant needs a new start."""
    try:
        in_child(action, _TIMEOUT_S)
    except ChildFailed as error:
        run.tell(f"{contestant.name}: {error}")
        _heal(run, contestant, isinstance(error, ChildTimedOut))


def _heal(run: Run, contestant: Contestant, hangs: bool) -> None:
    """Start a dead or hanging contestant anew. Its scene is lost; the next one may work."""
    if not hangs and contestant.is_healthy():
        return
    run.tell(f"{contestant.name} is started anew")
    run.lost.add(contestant.name)
    contestant.stop()
    try:
        contestant.start()
    except NotToBeHad as error:
        run.gone.add(contestant.name)
        run.outcome.skipped[contestant.name] = str(error)
