"""State documents on their way into a checkpoint: their names, their bytes, and the files in the
store's own directory that carry them there. Client and service share it; the standard library only.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ckptfs.errors import StateInvalid

#: How the name of a file with a document begins and ends.
PREFIX, SUFFIX = "state-", ".tmp"
#: A document larger than this is refused.
SIZE_MAX = 256 << 20
NAME_MAX = 200

#: A file that its writer did not take away is removed after so many seconds.
_STALE = 86_400


class Json(bytes):
    """A document that is JSON already and shall come back to the byte."""


def encode(name: str, value: Any) -> tuple[bytes, bool]:
    """The bytes of a document, and whether they are JSON."""
    if isinstance(value, Json):
        return value, True
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), False
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode(), True
    except (TypeError, ValueError, RecursionError) as error:
        raise StateInvalid(name, f"it is neither bytes nor JSON ({error})") from error


def require_name(name: object) -> str:
    """A document's name as it may be: one line of text that could be a file's name."""
    if not isinstance(name, str) or not name:
        raise StateInvalid(str(name), "its name is empty or no text")
    if len(name.encode(errors="surrogatepass")) > NAME_MAX:
        raise StateInvalid(name[:40] + "...", f"its name is longer than {NAME_MAX} bytes")
    if name in (".", "..") or "/" in name or not name.isprintable():
        raise StateInvalid(name, "its name has characters that no file name should have")
    return name


def new_name() -> str:
    """A name for a file with a document."""
    return f"{PREFIX}{os.getpid()}-{os.urandom(8).hex()}{SUFFIX}"


def sweep(store: Path) -> None:
    """Remove what processes that were killed have left."""
    with suppress(OSError):
        for path in store.glob(f"{PREFIX}*{SUFFIX}"):
            if time.time() - path.stat().st_mtime > _STALE:
                path.unlink(missing_ok=True)
