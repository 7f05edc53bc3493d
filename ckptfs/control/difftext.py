"""Text diffs on the client's side: fetching the bytes of files in batches, and rendering them.

The daemon only reads; comparing lines happens here, so that nobody's file system waits for it.
"""

from __future__ import annotations

import os
import stat
from base64 import b64decode
from collections.abc import Iterator

from ckptfs.control.client import Session
from ckptfs.control.protocol import JsonObject
from ckptfs.textdiff import TEXT_MAX, PatchFile, git_mode, is_shown, quoted, render

#: How many bytes of files, of their names, and how many files one question to the daemon is about.
_BATCH_BYTES = 4 << 20
_BATCH_NAMES = 64 << 10
_BATCH_FILES = 500


class Files:
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
    for files in read(session, record):
        if not files.is_special:
            for piece in render(files.old, files.new, same=files.same):
                yield from piece.removesuffix(b"\n").split(b"\n")


# -- reading ---------------------------------------------------------------------------------------


def read(session: Session, record: JsonObject) -> Iterator[Files]:
    """The files of an answer, those to be shown with their bytes, a batch at a time."""
    batch: list[Files] = []
    size = names = 0
    for item in record["files"]:
        files = Files(item)
        batch.append(files)
        for side in (files.old, files.new):
            if side is not None and _is_wanted(files, side):
                size += side.size
                names += 2 * len(side.path)
        if size >= _BATCH_BYTES or names >= _BATCH_NAMES or len(batch) >= _BATCH_FILES:
            yield from _filled(session, record, batch)
            batch, size, names = [], 0, 0
    yield from _filled(session, record, batch)


def _is_wanted(files: Files, side: PatchFile) -> bool:
    return not files.same and side.data is None and stat.S_ISREG(side.mode) and is_shown(side.size)


def _filled(session: Session, record: JsonObject, batch: list[Files]) -> list[Files]:
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
