"""How long one large file takes in several directories, in turns, in milliseconds.

    python3 turns.py MB TIMES DIR...

Written in pieces of 1 MiB and closed, written and synced, read again, and read with cold caches
(root only). A virtual machine may give free memory back to its host, and getting it again takes
longer than anything that is measured here: so as much as is needed is taken and freed before each.
"""

import mmap
import os
import random
import sys
import time
from pathlib import Path

_MIB = 1 << 20
_BLOCK = 1 << 16
#: For the file in the pages of FUSE and of the disk, and some.
_WARM = 5


def _warm(size: int) -> None:
    piece = b"\1" * (2 * _MIB)
    with mmap.mmap(-1, size) as memory:
        for start in range(0, size - len(piece), len(piece)):
            memory[start : start + len(piece)] = piece


def _fill(pieces: list[bytearray]) -> None:
    """No two blocks are alike, nor like any that were there before."""
    base = os.urandom(_MIB)
    for piece in pieces:
        piece[:] = base
        for start in range(0, _MIB, _BLOCK):
            piece[start : start + 16] = random.randbytes(16)


def _timed(path: Path, pieces: list[bytearray], *, synced: bool) -> float:
    start = time.perf_counter()
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
    for piece in pieces:
        if os.write(fd, piece) != len(piece):
            raise RuntimeError("short write")
    if synced:
        os.fsync(fd)
    os.close(fd)
    return time.perf_counter() - start


def _read(path: Path) -> float:
    room = bytearray(_MIB)
    fd = os.open(path, os.O_RDONLY)
    start = time.perf_counter()
    while os.readv(fd, [room]):
        pass
    took = time.perf_counter() - start
    os.close(fd)
    return took


def _turn(directory: Path, pieces: list[bytearray]) -> dict[str, float]:
    path = directory / "turn"
    found = {}
    for name in ("written and synced", "written"):
        _fill(pieces)
        os.sync()
        _warm(_WARM * len(pieces) * _MIB)
        found[name] = _timed(path, pieces, synced=name != "written")
        if name != "written":
            path.unlink()
            time.sleep(0.5)  # what that leaves to be done
    _read(path)
    found["read, warm"] = _read(path)
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")
    _warm(_WARM * len(pieces) * _MIB)
    found["read, cold"] = _read(path)
    path.unlink()
    time.sleep(0.5)
    return found


def main(size: int, times: int, directories: list[Path]) -> None:
    pieces = [bytearray(_MIB) for _ in range(size)]
    found: dict[tuple[str, Path], list[int]] = {}
    for _ in range(times):
        for directory in directories:
            for name, seconds in _turn(directory, pieces).items():
                found.setdefault((name, directory), []).append(round(seconds * 1e3))
    for (name, directory), taken in sorted(found.items()):
        print(f"{name:20}", f"{directory!s:30}", *sorted(taken))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), [Path(name) for name in sys.argv[3:]])
