"""Tables in a real transaction: versions as views see them, walks that writes fall into."""

from __future__ import annotations

import pytest

from ckptfs.store import Store, View
from ckptfs.store.format import GONE

#: More than three batches of a walk.
MANY = 900


def _child(store: Store, view: View) -> View:
    store.seal_epoch(view, {"id": view.epoch})
    return store.open_epoch(view.epoch, inodes=view.inodes)


def _entity(number: int) -> bytes:
    return b"%08d\0" % number


# -- plain tables ----------------------------------------------------------------------------------


def test_plain_values_are_put_read_and_deleted(store: Store) -> None:
    table = store.orphans
    assert table.get(b"key") is None
    table.put(b"key", b"one")
    table.put(b"key", b"two")
    assert table.get(b"key") == b"two"
    assert not table.add(b"key", b"three") and table.get(b"key") == b"two"
    assert table.add(b"other", b"") and table.get(b"other") == b""
    assert table.count() == 2
    assert table.delete(b"key") and not table.delete(b"key")
    assert table.get(b"key") is None


def test_many_plain_values_are_put_at_once(store: Store) -> None:
    table = store.orphans
    table.put(b"b", b"old")
    table.put_all([(b"c", b""), (b"a", b"1"), (b"b", b"2")])
    assert list(table.walk()) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"")]
    table.put_all([])
    assert table.count() == 3


def test_a_plain_walk_stays_within_its_prefix(store: Store) -> None:
    for key in (b"a", b"b", b"b1", b"b2", b"b\xff\xff", b"c"):
        store.orphans.put(key, key)
    assert [key for key, _ in store.orphans.walk(b"b")] == [b"b", b"b1", b"b2", b"b\xff\xff"]
    assert [key for key, _ in store.orphans.walk(b"b", after=b"b1")] == [b"b2", b"b\xff\xff"]
    assert [key for key, _ in store.orphans.walk(b"x")] == []
    assert len(list(store.orphans.walk())) == 6


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 512, 513, MANY])
def test_a_plain_walk_gives_everything_once(store: Store, count: int) -> None:
    wanted = [(_entity(n), b"%d" % n) for n in range(count)]
    for key, value in reversed(wanted):
        store.orphans.put(key, value)
    assert list(store.orphans.walk()) == wanted


def test_a_plain_walk_may_be_written_into(store: Store) -> None:
    """Each record is deleted as it comes, and others are added before and behind."""
    for n in range(MANY):
        store.orphans.put(_entity(n), b"")
    seen = []
    for key, _ in store.orphans.walk(b"0"):
        seen.append(key)
        store.orphans.delete(key)
        store.orphans.put(b"!" + key, b"")
        store.orphans.put(b"~" + key, b"")
    assert seen == [_entity(n) for n in range(MANY)]
    assert store.orphans.count() == 2 * MANY


def test_what_stood_below_is_kept_by_directory(store: Store) -> None:
    store.ledger.put(1, b"b", b"1b")
    store.ledger.put(1, b"a", b"1a")
    store.ledger.put(2, b"a", b"2a")
    assert list(store.ledger.children(1)) == [(b"a", b"1a"), (b"b", b"1b")]
    assert store.ledger.get(2, b"a") == b"2a"
    store.ledger.delete(1, b"a")
    assert list(store.ledger.children(1)) == [(b"b", b"1b")]
    assert list(store.ledger.children(3)) == []


# -- versions --------------------------------------------------------------------------------------


def test_a_view_sees_its_own_and_its_ancestors_records(store: Store) -> None:
    table, first = store.xattrs, store.head
    table.put(first, b"kept\0", b"1")
    table.put(first, b"changed\0", b"1")
    table.put(first, b"gone\0", b"1")
    second = _child(store, first)
    table.put(second, b"changed\0", b"2")
    table.drop(second, b"gone\0")
    table.put(second, b"new\0", b"2")
    assert dict(table.walk(first, b"")) == {
        b"kept\0": b"1",
        b"changed\0": b"1",
        b"gone\0": b"1",
    }
    assert dict(table.walk(second, b"")) == {
        b"kept\0": b"1",
        b"changed\0": b"2",
        b"new\0": b"2",
    }
    for view, value in ((first, b"1"), (second, b"2")):
        assert table.get(view, b"changed\0") == value
    assert table.get(first, b"gone\0") == b"1" and table.get(second, b"gone\0") is None
    assert table.get(first, b"new\0") is None
    assert table.own(second, b"gone\0") == GONE and table.own(second, b"kept\0") is None
    assert table.inherited(second, b"changed\0") == b"1"
    assert table.inherited(second, b"new\0") is None
    assert table.inherited(first, b"kept\0") is None


