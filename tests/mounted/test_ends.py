"""However a mount ends: a program meets an error, or a directory that is current, never an old one.

Every workspace here has a file `state` that says "old" in the lower directory and "new" since the
mount, so whoever reads "old" has fallen through.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckptfs import config
from ckptfs.control.client import Client
from ckptfs.errors import (
    DaemonGone,
    StoreGone,
    StoreInUse,
    StoreMissing,
    WorkspaceUnknown,
    WriteBackIncomplete,
)
from tests.support.errnos import fails
from tests.support.faults import Faults
from tests.support.mounting import MEMORY, Workspace, is_mounted, scratch, succeed
from tests.support.trees import fsync
from tests.support.waiting import wait_for_exit, wait_until

pytestmark = pytest.mark.needs_mount

SERVER = pytest.mark.parametrize("server", ["on", "off"])


class Failing(Workspace):
    """A workspace whose daemon may fail, and says so in its log."""

    def quiet(self) -> None:
        pass

    def finish(self) -> None:
        if self.pid is None and is_mounted(self.path):
            self.cli("umount", "--force", self.path)
        super().finish()

    @property
    def state(self) -> Path:
        return self.path / "state"

    def is_dead(self) -> bool:
        try:
            os.statvfs(self.path)
        except OSError as error:
            return error.errno == errno.ENOTCONN
        return False

    def failed(self) -> None:
        """Wait until the daemon has failed, leaving a mountpoint that nobody looks through."""
        wait_until(self.is_dead, "the mountpoint is dead")
        assert self.pid is not None
        wait_for_exit(self.pid)
        self.pid = None

    def died(self) -> dict[str, object]:
        died = self.status()["died"]
        assert isinstance(died, dict)
        return died


@pytest.fixture
def place() -> Iterator[Failing]:
    with scratch(MEMORY) as base:
        made = Failing(base)
        made.path.mkdir()
        made.state.write_text("old")
        try:
            yield made
        finally:
            made.finish()


@pytest.fixture
def faults(place: Failing) -> Iterator[Faults]:
    made = Faults(place.path.parent)
    place.env.update(made.env)
    yield made
    made.end()


def begin(place: Failing, **env: str) -> None:
    place.env.update(env)
    place.mount()
    place.state.write_text("new")
    fsync(place.state)


def commit(place: Failing) -> None:
    """Have nothing left that waits for a commit."""
    with Client(config.Workspace(place.path, place.store)) as client:
        client.call("sync")


def sabotage(place: Failing, code: str) -> None:
    """Have the daemon's Python load this at its start."""
    (place.path.parent / "sabotage").mkdir()
    (place.path.parent / "sabotage/sitecustomize.py").write_text(code)
    ways = [str(place.path.parent / "sabotage"), *filter(None, [os.environ.get("PYTHONPATH")])]
    place.env["PYTHONPATH"] = ":".join(ways)


def _read_on(path: str, found: object, over: object) -> None:
    while not over.is_set():  # type: ignore[attr-defined]
        try:
            with open(path) as file:
                text = file.read()
        except OSError as error:
            text = errno.errorcode[error.errno or 0]
        found[text] = found.get(text, 0) + 1  # type: ignore[index, attr-defined]
        time.sleep(0.002)


@contextmanager
def reader(place: Failing) -> Iterator[dict[str, int]]:
    """Somebody who reads `state` all the time; what it met is known at the end."""
    with multiprocessing.Manager() as manager:
        found, over = manager.dict(), manager.Event()
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_read_on, args=(str(place.state), found, over))
        process.start()
        met: dict[str, int] = {}
        try:
            wait_until(lambda: found.get("new"), "it reads what is there")
            yield met
            last = sum(found.values())
            wait_until(lambda: sum(found.values()) > last + 10, "it has read on")
        finally:
            over.set()
            process.join(20)
            met.update(found)


