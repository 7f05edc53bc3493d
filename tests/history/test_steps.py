"""Who is behind a process id: real processes, groups and shells; a made-up /proc for the rest."""

from __future__ import annotations

import contextlib
import os
import pty
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckptfs.commands import quoted
from ckptfs.commands.words import decoded
from ckptfs.history import steps
from ckptfs.history.programs import takes_commands
from ckptfs.history.steps import (
    Caller,
    Callers,
    Step,
    main_thread,
    read_argv,
    read_process,
)
from tests.support.waiting import wait_until

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start programs, each the leader of a group; what is left of the groups ends with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*command: str, **options: object) -> subprocess.Popen[bytes]:
        options.setdefault("process_group", 0)
        started.append(subprocess.Popen(command, **options))  # type: ignore[call-overload]
        return started[-1]

    yield begin
    for process in started:
        if process.stdin:
            process.stdin.close()
        _end_group(process.pid)
        process.wait(20)


def _end_group(pgid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pgid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def typed(argv: list[bytes]) -> str:
    return quoted(decoded(argv))


def child(pid: int, command: str) -> int:
    """The child of a process that runs this command, once it does."""
    found: list[int] = []

    def look() -> bool:
        found[:] = [one for one in children(pid) if typed(read_argv(one)) == command]
        return bool(found)

    wait_until(look, f"{command} runs")
    return found[0]


def caller(pid: int, who: Callers | None = None) -> Caller:
    found = (who or Callers())(pid)
    assert found is not None
    return found


def step_of(pid: int, who: Callers | None = None) -> Step:
    return caller(pid, who).step


def started_at(pid: int) -> int:
    process = read_process(pid)
    assert process is not None
    return process.start


# -- groups ----------------------------------------------------------------------------------------


def test_a_program_in_a_session_of_its_own_is_a_step(start: Start) -> None:
    pid = start("sleep", "60", process_group=None, start_new_session=True).pid
    began = started_at(pid)
    wait_until(lambda: read_argv(pid)[:1] == [b"sleep"], "it is sleep")
    assert step_of(pid) == Step(pid, began, "sleep 60", f"{pid}:{began}")


def test_a_build_is_one_step_however_many_processes_it_has(start: Start) -> None:
    script = "for i in 1 2 3 4 5 6 7 8; do sh -c 'sleep 60; true' & done; wait"
    leader = start("sh", "-c", script).pid
    wait_until(lambda: len(children(leader)) == 8, "all of them run")
    wait_until(lambda: all(map(children, children(leader))), "and their children")
    members = [leader, *children(leader), *(one for c in children(leader) for one in children(c))]
    who = Callers()
    assert len(members) == 17
    assert {step_of(pid, who).key for pid in members} == {(leader, started_at(leader))}
    assert {step_of(pid, who).command for pid in members} == {script}


def test_the_group_outlives_its_leader(start: Start, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    script = f"sleep 60 & echo $! > {note}.new && mv {note}.new {note}; read line"
    leader = start("sh", "-c", script, stdin=subprocess.PIPE)
    wait_until(note.exists, "the child is started")
    pid = int(note.read_text())
    wait_until(lambda: read_argv(pid) == [b"sleep", b"60"], "it is sleep")
    who = Callers()
    before = step_of(pid, who)
    assert leader.stdin
    leader.stdin.close()
    leader.wait()
    assert step_of(pid, who) == before
    assert step_of(pid).key == (pid, started_at(pid))  # nobody can tell any more whose it was
    os.kill(pid, signal.SIGKILL)


def test_calls_that_are_put_into_one_group_are_calls_of_their_own(start: Start) -> None:
    """A group says who gets a signal, not who started what."""
    leader = start("sleep", "50")
    members = [start("sleep", str(60 + n), process_group=leader.pid) for n in range(2)]
    wait_until(lambda: all(read_argv(one.pid)[:1] == [b"sleep"] for one in members), "they sleep")
    who = Callers()
    assert len({caller(one.pid, who).call for one in members}) == 2
    for member in members:
        member.kill()
        member.wait()


def test_a_shell_that_a_shell_starts_takes_commands_as_well(start: Start) -> None:
    shell = start("bash", "--norc", stdin=subprocess.PIPE, bufsize=0)
    assert shell.stdin
    shell.stdin.write(b"bash --norc\nsleep 81 &\nsleep 82 &\n")
    inner = child(shell.pid, "bash --norc")
    first, second = child(inner, "sleep 81"), child(inner, "sleep 82")
    who = Callers()
    assert caller(first, who).call != caller(second, who).call


def test_a_process_that_becomes_another_program_keeps_its_identity(start: Start) -> None:
    process = start("sh", "-c", "read line; exec sleep 60", stdin=subprocess.PIPE)
    who = Callers()
    wait_until(lambda: read_argv(process.pid)[:1] == [b"sh"], "it is the shell")
    before = step_of(process.pid, who)
    assert process.stdin
    process.stdin.close()
    wait_until(lambda: read_argv(process.pid) == [b"sleep", b"60"], "it is sleep")
    assert step_of(process.pid, who) == before._replace(command="sleep 60")


def test_threads_belong_to_their_process(start: Start) -> None:
    code = "import threading; threading.Thread(target=threading.Event().wait).start()"
    pid = start(sys.executable, "-c", code).pid
    tasks = Path(f"/proc/{pid}/task")
    wait_until(lambda: len(list(tasks.iterdir())) == 2, "it has a thread")
    (thread,) = (int(task.name) for task in tasks.iterdir() if int(task.name) != pid)
    assert step_of(thread) == step_of(pid)
    process = read_process(thread)
    assert process and main_thread(process).pid == pid


# -- shells ----------------------------------------------------------------------------------------


class Prompt:
    """An interactive shell with job control on a terminal of its own."""

    def __init__(self) -> None:
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
        self._drain = threading.Thread(target=self._read, daemon=True)
        self._drain.start()

    def _read(self) -> None:
        try:
            while os.read(self._terminal, 4096):
                pass
        except OSError:
            pass

    def type(self, line: str) -> None:
        os.write(self._terminal, line.encode() + b"\n")

    def close(self) -> None:
        for pid in children(self.pid):
            _end_group(pid)
        _end_group(self.pid)
        os.waitpid(self.pid, 0)
        self._drain.join(20)
        os.close(self._terminal)


@pytest.fixture
def prompt() -> Iterator[Prompt]:
    prompt = Prompt()
    yield prompt
    prompt.close()


def test_every_command_at_a_prompt_is_a_step(prompt: Prompt) -> None:
    prompt.type("sleep 61 &")
    prompt.type("sh -c 'sleep 62; true'")
    first = child(prompt.pid, "sleep 61")
    second = child(prompt.pid, "sh -c 'sleep 62; true'")
    inner = child(second, "sleep 62")
    who = Callers()
    assert step_of(first, who).key == (first, started_at(first))
    assert step_of(first, who).command == "sleep 61"
    assert step_of(inner, who) == step_of(second, who)
    assert step_of(inner, who).command == "sleep 62; true"
    assert step_of(first).session == step_of(second).session == step_of(prompt.pid).session
    assert step_of(prompt.pid).command == "bash --norc --noprofile -i"


def test_a_pipeline_is_one_step(prompt: Prompt) -> None:
    prompt.type("sleep 63 | sleep 64")
    first, second = child(prompt.pid, "sleep 63"), child(prompt.pid, "sleep 64")
    assert step_of(second).key == step_of(first).key
    assert step_of(first).command == "sleep 63"
    assert step_of(second, Callers()).command == "sleep 63"


def test_a_subshell_is_one_step_that_its_command_names(prompt: Prompt) -> None:
    prompt.type("( sleep 65; true )")
    subshell = child(prompt.pid, "bash --norc --noprofile -i")
    inner = child(subshell, "sleep 65")
    assert step_of(inner).key == (subshell, started_at(subshell))
    assert step_of(inner).command == "sleep 65"


def test_a_redirection_is_opened_before_the_command_is_there(
    prompt: Prompt, tmp_path: Path
) -> None:
    """The shell's copy waits in open(2), as it waits for a checkpoint: a fifo stands for both."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    prompt.type(f"sleep 66 > {fifo}")
    copy = child(prompt.pid, "bash --norc --noprofile -i")
    wait_until(lambda: (p := read_process(copy)) and p.pgid == copy, "it leads its group")
    who = Callers()
    before = step_of(copy, who)
    assert before.provisional
    reader = os.open(fifo, os.O_RDONLY)
    child(prompt.pid, "sleep 66")
    after = step_of(copy, who)
    os.close(reader)
    assert after.key == before.key
    assert (after.command, after.provisional) == ("sleep 66", False)


def test_each_command_typed_into_a_pipe_is_a_step(start: Start, tmp_path: Path) -> None:
    """A shell without job control keeps all of them in its own group."""
    shell = start("bash", "--norc", stdin=subprocess.PIPE, bufsize=0)
    assert shell.stdin
    shell.stdin.write(b"sleep 67 &\nsh -c 'sleep 68; true' &\n")
    first = child(shell.pid, "sleep 67")
    second = child(shell.pid, "sh -c 'sleep 68; true'")
    inner = child(second, "sleep 68")
    who = Callers()
    assert step_of(first, who).key == (first, started_at(first))
    assert step_of(inner, who) == step_of(second, who)
    assert step_of(inner, who).command == "sleep 68; true"
    assert step_of(shell.pid, who).key == (shell.pid, started_at(shell.pid))


# -- harnesses -------------------------------------------------------------------------------------

#: Runs each argument by a shell in its own process group and waits for it, as most agents do.
HARNESS = """
import subprocess, sys
for command in sys.argv[1:]:
    subprocess.Popen(["bash", "-c", command])
sys.stdin.read()
"""


def harness(start: Start, *commands: str, **options: object) -> int:
    program = (sys.executable, "-c", HARNESS, *commands)
    return start(*program, stdin=subprocess.PIPE, **options).pid


def test_each_command_of_a_harness_is_a_step_though_all_are_in_its_group(start: Start) -> None:
    agent = harness(start, "sleep 70; true", "sleep 71")
    first, second = child(agent, "bash -c 'sleep 70; true'"), child(agent, "sleep 71")
    inner = child(first, "sleep 70")
    who = Callers()
    assert caller(inner, who).call == caller(first, who).call == (first, started_at(first))
    assert step_of(inner, who).key == (first, started_at(first))
    assert step_of(second, who).key == caller(second, who).call == (second, started_at(second))
    assert step_of(second, who).command == "sleep 71"


def test_a_harness_that_changes_files_itself_edits(start: Start) -> None:
    agent = harness(start, "sleep 72; true")
    command = child(agent, "bash -c 'sleep 72; true'")
    who = Callers()
    assert not step_of(agent, who).edits, "it may be any program"
    assert not step_of(command, who).edits
    assert step_of(agent, who).edits
    assert step_of(agent, who).key == (agent, started_at(agent))


def test_a_build_below_a_harness_is_one_step(start: Start, tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("all: a b\na b:\n\t@sleep 73; true\n")
    agent = harness(start, f"make -j2 -C {tmp_path}; true")
    shell = child(agent, f"bash -c 'make -j2 -C {tmp_path}; true'")
    make = child(shell, f"make -j2 -C {tmp_path}")
    wait_until(lambda: len(children(make)) == 2, "both recipes run")
    who = Callers()
    assert {caller(one, who).call for one in children(make)} == {(shell, started_at(shell))}
    assert {step_of(one, who).key for one in children(make)} == {(shell, started_at(shell))}


def test_a_program_that_a_harness_starts_is_one_step_of_several_calls(start: Start) -> None:
    """It may be a harness as well: what one of its children makes is not another's to destroy."""
    inner = shlex.join([sys.executable, "-c", HARNESS, "sleep 74", "sleep 75"])
    agent = harness(start, f"cat | {inner}")
    shell = child(agent, typed([b"bash", b"-c", f"cat | {inner}".encode()]))
    program = child(shell, typed([word.encode() for word in shlex.split(inner)]))
    first, second = child(program, "sleep 74"), child(program, "sleep 75")
    who = Callers()
    assert step_of(first, who).key == step_of(second, who).key == (shell, started_at(shell))
    assert caller(first, who).call != caller(second, who).call


def test_a_harness_can_be_declared(start: Start) -> None:
    script = "sleep 76 & sleep 77 & wait"
    shell = start("sh", "-c", script).pid
    first, second = child(shell, "sleep 76"), child(shell, "sleep 77")
    who = Callers()
    assert step_of(first, who).key == step_of(second, who).key
    assert who.declare(shell)
    assert step_of(first, who).key == (first, started_at(first))
    assert step_of(second, who).key == (second, started_at(second))
    assert step_of(shell, who).edits
    assert not who.declare(1 << 30)


def test_a_harness_can_be_known_by_name(start: Start, tmp_path: Path) -> None:
    agent = tmp_path / "my-agent"
    agent.write_text("#!/bin/sh\nsleep 78 & sleep 79 & wait\n")
    agent.chmod(0o755)
    pid = start(str(agent)).pid
    first, second = child(pid, "sleep 78"), child(pid, "sleep 79")
    assert step_of(first).key == step_of(second).key
    who = Callers(harnesses=["my-agent"])
    assert step_of(first, who).key != step_of(second, who).key


def test_a_program_that_is_no_tool_may_be_a_harness(start: Start) -> None:
    agent = harness(start, "sleep 80; true")
    shell = child(agent, "bash -c 'sleep 80; true'")
    who = Callers()
    assert who.may_be_harness(agent)
    assert not who.may_be_harness(shell)
    assert who.may_be_harness(0), "nobody can tell"


# -- those that are unknown ------------------------------------------------------------------------


@pytest.mark.parametrize("pid", [0, -1, 1 << 30])
def test_a_process_that_does_not_exist_is_unknown(pid: int) -> None:
    assert Callers()(pid) is None


def test_this_program_itself_is_no_step() -> None:
    who = Callers()
    found: list[Caller | None] = [who(os.getpid())]
    thread = threading.Thread(target=lambda: found.append(who(threading.get_native_id())))
    thread.start()
    thread.join()
    assert found == [None, None]


def test_a_process_that_ended_is_still_known_for_a_while(start: Start) -> None:
    process = start("sleep", "60")
    wait_until(lambda: read_argv(process.pid) == [b"sleep", b"60"], "it is sleep")
    who = Callers()
    before = caller(process.pid, who)
    process.kill()
    process.wait()
    assert who(process.pid) == before
    assert Callers()(process.pid) is None


def made_up(proc: Path, pid: int, comm: bytes = b"x", flags: int = 0, cmdline: bytes = b"") -> None:
    place = proc / str(pid)
    place.mkdir()
    stat = b"%d (%s) S 1 %d %d 0 -1 %d" % (pid, comm, pid, pid, flags)
    place.joinpath("stat").write_bytes(stat + b" 0" * 12 + b" 4711" + b" 0" * 30 + b"\n")
    place.joinpath("cmdline").write_bytes(cmdline)


def test_kernel_threads_are_unknown(tmp_path: Path) -> None:
    made_up(tmp_path, 42, b"kworker/u8:0", flags=0x0020_8060)
    assert Callers(str(tmp_path))(42) is None


def test_a_name_cannot_forge_the_fields(tmp_path: Path) -> None:
    made_up(tmp_path, 42, b"a) S 7 7 7 (\n\x1b[2J")
    process = read_process(42, str(tmp_path))
    assert process and (process.ppid, process.pgid, process.start) == (1, 42, 4711)
    assert step_of(42, Callers(str(tmp_path))).command == "a) S 7 7 7 (\\n\\x1b[2J"


@pytest.mark.parametrize("stat", [b"", b"42", b"42 (x", b"42 (x) S 1 2"])
def test_a_process_that_ends_while_it_is_read_is_unknown(tmp_path: Path, stat: bytes) -> None:
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "stat").write_bytes(stat)
    assert Callers(str(tmp_path))(42) is None


def test_what_is_remembered_stays_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_KNOWN_MAX", 8)
    who = Callers(str(tmp_path))
    for pid in range(1, 51):
        made_up(tmp_path, pid, cmdline=b"x\0")
        who(pid)
    known = (who._nodes, who._steps, who._leaders, who._has_steps)
    assert all(len(one) <= 8 for one in known)
    assert step_of(50, who).command == "x"


# -- command lines ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "bash",
        "-bash",
        "/bin/zsh -l",
        "bash --norc --noprofile -i",
        "bash --rcfile /etc/x -i",
        "bash -o vi",
        "sh -s one two",
        "bash --login -",
        "fish",
    ],
)
def test_a_shell_at_a_prompt_takes_commands(line: str) -> None:
    assert takes_commands([word.encode() for word in line.split()])


@pytest.mark.parametrize(
    "line",
    [
        "",
        "make",
        "bash build.sh",
        "sh -c true",
        "bash -lc true",
        "bash -e build.sh",
        "bash -o pipefail -c true",
        "bash -- build.sh",
        "/usr/bin/python3",
        "bashful",
    ],
)
def test_a_shell_with_a_script_takes_no_commands(line: str) -> None:
    assert not takes_commands([word.encode() for word in line.split()])
