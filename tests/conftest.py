"""Settings that hold for every test. Fixtures live beside the tests that need them."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# Tests start the CLI a thousand times; without bytecode it would be compiled as often.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile("same every time", derandomize=True)


def pytest_configure(config: pytest.Config) -> None:
    """`make test` tries the same examples every time, so that what passed passes; the deep tests,
    and `--hypothesis-seed`, try others."""
    if config.option.markexpr != "deep" and config.getoption("hypothesis_seed", None) is None:
        settings.load_profile("same every time")


@pytest.fixture(autouse=True)
def ordinary_umask() -> object:
    """Modes in the tests are written for umask 022, whatever the shell that started them has."""
    before = os.umask(0o022)
    yield
    os.umask(before)
