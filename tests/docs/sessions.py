"""The `$` sessions of a page: read, run in a shell, compared, written anew.

A page is one session after another. A comment `<!-- session ... -->` begins one; its lines are
commands that prepare it, and are not shown. Blocks up to the next comment go on in the same shell.
A comment `<!-- session: not run: WHY -->` leaves out what follows it. A session has a home of its
own, a terminal of 80 columns for output, none for input and errors, so it asks nothing and draws no
progress bar, and an environment that does not depend on what started the tests.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.docs.pages import Block, blocks
from tests.support.mounting import scratch

_COMMENT = re.compile(
    r"^ *<!-- session(?:: not run: (?P<why>[^\n]*?))?(?P<lines>\n.*?)? ?-->", re.S | re.M
)
#: What a command may take, on a machine with much else to do.
_SECONDS = 120.0
_HOME = "/home/me"


class Command(NamedTuple):
    """A command of a session with what the page says it prints."""

    line: str
    expected: list[str]
    #: The lines of the page that hold what it prints.
    start: int
    indent: int


class Session(NamedTuple):
    #: The number of the page's line at which it begins.
    line: int
    prepare: str
    #: Why it cannot be run; empty if it can.
    not_run: str
    commands: list[Command]


def sessions(text: str) -> list[Session]:
    """The sessions of a page that have a command."""
    found = [Session(0, "", "", [])]
    comments = {text.count("\n", 0, match.start()): match for match in _COMMENT.finditer(text)}
    marks = sorted(comments)
    for block in blocks(text):
        while marks and marks[0] < block.start:
            at = marks.pop(0)
            match = comments[at]
            found.append(Session(at, (match["lines"] or "").strip(), match["why"] or "", []))
        found[-1].commands.extend(_commands(block))
    return [session for session in found if session.commands]


def _commands(block: Block) -> Iterator[Command]:
    if not block.lines or not block.lines[0].startswith("$ "):
        return
    starts = [at for at, line in enumerate(block.lines) if line.startswith("$ ")]
    for at, end in zip(starts, [*starts[1:], len(block.lines)], strict=True):
        output = at + 1
        while output < end and block.lines[output].startswith("> "):
            output += 1
        typed = [block.lines[at][2:], *(line[2:] for line in block.lines[at + 1 : output])]
        yield Command("\n".join(typed), block.lines[output:end], block.start + output, block.indent)


# -- running ---------------------------------------------------------------------------------------


@contextmanager
def shell() -> Iterator[Shell]:
    with scratch() as base:
        home = base / "me"
        home.mkdir()
        opened = Shell(home)
        try:
            yield opened
        finally:
            opened.close()


class Shell:
    """A shell that takes commands, in a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._errors = home.parent / "errors"
        self._terminal, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        attributes = termios.tcgetattr(its)
        attributes[1] &= ~termios.OPOST
        termios.tcsetattr(its, termios.TCSANOW, attributes)
        self._process = subprocess.Popen(
            ["bash"],
            stdin=subprocess.PIPE,
            stdout=its,
            stderr=subprocess.STDOUT,
            cwd=home,
            env=_environment(home),
            start_new_session=True,
        )
        os.close(its)

    def run(self, line: str) -> list[str]:
        """What a command prints, on its output and then on its errors, as lines."""
        assert self._process.stdin
        wrapped = f"{{ {line}\n}} </dev/null 2>{self._errors}; printf '\\036'\n"
        self._process.stdin.write(wrapped.encode())
        self._process.stdin.flush()
        printed = self._until_mark(line) + self._errors.read_bytes()
        text = printed.decode().replace("\r\n", "\n").replace(str(self.home), _HOME)
        return [printed_line.rstrip() for printed_line in text.splitlines()]

    def _until_mark(self, line: str) -> bytes:
        seen, deadline = b"", time.monotonic() + _SECONDS
        while not seen.endswith(b"\036"):
            left = deadline - time.monotonic()
            if not select.select([self._terminal], [], [], max(left, 0))[0]:
                raise AssertionError(f"waited {_SECONDS:g} s for {line!r}, and saw {seen!r}")
            seen += os.read(self._terminal, 65536)
        return seen[:-1]

    def close(self) -> None:
        """End the workspaces that the session left mounted, and the shell."""
        with suppress(AssertionError, OSError):
            self.run(
                "cd /; ckptfs workspaces --json | python3 -c 'import json, sys; print(*[w"
                '["workspace"] for w in json.load(sys.stdin)["workspaces"] if w["mounted"]], '
                'sep="\\n")\' | while read -r dir; do ckptfs umount --force "$dir"; done'
            )
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._terminal)


