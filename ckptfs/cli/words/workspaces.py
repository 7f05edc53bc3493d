"""The words of verbs about a whole workspace or store."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from ckptfs.cli.parser import VerbParser, add_store, path_word


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


def _service(service: VerbParser) -> None:
    service.usage = (
        "ckptfs service install DIR [--system] [-- OPTION-OF-MOUNT ...]\n"
        "       ckptfs service remove|status DIR [--system]"
    )
    service.add_argument("action", choices=("install", "remove", "status"), help="what to do")
    service.add_argument(
        "directory", metavar="DIR", type=path_word, nargs="?", help="the directory to mount"
    )
    service.add_argument(
        "--system", action="store_true", help="at boot, by root, instead of at your login"
    )
    service.behind = "mount_words"


def _demo(demo: VerbParser) -> None:
    demo.add_argument("--fast", action="store_true", help="without pauses")


WORDS: dict[str, Callable[[VerbParser], None]] = {
    "mount": _mount,
    "umount": _umount,
    "status": _status,
    "config": _config,
    "import": _import,
    "export": _export,
    "check": _check,
    "backup": _backup,
    "forget": _forget,
    "service": _service,
    "demo": _demo,
}
