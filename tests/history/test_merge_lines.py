"""Merging lines of work by name, through the verbs: what is taken, what is refused, what a failure
leaves; and comparing them."""

from __future__ import annotations

import errno
import os
import random
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ckptfs.errors import CheckpointUnknown, UsageError
from ckptfs.fs import Filesystem
from ckptfs.history import checkpoints, forks, merge, removal, undoable
from ckptfs.history.diff.changed import Changed
from ckptfs.history.merge_steps import Directory, Make
from ckptfs.model import ROOT_INO
from ckptfs.service import Service
from ckptfs.service.service import perform
from ckptfs.store import Store, check
from ckptfs.textmerge import Labels
from tests.direct import crashed
from tests.history.edits import Edits, Ticks
from tests.history.leftovers import leftovers


def deep(seed: int) -> Any:
    return pytest.param(seed, marks=pytest.mark.deep)


class Lines:
    """The main line and a fork of it, `idea`."""

    def __init__(self, store: Path) -> None:
        self.clock = Ticks()
        self.main = Edits(store, Filesystem(Store.create(store), self.clock))
        self.service = Service(self.main.fs)
        self.store = self.main.store

    def fork(self, name: str = "idea") -> Edits:
        made = forks.create(self.main.fs, name)
        fs = Filesystem(self.store, self.clock, line=made.number)
        return Edits(self.store.path, fs)

    def merge(self, source: str = "idea", **asked: Any) -> dict[str, Any]:
        return perform(self.service, "merge", {"source": source, **asked})

    def numbers(self) -> list[int]:
        return [item.id for item in checkpoints(self.store)]


@pytest.fixture
def lines(tmp_path: Path) -> Iterator[Lines]:
    made = Lines(tmp_path / "store")
    made.main.put("text", b"1\n2\n3\n4\n5\n")
    made.main.put("gone", b"old")
    made.main.mkdir("dir")
    made.main.put("dir/file", b"file")
    yield made
    made.main.fs.commit()
    assert check(made.store) == []
    removal.reap(made.main.fs)
    assert leftovers(made.store) == []
    made.store.close()


def text(edits: Edits, path: str = "text") -> bytes:
    inode = edits.at(path)
    return bytes(edits.fs.read(edits.fs.head, inode.ino, 0, inode.size))


def test_a_fork_is_merged_as_it_is_and_again_with_what_is_new(lines: Lines) -> None:
    idea = lines.fork()
    idea.put("text", b"1\ntheirs\n3\n4\n5\n")
    lines.main.put("text", b"1\n2\n3\n4\nours\n")
    assert lines.merge()["modified_paths"] == ["text"]
    assert text(lines.main) == b"1\ntheirs\n3\n4\nours\n"
    assert text(idea) == b"1\ntheirs\n3\n4\n5\n"
    lines.main.put("text", b"1\ntheirs\nthree\n4\nours\n")
    assert lines.merge()["changed"] is False
    idea.put("new", b"new")
    found = lines.merge()
    assert (found["added_paths"], found["modified_paths"]) == (["new"], [])
    assert text(lines.main) == b"1\ntheirs\nthree\n4\nours\n"


def test_two_lines_take_from_each_other(lines: Lines) -> None:
    idea = lines.fork()
    idea.put("theirs", b"theirs")
    lines.main.put("ours", b"ours")
    other = Service(idea.fs)
    assert perform(other, "merge", {"source": "main"})["added_paths"] == ["ours"]
    idea.put("ours", b"changed there")
    found = lines.merge()
    assert (found["added_paths"], found["modified_paths"]) == (["theirs"], ["ours"])
    assert perform(other, "merge", {"source": "main"})["changed"] is False
    assert text(lines.main, "ours") == b"changed there"


def test_neither_a_dry_run_nor_a_conflict_leaves_anything(lines: Lines) -> None:
    idea = lines.fork()
    idea.put("text", b"theirs\n")
    lines.main.put("text", b"ours\n")
    lines.main.fs.flush()
    before = lines.numbers(), lines.main.fs.head.epoch, idea.fs.head.epoch
    assert lines.merge(dry_run=True, resolution="theirs")["changed"] is False
    (conflict,) = lines.merge()["conflicts"]
    assert (conflict["path"], conflict["resolution"]) == ("text", None)
    assert (lines.numbers(), lines.main.fs.head.epoch, idea.fs.head.epoch) == before


