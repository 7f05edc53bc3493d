"""Large things over a wire of short lines, from the client's side: state documents and the bytes of
files, in pieces.

Documents go in through files in the store's own directory, which is never inside a mount and open
to its owner only, and come back in pieces. From a sandbox that cannot write to the store the daemon
takes them in pieces, too. A text diff is made here from the bytes of files: the daemon only reads,
so that no file system waits while lines are compared.
"""

from __future__ import annotations

import json
import os
import stat
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from ckptfs.config import Workspace
from ckptfs.control import runtime
from ckptfs.control.client import Client, Session
from ckptfs.errors import CkptfsError, StateInvalid, UsageError
from ckptfs.service.arguments import SIZE_MAX, JsonObject, encode, new_name, require_name, sweep
from ckptfs.textdiff import TEXT_MAX, PatchFile, git_mode, is_shown, quoted, render

#: How many bytes of files, of their names, and how many files one question to the daemon is about.
_BATCH_BYTES = 4 << 20
_BATCH_NAMES = 64 << 10
_BATCH_FILES = 500

#: Stages a document; the name of the file that it is in.
Stage = Callable[[bytes], str]

#: How much of a document one answer carries.
_PIECE = 1 << 20
#: How much of it one request carries: as base64, well below the longest request.
_PIECE_SENT = 128 << 10


@contextmanager
def staged(workspace: Workspace, state: Mapping[str, Any]) -> Iterator[list[JsonObject]]:
    """Stage documents where the store's holder can read them; what to send to `save`."""
    if not isinstance(state, Mapping):
        raise UsageError(
            f"Cannot keep {state!r} as state: it is no mapping. Nothing was saved.",
            hint="By name, what the document holds: state={'name': ...}",
        )
    records: list[JsonObject] = []
    with _stage_of(workspace) if state else nullcontext(_nowhere) as stage:
        for name, value in state.items():
            data, is_json = encode(require_name(name), value)
            if len(data) > SIZE_MAX:
                raise StateInvalid(name, f"it is larger than {SIZE_MAX >> 20} MiB")
            records.append({"name": name, "json": is_json, "file": stage(data)})
        yield records


@contextmanager
def staged_files(workspace: Workspace, contents: Sequence[bytes]) -> Iterator[list[str]]:
    """Stage bytes where the store's holder can read them; the names of the files."""
    with _stage_of(workspace) as stage:
        yield [stage(data) for data in contents]


def _nowhere(data: bytes) -> str:
    raise AssertionError("there is no document")


def _stage_of(workspace: Workspace) -> AbstractContextManager[Stage]:
    if not os.access(workspace.store, os.W_OK) and runtime.living(workspace) is not None:
        return _by_daemon(workspace)
    return _in_store(workspace.store)


@contextmanager
def _in_store(store: Path) -> Iterator[Stage]:
    files: list[Path] = []

    def stage(data: bytes) -> str:
        files.append(store / new_name())
        _write(files[-1], data)
        return files[-1].name

    sweep(store)
    try:
        yield stage
    finally:
        for path in files:
            path.unlink(missing_ok=True)


@contextmanager
def _by_daemon(workspace: Workspace) -> Iterator[Stage]:
    """Where we may not write to the store, as in a sandbox, the daemon does."""
    files: list[str] = []
    with Client(workspace) as client:

        def stage(data: bytes) -> str:
            files.append(client.call("state_stage", {"data": ""})["file"])
            for start in range(0, len(data), _PIECE_SENT):
                piece = b64encode(data[start : start + _PIECE_SENT]).decode()
                client.call("state_stage", {"file": files[-1], "data": piece})
            return files[-1]

        try:
            yield stage
        finally:
            with suppress(CkptfsError):  # the daemon sweeps up what is left
                for name in files:
                    client.call("state_unstage", {"file": name})


def _write(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)
        if os.geteuid() == 0:  # the daemon may be another user's
            owner = os.stat(path.parent)
            os.fchown(file.fileno(), owner.st_uid, owner.st_gid)


def fetch_bytes(session: Session, checkpoint: str) -> dict[str, tuple[bytes, bool]]:
    """The documents of a checkpoint: bytes, and whether they are JSON."""
    record = session.call("state", {"checkpoint": checkpoint})
    number = str(record["checkpoint"])
    # The names may become those of files, so they are looked at on this side, too.
    return {
        require_name(item["name"]): (_read(session, number, item), item["json"])
        for item in record["documents"]
    }


def fetch(session: Session, checkpoint: str) -> dict[str, Any]:
    """The documents of a checkpoint as they were given."""
    found = fetch_bytes(session, checkpoint)
    return {name: json.loads(data) if is_json else data for name, (data, is_json) in found.items()}


def _read(session: Session, number: str, item: JsonObject) -> bytes:
    pieces = []
    for offset in range(0, item["bytes"], _PIECE):
        asked = {"checkpoint": number, "name": item["name"], "offset": offset, "length": _PIECE}
        pieces.append(b64decode(session.call("state_read", asked)["base64"]))
    return b"".join(pieces)


