"""What processes call what they do: real processes, and a made-up /proc for the rest."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

from ckptfs.history.steps import STEPS_MAX, AnnouncedSteps, read_process


def made_up(proc: Path, pid: int, start: int) -> None:
    (proc / str(pid)).mkdir(exist_ok=True)
    fields = " ".join(["S", "1", *["0"] * 17, str(start)])
    (proc / str(pid) / "stat").write_text(f"{pid} (program) {fields}\n")


def told(steps: AnnouncedSteps, pid: int, proc: str = "/proc") -> str:
    """What a process says that it does, in words."""
    process = read_process(pid, proc)
    found = steps.of(process) if process is not None else None
    return found.text if found is not None else ""


def test_a_step_is_over_with_the_next_and_with_its_process() -> None:
    steps = AnnouncedSteps()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        assert told(steps, process.pid) == ""
        steps.name(process.pid, "make")
        steps.name(process.pid, "make test")
        assert told(steps, process.pid) == "make test"
        steps.name(process.pid, "")
        assert told(steps, process.pid) == ""
        steps.name(process.pid, "rm -rf build")
    assert told(steps, process.pid) == ""


def test_a_thread_speaks_for_its_process() -> None:
    steps = AnnouncedSteps()

    def speak() -> None:
        steps.name(threading.get_native_id(), "from a thread")

    thread = threading.Thread(target=speak)
    thread.start()
    thread.join()
    (main,) = {threading.main_thread().native_id}
    assert main is not None and told(steps, main) == "from a thread"


def test_a_number_that_comes_again_is_another_process(tmp_path: Path) -> None:
    steps = AnnouncedSteps(str(tmp_path))
    made_up(tmp_path, 7, start=100)
    steps.name(7, "one")
    assert told(steps, 7, str(tmp_path)) == "one"
    made_up(tmp_path, 7, start=200)
    assert told(steps, 7, str(tmp_path)) == ""


def test_a_process_that_cannot_be_seen_has_no_steps(tmp_path: Path) -> None:
    steps = AnnouncedSteps(str(tmp_path))
    steps.name(0, "from another namespace")
    assert told(steps, 0, str(tmp_path)) == ""


def test_of_very_many_announced_steps_the_first_is_dropped(tmp_path: Path) -> None:
    steps = AnnouncedSteps(str(tmp_path))
    for pid in range(1, STEPS_MAX + 2):
        made_up(tmp_path, pid, start=1)
        steps.name(pid, str(pid))
        steps.name(1, "one")  # named again and again, so it is never the oldest
    assert [told(steps, pid, str(tmp_path)) for pid in (1, 2, 3, STEPS_MAX + 1)] == [
        "one",
        "",
        "3",
        "1025",
    ]
