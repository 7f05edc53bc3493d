"""The contract: the same cases through every door, on one workspace each.

The doors differ in how they ask. What they are told, and what becomes of the workspace, may not.
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
from tests.api.doors import ApiDoor, CliDoor, Door
from tests.support.mounting import ckptfs, scratch, succeed

DOORS = ["in-process", "socket", "cli", pytest.param("cli-plain", marks=pytest.mark.deep)]


@pytest.fixture(scope="module", params=DOORS)
def open_door(request: pytest.FixtureRequest) -> Iterator[Door]:
    """A door to one workspace for all cases; mounting once for each would be most of the time."""
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
            yield CliDoor(base / "work") if "cli" in request.param else ApiDoor(service)
            assert service.check() == []
        if not is_plain:
            succeed(ckptfs("umount", base / "work"))


@pytest.fixture
def door(open_door: Door) -> Door:
    """The door with an empty workspace that is saved as it is."""
    for entry in open_door.work.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    open_door.save("empty", allow_empty=True)
    return open_door


def text_of(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def test_a_checkpoint_tells_what_it_was_given(door: Door) -> None:
    (door.work / "a").write_text("one\n")
    saved = door.save("first | ünï", metadata={"turn": "7"})
    assert saved["created"] and saved["message"] == "first | ünï"
    assert saved["metadata"] == {"turn": "7"}
    assert door.get(saved["id"]) == saved
    assert door.list()[0] == saved
    assert int(saved["id"]) == int(door.list()[1]["id"]) + 1


def test_nothing_changed_is_told_and_not_saved_again(door: Door) -> None:
    (door.work / "a").write_text("one\n")
    first = door.save("first")
    again = door.save("again")
    assert not again["created"] and again["id"] == first["id"]
    assert door.save("again", allow_empty=True)["id"] != first["id"]


def test_differences(door: Door) -> None:
    for name in ("kept", "changed", "gone", "moved"):
        (door.work / name).write_text(f"{name} as it was\n" * 20)
    older = door.save("older")
    (door.work / "changed").write_text("other\n")
    (door.work / "gone").unlink()
    (door.work / "sub").mkdir()
    (door.work / "moved").rename(door.work / "sub/moved")
    (door.work / "new").write_text("new\n")
    expected = {
        "added": ["new"],
        "modified": ["changed"],
        "deleted": ["gone"],
        "renamed": [("moved", "sub/moved")],
    }
    assert door.diff(older["id"]) == {"from": older["id"], "to": None, **expected}
    newer = door.save("newer")
    found = door.diff(older["id"], newer["id"])
    assert found == {"from": older["id"], "to": newer["id"], **expected}
    assert "+other\n" in door.patch(older["id"], newer["id"])
    assert door.diff()["modified"] == []


def test_restore_undo_redo(door: Door) -> None:
    file = door.work / "a"
    file.write_text("one\n")
    file.chmod(0o640)
    one = door.save("one")
    file.write_text("two\n")
    (door.work / "b").write_text("unsaved\n")
    done = door.restore(one["id"])
    assert (done["checkpoint"], done["modified"], done["deleted"]) == (one["id"], ["a"], ["b"])
    assert (text_of(file), text_of(door.work / "b")) == ("one\n", None)
    assert file.stat().st_mode & 0o777 == 0o640
    assert door.step("undo")["checkpoint"] == done["before"]
    assert (text_of(file), text_of(door.work / "b")) == ("two\n", "unsaved\n")
    door.step("redo")
    assert (text_of(file), text_of(door.work / "b")) == ("one\n", None)


def test_restore_of_some_paths(door: Door) -> None:
    for name in ("a", "b"):
        (door.work / name).write_text("one\n")
    one = door.save("one")
    for name in ("a", "b"):
        (door.work / name).write_text("two\n")
    assert door.restore(one["id"], "a")["modified"] == ["a"]
    assert (text_of(door.work / "a"), text_of(door.work / "b")) == ("one\n", "two\n")
    with pytest.raises(PathUnknown):
        door.restore(one["id"], "nowhere")


def test_a_dry_run_names_everything_and_changes_nothing(door: Door) -> None:
    (door.work / "a").write_text("one\n")
    one = door.save("one")
    (door.work / "a").unlink()
    (door.work / "b").write_text("b\n")
    plan = door.restore(one["id"], dry_run=True)
    assert (plan["added"], plan["modified"], plan["deleted"]) == (["a"], [], ["b"])
    assert sorted(os.listdir(door.work)) == ["b"]
    (door.work / "c").write_text("since\n")
    with pytest.raises(TreeMoved):
        door.restore(one["id"], token=plan["token"])
    assert sorted(os.listdir(door.work)) == ["b", "c"]
    plan = door.restore(one["id"], dry_run=True)
    door.restore(one["id"], token=plan["token"])
    assert sorted(os.listdir(door.work)) == ["a"]


def test_rewind(door: Door) -> None:
    (door.work / "a").write_text("one\n")
    one = door.save("one")
    (door.work / "a").write_text("two\n")
    assert door.step("rewind")["checkpoint"] == one["id"]
    assert text_of(door.work / "a") == "one\n"


def test_state_comes_back_as_it_was(door: Door) -> None:
    conversation = [{"role": "user", "content": "h\u00ebllo \U0001f600"}]
    one = door.save("one", state={"conversation": conversation, "image": bytes(range(256))})
    assert one["created"] and one["state"] == ["conversation", "image"]
    conversation.append({"role": "assistant", "content": "x" * 200_000})
    two = door.save("two", state={"conversation": conversation})
    assert two["state"] == ["conversation"]
    assert door.state(one["id"]) == {
        "conversation": conversation[:1],
        "image": bytes(range(256)),
    }
    assert door.state(two["id"]) == {"conversation": conversation}
    assert door.get(one["id"])["state"] == ["conversation", "image"]


def test_state_only_leaves_the_files_alone(door: Door) -> None:
    (door.work / "a").write_text("one\n")
    one = door.save("one", state={"turn": 1})
    (door.work / "a").write_text("two\n")
    before = door.list()
    done = door.restore(one["id"], files=False)
    assert (done["checkpoint"], done["before"], done["modified"]) == (one["id"], None, [])
    assert text_of(door.work / "a") == "two\n"
    assert door.list() == before


def test_state_is_no_file(door: Door) -> None:
    one = door.save("one", state={"turn": 1})
    (door.work / "a").write_text("a\n")
    two = door.save("two", state={"turn": 2})
    assert door.diff(one["id"], two["id"])["added"] == ["a"]
    door.restore(one["id"])
    assert os.listdir(door.work) == []
    assert not door.save("nothing new")["created"]


def test_tags_and_pins(door: Door) -> None:
    one = door.save("one", tag="Release 1", allow_empty=True)
    assert door.get("Release 1")["id"] == one["id"]
    two = door.save("two", allow_empty=True)
    with pytest.raises(TagTaken):
        door.tag(two["id"], "Release 1")
    door.tag(one["id"], "old release")
    assert door.get(one["id"])["tag"] == "old release"
    door.pin(two["id"], pinned=True)
    assert door.get(two["id"])["pinned"]
    with pytest.raises(CheckpointPinned):
        door.delete(one["id"], two["id"])
    door.pin(two["id"], pinned=False)
    door.delete(one["id"], two["id"])
    assert not {one["id"], two["id"]} & {item["id"] for item in door.list()}


def test_the_history_of_a_path(door: Door) -> None:
    (door.work / "story").write_text("one\n")
    one = door.save("one")
    (door.work / "story").write_text("two\n")
    two = door.save("two")
    (door.work / "story").unlink()
    found = [(item["checkpoint"], item["kinds"]) for item in door.log("story")][:3]
    assert found == [(None, ["deleted"]), (two["id"], ["modified"]), (one["id"], ["added"])]


def test_names_of_any_bytes(door: Door) -> None:
    name = os.fsdecode(b"caf\xe9")
    (door.work / name).write_text("one\n")
    one = door.save("one")
    (door.work / name).unlink()
    door.restore(one["id"])
    assert text_of(door.work / name) == "one\n"


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
    door: Door, wrong: type[Exception], words: tuple[str, str]
) -> None:
    verb, what = words
    with pytest.raises(wrong):
        getattr(door, verb)(what)


def test_nothing_to_redo(door: Door) -> None:
    (door.work / "a").write_text("one\n")
    one = door.save("one")
    (door.work / "a").write_text("two\n")
    door.restore(one["id"])
    with pytest.raises(NothingToUndo):
        door.step("redo")


def test_a_documents_name_is_looked_at(door: Door) -> None:
    with pytest.raises(StateInvalid):
        door.save("one", state={"two\nlines": 1})
    assert door.list()[0]["message"] == "empty"
