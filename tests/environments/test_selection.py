"""A selection of the mounted, crash and security suites once more, in other environments."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest

from tests.environments.environments import ENVIRONMENTS, ROOT, Environment
from tests.support.mounting import HAVE_FUSE, scratch

pytestmark = [
    pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes namespaces and users"),
]

everywhere = pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda found: found.name)


@everywhere
@pytest.mark.timeout(280)
def test_the_basic_suites_pass(environment: Environment) -> None:
    named = [word for word in environment.chosen if not word.startswith("-")]
    _run(environment, environment.chosen, "not deep", at_least=len(named))


@everywhere
@pytest.mark.deep
def test_the_wide_suites_pass(environment: Environment) -> None:
    _run(environment, environment.wide, "not deep", at_least=20)


def _run(environment: Environment, chosen: tuple[str, ...], marks: str, *, at_least: int) -> None:
    if not shutil.which(environment.program):
        pytest.skip(f"{environment.program} is not installed")
    words = ["-m", "pytest", "-q", "--maxfail=5", "-p", "no:cacheprovider", "-p", "no:xdist"]
    with scratch() as stage:
        done = subprocess.run(
            environment.wrap(stage, [*words, "-m", marks, *chosen]),
            capture_output=True,
            text=True,
            env=environment.env(stage),
            cwd=ROOT,
        )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) >= at_least, done.stdout[-2000:]
