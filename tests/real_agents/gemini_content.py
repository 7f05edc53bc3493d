"""The Gemini API, as far as Gemini CLI uses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.real_agents.script import Call

Request = dict[str, Any]


def is_turn(path: str, request: Request) -> bool:
    return ":streamGenerateContent" in path and bool(request.get("tools"))


def results(request: Request) -> list[Any]:
    parts = [part for content in request["contents"] for part in content.get("parts", ())]
    return [part["functionResponse"] for part in parts if "functionResponse" in part]


def tool_call(number: int, call: Call) -> Iterator[bytes]:
    named = {"id": f"call_{number:04}", "name": call.tool, "args": call.arguments}
    return _answer({"functionCall": named})


def text(words: str) -> Iterator[bytes]:
    return _answer({"text": words})


def whole(words: str) -> Request:
    return _content({"text": words})


def _answer(part: Request) -> Iterator[bytes]:
    yield f"data: {json.dumps(_content(part))}\n\n".encode()


def _content(part: Request) -> Request:
    content = {"role": "model", "parts": [part]}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    return {
        "candidates": [{"index": 0, "content": content, "finishReason": "STOP"}],
        "usageMetadata": usage,
        "totalTokens": 1,
    }
