from collections.abc import Iterator

import pytest

from bench.registry import (
    Place,
    UnknownWorkload,
    Workload,
    all_workloads,
    by_scene,
    matches,
    refuse_unknown,
    with_needs,
)
from bench.scale import FULL, NORMAL, QUICK


def _steps(_place: Place) -> Iterator[None]:
    yield


def _workload(name: str, *needs: str, scene: str = "tree") -> Workload:
    return Workload(name, name, scene, _steps, None, False, needs)


def test_needs_are_followed_to_the_end_and_keep_the_order() -> None:
    untar, copy, grep, remove = (
        _workload("untar"),
        _workload("cp", "untar"),
        _workload("grep", "untar"),
        _workload("rm", "cp"),
    )
    assert with_needs([remove], [untar, copy, grep, remove]) == [untar, copy, remove]


def test_scenes_keep_the_order() -> None:
    members = [_workload("a"), _workload("b", scene="ls"), _workload("c")]
    assert {k: [w.name for w in v] for k, v in by_scene(members).items()} == {
        "tree": ["a", "c"],
        "ls": ["b"],
    }


def test_no_pattern_matches_everything() -> None:
    assert matches("untar", [])
    assert matches("git-add", ["untar", "git*"])
    assert not matches("git-add", ["git"])


def test_a_pattern_that_matches_nothing_is_refused_by_name() -> None:
    refuse_unknown(["git*"], ["git-add"])
    with pytest.raises(UnknownWorkload, match="nonsense"):
        refuse_unknown(["git*", "nonsense"], ["git-add"])


def test_every_workload_can_be_run_as_registered() -> None:
    known = all_workloads()
    for scene, members in by_scene(known).items():
        earlier: set[str] = set()
        for each in members:
            assert set(each.needs) <= earlier, f"{each.name} needs what has not run in {scene}"
            earlier.add(each.name)


def test_cold_rows_come_last_in_their_scene() -> None:
    for members in by_scene(all_workloads()).values():
        cold = [each.cold for each in members]
        assert cold == sorted(cold)


@pytest.mark.parametrize("scale", [QUICK, NORMAL, FULL])
def test_every_title_can_be_written(scale: object) -> None:
    for each in all_workloads():
        assert "{" not in each.title.format(scale=scale)
