"""ckptfs in everyday use: the whole command, checkpoints by themselves, and a disaster."""

import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench import product, sources
from bench.child import in_child
from bench.contestants import mounted
from bench.figures import Site, figure
from bench.history import TIMEOUT_S
from bench.outcome import Figure
from bench.programs import run
from bench.report import seconds_text
from bench.timing import Times


@figure("save-command")
def save_command(site: Site) -> list[Figure]:
    base = site.base / "command"
    workspace, store = base / "workspace", base / "store"
    workspace.mkdir(parents=True)
    program = Path(sys.executable).with_name("ckptfs")
    save = (program, "save", "--allow-empty", "-w", workspace)
    # As a user has it: compiled before, whatever the environment of the benchmark says.
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(base / "compiled")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    times = Times()
    with mounted(workspace, store, "--no-write-back"):
        _start(save, env)
        for _ in range(4 * site.scale.repeats):
            times.take("save", partial(_start, save, env))
            times.take("pass", partial(_start, (sys.executable, "-c", "pass"), env))
    run("rm", "-rf", base)
    pairs = zip(times.seconds["save"], times.seconds["pass"], strict=True)
    more = statistics.median(mine - theirs for mine, theirs in pairs) * 1e3
    note = f"{seconds_text(times.median('save'))} against {seconds_text(times.median('pass'))}"
    title = "ckptfs save as a process, above python -c pass"
    return [Figure("save-command", title, more, "ms", 60.0, note=note)]


def _start(command: Sequence[str | Path], env: dict[str, str]) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, cwd="/", env=env, check=True)


# -- automatic checkpoints -------------------------------------------------------------------------


@figure("auto")
def auto(site: Site) -> list[Figure]:
    """Writes with automatic checkpoints on and off, by a new command each time. A checkpoint is due
    before each command, and a moment before it destroys what it has made itself."""
    base = site.base / "auto"
    times = Times()
    on, off = base / "on", base / "off"
    for workspace in (on, off):
        workspace.mkdir(parents=True)
    with (
        mounted(on, base / "on-store", "--no-write-back"),
        mounted(off, base / "off-store", "--no-write-back", "--auto", "off"),
    ):
        for repetition in range(2 * site.scale.repeats):
            order = [on, off] if repetition % 2 else [off, on]
            for workspace in order:
                write = partial(_write_files, workspace / f"{repetition}", site.scale.files)
                times.take(workspace.name, partial(in_child, write, TIMEOUT_S))
        taken = product.newest_checkpoint(on, base / "on-store")
    run("rm", "-rf", base)
    if not taken:
        raise RuntimeError("no checkpoint was taken, so there is nothing to compare")
    what = f"writing {site.scale.files:,} files twice and removing them"
    found = times.ratio("auto", f"{what}, automatic checkpoints on, as off", "on", "off", 1.05)
    return [replace(found, note=f"{found.note}; {taken} checkpoints")]


def _write_files(root: Path, count: int) -> None:
    """Each file is made, written anew, and removed."""
    root.mkdir()
    for data in (b"first" * 200, b"second" * 200):
        for number in range(count):
            (root / f"{number}").write_bytes(data)
    for number in range(count):
        (root / f"{number}").unlink()


# -- a disaster ------------------------------------------------------------------------------------


@figure("rm-restore")
def rm_restore(site: Site) -> list[Figure]:
    base = site.base / "disaster"
    workspace, store, plain = base / "workspace", base / "store", base / "plain"
    sources.write_tree(workspace / "tree", site.scale.tree_files)
    run("tar", "cf", base / "tree.tar", "-C", workspace, "tree")
    times = Times()
    with mounted(workspace, store, "--no-write-back"):
        for repetition in range(site.scale.repeats):
            target = plain / f"{repetition}"
            target.mkdir(parents=True)
            times.take("untar", partial(run, "tar", "xf", base / "tree.tar", "-C", target))
            times.add(in_child(partial(_lose_and_restore, workspace, store), TIMEOUT_S))
    run("rm", "-rf", base)
    title = f"restore of {site.scale.tree_files:,} files after rm -rf, as untar on the disk"
    found = times.ratio("rm-restore", title, "restore", "untar", 1 / 3)
    return [found, Figure("rm-restore-rm", "the rm -rf before it", times.median("rm"), "s")]


def _lose_and_restore(workspace: Path, store: Path) -> Times:
    times = Times()
    with product.connect(workspace, store) as client:
        times.take("rm", partial(run, "rm", "-rf", workspace / "tree"))
        times.take("restore", lambda: client.call("restore", {"checkpoint": "0"}))
        if not any((workspace / "tree").iterdir()):
            raise RuntimeError("the restore brought nothing back")
    return times
