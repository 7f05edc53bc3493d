"""The words of verbs about checkpoints, and about going from one to another."""

from __future__ import annotations

from collections.abc import Callable

from ckptfs.cli.parser import VerbParser, count_word, path_word


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
    merge.add_argument("source", metavar="NAME", help="a fork, `main` or a checkpoint to merge")
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
    merge.add_argument(
        "--resolve",
        metavar="PATH=HOW",
        action="append",
        default=[],
        help="ours, theirs or markers for one conflict; may be given again",
    )
    merge.add_argument(
        "--into",
        metavar="FORK",
        default="",
        help="merge into that fork, or into `main`, instead of the workspace at hand",
    )
    merge.add_argument(
        "--driver",
        metavar="COMMAND",
        default=None,
        help="merge texts that conflict with this, instead of the setting `merge.driver`",
    )
    merge.add_argument("--dry-run", action="store_true", help="only say what it would do")
    _if_unchanged(merge)


def _fork(fork: VerbParser) -> None:
    fork.usage = (
        "ckptfs fork [-w DIR] NAME [--from ID] [--at DIR] [--without PATTERN]\n"
        "                   [-n N] [--git]\n"
        "       ckptfs fork --delete NAME [--force]\n"
        "       ckptfs fork --rename OLD NEW"
    )
    fork.add_argument("names", metavar="NAME", nargs="+", help="its name")
    fork.add_argument(
        "--from", dest="start", metavar="ID", default="", help="the checkpoint to begin at"
    )
    fork.add_argument("--at", metavar="DIR", default="", help="mount it there")
    fork.add_argument(
        "--without",
        metavar="PATTERN",
        action="append",
        default=[],
        help="leave out what matches, as in .gitignore; may be given again",
    )
    fork.add_argument(
        "-n", dest="count", metavar="N", type=int, default=1, help="make NAME-1 to NAME-N"
    )
    fork.add_argument(
        "--git", action="store_true", help="make it a linked worktree, on a branch of its name"
    )
    deed = fork.add_mutually_exclusive_group()
    deed.add_argument(
        "--delete", action="store_true", help="end it; its last state is kept for a day"
    )
    deed.add_argument("--rename", action="store_true", help="give it another name")
    fork.add_argument("--force", action="store_true", help="delete it also while it is in use")


def _compare(compare: VerbParser) -> None:
    compare.add_argument(
        "states", metavar="NAME", nargs="+", help="two or more forks, `main` or checkpoints"
    )


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


WORDS: dict[str, Callable[[VerbParser], None]] = {
    "save": _save,
    "list": _list,
    "diff": _diff,
    "show": _show,
    "log": _log,
    "restore": _restore,
    "rewind": _rewind,
    "undo": _take_back,
    "redo": _take_back,
    "merge": _merge,
    "fork": _fork,
    "compare": _compare,
    "tag": _tag,
    "pin": _pin,
    "unpin": _pin,
    "delete": _delete,
    "prune": _prune,
    "purge": _purge,
}
