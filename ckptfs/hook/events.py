"""What an agent's event means: which checkpoint to take before it, if any, and what to tell in it.

Knows the names that Claude Code, Codex, Gemini CLI and our opencode plugin use for the same things.
Whatever comes is other people's text: it is cut, and nothing in it can act on a terminal. A command
goes to the daemon as it is, since the settings of the workspace say what of it is recorded.
"""

from __future__ import annotations

import os
import re

Record = dict[str, object]

_FACT_MAX = 1000
_COMMAND_MAX = 4000

_TOOL = frozenset({"PreToolUse", "BeforeTool"})
_PROMPT = frozenset({"UserPromptSubmit", "BeforeAgent"})
_ENDS = frozenset({"Stop", "SubagentStop", "AfterAgent", "SessionStart", "SessionEnd"})
#: Events that there is nothing to do at.
_OTHERS = frozenset(
    {
        *("PostToolUse", "PostToolUseFailure", "PostToolBatch", "PermissionRequest"),
        *("PermissionDenied", "Notification", "SubagentStart", "PreCompact", "PostCompact"),
        *("StopFailure", "Setup", "TeammateIdle", "TaskCreated", "TaskCompleted", "ConfigChange"),
        *("CwdChanged", "FileChanged", "WorktreeCreate", "WorktreeRemove", "InstructionsLoaded"),
        *("Elicitation", "ElicitationResult", "UserPromptExpansion", "Interrupt", "MessageDisplay"),
        *("AfterTool", "BeforeModel", "AfterModel", "BeforeToolSelection", "PreCompress"),
    }
)

#: Tools that change no file of the workspace, in lower case; any other may.
_READERS = frozenset(
    {
        *("read", "grep", "glob", "ls", "list", "webfetch", "websearch", "codesearch", "lsp"),
        *("todowrite", "todoread", "task", "agent", "skill", "question", "askuserquestion"),
        *("exitplanmode", "enterplanmode", "bashoutput", "taskoutput", "taskstop", "killshell"),
        *("taskcreate", "taskget", "tasklist", "taskupdate", "toolsearch", "notebookread"),
        *("read_file", "read_many_files", "list_directory", "grep_search", "search_file_content"),
        *("google_web_search", "web_fetch", "write_todos", "update_plan", "view_image", "ask_user"),
    }
)

#: Our own tools save what has to be saved.
_OWN = ("mcp__ckptfs__", "mcp_ckptfs_")

_FILES = ("file_path", "filePath", "notebook_path", "absolute_path", "path")
_COMMANDS = ("command", "cmd", "script")
_PATCHED = re.compile(r"^\*\*\* (?:Add|Update|Delete) File: (.+)$", re.MULTILINE)


class Mark:
    """What a checkpoint tells. A ``weak`` one is not taken if nothing changed since the last;
    ``ran`` is the command that it is about."""

    def __init__(
        self, message: str, metadata: dict[str, str], *, weak: bool, ran: str = ""
    ) -> None:
        self.message = message
        self.metadata = metadata
        self.weak = weak
        self.ran = ran


class Unknown(ValueError):
    """An event that nobody told us of."""


def matters(record: Record) -> bool:
    """Whether there is a checkpoint to take. Raises `Unknown` for an event that we do not know."""
    event = _text(record, "hook_event_name")
    if event in _TOOL:
        tool = _text(record, "tool_name").lower()
        return tool not in _READERS and not tool.startswith(_OWN)
    if event not in _PROMPT | _ENDS | _OTHERS:
        raise Unknown(clean(event) or "without a name")
    return event not in _OTHERS


def mark_for(record: Record, workspace: str) -> Mark:
    """The checkpoint to take at an event that matters. ``workspace`` is where it is about."""
    event = _text(record, "hook_event_name")
    metadata = _metadata(record, event)
    if event in _TOOL:
        given = record.get("tool_input")
        files, ran = _subject(given, workspace) if isinstance(given, dict) else ("", "")
        tool = clean(_text(record, "tool_name")) or "a tool"
        message = f"{tool}: {files}" if files else tool
        return Mark(message[:_FACT_MAX], metadata, weak=False, ran=ran)
    if event in _PROMPT:
        prompt = clean(_text(record, "prompt")[:_FACT_MAX])
        return Mark(f"prompt: {prompt}", {**metadata, "prompt": prompt}, weak=True)
    why = _text(record, "source") or _text(record, "reason")
    return Mark(clean(f"{event}: {why}" if why else event)[:_FACT_MAX], metadata, weak=True)


def _subject(given: Record, workspace: str) -> tuple[str, str]:
    """What a tool is about: files, or a command."""
    for key in _FILES:
        if path := given.get(key):
            return clean(_within(str(path), workspace)), ""
    for key in _COMMANDS:
        if command := given.get(key):
            text = _typed(command)
            patched = _PATCHED.findall(text[: _FACT_MAX * 64])
            return (clean(", ".join(patched)), "") if patched else ("", text[:_COMMAND_MAX])
    return "", ""


def _typed(command: object) -> str:
    """A command as a text; words as /proc shows them, with NUL between them."""
    return "\0".join(map(str, command)) if isinstance(command, list) else str(command)


def _within(path: str, workspace: str) -> str:
    """A path as it is called in the workspace, if it is in there."""
    return path[len(workspace) + 1 :] if path.startswith(workspace + "/") else path


def _metadata(record: Record, event: str) -> dict[str, str]:
    found = {
        "agent": _text(record, "agent") or _agent(record, event),
        "event": event,
        "session": _text(record, "session_id"),
        "turn": _text(record, "turn_id") or _text(record, "prompt_id"),
        "tool": _text(record, "tool_name"),
        "tool_use_id": _text(record, "tool_use_id"),
        **_transcript(_text(record, "transcript_path")),
    }
    return {key: clean(value)[:_FACT_MAX] for key, value in found.items() if value}


def _agent(record: Record, event: str) -> str:
    """Whose event it is, by where the transcript lies and by what only that one sends."""
    transcript = _text(record, "transcript_path")
    for name in ("claude", "codex", "gemini"):
        if f"/.{name}/" in transcript:
            return name
    if event.startswith(("Before", "After")) or "timestamp" in record:
        return "gemini"
    return "codex" if "turn_id" in record else "claude"


def _transcript(path: str) -> dict[str, str]:
    """Where the conversation is written down, and how far it had come."""
    if not path:
        return {}
    try:
        return {"transcript": path, "transcript_length": str(os.stat(path).st_size)}
    except (OSError, ValueError):
        return {"transcript": path}


def _text(record: Record, key: str) -> str:
    value = record.get(key)
    return value if isinstance(value, str) else ""


def clean(text: str) -> str:
    """On one line, and with everything visible that could act on a terminal."""
    line = " ".join(text.split())
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else _escaped(ord(char)) for char in line)


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
