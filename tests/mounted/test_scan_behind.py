"""A mount that serves before its scan has ended: what changed below meanwhile is what is shown.

A file named in the daemon's environment holds the scan back, so that nothing is compared but what
is asked for, until something waits for the end.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptfs.daemon.scanning import HOLD
from tests.support.errnos import fails
from tests.support.mounting import Workspace, detach, succeed
from tests.support.trees import File, Link, Same, Tree, facts, plant
from tests.support.waiting import wait_for_exit

#: The checkpoint of what a scan brought in.
CHANGED = "changed while unmounted"

BEFORE: Tree = {
    "top": "top",
    "same": {"file": "same", "deep": {"er": {"file": "same"}}},
    "files": {
        "edited": "old",
        "deleted": "old",
        "mode": File("old", mode=0o600),
        "becomes-dir": "old",
        "becomes-link": {"inner": "old"},
        "link": Link("old"),
    },
    "from": {"moved": {"one": "1", "two": {"three": "3"}}, "stays": "old"},
    "to": {"own": "old"},
    "emptied": {"only": "old"},
    "filled": {},
    "way": {"to": {"a": {"leaf": "old"}}},
}


def change(below: Path) -> None:
    """Every kind of change, by a program that knows nothing of ckptfs."""
    files = below / "files"
    (files / "edited").write_text("new, and longer")
    (files / "deleted").unlink()
    (files / "mode").chmod(0o751)
    (files / "becomes-dir").unlink()
    shutil.rmtree(files / "becomes-link")
    (files / "link").unlink()
    plant(
        below,
        {
            "files/added": "new",
            "files/becomes-dir": {"inner": "new"},
            "files/becomes-link": Link("added"),
            "files/link": Link("new"),
            "filled/first": "new",
        },
    )
    (below / "from/moved").rename(below / "to/moved")
    (below / "emptied/only").unlink()
    (below / "way/to").chmod(0o711)
    (below / "way/to/a/leaf").write_text("new")  # in place: no directory changes


class Held:
    """A workspace that was changed while it was not mounted, and whose next scan is held back."""

    def __init__(self, workspace: Workspace, hold: Path) -> None:
        self.workspace = workspace
        self.path = workspace.path
        hold.touch()
        workspace.env[HOLD] = str(hold)

    def mount(self) -> None:
        self.workspace.mount()
        assert self.scan() is not None and not self.scan()["ended"]

    def scan(self) -> dict[str, object]:
        found: dict[str, object] = self.workspace.status()["scan"]
        return found

    def checkpoints(self) -> dict[str, str]:
        """Message to number, the newest first; once the scan has ended."""
        done = succeed(self.workspace.cli("list", "-w", self.path, "--json"))
        return {item["message"]: str(item["id"]) for item in json.loads(done.stdout)["checkpoints"]}

    def restore(self, number: str) -> None:
        succeed(self.workspace.cli("restore", "-w", self.path, "--force", number))


@pytest.fixture
def held(own_mount: Workspace, tmp_path: Path) -> Held:
    plant(own_mount.path, BEFORE)
    own_mount.umount()
    change(own_mount.path)
    return Held(own_mount, tmp_path / "hold")


def test_everything_is_shown_as_it_is_below_before_the_scan_has_ended(held: Held) -> None:
    below = facts(held.path)
    held.mount()
    assert facts(held.path) == below
    assert not held.scan()["ended"], "nothing waited for its end"


@pytest.mark.parametrize(
    "ask, answer",
    [
        (lambda path: (path / "way/to/a/leaf").read_text(), "new"),
        (lambda path: os.stat(path / "way/to").st_mode & 0o777, 0o711),
        (lambda path: os.readlink(path / "files/link"), "new"),
        (lambda path: (path / "files/becomes-link").read_text(), "new"),
        (lambda path: sorted(os.listdir(path / "to/moved")), ["one", "two"]),
        (lambda path: (path / "to/moved/two/three").read_text(), "3"),
        (lambda path: (path / "from/moved").exists(), False),
        (lambda path: os.listdir(path / "emptied"), []),
        (lambda path: os.access(path / "files/mode", os.X_OK), True),
        (lambda path: os.stat(path / "files/edited").st_size, len("new, and longer")),
    ],
    ids="content mode readlink type listing moved gone empty access size".split(),
)
def test_the_first_question_of_a_mount_has_the_answer_from_below(
    held: Held, ask: Callable[[Path], object], answer: object
) -> None:
    held.mount()
    assert ask(held.path) == answer
    assert not held.scan()["ended"]


def _append(path: Path) -> None:
    with open(path / "files/edited", "a") as file:
        file.write(", and more")
    assert (path / "files/edited").read_text() == "new, and longer, and more"


def _rename_onto(path: Path) -> None:
    os.rename(path / "to/own", path / "files/edited")
    assert (path / "files/edited").read_text() == "old"


def _unlink(path: Path) -> None:
    os.unlink(path / "files/added")
    assert "added" not in os.listdir(path / "files")


def _unlink_gone(path: Path) -> None:
    with fails(errno.ENOENT):
        os.unlink(path / "files/deleted")


def _mkdir_existing(path: Path) -> None:
    with fails(errno.EEXIST):
        os.mkdir(path / "files/becomes-dir")
    with fails(errno.EEXIST):
        os.mkdir(path / "to/moved")


def _create_existing(path: Path) -> None:
    with fails(errno.EEXIST):
        os.open(path / "files/added", os.O_CREAT | os.O_EXCL | os.O_WRONLY)


def _rmdir_filled(path: Path) -> None:
    with fails(errno.ENOTEMPTY):
        os.rmdir(path / "filled")


def _rmdir_emptied(path: Path) -> None:
    os.rmdir(path / "emptied")
    assert not (path / "emptied").exists()


def _rename_directory(path: Path) -> None:
    os.rename(path / "way", path / "gone")
    assert (path / "gone/to/a/leaf").read_text() == "new"


def _link(path: Path) -> None:
    os.link(path / "files/edited", path / "second")
    assert (path / "second").read_text() == "new, and longer"


@pytest.mark.parametrize(
    "act",
    [
        _append,
        _rename_onto,
        _unlink,
        _unlink_gone,
        _mkdir_existing,
        _create_existing,
        _rmdir_filled,
        _rmdir_emptied,
        _rename_directory,
        _link,
    ],
)
def test_the_first_change_of_a_mount_acts_on_what_is_below(
    held: Held, act: Callable[[Path], None]
) -> None:
    held.mount()
    act(held.path)
    assert (held.path / "files/added").exists() == (act is not _unlink)
    then = facts(held.path)
    held.workspace.umount()
    assert facts(held.path) == then


def test_a_change_comes_after_the_checkpoint_of_what_changed_below(held: Held) -> None:
    below = facts(held.path)
    held.mount()
    (held.path / "made").write_text("now")
    assert held.scan()["ended"]
    held.restore(held.checkpoints()[CHANGED])
    assert facts(held.path) == below


def test_a_save_as_the_first_act_has_all_that_changed_below(held: Held) -> None:
    below = facts(held.path)
    held.mount()
    done = held.workspace.cli("save", "-w", held.path, "first act", "--json")
    number = json.loads(succeed(done).stdout)["id"]
    saved = facts(held.path / ".checkpoints" / str(number))
    assert {name: entry for name, entry in saved.items() if name != "."} == {
        name: entry for name, entry in below.items() if name != "."
    }


def test_a_directory_made_in_the_checkpoints_saves_what_changed_below(held: Held) -> None:
    held.mount()
    os.mkdir(held.path / ".checkpoints/named")
    assert (held.path / ".checkpoints/named/way/to/a/leaf").read_text() == "new"


def test_a_restore_as_the_first_act_can_be_undone_to_what_is_below(held: Held) -> None:
    below = facts(held.path)
    held.mount()
    held.restore("1")
    assert (held.path / "way/to/a/leaf").read_text() == "old"
    assert not (held.path / "files/added").exists()
    succeed(held.workspace.cli("undo", "-w", held.path))
    assert facts(held.path) == below


def test_an_unmount_in_the_middle_leaves_below_what_is_there(held: Held) -> None:
    below = facts(held.path)
    held.mount()
    assert (held.path / "files/edited").read_text() == "new, and longer"
    held.workspace.umount()
    assert facts(held.path) == below
    held.mount()
    assert facts(held.path) == below
    assert CHANGED in held.checkpoints()


def test_an_unmount_before_anything_was_brought_in_leaves_it_to_the_next_mount(
    own_mount: Workspace, tmp_path: Path
) -> None:
    plant(own_mount.path, BEFORE)
    own_mount.umount()
    (own_mount.path / "way/to/a/leaf").write_text("new")
    held = Held(own_mount, tmp_path / "hold")
    held.mount()
    assert (held.path / "same/file").read_text() == "same"
    log = Path(held.workspace.status()["log"])
    told = log.read_text().count("brought in")
    held.workspace.umount()
    assert log.read_text().count("brought in") == told, "the scan did not end"
    assert (held.path / "way/to/a/leaf").read_text() == "new"
    held.mount()
    assert (held.path / "way/to/a/leaf").read_text() == "new"


def _detach_by_the_cli(workspace: Workspace) -> None:
    succeed(workspace.cli("umount", "--lazy", workspace.path))


def _detach_by_the_system(workspace: Workspace) -> None:
    detach(str(workspace.path))


@pytest.mark.parametrize("take_away", [_detach_by_the_cli, _detach_by_the_system])
def test_a_program_in_a_detached_mount_can_change_its_files(
    own_mount: Workspace, tmp_path: Path, take_away: Callable[[Workspace], None]
) -> None:
    plant(own_mount.path, BEFORE)
    own_mount.umount()
    (own_mount.path / "way/to/a/leaf").write_text("new")
    held = Held(own_mount, tmp_path / "hold")
    held.mount()
    pid, own_mount.pid = own_mount.pid, None
    assert pid is not None
    script = "exec 3>>same/file; echo open; read line; echo more >&3"
    command = ["sh", "-c", script]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=held.path, stdin=pipe, stdout=pipe) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"open\n"
        take_away(own_mount)
        try:
            program.communicate(b"go\n", timeout=30)
        except subprocess.TimeoutExpired:
            os.kill(pid, signal.SIGKILL)  # or it would wait for ever
            raise
    assert program.returncode == 0
    wait_for_exit(pid)
    assert (held.path / "same/file").read_text() == "samemore\n"
    assert (held.path / "way/to/a/leaf").read_text() == "new"


def test_after_a_kill_in_the_middle_a_scan_comes_first(held: Held) -> None:
    below = facts(held.path)
    held.mount()
    assert (held.path / "files/edited").read_text() == "new, and longer"
    held.workspace.kill()
    held.workspace.mount()
    assert held.workspace.status()["scan"] is None
    assert facts(held.path) == below


def test_names_of_one_file_that_were_linked_below_are_one_file_at_the_end(
    own_mount: Workspace, tmp_path: Path
) -> None:
    plant(own_mount.path, {"a": {"old": "1", "twin": Same("a/old")}, "b": {}, "c": {"other": "2"}})
    own_mount.umount()
    os.link(own_mount.path / "a/old", own_mount.path / "b/new")
    os.unlink(own_mount.path / "c/other")
    os.link(own_mount.path / "a/old", own_mount.path / "c/other")
    (own_mount.path / "a/twin").write_text("11")
    held = Held(own_mount, tmp_path / "hold")
    held.mount()
    assert (held.path / "c/other").read_text() == (held.path / "b/new").read_text() == "11"
    with open(held.path / "b/new", "a") as file:
        file.write("!")
    names = ("a/old", "a/twin", "b/new", "c/other")
    assert {(held.path / name).read_text() for name in names} == {"11!"}
    assert len({os.stat(held.path / name).st_ino for name in names}) == 1


def test_what_is_excluded_is_compared_too(own_mount: Workspace, tmp_path: Path) -> None:
    succeed(own_mount.cli("config", "-w", own_mount.path, "exclude.patterns", "build/"))
    plant(own_mount.path, {"build": {"sub": {"out": "old"}}, "src": {"in": "old"}})
    own_mount.umount()
    (own_mount.path / "build/sub/out").write_text("new")
    (own_mount.path / "build/sub/more").write_text("new")
    held = Held(own_mount, tmp_path / "hold")
    held.mount()
    assert sorted(os.listdir(held.path / "build/sub")) == ["more", "out"]
    assert (held.path / "build/sub/out").read_text() == "new"
    (held.path / "build/sub/more").unlink()
    held.workspace.umount()
    assert os.listdir(held.path / "build/sub") == ["out"]


def test_an_unmount_after_nothing_changed_below_looks_at_what_the_mount_changed(
    own_mount: Workspace, tmp_path: Path
) -> None:
    plant(own_mount.path, BEFORE)
    own_mount.umount()
    held = Held(own_mount, tmp_path / "hold")
    held.mount()
    (held.path / "made").write_text("now")
    log = Path(held.workspace.status()["log"])
    held.workspace.umount()
    assert (held.path / "made").read_text() == "now"
    assert "comparing the whole workspace" not in log.read_text()


def test_a_small_workspace_is_scanned_before_it_is_served(own_mount: Workspace) -> None:
    plant(own_mount.path, BEFORE)
    own_mount.remount()
    assert own_mount.status()["scan"] is None
