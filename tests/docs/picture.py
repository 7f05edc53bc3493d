"""`python -m tests.docs.picture` draws docs/pictures/rescue.svg: a session that is really run.

A stand-in for an agent wrecks a project, and one command brings it back. The picture has what the
commands printed; only the colours are chosen here.
"""

from __future__ import annotations

from typing import NamedTuple
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.docs.pages import ROOT
from tests.docs.sessions import shell

PICTURE = ROOT / "docs/pictures/rescue.svg"

#: A project that git knows only in part, and an agent that does what it announces. ckptfs knows
#: real agents by their names; this one is declared.
_PREPARE = r"""
mkdir -p proj/src proj/tests proj/node_modules/left-pad bin
echo 'API_KEY=...' > proj/.env; printf '.env\nnode_modules\n' > proj/.gitignore
for file in app.py parser.py; do echo 'print("hello")' > proj/src/$file; done
echo 'def test(): ...' > proj/tests/test_app.py; echo '# proj' > proj/README.md
echo '//' > proj/node_modules/left-pad/index.js
cat > bin/agent <<'AGENT'
#!/bin/bash
echo "agent: I will start afresh:  rm -rf src tests .env"
rm -rf src tests .env
echo "agent: Done! Is there anything else?"
AGENT
chmod +x bin/agent; PATH=$HOME/bin:$PATH; ckptfs config --global auto.harnesses agent
"""
_SESSION = [
    "ckptfs mount ~/proj",
    "cd ~/proj",
    "echo 'an hour of work' >> src/parser.py",
    "agent 'fix the failing test'",
    "ls -A",
    "ckptfs list",
    "ckptfs rewind --force",
    "ls -A; tail -1 src/parser.py",
]
_TITLE = "An agent deletes a project; ckptfs rewind brings it back"

_SVG = "http://www.w3.org/2000/svg"
_FAMILY = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
_FONT, _WIDTH, _LINE, _TOP, _LEFT = 15, 800, 22, 52, 22
_COLOURS = {
    "prompt": "#7ee787",
    "command": "#ffffff",
    "output": "#9da7b3",
    "wreck": "#ff7b72",
    "rescue": "#79c0ff",
}


class Line(NamedTuple):
    text: str
    kind: str


def played() -> list[Line]:
    """The lines of the session, as it goes today."""
    lines = []
    with shell() as opened:
        opened.run(_PREPARE)
        for command in _SESSION:
            lines.append(Line(command, "command"))
            lines.extend(Line(text.expandtabs(), _kind(text)) for text in opened.run(command))
    return lines


def _kind(text: str) -> str:
    if text.startswith("agent:"):
        return "wreck"
    return "rescue" if text.startswith("Restored") else "output"


def drawn(lines: list[Line]) -> str:
    height = _TOP + _LINE * len(lines) + 14
    return "\n".join(
        [
            f'<svg xmlns="{_SVG}" viewBox="0 0 {_WIDTH} {height}" role="img">',
            f"<title>{_TITLE}</title>",
            f'<rect width="{_WIDTH}" height="{height}" rx="10" fill="#0d1117"/>',
            *(
                f'<circle cx="{24 + 20 * number}" cy="22" r="6" fill="{colour}"/>'
                for number, colour in enumerate(["#ff5f57", "#febc2e", "#28c840"])
            ),
            f'<g font-size="{_FONT}" font-family="{_FAMILY}" xml:space="preserve">',
            *(
                f'<text x="{_LEFT}" y="{_TOP + _LINE * number}">{_spans(line)}</text>'
                for number, line in enumerate(lines)
            ),
            "</g>",
            "</svg>",
            "",
        ]
    )


def _spans(line: Line) -> str:
    # Some renderers ignore xml:space; a no-break space is kept by all.
    text = escape(line.text).replace("  ", "\u00a0\u00a0")
    span = f'<tspan fill="{_COLOURS[line.kind]}">{text}</tspan>'
    if line.kind == "command":
        return f'<tspan fill="{_COLOURS["prompt"]}">$ </tspan>{span}'
    return span


def text_of(picture: str) -> list[str]:
    """What stands in a picture, line by line, without prompts."""
    texts = ElementTree.fromstring(picture).iter(f"{{{_SVG}}}text")
    return ["".join(text.itertext()).replace("\u00a0", " ").removeprefix("$ ") for text in texts]


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(drawn(played()))
