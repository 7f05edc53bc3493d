"""What an agent does in a case: steps that make versions of files, and versions to be found again.

A step is a `Write` (files with their text, by a shell's redirection, a one-liner or the harness's
own process, as the harness does it) or a `Run` (a command that is the same for every harness).
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Text(NamedTuple):
    """A file's content: a line, perhaps many times. Any number of lines fits into a command."""

    line: str
    times: int = 1

    def __str__(self) -> str:
        return f"{self.line}\n" * self.times


class Write(NamedTuple):
    files: dict[str, Text]


class Run(NamedTuple):
    """Commands that do not wait for each other: `make -j2` may run two at once."""

    commands: tuple[str, ...]


Step = Write | Run


@dataclass(frozen=True)
class Version:
    """Bytes that stood under a path and were destroyed; `content` may be a copy kept elsewhere."""

    path: str
    name: str
    content: Text | Path

    @property
    def bytes(self) -> bytes:
        content = self.content
        return content.read_bytes() if isinstance(content, Path) else str(content).encode()

    def __str__(self) -> str:
        return f"{self.path} {self.name}"


@dataclass(frozen=True)
class Plan:
    steps: tuple[Step, ...]
    #: Every version that a later step destroyed.
    lost: tuple[Version, ...]
    #: How many steps at the beginning only prepare.
    setup: int = 0


def by_redirection(path: str, text: Text) -> str:
    """The shell makes the file itself; the directory first, where there is one."""
    folder = path.rpartition("/")[0]
    made = f"mkdir -p {folder} && " if folder else ""
    if text.times == 1:
        return f"{made}printf '%s\\n' '{text.line}' > {path}"
    return f"{made}yes '{text.line}' | head -n {text.times} > {path}"


def by_one_liner(path: str, text: Text) -> str:
    program = (
        f"import os; os.makedirs(os.path.dirname({path!r}) or '.', exist_ok=True); "
        f"open({path!r}, 'w').write(({text.line!r} + chr(10)) * {text.times})"
    )
    return f"{shlex.quote(sys.executable)} -S -c {shlex.quote(program)}"