def _environment(home: Path) -> dict[str, str]:
    """What a user has after a login, and nothing of make's or the tests' own."""
    return {
        "HOME": str(home),
        "USER": "me",
        "LANG": "C.UTF-8",
        "TERM": "xterm",
        "NO_COLOR": "1",
        "PAGER": "cat",
        "TZ": "UTC",
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    }


# -- comparing -------------------------------------------------------------------------------------

#: What differs from run to run, and what both sides become.
_RULES = [
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?"), "DATE"),
    (re.compile(r"(?<![\d.])\d+(\.\d+)? ?(ms|s|min)\b"), "TIME"),
    (re.compile(r"(?<![\d.])\d+(\.\d+)? (bytes|[KMGT]i?B)(?!\w)"), "SIZE"),
    (re.compile(r"\b(pid|process|session) \d+"), r"\1 N"),
    (re.compile(r"\b\d{8}T\d{6}\.\d+Z-[0-9a-f]{8}\b"), "SNAPSHOT"),
    (re.compile(r"\b([\w.]+)-[0-9a-f]{4,16}\b"), r"\1-HASH"),
    (re.compile(r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{12,64}\b"), "HASH"),
    (re.compile(r" {2,}"), "  "),
]


#: What `umount` says where a sandbox of something else on the machine has a copy of the mount.
_OF_OTHERS = re.compile(r".* (in|for) other mount namespaces ")


def normal(line: str) -> str:
    for pattern, word in _RULES:
        line = pattern.sub(word, line)
    return line.strip()


def agrees(expected: list[str], printed: list[str]) -> bool:
    """Whether this is what a page says; a line `...` stands for any lines, `...` in one for any
    text."""
    wanted = _without_blank_end(expected)
    found = _without_blank_end([line for line in printed if not _OF_OTHERS.match(line)])
    pattern = "".join(
        r"(?:[^\n]*\n)*?" if line.strip() == "..." else _as_pattern(line) for line in wanted
    )
    return re.fullmatch(pattern, "".join(f"{normal(line)}\n" for line in found)) is not None


def _as_pattern(line: str) -> str:
    return ".*".join(re.escape(part) for part in normal(line).split("...")) + r"\n"


def _without_blank_end(lines: list[str]) -> list[str]:
    end = len(lines)
    while end and not lines[end - 1].strip():
        end -= 1
    return lines[:end]


# -- recording -------------------------------------------------------------------------------------


def record(page: Path, number: int, printed: list[list[str]]) -> None:
    """Write what the commands of a page's session printed into the page. What an earlier session
    brought may have moved its lines, and another process may be at the same page."""
    with page.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        text = file.read()
        lines = text.splitlines()
        commands = sessions(text)[number].commands
        for command, found in reversed(list(zip(commands, printed, strict=True))):
            if not agrees(command.expected, found):
                end = command.start + len(_without_blank_end(command.expected))
                lines[command.start : end] = [
                    f"{' ' * command.indent}{line}".rstrip() for line in _without_blank_end(found)
                ]
        file.seek(0)
        file.truncate()
        file.write("\n".join(lines) + "\n")
