"""An agent's state documents through the API."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from ckptfs import CheckpointService
from ckptfs.errors import StateInvalid


@pytest.mark.parametrize(
    "state, words",
    [
        ({"": 1}, "empty"),
        ({"a/b": 1}, "characters"),
        ({"..": 1}, "characters"),
        ({"n" * 300: 1}, "longer"),
        ({"x": {1, 2}}, "neither bytes nor JSON"),
        ({"x": float("nan")}, "neither bytes nor JSON"),
        ({"ok": 1, "x": object()}, "neither bytes nor JSON"),
    ],
)
def test_what_cannot_be_state(
    plain: CheckpointService, state: dict[str, object], words: str
) -> None:
    before = plain.list()
    with pytest.raises(StateInvalid, match=words):
        plain.save("one", state=state)
    assert plain.list() == before
    assert not list(plain.workspace.store.glob("state-*"))


def test_state_of_many_kinds_and_sizes_comes_back(mounted: CheckpointService) -> None:
    state = {
        "empty": b"",
        "null": None,
        "block": os.urandom(65536),
        "more": os.urandom(65537),
        "large": os.urandom(3 << 20),
        "text": "\ud800 lone",
        "ünï": [1.5, True, {"a": []}],
    }
    saved = mounted.save("all", state=state)
    assert mounted.state(saved.id) == state
    assert not list(mounted.workspace.store.glob("state-*"))


def test_a_conversation_costs_its_growth(plain: CheckpointService) -> None:
    words = random.Random(1)
    conversation = [_turn(words) for _ in range(1000)]
    plain.save("long", state={"conversation": conversation})
    size = len(json.dumps(conversation))
    before = plain.status().store_bytes
    for _ in range(30):
        conversation.append(_turn(words))
        plain.save("turn", state={"conversation": conversation})
    grown = plain.status().store_bytes - before
    assert size > 500_000 and grown < 30 * 20_000, f"30 turns took {grown:,} bytes"
    assert plain.state("10") == {"conversation": conversation[:1009]}


def _turn(words: random.Random) -> dict[str, str]:
    return {"role": "user", "content": words.randbytes(300).hex()}


def test_state_lives_and_dies_with_its_checkpoints(plain: CheckpointService) -> None:
    data = [os.urandom(1 << 20) for _ in range(4)]
    saved = [plain.save(str(n), state={"doc": piece}) for n, piece in enumerate(data)]
    plain.delete(saved[1].id, saved[3].id)
    assert plain.state(saved[0].id) == {"doc": data[0]}
    assert plain.state(saved[2].id) == {"doc": data[2]}
    plain.delete(saved[0].id, saved[2].id)
    plain.save("without", allow_empty=True)
    plain.compact()
    assert plain.status().store_bytes < 1 << 20


def test_restores_keep_state_apart(plain: CheckpointService, work: Path) -> None:
    one = plain.save("one", state={"doc": "one"})
    two = plain.save("two", state={"doc": "two", "other": 2})
    plain.restore(one.id)
    three = plain.save("three", state={"doc": "three"})
    for saved, state in ((one, "one"), (two, "two"), (three, "three")):
        assert plain.state(saved.id)["doc"] == state
    plain.delete(two.id)
    assert plain.state(three.id) == {"doc": "three"}
