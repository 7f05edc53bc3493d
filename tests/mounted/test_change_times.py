"""Every change that somebody can look at has a time of its own, and later changes have later times.
Watchers that poll, make and rsync go by that. Through both servers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from pathlib import Path

import pytest

from tests.crash.clock import Clock
from tests.support.mounting import Workspace, scratch, workspace
from tests.support.trees import plant

pytestmark = pytest.mark.needs_mount

#: How often something is changed and looked at. By a clock that ticks every few milliseconds nearly
#: all of them would look alike.
ROUNDS = 100

_numbers = count()


@pytest.fixture(scope="module", params=["on", "off"])
def space(request: pytest.FixtureRequest) -> Iterator[Workspace]:
    """Through the compiled server, and through the portable path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CKPTFS_SERVER", request.param)
        with workspace("--no-write-back", "--auto", "off") as made:
            yield made


@pytest.fixture
def place(space: Workspace) -> Path:
    path = space.path / f"t{next(_numbers)}"
    path.mkdir()
    plant(path, {"file": "content", "moved": "x", "dir": {}})
    return path


def _write(path: Path, flags: int = os.O_WRONLY) -> None:
    fd = os.open(path, flags)
    os.write(fd, b"x")
    os.close(fd)


def _move(place: Path, number: int) -> None:
    names = (place / "moved", place / "away")
    os.rename(names[number % 2], names[1 - number % 2])


#: A change, of which there can be any number, and what it gives a new time to.
CHANGES: dict[str, tuple[Callable[[Path, int], object], str]] = {
    "write": (lambda p, n: _write(p / "file"), "file"),
    "append": (lambda p, n: _write(p / "file", os.O_WRONLY | os.O_APPEND), "file"),
    "truncate": (lambda p, n: os.truncate(p / "file", n), "file"),
    "chmod": (lambda p, n: os.chmod(p / "file", 0o600 + n % 8), "file"),
    "touch": (lambda p, n: os.utime(p / "file"), "file"),
    "link": (lambda p, n: os.link(p / "file", p / f"dir/{n}"), "file"),
    "create": (lambda p, n: (p / f"dir/{n}").touch(), "dir"),
    "mkdir": (lambda p, n: (p / f"dir/{n}").mkdir(), "dir"),
    "symlink": (lambda p, n: (p / f"dir/{n}").symlink_to("x"), "dir"),
    "rename": (_move, ""),
    "rename of the file": (_move, "away"),
}


