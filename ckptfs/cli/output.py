"""All that the command line prints: results on stdout; narration, progress and errors on stderr.

A name or message may hold anything, so its control characters are made visible first: a file name
cannot move the cursor or retitle the terminal. Long output goes through a pager where there is a
terminal. A program that reads stdout gets the bytes as they are, because it wants a diff that it
can apply.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

from ckptfs.errors import CkptfsError, NotConfirmed

if TYPE_CHECKING:
    from subprocess import Popen

#: Colours of a terminal, by their numbers. rich would do it, for a tenth of a second a command.
BOLD = "1"
RED = "31"
GREEN = "32"
YELLOW = "33"
CYAN = "36"

JsonObject = dict[str, Any]
Show = Callable[[JsonObject], None]

#: Categories of characters that are shown as escapes: controls, formats such as bidirectional
#: overrides, surrogates (bytes that are no UTF-8), private and unassigned ones, line separators.
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def result(record: JsonObject, human: str, *, as_json: bool, as_it_is: bool = False) -> None:
    """The outcome of a verb: one JSON object, or lines for people; ``as_it_is`` for a patch, whose
    lines mean something."""
    if as_json:
        print(json.dumps(portable(record)))
    elif human:
        print(human if as_it_is else wrapped(human, sys.stdout))


def note(text: str) -> None:
    """Something worth knowing that is not the result."""
    print(wrapped(text, sys.stderr), file=sys.stderr)


def confirm(plan: str, question: str, deed: str = "restored", *, option: str = "--force") -> None:
    """Show what would happen and ask at the terminal. Raises `NotConfirmed` without a yes."""
    if not sys.stdin.isatty():
        raise NotConfirmed("there is no terminal to ask at", deed, option=option)
    if plan:
        note(plan)
    if not confirmed(question):
        raise NotConfirmed("it was not confirmed", deed, option=option)


def confirmed(question: str) -> bool:
    """Ask at the terminal; only a yes is one."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        note("")  # Ctrl-D leaves the cursor behind the question
    return answer.strip().lower() in ("y", "yes")


def failure(error: CkptfsError, *, as_json: bool) -> None:
    """One sentence and what to do; for machines the same as an object on stdout."""
    if as_json:
        print(json.dumps({"error": portable(dict(error.record()))}))
    note(f"{painted('ckptfs:', RED, sys.stderr)} {safe(error.message)}")
    for line in error.hint.splitlines():
        note(f"  {safe(line)}")


def wrapped(text: str, stream: IO[str]) -> str:
    """Lines that fit the terminal, broken between words; as they are where there is none. What
    goes on is indented as the line is, or below the column that two spaces begin."""
    width = _width_of(stream)
    if width is None or len(text) <= width or os.environ.get("TERM") == "dumb":
        return text
    return "\n".join(part for line in text.split("\n") for part in _broken(line, width))


def _broken(line: str, width: int) -> Iterator[str]:
    if len(line) <= width:
        yield line
        return
    import re  # late: most lines fit

    escape = re.compile("\x1b\\[[0-9;]*m")
    column = re.match(r" *\S+(?: \S+)?  +(?=\S)| *", escape.sub("", line))
    indent = " " * column.end() if column is not None and column.end() < width // 2 else ""
    shown, used = "", 0
    for word in re.findall(r" *[^ ]+", line):
        length = len(escape.sub("", word))
        if used and used + length > width and used > len(indent):
            yield shown
            word = indent + word.lstrip(" ")
            shown, used = "", 0
            length = len(escape.sub("", word))
        shown, used = shown + word, used + length
    yield shown


def _width_of(stream: IO[str]) -> int | None:
    """How wide a terminal is; None if the stream is none."""
    if not stream.isatty():
        return None
    try:
        return (
            int(os.environ.get("COLUMNS") or os.get_terminal_size(stream.fileno()).columns) or None
        )
    except (OSError, ValueError):
        return None


