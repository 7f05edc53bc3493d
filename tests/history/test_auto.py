"""When a checkpoint that people read is due: as tables, and as laws."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptfs.errors import UsageError
from ckptfs.history.auto import (
    AGAIN_NS,
    SECOND_NS,
    AutoCheckpointer,
    Due,
    Policy,
    PolicyKind,
    parse_policy,
)
from ckptfs.history.checkpoints import Cause
from ckptfs.history.steps import TRUST_NS, Step

A = Step(100, 1, "make -j8", "7:1")
B = Step(200, 2, "npm run watch")
AGENT = Step(300, 3, "agent", edits=True)

#: Whose change, and at what second; "tick" lets time pass without one.
Event = tuple[Step | str | None, float]


class Desk:
    """A workspace as the checkpointer sees it: a clock, and a head that is unsaved from a change to
    the next checkpoint."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.now_ns = 1_000 * SECOND_NS
        self.unsaved = False
        self.asked = 0
        self.auto = AutoCheckpointer(policy or Policy(), lambda: self.now_ns, self._unsaved)

    def _unsaved(self) -> bool:
        self.asked += 1
        return self.unsaved

    def at(self, seconds: float) -> None:
        self.now_ns = round((1_000 + seconds) * SECOND_NS)

    def change(self, step: Step | None) -> Due | None:
        due = self.auto.before_change(step, self.now_ns)
        if due is not None:
            self.auto.saved()
        self.unsaved = True
        return due

    def tick(self) -> Due | None:
        due = self.auto.tick()
        self.unsaved = self.unsaved and due is None
        return due

    def save(self) -> None:
        self.unsaved = False
        self.auto.saved()

    def play(self, events: Iterable[Event]) -> list[str]:
        """Why a checkpoint was due before each event."""
        found = []
        for who, seconds in events:
            self.at(seconds)
            due = self.tick() if isinstance(who, str) else self.change(who)
            found.append(due.reason if due else "")
        return found


COMMAND, QUIET, OFF = Policy(), Policy("quiet"), Policy("off")
EVERY_TEN = Policy("interval", interval_ns=10 * SECOND_NS)


@pytest.mark.parametrize(
    "policy, events, expected",
    [
        pytest.param(COMMAND, [(A, 0), (B, 0.1)], ["", "command"], id="another command"),
        pytest.param(COMMAND, [(A, 0), (A, 1), (A, 2.9)], ["", "", ""], id="the same goes on"),
        pytest.param(
            COMMAND, [(A, 0), (B, 0.1), (A, 0.2), (B, 0.3)], ["", "command", "", ""], id="turns"
        ),
        pytest.param(
            COMMAND, [(A, 0), (A, 3), (A, 6)], ["", "", ""], id="a command that pauses goes on"
        ),
        pytest.param(COMMAND, [(A, 0), (A, 62)], ["", "quiet"], id="after a minute it is another"),
        pytest.param(
            COMMAND, [(AGENT, 0), (AGENT, 3)], ["", "quiet"], id="a harness that edits again"
        ),
        pytest.param(COMMAND, [(None, 0), (None, 9)], ["", ""], id="nobody knows who"),
        pytest.param(COMMAND, [(A, 0), (None, 1.9), (A, 3)], ["", "", ""], id="late data go on"),
        pytest.param(COMMAND, [(A, 0), ("tick", 9)], ["", ""], id="time alone"),
        pytest.param(QUIET, [(A, 0), (B, 1), (A, 2)], ["", "", ""], id="no quiet between"),
        pytest.param(QUIET, [(A, 0), (B, 3)], ["", "quiet"], id="quiet, seen by a change"),
        pytest.param(QUIET, [(A, 0), ("tick", 3)], ["", "quiet"], id="quiet, seen by a tick"),
        pytest.param(EVERY_TEN, [(A, 0), (A, 9), (A, 10)], ["", "", "interval"], id="interval"),
        pytest.param(EVERY_TEN, [(A, 0), ("tick", 11)], ["", "interval"], id="interval by tick"),
        pytest.param(OFF, [(A, 0), (B, 9), ("tick", 99)], ["", "", ""], id="off"),
    ],
)
def test_each_policy_takes_the_checkpoints_of_the_table(
    policy: Policy, events: Sequence[Event], expected: list[str]
) -> None:
    assert Desk(policy).play(events) == expected


def test_a_checkpoint_tells_who_was_about_to_change_something() -> None:
    desk = Desk()
    assert desk.change(B) is None
    desk.at(0.5)
    assert desk.change(A) == Due(
        Cause(100, "make -j8", "7:1"), "before: make -j8", "command", SECOND_NS // 2
    )


def test_a_tick_names_the_last_command() -> None:
    desk = Desk(QUIET)
    desk.change(A)
    desk.at(5)
    due = desk.tick()
    assert due and due.message == "after: make -j8" and due.idle_ns == 5 * SECOND_NS
    assert desk.tick() is None


