"""A bar on stderr while a verb takes long: how far it is, how fast, how much longer.

A thread draws it. It appears after `_PATIENCE_S`, whether the verb has told anything by then or
not, so a short command never shows one and never pays for importing rich. Without a terminal there
is none.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfs.cli.output import JsonObject, Show, bytes_text

if TYPE_CHECKING:
    from threading import Thread

    from rich.progress import Progress

#: A verb that ends sooner shows no bar. Importing rich takes about a tenth of a second more.
_PATIENCE_S = 0.3
#: How often the bar is drawn.
_INTERVAL_S = 0.1
#: A rate of a shorter time says nothing.
_RATE_S = 0.5

#: What lies behind and what lies ahead in all, in bytes.
Measure = Callable[[], tuple[int, int]]


@contextmanager
def progress(
    text: str, unit: str = "files", *, measure: Measure | None = None, at_once: bool = True
) -> Iterator[Show | None]:
    """A bar while the block runs. It takes the records of a verb that tells how far it is, or asks
    ``measure``. Not ``at_once`` means: from the first record on, for a block that forks before
    that. None if stderr is no terminal."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    bar = _Bar(text, unit, measure)
    if at_once:
        bar.start()
    try:
        yield bar.show
    finally:
        bar.stop()


class _Bar:
    def __init__(self, text: str, unit: str, measure: Measure | None) -> None:
        from threading import Event  # late: without a terminal there is no bar

        self._text = text
        self._unit = unit
        self._measure = measure
        self._thread: Thread | None = None
        self._ended = Event()
        #: The last record; the thread reads it, and this process's main thread replaces it.
        self._record: JsonObject = {}

    def start(self) -> None:
        from threading import Thread

        self._thread = Thread(target=self._draw, daemon=True)
        self._thread.start()

    def show(self, record: JsonObject) -> None:
        self._record = record
        if self._thread is None:
            self.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _draw(self) -> None:
        if self._ended.wait(_PATIENCE_S):
            return
        bar = _rich_progress()
        task = bar.add_task(self._text, total=None, figures="")
        pace = Pace()
        bar.start()
        try:
            while True:
                record = self._record
                if self._measure is not None:
                    record = dict(zip(("bytes", "total_bytes"), self._measure(), strict=True))
                done, total = position(record)
                figures = pace.figures(record, self._unit, time.monotonic())
                bar.update(task, completed=done, total=total, figures=figures)
                bar.refresh()
                if self._ended.wait(_INTERVAL_S):
                    return
        finally:
            bar.stop()


def position(record: JsonObject) -> tuple[int, int | None]:
    """How far a pass is, and of how much; None if that is not known."""
    of = "files" if "files" in record else "bytes"
    total = record.get(f"total_{of}")
    done = record.get(of, 0)
    return done, max(done, total) if total else None


class Pace:
    """How fast a pass is; a verb may have several, each with a name."""

    def __init__(self) -> None:
        self._phase: object = None
        self._began = 0.0
        self._done_then = 0

    def figures(self, record: JsonObject, unit: str, now: float) -> str:
        """What stands behind the bar: how much is done, how much of it a second, the time left."""
        done, total = position(record)
        if record.get("phase") != self._phase or done < self._done_then or not self._began:
            self._phase, self._began, self._done_then = record.get("phase"), now, done
        if not done:
            return ""
        words = [self._amount(record, unit)]
        seconds = now - self._began
        if seconds >= _RATE_S and done > self._done_then:
            rate = (done - self._done_then) / seconds
            words.append(f"{rate:,.0f}/s" if "files" in record else f"{bytes_text(int(rate))}/s")
            if total is not None:
                words.append(f"{clock_text((total - done) / rate)} left")
        return ", ".join(words)

    @staticmethod
    def _amount(record: JsonObject, unit: str) -> str:
        if "files" not in record:
            return bytes_text(record["bytes"])
        size = f", {bytes_text(record['bytes'])}" if record.get("bytes") else ""
        return f"{record['files']:,} {unit}{size}"


def clock_text(seconds: float) -> str:
    """A time that is left: 0:07, 1:02:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def bytes_below(directory: Path) -> int:
    """How many bytes the files of a directory take, in it and one level below."""
    found = 0
    with suppress(OSError):
        for place in (directory, *(item for item in directory.iterdir() if item.is_dir())):
            for item in place.iterdir():
                with suppress(OSError):
                    status = item.lstat()
                    found += status.st_blocks * 512 if item.is_file() else 0
    return found


def _rich_progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[figures]}", markup=False),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,
        redirect_stdout=False,
    )