# -- a commit that fails ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number, server", [(errno.EIO, "on"), (errno.EIO, "off"), (errno.ENOSPC, "on")]
)
def test_a_failed_commit_shows_no_program_an_old_tree(
    place: Failing, faults: Faults, server: str, number: int
) -> None:
    begin(place, CKPTFS_SERVER=server)
    with reader(place) as met:
        faults.begin(number)
        (place.path / "more").write_text("not synced")
        place.failed()
        with fails(errno.ENOTCONN):
            (place.path / "new name").touch()
        assert subprocess.run(["touch", place.state], capture_output=True).returncode != 0
    assert met["new"] and "old" not in met
    assert place.status()["state"] == "dead"
    died = place.died()
    reason = str(died["reason"])
    assert died["state"] == "failed" and os.strerror(number) in reason and "damaged" not in reason
    faults.end()
    assert os.strerror(number) in place.mount().stderr
    assert place.state.read_text() == "new"
    place.umount()
    assert place.state.read_text() == "new" and place.status()["died"] is None


@SERVER
def test_a_program_that_syncs_hears_that_it_failed(
    place: Failing, faults: Faults, server: str
) -> None:
    begin(place, CKPTFS_SERVER=server)
    faults.begin(errno.EIO)
    fd = os.open(place.path / "more", os.O_WRONLY | os.O_CREAT)
    try:
        with fails(errno.EIO, errno.ENOTCONN, errno.ECONNABORTED):
            # A sync that goes to the journal may still succeed, and then it lasts.
            for _ in range(1000):
                os.write(fd, os.urandom(100_000))
                os.fsync(fd)
    finally:
        os.close(fd)
    place.failed()
    faults.end()
    place.mount()
    assert place.state.read_text() == "new"


def test_every_verb_says_what_happened(place: Failing, faults: Faults) -> None:
    begin(place)
    faults.begin(errno.EIO)
    (place.path / "more").write_text("not synced")
    place.failed()
    faults.end()
    for verb in ["save", "diff", "restore 0", "undo", "watch", "run -- true"]:
        done = place.cli("-w", place.path, *verb.split())
        assert done.returncode == DaemonGone.exit_code, (verb, done.stdout + done.stderr)
        assert "Input/output error" in done.stderr
        assert f"ckptfs mount {place.path}` or `ckptfs umount" in done.stderr
    for verb in ["list", "show 0"]:
        done = succeed(place.cli("-w", place.path, *verb.split()))
        assert "is not served" in done.stderr and "Input/output error" in done.stderr
    human = succeed(place.cli("status", "-w", place.path)).stdout
    assert "its daemon failed" in human and "Input/output error" in human
    succeed(place.cli("umount", place.path))
    assert place.state.read_text() == "new" and not is_mounted(place.path)


def test_a_hook_says_what_happened(place: Failing, faults: Faults) -> None:
    begin(place)
    faults.begin(errno.EIO)
    (place.path / "more").write_text("not synced")
    place.failed()
    event = {
        "hook_event_name": "PreToolUse",
        "tool_name": "Bash",
        "tool_input": {"command": "true"},
        "cwd": str(place.path),
    }
    done = subprocess.run(
        [sys.executable, "-m", "ckptfs", "hook"],
        input=json.dumps(event),
        env={**os.environ, **place.env},
        cwd="/",
        capture_output=True,
        text=True,
    )
    faults.end()
    assert "its daemon failed" in done.stderr and "Input/output error" in done.stderr


def test_an_error_in_the_daemon_itself_is_reported_with_its_reason(place: Failing) -> None:
    """Also one that comes from a task that has nothing to do with files."""
    trigger = place.path.parent / "now"
    sabotage(
        place,
        "from ckptfs.daemon.housekeeping import Housekeeping\n"
        "import os, trio\n"
        "async def run(self):\n"
        f"    while not os.path.exists({str(trigger)!r}):\n"
        "        await trio.sleep(0.05)\n"
        "    raise RuntimeError('nobody expected this')\n"
        "Housekeeping.run = run\n",
    )
    begin(place)
    with reader(place) as met:
        (place.path / "more").write_text("acknowledged")
        trigger.touch()
        place.failed()
    assert "old" not in met
    assert "nobody expected this" in str(place.died()["reason"])
    succeed(place.cli("umount", place.path))
    assert (place.path / "more").read_text() == "acknowledged"


