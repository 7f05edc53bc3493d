"""Names that come from outside, looked at before they become parts of paths."""

from __future__ import annotations

import re

from ckptfs.errors import TeamInvalid

#: Of a team, a member, an inbox: no separator, no dot in front, nothing a shell would take apart.
_IDENTIFIER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,127}", re.ASCII)
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+=-]{0,200}\.(json|consumed)", re.ASCII)
_SNAPSHOT = re.compile(r"\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{8}", re.ASCII)

TAG_MAX = 200


def require_identifier(name: object, what: str) -> str:
    if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
        raise TeamInvalid(
            f"{name!r} as the name of {what}",
            "it may have letters, digits and ._@- only, up to 128, and not begin with a dot",
        )
    return name


def is_file(name: str) -> bool:
    """Whether a file of that name is state of a team: one that its programs finished."""
    return _FILE.fullmatch(name) is not None


def is_snapshot(name: str) -> bool:
    return _SNAPSHOT.fullmatch(name) is not None


def require_tag(tag: str) -> str:
    """A tag is kept as it is given: it never becomes a path."""
    if len(tag) > TAG_MAX or not (tag.isprintable() or not tag):
        raise TeamInvalid(f"{tag[:40]!r} as a tag", f"up to {TAG_MAX} characters on one line")
    return tag
