"""Mounting over a directory with content, and what stands there after the unmount."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.mounting import Workspace, detach, is_mounted, scratch, succeed
from tests.support.trees import (
    Directory,
    Fifo,
    File,
    Link,
    Same,
    Tree,
    facts,
    make_durable,
    plant,
    stats,
    tree,
)

pytestmark = pytest.mark.needs_mount

SAMPLE: Tree = {
    "README": File("text\n", mtime_ns=1_111_111_111_123_456_789),
    "empty": "",
    "binary": os.urandom(300_000),
    "program": File("#!/bin/sh\n", mode=0o755),
    "private": File("x", mode=0o600, mtime_ns=1),
    "link": Link("README"),
    "dangling": Link("no/such"),
    "twin": Same("binary"),
    "pipe": Fifo(0o640),
    "name\nwith newline": "x",
    "\udcff\udcfe": "not utf-8",
    "src": Directory(
        {f"f{number}.c": File("y" * number, mtime_ns=10**15 + number) for number in range(30)},
        mode=0o2755,
        mtime_ns=1_222_222_222_000_000_001,
    ),
    "deep": {"er": {"twin": Same("README"), "file": "z"}},
    "void": Directory({}, mode=0o711, mtime_ns=7_000_000_007),
}


class InPlace(Workspace):
    """A workspace whose directory has content before the first mount."""

    def __init__(self, base: Path, content: Tree) -> None:
        super().__init__(base)
        self.path.mkdir()
        plant(self.path, content)


@pytest.fixture
def over() -> Iterator[Callable[[Tree], InPlace]]:
    """Makes a workspace over a directory with the given content; not yet mounted."""
    made: list[InPlace] = []
    with scratch() as base:

        def make(content: Tree) -> InPlace:
            made.append(InPlace(base, content))
            return made[0]

        yield make
        for workspace in made:
            workspace.finish()


Make = Callable[[Tree], InPlace]


def test_the_content_is_there(over: Make) -> None:
    workspace = over(SAMPLE)
    before = facts(workspace.path)
    workspace.mount()
    assert facts(workspace.path) == before
    workspace.umount()
    assert facts(workspace.path) == before


def test_an_unmount_without_changes_touches_nothing_in_the_lower_directory(over: Make) -> None:
    """Not even a ctime: nothing was written."""
    workspace = over(SAMPLE)
    before = stats(workspace.path)
    workspace.mount()
    workspace.umount()
    assert stats(workspace.path) == before
    workspace.mount()
    workspace.umount()
    assert stats(workspace.path) == before


def test_an_unmount_looks_only_at_what_changed(over: Make) -> None:
    """After the first mount, after others, and after the daemon was killed."""
    workspace = over({f"d{number}": {"a": "1", "b": "2"} for number in range(20)})
    looks: list[object] = []
    for text in ("one", "two", "three"):
        workspace.mount()
        (workspace.path / "d3/a").write_text(text)
        succeed(workspace.cli("save", "-w", workspace.path))
        if text == "two":
            workspace.kill()
            workspace.mount()
        (workspace.path / "d4/new").write_text(text)
        done = succeed(workspace.cli("umount", workspace.path, "--json"))
        workspace.pid = None
        written = json.loads(done.stdout)["write_back"]
        looks.append((written["added"], written["modified"], written["unchanged"]))
        assert (workspace.path / "d3/a").read_text() == text
        assert (workspace.path / "d4/new").read_text() == text
    assert looks == [(1, 1, 0), (0, 2, 0), (0, 2, 0)]


@pytest.mark.needs_root
def test_owners_devices_and_sockets_come_in_and_go_back(over: Make) -> None:
    workspace = over({"file": "x", "theirs": {"file": "y"}})
    path = workspace.path
    os.chown(path / "theirs", 1234, 5678)
    os.chown(path / "theirs/file", 1234, 5678)
    os.mknod(path / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    before = facts(path)
    workspace.mount()
    assert facts(path) == before
    os.mknod(path / "zero", stat.S_IFCHR | 0o600, os.makedev(1, 5))
    os.chown(path / "file", 4321, 8765)
    os.unlink(path / "null")
    after = facts(path)
    workspace.umount()
    assert facts(path) == after


def test_a_socket_in_the_lower_directory_is_no_obstacle(
    over: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = over({"file": "x"})
    monkeypatch.chdir(workspace.path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("sock")
    monkeypatch.chdir("/")
    workspace.mount()
    assert (workspace.path / "file").read_text() == "x"
    workspace.umount()


def edit(path: Path) -> None:
    """Every kind of change that has to come back to the lower directory."""
    (path / "README").write_text("edited\n")  # also seen as deep/er/twin
    (path / "empty").write_bytes(b"no more" * 20_000)
    with open(path / "binary", "r+b") as file:  # also seen as twin
        file.seek(100_000)
        file.write(b"in the middle")
    (path / "program").chmod(0o4711)
    os.utime(path / "private", ns=(1, 1_333_333_333_333_333_333))
    (path / "dangling").unlink()
    (path / "link").unlink()
    (path / "link").symlink_to("another/target")
    (path / "pipe").unlink()
    (path / "src/f3.c").unlink()
    (path / "src/f4.c").rename(path / "src/renamed.c")
    (path / "deep/er").rename(path / "moved")
    (path / "void").rename(path / "deep/void")
    (path / "src/f5.c").unlink()
    os.link(path / "src/f7.c", path / "src/linked.c")
    plant(path, {"new": File("n", mode=0o640, mtime_ns=55), "new dir": {"a": {"b": {"c": "d"}}}})
    os.mkfifo(path / "new pipe", 0o600)
    os.utime(path / "src", ns=(9, 9_000_000_009))
    os.chmod(path / "src", 0o750)


def test_every_change_comes_back(over: Make) -> None:
    workspace = over(SAMPLE)
    workspace.mount()
    edit(workspace.path)
    expected = facts(workspace.path)
    workspace.umount()
    assert not is_mounted(workspace.path)
    assert facts(workspace.path) == expected
    workspace.mount()
    assert facts(workspace.path) == expected


CHANGES_OF_TYPE: dict[str, tuple[Tree, Tree]] = {
    "file to directory": ({"x": "file"}, {"x": {"in": "side"}}),
    "directory to file": ({"x": {"in": {"side": "y"}}}, {"x": "file"}),
    "file to link": ({"x": "file"}, {"x": Link("nowhere")}),
    "link to file": ({"x": Link("nowhere")}, {"x": "file"}),
    "link to directory": (
        {"x": Link("y"), "y": {"z": "kept"}},
        {"x": {"own": ""}, "y": {"z": "kept"}},
    ),
    "directory to link": ({"x": {"in": "side"}, "y": {}}, {"x": Link("y"), "y": {}}),
    "fifo to file": ({"x": Fifo()}, {"x": "file"}),
    "file to fifo": ({"x": "file"}, {"x": Fifo()}),
    "two names to two files": ({"x": "a", "y": Same("x")}, {"x": "a", "y": "b"}),
    "two files to two names": ({"x": "a", "y": "b"}, {"x": "a", "y": Same("x")}),
}


@pytest.mark.parametrize("side", ["mount", "lower"])
def test_changes_of_type_are_written_back(over: Make, side: str) -> None:
    """Made in the mount they reach the lower directory, made there they reach the mount."""
    workspace = over({})
    for name, (before, _) in CHANGES_OF_TYPE.items():
        (workspace.path / name).mkdir()
        plant(workspace.path / name, before)
    workspace.mount()
    if side == "lower":
        workspace.umount()
    for name, (_, after) in CHANGES_OF_TYPE.items():
        for entry in list((workspace.path / name).iterdir()):
            _remove(entry)
        plant(workspace.path / name, after)
    expected = facts(workspace.path)
    workspace.umount() if side == "mount" else workspace.mount()
    assert facts(workspace.path) == expected


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def test_a_lower_file_from_far_in_the_future_is_no_obstacle(over: Make) -> None:
    """ext4 keeps times until 2446, nanoseconds in 64 bits end in 2262."""
    future = 13_569_465_600 * 10**9 + 1
    workspace = over({"future": File("x", mtime_ns=future), "other": "y"})
    before = stats(workspace.path)
    workspace.mount()
    assert tree(workspace.path) == {"future": "x", "other": "y"}
    workspace.umount()
    assert stats(workspace.path) == before


def test_names_swapped_in_the_mount_are_swapped_in_the_directory(over: Make) -> None:
    workspace = over({"a": "one", "b": "two", "c": {"1": ""}, "d": {"2": ""}})
    workspace.mount()
    path = workspace.path
    for one, other in (("a", "b"), ("c", "d")):
        os.rename(path / one, path / "tmp")
        os.rename(path / other, path / one)
        os.rename(path / "tmp", path / other)
    expected = facts(path)
    workspace.umount()
    assert facts(path) == expected
    assert tree(path) == {"a": "two", "b": "one", "c": {"2": ""}, "d": {"1": ""}}


def test_a_link_out_of_the_workspace_is_not_followed(over: Make, tmp_path: Path) -> None:
    """Neither reading nor writing back may go through a symbolic link."""
    plant(tmp_path, {"outside": {"file": "untouched"}})
    workspace = over({"link": Link(str(tmp_path / "outside"))})
    workspace.mount()
    assert os.readlink(workspace.path / "link") == str(tmp_path / "outside")
    (workspace.path / "link").unlink()
    plant(workspace.path, {"link": {"file": "ours", "more": "ours"}})
    workspace.umount()
    assert tree(tmp_path) == {"outside": {"file": "untouched"}}
    assert tree(workspace.path) == {"link": {"file": "ours", "more": "ours"}}


def test_a_sparse_file_stays_sparse_on_its_way(over: Make) -> None:
    workspace = over({})
    with open(workspace.path / "sparse", "wb") as file:
        file.truncate(40_000_000)
        file.seek(30_000_000)
        file.write(b"island")
    before = facts(workspace.path)
    workspace.mount()
    assert facts(workspace.path) == before
    assert (workspace.path / "sparse").stat().st_blocks * 512 < 2_000_000
    with open(workspace.path / "sparse", "r+b") as file:
        file.seek(10_000_000)
        file.write(b"another")
    after = facts(workspace.path)
    workspace.umount()
    assert facts(workspace.path) == after
    assert (workspace.path / "sparse").stat().st_blocks * 512 < 2_000_000


def test_directories_without_write_permission_are_written_back(over: Make) -> None:
    """The mode of a directory does not stop its content from coming back, for no user."""
    workspace = over({"closed": Directory({"f": "x", "g": "y", "sub": {}}, mode=0o555)})
    workspace.mount()
    closed = workspace.path / "closed"
    closed.chmod(0o755)
    (closed / "f").write_text("edited")
    (closed / "g").unlink()
    plant(closed, {"new": File("z", mode=0o444), "deep": Directory({"h": ""}, mode=0o500)})
    closed.chmod(0o511)
    os.utime(closed, ns=(1, 2_000_000_003))
    expected = stats_of_content(workspace.path)
    workspace.umount()
    assert stats_of_content(workspace.path) == expected


def stats_of_content(path: Path) -> dict[str, tuple[int, int, int]]:
    """Mode, size and mtime: what can be told without reading what one may not read."""
    return {
        name: (info.mode, 0 if stat.S_ISDIR(info.mode) else info.size, info.mtime_ns)
        for name, info in stats(path).items()
    }


def test_a_file_that_may_not_be_read_is_not_lost(over: Make) -> None:
    """Root reads it; for another user it stays out, or is refused. The lower file stays."""
    workspace = over({"locked": File("secret", mode=0), "open": "x"})
    done = workspace.try_to_mount()
    if done.returncode == 0:
        assert os.geteuid() == 0 or "locked" in done.stderr
        (workspace.path / "open").write_text("edited")
        workspace.umount()
        assert (workspace.path / "open").read_text() == "edited"
    else:
        assert "locked" in done.stderr and "Traceback" not in done.stderr
    assert not is_mounted(workspace.path)
    assert stat.S_IMODE((workspace.path / "locked").stat().st_mode) == 0
    (workspace.path / "locked").chmod(0o600)
    assert (workspace.path / "locked").read_text() == "secret"


# --- changes of the lower directory while it is not mounted ----------------------------------


def test_changes_of_the_lower_directory_are_seen_at_the_next_mount(over: Make) -> None:
    workspace = over(SAMPLE)
    workspace.mount()
    (workspace.path / "made in the mount").write_text("x")
    workspace.umount()
    edit(workspace.path)
    expected = facts(workspace.path)
    workspace.mount()
    assert facts(workspace.path) == expected
    workspace.umount()
    assert facts(workspace.path) == expected


def test_changes_of_the_lower_directory_are_a_change_set_of_their_own(over: Make) -> None:
    workspace = over({"file": "x"})
    workspace.mount()
    workspace.umount()
    (workspace.path / "file").write_text("edited below")
    workspace.mount()
    assert workspace.status()["checkpoint_count"] >= 1
    exported = workspace.path.parent / "exported"
    succeed(workspace.cli("export", exported, "-w", workspace.path))
    assert tree(exported) == {"file": "edited below"}


def test_an_edit_that_keeps_size_and_mtime_is_seen(over: Make) -> None:
    """ctime and inode tell, where size and mtime were made equal on purpose."""
    workspace = over({"a": File("old", mtime_ns=10**18), "b": File("old", mtime_ns=10**18)})
    workspace.mount()
    workspace.umount()
    (workspace.path / "a").write_text("new")
    os.utime(workspace.path / "a", ns=(10**18, 10**18))
    plant(workspace.path, {"c": File("new", mtime_ns=10**18)})
    os.rename(workspace.path / "c", workspace.path / "b")
    workspace.mount()
    assert tree(workspace.path) == {"a": "new", "b": "new"}


def test_the_lower_directory_may_be_moved_with_the_workspace_away(over: Make) -> None:
    """All of its content deleted below is a change like any other, not a reason to give up."""
    workspace = over({"a": "x", "d": {"b": "y"}})
    workspace.mount()
    workspace.umount()
    for name in os.listdir(workspace.path):
        _remove(workspace.path / name)
    workspace.mount()
    assert tree(workspace.path) == {}


# --- a daemon that dies over a directory -----------------------------------------------------


def test_after_a_kill_the_old_lower_content_is_not_taken_for_newer(over: Make) -> None:
    workspace = over({"edited": "old", "deleted": "old", "kept": "k"})
    workspace.mount()
    (workspace.path / "edited").write_text("new")
    (workspace.path / "deleted").unlink()
    (workspace.path / "added").write_text("a")
    make_durable(workspace.path)
    workspace.kill()
    workspace.mount()
    assert tree(workspace.path) == {"added": "a", "edited": "new", "kept": "k"}
    workspace.umount()
    assert tree(workspace.path) == {"added": "a", "edited": "new", "kept": "k"}


def test_after_a_kill_umount_still_brings_the_directory_up_to_date(over: Make) -> None:
    workspace = over({"file": "old"})
    workspace.mount()
    (workspace.path / "file").write_text("new")
    make_durable(workspace.path)
    workspace.kill()
    succeed(workspace.cli("umount", workspace.path))
    assert not is_mounted(workspace.path)
    assert tree(workspace.path) == {"file": "new"}


def clear_dead_mount(workspace: Workspace) -> None:
    """Take the dead mountpoint away behind ckptfs's back, as a reboot does."""
    detach(str(workspace.path))
    assert not is_mounted(workspace.path)


