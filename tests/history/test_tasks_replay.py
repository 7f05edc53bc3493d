"""Random work of three people: what is left after a revert is what would be there without it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ckptfs.history import Changed, seal, tasks
from ckptfs.history.tasks import plan_revert, revert
from ckptfs.service import Service
from tests.direct import assert_clean, shown
from tests.history.edits import Edits

#: Who does it, what, and to which names: everyone has a directory, and the task "none" is no task.
WHO = st.sampled_from(["a", "b", "none"])
NAMES = st.sampled_from(["x", "y", "d", "d/x", "d/y", "e", "e/d"])
STEPS = st.lists(
    st.tuples(
        WHO, st.sampled_from(["put", "remove", "mkdir", "move", "chmod", "save"]), NAMES, NAMES
    ),
    max_size=25,
)

Step = tuple[str, str, str, str]


def perform(work: Edits, step: Step, number: int) -> None:
    """One step, if it can be done at all."""
    who, what, name, other = step
    path, target = f"{who}/{name}", f"{who}/{other}"
    try:
        if what == "put":
            work.put(path, str(number).encode() * 3)
        elif what == "remove":
            work.remove(path)
        elif what == "mkdir":
            work.mkdir(path)
        elif what == "move":
            work.move(path, target)
        elif what == "chmod":
            work.change(path, mode=work.at(path).mode & ~0o777 | (0o700 + number % 0o70))
        else:
            seal(work.fs, "manual", "", work.fs.clock())
    except OSError:
        pass


def prepared(path: Path) -> Edits:
    work = Edits(path)
    for who in ("a", "b", "none"):
        work.mkdir(who)
        work.mkdir(f"{who}/d")
        work.put(f"{who}/d/x", b"old")
        work.put(f"{who}/y", b"old")
    seal(work.fs, "mount", "", work.fs.clock())
    return work


def nodes(work: Edits) -> dict[bytes, object]:
    return dict(shown(work.fs, work.fs.head).nodes)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_a_revert_is_the_same_work_without_the_task(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as base:
        work, without = prepared(Path(base, "one")), prepared(Path(base, "two"))
        try:
            do_all(work, without, steps)
            if "a" in tasks.tasks(work.fs):
                revert_and_compare(work, without)
            assert_clean(work.fs)
        finally:
            work.store.close()
            without.store.close()


def do_all(work: Edits, without: Edits, steps: list[Step]) -> None:
    """The steps in tasks, and beside it those of others only."""
    now = "none"
    for number, step in enumerate(steps):
        if step[0] != now:
            now = step[0]
            while tasks.current(work.fs) and now == "none":
                tasks.done(work.fs)
            if now != "none":
                tasks.start(work.fs, now)
        perform(work, step, number)
        if step[0] != "a":
            perform(without, step, number)


def revert_and_compare(work: Edits, without: Edits) -> None:
    assert plan_revert(work.fs, "a").conflicts == {}
    before = nodes(work)
    done = revert(work.fs, "a", changed=Changed(set(), set()))
    assert nodes(work) == nodes(without)
    assert {path.split(b"/")[0] for path in done.plan.paths} <= {b"a"}
    if done.plan.paths:
        Service(work.fs).undo()
    assert nodes(work) == before
