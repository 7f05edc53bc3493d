"""`ckptfs mount`: check, start the daemon, and say what became of it."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ckptfs.cli import place, report, screen
from ckptfs.cli.screen import JsonObject
from ckptfs.config import Workspace
from ckptfs.daemon import options, rules
from ckptfs.daemon.launch import Announcer, launch
from ckptfs.errors import CkptfsError, MountFailed, UsageError


def mount(args: Namespace) -> int:
    plan = rules.plan(_request(args))
    if args.foreground:
        _live(plan, _ForegroundAnnouncer(plan, as_json=args.json))
        return 0
    with screen.progress("Reading") as show:
        started = launch(lambda announcer: _live(plan, announcer), show, ended=lambda: _died(plan))
    _look_at_root(plan)
    _say(plan, started, as_json=args.json)
    return 0


def start(workspace: Workspace) -> None:
    """Mount a workspace that is known, to unmount it in order."""
    request = rules.MountRequest(str(workspace.path), str(workspace.store), auto="off")
    plan = rules.plan(request)
    launch(lambda announcer: _live(plan, announcer), None, ended=lambda: _died(plan))


def _look_at_root(plan: rules.Plan) -> None:
    """Until somebody asks whose it is, the kernel takes the root of a mount for uid 0's, and
    refuses its owner's chmod."""
    with suppress(OSError):
        plan.workspace.path.stat()


def _request(args: Namespace) -> rules.MountRequest:
    directory = place.directory(args)
    if directory is None:
        raise UsageError("Cannot mount: no directory is named.")
    if args.no_mount:
        raise UsageError(
            "Cannot mount with --no-mount.", hint="`ckptfs save -w DIR --no-mount` needs no mount."
        )
    flags = options.parse(options.split(args.options))
    return rules.MountRequest(
        directory=directory,
        store=args.store,
        source=args.source,
        xattrs=args.xattrs,
        allow_other=args.allow_other or flags.allow_other,
        write_back=args.write_back,
        auto=_policy(args.auto),
        exclude=_patterns(args.exclude),
        flags=flags.kernel,
    )


def _policy(words: str) -> str:
    """The policy for automatic checkpoints, refused here if it makes no sense."""
    from ckptfs.history.auto import parse_policy

    parse_policy(words)
    return words


def _patterns(patterns: list[str]) -> tuple[str, ...]:
    """Exclude patterns, refused here if one makes no sense."""
    if patterns:
        from ckptfs.history.settings import patterns_text, require_valid

        for pattern in patterns:
            # As typed, for the words of the error; only a comma would make two of it.
            typed = pattern if "," not in pattern else patterns_text([pattern])
            require_valid("exclude.patterns", typed)
    return tuple(patterns)


def _live(plan: rules.Plan, announcer: Announcer) -> None:
    # Late, and in the daemon only: LMDB and trio have no business in the process that forks.
    from ckptfs.daemon.life import live

    live(plan, announcer)


def _died(plan: rules.Plan) -> CkptfsError:
    return MountFailed(
        plan.workspace.path,
        "the daemon ended without a word",
        hint=f"It may have been killed. Its log is {plan.workspace.log}.",
    )


class _ForegroundAnnouncer:
    """Says on our own screen what a daemon would tell its parent."""

    def __init__(self, plan: rules.Plan, *, as_json: bool) -> None:
        self._plan = plan
        self._as_json = as_json
        self.is_ready = False
        self.progress = None

    def ready(self, record: JsonObject) -> None:
        self.is_ready = True
        _say(self._plan, record, as_json=self._as_json)


def _say(plan: rules.Plan, started: JsonObject, *, as_json: bool) -> None:
    workspace, scan = plan.workspace, started["scan"]
    record = {
        "workspace": str(workspace.path),
        "store": str(workspace.store),
        "mounted": True,
        "pid": started["pid"],
        "log": str(workspace.log),
        "scan": scan,
        "room": started["room"],
        "history_lost": plan.history_lost,
        "daemon_died": plan.covered_by_dead,
        "moved_from": None if plan.moved_from is None else str(plan.moved_from),
    }
    how = " read-only" if plan.read_only else ""
    human = f"Mounted {screen.safe(workspace.path)}{how}; brought in: {report.counts(scan)}."
    screen.result(record, human, as_json=as_json)
    sys.stdout.flush()
    for line in (*report.remarks(scan), *_remarks(plan)):
        screen.note(line)
    if started["room"] is not None:
        screen.note(f"Room is short: {report.room(started['room'])}.")


def _reason(plan: rules.Plan) -> str:
    return f": {screen.safe(plan.failure).rstrip('.')}" if plan.failure else ""


def _remarks(plan: rules.Plan) -> Iterator[str]:
    workspace = plan.workspace
    if plan.auto == "off":
        yield f"Automatic checkpoints are off: {report.NOTHING_KEPT}."
    if plan.covered_by_dead:
        yield f"The last daemon had died{_reason(plan)}. Everything that reached the store is kept."
    if plan.history_lost:
        yield (
            f"The store of this workspace, {screen.safe(workspace.store)}, was gone, and its "
            "history with it. A new history begins."
        )
    if plan.moved_from is not None:
        yield (
            f"This directory was {screen.safe(plan.moved_from)}; its history goes on "
            f"({screen.safe(workspace.store)})."
        )
    with suppress(OSError):  # whoever stands nowhere has nothing to be told
        if Path(os.getcwd()).is_relative_to(workspace.path):
            yield "Your shell still stands in the lower directory. To enter the mount: cd ."
