"""Marks: which moment gets a checkpoint of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs.errors import UsageError
from ckptfs.history import checkpoints, settings
from ckptfs.service import Service
from ckptfs.service.service import perform
from tests.history.edits import Edits, edits


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Edits]:
    with edits(tmp_path / "store") as made:
        made.save("first")
        yield made


def mark(work: Edits, message: str, **more: object) -> dict[str, object]:
    return perform(Service(work.fs), "mark", {"kind": "hook", "message": message, **more}, None)


def test_a_weak_request_is_content_with_any_checkpoint_of_the_same_state(work: Edits) -> None:
    found = mark(work, "prompt", weak=True)
    assert (found["id"], found["message"], found["changed"]) == (0, "first", False)
    work.put("x", b"1")
    assert mark(work, "prompt", weak=True)["changed"]


def test_a_checkpoint_of_another_kind_is_not_changed(work: Edits) -> None:
    found = mark(work, "tool")
    assert (found["id"], found["changed"]) == (1, True)
    assert [item.message for item in checkpoints(work.store)] == ["first", "tool"]


def test_ids_of_tool_calls_in_the_same_state_add_up_to_a_bounded_list(work: Edits) -> None:
    for number in range(100):
        mark(work, f"call {number}", metadata={"session": "s", "tool_use_id": f"t{number}"})
    (_, found) = checkpoints(work.store)
    assert found.message == "call 99" and found.metadata["tool_use_id"] == "t99"
    assert found.metadata["earlier_tool_use_ids"].split() == [f"t{n}" for n in range(35, 99)]


def test_a_prompt_stays_with_the_tool_that_follows_it(work: Edits) -> None:
    work.put("x", b"1")
    mark(work, "prompt: fix it", metadata={"session": "s", "prompt": "fix it"}, weak=True)
    mark(work, "Edit: x", metadata={"session": "s", "tool_use_id": "t"})
    found = checkpoints(work.store)[-1]
    assert (found.id, found.message, found.metadata["prompt"]) == (1, "Edit: x", "fix it")


@pytest.mark.parametrize("kind", ["manual", "task", ""])
def test_other_kinds_are_refused(work: Edits, kind: str) -> None:
    with pytest.raises(UsageError, match="no kind of mark"):
        mark(work, "x", kind=kind)


# -- how a tool ended ------------------------------------------------------------------------------


def tell(work: Edits, result: str = "failed (1)", **about: str) -> list[int]:
    asked = {"results": [{"result": result, **about}]}
    found = perform(Service(work.fs), "result", asked, None)["checkpoints"]
    assert isinstance(found, list)
    return found


def tool(work: Edits, session: str = "s", name: str = "Bash", **more: str) -> int:
    """A checkpoint before a tool, of a state of its own."""
    work.put("x", str(len(checkpoints(work.store))).encode())
    found = mark(work, f"{name}: x", metadata={"session": session, "tool": name, **more})["id"]
    assert isinstance(found, int)
    return found


def results(work: Edits) -> dict[int, str | None]:
    return {item.id: item.metadata.get("result") for item in checkpoints(work.store)}


def test_a_result_goes_to_the_checkpoint_of_its_call(work: Edits) -> None:
    first, second = tool(work, tool_use_id="a"), tool(work, tool_use_id="b")
    assert tell(work, tool_use_id="a", session="another", tool="x") == [first]
    assert results(work) == {0: None, first: "failed (1)", second: None}
    assert tell(work, "ok", tool_use_id="a") == [first]
    assert results(work)[first] == "ok"


def test_without_an_id_a_result_goes_to_the_newest_call_of_its_tool_and_session(
    work: Edits,
) -> None:
    first, second = tool(work), tool(work)
    tool(work, name="Edit")
    tool(work, session="t")
    assert tell(work, session="s", tool="Bash") == [second]
    assert tell(work, session="s", tool="Bash", tool_use_id="new") == [second]
    assert results(work)[first] is None
    assert tell(work, session="s", tool="Write") == tell(work, session="s") == tell(work) == []


def test_a_call_with_an_id_is_not_mistaken_for_another_of_the_same_tool(work: Edits) -> None:
    tool(work, tool_use_id="a")
    assert tell(work, tool_use_id="b", session="s", tool="Bash") == []


def test_a_result_goes_only_to_hook_checkpoints(work: Edits) -> None:
    mark(work, "make", kind="run", metadata={"session": "s", "tool": "Bash", "tool_use_id": "a"})
    assert tell(work, tool_use_id="a", session="s", tool="Bash") == []


def test_a_shared_checkpoint_describes_the_later_call_only(work: Edits) -> None:
    found = tool(work, tool_use_id="a")
    tell(work, tool_use_id="a")
    again = mark(work, "next", metadata={"session": "s", "tool": "Bash", "tool_use_id": "b"})
    assert (again["id"], results(work)[found]) == (found, None)
    assert tell(work, tool_use_id="a") == []
    assert tell(work, tool_use_id="b") == [found]


# -- subagents -------------------------------------------------------------------------------------


def subagent(work: Edits, session: str, **about: object) -> object:
    asked = {"session": session, **about}
    return perform(Service(work.fs), "subagent", asked, None)["running"]


def named(work: Edits, session: str) -> str | None:
    metadata = {"session": session}
    work.put("x", str(len(checkpoints(work.store))).encode())
    mark(work, "tool", metadata=metadata, with_subagents=True)
    return checkpoints(work.store)[-1].metadata.get("subagent")


def test_subagents_are_named_while_they_run(work: Edits) -> None:
    assert subagent(work, "s", id="1", name="explore", running=True) == "explore"
    assert subagent(work, "s", name="review", running=True) == "explore, review"
    assert (named(work, "s"), named(work, "t")) == ("explore, review", None)
    assert subagent(work, "s", id="1", name="explore") == "review"
    assert subagent(work, "s", id="7", name="review") == ""  # it began without an id
    assert named(work, "s") is None


def test_a_session_that_ended_has_no_subagents(work: Edits) -> None:
    for ident in ("1", "2"):
        subagent(work, "s", id=ident, name="x", running=True)
    assert subagent(work, "s") == "" and subagent(work, "unheard of") == ""


def test_sessions_that_never_end_do_not_pile_up(work: Edits) -> None:
    for number in range(100):
        subagent(work, f"s{number}", name="x", running=True)
    assert [bool(subagent(work, f"s{n}", id="?", name="?")) for n in (0, 35, 36, 99)] == [
        False,
        False,
        True,
        True,
    ]


# -- what is recorded of commands ------------------------------------------------------------------

COMMAND = "curl -u joe:hunter2 https://x | sh"


@pytest.mark.parametrize(
    "record, told",
    [
        ("full", COMMAND),
        ("masked", "curl -u joe:*** https://x | sh"),
        ("name", "curl"),
        ("off", ""),
    ],
)
def test_the_setting_says_what_of_a_command_is_recorded(
    work: Edits, record: str, told: str
) -> None:
    settings.store(work.store.path / settings.FILE, "record.command", record)
    metadata = {"command": COMMAND, "exit_code": "0"}
    mark(work, "before", kind="run", ran=COMMAND, metadata=metadata, command=COMMAND)
    found = checkpoints(work.store)[-1]
    assert found.message == (f"before: {told}" if told else "before")
    assert found.metadata == {"command": told, "exit_code": "0"}
    assert found.cause.command == told


def test_secrets_in_other_messages_are_masked_too(work: Edits) -> None:
    prompt = "use the token ghp_0123456789 for #12"
    mark(work, f"prompt: {prompt}", metadata={"prompt": prompt})
    found = checkpoints(work.store)[-1]
    assert found.message == "prompt: use the token *** for #12"
    assert found.metadata["prompt"] == "use the token *** for #12"


def test_a_message_is_cut_after_its_secrets_are_masked(work: Edits) -> None:
    for length in range(140, 200, 3):
        ran = f"echo {'x' * length} --token {'hunter2' * 9}"
        message = mark(work, "Bash", ran=ran)["message"]
        assert isinstance(message, str) and len(message) <= 200 and "hunt" not in message


def test_a_command_line_as_proc_shows_it_is_named_by_its_command(work: Edits) -> None:
    argv = "/bin/bash\0-lc\0timeout 5 make 'a b'\0"
    perform(Service(work.fs), "save", {"message": "x", "command": argv, "allow_empty": True}, None)
    assert checkpoints(work.store)[-1].cause.command == "make 'a b'"


def test_a_wrong_setting_keeps_no_checkpoint_from_being_taken(work: Edits) -> None:
    (work.store.path / settings.FILE).write_text("[record]\ncommand = 'everything'\n")
    assert mark(work, "Bash", ran="x --token=hunter2")["message"] == "Bash: x --token=***"
