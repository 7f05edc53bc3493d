"""Programs by name: which start steps, which are one step, and which hold sessions.

Pure: a program is judged by its name and arguments. One that no table names is a `program`, which
counts as a harness where it starts commands: too many steps cost a few moments, too few lose work.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Set
from itertools import takewhile
from typing import Literal

from ckptfs.commands.wrappers import SHELLS

_STANDARD_INPUT = frozenset(("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"))
#: Options of shells that are followed by a value, which is not a script.
_WITH_VALUE = frozenset(("-o", "+o", "-O", "+O", "--rcfile", "--init-file", "--emulate"))

#: What a program is to its children: ``outside`` only holds sessions; ``prompt`` is a shell that
#: takes commands one by one; ``harness`` is a known or declared agent; ``script`` is a shell that
#: runs a script, or a program that runs a command in its place; ``tool`` does one thing with many
#: processes; a ``program`` is any other, and may be a harness.
Kind = Literal["outside", "prompt", "harness", "script", "tool", "program"]

_OUTSIDE = frozenset(
    "init systemd sshd sshd-session login cron crond atd dbus-daemon tini dumb-init docker-init "
    "containerd-shim containerd-shim-runc-v2 conmon runc crun catatonit s6-supervise s6-svscan "
    "runsv runsvdir supervisord tmux screen SCREEN zellij mosh-server dtach abduco script "
    "gnome-terminal-server gnome-terminal- konsole xterm urxvt alacritty kitty wezterm-gui foot "
    "ghostty terminator xfce4-terminal lightdm gdm sddm Xorg gnome-shell plasmashell".split()
)

#: Programs whose children do one thing together, of which no part is a step.
_TOOLS = frozenset(
    # builds
    "make gmake bmake ninja ninja-build samu cmake ctest cpack meson scons bazel buck2 waf tup "
    "just task ant mvn gradle gradlew sbt javac kotlinc cargo rustc rustup rustdoc go "
    "gofmt zig gcc g++ cc c++ c89 c99 clang clang++ ld ld.bfd ld.gold ld.lld mold collect2 cc1 "
    "cc1plus as ar nm ranlib strip libtool ccache sccache distcc autoreconf autoconf automake "
    "aclocal autoheader autom4te m4 bison flex yacc swig protoc msbuild swift swiftc "
    "xcodebuild latexmk pdflatex xelatex lualatex latex bibtex biber makeindex sphinx-build "
    "mkdocs tsc eslint prettier biome mypy ruff black isort flake8 pylint webpack vite rollup "
    "esbuild parcel turbo nx lerna gulp grunt "
    # packages
    "npm npm-cli.js pnpm pnpm.cjs yarn yarn.js corepack node-gyp node-gyp.js pip pip3 conda "
    "mamba micromamba setup.py build gem rake composer mix rebar3 cabal stack "
    "opam apt apt-get dpkg dpkg-deb rpm dnf yum zypper pacman brew nix "
    # version control, copies, archives
    "git hg svn jj bzr fossil gh pre-commit husky lint-staged rsync tar cpio zip unzip "
    "dpkg-source "
    # what runs one command many times
    "xargs parallel find fd watch entr tee".split()
)

#: Programs that run another one in their place: what that is decides.
_RUNNERS = frozenset(
    "env timeout nice ionice chrt taskset nohup setsid stdbuf unbuffer time strace ltrace gdb "
    "valgrind perf sudo doas su runuser setpriv chroot unshare nsenter bwrap firejail landrun "
    "codex-linux-sandbox proot fakeroot faketime xvfb-run dbus-run-session flock chronic npx "
    "npx-cli.js uv uvx pipx poetry pipenv pdm hatch bundle bundler".split()
)

#: Agents whose every child is a step, wherever they run.
HARNESSES = frozenset(
    "claude claude-code codex gemini qwen opencode kilo crush goose goosed aider cline "
    "cursor-agent copilot agy droid kiro-cli amp openhands openclaw hermes plandex mini "
    "mini-swe-agent sweagent swe-agent praisonai deepagents smolagent cn auggie".split()
)

#: Programs that run another one, which is named by their first argument.
_INTERPRETERS = (
    "python",
    "pypy",
    "node",
    "nodejs",
    "deno",
    "ruby",
    "perl",
    "php",
    "bun",
    "java",
    "dotnet",
)


def kind_of(comm: str, argv: list[bytes], harnesses: Set[str] = HARNESSES) -> Kind:
    """The kind of a program. ``comm`` is the kernel's name for it."""
    names = {comm, *_names(argv)}
    if names & harnesses:
        return "harness"
    if takes_commands(argv):
        return "prompt"
    if names & _OUTSIDE or comm.startswith("tmux: "):
        return "outside"
    if is_shell(argv) or names & _RUNNERS:
        return "script"
    return "tool" if names & _TOOLS else "program"


def _base(word: bytes) -> str:
    return os.path.basename(word).decode("latin-1")


def is_shell_name(name: str) -> bool:
    return name.lstrip("-") in SHELLS


def is_shell(argv: list[bytes]) -> bool:
    return bool(argv) and is_shell_name(_base(argv[0]))


def _names(argv: list[bytes]) -> Iterator[str]:
    """What a program may be known by: its own name and, of an interpreter, that of what it runs. A
    single word with spaces is a title that a program gave itself."""
    if not argv:
        return
    first = argv[0].split(b" ")[0] if len(argv) == 1 else argv[0]
    yield _base(first)
    if not _base(first).startswith(_INTERPRETERS):
        return
    rest = iter(argv[1:])
    for word in rest:
        if word == b"-m":
            yield _base(next(rest, b"")).split(".")[0]
            return
        if not word.startswith(b"-"):
            yield _base(word)
            return


def runs_command(argv: list[bytes]) -> bool:
    """Whether this is a shell that was given a command to run (`sh -c`)."""
    if not is_shell(argv):
        return False
    options = takewhile(lambda word: word.startswith(b"-"), argv[1:])
    return any(b"c" in word and not word.startswith(b"--") for word in options)


def takes_commands(argv: list[bytes]) -> bool:
    """Whether this is a shell that reads commands one by one, and not one that runs a script."""
    if not is_shell(argv):
        return False
    rest = [argument.decode("latin-1") for argument in argv[1:]]
    while rest:
        argument = rest.pop(0)
        if argument in _WITH_VALUE:
            rest = rest[1:]
        elif argument in ("-", "--"):
            return not rest
        elif not argument.startswith(("-", "+")):
            return argument in _STANDARD_INPUT  # or the name of a script
        elif not argument.startswith("--") and "c" in argument:
            return False
        elif not argument.startswith("--") and "s" in argument:
            return True
    return True
