"""An agent's harness, as small as one can be: runs the steps of a plan, each in its way.

    python agent.py WAY PLAN

PLAN is a JSON file: a list of steps, each with `run` (a shell command) or `write` (paths and their
text, which the harness writes by itself), and `gap`, the seconds to wait after it. Imports nothing
of the tests: it is a program that ckptfs knows nothing of.
"""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

Step = dict[str, Any]

#: No step takes longer; what would hang ends the harness.
PATIENCE = 60


# -- a process for each command -------------------------------------------------------------------


def run(command: str, **how: Any) -> None:
    done = subprocess.run(
        ["bash", "-c", command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        **how,
    )
    if done.returncode:
        sys.exit(f"exit {done.returncode} of: {command}\n{done.stdout}{done.stderr}")


def in_its_session(command: str) -> None:
    run(command, start_new_session=True)


def with_asyncio(steps: list[Step]) -> None:
    async def each() -> None:
        for step in steps:
            process = await asyncio.create_subprocess_shell(
                step["run"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            said, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
            if process.returncode:
                sys.exit(f"exit {process.returncode} of: {step['run']}\n{said.decode()}")
            await asyncio.sleep(step["gap"])

    asyncio.run(each())


# -- one shell for all of them --------------------------------------------------------------------


class Typist:
    """Types commands into a shell, and knows by a file of its own when each has ended."""

    def __init__(self, plan: str, type_line: Callable[[str], object]) -> None:
        self._ends = os.path.dirname(plan)
        self._type = type_line
        self._number = 0

    def __call__(self, command: str) -> None:
        self._number += 1
        end = f"{self._ends}/end.{self._number}"
        self._type(f"{command}; echo $? > {end}.new && mv {end}.new {end}\n")
        deadline = time.monotonic() + PATIENCE
        while not os.path.exists(end):
            if time.monotonic() > deadline:
                sys.exit(f"no end of: {command}")
            time.sleep(0.002)
        with open(end) as file:
            code = file.read().strip()
        if code != "0":
            sys.exit(f"exit {code} of: {command}")


def on_a_pipe(plan: str, steps: list[Step]) -> None:
    shell = subprocess.Popen(["bash"], stdin=subprocess.PIPE, bufsize=0)
    pipe = shell.stdin
    assert pipe is not None
    try:
        one_by_one(steps, Typist(plan, lambda line: pipe.write(line.encode())))
    finally:
        pipe.close()
        shell.wait(PATIENCE)


def on_a_terminal(plan: str, steps: list[Step]) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp("bash", ["bash", "--norc", "-i"])
    threading.Thread(target=drain, args=(terminal,), daemon=True).start()
    try:
        one_by_one(steps, Typist(plan, lambda line: os.write(terminal, line.encode())))
    finally:
        os.write(terminal, b"exit\n")
        os.waitpid(pid, 0)


def drain(terminal: int) -> None:
    """What a shell prints must be read, or it waits."""
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:
        pass  # the shell has ended


def in_tmux(plan: str, steps: list[Step]) -> None:
    tmux = ["tmux", "-S", f"{os.path.dirname(plan)}/tmux", "-f", "/dev/null"]

    def call(*words: str) -> None:
        subprocess.run([*tmux, *words], check=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)

    def type_line(line: str) -> None:
        call("send-keys", "-t", "agent", "-l", line.rstrip("\n"))
        call("send-keys", "-t", "agent", "Enter")

    call("new-session", "-d", "-s", "agent", "-x", "400", "-y", "50", "bash --norc -i")
    try:
        one_by_one(steps, Typist(plan, type_line))
    finally:
        call("kill-server")


# -- edits by its own process ---------------------------------------------------------------------


def write_plainly(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def write_and_rename(path: str, text: str) -> None:
    new = f"{path}.tmp.{os.getpid()}.{os.urandom(4).hex()}"
    write_plainly(new, text)
    os.replace(new, path)


def truncate_and_write(path: str, text: str) -> None:
    with open(path, "r+" if os.path.exists(path) else "x") as file:
        file.truncate(0)
        file.write(text)


def write_in_place(path: str, text: str) -> None:
    with open(path, "r+" if os.path.exists(path) else "x") as file:
        file.write(text)
        file.truncate()


EDITS = {
    "plain": write_plainly,
    "rename": write_and_rename,
    "truncate": truncate_and_write,
    "in-place": write_in_place,
}


# -- all of them ----------------------------------------------------------------------------------


def one_by_one(
    steps: list[Step],
    run_command: Callable[[str], object],
    edit: Callable[[str, str], object] = lambda path, text: None,
) -> None:
    for step in steps:
        if "run" in step:
            run_command(step["run"])
        for path, text in step.get("write", {}).items():
            os.makedirs(os.path.dirname(path), exist_ok=True)
            edit(path, text)
        time.sleep(step["gap"])


def main() -> None:
    way, plan = sys.argv[1:]
    with open(plan) as file:
        steps = json.load(file)
    if way == "run":
        one_by_one(steps, run)
    elif way == "session":
        one_by_one(steps, in_its_session)
    elif way == "asyncio":
        with_asyncio(steps)
    elif way == "pipe":
        on_a_pipe(plan, steps)
    elif way == "terminal":
        on_a_terminal(plan, steps)
    elif way == "tmux":
        in_tmux(plan, steps)
    else:
        one_by_one(steps, run, EDITS[way])


main()
