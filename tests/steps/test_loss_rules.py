"""Losses that were found before: each was a hole in an earlier rule, and has a test of its own.

What matters in each is who writes when, so most of them are programs with pauses in them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.steps.cases import CaseDirectory, checkpoints, losses, mounted, story
from tests.steps.harnesses import HARNESSES, perform, start
from tests.steps.plans import Plan, Run, Text, Version, Write
from tests.support.mounting import Workspace, detach, is_mounted, scratch
from tests.support.waiting import wait_until

#: A little more than the second after which anything is kept.
STOOD = 1.1


def versions(path: str, texts: list[str]) -> list[Version]:
    return [Version(path, repr(text), Text(text)) for text in texts]


def all_kept(place: CaseDirectory, lost: list[Version]) -> None:
    found = losses(place, lost)
    assert not found, "\n".join([*found, story(place.work)])


def python(place: CaseDirectory, program: str, *arguments: str) -> None:
    """Run a program to its end, as from a prompt."""
    start([sys.executable, "-S", "-c", program, *arguments], place.path, place.outside)


@contextmanager
def beside(place: CaseDirectory, program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A program in a session of its own, while something else happens. It ends by itself."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", program, *arguments],
        cwd=place.path,
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said
    finally:
        process.kill()
        process.communicate()


# -- a long run of edits --------------------------------------------------------------------------


def edits(place: CaseDirectory, harness: str, number: int, gap: float) -> None:
    """Edits of one file, each destroying the one before, and at last `rm -rf`."""
    texts = [f"edit {each}" for each in range(number)]
    steps = [Write({"src/app.py": Text(text)}) for text in texts]
    lost = versions("src/app.py", texts)
    plan = Plan((*steps, Run(("rm -rf src",))), tuple(lost))
    perform(HARNESSES[harness], plan, gap, place.path, place.outside)
    all_kept(place, lost)


def test_edits_a_second_apart_in_one_group_are_all_kept(place: CaseDirectory) -> None:
    edits(place, "script-whole", 3, STOOD)


def test_quick_edits_in_one_group_are_all_kept(place: CaseDirectory) -> None:
    edits(place, "python", 20, 0.05)


@pytest.mark.deep
@pytest.mark.parametrize("harness", ["script-whole", "python", "edit"])
def test_forty_edits_a_second_apart_are_all_kept(place: CaseDirectory, harness: str) -> None:
    edits(place, harness, 40, STOOD)


# -- a log that never rests -----------------------------------------------------------------------

_LOGGING = """
import subprocess, sys, threading, time
def log():
    while True:
        with open("agent.log", "a") as file:
            file.write("still here\\n")
        time.sleep(float(sys.argv[1]))
threading.Thread(target=log, daemon=True).start()
for number in range(4):
    subprocess.run(["bash", "-c", f"mkdir -p src; echo call {number} > src/app.py"], check=True)
    time.sleep(float(sys.argv[2]))
subprocess.run(["rm", "-rf", "src"], check=True)
"""


@pytest.mark.parametrize(
    "every, gap",
    [
        pytest.param("0.1", "0.3", id="short"),
        pytest.param("0.5", "5", id="as-it-was-found", marks=pytest.mark.deep),
    ],
)
def test_a_harness_that_writes_a_log_all_the_time_loses_nothing(
    place: CaseDirectory, every: str, gap: str
) -> None:
    python(place, _LOGGING, every, gap)
    all_kept(place, versions("src/app.py", [f"call {number}" for number in range(4)]))


# -- side by side ---------------------------------------------------------------------------------

_DELETER = """
import os, time
for number in range(8):
    path = f"f{number}"
    while not os.path.exists(path) or not os.path.getsize(path):
        time.sleep(0.02)
    time.sleep(0.05)
    os.unlink(path)
"""
_WRITER = """
import time
for number in range(8):
    with open(f"f{number}", "w") as file:
        file.write(f"file {number}\\n")
    time.sleep(0.1)
"""


def test_a_deleter_beside_a_writer_loses_nothing(either: CaseDirectory) -> None:
    with beside(either, _DELETER):
        python(either, _WRITER)
    lost = [Version(f"f{number}", "v1", Text(f"file {number}")) for number in range(8)]
    all_kept(either, lost)


_FORMATTER = """
import os, time
for number in range(6):
    while True:
        with open("app.py") as file:
            text = file.read()
        if text == f"save {number}\\n":
            break
        time.sleep(0.01)
    with open("app.py", "w") as file:
        file.write(f"# formatted {number}\\n")
