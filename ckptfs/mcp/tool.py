"""A tool that takes what it names and nothing else, and says in plain words what it does not take.

An argument that nobody knows is a mistake of the model's. To act without it would be worse than
not to act: a restore of one path without that path is a restore of everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.types import ToolAnnotations
from pydantic import ValidationError

#: How much of a wrong value is quoted.
_SHOWN = 60


class ExactTool(Tool):
    """A tool of the SDK, which by itself passes over arguments that it does not know."""

    async def run(
        self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False
    ) -> Any:
        try:
            self.fn_metadata.validate_arguments(arguments)
        except ValidationError as error:
            raise ToolError(self._refusal(error)) from error
        return await super().run(arguments, context, convert_result)

    def _refusal(self, error: ValidationError) -> str:
        names = ", ".join(self.fn_metadata.arg_model.model_fields) or "none"
        found = dict.fromkeys(_reason(dict(item)) for item in error.errors())
        return (
            f"Cannot call {self.name}: {'; '.join(found)}. Nothing was changed. It takes: {names}."
        )


def make(function: Callable[..., Any], description: str, annotations: ToolAnnotations) -> ExactTool:
    made = ExactTool.from_function(
        function, description=description, annotations=annotations, structured_output=True
    )
    assert isinstance(made, ExactTool)
    model = made.fn_metadata.arg_model
    model.model_config["extra"] = "forbid"
    model.model_rebuild(force=True)
    made.parameters = model.model_json_schema(by_alias=True)
    return made


def _reason(item: dict[str, Any]) -> str:
    """One thing that is wrong; of a union's branches each says its own."""
    name = str(item["loc"][0]) if item["loc"] else "it"
    if item["type"] == "extra_forbidden":
        return f"there is no argument {name!r}"
    if item["type"] == "missing":
        return f"the argument {name!r} is missing"
    words = str(item["msg"]).removeprefix("Value error, ")
    return f"{name} is {_shown(item['input'])}: {words[:1].lower()}{words[1:]}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
