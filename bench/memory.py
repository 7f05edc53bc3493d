"""Memory that is ready to be used.

A virtual machine may give memory that is free back to its host, and to get it again takes longer
than to fill it: 512 MB are written to ext4 in 0.15 s, or in 1.1 to 2 s if the memory for them has
to come from the host first. Rows that need much therefore have it made ready, for each in its turn.
"""

import mmap

_MIB = 1 << 20
_STEP = 2 * _MIB


def make_ready(size_mb: int) -> None:
    """Take so much, use it, and free it, just before it is needed."""
    piece = b"\1" * _STEP
    with mmap.mmap(-1, size_mb * _MIB) as memory:
        for start in range(0, size_mb * _MIB - _STEP + 1, _STEP):
            memory[start : start + _STEP] = piece
