"""Sentences about a pass over a tree: what it did, what it kept twice, what it left out; and about
a disk that is short of room."""

from __future__ import annotations

from collections.abc import Iterator

from ckptfs.cli.screen import JsonObject, bytes_text, count_text, safe

#: More names than this do not fit a screen; `--json` has more.
NAMED_MAX = 10

#: What `--auto off` means.
NOTHING_KEPT = "what a program destroys is lost, unless `ckptfs save` saved it"


def counts(record: JsonObject) -> str:
    """What changed, as "3 added, 1 modified, 2 deleted", or "nothing" if nothing did."""
    parts = [f"{record[key]:,} {key}" for key in ("added", "modified", "deleted") if record[key]]
    return ", ".join(parts) if parts else "nothing"


def copied(record: JsonObject) -> str:
    """How much a pass copied, as "12,000 entries, 3.4 MiB"."""
    return f"{count_text(record['added'], 'entry', 'entries')}, {bytes_text(record['bytes'])}"


def room(record: JsonObject) -> str:
    """What the disk lacks, what expires because of it, and what to do."""
    free, wanted = bytes_text(record["free_bytes"]), bytes_text(record["wanted_bytes"])
    text = f"the disk has {free} free for this store, and retention.min_free wants {wanted}"
    if record["full"]:
        text = "the disk is full, so writes are refused (ENOSPC); what is there is unchanged"
    if record["expires"]:
        held = bytes_text(record["expirable_bytes"])
        return f"{text}; the oldest automatic checkpoints expire, which hold {held}"
    text = (
        f"{text}; nothing expires for that, since what may would not be enough. To make room, "
        "remove other files from the disk, or checkpoints that hold much (`ckptfs delete`)"
    )
    named = (f"{item['id']} holds {bytes_text(item['bytes'])}" for item in record["heaviest"])
    return f"{text}: {', '.join(named)}" if record["heaviest"] else text


def remarks(record: JsonObject) -> Iterator[str]:
    """What the user should hear besides the result: one line each."""
    for found in record["conflicts"][:NAMED_MAX]:
        yield _conflict(safe(found["path"]), safe(found["kept_as"]))
    yield from _rest(record["conflict_count"], "changed on both sides")
    for found in record["skipped"][:NAMED_MAX]:
        yield f"Left out {safe(found['path'])}: {safe(found['reason'])}."
    yield from _rest(record["skipped_count"], "left out")


def _conflict(path: str, kept_as: str) -> str:
    if path == kept_as:
        return f"{path} was deleted in the workspace and changed outside; it was kept."
    return f"{path} changed on both sides; the version from outside is kept as {kept_as}."


def _rest(count: int, what: str) -> Iterator[str]:
    if count > NAMED_MAX:
        yield f"... and {count - NAMED_MAX:,} more {what}; --json names them."
