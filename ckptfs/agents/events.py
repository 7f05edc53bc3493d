"""What an agent's event means: what to ask the daemon for, and how to report it.

One table says what is done at which event, whatever the agent and however it spells the name:
`PreToolUse`, `preToolUse` and `pre_tool_use` are one. A checkpoint is taken before a tool that may
write; a prompt, an end and the like take one only if something changed; the rest tells the daemon
what belongs to checkpoints: how a tool ended, who is at work, which task begins.

The text is other people's: it is cut, and nothing in it can act on a terminal. A command goes to
the daemon as it is, since the settings of the workspace say what of it is recorded.
"""

from __future__ import annotations

import json
import os

from ckptfs.agents import hook_input
from ckptfs.agents.hook_input import JsonObject, clean, cut, fact, text

Request = tuple[str, dict[str, object]]

MESSAGE_MAX = 200
_COMMAND_MAX = 4000
#: `ckptfs.history.tasks.NAME_MAX`
TASK_NAME_MAX = 100

#: By an event's name, without case and underscores, what is done.
EVENTS = {
    **dict.fromkeys(
        (
            *("pretooluse", "beforetool", "beforeshellexecution", "beforemcpexecution"),
            *("preruncommand", "prewritecode", "premcptooluse", "toolcall"),
        ),
        "before",
    ),
    **dict.fromkeys(
        (
            *("posttooluse", "aftertool", "aftershellexecution", "aftermcpexecution"),
            *("afterfileedit", "postruncommand", "postwritecode", "postmcptooluse", "toolresult"),
        ),
        "after",
    ),
    "posttoolusefailure": "failed",
    "posttoolbatch": "batch",
    **dict.fromkeys(
        (
            *("userpromptsubmit", "beforeagent", "beforesubmitprompt", "userpromptsubmitted"),
            *("preuserprompt", "promptsubmit"),
        ),
        "prompt",
    ),
    **dict.fromkeys(("sessionstart", "agentspawn", "sessionend", "sessionshutdown"), "session"),
    **dict.fromkeys(
        (
            *("stop", "agentstop", "afteragent", "stopfailure", "postcascaderesponse"),
            *("precompact", "precompress", "preinvocation"),
        ),
        "moment",
    ),
    "worktreecreate": "",
    "worktreeremove": "",
    "subagentstart": "subagent",
    "subagentstop": "subagent done",
    **dict.fromkeys(("taskcreated", "taskstart", "agentstart"), "task"),
    **dict.fromkeys(
        ("taskcompleted", "taskcomplete", "agentend", "taskcancel", "agentabort", "agenterror"),
        "task done",
    ),
    **dict.fromkeys(
        (
            *("permissionrequest", "permissiondenied", "notification", "postcompact", "setup"),
            *("userpromptexpansion", "userprompttransformed", "teammateidle", "configchange"),
            *("cwdchanged", "directoryadded", "filechanged"),
            *("instructionsloaded", "elicitation", "elicitationresult", "messagedisplay"),
            *("premodelswitch", "postmodelswitch", "interrupt", "sessiondelete", "erroroccurred"),
            *("beforemodel", "aftermodel", "beforetoolselection", "postinvocation"),
            *("beforereadfile", "beforetabfileread", "aftertabfileedit", "workspaceopen"),
            *("afteragentresponse", "afteragentthought", "prereadcode", "postreadcode"),
            *("postsetupworktree", "postcascaderesponsewithtranscript"),
            *("todocreated", "todocompleted", "taskresume", "agentresume", "pretaskexec"),
            *("posttaskexec", "postfilecreate", "postfilesave", "postfiledelete", "manual"),
        ),
        "",
    ),
}

#: What is used at an event that names no tool.
_TOOLS = {
    "beforeshellexecution": "Shell",
    "aftershellexecution": "Shell",
    "afterfileedit": "Write",
    "preruncommand": "run_command",
    "postruncommand": "run_command",
    "prewritecode": "write_code",
    "postwritecode": "write_code",
}

