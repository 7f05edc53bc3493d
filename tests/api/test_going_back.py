"""Restores and undos as a program asks for them: paths, commands behind them, refusals."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckptfs import CheckpointConfig, CheckpointService
from ckptfs.errors import NotConfirmed, PathUnknown, TreeMoved, UsageError, WriteBackIncomplete
from tests.support.mounting import scratch


def test_a_restore_runs_the_command_of_the_settings(base: Path, work: Path) -> None:
    out = base / "told.json"
    command = ["sh", "-c", f"cat > {out}"]
    config = CheckpointConfig(mount=False, on_restore=command)
    with CheckpointService(work, config=config) as service:
        (work / "a").write_text("one\n")
        one = service.save("one", state={"turn": 1, "image": b"\0"})
        (work / "a").write_text("two\n")
        assert service.restore(one.id).hook == "done"
    told = json.loads(out.read_bytes())
    assert (told["checkpoint"], told["modified_paths"]) == (int(one.id), ["a"])
    assert told["state"] == {"turn": 1, "image": {"base64": "AA=="}}
    assert told["workspace"] == str(work)


def test_a_restore_of_nothing_runs_no_command(base: Path, work: Path) -> None:
    config = CheckpointConfig(mount=False, on_restore=["touch", str(base / "ran")])
    with CheckpointService(work, config=config) as service:
        one = service.save("one", allow_empty=True)
        assert service.restore(one.id).hook == "" and not (base / "ran").exists()
        two = service.save("two", state={"turn": 2})
        assert service.restore(two.id).hook == "done" and (base / "ran").exists()


@pytest.mark.parametrize(
    "command, reason",
    [
        (["false"], "false ended with 1"),
        (["sh", "-c", "echo no such turn >&2; exit 3"], "ended with 3: no such turn"),
        (["/no/such/program"], "could not be run"),
        (["sh", "-c", "kill $$"], "ended with -15"),
    ],
)
def test_a_command_that_fails_undoes_nothing(work: Path, command: list[str], reason: str) -> None:
    config = CheckpointConfig(mount=False, on_restore=command)
    with CheckpointService(work, config=config) as service:
        one = service.list()[0]
        (work / "a").write_text("two\n")
        assert reason in service.restore(one.id).hook
        assert os.listdir(work) == []


def test_paths_are_of_the_workspace(plain: CheckpointService, work: Path) -> None:
    (work / "sub").mkdir()
    (work / "sub/a").write_text("one\n")
    one = plain.save("one")
    for path in (work / "sub/a", "sub/a", "sub/../sub/a"):
        (work / "sub/a").write_text("two\n")
        assert plain.restore(one.id, [path]).modified_paths == ["sub/a"]
        (work / "sub/a").write_text("two\n")
        assert plain.restore(one.id, path).modified_paths == ["sub/a"]  # alone, too
    (work / "sub/a").write_text("two\n")
    assert plain.diff(one.id, paths="sub").modified_files == ["sub/a"]
    for path in ("../outside", "/etc/passwd"):
        with pytest.raises(PathUnknown, match="not inside"):
            plain.restore(one.id, [path])


def test_what_is_no_path_is_refused(plain: CheckpointService, work: Path) -> None:
    (work / "a").write_text("one\n")
    one = plain.save("one")
    (work / "a").write_text("two\n")
    for wrong in (5, [5], [None], {"a": 1}.values()):
        with pytest.raises(UsageError, match="as a path"):
            plain.restore(one.id, wrong)  # type: ignore[arg-type]
    assert (work / "a").read_text() == "two\n"
    assert plain.restore(one.id, b"a").modified_paths == ["a"]  # type: ignore[arg-type]


def test_undo_can_be_tried_and_can_mind_later_work(plain: CheckpointService, work: Path) -> None:
    (work / "a").write_text("one\n")
    one = plain.save("one")
    (work / "a").write_text("two\n")
    plain.restore(one.id)
    tried = plain.undo(dry_run=True)
    assert (tried.modified_paths, tried.dry_run) == (["a"], True)
    (work / "a").write_text("later\n")
    with pytest.raises(NotConfirmed):
        plain.undo(if_unchanged=True)
    with pytest.raises(TreeMoved):
        plain.undo(token=tried.token)
    assert (work / "a").read_text() == "later\n"
    plain.undo(token=plain.undo(dry_run=True).token)
    assert (work / "a").read_text() == "two\n"
    plain.redo(if_unchanged=True)
    assert (work / "a").read_text() == "later\n"


def test_a_list_without_paths_is_not_everything(plain: CheckpointService, work: Path) -> None:
    (work / "a").write_text("one\n")
    one = plain.save("one")
    (work / "a").write_text("two\n")
    with pytest.raises(UsageError, match="list of paths is empty"):
        plain.restore(one.id, [])
    with pytest.raises(UsageError, match="list of paths is empty"):
        plain.restore(one.id, [], dry_run=True)
    with pytest.raises(UsageError, match="list of paths is empty"):
        plain.diff(paths=[])
    with pytest.raises(UsageError, match="list of paths is empty"):
        plain.purge()
    assert (work / "a").read_text() == "two\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount over a directory")
def test_a_file_that_cannot_be_written_is_told(plain: CheckpointService, work: Path) -> None:
    (work / "sub").mkdir()
    (work / "sub/a").write_text("one\n")
    one = plain.save("one")
    (work / "sub/a").write_text("two\n")
    plain.save("two")
    # What is mounted there is another file system, which is none of the workspace's.
    with covered(work / "sub"):
        with pytest.raises(WriteBackIncomplete, match="sub"):
            plain.restore(one.id)
        assert plain.list()[0].kind == "restore"
    assert (work / "sub/a").read_text() == "two\n"
    plain.list()
    assert (work / "sub/a").read_text() == "one\n"


@contextmanager
def covered(path: Path) -> Iterator[None]:
    """Something else is mounted on a directory for a while."""
    with scratch() as elsewhere:
        inner = elsewhere / "inner"
        inner.mkdir()
        with CheckpointService(inner, config=CheckpointConfig(unmount_on_close=True)):
            subprocess.run(["mount", "--bind", inner, path], check=True)
            try:
                yield
            finally:
                subprocess.run(["umount", path], check=True)


def test_a_restore_is_of_the_state_or_of_the_files_if_asked(
    plain: CheckpointService, work: Path
) -> None:
    one = plain.save("one", state={"turn": 1})
    (work / "a").write_text("a")
    assert plain.restore(one.id, files=False).state == {"turn": 1}
    assert (work / "a").exists()
    assert plain.restore(one.id, state=False).state == {}
    assert not (work / "a").exists()
