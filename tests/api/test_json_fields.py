"""One name has one type in every JSON answer: of the verbs on the wire, and of `--json`."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from ckptfs import CheckpointService
from ckptfs.connect import open_workspace
from ckptfs.control.client import Client
from ckptfs.service.verbs import DAEMON, VERBS
from tests.support.mounting import ckptfs as run_cli

#: Objects whose keys are data, not names of fields.
_DATA = {"metadata"}
_TYPES = {
    bool: "flag",
    int: "number",
    float: "number",
    str: "text",
    list: "list",
    tuple: "list",
    dict: "object",
}

#: Arguments of each verb in the order in which they are called: later ones build on earlier ones.
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("state_stage", {"data": "e30="}),
    ("save", {"message": "one", "tag": "t", "metadata": {"k": 1}}),
    ("mark", {"kind": "hook", "message": "a tool", "metadata": {"session": "s", "tool": "x"}}),
    ("read", {"reader": "s", "paths": ["a"]}),
    ("result", {"results": [{"result": "ok", "session": "s", "tool": "x"}]}),
    ("subagent", {"session": "s", "running": True, "name": "helper"}),
    ("task_start", {"name": "T"}),
    ("task_done", {"message": "done"}),
    ("task_announce", {"name": "U"}),
    ("task_finish", {"name": "U"}),
    ("save", {"message": "two", "allow_empty": True, "max_checkpoints": 50}),
    ("figures", {}),
    ("forks", {}),
    ("list", {"moments": True}),
    ("get", {"checkpoint": "t"}),
    ("diff", {"older": "t", "files": True, "times": True}),
    ("show", {"checkpoint": "t", "files": True}),
    ("log", {"path": "a"}),
    ("plan", {"checkpoint": "t"}),
    ("restore", {"checkpoint": "t", "names": True}),
    ("plan", {"back": "undo"}),
    ("undo", {"names": True}),
    ("redo", {}),
    ("undo", {}),
    ("rewind", {"steps": 1, "names": True}),
    ("restore", {"checkpoint": "t", "files": False}),
    ("restores", {}),
    ("task_list", {}),
    ("task_revert", {"name": "T", "dry_run": True}),
    ("state", {"checkpoint": "t"}),
    ("tag", {"checkpoint": "t", "tag": "u"}),
    ("pin", {"checkpoints": ["u"]}),
    ("unpin", {"checkpoints": ["u"]}),
    ("exclude", {"patterns": ["*.o"]}),
    ("ran", {"checkpoint": "u", "ran": "true", "exit_code": 0, "duration_ms": 1}),
    ("compare", {"states": ["u", "@"]}),
    ("merge", {"source": "u", "dry_run": True}),
    ("merge", {"source": "u", "resolution": "markers"}),
    ("prune", {"dry_run": True}),
    ("delete", {"checkpoints": ["latest"]}),
    ("space", {}),
    ("purge", {"paths": ["a"], "dry_run": True}),
    ("purge", {"paths": ["a"]}),
    ("compact", {}),
    ("check", {}),
]
#: Called by themselves below: they need what the others made, or a directory.
ELSEWHERE = {"contents", "state_read", "state_unstage", "backup", "export", "import"}
#: They end or hold the mount, or answer in more than one line.
OF_THE_MOUNT = {name for name, verb in VERBS.items() if verb.module == DAEMON}

Found = dict[str, dict[str, set[str]]]


def types_in(answer: object, where: str, found: Found) -> None:
    """Note which type each name has, and in which answer."""
    if isinstance(answer, list):
        for item in answer:
            types_in(item, where, found)
    if isinstance(answer, dict):
        for name, value in answer.items():
            if value is not None:
                found[name][_TYPES[type(value)]].add(where)
            if name not in _DATA:
                types_in(value, where, found)


def conflicts(found: Found) -> dict[str, dict[str, list[str]]]:
    several = {name: kinds for name, kinds in found.items() if len(kinds) > 1}
    return {
        name: {kind: sorted(where) for kind, where in kinds.items()}
        for name, kinds in several.items()
    }


@pytest.fixture(params=["plain", "mounted"])
def service(request: pytest.FixtureRequest) -> CheckpointService:
    found: CheckpointService = request.getfixturevalue(request.param)
    root = found.workspace.path
    (root / "a").write_text("one\n")
    (root / "d").mkdir()
    (root / "d/b").write_text("b\n")
    (root / "link").symlink_to("a")
    return found


def test_every_verb_answers_what_it_declares_and_one_name_has_one_type(
    service: CheckpointService, base: Path
) -> None:
    found: Found = defaultdict(lambda: defaultdict(set))
    for op, args in CALLS:
        if op in ("diff", "mark"):
            _change(service.workspace.path)
        _ask(service, op, args, found)
    _ask_elsewhere(service, base, found)
    if service.mounted:
        with Client(service.workspace) as client:
            types_in(client.call("status"), "status", found)
    assert conflicts(found) == {}
    assert {op for op, _ in CALLS} | ELSEWHERE | OF_THE_MOUNT == set(VERBS)


def _change(root: Path) -> None:
    """Add, modify, rename and delete."""
    count = len(os.listdir(root))
    (root / f"new{count}").write_text("new\n")
    (root / "a").write_text(f"{count}\n")
    if (root / "d/b").exists():
        (root / "d/b").rename(root / "d/c")
        (root / "link").unlink()


def _ask(service: CheckpointService, op: str, args: dict[str, Any], found: Found) -> dict[str, Any]:
    with open_workspace(service.workspace) as session:
        answer = session.call(op, args)
    assert answer.keys() <= set(VERBS[op].result.split()), op
    types_in(answer, op, found)
    return answer


def _ask_elsewhere(service: CheckpointService, base: Path, found: Found) -> None:
    (service.workspace.path / "e").write_text("e")
    view = _ask(service, "diff", {}, found)["to"]["view"]
    _ask(service, "contents", {"view": view, "paths": ["e"], "limit": 100}, found)
    kept = service.save("with a document", state={"doc": {"turn": 1}})
    read = {"checkpoint": kept.id, "name": "doc", "offset": 0, "length": 10}
    assert _ask(service, "state_read", read, found)["base64"]
    staged = _ask(service, "state_stage", {"data": ""}, found)["file"]
    _ask(service, "state_unstage", {"file": staged}, found)
    _ask(service, "export", {"dest": str(base / "exported")}, found)
    _ask(service, "backup", {"dest": str(base / "backed-up")}, found)
    if not service.mounted:
        _ask(service, "import", {"source": str(base / "exported"), "merge": True}, found)


#: What is typed, in order; {w} is the workspace, {base} a scratch directory.
#: Where the workspace is mounted.
FORKING = [
    "fork f -w {w}",
    "fork --rename f g -w {w}",
    "forks -w {w}",
    "merge g -w {w}",
    "fork --delete g -w {w}",
]
TYPED = [
    "save one -w {w} --tag t --meta k=v",
    "status -w {w}",
    "diff -w {w} --times",
    "save two -w {w} --allow-empty",
    "list -w {w} --moments",
    "show latest -w {w}",
    "log {w}/a -w {w}",
    "restore t -w {w} --dry-run",
    "restore t -w {w} --force",
    "undo -w {w}",
    "redo -w {w}",
    "log --restores -w {w}",
    "tag latest u -w {w}",
    "pin 0 -w {w}",
    "unpin 0 -w {w}",
    *FORKING,
    "compare t @ -w {w}",
    "merge t -w {w} --dry-run",
    "merge t -w {w} --theirs",
    "prune -w {w} --dry-run",
    "delete 0 -w {w} --force",
    "compact -w {w}",
    "purge {w}/a -w {w} --force",
    "check -w {w}",
    "backup {base}/copy -w {w}",
    "export {base}/out -w {w}",
    "config -w {w}",
    "workspaces",
    "task start T -w {w}",
    "task done -w {w}",
    "task list -w {w}",
    "task revert T -w {w} --dry-run",
    "hook status -w {w}",
    "service status {w}",
    "hook plugin {base}/plugin",
]


def test_what_the_command_line_prints_has_one_type_a_name(
    service: CheckpointService, base: Path
) -> None:
    found: Found = defaultdict(lambda: defaultdict(set))
    root = service.workspace.path
    plain = not os.path.ismount(root)
    for typed in TYPED:
        if plain and typed in FORKING:
            continue
        if typed.startswith(("diff", "restore")):
            _change(root)
        words = [word.format(w=root, base=base) for word in typed.split()]
        done = run_cli(*words, "--json", cwd=base)
        assert done.returncode == 0, (typed, done.stdout, done.stderr)
        types_in(json.loads(done.stdout), typed, found)
    assert conflicts(found) == {}
