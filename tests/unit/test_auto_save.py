"""What processes say to the daemon by the control files, without a kernel."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs.config import Workspace
from ckptfs.control.events import Hub
from ckptfs.daemon.autosave import AutoSave
from ckptfs.daemon.housekeeping import Housekeeping
from ckptfs.daemon.lines import Lines, Shared
from ckptfs.daemon.slices import Slices
from ckptfs.fs import Filesystem
from ckptfs.fuse import MountOptions
from ckptfs.history import Cause, checkpoints, seal, settings
from ckptfs.history.auto import parse_policy
from ckptfs.history.steps import read_argv
from ckptfs.model import ROOT_INO
from ckptfs.service import Service
from tests.direct import new_filesystem, put
from tests.support.waiting import wait_until


@pytest.fixture
def fs(tmp_path: Path) -> Iterator[Filesystem]:
    with new_filesystem(tmp_path / "store") as found:
        yield found


@pytest.fixture
def auto(fs: Filesystem, tmp_path: Path) -> AutoSave:
    return AutoSave(Service(fs), parse_policy("command"), Hub(tmp_path))


def test_a_mark_by_a_process_that_cannot_be_seen_is_kept(fs: Filesystem, auto: AutoSave) -> None:
    put(fs, b"file", b"x")
    number = auto.mark(0, "from another namespace")
    (found,) = checkpoints(fs.store)
    assert (found.id, found.message, found.cause) == (number, "from another namespace", Cause())


def test_a_mark_that_is_taken_back(fs: Filesystem, auto: AutoSave) -> None:
    auto.mark(os.getpid(), "one")
    auto.take_back(auto.mark(os.getpid(), "tw"))
    auto.mark(os.getpid(), "two")
    assert [found.message for found in checkpoints(fs.store)] == ["one", "two"]
    auto.take_back(1)  # it is gone already


def test_what_a_shell_says_that_it_does_names_its_builtins_and_what_it_starts(
    fs: Filesystem, auto: AutoSave
) -> None:
    with subprocess.Popen(["bash"], stdin=subprocess.PIPE) as shell:
        assert shell.stdin is not None
        wait_until(lambda: read_argv(shell.pid) == [b"bash"], "it is a shell")
        for text in ("export TOKEN=hunter2; make", "rm -rf build"):
            put(fs, b"file", text.encode())
            auto.name_step(shell.pid, text)
            auto(shell.pid, None)
        shell.stdin.write(b"sleep 60 &\n")
        shell.stdin.flush()
        children = Path(f"/proc/{shell.pid}/task/{shell.pid}/children")
        wait_until(lambda: children.read_text().split(), "it has a child")
        put(fs, b"file", b"again")
        auto(int(children.read_text()), None)
        os.kill(int(children.read_text()), signal.SIGKILL)
        shell.kill()
    messages = [found.message for found in checkpoints(fs.store)]
    assert messages == ["before: export TOKEN=***; make", "before: rm -rf build"]


# -- a full disk, and clocks -----------------------------------------------------------------------


def moment(fs: Filesystem, lost: str) -> int:
    return seal(fs, "moment", "", fs.clock(), metadata={"lost": lost}).id


def lose(fs: Filesystem, name: bytes, size: int) -> int:
    """A file that only a moment has; the moment's number."""
    put(fs, name, os.urandom(size))
    found = moment(fs, name.decode())
    fs.unlink(fs.head, ROOT_INO, name)
    return found


def test_on_a_full_disk_the_oldest_moments_make_room(fs: Filesystem, auto: AutoSave) -> None:
    first, second = lose(fs, b"one", 20 << 20), lose(fs, b"two", 20 << 20)
    assert auto.make_room(0)
    assert [found.id for found in checkpoints(fs.store)] == [second]
    assert auto.make_room(0) and not auto.make_room(0)
    assert first < second


def test_a_moment_that_holds_nothing_does_not_go_for_room(fs: Filesystem, auto: AutoSave) -> None:
    put(fs, b"file", b"still there" * 1000)
    moment(fs, "another")
    assert not auto.make_room(0) and len(checkpoints(fs.store)) == 1


def test_what_the_file_was_that_is_written_to_stays_on_a_full_disk(
    fs: Filesystem, auto: AutoSave
) -> None:
    other = lose(fs, b"other", 1 << 20)
    ino = put(fs, b"file", os.urandom(1 << 20))
    original = moment(fs, "file")
    fs.write(fs.head, ino, 0, os.urandom(1 << 20))
    assert auto.make_room(ino) and not auto.make_room(ino)
    assert [found.id for found in checkpoints(fs.store)] == [original] and other < original


