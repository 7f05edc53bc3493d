"""The two paths from the kernel: the compiled server, and the portable path."""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.errnos import fails
from tests.support.mounting import Workspace, succeed
from tests.support.syscalls import Dirent, getdents
from tests.support.trees import facts, plant
from tests.support.waiting import wait_until

pytestmark = pytest.mark.needs_mount


@pytest.fixture(params=["on", "off"])
def work(
    request: pytest.FixtureRequest,
    make_workspace: Callable[..., Workspace],
    monkeypatch: pytest.MonkeyPatch,
) -> Workspace:
    monkeypatch.setenv("CKPTFS_SERVER", request.param)
    space = make_workspace("--auto", "off")
    said = Path(space.status()["log"]).read_text()
    assert ("requests: compiled path" in said) == (request.param == "on")
    assert ("requests: portable path" in said) == (request.param == "off")
    return space


def test_status_says_which_path_serves_and_why(work: Workspace) -> None:
    record = work.status()
    shown = succeed(work.cli("status", "-w", work.path)).stdout
    if os.environ["CKPTFS_SERVER"] == "on":
        assert (record["server"], record["server_reason"]) == ("compiled", "")
        assert "served by    the compiled server" in shown
    else:
        assert (record["server"], record["server_reason"]) == ("portable", "CKPTFS_SERVER=off")
        assert "served by    the portable path" in shown and "CKPTFS_SERVER=off" in shown


