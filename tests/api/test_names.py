"""What `ckptfs` exports, what importing it costs, and what its values look like."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path

import pytest

import ckptfs
from ckptfs import CheckpointConfig, CheckpointService
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


def test_the_exported_names() -> None:
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


def test_signatures() -> None:
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


def test_a_checkpoint_as_a_value(plain: CheckpointService, work: Path) -> None:
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


def test_a_compaction_as_a_value(plain: CheckpointService) -> None:
    before, after = found = plain.compact()
    assert (found.before_bytes, found.after_bytes) == (before, after) and after > 0


def test_a_difference_as_a_value(plain: CheckpointService, work: Path) -> None:
    (work / "a").write_text("one\n")
    found = plain.diff()
    assert found and found.added_files == ["a"]
    twin = pickle.loads(pickle.dumps(found))
    assert twin == found and "+one\n" in twin.diff_content
    plain.save("one")
    assert not plain.diff()
