"""What people install, made and tried for real, in places of its own: needs the network, and
for the bare systems debootstrap and root. From what git has committed, as the recipes do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environments.environments import ROOT
from tests.support.mounting import HAVE_FUSE

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse"),
]

#: Debian 12 and 13, and Ubuntu 26.04: Python 3.11, 3.13 and 3.14.
BARE = {
    "bookworm": "http://deb.debian.org/debian",
    "trixie": "http://deb.debian.org/debian",
    "resolute": "http://archive.ubuntu.com/ubuntu",
}
#: Where Ubuntu's packages keep the key of its archive.
UBUNTU_KEY = Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    place = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, place], check=True)
    return place


def _run(words: list[str | Path], **more: str) -> str:
    done = subprocess.run(words, env={**os.environ, **more}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_source_distribution_and_the_wheel_are_installed_and_tried(clone: Path) -> None:
    said = _run(["sh", clone / "vagrant/packaging/dist.sh", sys.executable])
    assert said.count("installed and tried") == 2
    made = sorted(path.name for path in (clone / "dist").iterdir())
    assert [name.rpartition(".")[2] for name in made] == ["whl", "gz"] and "manylinux" in made[0]


def test_without_a_compiler_it_is_installed_serves_and_says_so(clone: Path, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for program in ("sh", "rm", "env"):
        (programs / program).symlink_to(shutil.which(program) or program)
    python = tmp_path / "venv" / "bin" / "python"
    _run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"])
    where = _run([sys.executable, "-c", "import pyfuse3; print(pyfuse3.__path__[0])"]).strip()
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "others.pth").write_text(f"{Path(where).parent}\n")
    build = [
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        clone,
    ]
    _run([sys.executable, *build], PATH=str(programs), CC=str(programs / "gcc"))
    work = tmp_path / "work"
    work.mkdir()
    home = {"XDG_DATA_HOME": str(tmp_path / "data"), "PYTHONSAFEPATH": "1"}
    ckptfs: list[str | Path] = [python.parent / "ckptfs"]
    assert '"server": "portable"' in _run([*ckptfs, "mount", work, "--json"], **home)
    try:
        assert "Python's headers" in _run([*ckptfs, "doctor", "-w", work], **home)
    finally:
        _run([*ckptfs, "umount", work], **home)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes a bare system")
@pytest.mark.parametrize("suite", BARE)
def test_a_bare_system_is_set_up_and_has_the_debian_package(tmp_path: Path, suite: str) -> None:
    if shutil.which("debootstrap") is None:
        pytest.skip("no debootstrap here")
    place, words = tmp_path / suite, ["debootstrap", "--variant=minbase"]
    if "ubuntu" in BARE[suite]:
        if not UBUNTU_KEY.exists():
            pytest.skip(f"no {UBUNTU_KEY} here")
        # A suite that is newer than this debootstrap is made as all others of Ubuntu are.
        script = ["/usr/share/debootstrap/scripts/gutsy"]
        # Its universe has python3-venv.
        words += [f"--keyring={UBUNTU_KEY}", "--components=main,universe"]
    else:
        script = []
    _run([*words, suite, place, BARE[suite], *script])
    assert "== done" in _run(["sh", ROOT / "vagrant/packaging/chroot.sh", place])
