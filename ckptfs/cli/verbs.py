"""The verbs of the command line, each declared once: what it does, its function, its words.

Help, parsing and the choice of the function read `VERBS`. Knows no verb's meaning.
"""

from __future__ import annotations

import argparse
import importlib
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ckptfs import __version__
from ckptfs.cli.parser import (
    Formatter,
    Parser,
    VerbParser,
    add_common,
    add_store,
    count_word,
    path_word,
)

_EPILOG = """\
A workspace is found from the current directory upward, or from -w DIR.
Exit codes: 0 done, 1 a fault in ckptfs, 2 usage, 130 interrupted, others name the error
(docs/CLI.md lists them)."""


class Verb(NamedTuple):
    """``function`` is a module of this package and a function in it; ``words`` adds the options and
    arguments. An error of a verb that only ``reads`` need not say that nothing was changed."""

    help: str
    function: str
    words: Callable[[VerbParser], None]
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
    parser = Parser(
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
    meant = _verb_among(words)
    for name in [meant] if meant in VERBS else VERBS:
        verb = VERBS[name]
        made = parsers.add_parser(
            name,
            help=verb.help,
            description=verb.help[0].upper() + verb.help[1:] + ".",
            formatter_class=Formatter,
            allow_abbrev=False,
        )
        add_common(made, default=argparse.SUPPRESS, json_default=argparse.SUPPRESS)
        verb.words(made)
    return parser


#: Options with a value that may stand before the verb.
_WITH_VALUE = ("-w", "--workspace", "--trust-owner")


def _verb_among(words: Sequence[str]) -> str:
    """The first word that is neither an option nor its value; empty if there is none."""
    return next(_plain_words(words, _WITH_VALUE), "")


def _plain_words(words: Sequence[str], with_value: Sequence[str]) -> Iterator[str]:
    """The words that are neither options nor values of these options."""
    before = ""
    for word in words:
        if not word.startswith("-") and before not in with_value:
            yield word
        before = word


#: What `hook` does for people. Without one of these words an agent calls it.
_HOOK_ACTIONS = ("install", "uninstall", "status", "plugin")


def is_hook_call(words: Sequence[str]) -> bool:
    """Whether these are the words of a hook's call, right or wrong."""
    verb, *others = [*_plain_words(words, (*_WITH_VALUE, "--agent", "--event")), ""]
    return verb == "hook" and not any(word in _HOOK_ACTIONS for word in others)


# -- the words of each verb ------------------------------------------------------------------------


def _mount(mount: VerbParser) -> None:
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
        help="mount(8) options, separated by commas: ro, noexec, suid, dev, allow_other, ...",
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


def _umount(umount: VerbParser) -> None:
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


def _status(status: VerbParser) -> None:
    status.add_argument("--space", action="store_true", help="break down the size of the store")


def _save(save: VerbParser) -> None:
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


def _list(listing: VerbParser) -> None:
    how_many = listing.add_mutually_exclusive_group()
    how_many.add_argument("-n", metavar="N", type=count_word, help="the newest N (default 20)")
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


def _diff(diff: VerbParser) -> None:
    diff.usage = "ckptfs diff [FROM [TO]] [--stat | --name-status] [--times] [-- PATH...]"
    diff.add_argument(
        "refs", metavar="FROM TO", nargs="*", help="default: the latest checkpoint, and now"
    )
    diff.behind = "paths"
    _add_diff_forms(diff, "--name-status", help="only the status and name of each path")


def _show(show: VerbParser) -> None:
    show.add_argument("checkpoint", metavar="ID", help="the checkpoint")
    _add_diff_forms(show, "--patch", "-p", help="the text diff")


def _add_diff_forms(parser: VerbParser, *other: str, help: str) -> None:
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--stat", action="store_true", help="how many lines of each file")
    how.add_argument(*other, action="store_true", help=help)
    parser.add_argument(
        "--times", action="store_true", help="also list files of which only the times changed"
    )


def _log(log: VerbParser) -> None:
    log.add_argument("path", metavar="PATH", nargs="?", type=path_word, help="a file or directory")
    log.add_argument("--restores", action="store_true", help="list the restores instead")


def _restore(restore: VerbParser) -> None:
    restore.add_argument("checkpoint", metavar="ID", help="the checkpoint to go to")
    _only_paths(restore)
    _if_unchanged(restore)
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
    _take_back(restore)


def _merge(merge: VerbParser) -> None:
    merge.add_argument("source", metavar="ID", help="the checkpoint to take changes from")
    _only_paths(merge)
    how = merge.add_mutually_exclusive_group()
    for name, what in (
        ("ours", "where both changed something, keep what is here"),
        ("theirs", "take what is there"),
        ("markers", "keep both: text with conflict markers, anything else side by side"),
    ):
        how.add_argument(
            f"--{name}", dest="resolution", action="store_const", const=name, default="", help=what
        )
    merge.add_argument("--dry-run", action="store_true", help="only say what it would do")
    _if_unchanged(merge)


def _only_paths(parser: VerbParser) -> None:
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="*",
        type=path_word,
        default=[],
        help="only these; patterns work",
    )


