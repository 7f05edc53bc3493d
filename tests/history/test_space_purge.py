"""Purging: the file is in no view, its bytes are not in the store's file, all else is as it was."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptfs.errors import PathUnknown
from ckptfs.history import checkpoints, purge, restore, seal
from ckptfs.service import Service
from ckptfs.store import check
from tests.direct import Node, shown
from tests.history.edits import Edits
from tests.history.leftovers import leftovers

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
    result = purged(work, b"secret")
    assert result.changed.inodes == {ino}
    assert result.changed.entries == {(1, b"secret")}
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