def housekeeping_of(fs: Filesystem) -> Housekeeping:
    workspace, slices = Workspace(fs.store.path, fs.store.path), Slices()
    shared = Shared(workspace, MountOptions(), parse_policy("command"), slices)
    return Housekeeping(Service(fs), Lines(Service(fs), shared), slices)


def test_a_clock_that_is_set_forward_makes_nothing_old(fs: Filesystem) -> None:
    now = [1_700_000_000 * 10**9]
    fs.clock = lambda: now[0]
    housekeeping = housekeeping_of(fs)
    put(fs, b"file", b"x")
    moment(fs, "file")
    now[0] += 40 * 86_400 * 10**9
    assert housekeeping._service.expire(housekeeping._now_ns()).gone == []
    assert housekeeping._service.expire().gone != []


def test_a_clock_that_was_set_forward_before_the_mount_has_an_hour_to_be_set_right(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_700_000_000 * 10**9]
    fs.clock = lambda: now[0]
    put(fs, b"file", b"x")
    moment(fs, "file")
    now[0] += 40 * 86_400 * 10**9
    housekeeping = housekeeping_of(fs)
    assert housekeeping._service.expire(housekeeping._now_ns()).gone == []
    housekeeping._began_uptime_ns -= 2 * 3600 * 10**9
    assert housekeeping._service.expire(housekeeping._now_ns()).gone != []


def test_with_retention_off_nothing_goes_on_a_full_disk(
    fs: Filesystem, auto: AutoSave, caplog: pytest.LogCaptureFixture
) -> None:
    settings.store(fs.store.path / settings.FILE, "retention.automatic", "off")
    lose(fs, b"one", 20 << 20)
    assert not auto.make_room(0) and not auto.make_room(0)
    assert len(checkpoints(fs.store)) == 1
    (told,) = caplog.records
    assert "writes are refused" in told.message and "ckptfs delete" in told.message


def test_on_a_full_disk_what_is_light_goes_last(fs: Filesystem, auto: AutoSave) -> None:
    light = [lose(fs, b"small%d" % number, 3_000) for number in range(5)]
    heavy = lose(fs, b"large", 1 << 20)
    assert auto.make_room(0)
    assert [found.id for found in checkpoints(fs.store)] == light
    assert auto.make_room(0) and not checkpoints(fs.store)
    assert heavy > light[-1]


@pytest.mark.parametrize(
    ("keep_all", "left"), [("1h", {5, 0.1, 0.2}), ("", {5, 0.1})], ids=["chosen", "default"]
)
def test_on_a_full_disk_checkpoints_go_after_the_moments(
    fs: Filesystem, auto: AutoSave, keep_all: str, left: set[float]
) -> None:
    """Not the first of all, not the newest before a deletion, nor those that are to stay."""
    if keep_all:
        settings.store(fs.store.path / settings.FILE, "retention.keep_all", keep_all)
    began_ns, ages = fs.clock(), {}
    for number, age in enumerate((5, 4, 3, 0.2, 0.1)):
        put(fs, b"file%d" % number, os.urandom(20 << 20))
        saved = seal(fs, "auto", "", began_ns - int(age * 3600 * 10**9))
        fs.unlink(fs.head, ROOT_INO, b"file%d" % number)
        ages[saved.id] = age
    lost = lose(fs, b"moment", 20 << 20)
    seal(fs, "auto", "", began_ns)
    assert auto.make_room(0) and lost not in {item.id for item in checkpoints(fs.store)}
    while auto.make_room(0):
        pass
    assert {ages[item.id] for item in checkpoints(fs.store) if item.id in ages} == left


def test_what_an_older_checkpoint_keeps_does_not_go_for_room(
    fs: Filesystem, auto: AutoSave
) -> None:
    """It would give nothing: the bytes stay with the one that was saved by hand."""
    put(fs, b"file", os.urandom(1 << 20))
    seal(fs, "manual", "", fs.clock())
    put(fs, b"other", b"x")
    moment(fs, "file")
    fs.unlink(fs.head, ROOT_INO, b"file")
    assert not auto.make_room(0)
    assert len(checkpoints(fs.store)) == 2