@pytest.mark.parametrize("change, subject", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_after_a_look_has_a_later_time(
    place: Path, change: Callable[[Path, int], object], subject: str
) -> None:
    seen = []
    for number in range(ROUNDS):
        change(place, number)
        found = place / subject
        seen.append((found if found.exists() else place / "moved").stat().st_ctime_ns)
    assert all(before < after for before, after in pairwise(seen))


def test_a_time_lies_between_the_beginning_and_the_end_of_the_call(place: Path) -> None:
    """Also if the change waits in memory: a file that is made, and writes that are put together."""
    with (place / "log").open("wb", buffering=0) as log:
        for number in range(ROUNDS):
            before = time.time_ns()
            (place / f"made-{number}").write_text("x")
            between = time.time_ns()
            log.write(b"line\n")
            log.write(b"line\n")
            after = time.time_ns()
            time.sleep(0.0005)
            assert before <= (place / f"made-{number}").stat().st_mtime_ns <= between
            assert between <= os.fstat(log.fileno()).st_mtime_ns <= after


def test_later_changes_of_other_files_have_later_times(place: Path) -> None:
    """Of files that are looked at only when all is done, whichever way each of them went."""
    plant(place, {f"old-{number}": "x" for number in range(ROUNDS)})
    made: list[tuple[Path, str]] = []
    for number in range(ROUNDS):
        (place / f"new-{number}").write_text("x")
        made.append((place / f"new-{number}", "st_mtime_ns"))
        _write(place / f"old-{number}", os.O_WRONLY | os.O_APPEND)
        made.append((place / f"old-{number}", "st_mtime_ns"))
        (place / f"dir/{number}").mkdir()
        made.append((place / f"dir/{number}", "st_mtime_ns"))
        os.link(place / f"old-{number}", place / f"twin-{number}")
        made.append((place / f"twin-{number}", "st_ctime_ns"))
    times = [getattr(path.stat(), field) for path, field in made]
    assert times == sorted(times)


#: Polls as watchers do that have no better way: by size and times, never by content.
_WATCHER = r"""
import os, sys
def look():
    found = os.stat(sys.argv[1])
    return found.st_size, found.st_mtime_ns
seen = look()
print("ready", flush=True)
for line in sys.stdin:
    now = look()
    print("changed" if now != seen else "same", flush=True)
    seen = now
"""


def test_a_polling_watcher_misses_nothing(place: Path) -> None:
    file = place / "file"
    with subprocess.Popen(
        [sys.executable, "-c", _WATCHER, file],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as watcher:
        assert watcher.stdin is not None and watcher.stdout is not None
        assert watcher.stdout.readline() == "ready\n"
        told = []
        for number in range(ROUNDS):
            file.write_text(f"{number:07}")
            watcher.stdin.write("look\n")
            watcher.stdin.flush()
            told.append(watcher.stdout.readline().strip())
        watcher.stdin.close()
    assert told == ["changed"] * ROUNDS


@pytest.mark.needs_program("make")
def test_make_builds_again_after_every_edit(place: Path) -> None:
    (place / "Makefile").write_text("out: source\n\t@cat source > out\n")
    for number in range(20):
        (place / "source").write_text(f"edit {number}")
        subprocess.run(["make", "-s", "-C", place], check=True)
        assert (place / "out").read_text() == f"edit {number}"
        (place / "source").write_text(f"once more {number}")
        subprocess.run(["make", "-s", "-C", place], check=True)
        assert (place / "out").read_text() == f"once more {number}"


@pytest.mark.needs_program("rsync")
def test_rsync_copies_what_changed_under_the_same_size(place: Path) -> None:
    """By nanoseconds: --modify-window=-1. What it copied it does not copy again."""
    command = ["rsync", "-a", "-i", "--modify-window=-1", f"{place}/dir/", f"{place}/copy/"]
    for number in range(8):
        (place / "dir/file").write_text(f"{number}")
        subprocess.run(command, check=True, capture_output=True)
        assert (place / "copy/file").read_text() == f"{number}"
        again = subprocess.run(command, check=True, capture_output=True, text=True)
        assert again.stdout == ""
    assert (place / "copy/file").stat().st_mtime_ns == (place / "dir/file").stat().st_mtime_ns


def test_a_time_that_is_kept_is_not_taken_for_the_present(place: Path) -> None:
    """As cp -p does it with a file that was changed a moment ago."""
    for number in range(ROUNDS):
        (place / "file").write_text(f"{number}")
        kept = (place / "file").stat()
        (place / "copy").write_text(f"{number}")
        os.utime(place / "copy", ns=(kept.st_atime_ns, kept.st_mtime_ns))
        assert (place / "copy").stat().st_mtime_ns == kept.st_mtime_ns


@pytest.mark.parametrize("server", ["on", "off"])
def test_a_clock_that_is_set_back_is_followed(
    server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No time is held up until the clock comes there again: later changes would all look alike."""
    monkeypatch.setenv("CKPTFS_SERVER", server)
    clock = Clock(tmp_path)
    with scratch() as base:
        work = Workspace(base, "--no-write-back", "--auto", "off")
        work.env.update(clock.env)
        work.mount()
        try:
            _write(work.path / "file", os.O_WRONLY | os.O_CREAT)
            clock.set(-3600)
            before = time.time_ns()
            seen = []
            for _ in range(20):
                _write(work.path / "file")
                seen.append((work.path / "file").stat().st_mtime_ns + 3600 * 10**9)
            assert all(one < two for one, two in pairwise([before, *seen, time.time_ns()]))
        finally:
            work.umount()