"""
_EDITOR = """
import time
for number in range(6):
    with open("app.py", "w") as file:
        file.write(f"save {number}\\n")
    while True:
        with open("app.py") as file:
            if file.read().startswith(f"# formatted {number}"):
                break
        time.sleep(0.01)
    time.sleep(0.05)
"""


def test_a_formatter_beside_an_editor_loses_no_save(either: CaseDirectory) -> None:
    (either.path / "app.py").write_text("before\n")
    with beside(either, _FORMATTER):
        python(either, _EDITOR)
    formatted = [f"# formatted {number}" for number in range(5)]
    saves = [f"save {number}" for number in range(6)]
    all_kept(either, versions("app.py", ["before", *saves, *formatted]))


def test_calls_of_one_harness_at_the_same_time_lose_nothing_of_each_other(
    place: CaseDirectory,
) -> None:
    """An agent that runs tools in parallel: one makes files while another deletes them."""
    program = (
        "import subprocess, sys\n"
        "tools = [subprocess.Popen([sys.executable, '-S', '-c', text]) for text in sys.argv[1:]]\n"
        "sys.exit(max(tool.wait() for tool in tools))\n"
    )
    python(place, program, _WRITER, _DELETER)
    all_kept(place, [Version(f"f{number}", "v1", Text(f"file {number}")) for number in range(8)])


# -- one script, a second later -------------------------------------------------------------------


@pytest.mark.parametrize(
    "path, commands",
    [
        pytest.param("f", "rm f", id="at once"),
        pytest.param("f", "chmod 600 f; rm f", id="after chmod"),
        pytest.param("f", "touch f; rm f", id="after touch"),
        pytest.param("g", "mv f g; rm g", id="after a rename"),
        pytest.param("f", "ln f g; rm f g", id="after a link"),
        pytest.param("f", "echo more >> f; sleep 0.1; : > f", id="after an append"),
    ],
)
def test_what_stood_is_kept_whatever_was_done_to_it_just_before(
    place: CaseDirectory, path: str, commands: str
) -> None:
    """`chmod -R u+w build; rm -rf build` is how people delete what they may not write."""
    plan = Plan((Write({"f": Text("stood")}), Run((commands,))), ())
    perform(HARNESSES["script-whole"], plan, STOOD, place.path, place.outside)
    kept = [
        number
        for number in checkpoints(place.work)
        if any(
            "stood" in text.read_text()
            for name in {path, "f"}
            if (text := place.past(number) / name).exists()
        )
    ]
    assert kept, story(place.work)


def test_a_large_file_that_stood_is_kept_when_another_process_changes_it(
    place: CaseDirectory,
) -> None:
    """A version a minute is enough only where one process keeps changing it."""
    large = Text("large", 400_000)
    change = "printf XX | dd of=f conv=notrunc bs=1 seek=5000 status=none"
    plan = Plan((Write({"f": large}), Run((change,))), ())
    perform(HARNESSES["script-whole"], plan, STOOD, place.path, place.outside)
    all_kept(place, [Version("f", "v1", large)])


def test_a_link_that_another_step_replaces_is_kept(place: CaseDirectory) -> None:
    plan = Plan((Run(("ln -s first link",)), Run(("ln -sfn second link",)), Run(("rm link",))), ())
    perform(HARNESSES["python"], plan, 0.05, place.path, place.outside)
    targets = [
        os.readlink(link)
        for number in checkpoints(place.work)
        if (link := place.past(number) / "link").is_symlink()
    ]
    assert {"first", "second"} <= set(targets), story(place.work)


# -- what needs no moment -------------------------------------------------------------------------

_PROBES = """
for i in 1 2 3 4 5 6 7 8 9 10; do
    echo probe $i > conftest.c
    sleep 0.03
    cp conftest.c conftest.o
    rm -f conftest.c conftest.o
