"""History seen through the mount: `.checkpoints`, restore while programs have files open, undo."""

from __future__ import annotations

import errno
import json
import mmap
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.mounting import Workspace
from tests.support.trees import facts, plant

pytestmark = pytest.mark.needs_mount


@pytest.fixture
def work(make_workspace: Callable[..., Workspace]) -> Workspace:
    """A workspace that takes no checkpoints by itself."""
    return make_workspace("--auto", "off")


def save(work: Workspace, message: str = "", *options: str) -> int:
    done = work.cli("save", message, "--allow-empty", "--json", "-w", work.path, *options)
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout)["id"])


def ok(work: Workspace, *arguments: str | Path) -> str:
    done = work.cli(*arguments, "-w", work.path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def history(work: Workspace) -> Path:
    return work.path / ".checkpoints"


# -- browsing --------------------------------------------------------------------------------------


def test_a_checkpoint_reads_back_exactly(work: Workspace) -> None:
    plant(work.path, {"dir": {"file": "one", "empty": {}}, "top": "x" * 200_000})
    os.symlink("dir/file", work.path / "link")
    os.link(work.path / "top", work.path / "twin")
    os.chmod(work.path / "dir" / "file", 0o640)
    os.utime(work.path / "dir" / "file", ns=(5, 1_234_567_890_123_456_789))
    was = facts(work.path)
    number = save(work)
    subprocess.run(["rm", "-rf", "dir", "top", "link"], cwd=work.path, check=True)
    (work.path / "twin").write_text("changed")
    assert facts(history(work) / str(number)) == was


def test_history_stands_in_no_listing(work: Workspace) -> None:
    save(work)
    assert ".checkpoints" not in os.listdir(work.path)
    found = subprocess.run(["find", "."], cwd=work.path, capture_output=True, text=True, check=True)
    assert "checkpoints" not in found.stdout
    assert "0" in os.listdir(history(work))


def test_latest_and_tags_are_links(work: Workspace) -> None:
    save(work)
    number = save(work, "named", "--tag", "before a/b; rm")
    assert os.readlink(history(work) / "latest") == str(number)
    names = [name for name in os.listdir(history(work)) if name.startswith("before")]
    assert len(names) == 1
    assert "/" not in names[0]
    assert os.readlink(history(work) / names[0]) == str(number)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: (path / "file").write_text("x"),
        lambda path: (path / "new").touch(),
        lambda path: (path / "file").unlink(),
        lambda path: (path / "file").chmod(0o600),
        lambda path: (path / "dir").mkdir(),
        lambda path: os.utime(path / "file"),
        lambda path: os.rename(path / "file", path / "moved"),
        lambda path: os.symlink("a", path / "link"),
        lambda path: os.truncate(path / "file", 0),
    ],
)
def test_a_checkpoint_cannot_be_changed(work: Workspace, change: Callable[[Path], object]) -> None:
    plant(work.path, {"file": "content"})
    number = save(work)
    with pytest.raises(OSError, match="Read-only") as refused:
        change(history(work) / str(number))
    assert refused.value.errno == errno.EROFS
    assert (history(work) / str(number) / "file").read_text() == "content"