# -- the store goes away ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how, server", [("deleted", "on"), ("deleted", "off"), ("moved away", "on")]
)
def test_a_store_that_goes_away_leaves_a_current_directory(
    place: Failing, server: str, how: str
) -> None:
    """What programs wrote has no other place to stay."""
    begin(place, CKPTFS_SERVER=server)
    for number in range(400):
        (place.path / f"file {number}").write_text(str(number))
    with reader(place) as met:
        if how == "deleted":
            shutil.rmtree(place.store)
        else:
            place.store.rename(place.path.parent / "elsewhere")
        (place.path / "file 7").unlink()
        wait_until(lambda: not is_mounted(place.path), "the directory is uncovered")
    assert "old" not in met and met["new"]
    assert {path.name for path in place.path.iterdir()} == {
        "state",
        *(f"file {number}" for number in range(400) if number != 7),
    }
    assert place.pid is not None
    wait_for_exit(place.pid)
    place.pid = None
    done = place.cli("status", "-w", place.path)
    assert done.returncode == StoreMissing.exit_code
    assert "was deleted or moved away" in done.stderr and "brought up to date" in done.stderr


@pytest.mark.parametrize("by", ["a change", "umount", "umount --force"])
def test_a_quiet_mount_notices_that_its_store_went_away(place: Failing, by: str) -> None:
    """A change that is refused leaves nothing to commit, and a commit is where it is noticed."""
    begin(place)
    commit(place)
    shutil.rmtree(place.store)
    if by == "a change":
        with fails(errno.EIO):
            (place.path / "more").touch()
        wait_until(lambda: not is_mounted(place.path), "the directory is uncovered")
    else:
        done = place.cli(*by.split(), place.path)
        assert done.returncode == StoreGone.exit_code and "brought up to date" in done.stderr
    assert not is_mounted(place.path) and place.state.read_text() == "new"
    assert place.pid is not None
    wait_for_exit(place.pid)
    place.pid = None
    again = place.cli("umount", place.path)
    assert again.returncode == StoreGone.exit_code and "brought up to date" in again.stderr


def test_a_mount_after_its_store_went_away(place: Failing) -> None:
    begin(place)
    commit(place)
    shutil.rmtree(place.store)
    assert "A new history begins" in place.mount().stderr
    assert place.state.read_text() == "new" and place.status()["state"] == "serving"


def test_force_uncovers_a_dead_mount_without_a_store(place: Failing) -> None:
    begin(place)
    place.kill()
    shutil.rmtree(place.store)
    refused = place.cli("umount", place.path)
    assert refused.returncode == StoreMissing.exit_code and "umount --force" in refused.stderr
    done = succeed(place.cli("umount", "--force", place.path))
    assert "its store is gone" in done.stdout and not is_mounted(place.path)


# -- signals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number, server", [(signal.SIGTERM, "on"), (signal.SIGTERM, "off"), (signal.SIGHUP, "on")]
)
def test_a_signal_uncovers_a_current_directory(
    place: Failing, server: str, number: signal.Signals
) -> None:
    begin(place, CKPTFS_SERVER=server)
    for name in range(300):
        (place.path / f"file {name}").write_text("x" * 5_000)
    with reader(place) as met:
        assert place.pid is not None
        os.kill(place.pid, number)
        wait_for_exit(place.pid)
        place.pid = None
    assert "old" not in met and not is_mounted(place.path)
    assert len(list(place.path.iterdir())) == 301
    assert place.status()["died"] is None


@pytest.mark.parametrize(
    "how, server", [("umount", "on"), ("umount", "off"), ("umount --force", "on")]
)
def test_umount_uncovers_a_current_directory(place: Failing, server: str, how: str) -> None:
    begin(place, CKPTFS_SERVER=server)
    for name in range(300):
        (place.path / f"file {name}").write_text("x" * 5_000)
    with reader(place) as met:
        # The reader may have the file open just then.
        wait_until(lambda: place.cli(*how.split(), place.path).returncode == 0, "it is unmounted")
        place.pid = None
    assert "old" not in met and len(list(place.path.iterdir())) == 301


def test_a_lazy_umount_uncovers_a_current_directory(place: Failing) -> None:
    begin(place)
    with open(place.path / "open", "w") as file:
        succeed(place.cli("umount", "--lazy", place.path))
        assert not is_mounted(place.path) and place.state.read_text() == "new"
        refused = place.cli("mount", place.path)
        assert refused.returncode == StoreInUse.exit_code
        assert f"ckptfs umount --force {place.path}" in refused.stderr
        file.write("written after that")
    assert place.pid is not None
    wait_for_exit(place.pid)
    place.pid = None
    assert (place.path / "open").read_text() == "written after that"


