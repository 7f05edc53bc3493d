"""Which workspace and which paths a command line means, and what is said if it means none."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator

import pytest

from ckptfs import errors
from ckptfs.cli.workspace import find_workspace
from tests.cli.conftest import ScratchHome
from tests.support.mounting import HAVE_FUSE, succeed
from tests.support.peer import NOBODY, peer

pytestmark = pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")


@pytest.fixture
def proj(place: ScratchHome) -> Iterator[ScratchHome]:
    """A place with the workspace `proj`, mounted, in it."""
    (place / "proj" / "dir").mkdir(parents=True)
    (place / "proj" / "file").write_text("x")
    succeed(place.run("mount", "proj"))
    try:
        yield place
    finally:
        succeed(place.run("umount", "proj"))


def said(proj: ScratchHome, error: type[errors.CkptfsError], *words: str, **env: str) -> str:
    done = proj.run(*words, **env)
    assert done.returncode == error.exit_code, done.stdout + done.stderr
    return done.stderr


def test_paths_are_relative_to_where_one_is(proj: ScratchHome) -> None:
    words = said(proj, errors.PathUnknown, "log", "file", "-w", "proj")
    assert f"{proj / 'file'} is not inside" in words
    assert "relative to where you are, also with -w DIR: proj/file" in words
    succeed(proj.run("log", "proj/file", "-w", "proj"))
    assert f"Name a path in {proj / 'proj'}" in said(
        proj, errors.PathUnknown, "purge", "/etc/passwd", "-w", "proj"
    )


def test_a_path_that_is_everything_or_nothing_is_refused(proj: ScratchHome) -> None:
    assert "leave the path out" in said(
        proj, errors.PathUnknown, "restore", "0", "proj", "-w", "proj"
    )
    for words in (["restore", "0", ""], ["purge", ""], ["diff", "--", ""], ["list", "--path", ""]):
        assert "a path is empty" in said(proj, errors.UsageError, "-w", "proj", *words)


def test_a_mount_tells_its_owner_which_workspace_it_is(proj: ScratchHome) -> None:
    """Whatever the registry knows: one has another HOME, or a sandbox has none."""
    other = {"HOME": str(proj / "other"), "XDG_DATA_HOME": ""}
    for words in (["status", "-w", "proj"], ["list", "-w", "proj/dir"]):
        succeed(proj.run(*words, **other))


def _words_of_error(path: str) -> str:
    try:
        find_workspace(Namespace(workspace=path))
    except errors.WorkspaceUnknown as error:
        return f"{error}\n{error.hint}"
    return ""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_workspace_of_another_user_is_named_as_such(proj: ScratchHome) -> None:
    with peer(NOBODY) as nobody:
        told = nobody(_words_of_error, str(proj / "proj"))
    assert f"{proj / 'proj'} is a mounted ckptfs workspace, but not one of yours" in told
    assert "mounted by user " in told and "ckptfs mount" not in told
    assert f"Its store is {proj / 'data' / 'ckptfs' / 'proj-'}" in told


def test_who_only_reads_hears_nothing_of_changes(proj: ScratchHome) -> None:
    for words in (["show", "99"], ["diff", "99"], ["log", "proj/none"], ["list", "--since", "zz"]):
        done = proj.run("-w", "proj", *words)
        assert done.returncode != 0 and "Nothing was changed" not in done.stderr, done.stderr
    assert "Nothing was changed" in said(
        proj, errors.CheckpointUnknown, "restore", "99", "-w", "proj"
    )


def test_one_in_no_sandbox_is_not_told_to_leave_it(place: ScratchHome) -> None:
    """The mount of a long store does not tell it, so that another HOME has only the mount."""
    (place / "work").mkdir()
    long = place / ("x" * 200) / ("y" * 100)
    long.mkdir(parents=True)
    succeed(place.run("mount", "work", "--store", long))
    try:
        other = {"HOME": str(place / "other"), "XDG_DATA_HOME": ""}
        told = said(place, errors.RefusedInSandbox, "umount", "work", **other)
        assert "where the store is not known" in told and "XDG_DATA_HOME" in told
        assert "sandbox" not in told
    finally:
        succeed(place.run("umount", "work"))
