"""Which workspace, or which store, a command line means."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ckptfs import config
from ckptfs.cli import output
from ckptfs.config import Workspace
from ckptfs.control import runtime
from ckptfs.errors import (
    CheckpointUnknown,
    PathUnknown,
    StoreMissing,
    UsageError,
    WorkspaceUnknown,
    shell,
)
from ckptfs.service.arguments import JsonObject

#: How much of a command line is kept.
_COMMAND_MAX = 16 << 10
#: Verbs that need only the store, and so work without a daemon.
_FROM_STORE = frozenset({"list", "show", "log"})


def find_workspace(args: Namespace) -> Workspace:
    """The workspace of ``-w``, else of the current directory, each looked for upward."""
    path = current_directory() if args.workspace is None else config.resolve(args.workspace)
    try:
        found = config.find(path)
    except WorkspaceUnknown:
        raise _unknown(path, above=True) from None
    except StoreMissing as error:
        raise _explained(error, path) from None
    if getattr(args, "verb", "") in _FROM_STORE:
        _say_if_failed(found)
    return found


def _say_if_failed(found: Workspace) -> None:
    """Say that the daemon failed: a verb that needs only the store works, and would hide that."""
    note = runtime.left_behind(found)
    if note is not None and note.get("state") == runtime.FAILED:
        output.note(output.safe(f"{found.path} is not served: {runtime.why_gone(found)}."))


def _explained(error: StoreMissing, path: Path) -> StoreMissing:
    """The error, with what became of the daemon that had the store, if that is known."""
    for place in (path, *path.parents):
        entry = config.registered(place)
        if entry is not None and runtime.left_behind(entry) is not None:
            error.message += f" Its daemon: {runtime.why_gone(entry)}."
            break
    return error


@contextmanager
def hinting_at_paths(words: Sequence[str], how: str) -> Iterator[None]:
    """Where a checkpoint is looked for in vain, the word for it may be a path: then ``how``, behind
    which the path is put, says where paths stand."""
    try:
        yield
    except CheckpointUnknown as error:
        path = next((word for word in words if word and os.path.lexists(word)), None)
        if path is not None:
            error.hint = f"{path} is a path; to name one: {how} {shell(path)}"
        raise


def workspace_to_save(args: Namespace) -> Workspace:
    """The same; with ``--no-mount``, a directory that is not known yet becomes one as it stands."""
    try:
        return find_workspace(args)
    except WorkspaceUnknown:
        if not args.no_mount:
            raise
    from ckptfs.api.workspace import prepare_plain

    return prepare_plain(args.workspace or current_directory(), keep_first=False)


def workspace_or_store(args: Namespace) -> Workspace:
    """What ``--store`` names, else the workspace. A store alone stands for its own workspace,
    unless a daemon has it and says which one."""
    if args.store is None:
        return find_workspace(args)
    store = config.resolve(args.store)
    alone = Workspace(store, store)
    daemon = runtime.living(alone)
    return alone if daemon is None else Workspace(Path(daemon.workspace), store)


def exact_workspace(args: Namespace) -> Workspace:
    """The workspace that a positional DIR or ``-w`` names itself, not one further up."""
    path = named_directory(args)
    if path is None:
        return config.find(current_directory())
    resolved = config.resolve(path)
    found = config.lookup(resolved)
    if found is None:
        raise _unknown(resolved, above=False)
    return found


def _unknown(path: Path, *, above: bool) -> WorkspaceUnknown:
    """The error for a path in no known workspace. It may be in one that another user has mounted,
    whose registry we do not read."""
    from ckptfs import control_file
    from ckptfs.daemon import mounts

    if not os.path.exists("/proc/self/mountinfo"):
        hint = "Mounts cannot be seen without /proc: give the sandbox one (bwrap --proc /proc)."
        return WorkspaceUnknown(path, above=above, hint=hint)
    part = control_file.mount_around(str(path))
    if part is not None and not part.is_whole:
        return WorkspaceUnknown(
            path,
            hint=f"{part.path} is only {part.top[1:]} of a mounted workspace. Its history is "
            "reached through the root of the workspace: give the sandbox all of it.",
        )
    mount = mounts.mount_at(path) or (mounts.mount_around(path) if above else None)
    if mount is None or not mount.is_ours:
        missing = not os.path.lexists(path)
        return WorkspaceUnknown(path, above=above, missing=missing, hint=_hint_if_moved(path))
    other = control_file.foreign_mount(str(mount.path), "")
    user = (runtime.mounted_by(other) if other else "") or "another user"
    return WorkspaceUnknown(mount.path, mounted=True, store=mount.store, user=user)


def _hint_if_moved(path: Path) -> str | None:
    for place in (path, *path.parents):
        if (before := config.moved(place)) is not None:
            import shlex

            again = shlex.quote(str(place))
            return f"{place} was the workspace {before.path}. To go on: ckptfs mount {again}"
    return None


def named_directory(args: Namespace) -> str | None:
    """DIR as it was typed, after the verb or with ``-w``."""
    named: str | None = args.directory
    other: str | None = args.workspace
    if named is not None and other is not None and named != other:
        raise UsageError("Cannot tell which directory is meant: DIR and -w DIR differ.")
    return other if named is None else named


def current_directory() -> Path:
    """The current directory. The kernel's own answer: asking each part of it could hang."""
    try:
        return Path(os.getcwd())
    except OSError as error:
        raise UsageError(
            "Cannot look for a workspace: the current directory does not exist any more.",
            hint="Change to another directory, or name a workspace with -w DIR.",
        ) from error


