"""Sandboxes as agents have them, made by bwrap around a workspace that is mounted outside."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.mounting import Workspace

ROOT = Path(__file__).parents[2]

#: The whole machine, read-only but for the workspace, without its processes.
READ_ONLY = "read-only"
#: Nothing but the workspace, under another name, and what Python needs; every namespace is new.
BARE = "bare"
KINDS = (READ_ONLY, BARE)

#: Where the workspace is in a bare one.
BARE_PATH = Path("/ws")

Done = subprocess.CompletedProcess[str]

_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc")
_PASSED = ("PATH", "LANG", "PYTHONPATH", "LD_LIBRARY_PATH", "PYTHONDONTWRITEBYTECODE")


def inside(kind: str, workspace: Workspace) -> Path:
    """The workspace's path in the sandbox."""
    return workspace.path if kind == READ_ONLY else BARE_PATH


def bwrap(kind: str, bound: Path, *more: str, read_only: bool = False) -> list[str]:
    """The words that start a program in a sandbox that has ``bound``, and start in it."""
    bind = "--ro-bind" if read_only else "--bind"
    kernel = ["--proc", "/proc", "--dev", "/dev", "--die-with-parent"]
    if kind == READ_ONLY:
        place = ["--ro-bind", "/", "/", bind, str(bound), str(bound)]
        return ["bwrap", *place, "--unshare-pid", *kernel, "--chdir", str(bound), *more]
    words = ["bwrap", "--unshare-all", *kernel, "--tmpfs", "/tmp", "--clearenv"]
    for path in _needed():
        words += ["--ro-bind", path, path]
    for name in _PASSED:
        if name in os.environ:
            words += ["--setenv", name, os.environ[name]]
    return [*words, bind, str(bound), str(BARE_PATH), "--chdir", str(BARE_PATH), *more]


def _needed() -> list[str]:
    wanted = [*_SYSTEM, sys.base_prefix, sys.prefix, str(ROOT)]
    wanted += filter(None, os.environ.get("PYTHONPATH", "").split(":"))
    found: list[str] = []
    for path in wanted:
        covered = any(path == other or path.startswith(f"{other}/") for other in found)
        if os.path.exists(path) and not covered:
            found.append(path)
    return found


def run(
    kind: str,
    workspace: Workspace,
    *words: str | Path,
    bound: Path | None = None,
    read_only: bool = False,
    more: Sequence[str] = (),
    stdin: str = "",
) -> Done:
    """Run a program to its end in a sandbox around the workspace, or around a part of it. ``more``
    are further options of bwrap."""
    sandbox = bwrap(kind, bound or workspace.path, *more, read_only=read_only)
    return subprocess.run(
        [*sandbox, *map(str, words)],
        input=stdin,
        env={**os.environ, **workspace.env},
        capture_output=True,
        text=True,
        timeout=60,
    )


def cli(kind: str, workspace: Workspace, *words: str | Path, **how: Any) -> Done:
    """Run the command line in a sandbox; ``how`` as for `run`."""
    return run(kind, workspace, sys.executable, "-m", "ckptfs", *words, **how)
