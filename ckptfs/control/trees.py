"""Other directories that a workspace is filled from or written to: whether that can be.

A daemon that reads or writes its own mount would wait for itself for ever, so this is asked before
it is.
"""

from __future__ import annotations

import os
from pathlib import Path

from ckptfs.config import Workspace
from ckptfs.control import runtime
from ckptfs.errors import DestinationInvalid, OverlappingTrees, SourceMissing


def check_source(source: Path) -> None:
    if not source.exists():
        raise SourceMissing(source)
    if not source.is_dir():
        raise SourceMissing(source, "it is not a directory")
    if not os.access(source, os.R_OK | os.X_OK):
        raise SourceMissing(source, "you may not read it")


def check_dest(dest: Path) -> None:
    """The place of something new: absent or an empty directory."""
    if not dest.exists():
        if not dest.parent.is_dir():
            raise DestinationInvalid(dest, "its parent directory does not exist")
        if not os.access(dest.parent, os.W_OK | os.X_OK):
            raise DestinationInvalid(dest, "you may not write there")
    elif not dest.is_dir():
        raise DestinationInvalid(dest, "it is not a directory")
    elif os.listdir(dest):
        raise DestinationInvalid(dest)


def check_names_apart(tree: Path, target: Workspace) -> None:
    """Neither in the other, by their names."""
    for other in (target.path, target.store):
        if tree.is_relative_to(other) or other.is_relative_to(tree):
            raise OverlappingTrees(tree, other)


def check_apart(tree: Path, target: Workspace) -> None:
    """Neither in the other, by whatever way it is reached."""
    check_names_apart(tree, target)
    if runtime.living(target) is not None:
        existing = next(path for path in (tree, *tree.parents) if path.exists())
        # The mount may be reachable by another way too, such as a bind mount.
        if os.stat(existing).st_dev == os.stat(target.path).st_dev:
            raise OverlappingTrees(tree, target.path)
