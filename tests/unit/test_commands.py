"""Command lines for messages: one printable line that says which command it was."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptfs.commands import COMMAND_MAX, RECORDS, command_line, cut, quoted, shown
from ckptfs.commands.words import decoded


@pytest.mark.parametrize(
    "argv, text",
    [
        ([b"rm", b"-rf", b"build"], "rm -rf build"),
        ([b"sh", b"-c", b"echo 'x'; ls"], """sh -c "echo 'x'; ls\""""),
        ([b"sh", b"-c", b"echo '$x'"], """sh -c 'echo '"'"'$x'"'"''"""),
        ([b"touch", b"a b"], "touch 'a b'"),
        ([b"touch", b"\xff\xfe"], r"touch '\xff\xfe'"),
        ([b"echo", b"\x1b[31mred\x07"], r"echo '\x1b[31mred\x07'"),
        ([b"echo", b"one\ntwo"], r"echo 'one\ntwo'"),
        ([b"echo", "\u202egnp".encode()], r"echo '\u202egnp'"),
        ([], ""),
    ],
)
def test_command_lines_read_as_typed_and_do_no_harm(argv: list[bytes], text: str) -> None:
    assert cut(quoted(decoded(argv))) == text


@pytest.mark.parametrize("title", ["nginx: worker process", "größe"])
def test_a_title_that_a_program_gave_itself_is_not_quoted(title: str) -> None:
    assert command_line([title.encode()]) == title


def test_long_command_lines_are_cut() -> None:
    text = command_line([b"cc"] + [b"file.o"] * 1000)
    assert len(text) == COMMAND_MAX and text.startswith("cc file.o") and text.endswith("…")


@pytest.mark.parametrize(
    "script, line",
    [
        ("cd x\nmake", "cd x; make"),
        ("cd x &&\n  make", "cd x && make"),
        ("make \\\n  -j2 \\\n  all", "make -j2 all"),
        ("\n# build it\nmake  # all of it\n\nls\n", "make; ls"),
        ("for f in *; do\n  ls $f\ndone", "for f in *; do ls $f; done"),
        ("if x\nthen\n  y\nelse\n  z\nfi", "if x; then y; else z; fi"),
        ("{\n  a\n}", "{ a; }"),
        ("(a\nb)", "(a; b)"),
        ("a |\n b", "a | b"),
        ("echo 'a\n b'\nls", r"echo 'a\n b'; ls"),
        ("cat > x <<'EOF'\nit's\n  b\nEOF\nls", r"cat > x <<'EOF'\nit's\n  b\nEOF; ls"),
        ("cat <<A <<-B\n1\nA\n2\n\tB\nls", r"cat <<A <<-B\n1\nA\n2\n\tB; ls"),
        ("# nothing\n# at all", r"# nothing\n# at all"),
        ("echo $'a\\'b'\nls", "echo $'a\\'b'; ls"),
    ],
)
def test_a_script_is_put_on_one_line(script: str, line: str) -> None:
    assert command_line([b"bash", b"-lc", script.encode()]) == line


@pytest.mark.parametrize(
    "record, line",
    [
        ("full", "curl -u joe:hunter2 https://x | tee 'a b'"),
        ("masked", "curl -u joe:*** https://x | tee 'a b'"),
        ("name", "curl"),
        ("off", ""),
    ],
)
def test_how_much_of_a_command_line_is_recorded(record: str, line: str) -> None:
    text = "curl -u joe:hunter2 https://x | tee 'a b'"
    assert command_line([b"bash", b"-c", text.encode()], record) == shown(text, record) == line


def test_a_secret_is_masked_before_the_line_is_cut() -> None:
    for length in range(150, 210):
        line = command_line([b"echo", b"x" * length, b"--token", b"hunter2" * 50, b"y" * 50])
        assert "hunter" not in line and "hu…" not in line


def test_there_is_a_name_for_every_command() -> None:
    for words in ("", " ", "\n", "#", ";", ">", "'", "\\"):
        for argv in ([words], ["", words], ["sh", "-c", words], ["timeout", "5", words]):
            for record in ("full", "masked", "name"):
                assert command_line([word.encode() for word in argv], record)


def test_importing_it_loads_nothing_but_the_standard_library() -> None:
    code = "import sys, ckptfs.commands; print(*(n for n in sys.modules if n.startswith('ckptfs')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = [name for name in done.stdout.split() if not name.startswith("ckptfs.commands")]
    assert loaded == ["ckptfs"]


@given(st.lists(st.binary(max_size=60) | st.text(max_size=60).map(str.encode), max_size=8))
@settings(deadline=None, max_examples=300)
def test_every_command_line_is_one_short_printable_line(argv: list[bytes]) -> None:
    for record in RECORDS:
        line = command_line(argv, record)
        assert len(line) <= COMMAND_MAX and "\n" not in line and "\x1b" not in line
        assert bool(line) == bool(argv and record != "off")
        assert all(char.isprintable() or char.isspace() for char in line)


@given(st.text(max_size=200))
@settings(deadline=None)
def test_every_text_is_one_short_printable_line(text: str) -> None:
    for record in RECORDS:
        line = shown(text, record)
        assert len(line) <= COMMAND_MAX and "\n" not in line
        assert bool(line) == bool(text and record != "off")