def test_a_sibling_epoch_is_not_seen(store: Store) -> None:
    table, first = store.xattrs, store.head
    table.put(first, b"a\0", b"old")
    one = _child(store, first)
    other = store.open_epoch(first.epoch, inodes=0)
    table.put(one, b"a\0", b"one")
    table.put(one, b"b\0", b"one")
    assert table.get(other, b"a\0") == b"old" and table.get(other, b"b\0") is None
    table.put(other, b"a\0", b"other")
    assert table.get(one, b"a\0") == b"one" and table.get(first, b"a\0") == b"old"
    assert list(table.walk(other, b"")) == [(b"a\0", b"other")]
    assert [value for _, _, value in table.versions(b"a\0")] == [b"other", b"one", b"old"]


def test_put_says_what_it_replaces_in_the_same_epoch(store: Store) -> None:
    table, first = store.xattrs, store.head
    assert table.put(first, b"a\0", b"1") is None
    assert table.put(first, b"a\0", b"2") == b"1"
    second = _child(store, first)
    assert table.put(second, b"a\0", b"3") is None
    assert table.drop(second, b"a\0") == b"3"
    assert table.put(second, b"a\0", b"4") == GONE


def test_dropping_what_no_epoch_inherits_leaves_nothing(store: Store) -> None:
    table, first = store.xattrs, store.head
    table.put(first, b"a\0", b"1")
    assert table.drop(first, b"a\0") == b"1"
    assert table.drop(first, b"a\0") is None
    assert list(table.versions(b"")) == []
    assert list(store.changes.walk(first.epoch, b"x")) == []


def test_dropping_an_inherited_record_leaves_a_tombstone_once(store: Store) -> None:
    table, first = store.xattrs, store.head
    table.put(first, b"a\0", b"1")
    second = _child(store, first)
    assert table.drop(second, b"a\0") is None
    third = _child(store, second)
    assert table.drop(third, b"a\0") is None
    assert [value for _, _, value in table.versions(b"a\0")] == [GONE, b"1"]


def test_forgetting_shows_the_inherited_record_again(store: Store) -> None:
    table, first = store.xattrs, store.head
    table.put(first, b"a\0", b"1")
    second = _child(store, first)
    table.drop(second, b"a\0")
    assert table.forget(second, b"a\0") == GONE
    assert table.get(second, b"a\0") == b"1"
    assert list(store.changes.walk(second.epoch, b"x")) == []


def test_changes_list_each_entity_once_by_kind(store: Store) -> None:
    first = store.head
    for value in (b"1", b"2"):
        store.xattrs.put(first, b"a\0", value)
        store.links.put(first, b"b\0", value)
    store.xattrs.put_unlisted(first, b"c\0", b"1")
    assert list(store.changes.walk(first.epoch)) == [b"lb\0", b"xa\0"]
    assert list(store.changes.walk(first.epoch, b"x")) == [b"a\0"]
    second = _child(store, first)
    assert list(store.changes.walk(second.epoch)) == []
    store.xattrs.put(second, b"z\0", b"")
    assert list(store.changes.all()) == [
        (first.epoch, b"lb\0"),
        (first.epoch, b"xa\0"),
        (second.epoch, b"xz\0"),
    ]


def test_many_records_at_once_are_seen_and_listed_like_single_ones(store: Store) -> None:
    first, table = store.head, store.xattrs
    table.put(first, b"b\0", b"old")
    table.put_all(first, [(b"a\0", b"1"), (b"b\0", b"2")])
    table.put_all_unlisted(first, [(b"c\0", b"3")])
    assert list(table.walk(first, b"")) == [(b"a\0", b"1"), (b"b\0", b"2"), (b"c\0", b"3")]
    assert list(store.changes.walk(first.epoch, b"x")) == [b"a\0", b"b\0"]
    second = _child(store, first)
    table.put_all(second, [(b"a\0", GONE)])
    assert table.get(second, b"a\0") is None and table.get(first, b"a\0") == b"1"


