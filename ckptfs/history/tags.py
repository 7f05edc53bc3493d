"""Tags and pins: giving a checkpoint a name to find it by, and keeping it from expiring.

A tag is kept as it was typed. What it may stand for in a reference, and its form as one component
of a path, are `references`' business; here is what may become a tag at all. Two checkpoints cannot
have tags with one safe form, since `.checkpoints/` has one link for each.
"""

from __future__ import annotations

import dataclasses
import unicodedata

from ckptfs.errors import TagInvalid, TagTaken
from ckptfs.history.checkpoints import Checkpoint, checkpoints, describe
from ckptfs.history.references import is_reserved, safe_tag
from ckptfs.store import Store

#: Longer ones are messages.
TAG_MAX = 200

#: Characters that act on terminals and texts instead of standing in them.
_ACTING = frozenset({"Cc", "Cs", "Zl", "Zp"})


def cleaned(raw: str) -> str:
    """A tag as it is kept, or TagInvalid if it is nothing that can be seen and typed again."""
    tag = raw.strip()
    if not tag:
        raise TagInvalid(raw, "it is empty")
    if len(tag) > TAG_MAX:
        raise TagInvalid(raw, f"it is longer than {TAG_MAX} characters")
    if any(unicodedata.category(char) in _ACTING for char in tag):
        raise TagInvalid(raw, "it has control characters or bytes that are not text")
    return tag


def require_plain(tag: str) -> None:
    """Refuse a tag that means something else wherever a checkpoint is named."""
    if is_reserved(tag):
        raise TagInvalid(tag, "it reads like a number, a time or another reference")


def require_free(store: Store, tag: str, *, but: int | None = None) -> None:
    """Refuse a tag that another checkpoint has, in this form or in one that looks the same."""
    safe = safe_tag(tag).casefold()
    for other in checkpoints(store):
        if other.id != but and other.tag and safe_tag(other.tag).casefold() == safe:
            raise TagTaken(tag, other.id)


def set_tag(store: Store, checkpoint: Checkpoint, raw: str, *, move: bool = False) -> Checkpoint:
    """Give the checkpoint a tag in place of the one it may have. With ``move`` the tag is taken
    from the checkpoint that has it."""
    tag = cleaned(raw)
    if move:
        _take_away(store, tag)
    require_free(store, tag, but=checkpoint.id)
    return _changed(store, checkpoint, tag=tag)


def remove_tag(store: Store, checkpoint: Checkpoint) -> Checkpoint:
    return _changed(store, checkpoint, tag="")


def set_pinned(store: Store, checkpoint: Checkpoint, *, pinned: bool) -> Checkpoint:
    """A pinned checkpoint neither expires nor is deleted."""
    return _changed(store, checkpoint, pinned=pinned)


def _take_away(store: Store, tag: str) -> None:
    for other in checkpoints(store):
        if other.tag and safe_tag(other.tag).casefold() == safe_tag(tag).casefold():
            remove_tag(store, other)


def _changed(store: Store, checkpoint: Checkpoint, **fields: str | bool) -> Checkpoint:
    changed = dataclasses.replace(checkpoint, **fields)  # type: ignore[arg-type]
    describe(store, changed)
    return changed
