"""What several verbs refuse, in words: paths that name nothing, and what is in the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ckptfs.errors import PathUnknown, no_paths


def given(patterns: Sequence[bytes] | None, verb: str) -> Sequence[bytes]:
    """None is everything; a list that came out empty is a mistake of whoever made it."""
    if patterns is None:
        return ()
    if not patterns:
        raise no_paths(verb)
    return patterns


#: Where the usual hint would not do.
_HINTS = {
    "purge": "If a purge of it was interrupted, `ckptfs compact` removes what is left of its "
    "bytes. `ckptfs log PATH` shows where a file was."
}


@contextmanager
def paths_known(verb: str, reason: str, named: bytes = b"") -> Iterator[None]:
    """Turn a path that names nothing into the error to show; ``named`` is what was asked for."""
    try:
        yield
    except FileNotFoundError as error:
        raise PathUnknown(error.filename, reason, verb=verb, hint=_HINTS.get(verb)) from error
    except ValueError as error:
        raise PathUnknown(named, str(error), verb=verb) from error


@contextmanager
def nothing_in_the_way() -> Iterator[None]:
    """Turn what stands in the way of a restore by paths into the error to show."""
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        reason = str(error.strerror)
        raise PathUnknown(error.filename or b"", reason, verb="restore") from error
