"""How a tool ended, from what an agent tells after it.

Agents say it in many ways: an event of its own, an exit code, a flag, words. What says nothing is
no result: "ok" stands only where the agent means it.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from ckptfs.agents import hook_input

if TYPE_CHECKING:
    from ckptfs.agents.events import Event

OK, FAILED, INTERRUPTED = "ok", "failed", "interrupted"

#: Where the answer of a tool stands.
_ANSWERS = ("tool_response", "tool_output", "tool_result", "toolResult", "postToolUse")

_CODES = ("exitCode", "exit_code", "exit_status")
#: True means that it went well, and that it did not.
_GOOD = ("success", "ok")
_BAD = ("isError", "is_error", "error", "interrupted", "cancelled")
_STATES = ("resultType", "result_type", "status")
_STATES_BAD = frozenset({"failure", "failed", "error", "denied", "rejected"})
_STATES_CUT = frozenset({"cancelled", "canceled", "aborted", "interrupted"})

#: An exit code in words, on a line of its own as shells' tools write it.
_CODE_LINE = re.compile(
    r"^(?:\w+ )?(?:failed with )?exit(?:ed with)?(?: code| status):? (-?\d{1,9})\b",
    re.IGNORECASE | re.MULTILINE,
)
#: How much of a text is looked at.
_LOOKED_AT = 2000

#: These agents tell after a tool that it ran, not how it ended.
_TELL_NOTHING = frozenset({"codex", "windsurf"})


def results_of(event: Event) -> list[dict[str, str]]:
    """How the tools of an event ended, for the daemon; without those of which it is unknown."""
    if event.kind == "batch":
        calls = hook_input.get(event.record, "tool_calls")
        items = (
            [item for item in calls if isinstance(item, dict)] if isinstance(calls, list) else []
        )
        return [record for item in items if (record := _result_record(event, item, _of_call(item)))]
    record = _result_record(event, event.record, result_of(event))
    return [record] if record else []


def _result_record(
    event: Event, record: hook_input.JsonObject, result: str
) -> dict[str, str] | None:
    if not result:
        return None
    tool = hook_input.clean(event.tool[: hook_input.FACT_MAX]) if record is event.record else ""
    return {
        "session": hook_input.fact(event.record, "session"),
        "tool": tool or hook_input.fact(record, "tool"),
        "tool_use_id": hook_input.fact(record, "tool_use_id"),
        "result": result,
    }


def result_of(event: Event) -> str:
    """How one tool ended; empty if the agent does not tell."""
    record = event.record
    if event.kind == "failed":
        if record.get("is_interrupt") is True:
            return INTERRUPTED
        return _failure(hook_input.text(record, "error"))
    found = _found(record)
    if found or event.agent in _TELL_NOTHING:
        return found
    error = hook_input.text(record, "error")
    return _failure(error) if error else OK


def _of_call(call: hook_input.JsonObject) -> str:
    """Of one in a batch, which says less of each: the answer may be the words of an error."""
    answer = call.get("tool_response")
    failed = _failure(answer) if isinstance(answer, str) else FAILED
    return _in_object(call) or (failed if failed != FAILED else _found(call))


def _found(record: hook_input.JsonObject) -> str:
    for name in _ANSWERS:
        if (answer := record.get(name)) is not None and (found := _in(answer)):
            return found
    return ""


def _in(answer: object) -> str:
    if isinstance(answer, dict):
        words = answer.get("llmContent")
        return _in_object(answer) or (_in_words(words) if isinstance(words, str) else "")
    if isinstance(answer, str):
        return _in_json(answer) if answer.startswith("{") else _in_words(answer)
    words = hook_input.get(answer, "0.text")  # content as MCP has it
    return _in_words(words) if isinstance(words, str) else ""


def _in_json(words: str) -> str:
    try:
        answer = json.loads(words)
    except (ValueError, RecursionError):
        return ""
    return _in_object(answer) if isinstance(answer, dict) else ""


def _in_object(answer: hook_input.JsonObject) -> str:
    for name in _CODES:
        code = answer.get(name)
        if isinstance(code, int) and not isinstance(code, bool):
            return _of_code(code)
    for name in _STATES:
        state = str(answer.get(name))
        if state in _STATES_CUT:
            return INTERRUPTED
        if state in _STATES_BAD:
            return FAILED
    if answer.get("interrupted") is True or answer.get("cancelled") is True:
        return INTERRUPTED
    if any(answer.get(name) for name in _BAD) or any(answer.get(name) is False for name in _GOOD):
        return _failure(str(answer.get("error", "")))
    return OK if any(answer.get(name) is True for name in _GOOD) else ""


def _failure(words: str) -> str:
    """By the words of an error: what went wrong comes first, then the output."""
    codes = _CODE_LINE.findall(words[:_LOOKED_AT])
    return _of_code(int(codes[0])) if codes and int(codes[0]) else FAILED


def _in_words(words: str) -> str:
    """By the words of an answer: the output, which may hold anything, comes before its end."""
    codes = _CODE_LINE.findall(words[-_LOOKED_AT:])
    return _of_code(int(codes[-1])) if codes else ""


def _of_code(code: int) -> str:
    return OK if code == 0 else f"{FAILED} ({code})"
