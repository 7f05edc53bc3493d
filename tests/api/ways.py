"""The ways in: the API on a plain directory, the API on a daemon's socket, the command line's JSON.

Each way answers in the same plain values, so that one case runs through all of them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

from ckptfs import Checkpoint, CheckpointService, RestoreResult
from ckptfs.errors import from_record

Values = dict[str, Any]


class Way(Protocol):
    work: Path

    def save(self, message: str, **wishes: Any) -> Values: ...
    def list(self) -> list[Values]: ...
    def get(self, checkpoint: str) -> Values: ...
    def diff(self, older: str = "", newer: str = "") -> Values: ...
    def patch(self, older: str = "", newer: str = "") -> str: ...
    def restore(self, checkpoint: str, *paths: str, **wishes: Any) -> Values: ...
    def state(self, checkpoint: str) -> Values: ...
    def step(self, verb: str) -> Values: ...
    def tag(self, checkpoint: str, tag: str) -> None: ...
    def pin(self, checkpoint: str, *, pinned: bool) -> None: ...
    def delete(self, *checkpoints: str) -> None: ...
    def log(self, path: str) -> list[Values]: ...


class ApiWay:
    """`CheckpointService`, mounted or not."""

    def __init__(self, service: CheckpointService) -> None:
        self.work = service.workspace.path
        self.service = service

    def save(self, message: str, **wishes: Any) -> Values:
        return _checkpoint(self.service.save(message, **wishes))

    def list(self) -> list[Values]:
        return [_checkpoint(item) for item in self.service.list()]

    def get(self, checkpoint: str) -> Values:
        return _checkpoint(self.service.get(checkpoint))

    def diff(self, older: str = "", newer: str = "") -> Values:
        found = self.service.diff(older or None, newer or None)
        return {
            "from": found.from_id,
            "to": found.to_id,
            "added": found.added_files,
            "modified": found.modified_files,
            "deleted": found.deleted_files,
            "renamed": found.renamed_files,
        }

    def patch(self, older: str = "", newer: str = "") -> str:
        return self.service.diff(older or None, newer or None).diff_content

    def restore(self, checkpoint: str, *paths: str, **wishes: Any) -> Values:
        return _restored(self.service.restore(checkpoint, list(paths) or None, **wishes))

    def state(self, checkpoint: str) -> Values:
        return self.service.state(checkpoint)

    def step(self, verb: str) -> Values:
        steps = {"undo": self.service.undo, "redo": self.service.redo}
        return _restored(self.service.rewind() if verb == "rewind" else steps[verb]())

    def tag(self, checkpoint: str, tag: str) -> None:
        self.service.tag(checkpoint, tag)

    def pin(self, checkpoint: str, *, pinned: bool) -> None:
        (self.service.pin if pinned else self.service.unpin)(checkpoint)

    def delete(self, *checkpoints: str) -> None:
        self.service.delete(*checkpoints)

    def log(self, path: str) -> list[Values]:
        return [
            {
                "checkpoint": None if item.checkpoint is None else item.checkpoint.id,
                "kinds": list(item.change.kinds),
            }
            for item in self.service.log(path)
        ]


def _checkpoint(found: Checkpoint) -> Values:
    return {
        "id": found.id,
        "message": found.message,
        "tag": found.tag,
        "pinned": found.pinned,
        "metadata": found.metadata,
        "state": list(found.state),
        "created": found.created,
        "seconds": int(found.timestamp.timestamp()),
    }


def _restored(found: RestoreResult) -> Values:
    return {
        "checkpoint": found.checkpoint_id,
        "before": found.before_id,
        "added": found.added_paths,
        "modified": found.modified_paths,
        "deleted": found.deleted_paths,
        "token": found.token,
    }


class CliWay:
    """The command line with ``--json``, as a program uses it that is not Python."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self._scratch = work.parent

    def _run(self, *words: str) -> Values:
        done = subprocess.run(
            [sys.executable, "-m", "ckptfs", "-w", str(self.work), "--json", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=self.work,
            timeout=60,
            check=False,
        )
        found: Values = json.loads(done.stdout)
        if "error" in found:
            error = from_record(found["error"])
            assert done.returncode == error.exit_code != 0
            raise error
        assert done.returncode == 0
        return found

    def save(self, message: str, **wishes: Any) -> Values:
        words = ["save", message]
        if wishes.get("tag"):
            words += ["--tag", wishes["tag"]]
        for key, value in wishes.get("metadata", {}).items():
            words += ["--meta", f"{key}={value}"]
        for name, document in wishes.get("state", {}).items():
            is_blob = isinstance(document, bytes)
            path = self._scratch / f"{name}.in"
            path.write_bytes(document if is_blob else json.dumps(document).encode())
            words += ["--state-blob" if is_blob else "--state", f"{name}={path}"]
        words += ["--pin"] * wishes.get("pin", False)
        words += ["--allow-empty"] * wishes.get("allow_empty", False)
        return _cli_checkpoint(self._run(*words))

    def list(self) -> list[Values]:
        return [_cli_checkpoint(item) for item in self._run("list")["checkpoints"]]

    def get(self, checkpoint: str) -> Values:
        return _cli_checkpoint(self._run("show", checkpoint)["to"])

    def diff(self, older: str = "", newer: str = "") -> Values:
        found = self._run("diff", *filter(None, [older, newer]))
        files = [item for item in found["changes"] if not _is_directory(item)]
        return {
            "from": _id(found["from"]),
            "to": _id(found["to"]),
            "added": [item["path"] for item in files if "added" in item["kinds"]],
            "modified": [
                item["path"]
                for item in files
                if set(item["kinds"]) - {"added", "deleted", "renamed"}
            ],
            "deleted": [item["path"] for item in files if "deleted" in item["kinds"]],
            "renamed": [
                (item["old_path"], item["path"])
                for item in found["changes"]
                if "renamed" in item["kinds"]
            ],
        }

    def patch(self, older: str = "", newer: str = "") -> str:
        words = [sys.executable, "-m", "ckptfs", "-w", str(self.work), "diff", older, newer]
        return subprocess.run(
            [word for word in words if word], capture_output=True, check=True, text=True
        ).stdout

    def restore(self, checkpoint: str, *paths: str, **wishes: Any) -> Values:
        words = ["restore", checkpoint, *paths]
        words += ["--dry-run"] * wishes.get("dry_run", False)
        words += ["--state-only"] * (not wishes.get("files", True))
        words += ["--no-backup"] * (not wishes.get("backup", True))
        words += ["--if-unchanged", wishes["token"]] if wishes.get("token") else ["--force"]
        return _cli_restored(self._run(*words))

    def state(self, checkpoint: str) -> Values:
        out = self._scratch / "state-out"
        shutil.rmtree(out, ignore_errors=True)
        found = self._run("restore", checkpoint, "--state-only", "--state-out", f"{out}/")
        read = {name: (out / name).read_bytes() for name in found["state_names"]}
        return {name: _parsed(data) for name, data in read.items()}

    def step(self, verb: str) -> Values:
        return _cli_restored(self._run(verb, *(["--force"] if verb == "rewind" else [])))

    def tag(self, checkpoint: str, tag: str) -> None:
        self._run("tag", checkpoint, tag)

    def pin(self, checkpoint: str, *, pinned: bool) -> None:
        self._run("pin" if pinned else "unpin", checkpoint)

    def delete(self, *checkpoints: str) -> None:
        self._run("delete", "--force", *checkpoints)

    def log(self, path: str) -> list[Values]:
        return [
            {"checkpoint": _id(item["saved"]), "kinds": item["kinds"]}
            for item in self._run("log", path)["versions"]
        ]


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data


def _id(checkpoint: Values | None) -> str | None:
    return None if checkpoint is None else str(checkpoint["id"])


def _is_directory(item: Values) -> bool:
    return (item["new"] or item["old"])["type"] == "directory"


def _cli_checkpoint(record: Values) -> Values:
    return {
        **{key: record[key] for key in ("message", "tag", "pinned", "metadata")},
        "state": record["state_names"],
        "id": str(record["id"]),
        "created": record.get("changed", True),
        "seconds": record["time_ns"] // 1_000_000_000,
    }


def _cli_restored(record: Values) -> Values:
    before = record.get("before")
    return {
        "checkpoint": str(record["checkpoint"]),
        "before": None if before is None else str(before),
        "added": record["added_paths"],
        "modified": record["modified_paths"],
        "deleted": record["deleted_paths"],
        "token": record.get("token", ""),
    }
