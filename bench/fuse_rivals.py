"""Other file systems over FUSE: the floor, bindfs, which only passes on, and JuiceFS, which has a
database.

The floor is C, keeps everything in memory and asks the kernel for the same as ckptfs: what it
takes is what FUSE itself costs. It is compiled here, out of `bench/floor`. bindfs passes every
request on to the disk's file system. JuiceFS keeps names and attributes in SQLite and the content
in plain files here, on the same disk. Those two run with their defaults; all of them in the
foreground of a process that the run owns.
"""

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import process
from bench.contestants import Contestant, detach, is_mounted, make_spread
from bench.kit import Kit, NotToBeHad, fetch
from bench.outcome import FLOOR
from bench.programs import run

_START_S = 20.0
_DEATH_S = 20.0
_STEP_S = 0.02
_FLOOR_SOURCES = [
    Path(__file__).resolve().parent / "floor" / each for each in ("device.c", "memory.c")
]


class FuseRival:
    """A mount by another program: how to prepare it and how to start it is handed in."""

    def __init__(
        self, name: str, base: Path, prepare: Callable[[Path], Sequence[str | Path]]
    ) -> None:
        """`prepare` makes what a round needs below a directory, and returns the command line,
        to which the mount point is added."""
        self.name = name
        self._base = base / name
        self._prepare = prepare
        self._round = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.root = self._base
        self.store = self._base
        self.pid: int | None = None

    def start(self) -> None:
        """Each start takes new directories, so that one after a crash begins clean."""
        self._round += 1
        self.store = self._base / f"{self._round}"
        self.root = self.store / "mount"
        self.root.mkdir(parents=True)
        command = [*self._prepare(self.store), self.root]
        with (self.store / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A Ctrl-C ends the harness, which then unmounts; not the file system under it.
                start_new_session=True,
            )
        self._wait_for_mount()
        self.pid = process.last_descendant(self._process.pid)

    def _wait_for_mount(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_S
        while not is_mounted(self.root):
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = (self.store / "log").read_text(errors="replace").strip().splitlines()
                self.stop()
                raise NotToBeHad(f"it does not mount: {said[-1] if said else 'it says nothing'}")
            time.sleep(_STEP_S)

    def stop(self) -> None:
        """Unmount, see the process gone, and remove what it kept: as files of the disk that is
        quick, through a slow file system it would not be."""
        self.pid = None
        if is_mounted(self.root):
            subprocess.run(["umount", self.root], capture_output=True, check=False)
        if is_mounted(self.root):
            detach(self.root)
        if self._process is not None:
            _end(self._process)
            self._process = None
        if not is_mounted(self.root):
            run("rm", "-rf", self._base)

    def is_healthy(self) -> bool:
        return self.pid is not None and process.is_alive(self.pid) and is_mounted(self.root)


def _end(started: "subprocess.Popen[bytes]") -> None:
    """It ends by itself once it is unmounted; if not, its whole session is killed."""
    try:
        started.wait(_DEATH_S)
    except subprocess.TimeoutExpired:
        process.kill_session(started.pid, signal.SIGKILL)
        started.wait()


def floor(kit: Kit, base: Path) -> Contestant:
    # Not in the rival's own directory: what is mapped from there is paged out before cold rows.
    program = base / "floor-program"
    _compile(kit.program("gcc"), program)
    return FuseRival(FLOOR, base, lambda _home: [program])


def _compile(compiler: Path, program: Path) -> None:
    command = [compiler, "-O2", *_FLOOR_SOURCES, "-o", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        raise NotToBeHad(f"it does not compile: {errors[0] if errors else done.stderr.strip()}")


def bindfs(kit: Kit, base: Path) -> Contestant:
    program = kit.program("bindfs")

    def prepare(home: Path) -> list[str | Path]:
        make_spread(home / "source")
        return [program, "-f", home / "source"]

    return FuseRival("bindfs", base, prepare)


def juicefs(kit: Kit, base: Path) -> Contestant:
    program = kit.program("juicefs")

    def prepare(home: Path) -> list[str | Path]:
        database = f"sqlite3://{home / 'names.db'}"
        quiet = ("--no-usage-report", "--no-bgjob", "--backup-meta", "0")
        # Deleted files go at once: a rubbish bin is not what the row is about.
        format_it = ("format", "--storage", "file", "--bucket", f"{home / 'content'}/")
        fetch("juicefs format", program, *format_it, "--trash-days", "0", database, "bench")
        return [program, "mount", *quiet, "--cache-dir", home / "cache", database]

    return FuseRival("juicefs", base, prepare)


#: Those that take part with less of everything, beside the baseline alone.
SLOW = frozenset({"juicefs"})
#: Scenes they leave out even so: thousands of files whose number cannot be made smaller.
SLOW_WITHOUT = frozenset({"repository", "rebase", "npm", "configure"})
#: Every other file system that rows can run on.
FUSE_RIVALS: dict[str, Callable[[Kit, Path], Contestant]] = {
    FLOOR: floor,
    "bindfs": bindfs,
    "juicefs": juicefs,
}
