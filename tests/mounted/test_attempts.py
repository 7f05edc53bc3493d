"""`try`, `exec`, `race`, `bisect`: commands in forks that stand in the place of the workspace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounting import Workspace, succeed, workspace
from tests.support.staging import USER, said
from tests.support.terminal import on_terminal
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.needs_mount, pytest.mark.compiled_only]


@pytest.fixture
def work() -> Iterator[Workspace]:
    with workspace("--no-write-back", "--auto", "off") as made:
        yield made


def run(work: Workspace, *words: str) -> subprocess.CompletedProcess[str]:
    return work.cli(*words[:1], "-w", work.path, *words[1:])


def save(work: Workspace) -> str:
    done = succeed(run(work, "save", "--json", "--allow-empty"))
    return str(json.loads(done.stdout)["id"])


def fork_mounts(work: Workspace) -> list[str]:
    table = Path("/proc/mounts").read_text().splitlines()
    return [line for line in table if line.startswith(f"{work.store}//fork/")]


def trees(work: Workspace) -> list[Path]:
    return [Path(line.split()[1]) for line in fork_mounts(work)]


def start(work: Workspace, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ckptfs", *words],
        env={**os.environ, **work.env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_command_runs_on_an_old_state_under_the_workspaces_own_path(work: Workspace) -> None:
    (work.path / "file").write_text("old")
    before = save(work)
    (work.path / "file").write_text("new")
    script = f"cat {work.path}/file; pwd; echo x > {work.path}/made; exit 7"
    done = run(work, "exec", before, "--", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (7, f"old{work.path}\n")
    assert sorted(os.listdir(work.path)) == ["file"]
    assert (work.path / "file").read_text() == "new"
    assert fork_mounts(work) == []
    listed = json.loads(succeed(run(work, "list", "--json")).stdout)["checkpoints"]
    (there,) = [found for found in listed if str(found["id"]) == before]
    assert [each["exit_code"] for each in there["runs"]] == [7]


def test_what_ended_well_is_taken_and_can_be_undone(work: Workspace) -> None:
    (work.path / "ignored").mkdir()
    (work.path / "ignored/unsaved").write_text("unsaved")
    script = "cat ignored/unsaved; echo changed > ignored/unsaved; echo new > new"
    done = run(work, "try", "--yes-if-ok", "--", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (0, "unsaved")
    assert "merged: 1 added, 1 modified" in done.stderr
    assert (work.path / "new").read_text() == "new\n"
    assert (work.path / "ignored/unsaved").read_text() == "changed\n"
    # The workspace is what the command left, so how it ended is noted here, too.
    assert "merge of checkpoint" in succeed(run(work, "show", "@ok:sh")).stdout
    succeed(run(work, "undo", "--force"))
    assert not (work.path / "new").exists()
    assert (work.path / "ignored/unsaved").read_text() == "unsaved"


def test_a_tree_never_stands_in_the_workspace_itself(work: Workspace) -> None:
    """The daemon cannot go through its own mount, and a directory for temporary files may be in
    the workspace: so trees stand in the store's directory."""
    work.umount()
    (work.path / "tmp").mkdir()
    work.env["TMPDIR"] = str(work.path / "tmp")
    work.mount()
    del work.env["TMPDIR"]
    mounts = succeed(run(work, "try", "--", "cat", "/proc/mounts")).stdout.splitlines()
    assert f"{work.store}//fork/1 {work.store}/forks/scratch-1" in "\n".join(mounts)


def test_what_failed_leaves_the_workspace_alone_and_is_kept(work: Workspace) -> None:
    (work.path / "file").write_text("mine")
    done = run(
        work, "try", "--yes-if-ok", "--json", "--", "sh", "-c", "rm -rf *; echo a > b; exit 3"
    )
    assert done.returncode == 3
    record = json.loads(done.stderr)
    assert (record["decision"], record["merged"]) == ("drop", False)
    assert (work.path / "file").read_text() == "mine"
    kept = work.path / ".checkpoints" / str(record["checkpoint"])
    assert os.listdir(kept) == ["b"]


def test_what_changed_meanwhile_in_the_same_place_is_not_overwritten(work: Workspace) -> None:
    (work.path / "file").write_text("base\n")
    began, go_on = work.path.parent / "began", work.path.parent / "go-on"
    script = f"echo theirs > file; touch {began}; while ! test -e {go_on}; do sleep 0.05; done"
    words = ["try", "-w", str(work.path), "--yes-if-ok", "--", "sh", "-c", script]
    process = start(work, *words)
    wait_until(began.exists, "the command runs")
    (work.path / "file").write_text("ours\n")
    go_on.touch()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 90
    assert "Nothing was merged" in said
    assert (work.path / "file").read_text() == "ours\n"


def test_the_best_of_a_race_is_taken_and_the_others_are_kept(work: Workspace) -> None:
    (work.path / "file").write_text("base")
    words = ("sh", "-c", "echo $((CKPTFS_ATTEMPT * 10)) > score")
    options = ("-n", "3", "--score", "cat score", "--take", "best", "--json")
    done = succeed(run(work, "race", *options, "--", *words))
    record = json.loads(done.stdout)
    assert [found["score"] for found in record["attempts"]] == [30.0, 20.0, 10.0]
    assert record["taken"] == 3
    assert (work.path / "score").read_text() == "30\n"
    loser = record["attempts"][-1]["checkpoint"]
    assert (work.path / ".checkpoints" / str(loser) / "score").read_text() == "10\n"
    assert fork_mounts(work) == []


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_the_first_bad_checkpoint_is_found_and_remembered(work: Workspace, jobs: str) -> None:
    numbers = []
    for number in range(8):
        (work.path / "number").write_text(f"{number}\n")
        numbers.append(save(work))
    words = ("--", "sh", "-c", "test $(cat number) -lt 5")
    asked = ("bisect", "run", "--from", numbers[0], "--to", numbers[-1], "-j", jobs, "--json")
    first = json.loads(succeed(run(work, *asked, *words)).stdout)
    assert first["checkpoints"] == [int(numbers[5])]
    assert first["run_count"] <= 6
    again = json.loads(succeed(run(work, *asked, *words)).stdout)
    assert (again["checkpoints"], again["run_count"]) == (first["checkpoints"], 0)
    assert (work.path / "number").read_text() == "7\n"


