"""The small history that the stored workspaces hold, and how one of them is made:

    python -m tests.compat.history tests/compat/format-N.tar.xz

with the last release that writes format N. What such a workspace shows must never change, so
neither may `states` of its format.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path

from ckptfs.history import compression, seal
from ckptfs.store.format import FORMAT_VERSION
from tests.history.edits import Edits

State = dict[str, bytes]

_LINE = b"%d: the quick brown fox jumps over the lazy dog, %d times\n"


def text(seed: int, lines: int) -> bytes:
    return b"".join(_LINE % (number, number * seed % 97) for number in range(lines))


def states(version: int) -> list[State]:
    """What the files hold at each checkpoint: inline, in one block, in several, in the heap;
    edited, replaced and removed. From format 5 on there is a large file that grows in front."""
    found: list[State] = []
    for step in range(8):
        state = {f"src/{n}.txt": text(n + step * (n % 3 == 0), 60) for n in range(12)}
        state |= {f"small-{n}": b"%d of step %d\n" % (n, step // 3) * 20 for n in range(5)}
        state["large"] = text(1, 1500 + 40 * step) + b"end of step %d\n" % step
        state["tiny"] = b"%d" % step
        state["huge"] = text(step // 4, 9_000)
        if version >= 5:
            state["shifted"] = text(7, 700 * step) + text(1, 20_000)
        if step % 2:
            state["sometimes"] = text(step, 100)
        found.append(state)
    return found


def replay(work: Edits) -> None:
    """Make the history, and compress all but its end."""
    work.mkdir("src")
    before: State = {}
    for step, state in enumerate(states(FORMAT_VERSION)):
        for path in before.keys() - state.keys():
            work.remove(path)
        for path, data in state.items():
            if before.get(path) != data:
                work.put(path, data)
        before = state
        seal(work.fs, "manual", f"step {step}", work.fs.clock())
        if step == 5:
            compression.compress(work.fs)
            compression.repack(work.fs)


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        work = Edits(Path(scratch) / "store")
        replay(work)
        work.fs.commit()
        work.store.compact()
        work.store.close()
        with tarfile.open(target, "w:xz") as packed:
            for name in ("data.mdb", "heap"):
                packed.add(Path(scratch) / "store" / name, name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
