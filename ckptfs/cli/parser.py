"""What can be typed: verbs, options and their help. Knows no verb's meaning.

``-w`` and ``--json`` may stand before or after the verb. Both are declared twice for that; the
one after the verb has no default, or it would overwrite what stood before.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import NoReturn

from ckptfs import __version__
from ckptfs.errors import UsageError

_EPILOG = """\
A workspace is found from the current directory upward, or from -w DIR.
Exit codes: 0 done, 1 a fault in ckptfs, 2 usage, 130 interrupted, others name the error
(docs/CLI.md lists them)."""


#: The width of help where there is no terminal.
_COLUMNS = 80


def path_word(text: str) -> str:
    """A path as typed. An empty one would mean the current directory, which nobody meant."""
    if not text:
        raise argparse.ArgumentTypeError("a path is empty")
    return text


def _count(text: str) -> int:
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


#: Positionals that take whatever follows, options of others too.
_GREEDY = (argparse.PARSER, argparse.REMAINDER)


class VerbParser(Parser):
    """The words of one verb. Its options may stand anywhere among them."""

    #: Where the words behind ``--`` go, for a verb that tells them from those before it.
    behind = ""

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
            options.append(word)
            if self._takes_value(word):
                value = next(waiting, None)
                if value is None:
                    return words  # or it would take a positional; argparse says what is missing
                options.append(value)
        return options + others

    def _takes_value(self, word: str) -> bool:
        """Whether the next word belongs to this option."""
        action = self._option_string_actions.get(word)
        return action is not None and action.nargs is None


def _is_number(word: str) -> bool:
    """Whether a word that begins with a dash is a negative number, as argparse sees it."""
    return word[1:].replace(".", "", 1).isdecimal()


def make_parser(words: Sequence[str] = ()) -> Parser:
    """The parser of the whole command line, or of the verb that the words begin with: to build all
    takes as long as the rest of a short command."""
    parser = Parser(
        prog="ckptfs",
        description="A workspace that is a file system with a history.",
        epilog=_EPILOG,
        formatter_class=Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"ckptfs {__version__}")
    _add_common(parser, default=None, json_default=False)
    # The given prog spares argparse a formatter, and with it the import of shutil.
    verbs = parser.add_subparsers(
        dest="verb", metavar="VERB", required=True, prog="ckptfs", parser_class=VerbParser
    )
    groups = _groups()
    meant = next((group for group in groups if _verb_among(words) in group.split()), None)
    for group in [meant] if meant else groups:
        groups[group](verbs)
    if meant is None:
        from ckptfs.cli import agent_words

        agent_words.add(lambda name, text: _verb(verbs, name, text))
    return parser


#: Options with a value that may stand before the verb.
_WITH_VALUE = ("-w", "--workspace", "--trust-owner")


def _verb_among(words: Sequence[str]) -> str:
    """The first word that is neither an option nor its value; empty if there is none."""
    before = ""
    for word in words:
        if not word.startswith("-") and before not in _WITH_VALUE:
            return word
        before = word
    return ""


def _groups() -> dict[str, Callable[[_Verbs[VerbParser]], None]]:
    """What adds which verbs; all others are the agents'."""
    return {
        "mount": _add_mount,
        "umount": _add_umount,
        "status": _add_status,
        "save": _add_save,
        "list": _add_list,
        "diff show log": _add_differences,
        "restore rewind undo redo": _add_restore,
        "tag pin unpin delete": _add_keeping,
        "prune compact purge config": _add_space,
        "import export check backup workspaces forget": _add_stores,
    }


_Verbs = argparse._SubParsersAction


def _add_common(parser: argparse.ArgumentParser, *, default: object, json_default: object) -> None:
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


def _verb(verbs: _Verbs[VerbParser], name: str, text: str) -> VerbParser:
    parser = verbs.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        formatter_class=Formatter,
        allow_abbrev=False,
    )
    _add_common(parser, default=argparse.SUPPRESS, json_default=argparse.SUPPRESS)
    return parser


def add_store(parser: Parser, text: str) -> None:
    parser.add_argument("--store", metavar="DIR", type=path_word, help=text)


