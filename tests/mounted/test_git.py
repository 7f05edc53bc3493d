"""git at work in a workspace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.mounting import Workspace
from tests.support.programs import run
from tests.support.trees import File, Link, Tree, plant, tree


def git(where: Path, *arguments: str | Path) -> str:
    return run("git", *arguments, cwd=where)


def commit(where: Path, message: str) -> None:
    git(where, "add", "-A")
    git(where, "commit", "-q", "-m", message)


FIRST: Tree = {
    "README": "first\n",
    "run.sh": File("#!/bin/sh\n", mode=0o755),
    "link": Link("README"),
    "src": {"a.c": "int a;\n", "deep": {"er": {"b.c": "int b;\n"}}},
}


@pytest.fixture
def repository(mount: Path) -> Path:
    """Two commits and a tag each: one adds, one edits, deletes, renames and changes types."""
    path = mount / "repository"
    git(mount, "init", "-q", "-b", "main", path)
    plant(path, FIRST)
    plant(path, {f"n{number}.txt": f"{number}\n" * number for number in range(150)})
    commit(path, "first")
    git(path, "tag", "one")
    (path / "README").write_text("second\n")
    (path / "src/a.c").unlink()
    git(path, "mv", "src/deep", "src/deeper")
    (path / "link").unlink()
    plant(path, {"link": {"now": "a directory\n"}})
    (path / "run.sh").chmod(0o644)
    commit(path, "second")
    git(path, "tag", "two")
    return path


def content(path: Path) -> dict[str, object]:
    return {name: node for name, node in tree(path).items() if name != ".git"}


def test_a_committed_repository_is_clean_and_whole(repository: Path) -> None:
    assert git(repository, "status", "--porcelain") == ""
    assert git(repository, "fsck", "--full", "--strict") == ""


def test_status_sees_every_change(repository: Path) -> None:
    (repository / "README").write_text("edited\n")
    (repository / "new").touch()
    (repository / "n1.txt").unlink()
    (repository / "run.sh").chmod(0o755)
    assert git(repository, "status", "--porcelain").splitlines() == [
        " M README",
        " D n1.txt",
        " M run.sh",
        "?? new",
    ]


def test_an_edit_of_equal_size_at_once_is_seen(repository: Path) -> None:
    """git trusts size, times and inode of the index entry; they must not lie."""
    for number in range(8):
        (repository / "README").write_text(f"{number:06}\n")
        assert git(repository, "status", "--porcelain") == " M README\n"
        commit(repository, "edit")
        assert git(repository, "status", "--porcelain") == ""


def test_checkout_to_and_fro_restores_every_file(repository: Path) -> None:
    second = content(repository)
    git(repository, "checkout", "-q", "one")
    first = content(repository)
    assert first["README"] == "first\n" and first["link"] == Link("README")
    assert os.access(repository / "run.sh", os.X_OK)
    git(repository, "checkout", "-q", "two")
    assert content(repository) == second
    assert not os.access(repository / "run.sh", os.X_OK)
    assert git(repository, "status", "--porcelain") == ""


def test_clone_works_inside_and_out(repository: Path, mount: Path, elsewhere: Path) -> None:
    git(mount, "clone", "-q", "--local", repository, mount / "local")
    git(mount, "clone", "-q", f"file://{repository}", mount / "copied")
    git(mount, "clone", "-q", f"file://{repository}", elsewhere / "outside")
    git(mount, "clone", "-q", f"file://{elsewhere}/outside", mount / "back")
    for path in (mount / "local", mount / "copied", elsewhere / "outside", mount / "back"):
        assert content(path) == content(repository)
        git(path, "fsck", "--full")


def test_gc_repack_and_prune_keep_the_repository_whole(repository: Path) -> None:
    git(repository, "gc", "-q", "--prune=now", "--aggressive")
    git(repository, "fsck", "--full", "--strict")
    assert "count: 0\n" in git(repository, "count-objects", "-v")
    assert git(repository, "log", "--format=%s").split() == ["second", "first"]
    git(repository, "repack", "-q", "-a", "-d", "-f")
    git(repository, "checkout", "-q", "one")
    assert content(repository)["README"] == "first\n"


def test_worktrees_are_added_and_removed(repository: Path, mount: Path) -> None:
    git(repository, "worktree", "add", "-q", mount / "tree", "one")
    assert content(mount / "tree")["README"] == "first\n"
    git(mount / "tree", "checkout", "-q", "-b", "branch")
    (mount / "tree/new").write_text("from the work tree\n")
    commit(mount / "tree", "third")
    git(repository, "worktree", "remove", mount / "tree")
    assert not (mount / "tree").exists()
    git(repository, "merge", "-q", "-m", "merged", "branch", "-X", "ours")
    assert content(repository)["new"] == "from the work tree\n"


def test_branches_are_merged_rebased_and_stashed(repository: Path) -> None:
    git(repository, "checkout", "-q", "-b", "topic", "one")
    (repository / "topic").write_text("topic\n")
    commit(repository, "topic")
    git(repository, "rebase", "-q", "main")
    (repository / "README").write_text("unfinished\n")
    git(repository, "stash", "-q")
    assert (repository / "README").read_text() == "second\n"
    git(repository, "stash", "pop", "-q")
    assert (repository / "README").read_text() == "unfinished\n"
    git(repository, "reset", "-q", "--hard", "main")
    git(repository, "clean", "-fdxq")
    assert git(repository, "status", "--porcelain") == ""
    git(repository, "fsck", "--full")


def test_a_repository_outlives_a_remount(own_mount: Workspace) -> None:
    path = own_mount.path / "repository"
    git(own_mount.path, "init", "-q", "-b", "main", path)
    plant(path, FIRST)
    commit(path, "first")
    own_mount.remount()
    entries = git(path, "diff-files", "--name-only")
    assert entries == "", "the index no longer matches what stat says after a remount"
    assert git(path, "status", "--porcelain") == ""
    git(path, "fsck", "--full")
