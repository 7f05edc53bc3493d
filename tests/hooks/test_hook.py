"""`ckptfs hook`: what agents send becomes checkpoints, and nothing holds an agent up."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ckptfs import config, locating
from ckptfs.agents import events, hook_call
from ckptfs.agents.hook_input import NAMES
from ckptfs.agents.table import AGENTS
from ckptfs.control.client import Client
from ckptfs.control.protocol import VERSION
from ckptfs.history import tasks
from tests.hooks.conftest import RECORDINGS, Agent, Case
from tests.support.mounting import Workspace, scratch

RECORDED = sorted(path.stem for path in RECORDINGS.glob("*.json"))


def follows(name: str) -> str:
    """The recorded input before the tool that this one tells the end of; empty if it is none."""
    return str(json.loads((RECORDINGS / f"{name}.json").read_text()).get("follows", ""))


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


@pytest.mark.parametrize("name", [name for name in RECORDED if not follows(name)])
def test_every_recorded_input_takes_its_checkpoint(
    agent: Agent, transcript: Path, name: str
) -> None:
    case = Case(name, agent, transcript)
    agent.change()
    before = agent.checkpoints()
    case.send()
    after = agent.checkpoints()
    if case.fields["message"] is None:
        assert after == before
        return
    assert len(after) == len(before) + 1
    assert (after[0]["kind"], after[0]["message"]) == ("hook", case.fields["message"])
    assert after[0]["metadata"] == case.fields["metadata"]


@pytest.mark.parametrize("name", [name for name in RECORDED if follows(name)])
def test_how_a_tool_ended_is_told_with_the_checkpoint_before_it(
    agent: Agent, transcript: Path, name: str
) -> None:
    case = Case(name, agent, transcript)
    agent.change()
    Case(follows(name), agent, transcript).send()
    before = agent.checkpoints()
    agent.change()
    case.send()
    after = agent.checkpoints()
    assert [item["id"] for item in after] == [item["id"] for item in before]
    assert "result" not in before[0]["metadata"]
    assert after[0]["metadata"].get("result") == case.fields["result"]


def test_there_is_a_recorded_tool_call_of_every_agent() -> None:
    kept = [json.loads((RECORDINGS / f"{name}.json").read_text())["metadata"] for name in RECORDED]
    assert {metadata["agent"] for metadata in kept if metadata and "tool" in metadata} == NAMES


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


# -- what is told beside checkpoints ---------------------------------------------------------------


def after_tool(work: Path, **more: Any) -> dict[str, Any]:
    record = before_tool(work, hook_event_name="PostToolUseFailure", error="Exit code 3\n")
    return {**record, **more}


def test_what_is_shared_tells_how_the_last_call_ended(agent: Agent) -> None:
    agent.change()
    work = agent.work.path
    for ident in ("u1", "u2"):
        agent.quietly(before_tool(work, tool_use_id=ident, session_id="shared"))
    agent.quietly(after_tool(work, tool_use_id="u1", session_id="shared"))
    assert "result" not in agent.checkpoints()[0]["metadata"]  # it is u2's by now
    agent.quietly(after_tool(work, tool_use_id="u2", session_id="shared"))
    assert agent.checkpoints()[0]["metadata"]["result"] == "failed (3)"
    agent.quietly(before_tool(work, tool_use_id="u3", session_id="shared"))
    assert "result" not in agent.checkpoints()[0]["metadata"]


def test_without_an_id_the_newest_of_that_tool_and_session_is_meant(agent: Agent) -> None:
    work = agent.work.path
    for session in ("one", "two"):
        agent.change()
        agent.quietly(before_tool(work, tool_use_id=None, session_id=session))
    agent.change()
    agent.quietly(after_tool(work, tool_use_id=None, session_id="one"))
    (two, one, *_) = agent.checkpoints()
    assert one["metadata"]["result"] == "failed (3)" and "result" not in two["metadata"]


def test_the_list_names_what_failed(agent: Agent) -> None:
    agent.change()
    agent.quietly(before_tool(agent.work.path, tool_use_id="f1"))
    agent.quietly(after_tool(agent.work.path, tool_use_id="f1"))
    listed = agent.work.cli("list", "-n", "1", "-w", agent.work.path).stdout
    assert "Bash: make; failed (3)" in listed


def test_the_command_of_a_tool_is_noted_with_its_exit_code(agent: Agent) -> None:
    agent.change()
    path = agent.work.path
    call = {"tool_use_id": "run-1", "tool_input": {"command": "pytest -q --token=hunter2"}}
    agent.quietly(before_tool(path, **call))
    agent.quietly(after_tool(path, tool_use_id="run-1"))
    (run,) = agent.checkpoints()[0]["runs"]
    assert (run["exit_code"], run["command"]) == (3, "pytest -q --token=***")
    again = {**call, "tool_use_id": "run-2"}
    agent.quietly(before_tool(path, **again))
    agent.quietly(before_tool(path, **again, hook_event_name="PostToolUse", tool_response="ok"))
    (run,) = agent.checkpoints()[0]["runs"]
    assert run["exit_code"] == 0
    passed = agent.work.cli("show", "@ok:pytest", "--json", "-w", path)
    assert passed.returncode == 0


def test_a_result_of_what_was_never_saved_changes_nothing(agent: Agent) -> None:
    # Some of the older ones may expire meanwhile.
    before = {item["id"]: item["metadata"] for item in agent.checkpoints()}
    agent.quietly(after_tool(agent.work.path, tool_use_id="unheard-of", session_id="none"))
    after = {item["id"]: item["metadata"] for item in agent.checkpoints()}
    assert after and all(before.get(number) == metadata for number, metadata in after.items())


def cursor(work: Path, event: str, **more: Any) -> dict[str, Any]:
    record = {"hook_event_name": event, "conversation_id": "c", "cursor_version": "2"}
    return {**record, "workspace_roots": [str(work)], **more}


def test_checkpoints_name_the_subagents_of_their_session_until_they_stop(agent: Agent) -> None:
    work = agent.work.path

    def subagent() -> str | None:
        agent.change()
        agent.quietly(cursor(work, "preToolUse", tool_name="Shell"))
        found: str | None = agent.checkpoints()[0]["metadata"].get("subagent")
        return found

    assert subagent() is None
    for ident, name in (("s1", "explore"), ("s2", "review"), ("s3", "review")):
        start = cursor(work, "subagentStart", subagent_id=ident, subagent_type=name)
        agent.quietly(start)
    assert subagent() == "explore, review"
    agent.quietly(cursor(work, "subagentStart", subagent_type="x", conversation_id="other"))
    agent.quietly(cursor(work, "subagentStop", subagent_id="s1", subagent_type="explore"))
    assert subagent() == "review"
    agent.quietly(cursor(work, "sessionEnd", reason="completed"))
    assert subagent() is None


def tasks_of(agent: Agent) -> dict[str, tuple[str, str]]:
    with Client(config.Workspace(agent.work.path, agent.work.store)) as client:
        return {
            item["name"]: (item["state"], item["message"])
            for item in client.call("task_list")["tasks"]
        }


def test_an_agents_tasks_are_ours_in_the_order_in_which_it_works_them_off(own_agent: Agent) -> None:
    work = own_agent.work.path

    def tell(event: str, subject: str) -> None:
        record = {"hook_event_name": event, "cwd": str(work), "session_id": "s"}
        own_agent.quietly({**record, "task_id": "1", "task_subject": subject})

    for subject in ("parse", "print", "test", "parse"):  # twice is once
        tell("TaskCreated", subject)
    assert [state for state, _ in tasks_of(own_agent).values()] == ["current", "open", "open"]
    (work / "parser.c").write_text("1")
    tell("TaskCompleted", "parse")
    (work / "printer.c").write_text("2")
    tell("TaskCompleted", "test")  # before its turn
    tell("TaskCompleted", "print")
    tell("TaskCompleted", "print")
    tell("TaskCompleted", "unheard of")
    assert {state for state, _ in tasks_of(own_agent).values()} == {"done"}
    reverted = own_agent.work.cli("task", "revert", "print", "-w", work)
    assert reverted.returncode == 0, reverted.stderr
    assert (work / "parser.c").exists() and not (work / "printer.c").exists()


def test_a_task_of_cline_is_known_by_its_number_and_shown_with_its_words(own_agent: Agent) -> None:
    base = {"clineVersion": "3", "taskId": "17", "workspaceRoots": [str(own_agent.work.path)]}
    start = {"taskMetadata": {"taskId": "17", "initialTask": "Fix\nthe parser"}}
    own_agent.quietly({**base, "hookName": "TaskStart", "taskStart": start})
    assert tasks_of(own_agent) == {"cline 17": ("current", "Fix the parser")}
    own_agent.quietly({**base, "hookName": "TaskComplete", "taskComplete": {}})
    assert tasks_of(own_agent) == {"cline 17": ("done", "Fix the parser")}


def test_a_call_leaves_a_note_of_its_agent(agent: Agent) -> None:
    note = Path(locating.hook_note("goose", agent.work.env))
    note.unlink(missing_ok=True)
    for _ in range(2):
        agent.quietly({"event": "Notification", "session_id": "s"}, "--agent", "goose")
        assert note.stat().st_size == 0
        os.utime(note, ns=(0, 0))
    agent.quietly({"event": "Notification"}, "--agent", "goose")
    assert note.stat().st_mtime_ns > 0
    agent.quietly({"event": "Notification", "agent": "../../../x"})
    assert {path.name for path in note.parent.iterdir()} <= NAMES


def test_where_no_note_can_be_left_the_call_goes_on(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "ckptfs").write_text("no directory")
    env = {**os.environ, "XDG_DATA_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "ckptfs", "hook"],
        input=b'{"hook_event_name": "Notification"}',
        env=env,
        capture_output=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"{}\n", b"")


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


def test_a_daemon_that_hangs_does_not_hold_an_agent_up_for_long(own_agent: Agent) -> None:
    pid = own_agent.work.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        done = own_agent.send(before_tool(own_agent.work.path))  # within its timeout
    finally:
        os.kill(pid, signal.SIGCONT)
    assert b"no checkpoint was taken" in done.stderr


def test_a_daemon_that_hangs_with_a_full_queue_is_not_asked_through_the_mount(
    own_agent: Agent,
) -> None:
    pid, waiting = own_agent.work.pid, []
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        with suppress(BlockingIOError):  # the queue is full
            while True:
                waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                waiting[-1].setblocking(False)
                waiting[-1].connect(str(own_agent.work.store / "control.sock"))
        done = own_agent.send(before_tool(own_agent.work.path))  # within its timeout
    finally:
        for connection in waiting:
            connection.close()
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


BAD = {
    "nothing": b"",
    "a megabyte of nonsense": b"x" * (1 << 20),
    "more than a megabyte of nonsense": b"x" * (3 << 20),
    "no UTF-8": b'{"hook_event_name": "\xff\xfe"}',
    "cut off": b'{"hook_event_name": "PreToolUse", "tool_input": {"command": "mak',
    "nested too deeply": b'{"tool_input": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "a list": b"[1, 2, 3]",
}
ANSWERS = {
    "claude": b"{}\n",
    "cursor": b"{}\n",
    "kiro": b"",
    "droid": b"",
    "antigravity": b'{"decision": "ask"}\n',
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("bad", BAD)
def test_bad_input_gets_the_answer_that_forbids_nothing(agent: Agent, name: str, bad: str) -> None:
    before = agent.checkpoints()
    done = agent.call(BAD[bad], "--agent", name, "--event", "PreToolUse")
    assert done.stdout == ANSWERS[name]
    said = done.stderr.decode()
    assert said.startswith("ckptfs: ") and said.count("\n") == 1 and len(said) < 500
    assert agent.checkpoints() == before


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("claude", b"{}\n"),
        ("remove claude", b"{}\n"),
        ("--agnt x", b"{}\n"),
        ("--agent", b"{}\n"),
        ("--agent claude --event status --agnt x", b"{}\n"),
        ("--agent kiro --evnt PreToolUse", b""),
        ("--agent=antigravity --event PreToolUse stop", b'{"decision": "ask"}\n'),
        ("--trust-owner no-such-user", b"{}\n"),
        ("-w", b"{}\n"),
    ],
)
def test_a_wrong_command_line_blocks_no_agent(agent: Agent, words: str, answer: bytes) -> None:
    """Agents take the exit code of a usage error, 2, for an order to block."""
    before = agent.checkpoints()
    done = agent.call(before_tool(agent.work.path), *words.split())
    assert done.stdout == answer
    said = done.stderr.decode()
    assert said.startswith("ckptfs: Cannot ") and said.count("\n") == 1
    assert said.endswith(" No checkpoint was taken.\n")
    assert agent.checkpoints() == before


@pytest.mark.parametrize("words", ["install --bad", "--bad status", "plugin a b", "uninstall no"])
def test_a_wrong_command_line_of_a_person_is_a_usage_error(words: str) -> None:
    command = [sys.executable, "-m", "ckptfs", "hook", *words.split()]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.parametrize("name", sorted(NAMES))
def test_an_unknown_event_of_any_agent_is_passed_over(agent: Agent, name: str) -> None:
    before = agent.checkpoints()
    done = agent.call({"hook_event_name": "OnFullMoon", "cwd": "/"}, "--agent", name)
    assert done.stdout == ANSWERS.get(name, b"{}\n").replace(b'"decision": "ask"', b"")
    said = b"ckptfs: the hook event OnFullMoon is unknown. No checkpoint was taken.\n"
    assert done.stderr == said
    assert agent.checkpoints() == before


def test_a_command_that_names_the_event_needs_no_input(agent: Agent) -> None:
    agent.change()
    done = subprocess.run(
        [sys.executable, "-m", "ckptfs", "hook", "--agent", "kiro", "--event", "PreToolUse"],
        stdin=subprocess.DEVNULL,
        env={**os.environ, **agent.work.env},
        cwd=agent.work.path,
        capture_output=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    found = agent.checkpoints()[0]
    assert (found["message"], found["metadata"]["agent"]) == ("a tool", "kiro")


def test_the_options_of_a_call_may_stand_the_other_way_round(agent: Agent) -> None:
    agent.change()
    given = {"cwd": str(agent.work.path), "tool_name": "shell"}
    agent.quietly(given, "--event", "PreToolUse", "--agent", "kiro", answer=b"")
    assert agent.checkpoints()[0]["metadata"]["agent"] == "kiro"


@pytest.mark.parametrize("event", ["PostToolUse", "SubagentStart", "TaskCreated"])
def test_what_is_only_told_is_not_missed_where_there_is_no_workspace(
    agent: Agent, tmp_path: Path, event: str
) -> None:
    record = {"hook_event_name": event, "cwd": str(tmp_path), "tool_name": "Bash"}
    agent.quietly({**record, "task_subject": "x", "agent_name": "x"}, "--agent", "copilot")


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
    before_antigravity = ["--agent", "antigravity", "--event", "PreToolUse"]
    children = {
        answer: subprocess.Popen(
            [sys.executable, "-m", "ckptfs", "hook", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **agent.work.env},
        )
        for answer, arguments in ((b"{}\n", []), (b'{"decision": "ask"}\n', before_antigravity))
    }
    for child in children.values():
        assert child.stdin
        child.stdin.write(b'{"hook_event_name"')
        child.stdin.flush()
    for answer, child in children.items():
        with child:
            assert child.stdout and child.stderr
            assert child.wait(60) == 0
            assert child.stdout.read() == answer
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
    assert "ckptfs.agents.hook_call" in loaded
    # What ckptfs asks for; the interpreter's own start may load more of the standard library.
    heavy = {"argparse", "rich", "trio", "lmdb", "pyfuse3", "xxhash", "zstandard", "pathspec"}
    heavy |= {"socket", "ckptfs.errors", "ckptfs.config", "ckptfs.connect", "ckptfs.control"}
    assert not loaded & heavy


def test_it_speaks_the_protocol_of_the_daemon() -> None:
    assert hook_call.PROTOCOL == VERSION
    assert events.TASK_NAME_MAX == tasks.NAME_MAX


def test_every_event_that_is_installed_means_something() -> None:
    assert set(AGENTS) == NAMES
    for agent in AGENTS.values():
        for event in agent.events:
            assert events.EVENTS[events.key_of(event)], f"{agent.name}: {event}"


def test_many_calls_at_once_are_all_answered(agent: Agent) -> None:
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
