"""What processes say that they do next: a shell the command line that was typed, an agent its step.

Nothing but a name for changes to come. It is forgotten with the process, by the next name, and when
very many others have one.
"""

from __future__ import annotations

from typing import NamedTuple

from ckptfs.history.processes import main_thread, read_process

#: How many processes have a name at once.
STEPS_MAX = 1024


class _Step(NamedTuple):
    text: str
    #: When its process began: the number alone comes again.
    start: int


class Steps:
    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        #: By process, the one that was named last at the end.
        self._steps: dict[int, _Step] = {}

    def name(self, pid: int, text: str) -> None:
        """What the process does next is called so; an empty name takes the last one away. ``pid``
        may be that of a thread, and nothing is known of a process that cannot be seen from here."""
        thread = read_process(pid, self._proc)
        if thread is None:
            return
        process = main_thread(thread, self._proc)
        self._steps.pop(process.pid, None)
        if not text:
            return
        if len(self._steps) >= STEPS_MAX:
            del self._steps[next(iter(self._steps))]
        self._steps[process.pid] = _Step(text, process.start)

    def of(self, pid: int) -> str:
        """What the process calls what it does; empty if it said nothing."""
        step = self._steps.get(pid)
        if step is None:
            return ""
        process = read_process(pid, self._proc)
        return step.text if process is not None and process.start == step.start else ""
