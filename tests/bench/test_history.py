from pathlib import Path

import pytest

from bench.figures import figures
from bench.history import Times, edit, spaced
from bench.rivals import ShadowGit


def test_the_figures_are_known_by_name() -> None:
    wanted = {"history", "save-flat", "save-command", "store-size", "auto", "rm-restore"}
    assert wanted <= figures.keys()


def test_a_ratio_is_the_median_of_the_repetitions_own() -> None:
    times = Times({"mine": [1.0, 3.0, 2.0], "theirs": [10.0, 10.0, 40.0]})
    found = times.ratio("n", "t", "mine", "theirs", 0.2)
    assert found.value == pytest.approx(0.1)
    assert found.note == "2.00 s against 10.00 s"


def test_commits_are_taken_evenly() -> None:
    every = [str(n) for n in range(10)]
    assert spaced(every, 4) == ["0", "3", "6", "9"]
    assert spaced(every, 20) == every


def test_the_same_files_change_wherever_the_tree_stands(tmp_path: Path) -> None:
    names = [f"f{n}" for n in range(30)]
    for root in ("a", "b"):
        (tmp_path / root).mkdir()
        for name in names:
            (tmp_path / root / name).touch()
        edit(tmp_path / root, names, 1)
    changed = [{n for n in names if (tmp_path / r / n).stat().st_size} for r in ("a", "b")]
    assert changed[0] == changed[1]
    assert len(changed[0]) == 10


def test_a_shadow_repository_goes_back(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_text("one")
    git = ShadowGit(tmp_path / "shadow", tree)
    git.commit()
    (tree / "file").write_text("two")
    (tree / "new").touch()
    git.reset()
    assert (tree / "file").read_text() == "one"
    assert not (tree / "new").exists()
    assert not (tree / ".git").exists()
    assert git.packed_bytes() > 0
