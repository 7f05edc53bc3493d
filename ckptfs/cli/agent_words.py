"""What can be typed for agents: `hook`, `mcp`, `run`, `task`, `team`, `watch` and `shell-init`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckptfs.cli.parser import VerbParser

#: Makes the parser of a verb from its name and what it does.
Make = Callable[[str, str], "VerbParser"]


def add(make: Make) -> None:
    _add_run(make)
    _add_task(make)
    _add_team(make)
    make("watch", "print what happens to a mounted workspace until it is unmounted")
    _add_hook(make)
    _add_mcp(make)
    shell = make("shell-init", "print code for a shell that names checkpoints after what is typed")
    shell.usage = 'eval "$(ckptfs shell-init bash)"    in ~/.bashrc; zsh and fish likewise'
    shell.add_argument("shell", choices=("bash", "zsh", "fish"), help="which shell")


def _add_run(make: Make) -> None:
    run = make("run", "run a command between two checkpoints, and say what it changed")
    run.usage = "ckptfs run [-w DIR] [--on-failure keep|restore|ask | --harness] -- COMMAND ..."
    run.add_argument(
        "--harness",
        action="store_true",
        help="become the command; each command that it starts is a step",
    )
    run.add_argument(
        "--on-failure",
        choices=("keep", "restore", "ask"),
        default="keep",
        help="what to do with its changes if it fails (default: keep)",
    )
    run.add_argument("stray", nargs="*", help=argparse.SUPPRESS)
    run.behind = "words"


def _add_task(make: Make) -> None:
    task = make("task", "group work into tasks, and take one back without the others")
    task.usage = (
        "ckptfs task start NAME | done [MESSAGE] | list | revert NAME [--force | --dry-run]"
    )
    task.add_argument("action", choices=("start", "done", "list", "revert"), help="what to do")
    task.add_argument("subject", metavar="NAME", nargs="?", help="its name, or what was done")
    task.add_argument("--dry-run", action="store_true", help="only say what revert would do")
    task.add_argument(
        "--force", action="store_true", help="revert what others changed meanwhile, too"
    )


def _add_team(make: Make) -> None:
    team = make("team", "take a team of agents, its workspaces and its state, as one")
    team.usage = (
        "ckptfs team snapshot TEAM [--tag T] | snapshots TEAM | restore TEAM ID [--dry-run]\n"
        "       [--force] | snapshot-delete TEAM ID        [--data-dir DIR]"
    )
    deeds = ("snapshot", "snapshots", "restore", "snapshot-delete")
    team.add_argument("action", choices=deeds, help="what to do")
    team.add_argument("team", metavar="TEAM", help="its name")
    team.add_argument("snapshot", metavar="ID", nargs="?", help="a snapshot: its id, or its tag")
    team.add_argument("--tag", metavar="T", default="", help="a name to find the snapshot by")
    team.add_argument(
        "--data-dir", metavar="DIR", help="where teams keep their state (default: ~/.clawteam)"
    )
    team.add_argument("--dry-run", action="store_true", help="only say what restore would do")
    team.add_argument("--force", action="store_true", help="do not ask")


def _add_hook(make: Make) -> None:
    hook = make("hook", "answer a coding agent's hook, or put it into the agent's settings")
    hook.usage = (
        "ckptfs hook [--agent AGENT [--event EVENT]]\n"
        "       ckptfs hook install|uninstall AGENT|--all [--project | --user]\n"
        "                   [--dry-run | --yes]\n"
        "       ckptfs hook status\n"
        "       ckptfs hook plugin DIR"
    )
    deeds = ("install", "uninstall", "status", "plugin")
    hook.add_argument("action", nargs="?", choices=deeds, help="what to do")
    hook.add_argument("subject", nargs="?", metavar="AGENT", help="the agent, or where to put it")
    hook.add_argument("--all", action="store_true", help="all agents that are on this machine")
    where = hook.add_mutually_exclusive_group()
    where.add_argument(
        "--project", action="store_true", help="in the settings of the workspace (the default)"
    )
    where.add_argument("--user", action="store_true", help="in your own settings, for all projects")
    how = hook.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="only show what would change")
    how.add_argument("--yes", action="store_true", help="do not ask")
    hook.add_argument(
        "--agent", metavar="AGENT", help="of a call: who calls, if nothing else tells"
    )
    hook.add_argument("--event", metavar="EVENT", help="of a call: what happened, likewise")


def _add_mcp(make: Make) -> None:
    mcp = make("mcp", "serve the workspace to an agent by the Model Context Protocol, on stdio")
    mcp.add_argument("--read-only", action="store_true", help="only the tools that change nothing")
