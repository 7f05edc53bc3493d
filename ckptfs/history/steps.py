"""AnnouncedSteps: which step and which call a process belongs to, read from /proc.

Turns a process id into a `Caller`. Knows nothing of files, requests or checkpoints, and never reads
a process's environment, which may hold secrets.

The process tree decides, not process groups or sessions:

* A *step* is what lists show: one tool call of an agent, one command at a prompt. It is the child
  of a harness or of a shell that takes commands, with all its descendants.
* A *call* is finer, and decides what may be destroyed without a moment: the child of any program
  that is not known to be a tool, with its descendants. A program that starts commands may be a
  harness, so one of its children may not destroy unseen what another made; a build tool or a script
  is one call.

The kind of a program depends on its name and arguments alone (`ckptfs.history.programs`). A process
may also announce what it does next: a shell the command line that was typed, an agent its step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from ckptfs.commands import MASKED, command_line, printable
from ckptfs.history.programs import HARNESSES, Kind, is_shell, is_shell_name, kind_of, runs_command
from ckptfs.model import Clock

K = TypeVar("K")
T = TypeVar("T")

#: How much of a command line to read to find the kind of a program, and to name it: what agents put
#: around a command may be 40 KB, with the command at its end.
_ARGV_BYTES = 4 << 10
_CMDLINE_BYTES = 64 << 10
#: How many ancestors to follow.
_ANCESTORS_MAX = 64
#: How many processes and groups to cache; the oldest half is dropped when there are more.
_KNOWN_MAX = 2048
#: For how long a process id surely means the same process: ids are reused only after all others,
#: and no machine starts 32,768 processes in a second.
TRUST_NS = 1_000_000_000

_PF_KTHREAD = 0x0020_0000
#: Set for a process that was forked and has not become another program.
_PF_FORKNOEXEC = 0x40
#: The exit signal that /proc shows for a thread that is not its process's first.
_NO_SIGNAL = -1
_INIT = 1
#: The process group of a process whose group is in another pid namespace.
_NO_GROUP = 0


class Process(NamedTuple):
    """One line of /proc/PID/stat. ``start`` is in clock ticks since boot; with the process id it
    names a process for as long as the machine runs. A thread has its own id and start."""

    pid: int
    comm: str
    state: str
    ppid: int
    pgid: int
    sid: int
    tty: int
    kernel: bool
    start: int
    is_thread: bool = False
    forked: bool = False


#: A process id and start time; for an announced step, its negative serial number.
Key = tuple[int, int]


class Announced(NamedTuple):
    """What a process announced that it does. ``serial`` numbers the announcements."""

    text: str
    serial: int
    #: When its process began: process ids are reused.
    start: int


class Step(NamedTuple):
    """A step: the process that identifies it, and its name.

    ``start`` is 0 for a group whose leader ended before it was seen. ``provisional`` means that a
    shell had forked but not yet executed the command (it opens the target of ``>`` in between), so
    that a second look gives a better name. ``edits`` means that a harness changes files itself.
    """

    pid: int
    start: int
    command: str
    session: str = ""
    provisional: bool = False
    edits: bool = False

    @property
    def key(self) -> Key:
        return self.pid, self.start


class Caller(NamedTuple):
    """The originator of a request: the step, the call, and the process itself."""

    step: Step
    call: Key
    pid: int


class _Node(NamedTuple):
    """A process in the tree. ``inside`` means that it descends from a harness."""

    process: Process
    kind: Kind | None
    call: Key
    #: The process that identifies its step.
    step: Key
    inside: bool
    seen_ns: int


class Callers:
    """From process ids to callers; None for an unknown process: a kernel thread, one that another
    pid namespace hides, one of this program's own, or one that ended too soon."""

    def __init__(
        self,
        proc: str = "/proc",
        harnesses: Iterable[str] = (),
        clock: Clock = time.monotonic_ns,
    ) -> None:
        self._proc = proc
        self._clock = clock
        self.harnesses = HARNESSES | set(harnesses)
        #: How much of a command line to record: see `ckptfs.commands`.
        self.record = MASKED
        #: What a process says that it does next (`ckptfs.history.steps`).
        self.announced: Callable[[Process], Announced | None] = lambda process: None
        #: Processes that were declared to be harnesses, and those whose children are steps.
        self._declared: set[Key] = set()
        self._has_steps: set[Key] = set()
        self._nodes: dict[int, _Node] = {}
        self._steps: dict[Key, Step] = {}
        #: The leader that a process group had.
        self._leaders: dict[int, Key] = {}

    def __call__(self, pid: int) -> Caller | None:
        node = self._node(pid) if pid > 0 else None
        if node is None or node.process.kernel or self._is_own(node.process):
            return None
        return Caller(self._step_of(node), node.call, node.process.pid)

    @property
    def harness_count(self) -> int:
        """How many programs were found to be harnesses."""
        return len(self._has_steps)

    def declare(self, pid: int) -> bool:
        """Treat a process as a harness, whatever its name. False if there is no such process."""
        process = read_process(pid, self._proc)
        if process is None:
            return False
        if len(self._declared) >= _KNOWN_MAX:
            self._declared.clear()
        self._declared.add((pid, process.start))
        self._nodes.clear()
        return True

    def may_be_harness(self, pid: int) -> bool:
        """Whether each edit by this process may be a step of its own; True for an unknown
        process."""
        node = self._node(pid) if pid > 0 else None
        return node is None or self._kind(node) in ("prompt", "harness", "program", "outside")

    def _is_own(self, process: Process) -> bool:
        """Whether it is a thread of this program, which uses the mount for housekeeping only."""
        in_group = process.pgid == os.getpgrp()
        return in_group and os.path.exists(f"{self._proc}/self/task/{process.pid}")

    # -- the tree ----------------------------------------------------------------------------------

    def _node(self, pid: int, depth: int = 0) -> _Node | None:
        known, now_ns = self._nodes.get(pid), self._clock()
        if known is not None and now_ns - known.seen_ns < TRUST_NS and depth:
            return known
        process = read_process(pid, self._proc)
        if process is None:
            return known
        if known is not None and _same(known.process, process):
            known = known._replace(seen_ns=now_ns)
        elif process.is_thread:
            tgid = main_thread(process, self._proc).pid
            known = self._node(tgid, depth + 1) if tgid != pid else None
        elif known is not None and known.process.start == process.start:
            # It executed another program, which keeps its place in the tree.
            known = known._replace(process=process, kind=None, seen_ns=now_ns)
            self._steps.pop(known.step, None)
        else:
            known = self._placed(process, depth, now_ns)
        if known is not None:
            _remember(self._nodes, pid, known)
        return known

    def _placed(self, process: Process, depth: int, now_ns: int) -> _Node:
        """A process that is seen for the first time, placed below its parent."""
        parent = None
        if process.ppid > 0 and process.pid != _INIT and depth < _ANCESTORS_MAX:
            parent = self._node(process.ppid, depth + 1)
        key = process.pid, process.start
        if parent is None:
            return _Node(process, None, key, key, inside=False, seen_ns=now_ns)
        kind = self._kind(parent)
        begun = self._begun(process, parent, kind)
        gives_steps = self._gives_steps(parent, kind, process)
        by_harness = gives_steps and kind in ("program", "harness")
        own = self._own_kind(process, parent)
        if own in ("prompt", "harness") or (own == "program" and not gives_steps):
            # It has steps of its own, wherever it runs, and belongs to none.
            return _Node(process, own, key, key, parent.inside or by_harness, now_ns)
        if by_harness:
            _remember_key(self._has_steps, (parent.process.pid, parent.process.start))
        return _Node(
            process,
            own,
            call=begun if kind not in ("script", "tool") else parent.call,
            step=self._announced_step(parent.process) or (begun if gives_steps else parent.step),
            inside=parent.inside or by_harness,
            seen_ns=now_ns,
        )

    def _own_kind(self, process: Process, parent: _Node) -> Kind | None:
        """The kind of a process that may have steps: judged by its name, or by a process group of
        its own; None for others."""
        named = is_shell_name(process.comm) or process.comm in self.harnesses
        apart = process.pid == process.pgid != parent.process.pgid
        if named or apart or (process.pid, process.start) in self._declared:
            return self._find_kind(process, read_argv(process.pid, self._proc))
        return None

    def _gives_steps(self, parent: _Node, kind: Kind, child: Process) -> bool:
        """Whether the child is a step. A program that leads its process group, as one started at a
        prompt or as a service does, counts as a harness, unless a harness started it as a command.
        So does one that has shells run commands, or gives a command a group of its own."""
        if kind != "program":
            return kind in ("outside", "prompt", "harness")
        own, group = (parent.process.pid, parent.process.start), parent.process.pgid
        if group in (parent.process.pid, _NO_GROUP) and not (parent.inside and parent.step == own):
            return True
        if child.pgid != group:
            return True
        return own in self._has_steps or runs_command(read_argv(child.pid, self._proc))

    def _begun(self, process: Process, parent: _Node, kind: Kind) -> Key:
        """The key of what a child begins: itself, or the pipeline that it is part of."""
        key = process.pid, process.start
        pgid = process.pgid
        if kind != "prompt" or pgid in (process.pid, parent.process.pgid, _NO_GROUP):
            _remember(self._leaders, process.pid, key)
            return key
        known = self._leaders.get(pgid)
        if known is None:
            leader = read_process(pgid, self._proc)
            # The kernel does not reuse the number while the group has members.
            known = (pgid, leader.start) if leader is not None else (pgid, 0)
            _remember(self._leaders, pgid, known)
        return known

    def _kind(self, node: _Node) -> Kind:
        """The kind of a process, found when it is first needed."""
        if node.kind is not None:
            return node.kind
        process = node.process
        kind = self._find_kind(process, read_argv(process.pid, self._proc))
        if self._nodes.get(process.pid) is node:
            self._nodes[process.pid] = node._replace(kind=kind)
        return kind

    def _find_kind(self, process: Process, argv: list[bytes]) -> Kind:
        if (process.pid, process.start) in self._declared:
            return "harness"
        kind = kind_of(process.comm, argv, self.harnesses)
        if kind == "prompt" and process.forked:
            return "script"  # a shell's copy of itself runs a part of one command
        if process.pid == _INIT and kind in ("script", "tool", "prompt"):
            return "outside"  # orphans of any origin become its children
        return kind

    # -- names of steps ----------------------------------------------------------------------------

    def _announced_step(self, process: Process) -> Key | None:
        """The step that a process announced, for itself and for what it starts."""
        announced = self.announced(process)
        if announced is None:
            return None
        key = (process.pid, -announced.serial)
        if key not in self._steps:
            _remember(self._steps, key, Step(*key, announced.text, self._session(process)))
        return key

    def _step_of(self, node: _Node) -> Step:
        if (key := self._announced_step(node.process)) is not None:
            return self._steps[key]
        known = self._steps.get(node.step)
        if known is None:
            known = self._named(node)
            if not known.provisional:
                _remember(self._steps, node.step, known)
        edits = known.edits or self._is_edit(node)
        return known if known.edits == edits else known._replace(edits=edits)

    def _is_edit(self, node: _Node) -> bool:
        """Whether a harness acts itself, not through a command that it started."""
        own = (node.process.pid, node.process.start)
        if node.step != own:
            return False
        return own in self._has_steps or self._kind(node) == "harness"

    def _named(self, node: _Node) -> Step:
        pid, start = node.step
        process, member = node.process, node.process
        leader = process if process.pid == pid else read_process(pid, self._proc)
        if leader is None or (start and leader.start != start):
            return Step(pid, start, self._command(member), self._session(member))
        argv = read_argv(pid, self._proc)
        # A shell's copy of itself has no name of its own yet, and a leader that has ended but was
        # not reaped has lost its command line.
        forked = leader.forked and is_shell(argv)
        command = self._command(member if forked or not argv else leader)
        session, provisional = self._session(leader), forked and member.pid == pid
        # An agent may make an edit through a process of its own.
        edits = os.path.basename(command.partition(" ")[0]) in self.harnesses
        return Step(pid, start, command, session, provisional, edits)

    def _command(self, process: Process) -> str:
        argv = read_argv(process.pid, self._proc, _CMDLINE_BYTES)
        return command_line(argv, self.record) if argv else printable(process.comm)

    def _session(self, process: Process) -> str:
        """The session as "SID:START", since ids are reused."""
        leader = read_process(process.sid, self._proc)
        return f"{process.sid}:{leader.start}" if leader else str(process.sid)


