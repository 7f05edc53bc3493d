"""How an agent is told of a collision before its tool writes, or that the tool may not.

Each agent has its own words for that. Those that are not here read the warning on standard error,
and go on: what they take for a no is not known well enough.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from ckptfs.agents.hook_input import JsonObject, clean

_REFUSED = "The file was not written. Read it again, then make the change anew."
_TOLD = "Read it again before you rely on what you know of it."


def words(answer: JsonObject) -> str:
    """What a daemon's answer says of collisions, in one line."""
    found = answer["collisions"]
    items = found if isinstance(found, list) else []
    told = "; ".join(clean(str(item.get("message", ""))) for item in items)
    return f"{told}. {_REFUSED if answer.get('refuse') else _TOLD}"


def answer(agent: str, event: str, found: JsonObject) -> bytes:
    """What the agent is answered; empty if it takes no such answer."""
    form = _FORMS.get(agent)
    if form is None:
        return b""
    return json.dumps(form(event, words(found), bool(found.get("refuse")))).encode()


def _claude(event: str, text: str, refuse: bool) -> JsonObject:
    said = (
        {"permissionDecision": "deny", "permissionDecisionReason": text}
        if refuse
        else {"additionalContext": text}
    )
    return {"hookSpecificOutput": {"hookEventName": event, **said}}


def _droid(event: str, text: str, refuse: bool) -> JsonObject:
    """Before a tool it takes no context for the model; people read the message."""
    return _claude(event, text, refuse) if refuse else {"systemMessage": text}


def _gemini(event: str, text: str, refuse: bool) -> JsonObject:
    return {"decision": "deny", "reason": text} if refuse else {"systemMessage": text}


def _cursor(event: str, text: str, refuse: bool) -> JsonObject:
    said: JsonObject = {"user_message": text, "agent_message": text}
    return {"permission": "deny", **said} if refuse else said


def _copilot(event: str, text: str, refuse: bool) -> JsonObject:
    if not refuse:
        return {"systemMessage": text}
    return {"permissionDecision": "deny", "permissionDecisionReason": text}


def _cline(event: str, text: str, refuse: bool) -> JsonObject:
    return {"cancel": True, "errorMessage": text} if refuse else {"contextModification": text}


_FORMS: dict[str, Callable[[str, str, bool], JsonObject]] = {
    "claude": _claude,
    "qwen": _claude,
    # Codex has `additionalContext` before a tool since May 2026; earlier versions name it as not
    # supported, and go on.
    "codex": _claude,
    "droid": _droid,
    "gemini": _gemini,
    "cursor": _cursor,
    "copilot": _copilot,
    "cline": _cline,
}
