"""What a developer waits for all day: a build, and the tests."""

import shutil
from collections.abc import Iterator

from bench.programs import run
from bench.registry import Place, workload


@workload("make", "make -j2 of Brotli", scene="make", wants=("make", "c-project"))
def make(place: Place) -> Iterator[None]:
    shutil.copytree(place.material["c-project"], place / "project")
    yield
    run("make", "-s", "-j2", "-C", place / "project")


@workload(
    "pytest",
    "pytest of Flask",
    scene="pytest",
    wants=("bench-python", "python-project"),
)
def pytest(place: Place) -> Iterator[None]:
    project = place / "project"
    shutil.copytree(place.material["python-project"] / "project", project)
    # Another plugin's options or a user's settings are none of the row's business.
    alone = ("env", f"PYTHONPATH={project / 'src'}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1")
    python = place.material["bench-python"]
    yield
    run(*alone, python, "-m", "pytest", "-q", "--rootdir", project, project / "tests")
