"""The declarations of verbs: they match their functions, and decode requests before a verb runs."""

from __future__ import annotations

import inspect
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ckptfs import history
from ckptfs.daemon.mounted import Mounted
from ckptfs.errors import UsageError
from ckptfs.fs import Filesystem
from ckptfs.service import Service, arguments, verbs
from ckptfs.service import service as services
from ckptfs.service.arguments import REQUIRED
from ckptfs.service.verbs import CREATED, PRUNED, RESTORED, VERBS, Event, Verb, events_of
from ckptfs.store import Store
from tests.direct import Ticks, assert_clean, put

EVERY = [pytest.param(verb, id=verb.name) for verb in VERBS.values()]


@pytest.fixture
def service() -> Iterator[Service]:
    with tempfile.TemporaryDirectory() as base:
        fs = Filesystem(Store.create(Path(base) / "store"), Ticks())
        put(fs, b"file", b"content")
        history.seal(fs, "manual", "", 0)
        yield Service(fs)
        assert_clean(fs)
        fs.store.close()


@pytest.mark.parametrize("verb", EVERY)
def test_a_verbs_function_takes_the_declared_parameters(verb: Verb) -> None:
    if verb.module == verbs.DAEMON:
        taken = inspect.signature(getattr(Mounted, f"_do_{verb.name}"))
    else:
        taken = inspect.signature(services.function_of(verb))
    taken.bind(*([None] if verb.module else [None, None, None, None]), **_values(verb))


def test_a_verb_that_moves_the_head_says_where_to() -> None:
    moving = [verb for verb in VERBS.values() if verb.moves_head]
    assert {verb.name for verb in moving} >= {"restore", "rewind", "undo", "redo"}
    for verb in moving:
        module = sys.modules[f"ckptfs.service.{verb.module}"]
        inspect.signature(getattr(module, f"head_{verb.name}")).bind(None, **_values(verb))


def _values(verb: Verb) -> dict[str, Any]:
    return {parameter.name: None for parameter in verb.parameters}


@pytest.mark.parametrize("verb", EVERY)
def test_a_default_is_what_its_kind_decodes_to(verb: Verb) -> None:
    for name, kind, default in verb.parameters:
        if default is not REQUIRED and default is not None and kind not in _NOT_OVER:
            assert kind.decode(default) == default, name


#: Kinds whose decoded form is no JSON.
_NOT_OVER = (arguments.PATH, arguments.PATHS)


@pytest.mark.parametrize("verb", EVERY)
def test_an_argument_that_is_missing_or_of_another_type_is_refused_by_its_name(verb: Verb) -> None:
    for parameter in verb.parameters:
        good = {item.name: _GOOD[item.kind.wanted] for item in verb.parameters}
        verb.decode(good)
        if parameter.default is REQUIRED:
            missing = {name: value for name, value in good.items() if name != parameter.name}
            with pytest.raises(UsageError, match=f"'{parameter.name}' is missing"):
                verb.decode(missing)
        with pytest.raises(UsageError, match=f"'{parameter.name}' has to be"):
            verb.decode({**good, parameter.name: object()})


_GOOD: dict[str, Any] = {
    "a list of staged contents": [{"path": "p", "file": "f", "clean": True}],
    "text": "a",
    "a list of texts": ["a"],
    "a checkpoint's name or number": 1,
    "a list of checkpoints": ["1", 2],
    "a whole number": 1,
    "a number": 0.5,
    "true or false": True,
    "a path": "d/f",
    "a list of paths": ["d/f"],
    "an object": {"key": 1},
    "a list of staged documents": [{"name": "n", "json": True, "file": "f"}],
    "a list of tools' results": [{"result": "ok"}],
}


def test_true_is_no_number_and_a_text_is_no_list() -> None:
    with pytest.raises(UsageError, match="whole number"):
        verbs.find("rewind").decode({"steps": True})
    with pytest.raises(UsageError, match="list of paths"):
        verbs.find("restore").decode({"checkpoint": "0", "paths": "src"})
    with pytest.raises(UsageError, match="staged documents"):
        verbs.find("save").decode({"message": "", "state": [{"name": "a", "json": True}]})


def test_null_stands_for_the_default_and_unknown_names_are_ignored() -> None:
    found = verbs.find("list").decode({"limit": None, "since": None, "of_a_newer_client": 1})
    assert found == {"limit": None, "since": "", "path": None, "moments": False}


def test_a_fault_inside_a_verb_is_no_error_of_its_caller(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A KeyError of our own was once answered as "the argument ... is missing"."""

    def broken(*_: object, **__: object) -> None:
        raise KeyError("epoch")

    monkeypatch.setattr(Service, "find", broken)
    with pytest.raises(KeyError):
        services.perform(service, "get", {"checkpoint": "0"})


def test_nothing_happens_before_all_arguments_are_read(service: Service) -> None:
    before = service.checkpoints()
    for wrong in ({"message": "x", "pin": "yes"}, {"message": "x", "pid": "me"}, {}):
        with pytest.raises(UsageError):
            services.perform(service, "save", wrong)
    assert service.checkpoints() == before


def test_events_follow_from_the_answer() -> None:
    assert list(events_of(VERBS["save"], {"id": 3, "pruned": [1]})) == [
        Event(CREATED, {"id": 3, "pruned": [1]}, 3),
        Event(PRUNED, {"ids": ["1"]}),
    ]
    assert list(events_of(VERBS["save"], {"id": 3, "changed": False})) == []
    result = {"checkpoint": 2, "added_paths": ["f"] * 1000, "deleted_paths": None}
    found = list(events_of(VERBS["restore"], result))
    assert [(item.kind, item.checkpoint, len(item.data["added_paths"])) for item in found] == [
        (RESTORED, 2, 100)
    ]
    kept = {"checkpoints": [{"id": 1, "keep": True}, {"id": 2, "keep": False}]}
    assert list(events_of(VERBS["prune"], {**kept, "dry_run": False})) == [
        Event(PRUNED, {"ids": ["2"]})
    ]
    assert list(events_of(VERBS["prune"], {**kept, "dry_run": True})) == []
    assert list(events_of(VERBS["list"], kept)) == []


def test_the_declarations_load_neither_a_store_nor_an_event_loop() -> None:
    program = "import sys, ckptfs.service.verbs; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(ran.stdout.split())
    heavy = {"lmdb", "trio", "dataclasses", "inspect", "ckptfs.history", "ckptfs.service.service"}
    assert not loaded & heavy
