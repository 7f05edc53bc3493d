"""`ckptfs watch`: what happens to a mounted workspace, a line each, until it is unmounted."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from ckptfs.cli import place, screen
from ckptfs.cli.screen import JsonObject
from ckptfs.control import runtime
from ckptfs.control.client import Client
from ckptfs.errors import DaemonGone, NotMounted


def watch(args: Namespace) -> int:
    workspace = place.workspace(args)
    daemon = runtime.living(workspace)
    if daemon is None and runtime.is_dead(workspace.path):
        raise DaemonGone(workspace.path, runtime.why_gone(workspace))
    if daemon is None:
        runtime.require_uncovered(workspace)
    if daemon is None or daemon.state != runtime.SERVING:
        raise NotMounted(workspace.path)
    with Client(workspace) as client:
        for event in client.watch():
            print(json.dumps(screen.portable(event)) if args.json else _line(event))
            sys.stdout.flush()
    return 0


def _line(event: JsonObject) -> str:
    data, number = event["data"], event["checkpoint"]
    words = [screen.time_text(event["time_ns"]), event["event"]]
    if number is not None:
        words.append(str(number))
    if event["event"] == "checkpoints_pruned":
        words.append(", ".join(data["ids"]))
    words.append(screen.safe(data.get("message", "")))
    return "  ".join(word for word in words if word)
