"""Purging: the file is in no view, its bytes are not in the store's file, all else is as it was."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptfs import interrupts
from ckptfs.errors import Interrupted, PathUnknown, PurgeUnfinished
from ckptfs.history import Changed, checkpoints, compression, purge, removal, restore, seal
from ckptfs.history.upkeep import Worker
from ckptfs.model import BLOCK_SIZE, ROOT_INO, Ino
from ckptfs.service import Service
from ckptfs.service.service import perform
from ckptfs.store import check
from tests.direct import Node, crashed, shown
from tests.history.edits import Edits, edits
from tests.history.leftovers import leftovers
from tests.support.effort import lines_of

SECRET = b"hunter2-hunter2-hunter2"


def save(work: Edits) -> None:
    seal(work.fs, "manual", "", work.fs.clock())


def trees(work: Edits) -> list[dict[bytes, Node]]:
    """What each checkpoint and the workspace show; parents' link counts are checked elsewhere."""
    fs = work.fs
    views = [fs.view_of(c.epoch) for c in checkpoints(work.store)] + [fs.head]
    return [
        {path: node._replace(nlink=0) for path, node in shown(fs, view).nodes.items()}
        for view in views
    ]


def purged(work: Edits, *paths: bytes, also: tuple[bytes, ...] = ()) -> purge.Purged:
    """Purge; only these paths may go, and no bytes of theirs may stay in the file."""
    work.fs.flush()
    before = trees(work)
    result = purge.purge(work.fs, paths)
    gone = (*paths, *also)
    for tree, now in zip(before, trees(work), strict=True):
        kept = {p: n for p, n in tree.items() if not any(_within(p, path) for path in gone)}
        assert now == kept
    work.fs.commit()
    work.store.compact()
    return result


def _within(path: bytes, above: bytes) -> bool:
    return path == above or path.startswith(above + b"/")


def in_the_file(work: Edits) -> bool:
    work.fs.commit()
    return SECRET in (work.store.path / "data.mdb").read_bytes()


@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_a_secret_is_gone_from_every_checkpoint(work: Edits, size: int) -> None:
    work.put("other", b"other" * 1000)
    for number in range(4):
        work.put(".env", SECRET * size + b"%d" % number)
        save(work)
    assert in_the_file(work)
    result = purged(work, b".env")
    assert result.doomed.live_paths == [b".env"]
    assert result.elsewhere == []
    assert not in_the_file(work)


def test_a_secret_that_was_replaced_deleted_and_renamed_is_gone(work: Edits) -> None:
    work.put("key", SECRET * 200)
    save(work)
    work.put("key.tmp", SECRET * 300)
    work.move("key.tmp", "key")
    save(work)
    work.move("key", "old-key")
    save(work)
    work.remove("old-key")
    save(work)
    work.put("key", b"harmless")
    save(work)
    result = purged(work, b"key", also=(b"old-key",))
    assert result.doomed.past_paths == [b"key", b"old-key"]
    assert not in_the_file(work)


def test_a_name_that_meant_another_file_does_not_come_back(work: Edits) -> None:
    work.put("a", b"innocent" * 1000)
    save(work)
    work.put("secret", SECRET * 200)
    save(work)
    work.move("secret", "a")
    save(work)
    purge.purge(work.fs, [b"secret"])
    fs = work.fs
    first, second, third = (fs.view_of(c.epoch) for c in checkpoints(work.store))
    assert b"a" in shown(fs, first).nodes and b"a" in shown(fs, second).nodes
    assert list(shown(fs, third).nodes) == list(shown(fs, fs.head).nodes) == [b""]


def test_patterns_name_what_any_checkpoint_has(work: Edits) -> None:
    work.put(".env.old", SECRET * 200)
    save(work)
    work.remove(".env.old")
    work.put(".env.bak", SECRET * 300)
    work.put("a*", b"the very name")
    work.put("ab", b"b")
    service = Service(work.fs)
    with pytest.raises(PathUnknown):
        service.purge([b".env.*", b"never"])
    with pytest.raises(PathUnknown):
        service.plan_purge([b"../out"])
    assert in_the_file(work)
    assert service.purge([b".env.*", b"a*"]).doomed.live_paths == [b".env.bak", b"a*"]
    assert list(shown(work.fs, work.fs.head).nodes) == [b"", b"ab"]
    assert not in_the_file(work)


