"""The words of verbs that run commands, and group what they did."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from ckptfs.cli.parser import VerbParser


def _run(run: VerbParser) -> None:
    run.usage = (
        "ckptfs run [-w DIR] [--on-failure keep|restore|ask | --harness]\n"
        "                  -- COMMAND ..."
    )
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
    _command(run)


def _command(parser: VerbParser) -> None:
    """A command stands behind `--`."""
    parser.add_argument("stray", nargs="*", default=[], help=argparse.SUPPRESS)
    parser.behind = "words"


def _try(attempt: VerbParser) -> None:
    attempt.usage = "ckptfs try [-w DIR] [--yes-if-ok | --keep] -- COMMAND ..."
    how = attempt.add_mutually_exclusive_group()
    how.add_argument("--yes-if-ok", action="store_true", help="take it if it ends well; do not ask")
    how.add_argument("--keep", action="store_true", help="take nothing, and do not ask")
    _command(attempt)


def _exec(execute: VerbParser) -> None:
    execute.usage = "ckptfs exec [-w DIR] ID -- COMMAND ..."
    execute.add_argument("checkpoint", metavar="ID", help="the checkpoint to run it on")
    _command(execute)


def _race(race: VerbParser) -> None:
    race.usage = (
        "ckptfs race [-w DIR] [-n N] [--score COMMAND] [--take best]\n"
        "                   -- COMMAND ..."
    )
    race.add_argument("-n", dest="count", metavar="N", type=int, default=3, help="default 3")
    race.add_argument(
        "--score", metavar="COMMAND", default="", help="run in each; the number it prints counts"
    )
    race.add_argument("--take", choices=("best",), help="merge the best one that ended well")
    _command(race)


def _bisect(bisect: VerbParser) -> None:
    bisect.usage = (
        "ckptfs bisect run [-w DIR] [--from A] [--to B] [-j N] [--again]\n"
        "                     -- COMMAND ..."
    )
    bisect.add_argument("action", choices=("run",), help="what to do")
    bisect.add_argument(
        "--from", dest="good", metavar="A", default="", help="a good one (default: the oldest)"
    )
    bisect.add_argument(
        "--to", dest="bad", metavar="B", default="", help="a bad one (default: the newest)"
    )
    bisect.add_argument("-j", dest="jobs", metavar="N", type=int, default=1, help="side by side")
    bisect.add_argument("--again", action="store_true", help="pass over remembered results")
    _command(bisect)


def _task(task: VerbParser) -> None:
    task.usage = (
        "ckptfs task start NAME | done [MESSAGE] | list\n"
        "                   | revert NAME [--force | --dry-run]"
    )
    task.add_argument("action", choices=("start", "done", "list", "revert"), help="what to do")
    task.add_argument("subject", metavar="NAME", nargs="?", help="its name, or what was done")
    task.add_argument("--dry-run", action="store_true", help="only say what revert would do")
    task.add_argument(
        "--force", action="store_true", help="also revert what others changed meanwhile"
    )


def _team(team: VerbParser) -> None:
    team.usage = (
        "ckptfs team snapshot TEAM [--tag T] | snapshots TEAM\n"
        "                   | restore TEAM ID [--dry-run] [--force]\n"
        "                   | snapshot-delete TEAM ID        [--data-dir DIR]"
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


WORDS: dict[str, Callable[[VerbParser], None]] = {
    "run": _run,
    "try": _try,
    "exec": _exec,
    "race": _race,
    "bisect": _bisect,
    "task": _task,
    "team": _team,
}
