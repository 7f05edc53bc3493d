"""Steps and moments as a user sees them: lines of a list, and what a mount says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.mounting import Workspace, succeed
from tests.support.waiting import wait_until

pytestmark = pytest.mark.needs_mount

#: Edits files itself, runs a command, and edits again.
AGENT = """
import os, subprocess, time
def edit(path, text):
    with open(path + ".tmp.12", "w") as file:
        file.write(text)
    os.rename(path + ".tmp.12", path)
def run(command):
    subprocess.run(["bash", "-c", command], check=True)
run("mkdir src; echo 1 > src/app.py")
time.sleep(0.3)
edit("src/app.py", "2")
time.sleep(0.3)
edit("src/app.py", "3")
time.sleep(0.3)
run("echo 4 > src/app.py; curl --version --password=hunter2 > /dev/null 2>&1 || true")
"""


@pytest.fixture(params=["on", "off"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTFS_SERVER", request.param)


def listed(work: Workspace, *options: str) -> list[dict[str, Any]]:
    done = succeed(work.cli("list", "--json", "-w", work.path, *options))
    found = json.loads(done.stdout)["checkpoints"]
    assert isinstance(found, list)
    return found[::-1]


def play(work: Workspace, program: str, *before: str) -> None:
    subprocess.run(
        [*before, sys.executable, "-c", program],
        cwd=work.path,
        env={**os.environ, **work.env},
        start_new_session=True,
        check=True,
        timeout=60,
    )


def test_steps_are_named_by_commands_and_edited_files(
    server: None, make_workspace: Callable[..., Workspace]
) -> None:
    work = make_workspace()
    play(work, AGENT)
    messages = [item["message"] for item in listed(work, "--moments")]
    assert "before: edit: src/app.py" in messages
    (last,) = [message for message in messages if "echo 4 > src/app.py" in message]
    assert "--password=***" in last and "hunter2" not in last
    versions = {
        (work.path / ".checkpoints" / str(item["id"]) / "src/app.py").read_text().strip()
        for item in listed(work, "--moments")
        if item["message"] != "first mount"
    }
    assert versions == {"1", "2", "3"}


def test_a_list_says_how_many_moments_it_leaves_out(
    make_workspace: Callable[..., Workspace],
) -> None:
    work = make_workspace()
    play(work, "import time\nfor n in range(4):\n open('f', 'w').write(str(n)); time.sleep(0.1)")
    shown = succeed(work.cli("list", "-w", work.path))
    assert "Between them 3 moments; --moments shows them." in shown.stderr
    assert "moment " not in shown.stdout
    every = succeed(work.cli("list", "--moments", "-w", work.path))
    assert every.stdout.count(" (f)") == 3 and every.stderr == ""
    found = listed(work, "--moments")
    assert [item["metadata"].get("lost") for item in found] == [None, "f", "f", "f"]
    assert work.status()["moments"] == 3
    numbers = {name for name in os.listdir(work.path / ".checkpoints") if name.isdigit()}
    assert numbers == {"0"}, "a listing leaves moments out"
    last = work.path / ".checkpoints" / str(found[-1]["id"])
    assert (last / "f").read_text() == "2", "but they are found by their number"


def test_a_moment_that_is_tagged_is_a_checkpoint_like_others(
    make_workspace: Callable[..., Workspace],
) -> None:
    work = make_workspace()
    play(work, "import time\nfor n in range(2):\n open('f', 'w').write(str(n)); time.sleep(0.1)")
    (_, moment) = listed(work, "--moments")
    succeed(work.cli("tag", str(moment["id"]), "precious", "-w", work.path))
    assert [item["id"] for item in listed(work)] == [0, moment["id"]]
    assert (work.path / ".checkpoints/precious/f").read_text() == "0"


def test_saving_what_only_a_moment_has_saves_it(make_workspace: Callable[..., Workspace]) -> None:
    """The file is truncated and never written to: what is left equals no checkpoint."""
    work = make_workspace()
    (work.path / "f").write_text("x")
    play(work, "import os; os.truncate('f', 0)")
    (work.path / "f").unlink()
    saved = json.loads(succeed(work.cli("save", "now", "--json", "-w", work.path)).stdout)
    assert saved["changed"] and saved["kind"] == "manual"


def test_a_harness_that_is_declared_has_steps(make_workspace: Callable[..., Workspace]) -> None:
    """A shell's script is one step, unless it is said to be a harness."""
    work = make_workspace()
    script = "echo 1 > f; sleep 0.3; cp f g; sleep 0.3; rm g; sleep 0.3"
    subprocess.run(["sh", "-c", script], cwd=work.path, start_new_session=True, check=True)
    assert [item["message"] for item in listed(work)] == ["first mount"]
    ckptfs = (sys.executable, "-m", "ckptfs", "run", "-w", str(work.path), "--harness", "--")
    subprocess.run(
        [*ckptfs, "sh", "-c", script],
        cwd=work.path,
        env={**os.environ, **work.env},
        start_new_session=True,
        check=True,
    )
    messages = [item["message"] for item in listed(work)]
    assert {"before: cp f g", "before: rm g"} <= set(messages)


