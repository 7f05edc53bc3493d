"""When a checkpoint is due: the pure decision, as tables and as laws."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptfs.errors import UsageError
from ckptfs.history.auto import (
    QUIET_NS,
    SECOND_NS,
    AutoState,
    Decision,
    Event,
    Policy,
    PolicyKind,
    decide,
    parse_policy,
    policy_text,
    saved,
)
from ckptfs.history.processes import Actor

A = Actor(100, 1, "make -j8")
B = Actor(200, 2, "npm run watch")
C = Actor(300, 3, "vim notes")

#: (kind, actor, seconds) as an event; the head is unsaved after the first change.
Step = tuple[str, Actor | None, float]


class World:
    """Decisions one after another, about a head that is unsaved from a change to a checkpoint."""

    def __init__(self, policy: Policy, *, unsaved: bool = False) -> None:
        self.policy = policy
        self.state = AutoState(saved_ns=0)
        self.unsaved = unsaved

    def step(self, kind: str, actor: Actor | None, seconds: float) -> Decision:
        now_ns = round(seconds * SECOND_NS)
        event = Event(kind, actor, now_ns, self.unsaved)  # type: ignore[arg-type]
        decision = decide(self.state, event, self.policy)
        self.state = decision.state
        if decision.due:
            self.unsaved = False
        if kind != "tick":
            self.unsaved = True
        return decision

    def save(self, seconds: float) -> None:
        self.unsaved = False
        self.state = saved(self.state, round(seconds * SECOND_NS))


def reasons(policy: Policy, steps: Iterable[Step], *, unsaved: bool = False) -> list[str]:
    world = World(policy, unsaved=unsaved)
    return [world.step(*step).reason for step in steps]


COMMAND = Policy("command")
QUIET = Policy("quiet")
OFF = Policy("off")
EVERY_10 = Policy("interval", interval_ns=10 * SECOND_NS)

TABLE: list[tuple[str, Policy, Sequence[Step], list[str]]] = [
    (
        "one command is one burst",
        COMMAND,
        [("change", A, 0), ("change", A, 1), ("destroy", A, 2.5), ("change", A, 4)],
        ["", "", "", ""],
    ),
    (
        "another command begins",
        COMMAND,
        [("change", A, 0), ("change", B, 0.1), ("change", C, 0.2)],
        ["", "command", "command"],
    ),
    (
        "commands side by side do not cut each other's bursts",
        COMMAND,
        [("change", A, 0), ("change", B, 0.1), ("change", A, 0.2), ("change", B, 0.3)],
        ["", "command", "", ""],
    ),
    (
        "the same command after quiet",
        COMMAND,
        [("change", A, 0), ("change", A, 1.999), ("change", A, 3.999)],
        ["", "", "quiet"],
    ),
    (
        "one that paused while another went on",
        COMMAND,
        [("change", A, 0), ("change", B, 1), ("change", B, 2), ("change", A, 2.5)],
        ["", "command", "", "command"],
    ),
    (
        "data without a sender are no beginning",
        COMMAND,
        [("change", A, 0), ("change", None, 1), ("change", A, 2.5), ("change", None, 30)],
        ["", "", "", ""],
    ),
    (
        "data that were held back do not hide a pause",
        COMMAND,
        [("change", A, 0), ("change", None, 30), ("change", A, 31)],
        ["", "", "command"],
    ),
    (
        "ticks do nothing where the next command gives the message",
        COMMAND,
        [("change", A, 0), ("tick", None, 60)],
        ["", ""],
    ),
    (
        "a command destroys what another has begun meanwhile",
        COMMAND,
        [("change", A, 0), ("change", B, 0.5), ("destroy", A, 1), ("destroy", A, 1.1)],
        ["", "command", "guard", ""],
    ),
    (
        "two that take turns in destroying are guarded once each",
        COMMAND,
        [("change", A, 0), ("change", B, 0.1)] + [("destroy", x, 1) for x in (A, B, A, B, A, B)],
        ["", "command", "guard", "guard", "", "", "", ""],
    ),
    (
        "a third beginning arms the guard again",
        OFF,
        [
            ("change", B, 0),
            ("destroy", A, 0.1),
            ("change", B, 0.2),
            ("destroy", A, 0.3),
            ("change", C, 0.4),
            ("destroy", A, 0.5),
        ],
        ["", "guard", "", "", "", "guard"],
    ),
    (
        "quiet: who changes does not matter, only pauses do",
        QUIET,
        [("change", A, 0), ("change", B, 1), ("change", C, 2.9), ("change", C, 4.9)],
        ["", "", "", "quiet"],
    ),
    (
        "quiet: seen by a tick, so that no writer meets it",
        QUIET,
        [("change", A, 0), ("tick", None, 1), ("tick", None, 2), ("tick", None, 9)],
        ["", "", "quiet", ""],
    ),
    (
        "quiet: data held back count as change",
        QUIET,
        [("change", A, 0), ("change", None, 1.5), ("tick", None, 3), ("tick", None, 3.5)],
        ["", "", "", "quiet"],
    ),
    (
        "interval",
        EVERY_10,
        [("change", A, 1), ("change", B, 9), ("change", B, 11), ("tick", None, 20.9)],
        ["", "", "interval", ""],
    ),
    (
        "interval: by tick, and only if something changed",
        EVERY_10,
        [("tick", None, 10), ("change", A, 11), ("tick", None, 12), ("tick", None, 30)],
        ["", "", "interval", ""],
    ),
    (
        "off: a burst may destroy what it made itself",
        OFF,
        [("change", A, 0), ("destroy", A, 1), ("destroy", A, 2), ("destroy", A, 3)],
        ["", "", "", ""],
    ),
    (
        "off: not what it made before a pause",
        OFF,
        [("change", A, 0), ("change", A, 10), ("destroy", A, 10.1), ("destroy", A, 10.2)],
        ["", "", "guard", ""],
    ),
    (
        "off: not what others made",
        OFF,
        [("change", A, 0), ("destroy", B, 0.1), ("destroy", B, 0.2), ("change", A, 0.3)],
        ["", "guard", "", ""],
    ),
    (
        "off: nor does one that cannot be seen",
        OFF,
        [("change", A, 0), ("destroy", None, 0.1), ("destroy", None, 0.2)],
        ["", "guard", ""],
    ),
]


@pytest.mark.parametrize(
    "policy, steps, expected", [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_table(policy: Policy, steps: Sequence[Step], expected: list[str]) -> None:
    assert reasons(policy, steps) == expected


def test_what_an_earlier_mount_left_unsaved_is_saved_before_the_first_change() -> None:
    assert reasons(COMMAND, [("change", A, 0)], unsaved=True) == ["quiet"]
    assert reasons(OFF, [("change", A, 0), ("destroy", A, 1)], unsaved=True) == ["", "guard"]


def test_a_build_of_a_thousand_processes_is_one_checkpoint() -> None:
    steps: list[Step] = [("change", C, 0)]
    for index in range(1000):
        steps.append(("destroy" if index % 3 else "change", A, 0.1 + index * 0.05))
    assert sum(reason != "" for reason in reasons(COMMAND, steps)) == 1


def test_a_loop_at_the_prompt_does_not_push_history_out() -> None:
    """Every turn of it is a command of its own; see `Policy.allowance`."""
    steps: list[Step] = [("change", Actor(1000 + n, n, "touch"), n * 0.01) for n in range(1000)]
    due = [reason for reason in reasons(COMMAND, steps) if reason]
    assert COMMAND.allowance <= len(due) <= COMMAND.allowance + 5
    later: Step = ("change", B, 1000)
    assert reasons(COMMAND, [*steps, later])[-1] == "quiet"


def test_the_allowance_does_not_hold_for_guards() -> None:
    policy = Policy("command", allowance=1)
    steps: list[Step] = [("change", A, 0), ("change", B, 0.1), ("change", C, 0.2)]
    assert reasons(policy, [*steps, ("destroy", C, 0.3)]) == ["", "command", "", "guard"]


def test_a_save_on_request_leaves_nothing_to_guard() -> None:
    world = World(OFF)
    world.step("change", A, 0)
    world.save(1)
    assert world.step("destroy", B, 2).reason == ""


# -- laws ------------------------------------------------------------------------------------------

POLICIES = [COMMAND, QUIET, OFF, EVERY_10, Policy("command", allowance=2)]
ACTORS = [A, B, C, None]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["change", "destroy", "tick", "save"]),
        st.sampled_from(ACTORS),
        st.sampled_from([0.0, 0.3, 1.999, 2.0, 11.0]),
    ),
    max_size=40,
)
#: Commands that work side by side, without a pause.
CROWDED = st.lists(
    st.tuples(st.sampled_from(["change", "destroy"]), st.sampled_from(ACTORS), st.just(0.1)),
    max_size=8,
)


def played(policy: Policy, steps: Sequence[Step]) -> Iterable[tuple[World, Step, bool, Decision]]:
    """Each event with the world after it and whether the head was unsaved before it; the steps'
    times are pauses."""
    world = World(policy)
    now = 0.0
    for kind, actor, pause in steps:
        now += pause
        if kind == "save":
            world.save(now)
            continue
        unsaved = world.unsaved
        yield world, (kind, actor, now), unsaved, world.step(kind, actor, now)


@given(st.sampled_from(POLICIES), STEPS)
def test_nothing_unsaved_no_checkpoint(policy: Policy, steps: Sequence[Step]) -> None:
    for _, _, unsaved, decision in played(policy, steps):
        assert unsaved or not decision.due


@given(STEPS)
def test_a_new_actor_never_changes_an_unsaved_head(steps: Sequence[Step]) -> None:
    """New is one that has not changed anything for the quiet time, or ever."""
    # Data without a sender may stretch a burst; the law is about the others.
    steps = [step for step in steps if step[1] is not None]
    last: dict[Actor | None, float] = {}
    for _, (kind, actor, now), unsaved, decision in played(COMMAND, steps):
        if kind == "tick":
            continue
        if unsaved and now - last.get(actor, -100) >= QUIET_NS / SECOND_NS + 0.0001:
            assert decision.due
        last[actor] = now


@given(st.sampled_from(POLICIES), STEPS | CROWDED)
def test_others_work_is_never_destroyed_by_a_burst_without_a_guard(
    policy: Policy, steps: Sequence[Step]
) -> None:
    """At the first destroying change of a burst, nothing of anybody else's is unsaved."""
    authors: set[Actor | None] = set()
    last: dict[Actor | None, float] = {}
    destroyed: set[Actor | None] = set()
    for _, (kind, actor, now), unsaved, decision in played(policy, steps):
        if decision.due or not unsaved:
            authors.clear()
        if kind == "tick":
            continue
        if now - last.get(actor, -100) >= 2:
            destroyed.discard(actor)
        if kind == "destroy" and actor is not None and actor not in destroyed:
            assert authors <= {actor, None}
            destroyed.add(actor)
        authors.add(actor)
        last[actor] = now


@given(st.sampled_from(POLICIES), STEPS)
def test_only_bursts_that_may_go_on_are_remembered(policy: Policy, steps: Sequence[Step]) -> None:
    crowd = [("change", Actor(n, n, ""), 0.5) for n in range(1000, 1020)]
    for world, _, _, _ in played(policy, [*steps, *crowd]):
        assert len(world.state.bursts) <= len(ACTORS) + 5


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
        ("interval 30s", "interval", 30),
    ],
)
def test_policies_as_users_write_them(text: str, kind: PolicyKind, seconds: int) -> None:
    policy = parse_policy(text)
    assert (policy.kind, policy.interval_ns) == (kind, seconds * SECOND_NS)
    assert parse_policy(policy_text(policy)) == policy


@pytest.mark.parametrize("text", ["", "on", "interval", "interval 0", "interval -1", "interval x"])
def test_no_such_policy(text: str) -> None:
    with pytest.raises(UsageError, match="Nothing was changed"):
        parse_policy(text)
