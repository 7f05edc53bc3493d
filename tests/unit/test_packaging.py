"""What `make setup` installs from: the locks cover pyproject.toml, and every file has a hash."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "vagrant" / "packaging" / "lock"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]

WANTED = {
    "run": PROJECT["project"]["dependencies"],
    "tests": [*PROJECT["project"]["dependencies"], *EXTRAS["mcp"], *EXTRAS["dev"]],
    "deep": [*PROJECT["project"]["dependencies"], *EXTRAS["dev"], *EXTRAS["fuzz"]],
    "build": PROJECT["build-system"]["requires"],
}


def _locked(name: str) -> dict[str, tuple[str, int]]:
    """Of each distribution in a lock, its version and how many files of it are allowed."""
    text = (LOCKS / f"{name}.txt").read_text()
    found = {}
    for entry in re.split(r"\n(?=[a-z])", text)[1:]:
        pinned = re.match(r"([a-z0-9.-]+)==(\S+) ", entry)
        assert pinned is not None, f"not pinned: {entry.splitlines()[0]}"
        found[pinned[1]] = (pinned[2], len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", entry)))
    return found


@pytest.mark.parametrize("name", WANTED)
def test_a_lock_has_what_pyproject_asks_for(name: str) -> None:
    locked = _locked(name)
    for wanted in map(Requirement, WANTED[name]):
        version, _ = locked.get(canonicalize_name(wanted.name), ("none", 0))
        assert version != "none" and wanted.specifier.contains(version), (
            f"lock/{name}.txt has {version} of {wanted}: run `make lock`"
        )


@pytest.mark.parametrize("lock", sorted(LOCKS.glob("*.txt")), ids=lambda lock: lock.stem)
def test_a_lock_has_a_hash_for_every_file_and_names_no_index(lock: Path) -> None:
    assert all(files for _, files in _locked(lock.stem).values())
    assert "://" not in lock.read_text() and "index" not in lock.read_text()


def test_what_runs_is_what_is_tested() -> None:
    run, tests, deep = _locked("run"), _locked("tests"), _locked("deep")
    assert run.items() <= tests.items() <= deep.items()


def test_every_c_file_is_compiled_and_every_header_makes_it_anew() -> None:
    (server,) = PROJECT["tool"]["setuptools"]["ext-modules"]
    place = ROOT / "ckptfs" / "fuse" / "server"
    for suffix, listed in ((".c", server["sources"]), (".h", server["depends"])):
        assert {ROOT / path for path in listed} == set(place.glob(f"*{suffix}"))


def test_every_file_of_the_package_goes_into_a_wheel() -> None:
    """Modules as packages, the server's sources compiled, all else as data: pages need not."""
    tools = PROJECT["tool"]["setuptools"]
    (server,) = tools["ext-modules"]
    built = {ROOT / path for path in (*server["sources"], *server["depends"])}
    places = [place.parent for place in (ROOT / "ckptfs").rglob("__init__.py")]
    for place in places:
        package = ".".join(place.relative_to(ROOT).parts)
        built.update(place.glob("*.py"))
        for pattern in tools["package-data"].get(package, []):
            found = {*place.glob(pattern)}
            assert found, f"{package} has no {pattern}"
            built.update(found)
    tracked = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "ckptfs"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    there = {ROOT / path for path in tracked.split("\0")[:-1] if (ROOT / path).exists()}
    assert {str(path) for path in there - built} <= {str(ROOT / "ckptfs/fuse/server/README.md")}


SCRIPTS = [*(ROOT / "vagrant").rglob("*.sh"), *(ROOT / "vagrant/packaging").glob("p*rm")]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_has_no_error_of_syntax(script: Path) -> None:
    done = subprocess.run(["sh", "-n", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("script", ["install.sh", "packaging/deb.sh"])
def test_every_program_of_the_package_is_put_in_place(script: str) -> None:
    text = (ROOT / "vagrant" / script).read_text()
    for program in PROJECT["project"]["scripts"]:
        assert re.search(rf"bin/{re.escape(program)}\b", text), f"{script} leaves out {program}"
