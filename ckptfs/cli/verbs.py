"""The verbs of the command line, each declared once: what it does, its function, its family.

Help, parsing and the choice of the function read `VERBS`; the options and arguments of a verb stand
in the module of its family in `ckptfs.cli.words`. Knows no verb's meaning.
"""

from __future__ import annotations

import argparse
import importlib
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ckptfs import __version__
from ckptfs.cli.parser import COMMON, Formatter, Parser, VerbParser, add_common
from ckptfs.errors import UsageError

_EPILOG = """\
A workspace is found from the current directory upward, or from -w DIR.
Exit codes: 0 done, 1 a fault in ckptfs, 2 usage, 130 interrupted; others name
the error (docs/CLI.md lists them)."""


class _TopParser(Parser):
    """The parser of the whole command line. Its help has the verbs by what they are for."""

    def format_help(self) -> str:
        from ckptfs.cli.words.examples import verb_lines

        formatter = self._get_formatter()
        formatter.add_usage("ckptfs [OPTION]... VERB [WORD]...", (), ())
        formatter.add_text(self.description)
        formatter.add_text("\n".join(verb_lines((name, verb.help) for name, verb in VERBS.items())))
        formatter.start_section("options")
        formatter.add_arguments(self._get_optional_actions())
        formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()


class Verb(NamedTuple):
    """``function`` is a module of this package and a function in it; ``family`` is the module of
    `ckptfs.cli.words` that has the options and arguments. An error of a verb that only ``reads``
    need not say that nothing was changed."""

    help: str
    function: str
    family: str
    reads: bool = False


def function_of(verb: str) -> Callable[[Namespace], int]:
    """The function that carries a verb out; imported here, so that each verb loads only its own."""
    module, _, name = VERBS[verb].function.partition(".")
    chosen: Callable[[Namespace], int] = getattr(
        importlib.import_module(f"ckptfs.cli.{module}"), name
    )
    return chosen


def make_parser(words: Sequence[str] = ()) -> Parser:
    """The parser of the whole command line, or only of the verb that the words begin with: building
    all of them takes as long as the rest of a short command."""
    parser = _TopParser(
        prog="ckptfs",
        description="A workspace that is a file system with a history.",
        epilog=_EPILOG,
        formatter_class=Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"ckptfs {__version__}")
    add_common(parser, default=None, json_default=False)
    # The given prog spares argparse a formatter, and with it the import of shutil.
    parsers = parser.add_subparsers(
        dest="verb", metavar="VERB", required=True, prog="ckptfs", parser_class=VerbParser
    )
    meant = verb_among(words)
    if meant and meant not in VERBS and not _ASKING.intersection(words[: words.index(meant)]):
        raise unknown_verb(meant)
    for name in [meant] if meant in VERBS else VERBS:
        _fill(name, parsers.add_parser(name, help=VERBS[name].help, **_about(name)))
    return parser


def parser_of(name: str) -> VerbParser:
    """The parser of one verb alone, for those who read what it declares."""
    parser = VerbParser(prog=f"ckptfs {name}", **_about(name))
    _fill(name, parser)
    return parser


def _fill(name: str, parser: VerbParser) -> None:
    common = parser.add_argument_group(COMMON)
    add_common(common, default=argparse.SUPPRESS, json_default=argparse.SUPPRESS)
    add_words(name, parser)
    parser.below = lambda: below_options(name, parser)


def below_options(name: str, parser: VerbParser) -> str:
    """The examples of a verb, and what its words may be."""
    from ckptfs.cli.words.examples import epilog_of

    return epilog_of(name, parser)


def _about(name: str) -> dict[str, Any]:
    text = VERBS[name].help
    return {
        "description": text[0].upper() + text[1:] + ".",
        "formatter_class": Formatter,
        "allow_abbrev": False,
    }


def add_words(name: str, parser: VerbParser) -> None:
    """Give a verb's parser its options and arguments; imported here, so that a command loads only
    those of its family."""
    family = importlib.import_module(f"ckptfs.cli.words.{VERBS[name].family}")
    if name in family.WORDS:
        family.WORDS[name](parser)


#: What is answered whatever is typed behind it.
_ASKING = frozenset({"-h", "--help", "--version"})


def unknown_verb(word: str) -> UsageError:
    """That there is no such verb, and which may be meant."""
    import difflib

    near = difflib.get_close_matches(word, VERBS, n=2)
    hint = f"Did you mean {' or '.join(f'`ckptfs {verb}`' for verb in near)}? " if near else ""
    return UsageError(
        f"Cannot understand the command line: there is no verb {word!r}.",
        hint=f"{hint}`ckptfs --help` lists the verbs.",
    )


def asked_for_help(words: Sequence[str]) -> list[str]:
    """`help` and `help VERB`, which many type first, as the words that are declared."""
    if words[0] != "help" or len(words) > 2:
        return list(words)
    for verb in words[1:]:
        if verb not in VERBS and not verb.startswith("-"):
            raise unknown_verb(verb)
    return [*words[1:], "--help"]


#: Options with a value that may stand before the verb.
WITH_VALUE = ("-w", "--workspace", "--trust-owner")


def verb_among(words: Sequence[str]) -> str:
    """The first word that is neither an option nor its value; empty if there is none."""
    return next(_plain_words(words, WITH_VALUE), "")


def _plain_words(words: Sequence[str], with_value: Sequence[str]) -> Iterator[str]:
    """The words that are neither options nor values of these options."""
    before = ""
    for word in words:
        if not word.startswith("-") and before not in with_value:
            yield word
        before = word


