"""Who is behind a request: the command that a process belongs to, read from /proc.

Owns the way from a process id to an `Actor`: one command as a person sees it, be it one process or
a build of a thousand. Knows nothing of files, requests or checkpoints, and never reads a process's
environment, which may hold secrets.

A shell with job control gives every command line a process group of its own, and a program that
starts another in the background mostly does the same, so the group is the command and its leader
names it. A shell without job control that takes its commands one by one (an agent that types into
a pipe) keeps them all in its own group; there the shell's child is the command.
"""

from __future__ import annotations

import os
from typing import NamedTuple, TypeVar

from ckptfs.commands import command_text, printable

T = TypeVar("T")

#: How much of a command line is read: what agents put around a command takes up a part of it.
_CMDLINE_BYTES = 16 << 10
#: How far up parents are followed.
ANCESTORS_MAX = 64
#: How many processes and groups are remembered; the oldest half goes when there are more.
_KNOWN_MAX = 2048

_PF_KTHREAD = 0x0020_0000

_SHELLS = frozenset("ash bash dash fish ksh ksh93 mksh oksh rbash sh yash zsh".split())
#: Options of shells that are followed by a value, which is not a script.
_WITH_VALUE = frozenset(("-o", "+o", "-O", "+O", "--rcfile", "--init-file", "--emulate"))


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


class Actor(NamedTuple):
    """A command that changes things: the process it is known by, and what to call it.

    ``start`` is 0 for a group whose leader ended before it was seen. ``provisional`` tells that a
    shell had forked but not yet become the command (it opens the target of ``>`` in between), so
    that a second look will give a better name.
    """

    pid: int
    start: int
    command: str
    session: str = ""
    provisional: bool = False

    @property
    def key(self) -> tuple[int, int]:
        return self.pid, self.start


class _Group(NamedTuple):
    actor: Actor
    #: The leader's program, as the kernel calls it: another one has another command line.
    comm: str
    #: Whether the leader is a shell that takes commands one by one.
    shell: bool


class _Known(NamedTuple):
    process: Process
    actor: Actor


