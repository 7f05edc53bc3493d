"""Watching changes go by: the short way decides as the long one, and asks nobody."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptfs.history.auto import SECOND_NS, AutoState, Event, Policy, decide, saved
from ckptfs.history.checkpoints import Cause
from ckptfs.history.processes import Actor
from ckptfs.history.watch import AutoCheckpointer, Due

MAKE = Actor(100, 1, "make", "7:1")
RM = Actor(200, 2, "rm -rf build", "7:1")
#: Several processes, two of them of one command; 9 is a kernel thread.
PROCESSES = {100: MAKE, 101: MAKE, 102: MAKE, 200: RM, 201: RM, 9: None}


class Desk:
    """A workspace as the checkpointer sees it: a clock, processes, and whether it is unsaved."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.now_ns = 1_000 * SECOND_NS
        self.processes: dict[int, Actor | None] = dict(PROCESSES)
        self.unsaved = False
        self.asked: list[str] = []
        self.auto = AutoCheckpointer(policy or Policy(), self._clock, self._who, self._unsaved)

    def _clock(self) -> int:
        return self.now_ns

    def _who(self, pid: int) -> Actor | None:
        self.asked.append(f"who {pid}")
        return self.processes.get(pid)

    def _unsaved(self) -> bool:
        self.asked.append("unsaved")
        return self.unsaved

    def wait(self, seconds: float) -> None:
        self.now_ns += round(seconds * SECOND_NS)

    def change(self, pid: int, destroying: bool = False) -> Due | None:
        due = self.auto.before_change(pid, destroying)
        self.unsaved = True
        return due

    def tick(self) -> Due | None:
        due = self.auto.tick()
        self.unsaved = self.unsaved and due is None
        return due

    def save(self) -> None:
        self.unsaved = False
        self.auto.saved()


def test_a_checkpoint_tells_who_was_about_to_change_something() -> None:
    desk = Desk()
    assert desk.change(100) is None
    desk.wait(0.5)
    assert desk.change(200) == Due(
        Cause(200, "rm -rf build", "7:1"), "before: rm -rf build", "command", SECOND_NS // 2
    )


def test_the_same_process_again_asks_nobody() -> None:
    desk = Desk()
    desk.change(100)
    desk.asked.clear()
    for _ in range(5000):
        desk.wait(0.0009)
        assert desk.change(100) is None
        assert desk.change(100, destroying=True) is None
        assert desk.change(0) is None
    assert desk.asked == []


def test_a_thousand_processes_of_one_command_are_asked_about_once_each() -> None:
    desk = Desk()
    desk.change(200)
    desk.processes |= dict.fromkeys(range(1000, 2000), MAKE)
    desk.asked.clear()
    due = [desk.change(pid) for pid in range(1000, 2000) for _ in range(3)]
    assert [one.message for one in due if one] == ["before: make"]
    assert len(desk.asked) == 1001  # and once whether anything is unsaved


def test_processes_that_take_turns_are_looked_up_once_a_second() -> None:
    desk = Desk()
    for _ in range(100):
        desk.change(100)
        desk.change(101)
        desk.wait(0.03)
    assert desk.asked.count("who 101") <= 4


def test_commands_that_take_turns_do_not_ask_about_the_head() -> None:
    desk = Desk()
    for _ in range(100):
        desk.change(100)
        desk.change(200)
        desk.wait(0.03)
    assert desk.asked.count("unsaved") == 2  # at the beginning of each


def test_a_process_id_that_comes_again_is_another_command() -> None:
    desk = Desk()
    desk.change(100)
    desk.change(200)
    desk.processes[100] = Actor(100, 77, "another")
    desk.wait(1.5)
    due = desk.change(100)
    assert due and due.cause.command == "another"


def test_kernel_threads_and_hidden_processes_trigger_nothing() -> None:
    desk = Desk()
    desk.change(100)
    for pid in (9, 0, 12345):
        desk.wait(10)
        assert desk.change(pid) is None


def test_a_hidden_process_that_destroys_is_guarded_against() -> None:
    desk = Desk(Policy("off"))
    desk.change(100)
    due = desk.change(0, destroying=True)
    assert due and (due.cause, due.message) == (Cause(), "before: unknown process")
    assert desk.change(0, destroying=True) is None


def test_a_guard_is_due_only_if_the_content_is_unsaved() -> None:
    desk = Desk(Policy("off"))
    asked: list[str] = []

    def saved_long_ago() -> bool:
        asked.append("saved")
        return False

    desk.change(200)
    assert desk.auto.before_change(100, True, saved_long_ago) is None
    assert desk.auto.before_change(100, True, lambda: True)
    assert desk.auto.before_change(100, True, saved_long_ago) is None
    assert asked == ["saved"]  # the burst is guarded since


def test_a_loop_that_rewrites_saved_files_stays_within_the_allowance() -> None:
    """`for f in *; do sed -i s/a/b/ $f; done`: every sed is a command that renames over a file."""
    desk = Desk(Policy(allowance=5))
    due = []
    for pid in range(1000, 1100):
        desk.processes[pid] = Actor(pid, 1, "sed")
        due.append(desk.change(pid))
        due.append(desk.auto.before_change(pid, True, lambda: False))
    assert len([one for one in due if one]) == 5


