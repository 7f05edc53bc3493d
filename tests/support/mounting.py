"""Workspaces to test on: mounted through the CLI, as a user does it, or plain directories.

Where CKPTFS_TEST_PLAIN names a directory, every workspace is an ordinary directory below it. That
is how the tests themselves are tested: what fails on ext4 or tmpfs is no judge of ckptfs.

CKPTFS_TEST_HOLD and CKPTFS_TEST_VERBS are for other environments (`tests.environments`): with the
first, another mount namespace has a copy of every mount; the words of the second stand before every
call but those of `mount`, `umount` and `check`. With CKPTFS_TEST_FORK every workspace is a fork of
one.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_for_exit

PLAIN = os.environ.get("CKPTFS_TEST_PLAIN")
HAVE_FUSE = os.path.exists("/dev/fuse")
#: A place in memory, for tests that are about order and not about disks.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
_FORK = bool(os.environ.get("CKPTFS_TEST_FORK"))
_HOLD = bool(os.environ.get("CKPTFS_TEST_HOLD"))
_NOT_SANDBOXED = (("mount",), ("umount",), ("check",))
_BEFORE_VERBS = shlex.split(os.environ.get("CKPTFS_TEST_VERBS", ""))

_TROUBLE = re.compile(r"\b(WARNING|ERROR|CRITICAL)\b|^Traceback ", re.MULTILINE)


def ckptfs(
    *arguments: str | Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run the CLI to its end. Nothing it does may take longer than `timeout` seconds."""
    before = [] if arguments[:1] in _NOT_SANDBOXED else _BEFORE_VERBS
    return subprocess.run(
        [*before, sys.executable, "-m", "ckptfs", *map(str, arguments)],
        env=None if env is None else {**os.environ, **env},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=timeout,
    )


def succeed(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """The program must have ended well; what it said otherwise becomes the failure."""
    command = " ".join(map(str, done.args))
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def is_mounted(path: Path) -> bool:
    """Whether something, dead or alive, is mounted right on `path`."""
    wanted = re.sub(r"[\s\\]", lambda found: f"\\{ord(found[0]):03o}", str(path))
    with open("/proc/self/mountinfo", errors="surrogateescape") as table:
        return any(line.split()[4] == wanted for line in table)


@contextmanager
def scratch(parent: str | None = None) -> Iterator[Path]:
    """A directory of one's own that every user may enter, as pytest's are not."""
    path = Path(tempfile.mkdtemp(prefix="ckptfs-test-", dir=parent)).resolve()
    path.chmod(0o755)
    try:
        yield path
    finally:
        _let_go(path)
        if os.geteuid() != 0:
            _open_up(path)
        shutil.rmtree(path)


def _let_go(path: Path) -> None:
    """Take away every mount that a failed test left below `path`."""
    with open("/proc/self/mountinfo", errors="surrogateescape") as table:
        points = [line.split()[4] for line in table]
    for point in reversed(points):
        if point.startswith(f"{path}/"):
            unescaped = re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), point)
            detach(unescaped)


def detach(point: str) -> None:
    """Take a mount away whoever uses it, without asking ckptfs."""
    command = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
    subprocess.run([*command, point], check=False, capture_output=True)


def _open_up(path: Path) -> None:
    """Give an ordinary user back the rights that a test took from directories of its own."""
    path.chmod(stat.S_IRWXU)
    for entry in list(os.scandir(path)):
        if entry.is_dir(follow_symlinks=False):
            _open_up(Path(entry.path))


