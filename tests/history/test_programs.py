"""How programs are taken, by their names and arguments."""

from __future__ import annotations

import shlex

import pytest

from ckptfs.history.programs import kind_of, runs_command


def argv(line: str) -> list[bytes]:
    return [word.encode() for word in shlex.split(line)]


@pytest.mark.parametrize(
    "line, kind",
    [
        ("-bash", "prompt"),
        ("bash -i", "prompt"),
        ("bash", "prompt"),
        ("zsh -l", "prompt"),
        ("bash -c 'make; rm x'", "script"),
        ("sh script.sh", "script"),
        ("/bin/sh ./configure --prefix=/usr", "script"),
        ("timeout 60 make", "script"),
        ("env X=1 python agent.py", "script"),
        ("bwrap --unshare-pid -- bash", "script"),
        ("npx something", "script"),
        ("make -j8", "tool"),
        ("/usr/bin/ninja", "tool"),
        ("xargs -P4 rm", "tool"),
        ("git rebase -i main", "tool"),
        ("npm run build", "tool"),
        ("node /usr/lib/node_modules/npm/bin/npm-cli.js ci", "tool"),
        ("python3 -m pip install .", "tool"),
        ("python3.11 setup.py build", "tool"),
        ("perl -w /usr/bin/automake", "tool"),
        ("claude -p hello", "harness"),
        ("node /home/me/.npm/bin/gemini --yolo", "harness"),
        ("/opt/codex/bin/codex exec", "harness"),
        ("python agent.py", "program"),
        ("python -m pytest tests", "program"),
        ("python -c 'import subprocess'", "program"),
        ("node server.js", "program"),
        ("vim notes", "program"),
        ("rm -rf build", "program"),
        ("sshd: me@pts/0", "program"),
    ],
)
def test_programs_have_the_kinds_of_the_table(line: str, kind: str) -> None:
    words = argv(line)
    comm = words[0].decode().rsplit("/", 1)[-1][:15]
    assert kind_of(comm, words) == kind


def test_a_title_that_a_program_gave_itself_is_its_first_word() -> None:
    assert kind_of("node", [b"npm run build"]) == "tool"
    assert kind_of("node", [b"my agent"]) == "program"


def test_what_the_kernel_calls_it_counts_too() -> None:
    assert kind_of("claude", argv("node cli.js")) == "harness"
    assert kind_of("tmux: server", argv("tmux new")) == "outside"
    assert kind_of("systemd", []) == "outside"
    assert kind_of("", []) == "program"


@pytest.mark.parametrize("line", ["sh -c 'rm x'", "bash -lc ls", "bash -i -c ls", "dash -ec x"])
def test_a_shell_with_minus_c_runs_a_command(line: str) -> None:
    assert runs_command(argv(line))


@pytest.mark.parametrize("line", ["bash", "bash script -c", "rm -c x", "sh --noprofile", ""])
def test_other_shells_and_programs_run_no_command(line: str) -> None:
    assert not runs_command(argv(line))
