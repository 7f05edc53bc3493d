"""Runs an agent to its end, or ends it: nothing that it started outlives the test."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.support.waiting import wait_until


class Program:
    """A program that runs, in a session of its own. Its home marks everything that it starts."""

    def __init__(self, process: subprocess.Popen[bytes], home: Path, output: Path) -> None:
        self._process = process
        self._home = home
        self._output = output
        self.pid = process.pid

    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def finish(self, seconds: float) -> str:
        """What it said, when it and all that it started have ended well; else this fails."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {seconds:g} s:\n{self.output()}") from None
        assert code == 0, f"exit {code}:\n{self.output()}"
        wait_until(lambda: not self.left(), "everything that it started has ended, too")
        return self.output()

    def runs(self) -> bool:
        return self._process.poll() is None

    def left(self) -> list[int]:
        """What runs of it and of everything that it started, whatever session that is in."""
        return _marked(self._home)

    def end(self) -> None:
        wait_until(self._all_killed, "everything that was started is ended")
        self._process.wait()

    def _all_killed(self) -> bool:
        left = self.left()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left


@contextmanager
def started(
    command: Sequence[str], cwd: Path, home: Path, env: Mapping[str, str]
) -> Iterator[Program]:
    """A program with a home of its own, which is ended with the block."""
    output = home / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**env, "HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    program = Program(process, home, output)
    try:
        yield program
    finally:
        program.end()


def _marked(home: Path) -> list[int]:
    """The processes with this home. One that has ended, but was not waited for, has none."""
    wanted = f"HOME={home}".encode()
    return [pid for pid in _processes() if wanted in _read(pid, "environ").split(b"\0")]


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (ProcessLookupError, FileNotFoundError, PermissionError):
        return b""


# -- what runs -------------------------------------------------------------------------------------


class Process(NamedTuple):
    pid: int
    parent: int
    group: int
    session: int
    argv: list[str]


def ancestry(of: str, root: int) -> list[Process]:
    """The processes from `root` down to the innermost one whose command line has `of` in it."""
    found = {process.pid: process for process in map(_process, _processes()) if process}
    parents = {process.parent for process in found.values()}
    for process in found.values():
        line = _line(process, root, found)
        if line and process.pid not in parents and any(of in word for word in process.argv):
            return line
    raise AssertionError(f"no process below {root} runs {of!r}")


def _line(process: Process, root: int, found: Mapping[int, Process]) -> list[Process]:
    """From `root` to the process; empty if it is not below it."""
    line = [process]
    while line[0].pid != root:
        above = found.get(line[0].parent)
        if above is None:
            return []
        line.insert(0, above)
    return line


def _process(pid: int) -> Process | None:
    # The name in the middle may hold blanks and brackets.
    stat = _read(pid, "stat").rpartition(b")")[2].split()
    if not stat:
        return None
    argv = os.fsdecode(_read(pid, "cmdline")).split("\0")[:-1]
    return Process(pid, int(stat[1]), int(stat[2]), int(stat[3]), argv)
