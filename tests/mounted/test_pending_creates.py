"""What was made a moment ago and is not in the store yet: nobody can tell."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ckptfs.model import FILE_SIZE_MAX
from tests.support.errnos import fails
from tests.support.mounting import Workspace, succeed
from tests.support.trees import Facts, facts

pytestmark = pytest.mark.needs_mount


def make_many(top: Path, count: int) -> None:
    """Files in directories, each with bytes, a mode and times of its own."""
    for number in range(count):
        place = top / f"dir{number % 7}" / f"sub{number % 3}"
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"file{number}"
        path.write_bytes(b"%d " % number * (number % 400))
        os.chmod(path, 0o600 + number % 64)
        os.utime(path, ns=(number, 10**18 + number))
        if number % 5 == 0:
            os.symlink(f"file{number}", place / f"link{number}")


def timed_files(known: dict[str, Facts]) -> dict[str, Facts]:
    """Without the times that nobody set."""
    return {
        name: fact if fact.type == "f" else fact._replace(mtime_ns=0)
        for name, fact in known.items()
    }


def test_a_tree_made_at_once_is_as_on_the_disk(mount: Path, elsewhere: Path) -> None:
    make_many(mount, 300)
    make_many(elsewhere, 300)
    assert timed_files(facts(mount)) == timed_files(facts(elsewhere))


def test_threads_that_write_at_once_lose_nothing(mount: Path) -> None:
    def work(number: int) -> None:
        for step in range(60):
            path = mount / f"thread{number}-{step}"
            path.write_bytes(b"%d" % step * number)
            assert path.stat().st_size == len(b"%d" % step) * number
            if step % 3 == 0:
                os.rename(path, mount / f"moved{number}-{step}")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert len(os.listdir(mount)) == 8 * 60
    assert (mount / "moved7-3").read_bytes() == b"3" * 7


def test_programs_that_unpack_at_once_get_what_is_in_the_archive(
    mount: Path, elsewhere: Path, tmp_path: Path
) -> None:
    """Of four, most files are flushed while they are being made."""
    make_many(elsewhere, 400)
    archive = tmp_path / "archive.tar"
    subprocess.run(["tar", "cf", archive, "-C", elsewhere, "."], check=True)
    places = [mount / f"place{number}" for number in range(4)]
    for place in places:
        place.mkdir()
    running = [subprocess.Popen(["tar", "xpf", archive, "-C", place]) for place in places]
    assert [each.wait() for each in running] == [0] * 4
    for place in places:
        assert timed_files(facts(place)) == timed_files(facts(elsewhere))


def test_attributes_of_what_is_in_the_store_are_changed_at_once(
    make_workspace: Callable[..., Workspace],
) -> None:
    """However one looks at them, in whatever order they and the bytes are changed."""
    work = make_workspace("--auto", "off")
    top = work.path / "top"
    top.mkdir()
    make_many(top, 60)
    succeed(work.cli("save", "--json", "-w", work.path))  # all is in the store
    files = sorted(path for path in top.rglob("file*"))
    os.link(files[0], top / "second name")
    for number, path in enumerate(files):
        (work.path / f"made{number}").touch()  # a process that goes on
        os.chmod(path, 0o700 + number % 8)
        os.utime(path, ns=(1, 10**18))
        assert stat.S_IMODE(path.stat().st_mode) == 0o700 + number % 8
        if number % 3 == 0:
            with path.open("ab") as file:
                file.write(b"more")
            assert path.stat().st_mtime_ns > 10**18
        elif number % 3 == 1:
            os.truncate(path, 5)
            assert (path.stat().st_size, path.stat().st_mtime_ns > 10**18) == (5, True)
        else:
            listed = {entry.name: entry.stat() for entry in os.scandir(path.parent)}
            assert listed[path.name].st_mtime_ns == 10**18
    assert (top / "second name").stat().st_mode == files[0].stat().st_mode
    before = facts(top)
    saved = json.loads(succeed(work.cli("save", "--json", "-w", work.path)).stdout)["id"]
    for path in files[::2]:
        os.chmod(path, 0o600)
        path.unlink()
    assert facts(work.path / ".checkpoints" / str(saved) / "top") == before
    assert not any(path.exists() for path in files[::2])


def test_a_checkpoint_has_all_that_was_made_before_it(
    make_workspace: Callable[..., Workspace],
) -> None:
    work = make_workspace("--auto", "off")
    for turn in range(5):
        top = work.path / f"turn{turn}"
        top.mkdir()
        make_many(top, 40)
        log = os.open(top / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        for number in range(50):
            os.write(log, b"line %d\n" % number)
        saved = json.loads(succeed(work.cli("save", "--json", "-w", work.path)).stdout)["id"]
        os.write(log, b"later\n")
        os.close(log)
        there = facts(work.path / ".checkpoints" / str(saved) / top.name)
        here = facts(top)
        assert (top / "log").read_bytes().endswith(b"line 49\nlater\n")
        kept = work.path / ".checkpoints" / str(saved) / top.name / "log"
        assert kept.read_bytes().endswith(b"line 49\n")
        del here["log"], there["log"]
        assert there == here


@pytest.mark.needs_root
def test_a_file_in_a_set_gid_directory_gets_its_group(mount: Path) -> None:
    place = mount / "shared"
    place.mkdir()
    os.chown(place, -1, 12_345)
    os.chmod(place, 0o2775)
    for number in range(20):
        (place / f"file{number}").touch()
        (place / f"dir{number}").mkdir()
    assert {entry.stat().st_gid for entry in os.scandir(place)} == {12_345}
    assert all(entry.stat().st_mode & stat.S_ISGID for entry in os.scandir(place) if entry.is_dir())
    assert place.stat().st_nlink == 22


def test_what_is_made_and_synced_at_once_survives(own_mount: Workspace) -> None:
    for number in range(30):
        fd = os.open(own_mount.path / f"file{number}", os.O_CREAT | os.O_WRONLY)
        os.write(fd, b"%d" % number)
        os.write(fd, b" and more")
        if number % 10 == 9:
            os.fsync(fd)
        os.close(fd)
    own_mount.kill()
    own_mount.mount()
    assert len(os.listdir(own_mount.path)) == 30
    assert (own_mount.path / "file29").read_bytes() == b"29 and more"


def test_a_restore_brings_a_name_into_a_new_directory(
    make_workspace: Callable[..., Workspace],
) -> None:
    """What is absent in a new directory is known without the store: not after this."""
    work = make_workspace("--auto", "off")
    top = work.path / "top"
    top.mkdir()
    (top / "file").write_bytes(b"content")
    saved = json.loads(succeed(work.cli("save", "--json", "-w", work.path)).stdout)["id"]
    shutil.rmtree(top)
    for number in range(20):  # a process that goes on
        (work.path / f"before{number}").write_bytes(b"")
    top.mkdir()
    (top / "another").write_bytes(b"")
    assert not (top / "file").exists()
    succeed(work.cli("restore", str(saved), "--force", "-w", work.path, top / "file"))
    assert (top / "file").read_bytes() == b"content"
    assert not (top / "absent").exists()
    assert sorted(os.listdir(top)) == ["another", "file"]


def test_a_removed_directory_that_is_still_open_keeps_its_attributes(own_mount: Workspace) -> None:
    top = own_mount.path
    for _ in range(50):
        os.mkdir(top / "dir")
        fd = os.open(top / "dir", os.O_RDONLY)
        os.rmdir(top / "dir")
        os.fstat(fd)
        os.fchmod(fd, 0o700)
        assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o700
        os.close(fd)
    (top / "file").write_text("alive")
    own_mount.remount()
    assert (top / "file").read_text() == "alive"


def test_the_largest_file_can_be_written_to_its_end(own_mount: Workspace) -> None:
    (own_mount.path / "other").write_text("alive")
    fd = os.open(own_mount.path / "file", os.O_CREAT | os.O_WRONLY)
    os.pwrite(fd, b"x" * 100, FILE_SIZE_MAX - 300)
    os.pwrite(fd, b"x" * 100, FILE_SIZE_MAX - 200)
    with fails(errno.EFBIG):
        os.pwrite(fd, b"x" * 101, FILE_SIZE_MAX - 100)
    os.fsync(fd)
    os.close(fd)
    own_mount.kill()  # no directory below takes a file of that size, so it cannot be unmounted
    own_mount.mount()
    assert (own_mount.path / "other").read_text() == "alive"
    assert (own_mount.path / "file").stat().st_size == FILE_SIZE_MAX - 100
    (own_mount.path / "file").unlink()


def test_a_name_that_is_too_long_is_refused_in_a_new_directory(mount: Path) -> None:
    for number in range(20):
        os.mkdir(mount / f"dir{number}")
        with fails(errno.ENAMETOOLONG):
            os.stat(mount / f"dir{number}" / ("n" * 300))


def untimed(known: dict[str, Facts]) -> dict[str, Facts]:
    return {name: fact._replace(mtime_ns=0) for name, fact in known.items()}


def link_into_place(top: Path, number: int) -> None:
    """Write beside, link, and remove one of the names, or none."""
    beside, place = top / f"beside{number}", top / f"dir{number % 3}" / f"name{number}"
    place.parent.mkdir(exist_ok=True)
    beside.write_bytes(b"%d " % number * 50)
    os.chmod(beside, 0o444)
    os.link(beside, place)
    if number % 5 == 0:
        assert os.stat(place).st_nlink == os.stat(beside).st_nlink == 2
    if number % 4 == 1:
        os.unlink(beside)
        assert os.stat(place).st_nlink == 1
    if number % 4 == 2:
        os.unlink(place)
        assert not place.exists()
    if number % 4 == 3:
        os.rename(place, top / f"moved{number}")


def test_files_that_are_linked_into_place_are_whole_after_a_remount(
    own_mount: Workspace, elsewhere: Path
) -> None:
    for number in range(200):
        link_into_place(own_mount.path, number)
        link_into_place(elsewhere, number)
    want = untimed(facts(elsewhere))
    assert untimed(facts(own_mount.path)) == want
    own_mount.remount()
    assert untimed(facts(own_mount.path)) == want
    succeed(own_mount.cli("check", "--deep", "-w", own_mount.path))
