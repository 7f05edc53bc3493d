"""A large JSON object in little memory: what a hook needs of it, and the rest passed over.

Of the object itself and the objects in it, two levels deep, only strings are kept, of long ones the
beginning, and of a list the string that it begins with. What is kept altogether has a bound.
"""

from __future__ import annotations

import json
import re

from ckptfs.agents.hook_input import JsonObject, Read

#: How many bytes of a long string are kept.
KEPT = 4096
#: How many bytes are kept altogether; strings behind that are empty.
ALL_KEPT = 4 << 20
#: How many names an object may have before the rest of them is passed over.
NAMES_MAX = 1000
#: How deep objects are kept: the object itself, those in it, and those in these.
_DEPTH = 3

_CHUNK = 1 << 18
_BLANK = re.compile(rb"[ \t\r\n]*+")
_TEXT = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_PLAIN = re.compile(rb'[^,\]} \t\r\n"\[{]++')
_TO_BRACKET = re.compile(rb'[^"{}\[\]]*+')
_UNCUT = re.compile(rb"(?:[^\\]++|\\u[0-9a-fA-F]{4}|\\[^u])*+", re.DOTALL)


def skim(read: Read, begun: bytes = b"") -> JsonObject:
    """Read one JSON object to the end of the input; ``begun`` is what was read already. Raises
    ValueError if that is not what it is."""
    source = _Source(read, begun)
    try:
        found = _Skimmer(source).members(_DEPTH)
        if source.peek():
            raise ValueError("something follows the end of it")
    finally:
        source.drain()
    return found


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
        """Read to the end: an agent may fail if its pipe is closed before it wrote all."""
        self.held, self.at = b"", 0
        while self._read(_CHUNK):
            pass


class _Skimmer:
    def __init__(self, source: _Source) -> None:
        self._source = source
        self._left = ALL_KEPT

    def members(self, depth: int) -> JsonObject:
        source = self._source
        record: JsonObject = {}
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
        """A string, or an object or list if it is not too deep; None for everything else."""
        first = self._source.peek()
        if first == b'"':
            return self.text()
        if first == b"{" and depth:
            return self.members(depth)
        if first == b"[" and depth:
            return self._beginning()
        if first in (b"{", b"["):
            self._pass_over()
        else:
            self._plain()
        return None

    def _beginning(self) -> list[object]:
        """A list: the string that it begins with, if it does."""
        self._source.take(b"[")
        begins: list[object] = [self.text()] if self._source.peek() == b'"' else []
        self._pass_over(1)
        return begins

    def text(self, *, keep: bool = True) -> str:
        source = self._source
        source.take(b'"')
        kept, room = b"", min(KEPT, self._left) if keep else 0
        while True:
            found = _TEXT.match(source.held, source.at)
            assert found is not None
            if len(kept) < room:
                kept += found[0][: room - len(kept)]
            source.at = found.end()
            if source.held[source.at : source.at + 1] == b'"':
                source.at += 1
                self._left -= len(kept)
                return _text_of(kept, cut=len(kept) >= room)
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

    def _pass_over(self, depth: int = 0) -> None:
        """To the end of an object or list; ``depth`` of them are open already."""
        source = self._source
        while True:
            found = _TO_BRACKET.match(source.held, source.at)
            source.at = found.end() if found else source.at
            char = source.held[source.at : source.at + 1]
            if not char:
                if not source.refill():
                    raise ValueError("it ends in the middle")
            elif char == b'"':
                self.text(keep=False)
            else:
                source.at += 1
                depth += 1 if char in (b"{", b"[") else -1
                if not depth:
                    return


def _text_of(raw: bytes, *, cut: bool) -> str:
    """The string of the raw bytes between its quotes, which may be cut off anywhere."""
    if cut and (uncut := _UNCUT.match(raw)):
        raw = uncut[0]
    text: str = json.loads('"' + raw.decode("utf-8", "replace") + '"', strict=False)
    return text
