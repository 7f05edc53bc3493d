"""Every `ckptfs` command that a page names can be typed: its verb, options and arguments exist.

Sessions with a `$` are run and compared (`test_sessions`). This is about all others: commands in
blocks without output, and in the sentences.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs.cli.verbs import VERBS, asked_for_help, make_parser
from ckptfs.errors import UsageError
from tests.docs.pages import PAGES, blocks, name_of

_TYPED = re.compile(r"(?:\$ )?((?:sudo )?ckptfs .*?)(?:  .*| +#.*)?$")
_NAMED = re.compile(r"`((?:sudo )?ckptfs\s[^`]+)`")
#: A form rather than a command, or one that only a shell understands.
_FORM = re.compile(r"[\[|<>;&$…]|\.\.\.|VERB")
#: What may be named without its arguments: a verb, also with its action.
_ACTIONS = frozenset({"snapshot", "restore", "run", "start", "revert"})


def _commands(text: str) -> Iterator[str]:
    for block in blocks(text):
        yield from (found[1] for line in block.lines if (found := _TYPED.match(line)))
    yield from (" ".join(found[1].split()) for found in _NAMED.finditer(text))


def _words(command: str) -> list[str]:
    return shlex.split(command.removeprefix("sudo "))[1:]


def _is_mention(words: list[str]) -> bool:
    return words[0] in VERBS and all(word in _ACTIONS for word in words[1:])


def _trouble(command: str) -> str:
    words = asked_for_help(_words(command))
    try:
        make_parser(words).parse_args(words)
    except UsageError as error:
        return f"{command}: {error.message}"
    except SystemExit as asked:  # --help and --version
        return str(asked.code or "")
    return ""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_command_in_a_page_can_be_typed(page: Path) -> None:
    commands = [each for each in _commands(page.read_text()) if not _FORM.search(each)]
    assert [
        trouble
        for each in commands
        if not _is_mention(_words(each)) and (trouble := _trouble(each))
    ] == []


def test_commands_are_found_in_blocks_and_in_sentences() -> None:
    text = "`ckptfs list`\n\n    ckptfs undo    back\n    sudo ckptfs doctor  # a\n\n`ckptfs\nredo`"
    found = ["ckptfs undo", "sudo ckptfs doctor", "ckptfs list", "ckptfs redo"]
    assert list(_commands(text)) == found
    assert "has no option --forse" in _trouble("ckptfs restore 1 --forse")
