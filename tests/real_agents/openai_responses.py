"""The OpenAI responses API, as far as Codex uses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.real_agents.script import Call

Request = dict[str, Any]


def is_turn(path: str, request: Request) -> bool:
    return path.endswith("/responses")


def results(request: Request) -> list[Any]:
    wanted = ("function_call_output", "custom_tool_call_output")
    return [item for item in request["input"] if item.get("type") in wanted]


def tool_call(number: int, call: Call) -> Iterator[bytes]:
    named = {"id": f"item_{number:04}", "call_id": f"call_{number:04}", "name": call.tool}
    if isinstance(call.arguments, str):
        return _response({"type": "custom_tool_call", **named, "input": call.arguments})
    return _response({"type": "function_call", **named, "arguments": json.dumps(call.arguments)})


def text(words: str) -> Iterator[bytes]:
    content = [{"type": "output_text", "text": words, "annotations": []}]
    return _response({"type": "message", "id": "msg_0001", "role": "assistant", "content": content})


def whole(words: str) -> Request:
    return {"id": "resp_0001", "output": [], "status": "completed", "output_text": words}


def _response(item: Request) -> Iterator[bytes]:
    yield _event("response.created", response={"id": "resp_0001"})
    yield _event("response.output_item.added", output_index=0, item=item)
    yield _event("response.output_item.done", output_index=0, item=item)
    usage = {
        "input_tokens": 1,
        "input_tokens_details": None,
        "output_tokens": 1,
        "output_tokens_details": None,
        "total_tokens": 2,
    }
    yield _event("response.completed", response={"id": "resp_0001", "usage": usage})


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()
