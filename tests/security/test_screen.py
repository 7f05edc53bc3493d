"""Whatever a name, a message or a command line holds, a terminal gets no control characters."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounting import HAVE_FUSE, Workspace, succeed, workspace

pytestmark = pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")

EVIL = "\x1b]0;owned\x07\x1b[2Jname\x9b31m\r\x08\u202egnp.exe"
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def evil() -> Iterator[Workspace]:
    with workspace("--no-write-back") as made:
        (made.path / EVIL).mkdir()
        (made.path / EVIL / EVIL).write_text("one\n")
        made.cli("save", EVIL, "--meta", f"{EVIL}={EVIL}", "-w", made.path)
        (made.path / EVIL / EVIL).write_text("two\n")
        # A process whose name and command line are as bad makes the next checkpoint's cause.
        path = made.path / EVIL / "late"
        subprocess.run(["bash", "-c", f'exec -a "$0" touch "{path}"', EVIL], check=False)
        (made.path / EVIL / EVIL).rename(made.path / EVIL / (EVIL + "2"))
        made.cli("save", EVIL, "--tag", "t", "-w", made.path)
        yield made


VERBS = [
    "status",
    "list",
    "list --all",
    "show latest",
    "show latest --stat",
    "diff 0 latest --name-status",
    "diff 0 latest --stat",
    "log --restores",
    "log EVIL",
    "restore 0 --dry-run",
    "restore 0 EVIL --dry-run",
    "rewind --dry-run",
    "purge EVIL --dry-run",
    "prune --dry-run",
    "check --deep",
    "tag latest EVIL",
    "restore EVIL",
    "delete EVIL",
    "diff EVIL",
    "config EVIL",
    "export --checkpoint EVIL DEST",
    "restore 0 EVIL --force",
]


#: Those that look different in front of a terminal: paged, in colour, or with a question.
ON_TERMINALS = ["list", "show latest", "diff 0 latest", "log EVIL", "restore 0 EVIL", "purge EVIL"]


@pytest.mark.parametrize(
    ("words", "terminal"), [*((v, False) for v in VERBS), *((v, True) for v in ON_TERMINALS)]
)
def test_no_verb_lets_them_through(evil: Workspace, words: str, terminal: bool) -> None:
    dest = str(evil.store.with_name("dest"))
    line = [EVIL if word == "EVIL" else dest if word == "DEST" else word for word in words.split()]
    line += ["-w", str(evil.path)]
    if terminal:
        shown = _on_a_terminal(evil, line)
    else:
        done = evil.cli(*line)
        shown = done.stdout + done.stderr
        assert "Traceback" not in shown
    # Our own colours and cursor moves, in front of a terminal, are not what is looked for.
    bare = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown) if terminal else shown
    assert "\x1b[2J" not in shown and "\x1b]0" not in shown
    assert not _CONTROL.search(bare.replace("\r\n", "\n").replace("\r", "")), repr(bare)


def _on_a_terminal(made: Workspace, line: list[str]) -> str:
    import pty
    import sys

    pid, fd = pty.fork()
    if not pid:
        os.environ.update(made.env, TERM="xterm", PAGER="cat", COLUMNS="200")
        os.execv(sys.executable, [sys.executable, "-m", "ckptfs", *line])
    read = []
    try:
        while data := os.read(fd, 65536):
            read.append(data)
            if b"[y/N]" in data or b"? " in data[-4:]:
                os.write(fd, b"n\n")
    except OSError:
        pass  # a terminal whose program ended
    os.close(fd)
    os.waitpid(pid, 0)
    return b"".join(read).decode(errors="surrogateescape")


def test_nothing_in_a_store_names_the_environment(evil: Workspace) -> None:
    """Commands and names are kept; variables, which hold secrets, never."""
    word = "SWORDFISH-in-a-variable"
    env = {**os.environ, "API_TOKEN": word}
    path = evil.path / "touched"
    subprocess.run(["bash", "-c", f'touch "{path}"; rm "{path}"'], env=env, check=True)
    succeed(evil.cli("save", "a name that is kept", "-w", evil.path))
    kept = b"".join(file.read_bytes() for file in Path(evil.store).iterdir() if file.is_file())
    assert b"a name that is kept" in kept and word.encode() not in kept
