"""`ckptfs manual`: the manual page, made of what the parsers declare, as roff for man(1)."""

from __future__ import annotations

import argparse
from argparse import Action, Namespace
from collections.abc import Iterator

from ckptfs import __version__
from ckptfs.cli import output
from ckptfs.cli.parser import Parser, VerbParser
from ckptfs.cli.verbs import VERBS, below_options, make_parser, parser_of, unknown_verb
from ckptfs.cli.words.examples import EXAMPLES, IDS

#: Options of every verb; they are told once.
_COMMON = frozenset({"help", "workspace", "json", "no_mount", "trust_owner"})


def manual(args: Namespace) -> int:
    if args.subject is not None and args.subject not in VERBS:
        raise unknown_verb(args.subject)
    page = "\n".join(_whole() if args.subject is None else _of_verb(args.subject))
    output.result({"page": page}, page, as_json=args.json)
    return 0


def _whole() -> Iterator[str]:
    parser = make_parser(["status"])
    yield from _head("ckptfs", "a workspace that is a file system with a history")
    yield from (".SH SYNOPSIS", ".B ckptfs", r"[\fIOPTION\fR]... \fIVERB\fR [\fIWORD\fR]...")
    yield from (".SH DESCRIPTION", _text(parser.description or ""))
    yield from (".SH OPTIONS", "These may stand before or behind every verb.")
    yield from _arguments(parser, common=True)
    yield ".SH VERBS"
    for name in VERBS:
        verb = parser_of(name)
        yield f".SS {_text(name)}"
        yield _text(verb.description or "")
        yield from _usage(verb)
        yield from _arguments(verb)
        for command, what in EXAMPLES.get(name, ()):
            yield from (".TP", rf"\fB{_text(command)}\fR", _text(what))
    yield from (".SH WHICH CHECKPOINT", ".nf", _text(IDS), ".fi")
    yield from (".SH NOTES", _text(parser.epilog or ""))


def _of_verb(name: str) -> Iterator[str]:
    parser = parser_of(name)
    yield from _head(f"ckptfs-{name}", VERBS[name].help)
    yield ".SH SYNOPSIS"
    yield from _usage(parser)
    yield from (".SH DESCRIPTION", _text(parser.description or ""))
    yield ".SH OPTIONS"
    yield from _arguments(parser)
    yield from _arguments(parser, common=True)
    yield from (".SH EXAMPLES", ".nf", _text(below_options(name, parser)), ".fi")
    yield from (".SH SEE ALSO", ".BR ckptfs (1)")


def _head(name: str, help: str) -> Iterator[str]:
    yield f'.TH {name.upper()} 1 "" "ckptfs {__version__}" "User Commands"'
    yield from (".SH NAME", rf"{_text(name)} \- {_text(help)}")


def _usage(parser: VerbParser) -> Iterator[str]:
    yield from (".PP", ".nf")
    for line in parser.format_usage().splitlines():
        yield _text(line[len("usage: ") :])
    yield ".fi"


def _arguments(parser: Parser, *, common: bool = False) -> Iterator[str]:
    """Arguments and options with what they mean: those of the verb, or those of every verb."""
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._SubParsersAction):
            continue
        if (action.dest in _COMMON) == common or (common and action.dest == "version"):
            yield from (".TP", _names(action), _text((action.help or "").replace("%%", "%")))


def _names(action: Action) -> str:
    value = _value(action)
    if not action.option_strings:
        return value
    names = ", ".join(rf"\fB{_text(name)}\fR" for name in action.option_strings)
    return f"{names} {value}" if action.nargs is None else names


def _value(action: Action) -> str:
    if action.metavar is None and action.choices is not None:
        return "|".join(rf"\fB{_text(str(choice))}\fR" for choice in action.choices)
    return rf"\fI{_text(str(action.metavar or action.dest.upper()))}\fR"


def _text(text: str) -> str:
    r"""Text that roff shows as it is: no escape, no request, hyphens that can be copied."""
    shown = (
        text.replace("\\", r"\e").replace("-", r"\-").replace("`", r"\(ga").replace("'", r"\(aq")
    )
    lines = (rf"\&{line}" if line.startswith(".") else line for line in shown.split("\n"))
    return "\n".join(lines)
