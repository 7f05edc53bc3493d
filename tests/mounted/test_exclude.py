"""Excluded files through the mount, with real programs: in the workspace, and not in history."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.mounting import Workspace
from tests.support.trees import plant

pytestmark = pytest.mark.needs_mount

TREE = {
    "src": {"a.c": "int a;\n"},
    "node_modules": {"pkg": {"index.js": "1\n"}},
    "run.log": "started\n",
}


@pytest.fixture
def work(make_workspace: Callable[..., Workspace]) -> Workspace:
    made = make_workspace("--auto", "off", "--exclude", "*.log", "--exclude", "node_modules/")
    plant(made.path, TREE)
    return made


def ok(work: Workspace, *arguments: str | Path) -> str:
    done = work.cli(*arguments, "-w", work.path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def save(work: Workspace, *options: str) -> int:
    return int(json.loads(ok(work, "save", "", "--allow-empty", "--json", *options))["id"])


def names(path: Path) -> set[str]:
    found = subprocess.run(
        ["find", ".", "-mindepth", "1"], cwd=path, capture_output=True, text=True, check=True
    )
    return {line[2:] for line in found.stdout.splitlines()}


def run(work: Workspace, *words: str) -> None:
    subprocess.run(words, cwd=work.path, check=True, capture_output=True)


def test_no_checkpoint_has_it(work: Workspace) -> None:
    number = save(work)
    assert names(work.path / ".checkpoints" / str(number)) == {"src", "src/a.c"}
    assert names(work.path) >= {"node_modules/pkg/index.js", "run.log"}
    (work.path / "run.log").write_text("more")
    run(work, "rm", "-r", "node_modules")
    assert json.loads(ok(work, "save", "", "--json"))["changed"] is False
    assert ok(work, "diff", "--name-status") == ""


def test_a_restore_leaves_it_alone(work: Workspace) -> None:
    first = save(work)
    with (work.path / "run.log").open("r+b") as held:
        mapped = mmap.mmap(held.fileno(), 0)
        mapped[:5] = b"STILL"
        (work.path / "src" / "a.c").write_text("broken")
        plant(work.path, {"new": {"deep": {"x.log": "kept\n"}, "gone": "x"}})
        os.chdir(work.path / "new" / "deep")
        try:
            ok(work, "restore", str(first), "--force")
            assert os.listdir(".") == ["x.log"]
        finally:
            os.chdir("/")
        assert (work.path / "src" / "a.c").read_text() == "int a;\n"
        assert (work.path / "run.log").read_bytes() == b"STILLed\n"
        mapped[5:7] = b"!!"
        assert (work.path / "run.log").read_bytes() == b"STILL!!\n"
        mapped.close()
    there = {*names(work.path)}
    assert there >= {"new/deep/x.log", "node_modules/pkg/index.js"}
    assert "new/gone" not in there
    ok(work, "undo")
    assert (work.path / "new" / "gone").read_text() == "x"
    assert (work.path / "new" / "deep" / "x.log").read_text() == "kept\n"


def test_no_path_of_it_can_be_restored(work: Workspace) -> None:
    first = save(work)
    for path in ("run.log", "node_modules", "node_modules/pkg/index.js"):
        done = work.cli("restore", str(first), work.path / path, "-w", work.path)
        assert done.returncode == 45
        assert "excluded from history" in done.stderr
    assert (work.path / "run.log").read_text() == "started\n"


def test_renames_and_links_across_the_border(work: Workspace) -> None:
    save(work)
    run(work, "mv", "src/a.c", "a.log")
    assert ok(work, "diff", "--name-status") == "D\tsrc/a.c\n"
    run(work, "mv", "a.log", "src/a.c")
    assert ok(work, "diff", "--name-status") == ""
    run(work, "mv", "node_modules", "lib")
    assert "lib/pkg/index.js" in ok(work, "diff", "--name-status")
    run(work, "mv", "lib", "node_modules")
    with pytest.raises(OSError, match="cross-device"):
        os.link(work.path / "src" / "a.c", work.path / "b.log")
    os.link(work.path / "src" / "a.c", work.path / "twin")
    run(work, "mv", "twin", "twin.log")  # mv copies where it cannot rename
    assert (work.path / "twin.log").read_text() == "int a;\n"
    assert (work.path / "src" / "a.c").stat().st_nlink == 1


def test_a_file_that_is_written_beside_and_renamed(work: Workspace) -> None:
    """Many programs save like that, and the name that they write to may be an excluded one."""
    first = save(work)
    (work.path / "src" / "a.c.log").write_text("int b;\n")
    os.replace(work.path / "src" / "a.c.log", work.path / "src" / "a.c")
    second = save(work)
    assert (work.path / ".checkpoints" / str(first) / "src" / "a.c").read_text() == "int a;\n"
    assert (work.path / ".checkpoints" / str(second) / "src" / "a.c").read_text() == "int b;\n"


def test_no_checkpoint_is_taken_for_it(make_workspace: Callable[..., Workspace]) -> None:
    work = make_workspace("--exclude", "*.log", "--exclude", "build/")
    plant(work.path, {"plain": "x"})
    save(work)
    before = ok(work, "list", "--json")
    for words in ("echo 1 > a.log", "mkdir build", "echo 2 > build/x", "rm a.log", "rm -r build"):
        subprocess.run(["setsid", "sh", "-c", words], cwd=work.path, check=True)
    assert ok(work, "list", "--json") == before


def test_it_outlives_unmounting_and_a_kill(work: Workspace) -> None:
    work.umount()
    assert names(work.path) >= {"node_modules/pkg/index.js", "run.log", "src/a.c"}
    (work.path / "node_modules" / "added").write_text("below\n")
    (work.path / "below.log").write_text("x")
    work.mount()
    assert (work.path / "node_modules" / "added").read_text() == "below\n"
    number = save(work)
    assert names(work.path / ".checkpoints" / str(number)) == {"src", "src/a.c"}
    (work.path / "last.log").write_text("before the end\n")
    ok(work, "save", "synced", "--allow-empty")
    work.kill()
    work.mount()
    assert (work.path / "last.log").read_text() == "before the end\n"
    number = save(work)
    assert "last.log" not in names(work.path / ".checkpoints" / str(number))


def test_other_patterns_hold_at_once(work: Workspace) -> None:
    os.link(work.path / "src" / "a.c", work.path / "twin")
    first = save(work)
    with (work.path / "src" / "a.c").open() as held:
        ok(work, "config", "exclude.patterns", "src/, *.tmp")
        assert held.read() == "int a;\n"
    second = save(work)
    there = names(work.path / ".checkpoints" / str(second))
    assert there == {"node_modules", "node_modules/pkg", "node_modules/pkg/index.js"} | {
        *("run.log", "twin")
    }
    (work.path / "src" / "a.c").write_text("new")
    assert (work.path / "twin").read_text() == "int a;\n"
    assert "src" in names(work.path / ".checkpoints" / str(first))
    ok(work, "config", "--unset", "exclude.patterns")
    assert "A\tsrc/a.c" in ok(work, "diff", "--name-status")


def test_patterns_that_make_no_sense_are_refused(work: Workspace) -> None:
    done = work.cli("config", "exclude.patterns", "[z-a]", "-w", work.path)
    assert done.returncode == 71
    assert "Nothing was changed" in done.stderr
    assert ok(work, "config", "exclude.patterns").split() == ["*.log", "node_modules/"]
    work.umount()
    done = work.cli("mount", work.path, "--exclude", "!")
    assert done.returncode == 71


def test_export_takes_it_from_now_and_not_from_a_checkpoint(
    work: Workspace, elsewhere: Path
) -> None:
    number = save(work)
    ok(work, "export", elsewhere / "now")
    ok(work, "export", elsewhere / "then", "--checkpoint", str(number))
    assert "run.log" in names(elsewhere / "now")
    assert names(elsewhere / "then") == {"src", "src/a.c"}


def test_deleted_it_takes_no_room(work: Workspace) -> None:
    (work.path / "big.log").write_bytes(os.urandom(3 << 20))
    save(work)
    held = json.loads(ok(work, "status", "--space", "--json"))
    assert held["live_bytes"] > 3 << 20
    os.unlink(work.path / "big.log")
    freed = json.loads(ok(work, "status", "--space", "--json"))
    assert freed["live_bytes"] < 1000
    assert freed["history_bytes"] == 0


def test_the_kernel_hears_of_the_times_that_patterns_move(work: Workspace) -> None:
    plant(work.path, {"dir": {"file.tmp": "1"}})
    was = (work.path / "dir").stat().st_mtime_ns
    ok(work, "config", "exclude.patterns", "*.tmp")
    seen = (work.path / "dir").stat().st_mtime_ns
    os.listdir(work.path / "dir")
    work.remount()
    assert (work.path / "dir").stat().st_mtime_ns == seen >= was
