"""`.checkpoints/.mark` and `.checkpoints/.step`: what a program says with one write, through both
ways of serving requests."""

from __future__ import annotations

import errno
import json
import mmap
import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ckptfs import config
from ckptfs.control.client import Client
from tests.support.errnos import fails
from tests.support.mounting import Workspace, succeed, workspace
from tests.support.peer import peer
from tests.support.recording import recording
from tests.support.syscalls import fallocate
from tests.support.trees import plant

pytestmark = pytest.mark.needs_mount


class Marked:
    """A workspace, and the checkpoints that it got since."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.path = workspace.path
        self.mark = self.path / ".checkpoints/.mark"
        self.step = self.path / ".checkpoints/.step"
        self._before = {item["id"] for item in self._all()}
        self.newest = max(self._before)

    def _all(self) -> list[dict[str, Any]]:
        with Client(config.Workspace(self.path, self.workspace.store)) as client:
            found: list[dict[str, Any]] = client.call("list")["checkpoints"]
        return found

    def since(self) -> list[dict[str, Any]]:
        """Oldest first."""
        return [item for item in self._all() if item["id"] not in self._before]

    def marks(self) -> list[str]:
        found = self.since()
        assert {item["kind"] for item in found} <= {"mark"}
        return [item["message"] for item in found]


@pytest.fixture(scope="module", params=["on", "off"])
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """Whether the compiled server answers, or the portable path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CKPTFS_SERVER", request.param)
        yield str(request.param)


@pytest.fixture(scope="module")
def shared(server: str) -> Iterator[Workspace]:
    """Takes no checkpoints by itself, and lets none expire."""
    with workspace("--auto", "off", "--no-write-back") as made:
        succeed(made.cli("config", "retention.automatic", "off", "-w", made.path))
        yield made


@pytest.fixture
def work(shared: Workspace) -> Iterator[Marked]:
    yield Marked(shared)
    shared.quiet()
    for name in os.listdir(shared.path):
        subprocess.run(["rm", "-rf", shared.path / name], check=True)