def test_all_names_of_a_hard_link_are_purged(work: Edits) -> None:
    work.put("a", SECRET * 200)
    work.link("a", "b")
    save(work)
    work.link("a", "c")
    work.remove("a")
    purged(work, b"a", also=(b"b", b"c"))
    assert not in_the_file(work)


def test_a_directory_is_purged_with_all_it_held(work: Edits) -> None:
    work.mkdir("d")
    work.mkdir("d/e")
    work.put("d/e/x", SECRET * 200)
    work.symlink("d/link", SECRET)
    save(work)
    work.mkdir("d/f")
    work.fs.setxattr(work.fs.head, work.put("d/y", b"y"), b"user.note", SECRET)
    save(work)
    work.remove("d/e")
    save(work)
    purged(work, b"d")
    assert not in_the_file(work)


def test_a_secret_is_purged_on_every_branch(work: Edits) -> None:
    work.put("secret", SECRET * 200)
    save(work)
    work.put("secret", SECRET * 300)
    restore(work.fs, checkpoints(work.store)[0])
    work.put("secret", SECRET * 400)
    save(work)
    purged(work, b"secret")
    assert not in_the_file(work)


def test_the_same_bytes_in_another_file_are_named(work: Edits) -> None:
    work.put("secret", SECRET * 200)
    work.put("small", SECRET)
    work.put("copy", SECRET * 200)
    work.put("small-copy", SECRET)
    save(work)
    result = purged(work, b"secret", b"small")
    assert result.elsewhere == [b"copy", b"small-copy"]
    assert in_the_file(work)
    assert purged(work, b"copy", b"small-copy").elsewhere == []
    assert not in_the_file(work)


def test_an_open_file_is_stale_afterwards(work: Edits) -> None:
    ino = work.put("secret", SECRET * 200)
    work.fs.hold(ino)
    changed: list[Changed] = []
    purge.purge(work.fs, [b"secret"], changed.append)
    assert changed == [Changed({ino}, {(Ino(1), b"secret")})]
    with pytest.raises(OSError, match="Stale"):
        work.fs.write(work.fs.head, ino, 0, b"again")
    work.fs.drop(ino)


def test_a_path_that_never_existed_is_refused(work: Edits) -> None:
    work.put("a", b"1")
    assert purged(work, b"b", b"a/b").doomed.inodes == set()


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["put", "move", "remove", "save", "back"]),
            st.sampled_from(["a", "b", "d/a", "d/b"]),
            st.sampled_from(["a", "b", "d/a", "d/b"]),
        ),
        max_size=25,
    )
)
def test_random_histories_have_nothing_of_a_purged_file(
    tmp_path_factory: pytest.TempPathFactory, steps: list
) -> None:
    work = Edits(tmp_path_factory.mktemp("purge") / "store")
    work.mkdir("d")
    for number, (what, path, other) in enumerate(steps):
        there = path.encode() in shown(work.fs, work.fs.head).nodes
        if what == "put":
            work.put(path, b"%d" % number * 3000)
        elif what == "move" and there:
            work.move(path, other)
        elif what == "remove" and there:
            work.remove(path)
        elif what == "save":
            save(work)
        elif what == "back" and (known := checkpoints(work.store)):
            restore(work.fs, known[number % len(known)])
    purge.purge(work.fs, [b"a"])
    work.fs.commit()
    assert not any(b"a" in tree for tree in trees(work))
    assert check(work.store) == []
    assert leftovers(work.store) == []
    work.store.close()


def test_a_directory_goes_with_what_came_into_it_under_another_name(work: Edits) -> None:
    work.mkdir("d")
    work.put("d/a", SECRET)
    save(work)
    work.move("d", "e")
    work.put("e/b", b"later")
    save(work)
    assert purge.purge(work.fs, [b"d"]).doomed.live_paths == [b"e", b"e/a", b"e/b"]
    assert [set(tree) for tree in trees(work)] == [{b""}, {b""}, {b""}]


