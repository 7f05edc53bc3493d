"""What may stand where the cursor is, for the completion of shells: `ckptfs __complete -- WORDS`.

WORDS are those behind `ckptfs` up to the cursor; the last is being typed. A line is a candidate for
the whole word, a tab and what it means. A line that begins with the tab asks the shell for files,
directories or commands of its own.

A shell waits for it at a key press, so it loads no store, asks only a daemon that serves, and ends
without a word where anything fails or takes long.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from argparse import Action
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ckptfs import config
from ckptfs.cli.parser import Parser, VerbParser
from ckptfs.cli.verbs import VERBS, WITH_VALUE, make_parser, parser_of, verb_among
from ckptfs.config import Workspace
from ckptfs.errors import CkptfsError

FILES, DIRECTORIES, COMMANDS = "\tfiles", "\tdirectories", "\tcommands"

#: Seconds to wait for an answer: a person at a prompt waits no longer.
_PATIENCE = 2.0
#: How many checkpoints and how many names in a directory are worth showing.
_CHECKPOINTS, _NAMES = 100, 1000
_TEXT_MAX = 60
#: The names in `ckptfs.history.settings`, which takes too long to load.
SETTING_NAMES = (
    "retention.automatic retention.max_checkpoints retention.keep_all retention.hourly "
    "retention.daily retention.max_size retention.min_free moments.max moments.max_size "
    "moments.keep moments.stood auto.harnesses collisions exclude.patterns record.command "
    "hooks.on_restore merge.driver serve.keep_cpus_awake serve.priority store.compress upkeep.cpu"
).split()


def answer(words: Sequence[str]) -> int:
    """Print the candidates for the last word."""
    # Not caught, and so the end also of a wait for a mount that does not answer.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, _PATIENCE)
    found: list[str] = []
    with suppress(CkptfsError, OSError, ValueError, LookupError, KeyboardInterrupt):
        found.extend(candidates(words))
    with suppress(OSError):
        text = "".join(f"{line}\n" for line in found)
        sys.stdout.buffer.write(os.fsencode(text))
        sys.stdout.flush()
    return 0


def candidates(words: Sequence[str]) -> Iterator[str]:
    *before, current = words or [""]
    verb = verb_among(before)
    if not verb:
        return _before_verb(before, current)
    if verb not in VERBS:
        return iter(())
    at = before.index(verb)
    return _of_verb(verb, before[at + 1 :], current, _workspace_word(before))


def _before_verb(before: Sequence[str], current: str) -> Iterator[str]:
    if before and before[-1] in WITH_VALUE:
        return iter([DIRECTORIES] if before[-1] != "--trust-owner" else [])
    if current.startswith("-"):
        return _matching(_options(make_parser(["status"])), current)
    return _matching(_verbs(), current)


def _verbs() -> Iterator[str]:
    return (f"{name}\t{verb.help}" for name, verb in VERBS.items())


def _workspace_word(words: Sequence[str]) -> str | None:
    """What ``-w`` names, if it is there."""
    found = None
    for option, value in zip(words, [*words[1:], ""], strict=True):
        if option in ("-w", "--workspace") and value:
            found = value
        elif option.startswith("--workspace="):
            found = option.partition("=")[2]
    return found


def _matching(lines: Iterator[str], current: str) -> Iterator[str]:
    return (line for line in lines if line.startswith(current))


# -- where the cursor is among a verb's words ------------------------------------------------------


class _Place(NamedTuple):
    """``option`` waits for its value; ``words`` are the positionals so far; ``behind`` are the
    words behind ``--``, None before it."""

    option: Action | None
    words: list[str]
    behind: list[str] | None


def _place(parser: VerbParser, words: Sequence[str]) -> _Place:
    option: Action | None = None
    plain: list[str] = []
    for at, word in enumerate(words):
        if option is not None:
            option = None
        elif word == "--":
            return _Place(None, plain, list(words[at + 1 :]))
        elif word.startswith("-") and word != "-":
            option = _waiting(parser, word)
        else:
            plain.append(word)
    return _Place(option, plain, None)


def _waiting(parser: VerbParser, word: str) -> Action | None:
    """The option that this word is, if the next word is its value."""
    found = parser._option_string_actions.get(word)
    return found if found is not None and found.nargs is None else None


def _of_verb(verb: str, words: Sequence[str], current: str, named: str | None) -> Iterator[str]:
    parser = parser_of(verb)
    place = _place(parser, words)
    values = _Values(verb, place.words, named)
    if place.behind is not None:
        return _behind(parser, place, current, values)
    if place.option is not None:
        return values.of(place.option, current)
    name, equals, value = current.partition("=")
    if current.startswith("--") and equals:
        return _joined(values, _waiting(parser, name), name, value)
    if current.startswith("-"):
        return _matching(_options(parser), current)
    return values.of(_positional(parser, len(place.words)), current)


def _joined(values: _Values, option: Action | None, name: str, value: str) -> Iterator[str]:
    """Values of ``--option=value``, with the option before them."""
    for line in values.of(option, value):
        yield line if line.startswith("\t") else f"{name}={line}"


def _behind(parser: VerbParser, place: _Place, current: str, values: _Values) -> Iterator[str]:
    behind = place.behind or []
    if parser.behind == "words":
        return iter([FILES if behind else COMMANDS])
    if parser.behind == "paths":
        return iter([FILES])
    if parser.behind == "mount_words":
        return _of_verb("mount", ["", *behind], current, None)
    return values.of(_positional(parser, len(place.words) + len(behind)), current)


def _positional(parser: VerbParser, count: int) -> Action | None:
    """What the next word is, behind so many."""
    for action in parser._get_positional_actions():
        if action.help == argparse.SUPPRESS:
            continue
        if count == 0 or action.nargs in ("*", "+"):
            return action
        count -= 1
    return None


def _options(parser: Parser) -> Iterator[str]:
    for action in parser._actions:
        if action.help != argparse.SUPPRESS:
            for name in action.option_strings:
                yield f"{name}\t{action.help or ''}"
    if isinstance(parser, VerbParser) and parser.behind == "words":
        yield "--\tthe command follows"


# -- what may stand there --------------------------------------------------------------------------


class _Values:
    """The values of one verb's options and arguments, by what these are called."""

    def __init__(self, verb: str, words: Sequence[str], named: str | None) -> None:
        self._verb = verb
        self._words = words
        self._named = named

    def of(self, action: Action | None, current: str) -> Iterator[str]:
        if action is None:
            return
        if action.choices is not None:
            yield from _matching(map("{}\t".format, action.choices), current)
        elif self._verb not in ("team", "task", "hook") or action.dest == "workspace":
            meant = _MEANINGS.get(str(action.metavar))
            yield from meant(self, current) if meant is not None else ()

    def files(self, _: str) -> Iterator[str]:
        yield FILES

    def directories(self, _: str) -> Iterator[str]:
        yield DIRECTORIES

    def verbs(self, current: str) -> Iterator[str]:
        return _matching(_verbs(), current)

    def settings(self, current: str) -> Iterator[str]:
        return _matching((f"{name}\t" for name in SETTING_NAMES), current)

    def forks(self, current: str) -> Iterator[str]:
        """Forks, for the verb about them; for others where a fork or a checkpoint may stand."""
        return (
            _matching(iter(self._forks()), current)
            if self._verb == "fork"
            else self.states(current)
        )

    def _forks(self) -> list[str]:
        found = self._ask("forks", {})["forks"]
        return [f"{each['name']}\ta fork" for each in found]

    def states(self, current: str) -> Iterator[str]:
        """Checkpoints by number and tag, newest first; where a fork may stand, `main` too."""
        found = self._ask("list", {"limit": _CHECKPOINTS})["checkpoints"]
        lines: list[str] = []
        if self._verb in ("merge", "compare", "diff"):
            lines.append("main\tthe workspace itself")
            lines += self._forks()
        for each in reversed(found):
            lines.append(f"{each['id']}\t{_text(each['message'])}")
            if each["tag"] and each["tag"].isprintable():
                lines.append(f"{each['tag']}\ttag of {each['id']}")
        return _matching(iter(lines), current)

    def paths(self, current: str) -> Iterator[str]:
        """Paths in the checkpoint that the verb goes to; else those that are there now."""
        if self._verb not in ("restore", "merge") or not self._words:
            return iter([FILES])
        try:
            return iter(self._below_checkpoint(self._words[0], current))
        except (CkptfsError, OSError):
            return iter([FILES])

    def _below_checkpoint(self, word: str, current: str) -> list[str]:
        from ckptfs.cli.workspace import path_inside

        workspace = self._workspace()
        number = self._ask("get", {"checkpoint": word})["id"]
        above, name = os.path.split(current)
        inside = path_inside(above or ".", workspace, self._verb)
        top = workspace.path / ".checkpoints" / str(number) / inside
        before = current.removesuffix(name)
        lines = []
        with os.scandir(top) as entries:
            for entry in entries:
                if entry.name.startswith(name) and _is_shown(entry.name, name):
                    slash = "/" if entry.is_dir(follow_symlinks=False) else ""
                    lines.append(f"{before}{entry.name}{slash}\t")
                if len(lines) == _NAMES:
                    break
        return sorted(lines)

    def _workspace(self) -> Workspace:
        if self._named is not None:
            return config.find(config.resolve(self._named))
        return config.find(Path(os.getcwd()))

    def _ask(self, op: str, args: dict[str, object]):  # type: ignore[no-untyped-def]
        """Ask the daemon. Raises `NotMounted` if none serves the workspace."""
        from ckptfs.control import runtime
        from ckptfs.control.client import Client
        from ckptfs.errors import NotMounted

        workspace = self._workspace()
        daemon = runtime.living(workspace)
        if daemon is None or daemon.state != runtime.SERVING:
            raise NotMounted(workspace.path)
        with Client(workspace) as client:
            return client.call(op, args, patience=_PATIENCE)


def _is_shown(name: str, typed: str) -> bool:
    """Hidden names are for those who type the dot; no line can carry control characters."""
    return (typed != "" or not name.startswith(".")) and not any(
        char < " " or char == "\x7f" for char in name
    )


def _text(message: str) -> str:
    """A message as one line without control characters."""
    line = "".join(char if char.isprintable() else " " for char in message[: 2 * _TEXT_MAX])
    return line if len(line) <= _TEXT_MAX else f"{line[: _TEXT_MAX - 3]}..."


_MEANINGS: dict[str, Callable[[_Values, str], Iterator[str]]] = {
    **dict.fromkeys(("ID", "A", "B", "FROM TO"), _Values.states),
    "NAME": _Values.forks,
    **dict.fromkeys(("DIR", "SRC", "DEST"), _Values.directories),
    **dict.fromkeys(("PATH", "P"), _Values.paths),
    "[NAME=]FILE": _Values.files,
    "KEY": _Values.settings,
    "VERB": _Values.verbs,
}
