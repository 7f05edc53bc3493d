"""Work on the store that can wait, cut into steps.

Whatever makes history smaller is a generator of steps (`Steps`). Between any two of them everything
is whole: requests may be served, the store committed, the work given up for good. A daemon takes
steps for a few milliseconds at a time while nothing else happens; a verb takes them one after the
other. What takes longer than a step may, as a good compression does, a generator asks for: it
yields a function of immutable bytes, which the daemon calls in a thread, and is sent its result. By
then everything else may have changed.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Generator

from ckptfs import interrupts
from ckptfs.fs import Filesystem
from ckptfs.store import Store

#: Something to be computed, anywhere.
Job = Callable[[], object]
#: Yields after each step, or yields a job and is sent what came of it.
Steps = Generator[Job | None, object, None]


def pause(store: Store) -> Steps:
    """The end of a step, and the beginning of one that reads what the workspace has."""
    yield None
    store.pending.flush()


#: How many rewritten bytes to commit at once: the old pages are not free until then.
COMMIT_BYTES = 4 << 20


class Worker:
    """Takes the steps of one piece of work."""

    def __init__(self, fs: Filesystem, steps: Steps) -> None:
        self._fs = fs
        self._steps = steps
        self._result: object = None
        #: What the work waits for: to be computed and handed to `resume`.
        self.job: Job | None = None

    def resume(self, result: object) -> None:
        self.job, self._result = None, result

    def step(self, budget_s: float | None = None) -> bool:
        """Take steps for about that long, or until the slice is used up or there is a job to do;
        True if nothing is left to do, or the disk has no space for it. Commits now and then."""
        deadline = None if budget_s is None else time.monotonic() + budget_s
        try:
            return self._take_steps(deadline)
        except OSError as error:
            # Making things smaller takes space before it frees any.
            if error.errno != errno.ENOSPC:
                raise
            return True

    def _take_steps(self, deadline: float | None) -> bool:
        store = self._fs.store
        while self.job is None:
            interrupts.between()
            if store.dirty_bytes > COMMIT_BYTES or store.pressed:
                self._fs.commit()
            try:
                result, self._result = self._result, None
                self.job = self._steps.send(result)
            except StopIteration:
                return True
            if interrupts.is_due() or (deadline is not None and time.monotonic() >= deadline):
                break
        return False


def finish(fs: Filesystem, steps: Steps) -> None:
    """Take all steps, and do the jobs here."""
    worker = Worker(fs, steps)
    while not worker.step():
        if worker.job is not None:
            worker.resume(worker.job())