def has_colour(stream: IO[str]) -> bool:
    """Whether what goes there is coloured: on a terminal, unless its user wants none."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str, colour: str, stream: IO[str] | None = None) -> str:
    """A text in a colour, if where it goes has colours; without ``stream`` that is stdout."""
    if not colour or not has_colour(stream or sys.stdout):
        return text
    return f"\x1b[{colour}m{text}\x1b[m"


def safe(text: object) -> str:
    """The text with everything that could act on the terminal made visible."""
    plain = str(text)
    if plain.isascii() and plain.isprintable():
        return plain
    import unicodedata  # late: ASCII is what most names are

    return "".join(
        _escaped(char) if unicodedata.category(char) in _INVISIBLE else char for char in plain
    )


def _escaped(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was not UTF-8, as os.fsdecode keeps it
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def portable(record: JsonObject) -> JsonObject:
    """A record that every JSON reader takes.

    A string that holds bytes which are no UTF-8 gets replacement characters, and its exact bytes
    in base64 beside it under the same key with ``_b64``; so does a list with such a string, for all
    its strings.
    """
    clean: JsonObject = {}
    for key, value in record.items():
        clean[key] = _portable(value)
        if isinstance(value, str) and clean[key] != value:
            clean[f"{key}_b64"] = _base64(value)
        elif _has_names(value) and clean[key] != value:
            clean[f"{key}_b64"] = [_base64(item) for item in value]
    return clean


def _has_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _base64(text: str) -> str:
    from base64 import b64encode  # late: rare

    return b64encode(text.encode("utf-8", "surrogateescape")).decode()


def _portable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, dict):
        return portable(value)
    if isinstance(value, list):
        return [_portable(item) for item in value]
    return value


def bytes_text(count: int) -> str:
    """A size for people."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def count_text(count: int, one: str, many: str) -> str:
    """A number with its noun: "1 entry", "12,000 entries"."""
    return f"{count:,} {one if count == 1 else many}"


def paths_text(count: int) -> str:
    """How many paths: "1 path", "12,000 paths"."""
    return count_text(count, "path", "paths")


def some_paths(paths: Sequence[str], most: int, count: int | None = None) -> list[str]:
    """An indented line for each path, up to ``most``; then how many of ``count`` are not named."""
    lines = [f"  {safe(path)}" for path in paths[:most]]
    more = (len(paths) if count is None else count) - len(lines)
    return [*lines, f"  ... and {more:,} more"] if more else lines


def token_line(plan: JsonObject) -> str:
    """The token of a dry run, and what it is for."""
    return f"token {plan['token']}  (--if-unchanged TOKEN does this, if nothing changed until then)"


def cut_middle(text: str, width: int) -> str:
    """As much of a text as fits, its beginning and its end."""
    if len(text) <= width:
        return text
    tail = max(0, width - 1) // 3
    return text[: max(0, width - 1 - tail)] + "…" + text[len(text) - tail :]


def screen_width() -> int | None:
    """How wide the terminal is that results go to; None if they go elsewhere."""
    return _width_of(sys.stdout)


def time_text(time_ns: int) -> str:
    """A moment in local time."""
    import time

    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ns // 1_000_000_000))


def duration_text(milliseconds: int) -> str:
    """How long something took."""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


# -- names of files --------------------------------------------------------------------------------


def shown_name(name: str) -> bytes:
    """A name as it is, or in git's quotes if it has anything that would not show or could be
    mistaken: control characters, quotes, bytes that are no UTF-8."""
    if name.isprintable() and not set(name) & {'"', "\\"}:
        return name.encode()
    from ckptfs.textdiff import quoted

    return quoted(os.fsencode(name))


# -- long output -----------------------------------------------------------------------------------

#: As git: leave at once if it fits, let colours through, keep the screen afterwards.
_LESS = "FRX"


class PagedOutput:
    """Takes lines of bytes, without their newlines."""

    def __init__(self, stream: IO[bytes], *, terminal: bool, colour: bool) -> None:
        self._stream = stream
        self._terminal = terminal
        self._colour = colour

    def line(self, data: bytes, colour: str = "") -> None:
        self.spans((data, colour))

    def spans(self, *parts: tuple[bytes, str]) -> None:
        """A line of which each part has a colour of its own."""
        shown = self._shown if self._terminal else _as_it_is
        line = b"".join(shown(data, colour) for data, colour in parts)
        self._stream.write(line + b"\n")

    def _shown(self, data: bytes, colour: str) -> bytes:
        text = "\t".join(safe(part) for part in data.decode("utf-8", "surrogateescape").split("\t"))
        if colour and self._colour:
            text = f"\x1b[{colour}m{text}\x1b[m"
        return text.encode("utf-8", "backslashreplace")


def _as_it_is(data: bytes, colour: str) -> bytes:
    return data


