"""A workspace under load that is ended in the middle, and the questions to ask afterwards.

The journal of what was acknowledged is kept in this process, outside the workspace: by each actor
about its files, and here about checkpoints and restores. Actors reach the workspace through one
open directory, so that none of them falls through to the lower directory when the mount goes.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable

from ckptfs import config
from ckptfs.control.client import Client
from ckptfs.errors import DaemonGone
from ckptfs.fs import Filesystem
from ckptfs.service import Service
from ckptfs.store import Store, check
from tests.crash.actor import Actor, State, read_state
from tests.support.mounting import Workspace

#: What a whole workspace holds: a state for each actor.
Whole = dict[str, State]

_ACTORS = 3


class Journal:
    """Which checkpoints there are and what they show, and what was under way."""

    def __init__(self) -> None:
        self.saved: dict[int, Whole] = {}
        #: A checkpoint whose removal has begun: it may be there or not.
        self.doomed: int | None = None
        #: How many restores were acknowledged, and the goal of one under way.
        self.restores = 0
        self.goal: Whole | None = None


class Trial:
    """One workspace through many rounds of work, end, and questions."""

    def __init__(self, workspace: Workspace, seed: int) -> None:
        self.workspace = workspace
        self.place = config.Workspace(workspace.path, workspace.store)
        self.random = random.Random(seed)
        self.actors = [Actor(f"actor{n}", self.random.randrange(1 << 30)) for n in range(_ACTORS)]
        self.journal = Journal()
        #: Held by an actor for a step, and by the historian while nobody may work.
        self._locks = [threading.Lock() for _ in self.actors]
        self._over = threading.Event()
        self._failures: list[BaseException] = []
        for actor in self.actors:
            (workspace.path / actor.name).mkdir()
        self.reopen()
        os.fsync(self._top)

    # -- the load ---------------------------------------------------------------------------------

    def load(self, end: Callable[[], None], seconds: float, *, errors: bool = True) -> None:
        """Work for a while, then let ``end`` happen in the middle of it. It may end the work with
        errors, unless it is said that it may not."""
        self._over.clear()
        self._ending = False
        workers = [threading.Thread(target=self._work, args=(n,)) for n in range(_ACTORS)]
        workers.append(threading.Thread(target=self._keep_history))
        for worker in workers:
            worker.start()
        try:
            self._over.wait(seconds)
            self._ending = errors
            end()
        finally:
            self._over.set()
            for worker in workers:
                worker.join(60)
            os.close(self._top)
        assert not any(worker.is_alive() for worker in workers), "a request was never answered"
        if self._failures:
            raise self._failures[0]

    def _work(self, number: int) -> None:
        try:
            while not self._over.is_set():
                with self._locks[number]:
                    self.actors[number].work(self._top)
        except OSError as error:
            self._ended(error)
        except BaseException as error:
            self._failures.append(error)

    def _ended(self, error: OSError) -> None:
        """Only the end of the mount excuses an error, and only the errors that it gives."""
        if not self._ending or error.errno not in _ENDINGS:
            self._failures.append(error)

    def _keep_history(self) -> None:
        try:
            with Client(self.place) as client:
                while not self._over.is_set():
                    choices = [self._save, self._save, self._restore, self._delete, self._compact]
                    self.random.choice(choices)(client)
                    self._over.wait(self.random.random() * 0.1)
        except DaemonGone:
            pass
        except BaseException as error:
            self._failures.append(error)

    def _save(self, client: Client) -> None:
        with _all(self._locks):
            saved = client.call("save", {"message": "x", "allow_empty": True})
            self.journal.saved[saved["id"]] = {a.name: dict(a.now) for a in self.actors}
            for actor in self.actors:
                actor.promise()

    def _restore(self, client: Client) -> None:
        if not self.journal.saved:
            return
        number = self.random.choice(sorted(self.journal.saved))
        with _all(self._locks):
            self.journal.goal = goal = self.journal.saved[number]
            client.call("restore", {"checkpoint": str(number)})
            self.journal.goal = None
            self.journal.restores += 1
            for actor in self.actors:
                actor.restart(dict(goal.get(actor.name, {})))

    def _delete(self, client: Client) -> None:
        if len(self.journal.saved) < 4:
            return
        number = self.journal.doomed = self.random.choice(sorted(self.journal.saved))
        client.call("delete", {"checkpoints": [str(number)]})
        self._forget_doomed()

    def _forget_doomed(self) -> None:
        if self.journal.doomed is not None:
            self.journal.saved.pop(self.journal.doomed)
            self.journal.doomed = None

    def _compact(self, client: Client) -> None:
        if self.random.random() < 0.3:
            client.call("compact")

    # -- the questions ----------------------------------------------------------------------------

    def ask(self, *, in_order: bool = False) -> None:
        """Everything that was promised is there, in the store and through a new mount.

        ``in_order``: the daemon was given the time to save all that it had.
        """
        if in_order:
            for actor in self.actors:
                actor.promise()
        restores = self._ask_store()
        self.workspace.mount()
        found = {
            actor.name: read_state(f"{self.workspace.path}/{actor.name}") for actor in self.actors
        }
        self._ask_head(found, restores)
        self._ask_checkpoints()
        for actor in self.actors:
            actor.restart(found[actor.name])
        self.reopen()
        # What a round begins with is to be found by the next one.
        os.fsync(self._top)

    def _ask_store(self) -> int:
        """How many restores the store tells of."""
        store = Store.open(self.workspace.store)
        try:
            assert check(store) == []
            fs = Filesystem(store)
            service = Service(fs)
            restores = len(service.restores())
            known = {checkpoint.id for checkpoint in service.checkpoints()}
            fs.commit()
            assert check(store) == []
        finally:
            store.close()
        if self.journal.doomed is not None and self.journal.doomed not in known:
            self._forget_doomed()
        self.journal.doomed = None
        assert self.journal.saved.keys() <= known
        return restores

    def _ask_head(self, found: Whole, restores: int) -> None:
        """The workspace and the log of restores tell the same story."""
        goal, self.journal.goal = self.journal.goal, None
        if goal is not None and restores == self.journal.restores + 1:
            self.journal.restores = restores
            assert found == goal
            return
        assert restores == self.journal.restores
        for actor in self.actors:
            assert not (reason := actor.explain(found[actor.name])), reason

    def _ask_checkpoints(self) -> None:
        known = sorted(self.journal.saved)
        for number in {*known[-2:], *self.random.sample(known, min(2, len(known)))}:
            top = f"{self.workspace.path}/.checkpoints/{number}"
            shown = {actor.name: read_state(f"{top}/{actor.name}") for actor in self.actors}
            assert shown == self.journal.saved[number], f"checkpoint {number} changed"

    def reopen(self) -> None:
        """Let the actors in again."""
        self._top = os.open(self.workspace.path, os.O_RDONLY | os.O_DIRECTORY)

    def close(self) -> None:
        os.close(self._top)


class _all:
    def __init__(self, locks: list[threading.Lock]) -> None:
        self._locks = locks

    def __enter__(self) -> None:
        for lock in self._locks:
            lock.acquire()

    def __exit__(self, *_: object) -> None:
        for lock in self._locks:
            lock.release()


#: Of calls that find the daemon gone, of those it was to answer, and of pages it was to take.
_ENDINGS = {errno.ENOTCONN, errno.ECONNABORTED, errno.EIO}
