import os
from pathlib import Path

import pytest

from bench import everyday, growth, history, room  # noqa: F401  they register figures
from bench.figures import figures
from bench.history import edit
from bench.keepers import KEEPERS, SLOW_KEEPERS, Differ, Keeper, LinkedCopies, ShadowGit
from bench.kit import Kit, NotToBeHad
from bench.timing import Times


def test_the_figures_are_known_by_name() -> None:
    wanted = {"history", "backups", "browse", "growth-files", "growth-checkpoints", "store-size"}
    assert wanted | {"save-command", "auto", "rm-restore", "moments-growth"} <= figures.keys()


def test_a_ratio_is_the_median_of_the_repetitions_own() -> None:
    times = Times({"mine": [1.0, 3.0, 2.0], "theirs": [10.0, 10.0, 40.0]})
    found = times.ratio("n", "t", "mine", "theirs", 0.2)
    assert found.value == pytest.approx(0.1)
    assert found.note == "2.00 s against 10.00 s"


def test_a_comparison_leaves_out_who_was_not_measured() -> None:
    times = Times({"save ckptfs": [1.0], "save git": [5.0], "diff git": [2.0]})
    found = times.comparison("n", "group", "title", "save", ["ckptfs", "btrfs", "git"])
    assert found.columns == {"ckptfs": [1.0], "git": [5.0]}


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


@pytest.mark.parametrize("kind", [ShadowGit, LinkedCopies])
def test_a_keeper_goes_back(kind: type[ShadowGit] | type[LinkedCopies], tmp_path: Path) -> None:
    keeper: Keeper = kind(tmp_path)
    (keeper.tree / "file").write_text("one")
    keeper.save()
    keeper.save()
    (keeper.tree / "file").write_text("two, and longer")
    (keeper.tree / "new").touch()
    assert isinstance(keeper, Differ)
    keeper.diff()
    keeper.restore()
    assert sorted(each.name for each in keeper.tree.iterdir()) == ["file"]
    assert (keeper.tree / "file").read_text() == "one"
    assert keeper.size() > 0


def test_copies_share_what_has_not_changed(tmp_path: Path) -> None:
    keeper = LinkedCopies(tmp_path)
    (keeper.tree / "file").write_text("the same")
    keeper.save()
    keeper.save()
    first, second = sorted((tmp_path / "copies").glob("*/file"))
    assert os.path.samefile(first, second)


@pytest.mark.parametrize("name", sorted(KEEPERS))
def test_a_keeper_whose_program_is_missing_says_so(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda *_args, **_options: None)
    kit = Kit(tmp_path / "cache", False, lambda _message: None)
    with pytest.raises(NotToBeHad, match="not installed"), KEEPERS[name](kit, tmp_path / name):
        pass


def test_the_slow_are_among_the_known() -> None:
    assert SLOW_KEEPERS - KEEPERS.keys() == set()
