"""What a developer waits for all day: builds, and the tests."""

import shutil
from collections.abc import Iterator

from bench.material import pytest_command
from bench.programs import run
from bench.registry import WorkDirectory, workload


@workload("make", "make -j2 of Brotli", scene="make", wants=("make", "c-project"))
def make(place: WorkDirectory) -> Iterator[None]:
    shutil.copytree(place.material["c-project"], place / "project")
    yield
    run("make", "-s", "-j2", "-C", place / "project")


@workload(
    "configure-make",
    "{scale.configure_text} of libsodium",
    scene="configure",
    wants=("make", "autotools-project"),
)
def configure_make(place: WorkDirectory) -> Iterator[None]:
    project = place / "project"
    shutil.copytree(place.material["autotools-project"], project)
    yield
    # Objects for a shared library too would be the same work again.
    run("env", "-C", project, "./configure", "--quiet", "--disable-shared")
    if place.scale.configure_makes:
        run("make", "-s", "-j2", "-C", project)


@workload(
    "pytest",
    "pytest of Jinja",
    scene="pytest",
    wants=("bench-python", "python-project"),
)
def pytest(place: WorkDirectory) -> Iterator[None]:
    project = place / "project"
    shutil.copytree(place.material["python-project"] / "project", project)
    command = pytest_command(place.material["bench-python"], project)
    yield
    run(*command)
