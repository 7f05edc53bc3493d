"""Several mounts of one daemon, each with a connection of its own, served by one loop."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.companions import Trees, trees
from tests.support.mounting import is_mounted
from tests.support.staging import USER, said
from tests.support.waiting import wait_until

pytestmark = pytest.mark.needs_mount

GIT = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}

#: What a busy program does: files in directories, appended, moved into place and removed.
BUSY = """
set -e
for i in $(seq 30); do
    mkdir d$i
    for j in 1 2 3 4 5; do echo "$NAME $i $j" > d$i/new; mv d$i/new d$i/f$j; done
    echo more >> d$i/f1
    ln d$i/f2 d$i/also
    rm d$i/f3
done
"""


@pytest.fixture(scope="module")
def served() -> Iterator[Trees]:
    with trees(3) as found:
        yield found


def start(script: str, path: Path, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["sh", "-c", script],
        cwd=path,
        env={**os.environ, **GIT, **env},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def write_at_once(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def run_in_all(script: str, paths: list[Path]) -> list[str]:
    """Run it in all of them at the same time; what each said."""
    running = [start(script, path, NAME=path.name) for path in paths]
    said = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0] * len(paths), said
    return said


def test_each_is_a_file_system_of_its_own(served: Trees) -> None:
    devices = {os.stat(path).st_dev for path in served.paths}
    assert len(devices) == len(served.paths)


@pytest.mark.needs_program("git")
def test_git_tar_and_rsync_work_in_all_of_them_at_once(served: Trees) -> None:
    script = """
    set -e
    mkdir work; cd work
    git init -q .
    for i in $(seq 40); do mkdir -p src/$i; echo "$NAME $i" > src/$i/a; ln src/$i/a src/$i/b; done
    git add .; git commit -qm one; git status --porcelain
    git fsck --strict 2>&1 | grep -v notice || true
    tar cf ../work.tar .; mkdir ../out; tar xf ../work.tar -C ../out
    diff -r . ../out
    rsync -aH src/ ../copy/
    test $(stat -c %h ../copy/1/a) = 2
    test "$(cat ../copy/40/b)" = "$NAME 40"
    """
    assert run_in_all(script, served.paths) == ["", "", ""]


def test_sqlite_databases_beside_each_other_stay_apart(served: Trees) -> None:
    databases = [sqlite3.connect(path / "db") for path in served.paths]
    for database in databases:
        database.execute("create table t (tree, n)")
    for n in range(50):
        for tree, database in enumerate(databases):
            with database:
                database.execute("insert into t values (?, ?)", (tree, n))
    for tree, database in enumerate(databases):
        assert database.execute("select distinct tree from t").fetchall() == [(tree,)]
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
        database.close()


def test_equal_inode_numbers_are_not_taken_for_one_file(served: Trees) -> None:
    one, other, _ = served.paths
    first, second = one / "inherited", other / "inherited"
    for file in (first, second):
        file.write_text("x" * 5000)
    assert first.stat().st_ino == second.stat().st_ino, "or this shows nothing"

    same = subprocess.run(
        ["find", one, other, "-maxdepth", "1", "-samefile", first],
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(same.stdout.split()) == [str(first), f"{first}.too"]
    both = subprocess.run(
        ["du", "-c", "-B1", first, f"{first}.too", second, f"{second}.too"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert len(both) == 3, "each once, and the sum"
    assert not os.path.samefile(first, second)


def test_names_do_not_cross_from_one_to_another(served: Trees) -> None:
    one, other, third = served.paths
    (one / "here").write_text("here")
    for target in (other / "there", third / "there"):
        for call in (os.rename, os.link):
            with pytest.raises(OSError, match="cross-device") as refused:
                call(one / "here", target)
            assert refused.value.errno == errno.EXDEV


def test_locks_are_of_each_tree_alone(served: Trees) -> None:
    one, other, _ = served.paths
    held = []
    for path in (one, other):
        file = (path / "lock").open("w")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append(file)
    again = (one / "lock").open()
    with pytest.raises(BlockingIOError):
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for file in (*held, again):
        file.close()


def test_checkpoints_can_be_taken_entered_and_removed_in_each(served: Trees) -> None:
    for path in served.paths:
        (path / "kept").write_text(path.name)
        os.mkdir(path / ".checkpoints" / "before")
        (path / "kept").write_text("changed")
        assert (path / ".checkpoints/before/kept").read_text() == path.name
        number = os.readlink(path / ".checkpoints/before")
        old = path / ".checkpoints" / number / "kept"
        with pytest.raises(OSError, match="Read-only"):
            write_at_once(old, b"X")
        wait_until(
            lambda path=path: (path / ".checkpoints/before/kept").read_text() == path.name,
            "the kernel drops the page that a program tried to write",
        )
        os.rmdir(path / ".checkpoints" / number)
        assert "before" not in os.listdir(path / ".checkpoints")
        with pytest.raises(OSError, match="Invalid argument"):
            os.mkdir(path / ".checkpoints" / "12")


def test_extended_attributes_and_the_disk_are_answered_in_each(served: Trees) -> None:
    for path in served.paths:
        file = path / "attributed"
        file.write_text("")
        os.setxattr(file, "user.a", b"1", os.XATTR_CREATE)
        with pytest.raises(FileExistsError):
            os.setxattr(file, "user.a", b"1", os.XATTR_CREATE)
        with pytest.raises(OSError, match="No data") as refused:
            os.setxattr(file, "user.b", b"1", os.XATTR_REPLACE)
        assert refused.value.errno == errno.ENODATA
        os.setxattr(file, "user.long", b"v" * 3000, os.XATTR_CREATE)
        assert os.listxattr(file) == ["user.a", "user.long"]
        assert os.getxattr(file, "user.long") == b"v" * 3000
        os.removexattr(file, "user.a")
        assert os.listxattr(file) == ["user.long"]
    disks = [os.statvfs(path) for path in served.paths]
    assert len({(disk.f_blocks, disk.f_frsize, disk.f_namemax) for disk in disks}) == 1


def test_forks_stand_under_their_names_and_cannot_be_changed_there(served: Trees) -> None:
    one, other, _ = served.paths
    forks = one / ".forks"

    assert forks.is_dir() and ".forks" not in os.listdir(one)
    assert os.listdir(forks) == ["fork1", "fork2"]
    assert os.readlink(forks / "fork1") == str(other)
    (other / "through").write_text("a link")
    assert (forks / "fork1/through").read_text() == "a link"
    assert not (forks / "none").exists()
    for refused in (
        lambda: os.mkdir(forks / "new"),
        lambda: (forks / "new").write_text(""),
        lambda: os.unlink(forks / "fork1"),
        lambda: os.rename(forks / "fork1", forks / "new"),
        lambda: os.symlink("x", forks / "new"),
        lambda: os.chmod(forks, 0o700),
    ):
        with pytest.raises(OSError, match="Read-only"):
            refused()
    for refused in (
        lambda: os.rmdir(forks),
        lambda: os.rename(forks, one / "moved"),
        lambda: os.rename(other.parent / "tree1", forks),
    ):
        with pytest.raises(OSError, match=r"not permitted|busy|cross-device"):
            refused()
    with pytest.raises(FileExistsError):
        os.mkdir(forks)
    assert not (other / ".forks").exists(), "only the workspace itself has it"


def test_an_entry_of_the_workspace_called_forks_is_never_hidden(served: Trees) -> None:
    _, other, _ = served.paths
    own = other / ".forks"
    own.mkdir()
    (own / "mine").write_text("mine")
    assert os.listdir(other).count(".forks") == 1
    os.rename(own, other / "moved")
    assert not own.exists()
    os.rename(other / "moved", own)
    assert (own / "mine").read_text() == "mine"
    (own / "mine").unlink()
    own.rmdir()


def test_eight_busy_writers_in_eight_mounts_each_have_what_they_wrote() -> None:
    with trees(8) as served:
        run_in_all(BUSY, served.paths)
        run_in_all("mkdir again; cd again; " + BUSY, served.paths)
        for path in served.paths:
            for top in (path, path / "again"):
                for i in range(1, 31):
                    assert sorted(os.listdir(top / f"d{i}")) == ["also", "f1", "f2", "f4", "f5"]
                    assert (top / f"d{i}/f1").read_text() == f"{path.name} {i} 1\nmore\n"
                    assert (top / f"d{i}/also").read_text() == f"{path.name} {i} 2\n"


def test_one_is_unmounted_while_the_others_are_busy_and_goes_alone() -> None:
    with trees(3) as served:
        one, gone, third = served.paths
        busy = [start(BUSY, path, NAME=path.name) for path in (one, third)]
        (gone / "file").write_text("here")
        subprocess.run(["umount", gone], check=True)
        assert os.listdir(gone) == []
        for process in busy:
            assert process.communicate(timeout=120)[0] == ""
            assert process.returncode == 0
        assert len([name for name in os.listdir(third) if name.startswith("d")]) == 30


def test_a_nameless_open_file_ends_with_a_mount_that_is_detached() -> None:
    with trees(2) as served:  # at the end the store is checked
        _, gone = served.paths
        with (gone / "open").open("w+") as file:
            file.write("still here")
            file.flush()
            os.unlink(gone / "open")
            subprocess.run(["umount", "-l", gone], check=True)
            file.seek(0)
            assert file.read() == "still here"


def test_all_mounts_are_dead_after_a_kill_and_can_be_taken_away() -> None:

    with trees(3, status=-signal.SIGKILL) as served:
        served.server.send_signal(signal.SIGKILL)
        served.server.wait(60)
        for path in served.paths:
            assert is_mounted(path)
            with pytest.raises(OSError, match="not connected"):
                os.listdir(path)


@pytest.mark.needs_root
def test_a_user_without_rights_has_several_mounts_too() -> None:
    script = (
        USER
        + r"""
    mkdir trees; chown 65534 trees
    $as_user $stage/python - <<'END'
import os, subprocess, sys
from pathlib import Path
from tests.support.companions import trees
with trees(2) as served:
    for path in served.paths:
        (path / "file").write_text(path.name)
        assert (path / "file").read_text() == path.name
    print(len({os.stat(path).st_dev for path in served.paths}))
END
    """
    )
    assert said(script)[-1:] == ["2"]
