"""What events mean, however they and their fields are spelled: without a daemon."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptfs.agents import hook_input, outcome
from ckptfs.agents.events import EVENTS, Event, Request, Unknown, requests_for
from ckptfs.service.verbs import VERBS


def asked(record: dict[str, Any], hint: str = "", named: str = "") -> list[Request]:
    return requests_for(Event(record, hint, named), "/w")


def mark(record: dict[str, Any], hint: str = "") -> dict[str, Any]:
    ((op, args),) = asked(record, hint)
    assert op == "mark"
    return args


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", hook_input.FIELDS["event"])
@pytest.mark.parametrize("event", ["PreToolUse", "preToolUse", "pre_tool_use", "pre-tool-use"])
def test_an_event_is_known_by_every_name_and_spelling(field: str, event: str) -> None:
    found = mark({field: event, "tool_name": "Bash", "tool_input": {"command": "make"}})
    assert (found["message"], found["ran"]) == ("Bash", "make") and not found["weak"]


def nested(path: str, value: object) -> dict[str, Any]:
    """A record with that value at a dotted path."""
    for part in reversed(path.split(".")):
        value = [value] if part.isdecimal() else {part: value}
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize(
    "what, key",
    [("session", "session"), ("turn", "turn"), ("tool", "tool"), ("tool_use_id", "tool_use_id")],
)
def test_what_is_kept_with_a_checkpoint_is_found_under_every_name(what: str, key: str) -> None:
    for path in hook_input.FIELDS[what]:
        record = {"hook_event_name": "PreToolUse", **nested(path, "x1")}
        assert mark(record)["metadata"][key] == "x1", path


@pytest.mark.parametrize("path", hook_input.FIELDS["directory"])
def test_the_directory_is_found_under_every_name(path: str) -> None:
    assert hook_input.directory({"cwd": "", **nested(path, "/w/deep")}) == "/w/deep"
    assert hook_input.directory({"cwd": "relative", **nested("workspaceRoots.0", "/w")}) == "/w"


@pytest.mark.parametrize("path", hook_input.INPUTS)
@pytest.mark.parametrize("as_text", [False, True])
def test_what_a_tool_is_given_is_found_under_every_name(path: str, as_text: bool) -> None:
    value: object = {"file_path": "/w/a.c"}
    record = nested(path, json.dumps(value) if as_text else value)
    found = mark({"event": "PreToolUse", "toolName": "Edit", **record})
    assert found["message"] == "Edit: a.c"


def test_the_name_that_is_only_about_hooks_wins() -> None:
    with_both = {"hook_event_name": "FileChanged", "event": "PreToolUse", "tool_name": "Bash"}
    assert asked(with_both) == []


@pytest.mark.parametrize("event", ["BeforeLunch", "", "PreToolUse\0", "\x1b[2J", "x" * 5000])
def test_an_unknown_event_is_named_and_nothing_is_asked_for(event: str) -> None:
    with pytest.raises(Unknown) as caught:
        asked({"hook_event_name": event})
    words = str(caught.value)
    assert words.isprintable() and 0 < len(words) <= 200


def test_every_event_of_the_table_is_something_that_can_be_done() -> None:
    ops = set()
    for key in EVENTS:
        record = {"hook_event_name": key, "session_id": "s", "tool_name": "Bash", "taskId": "t"}
        for op, args in asked(record, "cursor"):
            assert VERBS[op].decode(args) and json.loads(json.dumps(args)) == args
            ops.add(op)
    assert ops >= {"mark", "result", "subagent", "task_announce", "task_finish"}


# -- whose it is -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record, hint, agent",
    [
        ({"cursor_version": "2"}, "claude", "cursor"),
        ({"agent_action_name": "pre_run_command"}, "", "windsurf"),
        ({"clineVersion": "3"}, "", "cline"),
        ({"artifactDirectoryPath": "/x"}, "", "antigravity"),
        ({"matcher_context": None}, "", "goose"),
        ({"turn_id": "1"}, "", "codex"),
        ({"transcript_path": "/home/me/.factory/s.jsonl"}, "claude", "droid"),
        ({"transcript_path": "/home/me/.qwen/s.jsonl", "timestamp": "t"}, "", "qwen"),
        ({"transcriptPath": "/home/me/.copilot/s"}, "", "copilot"),
        ({"timestamp": "t", "transcript_path": "/x"}, "", "gemini"),
        ({"timestamp": "t"}, "", "copilot"),
        ({"timestamp": "t"}, "kiro", "kiro"),
        ({"hook_event_name": "BeforeTool"}, "", "gemini"),
        ({}, "goose", "goose"),
        ({}, "../../etc", "claude"),
        ({"agent": "mine"}, "claude", "mine"),
        ({"agent": 7}, "", "claude"),
    ],
    ids=str,
)
def test_the_agent_is_recognised_by_its_input(
    record: dict[str, object], hint: str, agent: str
) -> None:
    assert hook_input.agent_of(record, hint) == agent


@pytest.mark.parametrize(
    "tool, own",
    [
        ("mcp__ckptfs__checkpoint_list", True),
        ("mcp__plugin_ckptfs_ckptfs__checkpoint_list", True),
        ("mcp__plugin_any_name_ckptfs__file_history", True),
        ("mcp_ckptfs_workspace_status", True),
        ("ckptfs_checkpoint_diff", True),
        ("ckptfs___checkpoint_diff", True),
        ("ckptfs-checkpoint_diff", True),
        ("@ckptfs/checkpoint_diff", True),
        ("MCP:checkpoint_diff", True),
        ("mcp__plugin_ckptfs_other__write", False),
        ("mcp__other__ckptfs", False),
        ("mcp__notckptfs__x", False),
        ("checkpoint_model", False),
        ("Bash", False),
    ],
)
def test_our_own_tools_are_known_under_every_agents_name_for_them(tool: str, own: bool) -> None:
    assert (asked({"hook_event_name": "PreToolUse", "tool_name": tool}) == []) is own


# -- how a tool ended ------------------------------------------------------------------------------


def ended(record: dict[str, Any], agent: str = "claude") -> str:
    return outcome.result_of(Event({"hook_event_name": "PostToolUse", **record}, agent))


@pytest.mark.parametrize(
    "answer, result",
    [
        ({"exitCode": 0}, "ok"),
        ({"exit_code": 137}, "failed (137)"),
        ({"exitCode": -9}, "failed (-9)"),
        ({"exitCode": True}, "ok"),
        ({"success": False}, "failed"),
        ({"success": True, "error": ""}, "ok"),
        ({"error": "no such file"}, "failed"),
        ({"error": {"message": "x"}}, "failed"),
        ({"isError": True}, "failed"),
        ({"resultType": "denied"}, "failed"),
        ({"status": "cancelled"}, "interrupted"),
        ({"interrupted": True}, "interrupted"),
        ('{"exitCode": 4}', "failed (4)"),
        ('{"exitCode": ', "ok"),
        ("Exit code 3\nwhat it printed", "failed (3)"),
        ("Exit Code: 3\nmore\nExit Code: 0\n", "ok"),
        ("it says exit code 3 somewhere", "ok"),
        ("Process exited with code 12", "failed (12)"),
        ([{"type": "text", "text": "Exit code 5"}], "failed (5)"),
        (["x"], "ok"),
        (7, "ok"),
        (None, "ok"),
    ],
    ids=str,
)
def test_how_a_tool_ended_is_read_from_its_answer(answer: object, result: str) -> None:
    assert ended({"tool_name": "Bash", "tool_response": answer}) == result
    assert ended({"tool_name": "Bash", "toolResult": answer}) == result


def test_agents_that_do_not_tell_how_a_tool_ended_are_not_taken_at_their_word() -> None:
    assert ended({"tool_name": "Bash", "tool_response": "done"}, "codex") == ""
    assert ended({"tool_name": "Bash", "tool_response": {"exitCode": 1}}, "codex") == "failed (1)"


@pytest.mark.parametrize(
    "error, result",
    [
        ("Exit code 2\nExit code 5 it printed", "failed (2)"),
        ("Command failed with exit code 9", "failed (9)"),
        ("Exit code 0", "failed"),
        ("it broke", "failed"),
        ("", "failed"),
        (None, "failed"),
        ({"message": "x"}, "failed"),
    ],
    ids=str,
)
def test_how_a_tool_failed_is_read_from_the_error(error: object, result: str) -> None:
    record = {"hook_event_name": "PostToolUseFailure", "tool_name": "Bash", "error": error}
    assert outcome.result_of(Event(record)) == result


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
NAMED = sorted({path.split(".")[0] for paths in hook_input.FIELDS.values() for path in paths})
NAMED += ["tool_input", "tool_response", "tool_calls", "tool_output", "agent", "toolArgs"]


@given(st.dictionaries(st.sampled_from(NAMED), JSON), st.sampled_from(sorted(EVENTS)))
def test_whatever_stands_in_the_fields_is_taken(record: dict[str, Any], event: str) -> None:
    for op, args in asked({**record, "hook_event_name": event}, "qwen"):
        line = json.dumps({"op": op, "args": args})
        assert len(line) < 64 * 1024
