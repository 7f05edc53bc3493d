"""Text diffs as they look, and as `git apply` and `patch` take them."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ckptfs import sync
from ckptfs.fs import Filesystem
from ckptfs.history.diff.patch import Found, Pair, file_pairs
from ckptfs.history.diff.tree import compare_views
from ckptfs.store import View
from ckptfs.textdiff import PatchFile, is_shown, quoted, render, stat_of
from tests.history.edits import Edits, edits
from tests.history.test_diff_machine import STEPS, Walker, plant

Apply = Callable[[Path, Path], None]


def git_apply(tree: Path, patch: Path) -> None:
    # --unsafe-paths and an empty GIT_DIR: the tree is no repository, nor below one.
    command = ["git", "apply", "--whitespace=nowarn", "--unsafe-paths", str(patch)]
    _run(command, tree, GIT_CEILING_DIRECTORIES=str(tree.parent))


def gnu_patch(tree: Path, patch: Path) -> None:
    _run(["patch", "-p1", "--no-backup-if-mismatch", "-f", "-i", str(patch)], tree)


def _run(command: list[str], cwd: Path, **env: str) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, env={**os.environ, **env})
    assert done.returncode == 0, done.stdout + done.stderr


def side_of(fs: Filesystem, view: View, found: Found | None) -> PatchFile | None:
    if found is None:
        return None
    inode = found.inode
    data = inode.target
    if inode.is_file:
        data = bytes(fs.read(view, inode.ino, 0, inode.size))
    return PatchFile(found.path, inode.mode, inode.size, data if is_shown(inode.size) else None)


def representable(pair: Pair) -> bool:
    return all(found is None or found.inode.is_file or found.inode.is_link for found in pair[:2])


def patch_text(fs: Filesystem, a: View, b: View) -> bytes:
    pairs = file_pairs(fs, a, b, compare_views(fs, a, b))
    return b"".join(
        line
        for pair in pairs
        if representable(pair)
        for line in render(side_of(fs, a, pair.old), side_of(fs, b, pair.new), same=pair.same)
    )


def files(tree: Path) -> dict[bytes, tuple[str, bytes, bool]]:
    """What a patch can say about a tree: files, links, and who may be executed."""
    found: dict[bytes, tuple[str, bytes, bool]] = {}
    for above, dirs, names in os.walk(os.fsencode(tree)):
        for name in names + dirs:
            path = os.path.join(above, name)
            mode = os.lstat(path).st_mode
            key = os.path.relpath(path, os.fsencode(tree))
            if stat.S_ISLNK(mode):
                found[key] = ("link", os.readlink(path), False)
            elif stat.S_ISREG(mode):
                found[key] = ("file", Path(os.fsdecode(path)).read_bytes(), bool(mode & 0o100))
    return found


def drop_unspeakable(tree: Path) -> None:
    """A patch cannot say that an empty directory or a FIFO goes, so it may stand in the way."""
    for above, dirs, names in os.walk(tree, topdown=False):
        for name in names:
            kind = stat.S_IFMT(os.lstat(f"{above}/{name}").st_mode)
            if kind not in (stat.S_IFREG, stat.S_IFLNK):
                os.unlink(f"{above}/{name}")
        for name in dirs:
            path = f"{above}/{name}"
            if not os.path.islink(path) and not os.listdir(path):
                os.rmdir(path)


def assert_applies(work: Edits, a: View, b: View, base: Path, apply: Apply) -> bytes:
    """Export both trees, apply the diff to the older one, and compare."""
    text = patch_text(work.fs, a, b)
    older, newer = base / "older", base / "newer"
    for tree in (older, newer):
        shutil.rmtree(tree, ignore_errors=True)
    sync.export_tree(work.fs, a, older)
    sync.export_tree(work.fs, b, newer)
    (base / "diff").write_bytes(text)
    drop_unspeakable(older)
    if text:
        apply(older, base / "diff")
    assert files(older) == files(newer)
    return text


@pytest.fixture(params=[git_apply, gnu_patch])
def apply(request: pytest.FixtureRequest) -> Apply:
    chosen: Apply = request.param
    return chosen


def test_git_applies_a_patch_with_every_kind_of_change(tmp_path: Path, apply: Apply) -> None:
    with edits(tmp_path / "store") as work:
        work.mkdir("dir")
        work.mkdir("dir/sub")
        for number in range(3):
            work.put(f"dir/sub/{number}", b"%d\n" % number * 20)
        work.put("text", b"one\ntwo\nthree\n")
        work.put("no newline", b"one\ntwo")
        work.put("to delete", b"bye\n")
        work.put("empty goes", b"")
        work.put("script", b"#!/bin/sh\n")
        work.put("turns into a link", b"file\n")
        work.symlink("link", b"text")
        work.put("dos", b"a\r\nb\r\n")
        a = work.save()
        work.put("text", b"one\n2\nthree\nfour\n")
        work.put("no newline", b"one\ntwo\nthree")
        work.remove("to delete")
        work.remove("empty goes")
        work.put("empty comes", b"")
        work.change("script", mode=0o755)
        work.remove("turns into a link")
        work.symlink("turns into a link", b"elsewhere")
        work.remove("link")
        work.symlink("link", b"script")
        work.put("dos", b"a\r\nB\r\n")
        work.move("dir", "moved")
        work.write("moved/sub/1", 0, b"9")
        work.put('name with "quotes" and \xc3\xa4 \xff\t'.encode("latin-1"), b"odd\n")
        work.put("new executable", b"#!\n", mode=0o755)
        text = assert_applies(work, a, work.fs.head, tmp_path, apply)
        assert b"rename from dir/sub/0\nrename to moved/sub/0\n" in text
        assert_applies(work, work.fs.head, a, tmp_path, apply)


def test_git_applies_a_patch_with_a_directory_in_place_of_a_file(tmp_path: Path) -> None:
    """For git only: patch removes files at its end, so a directory cannot take a file's place."""
    with edits(tmp_path / "store") as work:
        work.put("a", b"1\n")
        work.mkdir("b")
        work.put("b/x", b"2\n")
        a = work.save()
        work.remove("a")
        work.mkdir("a")
        work.put("a/y", b"3\n")
        work.remove("b")
        work.put("b", b"4\n")
        assert_applies(work, a, work.fs.head, tmp_path, git_apply)


