"""`ckptfs demo`: a session with a workspace, played for real in a temporary directory.

The commands run as a user would type them, with a data directory of their own, so nothing of the
user's is read or changed. However the demo ends, what it made is unmounted and removed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ckptfs.cli import output
from ckptfs.cli.output import JsonObject
from ckptfs.daemon import mounts, preflight
from ckptfs.errors import CkptfsError, MountError, shell
from ckptfs.interrupts import deferred

#: Seconds to read a comment, and to read what a command printed.
_COMMENT_S, _OUTPUT_S = 1.5, 2.0
#: Seconds that a command may take; each takes a fraction of one.
_PATIENCE_S = 60.0
_DOCTOR = "`ckptfs doctor` says whether this machine can serve workspaces."


class Step(NamedTuple):
    """A command as it is typed, ``{}`` for the workspace, and what it is for."""

    comment: str
    command: str


_STEPS = (
    Step("An ordinary directory becomes a workspace, in place.", "ckptfs mount {}"),
    Step("It looks as it did.", "cd {}; ls"),
    Step("Programs work in it as before: an edit ...", "echo 'int answer = 42;' > src/main.c"),
    Step("... and an accident.", "rm -rf src"),
    Step("A checkpoint was taken before it, by itself.", "ckptfs list"),
    Step("Each checkpoint is a read-only directory.", "cat .checkpoints/1/src/main.c"),
    Step("This is what the edit changed.", "ckptfs diff 0 1"),
    Step("Everything goes back to the newest checkpoint.", "ckptfs rewind --force"),
    Step("The file is there again, with the edit.", "cat src/main.c"),
    Step("One file goes back further, alone.", "ckptfs restore 0 src/main.c"),
    Step("It is what it was at first.", "cat src/main.c"),
    Step("A restore can be taken back, too.", "ckptfs undo"),
    Step("The edit is back.", "cat src/main.c"),
    Step("Unmounted, it is an ordinary, current directory.", "cd /; ckptfs umount {}"),
)
_FILES = {
    "README": "A project to try things on.\n",
    "src/main.c": "int answer = 0;\n",
    "src/util.c": "int twice(int number) { return 2 * number; }\n",
}


class Scene:
    """The temporary directory: the workspace ``proj``, and beside it all that ckptfs keeps."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.workspace = base / "proj"
        #: HOME stays: Python may find its packages there.
        self.environ = os.environ | {
            "XDG_DATA_HOME": str(base / "data"),
            "XDG_CONFIG_HOME": str(base / "config"),
            "XDG_STATE_HOME": str(base / "state"),
            "XDG_RUNTIME_DIR": str(base / "run"),
        }

    def fill(self) -> None:
        (self.base / "run").mkdir(mode=0o700)
        for name, text in _FILES.items():
            path = self.workspace / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def run(self, command: str) -> str:
        """Run a command as in a shell in the workspace, to its end; what it printed. A signal to
        the demo waits for it: it has a process group of its own."""
        ours = f'ckptfs() {{ {shell(sys.executable)} -P -m ckptfs "$@"; }}\n'
        with deferred():
            done = subprocess.run(
                ["sh", "-c", f"{ours}{command}" if "ckptfs " in command else command],
                cwd=self.base if command.startswith("ckptfs mount") else self.workspace,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="surrogateescape",
                timeout=_PATIENCE_S,
                process_group=0,
                check=False,
            )
        if done.returncode != 0:
            said = " ".join(done.stdout.split()).rstrip(".") or "nothing"
            raise CkptfsError(
                f"The demo failed: `{command}` ended with {done.returncode} and said: {said}. "
                "What the demo made is removed.",
                hint=_DOCTOR,
            )
        return done.stdout

    def remove(self) -> None:
        """Unmount and remove everything."""
        if mounts.mount_at(self.workspace) is not None:
            # Whether it worked is seen below.
            with suppress(CkptfsError, subprocess.TimeoutExpired):
                self.run(f"cd /; ckptfs umount --force --no-write-back {shell(self.workspace)}")
        if mounts.mount_at(self.workspace) is not None:
            raise CkptfsError(
                f"Cannot unmount the demo's workspace {self.workspace}: it stays where it is.",
                hint=f"umount -l {shell(self.workspace)}; rm -r {shell(self.base)}",
            )
        shutil.rmtree(self.base)


def demo(args: Namespace) -> int:
    _require_fuse()
    fast = args.fast or args.json
    played: list[JsonObject] = []
    with _signals_interrupt():
        try:
            with _scene() as scene:
                if not args.json:
                    _say(_opening(scene))
                for step in _STEPS:
                    played.append(_play(scene, step, fast=fast, silent=args.json))
        except KeyboardInterrupt:
            raise KeyboardInterrupt("Stopped. What the demo made is removed.") from None
        except subprocess.TimeoutExpired as late:
            raise CkptfsError(
                f"The demo failed: a command did not end within {late.timeout:g} s. "
                "What the demo made is removed.",
                hint=_DOCTOR,
            ) from None
    record = {"directory": str(scene.base), "commands": played}
    output.result(record, _closing(scene), as_json=args.json)
    return 0


def _require_fuse() -> None:
    """Refuse where nothing can be mounted, before anything is made."""
    try:
        preflight.check_machine(Path(tempfile.gettempdir(), "ckptfs-demo"), allow_other=False)
    except MountError as error:
        error.hint = f"{error.hint}\n{_DOCTOR}"
        raise


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Let the end of the terminal, and SIGTERM, do what Ctrl-C does: SIGTERM would end the process
    with the workspace mounted."""
    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, signal.default_int_handler),
        signal.SIGHUP: signal.getsignal(signal.SIGHUP),
    }
    if before[signal.SIGHUP] is not signal.SIG_IGN:  # as nohup(1) has it
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _scene() -> Iterator[Scene]:
    scene = None
    try:
        with deferred():
            scene = Scene(Path(tempfile.mkdtemp(prefix="ckptfs-demo-")).resolve())
        scene.fill()
        yield scene
    finally:
        if scene is not None:
            with deferred():
                scene.remove()


def _play(scene: Scene, step: Step, *, fast: bool, silent: bool) -> JsonObject:
    command = step.command.format(shell(scene.workspace))
    if not silent:
        _say(f"# {step.comment}\n$ {output.safe(command)}")
        _pause(0 if fast else _COMMENT_S)
    printed = scene.run(command)
    if not silent:
        _say(printed)
        _pause(0 if fast else _OUTPUT_S)
    return {"command": command, "output": printed}


def _say(text: str) -> None:
    print(text, flush=True)


def _pause(seconds: float) -> None:
    time.sleep(seconds)


def _opening(scene: Scene) -> str:
    return (
        f"A session with ckptfs, for real, in {output.safe(scene.base)}.\n"
        "Ctrl-C ends it and removes what it made.\n"
    )


def _closing(scene: Scene) -> str:
    return (
        f"That was all. The demo made {output.safe(scene.base)}, with a project, its store and a\n"
        "registry, and has removed it again; nothing else was touched.\n"
        "Your turn: ckptfs mount DIR"
    )
