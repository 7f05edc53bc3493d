"""Command lines for people: which command a process was told to run, on one line, without secrets.

Pure text: knows neither processes nor checkpoints. `words` takes command lines apart, `wrappers`
takes off what agents and sandboxes put around a command, `secrets` and `names` know what is masked.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckptfs.commands.secrets import masked, masked_prose
from ckptfs.commands.words import decoded, on_one_line, printable, quoted
from ckptfs.commands.wrappers import first_program, program_of, unwrapped, unwrapped_text

__all__ = [
    "COMMAND_MAX",
    "FULL",
    "MASKED",
    "RECORDS",
    "command_line",
    "cut",
    "masked",
    "noted",
    "printable",
    "program_of",
    "quoted",
    "shown",
    "unwrapped",
]

#: A command line in a message is cut here: a build's can be a hundred kilobytes.
COMMAND_MAX = 200

#: What of a command line may be recorded: all, all but secrets, the program's name, nothing.
RECORDS = FULL, MASKED, NAME, OFF = "full", "masked", "name", "off"

#: Text behind this is not shown, so it is not looked at.
_SHOWN_MAX = 4096
#: A text that is so long may have been cut somewhere on its way, and in the middle of a secret.
_LONG = 2048
#: With so many characters a secret that is known by its shape is recognised.
_SHAPE_MAX = 32


def command_line(argv: Sequence[bytes], record: str = MASKED) -> str:
    """A command line for a message: the command without what was put around it, on one printable
    line that is not too long. ``record`` is one of `RECORDS`."""
    return shown(unwrapped(decoded(argv)), record) if argv else ""


def shown(text: str, record: str = MASKED) -> str:
    """The same for a command that comes as a text. A text with NUL behind its words is a command
    line as /proc shows it."""
    if "\0" in text:
        return command_line(text.rstrip("\0").encode("utf-8", "replace").split(b"\0"), record)
    if record == OFF or not text:
        return ""
    if record == NAME:
        return _line(masked(first_program(unwrapped_text(text)[:_SHOWN_MAX]) or "?"))
    text = text[:_SHOWN_MAX]
    return _line(text if record == FULL else masked(_without_cut_secret(text)))


def noted(text: str, record: str = MASKED) -> str:
    """A text that is no command, but may have secrets in it, too: one printable line of it."""
    return cut(" ".join((text if record == FULL else masked_prose(text)).split()))


def cut(text: str) -> str:
    """The beginning of a text, printable; an ellipsis tells that there is more."""
    line = printable(text[: COMMAND_MAX + 1])
    return line if len(line) <= COMMAND_MAX else line[: COMMAND_MAX - 1] + "…"


def _line(text: str) -> str:
    return cut(on_one_line(text.strip()) or text)


def _without_cut_secret(text: str) -> str:
    """A long text without its end. Of a secret that was cut there may be too little to recognise
    its shape; and a password in a URL is none without the host behind it."""
    if len(text) < _LONG:
        return text
    url = text.rfind("://")
    in_last_word = url >= 0 and len(text[url:].split(None, 1)) == 1
    return text[: url if in_last_word else -_SHAPE_MAX] + "…"