# -- in steps --------------------------------------------------------------------------------------


def _steps(work: Edits, *paths: bytes) -> Iterator[None]:
    """A purge that gives way wherever it can."""
    steps = purge.purging(work.fs, paths, lambda changed: None)
    while True:
        with interrupts.sliced(lambda: True):
            if isinstance(interrupts.resume(steps), interrupts.Ended):
                return
        yield


def _large(work: Edits) -> None:
    work.mkdir("d")
    for top in range(3):
        work.mkdir(f"d/{top}")
        for number in range(10):
            work.put(f"d/{top}/{number}", SECRET * 100 + b"%d %d" % (top, number))
        save(work)
    work.move("d/1", "d/0/moved")
    work.link("d/2/3", "link")
    save(work)
    work.put("d/2/4", SECRET * 200)


def test_everything_is_whole_between_two_steps_of_a_purge(work: Edits) -> None:
    """Programs and verbs change what is being purged, and what is not, between any two."""
    _large(work)
    work.put("other", b"other")
    for number, _ in enumerate(_steps(work, b"d")):
        if number % 7 == 0:
            work.put("other", b"%d" % number)
            save(work)
        if number % 5 == 0 and work.fs.seek(work.fs.head, ROOT_INO, b"d") is not None:
            work.put(f"d/new {number}", SECRET * 10)
            work.mkdir(f"d/new dir {number}")
        if number == 40:
            removal.delete(work.fs, checkpoints(work.store)[:1])
        work.fs.commit()
        assert check(work.store) == []
    assert number > 50
    assert not any(path.startswith(b"d") for tree in trees(work) for path in tree)
    assert not any(b"link" in tree for tree in trees(work))
    assert leftovers(work.store) == []
    work.store.compact()
    assert not in_the_file(work)


