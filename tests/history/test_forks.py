"""Forks: several lines of work in one store, each with a head of its own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs import history
from ckptfs.errors import (
    CheckpointUnknown,
    ForkInvalid,
    ForkTaken,
    ForkUnknown,
    TagInvalid,
    UsageError,
)
from ckptfs.fs import Filesystem
from ckptfs.history import excluded, expiry, forks, merge, packing, removal, tasks
from ckptfs.history.checkpoints import MOMENT
from ckptfs.history.references import resolve, resolve_checkpoint, set_tag
from ckptfs.history.retention import RetentionPolicy
from ckptfs.model import BLOCK_SIZE, MAIN_LINE
from ckptfs.service import Service
from ckptfs.service.service import perform
from ckptfs.store import Store, check
from ckptfs.store import format as fmt
from ckptfs.store.repair import repair
from tests.direct import assert_clean, crashed, reopened
from tests.history.edits import Edits

DAY_NS = 86_400_000_000_000


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Edits]:
    """The main line: f is saved as checkpoint 0, g is not saved."""
    made = Edits(tmp_path / "store")
    made.put("f", b"old")
    history.seal(made.fs, "manual", "first", made.fs.clock())
    made.put("g", b"unsaved")
    yield made
    if not made.store.failed:
        assert_clean(made.fs)
        made.store.close()


def fork(work: Edits, name: str, start: str = "") -> Edits:
    made = forks.create(work.fs, name, start)
    return opened(work.fs, made.number)


def opened(fs: Filesystem, number: int) -> Edits:
    return Edits(fs.store.path, Filesystem(fs.store, fs.clock, line=number))


def files(work: Edits) -> dict[str, bytes]:
    fs, root = work.fs, work.at("").ino
    found = {}
    for name, inode in fs.entries(fs.head, root):
        if inode.is_file:
            found[name.decode()] = bytes(fs.read(fs.head, inode.ino, 0, inode.size))
    return found


def rows(store: Store) -> int:
    store.pending.flush()
    tables = (store.inodes, store.dirents, store.links, store.blockmap, store.xattrs)
    return sum(table.count() for table in tables) + store.by_epoch[0].count()


# -- making ----------------------------------------------------------------------------------------


def test_a_fork_begins_with_all_that_its_line_has_saved_or_not(work: Edits) -> None:
    idea = fork(work, "idea")
    assert files(idea) == {"f": b"old", "g": b"unsaved"}


def test_what_is_written_in_one_line_is_not_seen_in_another(work: Edits) -> None:
    idea = fork(work, "idea")
    idea.put("f", b"idea")
    idea.put("new", b"idea")
    work.remove("g")
    work.write("f", 0, b"MAIN")
    assert files(idea) == {"f": b"idea", "g": b"unsaved", "new": b"idea"}
    assert files(work) == {"f": b"MAIN"}


def test_two_lines_may_fill_the_same_block_of_one_file(work: Edits) -> None:
    work.put("f", b"." * BLOCK_SIZE * 2)
    idea = fork(work, "idea")
    for offset in range(0, 200, 10):
        work.write("f", offset, b"main")
        idea.write("f", offset + 5, b"idea")
        work.fs.sync()
    crash = crashed(work.fs)
    again, other = Edits(crash.store.path, crash), opened(crash, 1)
    assert files(again)["f"][:10] == b"main......" and files(other)["f"][:10] == b".....idea."
    assert check(crash.store) == []
    work.fs, work.store = crash, crash.store


def test_a_fork_writes_the_same_few_records_whatever_the_size_of_the_tree(work: Edits) -> None:
    written = []
    for count in (10, 500):
        for number in range(count):
            work.put(f"file-{count}-{number}", b"x")
        history.seal(work.fs, "manual", "", work.fs.clock())
        before = rows(work.store)
        forks.create(work.fs, f"of-{count}")
        written.append(rows(work.store) - before)
    assert written == [0, 0]


def test_a_fork_of_a_tree_without_changes_stands_on_the_last_checkpoint(work: Edits) -> None:
    last = history.seal(work.fs, "manual", "", work.fs.clock())
    made = forks.create(work.fs, "idea")
    assert forks.base_of(work.store, made) == last


def test_a_fork_of_a_fork_begins_with_the_state_of_that_fork(work: Edits) -> None:
    idea = fork(work, "idea")
    idea.put("f", b"idea")
    second = fork(idea, "second")
    idea.put("f", b"later")
    assert files(second)["f"] == b"idea"


def test_a_fork_of_a_checkpoint_begins_with_its_state(work: Edits) -> None:
    work.put("f", b"new")
    for start in ("0", "latest", "@-1"):
        assert files(fork(work, f"from-{start[-1]}x", start)) == {"f": b"old"}


def test_a_fork_may_be_made_without_what_matches(work: Edits) -> None:
    work.mkdir("build")
    work.mkdir("build/deep")
    work.put("build/deep/out.o", b"object")
    work.put("a.log", b"log")
    made = forks.create(work.fs, "lean", without=["build/", "*.log"])
    lean = opened(work.fs, made.number)
    assert files(lean) == {"f": b"old", "g": b"unsaved"}
    assert lean.fs.seek(lean.fs.head, lean.at("").ino, b"build") is None
    assert work.at("build/deep/out.o").size == 6


def test_what_a_fork_was_made_without_is_merged_in_neither_direction(work: Edits) -> None:
    work.mkdir("node")
    work.put("node/a", b"1")
    made = forks.create(work.fs, "lean", without=["node/"])
    lean = opened(work.fs, made.number)
    lean.put("new", b"2")
    # The patterns outlive the epoch that they were noted with.
    first = history.seal(lean.fs, "manual", "", work.fs.clock())
    lean.put("newer", b"2")
    history.seal(lean.fs, "manual", "", work.fs.clock())
    removal.delete(lean.fs, [first])
    removal.reap(lean.fs)
    assert_clean(work.fs)
    found = forks.find(work.store, "lean")
    assert forks.changes_since_base(lean.fs, found)[:3] == (2, 0, 0)
    perform(Service(work.fs), "merge", {"source": "lean"})
    assert files(work) == {"f": b"old", "g": b"unsaved", "new": b"2", "newer": b"2"}
    assert work.at("node/a").size == 1
    work.put("node/a", b"33")
    work.put("node/b", b"3")
    work.put("f", b"changed")
    perform(Service(lean.fs), "merge", {"source": "main"})
    assert files(lean)["f"] == b"changed"
    assert lean.fs.seek(lean.fs.head, lean.at("").ino, b"node") is None
    # What it left when it was deleted knows it, too.
    lean.put("last", b"4")
    last = forks.delete(work.fs, "lean")
    perform(Service(work.fs), "merge", {"source": str(last.id)})
    assert files(work)["last"] == b"4"
    assert work.at("node/b").size == 1


def test_patterns_that_make_no_sense_make_no_fork(work: Edits) -> None:
    with pytest.raises(UsageError, match="Cannot leave out of a fork what matches"):
        forks.create(work.fs, "lean", without=["# a comment"])
    assert forks.forks(work.store) == []


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        ".",
        "..",
        ".hidden",
        "-n",
        "a/b",
        "a\0b",
        "a\nb",
        "\x1b[1m",
        "\udcff",
        "12",
        "main",
        "Main",
        "now",
        "@",
        "@-1",
        "latest",
        "yesterday",
        "14:05",
        " idea",
        "x" * 256,
        "ä" * 128,
    ],
)
def test_what_is_no_name_for_a_fork_is_refused(work: Edits, name: str) -> None:
    with pytest.raises(ForkInvalid) as caught:
        forks.create(work.fs, name)
    assert "Nothing was changed" in caught.value.message
    assert forks.forks(work.store) == [] and len(history.checkpoints(work.store)) == 1


@pytest.mark.parametrize("name", ["idea-2", "über", "x" * 255, "a b", "2nd", "feature.x"])
def test_other_names_are_accepted(work: Edits, name: str) -> None:
    assert forks.find(work.store, forks.create(work.fs, name).name).name == name


def test_a_name_that_a_fork_or_a_tag_has_is_taken(work: Edits) -> None:
    forks.create(work.fs, "idea")
    set_tag(work.store, history.find(work.store, 0), "release 1")
    for name in ("idea", "release 1", "release-1"):
        with pytest.raises(ForkTaken):
            forks.create(work.fs, name)
    with pytest.raises(TagInvalid):
        set_tag(work.store, history.find(work.store, 0), "idea")


def test_a_fork_is_found_by_its_new_name_after_a_rename(work: Edits) -> None:
    made = forks.create(work.fs, "idea")
    forks.rename(work.store, "idea", "plan")
    assert forks.find(work.store, "plan").number == made.number
    with pytest.raises(ForkUnknown) as caught:
        forks.find(work.store, "idea")
    assert caught.value.exit_code == 89
    with pytest.raises(ForkInvalid):
        forks.rename(work.store, "plan", "12")


def test_numbers_of_forks_are_given_out_once(work: Edits) -> None:
    first = forks.create(work.fs, "idea")
    forks.delete(work.fs, "idea")
    work.fs = reopened(work.fs)
    work.store = work.fs.store
    assert forks.create(work.fs, "idea").number > first.number


# -- history of a line -----------------------------------------------------------------------------


def test_a_line_lists_its_own_checkpoints_and_those_it_descends_from(work: Edits) -> None:
    idea = fork(work, "idea")
    mine = history.seal(idea.fs, "manual", "in the fork", idea.fs.clock())
    later = history.seal(work.fs, "manual", "in main", work.fs.clock())
    assert mine.fork == idea.fs.line and later.fork == MAIN_LINE
    assert [item.id for item in history.of_line(idea.fs)] == [0, 1, mine.id]
    assert [item.id for item in history.of_line(work.fs)] == [0, 1, later.id]


def test_references_are_those_of_the_line_and_numbers_find_all(work: Edits) -> None:
    idea = fork(work, "idea")
    mine = history.seal(idea.fs, "manual", "", idea.fs.clock())
    later = history.seal(work.fs, "manual", "", work.fs.clock())
    now = work.fs.clock()
    assert resolve_checkpoint(idea.fs, "latest", now) == mine
    assert resolve_checkpoint(idea.fs, "@-1", now) == mine
    assert resolve_checkpoint(work.fs, "@-1", now) == later
    assert resolve_checkpoint(idea.fs, str(later.id), now) == later


def test_the_name_of_a_line_is_the_line_as_it_is(work: Edits) -> None:
    idea = fork(work, "idea")
    now = work.fs.clock()
    assert resolve(work.fs, "idea", now).epoch(work.fs) == idea.fs.head.epoch
    assert resolve(idea.fs, "main", now).epoch(idea.fs) == work.fs.head.epoch
    assert resolve(idea.fs, "@", now).epoch(idea.fs) == idea.fs.head.epoch
    with pytest.raises(CheckpointUnknown):
        resolve_checkpoint(work.fs, "idea", now)


def test_undo_in_a_fork_takes_back_the_restore_of_the_fork(work: Edits) -> None:
    idea = fork(work, "idea")
    idea.put("f", b"idea")
    main, own = Service(work.fs), Service(idea.fs)
    perform(own, "restore", {"checkpoint": "0"})
    assert files(idea) == {"f": b"old"} and files(work) == {"f": b"old", "g": b"unsaved"}
    assert history.undoable(work.fs) is None
    perform(own, "undo", {})
    assert files(idea) == {"f": b"idea", "g": b"unsaved"}
    assert main.restores() == [] and len(own.restores()) == 2


def test_every_line_has_a_current_task_of_its_own(work: Edits) -> None:
    idea = fork(work, "idea")
    tasks.start(idea.fs, "refactor")
    assert tasks.current(idea.fs) == "refactor" and tasks.current(work.fs) == ""
    assert "task" not in history.seal(work.fs, "manual", "", work.fs.clock()).metadata


def test_the_verbs_of_a_service_work_on_its_line(work: Edits) -> None:
    idea = fork(work, "idea")
    idea.put("f", b"idea")
    service = Service(idea.fs)
    saved = perform(service, "save", {"message": "mine"})
    assert saved["fork"] == idea.fs.line
    idea.put("f", b"more")
    changes = perform(service, "diff", {})["changes"]
    assert [change["path"] for change in changes] == ["f"]
    perform(service, "restore", {"checkpoint": "0", "paths": ["f"]})
    assert files(idea) == {"f": b"old", "g": b"unsaved"}
    versions = perform(service, "log", {"path": "f"})["versions"]
    assert len(versions) >= 2 and files(work)["f"] == b"old"
    perform(service, "delete", {"checkpoints": [str(saved["id"])]})
    perform(service, "compact", {})
    assert check(work.store) == []


def test_a_limit_on_the_checkpoints_of_a_fork_spares_those_of_main(work: Edits) -> None:
    idea = fork(work, "idea")
    taken = []
    for number in range(4):
        idea.put("f", b"%d" % number)
        taken.append(history.seal(idea.fs, "manual", "", idea.fs.clock()).id)
    assert Service(idea.fs).keep_newest(1) == taken[:-1]
    assert [item.id for item in history.of_line(work.fs)] == [0, 1]


# -- the end of a fork -----------------------------------------------------------------------------


def test_the_last_state_of_a_deleted_fork_is_a_checkpoint(work: Edits) -> None:
    idea = fork(work, "idea")
    idea.put("f", b"idea")
    last = forks.delete(work.fs, "idea")
    removal.reap(work.fs)
    assert last.kind == "fork" and forks.forks(work.store) == []
    assert [item.id for item in forks.last_states(work.store)] == [last.id]
    again = fork(work, "idea", str(last.id))
    assert files(again) == {"f": b"idea", "g": b"unsaved"}


def test_a_fork_cannot_be_deleted_from_within(work: Edits) -> None:
    idea = fork(work, "idea")
    with pytest.raises(ForkInvalid):
        forks.delete(idea.fs, "idea")
    assert files(idea) == {"f": b"old", "g": b"unsaved"}


def test_the_last_state_of_a_deleted_fork_stays_for_a_day(work: Edits) -> None:
    fork(work, "idea").put("f", b"idea")
    last = forks.delete(work.fs, "idea")
    history.seal(work.fs, "manual", "", work.fs.clock())
    policy = RetentionPolicy(keep_all_ns=0, hourly_ns=0, daily_ns=0, moments_max=0)
    expiry.expire(work.fs, policy, work.fs.clock())
    assert last in history.checkpoints(work.store)
    work.fs.clock.now_ns += DAY_NS + 1  # type: ignore[attr-defined]
    gone = expiry.expire(work.fs, policy, work.fs.clock()).gone
    assert last.id in [decision.id for decision in gone]


@pytest.mark.parametrize("jump_ns", [3 * DAY_NS, -3 * DAY_NS], ids=["forward", "back"])
def test_a_day_is_one_of_the_daemon_and_not_of_a_clock_that_jumped(
    work: Edits, jump_ns: int
) -> None:
    fork(work, "idea").put("f", b"idea")
    last = forks.delete(work.fs, "idea")
    history.seal(work.fs, "manual", "", work.fs.clock())
    now_ns = work.fs.clock()
    policy = RetentionPolicy(keep_all_ns=0, hourly_ns=0, daily_ns=0, moments_max=0)
    if jump_ns < 0:  # it was deleted while the clock was ahead
        now_ns += jump_ns + DAY_NS + 1
        history.seal(work.fs, "manual", "", now_ns)
        now_ns += DAY_NS + 1
    work.fs.clock.now_ns += jump_ns  # type: ignore[attr-defined]
    gone = [decision.id for decision in expiry.expire(work.fs, policy, now_ns).gone]
    assert (last.id in gone) == (jump_ns < 0)


def test_what_a_fork_stands_on_does_not_expire(work: Edits) -> None:
    forks.create(work.fs, "idea")
    base = forks.base_of(work.store, forks.find(work.store, "idea"))
    assert base is not None and not base.protection
    history.seal(work.fs, "auto", "", work.fs.clock())
    policy = RetentionPolicy(keep_all_ns=0, hourly_ns=0, daily_ns=0, moments_max=0)
    decisions = {item.id: item for item in expiry.decide(work.fs, policy)}
    assert decisions[base.id].keep and decisions[base.id].reason == "a fork stands on it"
    forks.delete(work.fs, "idea")
    assert not {item.id: item for item in expiry.decide(work.fs, policy)}[base.id].keep


def test_a_fork_goes_on_when_what_it_stands_on_is_deleted(work: Edits) -> None:
    idea = fork(work, "idea")
    removal.delete(work.fs, history.checkpoints(work.store))
    assert files(idea) == files(work) == {"f": b"old", "g": b"unsaved"}
    forks.delete(work.fs, "idea")
    removal.reap(work.fs)
    assert files(work) == {"f": b"old", "g": b"unsaved"}


# -- what others do --------------------------------------------------------------------------------


def test_a_file_that_is_open_after_a_restore_survives_the_upkeep_of_another_line(
    work: Edits,
) -> None:
    idea = fork(work, "idea")
    ino = work.at("f").ino
    work.put("f", b"open")
    work.fs.hold(ino)
    history.restore(work.fs, history.find(work.store, 0))
    removal.Reaper(idea.fs).step()
    work.fs.write(work.fs.limbo[ino], ino, 4, b"!")
    assert bytes(work.fs.read(work.fs.limbo[ino], ino, 0, 9)) == b"open!"
    work.fs.drop(ino)


def test_a_file_that_lost_its_name_in_a_fork_ends_there_alone(work: Edits) -> None:
    idea = fork(work, "idea")
    idea.fs.hold(idea.at("f").ino)
    idea.remove("f")
    idea.fs.commit()
    assert check(work.store) == []
    work.fs = crashed(work.fs)
    work.store = work.fs.store
    assert files(work) == {"f": b"old", "g": b"unsaved"}
    assert check(work.store) == []
    again = opened(work.fs, idea.fs.line)
    assert files(again) == {"g": b"unsaved"} and list(work.store.orphans.walk()) == []


def test_a_fork_of_a_line_with_open_nameless_files_is_whole(work: Edits) -> None:
    work.fs.hold(work.at("f").ino)
    work.remove("f")
    idea = fork(work, "idea")
    idea.put("h", b"h")
    work.fs.commit()
    assert check(work.store) == []
    work.fs.drop(history.find(work.store, 0) and next(iter(work.fs.held)))


def test_a_purge_goes_through_all_lines(work: Edits) -> None:
    idea, other = fork(work, "idea"), fork(work, "other")
    idea.put("g", b"changed in the fork")
    history.seal(idea.fs, "manual", "", idea.fs.clock())
    perform(Service(work.fs), "purge", {"paths": ["g"]})
    assert files(work) == files(idea) == files(other) == {"f": b"old"}
    assert check(work.store) == []


def test_packed_records_are_found_by_a_fork_of_an_old_state(work: Edits) -> None:
    for number in range(20):
        work.put("f", b"%d" % number)
        work.put(f"n{number}", b"x")
        history.seal(work.fs, "manual", "", work.fs.clock())
    old = fork(work, "old", "5")
    packing.pack_records(old.fs)
    assert check(work.store) == []
    assert files(old)["f"] == b"4" and files(work)["f"] == b"19"
    assert work.store.packed.used and not packing.head_reads_packed(old.fs)


# -- the store -------------------------------------------------------------------------------------


def test_a_store_without_forks_has_nothing_of_them(work: Edits) -> None:
    work.fs.commit()
    assert work.store.record(fmt.TABLES.index(b"meta"), fmt.FORKS) is None
    assert work.store.metadata.get(b"next_fork") is None


def test_a_store_with_forks_is_none_that_earlier_releases_open(work: Edits) -> None:
    """They refuse a name in `meta` that they do not know, and would remove other heads."""
    forks.create(work.fs, "idea")
    work.fs.commit()
    place = fmt.TABLES.index(b"meta")
    assert work.store.record(place, fmt.FORKS) == fmt.pack_number(1)
    forks.delete(work.fs, "idea")
    work.fs.commit()
    assert work.store.record(place, fmt.FORKS) is None


def test_forks_are_what_they_were_after_a_crash(work: Edits) -> None:
    idea = fork(work, "idea")
    idea.put("f", b"idea")
    work.fs.commit()
    idea.put("f", b"lost")
    forks.create(work.fs, "lost")
    work.fs = crashed(work.fs)
    work.store = work.fs.store
    assert [made.name for made in forks.forks(work.store)] == ["idea"]
    assert files(opened(work.fs, idea.fs.line)) == {"f": b"idea", "g": b"unsaved"}


def test_a_repair_keeps_forks(work: Edits, tmp_path: Path) -> None:
    idea = fork(work, "idea")
    idea.put("f", b"idea")
    work.fs.commit()
    work.store.close()
    assert repair(tmp_path / "store").left == []
    work.fs = Filesystem(Store.open(tmp_path / "store"), work.fs.clock)
    work.store = work.fs.store
    assert files(opened(work.fs, idea.fs.line)) == {"f": b"idea", "g": b"unsaved"}
    assert files(work) == {"f": b"old", "g": b"unsaved"}


def test_a_thousand_forks_are_there_after_a_reopening(work: Edits) -> None:
    for number in range(1000):
        forks.create(work.fs, f"fork-{number}")
    work.fs = reopened(work.fs)
    work.store = work.fs.store
    assert len(work.store.heads) == 1001
    assert files(opened(work.fs, 777)) == {"f": b"old", "g": b"unsaved"}
    assert check(work.store) == []


def test_eight_lines_that_are_written_by_turns_stay_apart(work: Edits) -> None:
    lines = [work, *(fork(work, f"fork-{number}") for number in range(7))]
    expected = [files(line) for line in lines]
    chance = random.Random(8)
    for turn in range(1500):
        place = chance.randrange(8)
        line, tree = lines[place], expected[place]
        name = f"file-{chance.randrange(12)}"
        deed = chance.randrange(10)
        if deed < 6:
            tree[name] = chance.randbytes(chance.choice([0, 5, 3000, BLOCK_SIZE + 7]))
            line.put(name, tree[name])
        elif deed == 6 and name in tree:
            line.remove(name)
            del tree[name]
        elif deed == 7 and name in tree:
            line.move(name, "moved")
            tree["moved"] = tree.pop(name)
        elif deed == 8:
            history.seal(line.fs, "manual", f"turn {turn}", line.fs.clock())
        else:
            line.fs.sync()
    assert [files(line) for line in lines] == expected
    assert check(work.store) == []


def test_no_line_reads_packed_records_after_packing(work: Edits) -> None:
    """A deleted name of one line stays deleted, though another still has the file."""
    work.put("kept", b"kept")
    idea = fork(work, "idea")
    work.remove("kept")
    work.put("f", b"main")
    history.seal(work.fs, "manual", "", work.fs.clock())
    idea.put("f", b"idea")
    history.seal(idea.fs, "manual", "", idea.fs.clock())
    expected = files(work), files(idea)
    packing.pack_records(work.fs)
    assert work.store.packed.used and check(work.store) == []
    heads = work.store.heads.values()
    assert not any(work.store.packed.concerns(head) for head in heads)
    assert (files(work), files(idea)) == expected
    history.restore(idea.fs, history.find(work.store, 0))
    assert work.store.packed.concerns(idea.fs.head) and files(idea) == {"f": b"old"}
    packing.unpack_needed(work.fs)
    assert not work.store.packed.concerns(idea.fs.head) and files(idea) == {"f": b"old"}
    assert check(work.store) == []
    work.fs = reopened(work.fs)
    work.store = work.fs.store
    assert not work.store.packed.concerns(work.store.heads[idea.fs.line])


# -- what is kept out of history -------------------------------------------------------------------


@pytest.fixture
def excluding(work: Edits) -> Edits:
    """The main line, with a large and a small file below an excluded directory."""
    excluded.apply(work.fs, ["out/"])
    work.mkdir("out")
    work.mkdir("out/deep")
    work.put("out/large", b"large" * BLOCK_SIZE)
    work.put("out/deep/small", b"small")
    work.link("out/large", "out/second")
    return work


def read(work: Edits, path: str) -> bytes:
    inode = work.at(path)
    return bytes(work.fs.read(work.fs.head, inode.ino, 0, inode.size))


def test_a_fork_has_a_copy_of_what_its_line_keeps_out_of_history(excluding: Edits) -> None:
    idea = fork(excluding, "idea")
    idea.put("out/deep/small", b"idea")
    idea.write("out/large", 3, b"IDEA")
    excluding.remove("out/deep")
    excluding.put("out/new", b"main")
    assert read(idea, "out/large")[:10] == read(idea, "out/second")[:10] == b"larIDEArge"
    assert read(idea, "out/deep/small") == b"idea"
    assert read(excluding, "out/large")[:5] == b"large"
    assert idea.fs.seek(idea.fs.head, idea.at("out").ino, b"new") is None
    assert check(excluding.store) == []


def test_blocks_of_what_is_kept_out_of_history_are_shared(excluding: Edits) -> None:
    excluding.fs.commit()
    before = {key for key, _ in excluding.store.blocks.sizes()}
    forks.create(excluding.fs, "idea")
    excluding.fs.commit()
    assert {key for key, _ in excluding.store.blocks.sizes()} == before


def test_what_a_fork_keeps_out_of_history_is_in_none_of_its_checkpoints(excluding: Edits) -> None:
    idea = fork(excluding, "idea")
    saved = history.seal(idea.fs, "manual", "", idea.fs.clock())
    view = idea.fs.view_of(saved.epoch)
    assert idea.fs.seek(view, idea.at("").ino, b"out") is None
    history.restore(idea.fs, history.find(idea.store, 0))
    assert files(idea) == {"f": b"old"} and read(idea, "out/deep/small") == b"small"
    assert check(excluding.store) == []


def test_what_forks_keep_out_of_history_is_there_after_a_reopening(excluding: Edits) -> None:
    idea = fork(excluding, "idea")
    idea.put("out/deep/small", b"idea")
    excluding.fs = reopened(excluding.fs)
    excluding.store = excluding.fs.store
    again = opened(excluding.fs, idea.fs.line)
    assert read(again, "out/deep/small") == b"idea"
    assert read(excluding, "out/deep/small") == b"small"
    again.put("out/later", b"still excluded")
    assert not any(again.store.changes.walk(again.fs.head.epoch))


def test_what_a_deleted_fork_kept_out_of_history_is_gone(excluding: Edits) -> None:
    idea = fork(excluding, "idea")
    idea.put("out/own", b"own" * BLOCK_SIZE)
    excluding.fs.commit()
    forks.delete(excluding.fs, "idea")
    removal.delete(excluding.fs, history.checkpoints(excluding.store))
    excluding.fs.commit()
    assert check(excluding.store) == []
    assert read(excluding, "out/large")[:5] == b"large"
    assert list(excluding.store.excluded_views) == [MAIN_LINE]


def test_a_fork_of_a_checkpoint_begins_without_excluded_files_and_excludes_the_same(
    excluding: Edits,
) -> None:
    old = fork(excluding, "old", "0")
    assert files(old) == {"f": b"old"}
    old.mkdir("out")
    old.put("out/new", b"excluded")
    assert not any(old.store.changes.walk(old.fs.head.epoch)) and check(old.store) == []


def test_patterns_of_a_fork_hold_in_the_fork_alone(work: Edits) -> None:
    idea = fork(work, "idea")
    excluded.apply(idea.fs, ["*.log"])
    for line in (work, idea):
        line.put("a.log", b"log")
        history.seal(line.fs, "manual", "", line.fs.clock())
    assert work.store.excluded is None and check(work.store) == []
    newest = idea.fs.view_of(history.of_line(idea.fs)[-1].epoch)
    assert idea.fs.seek(newest, idea.at("").ino, b"a.log") is None
    assert read(idea, "a.log") == read(work, "a.log") == b"log"


def test_a_purge_takes_excluded_files_from_all_lines(excluding: Edits) -> None:
    idea = fork(excluding, "idea")
    forks.create(excluding.fs, "idle")
    perform(Service(excluding.fs), "purge", {"paths": ["out/deep"]})
    for line in (excluding, idea, opened(excluding.fs, 2)):
        names = [name for name, _ in line.fs.entries(line.fs.head, line.at("out").ino)]
        assert sorted(names) == [b"large", b"second"]
    assert check(excluding.store) == []


def test_a_repair_keeps_what_forks_keep_out_of_history(excluding: Edits, tmp_path: Path) -> None:
    idea = fork(excluding, "idea")
    idea.put("out/deep/small", b"idea")
    excluding.fs.commit()
    excluding.store.close()
    assert repair(tmp_path / "store").left == []
    excluding.fs = Filesystem(Store.open(tmp_path / "store"), excluding.fs.clock)
    excluding.store = excluding.fs.store
    assert read(opened(excluding.fs, idea.fs.line), "out/deep/small") == b"idea"


def expire_all(work: Edits) -> None:
    """All that may go goes."""
    none = {"keep_all_ns": 0, "hourly_ns": 0, "daily_ns": 0, "moments_max": 0}
    for number in range(3):
        work.put("later", b"%d" % number)
        history.seal(work.fs, "auto", "", work.fs.clock())
    expiry.prune(work.fs, RetentionPolicy(max_checkpoints=1, **none))


def bring(into: Edits, source: str, **more: object) -> list[str]:
    """Merge; the paths in conflict."""
    found = perform(Service(into.fs), "merge", {"source": source, **more})
    return [each["path"] for each in found["conflicts"]]


def test_the_state_that_merges_count_from_stays(work: Edits) -> None:
    """Else the next one would take what only one side changed for a conflict."""
    idea = fork(work, "idea")
    work.put("m", b"first")
    bring(idea, "main")
    work.put("m", b"second")
    idea.put("i", b"of the fork")
    expire_all(work)
    assert bring(work, "idea") == []
    assert files(work)["m"] == b"second" and files(work)["i"] == b"of the fork"


def test_the_state_before_a_merge_that_was_undone_stays(work: Edits) -> None:
    idea = fork(work, "idea")
    work.put("m", b"first")
    bring(idea, "main")
    work.put("m", b"second")
    bring(idea, "main")
    perform(Service(idea.fs), "undo", {})
    idea.put("i", b"of the fork")
    work.put("m", b"third")
    expire_all(work)
    assert bring(work, "idea") == []
    assert files(work)["m"] == b"third"


def test_a_state_that_was_merged_before_another_line_began_stays(work: Edits) -> None:
    one = fork(work, "one")
    one.put("m", b"first")
    bring(work, "one")
    two = fork(work, "two")
    one.put("m", b"second")
    bring(work, "one")
    two.put("i", b"of the second")
    expire_all(work)
    assert bring(one, "two") == []
    assert files(one)["m"] == b"second" and files(one)["i"] == b"of the second"


def test_a_moment_that_was_merged_stays(work: Edits) -> None:
    idea = fork(work, "idea")
    work.put("m", b"first")
    moment = history.seal(work.fs, MOMENT, "before: something", work.fs.clock())
    bring(idea, str(moment.id))
    work.put("m", b"second")
    expire_all(work)
    assert bring(work, "idea") == []
    assert files(work)["m"] == b"second"


def test_of_what_was_merged_again_and_again_the_newest_stays(work: Edits) -> None:
    idea = fork(work, "idea")
    for number in range(4):
        work.put("m", b"%d" % number)
        bring(idea, "main")
    (base,) = merge.bases(work.store)
    assert base == merge.base_of(work.store, work.fs.head.epoch, idea.fs.head.epoch)
    forks.delete(work.fs, "idea")
    assert merge.bases(work.store) == set()
