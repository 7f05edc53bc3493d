"""Command lines for people: which command a process was told to run, on one line, without secrets.

Pure text: knows neither processes nor checkpoints. `words` takes command lines apart, `wrappers`
takes off what agents and sandboxes put around a command, `secrets` and `names` know what is masked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckptfs.commands.secrets import masked
from ckptfs.commands.words import decoded, on_one_line, printable, quoted
from ckptfs.commands.wrappers import first_program, unwrapped, unwrapped_text

__all__ = [
    "COMMAND_MAX",
    "MASKED",
    "RECORDS",
    "command_line",
    "command_text",
    "cut",
    "masked",
    "printable",
    "quoted",
    "shown",
    "unwrapped",
]

#: A command line in a message is cut here: a build's can be a hundred kilobytes.
COMMAND_MAX = 200

#: What of a command line may be recorded: all, all but secrets, the program's name, nothing.
RECORDS = FULL, MASKED, NAME, OFF = "full", "masked", "name", "off"

#: A text that is so long may have been cut somewhere on its way, and in the middle of a secret.
_LONG = 2048


def command_line(argv: Sequence[bytes], record: str = MASKED) -> str:
    """A command line for a message: the command without what was put around it, on one printable
    line that is not too long. ``record`` is one of `RECORDS`."""
    return shown(unwrapped(decoded(argv)), record) if argv else ""


def shown(text: str, record: str = MASKED) -> str:
    """The same for a command that comes as a text."""
    if record == OFF or not text:
        return ""
    if record == NAME:
        return _line(masked(first_program(unwrapped_text(text)) or "?"))
    return _line(text if record == FULL else masked(_without_cut_word(text)))


def command_text(argv: Sequence[bytes]) -> str:
    """A whole command line, as it is, on one printable line that is not too long."""
    words = decoded(argv)
    # A single word with spaces is a title that a program gave itself.
    return cut(words[0] if len(words) == 1 else quoted(words))


def cut(text: str) -> str:
    """The beginning of a text, printable; an ellipsis tells that there is more."""
    line = printable(text[: COMMAND_MAX + 1])
    return line if len(line) <= COMMAND_MAX else line[: COMMAND_MAX - 1] + "…"


def _line(text: str) -> str:
    return cut(on_one_line(text.strip()) or text)


def _without_cut_word(text: str) -> str:
    """A long text without its last word: of a secret that was cut only the beginning is there, and
    its shape cannot be recognised. That word is never shown, for it is far behind the 200
    characters of a message."""
    return re.sub(r"(?<=\s)\S+\Z", "…", text) if len(text) >= _LONG else text
