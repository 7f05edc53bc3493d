"""JSON with comments, edited in place: what is not touched keeps every blank and comment.

A text is parsed to values that know where they stand; an edit is a new text. Only what the settings
of agents need: put a member into an object or an element into an array, replace one, take one out.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

#: Nested deeper than this is no settings file.
_DEPTH_MAX = 100

_GAP = re.compile(r"(?:[ \t\r\n]++|//[^\n]*+|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]++|\\.)*+"')
_WORD = re.compile(r"[-+.\w]+")


class Malformed(ValueError):
    """Not JSON; the words say where."""


@dataclass
class Value:
    """A value and where it stands. ``items`` are an array's or object's own, in order."""

    start: int
    end: int
    plain: Any
    items: list[Item] = field(default_factory=list)

    def get(self, key: str) -> Item | None:
        return next((item for item in self.items if item.key == key), None)


@dataclass
class Item:
    """An element or a member: from its first character to its last; ``key`` of a member."""

    start: int
    value: Value
    key: str | None = None

    @property
    def end(self) -> int:
        return self.value.end


def parse(text: str) -> Value:
    """The one value that a text holds. Raises `Malformed`."""
    parser = _Parser(text)
    value = parser.value(0)
    parser.skip()
    if parser.at != len(text):
        raise parser.trouble("something follows the end of it")
    return value


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 1 if text.startswith("\ufeff") else 0

    def trouble(self, what: str) -> Malformed:
        line = self._text.count("\n", 0, self.at) + 1
        column = self.at - self._text.rfind("\n", 0, self.at)
        return Malformed(f"line {line}, column {column}: {what}")

    def skip(self) -> None:
        found = _GAP.match(self._text, self.at)
        self.at = found.end() if found else self.at

    def _peek(self) -> str:
        self.skip()
        return self._text[self.at : self.at + 1]

    def value(self, depth: int) -> Value:
        if depth > _DEPTH_MAX:
            raise self.trouble("it is nested too deeply")
        first = self._peek()
        if first == "{":
            return self._members(depth)
        if first == "[":
            return self._elements(depth)
        return self._scalar(_STRING if first == '"' else _WORD)

    def _scalar(self, form: re.Pattern[str]) -> Value:
        found = form.match(self._text, self.at)
        if found is None:
            raise self.trouble("a value is missing, or a string does not end")
        try:
            plain = json.loads(found[0])
        except ValueError:
            raise self.trouble(f"{found[0][:40]!r} is no value") from None
        start, self.at = self.at, found.end()
        return Value(start, self.at, plain)

    def _members(self, depth: int) -> Value:
        made = Value(self.at, 0, {})
        self.at += 1
        while self._peek() != "}":
            start = self.at
            key = self._scalar(_STRING).plain
            if key in made.plain:
                raise self.trouble(f"{key!r} stands there twice")
            if self._peek() != ":":
                raise self.trouble("a colon is missing")
            self.at += 1
            made.items.append(Item(start, self.value(depth + 1), key))
            made.plain[key] = made.items[-1].value.plain
            self._comma("}")
        return self._closed(made)

    def _elements(self, depth: int) -> Value:
        made = Value(self.at, 0, [])
        self.at += 1
        while self._peek() != "]":
            self.skip()
            start = self.at
            made.items.append(Item(start, self.value(depth + 1)))
            made.plain.append(made.items[-1].value.plain)
            self._comma("]")
        return self._closed(made)

    def _comma(self, closing: str) -> None:
        """A comma behind the last one is let pass, as agents do."""
        if self._peek() == ",":
            self.at += 1
        elif self._peek() != closing:
            raise self.trouble(f"a comma or {closing!r} is missing")

    def _closed(self, made: Value) -> Value:
        self.at += 1
        made.end = self.at
        return made


# -- edits -----------------------------------------------------------------------------------------


def append(text: str, within: Value, new: Any, key: str | None = None) -> str:
    """Put a member or element behind the others of an object or array."""
    newline = "\r\n" if "\r\n" in text else "\n"
    unit = indent_of(text)
    outer = _indent_at(text, within.start)
    inner = outer + unit
    shown = json.dumps(new, indent=unit, ensure_ascii=False).replace("\n", newline + inner)
    if key is not None:
        shown = f"{json.dumps(key)}: {shown}"
    if not within.items:
        inside = text[within.start + 1 : within.end - 1]
        kept = inside.rstrip() if inside.strip() else ""  # a comment, perhaps
        body = f"{kept}{newline}{inner}{shown}{newline}{outer}"
        return text[: within.start + 1] + body + text[within.end - 1 :]
    last = within.items[-1].end
    follows = _GAP.match(text, last)
    if follows and text[follows.end() : follows.end() + 1] == ",":  # a comma behind the last
        last = follows.end()
        return text[: last + 1] + f"{newline}{inner}{shown}," + text[last + 1 :]
    return text[:last] + f",{newline}{inner}{shown}" + text[last:]


def replace(text: str, old: Value, new: Any) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    outer = _indent_at(text, old.start)
    shown = json.dumps(new, indent=indent_of(text), ensure_ascii=False)
    return text[: old.start] + shown.replace("\n", newline + outer) + text[old.end :]


def remove(text: str, within: Value, item: Item) -> str:
    """Take a member or element out, with its comma and the blanks before it."""
    index = within.items.index(item)
    if len(within.items) == 1:
        left = text[within.start + 1 : item.start] + _past_comma(text[item.end : within.end - 1])
        newline = "\r\n" if "\r\n" in text else "\n"
        left = left.rstrip() + newline + _indent_at(text, within.start) if left.strip() else ""
        return text[: within.start + 1] + left + text[within.end - 1 :]
    if index:
        return text[: within.items[index - 1].end] + text[item.end :]
    following = within.items[1]
    return text[: item.start] + text[following.start :]


def _past_comma(text: str) -> str:
    gap = _GAP.match(text)
    end = gap.end() if gap else 0
    return text[:end] + text[end + 1 :] if text[end : end + 1] == "," else text


def is_blank(text: str, within: Value) -> bool:
    """Whether an object or array has nothing in it, not even a comment."""
    return not text[within.start + 1 : within.end - 1].strip()


def strings_in(text: str) -> list[str]:
    """Every string in a text that need not be JSON."""
    found = []
    for written in _STRING.findall(text):
        try:
            found.append(str(json.loads(written)))
        except ValueError:
            continue  # an escape that only another language has
    return found


def has_comment(text: str) -> bool:
    """Whether a text has a comment outside of its strings."""
    return "/" in _STRING.sub("", text)


def indent_of(text: str) -> str:
    """What one level is indented by: as the first indented line has it, else two blanks."""
    found = re.search(r"^([ \t]+)\S", text, re.MULTILINE)
    return found[1] if found else "  "


def _indent_at(text: str, at: int) -> str:
    """The indentation of the line that a place is in."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip())]
