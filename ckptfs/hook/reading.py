"""The JSON object that an agent sends, in bounded memory however large it is.

What is small is parsed as usual; what is large, as a tool's input with a whole file in it is, goes
through `ckptfs.hook.skimming`.
"""

from __future__ import annotations

import json
from collections.abc import Callable

#: What is parsed as a whole.
WHOLE_MAX = 1 << 20
_CHUNK = 1 << 18

JsonObject = dict[str, object]
Read = Callable[[int], bytes]


def read_object(read: Read, *, optional: bool = False) -> JsonObject:
    """Read one JSON object to the end of the input. Raises ValueError if that is not what it is;
    no input at all is an empty object if it is ``optional``."""
    parts: list[bytes] = []
    size = 0
    while size <= WHOLE_MAX:
        part = read(_CHUNK)
        if not part:
            return _parsed(b"".join(parts), optional)
        parts.append(part)
        size += len(part)
    from ckptfs.hook import skimming  # late: few inputs are that large

    return skimming.skim(read, b"".join(parts))


def _parsed(text: bytes, optional: bool) -> JsonObject:
    if not text.strip():
        if optional:
            return {}
        raise ValueError("there is nothing on standard input")
    try:
        record = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(record, dict):
        raise ValueError("it is not an object")
    return record
