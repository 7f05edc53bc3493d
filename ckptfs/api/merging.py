"""A merge from the client's side: texts that conflict are merged by a program, where the setting
`merge.driver` names one.

The daemon runs no command of a user. So the client makes a dry run, reads the texts of each
conflict, has the program merge them in files of its own, and hands in what came of it with the
dry run's token: if anything changed meanwhile, it begins again.
"""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import tempfile
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ckptfs import textmerge
from ckptfs.api.workspace import Command, command_of
from ckptfs.config import Workspace
from ckptfs.control import transfer
from ckptfs.control.client import Session
from ckptfs.errors import MergeDriverFailed, TreeMoved, UsageError
from ckptfs.service.arguments import JsonObject
from ckptfs.textdiff import TEXT_MAX

SETTING = "merge.driver"

#: How often to begin again if the workspace changed meanwhile.
_ATTEMPTS = 3
#: From this status on a program has failed, as with git; below it there are conflicts left.
_FAILED = 128
#: How much of what it said goes into the reason of its failure.
_SAID_MAX = 500

_MARKER_SIZE = "7"
_MERGIRAF = "mergiraf merge --git %O %A %B -s base -x ours -y theirs -p %P -l %L"
_GIT = "git merge-file --zdiff3 -L ours -L base -L theirs %A %O %B"
_GIT_UNION = "git merge-file --union %A %O %B"


class Texts(NamedTuple):
    """The three texts of a conflict."""

    base: bytes
    ours: bytes
    theirs: bytes


class _Program(NamedTuple):
    """The words of a command. One ``for_shell`` is a line for the shell, as git has it."""

    words: Sequence[str]
    for_shell: bool = False


class Text(NamedTuple):
    """What a program made of them; ``clean`` if no conflict is left in it."""

    data: bytes
    clean: bool


def merge(
    session: Session, workspace: Workspace, asked: JsonObject, driver: str | None = None
) -> JsonObject:
    """The answer of the verb, without where the texts are. ``driver`` stands for the workspace's
    setting."""
    record = _answer(session, workspace, asked, driver)
    del record["views"]
    for conflict in record["conflicts"]:
        del conflict["text_paths"]
    return record


def _answer(
    session: Session, workspace: Workspace, asked: JsonObject, driver: str | None
) -> JsonObject:
    if driver is None:
        wanted = command_of(workspace.store, SETTING)
    else:
        wanted = Command(_words(driver))
    if not wanted:
        return session.call("merge", asked)
    for attempt in range(_ATTEMPTS):
        try:
            return _with_driver(session, workspace, asked, wanted)
        except TreeMoved:
            if asked.get("token") or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("an attempt returns or raises")


def _words(driver: str) -> list[str]:
    try:
        return textmerge.driver_words(driver)
    except ValueError as error:
        reason = str(error).rstrip(".")
        raise UsageError(f"Cannot merge with {driver!r}: {reason}. Nothing was changed.") from error


def _with_driver(
    session: Session, workspace: Workspace, asked: JsonObject, wanted: Command
) -> JsonObject:
    planned = session.call("merge", {**asked, "dry_run": True})
    by_path = asked.get("resolutions", {})
    found = {
        each["path"]: _merged(session, workspace, planned["views"], each, wanted)
        for each in planned["conflicts"]
        if each["text_paths"] is not None and each["path"] not in by_path
    }
    if not found:
        # Also what was not in conflict may have changed since: without contents that is no harm.
        return planned if asked.get("dry_run") else session.call("merge", asked)
    with transfer.staged_files(workspace, [text.data for text in found.values()]) as files:
        contents = [
            {"path": path, "file": file, "clean": text.clean}
            for (path, text), file in zip(found.items(), files, strict=True)
        ]
        return session.call("merge", {**asked, "token": planned["token"], "contents": contents})


def _merged(
    session: Session, workspace: Workspace, views: list[int], conflict: JsonObject, wanted: Command
) -> Text:
    path = conflict["path"]
    if wanted.refused:
        raise MergeDriverFailed(path, f"{SETTING} is set, but {wanted.refused}")
    sides = [
        _content(session, view, at) if at else b""
        for view, at in zip(views, conflict["text_paths"], strict=True)
    ]
    return run(wanted.words, path, Texts(*sides), workspace.path)


