"""`restore --only-changed-by`, with two real sessions at work in one workspace."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.mounting import Workspace
from tests.support.trees import plant

pytestmark = pytest.mark.needs_mount

#: Changes what it does not make: no name and no length tells of it, only the data.
IN_PLACE = "import sys; f = open(sys.argv[1], 'r+b'); f.write(b'ALICE'); f.close()"


@pytest.fixture
def work(make_workspace: Callable[..., Workspace]) -> Workspace:
    made = make_workspace()
    files = ("mine", "theirs", "shared", "lost", "in-place", "mapped")
    plant(made.path, dict.fromkeys(files, "before\n") | {"bin": {}})
    return made


def ok(work: Workspace, *arguments: str | Path) -> str:
    done = work.cli(*arguments, "-w", work.path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def save(work: Workspace) -> str:
    return str(json.loads(ok(work, "save", "", "--allow-empty", "--json"))["id"])


def session(work: Workspace, name: str, script: str) -> int:
    """Run a script in a session of its own; returns its process id, which is the session's."""
    path = work.store.parent / f"{name}.sh"
    path.write_text(script)
    with subprocess.Popen(["sh", path], cwd=work.path, start_new_session=True) as process:
        assert process.wait(60) == 0
    return process.pid


def two_sessions(work: Workspace) -> tuple[int, int]:
    alice = session(
        work,
        "alice",
        f"""
        echo alice > mine
        echo alice >> shared
        rm lost
        mkdir dir
        echo x > dir/own
        python3 -c "{IN_PLACE}" in-place
        """,
    )
    bob = session(work, "bob", "echo bob > theirs; echo bob >> shared; echo y > dir/guest")
    return alice, bob


def test_one_session_goes_back_and_the_other_stays(work: Workspace) -> None:
    first = save(work)
    two_sessions(work)
    asked = ("restore", first, "--only-changed-by", "alice.sh")
    plan = json.loads(ok(work, *asked, "--dry-run", "--json"))
    assert plan["added_paths"] == ["lost"]
    assert plan["modified_paths"] == ["in-place", "mine"]
    assert plan["deleted_paths"] == ["dir/own"]
    reasons = {item["path"]: item["reason"] for item in plan["skipped"]}
    assert reasons == {
        "dir": "content",
        "dir/guest": "others",
        "shared": "both",
        "theirs": "others",
    }
    said = ok(work, *asked, "--if-unchanged", plan["token"])
    assert "= theirs  (changed by sh " in said
    assert "= shared  (changed by sh " in said
    assert (work.path / "mine").read_text() == "before\n"
    assert (work.path / "lost").read_text() == "before\n"
    assert (work.path / "in-place").read_text() == "before\n"
    assert (work.path / "theirs").read_text() == "bob\n"
    assert (work.path / "shared").read_text() == "before\nalice\nbob\n"
    assert sorted(path.name for path in (work.path / "dir").iterdir()) == ["guest"]
    ok(work, "undo")
    assert (work.path / "mine").read_text() == "alice\n"
    assert not (work.path / "lost").exists()
    assert (work.path / "dir" / "own").read_text() == "x\n"


def test_a_restore_takes_back_what_one_process_or_session_changed(work: Workspace) -> None:
    first = save(work)
    _, bob = two_sessions(work)
    done = json.loads(
        ok(work, "restore", first, "--only-changed-by", str(bob), "--json", "--force")
    )
    assert done["changed"] is True
    session_of_alice = next(
        item["by"][0]["session"] for item in done["skipped"] if item["path"] == "mine"
    )
    assert (work.path / "theirs").read_text() == "before\n"
    assert (work.path / "mine").read_text() == "alice\n"
    assert not (work.path / "dir" / "guest").exists()
    ok(work, "restore", first, "--only-changed-by", session_of_alice, "--force")
    assert (work.path / "mine").read_text() == "before\n"


def test_an_author_who_changed_nothing_is_refused(work: Workspace) -> None:
    first = save(work)
    two_sessions(work)
    done = work.cli("restore", first, "--only-changed-by", "carol", "--force", "-w", work.path)
    assert done.returncode == 74
    assert "alice.sh" in done.stderr


def test_a_token_that_holds_no_more_is_refused(work: Workspace) -> None:
    first = save(work)
    two_sessions(work)
    asked = ("restore", first, "--only-changed-by", "alice.sh")
    plan = json.loads(ok(work, *asked, "--dry-run", "--json"))
    (work.path / "mine").write_text("meanwhile")
    done = work.cli(*asked, "--if-unchanged", plan["token"], "-w", work.path)
    assert done.returncode == 46
    assert (work.path / "mine").read_text() == "meanwhile"


def test_an_author_is_known_after_a_remount_and_the_lower_directorys_changes_have_none(
    work: Workspace,
) -> None:
    first = save(work)
    two_sessions(work)
    work.umount()
    (work.path / "mine").write_text("below\n")
    work.mount()
    plan = json.loads(
        ok(work, "restore", first, "--only-changed-by", "alice.sh", "--dry-run", "--json")
    )
    assert plan["modified_paths"] == ["in-place"]
    assert {"path": "mine", "reason": "both", "by": []} in plan["skipped"]


def test_the_log_names_the_writer(work: Workspace) -> None:
    first = save(work)
    two_sessions(work)
    ok(work, "restore", first, "--force")
    session(work, "carol", "echo carol > mine")
    versions = json.loads(ok(work, "log", work.path / "mine", "--json"))["versions"]
    writers = [(version["writer"] or {"command": ""})["command"] for version in versions]
    assert "carol.sh" in writers[0]
    assert any("alice.sh" in writer for writer in writers[1:])
    assert not any("bob.sh" in writer for writer in writers)