@contextmanager
def paged(*, paged: bool = True) -> Iterator[PagedOutput]:
    """Where a verb's long output goes."""
    sys.stdout.flush()
    if not sys.stdout.isatty():
        yield PagedOutput(sys.stdout.buffer, terminal=False, colour=False)
        return
    colour = has_colour(sys.stdout)
    pager = _start_pager(_pager_command()) if paged else None
    if pager is None or pager.stdin is None:
        yield PagedOutput(sys.stdout.buffer, terminal=True, colour=colour)
        return
    with _patiently(pager):
        yield PagedOutput(pager.stdin, terminal=True, colour=colour)


def _pager_command() -> str:
    pager = os.environ.get("PAGER", "less")
    return "" if pager == "cat" or os.environ.get("TERM") == "dumb" else pager


def _start_pager(command: str) -> Popen[bytes] | None:
    if not command.strip():
        return None
    import subprocess

    env = {"LESS": _LESS, "LV": "-c", **os.environ}
    # Through the shell, as git does: $PAGER may have options.
    return subprocess.Popen(command, shell=True, stdin=subprocess.PIPE, env=env)


@contextmanager
def _patiently(pager: Popen[bytes]) -> Iterator[None]:
    """Leave Ctrl-C to the pager, and end with it. Quitting it early is no error."""
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


# -- sentences about a pass over a tree, and about a disk that is short of space -------------------

#: More names than this do not fit a screen; `--json` has more.
NAMED_MAX = 10

#: What `--auto off` means.
NOTHING_KEPT = "what a program destroys is lost, unless `ckptfs save` saved it"


def changes_text(record: JsonObject) -> str:
    """What changed, as "3 added, 1 modified, 2 deleted", or "nothing" if nothing did."""
    parts = [f"{record[key]:,} {key}" for key in ("added", "modified", "deleted") if record[key]]
    return ", ".join(parts) if parts else "nothing"


def copied_text(record: JsonObject) -> str:
    """How much a pass copied, as "12,000 entries, 3.4 MiB"."""
    return f"{count_text(record['added'], 'entry', 'entries')}, {bytes_text(record['bytes'])}"


def portable_text(reason: str) -> str:
    """That the compiled server does not serve, and why."""
    hint = "; `ckptfs doctor` says what it needs" if "compiled" in reason else ""
    return f"the portable path, which is slower: no compiled server, since {reason}{hint}"


def disk_space_text(record: JsonObject) -> str:
    """What the disk lacks, what expires because of it, and what to do."""
    free, wanted = bytes_text(record["free_bytes"]), bytes_text(record["wanted_bytes"])
    text = f"the disk has {free} free for this store, and retention.min_free wants {wanted}"
    if record["full"]:
        text = "the disk is full, so writes are refused (ENOSPC); what is there is unchanged"
    if record["expires"]:
        held = bytes_text(record["expirable_bytes"])
        return f"{text}; the oldest automatic checkpoints expire, which hold {held}"
    text = (
        f"{text}; nothing expires for that, since what may would not be enough. To make room, "
        "remove other files from the disk, or checkpoints that hold much (`ckptfs delete`)"
    )
    named = (f"{item['id']} holds {bytes_text(item['bytes'])}" for item in record["heaviest"])
    return f"{text}: {', '.join(named)}" if record["heaviest"] else text


def remarks(record: JsonObject) -> Iterator[str]:
    """What the user should hear besides the result: one line each."""
    for found in record["conflicts"][:NAMED_MAX]:
        yield _conflict(safe(found["path"]), safe(found["kept_as"]))
    yield from _unnamed(record["conflict_count"], "changed on both sides")
    for found in record["skipped"][:NAMED_MAX]:
        yield f"Left out {safe(found['path'])}: {safe(found['reason'])}."
    yield from _unnamed(record["skipped_count"], "left out")


def _conflict(path: str, kept_as: str) -> str:
    if path == kept_as:
        return f"{path} was deleted in the workspace and changed outside; it was kept."
    return f"{path} changed on both sides; the version from outside is kept as {kept_as}."


def _unnamed(count: int, what: str) -> Iterator[str]:
    if count > NAMED_MAX:
        yield f"... and {count - NAMED_MAX:,} more {what}; --json names them."


def unmounted_fork_text(fork: JsonObject) -> str:
    """A sentence about a fork that could not be mounted."""
    plain = f" What is written at {safe(fork['at'])} now is not in it." if fork["at"] else ""
    return f"Fork {safe(fork['name'])} is not mounted: {safe(fork['reason'])}.{plain}"
