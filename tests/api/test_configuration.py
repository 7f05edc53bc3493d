"""What a program can configure for its workspace: how many checkpoints stay, what is kept out."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ckptfs import CheckpointConfig, CheckpointService
from ckptfs.errors import UsageError
from tests.api.conftest import PLAIN


def test_at_most_so_many_checkpoints_stay(work: Path) -> None:
    config = CheckpointConfig(mount=False, max_checkpoints=4)
    with CheckpointService(work, config=config) as service:
        tagged = service.save("tagged", tag="t", allow_empty=True)
        pinned = service.save("pinned", pin=True, allow_empty=True)
        for number in range(6):
            (work / "a").write_text(str(number))
            newest = service.save(str(number))
        kept = [item.id for item in service.list()]
        assert len(kept) == 4
        assert {tagged.id, pinned.id, newest.id} < set(kept)
        assert service.check() == []


@pytest.mark.parametrize("config", [None, PLAIN, CheckpointConfig(max_checkpoints=None)])
def test_without_a_limit_of_its_own_a_program_deletes_nothing(
    plain: CheckpointService, work: Path, config: CheckpointConfig | None
) -> None:
    service = CheckpointService(work, config=config)
    for number in range(105):
        service.save(str(number), allow_empty=True)
    assert len(plain.list()) == 106


def test_a_limit_that_was_given_is_one_whatever_its_number() -> None:
    assert CheckpointConfig().limit is None
    assert replace(CheckpointConfig(), mount=False).limit is None
    assert CheckpointConfig(max_checkpoints=100).limit == 100


@pytest.mark.parametrize("number", [0, -1])
def test_less_than_one_checkpoint_cannot_be_kept(number: int) -> None:
    with pytest.raises(UsageError, match="counts from 1"):
        CheckpointConfig(max_checkpoints=number)


@pytest.mark.parametrize("mount", [True, False])
def test_what_is_excluded_is_in_no_checkpoint(work: Path, mount: bool) -> None:
    config = CheckpointConfig(
        mount=mount, unmount_on_close=True, exclude_patterns=["*.log", "out/"]
    )
    (work / "a.log").write_text("before")
    with CheckpointService(work, config=config) as service:
        one = service.save("one", state={"turn": 1}, allow_empty=True)
        (work / "out").mkdir()
        (work / "out/x").write_text("x")
        (work / "kept").write_text("k")
        two = service.save("two", state={"turn": 2})
        assert two.files_changed == ["kept"]
        service.restore(one.id)
        assert sorted(os.listdir(work)) == ["a.log", "out"]
        assert (service.state(one.id), service.state(two.id)) == ({"turn": 1}, {"turn": 2})
        assert service.check() == []
    more = CheckpointConfig(mount=False, exclude_patterns=["*.tmp"])
    with CheckpointService(work, config=more) as service:
        (work / "b.tmp").write_text("b")
        assert not service.diff()


def test_checkpoints_by_themselves_can_be_turned_off(mounted: CheckpointService) -> None:
    assert mounted.status().daemon["options"]["auto"] == "off"


@pytest.mark.parametrize("name", ["exclude_patterns", "on_restore"])
def test_one_text_is_not_taken_for_a_list_of_letters(name: str) -> None:
    """A pattern of one star would keep everything out of history."""
    with pytest.raises(UsageError, match=f"Cannot take {name}"):
        CheckpointConfig(**{name: "*.log"})