@pytest.mark.parametrize("server", ["on", "off"])
def test_mount_says_which_path_serves_and_why(
    server: str, make_workspace: Callable[..., Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = make_workspace("--auto", "off")
    succeed(work.cli("umount", work.path))
    monkeypatch.setenv("CKPTFS_SERVER", server)
    mounted = succeed(work.cli("mount", work.path, "--auto", "off", "--json"))
    record = json.loads(mounted.stdout)
    assert record["server"] == ("compiled" if server == "on" else "portable")
    assert ("Served by the portable path" in mounted.stderr) == (server == "off")
    assert ("CKPTFS_SERVER=off" in mounted.stderr) == (server == "off")


def test_keeping_the_cpus_awake_is_told_and_is_a_setting(
    make_workspace: Callable[..., Workspace],
) -> None:
    work = make_workspace("--auto", "off")
    record = work.status()
    assert record["cpus_awake"] == (not record["cpus_awake_reason"])
    succeed(work.cli("config", "-w", work.path, "serve.keep_cpus_awake", "off"))
    succeed(work.cli("umount", work.path))
    succeed(work.cli("mount", work.path, "--auto", "off"))
    record = work.status()
    assert record["cpus_awake"] is False
    assert record["cpus_awake_reason"] == "the settings say so"


def save(work: Workspace) -> Path:
    number = json.loads(succeed(work.cli("save", "--json", "-w", work.path)).stdout)["id"]
    return work.path / ".checkpoints" / str(number)


def restore(work: Workspace, checkpoint: Path) -> None:
    succeed(work.cli("restore", checkpoint.name, "--force", "-w", work.path))


def test_a_tree_comes_back_as_it_was(work: Workspace) -> None:
    many = {f"file-{number:03}": "x" * number for number in range(400)}
    plant(work.path, {"dir": {"many": many, "empty": {}}, "big": "b" * 300_000})
    os.symlink("dir/many", work.path / "link")
    os.link(work.path / "big", work.path / "twin")
    os.mkfifo(work.path / "fifo")
    was, saved = facts(work.path), save(work)
    subprocess.run(["rm", "-rf", "dir", "link", "fifo"], cwd=work.path, check=True)
    (work.path / "twin").write_text("other")
    os.rename(work.path / "big", work.path / "moved")
    assert facts(saved) == was
    restore(work, saved)
    assert facts(work.path) == was


def test_a_file_without_a_name_lives_while_it_is_open(work: Workspace) -> None:
    path = work.path / "file"
    with path.open("w+") as stream:
        stream.write("one ")
        stream.flush()
        path.unlink()
        stream.write("two")
        stream.seek(0)
        assert stream.read() == "one two"
        assert os.fstat(stream.fileno()).st_nlink == 0
    wait_until(lambda: work.status()["inodes"] == 1, "the file to go with its last user")


def stat_after_reading(path: Path) -> os.stat_result:
    """After a read that the kernel does not answer itself, it asks for the attributes once more."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.read()
        return os.fstat(file.fileno())


def chmod(path: Path) -> None:
    path.chmod(0o640)


def set_times(path: Path) -> None:
    os.utime(path, ns=(1, 2))


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def cut(path: Path) -> None:
    os.truncate(path, 1_000)


def map_and_write(path: Path) -> None:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[:4] = b"more"


def link_and_unlink(path: Path) -> None:
    path.with_name("twin").hardlink_to(path)
    assert stat_after_reading(path).st_nlink == 2
    path.with_name("twin").unlink()


def move(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.with_name("moved").rename(path)


@pytest.mark.parametrize(
    "change", [chmod, set_times, append, cut, map_and_write, link_and_unlink, move]
)
def test_attributes_that_are_asked_for_again_are_those_of_now(
    work: Workspace, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    seen = []
    for path in (work.path / "file", tmp_path / "file"):
        path.write_bytes(b"x" * 9_000)
        set_times(path)
        stat_after_reading(path)
        stat_after_reading(path)
        change(path)
        after = stat_after_reading(path)
        seen.append((after.st_mode, after.st_nlink, after.st_size))
        if change is not map_and_write:  # of which the kernel may tell later
            assert (after.st_mtime_ns == 2) == (change not in (append, cut))
    assert seen[0] == seen[1]


def make_and_remove(directory: Path) -> None:
    for number in range(20):
        (directory / f"f{number}").write_text("x")
    for number in range(20):
        assert directory.stat().st_nlink == 3
        (directory / f"f{number}").unlink()


def make_subdirectories(directory: Path) -> None:
    for number in range(3):
        (directory / f"d{number}").mkdir()
        assert directory.stat().st_nlink == 4 + number


def remove_subdirectory(directory: Path) -> None:
    (directory / "sub").rmdir()


def move_subdirectory_out(directory: Path) -> None:
    (directory / "sub").rename(directory.with_name("out"))


def chmod_directory(directory: Path) -> None:
    directory.chmod(0o2750)


def make_what_is_excluded(directory: Path) -> None:
    (directory / "a.log").write_text("x")
    (directory / "b.log").mkdir()
    (directory / "a.log").unlink()


@pytest.mark.parametrize("options", [(), ("--exclude", "*.log")], ids=["plain", "excluding"])
@pytest.mark.parametrize(
    "change",
    [
        make_and_remove,
        make_subdirectories,
        remove_subdirectory,
        move_subdirectory_out,
        chmod_directory,
        make_what_is_excluded,
    ],
)
def test_attributes_of_directories_are_those_of_now(
    make_workspace: Callable[..., Workspace],
    tmp_path: Path,
    change: Callable[[Path], None],
    options: tuple[str, ...],
) -> None:
    work = make_workspace("--auto", "off", *options)
    seen = []
    for directory in (work.path / "dir", tmp_path / "dir"):
        (directory / "sub").mkdir(parents=True)
        (directory / "file").write_text("x")
        set_times(directory)
        (directory / "file").chmod(0o600)
        assert directory.stat().st_mtime_ns == 2
        change(directory)
        after = directory.stat()
        seen.append((after.st_mode, after.st_nlink, after.st_mtime_ns == 2))
    assert seen[0] == seen[1]
    known = facts(work.path)
    work.remount()
    assert facts(work.path) == known


def test_a_restore_brings_back_the_attributes_of_directories(work: Workspace) -> None:
    directory = work.path / "dir"
    (directory / "sub").mkdir(parents=True)
    was, saved = directory.stat(), save(work)
    (directory / "sub").rmdir()
    assert directory.stat().st_nlink == 2
    (directory / "file").write_text("x")
    (directory / "file").unlink()
    restore(work, saved)
    now = directory.stat()
    assert (now.st_nlink, now.st_mtime_ns) == (3, was.st_mtime_ns)
    succeed(work.cli("undo", "--force", "-w", work.path))
    assert directory.stat().st_nlink == 2


def test_attributes_after_a_restore_are_those_of_the_checkpoint(work: Workspace) -> None:
    path = work.path / "file"
    path.write_text("old")
    was, saved = stat_after_reading(path), save(work)
    path.write_text("newer")
    path.chmod(0o600)
    assert stat_after_reading(path).st_size == 5
    restore(work, saved)
    now = stat_after_reading(path)
    assert (now.st_size, now.st_mode, now.st_mtime_ns) == (3, was.st_mode, was.st_mtime_ns)
    succeed(work.cli("undo", "--force", "-w", work.path))
    assert stat_after_reading(path).st_size == 5


def test_a_restore_leaves_it_to_its_user_though_the_checkpoint_has_it_too(work: Workspace) -> None:
    path = work.path / "file"
    with path.open("w+b", buffering=0) as stream:
        stream.write(b"one ")
        path.unlink()
        saved = save(work)
        (work.path / "other").touch()
        restore(work, saved)
        stream.write(b"two")
        assert os.pread(stream.fileno(), 100, 0) == b"one two"
    wait_until(lambda: work.status()["inodes"] == 1, "the file to go with its last user")


def test_a_restore_leaves_what_is_open_to_its_user(work: Workspace) -> None:
    plant(work.path, {"held": "old", "other": "old"})
    saved = save(work)
    numbers = {name: (work.path / name).stat().st_ino for name in ("held", "other")}
    (work.path / "held").write_text("new")
    (work.path / "other").write_text("new")
    with (work.path / "held").open("r+") as stream:
        restore(work, saved)
        assert (work.path / "held").read_text() == (work.path / "other").read_text() == "old"
        assert stream.read() == "new"
        stream.write(" and newer")
        stream.flush()
        assert (work.path / "held").read_text() == "old"
    # What nobody had open is the same file as before.
    assert (work.path / "other").stat().st_ino == numbers["other"]


@pytest.mark.parametrize("mode", ["r+b", "ab"])
def test_a_file_in_a_checkpoint_takes_no_bytes(work: Workspace, mode: str) -> None:
    plant(work.path, {"file": "content"})
    path = save(work) / "file"
    with pytest.raises(OSError, match="Read-only") as refused, path.open(mode, buffering=0) as file:
        file.write(b"other")
    assert refused.value.errno == errno.EROFS
    assert path.read_text() == "content"


def test_a_checkpoint_cannot_be_changed_by_a_mapping(work: Workspace) -> None:
    plant(work.path, {"file": "content"})
    path = save(work) / "file"
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError as error:
        assert error.errno == errno.EROFS
        return
    with mmap.mmap(descriptor, 7) as mapping:
        mapping[:] = b"another"
        with pytest.raises(OSError, match="Read-only"):
            mapping.flush()
    os.close(descriptor)
    wait_until(lambda: path.read_text() == "content", "the kernel to drop what it was given")


def test_a_listing_follows_what_is_done_by_others(work: Workspace) -> None:
    """The kernel keeps what it read of a directory; a restore and a save must be seen in it."""
    plant(work.path, {"dir": {"one": "1"}})
    saved = save(work)
    (work.path / "dir" / "two").write_text("2")
    (work.path / "dir" / "one").unlink()
    assert os.listdir(work.path / "dir") == ["two"]
    assert os.listdir(work.path / "dir") == ["two"]
    restore(work, saved)
    assert os.listdir(work.path / "dir") == ["one"]
    known = set(os.listdir(saved.parent))
    (work.path / "dir" / "three").write_text("3")
    again = save(work)
    assert set(os.listdir(saved.parent)) == known | {again.name}
    succeed(work.cli("delete", again.name, "-w", work.path))
    assert set(os.listdir(saved.parent)) == known


def test_a_checkpoint_that_expires_is_gone_for_the_kernel_too(work: Workspace) -> None:
    plant(work.path, {"file": "1"})
    saved = save(work)
    for content in ("2", "3"):
        (work.path / "file").write_text(content)
        restore(work, saved)
    before = [saved.parent / str(int(saved.name) + number) for number in (1, 2)]
    assert [(path / "file").read_text() for path in before] == ["2", "3"]
    for key in ("retention.keep_all", "retention.hourly", "retention.daily", "moments.keep"):
        succeed(work.cli("config", key, "1s", "-w", work.path))
    succeed(work.cli("config", "retention.max_checkpoints", "1", "-w", work.path))
    (work.path / "file").write_text("4")
    wait_until(lambda: not before[0].exists(), "the name of an expired checkpoint to go")


def test_a_restore_of_paths_leaves_nothing_unused_behind(
    make_workspace: Callable[..., Workspace],
) -> None:
    """With the server: without it nobody counts what the kernel knows, and it may know them all."""
    work = make_workspace("--auto", "off")
    (work.path / "dir").mkdir()
    saved, used = save(work), work.status()["inodes"]
    plant(work.path / "dir", {f"file-{number}": "x" for number in range(20)})
    work.umount()
    work.mount("--auto", "off")
    succeed(work.cli("restore", saved.name, "--force", "-w", work.path, work.path / "dir"))
    assert work.status()["inodes"] == used


def grow(root: Path) -> None:
    for number in range(30):
        directory = root / f"d{number % 3}" / f"s{number}"
        directory.mkdir(parents=True)
        for name in range(number % 7):
            (directory / f"f{name}").write_text(f"{number} {name}")
    (root / "d0" / "s0" / "link").symlink_to("nowhere")
    (root / "d1" / "twin").hardlink_to(root / "d1" / "s1" / "f0")


def rework(root: Path) -> None:
    """A little of everything that changes names."""
    (root / "d0" / "s3" / "f0").unlink()
    (root / "d1" / "s4").rename(root / "d2" / "moved")
    (root / "d2" / "s5" / "new").write_text("new")
    (root / "d2" / "s5" / "f1").write_text("written over")
    (root / "d0" / "made").mkdir()
    os.utime(root / "d0" / "s6", ns=(1, 2))
    (root / "d1" / "twin").unlink()
    (root / "d2" / "s5" / "f2").replace(root / "d2" / "s5" / "f3")


def without_times(root: Path) -> dict[str, object]:
    """Nor the sizes of directories, which every file system has its own of."""
    return {
        name: fact._replace(mtime_ns=0, size=fact.size if fact.type == "-" else 0)
        for name, fact in facts(root).items()
    }


def test_a_tree_that_was_committed_looks_as_it_does_on_disk(
    work: Workspace, tmp_path: Path
) -> None:
    """The kernel knows nothing of it yet, and the server answers what the last commit has."""
    for root in (work.path, tmp_path):
        grow(root)
        root.chmod(0o755)
    before = facts(work.path)
    work.remount()
    assert facts(work.path) == before
    work.remount()
    for root in (work.path, tmp_path):
        assert not (root / "d0" / "absent").exists()
        rework(root)
        assert not (root / "d0" / "s3" / "f0").exists()
        assert not (root / "d1" / "s4" / "f1").exists()
    assert without_times(work.path) == without_times(tmp_path)
    after = facts(work.path)
    work.quiet()
    assert facts(work.path) == after
    work.remount()
    assert facts(work.path) == after


def test_a_tree_that_was_restored_looks_as_it_did(work: Workspace) -> None:
    grow(work.path)
    before, saved = facts(work.path), save(work)
    work.remount()
    rework(work.path)
    restore(work, saved)
    assert facts(work.path) == before
    work.remount()
    assert facts(work.path) == before


NAMES = [b"m%03d" % number for number in range(20)]


@contextlib.contextmanager
def opened(directory: Path) -> Iterator[int]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def committed(work: Workspace) -> Path:
    """A directory that stands as it was committed, and that the kernel knows nothing of."""
    directory = work.path / "dir"
    for place in (directory, work.path / "elsewhere"):
        place.mkdir()
        for name in NAMES:
            (place / os.fsdecode(name)).touch()
    work.remount()
    return directory


def list_elsewhere(work: Workspace) -> None:
    """What was listed last is another directory then."""
    (work.path / "elsewhere" / "new").touch()
    os.listdir(work.path / "elsewhere")
    (work.path / "elsewhere" / "new").unlink()


def read_on(fd: int, size: int) -> list[bytes]:
    found: list[bytes] = []
    while batch := getdents(fd, size):
        found += [entry.name for entry in batch]
    return found


def names_of(entries: list[Dirent]) -> list[bytes]:
    return [entry.name for entry in entries if entry.name not in (b".", b"..")]


@pytest.mark.parametrize("size", [400, 32_768])
def test_a_listing_goes_on_behind_what_was_removed(work: Workspace, size: int) -> None:
    directory = committed(work)
    with opened(directory) as fd:
        given = names_of(getdents(fd, size))
        for name in given:
            (directory / os.fsdecode(name)).unlink()
        list_elsewhere(work)
        assert given + read_on(fd, size) == NAMES


@pytest.mark.parametrize("size", [400, 32_768])
def test_a_listing_gives_nothing_twice_if_names_come_before(work: Workspace, size: int) -> None:
    directory = committed(work)
    with opened(directory) as fd:
        given = names_of(getdents(fd, size))
        for number in range(4):
            (directory / f"a{number}").touch()
        list_elsewhere(work)
        assert given + read_on(fd, size) == NAMES


def test_a_listing_goes_on_where_it_is_told_to(work: Workspace) -> None:
    directory = committed(work)
    with opened(directory) as fd:
        entries = getdents(fd, 32_768)
        place = next(entry for entry in entries if entry.name == NAMES[9])
        for name in NAMES[:7]:
            (directory / os.fsdecode(name)).unlink()
        list_elsewhere(work)
        os.lseek(fd, place.after, os.SEEK_SET)
        assert read_on(fd, 32_768) == NAMES[10:]


def test_a_program_that_writes_beside_what_it_lists_ends(work: Workspace) -> None:
    directory = committed(work)
    seen = []
    for entry in os.scandir(directory):
        seen.append(os.fsencode(entry.name))
        (directory / f"backup-{entry.name}").touch()
        list_elsewhere(work)
    assert seen == NAMES


def test_more_listings_at_once_than_are_remembered(work: Workspace) -> None:
    directory = committed(work)
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(opened(directory)) for _ in range(100)]
        begun = [names_of(getdents(fd, 400)) for fd in readers]
        (directory / "zz").touch()
        for fd, given in zip(readers, begun, strict=True):
            assert given + read_on(fd, 400) == [*NAMES, b"zz"]


#: Places in a directory that no answer has named: small, large, and of streams that never were.
NEVER_GIVEN = [1, 2, 5, 100, 1 << 20, (1 << 31) - 1, (7 << 32) + 3, (1 << 62) + 9, (1 << 63) - 1]


def _listed(fd: int, offset: int) -> list[bytes]:
    os.lseek(fd, offset, os.SEEK_SET)
    found: list[bytes] = []
    while batch := getdents(fd, 512):
        found += [entry.name for entry in batch]
        assert len(found) < 1000, "it does not end"
    return found


@pytest.mark.parametrize("committed", [True, False])
def test_seekdir_to_a_place_that_was_never_given(work: Workspace, committed: bool) -> None:
    """POSIX leaves open where that is. Here it is somewhere in the listing or at its end: nothing
    fails, nothing comes twice, and what is read from the start later is whole."""
    for name in ("one", "two"):
        (work.path / name).mkdir()
        plant(work.path / name, {f"{name}-{number:03}": "x" for number in range(100)})
    if committed:
        work.remount()
    fds = [os.open(work.path / name, os.O_RDONLY) for name in ("one", "two")]
    try:
        for fd in fds:
            whole = _listed(fd, 0)
            assert len(set(whole)) == len(whole) == 102
            for offset in NEVER_GIVEN:
                found = _listed(fd, offset)
                assert len(set(found)) == len(found) and set(found) <= set(whole)
            assert _listed(fd, 0) == whole
        os.lseek(fds[0], 0, os.SEEK_SET)
        for entry in getdents(fds[0], 512):  # places of the one directory, in the other
            assert set(_listed(fds[1], entry.after)) <= set(_listed(fds[1], 0))
        assert _listed(fds[0], 0) != _listed(fds[1], 0)
    finally:
        for fd in fds:
            os.close(fd)


def test_posix_fallocate_makes_a_file_longer(
    work: Workspace, request: pytest.FixtureRequest
) -> None:
    """pyfuse3 has no handler for fallocate(2), and the C library makes up for it by reading and
    writing a byte in each block. It cannot read from a file that was opened for writing alone."""
    alone = "off" in request.node.name
    for flags in (os.O_RDWR, os.O_WRONLY):
        (work.path / f"file-{flags}").write_text("x" * 10_000)
        fd = os.open(work.path / f"file-{flags}", flags)
        try:
            if alone and flags == os.O_WRONLY:
                with fails(errno.EBADF):
                    os.posix_fallocate(fd, 0, 20_000)
                os.ftruncate(fd, 20_000)  # what a program can do instead
            else:
                os.posix_fallocate(fd, 0, 20_000)
            assert os.fstat(fd).st_size == 20_000
        finally:
            os.close(fd)