def _if_unchanged(parser: VerbParser) -> None:
    parser.add_argument(
        "--if-unchanged",
        dest="token",
        metavar="TOKEN",
        default="",
        help="of a dry run; refuse if anything changed since",
    )


def _rewind(rewind: VerbParser) -> None:
    rewind.add_argument("steps", metavar="N", nargs="?", type=int, default=1, help="default 1")
    _take_back(rewind)


def _take_back(parser: VerbParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only say what it would do")
    parser.add_argument("--force", action="store_true", help="do not ask")
    parser.add_argument(
        "--state-out",
        metavar="[NAME=]FILE",
        action="append",
        default=[],
        help="write a state document of the checkpoint there; into a directory, all of them",
    )


def _tag(tag: VerbParser) -> None:
    tag.add_argument("checkpoint", metavar="ID", help="the checkpoint")
    tag.add_argument("tag", metavar="TAG", nargs="?", default="", help="its new tag")
    tag.add_argument("--move", action="store_true", help="take it from the checkpoint that has it")
    tag.add_argument("-d", "--delete", action="store_true", help="remove its tag")


def _pin(pin: VerbParser) -> None:
    pin.add_argument("checkpoints", metavar="ID", nargs="+", help="the checkpoints")


def _delete(delete: VerbParser) -> None:
    delete.add_argument("checkpoints", metavar="ID", nargs="+", help="the checkpoints")
    delete.add_argument("--force", action="store_true", help="also tagged ones, without asking")


def _prune(prune: VerbParser) -> None:
    prune.add_argument("--dry-run", action="store_true", help="only say what would go, and why")


def _purge(purge: VerbParser) -> None:
    purge.add_argument("paths", metavar="PATH", nargs="+", type=path_word, help="what to remove")
    purge.add_argument("--dry-run", action="store_true", help="only say what would go")
    purge.add_argument("--force", action="store_true", help="do not ask")


def _config(settings: VerbParser) -> None:
    settings.add_argument("key", metavar="KEY", nargs="?", help="the setting")
    settings.add_argument("value", metavar="VALUE", nargs="?", help="its new value")
    settings.add_argument("--unset", action="store_true", help="go back to the default")
    settings.add_argument(
        "--global", dest="for_all", action="store_true", help="for all workspaces of this user"
    )


def _import(parser: VerbParser) -> None:
    parser.add_argument("source", metavar="SRC", type=path_word, help="the directory to read")
    add_store(parser, "the store to fill, made if absent, instead of a workspace")


def _export(parser: VerbParser) -> None:
    parser.add_argument("dest", metavar="DEST", type=path_word, help="an absent or empty directory")
    parser.add_argument("--checkpoint", metavar="ID", help="the checkpoint to write out")
    add_store(parser, "the store to read instead of a workspace's")


def _check(parser: VerbParser) -> None:
    parser.add_argument("--deep", action="store_true", help="also read the bytes of every block")
    parser.add_argument(
        "--repair",
        action="store_true",
        help="save all that is whole into a new file; the damaged one is kept beside it",
    )
    add_store(parser, "the store to look at instead of a workspace's")


def _backup(parser: VerbParser) -> None:
    parser.add_argument("dest", metavar="DEST", type=path_word, help="an absent or empty directory")
    add_store(parser, "the store to copy instead of a workspace's")


def _forget(parser: VerbParser) -> None:
    parser.add_argument(
        "directory", metavar="DIR", type=path_word, nargs="?", help="the workspace to forget"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would go")
    parser.add_argument("--force", action="store_true", help="do not ask")
    add_store(parser, "the store to delete instead of a workspace's")


def _run(run: VerbParser) -> None:
    run.usage = "ckptfs run [-w DIR] [--on-failure keep|restore|ask | --harness] -- COMMAND ..."
    run.add_argument(
        "--harness",
        action="store_true",
        help="become the command; each command that it starts is a step",
    )
    run.add_argument(
        "--on-failure",
        choices=("keep", "restore", "ask"),
        default="keep",
        help="what to do with its changes if it fails (default: keep)",
    )
    _command(run)


def _command(parser: VerbParser) -> None:
    """A command stands behind `--`."""
    parser.add_argument("stray", nargs="*", help=argparse.SUPPRESS)
    parser.behind = "words"


def _try(attempt: VerbParser) -> None:
    attempt.usage = "ckptfs try [-w DIR] [--yes-if-ok | --keep] -- COMMAND ..."
    how = attempt.add_mutually_exclusive_group()
    how.add_argument("--yes-if-ok", action="store_true", help="take it if it ends well; do not ask")
    how.add_argument("--keep", action="store_true", help="take nothing, and do not ask")
    _command(attempt)


def _exec(execute: VerbParser) -> None:
    execute.usage = "ckptfs exec [-w DIR] ID -- COMMAND ..."
    execute.add_argument("checkpoint", metavar="ID", help="the checkpoint to run it on")
    _command(execute)


def _race(race: VerbParser) -> None:
    race.usage = "ckptfs race [-w DIR] [-n N] [--score COMMAND] [--take best] -- COMMAND ..."
    race.add_argument("-n", dest="count", metavar="N", type=int, default=3, help="default 3")
    race.add_argument(
        "--score", metavar="COMMAND", default="", help="run in each; the number it prints counts"
    )
    race.add_argument("--take", choices=("best",), help="merge the best one that ended well")
    _command(race)


def _bisect(bisect: VerbParser) -> None:
    bisect.usage = "ckptfs bisect run [-w DIR] [--from A] [--to B] [-j N] [--again] -- COMMAND ..."
    bisect.add_argument("action", choices=("run",), help="what to do")
    bisect.add_argument(
        "--from", dest="good", metavar="A", default="", help="a good one (default: the oldest)"
    )
    bisect.add_argument(
        "--to", dest="bad", metavar="B", default="", help="a bad one (default: the newest)"
    )
    bisect.add_argument("-j", dest="jobs", metavar="N", type=int, default=1, help="side by side")
    bisect.add_argument("--again", action="store_true", help="pass over remembered results")
    _command(bisect)


def _task(task: VerbParser) -> None:
    task.usage = (
        "ckptfs task start NAME | done [MESSAGE] | list | revert NAME [--force | --dry-run]"
    )
    task.add_argument("action", choices=("start", "done", "list", "revert"), help="what to do")
    task.add_argument("subject", metavar="NAME", nargs="?", help="its name, or what was done")
    task.add_argument("--dry-run", action="store_true", help="only say what revert would do")
    task.add_argument(
        "--force", action="store_true", help="also revert what others changed meanwhile"
    )


def _team(team: VerbParser) -> None:
    team.usage = (
        "ckptfs team snapshot TEAM [--tag T] | snapshots TEAM | restore TEAM ID [--dry-run]\n"
        "       [--force] | snapshot-delete TEAM ID        [--data-dir DIR]"
    )
    deeds = ("snapshot", "snapshots", "restore", "snapshot-delete")
    team.add_argument("action", choices=deeds, help="what to do")
    team.add_argument("team", metavar="TEAM", help="its name")
    team.add_argument("snapshot", metavar="ID", nargs="?", help="a snapshot: its id, or its tag")
    team.add_argument("--tag", metavar="T", default="", help="a name to find the snapshot by")
    team.add_argument(
        "--data-dir", metavar="DIR", help="where teams keep their state (default: ~/.clawteam)"
    )
    team.add_argument("--dry-run", action="store_true", help="only say what restore would do")
    team.add_argument("--force", action="store_true", help="do not ask")


def _hook(hook: VerbParser) -> None:
    hook.usage = (
        "ckptfs hook [--agent AGENT [--event EVENT]]\n"
        "       ckptfs hook install|uninstall AGENT|--all [--project | --user]\n"
        "                   [--dry-run | --yes]\n"
        "       ckptfs hook status\n"
        "       ckptfs hook plugin DIR"
    )
    hook.add_argument("action", nargs="?", choices=_HOOK_ACTIONS, help="what to do")
    hook.add_argument("subject", nargs="?", metavar="AGENT", help="the agent, or where to put it")
    hook.add_argument("--all", action="store_true", help="all agents that are on this machine")
    where = hook.add_mutually_exclusive_group()
    where.add_argument(
        "--project", action="store_true", help="in the settings of the workspace (the default)"
    )
    where.add_argument("--user", action="store_true", help="in your own settings, for all projects")
    how = hook.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="only show what would change")
    how.add_argument("--yes", action="store_true", help="do not ask")
    hook.add_argument(
        "--agent", metavar="AGENT", help="of a call: the agent, if its input does not say"
    )
    hook.add_argument("--event", metavar="EVENT", help="of a call: the event, likewise")


def _mcp(mcp: VerbParser) -> None:
    mcp.add_argument("--read-only", action="store_true", help="only the tools that change nothing")


def _shell_init(shell: VerbParser) -> None:
    shell.usage = 'eval "$(ckptfs shell-init bash)"    in ~/.bashrc; zsh and fish likewise'
    shell.add_argument("shell", choices=("bash", "zsh", "fish"), help="which shell")


def _no_words(parser: VerbParser) -> None:
    pass


VERBS = {
    "mount": Verb("take a directory over in place and give it a history", "mount.mount", _mount),
    "umount": Verb("unmount and bring the lower directory up to date", "mount.umount", _umount),
    "status": Verb(
        "show where a workspace lives, and its state", "status.status", _status, reads=True
    ),
    "save": Verb("take a checkpoint", "checkpoints.save", _save),
    "list": Verb("list the checkpoints, newest first", "checkpoints.show_list", _list, reads=True),
    "diff": Verb("show what changed; paths follow --", "diff.diff", _diff, reads=True),
    "show": Verb("show a checkpoint and what it changed", "diff.show", _show, reads=True),
    "log": Verb(
        "list the checkpoints in which a path differs from the one before",
        "diff.log",
        _log,
        reads=True,
    ),
    "restore": Verb("make the workspace, or some paths, what it was", "restore.restore", _restore),
    "rewind": Verb("go back N checkpoints", "restore.rewind", _rewind),
    "undo": Verb("take back the last restore", "restore.undo", _take_back),
    "redo": Verb("take back the last undo", "restore.redo", _take_back),
    "merge": Verb("bring in what a checkpoint of another line changed", "merge.merge", _merge),
    "tag": Verb("give a checkpoint a name to find it by", "checkpoints.tag", _tag),
    "pin": Verb("keep checkpoints from expiring and from being deleted", "checkpoints.pin", _pin),
    "unpin": Verb("let checkpoints expire again", "checkpoints.unpin", _pin),
    "delete": Verb("delete checkpoints and what only they hold", "checkpoints.delete", _delete),
    "prune": Verb(
        "let automatic checkpoints expire as the settings say", "checkpoints.prune", _prune
    ),
    "compact": Verb("return free space in the store to the disk", "checkpoints.compact", _no_words),
    "purge": Verb(
        "remove files from the workspace and every checkpoint, for ever",
        "checkpoints.purge",
        _purge,
    ),
    "config": Verb("show the settings, or change one", "workspaces.config", _config),
    "import": Verb(
        "bring a directory into a workspace or store; it is only read",
        "store.import_tree",
        _import,
    ),
    "export": Verb(
        "write the workspace, or a checkpoint, into a new directory", "store.export", _export
    ),
    "check": Verb("look for damage in the store", "store.check", _check),
    "backup": Verb(
        "copy the store, with its whole history, mounted or not", "store.backup", _backup
    ),
    "workspaces": Verb(
        "list the workspaces there are, with their stores",
        "workspaces.workspaces",
        _no_words,
        reads=True,
    ),
    "forget": Verb(
        "delete a workspace's store, with its history; the directory stays",
        "workspaces.forget",
        _forget,
    ),
    "run": Verb("run a command between two checkpoints, and say what it changed", "run.run", _run),
    "try": Verb("run a command in a fork, and take what it did, or not", "attempts.attempt", _try),
    "exec": Verb("run a command on an old state, in a fork", "attempts.execute", _exec),
    "race": Verb("run a command several times side by side, in forks", "attempts.race", _race),
    "bisect": Verb(
        "find the first checkpoint on which a command fails", "attempts.bisect", _bisect
    ),
    "task": Verb("group work into tasks, and take one back without the others", "run.task", _task),
    "team": Verb(
        "snapshot and restore a team of agents: its workspaces and its state", "team.team", _team
    ),
    "watch": Verb(
        "print what happens to a mounted workspace until it is unmounted",
        "status.watch",
        _no_words,
        reads=True,
    ),
    "hook": Verb(
        "answer a coding agent's hook, or put it into the agent's settings", "agents.hook", _hook
    ),
    "mcp": Verb(
        "serve the workspace to an agent by the Model Context Protocol, on stdio",
        "agents.mcp",
        _mcp,
    ),
    "shell-init": Verb(
        "print shell code that names checkpoints after the commands you type",
        "workspaces.shell_init",
        _shell_init,
    ),
}
