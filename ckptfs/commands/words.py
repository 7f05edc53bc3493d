"""A shell's command line taken apart into tokens, and words put together as one would type them.

Owns quoting in both directions, as POSIX shells do it. Expands nothing and knows no program. Every
text can be taken apart: a quote or a here-document that is not closed reaches to the end. The time
is linear in the length of the text.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

WORD, CONTROL, REDIRECT, COMMENT, BODY = "word", "control", "redirect", "comment", "body"

#: Possessive quantifiers keep the time linear. Compiled at first use: importing is to stay cheap.
_LEXEME = r"""(?xs)
    (?P<blank>    (?: [ \t\r] | \\\n )++ )
  | (?P<redirect> (?: [0-9]{1,3} | & )? (?: <<< | <<-? | <> | >> | >\| | [<>]& | [<>] ) )
  | (?P<control>  \n | ;;&? | ;& | && | \|\| | \|& | [;&|()] )
  | ' (?P<single> [^']*+ ) '?
  | \$' (?P<ansi> (?: [^'\\] | \\. )*+ ) '?
  | " (?P<double> (?: [^"\\] | \\. )*+ ) "?
  | \\ (?P<escaped> . | \Z )
  | (?P<plain>    (?: [^ \t\r\n'"\\;&|()<>$] | \$(?!') )++ )
"""
#: Behind these a command goes on in the next line without a semicolon.
_OPENERS = frozenset("{ ( && || | |& ; & ;; ;& ;;& do then else elif if while until ! in".split())


class Token(NamedTuple):
    """A part of a text. ``body`` is that of a here-document, with the line that ends it."""

    kind: str
    start: int
    end: int
    #: A word without its quotes; of the other kinds the characters themselves.
    value: str


class Simple(NamedTuple):
    """One simple command of a text: a program and its arguments."""

    words: list[Token]
    #: The control operator behind it; empty at the end of the text.
    ends: str

    @property
    def values(self) -> list[str]:
        return [word.value for word in self.words]


# -- taking apart ----------------------------------------------------------------------------------


@cache
def _lexeme() -> re.Pattern[str]:
    return re.compile(_LEXEME)


def tokens(text: str) -> list[Token]:
    """All of a text but the blanks."""
    return _Reader(text).read()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._found: list[Token] = []
        #: The word that is being read: where it began and its pieces without their quotes.
        self._start = 0
        self._pieces: list[str] = []
        #: The delimiters of here-documents whose bodies begin behind this line.
        self._delimiters: list[str] = []
        self._names_delimiter = False

    def read(self) -> list[Token]:
        match = _lexeme().match
        while lexeme := match(self._text, self._at):
            kind = lexeme.lastgroup or ""
            if kind in ("blank", REDIRECT, CONTROL):
                self._end_word()
                self._separate(kind, lexeme)
            elif not self._pieces and lexeme[0].startswith("#"):
                self._add(COMMENT, _end_of_line(self._text, self._at))
            else:
                self._start = self._start if self._pieces else self._at
                self._pieces.append(_without_quotes(kind, lexeme[kind]))
                self._at = lexeme.end()
        self._end_word()
        return self._found

    def _separate(self, kind: str, lexeme: re.Match[str]) -> None:
        if kind == "blank":
            self._at = lexeme.end()
        elif lexeme[0] == "\n" and self._delimiters:
            self._add(BODY, _end_of_bodies(self._text, self._at, self._delimiters))
            self._delimiters = []
        else:
            self._names_delimiter = lexeme[0].lstrip("0123456789") in ("<<", "<<-")
            self._add(kind, lexeme.end())

    def _add(self, kind: str, end: int) -> None:
        self._found.append(Token(kind, self._at, end, self._text[self._at : end]))
        self._at = end

    def _end_word(self) -> None:
        if not self._pieces:
            return
        value = "".join(self._pieces)
        self._found.append(Token(WORD, self._start, self._at, value))
        self._pieces = []
        if self._names_delimiter:
            self._delimiters.append(value)
            self._names_delimiter = False


def _without_quotes(kind: str, inside: str) -> str:
    if kind == "double":
        return re.sub(r'\\([$`"\\]|\n)', lambda found: found[1].strip("\n"), inside)
    if kind == "ansi":
        return re.sub(r"\\(['\\])", r"\1", inside)
    return inside


def _end_of_line(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end


def _end_of_bodies(text: str, newline: int, delimiters: Iterable[str]) -> int:
    """Where here-documents end that begin behind a newline: with the lines that their delimiters
    stand on, or with the text."""
    for delimiter in delimiters:
        while newline < len(text):
            end = _end_of_line(text, newline + 1)
            line, newline = text[newline + 1 : end], end
            if line.lstrip("\t") == delimiter:
                break
    return newline


def simple_commands(found: Iterable[Token]) -> list[Simple]:
    """The simple commands of a text. The target of a redirection is no word of a command."""
    commands: list[Simple] = []
    words: list[Token] = []
    target = False
    for token in found:
        if token.kind == WORD and not target:
            words.append(token)
        elif token.kind == CONTROL:
            commands += [Simple(words, token.value)] if words else []
            words = []
        target = token.kind == REDIRECT
    return [*commands, Simple(words, "")] if words else commands


# -- putting together ------------------------------------------------------------------------------


def quoted(words: Iterable[str]) -> str:
    """A command line as one would type it."""
    return " ".join(map(quoted_word, words))


def quoted_word(word: str) -> str:
    """As `shlex.quote`, but in double quotes where those are the readable ones."""
    special = any(char in word for char in '"$`!\n') or "\\\\" in word or word.endswith("\\")
    if "'" in word and not special:
        return f'"{word}"'  # a backslash before any other character stands for itself
    return shlex.quote(word)


def on_one_line(text: str) -> str:
    """A script with semicolons between its lines and without its comments. The newlines that are
    part of a word or of a here-document stay."""
    if "\n" not in text:
        return text
    parts: list[str] = []
    last, end = "", 0
    for token in tokens(text):
        if token.kind == COMMENT:
            continue
        if token.value == "\n" and token.kind == CONTROL:
            last = "\n" if last and last not in _OPENERS else last
            continue
        if parts:
            ends = last == "\n" and token.kind != CONTROL
            parts.append("; " if ends else " " if token.start > end else "")
        parts.append(text[token.start : token.end])
        last, end = text[token.start : token.end], token.end
    return "".join(parts)


def printable(text: str) -> str:
    """The text with escapes for control characters, and for those that reorder or hide text."""
    return "".join(map(_visible, text))


def _visible(char: str) -> str:
    if char.isascii():
        plain = char.isprintable()
    else:
        plain = unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    return char if plain else char.encode("unicode_escape").decode("ascii")


def decoded(argv: Sequence[bytes]) -> list[str]:
    """The arguments as text; what is no UTF-8 becomes escapes."""
    return [word.decode("utf-8", "backslashreplace") for word in argv]
