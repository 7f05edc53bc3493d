"""ClawTeam's members in git work trees: what a restore of the team brings back of git's state.

HEAD and index of a work tree are in the repository, not in the tree. They come back if the
repository, where the lead works, is a workspace too; otherwise they stay, and no commit is lost.
"""

from __future__ import annotations

import json
import os
import subprocess
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.mounting import HAVE_FUSE, ckptfs, is_mounted, scratch, succeed

pytestmark = pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")

HERE = Path(__file__).parent
PACKAGE = "clawteam==0.2.0"


class Crew:
    """A repository, a data directory, and alice and bob in work trees of their own."""

    def __init__(self, base: Path) -> None:
        self.repository = base / "repository"
        self.data = base / "data"
        self.env = {
            "HOME": str(base),
            "XDG_DATA_HOME": str(base / "stores"),
            "XDG_STATE_HOME": str(base / "state"),
            "CLAWTEAM_DATA_DIR": str(self.data),
            "GIT_CONFIG_GLOBAL": "/dev/null",
        }
        self.repository.mkdir()
        self.git("init", "-q", "-b", "main")
        self.git("config", "user.name", "me")
        self.git("config", "user.email", "me@example.org")
        (self.repository / "file").write_text("one\n")
        self.git("add", ".")
        self.git("commit", "-qm", "first")

    def tree(self, name: str) -> Path:
        return self.data / "workspaces" / "red" / name

    def git(self, *words: str, at: Path | None = None) -> str:
        done = subprocess.run(
            ["git", "-C", at or self.repository, *words],
            env={**os.environ, **self.env},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def state(self, name: str) -> tuple[str, str, str]:
        """What git and a reader see of a work tree: the commit, the index, the file."""
        tree = self.tree(name)
        head = self.git("log", "-1", "--format=%s", at=tree)
        return head.strip(), self.git("diff", "--cached", at=tree), (tree / "file").read_text()

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return succeed(ckptfs(*words, env=self.env))

    def work(self) -> None:
        """What agents do after the snapshot: alice commits, bob stages something."""
        (self.tree("alice") / "file").write_text("by alice\n")
        self.git("commit", "-qam", "alice's work", at=self.tree("alice"))
        (self.tree("bob") / "file").write_text("by bob\n")
        self.git("add", "file", at=self.tree("bob"))

    def end(self) -> None:
        for path in (self.tree("alice"), self.tree("bob"), self.repository):
            if is_mounted(path):
                self.run("umount", path)


def by_git(crew: Crew) -> None:
    """The layout as ClawTeam 0.2.0 makes it."""
    trees = []
    for name in ("alice", "bob"):
        branch = f"clawteam/red/{name}"
        crew.tree(name).parent.mkdir(parents=True, exist_ok=True)
        crew.git("worktree", "add", "-q", "-b", branch, str(crew.tree(name)), "main")
        trees.append(
            {
                "agent_name": name,
                "agent_id": f"{name}01",
                "team_name": "red",
                "branch_name": branch,
                "worktree_path": str(crew.tree(name)),
                "repo_root": str(crew.repository),
                "base_branch": "main",
            }
        )
    registry = {"team_name": "red", "repo_root": str(crew.repository), "workspaces": trees}
    members = [{"name": name, "agentId": f"{name}01"} for name in ("alice", "bob")]
    lead = {"name": "lead", "agentId": "lead001", "agentType": "leader"}
    config = {"name": "red", "leadAgentId": "lead001", "members": [lead, *members]}
    (crew.data / "teams/red").mkdir(parents=True)
    (crew.data / "teams/red/config.json").write_text(json.dumps(config))
    (crew.data / "workspaces/red/workspace-registry.json").write_text(json.dumps(registry))


@pytest.fixture(scope="module")
def their_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("clawteam")
    venv.create(place, with_pip=True)
    subprocess.run([place / "bin/python", "-m", "pip", "install", "-q", PACKAGE], check=True)
    return place / "bin" / "python"


@pytest.fixture(params=["by git", pytest.param("by its package", marks=pytest.mark.deep)])
def lay_out(request: pytest.FixtureRequest) -> Callable[[Crew], None]:
    if request.param == "by git":
        return by_git
    python: Path = request.getfixturevalue("their_python")

    def by_its_package(crew: Crew) -> None:
        words = [python, HERE / "clawteam_layout.py", crew.repository]
        subprocess.run(words, env={**os.environ, **crew.env}, check=True)

    return by_its_package


@pytest.fixture
def crew(lay_out: Callable[[Crew], None]) -> Iterator[Crew]:
    with scratch() as base:
        made = Crew(base)
        lay_out(made)
        try:
            yield made
        finally:
            made.end()


BEGIN = ("first", "", "one\n")


def test_with_the_trees_alone_files_come_back_and_git_stays_where_it_is(crew: Crew) -> None:
    for name in ("alice", "bob"):
        crew.run("mount", crew.tree(name))
    taken = json.loads(crew.run("team", "snapshot", "red", "--json").stdout)
    assert [place["members"] for place in taken["parts"]] == [["alice"], ["bob"]]
    crew.work()
    crew.run("team", "restore", "red", "latest", "--force")
    assert (crew.tree("alice") / "file").read_text() == "one\n"
    head, staged, _ = crew.state("alice")
    assert (head, staged) == ("alice's work", "")  # the commit is not lost
    assert crew.git("status", "--short", at=crew.tree("alice")) == " M file\n"
    head, staged, text = crew.state("bob")
    assert (head, text) == ("first", "one\n") and "+by bob" in staged
    # The way back to what the branch was, as the documentation says.
    crew.git("reset", "-q", "--soft", "main", at=crew.tree("alice"))
    crew.git("reset", "-q", at=crew.tree("alice"))
    assert crew.state("alice") == BEGIN
    assert crew.git("status", "--short", at=crew.tree("alice")) == ""


def test_with_the_repository_as_a_workspace_head_and_index_come_back(crew: Crew) -> None:
    for path in (crew.repository, crew.tree("alice"), crew.tree("bob")):
        crew.run("mount", path)
    taken = json.loads(crew.run("team", "snapshot", "red", "--json").stdout)
    assert sorted(place["members"] for place in taken["parts"]) == [
        ["alice"],
        ["bob"],
        ["lead"],
    ]
    crew.work()
    assert crew.state("alice")[0] == "alice's work"
    crew.run("team", "restore", "red", "latest", "--force")
    for name in ("alice", "bob"):
        assert crew.state(name) == BEGIN
        assert crew.git("status", "--short", at=crew.tree(name)) == ""
    assert crew.git("fsck", "--no-dangling") == ""
    crew.run("team", "restore", "red", "before", "--force")
    assert crew.state("alice") == ("alice's work", "", "by alice\n")
    assert "+by bob" in crew.state("bob")[1]
