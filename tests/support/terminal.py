"""A user at a terminal, who answers what a command asks, or types at the prompt of a shell."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.support.mounting import Workspace


class Answered(NamedTuple):
    code: int
    #: What it printed, on either stream.
    said: str


def asked(work: Workspace, *words: str, answer: bytes) -> Answered:
    """Run a verb on a terminal, and answer its question."""
    mine, its = pty.openpty()
    command = [sys.executable, "-m", "ckptfs", *words, "-w", str(work.path)]
    process = subprocess.Popen(
        command,
        stdin=its,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | work.env,
    )
    os.close(its)
    os.write(mine, answer + b"\n")
    said, _ = process.communicate(timeout=60)
    os.close(mine)
    return Answered(process.returncode, said.decode())


class Prompt:
    """A shell at the other end of a terminal."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        #: What it printed and nobody has looked for yet.
        self._shown = b""

    def type(self, line: str) -> None:
        os.write(self._terminal, line.encode() + b"\r")

    def see(self, text: str, seconds: float = 30.0) -> str:
        """Wait until it prints this; return all that it printed up to there."""
        deadline = time.monotonic() + seconds
        while text.encode() not in self._shown:
            left = deadline - time.monotonic()
            if not select.select([self._terminal], [], [], max(left, 0))[0]:
                raise AssertionError(f"waited {seconds:g} s for {text!r}, and saw {self._shown!r}")
            self._shown += os.read(self._terminal, 65536)
        before, _, self._shown = self._shown.partition(text.encode())
        return before.decode(errors="replace")

    def rest(self) -> str:
        """All that it prints until it ends."""
        with suppress(OSError):  # the other end is closed
            while data := os.read(self._terminal, 65536):
                self._shown += data
        shown, self._shown = self._shown, b""
        return shown.decode(errors="replace")


@contextmanager
def prompt(*command: str | Path, cwd: Path, env: Mapping[str, str]) -> Iterator[Prompt]:
    """A shell in a session of its own; it is told to leave, and must."""
    process, terminal = pty.fork()
    if not process:
        with suppress(OSError):
            os.chdir(cwd)
            os.execvpe(command[0], list(map(str, command)), {**os.environ, **env})
        os._exit(127)
    try:
        found = Prompt(terminal)
        yield found
        found.type("exit")
    except BaseException:
        os.kill(process, signal.SIGKILL)
        raise
    finally:
        _see_off(terminal, process)
        os.close(terminal)


def _see_off(terminal: int, process: int) -> None:
    """Read what is left until the shell has gone: it may wait for that."""
    deadline = time.monotonic() + 30
    while os.waitpid(process, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.kill(process, signal.SIGKILL)
        with suppress(OSError):
            if select.select([terminal], [], [], 0.01)[0]:
                os.read(terminal, 65536)


@contextmanager
def on_terminal(
    *words: str | Path, env: Mapping[str, str], columns: int = 80
) -> Iterator[tuple[subprocess.Popen[bytes], Prompt]]:
    """A `ckptfs` whose three streams are a terminal."""
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    plain = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS")}
    process = subprocess.Popen(
        [sys.executable, "-m", "ckptfs", *map(str, words)],
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        env={**plain, "TERM": "xterm", "PAGER": "cat", **env},
    )
    os.close(its)
    try:
        yield process, Prompt(mine)
    finally:
        process.kill()
        process.wait()
        os.close(mine)