def test_a_harness_can_be_declared_only_where_it_is_mounted(
    make_workspace: Callable[..., Workspace],
) -> None:
    work = make_workspace()
    work.umount()
    refused = work.cli("run", "-w", work.path, "--harness", "--", "true")
    assert refused.returncode == 41 and "is not mounted" in refused.stderr


def test_a_command_that_cannot_be_started_as_a_harness(
    make_workspace: Callable[..., Workspace],
) -> None:
    work = make_workspace()
    refused = work.cli("run", "-w", work.path, "--harness", "--", "/there/is/none")
    assert refused.returncode == 127 and "Cannot run /there/is/none" in refused.stderr


def test_where_nothing_is_kept_mount_and_status_say_so(
    make_workspace: Callable[..., Workspace],
) -> None:
    work = make_workspace("--auto", "off")
    (work.path / "f").write_text("x")
    play(work, "import os; os.unlink('f')")
    assert [item["message"] for item in listed(work, "--moments")] == ["first mount"]
    assert (
        "automatic    off; what a program destroys is lost"
        in work.cli("status", "-w", work.path).stdout
    )
    work.umount()
    assert "Automatic checkpoints are off" in work.mount("--auto", "off").stderr


def test_a_limit_on_moments_holds_while_work_goes_on(
    make_workspace: Callable[..., Workspace],
) -> None:
    work = make_workspace()
    succeed(work.cli("config", "moments.max", "5", "-w", work.path))
    loop = "import time\nfor n in range(70):\n open('f', 'w').write(str(n)); time.sleep(0.1)"
    play(work, loop)
    assert 5 <= work.status()["moments"] <= 40
    check = succeed(work.cli("check", "--json", "-w", work.path))
    assert json.loads(check.stdout)["problems"] == []


def test_what_was_unsaved_when_the_daemon_was_killed_is_not_lost_afterwards(
    make_workspace: Callable[..., Workspace],
) -> None:
    work = make_workspace()
    (work.path / "f").write_text("precious")
    fd = os.open(work.path / "f", os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    work.kill()
    work.mount()
    assert Path(work.path / "f").read_text() == "precious"
    play(work, "import os; os.unlink('f')")
    newest = listed(work, "--moments")[-1]
    assert (work.path / ".checkpoints" / str(newest["id"]) / "f").read_text() == "precious"


def kept(work: Workspace, name: str) -> set[str]:
    """What a file was in all that is kept."""
    found = set()
    for item in listed(work, "--moments"):
        path = work.path / ".checkpoints" / str(item["id"]) / name
        if path.exists():
            found.add(path.read_text())
    return found


#: Writes a file, and unlinks it when it is told to.
WRITER = "import os, sys; open('a', 'w').write('precious'); sys.stdin.read(); os.unlink('a')"


def writer(work: Workspace) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER], cwd=work.path, stdin=subprocess.PIPE, process_group=0
    )


def test_what_only_a_deleted_checkpoint_had_is_not_lost(
    make_workspace: Callable[..., Workspace],
) -> None:
    work = make_workspace()
    with writer(work) as process:
        wait_until((work.path / "a").exists, "it has written")
        saved = json.loads(succeed(work.cli("save", "x", "--json", "-w", work.path)).stdout)
        succeed(work.cli("delete", str(saved["id"]), "-w", work.path))
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 0
    assert not (work.path / "a").exists()
    assert "precious" in kept(work, "a")


def test_a_tag_on_a_checkpoint_that_has_no_name_yet_stays(
    make_workspace: Callable[..., Workspace],
) -> None:
    work = make_workspace()
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT.replace("0.3", "2.2")], cwd=work.path, process_group=0
    )
    with agent:
        wait_until(lambda: listed(work)[-1]["id"] > 0, "a checkpoint is taken")
        succeed(work.cli("tag", "latest", "good", "-w", work.path))
        assert agent.wait(60) == 0
    assert [item["tag"] for item in listed(work) if item["tag"]] == ["good"]


def test_what_is_moved_to_where_no_checkpoint_sees_it_is_kept(
    make_workspace: Callable[..., Workspace],
) -> None:
    work = make_workspace("--exclude", "junk")
    program = (
        "import os, time\nos.makedirs('junk'); os.makedirs('d')\n"
        "for p in ('a', 'd/b'): open(p, 'w').write('precious')\n"
        "time.sleep(1.2)\n"
        "os.rename('a', 'junk/a'); os.rename('d', 'junk/d')\n"
    )
    play(work, program)
    assert kept(work, "a") == kept(work, "d/b") == {"precious"}


def test_settings_hold_for_the_next_command(make_workspace: Callable[..., Workspace]) -> None:
    work = make_workspace()
    (work.path / "f").write_text("1")
    play(work, "import time; open('f', 'a').write('2'); time.sleep(0.5)")
    succeed(work.cli("config", "record.command", "name", "-w", work.path))
    subprocess.run(["rm", "f"], cwd=work.path, start_new_session=True, check=True)
    assert listed(work)[-1]["message"] == "before: rm"
