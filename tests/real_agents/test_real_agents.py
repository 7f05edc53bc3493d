"""What coding agents do is kept, with hooks and without: the programs themselves, each in a mounted
workspace, with a scripted stand-in for its model."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from ckptfs.agents.table import AGENTS as HOOKS
from tests.real_agents.agents import INSTALLED, Agent
from tests.real_agents.running import Process, ancestry, started
from tests.real_agents.script import Run
from tests.real_agents.session import (
    APP,
    B_TEXT,
    PATIENCE,
    SED,
    V1,
    V2,
    V3,
    B,
    Session,
    running,
    steps_of,
)
from tests.support.mounting import workspace
from tests.support.waiting import wait_until

pytestmark = pytest.mark.deep

RECORDED = Path(__file__).parent / "recorded"
DOCS = Path(__file__).parents[2] / "docs" / "AGENTS.md"

every_version = pytest.mark.parametrize(
    "path, text",
    [(APP, V1), (APP, V2), (APP, V3), (B, B_TEXT)],
    ids=["v1", "v2", "v3", "b"],
)


def holding(session: Session, checkpoints: list[int], path: str, text: str) -> list[int]:
    """Those of the checkpoints in which a file has this content."""
    return [number for number in checkpoints if session.content(number, path) == text]


def listed(session: Session) -> list[int]:
    return [found["id"] for found in session.listed + session.moments]


def bring_back(session: Session, path: str, text: str) -> None:
    """Restore the version from the newest checkpoint that has it; it must be that to the byte."""
    found = holding(session, listed(session), path, text)
    assert found, f"{text!r} is in no checkpoint:\n{session.told()}"
    session.ok("restore", str(max(found)), path, "--force")
    assert (session.work.path / path).read_bytes() == text.encode()


# -- without hooks ---------------------------------------------------------------------------------


@every_version
def test_without_hooks_every_version_is_in_the_list(
    unhooked: Session, path: str, text: str
) -> None:
    assert holding(unhooked, listed(unhooked), path, text), unhooked.told()


@every_version
def test_without_hooks_every_version_is_in_the_log_of_its_path(
    unhooked: Session, path: str, text: str
) -> None:
    assert holding(unhooked, unhooked.logged[path], path, text), unhooked.told()


@every_version
def test_without_hooks_every_version_comes_back(unhooked: Session, path: str, text: str) -> None:
    bring_back(unhooked, path, text)


@pytest.mark.parametrize("step", ["sed", "rm"])
def test_without_hooks_a_checkpoint_is_named_by_the_command_that_the_agent_was_told_to_run(
    unhooked: Session, step: str
) -> None:
    command = SED if step == "sed" else unhooked.agent.removal
    messages = [found["message"] for found in unhooked.listed + unhooked.moments]
    assert f"before: {command}" in messages, unhooked.told()


def test_without_hooks_no_checkpoint_is_named_by_a_wrapper(unhooked: Session) -> None:
    recorded = json.loads((RECORDED / f"{unhooked.agent.name}-argv.json").read_text())
    wrappers = [process["argv"] for process in recorded["processes"] if process["wraps"]]
    for found in unhooked.listed + unhooked.moments:
        for program in {os.path.basename(argv[0]) for argv in wrappers}:
            assert not re.match(rf"before: (\S*/)?{program}\b", found["message"]), unhooked.told()


# -- with hooks ------------------------------------------------------------------------------------


def before_tools(hooked: Session) -> list[dict[str, Any]]:
    """The checkpoints that a hook took before tools, oldest first."""
    found = hooked.listed[::-1]
    return [item for item in found if "tool" in item["metadata"] or item["kind"] == "mark"]


def test_a_hook_takes_a_checkpoint_before_every_tool_and_names_it(hooked: Session) -> None:
    agent = hooked.agent
    wanted = [
        f"{agent.hook_tools[type(step)]}: {step.command if isinstance(step, Run) else step.path}"
        for step in steps_of(agent)
    ]
    marks = before_tools(hooked)
    assert [found["message"] for found in marks] == wanted
    if agent.hook == "opencode":  # its plugin writes to the control file, which takes no metadata
        assert {found["kind"] for found in marks} == {"mark"}
        return
    assert [found["metadata"]["tool"] for found in marks] == [
        agent.hook_tools[type(step)] for step in steps_of(agent)
    ]
    assert {(found["kind"], found["metadata"]["agent"]) for found in marks} == {
        ("hook", agent.hook)
    }


def test_the_checkpoint_of_a_hook_is_the_state_before_the_tool(hooked: Session) -> None:
    marks = [found["id"] for found in before_tools(hooked)]
    assert [(hooked.content(number, APP), hooked.content(number, B)) for number in marks] == [
        (None, None),
        (V1, None),
        (V2, None),
        (V3, None),
        (V3, B_TEXT),
    ]


@every_version
def test_with_hooks_every_version_is_in_the_log_of_its_path(
    hooked: Session, path: str, text: str
) -> None:
    assert holding(hooked, hooked.logged[path], path, text), hooked.told()


@every_version
def test_with_hooks_every_version_comes_back(hooked: Session, path: str, text: str) -> None:
    bring_back(hooked, path, text)


# -- the command lines, recorded for other tests ---------------------------------------------------

#: Waits in the shell itself, without another program.
SAYS = "it runs"
WAITS = f"echo '{SAYS}' > ready; until [ -e go ]; do :; done"


def test_the_recorded_command_lines_are_those_of_the_installed_version(agent: Agent) -> None:
    """`CKPTFS_RECORD=1` writes them anew."""
    found = {
        "agent": agent.name,
        "version": agent.version(),
        "command": WAITS,
        "processes": processes_of(agent),
    }
    path = RECORDED / f"{agent.name}-argv.json"
    if os.environ.get("CKPTFS_RECORD"):
        path.write_text(json.dumps(found, indent=1) + "\n")
    assert found == json.loads(path.read_text())


def processes_of(agent: Agent) -> list[dict[str, Any]]:
    """The processes from the agent to the shell that runs a command, outermost first."""
    with workspace() as work:
        with running(agent, work, [Run(WAITS)], hooked=False) as (program, model):
            wait_until(
                lambda: (work.path / "ready").exists() or not program.runs(),
                "the agent runs the command",
                PATIENCE,
            )
            assert program.runs(), f"{program.output()}\n{model.account()}"
            found = ancestry(SAYS, program.pid)
            (work.path / "go").touch()
            program.finish(PATIENCE)
        base = work.path.parent
    return [
        {
            "argv": [same_every_time(word, base) for word in process.argv],
            "leads": leads(process),
            "wraps": any(SAYS in word for word in process.argv),
        }
        for process in found
    ]


def leads(process: Process) -> str:
    if process.pid == process.session:
        return "session"
    return "group" if process.pid == process.group else ""


_VARIES = re.compile(
    r"(?<=snapshot-bash-)\d+-\w+"
    r"|(?<=/claude-)[0-9a-f]{4}(?=-cwd)"
    r"|(?<=/gemini-shell-)\w{6}"
    r"|(?<=/codex-arg0)\w{6}"
    r"|(?<=/shell_snapshots/)[\w.-]+(?=\.sh)"
    r"|(?<=/codex-daemon-)\d+"
    r"|(?<=--max-old-space-size=)\d+"
)


def same_every_time(word: str, base: Path) -> str:
    """A word of a command line without what differs from run to run."""
    placed = word.replace(str(base), "@BASE@").replace(str(INSTALLED), "@AGENTS@")
    return _VARIES.sub("@", placed)


# -- the docs, and the tests' own promise ----------------------------------------------------------


def test_the_docs_say_which_version_of_an_agent_was_tested_and_how(agent: Agent) -> None:
    hooked = "yes" if agent.hook in HOOKS else "–"  # noqa: RUF001
    assert f"| {agent.title} | {agent.version()} | {hooked} | yes |" in DOCS.read_text()


def test_a_program_that_hangs_is_ended_with_all_it_started_and_what_it_said_is_told(
    tmp_path: Path,
) -> None:
    script = "echo so far so good; setsid sleep 1000 & setsid sleep 1000"
    with pytest.raises(AssertionError, match=r"still runs after 0\.5 s:\nso far so good"):
        with started(["/bin/sh", "-c", script], Path("/"), tmp_path, {}) as program:
            program.finish(0.5)
    assert not program.left()
