"""A write-back looks only where the store may have changed since both sides agreed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ckptfs import history, interrupts, sync
from ckptfs.history import excluded, purge, removal
from ckptfs.sync import agreed
from ckptfs.sync.ledger import Ledger
from tests.sync.pair import Pair

FILES = 12


@pytest.fixture
def mounted(pair: Pair) -> Pair:
    """Ten directories of twelve files, as a first mount leaves them."""
    return bring_in(pair, 10)


def bring_in(pair: Pair, directories: int) -> Pair:
    pair.plant({f"d{n}": {f"f{k}": f"{n} {k}" for k in range(FILES)} for n in range(directories)})
    pair.scan()
    save(pair)
    sync.settle(pair.fs, None)
    return pair


def mount_again(pair: Pair) -> None:
    """As the service does it."""
    save(pair)
    before = pair.store.metadata.agreed()
    pair.scan()
    save(pair)
    sync.settle(pair.fs, before)


def save(pair: Pair) -> history.Checkpoint:
    checkpoint = history.seal(pair.fs, "manual", "", pair.fs.clock())
    pair.fs.commit()
    return checkpoint


def looked_at(pair: Pair) -> int:
    """At how many entries a write-back looks; both sides are then equal, to a full walk too."""
    told: list[sync.Progress] = []
    result = pair.write_back(progress=told.append)
    assert not result.skipped
    pair.assert_equal()
    known = pair.store.metadata.agreed()
    agreed.forget(pair.fs)
    assert not pair.write_back().changed
    pair.store.metadata.put_agreed(known)
    return told[-1].files


def is_whole(pair: Pair) -> bool:
    known = pair.store.metadata.agreed()
    return known is not None and not known.within


def test_nothing_is_looked_at_if_nothing_changed(mounted: Pair) -> None:
    assert is_whole(mounted) and looked_at(mounted) == 0


def test_a_restore_to_what_was_agreed_before_a_write_back_is_written_back(mounted: Pair) -> None:
    """The epoch that wrote the change lies beside the way from the older one to the new head."""
    (first,) = history.checkpoints(mounted.store)
    mounted.write("d0/f0", "changed")
    save(mounted)
    assert mounted.write_back().changed
    history.restore(mounted.fs, first)
    assert mounted.write_back().changed
    mounted.assert_equal()


@pytest.mark.parametrize("directories", [10, 30])
def test_the_size_of_the_workspace_makes_no_difference(pair: Pair, directories: int) -> None:
    bring_in(pair, directories)
    pair.write("d0/f0", "changed")
    pair.write("d1/new", "new")
    pair.remove("d2/f1")
    pair.chmod("d3/f3", 0o600)
    # One name each, and the directories that lead there.
    assert looked_at(pair) == 4 + 4 - 1  # what is gone is in no listing


def test_the_changes_before_the_last_agreement_make_none(mounted: Pair) -> None:
    for number in range(10):
        mounted.write(f"d{number}/f1", "changed")
    assert looked_at(mounted) == 20
    mount_again(mounted)
    assert is_whole(mounted) and looked_at(mounted) == 0
    mounted.write("d1/f1", "again")
    assert looked_at(mounted) == 2


def test_changes_in_the_lower_directory_are_none_of_the_stores(mounted: Pair) -> None:
    (mounted.lower / "d0/f0").write_text("outside")
    (mounted.lower / "d1/f0").unlink()
    mount_again(mounted)
    assert is_whole(mounted) and looked_at(mounted) == 0


def test_what_a_dead_daemon_left_is_looked_at_until_it_is_written(mounted: Pair) -> None:
    mounted.write("d0/f0", "changed")
    mounted.reopen(commit=True)
    mount_again(mounted)
    mounted.write("d1/f0", "changed too")
    mounted.reopen(commit=True)
    mount_again(mounted)
    assert looked_at(mounted) == 4


def test_a_moved_directory_is_not_entered_further_than_it_changed(mounted: Pair) -> None:
    mounted.rename("d0", "d1/moved")
    mounted.rename("d2", "d3/moved")
    mounted.write("d3/moved/f1", "changed")
    looked_at(mounted)
    assert (mounted.lower / "d3/moved/f1").read_text() == "changed"


def test_a_directory_in_the_place_of_another_is_compared_wholly(mounted: Pair) -> None:
    mounted.remove("d0")
    mounted.mkdir("d0")
    mounted.write("d0/f1", "new")
    looked_at(mounted)
    assert [path.name for path in (mounted.lower / "d0").iterdir()] == ["f1"]


def test_all_names_of_a_file_are_looked_at(mounted: Pair) -> None:
    mounted.link("d0/f0", "d1/link")
    looked_at(mounted)
    mount_again(mounted)
    mounted.write("d1/link", "changed")
    assert looked_at(mounted) == 4
    assert (mounted.lower / "d0/f0").read_text() == "changed"


def test_a_restore_is_written_back(mounted: Pair) -> None:
    first = save(mounted)
    mounted.remove("d0")
    mounted.write("d1/f1", "changed")
    save(mounted)
    looked_at(mounted)
    mount_again(mounted)
    history.restore(mounted.fs, first)
    assert looked_at(mounted) < 2 * FILES + 20
    assert (mounted.lower / "d0/f0").read_text() == "0 0"


def test_the_epoch_that_agreed_outlives_its_checkpoint(mounted: Pair) -> None:
    mounted.write("d0/f0", "changed")
    save(mounted)
    removal.hide(mounted.fs, history.checkpoints(mounted.store))
    removal.Reaper(mounted.fs).step()
    mounted.fs.commit()
    assert looked_at(mounted) == 2
    mount_again(mounted)
    removal.Reaper(mounted.fs).step()
    assert not mounted.store.epoch_tree.hidden


def test_a_restore_to_what_agreed_before_a_scan_is_written_back(mounted: Pair) -> None:
    first = save(mounted)
    looked_at(mounted)
    (mounted.lower / "d0/f0").write_text("changed outside")
    mounted.scan()
    save(mounted)
    history.restore(mounted.fs, first)
    looked_at(mounted)
    assert (mounted.lower / "d0/f0").read_text() == "0 0"


def test_a_scan_drops_the_note_with_its_first_change_of_the_ledger(mounted: Pair) -> None:
    known = mounted.store.metadata.agreed()
    mounted.scan()
    assert mounted.store.metadata.agreed() == known, "nothing changed, so the note stays"
    (mounted.lower / "d0/f0").write_text("changed outside")
    mounted.scan()
    assert mounted.store.metadata.agreed() is None


@pytest.mark.parametrize("lose", ["delete", "purge", "exchange", "interrupt"])
def test_everything_is_looked_at_where_the_set_cannot_be_known(
    mounted: Pair, lose: str, caplog: pytest.LogCaptureFixture
) -> None:
    mounted.write("d0/f0", "changed")
    save(mounted)
    LOSSES[lose](mounted)
    with caplog.at_level("INFO", "ckptfs.sync.write_back"):
        assert looked_at(mounted) > 9 * FILES
    assert "comparing the whole workspace" in caplog.text


def _delete(pair: Pair) -> None:
    removal.delete(pair.fs, history.checkpoints(pair.store))


def _purge(pair: Pair) -> None:
    purge.purge(pair.fs, [b"d1"])
    assert not pair.exists("d1")


def _exchange(pair: Pair) -> None:
    Ledger(pair.store).forget_tree(*sync.ledger.ROOT_PLACE)
    pair.fs.commit()
    pair.scan()


def _interrupt(pair: Pair) -> None:
    sync.intent_log.begin(pair.fs)


LOSSES: dict[str, Callable[[Pair], None]] = {
    "delete": _delete,
    "purge": _purge,
    "exchange": _exchange,
    "interrupt": _interrupt,
}


def test_what_was_left_out_is_tried_again(mounted: Pair) -> None:
    """A file of others stands in the way, and no scan comes first."""
    mounted.write("d0/new", "new")
    (mounted.lower / "d0/new").mkdir()
    (mounted.lower / "d0/new/inside").write_text("of others")
    first, _ = _push(mounted)
    assert not first.changed and mounted.store.metadata.agreed() is None
    (mounted.lower / "d0/new/inside").unlink()
    (mounted.lower / "d0/new").rmdir()
    second, stale = _push(mounted)
    assert second.added == 1 and not stale
    mounted.assert_equal()


def _push(pair: Pair) -> tuple[sync.SyncResult, bool]:
    found: tuple[sync.SyncResult, bool] = pair._run(sync.push, {})
    return found


def test_only_excluded_directories_are_compared_wholly(pair: Pair) -> None:
    excluded.apply(pair.fs, ["cache"])
    pair.plant({"d": {f"f{n}": str(n) for n in range(FILES)}, "cache": {"a": "1", "b": "2"}})
    bring_in(pair, 10)
    pair.remove("cache/a")
    pair.write("cache/c", "3")
    # The root with its entries, and the directory's.
    assert looked_at(pair) == 12 + 2


def test_what_went_from_a_directory_without_excluded_entries_is_looked_for(pair: Pair) -> None:
    """A restore forgets that the directory had some."""
    excluded.apply(pair.fs, ["cache"])
    pair.plant({"d": {"cache": "1", "f": "1"}})
    bring_in(pair, 3)
    (first,) = history.checkpoints(pair.store)
    pair.write("d0/f0", "changed")
    looked_at(pair)
    pair.remove("d/cache")
    history.restore(pair.fs, first)
    pair.fs.commit()
    looked_at(pair)
    assert not (pair.lower / "d/cache").exists()


def test_a_write_back_between_two_slices_of_a_purge_is_not_its_end(mounted: Pair) -> None:
    """An unmount that is refused writes back, and the purge goes on."""
    turns = 0
    with interrupts.sliced(lambda: True):
        for _ in purge.purging(mounted.fs, [b"d1"], lambda changed: None):
            with interrupts.sliced(None):
                assert not _push(mounted)[0].skipped
            turns += 1
    assert turns > FILES and not mounted.exists("d1")
    purge.settle(mounted.store)
    looked_at(mounted)
    assert not (mounted.lower / "d1").exists()


def test_what_went_from_a_directory_before_it_came_into_history_is_looked_for(pair: Pair) -> None:
    excluded.apply(pair.fs, ["cache", "tmp"])
    pair.plant({"cache": {"a": "1", "b": "2"}, "tmp": {"a": "1", "b": "2"}})
    bring_in(pair, 3)
    pair.remove("cache/a")
    pair.remove("tmp/a")
    pair.rename("cache", "kept")
    excluded.apply(pair.fs, ["cache"])
    looked_at(pair)
    assert [path.name for path in (pair.lower / "kept").iterdir()] == ["b"]
    assert [path.name for path in (pair.lower / "tmp").iterdir()] == ["b"]


def test_an_excluded_directory_that_history_has_too_is_compared_wholly(pair: Pair) -> None:
    excluded.apply(pair.fs, ["cache"])
    pair.plant({"cache": {}})
    bring_in(pair, 3)
    (first,) = history.checkpoints(pair.store)
    pair.rename("d0", "cache/d0")
    pair.write("cache/d0/new", "new")
    second = save(pair)
    history.restore(pair.fs, first)  # makes another d0
    save(pair)
    looked_at(pair)
    history.restore(pair.fs, second)
    for name in ("new", *(f"f{number}" for number in range(FILES))):
        pair.remove(f"cache/d0/{name}")
    looked_at(pair)
    assert not list((pair.lower / "cache/d0").iterdir())
