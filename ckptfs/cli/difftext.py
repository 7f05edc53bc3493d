"""`diff --stat`: how much of each file changed, as lines with bars."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ckptfs.cli.names import shown_name
from ckptfs.cli.screen import JsonObject, count_text
from ckptfs.connect import Session
from ckptfs.control.transfer import FilePair, read_files
from ckptfs.textdiff.patch import Stat, stat_of

_STAT_WIDTH = 80
_BAR_MAX = 40


def stat_lines(session: Session, record: JsonObject) -> Iterator[bytes]:
    """A line for each file with how much of it changed, one for all else, and the sum."""
    rows = [
        (_stat_name(files), _stat(files), files)
        for files in read_files(session, record)
        if not files.is_special
    ]
    others = list(_others(record))
    names = [row[0] for row in rows] + [name for name, _ in others]
    width = min(max(map(len, names), default=0), _STAT_WIDTH - 20)
    most = max((stat.added + stat.removed for _, stat, _ in rows), default=0)
    for name, found, files in rows:
        yield b" %s | %s" % (name.ljust(width), _stat_text(found, files, most))
    for name, words in others:
        yield b" %s | %s" % (name.ljust(width), words.encode())
    if not rows:
        return
    added, removed = (sum(values) for values in zip(*(s[:2] for _, s, _ in rows), strict=True))
    yield _sum_text(len(rows), added, removed).encode()


def _others(record: JsonObject) -> Iterator[tuple[bytes, str]]:
    """What has no lines to count: directories, unless a file in them tells as much, and pipes and
    the like; with what became of them."""
    sides = (side for files in record["files"] for side in (files["old"], files["new"]))
    paths = [side["path"] for side in sides if side]
    told = {above for path in paths for above in _directories_above(path)}
    for change in record["changes"]:
        kind = (change["new"] or change["old"])["type"]
        if kind in ("file", "link") or (_comes_or_goes(change) and change["path"] in told):
            continue
        mark = b"/" if kind == "directory" else b""
        names = [change["path"]]
        if "renamed" in change["kinds"]:
            names.insert(0, change["old_path"])
        shown = b" => ".join(shown_name(name) + mark for name in names)
        yield shown, f"{kind}: {', '.join(change['kinds'])}"


def _comes_or_goes(change: JsonObject) -> bool:
    return change["kinds"] in (["added"], ["deleted"], ["renamed"])


def _directories_above(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _sum_text(files: int, added: int, removed: int) -> str:
    """The last line, in git's words."""
    parts = [f" {count_text(files, 'file', 'files')} changed"]
    if added or not removed:
        parts.append(f"{count_text(added, 'insertion', 'insertions')}(+)")
    if removed or not added:
        parts.append(f"{count_text(removed, 'deletion', 'deletions')}(-)")
    return ", ".join(parts)


def _stat_name(files: FilePair) -> bytes:
    names = [shown_name(os.fsdecode(side.path)) for side in (files.old, files.new) if side]
    return b" => ".join(dict.fromkeys(names))


def _stat(files: FilePair) -> Stat:
    return Stat(0, 0) if files.same else stat_of(files.old, files.new)


def _stat_text(found: Stat, files: FilePair, most: int) -> bytes:
    if found.reason:
        before, after = (side.size if side else 0 for side in (files.old, files.new))
        return b"%s %d -> %d bytes" % (found.reason.encode(), before, after)
    scale = min(1.0, _BAR_MAX / most) if most else 1.0
    plus, minus = (
        max(1, round(count * scale)) if count else 0 for count in (found.added, found.removed)
    )
    return b"%5d %s" % (found.added + found.removed, b"+" * plus + b"-" * minus)
