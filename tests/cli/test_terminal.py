"""What a person sees on a terminal of 80 columns: colours, and a bar for what takes long."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckptfs.cli.progress import Pace, clock_text, position
from tests.support.mounting import HAVE_FUSE, Workspace, succeed, workspace
from tests.support.terminal import on_terminal

needs_fuse = pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")

#: What moves the cursor, clears a line or colours.
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def work() -> Iterator[Workspace]:
    with workspace("--auto", "off") as made:
        (made.path / "file").write_text("one\n")
        succeed(made.cli("save", "first", "--tag", "begin", "-w", made.path))
        yield made


@contextmanager
def _held(made: Workspace) -> Iterator[None]:
    """The daemon answers nothing meanwhile, so whatever asks it takes long."""
    assert made.pid is not None
    os.stat(made.path)
    os.kill(made.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(made.pid, signal.SIGCONT)


@needs_fuse
@pytest.mark.parametrize(
    ("verb", "title"),
    [
        ("check", "Checking"),
        ("compact", "Compacting"),
        ("backup", "Copying"),
        ("export", "Exporting"),
        ("restore", "Comparing"),
    ],
)
def test_a_verb_that_takes_long_shows_a_bar_and_clears_it(
    work: Workspace, verb: str, title: str, tmp_path: Path
) -> None:
    words = {
        "backup": [tmp_path / "copy"],
        "export": [tmp_path / "copy"],
        "restore": ["begin", "--force"],
    }
    with on_terminal(verb, *words.get(verb, ()), "-w", work.path, env=work.env) as (
        process,
        screen,
    ):
        with _held(work):
            screen.see(title)
            screen.see("━")
        said = screen.rest()
        assert process.wait() == 0
    assert "\x1b[2K" in said  # the bar's line was cleared
    assert _ESCAPE.sub("", said).strip().splitlines()[-1].strip()


@needs_fuse
def test_an_interrupt_takes_the_bar_away_and_says_what_became_of_it(work: Workspace) -> None:
    with on_terminal("check", "-w", work.path, env=work.env) as (process, screen):
        with _held(work):
            screen.see("Checking")
            process.send_signal(signal.SIGINT)
            said = _ESCAPE.sub("", screen.see("goes on with it"))
        screen.rest()
        assert process.wait() == 130
    assert "Traceback" not in said
    assert "has to finish check" in said


@needs_fuse
def test_unmounting_shows_a_bar_while_the_daemon_is_busy() -> None:
    with (
        workspace() as made,
        on_terminal("umount", made.path, env=made.env) as (process, screen),
    ):
        with _held(made):
            screen.see("Writing back")
        assert "Unmounted" in screen.rest()
        assert process.wait() == 0
        made.pid = None


@needs_fuse
def test_a_short_verb_shows_no_bar_and_a_pipe_nothing_but_the_result(work: Workspace) -> None:
    done = work.cli("check", "-w", work.path)
    assert (done.stdout, done.stderr) == ("clean\n", "")


@needs_fuse
def test_looking_at_what_a_try_left_says_how_to_come_back(work: Workspace) -> None:
    words = ("try", "-w", work.path, "--", "touch", "tried")
    with on_terminal(*words, env={**work.env, "SHELL": "/bin/ls"}) as (process, screen):
        screen.see("look at it [l]")
        screen.type("l")
        screen.see("`exit` comes back to the question")
        screen.see("tried")
        screen.see("look at it [l]")
        screen.type("n")
        assert "for a day" in screen.rest()
        assert process.wait() == 0
    assert not (work.path / "tried").exists()


@needs_fuse
def test_only_a_clear_answer_takes_what_a_try_left(work: Workspace) -> None:
    with on_terminal("try", "-w", work.path, "--", "touch", "tried", env=work.env) as (
        process,
        screen,
    ):
        for answer in ("trash it", "tell me more", "later"):
            screen.see("leave it [n]")
            screen.type(answer)
        screen.see("leave it [n]")
        screen.type("take")
        assert "merged" in screen.rest()
        assert process.wait() == 0
    assert (work.path / "tried").exists()


@needs_fuse
def test_a_list_has_colours_on_a_terminal_only(work: Workspace) -> None:
    with on_terminal("list", "-w", work.path, env=work.env) as (process, screen):
        assert "\x1b[33m    1\x1b[m" in screen.rest()
        assert process.wait() == 0
    with on_terminal("list", "-w", work.path, env={**work.env, "NO_COLOR": "1"}) as (_, screen):
        shown = screen.rest()
        assert "first" in shown and "\x1b" not in shown
    assert "\x1b" not in work.cli("list", "-w", work.path).stdout


@needs_fuse
def test_status_and_doctor_have_colours_on_a_terminal_only(work: Workspace) -> None:
    for verb in ("status", "doctor"):
        with on_terminal(verb, "-w", work.path, env=work.env) as (_, screen):
            assert "\x1b[32m" in screen.rest()
        assert "\x1b" not in work.cli(verb, "-w", work.path).stdout


def test_an_error_is_marked_on_a_terminal(tmp_path: Path) -> None:
    with on_terminal("status", "-w", tmp_path, env={"XDG_DATA_HOME": str(tmp_path)}) as (_, screen):
        assert screen.rest().startswith("\x1b[31mckptfs:\x1b[m ")


# -- what stands behind the bar --------------------------------------------------------------------


def test_the_figures_have_a_rate_and_the_time_left_once_they_mean_something() -> None:
    pace = Pace()
    record = {"phase": "scan", "files": 100, "total_files": 10_100, "bytes": 2 << 20}
    assert pace.figures({}, "files", 1.0) == ""
    assert pace.figures(record, "files", 2.0) == "100 files, 2.0 MiB"
    later = {**record, "files": 1100}
    assert pace.figures(later, "files", 4.0) == "1,100 files, 2.0 MiB, 500/s, 0:18 left"


def test_another_phase_has_a_pace_of_its_own() -> None:
    pace = Pace()
    pace.figures({"phase": "a", "files": 1}, "records", 1.0)
    assert pace.figures({"phase": "a", "files": 11}, "records", 2.0) == "11 records, 10/s"
    assert pace.figures({"phase": "b", "files": 5}, "records", 3.0) == "5 records"


def test_bytes_are_figures_too() -> None:
    pace = Pace()
    pace.figures({"bytes": 1, "total_bytes": 4 << 20}, "", 1.0)
    shown = pace.figures({"bytes": (1 << 20) + 1, "total_bytes": 4 << 20}, "", 2.0)
    assert shown == "1.0 MiB, 1.0 MiB/s, 0:02 left"


def test_a_pass_that_is_longer_than_was_thought_is_not_beyond_its_end() -> None:
    assert position({"files": 12, "total_files": 10}) == (12, 12)
    assert position({"files": 12, "total_files": None}) == (12, None)
    assert position({}) == (0, None)


@pytest.mark.parametrize(("seconds", "text"), [(7.9, "0:07"), (62, "1:02"), (3723, "1:02:03")])
def test_the_time_left_reads_like_a_clock(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text
