"""Trees, settings, tasks, lists, and errors that are told once."""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path

import pytest

from ckptfs import CheckpointEvent, CheckpointService
from ckptfs.errors import (
    CkptfsError,
    NotMounted,
    OverlappingTrees,
    SettingInvalid,
    SourceMissing,
    StateInvalid,
    TagInvalid,
    UsageError,
)
from tests.api.conftest import PLAIN


def test_errors_are_ours_and_told_once(plain: CheckpointService, base: Path) -> None:
    heard: list[CheckpointEvent] = []
    plain.on("error", heard.append)
    (base / "file").write_text("in the way")
    with pytest.raises(CkptfsError):
        plain.export(base / "file/below")
    with pytest.raises(TagInvalid):
        plain.save("x", tag="two\nlines")
    with pytest.raises(StateInvalid):
        plain.save("x", state={"": 1})
    kinds = [event.data["kind"] for event in heard]
    assert kinds[1:] == ["tag-invalid", "state-invalid"] and len(kinds) == 3


def test_trees_that_overlap_are_refused(mounted: CheckpointService, work: Path, base: Path) -> None:
    for overlapping in (work / "inside", base, mounted.workspace.store / "inside"):
        with pytest.raises(OverlappingTrees):
            mounted.export(overlapping)
        with pytest.raises((OverlappingTrees, SourceMissing)):
            mounted.import_from(overlapping)


def test_trees_are_imported_exported_and_backed_up(
    plain: CheckpointService, work: Path, base: Path
) -> None:
    (base / "source").mkdir()
    (base / "source/a").write_text("a")
    plain.import_from(base / "source")
    plain.export(base / "copy")
    plain.backup(base / "backup")
    assert (base / "copy/a").read_text() == "a"
    (base / "other").mkdir()
    with CheckpointService(base / "other", base / "backup", PLAIN) as other:
        assert [item.id for item in other.list()][-2:] == [x.id for x in plain.list()][-2:]


def test_settings_are_read_changed_and_taken_back(plain: CheckpointService, work: Path) -> None:
    assert plain.settings()["retention.keep_all"] == "1h"
    plain.configure("retention.keep_all", "2h")
    assert plain.settings()["retention.keep_all"] == "2h"
    plain.configure("retention.keep_all", None)
    assert plain.settings()["retention.keep_all"] == "1h"
    with pytest.raises(SettingInvalid):
        plain.configure("retention.keep_all", "for ever")


def test_a_task_is_reverted_without_what_came_after_it(
    plain: CheckpointService, work: Path
) -> None:
    plain.start_task("one")
    (work / "a").write_text("a")
    plain.finish_task("did it")
    (work / "b").write_text("b")
    assert [item["name"] for item in plain.tasks()] == ["one"]
    plain.revert_task("one")
    assert os.listdir(work) == ["b"]


def test_a_list_is_limited_by_number_path_and_time(plain: CheckpointService, work: Path) -> None:
    for name in ("a", "b"):
        (work / name).write_text(name)
        plain.save(name)
    assert [item.message for item in plain.list(2)] == ["b", "a"]
    assert [item.message for item in plain.list(path="a")] == ["a"]
    assert plain.list(since="1 minute ago") == plain.list()


def test_the_reference_says_which_arguments_are_given_by_name() -> None:
    reference = (Path(__file__).parents[2] / "docs/API.md").read_text()
    for name, arguments in re.findall(r"^\| `(\w+)\(([^`]+)\)`", reference, re.MULTILINE):
        declared = inspect.signature(getattr(CheckpointService, name)).parameters
        words = [word.partition("=")[0].strip() for word in arguments.split(",")]
        star = next((at for at, word in enumerate(words) if word.startswith("*")), len(words))
        for at, word in enumerate(words):
            if word in declared:
                by_name = declared[word].kind is inspect.Parameter.KEYWORD_ONLY
                assert by_name == (at > star), f"{name}: {word}"


@pytest.mark.parametrize("way", ["plain", "mounted"])
def test_a_call_that_makes_no_sense_is_a_mistake_of_usage(
    way: str, request: pytest.FixtureRequest
) -> None:
    service: CheckpointService = request.getfixturevalue(way)
    wrong = [
        ("no_such_verb", {}, "no verb 'no_such_verb'"),
        ("save", {}, "'message' is missing"),
        ("save", {"message": 7}, "has to be text"),
        ("save", {"message": "x", "colour": "red"}, "no argument 'colour'"),
        ("save", {"message": "x", "max_checkpoints": 0}, "cannot be kept"),
        ("plan", {}, "'checkpoint' is missing"),
    ]
    for verb, arguments, reason in wrong:
        with pytest.raises(UsageError, match=reason) as caught:
            service.call(verb, **arguments)
        assert caught.value.exit_code == 2 and "Nothing was changed" in caught.value.message


def test_a_verb_of_the_daemon_says_that_there_is_none(plain: CheckpointService, work: Path) -> None:
    for verb in ("status", "sync", "umount"):
        with pytest.raises(NotMounted, match=str(work)):
            plain.call(verb)


def test_the_log_of_restores_is_the_same_from_a_daemon_and_from_the_store(
    mounted: CheckpointService, work: Path
) -> None:
    (work / "a").write_text("1")
    (work / "dir").mkdir()
    saved = mounted.save("one")
    (work / "a").write_text("2")
    (work / "dir").rmdir()
    assert mounted.restore(saved.id, ["a", "dir"]).added_paths == ["dir"]
    (work / "more").mkdir()
    assert mounted.restore(saved.id).deleted_paths == ["more"]
    from_daemon = mounted.restores()
    mounted.close()
    assert CheckpointService(work, config=PLAIN).restores() == from_daemon
    assert [item["paths"] for item in from_daemon] == [["a", "dir"], []]
