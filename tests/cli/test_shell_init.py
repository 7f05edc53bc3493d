"""`ckptfs shell-init`: real shells at a terminal, and what they write to the control file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.support.mounting import HAVE_FUSE, ckptfs, scratch, succeed
from tests.support.recording import Recording, recording
from tests.support.terminal import Prompt, prompt
from tests.support.waiting import wait_until

needs_fuse = pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")

SHELLS = [
    pytest.param(
        name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is missing")
    )
    for name in ("bash", "zsh", "fish")
]

#: Starts a shell at a terminal, with something in its rc file before and after our code.
Start = Callable[..., AbstractContextManager[Prompt]]


def code_for(shell: str) -> str:
    return succeed(ckptfs("shell-init", shell)).stdout


@pytest.fixture(scope="module")
def asked() -> Iterator[Recording]:
    with recording() as made:
        yield made


@pytest.fixture
def work(asked: Recording) -> Recording:
    """A workspace with an empty log."""
    asked.log.unlink(missing_ok=True)
    return asked


@pytest.fixture
def home() -> Iterator[Path]:
    with scratch() as base:
        yield base


@pytest.fixture
def start(home: Path, work: Recording) -> Start:
    def begin(
        shell: str, before: str = "", after: str = "", cwd: Path = work.path, words: str = ""
    ) -> AbstractContextManager[Prompt]:
        rc, show = {
            "bash": (home / ".bashrc", "PS1='ready> '"),
            "zsh": (home / ".zshrc", "PS1='ready> '"),
            "fish": (home / "fish/config.fish", "function fish_prompt; echo -n 'ready> '; end"),
        }[shell]
        # Where this is missing, fish makes it from all manuals, for as long as that takes.
        (home / "fish/generated_completions").mkdir(parents=True, exist_ok=True)
        rc.write_text("\n".join([show, before, code_for(shell), after, ""]))
        env = {
            "HOME": str(home),
            "ZDOTDIR": str(home),
            "TERM": "dumb",
            "LC_ALL": "C.UTF-8",
            "XDG_CONFIG_HOME": str(home),
            "XDG_DATA_HOME": str(home),
            "HISTFILE": "/dev/null",
        }
        return prompt(*words.split(), shell, "-i", cwd=cwd, env=env)

    return begin


def entered(shell: Prompt, work: Recording, line: str, name: str | None = None) -> None:
    """Type a line, and see that its step is named, and ended."""
    wait_until(lambda: work.steps()[-1:] in ([], [""]), "the line before is over")
    before = len(work.steps())
    shell.type(line)
    wanted = [line if name is None else name, ""]
    wait_until(lambda: len(work.steps()) >= before + 2, f"{line!r} was named")
    assert work.steps()[before:] == wanted


def answer(shell: Prompt, command: str) -> str:
    """Type a command, and return what it prints. What marks the beginning and the end of that is
    not in the command itself."""
    shell.type(f"echo be''gin; {command}; echo e''nd")
    shell.see("begin\r\n")
    return shell.see("\r\nend")


# -- the verb --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_understands_it(shell: str) -> None:
    done = subprocess.run([shell, "-n"], input=code_for(shell), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_without_a_terminal_is_left_alone(shell: str, tmp_path: Path) -> None:
    listing = {"bash": "declare -F", "zsh": "functions", "fish": "functions --all"}[shell]
    script = tmp_path / "script"
    script.write_text(f"{code_for(shell)}\n{listing}\n")
    done = subprocess.run([shell, script], capture_output=True, text=True)
    assert succeed(done).stderr == ""
    assert "ckptfs" not in done.stdout


def test_the_code_is_json_if_asked() -> None:
    record = json.loads(succeed(ckptfs("shell-init", "bash", "--json")).stdout)
    assert record == {"shell": "bash", "code": code_for("bash")}


@pytest.mark.parametrize("words", [(), ("tcsh",), ("bash", "zsh")])
def test_words_that_make_no_sense_are_refused(words: tuple[str, ...]) -> None:
    assert ckptfs("shell-init", *words).returncode == 2


def test_the_code_is_evaluated_as_the_manual_says(home: Path) -> None:
    """As a login does it: nothing is printed."""
    words = f'eval "$({sys.executable} -m ckptfs shell-init bash)"; declare -F __ckptfs_find'
    done = subprocess.run(
        ["bash", "--norc", "-ic", words],
        capture_output=True,
        text=True,
        env={**os.environ, "HOME": str(home)},
    )
    assert done.stdout == "__ckptfs_find\n"


# -- at the prompt ---------------------------------------------------------------------------------


@needs_fuse
@pytest.mark.parametrize("shell", SHELLS)
def test_each_line_names_its_step_before_it_runs(shell: str, start: Start, work: Recording) -> None:
    (work.path / "sub").mkdir(exist_ok=True)
    with start(shell) as at:
        at.see("ready> ")
        entered(at, work, "echo one")
        entered(at, work, "cd sub && touch file; echo 'and more'")
        entered(at, work, "touch ./file &")
        shown = answer(at, "echo $fish_pid" if shell == "fish" else "echo $$")
    assert {pid for _, pid, _ in work.all()} == {int(shown)}


@needs_fuse
@pytest.mark.parametrize("shell", SHELLS)
def test_of_a_very_long_line_the_beginning_is_the_name(
    shell: str, start: Start, work: Recording
) -> None:
    """fish writes 512 bytes at a time."""
    line = f"echo {'x' * 3000}"
    with start(shell) as at:
        at.see("ready> ")
        at.type(line)
        wait_until(lambda: len(work.steps()) >= 2, "it was named, and over")
    name, over, *_ = work.steps()
    assert len(name) >= 512 and line.startswith(name) and not over


@needs_fuse
@pytest.mark.parametrize("shell", SHELLS)
def test_of_several_lines_the_first_is_the_name(shell: str, start: Start, work: Recording) -> None:
    with start(shell) as at:
        at.see("ready> ")
        entered(at, work, "echo 'first\rsecond'", "echo 'first")


@needs_fuse
@pytest.mark.parametrize("shell", SHELLS)
def test_outside_of_a_workspace_nothing_is_told(
    shell: str, start: Start, work: Recording, home: Path
) -> None:
    with start(shell, cwd=home) as at:
        at.see("ready> ")
        assert answer(at, "pwd").strip() == str(home)
        assert work.all() == []
        at.type(f"cd {work.path}")
        entered(at, work, "echo inside")
        entered(at, work, "cd /")
        assert answer(at, "pwd").strip() == "/"
        assert work.steps() == ["echo inside", "", "cd /", ""]


@needs_fuse
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("planted", ["file", "link", "directory link", "pipe"])
def test_a_file_that_another_user_put_there_is_not_written_to(
    shell: str, planted: str, start: Start, work: Recording, home: Path
) -> None:
    trap, victim = home / "trap", home / "victim"
    (trap / "sub").mkdir(parents=True)
    victim.mkdir()
    (victim / ".step").write_text("precious")
    if planted == "directory link":
        (trap / ".checkpoints").symlink_to(victim)
    else:
        (trap / ".checkpoints").mkdir()
        step = trap / ".checkpoints/.step"
        if planted == "file":
            step.write_text("precious")
        elif planted == "link":
            step.symlink_to(victim / ".step")
        else:
            os.mkfifo(step)
    with start(shell, cwd=trap / "sub") as at:
        at.see("ready> ")
        assert answer(at, "pwd").strip() == str(trap / "sub")
    assert (victim / ".step").read_text() == "precious"
    if planted == "file":
        assert (trap / ".checkpoints/.step").read_text() == "precious"


@needs_fuse
@pytest.mark.parametrize("shell", SHELLS)
def test_a_link_where_a_workspace_was_is_not_written_through(
    shell: str, start: Start, work: Recording, home: Path
) -> None:
    """The workspace is known from the last line, and is not there any more at the next prompt."""
    precious, plain, place = home / "precious", home / "plain", home / "place"
    precious.write_text("precious")
    (plain / ".checkpoints").mkdir(parents=True)
    (plain / ".checkpoints/.step").symlink_to(precious)
    place.symlink_to(work.path)
    with start(shell, cwd=home) as typed:
        typed.type(f"cd {place}")
        entered(typed, work, "true")
        typed.type(f"ln -sfn {plain} {place}; cd {home}; cd {place}")
        assert answer(typed, "pwd").strip() == str(place)
    assert precious.read_text() == "precious"


@needs_fuse
@pytest.mark.parametrize("shell", SHELLS[:2])
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: counts processes in a namespace")
def test_nothing_is_forked(shell: str, start: Start, work: Recording) -> None:
    """In a pid namespace of the shell's own the last number that was given out stays the same. Not
    with fish, which has threads of its own."""
    bubble = "unshare --mount --propagation private --pid --fork --kill-child --mount-proc"
    show = "read line </proc/loadavg; echo $line"
    with start(shell, words=bubble) as at:
        at.see("ready> ")
        before = answer(at, show).split()[-1]
        for number in range(10):
            entered(at, work, f"echo {number}")
        assert answer(at, show).split()[-1] == before


# -- bash, which has no hook of its own ------------------------------------------------------------


@needs_fuse
def test_what_was_there_goes_on_as_it_did(start: Start, work: Recording) -> None:
    before = """
        trap 'seen+=("$BASH_COMMAND:$?")' DEBUG
        PROMPT_COMMAND=('asked=$?' 'again=$?;')
        PS0='<go>'
    """
    with start("bash", before) as at:
        at.see("ready> ")
        entered(at, work, "(exit 7)", "asked=$?")  # no trap sees a subshell begin
        at.see("<go>")
        assert answer(at, "echo $asked $again").strip() == "7 7"
        entered(at, work, "seen=(); true; false; true")
        assert "false:0 true:1" in answer(at, "echo ${seen[*]}")


@needs_fuse
def test_the_last_argument_and_the_status_are_left_alone(start: Start, work: Recording) -> None:
    with start("bash", after="shopt -s extdebug") as at:
        at.see("ready> ")
        at.type("f() { return 3; }")  # nothing runs, and no step is named
        entered(at, work, "f some words")
        at.type("echo status=$? last=$_")
        at.see("status=3 last=words\r\n")


@needs_fuse
def test_lines_that_the_history_does_not_have(start: Start, work: Recording) -> None:
    with start("bash", "HISTCONTROL=ignoreboth\nHISTIGNORE='echo ignored'\nHISTSIZE=3") as at:
        at.see("ready> ")
        entered(at, work, "true && echo once")
        entered(at, work, "true && echo once", "true")
        entered(at, work, " echo spaced", "echo spaced")
        entered(at, work, "echo ignored")
        entered(at, work, "true || echo next")
        entered(at, work, "set +o history")
        entered(at, work, "echo without")


@needs_fuse
def test_options_that_change_what_a_shell_does(start: Start, work: Recording) -> None:
    options = "set -o noclobber -o nounset -o noglob -o functrace; shopt -s failglob nullglob"
    with start("bash", options) as at:
        at.see("ready> ")
        entered(at, work, "echo one")
        entered(at, work, "cd .")
        assert answer(at, "echo $-; shopt failglob").split()[-1] == "on"


@needs_fuse
def test_twice_in_an_rc_file_is_once(start: Start, work: Recording) -> None:
    with start("bash", after=code_for("bash")) as at:
        at.see("ready> ")
        entered(at, work, "echo one")
    assert work.steps()[:2] == ["echo one", ""]
