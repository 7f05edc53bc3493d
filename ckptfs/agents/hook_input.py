"""The JSON object that an agent sends to its hook: reading it, its fields, which agent sent it.

A small input is parsed as usual. A large one, such as a tool's input that holds a whole file, is
read in bounded memory by `ckptfs.agents.large_input`.

Agents spell the same field differently. One table names every spelling; a dot leads into an object,
a number into a list. The text is other people's: it is cut, and nothing in it can act on a
terminal. Every hook call imports this module, so it imports only what is loaded anyway.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable

JsonObject = dict[str, object]
Read = Callable[[int], bytes]

#: The largest input, in bytes, that is parsed as a whole.
WHOLE_MAX = 1 << 20
_CHUNK = 1 << 18

#: The agents that a hook is known to be called by (`ckptfs.agents.table` has their settings).
NAMES = frozenset(
    {
        *("claude", "codex", "gemini", "opencode", "cursor", "copilot", "antigravity", "qwen"),
        *("cline", "goose", "droid", "windsurf", "kiro"),
    }
)

#: Where a thing stands, the surest name first.
FIELDS = {
    "event": (
        *("hook_event_name", "hookEventName", "event_type", "hookName", "agent_action_name"),
        "event",  # last: an input with another name may have it for something else
    ),
    "directory": (
        *("cwd", "working_dir", "tool_info.cwd"),
        *("workspace_roots.0", "workspaceRoots.0", "workspacePaths.0"),
    ),
    "session": (
        *("session_id", "sessionId", "conversation_id", "conversationId"),
        *("taskId", "trajectory_id"),
    ),
    "turn": ("turn_id", "prompt_id", "generation_id", "execution_id"),
    "transcript": ("transcript_path", "transcriptPath"),
    "tool": (
        *("tool_name", "toolName", "preToolUse.toolName", "postToolUse.toolName"),
        *("tool_call.name", "tool_result.name", "toolCall.name", "tool_info.mcp_tool_name"),
    ),
    "tool_use_id": ("tool_use_id", "toolUseId", "tool_call.id", "tool_result.id"),
    "prompt": (
        *("prompt", "userPromptSubmit.prompt", "tool_info.user_prompt"),
        "message",  # of goose
    ),
    "why": ("source", "reason", "trigger", "terminationReason"),
    "subagent": (
        *("agent_type", "subagent_type", "agentType", "agent_name", "agentName"),
        "task_name",  # of Droid
    ),
    "subagent_id": ("agent_id", "subagent_id", "agentId"),
    "task": ("task_subject",),
    "task_id": ("taskId",),
    "task_text": ("taskStart.taskMetadata.initialTask", "userPromptSubmit.prompt"),
    "error": ("error", "error_message", "tool_result.error"),
}

#: What a tool was given: an object, or JSON that is one.
INPUTS = (
    *("tool_input", "toolInput", "toolArgs", "preToolUse.parameters", "postToolUse.parameters"),
    *("tool_call.input", "tool_result.input", "toolCall.args", "tool_info", "parameters"),
)

#: What only this agent sends.
_SIGNS = {
    "cursor_version": "cursor",
    "agent_action_name": "windsurf",
    "clineVersion": "cline",
    "artifactDirectoryPath": "antigravity",
    "matcher_context": "goose",
    "turn_id": "codex",
}
#: In whose folder the transcript lies.
_FOLDERS = {
    "/.claude/": "claude",
    "/.codex/": "codex",
    "/.gemini/": "gemini",
    "/.qwen/": "qwen",
    "/.factory/": "droid",
    "/.copilot/": "copilot",
    "/.cursor/": "cursor",
}

FACT_MAX = 1000


def read_object(read: Read, *, optional: bool = False) -> JsonObject:
    """Read one JSON object to the end of the input. Raises ValueError if that is not what it is;
    no input at all is an empty object if it is ``optional``."""
    parts: list[bytes] = []
    size = 0
    while size <= WHOLE_MAX:
        part = read(_CHUNK)
        if not part:
            return _parsed(b"".join(parts), optional)
        parts.append(part)
        size += len(part)
    from ckptfs.agents import large_input  # late: few inputs are that large

    return large_input.skim(read, b"".join(parts))


def _parsed(text: bytes, optional: bool) -> JsonObject:
    if not text.strip():
        if optional:
            return {}
        raise ValueError("there is nothing on standard input")
    try:
        record = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(record, dict):
        raise ValueError("it is not an object")
    return record


# -- fields ----------------------------------------------------------------------------------------


def get(record: object, path: str) -> object:
    """What stands at a dotted path; None if nothing does."""
    found = record
    for part in path.split("."):
        if isinstance(found, dict):
            found = found.get(part)
        elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            return None
    return found


def text(record: JsonObject, what: str) -> str:
    """The first of a thing's names that some text stands under; empty if there is none."""
    for path in FIELDS[what]:
        value = get(record, path)
        if isinstance(value, str) and value:
            return value
    return ""


def fact(record: JsonObject, what: str) -> str:
    """The same as it is kept with a checkpoint: on one line, and not too long."""
    return clean(text(record, what)[: 4 * FACT_MAX])[:FACT_MAX]


def directory(record: JsonObject) -> str:
    """The agent's directory, from its input; else our own, which it started us in."""
    for path in FIELDS["directory"]:
        named = get(record, path)
        if isinstance(named, str) and os.path.isabs(named):
            return named
    return os.getcwd()


def agent_of(record: JsonObject, hint: str) -> str:
    """Whose input it is: by what only that agent sends, by where its transcript lies, by the
    ``hint`` of who installed the hook (one agent may read another's settings), by the rest."""
    named = record.get("agent")
    if isinstance(named, str) and named:
        return clean(named[:FACT_MAX])
    for field, name in _SIGNS.items():
        if field in record:
            return name
    transcript = text(record, "transcript")
    for folder, name in _FOLDERS.items():
        if folder in transcript:
            return name
    return hint if hint in NAMES else _guess(record, transcript)


def _guess(record: JsonObject, transcript: str) -> str:
    if text(record, "event").startswith(("Before", "After")):
        return "gemini"
    if "timestamp" in record:
        return "gemini" if transcript and "hookEventName" not in record else "copilot"
    return "claude"


def clean(words: str) -> str:
    """On one line, and with everything visible that could act on a terminal."""
    line = " ".join(words.split())
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else _escaped(ord(char)) for char in line)


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def cut(words: str, length: int) -> str:
    return words if len(words) <= length else words[: length - 3] + "..."