def _add_mount(verbs: _Verbs[VerbParser]) -> None:
    mount = _verb(verbs, "mount", "take a directory over in place and give it a history")
    mount.add_argument(
        "directory", metavar="DIR", type=path_word, nargs="?", help="the directory to mount"
    )
    add_store(mount, "where its content and history live (default: below ~/.local/share/ckptfs)")
    mount.add_argument("--foreground", action="store_true", help="do not go to the background")
    mount.add_argument(
        "--xattrs",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="support user extended attributes",
    )
    mount.add_argument("--allow-other", action="store_true", help="let other users in")
    mount.add_argument(
        "-o",
        "--options",
        metavar="OPTIONS",
        action="append",
        default=[],
        help="options as mount(8) has them, with commas: ro, noexec, suid, dev, allow_other, ...",
    )
    mount.add_argument(
        "--from",
        dest="source",
        metavar="DIR",
        type=path_word,
        help="fill a new workspace from DIR (only read)",
    )
    mount.add_argument(
        "--exclude",
        metavar="PATTERN",
        action="append",
        default=[],
        help="keep what matches out of history from now on, as in .gitignore; may be given again",
    )
    mount.add_argument(
        "--auto",
        metavar="POLICY",
        default="command",
        help='when to take checkpoints by itself: command (default), quiet, "interval 30", off',
    )
    mount.add_argument(
        "--no-write-back",
        dest="write_back",
        action="store_false",
        help="leave the lower directory (under the mount) alone when unmounting",
    )


def _add_umount(verbs: _Verbs[VerbParser]) -> None:
    umount = _verb(verbs, "umount", "unmount and bring the lower directory up to date")
    umount.add_argument(
        "directory",
        metavar="DIR",
        type=path_word,
        nargs="?",
        help="the workspace to unmount",
    )
    how = umount.add_mutually_exclusive_group()
    how.add_argument(
        "--lazy", action="store_true", help="detach now, finish when the last user has gone"
    )
    how.add_argument(
        "--force", action="store_true", help="detach and finish now; files still open fail"
    )
    umount.add_argument(
        "--no-write-back",
        dest="write_back",
        action="store_false",
        help="leave the lower directory alone",
    )


def _add_status(verbs: _Verbs[VerbParser]) -> None:
    status = _verb(verbs, "status", "say where a workspace lives and how it is")
    status.add_argument("--space", action="store_true", help="count whose bytes the store has")


def _add_save(verbs: _Verbs[VerbParser]) -> None:
    save = _verb(verbs, "save", "take a checkpoint")
    save.add_argument("message", metavar="MESSAGE", nargs="?", default="", help="what it is")
    save.add_argument("--tag", metavar="T", default="", help="a name to find it by")
    save.add_argument("--pin", action="store_true", help="keep it until it is unpinned")
    save.add_argument(
        "--meta", metavar="K=V", action="append", default=[], help="a fact to keep with it"
    )
    save.add_argument("--allow-empty", action="store_true", help="save although nothing changed")
    save.add_argument(
        "--state", metavar="[NAME=]FILE", action="append", default=[], help="a JSON file to keep"
    )
    save.add_argument(
        "--state-blob", metavar="[NAME=]FILE", action="append", default=[], help="any file to keep"
    )


def _add_list(verbs: _Verbs[VerbParser]) -> None:
    listing = _verb(verbs, "list", "list the checkpoints, newest first")
    how_many = listing.add_mutually_exclusive_group()
    how_many.add_argument("-n", metavar="N", type=_count, help="the newest N (default 20)")
    how_many.add_argument("--all", action="store_true", help="all of them")
    listing.add_argument(
        "--moments", action="store_true", help="also those taken just before something was lost"
    )
    listing.add_argument(
        "--since", metavar="T", default="", help='not before a time ("10 minutes ago") or an ID'
    )
    listing.add_argument(
        "--path",
        metavar="P",
        type=path_word,
        help="only those in which a file or directory changed",
    )


def _add_differences(verbs: _Verbs[VerbParser]) -> None:
    diff = _verb(verbs, "diff", "show what changed; paths stand behind --")
    diff.usage = "ckptfs diff [FROM [TO]] [--stat | --name-status] [--times] [-- PATH...]"
    diff.add_argument(
        "refs", metavar="FROM TO", nargs="*", help="default: the latest checkpoint, and now"
    )
    diff.behind = "paths"
    show = _verb(verbs, "show", "show a checkpoint and what it changed")
    show.add_argument("checkpoint", metavar="ID", help="the checkpoint")
    for parser in (diff, show):
        how = parser.add_mutually_exclusive_group()
        how.add_argument("--stat", action="store_true", help="how many lines of each file")
        if parser is show:
            how.add_argument("--patch", "-p", action="store_true", help="the text diff")
        else:
            how.add_argument("--name-status", action="store_true", help="only how and which")
        parser.add_argument(
            "--times", action="store_true", help="list files too that only got other times"
        )
    log = _verb(verbs, "log", "list the checkpoints in which a path differs from the one before")
    log.add_argument("path", metavar="PATH", nargs="?", type=path_word, help="a file or directory")
    log.add_argument("--restores", action="store_true", help="list the restores instead")