def path_inside(path: str, workspace: Workspace, verb: str) -> str:
    """A path as typed, relative to the workspace's root; the root itself is empty. It need not
    exist any more.

    Links above it are followed, it itself is not: it is meant, not its target. ``verb`` is for the
    error if it lies elsewhere.
    """
    if not path:
        raise UsageError(f"Cannot {verb} anything: a path is empty.")
    where = os.path.realpath(".")
    above, name = os.path.split(os.path.normpath(os.path.join(where, path)))
    full = os.path.join(os.path.realpath(above), name)
    root = os.fspath(workspace.path)
    if full == root:
        return ""
    if not full.startswith(f"{root}/"):
        reason = f"{full} is not inside the workspace {root}"
        raise PathUnknown(path, reason, verb=verb, hint=_hint_from_here(path, where, root))
    return full[len(root) + 1 :]


def _hint_from_here(path: str, where: str, root: str) -> str:
    if os.path.isabs(path) or os.path.relpath(path, ".").startswith("../"):
        return f"Name a path in {root}."
    way = os.path.join(os.path.relpath(root, where), path)
    return f"Paths are relative to where you are, also with -w DIR: {way}"


def path_below_root(path: str, workspace: Workspace, verb: str) -> str:
    """The same for verbs that take parts of a workspace, never all of it."""
    found = path_inside(path, workspace, verb)
    if not found:
        hint = (
            f"To {verb} all of it, leave the path out." if verb == "restore" else "Name its parts."
        )
        reason = "it is the whole workspace, not a path in it"
        raise PathUnknown(path, reason, verb=verb, hint=hint)
    return found


def this_command() -> JsonObject:
    """Who asks, for what changes files: this command, of its parent process."""
    return {"pid": os.getppid(), "command": " ".join(["ckptfs", *sys.argv[1:]])}


def calling_process() -> JsonObject:
    """Who runs this command: its parent process, by number and command line. NUL stays behind each
    word: what is recorded is for the settings to say."""
    pid = os.getppid()
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as words:
            command = words.read(_COMMAND_MAX)
    except OSError:
        command = b""
    return {"pid": pid, "command": command.decode(errors="replace")}