def test_a_step_that_goes_on_does_not_ask_about_the_head() -> None:
    desk = Desk()
    desk.change(A)
    desk.change(B)
    asked = desk.asked
    for second in range(100):
        desk.at(second / 10)
        assert desk.change(A) is None and desk.change(B) is None
    assert desk.asked == asked


def test_the_state_before_a_step_that_found_nothing_unsaved_is_kept_already() -> None:
    desk = Desk()
    desk.change(A)  # nothing was unsaved
    desk.at(3)
    assert desk.change(A) is None  # nor is half of what it does worth a line


def test_what_an_earlier_mount_left_unsaved_is_saved_before_the_first_change() -> None:
    desk = Desk()
    desk.unsaved = True
    due = desk.change(A)
    assert due and due.idle_ns == 0


def test_a_loop_at_the_prompt_does_not_push_history_out() -> None:
    desk = Desk()
    commands = [(Step(pid, 1, "touch"), pid / 300) for pid in range(1, 1000)]
    assert 6 <= sum(map(bool, desk.play(commands))) <= 7


def test_steps_with_pauses_between_them_are_shown_for_longer() -> None:
    desk = Desk()
    commands = [(Step(pid, 1, "touch"), pid / 3) for pid in range(1, 200)]
    shown = sum(map(bool, desk.play(commands)))
    assert 60 <= shown <= 70  # 32, and one for each two seconds


def test_after_a_pause_there_is_allowance_again() -> None:
    desk = Desk()
    desk.play([(Step(pid, 1, "touch"), pid / 300) for pid in range(1, 300)])
    assert desk.play([(A, 20), (B, 20.1)]) == ["quiet", "command"]


def test_a_step_that_goes_on_is_not_asked_about_for_a_while() -> None:
    desk = Desk()
    assert desk.auto.lasting(A) == 0
    desk.change(A)
    assert desk.auto.lasting(A) == desk.now_ns + TRUST_NS
    desk.change(B)
    assert desk.auto.lasting(A) == 0
    assert desk.auto.lasting(B) == desk.now_ns + TRUST_NS


def test_an_interval_ends_the_time_in_which_a_step_is_not_asked_about() -> None:
    desk = Desk(Policy("interval", interval_ns=SECOND_NS // 2))
    desk.change(A)
    assert desk.auto.lasting(A) == desk.now_ns + SECOND_NS // 2


def test_what_is_remembered_of_steps_stays_bounded() -> None:
    desk = Desk()
    """Also beside a server that never stops."""
    for pid in range(1, 2000):
        desk.play([(A, pid), (Step(1000 + pid, 1, "x"), pid)])
    assert len(desk.auto._bursts) <= 4 * AGAIN_NS // SECOND_NS


# -- laws ------------------------------------------------------------------------------------------

events = st.lists(
    st.tuples(st.sampled_from([A, B, AGENT, None, "tick"]), st.floats(0, 5, allow_nan=False)),
    max_size=40,
)
policies = st.sampled_from([COMMAND, QUIET, EVERY_TEN, OFF])


@given(policies, events)
def test_no_checkpoint_is_taken_while_nothing_is_unsaved(
    policy: Policy, found: list[Event]
) -> None:
    desk, seconds = Desk(policy), 0.0
    for who, pause in found:
        seconds += pause
        desk.at(seconds)
        desk.save()
        assert (desk.tick() if isinstance(who, str) else desk.change(who)) is None


@given(events)
def test_a_step_that_was_never_seen_never_changes_an_unsaved_head(found: list[Event]) -> None:
    desk, seconds, seen = Desk(Policy(allowance=1000, loop_allowance=1000)), 0.0, set()
    for who, pause in found:
        seconds += pause
        desk.at(seconds)
        if isinstance(who, str):
            desk.tick()
            continue
        unsaved = desk.unsaved
        due = desk.change(who)
        if who is not None and who.key not in seen:
            assert (due is not None) == unsaved
            seen.add(who.key)


# -- policies as text ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, kind, seconds",
    [
        ("command", "command", 0),
        (" Quiet ", "quiet", 0),
        ("off", "off", 0),
        ("interval 30", "interval", 30),
        ("interval:5m", "interval", 300),
        ("interval=1h", "interval", 3600),
        ("interval 15 s", "interval", 15),
    ],
)
def test_policies_are_read_as_users_write_them(text: str, kind: PolicyKind, seconds: int) -> None:
    assert parse_policy(text) == Policy(kind, interval_ns=seconds * SECOND_NS)


@pytest.mark.parametrize(
    "text", ["", "on", "interval", "interval 0", "interval -5", "interval 1d", "every 5 minutes"]
)
def test_an_unknown_policy_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="Nothing was changed"):
        parse_policy(text)