def test_a_process_in_the_lower_directory_is_not_in_the_way(place: Failing) -> None:
    """As a shell does that was there before the mount: by its path it could be in either."""
    with subprocess.Popen(["sleep", "60"], cwd=place.path) as standing:
        begin(place)
        place.umount()
        standing.kill()
    assert place.state.read_text() == "new"


def test_umount_of_a_dead_mountpoint_uncovers_a_current_directory(place: Failing) -> None:
    begin(place)
    for name in range(300):
        (place.path / f"file {name}").write_text("x" * 5_000)
    fsync(place.path)
    with reader(place) as met:
        place.kill()
        # The reader may have the file open just then.
        wait_until(lambda: place.cli("umount", place.path).returncode == 0, "it is unmounted")
    if os.geteuid() == 0:
        # Another user's dead mount has to go a moment before a new one can cover the directory.
        assert "old" not in met
    assert len(list(place.path.iterdir())) == 301


SLOW_SCAN = """
import os, time
from ckptfs import sync
scan = sync.scan
def slow(*args, **kwargs):
    while os.path.exists({hold!r}):
        time.sleep(0.01)
    return scan(*args, **kwargs)
sync.scan = slow
"""


def test_the_next_mount_covers_the_directory_while_it_is_scanned(place: Failing) -> None:
    begin(place)
    place.kill()
    hold = place.path.parent / "hold"
    hold.touch()
    sabotage(place, SLOW_SCAN.format(hold=str(hold)))
    mount = subprocess.Popen(
        [sys.executable, "-m", "ckptfs", "mount", place.path, "--store", place.store],
        env={**os.environ, **place.env},
        stdout=subprocess.DEVNULL,
    )
    looking = subprocess.Popen(["cat", place.state], stdout=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: _is_scanning(place), "it is scanned")
        if os.geteuid() == 0:
            assert is_mounted(place.path)
        # Another user's dead mount has to go a moment before the new one can cover the directory.
        wait_until(lambda: is_mounted(place.path), "it is covered")
    finally:
        hold.unlink()
        mount.wait(60)
    said, _ = looking.communicate(timeout=60)
    assert said in ("", "new")
    assert place.state.read_text() == "new"
    place.pid = place.status()["pid"]


#: Nothing can be mounted on a directory that was removed.
REFUSED_BY_DESCRIPTOR = """
import os, tempfile
from types import SimpleNamespace
from ckptfs.fuse import serving

def removed(fd):
    path = tempfile.mkdtemp()
    opened = os.open(path, os.O_RDONLY)
    os.rmdir(path)
    return f"/proc/self/fd/{opened}"

serving.lower = SimpleNamespace(open_root=serving.lower.open_root, by_descriptor=removed)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_mount_that_is_refused_by_descriptor_is_made_by_name(place: Failing) -> None:
    sabotage(place, REFUSED_BY_DESCRIPTOR)
    begin(place)
    assert place.status()["server"] == "compiled"
    assert place.state.read_text() == "new"
    os.mkdir(place.path / "directory")
    assert os.listdir(place.path / "directory") == []


def _is_scanning(place: Failing) -> bool:
    state = place.cli("status", "-w", place.path, "--json").stdout
    return bool(state) and json.loads(state).get("state") == "scanning"


# -- a write-back that cannot be done --------------------------------------------------------------


class OnSmallDisk(Failing):
    """The lower directory is on a disk of 1 MiB."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.path = base / "disk/work"


@pytest.fixture
def cramped() -> Iterator[OnSmallDisk]:
    with scratch(MEMORY) as base:
        (base / "disk").mkdir()
        tmpfs = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", base / "disk"]
        subprocess.run(tmpfs, check=True)
        made = OnSmallDisk(base)
        made.path.mkdir()
        made.state.write_text("old")
        try:
            yield made
        finally:
            made.finish()
            subprocess.run(["umount", base / "disk"], check=True)


@pytest.mark.needs_root
def test_umount_stays_mounted_if_the_directory_cannot_take_it(cramped: OnSmallDisk) -> None:
    begin(cramped)
    (cramped.path / "large").write_bytes(os.urandom(2_000_000))
    done = cramped.cli("umount", cramped.path)
    assert done.returncode == WriteBackIncomplete.exit_code
    assert "no space left" in done.stderr and "It stays mounted." in done.stderr
    assert cramped.status()["mounted"] and cramped.state.read_text() == "new"
    (cramped.path / "large").unlink()
    cramped.umount()
    assert cramped.state.read_text() == "new"


