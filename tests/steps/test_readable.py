"""What people read stays short: a handful of lines in `ckptfs list` for one piece of work.

Each test does with real programs what makes thousands of changes, and counts the lines that plain
`list` has more than before. Moments may be many; nobody sees them without asking.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.steps.cases import CaseDirectory, command, moments, story
from tests.steps.harnesses import HARNESSES, perform
from tests.steps.plans import Plan, Run
from tests.support.mounting import Workspace, scratch
from tests.support.programs import run

A_HANDFUL = 8

needs_autotools = pytest.mark.skipif(
    shutil.which("autoreconf") is None, reason="autoconf is not installed"
)
needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
#: As one tool call of an agent, and typed at a prompt.
both_ways = pytest.mark.parametrize("harness", ["python", "bash-terminal"])


@pytest.fixture(scope="module")
def workshop() -> Iterator[Path]:
    """A place outside of any workspace where projects are made, for all tests."""
    with scratch() as base:
        yield base


def lines(work: Workspace) -> int:
    code, said = command(work, "list", "--all")
    assert code == 0, said
    return len(said.splitlines())


def is_a_handful(place: CaseDirectory, harness: str, *commands: str, gap: float = 0.3) -> int:
    """Do some work, each command as a tool call, and return how much it adds to the list."""
    work = place.work
    saved, said = command(work, "save", "prepared", "--allow-empty")
    assert saved == 0, said
    before, moments_before = lines(work), len(moments(work))
    plan = Plan(tuple(Run((each,)) for each in commands), ())
    perform(HARNESSES[harness], plan, gap, place.path, place.outside)
    added = lines(work) - before
    print(f"{added} lines, {len(moments(work)) - moments_before - added} moments")
    assert added <= A_HANDFUL, f"{added} lines:\n{command(work, 'list', '--all')[1]}{story(work)}"
    return added


# -- ./configure && make --------------------------------------------------------------------------

_CONFIGURE = """\
AC_INIT([tiny], [1.0])
AM_INIT_AUTOMAKE([foreign subdir-objects])
AC_PROG_CC
AC_PROG_RANLIB
AM_PROG_AR
AC_CONFIG_HEADERS([config.h])
AC_CHECK_HEADERS([fcntl.h sys/time.h unistd.h limits.h locale.h])
AC_TYPE_SIZE_T
AC_TYPE_OFF_T
AC_CHECK_SIZEOF([long])
AC_CHECK_FUNCS([memmove memset strchr strdup setlocale gettimeofday])
AC_CONFIG_FILES([Makefile])
AC_OUTPUT
"""


@pytest.fixture(scope="module")
def autotools_project(workshop: Path) -> Path:
    project = workshop / "autotools"
    (project / "lib").mkdir(parents=True)
    parts = [f"part{number}" for number in range(12)]
    (project / "configure.ac").write_text(_CONFIGURE)
    sources = " ".join(f"lib/{part}.c" for part in parts)
    (project / "Makefile.am").write_text(
        "bin_PROGRAMS = tiny\ntiny_SOURCES = main.c\ntiny_LDADD = libparts.a\n"
        f"noinst_LIBRARIES = libparts.a\nlibparts_a_SOURCES = {sources}\n"
    )
    for part in parts:
        (project / f"lib/{part}.c").write_text(f"int {part}(void) {{ return 1; }}\n")
    declared = "".join(f"int {part}(void);\n" for part in parts)
    total = " + ".join(f"{part}()" for part in parts)
    (project / "main.c").write_text(f"{declared}int main(void) {{ return {total} - 12; }}\n")
    run("autoreconf", "-i", cwd=project)
    return project


@needs_autotools
@both_ways
def test_configure_and_make_are_a_handful_of_checkpoints(
    alone: CaseDirectory, autotools_project: Path, harness: str
) -> None:
    shutil.copytree(autotools_project, alone.path / "tiny")
    is_a_handful(alone, harness, "cd tiny && ./configure && make -j2 && ./tiny")
    assert (alone.path / "tiny/libparts.a").exists()


# -- npm ci ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def npm_project(workshop: Path) -> Path:
    """Four dependencies of a hundred files each, from tarballs beside them."""
    app = workshop / "app"
    app.mkdir()
    cache = {"npm_config_cache": str(workshop / "npm")}
    names = [f"dep{number}" for number in range(4)]
    for name in names:
        source = workshop / name
        source.mkdir()
        (source / "package.json").write_text(json.dumps({"name": name, "version": "1.0.0"}))
        for number in range(100):
            (source / f"m{number}.js").write_text("// nothing\n" * number)
        run("npm", "pack", "--pack-destination", app, cwd=source, **cache)
    wanted = {name: f"file:{name}-1.0.0.tgz" for name in names}
    package = {"name": "app", "version": "0.0.1", "dependencies": wanted}
    (app / "package.json").write_text(json.dumps(package))
    install = ("npm", "install", "--package-lock-only", "--offline", "--no-audit", "--no-fund")
    run(*install, cwd=app, **cache)
    return app


@needs_npm
@both_ways
def test_npm_ci_is_a_handful_of_checkpoints(
    alone: CaseDirectory, npm_project: Path, harness: str
) -> None:
    shutil.copytree(npm_project, alone.path / "app")
    install = "(cd app && npm ci --offline --no-audit --no-fund --no-update-notifier)"
    is_a_handful(alone, harness, install, install)
    assert len(list((alone.path / "app/node_modules/dep3").iterdir())) == 101


# -- git rebase -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def repository(workshop: Path) -> Path:
    """A branch of 50 commits that is one commit behind."""
    place = workshop / "repository"
    place.mkdir()
    run("git", "init", "-q", "-b", "main", "--template=", cwd=place)
    commits = "".join(
        f"echo {number} >> topic{number % 7}; git add -A; git commit -qm {number};"
        for number in range(50)
    )
    run(
        *("bash", "-e", "-c"),
        "echo base > base; git add -A; git commit -qm base; git checkout -qb topic;"
        f"{commits} git checkout -q main; echo more >> base; git commit -qam more;"
        "git checkout -q topic",
        cwd=place,
    )
    return place


@both_ways
def test_a_git_rebase_of_fifty_commits_is_a_handful_of_checkpoints(
    alone: CaseDirectory, repository: Path, harness: str
) -> None:
    shutil.copytree(repository, alone.path / "repository")
    is_a_handful(alone, harness, "(cd repository && git rebase -q main)")
    log = run("git", "log", "--format=%s", "main..topic", cwd=alone.path / "repository")
    assert len(log.splitlines()) == 50


# -- a loop ---------------------------------------------------------------------------------------


@both_ways
def test_a_loop_of_a_thousand_commands_is_a_handful_of_checkpoints(
    alone: CaseDirectory, harness: str
) -> None:
    """Half of them make something, half of them replace what an earlier one made."""
    for number in range(10):
        (alone.path / f"f{number}").write_text("a\n" * 100)
    loop = "for i in $(seq 500); do cp f0 g$i; sed -i s/a/b/ f$((i % 10)); done"
    is_a_handful(alone, harness, loop)
    assert (alone.path / "g500").exists()


# -- a watcher ------------------------------------------------------------------------------------

_WATCHER = """
import sys, time
while True:
    with open("watcher.log", "a") as file:
        file.write("nothing changed\\n")
    time.sleep(0.5)
"""


def test_a_watcher_that_writes_a_log_adds_few_checkpoints(alone: CaseDirectory) -> None:
    watcher = subprocess.Popen(
        [sys.executable, "-S", "-c", _WATCHER], cwd=alone.path, start_new_session=True
    )
    try:
        calls = [f"mkdir -p src; echo {number} > src/f{number}" for number in range(5)]
        # Each call is a step, and the first has what was saved before it.
        assert is_a_handful(alone, "python", *calls, gap=0.6) >= len(calls) - 1
    finally:
        watcher.kill()
        watcher.wait(60)
