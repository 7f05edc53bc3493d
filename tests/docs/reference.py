"""`python -m tests.docs.reference`: docs/API-REFERENCE.md, from the signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator

import ckptfs
from tests.docs.pages import ROOT
from tests.docs.wrap import wrapped

PAGE = ROOT / "docs/API-REFERENCE.md"
_WIDTH = 92
_HEAD = """\
# Python API reference

The classes of `import ckptfs`, with their docstrings: what each call promises. A program writes
this page from the code (`python -m tests.docs.reference`). How to use them: [API.md](API.md).
"""


def page() -> str:
    parts = [_HEAD]
    for name in sorted(ckptfs.__all__, key=lambda name: (name != "CheckpointService", name)):
        found = getattr(ckptfs, name)
        if inspect.isclass(found):
            parts.extend(_class(name, found))
    return "\n".join(parts)


def _class(name: str, found: type) -> Iterator[str]:
    yield f"## {name}\n\n{_words(found)}"
    if issubclass(found, BaseException) or name == "AsyncCheckpointService":
        return
    for member, value in sorted(vars(found).items()):
        if member.startswith("_"):
            continue
        if isinstance(value, property):
            yield f"### {name}.{member}\n\n{_words(value)}"
        elif inspect.isfunction(value):
            yield f"### {name}.{member}\n\n    {_signature(member, value)}\n\n{_words(value)}"


def _signature(name: str, function: Callable[..., object]) -> str:
    text = str(inspect.signature(function)).replace("'", "").replace("builtins.", "")
    text = re.sub(r"^\(self(, )?", "(", text)
    line = f"{name}{text}"
    if len(line) <= _WIDTH:
        return line
    return line.replace(", ", ",\n        ").replace("(", "(\n        ", 1)


def _words(found: object) -> str:
    text = inspect.getdoc(found) or ""
    # A dataclass without words has its signature for a docstring.
    if re.match(r"\w+\(.*\)$", text, re.DOTALL):
        text = ""
    return text.replace("``", "`") + "\n" if text else ""


def wrapped_page() -> str:
    return wrapped(page())


if __name__ == "__main__":
    PAGE.write_text(wrapped_page())