@pytest.mark.needs_root
def test_a_signal_leaves_a_dead_mountpoint_if_the_directory_cannot_take_it(
    cramped: OnSmallDisk,
) -> None:
    begin(cramped)
    (cramped.path / "large").write_bytes(os.urandom(2_000_000))
    with reader(cramped) as met:
        assert cramped.pid is not None
        os.kill(cramped.pid, signal.SIGTERM)
        cramped.failed()
        assert "no space left" in str(cramped.died()["reason"])
        done = cramped.cli("umount", cramped.path)
        assert done.returncode == WriteBackIncomplete.exit_code and is_mounted(cramped.path)
    assert "old" not in met
    # Whoever wants the directory as it is can have it.
    succeed(cramped.cli("umount", "--no-write-back", cramped.path))
    assert "older than the store" in succeed(cramped.cli("status", "-w", cramped.path)).stdout


@pytest.mark.needs_root
def test_umount_after_one_without_write_back_names_what_has_no_room(cramped: OnSmallDisk) -> None:
    begin(cramped)
    (cramped.path / "large").write_bytes(os.urandom(2_000_000))
    succeed(cramped.cli("umount", "--no-write-back", cramped.path))
    cramped.pid = None
    done = cramped.cli("umount", "--force", cramped.path)
    assert done.returncode == WriteBackIncomplete.exit_code
    assert "large: no space left on device" in done.stderr and "Errno" not in done.stderr


def test_umount_after_one_without_write_back_says_how_it_ended(place: Failing) -> None:
    begin(place)
    succeed(place.cli("umount", "--no-write-back", place.path))
    place.pid = None
    done = succeed(place.cli("umount", place.path))
    assert "was unmounted already. Written back: " in done.stdout and "died" not in done.stdout
    assert place.state.read_text() == "new"


def test_umount_of_a_path_that_does_not_exist_is_refused(place: Failing) -> None:
    done = place.cli("umount", place.path / "nope")
    assert done.returncode == WorkspaceUnknown.exit_code
    assert "does not exist" in done.stderr and "ckptfs mount" not in done.stderr


# -- from outside ----------------------------------------------------------------------------------


@pytest.mark.needs_program("fusermount3")
@SERVER
def test_a_lazy_unmount_from_outside_is_written_back_at_once(place: Failing, server: str) -> None:
    """The directory is in sight, so it becomes current while others still have files open."""
    begin(place, CKPTFS_SERVER=server)
    with open(place.path / "open", "w") as file:
        file.write("1")
        file.flush()
        subprocess.run(["fusermount3", "-u", "-z", place.path], check=True)
        wait_until(lambda: place.state.read_text() == "new", "the directory is current")
        assert place.status()["state"] == "waiting for the last open file"
        refused = place.cli("umount", place.path)
        assert refused.returncode != 0 and "--force" in refused.stderr
        file.write("2")
    assert place.pid is not None
    wait_for_exit(place.pid)
    place.pid = None
    assert (place.path / "open").read_text() == "12"


# -- a daemon that lacks something -----------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: changes the mount table")
def test_a_daemon_without_a_descriptor_to_spare_goes_on(place: Failing) -> None:
    """It can look neither at the mount table nor at its memory for a while."""
    begin(place)
    commit(place)
    pid = place.pid or 0
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    beside = place.path.parent / "beside"
    beside.mkdir()
    place.state.write_text("newer")
    for _ in range(6):  # as long as housekeeping waits, and more
        taken = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
        lowest = next(number for number in range(1_000) if number not in taken)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest, before[1]))
        subprocess.run(["mount", "--bind", beside, beside], check=True)
        time.sleep(0.3)
        subprocess.run(["umount", beside], check=True)
        time.sleep(0.3)
    assert place.state.read_text() == "newer"
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    succeed(place.cli("umount", place.path))
    place.pid = None
    assert place.state.read_text() == "newer"


# -- a daemon that hangs ---------------------------------------------------------------------------


@pytest.mark.deep
def test_force_ends_a_daemon_that_hangs(place: Failing) -> None:
    begin(place)
    assert place.pid is not None
    os.kill(place.pid, signal.SIGSTOP)
    done = succeed(place.cli("umount", "--force", place.path))
    place.pid = None
    assert "does not answer" in done.stderr and not is_mounted(place.path)
    assert place.state.read_text() == "new"
