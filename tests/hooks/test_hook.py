"""`ckptfs hook`: what agents send becomes checkpoints, and nothing holds an agent up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ckptfs.hook import calling
from tests.hooks.conftest import Agent
from tests.support.mounting import Workspace, scratch

# Made from the schemas and examples that the agents' makers publish; see docs/AGENTS.md.
RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.json"))


def before_tool(work: Path, tool: str = "Bash", **more: Any) -> dict[str, Any]:
    record = {
        "session_id": "s",
        "cwd": str(work),
        "hook_event_name": "PreToolUse",
        "tool_name": tool,
        "tool_input": {"command": "make"},
        "tool_use_id": "t",
    }
    return {**record, **more}


# -- what agents send ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_every_recorded_input(agent: Agent, transcript: Path, path: Path) -> None:
    text = path.read_text().replace("@CWD@", str(agent.work.path))
    text = text.replace("@TRANSCRIPT@", str(transcript))
    case = json.loads(text.replace("@LENGTH@", str(transcript.stat().st_size)))
    agent.change()
    before = agent.checkpoints()
    agent.quietly(case["input"])
    after = agent.checkpoints()
    if case["message"] is None:
        assert after == before
        return
    assert len(after) == len(before) + 1
    assert (after[0]["kind"], after[0]["message"]) == ("hook", case["message"])
    assert after[0]["metadata"] == case["metadata"]


def test_the_checkpoint_is_the_state_before_the_tool(agent: Agent) -> None:
    file = agent.work.path / "before"
    file.write_text("old")
    agent.quietly(before_tool(agent.work.path))
    file.write_text("new")
    number = agent.checkpoints()[0]["id"]
    assert (agent.work.path / ".checkpoints" / str(number) / "before").read_text() == "old"


def test_calls_that_find_the_same_state_share_a_checkpoint(agent: Agent) -> None:
    agent.change()
    count = len(agent.checkpoints())
    for number, command in enumerate(("ls", "git status", "make")):
        given = {"tool_input": {"command": command}, "tool_use_id": f"t{number}"}
        agent.quietly(before_tool(agent.work.path, **given))
    found = agent.checkpoints()
    assert len(found) == count + 1
    assert found[0]["message"] == "Bash: make"
    assert found[0]["metadata"]["tool_use_id"] == "t2"
    assert found[0]["metadata"]["earlier_tool_use_ids"] == "t0 t1"


def test_two_sessions_in_the_same_state_have_one_each(agent: Agent) -> None:
    agent.change()
    count = len(agent.checkpoints())
    for session in ("one", "two"):
        agent.quietly(before_tool(agent.work.path, session_id=session))
    assert len(agent.checkpoints()) == count + 2


def test_a_prompt_or_an_end_takes_none_if_nothing_changed(agent: Agent) -> None:
    agent.change()
    agent.quietly(before_tool(agent.work.path))
    before = agent.checkpoints()
    for event in ("UserPromptSubmit", "Stop", "SessionStart", "AfterAgent"):
        agent.quietly({"hook_event_name": event, "cwd": str(agent.work.path), "prompt": "x"})
    assert agent.checkpoints() == before


def test_the_workspace_is_found_from_a_directory_in_it_and_through_a_link(
    agent: Agent, tmp_path: Path
) -> None:
    (agent.work.path / "deep" / "down").mkdir(parents=True, exist_ok=True)
    (tmp_path / "link").symlink_to(agent.work.path)
    for place in (agent.work.path / "deep" / "down", tmp_path / "link" / "deep"):
        agent.change()
        count = len(agent.checkpoints())
        agent.quietly(before_tool(place))
        assert len(agent.checkpoints()) == count + 1


def test_nothing_in_a_message_can_act_on_a_terminal(agent: Agent) -> None:
    agent.change()
    nasty = "printf '\x1b]0;title\x07' \u202e\n\r\t; " + "x" * 5000
    agent.quietly(before_tool(agent.work.path, "Ba\x1b[2Jsh", tool_input={"command": nasty}))
    message = agent.checkpoints()[0]["message"]
    assert message.isprintable() and len(message) <= 200 and message.endswith("…")
    assert message.startswith("Ba\\x1b[2Jsh: printf '\\x1b]0;title\\x07' \\u202e ; xxx")


def test_secrets_in_a_command_are_not_recorded(agent: Agent) -> None:
    agent.change()
    command = "# don't log it\nexport TOKEN='a b'\ncurl -u joe:hunter2 https://x"
    agent.quietly(before_tool(agent.work.path, tool_input={"command": command}))
    message = agent.checkpoints()[0]["message"]
    assert message == "Bash: export TOKEN=***; curl -u joe:*** https://x"


def test_a_command_that_comes_as_words_is_named_without_its_shell(agent: Agent) -> None:
    agent.change()
    words = ["bash", "-lc", "npm test"]
    agent.quietly(before_tool(agent.work.path, "shell", tool_input={"command": words}))
    assert agent.checkpoints()[0]["message"] == "shell: npm test"


# -- where there is nothing to save ----------------------------------------------------------------


def test_outside_of_a_workspace_it_warns(agent: Agent, tmp_path: Path) -> None:
    done = agent.send(before_tool(tmp_path))
    assert done.stdout == b"{}\n"
    assert done.stderr.decode() == (
        f"ckptfs: {tmp_path} is in no workspace, so no checkpoint was taken.\n"
    )


def test_at_the_start_of_a_session_a_person_hears_the_warning(agent: Agent, tmp_path: Path) -> None:
    done = agent.send({"hook_event_name": "SessionStart", "cwd": str(tmp_path)})
    assert "in no workspace" in json.loads(done.stdout)["systemMessage"]


def test_an_unmounted_workspace_is_named_with_what_to_do(own_agent: Agent) -> None:
    own_agent.work.umount()
    done = own_agent.send(before_tool(own_agent.work.path))
    path = own_agent.work.path
    assert f"{path} is not mounted" in done.stderr.decode()
    assert f"ckptfs mount {path}" in done.stderr.decode()


def test_a_daemon_that_was_killed_is_as_good_as_none(own_agent: Agent) -> None:
    own_agent.work.kill()
    done = own_agent.send(before_tool(own_agent.work.path))
    own_agent.work.mount()
    assert b"is not mounted" in done.stderr


def test_a_daemon_that_hangs_holds_nobody_up_for_long(own_agent: Agent) -> None:
    pid = own_agent.work.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        done = own_agent.send(before_tool(own_agent.work.path))  # within its timeout
    finally:
        os.kill(pid, signal.SIGCONT)
    assert b"no checkpoint was taken" in done.stderr


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"   \n",
        b"{",
        b"[]",
        b"null",
        b'"PreToolUse"',
        b"\xff\xfe\x00",
        b'{"hook_event_name": }',
        b'{"a": ' * 5000,
        b"{}",
        b'{"hook_event_name": 7}',
        b'{"hook_event_name": "\\u001b[2J"}',
        b'{"hook_event_name": "BeforeLunch"}',
        b'{"hook_event_name": "PreToolUse", "cwd": "a\\u0000b"}',
        b'{"hook_event_name": "PreToolUse", "cwd": "/\\ud800"}',
        b'{"hook_event_name": "PreToolUse", "cwd": "/tmp", "tool_name": ["x"], "tool_input": 3}',
    ],
    ids=lambda given: given[:40].decode("latin1"),
)
def test_what_makes_no_sense_is_told_on_one_line(agent: Agent, given: bytes) -> None:
    before = agent.checkpoints()
    done = agent.send(given)
    said = done.stderr.decode()
    assert said.startswith("ckptfs: ") and said.endswith(".\n") and said.count("\n") == 1
    assert said[:-1].isprintable()
    assert agent.checkpoints() == before


@pytest.mark.parametrize(
    "strange",
    [
        {"tool_name": None, "tool_input": None},
        {"tool_input": {"command": ["rm", "-rf", "x"]}},
        {"tool_input": {"command": {"not": "text"}, "file_path": ["a"]}},
        {"transcript_path": 5, "session_id": {"a": 1}},
        {"transcript_path": "/no/such\x00file"},
        {"session_id": "\udcff\ud800", "tool_use_id": "x" * 100_000},
    ],
    ids=str,
)
def test_strange_fields_do_not_keep_a_checkpoint_from_being_taken(
    agent: Agent, strange: dict[str, Any]
) -> None:
    agent.change()
    count = len(agent.checkpoints())
    agent.quietly(before_tool(agent.work.path, **strange))
    assert len(agent.checkpoints()) == count + 1


def test_fifty_megabytes_are_read_in_little_memory(agent: Agent) -> None:
    agent.change()
    content = 'line "quoted" \\ end\n' * 2_500_000
    given = before_tool(
        agent.work.path,
        "Write",
        tool_input={"content": content, "file_path": str(agent.work.path / "big")},
        tool_use_id="behind",
    )
    data = json.dumps(given).encode()
    assert len(data) > 50_000_000
    # To hold all of it would take more than this.
    limited = ["sh", "-c", 'ulimit -v 100000; exec "$@"', "sh", sys.executable, "-m", "ckptfs"]
    done = subprocess.run(
        [*limited, "hook"],
        input=data,
        env={**os.environ, **agent.work.env},
        cwd="/",
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"{}\n", b"")
    found = agent.checkpoints()[0]
    assert found["message"] == "Write: big" and found["metadata"]["tool_use_id"] == "behind"


def test_an_agent_that_never_ends_its_input_is_given_up_on(agent: Agent) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "ckptfs", "hook"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **agent.work.env},
    )
    with child:
        assert child.stdin and child.stdout and child.stderr
        child.stdin.write(b'{"hook_event_name"')
        child.stdin.flush()
        assert child.wait(60) == 0
        assert child.stdout.read() == b"{}\n"
        assert b"gave up" in child.stderr.read()


# -- how it starts ---------------------------------------------------------------------------------


def test_a_call_loads_little(agent: Agent) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "ckptfs", "hook"],
        input=json.dumps(before_tool(agent.work.path)).encode(),
        env={**os.environ, **agent.work.env},
        cwd="/",
        capture_output=True,
    )
    lines = done.stderr.decode().splitlines()
    loaded = {line.rpartition("|")[2].strip() for line in lines}
    assert "ckptfs.hook.calling" in loaded
    # What ckptfs asks for; the interpreter's own start may load more of the standard library.
    heavy = {"argparse", "rich", "trio", "lmdb", "pyfuse3", "xxhash", "zstandard", "pathspec"}
    heavy |= {"socket", "ckptfs.errors", "ckptfs.config", "ckptfs.connect", "ckptfs.control"}
    assert not loaded & heavy


def test_it_speaks_the_protocol_of_the_daemon() -> None:
    from ckptfs.control import protocol

    assert calling.PROTOCOL == protocol.VERSION


def test_many_at_once(agent: Agent) -> None:
    agent.change()
    given = json.dumps(before_tool(agent.work.path)).encode()
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "ckptfs", "hook"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **agent.work.env},
        )
        for _ in range(20)
    ]
    answers = [child.communicate(given, timeout=60) for child in children]
    assert all(answer == (b"{}\n", b"") for answer in answers)
    assert all(child.returncode == 0 for child in children)


def test_a_long_path_leads_to_the_socket_too() -> None:
    with scratch() as base:
        work = Workspace(base)
        work.store = base / ("s" * 120) / "store"
        work.store.parent.mkdir()
        work.mount()
        try:
            agent = Agent(work)
            agent.change()
            agent.quietly(before_tool(work.path))
            assert "Bash: make" in work.cli("list", "-w", work.path).stdout
        finally:
            work.finish()