def test_changes_of_many_entities_may_be_taken_back_while_walking(store: Store) -> None:
    table, first = store.xattrs, store.head
    for n in range(MANY):
        table.put(first, _entity(n), b"1")
    seen = []
    for entity in store.changes.walk(first.epoch, b"x"):
        seen.append(entity)
        table.forget(first, entity)
    assert seen == [_entity(n) for n in range(MANY)]
    assert list(store.changes.walk(first.epoch)) == [] and list(table.versions(b"")) == []


# -- walks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 513])
def test_a_walk_gives_everything_once(store: Store, count: int) -> None:
    """Also where several versions of an entity lie at the border of a batch."""
    first = store.head
    for n in range(count):
        store.xattrs.put(first, _entity(n), b"old")
    second = _child(store, first)
    for n in range(0, count, 2):
        store.xattrs.put(second, _entity(n), b"new")
    wanted = [(_entity(n), b"old" if n % 2 else b"new") for n in range(count)]
    assert list(store.xattrs.walk(second, b"")) == wanted
    assert list(store.xattrs.walk(first, b"")) == [(entity, b"old") for entity, _ in wanted]


def test_a_walk_passes_long_runs_of_what_it_does_not_see(store: Store) -> None:
    first = store.head
    store.xattrs.put(first, _entity(MANY), b"last")
    aside = _child(store, first)
    for n in range(MANY):
        store.xattrs.put(aside, _entity(n), b"aside")
    view = store.open_epoch(first.epoch, inodes=0)
    assert list(store.xattrs.walk(view, b"")) == [(_entity(MANY), b"last")]
    third = _child(store, aside)
    for n in range(MANY):
        store.xattrs.drop(third, _entity(n))
    assert list(store.xattrs.walk(third, b"")) == [(_entity(MANY), b"last")]


def test_a_walk_starts_where_it_is_told_and_stays_within_its_prefix(store: Store) -> None:
    for entity in (b"a1\0", b"b1\0", b"b2\0", b"b3\0", b"c1\0"):
        store.xattrs.put(store.head, entity, entity)
    found = [entity for entity, _ in store.xattrs.walk(store.head, b"b", b"b2\0")]
    assert found == [b"b2\0", b"b3\0"]


def test_a_walk_may_be_written_into(store: Store) -> None:
    """Removing what was given and adding before it and behind takes nothing from the walk."""
    view, table = store.head, store.xattrs
    for n in range(MANY):
        table.put(view, _entity(n), b"old")
    seen = []
    for entity, value in table.walk(view, b"0"):
        assert value == b"old"
        seen.append(entity)
        table.drop(view, entity)
        table.put(view, b"!" + entity, b"new")
        table.put(view, b"~" + entity, b"new")
    assert seen == [_entity(n) for n in range(MANY)]
    assert len(list(table.walk(view, b""))) == 2 * MANY


def test_a_walk_sees_what_comes_behind_its_batch(store: Store) -> None:
    view, table = store.head, store.xattrs
    for n in range(0, MANY, 2):
        table.put(view, _entity(n), b"old")
    walk = table.walk(view, b"")
    assert next(walk) == (_entity(0), b"old")
    table.put(view, _entity(MANY + 1), b"new")
    table.drop(view, _entity(MANY - 2))
    seen = [entity for entity, _ in walk]
    assert seen[-1] == _entity(MANY + 1) and _entity(MANY - 2) not in seen


@pytest.mark.parametrize("kind", ["plain", "walk", "versions", "changes"])
def test_a_walk_goes_on_across_commits(store: Store, kind: str) -> None:
    view, table = store.head, store.xattrs
    wanted = [_entity(n) for n in range(MANY)]
    for entity in wanted:
        table.put(view, entity, b"1")
        store.orphans.put(entity, b"1")
    walk = {
        "plain": lambda: (key for key, _ in store.orphans.walk()),
        "walk": lambda: (entity for entity, _ in table.walk(view, b"")),
        "versions": lambda: (entity for entity, _, _ in table.versions(b"")),
        "changes": lambda: store.changes.walk(view.epoch, table.kind),
    }[kind]
    seen = []
    for entity in walk():
        seen.append(entity)
        if len(seen) % 100 == 0:
            store.note()
            store.commit()
    assert seen == wanted
