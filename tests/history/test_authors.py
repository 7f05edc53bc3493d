"""Whose the changes are: noted with each epoch, kept when epochs go, and asked for by author."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs import history
from ckptfs.errors import AuthorUnknown
from ckptfs.history import Cause, Changed, authors, log
from ckptfs.history.diff.changed import epochs_between
from ckptfs.history.removal import delete
from ckptfs.history.steps import Step
from ckptfs.model import Ino
from ckptfs.service import Service
from tests.direct import get, reopened
from tests.history.edits import Edits, edits

ALICE = Step(100, 1, "alice --work", "90:1")
BOB = Step(200, 2, "bob --work", "95:2")
PEOPLE = {100: ALICE, 101: ALICE, 200: BOB}


class Signer:
    """Signs for everybody there is, by process id."""

    def __init__(self, work: Edits) -> None:
        self._signer = authors.Signer(work.fs)

    def sign(self, pid: int) -> None:
        self._signer.sign(PEOPLE.get(pid))


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Edits]:
    with edits(tmp_path / "store") as work:
        yield work


@pytest.fixture
def signer(work: Edits) -> Signer:
    return Signer(work)


def save(work: Edits) -> history.Checkpoint:
    return history.seal(work.fs, "manual", "", work.fs.clock())


def names(work: Edits, ino: Ino, since: history.Checkpoint) -> list[str]:
    work.fs.flush()
    epochs = epochs_between(work.store, since.epoch, work.fs.head.epoch)
    return [author.command for author in authors.attribution_of(work.fs, epochs).of(ino)]


def chosen(
    work: Edits, since: history.Checkpoint, wanted: str
) -> tuple[set[bytes], dict[str, str]]:
    choice = authors.choose(work.fs, since, wanted, [])
    skipped = {item.path.decode(): item.reason for item in choice.skipped}
    return {change.path for change in choice.mine}, {**skipped}


def test_each_inode_has_its_authors_in_the_order_of_their_changes(
    work: Edits, signer: Signer
) -> None:
    first = save(work)
    signer.sign(100)
    mine = work.put("mine", b"1")
    shared = work.put("shared", b"1")
    signer.sign(200)
    work.write("shared", 0, b"2")
    theirs = work.put("theirs")
    signer.sign(101)
    work.change("mine", mode=0o600)
    assert names(work, mine, first) == ["alice --work"]
    assert names(work, shared, first) == ["alice --work", "bob --work"]
    assert names(work, theirs, first) == ["bob --work"]
    work.fs = reopened(work.fs)
    work.store = work.fs.store
    assert names(work, shared, first) == ["alice --work", "bob --work"]


def test_data_without_a_sender_belong_to_the_last_writer_of_an_open_file(
    work: Edits, signer: Signer
) -> None:
    """The kernel brings data when nobody can say any more whose they are."""
    signer.sign(100)
    ino = work.put("f", b"")
    work.fs.hold(ino)
    first = save(work)
    signer.sign(200)
    work.put("other")
    signer.sign(0)
    work.write("f", 0, b"late")
    second = save(work)
    assert names(work, ino, first) == ["alice --work"]
    work.fs.drop(ino)
    signer.sign(0)
    work.write("f", 0, b"whose?")
    save(work)
    assert names(work, ino, second) == []


def test_a_better_name_of_a_step_replaces_the_provisional_one(
    work: Edits, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = save(work)
    signer = Signer(work)
    monkeypatch.setitem(PEOPLE, 100, ALICE._replace(command="sh", provisional=True))
    signer.sign(100)
    ino = work.put("f", b"")
    work.fs.commit()
    monkeypatch.setitem(PEOPLE, 100, ALICE)
    signer.sign(100)
    work.write("f", 0, b"x")
    assert names(work, ino, first) == ["alice --work"]


def test_deleting_checkpoints_keeps_who_it_was(work: Edits, signer: Signer) -> None:
    first = save(work)
    signer.sign(100)
    mine = work.put("mine", b"1")
    gone = work.put("gone", b"1")
    middle = save(work)
    signer.sign(200)
    theirs = work.put("theirs")
    work.remove("gone")
    delete(work.fs, [middle])
    assert names(work, mine, first) == ["alice --work"]
    assert names(work, theirs, first) == ["bob --work"]
    assert "alice --work" not in names(work, gone, first)
    delete(work.fs, [first])
    work.fs.commit()
    noted = {key[:4] for key, _ in work.store.authors.walk()}
    assert len(noted) == 1


def test_only_paths_that_the_author_alone_changed_are_chosen(work: Edits, signer: Signer) -> None:
    for path in ("mine", "theirs", "shared", "lost"):
        work.put(path, b"before")
    first = save(work)
    signer.sign(100)
    work.put("mine", b"alice")
    work.put("shared", b"alice")
    work.mkdir("dir")
    work.put("dir/own", b"")
    work.remove("lost")
    work.mkdir("empty")
    save(work)
    signer.sign(200)
    work.put("theirs", b"bob")
    work.put("shared", b"bob")
    work.put("dir/guest", b"")
    mine, skipped = chosen(work, first, "alice")
    assert mine == {b"mine", b"dir/own", b"lost", b"empty"}
    wanted = {"theirs": "others", "dir/guest": "others", "shared": "both", "dir": "content"}
    assert skipped == wanted
    assert chosen(work, first, "200")[0] == {b"theirs", b"dir/guest"}
    assert chosen(work, first, "95")[0] == {b"theirs", b"dir/guest"}
    assert chosen(work, first, "95:2")[0] == {b"theirs", b"dir/guest"}


def test_what_was_chosen_goes_back_and_nothing_else(work: Edits, signer: Signer) -> None:
    work.put("mine", b"before")
    work.put("theirs", b"before")
    work.put("lost", b"before")
    first = save(work)
    signer.sign(100)
    work.put("mine", b"alice")
    work.remove("lost")
    work.mkdir("dir")
    signer.sign(200)
    work.put("theirs", b"bob")
    service = Service(work.fs)
    plan, skipped = service.plan_selective(str(first.id), None, "alice")
    assert (plan.added, plan.modified, plan.deleted) == ((b"lost",), (b"mine",), (b"dir",))
    assert [item.path for item in skipped] == [b"theirs"]
    restored, _ = service.restore_selective(str(first.id), None, "alice", token=plan.token)
    assert restored is not None
    assert get(work.fs, b"mine") == get(work.fs, b"lost") == b"before"
    assert get(work.fs, b"theirs") == b"bob"
    assert work.fs.seek(work.fs.head, Ino(1), b"dir") is None
    service.undo()
    assert get(work.fs, b"mine") == b"alice"
    assert work.fs.seek(work.fs.head, Ino(1), b"lost") is None


def test_a_restore_to_the_same_is_no_other_author(work: Edits, signer: Signer) -> None:
    work.put("f", b"before")
    first = save(work)
    signer.sign(100)
    work.put("f", b"alice")
    second = save(work)
    _restored(work, first)
    signer.sign(100)
    work.put("f", b"alice again")
    assert chosen(work, first, "alice") == ({b"f"}, {})
    # From there it was the restore that made it something else, and then alice.
    assert chosen(work, second, "alice") == (set(), {"f": "both"})
    signer.sign(200)
    work.put("f", b"bob")
    assert chosen(work, first, "alice") == (set(), {"f": "both"})


def _restored(work: Edits, target: history.Checkpoint) -> None:
    cause, service = Cause(7, "ckptfs restore 0 f"), Service(work.fs)
    with service.acting(cause):
        service.restore(str(target.id), [b"f"], cause=cause)


def test_a_choice_can_be_limited_to_some_paths(work: Edits, signer: Signer) -> None:
    first = save(work)
    signer.sign(100)
    work.mkdir("d")
    work.put("d/a", b"")
    work.put("b", b"")
    choice = authors.choose(work.fs, first, "alice", [b"d"])
    assert {change.path for change in choice.mine} == {b"d", b"d/a"}


def test_a_directory_with_changes_of_others_is_left_where_it_is(
    work: Edits, signer: Signer
) -> None:
    work.mkdir("d")
    work.put("d/f", b"before")
    work.mkdir("e")
    work.put("e/f", b"before")
    first = save(work)
    signer.sign(100)
    work.move("d", "moved")
    work.put("e/f", b"alice")
    signer.sign(200)
    work.put("moved/f", b"bob")
    work.move("e", "bobs")
    mine, skipped = chosen(work, first, "alice")
    assert mine == set()
    assert skipped == {"bobs": "others", "bobs/f": "moved", "moved": "content", "moved/f": "others"}


def test_a_directory_that_only_one_moved_goes_back(work: Edits, signer: Signer) -> None:
    work.mkdir("d")
    work.put("d/f", b"before")
    first = save(work)
    signer.sign(100)
    work.move("d", "moved")
    work.put("moved/f", b"alice")
    choice = authors.choose(work.fs, first, "alice", [])
    authors.restore_choice(work.fs, choice, changed=Changed(set(), set()))
    assert get(work.fs, b"d/f") == b"before"
    assert work.fs.seek(work.fs.head, Ino(1), b"moved") is None


def test_a_change_without_an_author_is_taken_for_no_authors(work: Edits, signer: Signer) -> None:
    work.put("f", b"before")
    first = save(work)
    signer.sign(100)
    work.put("f", b"alice")
    work.put("g", b"alice")
    save(work)
    work.fs.signing = work.fs.authorship.unsigned  # as while it is not mounted
    work.put("f", b"somebody")
    work.put("h", b"somebody")
    mine, skipped = chosen(work, first, "alice")
    assert mine == {b"g"}
    assert skipped == {"f": "both", "h": "unknown"}


def test_freeing_an_unlinked_inode_is_no_change_of_an_author(work: Edits, signer: Signer) -> None:
    """Letting go of a nameless inode is no change of somebody's."""
    ino = work.put("f", b"before")
    first = save(work)
    work.fs.keep_unlinked = True
    signer.sign(100)
    work.remove("f")
    save(work)
    signer.sign(200)
    work.fs.forget(ino)
    work.put("other")
    assert chosen(work, first, "alice")[0] == {b"f"}


