"""`python -m tests.docs.site [DIR]` (`make docs`): the pages as HTML, in build/docs.

One file of HTML for each page, with links between them, pictures, and files of the project that
pages link to. It needs no network and no package besides markdown-it-py, which ckptfs has through
rich.
"""

from __future__ import annotations

import html
import os
import re
import shutil
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.docs.pages import PAGES, ROOT, anchor_of, links, name_of

#: The bar at the side: groups of pages, each with its words. Pages about the design come by name.
_GROUPS: dict[str, dict[str, str]] = {
    "Start": {
        "README.md": "ckptfs",
        "docs/QUICKSTART.md": "Quick start",
        "docs/INSTALL.md": "Install",
        "docs/CONCEPTS.md": "Concepts",
        "docs/FAQ.md": "Questions",
        "docs/COMPARISON.md": "Comparison",
    },
    "Use": {
        "docs/CLI.md": "Command line",
        "docs/API.md": "Python",
        "docs/API-REFERENCE.md": "Python reference",
        "docs/OPERATIONS.md": "Operations",
    },
    "Agents": {
        "docs/AGENTS.md": "Overview",
        "docs/agents/claude-code.md": "Claude Code",
        "docs/agents/codex.md": "Codex",
        "docs/agents/gemini.md": "Gemini, Antigravity, Qwen",
        "docs/agents/opencode.md": "opencode",
        "docs/agents/cursor.md": "Cursor",
        "docs/agents/copilot.md": "Copilot",
        "docs/agents/aider.md": "Aider",
        "docs/agents/openhands.md": "OpenHands",
        "docs/agents/others.md": "Cline, goose, Droid, ...",
        "docs/agents/any-command.md": "Any command",
        "docs/agents/container.md": "In a container",
        "docs/PARALLEL.md": "Several agents",
        "docs/agents/hooks.md": "Hooks",
        "docs/agents/mcp.md": "MCP",
        "docs/agents/tasks.md": "Tasks",
        "docs/agents/state.md": "State",
        "docs/agents/collisions.md": "Collisions",
        "docs/agents/teams.md": "Teams",
    },
    "Trust": {
        "docs/GUARANTEES.md": "Guarantees",
        "docs/CASES.md": "Case by case",
        "docs/PROOFS.md": "Proofs",
        "docs/SECURITY.md": "Security",
        "docs/BENCHMARKS.md": "Benchmarks",
        "docs/PERFORMANCE.md": "Performance",
    },
    "Work on it": {
        "docs/ARCHITECTURE.md": "Architecture",
        "docs/FORMAT.md": "Format",
        "docs/GLOSSARY.md": "Glossary",
        "CONTRIBUTING.md": "Contributing",
        "CHANGELOG.md": "Changelog",
        "bench/README.md": "The benchmark",
        "ckptfs/fuse/server/README.md": "The compiled server",
    },
}
#: Where pages go that no group names, by the beginning of their path.
_REST = {
    "docs/agents/": "Agents",
    "docs/design/": "Design",
    "docs/": "Use",
}

_STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --dim: #59636e; --back: #fff; --line: #d1d9e0;
  --code: #f6f8fa; --link: #0969da; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --dim: #9198a1; --back: #0d1117;
  --line: #3d444d; --code: #151b23; --link: #4493f8; } }
* { box-sizing: border-box; }
body { margin: 0; display: flex; color: var(--text); background: var(--back);
  font: 16px/1.6 system-ui, sans-serif; }
nav { flex: 0 0 15rem; height: 100vh; position: sticky; top: 0; overflow-y: auto; padding: 1rem;
  border-right: 1px solid var(--line); font-size: 14px; }
nav h2 { margin: 1rem 0 .2rem; border: 0; font-size: 12px;
  color: var(--dim); text-transform: uppercase; }
nav a { display: block; padding: 2px 0; color: var(--text); }
nav a[aria-current] { font-weight: 600; color: var(--link); }
main { flex: 1; min-width: 0; max-width: 58rem; padding: 1rem 2.5rem 4rem; }
a { color: var(--link); text-decoration: none; } a:hover { text-decoration: underline; }
h1, h2 { border-bottom: 1px solid var(--line); padding-bottom: .3rem; line-height: 1.25; }
code { font: 85%/1.45 ui-monospace, Menlo, Consolas, monospace; background: var(--code);
  padding: .1em .3em; border-radius: 4px; }
