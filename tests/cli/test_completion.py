"""`ckptfs completion` in real shells, the candidates behind it, and `ckptfs manual`."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs.cli.candidates import SETTING_NAMES, candidates
from ckptfs.cli.verbs import VERBS
from ckptfs.history.settings import SETTINGS
from tests.cli.conftest import ScratchHome
from tests.support.mounting import HAVE_FUSE, Workspace, ckptfs, scratch, succeed

needs_fuse = pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")


def offered(*words: str) -> list[str]:
    return [line.partition("\t")[0] or line for line in candidates(words)]


@pytest.fixture(scope="module")
def mounted() -> Iterator[Workspace]:
    """A mounted workspace; checkpoint `first`, tag `v1`, has `gone/old name`, which is not now."""
    with scratch() as base:
        made = Workspace(base)
        made.path.mkdir()
        try:
            made.mount("--auto", "off")
            (made.path / "gone").mkdir()
            (made.path / "gone" / "old name").write_text("x")
            (made.path / "$(touch hit)").write_text("x")
            succeed(made.cli("save", "-w", made.path, "first $(touch hit)", "--tag", "v1"))
            shutil.rmtree(made.path / "gone")
            succeed(made.cli("save", "-w", made.path, "second"))
            yield made
        finally:
            made.finish()


@pytest.fixture
def programs() -> Iterator[Path]:
    """A directory with nothing but `ckptfs`, for PATH."""
    with scratch() as base:
        program = base / "ckptfs"
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m ckptfs "$@"\n')
        program.chmod(0o755)
        yield base


def in_shell(shell: list[str], code: str, programs: Path, work: Workspace) -> list[str]:
    path = f"{programs}:{os.environ['PATH']}"
    here = {"PATH": path, "PYTHONPATH": os.getcwd(), "COLUMNS": "80"}
    done = subprocess.run(
        [*shell, code],
        env={**os.environ, **work.env, **here},
        cwd=work.path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    assert not (work.path / "hit").exists(), "a name was run"
    return done.stdout.splitlines()


def in_bash(programs: Path, work: Workspace, *words: str) -> list[str]:
    line = " ".join(map(shlex.quote, words))
    code = f"""eval "$(ckptfs completion bash)"; COMP_WORDS=(ckptfs {line}); COMP_CWORD={len(words)}
