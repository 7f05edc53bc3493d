"""How a command line is parsed: argparse, made to start fast and to raise. Knows no verb.

``-w`` and ``--json`` may stand before or after the verb. Both are declared twice for that; the
one after the verb has no default, or it would overwrite what stood before.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import NoReturn

from ckptfs.errors import UsageError

#: The width of help where there is no terminal.
_COLUMNS = 80


def path_word(text: str) -> str:
    """A path as typed. An empty one would mean the current directory, surely by mistake."""
    if not text:
        raise argparse.ArgumentTypeError("a path is empty")
    return text


def count_word(text: str) -> int:
    """How many of something."""
    if not text.isascii() or not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


class Formatter(argparse.RawDescriptionHelpFormatter):
    """argparse makes one for every argument that is added, and without a width each imports shutil
    to ask for the terminal's."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)


def _columns() -> int:
    try:
        return int(os.environ.get("COLUMNS") or os.get_terminal_size().columns) or _COLUMNS
    except (OSError, ValueError):
        return _COLUMNS


class Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of printing and leaving."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(
            f"Cannot understand the command line: {message}.", hint=f"See `{self.prog} --help`."
        )


#: Positionals that take all words that follow, options too.
_GREEDY = (argparse.PARSER, argparse.REMAINDER)


class VerbParser(Parser):
    """The words of one verb. Its options may stand anywhere among them."""

    #: Where the words behind ``--`` go, for a verb that tells them from those before it.
    behind = ""
    #: Makes what help says below the options; called for help only.
    below: Callable[[], str] | None = None

    def format_usage(self) -> str:
        """Without the options that every verb has."""
        formatter = self._get_formatter()
        self._add_usage(formatter)
        return formatter.format_help()

    def format_help(self) -> str:
        formatter = self._get_formatter()
        self._add_usage(formatter)
        formatter.add_text(self.description)
        for group in self._action_groups:
            formatter.start_section(group.title)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        formatter.add_text(self.below() if self.below is not None else None)
        return formatter.format_help()

    def _add_usage(self, formatter: argparse.HelpFormatter) -> None:
        common = {"help"}
        for group in self._action_groups:
            if group.title == COMMON:
                common.update(action.dest for action in group._group_actions)
        own = [action for action in self._actions if action.dest not in common]
        formatter.add_usage(self.usage, own, self._mutually_exclusive_groups)

    def parse_known_args(  # type: ignore[no-untyped-def]
        self, args=None, namespace=None
    ):
        cut = args.index("--") if "--" in args else len(args)
        words = self._options_first(args[:cut])
        if not self.behind:
            return super().parse_known_args(words + args[cut:], namespace)
        found, rest = super().parse_known_args(words, namespace)
        setattr(found, self.behind, args[cut + 1 :])
        return found, rest

    def _options_first(self, words: list[str]) -> list[str]:
        """argparse fills positionals from one run of words; `parse_intermixed_args` would do, but
        it renders the usage first, which takes longer than everything else here."""
        if any(action.nargs in _GREEDY for action in self._get_positional_actions()):
            return words
        options: list[str] = []
        others: list[str] = []
        waiting = iter(words)
        for word in waiting:
            if not word.startswith("-") or word == "-" or _is_number(word):
                others.append(word)
                continue
            self._require_option(word)
            options.append(word)
            if self._takes_value(word):
                value = next(waiting, None)
                if value is None:
                    return words  # or it would take a positional; argparse says what is missing
                options.append(value)
        return options + others

    def _require_option(self, word: str) -> None:
        """Refuse a long option that there is not, and say which may be meant. argparse would first
        miss the words that it needs."""
        name = word.partition("=")[0]
        if not name.startswith("--") or name in self._option_string_actions:
            return
        import difflib

        near = difflib.get_close_matches(name, self._option_string_actions, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise UsageError(
            f"Cannot understand the command line: `{self.prog}` has no option {name}.",
            hint=f"{hint}`{self.prog} --help` lists them.",
        )

    def _takes_value(self, word: str) -> bool:
        """Whether the next word belongs to this option."""
        action = self._option_string_actions.get(word)
        return action is not None and action.nargs is None


def _is_number(word: str) -> bool:
    """Whether a word that begins with a dash is a negative number, as argparse sees it."""
    return word[1:].replace(".", "", 1).isdecimal()


#: What help calls the options of `add_common`.
COMMON = "for every verb"


def add_common(
    parser: argparse._ActionsContainer, *, default: object, json_default: object
) -> None:
    parser.add_argument(
        "-w",
        "--workspace",
        metavar="DIR",
        type=path_word,
        default=default,
        help="the workspace to work on",
    )
    parser.add_argument(
        "--json", action="store_true", default=json_default, help="print the result as JSON"
    )
    parser.add_argument(
        "--no-mount",
        action="store_true",
        default=json_default,
        help="work on a plain directory; `save` makes it a workspace",
    )
    parser.add_argument(
        "--trust-owner",
        metavar="USER",
        default=default,
        help="use a store that belongs to USER, not to you; see docs/SECURITY.md",
    )


def add_store(parser: Parser, text: str) -> None:
    parser.add_argument("--store", metavar="DIR", type=path_word, help=text)