def _same(known: Process, now: Process) -> bool:
    """The same process, in the same group, and still the same program."""
    return (known.start, known.comm, known.pgid) == (now.start, now.comm, now.pgid)


def _remember(known: dict[K, T], key: K, value: T) -> None:
    if len(known) >= _KNOWN_MAX and key not in known:
        for old in list(known)[: _KNOWN_MAX // 2]:
            del known[old]
    known[key] = value


def _remember_key(known: set[Key], key: Key) -> None:
    if len(known) >= _KNOWN_MAX:
        known.clear()
    known.add(key)


# -- reading /proc ---------------------------------------------------------------------------------


def read_process(pid: int, proc: str = "/proc") -> Process | None:
    """A process or thread as the kernel describes it; None if there is none."""
    line = _read(f"{proc}/{pid}/stat", 1024)
    opened, closed = line.find(b"("), line.rfind(b")")
    fields = line[closed + 2 :].split()
    if opened < 0 or closed < 0 or len(fields) < 20:
        return None
    return Process(
        pid=pid,
        comm=line[opened + 1 : closed].decode("utf-8", "backslashreplace"),
        state=fields[0].decode(),
        ppid=int(fields[1]),
        pgid=int(fields[2]),
        sid=int(fields[3]),
        tty=int(fields[4]),
        kernel=bool(int(fields[6]) & _PF_KTHREAD),
        start=int(fields[19]),
        forked=bool(int(fields[6]) & _PF_FORKNOEXEC),
        is_thread=len(fields) > 35 and int(fields[35]) == _NO_SIGNAL,
    )


def read_argv(pid: int, proc: str = "/proc", size: int = _ARGV_BYTES) -> list[bytes]:
    """A process's arguments, as far as they are needed; empty for one that is ending."""
    raw = _read(f"{proc}/{pid}/cmdline", size).rstrip(b"\0")
    return raw.split(b"\0") if raw else []


def main_thread(process: Process, proc: str = "/proc") -> Process:
    """The process that a thread belongs to: requests carry the ids of threads."""
    for line in _read(f"{proc}/{process.pid}/status", 1024).splitlines():
        if line.startswith(b"Tgid:"):
            tgid = int(line[5:])
            return process if tgid == process.pid else read_process(tgid, proc) or process
    return process


def _read(path: str, size: int) -> bytes:
    """The beginning of a small file; empty if there is none. Half the cost of a file object."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, size)
    except OSError:
        return b""  # the process ended between the two calls
    finally:
        os.close(fd)


#: How many processes may have announced a step at once.
STEPS_MAX = 1024


class AnnouncedSteps:
    """What processes announced that they do next. An announcement ends with its process, with the
    next one, and when very many others have one."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        #: By process, the one that was named last at the end.
        self._steps: dict[int, Announced] = {}
        self._serial = 0

    def name(self, pid: int, text: str) -> None:
        """Name what a process does next; an empty name removes the last one. ``pid`` may be that of
        a thread. A process that is not visible from here is ignored."""
        thread = read_process(pid, self._proc)
        if thread is None:
            return
        process = main_thread(thread, self._proc)
        self._steps.pop(process.pid, None)
        if not text:
            return
        if len(self._steps) >= STEPS_MAX:
            del self._steps[next(iter(self._steps))]
        self._serial += 1
        self._steps[process.pid] = Announced(text, self._serial, process.start)

    def of(self, process: Process) -> Announced | None:
        """What a process announced, or None."""
        announced = self._steps.get(process.pid)
        return announced if announced is not None and announced.start == process.start else None
