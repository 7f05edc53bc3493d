import tarfile
from pathlib import Path

import pytest

from bench.sources import chunks, tree_entries, tree_tar, write_tree


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
