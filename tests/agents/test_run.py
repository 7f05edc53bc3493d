"""`ckptfs run`: two checkpoints around a command that does not notice."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.agents.conftest import Desk
from tests.support.mounting import workspace
from tests.support.waiting import wait_for_exit, wait_until

COMMAND = [sys.executable, "-m", "ckptfs", "run"]


def test_a_command_stands_between_two_checkpoints_and_its_changes_are_named(desk: Desk) -> None:
    (desk.path / "a").write_text("1")
    done = desk.run("run", "--", "sh", "-c", "echo out; echo 2 > a; echo 3 > b; exit 7")
    assert done.returncode == 7 and done.stdout == "out\n"
    after, before = desk.checkpoints()[:2]
    assert before["message"].startswith("before: sh -c") and before["kind"] == "run"
    assert after["message"].startswith("after: sh -c") and after["metadata"]["exit_code"] == "7"
    assert not before["pinned"]
    assert "1 added, 1 modified" in done.stderr
    assert "  M a\n" in done.stderr and "  A b\n" in done.stderr
    assert desk.files() == {"a": "2\n", "b": "3\n"}


def test_secrets_of_the_command_line_are_not_recorded(desk: Desk) -> None:
    (desk.path / "unsaved").touch()  # or the checkpoint there is would serve as the one before
    words = ["sh", "-c", "echo $1 > a", "_", "--token=hunter2 x"]
    done = desk.run("run", "--", *words)
    line = """sh -c 'echo $1 > a' _ --token=***"""
    assert f"ckptfs: {line} changed the workspace" in done.stderr
    after, before = desk.checkpoints()[:2]
    assert (before["message"], after["message"]) == (f"before: {line}", f"after: {line}")
    assert after["metadata"] == {"command": line, "exit_code": "0"}
    assert "hunter2" not in json.dumps([before, after])
    assert desk.files() == {"a": "--token=hunter2 x\n", "unsaved": ""}


def test_only_the_name_of_the_command_is_recorded_if_the_setting_says_so(desk: Desk) -> None:
    (desk.path / "unsaved").touch()
    desk.ok("config", "record.command", "name")
    desk.run("run", "--", "sh", "-c", "touch secret-plan")
    desk.ok("config", "record.command", "--unset")
    after, before = desk.checkpoints()[:2]
    assert (before["message"], after["message"]) == ("before: touch", "after: touch")
    assert "secret-plan" not in json.dumps([before, after])


def test_a_command_that_changes_nothing_takes_no_checkpoint(desk: Desk) -> None:
    desk.ok("save", "now", "--allow-empty")
    before = desk.checkpoints()
    done = desk.run("run", "--", "true")
    assert done.returncode == 0 and "changed nothing" in done.stderr
    assert [found["id"] for found in desk.checkpoints()] == [found["id"] for found in before]


@pytest.mark.parametrize("failing", ["exit 3", "kill -KILL $$", "exit 0"])
def test_restore_puts_back_what_a_failed_command_did(desk: Desk, failing: str) -> None:
    (desk.path / "a").write_text("1")
    (desk.path / "d").mkdir()
    (desk.path / "d" / "f").write_text("f")
    script = f"rm -r d; echo 2 > a; touch b; {failing}"
    done = desk.run("run", "--on-failure", "restore", "--", "sh", "-c", script)
    if failing == "exit 0":
        assert done.returncode == 0 and desk.files() == {"a": "2\n", "b": ""}
        return
    assert done.returncode == (3 if "exit" in failing else 137)
    assert desk.files() == {"a": "1", "d/f": "f"} and "put back" in done.stderr
    desk.ok("undo")
    assert desk.files() == {"a": "2\n", "b": ""}


def test_ask_without_a_terminal_keeps(desk: Desk) -> None:
    done = desk.run("run", "--on-failure", "ask", "--", "sh", "-c", "touch x; false")
    assert done.returncode == 1 and "no terminal" in done.stderr and desk.files() == {"x": ""}


def test_the_summary_is_json_if_asked(desk: Desk) -> None:
    done = desk.run("run", "--json", "--", "sh", "-c", "touch x; echo '{}'")
    assert done.stdout == "{}\n"
    record = json.loads(done.stderr)
    assert (record["exit_code"], record["added"], record["restored"]) == (0, 1, False)
    assert [(item["status"], item["path"]) for item in record["changes"]] == [("A", "x")]


def test_a_command_that_cannot_be_started_as_json(desk: Desk) -> None:
    done = desk.run("run", "--json", "--", "no-such-command")
    record = json.loads(done.stderr)
    assert (done.returncode, done.stdout, record["exit_code"]) == (127, "", 127)
    assert record["error"]["message"].startswith("Cannot run no-such-command")
    assert record["changes"] == [] and record["after"] == record["before"]


def test_standard_input_is_the_commands(desk: Desk) -> None:
    done = subprocess.run(
        [*COMMAND, "-w", desk.path, "--", "cat"],
        input=b"through\x00\xff",
        env={**os.environ, **desk.work.env},
        capture_output=True,
        timeout=60,
    )
    assert done.stdout == b"through\x00\xff"


@pytest.mark.parametrize("word, code", [("no-such-command", 127), ("./plain", 126), ("./", 126)])
def test_a_command_that_cannot_be_started(desk: Desk, word: str, code: int) -> None:
    (desk.path / "plain").write_text("x")
    done = desk.run("run", "--", word)
    assert done.returncode == code and f"Cannot run {word}" in done.stderr
    assert not any(item["pinned"] for item in desk.checkpoints())


@pytest.mark.parametrize("words", [(), ("--",), ("true",), ("--on-failure", "cry", "--", "true")])
def test_words_that_make_no_sense_are_refused(desk: Desk, words: tuple[str, ...]) -> None:
    assert desk.run("run", *words).returncode == 2


def test_outside_of_a_workspace_nothing_is_run(desk: Desk) -> None:
    done = subprocess.run(
        [*COMMAND, "-w", "/tmp", "--", "echo", "ran"],
        env={**os.environ, **desk.work.env},
        capture_output=True,
    )
    assert done.returncode == 40 and done.stdout == b""


def test_an_unmounted_workspace_works_too() -> None:
    with workspace() as made:
        made.umount()
        desk = Desk(made)
        (desk.path / "a").write_text("1")
        script = "echo 2 > a; false"
        done = desk.run("run", "--on-failure", "restore", "--", "sh", "-c", script)
        assert done.returncode == 1 and desk.files() == {"a": "1"}, done.stderr


def test_a_workspace_that_goes_away_meanwhile_does_not_hide_the_exit_code() -> None:
    with workspace() as made:
        desk = Desk(made)
        words = [sys.executable, "-m", "ckptfs", "umount", "--lazy", str(made.path)]
        done = desk.run("run", "--json", "--", *words)
        assert done.returncode == 0 and json.loads(done.stderr.splitlines()[-1])["exit_code"] == 0
        assert made.pid is not None
        wait_for_exit(made.pid)
        made.pid = None


# -- signals ---------------------------------------------------------------------------------------


def start(desk: Desk, script: str) -> subprocess.Popen[str]:
    """Start a script under `ckptfs run`, and wait until it says that it is ready."""
    child = subprocess.Popen(
        [*COMMAND, "-w", desk.path, "--", "sh", "-c", script],
        env={**os.environ, **desk.work.env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    return child


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"])
def test_a_signal_to_us_reaches_the_command(desk: Desk, name: str) -> None:
    script = f"trap 'echo got {name}; exit 5' {name}; echo ready; while :; do sleep 0.1; done"
    child = start(desk, script)
    child.send_signal(getattr(signal, f"SIG{name}"))
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 5 and f"got {name}" in output


def test_an_end_by_a_signal_is_128_and_its_number(desk: Desk) -> None:
    child = start(desk, "echo ready; exec sleep 100")
    child.terminate()
    _, said = child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGTERM and "changed nothing" in said


def test_the_command_has_the_signals_of_a_fresh_program(desk: Desk) -> None:
    found = desk.ok("run", "--", "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status")
    masks = dict(re.findall(r"Sig(\w+):\s+(\w+)", found))
    python_ignores = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
    assert int(masks["Blk"], 16) == 0 and not int(masks["Ign"], 16) & python_ignores


# -- a terminal ------------------------------------------------------------------------------------


class Terminal:
    """A shell with job control at a pseudo-terminal, in a workspace."""

    def __init__(self, desk: Desk) -> None:
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.chdir(desk.path)
            path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
            env = {**os.environ, **desk.work.env, "PS1": "", "TERM": "dumb", "PATH": path}
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], env)
        self.seen = ""
        self.type("stty -echo; PS1='<'$?'>'; bind 'set enable-bracketed-paste off'; echo hi''there")
        self.expect("hithere")

    def type(self, line: str) -> None:
        os.write(self._fd, line.encode() + b"\n")

    def press(self, key: bytes) -> None:
        os.write(self._fd, key)

    def expect(self, pattern: str) -> re.Match[str]:
        """Wait until the pattern is seen behind what was seen before."""
        deadline = time.monotonic() + 60
        while not (found := re.search(pattern, self.seen)):
            left = deadline - time.monotonic()
            ready = select.select([self._fd], [], [], max(left, 0))[0]
            assert ready, f"{pattern!r} is not in {self.seen!r}"
            self.seen += os.read(self._fd, 4096).decode(errors="replace")
        self.seen = self.seen[found.end() :]
        return found

    def jobs(self) -> list[str]:
        """The states of all processes of this terminal but the shell itself."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
                if int(session) == self._pid and int(path.parent.name) != self._pid:
                    found.append(state)
        return found

    def close(self) -> None:
        """Hang up, which ends the shell and what it runs."""
        os.close(self._fd)
        os.waitpid(self._pid, 0)


