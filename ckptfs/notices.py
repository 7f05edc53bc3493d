"""What a verb has to tell besides its result. Costs nothing to import: the command line puts its
own function here before it knows which verb it is about to load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def log_conflicts(record: dict[str, Any]) -> None:
    import logging  # late: conflicts are rare

    for found in record["conflicts"]:
        logging.getLogger(__name__).warning(
            "%r changed on both sides; the version from outside is kept as %r",
            found["path"],
            found["kept_as"],
        )


#: Hears of what a directory that is not mounted and its workspace both changed, as the record of a
#: pass without anything else to remark on. The scan that meets a conflict resolves it, so no
#: later pass reports it.
on_conflicts: Callable[[dict[str, Any]], None] = log_conflicts
