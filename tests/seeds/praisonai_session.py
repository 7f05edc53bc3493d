"""What a program does with PraisonAI's checkpoint service, and what it sees: the same on theirs and
on ours. `python praisonai_session.py theirs|ours WORKSPACE STORAGE` prints it as JSON.

Knows nothing of the tests, since it is also run where only PraisonAI's package is installed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any


def _result(found: Any, names: dict[str, str]) -> dict[str, Any]:
    point = found.checkpoint
    return {
        "success": found.success,
        "checkpoint": None if point is None else names.setdefault(point.id, point.message),
        "step": None if point is None else point.step,
        # Why something failed is in words of its own, unless the service itself says it.
        "error": None if found.error is None else found.error.partition(":")[0][:24],
    }


async def session(service: Any, workspace: Path) -> list[Any]:
    """Ids differ, so checkpoints are told by their messages."""
    names: dict[str, str] = {}
    seen: list[Any] = []
    heard: list[str] = []
    file = workspace / "file.txt"

    def files() -> dict[str, str]:
        return {path.name: path.read_text() for path in sorted(workspace.glob("*.txt"))}

    seen.append(_result(await service.save("too early"), names))
    for event in ("initialized", "checkpoint_created", "checkpoint_restored"):
        kind = next(item for item in _events(service) if item.value == event)
        service.on(kind, lambda _, event=event: heard.append(event))
    file.write_text("one\n")
    seen.append(await service.initialize())
    seen.append(service.is_initialized)
    (workspace / "new.txt").write_text("new\n")
    first = await service.save("first")
    seen.append(_result(first, names))
    seen.append(_result(await service.save("nothing new"), names))
    seen.append(_result(await service.save("empty", allow_empty=True), names))
    file.write_text("one\ntwo\n")
    seen.append(_result(await service.save("changed", step=1), names))
    (workspace / "more.txt").write_text("x\ny\n")
    found = await service.diff(first.checkpoint.id)
    seen.append(sorted([item.path, item.additions, item.deletions] for item in found.files))
    seen.append([found.total_additions, found.total_deletions, found.to_checkpoint])
    seen.append(_result(await service.save("more", step=2), names))
    seen.append([item.message for item in await service.list_checkpoints(limit=4)])
    seen.append(_result(await service.restore(first.checkpoint.id), names))
    seen.append(files())
    seen.append([item.message for item in await service.list_checkpoints(limit=1)])
    file.write_text("another way\n")
    seen.append(_result(await service.save("other", step=1), names))
    seen.append(_result(await service.rewind(1), names))
    seen.append(files())
    file.write_text("and on\n")
    seen.append(_result(await service.save("[step-9] on", step=3), names))
    seen.append(_result(await service.restore(step=3), names))
    seen.append(_result(await service.restore(step=7), names))
    seen.append(_result(await service.restore(), names))
    seen.append(_result(await service.restore("1", step=1), names))
    seen.append(_result(await service.save("bad", step=-1), names))
    seen.append(_result(await service.rewind(0), names))
    seen.append(_result(await service.rewind(99), names))
    wrong = await service.restore("no such checkpoint")
    seen.append([wrong.success, wrong.checkpoint, bool(wrong.error)])
    known = await service.get_checkpoint(first.checkpoint.id)
    seen.append(sorted(known.to_dict()))
    seen.append(await service.get_checkpoint("zzzz"))
    await service.cleanup()
    seen.append(service.is_initialized)
    seen.append(heard)
    return seen


def _events(service: Any) -> Any:
    module = sys.modules[type(service).__module__]
    return module.CheckpointEvent


def main() -> None:
    which, workspace, storage = sys.argv[1:]
    if which == "theirs":
        from praisonaiagents.checkpoints.service import CheckpointService
    else:
        from ckptfs.compat.praisonai import CheckpointService
    service = CheckpointService(workspace_dir=workspace, storage_dir=storage)
    print(json.dumps(asyncio.run(session(service, Path(workspace))), indent=1))


if __name__ == "__main__":
    main()