done
"""


@pytest.mark.parametrize("harness", ["python", "bash-terminal"])
def test_what_one_call_makes_and_destroys_within_a_second_needs_no_moment(
    place: CaseDirectory, harness: str
) -> None:
    """A configure script does this hundreds of times, and moments are not without number."""
    program = place.outside / "probes.sh"
    program.write_text(_PROBES)
    before = set(checkpoints(place.work))
    plan = Plan((Run((f"sh {program}",)),), ())
    perform(HARNESSES[harness], plan, 0, place.path, place.outside)
    taken = set(checkpoints(place.work)) - before
    assert len(taken) <= 3, story(place.work)


# -- where nobody can be seen ---------------------------------------------------------------------


@contextmanager
def unseen() -> Iterator[Workspace]:
    """A workspace whose daemon lives in a pid namespace of its own: requests carry no process."""
    with scratch() as base:
        work = Workspace(base)
        work.path.mkdir()
        command = [sys.executable, "-m", "ckptfs", "mount", str(work.path)]
        options = ["--store", str(work.store), "--no-write-back", "--foreground"]
        daemon = subprocess.Popen(
            ["unshare", "--pid", "--fork", *command, *options],
            env=os.environ | work.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: is_mounted(work.path), "it is mounted")
            yield work
        finally:
            detach(str(work.path))
            try:
                daemon.wait(30)
            finally:
                daemon.kill()
                daemon.wait(30)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("harness", ["python", "edit"])
def test_processes_that_cannot_be_seen_lose_nothing(harness: str) -> None:
    with unseen() as work:
        edits(CaseDirectory(work), harness, 4, 0.05)


# -- other policies -------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["quiet", "interval 30"])
def test_other_policies_lose_nothing_either(policy: str) -> None:
    with mounted("compiled", "--auto", policy) as work:
        edits(CaseDirectory(work), "python", 3, 0.05)


# -- one process, in place ------------------------------------------------------------------------

_AGAIN = """
import time
for number in range(2):
    with open("data", "r+") as file:
        file.write(f"version {number}\\n")
    time.sleep(1.1 - number)
"""
_HELD_OPEN = """
import os, time
fd = os.open("data", os.O_RDWR)
for number in range(2):
    os.pwrite(fd, f"version {number}\\n".encode(), 0)
    time.sleep(1.1 - number)
"""
_MAPPED = """
import mmap, time
with open("data", "r+b") as file, mmap.mmap(file.fileno(), 0) as pages:
    for number in range(2):
        pages[:10] = f"version {number}\\n".encode()
        pages.flush()
        time.sleep(1.1 - number)
"""
_PUNCHED = """
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open("data", os.O_RDWR)
os.pwrite(fd, b"version 0\\n", 0)
time.sleep(1.1)
punched = libc.fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(10))
assert punched == 0, os.strerror(ctypes.get_errno())
os.pwrite(fd, b"version 1\\n", 0)
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(_AGAIN, id="opened again"),
        pytest.param(_HELD_OPEN, id="held open"),
        pytest.param(_MAPPED, id="mapped"),
        pytest.param(_PUNCHED, id="punched"),
    ],
)
def test_what_a_process_overwrites_in_place_after_a_second_is_kept(
    place: CaseDirectory, program: str
) -> None:
    (place.path / "data").write_text("version x\n")
    python(place, program)
    all_kept(place, versions("data", ["version 0"]))


_LARGE = """
import os, time
fd = os.open("image", os.O_RDWR | os.O_CREAT)
os.pwrite(fd, bytes(2 << 20), 0)
for number in range(20):
    os.pwrite(fd, b"x" * 5000, number * 50_000)
    time.sleep(0.1)
"""


_LARGE_MAPPED = """
import mmap, time
with open("image", "w+b") as file:
    file.truncate(2 << 20)
    with mmap.mmap(file.fileno(), 0) as pages:
        for number in range(20):
            pages[number * 50_000 : number * 50_000 + 5] = b"xxxxx"
            pages.flush()
            time.sleep(0.1)
"""


@pytest.mark.parametrize(
    "program", [pytest.param(_LARGE, id="written"), pytest.param(_LARGE_MAPPED, id="mapped")]
)
def test_a_large_file_that_one_process_keeps_changing_gets_few_versions(
    either: CaseDirectory, program: str
) -> None:
    before = set(checkpoints(either.work))
    python(either, program)
    taken = set(checkpoints(either.work)) - before
    assert len(taken) <= 3, story(either.work)