def test_a_path_that_was_renamed_and_made_again_is_compared_with_itself(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.mkdir("src")
        work.put("src/x", b"old\n")
        work.put("src/y", b"stays\n")
        a = work.save()
        work.move("src", "old")
        work.mkdir("src")
        work.put("src/x", b"new\n")
        text = assert_applies(work, a, work.fs.head, tmp_path, git_apply)
        assert b"rename from src/y\nrename to old/y\n" in text
        assert text.count(b"diff --git a/src/x b/src/x") == 1


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(steps=st.lists(STEPS, min_size=3, max_size=20))
def test_git_applies_patches_of_random_edits(steps: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as base, edits(Path(base) / "store") as work:
        plant(work)
        walker = Walker(work)
        walker.save()
        for step in steps:
            walker.do(step)
        a, b = walker.views[0], work.fs.head
        # A write behind the end of a file leaves zeros, which make it binary.
        assume(b"Binary files" not in patch_text(work.fs, a, b))
        assert_applies(work, a, b, Path(base), git_apply)


# -- how it looks ----------------------------------------------------------------------------------


def text_of(old: bytes | None, new: bytes | None, mode: int = 0o100644) -> bytes:
    sides = [None if d is None else PatchFile(b"f", mode, len(d), d) for d in (old, new)]
    return b"".join(render(*sides))


def test_a_hunk_has_its_context_and_line_numbers() -> None:
    assert text_of(b"1\n2\n3\n4\n5\n6\n7\n8\n9\n", b"1\n2\n3\n4\n5\n6\n7\n8\nnine") == (
        b"diff --git a/f b/f\nindex 0719398..1d242bf 100644\n--- a/f\n+++ b/f\n@@ -6,4 +6,4 @@\n"
        b" 6\n 7\n 8\n-9\n+nine\n\\ No newline at end of file\n"
    )


def test_new_and_deleted_files_have_gits_headers() -> None:
    assert text_of(None, b"x\n") == (
        b"diff --git a/f b/f\nnew file mode 100644\nindex 0000000..587be6b\n"
        b"--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+x\n"
    )
    assert text_of(b"x\n", None) == (
        b"diff --git a/f b/f\ndeleted file mode 100644\nindex 587be6b..0000000\n"
        b"--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    )
    assert text_of(None, b"") == (
        b"diff --git a/f b/f\nnew file mode 100644\nindex 0000000..e69de29\n"
    )


def test_binary_files_are_said_to_be_binary_with_their_sizes() -> None:
    assert text_of(b"\0" * 10, b"x" * 5) == (
        b"diff --git a/f b/f\nindex cb43b5c..9a6aa23 100644\n"
        b"Binary files a/f (10 bytes) and b/f (5 bytes) differ\n"
    )
    assert b"Binary files /dev/null and b/f (2 bytes) differ" in text_of(None, b"\0\1")
    assert stat_of(PatchFile(b"f", 0o100644, 1, b"\0"), None).reason == "binary"


def test_a_file_that_is_too_large_is_shown_by_its_sizes() -> None:
    unread = PatchFile(b"f", 0o100644, 100 << 20, None)
    assert b"Files a/f (104857600 bytes) and b/f (3 bytes) differ" in b"".join(
        render(unread, PatchFile(b"f", 0o100644, 3, b"abc"))
    )
    assert b"too large" in text_of(b"x" * 70_000 + b"\n", b"y\n")
    assert not is_shown(100 << 20)


@pytest.mark.parametrize("old, new", [(None, "big"), ("big", None), ("big", "small")])
def test_git_refuses_a_patch_that_is_not_complete(
    tmp_path: Path, old: str | None, new: str | None
) -> None:
    sides = {
        "big": PatchFile(b"f", 0o100644, 2 << 20, None),
        "small": PatchFile(b"g", 0o100644, 2, b"a\n"),
    }
    (tmp_path / "diff").write_bytes(
        b"".join(render(sides[old] if old else None, sides[new] if new else None))
        + text_of(None, b"other\n").replace(b"/f", b"/other")
    )
    (tmp_path / "f").write_bytes(b"x\n")
    with pytest.raises(AssertionError, match="error"):
        git_apply(tmp_path, tmp_path / "diff")
    assert not (tmp_path / "other").exists()


def test_a_large_file_that_was_only_renamed_is_a_rename() -> None:
    old = PatchFile(b"f", 0o100644, 100 << 20, None)
    text = b"".join(render(old, old._replace(path=b"g"), same=True))
    assert text == (b"diff --git a/f b/g\nsimilarity index 100%\nrename from f\nrename to g\n")


@pytest.mark.parametrize(
    "name, shown",
    [
        (b"plain name", b"plain name"),
        (b"tab\t", b'"tab\\t"'),
        (b'q"', b'"q\\""'),
        (b"back\\slash", b'"back\\\\slash"'),
        ("ä".encode(), b'"\\303\\244"'),
        (b"\x01\xff", b'"\\001\\377"'),
    ],
)
def test_names_are_quoted_as_git_does(name: bytes, shown: bytes) -> None:
    assert quoted(name) == shown
