"""A verb that is added as CONTRIBUTING says, in a copy of the package, works everywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ckptfs
from tests.support.mounting import scratch

FUNCTION = '''

def do_shout(call: Call, word: str, times: int) -> JsonObject:
    """A verb for a test: a loud word, and who asked for it."""
    return {"word": word.upper() * times, "command": call.cause.command}
'''
DECLARATION = """    Verb(
        "shout",
        "queries",
        SANDBOX,
        (Parameter("word", TEXT), Parameter("times", INTEGER, 1)),
        result="word command",
        changes=NOTHING,
    ),
"""

#: Every way in that reads the declarations.
PROGRAM = """
import json, sys
from ckptfs import CheckpointConfig, CheckpointService
from ckptfs.connect import open_workspace
from ckptfs.control.client import Client
from ckptfs.errors import CkptfsError

mounted = sys.argv[2] == "mounted"
config = CheckpointConfig(mount=mounted, auto_checkpoint=False, unmount_on_close=True)
with CheckpointService(sys.argv[1], config=config) as service:
    assert service.mounted == mounted
    with open_workspace(service.workspace) as session:
        assert isinstance(session, Client) == mounted
        answers = [session.call("shout", {"word": "hey", "times": 2, "command": "me"})]
        for wrong in ({}, {"word": 1}, {"word": "hey", "times": "2"}):
            try:
                session.call("shout", wrong)
            except CkptfsError as error:
                answers.append(error.message)
    answers.append(service.call("shout", word="api")["word"])
print(json.dumps(answers))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package that has the verb."""
    source = Path(ckptfs.__file__).parent
    copy = tmp_path / "ckptfs"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    function, declaration = copy / "service/queries.py", copy / "service/verbs.py"
    function.write_text(function.read_text() + FUNCTION)
    first = "_DECLARED = (\n"
    declared = declaration.read_text()
    assert declared.count(first) == 1
    declaration.write_text(declared.replace(first, first + DECLARATION))
    return copy


@pytest.mark.parametrize("how", ["mounted", "plain"])
def test_a_verb_needs_its_function_and_its_declaration_only(package: Path, how: str) -> None:
    with scratch() as base:
        (base / "work").mkdir()
        answers = _run(package, base, str(base / "work"), how)
    assert answers == [
        {"word": "HEYHEY", "command": "me"},
        "Cannot shout: the argument 'word' is missing. Nothing was changed.",
        "Cannot shout: the argument 'word' has to be text. Nothing was changed.",
        "Cannot shout: the argument 'times' has to be a whole number. Nothing was changed.",
        "API",
    ]


def _run(package: Path, base: Path, *words: str) -> list[Any]:
    places = {f"XDG_{name}_HOME": str(base / name.lower()) for name in ("DATA", "CONFIG")}
    env = {**os.environ, **places, "PYTHONPATH": str(package.parent), "CKPTFS_DEBUG": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        env=env,
        cwd=base,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found: list[Any] = json.loads(ran.stdout)
    return found
