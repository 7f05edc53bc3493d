"""File names in lines that people read and programs cut apart."""

from __future__ import annotations

import os


def shown_name(name: str) -> bytes:
    """A name as it is, or in git's quotes if it has anything that would not show or could be
    mistaken: control characters, quotes, bytes that are no UTF-8."""
    if name.isprintable() and not set(name) & {'"', "\\"}:
        return name.encode()
    from ckptfs.textdiff.patch import quoted

    return quoted(os.fsencode(name))