def test_after_a_crash_where_both_changed_both_are_kept_and_it_says_so(over: Make) -> None:
    workspace = over({"both": "base", "store only": "base", "below only": "base"})
    workspace.mount()
    (workspace.path / "both").write_text("from the mount")
    (workspace.path / "store only").write_text("from the mount")
    make_durable(workspace.path)
    workspace.kill()
    clear_dead_mount(workspace)
    (workspace.path / "both").write_text("from below")
    (workspace.path / "below only").write_text("from below")
    said = workspace.mount().stderr
    content = tree(workspace.path)
    assert content["store only"] == "from the mount"
    assert content["below only"] == "from below"
    copies = {name: text for name, text in content.items() if "both" in name}
    assert sorted(map(str, copies.values())) == ["from below", "from the mount"]
    assert all(name in said for name in copies if name != "both")
    workspace.umount()
    assert tree(workspace.path) == content


@pytest.mark.parametrize(
    "words", [("diff", "--stat"), ("restore", "0", "--dry-run"), ("export", "out"), ("save",)]
)
def test_the_verb_that_meets_a_conflict_before_the_mount_says_so(
    over: Make, words: tuple[str, ...]
) -> None:
    workspace = over({"both": "base"})
    workspace.mount()
    (workspace.path / "both").write_text("from the mount")
    succeed(workspace.cli("umount", "--no-write-back", workspace.path))
    (workspace.path / "both").write_text("from below, longer")
    words = tuple(str(workspace.path.parent / word) if word == "out" else word for word in words)
    said = succeed(workspace.cli(*words, "-w", workspace.path)).stderr
    line = "both changed on both sides; the version from outside is kept as both.below.\n"
    assert line in said
    again = succeed(workspace.cli("diff", "--stat", "-w", workspace.path)).stderr
    assert "both sides" not in again
    workspace.mount()
    assert tree(workspace.path) == {"both": "from the mount", "both.below": "from below, longer"}
    workspace.umount()