def is_hook_call(words: Sequence[str]) -> bool:
    """Whether these are the words of a hook's call, right or wrong."""
    from ckptfs.cli.words.agents import HOOK_ACTIONS

    verb, *others = [*_plain_words(words, (*WITH_VALUE, "--agent", "--event")), ""]
    return verb == "hook" and not any(word in HOOK_ACTIONS for word in others)


VERBS = {
    "mount": Verb(
        "take a directory over in place and give it a history", "mount.mount", "workspaces"
    ),
    "umount": Verb(
        "unmount and bring the lower directory up to date", "mount.umount", "workspaces"
    ),
    "status": Verb(
        "show where a workspace lives, and its state", "status.status", "workspaces", reads=True
    ),
    "save": Verb("take a checkpoint", "checkpoints.save", "history"),
    "list": Verb(
        "list the checkpoints, newest first", "checkpoints.show_list", "history", reads=True
    ),
    "diff": Verb("show what changed; paths follow --", "diff.diff", "history", reads=True),
    "show": Verb("show a checkpoint and what it changed", "diff.show", "history", reads=True),
    "log": Verb(
        "list the checkpoints in which a path differs from the one before",
        "diff.log",
        "history",
        reads=True,
    ),
    "restore": Verb("make the workspace, or some paths, what it was", "restore.restore", "history"),
    "rewind": Verb("go back N checkpoints", "restore.rewind", "history"),
    "undo": Verb("take back the last restore", "restore.undo", "history"),
    "redo": Verb("take back the last undo", "restore.redo", "history"),
    "fork": Verb("make a second line of work, or rename or delete one", "forks.fork", "history"),
    "forks": Verb("list the forks", "forks.forks", "history", reads=True),
    "merge": Verb("bring in what a fork or checkpoint changed", "merge.merge", "history"),
    "compare": Verb(
        "show what forks or checkpoints changed, each and in common",
        "merge.compare",
        "history",
        reads=True,
    ),
    "tag": Verb("give a checkpoint a name to find it by", "checkpoints.tag", "history"),
    "pin": Verb(
        "keep checkpoints from expiring and from being deleted", "checkpoints.pin", "history"
    ),
    "unpin": Verb("let checkpoints expire again", "checkpoints.unpin", "history"),
    "delete": Verb("delete checkpoints and what only they hold", "checkpoints.delete", "history"),
    "prune": Verb(
        "let automatic checkpoints expire as the settings say", "checkpoints.prune", "history"
    ),
    "compact": Verb(
        "return free space in the store to the disk", "checkpoints.compact", "workspaces"
    ),
    "purge": Verb(
        "remove files from the workspace and every checkpoint, for ever",
        "checkpoints.purge",
        "history",
    ),
    "config": Verb("show the settings, or change one", "workspaces.config", "workspaces"),
    "import": Verb(
        "bring a directory into a workspace or store; it is only read",
        "store.import_tree",
        "workspaces",
    ),
    "export": Verb(
        "write the workspace, or a checkpoint, into a new directory", "store.export", "workspaces"
    ),
    "check": Verb("look for damage in the store", "store.check", "workspaces"),
    "backup": Verb(
        "copy the store, with its whole history, mounted or not", "store.backup", "workspaces"
    ),
    "workspaces": Verb(
        "list the workspaces there are, with their stores",
        "workspaces.workspaces",
        "workspaces",
        reads=True,
    ),
    "forget": Verb(
        "delete a workspace's store, with its history; the directory stays",
        "workspaces.forget",
        "workspaces",
    ),
    "run": Verb(
        "run a command between two checkpoints, and say what it changed", "run.run", "commands"
    ),
    "try": Verb(
        "run a command in a fork, and take what it did, or not", "attempts.attempt", "commands"
    ),
    "exec": Verb("run a command on an old state, in a fork", "attempts.execute", "commands"),
    "race": Verb("run a command several times side by side, in forks", "attempts.race", "commands"),
    "bisect": Verb(
        "find the first checkpoint on which a command fails", "attempts.bisect", "commands"
    ),
    "task": Verb(
        "group work into tasks, and take one back without the others", "run.task", "commands"
    ),
    "team": Verb(
        "snapshot and restore a team of agents: its workspaces and its state",
        "team.team",
        "commands",
    ),
    "service": Verb(
        "mount a workspace at login or boot, by a systemd unit", "units.service", "workspaces"
    ),
    "doctor": Verb(
        "look for what keeps this machine from serving workspaces",
        "doctor.doctor",
        "workspaces",
        reads=True,
    ),
    "demo": Verb(
        "play a session for real in a temporary directory, which it removes again",
        "demo.demo",
        "workspaces",
    ),
    "watch": Verb(
        "print what happens to a mounted workspace until it is unmounted",
        "status.watch",
        "workspaces",
        reads=True,
    ),
    "hook": Verb(
        "answer a coding agent's hook, or put it into the agent's settings", "agents.hook", "agents"
    ),
    "mcp": Verb(
        "serve the workspace to an agent by the Model Context Protocol, on stdio",
        "agents.mcp",
        "agents",
    ),
    "shell-init": Verb(
        "print shell code that names checkpoints after the commands you type",
        "workspaces.shell_init",
        "agents",
    ),
    "completion": Verb(
        "print shell code that completes what you type behind `ckptfs`",
        "workspaces.completion",
        "agents",
        reads=True,
    ),
    "manual": Verb("print the manual page, for man(1)", "manual.manual", "agents", reads=True),
}
