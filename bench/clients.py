"""Several clients at once, and clients on a machine with more to do than it has CPUs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench import creator
from bench.child import in_child
from bench.contestants import make_spread, mounted
from bench.figures import Found, Site, figure
from bench.fuse_rivals import floor
from bench.history import TIMEOUT_S
from bench.kit import NotToBeHad
from bench.outcome import FLOOR, Comparison, Figure
from bench.prober import percentile, probing
from bench.programs import run

_OPTIONS = ("--no-write-back", "--auto", "off")
_MS = 1e3

#: Creates a second, by number of clients, of each file system.
Rates = dict[str, dict[int, list[float]]]


@contextmanager
def _places(site: Site, base: Path) -> Iterator[dict[str, Path]]:
    """A directory on the disk, on ckptfs and, where it can be compiled, on the floor."""
    workspace, plain = base / "workspace", base / "plain"
    workspace.mkdir(parents=True)
    make_spread(plain)
    with ExitStack() as stack:
        stack.callback(run, "rm", "-rf", base)
        stack.enter_context(mounted(workspace, base / "store", *_OPTIONS))
        places = {"disk": plain, "ckptfs": workspace}
        try:
            rival = floor(site.kit, base)
            rival.start()
            stack.callback(rival.stop)
            places[FLOOR] = rival.root
        except NotToBeHad as error:
            site.skipped[FLOOR] = str(error)
        yield places


# -- several at once -------------------------------------------------------------------------------

_CLIENTS = (1, 2, 4, 8)
#: What so many clients get at least, as a multiple of one.
_CLIENT_MARKS = {2: 1.0, 8: 2.0}


@figure("clients")
def clients(site: Site) -> Found:
    """Creates a second, all clients together."""
    rates: Rates = {}
    with _places(site, site.base / "clients") as places:
        for repetition in range(site.scale.repeats):
            for count in _CLIENTS:
                for name, root in places.items():
                    place = root / f"{repetition}-{count}"
                    creates = partial(_together, place, count, site.scale.client_creates)
                    found = in_child(creates, TIMEOUT_S)
                    rates.setdefault(name, {}).setdefault(count, []).append(found)
    return list(_clients_found(rates))


def _together(root: Path, clients: int, creates: int) -> float:
    """Creates a second of so many processes, each in a directory of its own."""
    for number in range(clients):
        (root / f"{number}").mkdir(parents=True)
    os.sync()
    begun = time.monotonic()
    children = [_forked(partial(_create, root / f"{n}", creates)) for n in range(clients)]
    for child in children:
        _wait_for(child)
    return clients * creates / (time.monotonic() - begun)


def _forked(work: Callable[[], object]) -> int:
    child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def _wait_for(child: int) -> None:
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError("a client failed")


def _create(root: Path, count: int) -> None:
    for number in range(count):
        os.close(os.open(root / f"{number}", os.O_CREAT | os.O_WRONLY, 0o644))


def _clients_found(rates: Rates) -> Iterator[Figure | Comparison]:
    for count in _CLIENTS:
        columns = {name: by_count[count] for name, by_count in rates.items()}
        title = f"creates by {count} client{'s' if count > 1 else ''}"
        yield Comparison(f"clients-{count}", "Clients at once", title, "a second", columns)
    for count, mark in _CLIENT_MARKS.items():
        as_by_one = {name: _as_by_one(by_count, count) for name, by_count in rates.items()}
        others = [f"{name} {as_by_one[name]:.2f}" for name in rates if name != "ckptfs"]
        yield Figure(
            f"clients-{count}",
            f"creates by {count} clients, as by one",
            as_by_one["ckptfs"],
            "times",
            mark,
            mark_is_minimum=True,
            note=", ".join(others),
        )


def _as_by_one(by_count: dict[int, list[float]], count: int) -> float:
    ratios = [many / one for many, one in zip(by_count[count], by_count[1], strict=True)]
    return _median(ratios)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


# -- a crowded machine -----------------------------------------------------------------------------

#: Other processes that always want to run.
_CROWD = 20
_CROWDED_S = 1.0
_CROWDED_CLIENTS = (1, 4)


@figure("clients-crowded")
def clients_crowded(site: Site) -> Found:
    """Creates a second beside twenty processes that only use CPU, each in a session of its own."""
    rates: Rates = {}
    with _places(site, site.base / "crowded") as places, _crowd(_CROWD):
        for repetition in range(site.scale.repeats):
            for count in _CROWDED_CLIENTS:
                for name, root in places.items():
                    place = root / f"{repetition}-{count}"
                    found = in_child(partial(_for_a_while, place, count, _CROWDED_S), TIMEOUT_S)
                    rates.setdefault(name, {}).setdefault(count, []).append(found)
    return list(_crowded_found(rates))


@contextmanager
def _crowd(count: int) -> Iterator[None]:
    command = ["sh", "-c", "while :; do :; done"]
    loops = [subprocess.Popen(command, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for each in loops:
            each.kill()
            each.wait()


def _for_a_while(root: Path, clients: int, seconds: float) -> float:
    """Creates a second of so many processes, each in a directory of its own."""
    places = [root / f"{number}" for number in range(clients)]
    for place in places:
        place.mkdir(parents=True)
    program = [sys.executable, "-S", str(creator.__file__)]
    running = [
        subprocess.Popen([*program, str(place), f"{seconds}"], stdout=subprocess.PIPE)
        for place in places
    ]
    return sum(float(each.communicate()[0]) for each in running)


def _crowded_found(rates: Rates) -> Iterator[Figure | Comparison]:
    group = f"Clients beside {_CROWD} busy processes"
    for count in _CROWDED_CLIENTS:
        columns = {name: by_count[count] for name, by_count in rates.items()}
        title = f"creates by {count} client{'s' if count > 1 else ''}"
        yield Comparison(f"crowded-{count}", group, title, "a second", columns)
        ratios = zip(rates["ckptfs"][count], rates["disk"][count], strict=True)
        share = _median([ours / theirs for ours, theirs in ratios])
        yield Figure(f"crowded-{count}", f"{title} beside them, as on the disk", share, "times")


# -- beside one that writes ------------------------------------------------------------------------

_LS_MARK_MS = 20.0
_COMMITS_MARK_MS = 10.0
#: What is listed, beside the file that grows.
_LISTED = 200
_BESIDE_S = 5.0


@figure("clients-beside")
def clients_beside(site: Site) -> Found:
    """`ls` beside a program that writes a gigabyte, and a prober beside one that creates."""
    base = site.base / "beside"
    workspace = base / "workspace"
    workspace.mkdir(parents=True)
    with mounted(workspace, base / "store", *_OPTIONS):
        listings = in_child(partial(_list_beside, workspace / "written"), TIMEOUT_S)
        waits = in_child(partial(_probe_beside, workspace), TIMEOUT_S)
    run("rm", "-rf", base)
    return [
        Figure(
            "ls-beside-writer",
            "slowest 1 % of `ls -l` beside a writer of 1 GB",
            percentile(listings, 0.99) * _MS,
            "ms",
            _LS_MARK_MS,
            note=f"{len(listings)} of them, median {percentile(listings, 0.5) * _MS:.1f} ms",
        ),
        Figure(
            "waits-beside-commits",
            "slowest 1 % of calls beside one that creates, with its commits",
            percentile(waits, 0.99) * _MS,
            "ms",
            _COMMITS_MARK_MS,
            note=f"{len(waits)} of them, fsync among them; longest {max(waits) * _MS:.1f} ms",
        ),
    ]


def _list_beside(root: Path) -> list[float]:
    """Seconds that each `ls -l` took while a gigabyte was written into its directory."""
    root.mkdir()
    _create(root, _LISTED)
    command = ["dd", "if=/dev/zero", f"of={root / 'large'}", "bs=1M", "count=1024", "status=none"]
    found: list[float] = []
    with subprocess.Popen(command) as writer:
        while writer.poll() is None:
            begun = time.perf_counter()
            run("ls", "-l", root)
            found.append(time.perf_counter() - begun)
    return found


def _probe_beside(workspace: Path) -> list[float]:
    place = workspace / "created"
    place.mkdir()
    with probing(workspace / "probed") as waits:
        creating = _forked(partial(creator.create_for, str(place), _BESIDE_S))
        try:
            _wait_for(creating)
        except BaseException:
            os.kill(creating, signal.SIGKILL)
            raise
    return waits.seconds
