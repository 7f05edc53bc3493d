"""What a stand-in has an agent do: one form for all agents, translated by each agent's tools."""

from __future__ import annotations

from typing import Any, NamedTuple


class Run(NamedTuple):
    """A command for the agent's shell tool."""

    command: str


class Write(NamedTuple):
    """A new file by the agent's own tool; the path is relative to the workspace."""

    path: str
    text: str


class Edit(NamedTuple):
    """A replacement in a file by the agent's own tool."""

    path: str
    old: str
    new: str


Step = Run | Write | Edit


class Call(NamedTuple):
    """A step in the words of one agent: a tool's name and its arguments.

    Most tools take an object; a freeform tool (Codex's apply_patch) takes text.
    """

    tool: str
    arguments: dict[str, Any] | str


#: What the model says at the end, by which an agent's output shows that it came to the end.
FAREWELL = "Every step is done."