def test_a_token_sees_what_the_other_line_does(lines: Lines) -> None:
    idea = lines.fork()
    idea.put("new", b"new")
    token = lines.merge(dry_run=True)["token"]
    idea.put("new", b"newer")
    with pytest.raises(Exception, match="changed"):
        lines.merge(token=token)
    assert lines.merge(token=lines.merge(dry_run=True)["token"])["changed"] is True
    assert text(lines.main, "new") == b"newer"


@pytest.mark.parametrize("source", ["main", "@", "now"])
def test_a_line_is_not_merged_into_itself(lines: Lines, source: str) -> None:
    lines.fork()
    with pytest.raises(UsageError, match="into itself"):
        lines.merge(source)


def test_what_is_no_line_is_named(lines: Lines) -> None:
    with pytest.raises(CheckpointUnknown):
        lines.merge("idea")


def test_one_conflict_is_decided_by_its_path(lines: Lines) -> None:
    idea = lines.fork()
    for edits, who in ((idea, b"theirs"), (lines.main, b"ours")):
        edits.put("text", who)
        edits.put("gone", who)
    found = lines.merge(resolutions={"text": "theirs"})
    assert [each["resolution"] for each in found["conflicts"]] == [None, "theirs"]
    assert lines.merge(resolution="ours", resolutions={"text": "theirs"})["changed"] is True
    assert (text(lines.main), text(lines.main, "gone")) == (b"theirs", b"ours")


def test_a_directory_of_theirs_under_a_name_that_they_use_goes_back_to_its_own(
    lines: Lines,
) -> None:
    idea = lines.fork()
    idea.put("moved", b"a file of theirs")
    lines.main.move("dir", "moved")
    lines.main.put("moved/ours", b"ours")
    assert lines.merge()["conflicts"][0]["kind"] == "added"
    lines.merge(resolution="theirs")
    assert text(lines.main, "moved") == b"a file of theirs"
    assert (text(lines.main, "dir/file"), text(lines.main, "dir/ours")) == (b"file", b"ours")


@pytest.mark.parametrize("kind", [stat.S_IFDIR, stat.S_IFREG])
def test_a_merge_that_fails_has_not_happened(lines: Lines, kind: int) -> None:
    """A directory cannot be made while what moves is out of the way, a file at the very end."""
    idea = lines.fork()
    idea.put("text", b"1\ntheirs\n3\n4\n5\n")
    idea.remove("gone")
    idea.move("dir/file", "moved")
    idea.put("new", b"new")
    fs = lines.main.fs
    held = lines.main.at("gone").ino
    fs.held[held] = 1  # a program has it open
    fs.flush()
    before = lines.numbers()
    theirs = merge.of_line(lines.store, idea.fs.line, "idea")
    plan = merge.plan_merge(fs, theirs, lambda _: "", Labels(b"", b"", b""))
    inode = idea.at("moved")._replace(mode=kind | 0o755)
    plan.makes.append(Make(inode, Directory(ROOT_INO), b"x" * 300, b"impossible"))
    with pytest.raises(OSError, match=os.strerror(errno.ENAMETOOLONG)):
        merge.merge(fs, theirs, plan, whole=True, changed=Changed(set(), set()))
    assert lines.numbers() == before
    assert undoable(fs) is None
    assert sorted(name for name, _ in fs.entries(fs.head, ROOT_INO)) == [b"dir", b"gone", b"text"]
    assert text(lines.main) == b"1\n2\n3\n4\n5\n"
    assert (lines.main.at("gone").ino, fs.unlinked) == (held, set())
    fs.held.clear()
    assert check(lines.store) == []
    assert lines.merge()["added_paths"] == ["moved", "new"]


def test_a_merge_is_there_after_a_crash(lines: Lines) -> None:
    idea = lines.fork()
    idea.put("new", b"theirs")
    found = lines.merge()
    idea.put("new", b"not synced")
    lines.main = Edits(lines.store.path, crashed(lines.main.fs))
    lines.store, lines.service = lines.main.store, Service(lines.main.fs)
    assert text(lines.main, "new") == b"theirs"
    assert lines.numbers()[-1] == found["after"]
    assert lines.merge()["changed"] is False


# -- git's verdict ---------------------------------------------------------------------------------


def git(*words: str, repository: Path, code: int = 0) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "merge.renames=false")
    done = subprocess.run(
        ["git", *who, *words], cwd=repository, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, code), done.stderr
    return done.stdout