# -- text diffs ------------------------------------------------------------------------------------


class FilePair:
    """One file of the answer, with both sides read if they are to be shown."""

    def __init__(self, record: JsonObject) -> None:
        self.old: PatchFile | None = _side(record["old"])
        self.new: PatchFile | None = _side(record["new"])
        self.same = bool(record["same"])

    @property
    def is_special(self) -> bool:
        """Whether git's format has no words for it: a device, FIFO or socket."""
        return any(side is not None and not _speakable(side.mode) for side in (self.old, self.new))


def _speakable(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def _side(record: JsonObject | None) -> PatchFile | None:
    if record is None:
        return None
    target = record.get("target")
    data = None if target is None else os.fsencode(target)
    return PatchFile(os.fsencode(record["path"]), record["mode"], record["size"], data)


def patch_lines(session: Session, record: JsonObject) -> Iterator[bytes]:
    """The whole diff, line by line; what git's format cannot say stands in lines with #."""
    for change in record["changes"]:
        yield from _remarks(change)
    for files in read_files(session, record):
        if not files.is_special:
            for piece in render(files.old, files.new, same=files.same):
                yield from piece.removesuffix(b"\n").split(b"\n")


# -- reading ---------------------------------------------------------------------------------------


def read_files(session: Session, record: JsonObject) -> Iterator[FilePair]:
    """The files of an answer, those to be shown with their bytes, a batch at a time."""
    batch: list[FilePair] = []
    size = names = 0
    for item in record["files"]:
        files = FilePair(item)
        batch.append(files)
        for side in (files.old, files.new):
            if side is not None and _is_wanted(files, side):
                size += side.size
                names += 2 * len(side.path)
        if size >= _BATCH_BYTES or names >= _BATCH_NAMES or len(batch) >= _BATCH_FILES:
            yield from _filled(session, record, batch)
            batch, size, names = [], 0, 0
    yield from _filled(session, record, batch)


def _is_wanted(files: FilePair, side: PatchFile) -> bool:
    return not files.same and side.data is None and stat.S_ISREG(side.mode) and is_shown(side.size)


def _filled(session: Session, record: JsonObject, batch: list[FilePair]) -> list[FilePair]:
    old = [files for files in batch if files.old and _is_wanted(files, files.old)]
    new = [files for files in batch if files.new and _is_wanted(files, files.new)]
    # Both sides are asked for before either is kept: a side that has its data is not wanted.
    old_data = _contents(session, record["from"]["view"], [f.old.path for f in old if f.old])
    new_data = _contents(session, record["to"]["view"], [f.new.path for f in new if f.new])
    for files, data in zip(old, old_data, strict=True):
        files.old = _with_data(files.old, data)
    for files, data in zip(new, new_data, strict=True):
        files.new = _with_data(files.new, data)
    return batch


def _with_data(side: PatchFile | None, data: bytes | None) -> PatchFile | None:
    """The workspace may have moved on since the answer: what was read counts, if only nothing."""
    return None if side is None else side._replace(data=data or b"", size=len(data or b""))


def _contents(session: Session, view: int, paths: list[bytes]) -> list[bytes | None]:
    if not paths:
        return []
    asked = {"view": view, "paths": [os.fsdecode(path) for path in paths], "limit": TEXT_MAX}
    answer = session.call("contents", asked)
    return [None if data is None else b64decode(data) for data in answer["contents"]]


# -- what git's format has no words for ------------------------------------------------------------


def _remarks(change: JsonObject) -> Iterator[bytes]:
    name = quoted(os.fsencode(change["path"]))
    for words in _unspoken(change):
        yield b"# %s: %s" % (name, words.encode("utf-8", "backslashreplace"))


def _unspoken(change: JsonObject) -> Iterator[str]:
    kinds, old, new = set(change["kinds"]), change["old"], change["new"]
    node = new or old
    if node["type"] not in ("file", "link") and kinds & {"added", "deleted", "renamed"}:
        came_from = f" from {change['old_path']}" if "renamed" in kinds else ""
        yield f"{node['type']} {change['kinds'][0]}{ascii(came_from)[1:-1]}"
    if "type" in kinds and {old["type"], new["type"]} - {"file", "link"}:
        yield f"was a {old['type']}, is a {new['type']}"
    if "mode" in kinds and not _git_says(old, new):
        yield f"mode {old['mode']:04o} -> {new['mode']:04o}"
    if "owner" in kinds:
        yield f"owner {old['uid']}:{old['gid']} -> {new['uid']}:{new['gid']}"
    if "xattr" in kinds:
        yield "extended attributes differ"
    if "times" in kinds:
        yield f"modification time {old['mtime_ns']} -> {new['mtime_ns']} ns"


def _git_says(old: JsonObject, new: JsonObject) -> bool:
    """Whether a change of mode is one that git's format tells, and tells whole."""
    modes = (old["mode"], new["mode"])
    return new["type"] == "file" and all(git_mode(mode) & 0o777 == mode for mode in modes)