#: Tools that change no file of the workspace, in lower case; any other may.
_READERS = frozenset(
    {
        *("read", "grep", "glob", "ls", "list", "webfetch", "websearch", "codesearch", "lsp"),
        *("todowrite", "todoread", "task", "agent", "skill", "question", "askuserquestion"),
        *("exitplanmode", "enterplanmode", "bashoutput", "taskoutput", "taskstop", "killshell"),
        *("taskcreate", "taskget", "tasklist", "taskupdate", "toolsearch", "notebookread"),
        *("read_file", "read_many_files", "list_directory", "grep_search", "search_file_content"),
        *("google_web_search", "web_fetch", "write_todos", "update_plan", "view_image", "ask_user"),
        *("view", "rg", "web_search", "update_todo", "todo_write", "readlints", "fetch", "cat"),
        *("view_file", "list_dir", "find_by_name", "search_web", "read_url_content", "fs_read"),
        *("fsread", "search_files", "list_files", "list_code_definition_names", "codebase_search"),
        *("ask_followup_question", "attempt_completion", "plan_mode_respond", "listdir", "askuser"),
    }
)

#: Those of them that hand the content of files to the model.
_READ_FILES = frozenset(
    {
        *("read", "read_file", "read_many_files", "notebookread", "view", "view_file", "cat"),
        *("fs_read", "fsread"),
    }
)

_FILES = (
    *("file_path", "filePath", "notebook_path", "absolute_path", "path"),
    *("TargetFile", "AbsolutePath"),
)
_COMMANDS = ("command", "cmd", "script", "command_line", "CommandLine")

#: What agents put before the name of an MCP server, and how a tool of ours goes on then. One of a
#: plugin is ``mcp__plugin_<plugin>_<server>__<tool>``; Cursor leaves the server out.
_OF_SERVERS = ("mcp__", "mcp_", "@")
_OWN = ("ckptfs_", "ckptfs-", "ckptfs/", "mcp:checkpoint_")

#: These agents name the subagent in each of its calls.
_NAME_SUBAGENTS = frozenset({"claude", "codex", "cline"})

#: What fails at an event that takes no checkpoint. Outside of a workspace that is no failure.
FAILED = {
    **dict.fromkeys(("after", "failed", "batch"), "how the tool ended was not kept"),
    "read": "what the tool read was not noted",
    "subagent": "the subagent was not noted",
    **dict.fromkeys(("task", "task done"), "the task was not noted"),
}


class Unknown(ValueError):
    """An event that is in no table."""


class Event:
    """One call: its input, the event's name as it came and as the tables have it, its agent."""

    def __init__(self, record: JsonObject, hint: str = "", named: str = "") -> None:
        self.record = record
        self.name = text(record, "event") or named
        self.key = key_of(self.name)
        self.agent = hook_input.agent_of(record, hint)

    @property
    def kind(self) -> str:
        """What is to be done. Raises `Unknown` for an event that is in no table."""
        kind = EVENTS.get(self.key)
        if kind is None:
            raise Unknown(cut(clean(self.name[:MESSAGE_MAX]), MESSAGE_MAX) or "without a name")
        if kind in ("before", "after", "failed") and not _may_write(self):
            return "read" if kind == "after" and _reads_file(self) else ""
        return kind

    @property
    def tool(self) -> str:
        return text(self.record, "tool") or _TOOLS.get(self.key, "")


def key_of(name: str) -> str:
    """An event's name as the tables have it."""
    return name.replace("_", "").replace("-", "").lower()


def requests_for(event: Event, workspace: str) -> list[Request]:
    """What the daemon is asked for, in this order. ``workspace`` is where the event is about."""
    kind = event.kind
    return _DEEDS[kind](event, workspace) if kind else []


def _may_write(event: Event) -> bool:
    tool = event.tool.lower()
    if hook_input.get(event.record, "tool_info.mcp_server_name") == "ckptfs" or _is_own(tool):
        return False
    return _plain_tool(event) not in _READERS