@pytest.fixture
def shell(desk: Desk) -> Iterator[Terminal]:
    made = Terminal(desk)
    yield made
    made.close()


def test_a_terminal_stays_a_terminal(shell: Terminal) -> None:
    shell.type("ckptfs run -- sh -c 'test -t 0 && test -t 1 && test -t 2 && echo all''three'")
    shell.expect("allthree")
    shell.expect(r"changed\s+nothing")


def test_the_command_is_in_the_foreground(shell: Terminal) -> None:
    # Reading from the terminal would stop a process in the background.
    shell.type("ckptfs run -- sh -c 'echo ask''ing; read x; echo got-$x'; echo code=$?")
    shell.expect("asking")
    shell.type("word")
    shell.expect("got-word")
    shell.expect("code=0")


def test_ctrl_c_ends_the_command_and_not_the_wrapper(desk: Desk, shell: Terminal) -> None:
    shell.type("ckptfs run --on-failure restore -- sh -c 'touch x; echo rea''dy; exec sleep 100'")
    shell.expect("ready")
    shell.press(b"\x03")
    shell.expect("put back")
    shell.type("echo code=$?")
    shell.expect("code=130")
    assert desk.files() == {}


def test_ctrl_c_that_the_command_handles_is_its_own_business(shell: Terminal) -> None:
    shell.type(
        "ckptfs run -- sh -c 'trap \"echo hand''led; exit 9\" INT; echo rea''dy; "
        "while :; do sleep 0.1; done'; echo code=$?"
    )
    shell.expect("ready")
    shell.press(b"\x03")
    shell.expect("handled")
    shell.expect("code=9")