@pytest.mark.parametrize("program", ["chmod 600", "touch", "rm -f", "truncate -s 0"])
def test_what_is_refused_takes_no_checkpoint(
    make_workspace: Callable[..., Workspace], program: str
) -> None:
    work = make_workspace()
    plant(work.path, {"file": "content"})
    save(work)
    (work.path / "file").write_text("unsaved")
    before = os.listdir(history(work))
    done = subprocess.run(
        [*program.split(), history(work) / "latest" / "file"],
        start_new_session=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode
    assert os.listdir(history(work)) == before


def test_mkdir_saves_and_rmdir_deletes(work: Workspace) -> None:
    plant(work.path, {"file": "one"})
    (history(work) / "mine").mkdir()
    (work.path / "file").write_text("two")
    assert (history(work) / "mine" / "file").read_text() == "one"
    number = os.readlink(history(work) / "mine")
    with pytest.raises(FileExistsError):
        (history(work) / "mine").mkdir()
    (history(work) / number).rmdir()
    assert number not in os.listdir(history(work))
    assert "mine" not in os.listdir(history(work))


def test_a_pinned_checkpoint_is_not_removed(work: Workspace) -> None:
    number = save(work, "keep", "--pin")
    with pytest.raises(PermissionError):
        (history(work) / str(number)).rmdir()
    assert str(number) in os.listdir(history(work))


def test_a_deleted_checkpoint_that_is_open_is_stale(work: Workspace) -> None:
    plant(work.path, {"file": "one"})
    number = save(work)
    plant(work.path, {"other": "two"})
    directory = os.open(history(work) / str(number), os.O_RDONLY | os.O_DIRECTORY)
    try:
        ok(work, "delete", str(number))
        with pytest.raises(OSError, match="Stale") as refused:
            os.open("file", os.O_RDONLY, dir_fd=directory)
        assert refused.value.errno == errno.ESTALE
    finally:
        os.close(directory)


def test_nothing_moves_between_history_and_now(work: Workspace) -> None:
    plant(work.path, {"file": "one"})
    number = save(work)
    with pytest.raises(OSError, match="cross-device") as refused:
        os.link(history(work) / str(number) / "file", work.path / "linked")
    assert refused.value.errno == errno.EXDEV
    with pytest.raises(PermissionError):
        os.rename(history(work), work.path / "elsewhere")
    assert (work.path / "file").read_text() == "one"


# -- going back ------------------------------------------------------------------------------------


def test_a_whole_restore_is_undone(work: Workspace) -> None:
    plant(work.path, {"a": "1", "dir": {"b": "2", "c": "3"}})
    was, number = facts(work.path), save(work)
    subprocess.run(["rm", "-rf", "dir"], cwd=work.path, check=True)
    plant(work.path, {"new": "x"})
    (work.path / "a").write_text("changed")
    then = facts(work.path)
    ok(work, "restore", str(number), "--force")
    assert facts(work.path) == was
    ok(work, "undo")
    assert facts(work.path) == then
    ok(work, "redo")
    assert facts(work.path) == was


def test_a_restore_survives_a_kill(work: Workspace) -> None:
    plant(work.path, {"a": "1"})
    was, number = facts(work.path), save(work)
    (work.path / "a").write_text("2")
    ok(work, "restore", str(number), "--force")
    work.kill()
    work.mount("--auto", "off")
    assert facts(work.path) == was
    ok(work, "undo")
    assert (work.path / "a").read_text() == "2"


def test_one_path_goes_back_and_the_rest_stays(work: Workspace) -> None:
    plant(work.path, {"a": "1", "dir": {"b": "2", "c": "3"}})
    number = save(work)
    (work.path / "a").write_text("1!")
    (work.path / "dir" / "b").write_text("2!")
    (work.path / "dir" / "d").write_text("4")
    (work.path / "dir" / "c").unlink()
    ok(work, "restore", str(number), work.path / "dir")
    assert (work.path / "a").read_text() == "1!"
    assert sorted(os.listdir(work.path / "dir")) == ["b", "c"]
    assert (work.path / "dir" / "b").read_text() == "2"


def test_a_writer_that_has_the_file_open_does_no_harm(work: Workspace) -> None:
    plant(work.path, {"file": "one"})
    number = save(work)
    with (work.path / "file").open("r+b", buffering=0) as writer:
        writer.write(b"two")
        ok(work, "restore", str(number), "--force")
        assert (work.path / "file").read_bytes() == b"one"
        writer.write(b" and more")
        os.fsync(writer.fileno())
        assert os.pread(writer.fileno(), 99, 0) == b"two and more"
        assert (work.path / "file").read_bytes() == b"one"
    assert (work.path / "file").read_bytes() == b"one"


def test_a_map_of_a_replaced_file_stays_what_it_was(work: Workspace) -> None:
    plant(work.path, {"file": "a" * 8192})
    number = save(work)
    (work.path / "file").write_text("b" * 8192)
    with (work.path / "file").open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        ok(work, "restore", str(number), "--force")
        assert mapped[:1] == b"b"
        mapped[:1] = b"c"
        mapped.flush()
    assert (work.path / "file").read_text() == "a" * 8192


def test_pages_not_yet_written_belong_to_the_state_before(work: Workspace) -> None:
    plant(work.path, {"file": "one"})
    number = save(work)
    with (work.path / "file").open("r+b", buffering=0) as writer:
        writer.write(b"two")
        ok(work, "restore", str(number), "--force")
    ok(work, "undo")
    assert (work.path / "file").read_bytes() == b"two"


def test_a_current_directory_that_comes_back_works_again(work: Workspace) -> None:
    plant(work.path, {"dir": {"file": "one"}})
    number = save(work)
    shell = subprocess.Popen(
        ["sh", "-c", "cd dir && read go && cat ../dir/file"],
        cwd=work.path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    (work.path / "dir" / "file").write_text("two")
    ok(work, "restore", str(number), "--force")
    out, _ = shell.communicate(b"go\n", timeout=60)
    assert out == b"one"


def test_a_dry_run_names_files_and_a_stale_token_is_refused(work: Workspace) -> None:
    plant(work.path, {"a": "1", "gone": "2"})
    number = save(work)
    plant(work.path, {"a": "changed", "new": "3"})
    (work.path / "gone").unlink()
    plan = json.loads(ok(work, "restore", str(number), "--dry-run", "--json"))
    assert (plan["added_paths"], plan["modified_paths"], plan["deleted_paths"]) == (
        ["gone"],
        ["a"],
        ["new"],
    )
    (work.path / "other").touch()
    done = work.cli("restore", str(number), "--if-unchanged", plan["token"], "-w", work.path)
    assert done.returncode == 46
    assert (work.path / "a").read_text() == "changed"


def test_a_script_must_say_that_it_means_it(work: Workspace) -> None:
    plant(work.path, {"a": "1"})
    number = save(work)
    (work.path / "a").write_text("2")
    done = work.cli("restore", str(number), "-w", work.path)
    assert done.returncode == 47
    assert (work.path / "a").read_text() == "2"


# -- by itself -------------------------------------------------------------------------------------


def test_what_a_command_destroyed_comes_back(own_mount: Workspace) -> None:
    plant(own_mount.path, {"src": {"main.c": "int main;", "util.c": "int util;"}})
    was = facts(own_mount.path)
    subprocess.run(["rm", "-rf", "src"], cwd=own_mount.path, check=True, start_new_session=True)
    listed = json.loads(ok(own_mount, "list", "--json"))["checkpoints"]
    assert listed[0]["kind"] == "auto"
    assert listed[0]["message"] == "before: rm -rf src"
    ok(own_mount, "rewind", "--force")
    assert facts(own_mount.path) == was


def test_a_restore_of_an_unmounted_workspace_stands_in_the_directory(work: Workspace) -> None:
    plant(work.path, {"a": "1"})
    number = save(work)
    (work.path / "a").write_text("2")
    work.umount()
    (work.path / "a").write_text("3, made outside")
    ok(work, "restore", str(number), "--force")
    assert (work.path / "a").read_text() == "1"
    ok(work, "undo")
    assert (work.path / "a").read_text() == "3, made outside"