def _reads_file(event: Event) -> bool:
    """Whether it read a file that the agent names."""
    found = given(event.record)
    return _plain_tool(event) in _READ_FILES and any(found.get(key) for key in _FILES)


def _plain_tool(event: Event) -> str:
    tool = event.tool.lower()
    if event.agent == "goose":  # <extension>__<tool>
        return tool.rpartition("__")[2]
    return tool


def _is_own(tool: str) -> bool:
    """Whether it is a tool of our MCP server: they save what has to be saved."""
    for before in _OF_SERVERS:
        if tool.startswith(before):
            tool = tool[len(before) :]
            break
    if tool.startswith("plugin_"):
        return tool.partition("__")[0].endswith("_ckptfs")
    return tool.startswith(_OWN)


# -- checkpoints -----------------------------------------------------------------------------------


def _mark(event: Event, message: str, *, weak: bool, ran: str = "", **more: str) -> Request:
    metadata = {**_metadata(event), **more}
    return "mark", {
        "kind": "hook",
        "message": clean(message)[: hook_input.FACT_MAX],
        "ran": ran,
        "metadata": metadata,
        "weak": weak,
        "with_subagents": event.agent not in _NAME_SUBAGENTS and "subagent" not in metadata,
    }


def _before(event: Event, workspace: str) -> list[Request]:
    files, ran = _subject(given(event.record), workspace)
    tool = clean(event.tool[:MESSAGE_MAX]) or "a tool"
    op, args = _mark(event, f"{tool}: {files}" if files else tool, weak=False, ran=ran)
    return [(op, {**args, "writes": _paths(event, workspace)})]


def _read(event: Event, workspace: str) -> list[Request]:
    paths = _paths(event, workspace)
    session = fact(event.record, "session")
    return [("read", {"reader": session, "paths": paths})] if paths and session else []


def _paths(event: Event, workspace: str) -> list[str]:
    """The files that a tool is about, as they are called in the workspace; none of a command."""
    found = given(event.record)
    named = [path for key in _FILES if isinstance(path := found.get(key), str) and path][:1]
    if not named:
        words = (_typed(command) for key in _COMMANDS if (command := found.get(key)))
        named = [path for text in words if "*** " in text for path in _patched(text)]
    where = hook_input.directory(event.record)
    whole = (os.path.normpath(os.path.join(where, path)) for path in named if "\0" not in path)
    return [path[len(workspace) + 1 :] for path in whole if path.startswith(workspace + "/")]


def _prompt(event: Event, workspace: str) -> list[Request]:
    prompt = fact(event.record, "prompt")
    return [_mark(event, f"prompt: {prompt}", weak=True, prompt=prompt)]


def _moment(event: Event, workspace: str) -> list[Request]:
    why = text(event.record, "why")[:MESSAGE_MAX]
    return [_mark(event, f"{event.name}: {why}" if why else event.name, weak=True)]


def _session(event: Event, workspace: str) -> list[Request]:
    """A session begins or ends: all of its subagents are gone."""
    gone: list[Request] = []
    if event.agent not in _NAME_SUBAGENTS:
        gone = [("subagent", {"session": fact(event.record, "session"), "running": False})]
    return [*_moment(event, workspace), *gone]


def given(record: JsonObject) -> JsonObject:
    """What the tool is given; the input itself where it stands there."""
    for path in hook_input.INPUTS:
        value = hook_input.get(record, path)
        if isinstance(value, str) and value.startswith("{"):
            value = _parsed(value)
        if isinstance(value, dict):
            return value
    return record


def file_of(record: JsonObject) -> str:
    """The file that a tool is about, if the agent names it by an absolute path."""
    found = given(record)
    paths = (found.get(key) for key in _FILES)
    return next((path for path in paths if isinstance(path, str) and os.path.isabs(path)), "")


def _parsed(words: str) -> object:
    try:
        return json.loads(words)
    except (ValueError, RecursionError):
        return None