pre { background: var(--code); padding: .8rem 1rem; border-radius: 6px; overflow-x: auto; }
pre code { padding: 0; background: none; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border: 1px solid var(--line); padding: .3rem .7rem; vertical-align: top;
  text-align: left; }
img { max-width: 100%; }
.pages { display: none; }
@media (max-width: 50rem) { body { flex-direction: column-reverse; } .pages { display: block; }
  main { max-width: 100%; padding: 1rem 1rem 2rem; }
  nav { height: auto; flex: none; position: static; border: 0; } }
"""


def build(out: Path) -> None:
    """Write the site into a directory, which is made anew."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / "style.css").write_text(_STYLE)
    for page in PAGES:
        place = out / address_of(page)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(_document(page))
        for file in _files(page):
            copy = out / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


def address_of(page: Path) -> str:
    """Where a page is in the site."""
    name = name_of(page)
    return "index.html" if name == "README.md" else f"{name.removesuffix('.md')}.html"


def _files(page: Path) -> Iterator[Path]:
    """What a page links to and is no page: pictures, sources."""
    for target in links(page.read_text()):
        file = (page.parent / target.partition("#")[0]).resolve()
        if "://" not in target and file.is_file() and file.suffix != ".md":
            yield file


# -- a page ----------------------------------------------------------------------------------------


def _document(page: Path) -> str:
    up = os.path.relpath(".", Path(address_of(page)).parent)
    text = re.sub(r"^ *<!--.*?-->\n?", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{html.escape(_title(page))}</title>\n"
        f'<link rel="stylesheet" href="{up}/style.css">\n'
        f'<nav id="all-pages">{_bar(page)}</nav>\n<main>\n'
        '<a class="pages" href="#all-pages">All pages</a>\n'
        f"{_body(page, text)}</main>\n</html>\n"
    )


def _title(page: Path) -> str:
    heading = re.search(r"^# (.*)$", page.read_text(), re.MULTILINE)
    return heading[1] if heading else name_of(page)


def _bar(page: Path) -> str:
    parts = []
    for group, pages in groups().items():
        parts.append(f"<h2>{group}</h2>")
        for name, words in pages.items():
            href = _relative(page, ROOT / name)
            current = ' aria-current="page"' if ROOT / name == page else ""
            parts.append(f'<a href="{href}"{current}>{html.escape(words)}</a>')
    return "\n".join(parts)


def groups() -> dict[str, dict[str, str]]:
    """All pages by their groups."""
    found = {group: dict(pages) for group, pages in _GROUPS.items()}
    named = {name for pages in found.values() for name in pages}
    for page in PAGES:
        name = name_of(page)
        group = next((_REST[start] for start in _REST if name.startswith(start)), "Work on it")
        if name not in named:
            found.setdefault(group, {})[name] = _title(page).partition(":")[0]
    return found


def _body(page: Path, text: str) -> str:
    reader = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    tokens = reader.parse(text)
    _name_headings(tokens)
    for token in tokens:
        for child in token.children or []:
            _lead(page, child)
    return str(reader.renderer.render(tokens, reader.options, {}))


def _name_headings(tokens: list[Token]) -> None:
    seen: dict[str, int] = {}
    for opening, content in pairwise(tokens):
        if opening.type == "heading_open":
            anchor = anchor_of(content.content)
            seen[anchor] = seen.get(anchor, -1) + 1
            opening.attrSet("id", f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)


def _lead(page: Path, token: Token) -> None:
    """Have a link to a page lead to its HTML."""
    href = str(token.attrGet("href") or "")
    name, mark, anchor = href.partition("#")
    if name.endswith(".md") and "://" not in name:
        token.attrSet("href", _relative(page, (page.parent / name).resolve()) + mark + anchor)


def _relative(page: Path, target: Path) -> str:
    return os.path.relpath(address_of(target), Path(address_of(page)).parent)


if __name__ == "__main__":
    where = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/docs")
    build(where)
    print(where / "index.html")
