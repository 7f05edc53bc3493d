"""One directory with very many entries."""

import os
from collections.abc import Iterator

from bench.programs import run
from bench.registry import Place, workload


def _ls(place: Place) -> Iterator[None]:
    root = place / "many"
    if not root.exists():
        root.mkdir()
        for number in range(place.scale.listing_entries):
            os.close(os.open(f"{root}/entry{number:06}", os.O_CREAT | os.O_WRONLY, 0o644))
    run("ls", "-l", root)
    yield
    run("ls", "-l", root)


workload("ls-warm", "ls -l of {scale.listing_entries:,} entries, warm", scene="ls", mark=3.0)(_ls)
workload(
    "ls-cold", "ls -l of {scale.listing_entries:,} entries, cold", scene="ls", mark=3.0, cold=True
)(_ls)
