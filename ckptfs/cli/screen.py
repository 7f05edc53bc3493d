"""Putting things on the screen: results on stdout, narration, progress and errors on stderr.

A name or message may hold anything, so nothing goes out before its control characters are made
visible: a file name cannot move the cursor or retitle the terminal.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ckptfs.errors import CkptfsError

if TYPE_CHECKING:
    from rich.progress import Progress

JsonObject = dict[str, Any]
Show = Callable[[JsonObject], None]

#: Categories of characters that are shown as escapes: controls, formats such as bidirectional
#: overrides, surrogates (bytes that are no UTF-8), private and unassigned ones, line separators.
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def result(record: JsonObject, human: str, *, as_json: bool) -> None:
    """The outcome of a verb: one JSON object, or lines for people."""
    if as_json:
        print(json.dumps(portable(record)))
    elif human:
        print(human)


def note(text: str) -> None:
    """Something worth knowing that is not the result."""
    print(text, file=sys.stderr)


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
    print(f"ckptfs: {safe(error.message)}", file=sys.stderr)
    for line in error.hint.splitlines():
        print(f"  {safe(line)}", file=sys.stderr)


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


def time_text(time_ns: int) -> str:
    """A moment in local time."""
    import time

    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ns // 1_000_000_000))


@contextmanager
def progress(text: str, unit: str = "files") -> Iterator[Show | None]:
    """A bar on stderr while something long runs; None if stderr is no terminal."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    bar = _Bar(text, unit)
    try:
        yield bar.show
    finally:
        bar.stop()


class _Bar:
    """Made at the first step of a pass: one that is over at once shows nothing."""

    def __init__(self, text: str, unit: str) -> None:
        self._text = text
        self._unit = unit
        self._rich: Progress | None = None

    def show(self, record: JsonObject) -> None:
        if "files" not in record:
            return
        if self._rich is None:
            self._rich = _rich_progress(self._unit)
            self._rich.start()
            self._task = self._rich.add_task(self._text, total=None, copied="")
        self._rich.update(
            self._task,
            total=record.get("total_files"),
            completed=record["files"],
            copied=bytes_text(record["bytes"]) if "bytes" in record else "",
        )

    def stop(self) -> None:
        if self._rich is not None:
            self._rich.stop()


def _rich_progress(unit: str) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(f"{{task.completed:,.0f}} {unit} {{task.fields[copied]}}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
