"""Long output: through a pager where there is a terminal, else straight to stdout.

Text for a terminal has its control characters made visible and may be coloured; anything else gets
the bytes as they are, because a program wants a diff that it can apply.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from ckptfs.cli.screen import safe

if TYPE_CHECKING:
    from subprocess import Popen

#: As git: leave at once if it fits, let colours through, keep the screen afterwards.
_LESS = "FRX"

BOLD = "1"
RED = "31"
GREEN = "32"
YELLOW = "33"
CYAN = "36"


class Output:
    """Takes lines of bytes, without their newlines."""

    def __init__(self, stream: IO[bytes], *, terminal: bool, colour: bool) -> None:
        self._stream = stream
        self._terminal = terminal
        self._colour = colour

    def line(self, data: bytes, colour: str = "") -> None:
        if not self._terminal:
            self._stream.write(data + b"\n")
            return
        text = "\t".join(safe(part) for part in data.decode("utf-8", "surrogateescape").split("\t"))
        if colour and self._colour:
            text = f"\x1b[{colour}m{text}\x1b[m"
        self._stream.write(text.encode("utf-8", "backslashreplace") + b"\n")


@contextmanager
def output(*, paged: bool = True) -> Iterator[Output]:
    """Where a verb's long output goes."""
    sys.stdout.flush()
    if not sys.stdout.isatty():
        yield Output(sys.stdout.buffer, terminal=False, colour=False)
        return
    colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    pager = _start(_command()) if paged else None
    if pager is None or pager.stdin is None:
        yield Output(sys.stdout.buffer, terminal=True, colour=colour)
        return
    with _patiently(pager):
        yield Output(pager.stdin, terminal=True, colour=colour)


def _command() -> str:
    pager = os.environ.get("PAGER", "less")
    return "" if pager == "cat" or os.environ.get("TERM") == "dumb" else pager


def _start(command: str) -> Popen[bytes] | None:
    if not command.strip():
        return None
    import subprocess

    env = {"LESS": _LESS, "LV": "-c", **os.environ}
    # Through the shell, as git does: $PAGER may have options.
    return subprocess.Popen(command, shell=True, stdin=subprocess.PIPE, env=env)


@contextmanager
def _patiently(pager: Popen[bytes]) -> Iterator[None]:
    """Leave Ctrl-C to the pager, and end with it; one who has seen enough is no error."""
    import signal

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with suppress(BrokenPipeError):
            yield
        if pager.stdin is not None:
            with suppress(BrokenPipeError):
                pager.stdin.close()
    finally:
        pager.wait()
        signal.signal(signal.SIGINT, before)
