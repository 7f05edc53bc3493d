"""When a moment is due: before a change destroys what nothing else has."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptfs.history import auto
from ckptfs.history.auto import EDIT_NS, LARGE_BYTES, STOOD_NS, UNKNOWN, Loss, Moments
from ckptfs.history.steps import Key

MS = 1_000_000
MAKE, RM = (100, 1), (200, 1)
FILE = 7


@dataclass
class Desk:
    """A workspace as the rule sees it. Process 300 may be a harness, the others are not."""

    now_ns: int = 10**12
    own: set[int] = field(default_factory=set)
    asked: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.moments = Moments(self.own.__contains__, self._may_be_harness)
        self.moments.sealed(self.now_ns)

    def _may_be_harness(self, pid: int) -> bool:
        self.asked.append(pid)
        return pid in (0, 300)

    def wait(self, milliseconds: float) -> None:
        self.now_ns += round(milliseconds * MS)

    def make(
        self,
        call: Key,
        ino: int = FILE,
        pid: int | None = None,
        *,
        content: bool = True,
        new: bool = False,
    ) -> None:
        by = call[0] if pid is None else pid
        self.moments.note(ino, by, call, self.now_ns, content=content, new=new)

    def is_due(self, call: Key, loss: Loss | None = None, pid: int | None = None) -> bool:
        by = call[0] if pid is None else pid
        return self.moments.is_due(loss or Loss(FILE), by, call, self.now_ns)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_what_another_call_made_is_kept_however_short_ago(desk: Desk) -> None:
    desk.make(MAKE)
    assert desk.is_due(RM)


def test_what_a_call_made_itself_within_a_second_needs_no_moment(desk: Desk) -> None:
    desk.make(MAKE)
    desk.wait(999)
    assert not desk.is_due(MAKE)
    desk.wait(1)
    assert desk.is_due(MAKE)


def test_a_change_lets_the_second_begin_anew(desk: Desk) -> None:
    desk.make(MAKE)
    desk.wait(900)
    desk.make(MAKE)
    desk.wait(900)
    assert not desk.is_due(MAKE)


def test_what_stood_is_kept_though_its_mode_or_name_was_just_changed(desk: Desk) -> None:
    desk.make(MAKE)
    desk.wait(5_000)
    desk.make(MAKE, content=False)
    assert desk.is_due(MAKE)


def test_what_stood_is_kept_though_something_was_just_added_to_it(desk: Desk) -> None:
    desk.make(MAKE)
    desk.wait(1_500)
    desk.make(MAKE)  # a line more in a log
    assert desk.is_due(MAKE)


def test_what_a_call_changes_all_the_time_is_kept_after_ten_seconds(desk: Desk) -> None:
    for _ in range(99):
        desk.make(MAKE)
        assert not desk.is_due(MAKE)
        desk.wait(100)
    desk.wait(100)
    assert desk.is_due(MAKE)


def test_each_edit_of_a_harness_is_a_step(desk: Desk) -> None:
    agent = (300, 1)
    desk.make(agent)
    desk.wait(EDIT_NS / MS - 1)
    assert not desk.is_due(agent)
    desk.wait(1)
    assert desk.is_due(agent)


def test_who_may_be_a_harness_is_asked_only_where_it_matters(desk: Desk) -> None:
    desk.make(MAKE)
    desk.is_due(MAKE)
    desk.is_due(RM)
    assert desk.asked == []


def test_temporary_files_of_a_harness_are_its_own_business_for_a_second(desk: Desk) -> None:
    agent = (300, 1)
    desk.make(agent)
    desk.wait(500)
    for name in (
        b"a.db-journal",
        b"index.lock",
        b"app.py.tmp.12.ab",
        b"f~",
        b".#f",
        b"tmpx1_2y3z4",
    ):
        assert not desk.is_due(agent, Loss(FILE, unlinked=name)), name
    for name in (b"app.py", b"block.py", b"yarn.lock", b"journal.md", b"temp.py", b"part-1.md"):
        assert desk.is_due(agent, Loss(FILE, unlinked=name)), name


def test_an_empty_directory_of_ones_own_needs_none(desk: Desk) -> None:
    desk.make(MAKE)
    desk.wait(5_000)
    assert not desk.is_due(MAKE, Loss(FILE, is_dir=True))
    assert desk.is_due(RM, Loss(FILE, is_dir=True))


def test_after_a_seal_nothing_is_lost(desk: Desk) -> None:
    desk.make(MAKE)
    desk.moments.sealed(desk.now_ns)
    assert not desk.moments.may_lose
    assert not desk.is_due(RM)


def test_what_several_made_together_belongs_to_none_of_them(desk: Desk) -> None:
    desk.make(MAKE)
    desk.make(RM)  # as by appending, or by chmod: nothing was destroyed
    assert desk.is_due(RM) and desk.is_due(MAKE)


def test_data_without_a_sender_may_be_of_the_last_call_that_changed_the_file(desk: Desk) -> None:
    desk.make(MAKE)
    desk.make(UNKNOWN, pid=0)
    assert not desk.is_due(MAKE)
    assert not desk.is_due(UNKNOWN, pid=0)
    desk.wait(EDIT_NS / MS)
    assert desk.is_due(UNKNOWN, pid=0) and not desk.is_due(MAKE)


def test_only_the_process_that_made_it_may_be_a_harness_that_edits_again(desk: Desk) -> None:
    desk.make(MAKE, pid=301)
    desk.wait(200)
    assert not desk.is_due(MAKE, pid=300), "rm in a script removes what another command made"


def test_processes_that_cannot_be_seen_may_each_be_a_harness(desk: Desk) -> None:
    desk.make(UNKNOWN, pid=0)
    desk.wait(50)
    assert desk.is_due(UNKNOWN, pid=0)


def test_a_large_file_that_is_changed_in_place_is_kept_once_a_minute(desk: Desk) -> None:
    loss, kept = Loss(FILE, in_place=LARGE_BYTES + 1), 0
    for _ in range(600):  # ten minutes of a change a second
        if desk.is_due(MAKE, loss):
            kept += 1
            desk.moments.sealed(desk.now_ns)
        desk.make(MAKE)
        desk.wait(1_001)
    assert 10 <= kept <= 11
    desk.make(RM, ino=8)
    assert desk.is_due(MAKE, Loss(8, in_place=LARGE_BYTES + 1)), "of another call it is kept"


def test_a_large_file_that_is_deleted_is_kept_at_once(desk: Desk) -> None:
    desk.make(MAKE)
    desk.wait(1_001)
    assert desk.is_due(MAKE, Loss(FILE))


def test_what_nothing_is_known_of_is_unsaved_if_the_head_has_it() -> None:
    desk = Desk(own={FILE})
    desk.moments = Moments(desk.own.__contains__, lambda pid: False)  # a mount begins
    assert desk.moments.may_lose
    assert desk.is_due(RM) and not desk.is_due(RM, Loss(8))
    desk.moments.sealed(desk.now_ns)
    assert not desk.is_due(RM)


def test_what_is_remembered_stays_bounded_and_loses_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "CONTENTS_MAX", 64)
    desk.own |= set(range(1000))
    for ino in range(1000):
        desk.make(MAKE, ino)
        assert len(desk.moments._contents) <= 64
    assert all(desk.is_due(RM, Loss(ino)) for ino in range(1000))
    desk.moments.sealed(desk.now_ns)
    desk.own.clear()
    desk.moments.note_new(range(2000, 2200), *MAKE[:1], MAKE, desk.now_ns)
    desk.own |= set(range(2000, 2200))
    assert all(desk.is_due(RM, Loss(ino)) for ino in range(2000, 2200))


def test_the_last_writer_is_known_across_seals(desk: Desk) -> None:
    desk.make(MAKE)
    desk.moments.sealed(desk.now_ns)
    assert desk.moments.is_writing(FILE, MAKE[0], desk.now_ns)
    assert not desk.moments.is_writing(FILE, RM[0], desk.now_ns)
    desk.wait(61_000)
    assert not desk.moments.is_writing(FILE, MAKE[0], desk.now_ns)


# -- the promise -----------------------------------------------------------------------------------

_deeds = st.tuples(
    st.sampled_from(["make", "destroy"]),
    st.sampled_from([MAKE, RM, (300, 1)]),
    st.integers(1, 3),
    st.sampled_from([0, 1, 20, 60, 400, 1_100]),
)


@given(st.lists(_deeds, max_size=60))
def test_no_content_of_another_call_or_that_stood_is_ever_lost(
    deeds: list[tuple[str, Key, int, int]],
) -> None:
    """A model with plain dicts: every version that is destroyed was sealed, or is of the call that
    destroyed it and younger than a second (than an edit, of a harness)."""
    desk = Desk()
    unsaved: dict[int, tuple[Key, int]] = {}
    for deed, call, ino, pause in deeds:
        desk.wait(pause)
        if deed == "make":
            maker = call if unsaved.get(ino, (call, 0))[0] == call else (0, 9)
            unsaved[ino] = (maker, desk.now_ns)
            desk.make(call, ino)
            continue
        if desk.is_due(call, Loss(ino)):
            desk.moments.sealed(desk.now_ns)
            unsaved.clear()
        if ino in unsaved:
            maker, since_ns = unsaved.pop(ino)
            limit_ns = EDIT_NS if call == (300, 1) else STOOD_NS
            assert maker == call and desk.now_ns - since_ns < limit_ns


def test_what_is_touched_where_something_may_be_missing_is_not_the_touchers_own() -> None:
    desk = Desk(own={FILE})
    desk.moments.unsealed()
    desk.make(RM, content=False)  # chmod, of what somebody made whom nobody remembers
    assert desk.is_due(RM)
    desk.make(RM, ino=8, new=True)
    assert not desk.is_due(RM, Loss(8)), "but what it makes itself is"


def test_a_name_that_another_step_changes_is_kept(desk: Desk) -> None:
    desk.make(MAKE)
    desk.wait(5_000)
    assert desk.is_due(RM, Loss(FILE, renamed=True))
    assert not desk.is_due(MAKE, Loss(FILE, renamed=True))


def test_the_first_version_of_a_large_file_is_kept(desk: Desk) -> None:
    loss = Loss(FILE, in_place=LARGE_BYTES + 1)
    desk.make(MAKE)
    assert not desk.is_due(MAKE, loss)
    desk.wait(5_000)
    assert desk.is_due(MAKE, loss)
    desk.moments.sealed(desk.now_ns)
    desk.make(MAKE)
    desk.wait(5_000)
    assert not desk.is_due(MAKE, loss), "one a minute is enough"
