"""`ckptfs service`: the unit's text, read by systemd itself, and what install and remove leave."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ckptfs.cli.units import Unit, unit_text
from tests.cli.conftest import ScratchHome
from tests.support.mounting import succeed

#: A name with all that systemd, a shell and UTF-8 give a meaning to.
ODD = 'a b%h"$HOME\\x41;\udcff'


def _installed(place: ScratchHome) -> list[str]:
    below = place / "home" / ".config" / "systemd"
    return sorted(str(path.relative_to(below)) for path in below.rglob("*.service"))


def test_install_enables_a_unit_and_remove_leaves_nothing(place: ScratchHome) -> None:
    work = place / "work"
    work.mkdir()
    done = place.run("service", "install", work, "--json", "--", "--no-write-back")
    record = json.loads(succeed(done).stdout)
    unit = Path(record["unit"])
    assert record["installed"] and record["enabled"] and not record["mounted"]
    assert _installed(place) == [f"user/{unit.name}", f"user/default.target.wants/{unit.name}"]
    text = unit.read_text()
    assert f'mount" "{work}" "--no-write-back"\n' in text and f'umount" "{work}"\n' in text
    assert f'Environment="XDG_DATA_HOME={place / "data"}"\n' in text
    said = succeed(place.run("service", "status", work)).stdout
    assert said.startswith(f"{unit}: enabled, ") and said.endswith("not mounted.\n")
    assert succeed(place.run("service", "remove", work)).stdout == f"Removed {unit}.\n"
    assert _installed(place) == []
    assert succeed(place.run("service", "remove", work)).stdout.startswith("There is no user unit")


@pytest.mark.parametrize(
    "words",
    [
        ["install"],
        ["install", "missing"],
        ["install", ".", "--", "--no-such-option"],
        ["install", ".", "--", "--foreground"],
        ["status", ".", "--", "--xattrs"],
        ["start", "."],
    ],
)
def test_what_makes_no_sense_is_refused_and_leaves_nothing(
    place: ScratchHome, words: list[str]
) -> None:
    done = place.run("service", *words)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert _installed(place) == []


def test_a_unit_that_someone_else_made_stays(place: ScratchHome) -> None:
    work = place / "work"
    work.mkdir()
    unit = Path(json.loads(succeed(place.run("service", "status", work, "--json")).stdout)["unit"])
    unit.parent.mkdir(parents=True)
    unit.write_text("[Unit]\n")
    for action in ("install", "remove"):
        done = place.run("service", action, work)
        assert done.returncode == 2 and "Nothing was changed" in done.stderr
    assert unit.read_text() == "[Unit]\n"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("of_system", [False, True])
def test_systemd_accepts_the_unit(tmp_path: Path, of_system: bool) -> None:
    work = Path(os.fsdecode(os.fsencode(tmp_path / ODD)))
    unit = Unit(work, of_system)
    assert unit.name.isascii() and "/" not in unit.name
    file = tmp_path / unit.name
    file.write_text(unit_text(unit, ["/bin/echo"], ["--xattrs"]))
    manager = "--system" if of_system else "--user"
    done = subprocess.run(
        ["systemd-analyze", manager, "--man=no", "verify", file],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        timeout=60,
    )
    about_us = [line for line in done.stderr.splitlines() if unit.name in line]
    assert about_us == [], done.stderr
