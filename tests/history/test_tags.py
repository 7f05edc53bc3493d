from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs.errors import TagInvalid, TagTaken
from ckptfs.history import checkpoints, find, references, seal
from tests.history.edits import Edits, edits


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Edits]:
    with edits(tmp_path / "store") as made:
        for _ in range(3):
            seal(made.fs, "auto", "", made.fs.clock())
        yield made


def tagged(work: Edits) -> dict[int, str]:
    return {item.id: item.tag for item in checkpoints(work.store) if item.tag}


@pytest.mark.parametrize("raw", ["release 1.0", "a/b", "..", "12", "latest", "größe", "🙂"])
def test_a_tag_is_kept_as_it_was_typed(work: Edits, raw: str) -> None:
    references.set_tag(work.store, find(work.store, 1), raw)
    assert tagged(work) == {1: raw}


@pytest.mark.parametrize("raw", ["", "  ", "a\nb", "\x1b[31m", "x" * 201, "\udcff", "a\u2028b"])
def test_a_text_that_cannot_be_a_tag_is_refused(work: Edits, raw: str) -> None:
    with pytest.raises(TagInvalid):
        references.set_tag(work.store, find(work.store, 1), raw)
    assert tagged(work) == {}


@pytest.mark.parametrize("again", ["a/b", "a-b", "A-B", " a b "])
def test_two_tags_with_one_safe_form_are_refused(work: Edits, again: str) -> None:
    references.set_tag(work.store, find(work.store, 0), "a/b")
    with pytest.raises(TagTaken):
        references.set_tag(work.store, find(work.store, 1), again)
    references.set_tag(work.store, find(work.store, 0), again)
    assert tagged(work) == {0: again.strip()}


def test_a_tag_can_be_moved_to_another_checkpoint(work: Edits) -> None:
    references.set_tag(work.store, find(work.store, 0), "good")
    references.set_tag(work.store, find(work.store, 2), "good", move=True)
    assert tagged(work) == {2: "good"}
    references.remove_tag(work.store, find(work.store, 2))
    assert tagged(work) == {}


def test_a_pin_can_be_set_and_removed(work: Edits) -> None:
    references.set_pinned(work.store, find(work.store, 1), pinned=True)
    assert [item.pinned for item in checkpoints(work.store)] == [False, True, False]
    references.set_pinned(work.store, find(work.store, 1), pinned=False)
    assert not any(item.pinned for item in checkpoints(work.store))
