"""Named forks: mounts of their own, whole workspaces each, that come back after a remount."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.mounting import Workspace, ckptfs, is_mounted, succeed, workspace
from tests.support.staging import USER, said
from tests.support.waiting import wait_for_exit, wait_until

pytestmark = [pytest.mark.needs_mount, pytest.mark.compiled_only]


@pytest.fixture
def work() -> Iterator[Workspace]:
    with workspace("--no-write-back", "--auto", "off") as made:
        yield made


@pytest.fixture
def automatic() -> Iterator[Workspace]:
    with workspace("--no-write-back") as made:
        yield made


def run(work: Workspace, *words: str | Path, at: Path | None = None) -> dict[str, Any]:
    """The record of a verb in the workspace, or in a fork of it."""
    done = succeed(work.cli(*words, "-w", at or work.path, "--json"))
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def refused(work: Workspace, *words: str | Path, at: Path | None = None) -> tuple[int, str]:
    done = work.cli(*words, "-w", at or work.path)
    assert done.stdout == ""
    return done.returncode, done.stderr


def fork(work: Workspace, name: str, *words: str | Path, at: Path | None = None) -> Path:
    (made,) = run(work, "fork", name, *words, at=at)["forks"]
    return Path(made["path"])


def listed(work: Workspace) -> dict[str, dict[str, Any]]:
    return {found["name"]: found for found in run(work, "forks")["forks"]}


def git(path: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    done = subprocess.run(
        ["git", *identity, *words], cwd=path, capture_output=True, text=True, check=False
    )
    return succeed(done).stdout.strip()


def repository(path: Path) -> None:
    git(path, "init", "-q", "-b", "trunk")
    for name in ("committed", "changed"):
        (path / name).write_text("one\n")
    git(path, "add", ".")
    git(path, "commit", "-qm", "one")


def names(work: Workspace, at: Path | None = None) -> list[str]:
    found = run(work, "list", at=at)["checkpoints"]
    return [each["message"] for each in found]


def test_a_fork_is_a_tree_of_its_own(work: Workspace) -> None:
    (work.path / "file").write_text("base")
    idea = fork(work, "idea")
    (idea / "file").write_text("theirs")
    (work.path / "file").write_text("ours")
    (idea / "new").write_text("new")
    assert (work.path / ".forks/idea/file").read_text() == "theirs"
    assert (work.path / "file").read_text() == "ours"
    assert sorted(os.listdir(work.path)) == ["file"]
    assert os.listdir(work.path / ".forks") == ["idea"]
    assert os.stat(idea).st_dev != os.stat(work.path).st_dev
    with pytest.raises(OSError, match="cross-device"):
        os.rename(idea / "new", work.path / "new")
    found = listed(work)["idea"]
    assert (found["path"], found["added"], found["modified"]) == (str(idea), 1, 1)


def test_a_path_through_the_link_to_a_fork_asks_for_nothing_more(work: Workspace) -> None:
    """The kernel keeps where the link leads: a daemon that stands still is not asked."""
    fork(work, "idea")
    link = work.path / ".forks/idea"
    target = os.readlink(link)
    assert work.pid is not None
    os.kill(work.pid, signal.SIGSTOP)
    try:
        done = subprocess.run(["readlink", link], capture_output=True, text=True, timeout=60)
    finally:
        os.kill(work.pid, signal.SIGCONT)
    assert done.stdout == f"{target}\n"
    run(work, "fork", "--rename", "idea", "other")
    assert os.readlink(work.path / ".forks/other") != target


def test_what_the_kernel_knew_of_forks_is_dropped(work: Workspace) -> None:
    place = work.path / ".forks"
    assert not place.exists()
    fork(work, "one")
    assert (place / "one").is_dir() and not (place / "two").exists()
    fork(work, "two")
    assert sorted(os.listdir(place)) == ["one", "two"] and (place / "two").is_dir()
    run(work, "fork", "--rename", "one", "three")
    assert sorted(os.listdir(place)) == ["three", "two"] and not (place / "one").exists()
    run(work, "fork", "--delete", "two")
    run(work, "fork", "--delete", "three")
    assert not place.exists()


def test_forks_are_there_after_a_remount_and_after_a_kill(work: Workspace) -> None:
    elsewhere = work.path.parent / "elsewhere"
    (work.path / "file").write_text("base")
    usual, chosen = fork(work, "usual"), fork(work, "chosen", "--at", elsewhere)
    assert chosen == elsewhere
    (usual / "file").write_text("one")
    (chosen / "file").write_text("two")
    work.umount()
    assert not is_mounted(usual) and not is_mounted(chosen)
    work.mount()
    assert (usual / "file").read_text() == "one" and (chosen / "file").read_text() == "two"
    for place in (usual, chosen):
        with open(place / "synced", "w") as file:
            file.write(str(place))
            os.fsync(file.fileno())
    late = fork(work, "late")
    work.kill()
    assert is_mounted(usual), "dead"
    work.mount()
    for place in (usual, chosen):
        assert (place / "synced").read_text() == str(place)
    assert (late / "file").read_text() == "base"
    assert work.trouble() == ""


def test_a_copy_of_a_store_takes_no_fork_its_place(work: Workspace) -> None:
    place, backup = work.path.parent / "agent", work.path.parent / "backup"
    (work.path / "file").write_text("base")
    idea = fork(work, "idea", "--at", place)
    succeed(work.cli("backup", backup, "-w", work.path))
    (idea / "file").write_text("newer")
    work.umount()
    other = work.path.parent / "other"
    other.mkdir()
    for _ in range(2):
        succeed(work.cli("mount", other, "--store", backup))
        assert (other / ".forks/idea/file").read_text() == "base"
        assert not is_mounted(place)
        succeed(work.cli("umount", other))
    moved = work.path.rename(work.path.with_name("moved"))
    work.path = moved
    work.mount()
    assert (place / "file").read_text() == "newer", "a workspace that moved is the same one"


@pytest.mark.parametrize("how", ["signal", "kill"])
def test_a_directory_that_was_chosen_for_a_fork_stays(work: Workspace, how: str) -> None:
    place = work.path.parent / "agent"
    place.mkdir()
    before = place.stat()
    usual, _ = fork(work, "usual"), fork(work, "idea", "--at", place)
    assert work.pid is not None
    pid = work.pid
    if how == "signal":
        os.kill(pid, signal.SIGTERM)
        wait_for_exit(pid)
        work.pid = None
    else:
        work.kill()
        succeed(work.cli("umount", work.path))
    assert (place.stat().st_ino, place.stat().st_dev) == (before.st_ino, before.st_dev)
    assert not usual.exists()


def test_an_unmount_after_a_kill_leaves_no_dead_forks(work: Workspace) -> None:
    place = fork(work, "one")
    work.kill()
    succeed(work.cli("umount", work.path))
    assert not is_mounted(place) and not place.exists()


def test_a_program_in_a_fork_goes_on_when_the_workspace_is_detached(work: Workspace) -> None:
    idea, other = fork(work, "idea"), fork(work, "other")
    with (idea / "file").open("w") as file:
        assert work.cli("umount", work.path).returncode == 27
        succeed(work.cli("umount", "--lazy", work.path))
        assert not any(map(is_mounted, (work.path, idea, other)))
        assert work.status()["state"] == "waiting for the last open file"
        file.write("written later")
    wait_until(lambda: work.status()["state"] == "unmounted", "the daemon has ended")
    work.mount()
    assert (idea / "file").read_text() == "written later"
    assert os.listdir(other) == []


def test_every_verb_works_in_a_fork(work: Workspace) -> None:
    (work.path / "file").write_text("base")
    run(work, "save", "in main")
    idea = fork(work, "idea")
    (idea / "file").write_text("one")
    saved = run(work, "save", "one", "--tag", "first", at=idea)["id"]
    (idea / "file").write_text("two")
    assert run(work, "diff", at=idea)["modified"] == 1
    assert (idea / ".checkpoints" / "first" / "file").read_text() == "one"
    assert os.readlink(idea / ".checkpoints/latest") == str(saved)
    assert os.readlink(work.path / ".checkpoints/latest") != str(saved)
    run(work, "restore", "first", "--force", at=idea)
    assert (idea / "file").read_text() == "one"
    run(work, "undo", "--force", at=idea)
    assert (idea / "file").read_text() == "two"
    assert "one" in names(work, idea) and "in main" in names(work, idea)
    assert "one" not in names(work)
    assert len(run(work, "log", idea / "file", at=idea)["versions"]) >= 2
    assert run(work, "status", at=idea)["fork"] == "idea"
    assert run(work, "status")["fork_names"] == ["idea"]
    assert run(work, "show", "first", at=idea)["modified"] == 1
    run(work, "task", "start", "T", at=idea)
    (idea / "made").write_text("x")
    run(work, "task", "done", at=idea)
    run(work, "task", "revert", "T", at=idea)
    assert not (idea / "made").exists() and run(work, "task", "list")["tasks"] == []
    assert run(work, "check", at=idea)["problems"] == []
    assert run(work, "status", "--space", at=idea)["live_bytes"]
    os.mkdir(idea / ".checkpoints/by-mkdir")
    assert "by-mkdir" in names(work, idea)
    assert (work.path / "file").read_text() == "base"


def test_the_workspace_is_found_from_inside_a_fork(work: Workspace) -> None:
    (work.path / "d").mkdir()
    idea = fork(work, "idea", "--at", work.path.parent / "idea")
    (idea / "d/f").write_text("x")
    done = succeed(ckptfs("save", "here", "--json", env=work.env, cwd=idea / "d"))
    assert json.loads(done.stdout)["message"] == "here"
    linked = work.path / ".forks/idea/d"
    succeed(ckptfs("save", "linked", "--allow-empty", env=work.env, cwd=linked))
    assert names(work, idea)[:2] == ["linked", "here"]
    assert "here" not in names(work)


def test_a_fork_takes_checkpoints_by_itself(automatic: Workspace) -> None:
    work = automatic
    (work.path / "file").write_text("base")
    idea = fork(work, "idea")
    for text in ("one", "two"):
        subprocess.run(["sh", "-c", f"echo {text} > {idea}/file"], check=True)
    found = run(work, "list", at=idea)["checkpoints"]
    assert any("echo two" in each["message"] for each in found), found
    assert not any("echo two" in each["message"] for each in run(work, "list")["checkpoints"])
    (last,) = [each for each in found if "echo two" in each["message"]]
    assert (idea / ".checkpoints" / str(last["id"]) / "file").read_text() == "one\n"


def test_forks_are_merged_compared_and_diffed_by_name(work: Workspace) -> None:
    (work.path / "file").write_text("base\n")
    one, other = fork(work, "one"), fork(work, "other")
    # Written and not synced: what the kernel still has counts, too.
    (one / "one").write_text("1")
    (other / "file").write_text("changed\n")
    assert run(work, "diff", "main", "one")["added"] == 1
    compared = run(work, "compare", "one", "other")
    assert {each["name"]: each["added"] for each in compared["states"]} == {"one": 1, "other": 0}
    run(work, "merge", "one")
    run(work, "merge", "other")
    assert (work.path / "one").read_text() == "1"
    assert (work.path / "file").read_text() == "changed\n"
    (work.path / "file").write_text("later\n")
    run(work, "merge", "main", at=one)
    assert (one / "file").read_text() == "later\n"
    run(work, "undo", "--force", at=one)
    assert (one / "file").read_text() == "base\n"


def test_a_merge_takes_what_a_fork_has_in_mapped_pages(work: Workspace) -> None:
    one = fork(work, "one")
    script = (
        "import mmap, sys\n"
        "with open(sys.argv[1], 'w+b') as file:\n"
        "    file.truncate(4096)\n"
        "    with mmap.mmap(file.fileno(), 4096) as pages:\n"
        "        pages[:5] = b'hello'\n"
        "        print(flush=True); sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(one / "mapped")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        run(work, "merge", "one")
        process.communicate("\n", timeout=30)
    assert (work.path / "mapped").read_bytes()[:5] == b"hello"


def test_a_fork_of_a_fork_and_of_a_checkpoint(work: Workspace) -> None:
    (work.path / "file").write_text("old")
    number = run(work, "save", "old")["id"]
    (work.path / "file").write_text("new")
    old = fork(work, "old", "--from", str(number))
    assert (old / "file").read_text() == "old"
    (old / "file").write_text("changed")
    inner = fork(work, "inner", at=old)
    assert (inner / "file").read_text() == "changed"
    run(work, "fork", "--delete", "old")
    assert (inner / "file").read_text() == "changed"
    run(work, "delete", str(listed(work)["inner"]["base_id"]), "--force")
    assert (inner / "file").read_text() == "changed"
    run(work, "merge", "inner", "--theirs")
    assert (work.path / "file").read_text() == "changed"


def test_several_are_made_at_once_or_none(work: Workspace) -> None:
    (work.path / "file").write_text("x")
    made = run(work, "fork", "try", "-n", "3", "--at", work.path.parent / "at")["forks"]
    assert [Path(each["path"]).name for each in made] == ["at-1", "at-2", "at-3"]
    assert {each["base_id"] for each in made} == {made[0]["base_id"]}
    before = names(work)
    code, said = refused(work, "fork", "try", "-n", "4")
    assert code == 88 and "try-1" in said
    (work.path.parent / "in-2").mkdir()
    (work.path.parent / "in-2/full").touch()
    code, said = refused(work, "fork", "more", "-n", "2", "--at", work.path.parent / "in")
    assert code != 0 and "in-2" in said
    assert sorted(listed(work)) == ["try-1", "try-2", "try-3"] and names(work) == before
    assert refused(work, "fork", "none", "-n", "0")[0] == 2


def test_a_fork_without_what_matches(work: Workspace) -> None:
    for name in ("node_modules/a/b", "src/a"):
        (work.path / name).parent.mkdir(parents=True)
        (work.path / name).write_text(name)
    slim = fork(work, "slim", "--without", "node_modules")
    assert os.listdir(slim) == ["src"]
    assert (work.path / "node_modules/a/b").exists()


def test_a_fork_in_use_is_deleted_by_force_only(work: Workspace) -> None:
    idea = fork(work, "idea")
    (idea / "file").write_text("last")
    with subprocess.Popen(["sleep", "60"], cwd=idea) as process:
        code, said = refused(work, "fork", "--delete", "idea")
        assert code == 91 and f"sleep ({process.pid})" in said and "Nothing was changed" in said
        assert refused(work, "fork", "--rename", "idea", "other")[0] == 91
        code, said = refused(work, "umount", work.path)
        assert code == 27 and str(idea) in said
        assert (idea / "file").read_text() == "last"
        (gone,) = run(work, "fork", "--delete", "idea", "--force")["forks"]
        process.kill()
    assert not idea.exists() and listed(work) == {}
    assert (work.path / ".checkpoints" / str(gone["checkpoint"]) / "file").read_text() == "last"
    again = fork(work, "idea", "--from", str(gone["checkpoint"]))
    assert (again / "file").read_text() == "last"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("..", 87),
        ("a/b", 87),
        ("x" * 256, 87),
        ("12", 87),
        ("main", 87),
        ("latest", 87),
        ("", 87),
        ("a\nb", 87),
        (".hidden", 87),
        ("scratch-1", 87),
        ("tagged", 88),
    ],
)
def test_a_name_that_cannot_be(work: Workspace, name: str, code: int) -> None:
    run(work, "save", "x", "--tag", "tagged", "--allow-empty")
    before = names(work)
    found, said = refused(work, "fork", name)
    assert found == code and "Nothing was changed" in said
    assert listed(work) == {} and names(work) == before


def test_the_longest_name_and_bytes_that_are_no_text(work: Workspace) -> None:
    long = "ä" * 127 + "x"
    assert fork(work, long).name == long
    assert os.path.isdir(work.path / ".forks" / long)
    assert refused(work, "fork", "\udcff")[0] == 87


def test_places_that_cannot_be(work: Workspace) -> None:
    base = work.path.parent
    (base / "full").mkdir()
    (base / "full/x").touch()
    for at in (work.path / "inside", work.store / "x", base, base / "full", base / "no/such"):
        code, said = refused(work, "fork", "f", "--at", at)
        assert code != 0 and "Traceback" not in said, said
    one = fork(work, "one", "--at", base / "one")
    assert refused(work, "fork", "f", "--at", one / "inside")[0] != 0
    assert list(listed(work)) == ["one"]


@pytest.mark.parametrize("count", ["0", "-3", "501", "30000000"])
def test_counts_that_cannot_be(work: Workspace, count: str) -> None:
    code, said = refused(work, "fork", "f", f"-n{count}")
    assert code != 0 and "Nothing was changed" in said
    assert listed(work) == {}


def test_a_place_inside_the_workspace_by_another_way(work: Workspace) -> None:
    other = work.path.parent / "other"
    other.mkdir()
    subprocess.run(["mount", "--bind", work.path, other], check=True)
    try:
        (work.path / "inside").mkdir()
        code, said = refused(work, "fork", "f", "--at", other / "inside")
        assert code != 0 and str(work.path) in said
        assert listed(work) == {}
    finally:
        subprocess.run(["umount", other], check=True)


def test_a_fork_is_followed_where_its_place_was_moved(work: Workspace) -> None:
    base = work.path.parent
    (base / "before").mkdir()
    place = fork(work, "one", "--at", base / "before/one")
    (place / "file").write_text("kept")
    os.rename(base / "before", base / "after")
    stranger = base / "before/one"
    stranger.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", stranger], check=True)
    try:
        (stranger / "precious").touch()
        (base / "after/one/.checkpoints/named").mkdir()
        (gone,) = run(work, "fork", "--delete", "one")["forks"]
        assert (stranger / "precious").exists()
        assert not is_mounted(base / "after/one")
        assert (work.path / f".checkpoints/{gone['checkpoint']}/file").read_text() == "kept"
    finally:
        subprocess.run(["umount", stranger], check=True)


def test_what_was_mounted_over_a_fork_stays(work: Workspace) -> None:
    place = fork(work, "one")
    (place / "file").write_text("kept")
    subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
    try:
        (place / "precious").touch()
        for words in (["fork", "--delete", "one"], ["fork", "--delete", "--force", "one"]):
            assert refused(work, *words)[0] == 91
        assert work.cli("umount", work.path).returncode != 0
        assert (place / "precious").exists()
    finally:
        subprocess.run(["umount", place], check=True)
    assert (place / "file").read_text() == "kept"
    run(work, "fork", "--delete", "one")


def test_a_place_that_became_another_one_is_not_used_again(work: Workspace) -> None:
    base = work.path.parent
    for name in ("linked", "removed"):
        (base / name).mkdir()
        (fork(work, name, "--at", base / name / "f") / "file").write_text(name)
    work.umount()
    (base / "elsewhere").mkdir()
    for name in ("linked", "removed"):
        with suppress(FileNotFoundError):
            (base / name / "f").rmdir()
        (base / name).rmdir()
    (base / "linked").symlink_to("elsewhere")
    work.mount()
    assert os.listdir(base / "elsewhere") == [] and not (base / "removed").exists()
    for name in ("linked", "removed"):
        assert (work.path / ".forks" / name / "file").read_text() == name
        assert listed(work)[name]["path"] == str(work.store / "forks" / name)
    assert "cannot mount fork linked at" in work.trouble()


def test_forks_that_cannot_be_mounted_are_named(
    work: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = work.path.parent / "elsewhere"
    fork(work, "idea", "--at", elsewhere)
    work.umount()
    monkeypatch.setenv("CKPTFS_SERVER", "off")
    said = work.mount().stderr
    assert "Fork idea is not mounted: that takes the compiled server" in said
    assert f"What is written at {elsewhere} now is not in it." in said
    listing = succeed(work.cli("forks", "-w", work.path)).stdout
    assert "Fork idea is not mounted: that takes the compiled server" in listing
    assert "Fork idea is not mounted" in succeed(work.cli("status", "-w", work.path)).stdout
    (found,) = run(work, "forks")["not_mounted"]
    assert (found["name"], found["at"]) == ("idea", str(elsewhere))
    assert "forks are not mounted" in work.trouble()
    run(work, "fork", "--delete", "idea")
    assert run(work, "status")["forks_not_mounted"] == []
    work.umount()
    assert run(work, "forks")["not_mounted"] == []


def test_forks_that_go_with_the_store_are_named() -> None:
    with workspace() as work:
        (work.path / "file").write_text("old")
        fork(work, "idea", "--at", work.path.parent / "elsewhere")
        work.store.rename(work.path.parent / "away")
        (work.path / "file").unlink()
        wait_until(lambda: not is_mounted(work.path), "the directory is uncovered")
        assert work.pid is not None
        wait_for_exit(work.pid)
        work.pid = None
        said = work.cli("status", "-w", work.path).stderr
        assert "went with it. So did its forks: idea." in said
        assert not is_mounted(work.path.parent / "elsewhere")
        assert not (work.path / "file").exists()


def test_a_rename_to_a_name_whose_place_is_taken(work: Workspace) -> None:
    place = fork(work, "one")
    (place / "file").write_text("kept")
    (work.store / "forks/two").mkdir()
    (work.store / "forks/two/stray").touch()
    code, said = refused(work, "fork", "--rename", "one", "two")
    assert code != 0 and "Nothing was changed" in said
    assert (place / "file").read_text() == "kept"
    assert list(listed(work)) == ["one"]


def test_a_fork_that_was_unmounted_from_outside_comes_back_by_a_rename(work: Workspace) -> None:
    place = fork(work, "one")
    (place / "file").write_text("kept")
    subprocess.run(["umount", place], check=True)
    assert listed(work)["one"]["path"] == ""
    assert run(work, "fork", "--rename", "one", "two")["path"] == str(place.with_name("two"))
    assert (work.path / ".forks/two/file").read_text() == "kept"


def test_a_directory_of_the_users_own_is_never_hidden(work: Workspace) -> None:
    (work.path / ".forks").mkdir()
    (work.path / ".forks/mine").write_text("mine")
    idea = fork(work, "idea")
    assert os.listdir(work.path / ".forks") == ["mine"]
    (idea / "x").touch()
    assert listed(work)["idea"]["path"] == str(idea)


def test_a_fork_cannot_be_unmounted_alone(work: Workspace) -> None:
    idea = fork(work, "idea")
    code, said = refused(work, "umount", idea, at=idea)
    assert code == 2 and "fork --delete" in said
    assert is_mounted(idea)
    # By hand it can: it stays in the store, and comes back with the next mount.
    succeed(subprocess.run(["umount", idea], capture_output=True, text=True))
    wait_until(lambda: not (work.path / ".forks").exists(), "the daemon has noticed")
    assert listed(work)["idea"]["path"] == ""
    work.remount()
    assert is_mounted(idea)


def test_a_purge_takes_a_file_from_every_fork(work: Workspace) -> None:
    (work.path / "secret").write_text("x" * 100)
    idea = fork(work, "idea")
    assert (idea / "secret").exists()
    run(work, "purge", work.path / "secret", "--force")
    assert not (idea / "secret").exists() and not (work.path / "secret").exists()


def test_a_deleted_checkpoint_is_gone_from_every_fork(work: Workspace) -> None:
    idea = fork(work, "idea")
    number = str(run(work, "save", "x", "--allow-empty")["id"])
    assert (idea / ".checkpoints" / number).exists()
    run(work, "delete", number, "--force")
    assert not (idea / ".checkpoints" / number).exists()


@pytest.mark.needs_program("git")
def test_a_fork_is_a_linked_worktree(work: Workspace) -> None:
    code, said = refused(work, "fork", "idea", "--git")
    assert code == 2 and "repository" in said
    repository(work.path)
    (work.path / "changed").write_text("two\n")
    (work.path / "untracked").write_text("x")
    idea = fork(work, "idea", "--git")
    assert git(idea, "status", "--porcelain").splitlines() == ["M changed", "?? untracked"]
    assert git(idea, "branch", "--show-current") == "idea"
    git(idea, "commit", "-qam", "in the fork")
    assert git(work.path, "log", "-1", "--format=%s", "idea") == "in the fork"
    assert git(work.path, "log", "-1", "--format=%s") == "one"
    # The branch is there already: then there is no fork either, and no branch for it.
    git(work.path, "branch", "taken-2")
    assert refused(work, "fork", "taken", "--git", "-n", "2")[0] == 2
    assert list(listed(work)) == ["idea"]
    assert git(work.path, "branch", "--list", "taken-1") == ""


@pytest.mark.needs_program("git")
def test_a_linked_worktree_is_merged_moved_deleted_and_brought_back(work: Workspace) -> None:
    repository(work.path)
    idea = fork(work, "idea", "--git")
    (idea / "new").write_text("new")
    run(work, "merge", "idea")
    assert (work.path / "new").read_text() == "new"
    assert (work.path / ".git").is_dir()
    git(idea, "add", "new")
    git(idea, "commit", "-qm", "in the fork")
    (idea / "committed").write_text("more\n")
    # A worktree of the user's own that is away for a while, on another disk say.
    elsewhere = work.path.parent / "elsewhere"
    git(work.path, "worktree", "add", "-q", str(elsewhere))
    elsewhere.rename(work.path.parent / "away")
    plan = Path(run(work, "fork", "--rename", "idea", "plan")["path"])
    assert git(plan, "log", "-1", "--format=%s") == "in the fork"
    assert str(plan) in git(work.path, "worktree", "list")
    run(work, "fork", "--rename", "plan", "idea")
    said = succeed(work.cli("fork", "--delete", "idea", "-w", work.path)).stdout
    assert str(elsewhere) in git(work.path, "worktree", "list")
    assert len(git(work.path, "worktree", "list").splitlines()) == 2
    # As it says there: its branch, its last commit, and what was not committed.
    command = said.strip().rpartition("ckptfs ")[2].split()
    succeed(work.cli(*command, "-w", work.path))
    back = work.path / ".forks/idea"
    assert git(back, "log", "-1", "--format=%s") == "in the fork"
    assert git(back, "status", "--porcelain").splitlines() == ["M committed"]


def test_no_fork_is_deleted_if_one_of_those_named_is_none(work: Workspace) -> None:
    fork(work, "one")
    code, said = refused(work, "fork", "--delete", "one", "two")
    assert code == 89 and "Nothing was changed" in said
    assert list(listed(work)) == ["one"]


def test_a_hook_takes_its_checkpoint_in_the_fork(work: Workspace) -> None:
    idea = fork(work, "idea")
    (idea / "file").write_text("x")
    for where in (idea, work.path / ".forks/idea"):
        event = {"hook_event_name": "UserPromptSubmit", "cwd": str(where), "prompt": "go on"}
        done = subprocess.run(
            [sys.executable, "-m", "ckptfs", "hook", "--agent", "claude"],
            input=json.dumps(event),
            env={**os.environ, **work.env},
            capture_output=True,
            text=True,
            check=False,
        )
        assert succeed(done).stderr == ""
        assert any("go on" in each for each in names(work, idea))
    assert not any("go on" in each for each in names(work))


#: What a busy agent does: files that are moved into place, appended to, linked and removed.
BUSY = """
set -e
for i in $(seq 20); do
    mkdir -p d$i
    for j in 1 2 3; do echo "$NAME $i $j" > d$i/new; mv d$i/new d$i/f$j; done
    echo more >> d$i/f1
    ln -f d$i/f2 d$i/also
    rm d$i/f3