def test_after_a_crash_equal_changes_on_both_sides_are_no_conflict(over: Make) -> None:
    workspace = over({"file": "base"})
    workspace.mount()
    (workspace.path / "file").write_text("the same")
    make_durable(workspace.path)
    workspace.kill()
    clear_dead_mount(workspace)
    (workspace.path / "file").write_text("the same")
    workspace.mount()
    assert tree(workspace.path) == {"file": "the same"}


def test_after_a_crash_an_edit_of_a_lower_file_wins_over_a_deletion(over: Make) -> None:
    """Nothing that somebody wrote is thrown away, whichever side deleted it."""
    workspace = over({"deleted above": "base", "deleted below": "base"})
    workspace.mount()
    (workspace.path / "deleted above").unlink()
    (workspace.path / "deleted below").write_text("edited above")
    make_durable(workspace.path)
    workspace.kill()
    clear_dead_mount(workspace)
    (workspace.path / "deleted above").write_text("edited below")
    (workspace.path / "deleted below").unlink()
    workspace.mount()
    assert tree(workspace.path) == {
        "deleted above": "edited below",
        "deleted below": "edited above",
    }


# --- --from and --no-write-back --------------------------------------------------------------


def test_from_fills_a_new_workspace_and_leaves_its_source_alone(over: Make) -> None:
    workspace = over({})
    source = workspace.path.parent / "source"
    source.mkdir()
    plant(source, SAMPLE)
    before, untouched = facts(source), stats(source)
    workspace.mount("--from", str(source))
    content = facts(workspace.path)
    assert {name: fact for name, fact in content.items() if name != "."} == {
        name: fact for name, fact in before.items() if name != "."
    }
    edit(workspace.path)
    expected = facts(workspace.path)
    workspace.umount()
    assert stats(source) == untouched
    assert facts(workspace.path) == expected


