"""Which call changes which time, and that times are kept to the nanosecond."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.mounting import Workspace
from tests.support.syscalls import NOW, OMIT, Time, renameat2, utimensat
from tests.support.trees import Link, Same, Tree, plant
from tests.support.waiting import wait_until

#: The clock the kernel takes file times from, which moves in ticks. Python does not name it.
CLOCK_REALTIME_COARSE = 5

Times = dict[str, int]

CONTENT = "x" * 5000

#: What stands in the directory before each call of the table below.
STAGE: Tree = {
    "parent": {
        "file": CONTENT,
        "twin": Same("parent/file"),
        "other": "y",
        "link": Link("file"),
        "dir": {},
        "second": {},
    }
}

FILE = {"file.mtime", "file.ctime"}
PARENT = {"parent.mtime", "parent.ctime"}
SECOND = {"second.mtime", "second.ctime"}


def _write(path: Path, data: bytes = b"news", flags: int = os.O_WRONLY) -> None:
    fd = os.open(path, flags)
    os.write(fd, data)
    os.close(fd)


def _open_and_close(path: Path, flags: int) -> None:
    os.close(os.open(path, flags))


def _map_and_write(path: Path) -> None:
    with open(path, "r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        mapped[0:4] = b"news"
        mapped.flush()


def _copy_range(source: Path, target: Path) -> None:
    with open(source, "rb") as one, open(target, "r+b") as other:
        assert os.copy_file_range(one.fileno(), other.fileno(), 1)


def _quietly(call: Callable[..., object], *arguments: object) -> None:
    """A call that fails must leave every time alone."""
    try:
        call(*arguments)
    except OSError:
        return
    raise AssertionError("this should have failed")


#: A call on `parent`, and exactly the times it must change. The subjects are parent/file,
#: parent itself, and the directory parent/second.
TABLE: dict[str, tuple[Callable[[Path], object], set[str]]] = {
    "write": (lambda p: _write(p / "file"), FILE),
    "write nothing": (lambda p: _write(p / "file", b""), set()),
    "append": (lambda p: _write(p / "file", b"more", os.O_WRONLY | os.O_APPEND), FILE),
    "write through another name": (lambda p: _write(p / "twin"), FILE),
    "write through a symlink": (lambda p: _write(p / "link"), FILE),
    "write through a mapping": (lambda p: _map_and_write(p / "file"), FILE),
    "copy_file_range into it": (lambda p: _copy_range(p / "other", p / "file"), FILE),
    "read": (lambda p: (p / "file").read_bytes(), set()),
    "open to write and close": (lambda p: _open_and_close(p / "file", os.O_RDWR), set()),
    "open with O_CREAT": (lambda p: _open_and_close(p / "file", os.O_RDWR | os.O_CREAT), set()),
    "open with O_TRUNC": (lambda p: _open_and_close(p / "file", os.O_RDWR | os.O_TRUNC), FILE),
    "truncate down": (lambda p: os.truncate(p / "file", 10), FILE),
    "truncate up": (lambda p: os.truncate(p / "file", 10_000), FILE),
    "chmod": (lambda p: os.chmod(p / "file", 0o600), {"file.ctime"}),
    "chmod of the parent": (lambda p: os.chmod(p, 0o700), {"parent.ctime"}),
    "chown to oneself": (lambda p: os.chown(p / "file", os.getuid(), -1), {"file.ctime"}),
    "utime": (lambda p: os.utime(p / "file", ns=(5, 7)), FILE),
    "utime of the same": (
        lambda p: os.utime(p / "file", ns=(5, (p / "file").stat().st_mtime_ns)),
        {"file.ctime"},
    ),
    "touch": (lambda p: os.utime(p / "file"), FILE),
    "stat": (lambda p: os.stat(p / "file"), set()),
    "list": (lambda p: os.listdir(p), set()),
    "readlink": (lambda p: os.readlink(p / "link"), set()),
    "link": (lambda p: os.link(p / "file", p / "third"), {"file.ctime"} | PARENT),
    "link in another directory": (
        lambda p: os.link(p / "file", p / "second/third"),
        {"file.ctime"} | SECOND,
    ),
    "unlink of one name": (lambda p: os.unlink(p / "twin"), {"file.ctime"} | PARENT),
    "unlink of another file": (lambda p: os.unlink(p / "other"), PARENT),
    "create": (lambda p: _open_and_close(p / "new", os.O_CREAT | os.O_WRONLY), PARENT),
    "create in another directory": (
        lambda p: _open_and_close(p / "second/new", os.O_CREAT | os.O_WRONLY),
        SECOND,
    ),
    "mkdir": (lambda p: os.mkdir(p / "new"), PARENT),
    "rmdir": (lambda p: os.rmdir(p / "dir"), PARENT),
    "symlink": (lambda p: os.symlink("x", p / "new"), PARENT),
    "mkfifo": (lambda p: os.mkfifo(p / "new"), PARENT),
    "rename": (lambda p: os.rename(p / "file", p / "file"), set()),
    "rename of another": (lambda p: os.rename(p / "other", p / "new"), PARENT),
    "rename over": (lambda p: os.rename(p / "other", p / "link"), PARENT),
    "rename over one name of it": (
        lambda p: os.rename(p / "other", p / "twin"),
        {"file.ctime"} | PARENT,
    ),
    "rename over another name of itself": (lambda p: os.rename(p / "twin", p / "file"), set()),
    "rename of one of its names": (
        lambda p: os.rename(p / "twin", p / "new"),
        {"file.ctime"} | PARENT,
    ),
    "rename into another directory": (
        lambda p: os.rename(p / "other", p / "second/new"),
        PARENT | SECOND,
    ),
    "rename of a directory": (lambda p: os.rename(p / "dir", p / "new"), PARENT),
    "rename of the second directory": (
        lambda p: os.rename(p / "second", p / "new"),
        PARENT | {"second.ctime"},
    ),
    "exchange": (lambda p: renameat2(p / "twin", p / "other", 2), {"file.ctime"} | PARENT),
    "exchange between directories": (
        lambda p: renameat2(p / "other", p / "second", 2),
        PARENT | {"second.ctime"},
    ),
    "mkdir that fails": (lambda p: _quietly(os.mkdir, p / "dir"), set()),
    "unlink that fails": (lambda p: _quietly(os.unlink, p / "dir"), set()),
    "rmdir that fails": (lambda p: _quietly(os.rmdir, p), set()),
    "rename that fails": (lambda p: _quietly(os.rename, p / "file", p / "dir"), set()),
    "link that fails": (lambda p: _quietly(os.link, p / "file", p / "other"), set()),
}


def _times(held: dict[str, int]) -> Times:
    """Times by subject, from descriptors, so that a rename does not take the subject away."""
    times = {}
    for subject, fd in held.items():
        info = os.fstat(fd)
        times[f"{subject}.mtime"] = info.st_mtime_ns
        times[f"{subject}.ctime"] = info.st_ctime_ns
    return times


def _let_the_clock_move(directory: Path, beyond: int) -> None:
    """Wait until a change made now gets a time after `beyond`; kernels count in ticks."""
    probe = directory / "probe"

    def ticked() -> bool:
        os.utime(directory)
        probe.touch()
        info = probe.stat()
        kernel = time.clock_gettime_ns(CLOCK_REALTIME_COARSE)
        return min(info.st_ctime_ns, directory.stat().st_ctime_ns, kernel) > beyond

    wait_until(ticked, "the clock of the file system moves")


@pytest.mark.parametrize("call, expected", TABLE.values(), ids=TABLE.keys())
def test_each_call_changes_the_times_that_posix_names(
    mount: Path, call: Callable[[Path], object], expected: set[str]
) -> None:
    plant(mount, STAGE)
    (mount / "clock").mkdir()
    subjects = {"file": "parent/file", "parent": "parent", "second": "parent/second"}
    held = {name: os.open(mount / path, os.O_RDONLY) for name, path in subjects.items()}
    try:
        before = _times(held)
        _let_the_clock_move(mount / "clock", max(before.values()))
        call(mount / "parent")
        after = _times(held)
    finally:
        for fd in held.values():
            os.close(fd)
    assert {name for name in after if after[name] != before[name]} == expected
    set_by_hand = {"file.mtime"}
    assert all(after[name] > before[name] for name in expected - set_by_hand)


def test_a_new_file_has_the_present_as_all_its_times(mount: Path) -> None:
    before = _now_of(mount)
    for make in (Path.touch, Path.mkdir, os.mkfifo, lambda path: os.symlink("x", path)):
        make(mount / "new")
        info = os.lstat(mount / "new")
        after = _now_of(mount)
        for moment in (info.st_atime_ns, info.st_mtime_ns, info.st_ctime_ns):
            assert before <= moment <= after
        os.rename(mount / "new", mount / f"old{info.st_ino}")


def _now_of(mount: Path) -> int:
    """The time the file system would give a change made now."""
    os.utime(mount)
    return mount.stat().st_mtime_ns


def test_the_clock_is_the_machine_s(mount: Path) -> None:
    before = time.time_ns()
    (mount / "file").write_text("x")
    after = time.time_ns()
    tick = 20_000_000
    assert before - tick <= (mount / "file").stat().st_mtime_ns <= after + tick


def test_time_does_not_run_backwards(mount: Path) -> None:
    """make compares times of files changed by different calls; some are given by the kernel."""
    (mount / "written").touch()
    writer = os.open(mount / "written", os.O_WRONLY)
    latest, steps = 0, []
    try:
        for number in range(100):
            (mount / f"n{number}").touch()
            steps.append(("created", (mount / f"n{number}").stat().st_mtime_ns))
            os.write(writer, b"x")
            steps.append(("written", os.fstat(writer).st_mtime_ns))
            os.chmod(mount / f"n{number}", 0o600)
            steps.append(("changed", (mount / f"n{number}").stat().st_ctime_ns))
            os.utime(mount / "written")
            steps.append(("touched", os.fstat(writer).st_mtime_ns))
            os.utime(mount)
            steps.append(("touched a directory", mount.stat().st_mtime_ns))
            os.truncate(mount / "written", number)
            steps.append(("cut", os.fstat(writer).st_mtime_ns))
    finally:
        os.close(writer)
    for step, moment in steps:
        assert moment >= latest, f"{step} {latest - moment} ns before the change that preceded it"
        latest = moment


EXACT = {
    "nanoseconds": 1_234_567_890_123_456_789,
    "the last nanosecond of a second": 1_700_000_000_999_999_999,
    "1970": 0,
    "one nanosecond": 1,
    "1969": -1_000_000_000 + 7,
    "1901": -(2**31) * 10**9 + 10**9,
    "just before the 32-bit end": (2**31 - 1) * 10**9 + 5,
    "just after it": 2**31 * 10**9 + 5,
    "2106": 2**32 * 10**9 + 123,
    "2261": 9_200_000_000 * 10**9 + 999_999_999,
}


@pytest.mark.parametrize("moment", EXACT.values(), ids=EXACT.keys())
def test_a_time_is_kept_exactly(mount: Path, moment: int) -> None:
    plant(mount, {"file": "x", "dir": {}, "link": Link("nowhere")})
    for name in ("file", "dir", "link"):
        os.utime(mount / name, ns=(moment + 1, moment), follow_symlinks=False)
        info = os.lstat(mount / name)
        assert (info.st_atime_ns, info.st_mtime_ns) == (moment + 1, moment)


@pytest.mark.parametrize("year", [-3000, 1500, 2400, 9999])
def test_a_time_out_of_range_is_set_to_the_nearest_in_it(mount: Path, year: int) -> None:
    """As Linux does for a file system that cannot store it: no error, and no other century."""
    plant(mount, {"file": "x"})
    seconds = int((year - 1970) * 31_556_952)
    utimensat(mount / "file", OMIT, Time(seconds, 5))
    stored = (mount / "file").stat().st_mtime_ns
    assert stored == seconds * 10**9 + 5 or 0 < stored / (seconds * 10**9) < 1


def test_exact_times_survive_a_remount(own_mount: Workspace) -> None:
    for number, moment in enumerate(EXACT.values()):
        plant(own_mount.path, {f"f{number}": "x", f"d{number}": {}})
        os.utime(own_mount.path / f"f{number}", ns=(moment + 1, moment))
        os.utime(own_mount.path / f"d{number}", ns=(moment + 1, moment))
    own_mount.remount()
    for number, moment in enumerate(EXACT.values()):
        for name in (f"f{number}", f"d{number}"):
            info = os.stat(own_mount.path / name)
            assert (info.st_atime_ns, info.st_mtime_ns) == (moment + 1, moment)


def test_utimensat_sets_now_and_omits(mount: Path, served_by: str) -> None:
    plant(mount, {"file": "x"})
    file = mount / "file"
    os.utime(file, ns=(11, 22))
    utimensat(file, OMIT, Time(5, 6))
    assert (file.stat().st_atime_ns, file.stat().st_mtime_ns) == (11, 5_000_000_006)
    utimensat(file, Time(7, 8), OMIT)
    assert (file.stat().st_atime_ns, file.stat().st_mtime_ns) == (7_000_000_008, 5_000_000_006)
    # pyfuse3 does not say that one time alone is to be "now": it has the kernel's timer tick.
    before = _now_of(mount) - (20_000_000 if served_by == "portable" else 0)
    utimensat(file, OMIT, NOW)
    assert file.stat().st_atime_ns == 7_000_000_008
    assert file.stat().st_mtime_ns >= before
    utimensat(file, NOW, Time(9, 9))
    assert file.stat().st_atime_ns >= before
    assert file.stat().st_mtime_ns == 9_000_000_009


def test_omitting_both_changes_nothing(mount: Path) -> None:
    plant(mount, {"file": "x"})
    before = (mount / "file").stat()
    _let_the_clock_move(mount, before.st_ctime_ns)
    utimensat(mount / "file", OMIT, OMIT)
    assert (mount / "file").stat().st_ctime_ns == before.st_ctime_ns
    assert (mount / "file").stat().st_mtime_ns == before.st_mtime_ns


def test_a_time_set_while_the_file_is_open_and_written_stays(mount: Path) -> None:
    """What tar, cp -p and rsync do: write, set the time, close. The close must not touch it."""
    for number in range(20):
        with open(mount / "file", "wb", buffering=0) as file:
            file.write(b"x" * 10_000 * number)
            os.utime(file.fileno(), ns=(1_000_000_001, 2_000_000_002))
        assert (mount / "file").stat().st_mtime_ns == 2_000_000_002
    os.chmod(mount / "file", 0o600)
    assert (mount / "file").stat().st_mtime_ns == 2_000_000_002


def test_a_write_after_a_set_time_moves_it_again(mount: Path) -> None:
    with open(mount / "file", "wb", buffering=0) as file:
        os.utime(file.fileno(), ns=(1, 1))
        before = _now_of(mount)
        file.write(b"x")
        assert os.fstat(file.fileno()).st_mtime_ns >= before
    assert (mount / "file").stat().st_mtime_ns >= before


def test_reading_moves_the_access_time_or_leaves_it(mount: Path) -> None:
    """relatime, noatime or strict: the access time may stay, but never goes anywhere else."""
    plant(mount, {"file": CONTENT})
    os.utime(mount / "file", ns=(1_000, 2_000))
    before = _now_of(mount)
    (mount / "file").read_bytes()
    atime = (mount / "file").stat().st_atime_ns
    assert atime == 1_000 or atime >= before