def test_a_run_that_was_killed_is_no_result(work: Workspace) -> None:
    (work.path / "file").write_text("good")
    good = save(work)
    (work.path / "file").write_text("bad")
    bad = save(work)
    killed = work.path.parent / "killed"
    script = f"test -e {killed} || {{ touch {killed}; kill -9 $$; }}; grep -q good file"
    words = ("--", "sh", "-c", script)
    assert run(work, "exec", bad, *words).returncode == 137
    found = json.loads(succeed(run(work, "bisect", "run", "--from", good, "--json", *words)).stdout)
    assert (found["checkpoints"], found["run_count"]) == ([int(bad)], 2)


def test_what_passes_everywhere_cannot_be_searched(work: Workspace) -> None:
    for text in "ab":
        (work.path / "file").write_text(text)
        save(work)
    done = run(work, "bisect", "run", "--", "true")
    assert done.returncode == 2
    assert "the command does not fail (good)" in done.stderr


def test_a_fork_that_a_killed_daemon_left_is_cleared_by_the_next(work: Workspace) -> None:
    (work.path / "file").write_text("kept")
    save(work)
    process = start(work, "exec", "-w", str(work.path), "latest", "--", "sleep", "60")
    wait_until(lambda: len(fork_mounts(work)) == 1, "the fork is mounted")
    work.kill()
    process.terminate()
    process.communicate(timeout=60)
    succeed(work.cli("umount", work.path))
    work.mount()
    wait_until(lambda: fork_mounts(work) == [], "what was left is cleared")
    assert (work.path / "file").read_text() == "kept"
    succeed(run(work, "check"))


def test_a_tree_ends_with_a_client_that_was_killed(work: Workspace) -> None:
    script = "echo $$ > pid; echo begun > file; exec sleep 60"
    process = start(work, "try", "-w", str(work.path), "--", "sh", "-c", script)
    wait_until(lambda: any((at / "file").exists() for at in trees(work)), "it runs")
    (place,) = trees(work)
    command = int((place / "pid").read_text())
    process.kill()
    wait_until(lambda: fork_mounts(work) == [], "the tree has ended")
    os.kill(command, signal.SIGKILL)
    process.communicate(timeout=60)
    wait_until(lambda: not place.exists(), "its place is gone")
    succeed(run(work, "check"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("verb", [["race", "-n", "2"], ["bisect", "run"]])
def test_a_signal_ends_commands_and_trees(
    work: Workspace, verb: list[str], number: signal.Signals
) -> None:
    save(work)
    save(work)
    running = work.path.parent / "running"
    script = f"touch {running}; exec sleep 60"
    process = start(work, *verb, "-w", str(work.path), "--", "sh", "-c", script)
    wait_until(running.exists, "a command runs")
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    # One whose fork was still being made ends when the daemon notices that its client is gone.
    wait_until(lambda: fork_mounts(work) == [], "all trees have ended")
    if verb[0] == "race":  # what they did until then may have taken hours
        assert "and the workspace is as it was. Checkpoints " in said


def test_an_interrupt_at_the_question_leaves_the_workspace_alone(work: Workspace) -> None:
    words = ("try", "-w", work.path, "--", "sh", "-c", "echo x > made")
    with on_terminal(*words, env=work.env) as (process, user):
        user.see("leave it [n]? ")
        process.send_signal(signal.SIGINT)
        user.see("the workspace is as it was. What it did: 1 added")
        user.see("for a day: `ckptfs merge ")
        assert process.wait(timeout=60) == 130
    assert os.listdir(work.path) == []


def test_a_process_that_is_left_behind_loses_the_fork_only(work: Workspace) -> None:
    save(work)
    pid = work.path.parent / "pid"
    script = f"sleep 60 > /dev/null 2>&1 & echo $! > {pid}"
    succeed(run(work, "exec", "latest", "--", "sh", "-c", script))
    assert fork_mounts(work) == []
    (work.path / "after").write_text("written")
    os.kill(int(pid.read_text()), signal.SIGKILL)


@pytest.mark.parametrize("verb", [["try"], ["exec", "latest"], ["race"], ["bisect", "run"]])
def test_a_command_has_to_be_named(work: Workspace, verb: list[str]) -> None:
    done = run(work, *verb)
    assert done.returncode == 2
    assert f"Cannot {verb[0]}: name the command behind `--`." in done.stderr


@pytest.mark.needs_root
def test_a_user_without_rights_tries_and_looks_back_too() -> None:
    script = (
        USER
        + r"""
    chown 65534 work store; rmdir store
    user() { $as_user $stage/python -m ckptfs "$@"; }
    echo old > work/file; chown 65534 work/file
    user mount $W --store $stage/home/store --no-write-back >/dev/null
    user save -w $W >/dev/null 2>&1 || true
    user exec -w $W latest -- sh -c "cat $W/file; id -u; echo lost > $W/file" 2>&1
    user try -w $W --yes-if-ok -- sh -c "echo new > $W/file" 2>/dev/null
    $as_user cat $W/file
    user umount $W >/dev/null
    """
    )
    assert said(script) == ["old", "65534", "new"]
