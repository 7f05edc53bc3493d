"""Random edits on both sides, scans, write-backs and deaths, against laws that a model can state.

Every piece of content is new in the world (a numbered token), so the model only needs to know which
tokens each side has and ever had:

- a scan brings in every token of the lower directory, unless the store had it and let it go;
- it deletes only tokens that the lower directory had and no longer has;
- a side that nobody edited since the last agreement changes nothing on the other;
- after a write-back both sides are equal, and neither pass finds anything to do; nor does a
  write-back that compares everything, whatever set of names the one before it looked at.

What is decided is decided name by name, so the first two laws leave out tokens that ever stood
under two names: each side may let go of one of them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ckptfs import history, sync
from ckptfs.history import excluded, removal
from ckptfs.model import BLOCK_SIZE
from ckptfs.sync import ScanBehind, SyncResult, agreed, scan_behind
from tests.support.trees import Facts, facts
from tests.sync.interruption import dying_at
from tests.sync.pair import Pair

names = st.sampled_from(["a", "b", "c", "d"])
picks = st.integers(0, 1_000_000)
modes = st.sampled_from([0o600, 0o644, 0o755, 0o4711])

Tokens = set[bytes]


class Lower:
    """The edits of `Pair`, done to the lower directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def facts(self) -> dict[str, Facts]:
        return facts(self.root)

    def write(self, path: str, data: bytes) -> None:
        (self.root / path).write_bytes(data)

    def replace(self, path: str, data: bytes) -> None:
        """Save as editors do."""
        aside = self.root.parent / "aside"
        aside.write_bytes(data)
        aside.rename(self.root / path)

    def mkdir(self, path: str) -> None:
        (self.root / path).mkdir()

    def symlink(self, path: str, target: str) -> None:
        (self.root / path).symlink_to(target)

    def link(self, path: str, new: str) -> None:
        os.link(self.root / path, self.root / new, follow_symlinks=False)

    def rename(self, path: str, new: str) -> None:
        (self.root / path).rename(self.root / new)

    def remove(self, path: str) -> None:
        target = self.root / path
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink()

    def chmod(self, path: str, mode: int) -> None:
        (self.root / path).chmod(mode)

    def touch(self, path: str, mtime_ns: int) -> None:
        os.utime(self.root / path, ns=(mtime_ns, mtime_ns), follow_symlinks=False)