class Who:
    """From process ids to actors; None is a process that is unknown: a kernel thread, one that
    another pid namespace hides, one of this program's own, or one that was gone too soon."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._known: dict[int, _Known] = {}
        self._groups: dict[int, _Group] = {}

    def __call__(self, pid: int) -> Actor | None:
        if pid <= 0:
            return None
        process = read_process(pid, self._proc)
        known = self._known.get(pid)
        if process is None:
            return known.actor if known else None
        if known and _same(known.process, process):
            return known.actor
        if process.kernel or self._is_own(process):
            return None
        actor = self._actor_of(process)
        if not actor.provisional:
            _remember(self._known, pid, _Known(process, actor))
        return actor

    def _is_own(self, process: Process) -> bool:
        """Whether it is a thread of this program: what it does through the mount is housework."""
        in_group = process.pgid == os.getpgrp()
        return in_group and os.path.exists(f"{self._proc}/self/task/{process.pid}")

    def _actor_of(self, process: Process) -> Actor:
        leader = process
        if process.pid != process.pgid:
            found = read_process(process.pgid, self._proc)
            if found is None:
                return self._leaderless(process)
            leader = found
        group = self._group_of(leader, process)
        if not group.shell or leader is process:
            return group.actor
        job = self._job_of(process, leader)
        if job.pid == leader.pid:
            return group.actor
        forked = read_argv(job.pid, self._proc) == read_argv(leader.pid, self._proc)
        return Actor(job.pid, job.start, self._command(job), group.actor.session, forked)

    def _group_of(self, leader: Process, member: Process) -> _Group:
        known = self._groups.get(leader.pid)
        if known and (known.actor.start, known.comm) == (leader.start, leader.comm):
            return known
        argv = read_argv(leader.pid, self._proc)
        shell = takes_commands(argv)
        forked = shell and argv == read_argv(leader.ppid, self._proc)
        # A shell's copy of itself has no name of its own yet, and a leader that has ended, but
        # whose shell has not asked for it, lost its command line.
        command = self._command(member if forked or not argv else leader)
        provisional = forked and member.pid == leader.pid
        actor = Actor(leader.pid, leader.start, command, self._session(leader), provisional)
        group = _Group(actor, leader.comm, shell and not forked)
        if argv and not forked:
            _remember(self._groups, leader.pid, group)
        return group

    def _leaderless(self, process: Process) -> Actor:
        """The kernel gives a group's number to nobody else while it has members, so what was
        known of the leader still holds."""
        known = self._groups.get(process.pgid)
        if known and not known.shell:
            return known.actor
        return Actor(process.pgid, 0, self._command(process), self._session(process))

    def _job_of(self, process: Process, shell: Process) -> Process:
        """The shell's child that a process in the shell's own group descends from."""
        job = main_thread(process, self._proc)
        for _ in range(ANCESTORS_MAX):
            if job.ppid == shell.pid or job.pid == shell.pid:
                break
            parent = read_process(job.ppid, self._proc)
            if parent is None or parent.pgid != shell.pid:
                break
            job = parent
        return job

    def _command(self, process: Process) -> str:
        return command_text(read_argv(process.pid, self._proc)) or printable(process.comm)

    def _session(self, process: Process) -> str:
        """The session as "SID:START": a number alone comes again."""
        leader = read_process(process.sid, self._proc)
        return f"{process.sid}:{leader.start}" if leader else str(process.sid)


def _same(known: Process, now: Process) -> bool:
    """The same process, in the same group, and still the same program."""
    return (known.start, known.pgid, known.comm) == (now.start, now.pgid, now.comm)


def _remember(known: dict[int, T], pid: int, value: T) -> None:
    if len(known) >= _KNOWN_MAX:
        for old in list(known)[: _KNOWN_MAX // 2]:
            del known[old]
    known.pop(pid, None)
    known[pid] = value


# -- reading /proc ---------------------------------------------------------------------------------


def read_process(pid: int, proc: str = "/proc") -> Process | None:
    """What the kernel says about a process or thread; None if it is not there."""
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
    )


def read_argv(pid: int, proc: str = "/proc") -> list[bytes]:
    """A process's arguments, as far as they are needed; empty for one that is ending."""
    raw = _read(f"{proc}/{pid}/cmdline", _CMDLINE_BYTES).rstrip(b"\0")
    return raw.split(b"\0") if raw else []


def main_thread(process: Process, proc: str = "/proc") -> Process:
    """The process that a thread belongs to: requests carry the ids of threads."""
    for line in _read(f"{proc}/{process.pid}/status", 1024).splitlines():
        if line.startswith(b"Tgid:"):
            tgid = int(line[5:])
            return process if tgid == process.pid else read_process(tgid, proc) or process
    return process


def ancestors(pid: int, limit: int = ANCESTORS_MAX, proc: str = "/proc") -> list[Process]:
    """A process and those that it descends from, nearest first."""
    found: list[Process] = []
    while pid > 0 and len(found) < limit:
        process = read_process(pid, proc)
        if process is None:
            break
        found.append(process)
        pid = process.ppid
    return found


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


# -- command lines ---------------------------------------------------------------------------------


def takes_commands(argv: list[bytes]) -> bool:
    """Whether this is a shell that reads commands one by one, and not one that runs a script."""
    if not argv or os.path.basename(argv[0]).lstrip(b"-").decode("latin-1") not in _SHELLS:
        return False
    rest = [argument.decode("latin-1") for argument in argv[1:]]
    while rest:
        argument = rest.pop(0)
        if argument in _WITH_VALUE:
            rest = rest[1:]
        elif argument in ("-", "--"):
            return not rest
        elif not argument.startswith(("-", "+")):
            return False  # the name of a script
        elif not argument.startswith("--") and "c" in argument:
            return False
        elif not argument.startswith("--") and "s" in argument:
            return True
    return True
