"""`ckptfs doctor`: what it finds on this machine, and in a home with trouble in it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from ckptfs.cli import units
from ckptfs.cli.doctor import mount_max
from ckptfs.cli.verbs import make_parser
from ckptfs.errors import ProblemsFound, UsageError
from tests.cli.conftest import ScratchHome
from tests.support.mounting import succeed


def findings(place: ScratchHome, code: int = 0, *words: str) -> dict[str, dict[str, Any]]:
    """By subject; mounts are of the whole machine, so they are left out."""
    done = place.run("doctor", "--json", *words)
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


def test_the_store_of_the_workspace_at_hand_is_checked(place: ScratchHome) -> None:
    saved(place)
    assert "store" not in findings(place)
    assert findings(place, 0, "-w", "proj")["store"]["level"] == "ok"
    (data,) = (place / "data").rglob("data.mdb")
    with open(data, "r+b") as file:
        file.seek(3 * 4096 + 2048)
        file.write(b"?" * 2048)
    found = findings(place, ProblemsFound.exit_code, "-w", "proj")["store"]
    assert found["level"] == "wrong"
    assert str(data.parent) in found["text"]
    assert found["advice"].startswith("ckptfs check -w ")


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


def test_limits_that_workspaces_meet_are_told(place: ScratchHome) -> None:
    found = findings(place)
    assert "watches" in found["inotify"]["text"] or "cannot be told" in found["inotify"]["text"]
    assert found["fuse mounts"]["text"][0].isdigit()


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("", 1000),
        ("mount_max = 7\n", 7),
        ("#mount_max = 7\n", 1000),
        ("mount_max=x\nmount_max=9", 9),
    ],
)
def test_the_limit_of_mounts_is_read_as_fusermount_does(
    text: str, most: int, tmp_path: Path
) -> None:
    (tmp_path / "fuse.conf").write_text(text)
    assert mount_max(tmp_path / "fuse.conf") == most
    assert mount_max(tmp_path / "none") == 1000


def test_a_unit_whose_directory_or_program_is_gone_is_named(place: ScratchHome) -> None:
    path = place / 'a "$50%" dir'
    path.mkdir()
    config = {"XDG_CONFIG_HOME": str(place / "config")}
    succeed(place.run("service", "install", path, **config))
    (unit,) = (place / "config/systemd/user").glob("ckptfs-*.service")
    program, named = units.named_in(unit)
    assert named == str(path) and os.access(program, os.X_OK)

    def found() -> dict[str, Any]:
        record = json.loads(place.run("doctor", "--json", **config).stdout)
        return {item["subject"]: item for item in record["findings"]}

    assert found()["units"]["text"] == "1 unit of systemd, in order"
    path.rename(place / "moved")
    assert found()["unit"]["level"] == "to look at"
    assert "ckptfs service remove" in found()["unit"]["advice"]
    unit.write_text(unit.read_text().replace(program, "/nowhere/ckptfs"))
    assert found()["unit"]["level"] == "wrong"
