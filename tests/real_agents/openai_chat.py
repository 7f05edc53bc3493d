"""The OpenAI chat completions API, as far as opencode and Qwen Code use it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.real_agents.script import Call

Request = dict[str, Any]


def is_turn(path: str, request: Request) -> bool:
    return path.endswith("/chat/completions") and bool(request.get("tools"))


def results(request: Request) -> list[Any]:
    return [message for message in request["messages"] if message["role"] == "tool"]


def tool_call(number: int, call: Call) -> Iterator[bytes]:
    function = {"name": call.tool, "arguments": json.dumps(call.arguments)}
    called = {"index": 0, "id": f"call_{number:04}", "type": "function", "function": function}
    return _completion({"role": "assistant", "content": None, "tool_calls": [called]}, "tool_calls")


def text(words: str) -> Iterator[bytes]:
    return _completion({"role": "assistant", "content": words}, "stop")


def whole(words: str) -> Request:
    message = {"role": "assistant", "content": words}
    return _envelope(message=message, finish_reason="stop")


def _completion(delta: Request, reason: str) -> Iterator[bytes]:
    yield _event(_envelope(delta=delta, finish_reason=None))
    yield _event(_envelope(delta={}, finish_reason=reason))
    yield b"data: [DONE]\n\n"


def _envelope(**choice: Any) -> Request:
    return {
        "id": "chatcmpl-0001",
        "object": "chat.completion.chunk" if "delta" in choice else "chat.completion",
        "created": 1,
        "model": "stand-in",
        "choices": [{"index": 0, **choice}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def _event(record: Request) -> bytes:
    return f"data: {json.dumps(record)}\n\n".encode()
