from collections.abc import Iterator

import pytest

from bench.fuse_rivals import SLOW_WITHOUT
from bench.kit import DEBIAN
from bench.material import MAKERS
from bench.registry import (
    REAL,
    REAL_MARK,
    UnknownWorkload,
    WorkDirectory,
    Workload,
    all_workloads,
    by_scene,
    matches,
    refuse_unknown,
    with_needs,
    without_missing,
)
from bench.scale import FULL, NORMAL, QUICK, SMALL, Scale
from bench.workloads import HEAVY_SCENES


def _steps(_place: WorkDirectory) -> Iterator[None]:
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


def test_what_lacks_something_is_left_out_with_what_needs_it() -> None:
    clone = Workload("clone", "clone", "git", _steps, None, False, (), REAL, ("repository",))
    gc = _workload("gc", "clone", scene="git")
    other = _workload("other", scene="git")
    left, skipped = without_missing([clone, gc, other], {"repository": "no network"})
    assert left == [other]
    assert skipped == {"clone": "no network", "gc": "it needs clone"}


def test_everything_wanted_is_a_program_or_material() -> None:
    known = MAKERS.keys() | DEBIAN.keys()
    for each in all_workloads():
        assert set(each.wants) <= known, each.name


def test_scenes_that_take_long_are_scenes() -> None:
    assert HEAVY_SCENES - by_scene(all_workloads()).keys() == set()


def test_rows_that_make_and_destroy_much_are_there_with_the_mark_of_their_neighbours() -> None:
    known = {each.name: each for each in all_workloads()}
    names = ("untar", "npm-ci", "configure-make", "git-rebase")
    assert [known[name].mark for name in names] == [REAL_MARK] * len(names)
    assert known["npm-ci"].needs == ("npm-install",)


def test_a_quick_run_does_less_of_what_takes_long() -> None:
    titles = {each.name: each.title for each in all_workloads()}
    assert titles["configure-make"].format(scale=NORMAL) == "configure and make -j2 of libsodium"
    assert titles["configure-make"].format(scale=QUICK) == "configure of libsodium"
    assert titles["git-rebase"].format(scale=NORMAL) == "git rebase of 50 commits"
    assert titles["git-rebase"].format(scale=QUICK) == "git rebase of 15 commits"


def test_scenes_that_the_slow_leave_out_are_scenes() -> None:
    assert SLOW_WITHOUT - by_scene(all_workloads()).keys() == set()


@pytest.mark.parametrize("scale", [SMALL, QUICK, NORMAL, FULL])
def test_rounds_of_a_build_have_three_thirds(scale: Scale) -> None:
    assert scale.build_rounds % 3 == 0


def test_a_real_row_has_a_mark_in_any_case() -> None:
    assert all(each.mark for each in all_workloads() if each.kind == REAL)


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


@pytest.mark.parametrize("scale", [SMALL, QUICK, NORMAL, FULL])
def test_every_title_can_be_written(scale: object) -> None:
    for each in all_workloads():
        assert "{" not in each.title.format(scale=scale)
