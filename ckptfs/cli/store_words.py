"""What can be typed about whole workspaces and stores: `import`, `export`, `check`, `backup`,
`workspaces` and `forget`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ckptfs.cli.parser import add_store, path_word

if TYPE_CHECKING:
    from ckptfs.cli.parser import VerbParser

#: Makes the parser of a verb from its name and what it does.
Make = Callable[[str, str], "VerbParser"]


def add(make: Make) -> None:
    _add_import(make)
    _add_export(make)
    _add_check(make)
    _add_backup(make)
    make("workspaces", "list the workspaces there are, with their stores")
    _add_forget(make)


def _add_import(make: Make) -> None:
    parser = make("import", "bring a directory into a workspace or store; it is only read")
    parser.add_argument("source", metavar="SRC", type=path_word, help="the directory to read")
    add_store(parser, "the store to fill, made if absent, instead of a workspace")


def _add_export(make: Make) -> None:
    parser = make("export", "write the workspace, or a checkpoint, into a new directory")
    parser.add_argument("dest", metavar="DEST", type=path_word, help="an absent or empty directory")
    parser.add_argument("--checkpoint", metavar="ID", help="the checkpoint to write out")
    add_store(parser, "the store to read instead of a workspace's")


def _add_backup(make: Make) -> None:
    parser = make("backup", "copy the store, with its whole history, mounted or not")
    parser.add_argument("dest", metavar="DEST", type=path_word, help="an absent or empty directory")
    add_store(parser, "the store to copy instead of a workspace's")


def _add_check(make: Make) -> None:
    parser = make("check", "look for damage in the store")
    parser.add_argument("--deep", action="store_true", help="read the bytes of every block, too")
    parser.add_argument(
        "--repair",
        action="store_true",
        help="save all that is whole into a new file; the damaged one is kept beside it",
    )
    add_store(parser, "the store to look at instead of a workspace's")


def _add_forget(make: Make) -> None:
    parser = make("forget", "delete a workspace's store, with its history; the directory stays")
    parser.add_argument(
        "directory", metavar="DIR", type=path_word, nargs="?", help="the workspace to forget"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would go")
    parser.add_argument("--force", action="store_true", help="do not ask")
    add_store(parser, "the store to delete instead of a workspace's")
