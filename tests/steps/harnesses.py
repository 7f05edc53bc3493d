"""Ways in which agents start commands and edit files.

Each is a small real program (`programs/`), started as from a prompt: in a process group of its own,
in the case's directory. It is fed a list of steps with the pause after each, and runs them.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.steps.plans import Plan, Run, Step, Text, Version, Write, by_one_liner, by_redirection
from tests.support.programs import ENVIRONMENT

PROGRAMS = Path(__file__).parent / "programs"
#: A whole case takes seconds, and no step of it longer than a minute.
PATIENCE = 180.0
#: Before the first version is made: nothing is destroyed there.
_SETUP_GAP = 0.05

#: From the commands of a step, its number and a directory outside of the workspace to one command.
Wrap = Callable[[tuple[str, ...], int, Path], str]


@dataclass(frozen=True)
class Harness:
    name: str
    #: The program and the way it is to use.
    argv: tuple[str, ...]
    wrap: Wrap = lambda commands, number, outside: " && ".join(commands)
    #: How a file is written by a command; None is the harness's own process.
    write: Callable[[str, Text], str] | None = by_redirection
    #: Every write is two edits: the first is destroyed by the second.
    drafts: bool = False
    #: The program is started by a link of this name: what a program does tells what it is, not how
    #: it is called.
    called: str = ""
    #: All is one tool call, so that only what stood for a second is promised.
    one_step: bool = False
    needs: str = "bash"

    @property
    def missing(self) -> str:
        """Why it cannot run here, if it cannot."""
        if shutil.which(self.needs) is None:
            return f"{self.needs} is not installed"
        return _bwrap_refusal() if self.needs == "bwrap" else ""


@cache
def _bwrap_refusal() -> str:
    command = ["bwrap", "--unshare-pid", "--dev-bind", "/", "/", "--", "true"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    return f"bwrap cannot run here: {done.stderr.strip()}" if done.returncode else ""


# -- one tool call --------------------------------------------------------------------------------


def _script(commands: tuple[str, ...], number: int, outside: Path) -> str:
    path = outside / f"step{number}.sh"
    path.write_text("set -e\n" + "".join(f"{command}\n" for command in commands))
    return f"sh {path}"


def _xargs(commands: tuple[str, ...], number: int, outside: Path) -> str:
    words = " ".join(map(shlex.quote, commands))
    return f"printf '%s\\0' {words} | xargs -0 -P4 -I@@ bash -c @@"


def _make(commands: tuple[str, ...], number: int, outside: Path) -> str:
    path = outside / f"step{number}.mk"
    targets = [f"part{part}" for part in range(len(commands))]
    rules = [f"all: {' '.join(targets)}", f".PHONY: all {' '.join(targets)}", "SHELL = /bin/bash"]
    for target, command in zip(targets, commands, strict=True):
        rules += [f"{target}:", "\t@" + command.replace("$", "$$")]
    path.write_text("\n".join(rules) + "\n")
    return f"make -s -j2 -f {path}"


def _bwrap(options: str) -> Wrap:
    def wrap(commands: tuple[str, ...], number: int, outside: Path) -> str:
        command = shlex.quote(" && ".join(commands))
        return f'bwrap --unshare-pid {options} --chdir "$PWD" -- bash -c {command}'

    return wrap


def _python(way: str) -> tuple[str, ...]:
    return (sys.executable, "-S", str(PROGRAMS / "agent.py"), way)


def _node(way: str) -> tuple[str, ...]:
    return ("node", str(PROGRAMS / "agent.js"), way)


#: A container of which the harness is a part.
_SANDBOX = ("bwrap", "--unshare-pid", "--dev-bind", "/", "/", "--proc", "/proc", "--")

HARNESSES = {
    made.name: made
    for made in (
        Harness("python", _python("run")),
        Harness("python-session", _python("session")),
        Harness("asyncio", _python("asyncio")),
        Harness("node-exec", _node("exec"), needs="node"),
        Harness("node-spawn", _node("spawn"), needs="node"),
        Harness("node-detached", _node("detached"), needs="node"),
        Harness("bash-pipe", _python("pipe")),
        Harness("bash-terminal", _python("terminal")),
        Harness("tmux", _python("tmux"), needs="tmux"),
        Harness("bwrap", _python("run"), wrap=_bwrap("--dev-bind / /"), needs="bwrap"),
        Harness(
            "bwrap-bind",
            _python("run"),
            wrap=_bwrap(
                '--ro-bind / / --dev /dev --bind /tmp /tmp --bind "$WORK" "$WORK"',
            ),
            needs="bwrap",
        ),
        Harness("in-bwrap", (*_SANDBOX, *_python("run")), needs="bwrap"),
        Harness("script", _python("run"), wrap=_script),
        Harness("script-whole", ("sh",), one_step=True),
        Harness("xargs", _python("run"), wrap=_xargs, needs="xargs"),
        Harness("make", _python("run"), wrap=_make, needs="make"),
        Harness("bun", _node("exec"), called="bun", needs="node"),
        Harness("java", _python("run"), called="java"),
        Harness("one-liners", _python("run"), write=by_one_liner),
        Harness("edit", _python("plain"), write=None),
        Harness("edit-rename", _python("rename"), write=None),
        Harness("edit-truncate", _python("truncate"), write=None),
        Harness("edit-in-place", _python("in-place"), write=None),
        Harness("edit-twice", _python("plain"), write=None, drafts=True),
        Harness("node-edit", _node("plain"), write=None, needs="node"),
        Harness("node-edit-rename", _node("rename"), write=None, needs="node"),
        Harness("node-edit-sync", _node("sync"), write=None, needs="node"),
    )
}


# -- running a plan -------------------------------------------------------------------------------


def _draft(text: Text) -> Text:
    return text._replace(line=f"{text.line} draft")


def drafted(plan: Plan) -> Plan:
    """The plan with every write made twice, and each first one to be found again."""
    steps: list[Step] = []
    lost = list(plan.lost)
    for step in plan.steps:
        if isinstance(step, Write):
            first = {
                path: text._replace(line=f"{text.line} draft") for path, text in step.files.items()
            }
            lost += [Version(path, f"draft of {text.line}", text) for path, text in first.items()]
            steps.append(Write(first))
        steps.append(step)
    return Plan(tuple(steps), tuple(lost), plan.setup)


def perform(harness: Harness, plan: Plan, gap: float, where: Path, outside: Path) -> None:
    """Run the steps of a plan in the directory `where`, `gap` seconds apart, to the end."""
    steps = list(_feed(harness, plan, gap, outside))
    if harness.one_step:
        program = outside / "plan.sh"
        lines = [line for step in steps for line in (step["run"], f"sleep {step['gap']}")]
        program.write_text("set -e\n" + "\n".join(lines) + "\n")
    else:
        program = outside / "plan.json"
        program.write_text(json.dumps(steps))
    start([*_argv(harness, outside), str(program)], where, outside)


def _argv(harness: Harness, outside: Path) -> tuple[str, ...]:
    if not harness.called:
        return harness.argv
    link = outside / harness.called
    link.symlink_to(os.path.realpath(shutil.which(harness.argv[0]) or harness.argv[0]))
    return (str(link), *harness.argv[1:])


def _feed(harness: Harness, plan: Plan, gap: float, outside: Path) -> Iterator[dict[str, Any]]:
    for number, step in enumerate(plan.steps):
        last = number == len(plan.steps) - 1
        early = number < plan.setup and not harness.one_step
        pause = {"gap": 0 if last else _SETUP_GAP if early else gap}
        if isinstance(step, Write) and harness.write is None:
            yield {"write": {path: str(text) for path, text in step.files.items()}, **pause}
        else:
            yield {"run": harness.wrap(_commands(harness, step), number, outside), **pause}


def _commands(harness: Harness, step: Step) -> tuple[str, ...]:
    if isinstance(step, Run):
        return step.commands
    assert harness.write is not None
    return tuple(harness.write(path, text) for path, text in step.files.items())


def start(argv: list[str], where: Path, outside: Path) -> None:
    """Run a program to its end as a prompt would: in a process group of its own."""
    env = {**os.environ, **ENVIRONMENT, "HOME": str(outside), "WORK": str(where.parent)}
    process = subprocess.Popen(
        argv,
        cwd=where,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
        text=True,
    )
    try:
        said, _ = process.communicate(timeout=PATIENCE)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    assert process.returncode == 0, f"{' '.join(argv)}: exit {process.returncode}\n{said}"