def _subject(given: JsonObject, workspace: str) -> tuple[str, str]:
    """What a tool is about: files, or a command."""
    for key in _FILES:
        if path := given.get(key):
            return clean(_within(str(path)[: 4 * hook_input.FACT_MAX], workspace)), ""
    for key in _COMMANDS:
        if command := given.get(key):
            words = _typed(command)
            patched = _patched(words[: hook_input.FACT_MAX * 64]) if "*** " in words else []
            return (clean(", ".join(patched)), "") if patched else ("", words[:_COMMAND_MAX])
    return "", ""


def _typed(command: object) -> str:
    """A command as a text; words as /proc shows them, with NUL between them."""
    return "\0".join(map(str, command)) if isinstance(command, list) else str(command)


def _patched(words: str) -> list[str]:
    """The files that a patch of Codex's form is about."""
    lines = (line.partition(" File: ") for line in words.splitlines())
    return [path for deed, _, path in lines if path and deed in _PATCHES]


_PATCHES = frozenset({"*** Add", "*** Update", "*** Delete"})


def _within(path: str, workspace: str) -> str:
    """A path as it is called in the workspace, if it is in there."""
    return path[len(workspace) + 1 :] if path.startswith(workspace + "/") else path


def _metadata(event: Event) -> dict[str, str]:
    record = event.record
    found = {
        "agent": event.agent,
        "event": clean(event.name[: hook_input.FACT_MAX]),
        "session": fact(record, "session"),
        "turn": fact(record, "turn"),
        "tool": clean(event.tool[: hook_input.FACT_MAX]),
        "tool_use_id": fact(record, "tool_use_id"),
        "subagent": fact(record, "subagent") if text(record, "subagent_id") else "",
        **_transcript(text(record, "transcript")),
    }
    return {key: value for key, value in found.items() if value}


def _transcript(path: str) -> dict[str, str]:
    """Where the conversation is written down, and how far it had come."""
    if not path:
        return {}
    shown = clean(path)[: hook_input.FACT_MAX]
    try:
        length = os.stat(os.path.expanduser(path)).st_size
    except (OSError, ValueError):
        return {"transcript": shown}
    return {"transcript": shown, "transcript_length": str(length)}


# -- what belongs to checkpoints -------------------------------------------------------------------


def _after(event: Event, workspace: str) -> list[Request]:
    from ckptfs.agents import outcome  # late: a call before a tool does not need it

    results = outcome.results_of(event)
    return [("result", {"results": results})] if results else []


def _subagent(event: Event, workspace: str) -> list[Request]:
    if event.agent in _NAME_SUBAGENTS:
        return []
    return [("subagent", {**_who(event), "running": True})]


def _subagent_done(event: Event, workspace: str) -> list[Request]:
    requests = _moment(event, workspace)
    if event.agent not in _NAME_SUBAGENTS:
        requests.append(("subagent", {**_who(event), "running": False}))
    return requests


def _who(event: Event) -> dict[str, object]:
    record = event.record
    return {
        "session": fact(record, "session"),
        "id": fact(record, "subagent_id"),
        "name": fact(record, "subagent") or "subagent",
    }


def _task(event: Event, workspace: str) -> list[Request]:
    message = cut(fact(event.record, "task_text"), MESSAGE_MAX)
    return [("task_announce", {"name": _task_name(event), "message": message})]


def _task_done(event: Event, workspace: str) -> list[Request]:
    return [("task_finish", {"name": _task_name(event)})]


def _task_name(event: Event) -> str:
    """What the agent calls the task; where it only has a number, that."""
    name = cut(fact(event.record, "task"), TASK_NAME_MAX)
    return name or cut(f"{event.agent} {fact(event.record, 'task_id')}".strip(), TASK_NAME_MAX)


_DEEDS = {
    "before": _before,
    "after": _after,
    "failed": _after,
    "batch": _after,
    "read": _read,
    "prompt": _prompt,
    "session": _session,
    "moment": _moment,
    "subagent": _subagent,
    "subagent done": _subagent_done,
    "task": _task,
    "task done": _task_done,
}