class Stored:
    """The edits of `Lower`, done to the store."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair

    def facts(self) -> dict[str, Facts]:
        return self.pair.stored()

    def replace(self, path: str, data: bytes) -> None:
        if self.pair.exists(path):
            self.pair.remove(path)
        self.pair.write(path, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pair, name)


Side = Lower | Stored


class Sync(RuleBasedStateMachine):
    #: Names that are kept out of history. A hard link cannot lead from one side to the other.
    patterns: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.root = Path(tempfile.mkdtemp(prefix="ckptfs-test-", dir=where))
        self.pair = Pair(self.root)
        self.sides: dict[str, Side] = {
            "lower": Lower(self.pair.lower),
            "store": Stored(self.pair),
        }
        self.count = 0
        self.ever: dict[str, Tokens] = {"lower": set(), "store": set()}
        self.shared: Tokens = set()
        self.edited = {"lower": False, "store": False}
        excluded.apply(self.pair.fs, self.patterns)

    def teardown(self) -> None:
        self.pair.close()
        shutil.rmtree(self.root)

    # -- the model --------------------------------------------------------------------------------

    def token(self) -> bytes:
        self.count += 1
        return b"token-%d" % self.count

    def tokens(self, side: str) -> Tokens:
        contents = (entry.content.rstrip(b"\0") for entry in self.sides[side].facts().values())
        counts = Counter(content for content in contents if content)
        self.shared |= {token for token, count in counts.items() if count > 1}
        self.ever[side] |= counts.keys()
        return set(counts)

    def paths(self, side: str, *, kinds: str = "-ld") -> list[str]:
        entries = self.sides[side].facts().items()
        return [path for path, entry in entries if entry.type in kinds and path != "."]

    def pick(self, side: str, number: int, *, kinds: str = "-ld") -> str | None:
        paths = self.paths(side, kinds=kinds)
        return paths[number % len(paths)] if paths else None

    def new_path(self, side: str, number: int, name: str) -> str | None:
        """A name in some directory of the side, if it is free and not too deep."""
        directories = ["", *self.paths(side, kinds="d")]
        directory = directories[number % len(directories)]
        path = f"{directory}/{name}" if directory else name
        taken = path in self.paths(side)
        return None if taken or path.count("/") > 3 else path

    def touched(self, side: str) -> None:
        self.tokens(side)
        self.edited[side] = True

    # -- edits ------------------------------------------------------------------------------------

    where = st.sampled_from(["lower", "store"])

    @initialize(files=st.lists(st.tuples(picks, names, st.booleans()), max_size=8))
    def start(self, files: list[tuple[int, str, bool]]) -> None:
        for number, name, directory in files:
            path = self.new_path("lower", number, name)
            if path is not None and directory:
                self.sides["lower"].mkdir(path)
            elif path is not None:
                self.sides["lower"].write(path, self.token())
        self.touched("lower")
        self.scan()

    @rule(side=where, number=picks, name=names, large=st.booleans())
    def make_file(self, side: str, number: int, name: str, large: bool) -> None:
        path = self.new_path(side, number, name)
        if path is not None:
            padding = bytes(2 * BLOCK_SIZE + 100) if large else b""
            self.sides[side].write(path, self.token() + padding)
            self.touched(side)

    @rule(side=where, number=picks, save=st.booleans())
    def edit(self, side: str, number: int, save: bool) -> None:
        path = self.pick(side, number, kinds="-")
        if path is not None:
            edit = self.sides[side].replace if save else self.sides[side].write
            edit(path, self.token())
            self.touched(side)

    @rule(side=where, number=picks, name=names)
    def make_directory(self, side: str, number: int, name: str) -> None:
        path = self.new_path(side, number, name)
        if path is not None:
            self.sides[side].mkdir(path)
            self.touched(side)

    @rule(side=where, number=picks, name=names)
    def make_link(self, side: str, number: int, name: str) -> None:
        path = self.new_path(side, number, name)
        if path is not None:
            self.sides[side].symlink(path, self.token().decode())
            self.touched(side)

    @precondition(lambda self: not self.patterns)
    @rule(side=where, source=picks, number=picks, name=names)
    def hard_link(self, side: str, source: int, number: int, name: str) -> None:
        old = self.pick(side, source, kinds="-l")
        new = self.new_path(side, number, name)
        if old is not None and new is not None:
            self.sides[side].link(old, new)
            self.touched(side)

    @rule(side=where, source=picks, number=picks, name=names)
    def rename(self, side: str, source: int, number: int, name: str) -> None:
        old = self.pick(side, source)
        new = self.new_path(side, number, name)
        if old is not None and new is not None and not f"{new}/".startswith(f"{old}/"):
            self.sides[side].rename(old, new)
            self.touched(side)

    @rule(side=where, number=picks)
    def remove(self, side: str, number: int) -> None:
        path = self.pick(side, number)
        if path is not None:
            self.sides[side].remove(path)
            self.touched(side)

    @rule(side=where, number=picks, mode=modes)
    def chmod(self, side: str, number: int, mode: int) -> None:
        path = self.pick(side, number, kinds="-d")
        if path is not None:
            self.sides[side].chmod(path, mode | 0o700)
            self.touched(side)

    @rule(side=where, number=picks, mtime_ns=st.integers(1, 10**18))
    def touch(self, side: str, number: int, mtime_ns: int) -> None:
        path = self.pick(side, number)
        if path is not None:
            self.sides[side].touch(path, mtime_ns)
            self.touched(side)

    # -- passes -----------------------------------------------------------------------------------

    @rule()
    def scan(self) -> None:
        before, store = self.tokens("store"), self.sides["store"].facts()
        lower = self.tokens("lower")
        let_go = self.ever["store"] - before
        result = self.pair.scan()
        after = self.tokens("store")
        self.check_scan(result, before, lower, after, let_go)
        if not self.edited["lower"]:
            assert self.sides["store"].facts() == store and not result.changed
        self.edited["lower"] = False
        assert not self.pair.scan().changed

    def check_scan(
        self, result: SyncResult, before: Tokens, lower: Tokens, after: Tokens, let_go: Tokens
    ) -> None:
        assert not result.skipped
        assert lower - let_go - self.shared <= after, (
            "something of the lower directory did not come in"
        )
        lost = before - after - self.shared
        assert lost <= self.ever["lower"] - lower, (
            "the store lost something that the lower directory never had"
        )
        assert after <= before | lower
        if not (self.edited["lower"] and self.edited["store"]):
            assert not result.conflicts

    @precondition(lambda self: not self.edited["store"] and scan_behind.is_safe(self.pair.fs))
    @rule(order=st.lists(picks, max_size=6), end=st.sampled_from(["scan", "umount", "kill"]))
    def scan_behind(self, order: list[int], end: str) -> None:
        """As a mount that serves before it has ended: directories are compared as they are asked
        for; then comes the rest, an unmount, or a kill."""
        scan = self.pair.begin_scan()
        self.check_shown(scan)
        for number in order:
            waiting = list(scan.uncompared)
            if waiting:
                scan.compare(waiting[number % len(waiting)])
                self.check_shown(scan)
        if end == "scan":
            while scan.uncompared:
                scan.compare_next()
                self.check_shown(scan)
            result = scan.end()
            assert not result.conflicts and not result.skipped
            assert self.sides["store"].facts() == self.sides["lower"].facts()
            self.edited["lower"] = False
            assert not self.pair.scan().changed
        elif end == "umount":
            scan.close()
            self.pair.write_back()
        else:
            scan.close()
            self.pair.reopen(commit=True)
        self.tokens("store")

    def check_shown(self, scan: ScanBehind) -> None:
        """What is compared is as in the lower directory; links lead to what is not, too."""
        stored, lower = self.sides["store"].facts(), self.sides["lower"].facts()
        hidden = tuple(
            f"{path}/"
            for path in self.paths("store", kinds="d")
            if self.pair.inode(path).ino in scan.uncompared
        )
        assert _shown(stored, hidden) == _shown(lower, hidden)

    @rule()
    def write_back(self) -> None:
        before, lower = self.tokens("store"), self.tokens("lower")
        let_go = self.ever["store"] - before
        stored = self.sides["store"].facts()
        result = self.pair.write_back()
        after = self.tokens("store")
        assert not result.skipped
        if self.edited["lower"]:
            # What changed in the lower directory alone is left to the next scan.
            assert before - after - self.shared <= self.ever["lower"] - lower
            self.scan()
            self.pair.write_back()
            assert lower - let_go - self.shared <= self.tokens("store")
        else:
            assert self.sides["store"].facts() == stored and not result.conflicts
        self.settle()

    def settle(self) -> None:
        assert self.sides["store"].facts() == self.sides["lower"].facts()
        assert not self.pair.scan().changed
        assert not self.pair.write_back().changed
        known = self.pair.store.metadata.agreed()
        agreed.forget(self.pair.fs)
        assert not self.pair.write_back().changed, "a comparison of everything finds more"
        self.pair.store.metadata.put_agreed(known)
        assert self.sides["store"].facts() == self.sides["lower"].facts()
        self.tokens("lower")
        self.edited = {"lower": False, "store": False}

    @precondition(lambda self: not self.edited["lower"])
    @rule(step=st.integers(1, 25), done=st.booleans())
    def die_writing_back(self, step: int, done: bool) -> None:
        self.pair.fs.commit()
        stored = self.sides["store"].facts()
        with dying_at(step, done=done):
            self.pair.write_back()
        self.pair.reopen()
        result = self.pair.scan()
        assert not result.conflicts and not result.skipped
        assert self.sides["store"].facts() == stored
        self.tokens("lower")

    # -- history ----------------------------------------------------------------------------------

    @rule()
    def mount(self) -> None:
        """As the service does it: what both sides then agree on is an epoch of its own."""
        before = self.pair.store.metadata.agreed()
        self.scan()
        self.save()
        sync.settle(self.pair.fs, before)

    @rule()
    def save(self) -> None:
        fs = self.pair.fs
        history.seal(fs, "manual", "", fs.clock())
        fs.commit()

    def checkpoint(self, number: int) -> history.Checkpoint | None:
        known = history.checkpoints(self.pair.store)
        return known[number % len(known)] if known else None

    @rule(number=picks)
    def restore(self, number: int) -> None:
        target = self.checkpoint(number)
        if target is not None:
            history.restore(self.pair.fs, target)
            self.pair.fs.commit()
            self.touched("store")

    @rule(number=picks, everything=st.booleans())
    def expire(self, number: int, everything: bool) -> None:
        target = self.checkpoint(number)
        if target is not None:
            removal.hide(self.pair.fs, [target])
            if everything:
                removal.reap(self.pair.fs)
            else:
                removal.Reaper(self.pair.fs).step()
            self.pair.fs.commit()

    @rule()
    def die(self) -> None:
        """The daemon dies after a commit, and nothing was written back."""
        self.pair.reopen(commit=True)


def _shown(side: dict[str, Facts], hidden: tuple[str, ...]) -> dict[str, Facts]:
    return {
        path: entry._replace(same_as="")
        for path, entry in side.items()
        if not path.startswith(hidden)
    }


common = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "print_blob": True,
}

TestSync = Sync.TestCase
TestSync.settings = settings(max_examples=60, stateful_step_count=25, **common)


class SyncExcluding(Sync):
    patterns = ("d",)


TestSyncExcluding = SyncExcluding.TestCase
TestSyncExcluding.settings = settings(max_examples=40, stateful_step_count=25, **common)


@pytest.mark.deep
class TestSyncDeep(Sync.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=500, stateful_step_count=40, **common)