def test_nothing_is_due_when_nothing_is_unsaved() -> None:
    desk = Desk()
    desk.change(100)
    desk.save()
    assert desk.change(200) is None


def test_the_tick_of_the_quiet_policy_names_the_last_command() -> None:
    desk = Desk(Policy("quiet"))
    desk.change(100)
    desk.wait(1)
    assert desk.tick() is None
    desk.wait(2)
    due = desk.tick()
    assert due == Due(Cause(100, "make", "7:1"), "after: make", "quiet", 3 * SECOND_NS)
    assert desk.tick() is None


def test_the_interval_ends_the_short_way_too() -> None:
    desk = Desk(Policy("interval", interval_ns=10 * SECOND_NS))
    due = []
    for _ in range(250):
        due.append(desk.change(100))
        desk.wait(0.1)
    assert [one.reason for one in due if one] == ["interval", "interval"]


def test_who_goes_on_need_not_tell_for_a_while() -> None:
    desk = Desk()
    assert desk.auto.lasting(100) == 0
    desk.change(100)
    until_ns = desk.auto.lasting(100)
    assert desk.now_ns < until_ns <= desk.now_ns + SECOND_NS
    assert desk.auto.lasting(101) == until_ns  # another process of the same command
    assert [desk.auto.lasting(pid) for pid in (200, 9, 12_345)] == [0, 0, 0]
    desk.save()
    assert desk.auto.lasting(100) == 0


def test_the_interval_ends_that_too() -> None:
    desk = Desk(Policy("interval", interval_ns=SECOND_NS // 2))
    desk.change(100)
    assert desk.auto.lasting(100) <= desk.now_ns + SECOND_NS // 2


def test_the_policy_can_be_changed_while_it_works() -> None:
    desk = Desk(Policy("off"))
    desk.change(100)
    assert desk.change(200) is None
    desk.auto.set_policy(Policy("command"))
    assert desk.change(200) is None
    desk.wait(3)
    assert desk.change(200)


# -- names that come late --------------------------------------------------------------------------


def forked(desk: Desk) -> Due | None:
    """`sort > out` at a prompt: the shell's copy opens ``out`` before it becomes sort."""
    desk.change(100)
    desk.processes[300] = Actor(300, 3, "-bash", "7:1", provisional=True)
    return desk.change(300, destroying=True)


def test_a_second_look_gives_the_name_of_the_command() -> None:
    desk = Desk()
    first = forked(desk)
    assert first and first.message == "before: -bash"
    assert desk.auto.second_look() is None
    desk.processes[300] = Actor(300, 3, "sort", "7:1")
    better = desk.auto.second_look()
    assert better and (better.message, better.cause.command) == ("before: sort", "sort")
    assert desk.auto.second_look() is None
    assert desk.change(300) is None


def test_the_name_is_found_when_the_data_arrive_and_kept_until_it_is_asked_for() -> None:
    desk = Desk()
    forked(desk)
    desk.processes[300] = Actor(300, 3, "sort", "7:1")
    desk.change(0)
    desk.processes[300] = None
    desk.wait(1)
    better = desk.auto.second_look()
    assert better and better.message == "before: sort"


def test_the_next_checkpoint_brings_the_name_of_the_one_before() -> None:
    desk = Desk()
    forked(desk)
    desk.processes[300] = Actor(300, 3, "sort", "7:1")
    due = desk.change(200)
    assert due and due.renames
    assert (due.message, due.renames.message) == ("before: rm -rf build", "before: sort")
    assert desk.auto.second_look() is None


@pytest.mark.parametrize("ending", ["gone", "a subshell", "another checkpoint"])
def test_a_second_look_ends(ending: str) -> None:
    desk = Desk()
    forked(desk)
    if ending == "gone":
        desk.processes[300] = None
    elif ending == "a subshell":
        desk.wait(2)
    else:
        desk.change(200)
    assert desk.auto.second_look() is None
    desk.processes[300] = Actor(300, 3, "sort", "7:1")
    assert desk.auto.second_look() is None


# -- both ways agree -------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["change", "change", "destroy", "tick", "save"]),
        st.sampled_from([*PROCESSES, 0]),
        st.sampled_from([0.0, 0.1, 0.999, 1.999, 2.0, 11.0]),
    ),
    max_size=50,
)
POLICIES = [
    Policy("command"),
    Policy("command", allowance=2),
    Policy("quiet"),
    Policy("off"),
    Policy("interval", interval_ns=3 * SECOND_NS),
]


@given(st.sampled_from(POLICIES), STEPS)
def test_the_short_way_decides_as_the_long_one(
    policy: Policy, steps: Sequence[tuple[str, int, float]]
) -> None:
    desk = Desk(policy)
    state = AutoState(saved_ns=desk.now_ns)
    for kind, pid, pause in steps:
        desk.wait(pause)
        if kind == "save":
            desk.save()
            state = saved(state, desk.now_ns)
            continue
        actor = PROCESSES.get(pid) if kind != "tick" else None
        event = Event(kind, actor, desk.now_ns, desk.unsaved)  # type: ignore[arg-type]
        decision = decide(state, event, policy)
        state = decision.state
        due = desk.tick() if kind == "tick" else desk.change(pid, kind == "destroy")
        assert (due.reason if due else "") == decision.reason