def sh(work: Marked, script: str) -> str:
    """Have bash run a script in the workspace, as a command of its own; all of it must work."""
    done = subprocess.run(
        ["bash", "-ec", script],
        cwd=work.path,
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return succeed(done).stdout


def written(path: Path, *texts: bytes, flags: int = os.O_WRONLY) -> None:
    """Open a file, and write each text with a write(2) of its own; of one that takes only a part
    the rest is written, as every program does."""
    fd = os.open(path, flags)
    try:
        for text in texts:
            left = text
            while left:
                left = left[os.write(fd, left) :]
    finally:
        os.close(fd)


# -- marks -----------------------------------------------------------------------------------------


def test_a_line_from_a_shell_takes_a_checkpoint(work: Marked) -> None:
    sh(work, "echo one > file; echo 'step 12: tests pass' > .checkpoints/.mark; echo two > file")
    found = work.since()[-1]
    assert (found["kind"], found["message"]) == ("mark", "step 12: tests pass")
    assert found["cause"]["command"].startswith("echo one > file")
    assert (work.path / f".checkpoints/{found['id']}/file").read_text() == "one\n"
    assert os.readlink(work.path / ".checkpoints/latest") == str(found["id"])


def test_it_is_in_the_listing_at_once(work: Marked) -> None:
    before = sorted(os.listdir(work.path / ".checkpoints"))
    absent = work.path / ".checkpoints" / str(work.newest + 1)
    assert not absent.exists()
    work.mark.write_text("x")
    assert absent.is_dir()
    assert sorted(os.listdir(work.path / ".checkpoints")) == sorted([*before, absent.name])


def test_reading_it_tells_the_number_of_the_newest_checkpoint(work: Marked) -> None:
    first = work.newest + 1
    for number in range(first, first + 100):
        work.mark.write_text(f"a message of some length {number}")
        assert [work.mark.read_text() for _ in range(2)] == [f"{number}\n"] * 2
    succeed(work.workspace.cli("save", "by other means", "--allow-empty", "-w", work.path))
    assert work.mark.read_text() == f"{first + 100}\n"
    told = sh(work, "echo x > .checkpoints/.mark; read n < .checkpoints/.mark; echo $n")
    assert told == f"{first + 101}\n"


def _write_marks(path: Path) -> None:
    for number in range(100):
        path.write_text(f"message {number}\n")


def test_who_reads_never_sees_what_others_write(work: Marked) -> None:
    with peer() as writer:
        writer.begin(_write_marks, work.mark)
        seen: list[str] = []
        while len(work.since()) < 100:
            seen += [work.mark.read_text() for _ in range(20)]
        writer.finish(60)
    numbers = [int(text) for text in seen]
    assert numbers == sorted(numbers)
    assert [text for text in seen if not text.endswith("\n")] == []


def test_it_is_the_same_file_every_time(work: Marked) -> None:
    found = os.stat(work.mark)
    with work.mark.open() as file:
        assert os.path.samestat(os.fstat(file.fileno()), found)
    assert not os.path.samestat(os.stat(work.step), found)


def test_it_tells_the_number_also_after_the_newest_was_deleted(work: Marked) -> None:
    assert work.mark.read_text() == f"{work.newest}\n"
    work.mark.write_text("a message that is longer than a number")
    (work.path / f".checkpoints/{work.newest + 1}").rmdir()
    assert work.mark.read_text() == f"{work.newest}\n"


def test_it_survives_a_kill(server: str, make_workspace: Callable[..., Workspace]) -> None:
    made = make_workspace("--auto", "off", "--no-write-back")
    work = Marked(made)
    (work.path / "file").write_text("x")
    work.mark.write_text("durable")
    made.kill()
    made.mount()
    assert work.marks() == ["durable"]
    assert (work.path / ".checkpoints/1/file").read_text() == "x"


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND])
def test_each_write_is_a_mark(work: Marked, flags: int) -> None:
    written(work.path / "file", b"goes", b" on", flags=os.O_WRONLY | os.O_CREAT)
    written(work.mark, b"one\n", b"two\n", b"three\n", flags=flags)
    written(work.mark, b"four", flags=flags)
    assert work.marks() == ["one", "two", "three", "four"]


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_WRONLY | os.O_APPEND])
@pytest.mark.parametrize("length", [37, 128, 2_000])
def test_many_messages_go_through_one_descriptor(work: Marked, flags: int, length: int) -> None:
    """Where one crosses the end of a page, the kernel hands it over in two pieces."""
    texts = [f"{number:03} {'é' * length}"[:length] for number in range(8_500 // length + 1)]
    written(work.mark, *(f"{text}\n".encode() for text in texts), flags=flags)
    assert work.marks() == texts


def test_the_longest_message_is_whole_at_any_offset(work: Marked) -> None:
    texts = [f"{number}".ljust(4096, "x") for number in range(3)]
    fd = os.open(work.mark, os.O_WRONLY)
    try:
        for text, place in zip(texts, (1, 4095, 8191), strict=True):
            assert os.pwrite(fd, text.encode(), place) == 4096
    finally:
        os.close(fd)
    assert work.marks() == texts


def test_a_message_that_begins_with_blanks_at_the_end_of_a_page(work: Marked) -> None:
    fd = os.open(work.mark, os.O_WRONLY)
    try:
        assert os.pwrite(fd, b"  indented", 4094) == 10
    finally:
        os.close(fd)
    assert work.marks() == ["indented"]


def test_a_shell_appends_to_the_control_file_and_overwrites_it(work: Marked) -> None:
    sh(work, "echo a >> .checkpoints/.mark; echo b >> .checkpoints/.mark")
    sh(work, "set -C; echo c >| .checkpoints/.mark")
    assert work.marks() == ["a", "b", "c"]


def test_a_mark_is_taken_although_nothing_changed(work: Marked) -> None:
    for message in ("one", "one", "two"):
        work.mark.write_text(message)
    assert work.marks() == ["one", "one", "two"]


def test_a_checkpoint_has_what_was_made_a_moment_before(work: Marked) -> None:
    names = [f"{number:03}" for number in range(200)]
    for name in names:
        (work.path / name).write_text(name)
    work.mark.write_text("made")
    (work.path / "later").touch()
    assert sorted(os.listdir(work.path / ".checkpoints/latest/")) == names


def test_several_lines_in_one_write_are_one_message(work: Marked) -> None:
    written(work.mark, b"first line\nsecond\tline\n\n")
    assert work.marks() == ["first line second line"]


def test_what_is_not_text_is_shown_as_escapes(work: Marked) -> None:
    written(work.mark, b"bytes \xff\xfe, \x1b[31m, \0, \xe2\x80\xae and \xc3\xa9")
    assert work.marks() == ["bytes \\xff\\xfe, \\x1b[31m, \\x00, \\u202e and é"]


def test_cp_saves_by_a_copy_into_it_and_reads_it(work: Marked) -> None:
    (work.path / "note").write_text("from a file\n")
    sh(work, "cp note .checkpoints/.mark; cat note > .checkpoints/.mark; cp .checkpoints/.mark n")
    assert work.marks() == ["from a file", "from a file"]
    assert (work.path / "n").read_text() == f"{work.newest + 2}\n"


def test_a_watcher_hears_of_it(work: Marked) -> None:
    with Client(config.Workspace(work.path, work.workspace.store)) as client:
        events = client.watch()
        work.mark.write_text("heard")
        event = next(events)
    assert event["event"] == "checkpoint_created"
    assert (event["data"]["kind"], event["data"]["message"]) == ("mark", "heard")


def test_what_is_marked_is_saved(server: str, make_workspace: Callable[..., Workspace]) -> None:
    """A command that goes on after its mark needs no checkpoint of the same state."""
    work = Marked(make_workspace("--no-write-back"))
    sh(work, "echo one > file")
    sh(work, "echo now > .checkpoints/.mark; rm file")
    assert work.marks() == ["now"]


@pytest.mark.needs_root
def test_a_container_saves_through_the_control_file(work: Marked, elsewhere: Path) -> None:
    """By a bind mount, from namespaces of its own, in which no process of ours can be seen."""
    inside = elsewhere / "inside"
    inside.mkdir()
    bubble = "unshare --mount --propagation private --pid --fork --kill-child --mount-proc --ipc"
    enter = f"mount --bind {shlex.quote(str(work.path))} {shlex.quote(str(inside))}"
    script = f"{enter} && cd {inside} && echo x > file && echo contained > .checkpoints/.mark"
    done = subprocess.run([*bubble.split(), "bash", "-c", script], capture_output=True, text=True)
    succeed(done)
    assert work.marks() == ["contained"]
    assert (work.path / ".checkpoints/latest/file").read_text() == "x\n"


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [b"\n", b" ", b"\t\n\n", b"\xc2\xa0\n"])
def test_a_message_must_say_something(work: Marked, text: bytes) -> None:
    with fails(errno.EINVAL):
        written(work.mark, text)
    assert work.marks() == []


def test_to_empty_it_is_to_say_nothing(work: Marked) -> None:
    sh(work, ": > .checkpoints/.mark; truncate -s 0 .checkpoints/.mark .checkpoints/.step")
    assert work.marks() == []
    assert work.mark.read_text() == f"{work.newest}\n"


def test_a_message_may_have_4096_bytes(work: Marked) -> None:
    written(work.mark, b"x" * 4096, b"y" * 4096 + b"\n")
    assert work.marks() == ["x" * 4096, "y" * 4096]


@pytest.mark.parametrize("size", [4097, 8192, 131_072, 1 << 20, 3 << 20])
def test_nothing_of_a_message_that_is_too_long_is_taken(work: Marked, size: int) -> None:
    (work.path / "file").write_bytes(b"x" * size)
    for text in (b"x" * size, b"x" * size + b"\n"):
        with fails(errno.EMSGSIZE):
            written(work.mark, text)
        with fails(errno.EMSGSIZE):
            written(work.mark, text, flags=os.O_WRONLY | os.O_APPEND)
    done = subprocess.run(["cp", "file", ".checkpoints/.mark"], cwd=work.path, capture_output=True)
    assert done.returncode == 1 and b"Message too long" in done.stderr
    assert work.marks() == []
    work.mark.write_text("and on")
    assert work.marks() == ["and on"]


def test_a_shell_is_told_that_there_is_no_checkpoint(work: Marked) -> None:
    done = subprocess.run(
        ["bash", "-c", "echo '' > .checkpoints/.mark"], cwd=work.path, capture_output=True
    )
    assert done.returncode == 1 and b"Invalid argument" in done.stderr


CHANGES: dict[str, tuple[int, Callable[[Path], object]]] = {
    "unlink": (errno.EROFS, os.unlink),
    "rename": (errno.EROFS, lambda path: os.rename(path, path.with_name("moved"))),
    "move out": (errno.EROFS, lambda path: os.rename(path, path.parent.parent / "moved")),
    "move over": (errno.EROFS, lambda path: os.rename(path.parent.parent / "file", path)),
    "link": (errno.EROFS, lambda path: os.link(path, path.parent.parent / "twin")),
    "link over": (errno.EEXIST, lambda path: os.link(path.parent.parent / "file", path)),
    "chmod": (errno.EROFS, lambda path: os.chmod(path, 0o666)),
    "chown": (errno.EROFS, lambda path: os.chown(path, os.getuid(), os.getgid())),
    "touch": (errno.EROFS, os.utime),
    "make longer": (errno.EINVAL, lambda path: os.truncate(path, 5)),
    "mkdir": (errno.EEXIST, os.mkdir),
    "rmdir": (errno.ENOTDIR, os.rmdir),
    "mknod": (errno.EEXIST, os.mkfifo),
    "symlink": (errno.EEXIST, lambda path: os.symlink("file", path)),
    "enter": (errno.ENOTDIR, lambda path: os.stat(path / "file")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_else_can_be_done_to_them(work: Marked, change: str) -> None:
    plant(work.path, {"file": "x"})
    number, make = CHANGES[change]
    for name in (".mark", ".step"):
        with fails(number):
            make(work.path / ".checkpoints" / name)
    assert os.listdir(work.path) == ["file"]
    work.mark.write_text("still here")
    assert work.marks() == ["still here"]


def test_no_room_can_be_had_in_it(work: Marked) -> None:
    fd = os.open(work.mark, os.O_WRONLY)
    try:
        with fails(errno.EROFS, errno.EOPNOTSUPP):
            fallocate(fd, 0, 0, 10)
    finally:
        os.close(fd)


def test_a_page_of_a_mapping_is_no_message(work: Marked, server: str) -> None:
    with work.mark.open("r+b", buffering=0) as file:
        if server == "off":
            with fails(errno.ENODEV):
                mmap.mmap(file.fileno(), 1)
            return
        with mmap.mmap(file.fileno(), 1) as mapping:
            mapping[:1] = b"x"
            with fails(errno.EROFS, errno.EIO):
                mapping.flush()
    assert work.marks() == []
    work.mark.write_text("y")
    assert work.marks() == ["y"]


@pytest.mark.needs_program("rsync")
def test_nothing_that_walks_through_history_comes_upon_them(work: Marked, elsewhere: Path) -> None:
    plant(work.path, {"dir": {"file": "needle"}})
    work.mark.write_text("only this")
    there = shlex.quote(str(elsewhere))
    assert {".mark", ".step"}.isdisjoint(os.listdir(work.path / ".checkpoints"))
    found = sh(work, "find .checkpoints; ls -laR .checkpoints")
    assert ".mark" not in found and ".step" not in found
    marked = f"{work.newest + 1}/dir/file"
    assert f".checkpoints/{marked}\n" in sh(work, "grep -rl needle .checkpoints/")
    sh(work, f"cp -a .checkpoints {there}/a; tar -cf {there}/tar .checkpoints")
    sh(work, f"rsync -a .checkpoints/ {there}/b; rsync -a {there}/b/ {there}/c")
    assert (elsewhere / "b" / marked).read_text() == "needle"
    assert work.marks() == ["only this"]


# -- steps -----------------------------------------------------------------------------------------


def test_a_step_takes_no_checkpoint(work: Marked) -> None:
    sh(work, "echo 'make test' > .checkpoints/.step; echo x > file")
    assert work.since() == []


def test_a_step_is_told_with_the_process_that_names_it(server: str) -> None:
    with recording() as asked:
        script = "echo $$; echo 'make test' > .checkpoints/.step; echo 'done' > .checkpoints/.mark"
        done = subprocess.run(
            ["bash", "-c", script], cwd=asked.path, capture_output=True, text=True
        )
        pid = int(succeed(done).stdout)
        assert asked.all() == [("step", pid, "make test"), ("mark", pid, "done")]


@pytest.mark.parametrize(
    "text, name",
    [
        (b"  make  test\n", "make test"),
        (b"cat <<END\nline\nEND\n", "cat <<END"),
        (b"\n", ""),
        (b"bytes \xff and \x1b[31m", "bytes \\xff and \\x1b[31m"),
        (b"x" * 4096 + b"more", "x" * 4096),
        (b"x" * (1 << 20), "x" * 4096),
    ],
)
def test_a_step_is_named_by_its_first_line(server: str, text: bytes, name: str) -> None:
    with recording() as asked:
        (asked.path / ".checkpoints/.step").write_bytes(text)
        assert asked.steps() == [name]


def test_further_lines_of_a_step_are_no_steps(server: str) -> None:
    """bash writes line by line."""
    with recording() as asked:
        for _ in range(2):
            written(asked.path / ".checkpoints/.step", b"first\n", b"second\n")
            written(asked.path / ".checkpoints/.step", b"append\n", flags=os.O_WRONLY | os.O_APPEND)
        assert asked.steps() == ["first", "append"] * 2


def test_there_is_nothing_to_read_in_a_step(work: Marked) -> None:
    work.step.write_text("x")
    assert work.step.stat().st_size == 0
    if os.geteuid() == 0:
        assert work.step.read_bytes() == b""
    else:
        with fails(errno.EACCES):
            work.step.read_bytes()


def test_json_tells_the_kind(work: Marked) -> None:
    work.mark.write_text("x")
    shown = json.loads(succeed(work.workspace.cli("list", "--json", "-w", work.path)).stdout)
    assert shown["checkpoints"][0]["kind"] == "mark"
