"""`ckptfs merge` in a mounted workspace, as programs see it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from mmap import mmap
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen

import pytest

from tests.support.mounting import Workspace, succeed, workspace
from tests.support.readers import readers_of
from tests.support.waiting import wait_until

CONFLICT = 90


@pytest.fixture
def work() -> Iterator[Workspace]:
    with workspace("--no-write-back", "--auto", "off") as made:
        yield made


def write(work: Workspace, **files: str) -> None:
    for name, text in files.items():
        (work.path / name).write_text(text)


def save(work: Workspace) -> str:
    return str(json.loads(succeed(work.cli("save", "--json", "-w", work.path)).stdout)["id"])


def part(work: Workspace, theirs: dict[str, str], ours: dict[str, str]) -> str:
    """Two lines from where the workspace is; the checkpoint of theirs."""
    base = save(work)
    write(work, **theirs)
    there = save(work)
    succeed(work.cli("restore", base, "--force", "-w", work.path))
    write(work, **ours)
    return there


def lines(**changed: str) -> str:
    texts = {f"l{number}": f"line {number}" for number in range(9)}
    return "\n".join({**texts, **changed}.values()) + "\n"


def merge(work: Workspace, *words: str) -> subprocess.CompletedProcess[str]:
    return work.cli("merge", *words, "-w", work.path)


def test_programs_see_what_was_merged_at_once(work: Workspace) -> None:
    write(work, text=lines(), other="old")
    there = part(work, {"text": lines(l1="theirs"), "new": "new"}, {"text": lines(l7="ours")})
    assert (work.path / "text").read_text() == lines(l7="ours")  # the kernel has it cached
    with pytest.raises(FileNotFoundError):
        (work.path / "new").stat()
    done = succeed(merge(work, there))
    assert done.stdout.startswith(f"Merged {there}: 2 paths changed. `ckptfs undo`")
    assert (work.path / "text").read_text() == lines(l1="theirs", l7="ours")
    assert (work.path / "new").read_text() == "new"
    assert sorted(os.listdir(work.path)) == ["new", "other", "text"]
    succeed(work.cli("undo", "--force", "-w", work.path))
    assert (work.path / "text").read_text() == lines(l7="ours")
    assert sorted(os.listdir(work.path)) == ["other", "text"]


def test_conflicts_change_nothing_and_have_an_exit_code(work: Workspace) -> None:
    write(work, text=lines())
    there = part(work, {"text": lines(l4="theirs"), "new": ""}, {"text": lines(l4="ours")})
    count = len(os.listdir(work.path / ".checkpoints"))
    done = merge(work, there)
    assert done.returncode == CONFLICT
    assert "! text  (both changed the same lines)" in done.stdout
    record = json.loads(merge(work, there, "--json").stdout)
    assert record["conflicts"] == [{"path": "text", "kind": "content", "resolution": None}]
    assert record["changed"] is False
    shown = merge(work, there, "--dry-run")
    assert (shown.returncode, shown.stderr) == (CONFLICT, "")
    assert shown.stdout.splitlines()[1:3] == ["+ new", "! text  (both changed the same lines)"]
    assert f"token {record['token']}" in shown.stdout
    assert (work.path / "text").read_text() == lines(l4="ours")
    assert not (work.path / "new").exists()
    assert len(os.listdir(work.path / ".checkpoints")) == count


def test_markers_are_those_of_git(work: Workspace, tmp_path: Path) -> None:
    write(work, text=lines())
    there = part(work, {"text": lines(l4="theirs")}, {"text": lines(l4="ours")})
    for name, text in (("o", lines()), ("a", lines(l4="ours")), ("b", lines(l4="theirs"))):
        (tmp_path / name).write_text(text)
    labels = ("-L", "ours", "-L", "base", "-L", f"checkpoint {there}")
    command = ["git", "merge-file", "-p", "--zdiff3", *labels, "a", "o", "b"]
    wanted = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    succeed(merge(work, there, "--markers"))
    assert (work.path / "text").read_text() == wanted


def test_a_merge_by_paths_leaves_the_rest_for_the_next(work: Workspace) -> None:
    write(work, a="old", b="old")
    there = part(work, {"a": "theirs", "b": "theirs"}, {})
    done = work.cli("merge", there, work.path / "a", "-w", work.path)
    succeed(done)
    assert ((work.path / "a").read_text(), (work.path / "b").read_text()) == ("theirs", "old")
    succeed(merge(work, there))
    assert (work.path / "b").read_text() == "theirs"
    assert merge(work, there).stdout.startswith("Nothing to merge")


def test_a_token_refuses_what_was_written_meanwhile(work: Workspace) -> None:
    write(work, a="old")
    there = part(work, {"a": "theirs"}, {})
    token = json.loads(succeed(merge(work, there, "--dry-run", "--json")).stdout)["token"]
    write(work, b="meanwhile")
    done = merge(work, there, "--if-unchanged", token)
    assert done.returncode == 46
    assert (work.path / "a").read_text() == "old"
    token = json.loads(succeed(merge(work, there, "--dry-run", "--json")).stdout)["token"]
    succeed(merge(work, there, "--if-unchanged", token))
    assert ((work.path / "a").read_text(), (work.path / "b").read_text()) == ("theirs", "meanwhile")


def test_a_program_that_has_a_file_open_sees_what_was_merged(work: Workspace) -> None:
    write(work, text=lines())
    there = part(work, {"text": lines(l1="theirs")}, {})
    with (work.path / "text").open("r+") as file:
        assert file.read() == lines()
        succeed(merge(work, there))
        file.seek(0)
        assert file.read() == lines(l1="theirs")


def test_git_finds_the_merged_tree_in_order(work: Workspace) -> None:
    path = work.path
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(path)]
    subprocess.run(["git", "init", "-q", str(path)], check=True)
    write(work, text=lines())
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "base"], check=True)
    there = part(work, {"text": lines(l1="theirs")}, {"text": lines(l7="ours")})
    succeed(merge(work, there))
    shown = subprocess.run(
        [*git, "diff", "--stat"], check=True, capture_output=True, text=True
    ).stdout
    assert "1 file changed, 2 insertions(+), 2 deletions(-)" in shown
    assert subprocess.run([*git, "fsck", "--strict"], capture_output=True).returncode == 0


def test_a_conflict_that_was_settled_for_ours_is_not_asked_again(work: Workspace) -> None:
    write(work, text="base\n")
    there = part(work, {"text": "theirs\n"}, {"text": "ours\n"})
    assert merge(work, there).returncode == CONFLICT
    assert succeed(merge(work, there, "--ours")).stdout.startswith(f"Merged {there}: 0 paths")
    assert succeed(merge(work, there)).stdout.startswith("Nothing to merge")
    assert (work.path / "text").read_text() == "ours\n"
    succeed(work.cli("undo", "-w", work.path))
    assert merge(work, there).returncode == CONFLICT


def test_what_is_excluded_is_never_replaced(work: Workspace) -> None:
    write(work, old="moved", image="\0base")
    base = save(work)
    (work.path / "old").rename(work.path / "new")
    (work.path / "dir").mkdir()
    write(work, image="\0theirs", **{"dir/file": "theirs"})
    there = save(work)
    succeed(work.cli("restore", base, "--force", "-w", work.path))
    beside = f"image~{there}"
    succeed(work.cli("config", "exclude.patterns", f"/new,/dir,/{beside}", "-w", work.path))
    write(work, image="\0ours", new="precious", dir="precious", **{beside: "precious"})
    done = json.loads(succeed(merge(work, there, "--markers", "--json")).stdout)
    found = {(each["path"], each["kind"]) for each in done["conflicts"]}
    assert found == {("new", "excluded"), ("dir", "excluded"), ("image", "binary")}
    for name in ("new", "dir", beside):
        assert (work.path / name).read_text() == "precious"
    assert (work.path / "old").read_text() == "moved"
    assert (work.path / f"{beside}~1").read_text() == "\0theirs"


def test_conflicts_are_decided_one_by_one_and_states_compared(work: Workspace) -> None:
    write(work, a="base\n", b="base\n")
    there = part(work, {"a": "theirs\n", "b": "theirs\n"}, {"a": "ours\n", "b": "ours\n"})
    shown = succeed(work.cli("compare", there, "now", "-w", work.path)).stdout
    assert f"  a  ({there}, now: not alike)" in shown
    first = f"--resolve={work.path / 'a'}=theirs"
    assert merge(work, there, first).returncode == CONFLICT
    bad = merge(work, there, "--resolve=a")
    assert (bad.returncode, "PATH=HOW is wanted" in bad.stderr) == (2, True)
    succeed(merge(work, there, first, f"--resolve={work.path / 'b'}=ours"))
    assert [(work.path / name).read_text() for name in "ab"] == ["theirs\n", "ours\n"]


# -- by a program ----------------------------------------------------------------------------------


def driver(tmp_path: Path, script: str) -> str:
    """A program that gets the base, ours and theirs, and the path."""
    program = tmp_path / "driver"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return f"{program} %O %A %B %P"


def in_conflict(work: Workspace) -> str:
    write(work, **{"text.py": lines(), "other": "old"})
    theirs = {"text.py": lines(l4="theirs"), "other": "theirs"}
    return part(work, theirs, {"text.py": lines(l4="ours")})


def test_a_program_merges_what_lines_cannot(work: Workspace, tmp_path: Path) -> None:
    there = in_conflict(work)
    script = "case $2 in *.py) ;; *) exit 3;; esac; cat $1 $2 $3 >$1.new; mv $1.new $2; "
    command = driver(tmp_path, script + "echo $4 >>$2")
    succeed(work.cli("config", "merge.driver", command, "-w", work.path))
    planned = json.loads(succeed(merge(work, there, "--dry-run", "--json")).stdout)
    (conflict,) = planned["conflicts"]
    assert conflict == {"path": "text.py", "kind": "content", "resolution": "driver"}
    assert (work.path / "text.py").read_text() == lines(l4="ours")
    succeed(merge(work, there))
    wanted = lines() + lines(l4="ours") + lines(l4="theirs") + "text.py\n"
    assert (work.path / "text.py").read_text() == wanted
    assert (work.path / "other").read_text() == "theirs"
    assert "Nothing to merge" in succeed(merge(work, there)).stdout
    succeed(work.cli("undo", "--force", "-w", work.path))
    assert (work.path / "text.py").read_text() == lines(l4="ours")


def test_what_a_program_cannot_merge_stays_a_conflict(work: Workspace, tmp_path: Path) -> None:
    there = in_conflict(work)
    command = driver(tmp_path, "echo half >$2; exit 1")
    assert merge(work, there, "--driver", command).returncode == CONFLICT
    assert (work.path / "text.py").read_text() == lines(l4="ours")
    succeed(merge(work, there, "--driver", command, "--markers"))
    assert (work.path / "text.py").read_text() == "half\n"
    succeed(work.cli("undo", "--force", "-w", work.path))
    succeed(merge(work, there, "--driver", command, "--theirs"))
    assert (work.path / "text.py").read_text() == lines(l4="theirs")


@pytest.mark.parametrize(
    "script",
    ["exit 128", "kill -9 $$", "rm $2", "rm $2; mkfifo $2", "ln -sf $1 $2", None],
    ids=["128", "killed", "no result", "pipe", "link", "none"],
)
def test_a_program_that_fails_merges_nothing(
    work: Workspace, tmp_path: Path, script: str | None
) -> None:
    there = in_conflict(work)
    command = "/nowhere/driver %O %A %B" if script is None else driver(tmp_path, script)
    done = merge(work, there, "--driver", command, "--markers")
    assert (done.returncode, "Cannot merge text.py: " in done.stderr) == (95, True)
    assert "Nothing was changed." in done.stderr
    assert (work.path / "other").read_text() == "old"
    succeed(merge(work, there, "--driver", "", "--ours"))


def test_what_is_written_while_the_program_runs_is_not_lost(
    work: Workspace, tmp_path: Path
) -> None:
    there = in_conflict(work)
    late = work.path / "other"
    script = f"[ $4 = text.py ] || exit 1; if [ -e {tmp_path}/once ]; then cat $3 >$2; "
    script += f"else touch {tmp_path}/once; echo late >{late}; echo early >$2; fi"
    command = driver(tmp_path, script)
    done = merge(work, there, "--driver", command)
    assert done.returncode == CONFLICT
    assert "! other" in done.stdout
    assert late.read_text() == "late\n"
    succeed(merge(work, there, "--driver", command, "--ours"))
    assert (work.path / "text.py").read_text() == lines(l4="theirs")
    (tmp_path / "once").unlink()
    token = json.loads(merge(work, there, "--dry-run", "--json").stdout)["token"]
    succeed(work.cli("undo", "--force", "-w", work.path))
    assert merge(work, there, "--driver", command, "--if-unchanged", token).returncode == 46


def test_git_merges_as_its_attributes_say(work: Workspace) -> None:
    subprocess.run(["git", "init", "-q", str(work.path)], check=True)
    git = ["git", "-C", str(work.path), "config"]
    subprocess.run([*git, "merge.keep.driver", "cat %B >>%A; echo %P >>%A"], check=True)
    attributes = "/union merge=union\n/own* merge=keep\n/none -merge\n"
    names = ("union", "own it's", "none", "plain")
    write(work, **{".gitattributes": attributes}, **dict.fromkeys(names, "base\n"))
    there = part(work, dict.fromkeys(names, "theirs\n"), dict.fromkeys(names, "ours\n"))
    done = merge(work, there, "--driver", "git", "--json")
    assert done.returncode == CONFLICT
    found = {each["path"]: each["resolution"] for each in json.loads(done.stdout)["conflicts"]}
    assert found == {"union": "driver", "own it's": "driver", "none": None, "plain": None}
    succeed(merge(work, there, "--driver", "git", "--markers"))
    assert (work.path / "union").read_text() == "ours\ntheirs\n"
    assert (work.path / "own it's").read_text() == "ours\ntheirs\nown it's\n"
    assert (work.path / "none").read_text() == "ours\n"
    marked = "<<<<<<< ours\nours\n||||||| base\nbase\n=======\ntheirs\n>>>>>>> theirs\n"
    assert (work.path / "plain").read_text() == marked


def test_a_driver_says_where_the_texts_go(work: Workspace) -> None:
    done = work.cli("config", "merge.driver", "meld %A %B", "-w", work.path)
    assert "git, mergiraf or a command with %O, %A and %B is wanted" in done.stderr
    for wrong in ("meld %A %B", "git merge-file", "meld 'no end %O %A %B"):
        told = merge(work, save(work), "--driver", wrong)
        assert (told.returncode, "Nothing was changed." in told.stderr) == (2, True)
    for known in ("git", "mergiraf", "", "x %O %A %B"):
        succeed(work.cli("config", "merge.driver", known, "-w", work.path))


# -- programs that append --------------------------------------------------------------------------


@pytest.mark.parametrize("theirs", [{"l1": "a much longer line"}, {"l1": ""}], ids=["more", "less"])
def test_a_program_that_appends_goes_on_at_the_end_of_what_was_merged(
    work: Workspace, theirs: dict[str, str]
) -> None:
    write(work, text=lines())
    there = part(work, {"text": lines(**theirs)}, {})
    descriptor = os.open(work.path / "text", os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, b"one\n")
        succeed(merge(work, there))
        for word in (b"two\n", b"three\n"):
            os.write(descriptor, word)
    finally:
        os.close(descriptor)
    wanted = lines(**theirs) + "one\ntwo\nthree\n"
    assert (work.path / "text").read_text() == wanted
    assert (work.path / "text").stat().st_size == len(wanted)
    assert (work.path / ".checkpoints" / save(work) / "text").read_text() == wanted


@pytest.mark.compiled_only
def test_a_fork_is_merged_into_another_and_into_main(work: Workspace) -> None:
    write(work, text=lines())
    made = succeed(work.cli("fork", "side", "-n", "2", "--json", "-w", work.path)).stdout
    one, two = (Path(each["path"]) for each in json.loads(made)["forks"])
    (one / "text").write_text(lines(l1="one"))
    (two / "text").write_text(lines(l7="two"))
    succeed(merge(work, "side-1", "--into", "side-2"))
    assert (two / "text").read_text() == lines(l1="one", l7="two")
    assert (work.path / "text").read_text() == lines()
    succeed(work.cli("merge", "side-2", "--into", "main", "-w", one))
    assert (work.path / "text").read_text() == lines(l1="one", l7="two")
    assert (one / "text").read_text() == lines(l1="one")
    for into, reason in (("side-1", "into itself"), ("nowhere", "there is no fork of that name")):
        done = merge(work, "side-1", "--into", into)
        assert (done.returncode, reason in done.stderr) == (2, True), done.stderr
    succeed(work.cli("undo", "--force", "-w", work.path))
    assert (work.path / "text").read_text() == lines()


# -- decided in another process --------------------------------------------------------------------


class Asked:
    """A verb that was asked for: how it ended, and what was said then."""

    def __init__(self) -> None:
        self.returncode = -1
        self.words = ""


@contextmanager
def deciding(work: Workspace, *words: str) -> Iterator[Asked]:
    """A merge that a process decides, which stands still within this."""
    with reading(work, "merge", *words) as asked:
        yield asked


@contextmanager
def reading(work: Workspace, *words: str) -> Iterator[Asked]:
    """A verb for which a process reads, which stands still within this."""
    command = [sys.executable, "-m", "ckptfs", *words, "--json", "-w", str(work.path)]
    environment, asked = {**os.environ, **work.env}, Asked()
    with Popen(command, env=environment, stdout=PIPE, stderr=STDOUT, text=True) as process:
        pid = work.pid or 0
        wait_until(lambda: readers_of(pid), "a process reads")
        (reader,) = readers_of(pid)
        os.kill(reader, signal.SIGSTOP)
        try:
            yield asked
        finally:
            with suppress(ProcessLookupError):
                os.kill(reader, signal.SIGCONT)
            asked.words, _ = process.communicate(timeout=60)
            asked.returncode = process.returncode


def many(work: Workspace, word: str) -> None:
    for number in range(3_000):
        directory = work.path / f"d{number % 20}"
        directory.mkdir(exist_ok=True)
        (directory / f"f{number}").write_text(word)


def test_programs_go_on_while_a_merge_is_decided(work: Workspace) -> None:
    write(work, text="base")
    base = save(work)
    many(work, "theirs")
    there = save(work)
    succeed(work.cli("restore", base, "--force", "-w", work.path))
    with deciding(work, there) as asked:
        write(work, text="meanwhile", more="made meanwhile")
        assert not (work.path / "d0").exists()
    assert asked.returncode == 0
    assert (work.path / "d3/f3").read_text() == "theirs"
    assert (work.path / "text").read_text() == "meanwhile"
    assert (work.path / "more").read_text() == "made meanwhile"


def test_what_is_written_where_a_merge_writes_makes_it_be_decided_anew(work: Workspace) -> None:
    write(work, text="base")
    base = save(work)
    many(work, "theirs")
    there = save(work)
    succeed(work.cli("restore", base, "--force", "-w", work.path))
    with deciding(work, there) as asked:
        (work.path / "d7").mkdir()
        (work.path / "d7/f7").write_text("written meanwhile")
    assert asked.returncode == CONFLICT
    assert (work.path / "d7/f7").read_text() == "written meanwhile"
    assert not (work.path / "d3").exists()


def test_what_is_written_through_a_mapping_meanwhile_is_not_mixed_with_a_merge(
    work: Workspace,
) -> None:
    write(work, text=lines())
    base = save(work)
    many(work, "theirs")
    write(work, text=lines(l1="theirs, longer than it was"))
    there = save(work)
    succeed(work.cli("restore", base, "--force", "-w", work.path))
    with (work.path / "text").open("r+b") as file, mmap(file.fileno(), 0) as mapped:
        with deciding(work, there) as asked:
            mapped[7:13] = b"mapped"  # the second line
        assert asked.returncode == CONFLICT
        mapped.flush()
    assert (work.path / "text").read_text() == lines(l1="mapped")
    assert not (work.path / "d3").exists()


@pytest.mark.compiled_only
@pytest.mark.parametrize("how", ["delete", "rename", "umount"])
def test_a_merge_into_a_fork_that_ends_meanwhile_changes_nothing(work: Workspace, how: str) -> None:
    """There is nobody any more who would put into the store what it changes."""
    write(work, text=lines())
    save(work)
    succeed(work.cli("fork", "f", "-w", work.path))
    fork = Path(os.readlink(work.path / ".forks/f"))
    (fork / "text").write_text(lines(l7="ours"))
    many(work, "theirs")
    write(work, text=lines(l1="theirs"))
    there = save(work)
    with deciding(work, there, "--into", "f") as asked:
        if how == "umount":
            subprocess.run(["umount", fork], check=True)
            log = Path(work.status()["log"])
            wait_until(lambda: "fork f is not mounted any more" in log.read_text(), "it has ended")
        else:
            words = {"delete": ("--delete", "f"), "rename": ("--rename", "f", "g")}[how]
            succeed(work.cli("fork", *words, "-w", work.path))
    assert "that fork is not mounted any more. Nothing was changed." in asked.words
    if how == "rename":
        assert (work.path / ".forks/g/text").read_text() == lines(l7="ours")
        succeed(work.cli("merge", there, "--into", "g", "-w", work.path))
        assert (work.path / ".forks/g/text").read_text() == lines(l1="theirs", l7="ours")
    succeed(work.cli("check", "-w", work.path))


@pytest.mark.compiled_only
def test_a_merge_that_is_decided_holds_up_no_restore_elsewhere(work: Workspace) -> None:
    write(work, text="base")
    base = save(work)
    succeed(work.cli("fork", "f", "-n", "2", "-w", work.path))
    many(work, "theirs")
    there = save(work)
    other = work.path / ".forks/f-2"
    (other / "text").write_text("changed")
    with deciding(work, there, "--into", "f-1"):
        succeed(work.cli("restore", base, "--force", "-w", other))
        assert (other / "text").read_text() == "base"
    assert (work.path / ".forks/f-1/d3/f3").read_text() == "theirs"


@pytest.mark.compiled_only
def test_a_restore_in_a_fork_that_ends_while_it_waits_says_so(work: Workspace) -> None:
    base = save(work)
    succeed(work.cli("fork", "f", "-w", work.path))
    many(work, "new")
    save(work)
    fork = work.path / ".forks/f"
    command = [sys.executable, "-m", "ckptfs", "restore", base, "--force", "-w", fork]
    (fork / "text").write_text("of the fork")
    with reading(work, "restore", base, "--force"):
        # The names that it changed are being found; the next restore waits for that.
        with Popen(command, env={**os.environ, **work.env}, stderr=PIPE, text=True) as waiting:
            try:
                wait_until(lambda: is_connected(waiting.pid), "the restore was asked for")
                succeed(work.cli("fork", "--delete", "f", "-w", work.path))
                os.kill(readers_of(work.pid or 0)[0], signal.SIGCONT)
                _, said = waiting.communicate(timeout=60)
            finally:
                waiting.kill()
    assert "that fork is not mounted any more. Nothing was changed." in said
    succeed(work.cli("check", "-w", work.path))


def is_connected(pid: int) -> bool:
    """Whether a process has a socket that it waits at."""
    try:
        names = [os.readlink(name) for name in Path(f"/proc/{pid}/fd").iterdir()]
        waits_in = Path(f"/proc/{pid}/wchan").read_bytes()
    except OSError:  # it closed one just then
        return False
    return b"poll" in waits_in and any(name.startswith("socket:") for name in names)
