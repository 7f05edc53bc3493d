"""`ckptfs task` through the command line and the mount; what it means is tested with history."""

from __future__ import annotations

import pytest

from tests.agents.conftest import Desk
from tests.support.mounting import workspace


@pytest.fixture
def fresh() -> object:
    with workspace("--no-write-back", "--auto", "off") as made:
        yield Desk(made)


def test_of_two_tasks_one_is_reverted_and_the_other_stays(fresh: Desk) -> None:
    write = lambda name, text: (fresh.path / name).write_text(text)  # noqa: E731
    write("shared", "0")
    assert "Started task parser" in fresh.ok("task", "start", "parser")
    write("parser.c", "p")
    write("shared", "p")
    fresh.ok("task", "start", "docs")
    write("README", "d")
    assert "Task parser goes on" in fresh.ok("task", "done", "wrote it")
    assert "is the current one already" in fresh.ok("task", "start", "parser")
    fresh.ok("task", "done")

    listed = {item["name"]: item for item in fresh.json("task", "list")["tasks"]}
    assert listed["parser"]["paths"] == ["parser.c", "shared"]
    assert listed["docs"]["paths"] == ["README"] and listed["docs"]["message"] == "wrote it"
    assert "wrote it" in fresh.ok("task", "list")

    write("shared", "by hand")
    refused = fresh.run("task", "revert", "parser")
    assert refused.returncode == 77 and "shared" in refused.stderr
    assert fresh.files()["parser.c"] == "p"
    plan = fresh.json("task", "revert", "parser", "--dry-run")
    assert plan["conflicts"] == [{"path": "shared", "task": ""}]
    assert "only --force" in fresh.ok("task", "revert", "--dry-run", "parser")

    fresh.ok("task", "revert", "parser", "--force")
    assert fresh.files() == {"shared": "0", "README": "d"}  # the kernel shows it at once
    fresh.ok("undo")
    assert fresh.files()["shared"] == "by hand" and fresh.files()["parser.c"] == "p"


def test_starting_an_earlier_task_says_that_it_is_taken_up_again(fresh: Desk) -> None:
    fresh.ok("task", "start", "a")
    (fresh.path / "x").write_text("1")
    fresh.ok("task", "done")
    assert "Took up task a again" in (said := fresh.ok("task", "start", "a"))
    assert "it was done. A revert takes back its earlier work" in said
    assert fresh.json("task", "start", "b")["was"] == ""
    assert fresh.json("task", "start", "a")["was"] == "open"
    fresh.ok("task", "revert", "a")
    assert fresh.files() == {}
    assert "Started task a" in fresh.ok("task", "start", "a")  # nothing of it is left


def test_checkpoints_tell_their_task_and_those_of_tasks_do_not_expire(fresh: Desk) -> None:
    fresh.ok("task", "start", "a")
    (fresh.path / "x").write_text("1")
    fresh.ok("save", "within")
    fresh.ok("task", "done")
    found = {item["message"]: item for item in fresh.checkpoints()}
    assert found["within"]["metadata"] == {"task": "a"}
    kept = {item["id"]: item for item in fresh.json("prune", "--dry-run")["checkpoints"]}
    assert kept[found["task start: a"]["id"]]["reason"] == "a task begins or ends there"


def test_an_unmounted_workspace_has_tasks_too() -> None:
    with workspace() as made:
        desk = Desk(made)
        desk.ok("task", "start", "a")
        made.umount()
        (desk.path / "x").write_text("1")
        desk.ok("task", "revert", "a")
        assert desk.files() == {}


@pytest.mark.parametrize(
    "words, code",
    [
        (("start",), 2),
        (("revert",), 2),
        (("list", "x"), 2),
        (("stop", "x"), 2),
        ((), 2),
        (("start", ""), 76),
        (("start", "a\nb"), 76),
        (("done",), 75),
        (("revert", "none"), 75),
    ],
)
def test_a_task_command_that_makes_no_sense_is_refused(
    desk: Desk, words: tuple[str, ...], code: int
) -> None:
    done = desk.run("task", *words)
    assert done.returncode == code, done.stderr


def test_an_empty_list_of_tasks_says_so(desk: Desk) -> None:
    assert desk.ok("task", "list") == "There are no tasks.\n"


def test_a_revert_of_a_task_that_changed_nothing_says_so(fresh: Desk) -> None:
    fresh.ok("task", "start", "idle")
    fresh.ok("task", "done")
    before = fresh.json("list")
    assert "changed nothing; no checkpoint was taken" in fresh.ok("task", "revert", "idle")
    done = fresh.json("task", "revert", "idle")
    assert (done["changed"], done["before"], done["after"]) == (False, None, None)
    assert fresh.json("list") == before
