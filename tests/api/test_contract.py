"""The contract: the same cases through every way in, on one workspace each.

The ways differ in how they ask. What they answer, and what becomes of the workspace, may not.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs import CheckpointConfig, CheckpointService
from ckptfs.errors import (
    CheckpointPinned,
    CheckpointUnknown,
    NothingToUndo,
    PathUnknown,
    StateInvalid,
    TagTaken,
    TreeMoved,
)
from tests.api.ways import ApiWay, CliWay, Way
from tests.support.mounting import ckptfs, scratch, succeed

WAYS = ["in-process", "socket", "cli", pytest.param("cli-plain", marks=pytest.mark.deep)]


@pytest.fixture(scope="module", params=WAYS)
def open_way(request: pytest.FixtureRequest) -> Iterator[Way]:
    """A way to one workspace for all cases; mounting once for each would be most of the time."""
    with scratch() as base, pytest.MonkeyPatch.context() as patched:
        (base / "run").mkdir(mode=0o700)
        patched.setenv("XDG_DATA_HOME", str(base / "data"))
        patched.setenv("XDG_CONFIG_HOME", str(base / "config"))
        patched.setenv("XDG_RUNTIME_DIR", str(base / "run"))
        (base / "work").mkdir()
        is_plain = request.param in ("in-process", "cli-plain")
        config = CheckpointConfig(mount=not is_plain, max_checkpoints=None, auto_checkpoint=False)
        with CheckpointService(base / "work", config=config) as service:
            assert service.mounted != is_plain
            yield CliWay(base / "work") if "cli" in request.param else ApiWay(service)
            assert service.check() == []
        if not is_plain:
            succeed(ckptfs("umount", base / "work"))


@pytest.fixture
def way(open_way: Way) -> Way:
    """The way with an empty workspace that is saved as it is."""
    for entry in open_way.work.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    open_way.save("empty", allow_empty=True)
    return open_way


def text_of(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def test_a_checkpoint_tells_what_it_was_given(way: Way) -> None:
    (way.work / "a").write_text("one\n")
    saved = way.save("first | ünï", metadata={"turn": "7"})
    assert saved["created"] and saved["message"] == "first | ünï"
    assert saved["metadata"] == {"turn": "7"}
    assert way.get(saved["id"]) == saved
    assert way.list()[0] == saved
    assert int(saved["id"]) == int(way.list()[1]["id"]) + 1


def test_nothing_changed_is_told_and_not_saved_again(way: Way) -> None:
    (way.work / "a").write_text("one\n")
    first = way.save("first")
    again = way.save("again")
    assert not again["created"] and again["id"] == first["id"]
    assert way.save("again", allow_empty=True)["id"] != first["id"]


def test_a_difference_names_what_was_added_modified_deleted_and_renamed(way: Way) -> None:
    for name in ("kept", "changed", "gone", "moved"):
        (way.work / name).write_text(f"{name} as it was\n" * 20)
    older = way.save("older")
    (way.work / "changed").write_text("other\n")
    (way.work / "gone").unlink()
    (way.work / "sub").mkdir()
    (way.work / "moved").rename(way.work / "sub/moved")
    (way.work / "new").write_text("new\n")
    expected = {
        "added": ["new"],
        "modified": ["changed"],
        "deleted": ["gone"],
        "renamed": [("moved", "sub/moved")],
    }
    assert way.diff(older["id"]) == {"from": older["id"], "to": None, **expected}
    newer = way.save("newer")
    found = way.diff(older["id"], newer["id"])
    assert found == {"from": older["id"], "to": newer["id"], **expected}
    assert "+other\n" in way.patch(older["id"], newer["id"])
    assert way.diff()["modified"] == []


def test_undo_takes_a_restore_back_and_redo_the_undo(way: Way) -> None:
    file = way.work / "a"
    file.write_text("one\n")
    file.chmod(0o640)
    one = way.save("one")
    file.write_text("two\n")
    (way.work / "b").write_text("unsaved\n")
    done = way.restore(one["id"])
    assert (done["checkpoint"], done["modified"], done["deleted"]) == (one["id"], ["a"], ["b"])
    assert (text_of(file), text_of(way.work / "b")) == ("one\n", None)
    assert file.stat().st_mode & 0o777 == 0o640
    assert way.step("undo")["checkpoint"] == done["before"]
    assert (text_of(file), text_of(way.work / "b")) == ("two\n", "unsaved\n")
    way.step("redo")
    assert (text_of(file), text_of(way.work / "b")) == ("one\n", None)


def test_a_restore_of_some_paths_leaves_the_others(way: Way) -> None:
    for name in ("a", "b"):
        (way.work / name).write_text("one\n")
    one = way.save("one")
    for name in ("a", "b"):
        (way.work / name).write_text("two\n")
    assert way.restore(one["id"], "a")["modified"] == ["a"]
    assert (text_of(way.work / "a"), text_of(way.work / "b")) == ("one\n", "two\n")
    with pytest.raises(PathUnknown):
        way.restore(one["id"], "nowhere")


def test_a_dry_run_names_everything_and_changes_nothing(way: Way) -> None:
    (way.work / "a").write_text("one\n")
    one = way.save("one")
    (way.work / "a").unlink()
    (way.work / "b").write_text("b\n")
    plan = way.restore(one["id"], dry_run=True)
    assert (plan["added"], plan["modified"], plan["deleted"]) == (["a"], [], ["b"])
    assert sorted(os.listdir(way.work)) == ["b"]
    (way.work / "c").write_text("since\n")
    with pytest.raises(TreeMoved):
        way.restore(one["id"], token=plan["token"])
    assert sorted(os.listdir(way.work)) == ["b", "c"]
    plan = way.restore(one["id"], dry_run=True)
    way.restore(one["id"], token=plan["token"])
    assert sorted(os.listdir(way.work)) == ["a"]


def test_rewind_goes_back_one_checkpoint(way: Way) -> None:
    (way.work / "a").write_text("one\n")
    one = way.save("one")
    (way.work / "a").write_text("two\n")
    assert way.step("rewind")["checkpoint"] == one["id"]
    assert text_of(way.work / "a") == "one\n"


def test_state_comes_back_as_it_was(way: Way) -> None:
    conversation = [{"role": "user", "content": "h\u00ebllo \U0001f600"}]
    one = way.save("one", state={"conversation": conversation, "image": bytes(range(256))})
    assert one["created"] and one["state"] == ["conversation", "image"]
    conversation.append({"role": "assistant", "content": "x" * 200_000})
    two = way.save("two", state={"conversation": conversation})
    assert two["state"] == ["conversation"]
    assert way.state(one["id"]) == {
        "conversation": conversation[:1],
        "image": bytes(range(256)),
    }
    assert way.state(two["id"]) == {"conversation": conversation}
    assert way.get(one["id"])["state"] == ["conversation", "image"]


def test_state_only_leaves_the_files_alone(way: Way) -> None:
    (way.work / "a").write_text("one\n")
    one = way.save("one", state={"turn": 1})
    (way.work / "a").write_text("two\n")
    before = way.list()
    done = way.restore(one["id"], files=False)
    assert (done["checkpoint"], done["before"], done["modified"]) == (one["id"], None, [])
    assert text_of(way.work / "a") == "two\n"
    assert way.list() == before


def test_state_is_no_file(way: Way) -> None:
    one = way.save("one", state={"turn": 1})
    (way.work / "a").write_text("a\n")
    two = way.save("two", state={"turn": 2})
    assert way.diff(one["id"], two["id"])["added"] == ["a"]
    way.restore(one["id"])
    assert os.listdir(way.work) == []
    assert not way.save("nothing new")["created"]


def test_a_tag_names_one_checkpoint_and_a_pin_keeps_it(way: Way) -> None:
    one = way.save("one", tag="Release 1", allow_empty=True)
    assert way.get("Release 1")["id"] == one["id"]
    two = way.save("two", allow_empty=True)
    with pytest.raises(TagTaken):
        way.tag(two["id"], "Release 1")
    way.tag(one["id"], "old release")
    assert way.get(one["id"])["tag"] == "old release"
    way.pin(two["id"], pinned=True)
    assert way.get(two["id"])["pinned"]
    with pytest.raises(CheckpointPinned):
        way.delete(one["id"], two["id"])
    way.pin(two["id"], pinned=False)
    way.delete(one["id"], two["id"])
    assert not {one["id"], two["id"]} & {item["id"] for item in way.list()}


def test_a_log_lists_the_checkpoints_that_changed_a_path(way: Way) -> None:
    (way.work / "story").write_text("one\n")
    one = way.save("one")
    (way.work / "story").write_text("two\n")
    two = way.save("two")
    (way.work / "story").unlink()
    found = [(item["checkpoint"], item["kinds"]) for item in way.log("story")][:3]
    assert found == [(None, ["deleted"]), (two["id"], ["modified"]), (one["id"], ["added"])]


def test_names_of_any_bytes_come_through(way: Way) -> None:
    name = os.fsdecode(b"caf\xe9")
    (way.work / name).write_text("one\n")
    one = way.save("one")
    (way.work / name).unlink()
    way.restore(one["id"])
    assert text_of(way.work / name) == "one\n"


@pytest.mark.parametrize(
    "wrong, words",
    [
        (CheckpointUnknown, ("get", "9999")),
        (CheckpointUnknown, ("restore", "no such tag")),
        (CheckpointUnknown, ("delete", "9999")),
        (CheckpointUnknown, ("state", "9999")),
        (PathUnknown, ("log", "never was here")),
    ],
)
def test_what_cannot_be_is_the_same_error(
    way: Way, wrong: type[Exception], words: tuple[str, str]
) -> None:
    verb, what = words
    with pytest.raises(wrong):
        getattr(way, verb)(what)


def test_redo_without_an_undo_is_refused(way: Way) -> None:
    (way.work / "a").write_text("one\n")
    one = way.save("one")
    (way.work / "a").write_text("two\n")
    way.restore(one["id"])
    with pytest.raises(NothingToUndo):
        way.step("redo")


def test_a_documents_name_is_looked_at(way: Way) -> None:
    with pytest.raises(StateInvalid):
        way.save("one", state={"two\nlines": 1})
    assert way.list()[0]["message"] == "empty"