class Workspace:
    """A workspace at `path` with a store of its own, mounted and unmounted by the CLI."""

    plain = False

    def __init__(self, base: Path, *options: str) -> None:
        self.path = base / "work"
        self.store = base / "store"
        self.options = options
        #: Keeps the tests out of the data directory of whoever runs them.
        self.env = _private_directories(base)
        #: How many seconds a command may take.
        self.patience = 60.0
        #: The daemon's process, between `mount` and `umount` or `kill`.
        self.pid: int | None = None
        self._log: Path | None = None
        self._log_read = 0
        #: Processes whose mount namespaces have a copy of the mount.
        self._holders: list[subprocess.Popen[bytes]] = []

    def cli(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return ckptfs(*arguments, env=self.env, timeout=self.patience)

    def mount(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Mount, with the options of the workspace and some more, and see that it is there."""
        return succeed(self.try_to_mount(*options))

    def try_to_mount(self, *options: str) -> subprocess.CompletedProcess[str]:
        if not is_mounted(self.path):
            self.path.mkdir(exist_ok=True)
        place = (self.path, "--store", self.store)
        done = self.cli("mount", "--json", *place, *self.options, *options)
        if done.returncode == 0:
            assert is_mounted(self.path), "mount ended well, but nothing is mounted"
            started = json.loads(done.stdout)
            self.pid, self._log = started["pid"], Path(started["log"])
            if _HOLD:
                self._holders.append(_hold())
        return done

    def status(self) -> dict[str, Any]:
        answer = json.loads(succeed(self.cli("status", "-w", self.path, "--json")).stdout)
        assert isinstance(answer, dict)
        return answer

    def umount(self) -> subprocess.CompletedProcess[str]:
        """Unmount and see that the daemon has gone and left the store whole."""
        assert self.pid is not None
        pid, self.pid = self.pid, None
        done = succeed(self.cli("umount", self.path))
        assert not is_mounted(self.path), "umount ended well, but it is still mounted"
        wait_for_exit(pid)
        self.check()
        return done

    def remount(self) -> None:
        self.umount()
        self.mount()

    def kill(self) -> None:
        """End the daemon as a crash would. The dead mountpoint stays."""
        assert self.pid is not None
        pid, self.pid = self.pid, None
        os.kill(pid, signal.SIGKILL)
        wait_for_exit(pid)

    def check(self) -> None:
        succeed(self.cli("check", "--deep", "--store", self.store))

    def trouble(self) -> str:
        """What the daemon logged since the last call, if there is a warning or worse in it."""
        if self._log is None or not self._log.exists():
            return ""
        with self._log.open(errors="replace") as log:
            log.seek(self._log_read)
            news = log.read()
            self._log_read = log.tell()
        return news if _TROUBLE.search(news) else ""

    def quiet(self) -> None:
        """What a test leaves behind: no trouble in the log, and what was mounted still is."""
        trouble = self.trouble()
        assert not trouble, f"the daemon's log has trouble in it:\n{trouble[-4000:]}"
        if self.pid is not None:
            assert is_mounted(self.path), "the mount has gone by itself"

    def _release(self) -> None:
        """End the processes that hold copies of the mount."""
        while self._holders:
            holder = self._holders.pop()
            holder.kill()
            holder.communicate()

    def finish(self) -> None:
        """The end of every test: nothing mounted, nothing in the log, nothing broken."""
        daemon = self.pid
        try:
            self.quiet()
            self._release()  # tests about an unmount have done one, and a wait costs seconds
            if is_mounted(self.path):
                self.umount()
            self.quiet()
        finally:
            if is_mounted(self.path):
                detach(str(self.path))
            if daemon is not None:
                _end(daemon)
            self._release()


class ForkedWorkspace(Workspace):
    """A fork in place of a workspace: `path` is its mount, `main` that of the workspace itself."""

    def __init__(self, base: Path, *options: str) -> None:
        super().__init__(base, *options)
        self.fork, self.main = self.path, base / "main"

    def try_to_mount(self, *options: str) -> subprocess.CompletedProcess[str]:
        with self._as_main():
            done = super().try_to_mount(*options)
        if done.returncode == 0 and not is_mounted(self.fork):
            succeed(self.cli("fork", "fork", "-w", self.main, "--at", self.fork))
        return done

    def umount(self) -> subprocess.CompletedProcess[str]:
        with self._as_main():
            return super().umount()

    @contextmanager
    def _as_main(self) -> Iterator[None]:
        self.path = self.main
        try:
            yield
        finally:
            self.path = self.fork


class PlainWorkspace(Workspace):
    """An ordinary directory in place of a workspace: the oracle."""

    plain = True

    def mount(self, *options: str) -> subprocess.CompletedProcess[str]:
        self.path.mkdir(exist_ok=True)
        return subprocess.CompletedProcess([], 0, "", "")

    def quiet(self) -> None:
        pass

    def umount(self) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 0, "", "")

    def kill(self) -> None:
        pass

    def check(self) -> None:
        pass


def _hold() -> subprocess.Popen[bytes]:
    """A process in a mount namespace of its own, which has a copy of every mount of ours. An
    unmount here leaves the copy alone, as that of a container which was started meanwhile."""
    words = ["unshare", "--mount", "sh", "-c", "echo; exec sleep infinity"]
    holder = subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, cwd="/")
    assert holder.stdout is not None and holder.stdout.readline() == b"\n"
    return holder


def _end(pid: int) -> None:
    """See a daemon off that an unmount, or a failed test, should have ended already."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _private_directories(base: Path) -> dict[str, str]:
    names = {"XDG_DATA_HOME": "data", "XDG_STATE_HOME": "state", "XDG_CONFIG_HOME": "config"}
    env = {variable: str(base / name) for variable, name in names.items()}
    runtime = base / "run"
    runtime.mkdir(mode=0o700, exist_ok=True)
    return {**env, "XDG_RUNTIME_DIR": str(runtime)}


@contextmanager
def workspace(*options: str) -> Iterator[Workspace]:
    """A mounted, empty workspace; at the end it must unmount well and leave nothing behind."""
    with scratch(PLAIN) as base:
        kind = PlainWorkspace if PLAIN else ForkedWorkspace if _FORK else Workspace
        made = kind(base, *options)
        made.mount()
        try:
            yield made
        finally:
            made.finish()
