"""Forks by the API: each is a service of its own, and events say which line they are about."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from ckptfs import AsyncCheckpointService, CheckpointService
from ckptfs.cli.worktrees import Made, link_all
from ckptfs.errors import ForkBusy, ForkTaken, ForkUnknown, NotMounted


@pytest.fixture
def service(work: Path) -> CheckpointService:
    (work / "file").write_text("base")
    found = CheckpointService(work)
    assert found.initialize().mounted
    return found


def test_a_fork_is_a_service_of_its_own(service: CheckpointService, base: Path) -> None:
    idea = service.fork("idea", at=base / "idea")
    path = base / "idea"
    assert idea.workspace.path == path and idea.mounted
    (path / "file").write_text("changed")
    saved = idea.save("in the fork")
    assert idea.get(saved.id).message == "in the fork"
    assert saved.id in [item.id for item in idea.list()]
    assert saved.id not in [item.id for item in service.list()]
    (path / "file").write_text("again")
    idea.restore(saved.id)
    assert (path / "file").read_text() == "changed"
    with idea as entered:
        assert entered.status().workspace == str(path)
    (found,) = service.forks()
    assert (found.name, found.path, found.modified) == ("idea", str(path), 1)
    assert service.merge("idea").changed
    assert (service.workspace.path / "file").read_text() == "changed"
    inner = idea.fork("inner", start=saved.id, without=["file"])
    assert not (inner.workspace.path / "file").exists()


def test_a_fork_is_renamed_and_deleted(service: CheckpointService) -> None:
    idea = service.fork("idea")
    path = idea.workspace.path
    (path / "new").write_text("x")
    with pytest.raises(ForkTaken):
        service.fork("idea")
    with subprocess.Popen([sys.executable, "-c", "input()"], cwd=path, stdin=-1) as inside:
        with pytest.raises(ForkBusy, match=str(inside.pid)):
            service.delete_fork("idea")
        inside.communicate(b"\n")
    service.rename_fork("idea", "other")
    assert [found.name for found in service.forks()] == ["other"]
    last = service.delete_fork("other")
    assert last.kind == "fork" and service.forks() == []
    again = service.fork("idea", start=last.id)
    assert (again.workspace.path / "new").read_text() == "x"
    with pytest.raises(ForkUnknown):
        service.delete_fork("nonsense")


def test_events_say_which_line_they_are_about(service: CheckpointService) -> None:
    made: list[str] = []
    service.on("fork_created", lambda event: made.append(event.data["name"]))
    events = service.watch()
    idea = service.fork("idea")
    with idea.watch() as there:
        idea.save("there", allow_empty=True)
        event = next(there)
        assert (event.kind, event.fork) == ("checkpoint_created", "idea")
        assert event.workspace == str(idea.workspace.path)
    service.save("here", allow_empty=True)
    kinds = [(event.kind, event.fork) for event in (next(events), next(events))]
    assert kinds == [("fork_created", ""), ("checkpoint_created", "")]
    assert made == ["idea"]
    events.close()


def test_a_fork_is_awaited(service: CheckpointService) -> None:
    async def main() -> None:
        idea = await AsyncCheckpointService(service.workspace.path).fork("idea")
        async with idea as entered:
            assert (await entered.status()).mounted

    asyncio.run(main())


def test_without_a_mount_there_is_no_fork(plain: CheckpointService) -> None:
    with pytest.raises(NotMounted):
        plain.fork("idea")
    assert plain.forks() == []


def test_git_follows_a_linked_worktree_that_is_renamed_and_deleted(
    service: CheckpointService,
) -> None:
    root = service.workspace.path

    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(root), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "one")
    idea = service.fork("idea", without=["/.git"])
    link_all(root, [Made("idea", idea.workspace.path, taken_up=False)])
    service.rename_fork("idea", "plan")
    (fork,) = service.forks()
    assert str(fork.path) in git("worktree", "list")
    service.delete_fork("plan")
    assert len(git("worktree", "list").splitlines()) == 1
    assert "idea" in git("branch")