def test_no_write_back_leaves_the_lower_directory_alone(over: Make) -> None:
    workspace = over(SAMPLE)
    before = stats(workspace.path)
    workspace.options = ("--no-write-back",)
    workspace.mount()
    edit(workspace.path)
    expected = facts(workspace.path)
    workspace.umount()
    assert stats(workspace.path) == before
    workspace.mount()
    assert facts(workspace.path) == expected


def test_a_later_umount_writes_back_what_an_earlier_one_did_not(over: Make) -> None:
    """What was held back once comes with the next unmount that writes back."""
    workspace = over({"file": "old", "deleted": "x"})
    workspace.mount("--no-write-back")
    (workspace.path / "file").write_text("new")
    (workspace.path / "deleted").unlink()
    workspace.umount()
    assert tree(workspace.path) == {"deleted": "x", "file": "old"}
    workspace.mount()
    assert tree(workspace.path) == {"file": "new"}
    workspace.umount()
    assert tree(workspace.path) == {"file": "new"}


# --- unmounting while it is used -------------------------------------------------------------


def test_umount_of_a_busy_workspace_refuses_and_leaves_it_usable(over: Make) -> None:
    workspace = over({"file": "x"})
    workspace.mount()
    with open(workspace.path / "file") as held:
        done = workspace.cli("umount", workspace.path)
        assert done.returncode != 0
        assert "Traceback" not in done.stderr and done.stderr.strip()
        assert held.read() == "x"
        (workspace.path / "file").write_text("still usable")
    workspace.umount()
    assert tree(workspace.path) == {"file": "still usable"}


def test_the_store_is_private(over: Make) -> None:
    workspace = over({"file": "x"})
    workspace.mount()
    assert stat.S_IMODE(workspace.store.stat().st_mode) == 0o700