def _content(session: Session, view: int, path: str) -> bytes:
    asked = {"view": view, "paths": [path], "limit": TEXT_MAX}
    (found,) = session.call("contents", asked)["contents"]
    if found is None:
        raise TreeMoved("merge")  # it is no such text any more
    return b64decode(found)


# -- the program -----------------------------------------------------------------------------------


def run(words: Sequence[str], path: str, texts: Texts, workspace: Path) -> Text:
    """Have a program merge three texts, which it gets as files; the one of ours has the result.
    The names of the files end as that of the path does."""
    program = _known(words, path, workspace)
    # A shell would take the ending apart.
    ending = "" if program.for_shell else os.path.splitext(path)[1]
    with tempfile.TemporaryDirectory(prefix="ckptfs-merge-") as directory:
        files = [os.path.join(directory, name + ending) for name in ("base", "ours", "theirs")]
        for file, text in zip(files, texts, strict=True):
            Path(file).write_bytes(text)
        marks = dict(zip("OAB", files, strict=True)) | {
            "P": shlex.quote(path) if program.for_shell else path,
            "L": _MARKER_SIZE,
            "S": "base",
            "X": "ours",
            "Y": "theirs",
        }
        status = _run([_filled(word, marks) for word in program.words], path, workspace)
        data = _result(files[1])
        if data is None:
            raise MergeDriverFailed(path, f"{program.words[0]} left no file with the result")
        return Text(data, clean=status == 0)


def _result(file: str) -> bytes | None:
    """What a program left in an ordinary file, None if there is none: it may have left anything."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(descriptor, "rb") as opened:
        return opened.read() if stat.S_ISREG(os.fstat(descriptor).st_mode) else None


def _filled(word: str, marks: dict[str, str]) -> str:
    """A word of the command with the places of the texts for %O, %A and %B, the path for %P;
    %% is a per cent sign."""
    parts = iter(word.split("%"))
    found = next(parts)
    for part in parts:
        if not part:  # %%
            found += "%" + next(parts, "")
        elif part[0] in marks:
            found += marks[part[0]] + part[1:]
        else:
            found += "%" + part
    return found


def _run(words: list[str], path: str, workspace: Path) -> int:
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=workspace,
            check=False,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise MergeDriverFailed(path, f"{words[0]} could not be run ({reason.lower()})") from error
    if 0 <= done.returncode < _FAILED:
        return done.returncode
    said = done.stderr.decode(errors="replace").strip()[-_SAID_MAX:]
    reason = f"{words[0]} ended with {done.returncode}" + (f" ({said})" if said else "")
    raise MergeDriverFailed(path, reason)


def _known(words: Sequence[str], path: str, workspace: Path) -> _Program:
    """A program that is known by its name, or any other as it is."""
    if list(words) == ["mergiraf"]:
        return _Program(shlex.split(_MERGIRAF))
    return _git(path, workspace) if list(words) == ["git"] else _Program(words)


def _git(path: str, workspace: Path) -> _Program:
    """What git would merge that path with: the driver that its attributes name and its settings
    define, a union if they say so, nothing if they forbid it, else by lines."""
    driver = _attribute(path, workspace)
    if driver == "unset":
        return _Program(["false"])
    if driver == "union":
        return _Program(shlex.split(_GIT_UNION))
    command = _asked_git(workspace, "config", "--get", f"merge.{driver}.driver") if driver else ""
    return (
        _Program(["sh", "-c", command], for_shell=True) if command else _Program(shlex.split(_GIT))
    )


def _attribute(path: str, workspace: Path) -> str:
    """git's attribute `merge`; empty if it says nothing of the kind."""
    found = _asked_git(workspace, "check-attr", "-z", "merge", "--", path).split("\0")
    value = found[2] if len(found) > 2 else ""
    return "" if value in ("unspecified", "set") else value


def _asked_git(workspace: Path, *words: str) -> str:
    """What git says; nothing where there is no repository, or one that git does not trust."""
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=workspace,
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except OSError:
        return ""
    return os.fsdecode(done.stdout).strip("\n") if done.returncode == 0 else ""
