"""Decoders fuzzed by atheris, which looks for inputs that reach code no other has reached.

CKPTFS_FUZZ_SECONDS=600 make test-deep ARGS="-k atheris"    for longer
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(
        find_spec("atheris") is None, reason="atheris is not built for this machine"
    ),
]
SECONDS = os.environ.get("CKPTFS_FUZZ_SECONDS", "30")


def _fuzz(target: str, at: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Findings are written to ``at``."""
    return subprocess.run(
        [sys.executable, "-m", "tests.security.fuzzers", target, "-rss_limit_mb=2048",
         f"-artifact_prefix={at}/", *options],
        capture_output=True, text=True, errors="replace", check=False,
        env={**os.environ, "TMPDIR": str(at)},
    )  # fmt: skip


@pytest.mark.parametrize("target", ["wire", "nearly", "records", "frames", "lower", "lmdb_pages"])
def test_atheris_finds_nothing(target: str, tmp_path: Path) -> None:
    done = _fuzz(target, tmp_path, f"-max_total_time={SECONDS}", "-max_len=4096")
    assert done.returncode == 0, done.stderr[-4_000:]
    assert "Done " in done.stderr


def test_atheris_finds_what_is_planted(tmp_path: Path) -> None:
    done = _fuzz("planted", tmp_path, "-runs=1000000")
    assert done.returncode != 0 and "AssertionError: found" in done.stderr + done.stdout
