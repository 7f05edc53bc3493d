"""The Anthropic messages API, as far as Claude Code uses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.real_agents.script import Call

Request = dict[str, Any]


def is_turn(path: str, request: Request) -> bool:
    """Whether this is a turn of the conversation, and not a title or a count of tokens."""
    return path.endswith("/v1/messages") and bool(request.get("tools"))


def results(request: Request) -> list[Any]:
    """What the tools of the conversation so far answered."""
    blocks = [block for message in request["messages"] for block in _blocks(message)]
    return [block for block in blocks if block.get("type") == "tool_result"]


def _blocks(message: Request) -> list[Request]:
    content = message["content"]
    return content if isinstance(content, list) else []


def tool_call(number: int, call: Call) -> Iterator[bytes]:
    block = {"type": "tool_use", "id": f"toolu_{number:04}", "name": call.tool, "input": {}}
    delta = {"type": "input_json_delta", "partial_json": json.dumps(call.arguments)}
    return _message(block, delta, "tool_use")


def text(words: str) -> Iterator[bytes]:
    block = {"type": "text", "text": ""}
    return _message(block, {"type": "text_delta", "text": words}, "end_turn")


def whole(words: str) -> Request:
    """The answer to a request that is not to be streamed."""
    return {
        **_envelope(),
        "content": [{"type": "text", "text": words}],
        "stop_reason": "end_turn",
        "input_tokens": 1,
    }


def _message(block: Request, delta: Request, reason: str) -> Iterator[bytes]:
    yield _event("message_start", message={**_envelope(), "content": [], "stop_reason": None})
    yield _event("content_block_start", index=0, content_block=block)
    yield _event("content_block_delta", index=0, delta=delta)
    yield _event("content_block_stop", index=0)
    ending = {"stop_reason": reason, "stop_sequence": None}
    yield _event("message_delta", delta=ending, usage={"output_tokens": 1})
    yield _event("message_stop")


def _envelope() -> Request:
    return {
        "id": "msg_0001",
        "type": "message",
        "role": "assistant",
        "model": "stand-in",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()