done
sync d20/f1 .
"""


def start_writers(paths: list[Path]) -> list[subprocess.Popen[bytes]]:
    return [
        subprocess.Popen(["sh", "-c", BUSY], cwd=path, env={**os.environ, "NAME": path.name})
        for path in paths
    ]


def test_eight_writers_in_eight_forks(automatic: Workspace) -> None:
    work = automatic
    (work.path / "shared").write_text("base")
    made = run(work, "fork", "agent", "-n", "8")["forks"]
    paths = [Path(each["path"]) for each in made]
    for writer in start_writers(paths):
        assert writer.wait(timeout=120) == 0
    for path in paths:
        for i in (1, 20):
            assert (path / f"d{i}/f1").read_text() == f"{path.name} {i} 1\nmore\n"
            assert (path / f"d{i}/also").read_text() == f"{path.name} {i} 2\n"
            assert not (path / f"d{i}/f3").exists()
    assert sorted(os.listdir(work.path)) == ["shared"]
    assert {each["added"] for each in listed(work).values()} == {80}
    assert run(work, "check")["problems"] == []
    # The end of the daemon in the middle of it: what was there is there, and whole.
    again = start_writers(paths)
    work.kill()
    for writer in again:
        writer.wait(timeout=120)
    work.mount()
    for path in paths:
        assert (path / "d20/also").read_text() == f"{path.name} 20 2\n"
    assert run(work, "check", "--deep")["problems"] == []
    run(work, "merge", "agent-3")
    assert (work.path / "d1/f2").read_text() == "agent-3 1 2\n"


def test_forks_work_for_an_ordinary_user() -> None:
    script = (
        USER
        + """
        fork() { $as_user $stage/python -m ckptfs "$@"; }
        mkdir -m 777 open
        $as_user mkdir home/work
        $as_user sh -c 'echo base > home/work/file'
        fork mount home/work >/dev/null
        fork fork one -w home/work >/dev/null
        fork fork two -w home/work --at $stage/open/two >/dev/null
        $as_user sh -c 'echo one > home/work/.forks/one/file; echo two > open/two/file'
        fork save there -w open/two >/dev/null
        fork umount home/work >/dev/null
        fork mount home/work >/dev/null
        $as_user cat home/work/.forks/one/file open/two/file
        fork merge two -w home/work >/dev/null
        $as_user cat home/work/file
        fork fork --delete one -w home/work >/dev/null
        fork forks --json -w home/work | grep -c '"name": "two"'
        fork umount home/work >/dev/null
        """
    )
    assert said(script) == ["one", "two", "two", "1"]