def _with_a_large_file(work: Edits, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose blocks go in several steps; its versions share most of them."""
    monkeypatch.setattr(purge, "_STEP_BYTES", 0)
    work.put("large", b"".join(SECRET + os.urandom(BLOCK_SIZE) for _ in range(12)))
    for number in range(3):
        save(work)
        work.write("large", number * 4 * BLOCK_SIZE, SECRET + os.urandom(100))


def test_everything_is_whole_while_the_blocks_of_a_large_file_go(
    work: Edits, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_a_large_file(work, monkeypatch)
    for number, _ in enumerate(_steps(work, b"large")):
        if number % 4 == 0 and work.fs.seek(work.fs.head, ROOT_INO, b"large") is not None:
            work.put("large", SECRET + os.urandom(3 * BLOCK_SIZE))
            save(work)
        work.fs.commit()
        assert check(work.store) == []
    assert number > 20
    assert not any(b"large" in tree for tree in trees(work))
    assert leftovers(work.store) == []
    work.store.compact()
    assert not in_the_file(work)


def test_a_large_file_that_began_to_go_goes_although_the_client_leaves(
    work: Edits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each step: in every checkpoint it is as it was, or gone."""
    _with_a_large_file(work, monkeypatch)
    before = [tree[b"large"] for tree in trees(work)]
    ends = []
    while not ends or ends[-1] == before:
        steps = purge.purging(work.fs, [b"large"], lambda changed: None)
        with suppress(Interrupted), interrupts.sliced(lambda: True):
            for _ in range(len(ends) + 1):
                interrupts.resume(steps)
            while not isinstance(interrupts.resume(steps, lambda: True), interrupts.Ended):
                pass
        assert check(work.store) == []
        ends.append([tree.get(b"large") for tree in trees(work)])
    assert len(ends) > 5
    assert ends[-1] == [None] * len(before)


@pytest.mark.parametrize("more", [0, 1, 10, 30])
def test_a_purge_that_was_cut_short_is_gone_on_with(work: Edits, more: int) -> None:
    """By the end of the process, so many steps after the first that changed anything."""
    _large(work)
    work.fs.commit()
    steps = _steps(work, b"d")
    while purge.owed(work.store) is None:
        next(steps)
    for _ in range(more):
        next(steps)
        work.fs.commit()
    assert len(shown(work.fs, work.fs.head).nodes) > 1
    work.fs = crashed(work.fs)
    work.store = work.fs.store
    assert check(work.store) == []
    assert in_the_file(work)
    assert Service(work.fs).owes_purge()
    interrupts.finish(Service(work.fs).finishing_purge())
    assert [set(tree) for tree in trees(work)] == [{b""}] * 5
    assert not in_the_file(work) and purge.owed(work.store) is None


def test_a_purge_without_space_for_its_compact_says_what_is_left_to_do(
    work: Edits, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.mkdir("d")
    work.put("d/secret", SECRET * 100)
    save(work)
    with monkeypatch.context() as patch:
        patch.setattr("ckptfs.store.data_file.BESIDE_COPY", 1 << 62)
        with pytest.raises(PurgeUnfinished, match="no space left beside the compact copy"):
            Service(work.fs).purge([b"d"])
    assert [set(tree) for tree in trees(work)] == [{b""}] * 2
    assert in_the_file(work) and Service(work.fs).owes_purge()
    Service(work.fs).compact()
    assert not in_the_file(work) and not Service(work.fs).owes_purge()


def _effort(path: Path, shape: Callable[[Edits, int], None], size: int) -> int:
    """How much Python a purge of a tree of that size goes through."""
    with edits(path) as work:
        shape(work, size)
        work.fs.commit()
        return lines_of(lambda: purge.purge(work.fs, [b"top"]))


def _deep(work: Edits, size: int) -> None:
    for depth in range(1, size + 1):
        work.mkdir("top" + "/d" * (depth - 1))
        if depth % (size // 2) == 0:
            save(work)


def _wide(work: Edits, size: int) -> None:
    work.mkdir("top")
    for number in range(size):
        work.mkdir(f"top/{number}")
    save(work)


def _long_kept(work: Edits, size: int) -> None:
    """Many checkpoints in which nothing of it changed."""
    work.mkdir("top")
    for number in range(20):
        work.put(f"top/{number}", b"1")
    for number in range(size):
        work.put("other", b"%d" % number)
        save(work)


@pytest.mark.parametrize("shape, most", [(_deep, 2.6), (_wide, 2.6), (_long_kept, 2.2)])
def test_the_cost_of_a_purge_is_what_was_written(
    tmp_path: Path, shape: Callable[[Edits, int], None], most: float
) -> None:
    once = _effort(tmp_path / "once", shape, 60)
    twice = _effort(tmp_path / "twice", shape, 120)
    assert twice / once < most


def test_a_pack_that_was_being_made_does_not_bring_bytes_back(work: Edits) -> None:
    """Its bytes were read before the purge, and it is put into the store after it."""
    text = " ".join(map(str, range(900))).encode()
    for number in range(6):
        work.put(f"kept {number}", text + b"%d" % number)
    work.put("secret", text + SECRET)
    save(work)
    packing = Worker(work.fs, compression.repacking_steps(work.fs, everything=True))
    while packing.job is None:
        assert not packing.step()
    result = packing.job()
    purged(work, b"secret")
    packing.resume(result)
    while not packing.step():
        packing.resume(packing.job() if packing.job else None)
    blocks = work.store.blocks
    assert not any(SECRET in bytes(blocks.read(base)) for _, base in blocks.bases())
    assert check(work.store) == []


def test_a_dry_run_names_the_copies_that_would_be_left(work: Edits) -> None:
    for name, data in ((".env", b"secret"), ("copy", b"secret"), ("large", b"l" * 100_000)):
        work.put(name, data)
    work.save()
    work.put("large copy", b"l" * 100_000)
    work.put(".env", b"another secret")

    def asked(*paths: str) -> list[str]:
        record = perform(Service(work.fs), "purge", {"paths": [*paths], "dry_run": True})
        left: list[str] = record["elsewhere"]
        return left

    assert asked(".env") == ["copy"]
    assert asked("large") == ["large copy"]
    assert asked(".env", "copy", "large", "large copy") == []
