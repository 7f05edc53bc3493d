"""State documents: random histories of them beside files, against a model of plain dicts."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs.errors import StateInvalid
from ckptfs.history.state import Draft
from ckptfs.model import BLOCK_SIZE, ROOT_INO
from ckptfs.service import Service
from tests.direct import assert_clean
from tests.history.edits import Edits, edits

Documents = dict[str, bytes]


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Edits]:
    with edits(tmp_path / "store") as made:
        yield made


def drafts(state: Documents) -> list[Draft]:
    return [Draft(name, False, io.BytesIO(data)) for name, data in state.items()]


def kept(service: Service, number: int) -> Documents:
    """What a checkpoint hands back, read in odd pieces."""
    _, found = service.documents(str(number))
    return {
        item.name: b"".join(
            service.read_document(str(number), item.name, offset, 50_000)
            for offset in range(0, item.size, 50_000)
        )
        for item in found
    }


def changed(rng: random.Random, data: bytes) -> bytes:
    """A document as it may be the next time: grown, cut, edited, or another one."""
    choice = rng.randrange(6)
    if choice < 3:
        return data + rng.randbytes(rng.choice([1, 700, 3000, BLOCK_SIZE]))
    if choice == 3:
        return data[: rng.randrange(len(data) + 1)]
    if choice == 4 and data:
        at = rng.randrange(len(data))
        return data[:at] + rng.randbytes(5) + data[at:]
    return rng.randbytes(rng.choice([0, 10, 5000, 3 * BLOCK_SIZE + 1]))


@pytest.mark.parametrize("seed", range(6))
def test_random_histories_carry_the_documents_that_were_saved(work: Edits, seed: int) -> None:
    rng = random.Random(seed)
    service = Service(work.fs)
    model: dict[int, tuple[Documents, Documents]] = {}
    state: Documents = {}
    files: Documents = {}
    for step in range(60):
        deed = rng.randrange(12)
        if deed < 5:
            names = rng.sample(["conversation", "plan", "ünï"], rng.randrange(1, 4))
            state = {name: changed(rng, state.get(name, b"")) for name in names}
            files[f"f{rng.randrange(3)}"] = rng.randbytes(rng.choice([10, 9000]))
            for name, data in files.items():
                work.put(name, data)
            saved = service.save(f"{step}", documents=drafts(state))
            model[saved.id] = (dict(state), dict(files))
        elif deed < 7:
            saved = service.save(f"{step}")
            model[saved.id] = ({}, dict(files))
        elif deed < 9 and model:
            number = rng.choice(list(model))
            state, files = (dict(part) for part in model[number])
            restored = service.restore(str(number))
            if restored is not None:
                model[restored.before.id] = ({}, model_of(work, restored.before.id, service))
            assert service.unchanged_since() is not None
        elif deed == 9 and len(model) > 2:
            number = rng.choice(list(model))
            service.delete_named([str(number)])
            del model[number]
        elif deed == 10:
            service.compact()
        for number, (documents, _) in model.items():
            assert kept(service, number) == documents
    assert_clean(work.fs)


def model_of(work: Edits, number: int, service: Service) -> Documents:
    view = service.view(str(number))
    return {
        name.decode(): bytes(work.fs.read(view, inode.ino, 0, inode.size))
        for name, inode in work.fs.entries(view, ROOT_INO)
    }


def test_a_document_that_was_not_saved_is_refused(work: Edits) -> None:
    service = Service(work.fs)
    saved = service.save("one", documents=drafts({"a": b"1"}))
    with pytest.raises(StateInvalid, match="does not carry"):
        service.read_document(str(saved.id), "b", 0, 10)
    assert service.read_document(str(saved.id), "a", 0, 10) == b"1"
    assert service.read_document(str(saved.id), "a", 5, 10) == b""


def test_a_document_that_is_saved_again_takes_no_space(work: Edits) -> None:
    service = Service(work.fs)
    data = random.Random(1).randbytes(40 * BLOCK_SIZE)
    service.save("one", documents=drafts({"a": data}))
    blocks = work.store.blocks.count()
    for number in range(5):
        service.save(f"{number}", documents=drafts({"a": data}))
    assert work.store.blocks.count() == blocks
    service.save("with more", documents=drafts({"a": data + b"more" * 1000, "copy": data}))
    assert work.store.blocks.count() == blocks + 1


def test_the_head_lets_go_of_what_no_checkpoint_has(work: Edits) -> None:
    service = Service(work.fs)
    before = work.store.blocks.count()
    saved = service.save("one", documents=drafts({"a": random.Random(1).randbytes(BLOCK_SIZE)}))
    service.save("two", documents=drafts({"b": b"small"}))
    service.delete([saved])
    assert work.store.blocks.count() == before
    assert_clean(work.fs)
