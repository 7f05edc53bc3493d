"""The compiled server builds with the kernel headers of Debian 11 and Ubuntu 22.04.

Their headers are those of this machine without what came later; the header says itself, in its
history, in which version each name came.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADER = Path("/usr/include/linux/fuse.h")
#: By the minor version of the protocol that brought them, from the history in the header.
LATER = {
    33: "FUSE_HANDLE_KILLPRIV_V2 FUSE_WRITE_KILL_SUIDGID FATTR_KILL_SUIDGID FUSE_OPEN_KILL_SUIDGID"
    " FUSE_SETXATTR_EXT FUSE_SETXATTR_ACL_KILL_SGID",
    34: "FUSE_SYNCFS",
    35: "FOPEN_NOFLUSH",
    36: "FUSE_INIT_EXT FUSE_INIT_RESERVED FUSE_SECURITY_CTX FUSE_HAS_INODE_DAX FUSE_ATTR_DAX",
    37: "FUSE_TMPFILE",
    38: "FUSE_EXPIRE_ONLY FOPEN_PARALLEL_DIRECT_WRITES",
}

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None or not HEADER.exists(), reason="no compiler or no kernel headers"
)


def trimmed(minor: int) -> str:
    """The header as it was when the protocol had this minor version."""
    names = "|".join(name for came, text in LATER.items() if came > minor for name in text.split())
    text = re.sub(r"(#define FUSE_KERNEL_MINOR_VERSION) \d+", rf"\1 {minor}", HEADER.read_text())
    # A definition, with its continuation, or a value of an enum.
    text = re.sub(rf"^#define ({names})\b.*\n(?:\t.*\n)?", "", text, flags=re.MULTILINE)
    text = re.sub(rf"^\t({names})\s*=.*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"\bflags2\b", "later_flags", text)


@pytest.mark.parametrize("minor", [32, 34], ids=["Debian 11", "Ubuntu 22.04"])
def test_the_server_builds_with_the_headers_of(minor: int, tmp_path: Path) -> None:
    (tmp_path / "linux").mkdir()
    (tmp_path / "linux" / "fuse.h").write_text(trimmed(minor))
    (extension,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "ext-modules"
    ]
    flags = [*extension["extra-compile-args"], "-Werror", f"-I{tmp_path}"]
    flags.append(f"-I{sysconfig.get_path('include')}")
    check = tmp_path / "check.c"
    check.write_text(
        f"#include <linux/fuse.h>\n#if FUSE_KERNEL_MINOR_VERSION != {minor}\n#error wrong\n#endif\n"
        "#ifdef FUSE_INIT_EXT\n#error not trimmed\n#endif\n"
    )
    command = ["gcc", "-fsyntax-only", *flags, str(check), *extension["sources"]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_definitions_for_old_headers_are_those_of_the_new_one(tmp_path: Path) -> None:
    """What `protocol.h` defines by itself must not differ from the kernel's own."""
    source = ROOT / "ckptfs/fuse/server/protocol.h"
    own = dict(re.findall(r"^#define (F\w+) (.*)$", source.read_text(), flags=re.MULTILINE))
    names = [name for text in LATER.values() for name in text.split() if name in own]
    assert len(names) == 4
    check = tmp_path / "check.c"
    lines = "".join(f'_Static_assert({name} == ({own[name]}), "{name}");\n' for name in names)
    check.write_text(f"#include <linux/fuse.h>\n{lines}")
    done = subprocess.run(["gcc", "-fsyntax-only", str(check)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