def _add_restore(verbs: _Verbs[VerbParser]) -> None:
    restore = _verb(verbs, "restore", "make the workspace, or some paths, what it was")
    restore.add_argument("checkpoint", metavar="ID", help="the checkpoint to go to")
    restore.add_argument(
        "paths",
        metavar="PATH",
        nargs="*",
        type=path_word,
        default=[],
        help="only these; patterns work",
    )
    restore.add_argument(
        "--if-unchanged", dest="token", metavar="TOKEN", default="", help="of a dry run: or refuse"
    )
    restore.add_argument(
        "--no-backup", dest="backup", action="store_false", help="do not save the state before"
    )
    restore.add_argument(
        "--only-changed-by",
        dest="only",
        metavar="WHO",
        default="",
        help="only what this session, process or command changed",
    )
    restore.add_argument(
        "--state-only", action="store_true", help="leave the files alone; only --state-out"
    )
    rewind = _verb(verbs, "rewind", "go back N checkpoints")
    rewind.add_argument("steps", metavar="N", nargs="?", type=int, default=1, help="default 1")
    undo = _verb(verbs, "undo", "take back the last restore")
    redo = _verb(verbs, "redo", "take back the last undo")
    for parser in (restore, rewind, undo, redo):
        parser.add_argument("--dry-run", action="store_true", help="only say what it would do")
        parser.add_argument("--force", action="store_true", help="do not ask")
        parser.add_argument(
            "--state-out",
            metavar="[NAME=]FILE",
            action="append",
            default=[],
            help="write a state document of the checkpoint there; into a directory, all of them",
        )


def _add_keeping(verbs: _Verbs[VerbParser]) -> None:
    tag = _verb(verbs, "tag", "give a checkpoint a name to find it by")
    tag.add_argument("checkpoint", metavar="ID", help="the checkpoint")
    tag.add_argument("tag", metavar="TAG", nargs="?", default="", help="its new tag")
    tag.add_argument("--move", action="store_true", help="take it from the one that has it")
    tag.add_argument("-d", "--delete", action="store_true", help="take its tag away")
    for name, text in (
        ("pin", "keep checkpoints from expiring and from being deleted"),
        ("unpin", "let checkpoints expire again"),
        ("delete", "delete checkpoints and what only they hold"),
    ):
        parser = _verb(verbs, name, text)
        parser.add_argument("checkpoints", metavar="ID", nargs="+", help="the checkpoints")
        if name == "delete":
            parser.add_argument("--force", action="store_true", help="tagged ones too, unasked")


def _add_space(verbs: _Verbs[VerbParser]) -> None:
    prune = _verb(verbs, "prune", "let automatic checkpoints expire as the settings say")
    prune.add_argument("--dry-run", action="store_true", help="only say what would go, and why")
    _verb(verbs, "compact", "give free room in the store back to the disk")
    purge = _verb(verbs, "purge", "remove files from the workspace and every checkpoint, for ever")
    purge.add_argument("paths", metavar="PATH", nargs="+", type=path_word, help="what to remove")
    purge.add_argument("--dry-run", action="store_true", help="only say what would go")
    purge.add_argument("--force", action="store_true", help="do not ask")
    settings = _verb(verbs, "config", "show the settings, or change one")
    settings.add_argument("key", metavar="KEY", nargs="?", help="the setting")
    settings.add_argument("value", metavar="VALUE", nargs="?", help="its new value")
    settings.add_argument("--unset", action="store_true", help="go back to the default")
    settings.add_argument(
        "--global", dest="for_all", action="store_true", help="for all workspaces of this user"
    )


def _add_stores(verbs: _Verbs[VerbParser]) -> None:
    from ckptfs.cli import store_words  # late: most commands are about something else

    store_words.add(lambda name, text: _verb(verbs, name, text))
