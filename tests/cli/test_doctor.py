"""`ckptfs doctor`: what it finds on this machine, and in a home with trouble in it."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest

from ckptfs.cli.verbs import make_parser
from ckptfs.errors import ProblemsFound, UsageError
from tests.cli.conftest import ScratchHome
from tests.support.mounting import succeed


def findings(place: ScratchHome, code: int = 0) -> dict[str, dict[str, Any]]:
    """By subject; mounts are of the whole machine, so they are left out."""
    done = place.run("doctor", "--json")
    record = json.loads(done.stdout)
    found = {item["subject"]: item for item in record["findings"] if item["subject"] != "mount"}
    wrong = any(item["level"] == "wrong" for item in record["findings"])
    assert record["healthy"] is not wrong
    assert done.returncode == (ProblemsFound.exit_code if wrong else 0)
    assert wrong or not code
    return found


def saved(place: ScratchHome) -> None:
    (place / "proj").mkdir()
    (place / "proj" / "file").write_text("x")
    succeed(place.run("save", "-w", "proj", "--no-mount"))


def test_a_machine_that_serves_is_ok(place: ScratchHome) -> None:
    saved(place)
    found = findings(place)
    assert {"kernel", "/dev/fuse", "mounting", "server", "disk", "clock"} <= found.keys()
    assert found["/dev/fuse"]["level"] == found["workspaces"]["level"] == "ok"
    assert found["workspaces"]["text"].startswith("1 workspace,")


def test_a_store_that_is_gone_is_named_with_what_to_do(place: ScratchHome) -> None:
    saved(place)
    (store,) = (place / "data").rglob("data.mdb")
    os.rename(store.parent, place / "elsewhere")
    found = findings(place)["workspace"]
    assert str(store.parent) in found["text"]
    assert found["advice"] == f"ckptfs forget {place / 'proj'}"


def test_a_clock_behind_the_store_is_wrong(place: ScratchHome) -> None:
    saved(place)
    (store,) = (place / "data").rglob("data.mdb")
    later = time.time() + 86_400
    os.utime(store, (later, later))
    assert findings(place, ProblemsFound.exit_code)["clock"]["level"] == "wrong"


def test_people_read_a_line_each_and_what_to_do_below_it(place: ScratchHome) -> None:
    lines = place.run("doctor").stdout.splitlines()
    assert lines[0].startswith("ok          kernel       Linux ")
    assert all(line.startswith(("ok ", "to look at ", "wrong ", " ")) for line in lines)


def test_a_mistyped_verb_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError) as raised:
        make_parser(["resotre", "3"])
    assert "no verb 'resotre'" in raised.value.message
    assert "`ckptfs restore`" in raised.value.hint
