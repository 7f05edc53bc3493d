"""What the options of `python -m bench` make of a run, without running it."""

from pathlib import Path

import pytest

from bench import product, session
from bench.__main__ import main
from bench.contestants import CkptfsMount
from bench.outcome import Outcome


@pytest.fixture
def plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[session.Plan]:
    """The plans that would have been carried out."""
    asked: list[session.Plan] = []

    def run_plan(plan: session.Plan) -> tuple[Outcome, bool]:
        asked.append(plan)
        names = ("ext4", "ckptfs") if plan.base is None else (plan.base.name, "ckptfs")
        return Outcome(names, tuple(plan.chosen)), True

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("bench.__main__.run_plan", run_plan)
    monkeypatch.setattr("bench.__main__.compile_sources", lambda: None)
    return asked


def test_against_off_the_baseline_is_this_checkout_without_checkpoints(
    plans: list[session.Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--against-off", "--quick", "--only", "git-rebase", "growth-files", "--repeat", "4"]
    assert main(options) == 0
    (plan,) = plans
    assert plan.base is not None
    assert plan.base.checkout == product.HERE.checkout
    assert plan.base.mount_options == ("--auto", "off")
    assert [each.name for each in plan.chosen] == ["git-rebase"]
    assert (plan.figures, plan.rivals, plan.verbs) == ({}, (), False)
    assert (plan.scale.name, plan.scale.heavy_repeats) == ("quick", 4)
    assert "This checkout beside ckptfs --auto off" in capsys.readouterr().out
    assert len(list((tmp_path / "ckptfs-bench" / "comparisons").iterdir())) == 1


def test_without_it_the_baseline_is_the_disk(plans: list[session.Plan], tmp_path: Path) -> None:
    assert main(["--quick", "--only", "untar"]) == 0
    assert plans[0].base is None
    assert len(list((tmp_path / "ckptfs-bench" / "results").iterdir())) == 1


def test_there_is_one_baseline(
    plans: list[session.Plan], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["--against-off", "--base", "HEAD"])
    assert refused.value.code == 2
    assert "not allowed with argument" in capsys.readouterr().err
    assert plans == []


def test_a_mount_has_the_options_of_its_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(product, "mount", lambda *words, by: calls.append((*words[2:], by.name)))
    monkeypatch.setattr(product, "status", lambda _root, by: {"pid": 1})
    for by in (product.HERE, product.AUTO_OFF):
        CkptfsMount(tmp_path / by.name, by).start()
    assert calls == [
        ("--no-write-back", "ckptfs"),
        ("--no-write-back", "--auto", "off", "ckptfs --auto off"),
    ]


def test_another_revision_is_not_asked_for_its_checkpoints(tmp_path: Path) -> None:
    other = product.Installation("old", tmp_path / "elsewhere", Path("python"))
    assert CkptfsMount(tmp_path, other).newest_checkpoint() == 0
