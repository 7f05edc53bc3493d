"""The C of the mount under AddressSanitizer and UndefinedBehaviorSanitizer.

The unit and mounted suites, damaged pages, and a load. A report of any process fails the test.

    make test-deep ARGS="tests/sanitizers -s"
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.sanitizers.build import Sanitized, is_possible
from tests.support.mounting import HAVE_FUSE

pytestmark = [
    pytest.mark.deep,
    pytest.mark.timeout(0),
    pytest.mark.skipif(not is_possible(), reason="gcc has no sanitizers"),
]

_SUITES = {
    # A process that a test ends by SIGSEGV is a report, too.
    "unit": ["-k", "not the_death_of_the_process", "tests/unit"],
    "mounted": ["-k", "not portable", "tests/mounted"],
    "damage": ["tests/crash/test_flipped_while_mounted.py", "tests/crash/test_damaged_counters.py"],
    "machines": ["tests/property/test_posix_machine.py"],
}


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Sanitized:
    return Sanitized(tmp_path_factory.mktemp("sanitized"))


@pytest.mark.parametrize(
    ("what", "told"), [("memory", "heap-buffer-overflow"), ("integer", "AddressSanitizer: ILL")]
)
def test_the_sanitizers_find_what_is_wrong(sanitized: Sanitized, what: str, told: str) -> None:
    script = f"from ckptfs.fuse.server import binding; binding.load().module.overflow({what!r})"
    sanitized.run("-c", script)
    reports = sanitized.take_reports()
    assert any(told in report and "server.c" in report for report in reports), reports


@pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")
@pytest.mark.parametrize("suite", _SUITES)
def test_the_suites_pass_under_the_sanitizers(sanitized: Sanitized, suite: str) -> None:
    _require_silence(sanitized, *_SUITES[suite])


@pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")
def test_a_load_passes_under_the_sanitizers(sanitized: Sanitized, tmp_path: Path) -> None:
    """What it takes is not judged here."""
    seconds = {"CKPTFS_LOAD_SECONDS": "20", "CKPTFS_LOAD_REPORT": str(tmp_path)}
    _require_silence(sanitized, "-m", "deep", "tests/load/test_load.py", **seconds)


def _require_silence(sanitized: Sanitized, *arguments: str, **environment: str) -> None:
    """Run tests. Whether all of them pass is what `make test` asks: some know how fast things are,
    and a sanitizer takes its time. A process that a sanitizer ends has left a report."""
    options = ("-q", "-n", "2", "-p", "no:cacheprovider")
    done = sanitized.run("-m", "pytest", *options, *arguments, **environment)
    print(done.stdout[-300:])
    reports = sanitized.take_reports()
    assert not reports, "\n".join(reports)
    assert re.search(r"\b\d+ (passed|failed)", done.stdout), done.stdout[-4_000:]
