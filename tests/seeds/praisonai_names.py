"""The public names of PraisonAI's checkpoint service with their parameters, as JSON: what a module
with that service has. `python praisonai_names.py MODULE`."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import sys
from typing import Any

CLASSES = ("Checkpoint", "CheckpointDiff", "FileDiff", "CheckpointResult")


def names_of(*modules: Any) -> dict[str, Any]:
    def get(name: str) -> Any:
        return next(getattr(module, name) for module in modules if hasattr(module, name))

    service = get("CheckpointService")
    methods = {"__init__": service.__init__} | {
        name: member
        for name, member in inspect.getmembers(service, inspect.isfunction)
        if not name.startswith("_")
    }
    return {
        "service": {
            name: [inspect.iscoroutinefunction(method), *_parameters(method)]
            for name, method in sorted(methods.items())
        },
        "events": sorted(event.value for event in get("CheckpointEvent")),
        **{name: [field.name for field in dataclasses.fields(get(name))] for name in CLASSES},
    }


def _parameters(function: Any) -> list[list[str]]:
    found = list(inspect.signature(function).parameters.values())[1:]
    return [
        [item.name, "" if item.default is item.empty else repr(item.default)]
        for item in found
        if item.kind is item.POSITIONAL_OR_KEYWORD
    ]


if __name__ == "__main__":
    print(json.dumps(names_of(*map(importlib.import_module, sys.argv[1:])), indent=1))