def test_an_unknown_author_is_answered_with_the_known_ones(work: Edits, signer: Signer) -> None:
    first = save(work)
    signer.sign(100)
    work.put("f")
    with pytest.raises(AuthorUnknown) as caught:
        authors.choose(work.fs, first, "carol", [])
    assert "alice --work" in caught.value.hint


def test_the_log_names_who_wrote_after_a_restore(work: Edits, signer: Signer) -> None:
    work.put("f", b"0")
    cause = Cause(200, "bob --work")
    first = history.seal(work.fs, "auto", "before: bob --work", work.fs.clock(), cause=cause)
    signer.sign(200)
    work.put("f", b"1")
    history.restore(work.fs, first)
    signer.sign(100)
    work.put("f", b"2")
    versions = log.history_of(work.fs, b"f")
    writers = [version.writer.command if version.writer else "" for version in versions]
    assert writers == ["alice --work", "bob --work", ""]


def test_the_table_of_authors_stays_bounded(work: Edits) -> None:
    first = save(work)
    for number in range(1500):
        with authors.acting(work.fs, Cause(number, f"command {number}")):
            ino = work.put("f", b"%d" % number)
        if number % 100 == 99:
            save(work)
    assert len(work.fs.authorship._numbers) < 700
    assert names(work, ino, first)[-1] == "command 1499"


def test_a_path_is_blocked_where_others_replaced_its_directory(work: Edits, signer: Signer) -> None:
    work.mkdir("d")
    work.put("d/f", b"before")
    first = save(work)
    signer.sign(100)
    work.remove("d/f")
    signer.sign(200)
    work.remove("d")
    work.put("d", b"a file of bob's")
    mine, skipped = chosen(work, first, "alice")
    assert mine == set()
    assert skipped == {"d": "others", "d/f": "blocked"}
