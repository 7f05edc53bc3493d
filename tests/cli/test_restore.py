"""`restore`, `rewind` and what they say, as a user types them."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from base64 import b64decode

import pytest

from ckptfs import errors
from tests.support.mounting import HAVE_FUSE, Workspace, succeed

pytestmark = pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")


@pytest.fixture
def work(workspace: Workspace) -> Workspace:
    """A mounted workspace with checkpoints 0 and 1, equal to 1."""
    (workspace.path / "file").write_text("one")
    workspace.mount("--auto", "off")
    (workspace.path / "file").write_text("two")
    succeed(workspace.cli("save", "two", "-w", workspace.path))
    return workspace


def checkpoints(work: Workspace) -> int:
    found = json.loads(succeed(work.cli("list", "-w", work.path, "--json")).stdout)
    return len(found["checkpoints"])


def test_nothing_to_restore_takes_no_checkpoint(work: Workspace) -> None:
    for words in (["1"], ["1", "--force"], ["1", work.path / "file"], ["latest", "--no-backup"]):
        done = succeed(work.cli("restore", *words, "-w", work.path))
        assert done.stdout.startswith("Nothing to restore")
    record = json.loads(succeed(work.cli("restore", "1", "-w", work.path, "--json")).stdout)
    assert (record["changed"], record["before"], record["checkpoint"]) == (False, None, 1)
    assert checkpoints(work) == 2
    # A change and its taking back is still none, whatever it did to times of change.
    (work.path / "file").chmod(0o600)
    (work.path / "file").chmod(0o644)
    succeed(work.cli("restore", "1", "--force", "-w", work.path))
    assert checkpoints(work) == 2


def test_a_path_that_was_restored_is_what_it_was(work: Workspace) -> None:
    file = work.path / "file"
    assert "1 path changed" in succeed(work.cli("restore", "0", file, "-w", work.path)).stdout
    again = succeed(work.cli("restore", "0", file, "-w", work.path)).stdout
    assert again.startswith("Nothing to restore")
    assert checkpoints(work) == 3
    # Two is what it was before; there is nothing between that and now.
    file.chmod(0o600)
    file.chmod(0o644)
    succeed(work.cli("rewind", "--force", "-w", work.path))
    assert file.read_text() == "two"


def test_other_times_are_restored(work: Workspace) -> None:
    before = (work.path / "file").stat().st_mtime_ns
    os.utime(work.path / "file", ns=(1, 1))
    succeed(work.cli("restore", "1", "--force", "-w", work.path))
    assert (work.path / "file").stat().st_mtime_ns == before
    assert checkpoints(work) == 3


def test_how_far_a_rewind_can_go(work: Workspace) -> None:
    done = work.cli("rewind", "500", "--force", "-w", work.path)
    assert done.returncode == errors.CheckpointUnknown.exit_code
    assert "Cannot rewind 500 checkpoints: there is only 1 before now" in done.stderr
    assert work.cli("rewind", "0", "--force", "-w", work.path).returncode == 2


def test_a_dry_run_has_the_bytes_of_every_name(work: Workspace) -> None:
    name = os.fsdecode(b"caf\xe9")
    (work.path / name).touch()
    (work.path / "plain").touch()
    plan = json.loads(
        succeed(work.cli("restore", "1", "--dry-run", "--json", "-w", work.path)).stdout
    )
    assert [b64decode(each) for each in plan["deleted_paths_b64"]] == [b"caf\xe9", b"plain"]
    assert len(plan["deleted_paths"]) == 2
    assert "added_b64" not in plan
    (work.path / "back\\slash").touch()
    lines = succeed(work.cli("restore", "1", "--dry-run", "-w", work.path)).stdout.splitlines()
    assert lines[1:-1] == ['- "back\\\\slash"', '- "caf\\351"', "- plain"]
    assert lines[-1].startswith("token ")


def test_the_whole_workspace_is_no_path_of_it(work: Workspace) -> None:
    done = work.cli("restore", "0", work.path, "-w", work.path)
    assert done.returncode == errors.PathUnknown.exit_code
    assert "whole workspace" in done.stderr


def test_a_tag_that_is_taken_is_refused_with_how_to_move_it(work: Workspace) -> None:
    succeed(work.cli("tag", "0", "v1", "-w", work.path))
    done = work.cli("save", "--tag", "v1", "-w", work.path)
    assert done.returncode == errors.TagTaken.exit_code
    assert "ckptfs tag ID 'v1' --move" in done.stderr
    assert checkpoints(work) == 2


def test_the_question_stands_on_the_line_of_its_answer(work: Workspace) -> None:
    leader, follower = pty.openpty()
    asking = subprocess.Popen(
        [sys.executable, "-m", "ckptfs", "restore", "0", "-w", work.path],
        env={**os.environ, **work.env},
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    said = b""
    while not said.endswith(b"Go ahead? [y/N] "):
        said += os.read(leader, 1000)
    assert b"~ file" in said and b"token" not in said
    os.write(leader, b"y\n")
    while b"Restored" not in said:
        said += os.read(leader, 1000)
    assert asking.wait(60) == 0
    os.close(leader)
    assert (work.path / "file").read_text() == "one"


def test_state_that_is_not_there_is_told_before_anything_is_restored(work: Workspace) -> None:
    document, out = work.path.parent / "turn.json", work.path.parent / "out.json"
    document.write_text("[1]")
    succeed(work.cli("save", "three", "--state", f"turn={document}", "-w", work.path))
    (work.path / "file").write_text("later")
    for words in (
        ["restore", "2", "--force", "--state-out", f"foo={out}"],
        ["restore", "1", "--force", "--state-out", out],
        ["restore", "2", "--state-only", "--state-out", f"foo={out}"],
        ["rewind", "2", "--force", "--state-out", f"turn={out}"],
    ):
        done = work.cli(*words, "-w", work.path)
        assert done.returncode == errors.StateInvalid.exit_code
        assert "does not carry it" in done.stderr and "Nothing was changed" in done.stderr
    assert (work.path / "file").read_text() == "later" and checkpoints(work) == 3
    done = work.cli(
        "restore", "2", "--state-only", "--state-out", "turn=/proc/x/y", "-w", work.path
    )
    assert done.returncode == errors.StateNotWritten.exit_code
    assert "restore is done" not in done.stderr and (work.path / "file").read_text() == "later"
    succeed(work.cli("rewind", "1", "--force", "--state-out", f"turn={out}", "-w", work.path))
    assert out.read_text() == "[1]" and (work.path / "file").read_text() == "two"
    done = work.cli("undo", "--force", "--state-out", f"turn={out}", "-w", work.path)
    assert done.returncode == errors.StateInvalid.exit_code
    assert (work.path / "file").read_text() == "two"


def test_a_restore_of_nothing_runs_no_command(work: Workspace) -> None:
    ran = work.path.parent / "ran"
    succeed(work.cli("config", "hooks.on_restore", f"touch {ran}", "-w", work.path))
    succeed(work.cli("restore", "1", "--force", "-w", work.path))
    assert not ran.exists()
    succeed(work.cli("restore", "0", "--force", "-w", work.path))
    assert ran.exists()


@pytest.mark.parametrize(
    "verb, how", [("restore", "ckptfs restore latest {}"), ("diff", "ckptfs diff -- {}")]
)
def test_a_path_in_the_place_of_a_checkpoint_is_told_where_it_belongs(
    work: Workspace, verb: str, how: str
) -> None:
    path = str(work.path / "file")
    done = work.cli(verb, path, "-w", work.path)
    assert done.returncode == errors.CheckpointUnknown.exit_code
    assert how.format(path) in done.stderr
    done = work.cli(verb, "nosuch", "-w", work.path)
    assert "is a path" not in done.stderr


def test_a_rewind_names_the_moment_that_it_goes_past(workspace: Workspace) -> None:
    """What one script makes, lets stand for a second and removes is in no checkpoint."""
    workspace.mount()
    ckptfs = f"{sys.executable} -m ckptfs"
    script = f"""
        cd {workspace.path}
        echo saved > code
        {ckptfs} save saved
        echo precious > code
        sleep 1.2
        rm code
        {ckptfs} rewind --force
    """
    done = subprocess.run(
        ["bash", "-ec", script],
        env={**os.environ, **workspace.env},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (workspace.path / "code").read_text() == "saved\n"
    (number,) = re.findall(r"^Moment (\d+) \(.*\) is newer: `ckptfs restore \1`", done.stderr, re.M)
    succeed(workspace.cli("restore", number, "--force", "-w", workspace.path))
    assert (workspace.path / "code").read_text() == "precious\n"
