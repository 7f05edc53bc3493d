"""Which workspace, or which store, a command line means."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path

from ckptfs import config
from ckptfs.config import Workspace
from ckptfs.control import runtime
from ckptfs.control.protocol import Record
from ckptfs.errors import PathUnknown, UsageError, WorkspaceUnknown

#: How much of a command line is kept.
_COMMAND_MAX = 1000


def workspace(args: Namespace) -> Workspace:
    """The workspace of ``-w``, else of the current directory, each looked for upward."""
    if args.workspace is not None:
        return config.find(config.resolve(args.workspace))
    return config.find(here())


def workspace_to_save(args: Namespace) -> Workspace:
    """The same; with ``--no-mount``, a directory that is not known yet becomes one as it stands."""
    try:
        return workspace(args)
    except WorkspaceUnknown:
        if not args.no_mount:
            raise
    from ckptfs.api.place import prepare_plain

    return prepare_plain(args.workspace or here(), keep_first=False)


def workspace_or_store(args: Namespace) -> Workspace:
    """What ``--store`` names, else the workspace. A store alone stands for its own workspace,
    unless a daemon has it and says which one."""
    if args.store is None:
        return workspace(args)
    store = config.resolve(args.store)
    alone = Workspace(store, store)
    daemon = runtime.living(alone)
    return alone if daemon is None else Workspace(Path(daemon.workspace), store)


def exact_workspace(args: Namespace) -> Workspace:
    """The workspace that a positional DIR or ``-w`` names itself, not one further up."""
    path = directory(args)
    if path is None:
        return config.find(here())
    resolved = config.resolve(path)
    found = config.lookup(resolved)
    if found is None:
        raise WorkspaceUnknown(resolved, hint=_hint_for_a_stranger(resolved))
    return found


def _hint_for_a_stranger(path: Path) -> str | None:
    """A workspace may be mounted by someone whose registry we do not read."""
    from ckptfs.daemon import mounts

    mount = mounts.mount_at(path)
    if mount is None or not mount.is_ours:
        return None
    return (
        "Another user, or one with another XDG_DATA_HOME, mounted it. "
        "fusermount3 -u unmounts it too, and its daemon writes back."
    )


def directory(args: Namespace) -> str | None:
    """DIR as it was typed, after the verb or with ``-w``."""
    named: str | None = args.directory
    other: str | None = args.workspace
    if named is not None and other is not None and named != other:
        raise UsageError("Cannot tell which directory is meant: DIR and -w DIR differ.")
    return other if named is None else named


def here() -> Path:
    """The current directory. The kernel's own answer: asking each part of it could hang."""
    try:
        return Path(os.getcwd())
    except OSError as error:
        raise UsageError(
            "Cannot look for a workspace: the current directory does not exist any more.",
            hint="Change to another directory, or name a workspace with -w DIR.",
        ) from error


def inside(path: str, workspace: Workspace, verb: str) -> str:
    """A path as typed, relative to the workspace's root; the root itself is empty. It need not
    exist any more.

    Links above it are followed, it itself is not: it is meant, not its target. ``verb`` is for the
    error if it lies elsewhere.
    """
    above, name = os.path.split(os.path.normpath(os.path.join(os.path.realpath("."), path)))
    full = os.path.join(os.path.realpath(above), name)
    root = os.fspath(workspace.path)
    if full == root:
        return ""
    if not full.startswith(f"{root}/"):
        raise PathUnknown(path, f"it is not inside the workspace {root}", verb=verb)
    return full[len(root) + 1 :]


def below_root(path: str, workspace: Workspace, verb: str) -> str:
    """The same for verbs that take parts of a workspace, never all of it."""
    found = inside(path, workspace, verb)
    if not found:
        raise PathUnknown(path, "it is the whole workspace, not a path in it", verb=verb)
    return found


def caller() -> Record:
    """Who runs this command: its parent process, by number and command line."""
    pid = os.getppid()
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as words:
            command = words.read(_COMMAND_MAX).replace(b"\0", b" ").strip()
    except OSError:
        command = b""
    return {"pid": pid, "command": command.decode(errors="replace")}
