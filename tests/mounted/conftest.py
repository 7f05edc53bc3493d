"""Fixtures of the mounted tests: workspaces, and the rule that none is skipped without cause.

Every module runs through both paths from the kernel, the compiled server and the portable one. The
second run belongs to `make test-deep`, but for the modules in `BOTH`, whose requests, attributes,
caches or ends differ most between the two.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from tests.support.mounting import HAVE_FUSE, PLAIN, Workspace, scratch, workspace

HERE = Path(__file__).parent

#: Modules whose tests go through the portable path in the default suite, too.
BOTH = {
    "test_append",
    "test_content",
    "test_directories",
    "test_history",
    "test_history_delete",
    "test_links",
    "test_locks",
    "test_mapping_and_copying",
    "test_modes",
    "test_names",
    "test_pending_creates",
    "test_readdir",
    "test_remount",
    "test_rename",
    "test_special_files",
    "test_times",
    "test_unlink_open",
    "test_xattrs",
}
#: Modules that choose the path themselves, or that ask for what pyfuse3 has no handler for.
ONE = {
    "test_change_times",
    "test_connections",
    "test_control_files",
    "test_ends",
    "test_floor",
    "test_full_disk",
    "test_paths",
    "test_ranges",
    "test_sandbox",
    "test_scan_behind",
    "test_server",
    "test_set_id",
    "test_steps",
}
_numbers = count(1)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs_root: makes devices, changes owners or users")
    config.addinivalue_line("markers", "needs_program(names): drives one that may be missing")
    config.addinivalue_line("markers", "compiled_only: asks for what pyfuse3 has no handler for")
    config.addinivalue_line("markers", "needs_mount: is about mounting; a plain directory has none")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    module = Path(metafunc.module.__file__ or "")
    if HERE not in module.parents or module.stem in ONE or PLAIN:
        return
    marks = () if module.stem in BOTH else (pytest.mark.deep,)
    served_by: list[object] = ["compiled", pytest.param("portable", marks=marks)]
    if any(mark.name == "compiled_only" for mark in metafunc.definition.iter_markers()):
        served_by.pop()
    metafunc.parametrize("served_by", served_by, indirect=True, scope="module")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE not in item.path.parents:
            continue
        reason = _excuse(item)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def _excuse(item: pytest.Item) -> str | None:
    """The only reasons for which a mounted test may be left out."""
    wanted = item.get_closest_marker("needs_program")
    if wanted and not any(shutil.which(name) for name in wanted.args):
        return f"{wanted.args[0]} is not installed"
    if item.get_closest_marker("needs_root") and os.geteuid() != 0:
        return "needs root"
    if PLAIN:
        return "on a plain directory" if item.get_closest_marker("needs_mount") else None
    return None if HAVE_FUSE else "no /dev/fuse"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A mounted test that skips itself where it could run is a failure."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and _excuse(item) is None:
        report.outcome = "failed"
        report.longrepr = f"skipped although it could run: {report.longrepr}"
    return report


@pytest.fixture(scope="module", autouse=True)
def served_by(request: pytest.FixtureRequest) -> Iterator[str]:
    """The path that answers the requests: ``compiled`` or ``portable``."""
    path = getattr(request, "param", "compiled")
    with pytest.MonkeyPatch.context() as patch:
        if path == "portable":
            patch.setenv("CKPTFS_SERVER", "off")
        yield path


@pytest.fixture(scope="module")
def shared(served_by: str) -> Iterator[Workspace]:
    """One mount for all the tests of a module; they use it through `mount`.

    Nobody looks at the lower directory afterwards, and filling it takes longer than some tests.
    """
    with workspace("--no-write-back") as made:
        yield made


@pytest.fixture
def mount(shared: Workspace) -> Iterator[Path]:
    """An empty directory of the test's own in a mounted workspace."""
    yield from _own_directory(shared)


def _own_directory(shared: Workspace) -> Iterator[Path]:
    shared.quiet()
    path = shared.path / f"t{next(_numbers)}"
    path.mkdir()
    yield path
    shared.quiet()


@pytest.fixture
def make_workspace() -> Iterator[Callable[..., Workspace]]:
    """Makes workspaces with mount options of the test's choice, for this test alone."""
    with ExitStack() as stack:
        yield lambda *options: stack.enter_context(workspace(*options))


@pytest.fixture
def own_mount(make_workspace: Callable[..., Workspace]) -> Workspace:
    """A workspace for tests that unmount, remount or kill."""
    return make_workspace()


@pytest.fixture(scope="module")
def shared_by_all(served_by: str) -> Iterator[Workspace]:
    with workspace("--allow-other", "--no-write-back") as made:
        yield made


@pytest.fixture
def open_mount(shared_by_all: Workspace) -> Iterator[Path]:
    """Like `mount`, in a workspace that other users may enter."""
    yield from _own_directory(shared_by_all)


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """An empty ordinary directory beside the workspace, never in one."""
    with scratch(PLAIN) as base:
        yield base
