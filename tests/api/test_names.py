"""What `ckptfs` exports, what importing it costs, and what its values look like."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from functools import cached_property
from importlib.resources import files
from pathlib import Path

import pytest

import ckptfs
from ckptfs import CheckpointConfig, CheckpointService
from ckptfs.api import values
from ckptfs.errors import UsageError

NAMES = {
    "AsyncCheckpointService",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointDiff",
    "CheckpointEvent",
    "CheckpointService",
    "CkptfsError",
    "RestoreResult",
    "__version__",
}


def test_exactly_these_names_are_exported() -> None:
    assert set(ckptfs.__all__) == NAMES
    for name in NAMES:
        assert getattr(ckptfs, name) is not None
    with pytest.raises(AttributeError, match="CheckpointServices"):
        ckptfs.CheckpointServices  # noqa: B018


def test_the_package_is_typed() -> None:
    assert files("ckptfs").joinpath("py.typed").is_file()


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import ckptfs; print(set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{'ckptfs'}"


def test_the_api_of_a_mounted_workspace_needs_no_store() -> None:
    code = (
        "import sys; from ckptfs import CheckpointService; "
        "print({'lmdb', 'trio', 'pyfuse3', 'zstandard'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_signatures_have_their_documented_parameters() -> None:
    def parameters(function: object) -> list[str]:
        return list(inspect.signature(function).parameters)  # type: ignore[arg-type]

    service = CheckpointService
    assert parameters(service) == ["workspace_dir", "storage_dir", "config"]
    assert parameters(service.save)[1:5] == ["message", "tag", "metadata", "state"]
    assert parameters(service.restore)[1:4] == ["checkpoint_id", "paths", "dry_run"]
    assert parameters(service.diff)[1:3] == ["from_id", "to_id"]
    config = CheckpointConfig()
    assert (config.auto_checkpoint, config.max_checkpoints, config.exclude_patterns) == (
        True,
        100,
        [],
    )


def test_every_public_method_says_what_it_does() -> None:
    for name, method in inspect.getmembers(CheckpointService, inspect.isfunction):
        if not name.startswith("_") and name != "unpin":
            assert method.__doc__, f"{name} has no docstring"


def test_every_verb_can_be_awaited(work: Path) -> None:
    service = ckptfs.AsyncCheckpointService(work)
    for name, _ in inspect.getmembers(CheckpointService, inspect.isfunction):
        if not name.startswith("_"):
            assert hasattr(service, name), f"AsyncCheckpointService has no {name}"


def test_a_checkpoint_is_a_value_that_can_be_copied(plain: CheckpointService, work: Path) -> None:
    (work / "a").write_text("a")
    (work / "dir").mkdir()
    saved = plain.save("one", metadata={"k": "v"}, state={"s": [1]})
    assert isinstance(saved.id, str)
    assert saved.timestamp.tzinfo is UTC
    assert abs(datetime.now(UTC) - saved.timestamp) < timedelta(minutes=5)
    assert saved.files_changed == ["a"]
    assert plain.get(saved.id) == saved
    for twin in (copy.copy(saved), pickle.loads(pickle.dumps(saved))):
        assert twin == saved and twin.files_changed == ["a"]


@pytest.mark.parametrize("way", ["plain", "mounted"])
def test_metadata_is_text(way: str, request: pytest.FixtureRequest) -> None:
    service: CheckpointService = request.getfixturevalue(way)
    given = {"text": 'a "b"', "number": 1, "yes": True, "none": None, "nested": {"a": [1, "x"]}}
    saved = service.save("one", metadata=given)
    assert service.get(saved.id).metadata == saved.metadata
    assert saved.metadata == {
        "text": 'a "b"',
        "number": "1",
        "yes": "true",
        "none": "null",
        "nested": '{"a": [1, "x"]}',
    }
    with pytest.raises(UsageError, match="neither text nor JSON"):
        service.save("two", metadata={"a": object()})
    assert service.list()[0] == saved


def test_a_compaction_tells_the_size_before_and_after(plain: CheckpointService) -> None:
    before, after = found = plain.compact()
    assert (found.before_bytes, found.after_bytes) == (before, after) and after > 0


def test_a_difference_is_a_value_that_can_be_copied(plain: CheckpointService, work: Path) -> None:
    (work / "a").write_text("one\n")
    found = plain.diff()
    assert found and found.added_files == ["a"]
    twin = pickle.loads(pickle.dumps(found))
    assert twin == found and "+one\n" in twin.diff_content
    plain.save("one")
    assert not plain.diff()


# -- the reference ---------------------------------------------------------------------------------

REFERENCE = (Path(__file__).parents[2] / "docs/API.md").read_text()
VALUES = [
    values.Checkpoint,
    values.CheckpointDiff,
    values.CheckpointEvent,
    values.Compacted,
    values.ComparedPath,
    values.ComparedState,
    values.Comparison,
    values.FileChange,
    values.FileVersion,
    values.Fork,
    values.ConflictedPath,
    values.MergeResult,
    values.PruneDecision,
    values.RestoreResult,
    values.WorkspaceStatus,
]


def _rows(heading: str) -> list[list[str]]:
    """The cells of a section's table."""
    section = REFERENCE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ", 1) for line in section.splitlines() if line[:3] == "| `"]
    assert rows, heading
    return rows


def _attributes(value: type) -> set[str]:
    found = set(getattr(value, "_fields", ())) or set(value.__annotations__)
    found |= {name for name in vars(value) if isinstance(vars(value)[name], property)}
    found |= {name for name in vars(value) if isinstance(vars(value)[name], cached_property)}
    return {name for name in found if not name.startswith("_") and not name.isupper()}


def test_the_reference_has_every_call_once() -> None:
    named = [name for row in _rows("Calls") for name in re.findall(r"`(\w+)", row[0])]
    public = [name for name in dir(CheckpointService) if not name.startswith("_")]
    assert sorted(named) == sorted([*public, "with"])


def test_the_reference_has_every_value_once_with_its_attributes() -> None:
    rows = _rows("Values")
    assert sorted(row[0].strip("`") for row in rows) == sorted(kind.__name__ for kind in VALUES)
    described = {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[1])) for row in rows}
    for kind in VALUES:
        assert _attributes(kind) <= described[kind.__name__], kind.__name__


def test_the_reference_has_every_exported_name() -> None:
    for name in set(ckptfs.__all__) - {"__version__"}:
        assert re.search(rf"\b{name}\b", REFERENCE), name


def test_the_reference_has_every_field_of_the_configuration_once() -> None:
    named = [row[0].strip("`") for row in _rows("CheckpointConfig")]
    assert sorted(named) == sorted(field.name for field in dataclasses.fields(CheckpointConfig))