def edited(rng: random.Random, files: dict[str, list[str]], who: str) -> dict[str, list[str]]:
    """The files after some changes: lines replaced, put in or taken out, files made or removed."""
    found = {name: list(lines) for name, lines in files.items()}
    for number in range(rng.randrange(1, 5)):
        name = rng.choice(sorted(found))
        at = rng.randrange(len(found[name]) + 1)
        line = f"{who} {number}" if rng.random() < 0.8 else f"both {number}"
        change = rng.randrange(8)
        if change == 0 and len(found) > 1:
            del found[name]
        elif change == 1:
            found[f"new {rng.randrange(2)}"] = [line]
        elif change < 4:
            found[name].insert(at, line)
        else:
            # To git a new file without lines is none: it merges what we call two files of one name.
            found[name][at : at + 1] = [] if change == 7 and len(found[name]) > 1 else [line]
    return found


def written(files: dict[str, list[str]]) -> dict[str, bytes]:
    return {name: "".join(f"{line}\n" for line in lines).encode() for name, lines in files.items()}


def put_all(edits: Edits, files: dict[str, bytes]) -> None:
    fs = edits.fs
    for name, _ in list(fs.entries(fs.head, ROOT_INO)):
        if name.decode() not in files:
            edits.remove(name)
    for path, data in files.items():
        edits.put(path, data)


def commit(repository: Path, branch: str, files: dict[str, bytes]) -> None:
    if branch != "base":
        git("checkout", "-q", "-b", branch, "base", repository=repository)
    for path in repository.iterdir():
        if path.is_file():
            path.unlink()
    for name, data in files.items():
        (repository / name).write_bytes(data)
    git("add", "-A", repository=repository)
    git("commit", "-q", "--allow-empty", "-m", branch, repository=repository)


@pytest.mark.parametrize("seed", [*range(12), *(deep(seed) for seed in range(12, 400))])
def test_random_changes_conflict_where_git_says_so(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    base = {f"file {n}": [f"{n} {line}" for line in range(12)] for n in range(3)}
    ours, theirs = edited(rng, base, "ours"), edited(rng, base, "theirs")
    repository = tmp_path / "git"
    repository.mkdir()
    git("init", "-q", "-b", "base", repository=repository)
    lines = Lines(tmp_path / "store")
    put_all(lines.main, written(base))
    commit(repository, "base", written(base))
    put_all(lines.fork(), written(theirs))
    commit(repository, "theirs", written(theirs))
    put_all(lines.main, written(ours))
    commit(repository, "ours", written(ours))
    words = ("merge-tree", "--write-tree", "--name-only", "ours", "theirs")
    tree, *told = git(*words, repository=repository, code=1).splitlines()
    conflicts = set(told[: told.index("")]) if told else set()
    found = lines.merge()
    assert {each["path"] for each in found["conflicts"]} == conflicts
    if not conflicts:
        names = git("ls-tree", "-z", "--name-only", tree, repository=repository).split("\0")[:-1]
        fs = lines.main.fs
        assert [name.decode() for name, _ in sorted(fs.entries(fs.head, ROOT_INO))] == names
        for name in names:
            assert text(lines.main, name).decode() == git(
                "show", f"{tree}:{name}", repository=repository
            )
    assert check(lines.store) == []
    lines.store.close()


# -- comparing -------------------------------------------------------------------------------------


def test_states_are_compared_with_what_they_have_in_common(lines: Lines) -> None:
    idea, other = lines.fork(), lines.fork("other")
    idea.put("text", b"1\ntheirs\n3\n4\n5\n")
    other.put("text", b"1\ntheirs\n3\n4\n5\n")
    other.put("gone", b"other")
    idea.put("gone", b"idea")
    idea.put("new", b"a\nb\n")
    found = perform(lines.service, "compare", {"states": ["main", "idea", "other"]})
    assert [(each["name"], each["added"], each["modified"]) for each in found["states"]] == [
        ("main", 0, 0),
        ("idea", 1, 2),
        ("other", 0, 2),
    ]
    assert [each["lines_added"] for each in found["states"]] == [0, 4, 2]
    assert found["paths"] == [
        {"path": "gone", "changed_by": ["idea", "other"], "alike": False},
        {"path": "new", "changed_by": ["idea"], "alike": True},
        {"path": "text", "changed_by": ["idea", "other"], "alike": True},
    ]
    with pytest.raises(UsageError, match="fewer than two"):
        perform(lines.service, "compare", {"states": ["main"]})


def test_a_diff_names_forks_as_they_are(lines: Lines) -> None:
    idea = lines.fork()
    idea.put("new", b"new")
    found = perform(lines.service, "diff", {"older": "main", "newer": "idea"})
    assert [change["path"] for change in found["changes"]] == ["new"]
    found = perform(lines.service, "diff", {"older": "idea"})
    assert [change["status"] for change in found["changes"]] == ["D"]
