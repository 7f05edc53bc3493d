"""The JSON object that an agent sends, in bounded memory however large it is.

A tool's input may hold a whole file. What is small is parsed as usual; what is large is skimmed:
only strings of the object itself and of the objects in it are kept, and of long ones the beginning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

#: What is parsed as a whole.
WHOLE_MAX = 1 << 20
#: How many bytes of a long string are kept when skimming.
KEPT = 4096
#: How many names an object may have before the rest of them is passed over.
NAMES_MAX = 1000
#: How deep objects are kept: the object itself, and those in it.
_DEPTH = 2

_CHUNK = 1 << 18
_BLANK = re.compile(rb"[ \t\r\n]*+")
_TEXT = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_PLAIN = re.compile(rb'[^,\]} \t\r\n"\[{]++')
_TO_BRACKET = re.compile(rb'[^"{}\[\]]*+')
_UNCUT = re.compile(rb"(?:[^\\]++|\\u[0-9a-fA-F]{4}|\\[^u])*+", re.DOTALL)

Record = dict[str, object]
Read = Callable[[int], bytes]


def read_object(read: Read) -> Record:
    """Read one JSON object to the end of the input. Raises ValueError if that is not what it is."""
    parts: list[bytes] = []
    size = 0
    while size <= WHOLE_MAX:
        part = read(_CHUNK)
        if not part:
            return _parsed(b"".join(parts))
        parts.append(part)
        size += len(part)
    return skim(read, b"".join(parts))


def skim(read: Read, begun: bytes = b"") -> Record:
    """The same in bounded memory. ``begun`` is what was read already."""
    source = _Source(read, begun)
    try:
        found = _Skimmer(source).members(_DEPTH)
        if source.peek():
            raise ValueError("something follows the end of it")
    finally:
        source.drain()
    return found


def _parsed(text: bytes) -> Record:
    if not text.strip():
        raise ValueError("there is nothing on standard input")
    try:
        record = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(record, dict):
        raise ValueError("it is not an object")
    return record


class _Source:
    """Bytes as they come, of which only those not used yet are held."""

    def __init__(self, read: Read, begun: bytes) -> None:
        self._read = read
        self.held = begun
        self.at = 0

    def refill(self) -> bool:
        """Fetch more; False at the end."""
        more = self._read(_CHUNK)
        self.held = self.held[self.at :] + more
        self.at = 0
        return bool(more)

    def peek(self) -> bytes:
        """The next byte that is not blank; empty at the end."""
        while True:
            blank = _BLANK.match(self.held, self.at)
            self.at = blank.end() if blank else self.at
            if self.at < len(self.held):
                return self.held[self.at : self.at + 1]
            if not self.refill():
                return b""

    def take(self, wanted: bytes) -> None:
        found = self.peek()
        if found != wanted:
            raise ValueError(f"{wanted.decode()!r} is missing where {found.decode('latin1')!r} is")
        self.at += 1

    def drain(self) -> None:
        """Read to the end: an agent may take it amiss if nobody reads what it writes."""
        self.held, self.at = b"", 0
        while self._read(_CHUNK):
            pass


class _Skimmer:
    def __init__(self, source: _Source) -> None:
        self._source = source

    def members(self, depth: int) -> Record:
        source = self._source
        record: Record = {}
        source.take(b"{")
        if source.peek() == b"}":
            source.at += 1
            return record
        while True:
            name = self.text()
            source.take(b":")
            value = self.value(depth - 1)
            if len(record) < NAMES_MAX:
                record[name] = value
            if source.peek() != b",":
                source.take(b"}")
                return record
            source.at += 1

    def value(self, depth: int) -> object:
        """A string, or an object if it is not too deep; None for everything else."""
        first = self._source.peek()
        if first == b'"':
            return self.text()
        if first == b"{" and depth:
            return self.members(depth)
        if first in (b"{", b"["):
            self._pass_over()
        else:
            self._plain()
        return None

    def text(self) -> str:
        source = self._source
        source.take(b'"')
        kept = b""
        while True:
            found = _TEXT.match(source.held, source.at)
            assert found is not None
            if len(kept) < KEPT:
                kept += found[0][: KEPT - len(kept)]
            source.at = found.end()
            if source.held[source.at : source.at + 1] == b'"':
                source.at += 1
                return _text_of(kept)
            # The end of what is held, or an escape that is cut in two there.
            if not source.refill():
                raise ValueError("a string does not end")

    def _plain(self) -> None:
        """A number or a word; it ends with what is held only at the end of everything."""
        source, some = self._source, False
        while found := _PLAIN.match(source.held, source.at):
            some = True
            source.at = found.end()
            if source.at < len(source.held) or not source.refill():
                break
        if not some:
            raise ValueError("a value is missing")

    def _pass_over(self) -> None:
        source, depth = self._source, 0
        while True:
            found = _TO_BRACKET.match(source.held, source.at)
            source.at = found.end() if found else source.at
            char = source.held[source.at : source.at + 1]
            if not char:
                if not source.refill():
                    raise ValueError("it ends in the middle")
            elif char == b'"':
                self.text()
            else:
                source.at += 1
                depth += 1 if char in (b"{", b"[") else -1
                if not depth:
                    return


def _text_of(raw: bytes) -> str:
    """The string of the raw bytes between its quotes, which may be cut off anywhere."""
    if len(raw) >= KEPT and (uncut := _UNCUT.match(raw)):
        raw = uncut[0]
    text: str = json.loads('"' + raw.decode("utf-8", "replace") + '"', strict=False)
    return text
