"""What processes say that they do next: a shell the command line that was typed, an agent its step.

Nothing but a name for changes to come. It is forgotten with the process, by the next name, and when
very many others have one.
"""

from __future__ import annotations

from ckptfs.history.processes import Process, Told, main_thread, read_process

#: How many processes have a name at once.
STEPS_MAX = 1024


class Steps:
    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        #: By process, the one that was named last at the end.
        self._steps: dict[int, Told] = {}
        self._serial = 0

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
        self._serial += 1
        self._steps[process.pid] = Told(text, self._serial, process.start)

    def of(self, process: Process) -> Told | None:
        """What a process says that it does; None if it says nothing."""
        told = self._steps.get(process.pid)
        return told if told is not None and told.start == process.start else None
