"""Marks: which moment gets a checkpoint of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs.control.verbs import perform
from ckptfs.errors import ControlError
from ckptfs.history import checkpoints, settings
from ckptfs.service import Service
from tests.history.edits import Edits, edits


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Edits]:
    with edits(tmp_path / "store") as made:
        made.save("first")
        yield made


def mark(work: Edits, message: str, **more: object) -> dict[str, object]:
    return perform(Service(work.fs), "mark", {"kind": "hook", "message": message, **more}, None)


def test_a_weak_mark_is_content_with_any_checkpoint_of_the_same_state(work: Edits) -> None:
    found = mark(work, "prompt", weak=True)
    assert (found["id"], found["message"], found["changed"]) == (0, "first", False)
    work.put("x", b"1")
    assert mark(work, "prompt", weak=True)["changed"]


def test_a_mark_of_another_kind_is_not_touched(work: Edits) -> None:
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
def test_nobody_makes_other_kinds_that_way(work: Edits, kind: str) -> None:
    with pytest.raises(ControlError, match="no kind of mark"):
        mark(work, "x", kind=kind)


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
