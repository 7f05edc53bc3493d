"""Whoever asked for a verb goes away while it runs: wherever that is, the store is whole."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptfs import interrupts
from ckptfs.connect import open_store
from ckptfs.errors import Interrupted
from ckptfs.service import Service
from ckptfs.service.service import perform
from ckptfs.store import Store, check
from tests.history.edits import Edits


class Client:
    """Hangs up when it is looked at for the nth time."""

    def __init__(self, patience: int) -> None:
        self.looks = 0
        self._patience = patience

    def gone(self) -> bool:
        self.looks += 1
        return self.looks >= self._patience


@pytest.fixture(autouse=True)
def look_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_LOOK_S", 0.0)
    monkeypatch.setattr(interrupts, "_STRIDE", 8)


def _fill(work: Edits) -> Service:
    """Files of every size in several directories, and checkpoints in which many of them differ."""
    random.seed(1)
    for top in range(3):
        work.mkdir(f"d{top}")
        for number in range(120):
            work.put(f"d{top}/f{number}", b"%d of %d\n" % (number, top) * (number % 40 + 1))
    work.put("large", random.randbytes(1 << 20))
    work.save("all")
    for step in range(8):
        for number in range(step, 120, 8):
            work.put(f"d1/f{number}", b"step %d " % step * (number + 1))
        work.write("large", step << 16, random.randbytes(70_000))
        work.save(f"step {step}")
    work.fs.commit()
    return Service(work.fs)


def _ask(service: Service, op: str, patience: int, **args: Any) -> Any:
    """Perform a verb for a client that waits for so many looks; the error if it was interrupted."""
    client = Client(patience)
    with interrupts.watching(client.gone):
        try:
            return perform(service, op, args, None)
        except Interrupted as stopped:
            return stopped


def _later_and_later(ask: Callable[[int], Any], between: Callable[[], None]) -> int:
    """Interrupt at the first point, and later each time, until it is done; how often that was."""
    patience, stopped = 1, 0
    while isinstance(ask(patience), Interrupted):
        between()
        stopped += 1
        patience += 1 + patience // 2
    return stopped


def _is_whole(work: Edits) -> None:
    work.fs.commit()
    assert check(work.store) == []


@pytest.mark.parametrize(
    "op, args",
    [
        ("check", {"deep": True}),
        ("diff", {"older": "0", "newer": "8", "files": True}),
        ("log", {"path": "d1"}),
        ("list", {"limit": None}),
        ("plan", {"checkpoint": "0"}),
        ("purge", {"paths": ["d1"], "dry_run": True}),
        ("space", {}),
    ],
)
def test_what_only_reads_ends_at_once(work: Edits, op: str, args: dict[str, Any]) -> None:
    service = _fill(work)
    size = work.store.size_bytes()
    found = _ask(service, op, 1, **args)
    assert isinstance(found, Interrupted) and "Nothing was changed" in found.message
    patience = 5
    while isinstance(_ask(service, op, patience, **args), Interrupted):
        patience *= 3
    assert work.store.size_bytes() == size


def test_compact_is_left_between_any_two_steps(work: Edits) -> None:
    service = _fill(work)
    content = bytes(work.fs.read(work.fs.head, work.at("large").ino, 0, 1 << 20))
    stops = _later_and_later(lambda n: _ask(service, "compact", n), lambda: _is_whole(work))
    assert stops > 5
    assert not list(work.store.path.glob("*.compact"))
    assert bytes(work.fs.read(work.fs.head, work.at("large").ino, 0, 1 << 20)) == content


def test_a_deleted_checkpoint_is_gone_and_freed_later(work: Edits) -> None:
    service = _fill(work)
    before = len(service.checkpoints())
    record = _ask(service, "delete", 1, checkpoints=["2", "3", "4"])
    assert [item["id"] for item in record["checkpoints"]] == [2, 3, 4]
    assert len(service.checkpoints()) == before - 3 and work.store.epoch_tree.hidden
    _is_whole(work)
    _ask(service, "compact", 10**9)
    assert not work.store.epoch_tree.hidden


def test_a_purge_is_left_between_any_two_files(work: Edits) -> None:
    service = _fill(work)
    said: list[str] = []

    def ask(patience: int) -> Any:
        found = _ask(service, "purge", patience, paths=["d1"])
        said.append(found.message if isinstance(found, Interrupted) else "")
        return found

    assert _later_and_later(ask, lambda: _is_whole(work)) > 5
    assert "Nothing was changed" in said[0]
    assert any("of 121 files were purged" in message for message in said)
    assert work.fs.seek(work.fs.head, 1, b"d1") is None  # type: ignore[arg-type]
    _is_whole(work)


def test_a_restore_that_has_begun_comes_to_its_end(work: Edits) -> None:
    service = _fill(work)
    first = len(service.checkpoints())

    def untouched() -> None:
        assert len(service.checkpoints()) == first

    _later_and_later(lambda n: _ask(service, "restore", n, checkpoint="0", paths=["d1"]), untouched)
    assert bytes(work.fs.read(work.fs.head, work.at("d1/f8").ino, 0, 7)) == b"8 of 1\n"
    _is_whole(work)


def test_an_export_leaves_whole_files(work: Edits, tmp_path: Path) -> None:
    service = _fill(work)
    dest = tmp_path / "out"
    found = _ask(service, "export", 100, dest=str(dest))
    assert isinstance(found, Interrupted) and str(dest) in found.message
    for top in range(3):
        for file in (dest / f"d{top}").glob("f*"):
            assert file.stat().st_size == work.at(f"d{top}/{file.name}").size
    assert not list(dest.rglob(".*"))


def test_a_large_file_is_not_waited_for(work: Edits, tmp_path: Path) -> None:
    service = _fill(work)
    work.remove("d0"), work.remove("d1"), work.remove("d2")
    found = _ask(service, "export", 5, dest=str(tmp_path / "out"))
    assert isinstance(found, Interrupted) and not list((tmp_path / "out").iterdir())


def test_an_import_leaves_a_whole_tree(work: Edits, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for number in range(50):
        (source / f"d{number}").mkdir(parents=True)
        (source / f"d{number}" / "f").write_text(str(number))
    found = _ask(Service(work.fs), "import", 75, source=str(source))
    assert isinstance(found, Interrupted) and "so far stays" in found.message
    assert 0 < len(list(work.fs.entries(work.fs.head, work.at("").ino))) < 50
    _is_whole(work)


def test_a_backup_whose_client_has_gone_is_none(work: Edits, tmp_path: Path) -> None:
    service = _fill(work)
    dest = tmp_path / "backup"
    assert isinstance(_ask(service, "backup", 1, dest=str(dest)), Interrupted)
    assert not list(dest.iterdir())
    _ask(service, "backup", 10**9, dest=str(dest))
    Store.open(dest).close()


def test_a_verb_without_a_client_does_not_stop(work: Edits) -> None:
    service = _fill(work)
    assert perform(service, "check", {"deep": True}, None)["problems"] == []


def test_ctrl_c_on_a_store_of_our_own_leaves_what_was_committed(tmp_path: Path) -> None:
    """Python raises it anywhere, also where a change is half made: none of that may get to disk."""
    path, source = tmp_path / "store", tmp_path / "source"
    Store.create(path).close()
    source.mkdir()
    for number in range(600):
        (source / f"f{number}").write_text(str(number))

    def press(progress: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="goes on"), open_store(path) as session:
        session.call("import", {"source": str(source)}, on_progress=press)
    with open_store(path) as session:
        assert session.call("check", {"deep": True})["problems"] == []
        assert session.call("figures")["inodes"] == 1


def test_what_only_reads_in_steps_has_a_limit_too(work: Edits) -> None:
    """As a dry run of a purge, which others would wait for."""
    service = _fill(work)
    with interrupts.watching(lambda: False), interrupts.limited(0):
        with pytest.raises(interrupts.OverBudget):
            perform(service, "purge", {"paths": ["d1"], "dry_run": True})
    assert check(work.store) == []
