"""The history machine with several lines of work in one store.

Every rule of the machine works in the line that is at hand; forks are made, entered, renamed and
deleted in between. The head of every line must read back as its own model, and every checkpoint as
it was taken, whatever other lines did. A crash takes all lines back to the last commit.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from ckptfs import history
from ckptfs.fs import Filesystem
from ckptfs.history import Changed, expiry, forks, merge, removal
from ckptfs.history.retention import RetentionPolicy
from ckptfs.model import MAIN_LINE
from ckptfs.store import check
from ckptfs.textmerge import Labels
from tests.direct import crashed, reopened
from tests.history.leftovers import leftovers
from tests.property.model import Tree
from tests.property.test_history_machine import (
    MACHINE,
    SEALED,
    Held,
    HistoryMachine,
    Sealed,
)

LINES = MACHINE.flatmap(lambda m: st.sampled_from(sorted(m.others) or [0]))
FORKS = MACHINE.flatmap(lambda m: st.sampled_from(sorted(set(m.others) - {0}) or [0]))
_FORKS_MAX = 5


class Line(NamedTuple):
    fs: Filesystem
    tree: Tree
    held: list[Held]


class ForkMachine(HistoryMachine):
    def __init__(self) -> None:
        #: The lines that are not at hand.
        self.others: dict[int, Line] = {}
        self._made = 0
        super().__init__()

    def teardown(self) -> None:
        with self._cleanup:
            self._cleanup.callback(lambda: self.fs.store.close(commit=False))
            self.look()
            for line in [self.fs.line, *self.others]:
                self._enter(line)
                self._let_go()
                assert self.fs.head.inodes >= len(set(self.tree.names.values()))
            self.fs.commit()
            assert check(self.fs.store) == []
            removal.reap(self.fs)
            assert leftovers(self.fs.store) == []

    def _enter(self, line: int) -> None:
        if line in self.others:
            self.others[self.fs.line] = Line(self.fs, self.tree, self.held)
            self.fs, self.tree, self.held = self.others.pop(line)

    # -- comparing --------------------------------------------------------------------------------

    @rule()
    @precondition(lambda self: not self.every_step)
    def look(self) -> None:
        self._compare(self.fs.head, self.tree.record(), f"the head of line {self.fs.line}")
        for number, line in self.others.items():
            self._compare_in(line, f"the head of line {number}")
        for checkpoint, _, record in self.sealed:
            self._compare(self.fs.view_of(checkpoint.epoch), record, f"checkpoint {checkpoint.id}")
        kept = [sealed.checkpoint for sealed in self.sealed]
        assert history.checkpoints(self.fs.store) == kept

    def _compare_in(self, line: Line, what: str) -> None:
        at_hand, self.fs = self.fs, line.fs
        self._compare(line.fs.head, line.tree.record(), what)
        self.fs = at_hand

    # -- forks ------------------------------------------------------------------------------------

    @rule(line=LINES)
    @precondition(lambda self: self.others)
    def enter(self, line: int) -> None:
        self._enter(line)

    @rule()
    @precondition(lambda self: len(self.others) < _FORKS_MAX)
    def fork(self) -> None:
        known = {sealed.checkpoint.id for sealed in self.sealed}
        self._now()
        fork = forks.create(self.fs, self._name())
        base = forks.base_of(self.fs.store, fork)
        assert base is not None
        if base.id not in known:
            self._keep(base)
        self._open(fork, self.tree.copy())

    @rule(sealed=SEALED)
    @precondition(lambda self: self.sealed and len(self.others) < _FORKS_MAX)
    def fork_from(self, sealed: Sealed) -> None:
        fork = forks.create(self.fs, self._name(), str(sealed.checkpoint.id))
        self._open(fork, sealed.tree.copy())

    def _name(self) -> str:
        self._made += 1
        return f"fork-{self._made}"

    def _open(self, fork: forks.Fork, tree: Tree) -> None:
        fs = Filesystem(self.fs.store, self._clock, line=fork.number)
        self.others[fork.number] = Line(fs, tree, [])

    @rule(line=FORKS)
    @precondition(lambda self: set(self.others) - {MAIN_LINE})
    def rename_fork(self, line: int) -> None:
        old = self.fs.store.forks[line].name
        forks.rename(self.fs.store, old, self._name())

    @rule(line=FORKS)
    @precondition(lambda self: set(self.others) - {MAIN_LINE})
    def delete_fork(self, line: int) -> None:
        """As with a restore, nobody holds a file open: it is not mounted any more."""
        at_hand = self.fs.line
        self._enter(line)
        self._let_go()
        self._enter(at_hand)
        self._now()
        tree = self.others.pop(line).tree
        last = forks.delete(self.fs, self.fs.store.forks[line].name)
        self.sealed.append(Sealed(last, tree.copy(), tree.record()))

    @rule(
        line=LINES, resolution=st.sampled_from(["ours", "theirs", "markers"]), undone=st.booleans()
    )
    @precondition(lambda self: self.others)
    def merge(self, line: int, resolution: str, undone: bool) -> None:
        """Another line is merged, and what that made is taken back, by `undo` or by a crash: every
        other state must be what it was, and this one again. What a merge makes is compared with
        other merges elsewhere (`tests.history.test_merge`)."""
        self._let_go()
        store = self.fs.store
        name = store.forks[line].name if line else "main"
        theirs = merge.of_line(store, line, name)
        plan = merge.plan_merge(self.fs, theirs, lambda _: resolution, Labels(b"a", b"o", b"b"))
        if not undone:
            self._remember_commit()
        self._now()
        changed = Changed(set(), set())
        done = merge.merge(self.fs, theirs, plan, whole=True, changed=changed)
        again = merge.plan_merge(self.fs, theirs, lambda _: "", Labels(b"a", b"o", b"b"))
        assert not again and not again.unresolved
        if not undone:
            self.crash()
            return
        self._keep(done.before)
        there = self.others[line].tree
        self.sealed.append(Sealed(done.theirs, there.copy(), there.record()))
        self._now()
        back = history.restore(self.fs, done.before)
        removal.delete(self.fs, [done.after, back.before])

    # -- what goes through all lines --------------------------------------------------------------

    @rule(sealed=SEALED)
    @precondition(lambda self: self.sealed)
    def hide(self, sealed: Sealed) -> None:
        """A deletion whose freeing is left to a later step."""
        removal.hide(self.fs, [sealed.checkpoint])
        self.sealed.remove(sealed)

    @rule()
    def reap_a_little(self) -> None:
        removal.Reaper(self.fs).step(0)

    @rule()
    def expire(self) -> None:
        """Automatic checkpoints beyond one of each line go, but for those that forks stand on."""
        self._now()
        expiry.expire(self.fs, RetentionPolicy(max_checkpoints=1, moments_max=0))
        left = {item.id for item in history.checkpoints(self.fs.store)}
        bases = set(self.fs.store.forks.bases)
        gone = [sealed for sealed in self.sealed if sealed.checkpoint.id not in left]
        assert not any(sealed.checkpoint.epoch in bases for sealed in gone)
        assert all(not sealed.checkpoint.protection for sealed in gone)
        self.sealed = [sealed for sealed in self.sealed if sealed.checkpoint.id in left]

    # -- the store's life -------------------------------------------------------------------------

    def _remember_commit(self) -> None:
        self.fs.commit()
        self._remember()

    def _remember(self) -> None:
        self._committed = (self.tree.copy(), list(self.sealed))
        lines = {number: line.tree.copy() for number, line in self.others.items()}
        self._committed_lines = {**lines, self.fs.line: self.tree.copy()}

    @rule()
    def sync(self) -> None:
        """Durable for all lines, by the journal where syncs follow each other."""
        self.fs.sync()
        self._remember()

    @rule()
    def reopen(self) -> None:
        self._restart(reopened(self._main()))
        self._remember_commit()

    @rule()
    def crash(self) -> None:
        self._restart(crashed(self._main()))
        _, sealed = self._committed
        self.sealed = list(sealed)
        self._take_up({number: tree.copy() for number, tree in self._committed_lines.items()})

    def _main(self) -> Filesystem:
        self._enter(MAIN_LINE)
        return self.fs

    def _restart(self, main: Filesystem) -> None:
        self.upkeep = None
        self.held = []
        self.fs = main
        self._take_up({number: line.tree for number, line in self.others.items()} | {0: self.tree})

    def _take_up(self, trees: dict[int, Tree]) -> None:
        """The lines that the store has, with these models."""
        store = self.fs.store
        numbers = set(store.heads) - {MAIN_LINE}
        self.tree = trees[MAIN_LINE]
        self.others = {
            number: Line(Filesystem(store, self._clock, line=number), trees[number], [])
            for number in numbers
            if number in trees
        }


@pytest.mark.timeout(900)  # a failure is made small before it is told
class TestForks(ForkMachine.TestCase):
    settings = settings(
        derandomize=True,
        max_examples=150,
        stateful_step_count=60,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.deep
@pytest.mark.timeout(0)
class TestForksDeep(ForkMachine.TestCase):
    settings = settings(
        max_examples=1_500,
        stateful_step_count=120,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