def test_ctrl_z_stops_it_and_fg_goes_on(shell: Terminal) -> None:
    shell.type("ckptfs run -- sh -c 'echo rea''dy; read x; echo got-$x'")
    shell.expect("ready")
    shell.press(b"\x1a")
    shell.expect(r"Stopped[^<]*<\d+>")  # and a prompt
    # The shell waits for its own child only; the command may still be about to stop, and would take
    # a letter of what is typed now.
    wait_until(lambda: set(shell.jobs()) == {"T"}, "everything has stopped")
    shell.type("echo at-the-pr''ompt")
    shell.expect("at-the-prompt")
    shell.type("fg")
    shell.expect("ckptfs run")
    shell.type("word")
    shell.expect("got-word")
    shell.expect(r"changed\s+nothing")


def test_a_command_that_stops_itself_stops_the_job(shell: Terminal) -> None:
    shell.type("ckptfs run -- sh -c 'kill -STOP $$; echo going-''on'")
    shell.expect(r"Stopped[^<]*<\d+>")  # and a prompt
    shell.type("fg")
    shell.expect("going-on")
    shell.expect(r"changed\s+nothing")


@pytest.mark.parametrize("answer, left", [("y", {}), ("n", {"x": ""})])
def test_a_failed_command_is_taken_back_only_if_the_user_says_yes(
    desk: Desk, shell: Terminal, answer: str, left: dict[str, str]
) -> None:
    shell.type("ckptfs run --on-failure ask -- sh -c 'touch x; exit 4'; echo code=$?")
    shell.expect(r"failed \(4\)")
    shell.type(answer)
    shell.expect("code=4")
    assert desk.files() == left


def test_how_a_command_ended_is_noted_and_found_again(desk: Desk) -> None:
    (desk.path / "version").write_text("good")
    desk.ok("run", "--", "sh", "-c", "test good = $(cat version); touch a")
    (desk.path / "version").write_text("bad")
    failed = desk.run("run", "--", "sh", "-c", "touch b; test good = $(cat version)")
    assert failed.returncode == 1
    listed = desk.ok("list", "-n", "2")
    assert "(exit code 1, " in listed
    run = desk.checkpoints()[0]["runs"][-1]
    assert (run["exit_code"], run["command"]) == (1, "sh -c 'touch b; test good = $(cat version)'")
    assert 0 <= run["duration_ms"] < 600_000
    desk.ok("restore", "@ok:sh", "--force")
    assert desk.files() == {"a": "", "version": "good"}
    desk.ok("undo", "--force")
    desk.ok("restore", "@ok", "version")
    assert (desk.path / "version").read_text() == "good"


def test_a_program_that_never_passed_has_no_reference(desk: Desk) -> None:
    done = desk.run("diff", "@ok:no-such-program")
    assert done.returncode == 42
    assert "There is no checkpoint whose last run of no-such-program passed" in done.stderr


def test_a_command_that_changes_nothing_is_noted_on_the_state_it_found(desk: Desk) -> None:
    (desk.path / "file").write_text("tested")
    desk.ok("save", "before")
    desk.ok("run", "--", "true")
    newest = desk.checkpoints()[0]
    assert (newest["message"], [run["command"] for run in newest["runs"]]) == ("before", ["true"])
    desk.run("run", "--", "false")
    desk.run("run", "--", "true")
    assert [run["command"] for run in desk.checkpoints()[0]["runs"]] == ["false", "true"]
