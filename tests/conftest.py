"""Settings that hold for every test. Fixtures live beside the tests that need them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from ckptfs.store import environment

# Tests start the CLI a thousand times; without bytecode it would be compiled as often.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A read of a table past a buffer that holds a newer record raises, in daemons of the tests too.
os.environ["CKPTFS_CHECK_PENDING"] = "1"

# No test asserts a time: how long an example takes depends on what else the machine does.
settings.register_profile("same every time", derandomize=True, deadline=None)
settings.register_profile("others every time", deadline=None)


def pytest_configure(config: pytest.Config) -> None:
    """`make test` tries the same examples every time, so that what passed passes; the deep tests,
    and `--hypothesis-seed`, try others."""
    others = config.option.markexpr == "deep" or config.getoption("hypothesis_seed", None)
    settings.load_profile("others every time" if others else "same every time")
    _hear_signals()


def _hear_signals() -> None:
    """A shell that has the tests run in the background ignores these, and so would every program
    that is started here."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            python = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if python else signal.SIG_DFL)


@pytest.fixture(autouse=True)
def closed_stores() -> Iterator[None]:
    """A test closes the stores that it opens: one that is collected later, perhaps in another
    thread, would take another test with it."""
    before = set(environment._open)
    yield
    left = [env.path() for key, (env, _) in environment._open.items() if key not in before]
    assert not left, f"stores were left open: {left}"


@pytest.fixture(autouse=True)
def ordinary_umask() -> object:
    """Modes in the tests are written for umask 022, whatever the shell that started them has."""
    before = os.umask(0o022)
    yield
    os.umask(before)