_ckptfs; for each in "${{COMPREPLY[@]}}"; do printf '%s\\n' "$each"; done"""
    return in_shell(["bash", "--norc", "-c"], code, programs, work)


# -- candidates ------------------------------------------------------------------------------------


def test_words_that_the_parsers_know() -> None:
    assert offered("rest") == ["restore"]
    assert set(offered("")) == set(VERBS)
    assert offered("-w", "d", "umount", "--l") == ["--lazy"]
    assert offered("run", "--on-failure", "k") == ["keep"]
    assert offered("run", "--on-failure=k") == ["--on-failure=keep"]
    assert offered("service", "in") == ["install"]
    assert offered("config", "upkeep") == ["upkeep.cpu"]


def test_what_the_shell_completes_itself() -> None:
    assert offered("mount", "--store", "") == ["\tdirectories"]
    assert offered("log", "x") == ["\tfiles"]
    assert offered("run", "--", "") == ["\tcommands"]
    assert offered("diff", "--", "") == ["\tfiles"]


def test_nonsense_has_no_candidates() -> None:
    assert [offered("frobnicate", ""), offered("mount", "a", "b"), offered("--x", "y")] == [[]] * 3


def test_every_setting_is_offered() -> None:
    assert list(SETTINGS) == SETTING_NAMES


def test_without_a_workspace_it_is_silent(place: ScratchHome) -> None:
    done = succeed(place.run("__complete", "--", "restore", ""))
    assert (done.stdout, done.stderr) == ("", "")


def test_nothing_is_loaded_that_takes_long() -> None:
    code = (
        "import sys; from ckptfs.cli.candidates import answer; answer(['restore', '']);"
        "import ckptfs.control.client, ckptfs.cli.workspace;"
        "sys.exit(' '.join({'rich', 'lmdb', 'trio', 'pathspec'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip() == ""


# -- shells ----------------------------------------------------------------------------------------


@needs_fuse
def test_bash(mounted: Workspace, programs: Path) -> None:
    assert in_bash(programs, mounted, "resto") == ["restore"]
    shown = in_bash(programs, mounted, "restore", "")
    assert shown[0].endswith("  (second)")
    assert any(line.startswith("v1  (tag of ") for line in shown)
    assert any("(first $(touch hit))" in line for line in shown)
    assert in_bash(programs, mounted, "restore", "v1", "go") == ["gone/"]
    assert in_bash(programs, mounted, "restore", "v1", "gone/") == ["gone/old\\ name"]
    assert in_bash(programs, mounted, "restore", "v1", "$") == [r"\$\(touch\ hit\)"]
    # bash splits at = itself.
    assert in_bash(programs, mounted, "run", "--on-failure", "=", "k") == ["keep"]


@needs_fuse
def test_forks_are_offered_where_one_may_stand(
    mounted: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in mounted.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(mounted.path)
    succeed(mounted.cli("fork", "idea", "-w", mounted.path))
    try:
        assert offered("merge", "id") == offered("diff", "id") == ["idea"]
        assert offered("compare", "main", "i") == ["idea"]
        assert offered("fork", "--delete", "") == ["idea"]
        assert "idea" not in offered("pin", "")
    finally:
        succeed(mounted.cli("fork", "--delete", "idea", "--force", "-w", mounted.path))


@needs_fuse
@pytest.mark.deep
@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is missing")
def test_fish(mounted: Workspace, programs: Path) -> None:
    code = "ckptfs completion fish | source; complete -C 'ckptfs restore v1 go'"
    assert in_shell(["fish", "--no-config", "-c"], code, programs, mounted) == ["gone/"]
    code = "ckptfs completion fish | source; complete -C 'ckptfs restore v'"
    (line,) = in_shell(["fish", "--no-config", "-c"], code, programs, mounted)
    assert line.startswith("v1\ttag of ")


#: compadd works only inside of a completion; here it tells what it was given.
_ZSH = """
compdef() { :; }
eval "$(ckptfs completion zsh)"
compadd() { local name=${@[-1]}; print -rl -- "${(@P)name}"; }
words=(ckptfs restore v1 go) CURRENT=4 PREFIX=go
_ckptfs
words=(ckptfs resto) CURRENT=2 PREFIX=resto
_ckptfs
"""


@needs_fuse
@pytest.mark.deep
@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is missing")
def test_zsh(mounted: Workspace, programs: Path) -> None:
    assert in_shell(["zsh", "-f", "-c"], _ZSH, programs, mounted) == ["gone/", "restore"]


# -- the manual page -------------------------------------------------------------------------------


def test_the_manual_page_has_every_verb_and_no_stray_request() -> None:
    page = succeed(ckptfs("manual")).stdout
    known = (".TH ", ".SH ", ".SS ", ".TP", ".PP", ".nf", ".fi", ".B ", ".BR ")
    assert all(line.startswith(known) for line in page.splitlines() if line.startswith((".", "'")))
    told = [line[4:].replace("\\-", "-") for line in page.splitlines() if line.startswith(".SS ")]
    assert told == list(VERBS)
    assert r"\fB\-\-only\-changed\-by\fR \fIWHO\fR" in page


def test_a_verb_has_a_page_of_its_own() -> None:
    assert r"ckptfs\-restore \- make" in succeed(ckptfs("manual", "restore")).stdout
    refused = ckptfs("manual", "restor")
    assert refused.returncode == 2 and "`ckptfs restore`" in refused.stderr


@pytest.mark.skipif(shutil.which("man") is None, reason="man is missing")
def test_man_has_nothing_to_say_against_the_page(tmp_path: Path) -> None:
    file = tmp_path / "ckptfs.1"
    file.write_text(succeed(ckptfs("manual")).stdout)
    words = ["man", "--warnings", "-l", str(file)]
    env = {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "80", "MANPAGER": "cat"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--only-changed-by" in done.stdout
