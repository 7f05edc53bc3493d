"""Installing what others wrote: pip and npm, from what was fetched before."""

import shutil
from collections.abc import Iterator

from bench.material import NPM_OPTIONS
from bench.programs import run
from bench.registry import WorkDirectory, workload


@workload(
    "pip-install",
    "pip install of {scale.wheels_text}",
    scene="pip",
    wants=("wheels", "bench-python"),
)
def pip_install(place: WorkDirectory) -> Iterator[None]:
    python, wheels = place.material["bench-python"], place.material["wheels"]
    run(python, "-m", "venv", "--without-pip", place / "venv")
    pip = (python, "-m", "pip", "--python", place / "venv")
    quiet = ("--quiet", "--disable-pip-version-check", "--no-index", "--find-links", wheels)
    yield
    run(*pip, "install", *quiet, *place.scale.wheels)


@workload("npm-install", "npm install of a front end", scene="npm", wants=("npm", "front-end"))
def npm_install(place: WorkDirectory) -> Iterator[None]:
    shutil.copytree(place.material["front-end"] / "project", place / "project")
    yield
    _npm(place, "install")


@workload(
    "npm-ci",
    "npm ci over what is installed",
    scene="npm",
    needs=("npm-install",),
    wants=("npm", "front-end"),
)
def npm_ci(place: WorkDirectory) -> Iterator[None]:
    yield
    _npm(place, "ci")


def _npm(place: WorkDirectory, verb: str) -> None:
    cache = ("--cache", place.material["front-end"] / "cache", "--prefix", place / "project")
    run("npm", verb, "--offline", *NPM_OPTIONS, *cache)
