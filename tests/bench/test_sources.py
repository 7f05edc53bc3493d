import subprocess
import tarfile
from pathlib import Path

import pytest

from bench.programs import GIT, run
from bench.sources import (
    TOPIC,
    branch_stream,
    chunks,
    tree_entries,
    tree_tar,
    write_c_project,
    write_tree,
)


def test_a_tree_has_the_files_asked_for_and_is_the_same_each_time() -> None:
    entries = list(tree_entries(1_000))
    assert sum(not each.link for each in entries) == 1_000
    assert len({each.path for each in entries}) == len(entries)
    assert entries == list(tree_entries(1_000))


def test_most_files_of_a_tree_are_small() -> None:
    sizes = [len(each.content) for each in tree_entries(2_000) if not each.link]
    assert sum(200 <= size <= 20_000 for size in sizes) > 0.9 * len(sizes)


def test_archive_and_directory_hold_the_same(tmp_path: Path) -> None:
    written = write_tree(tmp_path / "tree", 150)
    with tarfile.open(tree_tar(tmp_path / "cache", 150)) as archive:
        members = archive.getmembers()
        for each in (each for each in members if each.isfile()):
            content = archive.extractfile(each)
            assert content is not None
            assert (tmp_path / each.name).read_bytes() == content.read()
    assert sum(each.size for each in members) == written


@pytest.mark.parametrize("block", [4096, 65_536])
def test_no_two_blocks_of_a_stream_are_alike(block: int) -> None:
    pieces = chunks(7, 24)
    blocks = [bytes(p[at : at + block]) for p in pieces for at in range(0, len(p), block)]
    assert len(set(blocks)) == len(blocks)


def test_a_branch_is_rebased_without_a_conflict(tmp_path: Path) -> None:
    git = (*GIT, "-C", tmp_path)
    run(*git, "init", "-q")
    run(*git, "fast-import", "--quiet", stdin=b"".join(branch_stream(120, 6)))
    run(*git, "checkout", "-q", TOPIC)
    assert _count(tmp_path, f"main..{TOPIC}") == 6
    assert _count(tmp_path, f"{TOPIC}..main") == 10
    run(*git, "rebase", "-q", "main")
    assert _count(tmp_path, f"main..{TOPIC}") == 6
    assert _count(tmp_path, f"{TOPIC}..main") == 0


def test_every_commit_of_the_branch_touches_five_files() -> None:
    *_, last = branch_stream(120, 6)
    assert last.count(b"M 100644 inline ") == 5


def _count(repository: Path, revisions: str) -> int:
    command = ["git", "-C", repository, "rev-list", "--count", revisions]
    return int(subprocess.run(command, capture_output=True, check=True).stdout)


def test_a_build_with_another_round_shares_no_object_file(tmp_path: Path) -> None:
    root = tmp_path / "project"
    write_c_project(root, 4)
    built = []
    for number in (1, 2):
        run("make", "-s", "-C", root, f"ROUND={number}")
        built.append({each.name: each.read_bytes() for each in root.glob("part*.o")})
        run("make", "-s", "-C", root, "clean")
    assert len(built[0]) == 3
    assert not set(built[0].values()) & set(built[1].values())
    assert sorted(each.suffix for each in root.iterdir()) == ["", ".c", ".c", ".c", ".c"]
