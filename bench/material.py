"""Real things that rows work on, fetched into the cache once: no measured part needs the network.

Each maker takes the kit and the scale and returns a path; it raises NotToBeHad where its thing
cannot be had. What the generated source tree is made of stands in sources.py.
"""

import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

from bench import sources
from bench.kit import Kit, NotToBeHad, fetch
from bench.programs import GIT, run, unpack
from bench.scale import Scale

# Part of the names in the cache: raise it when what a maker makes changes.
_VERSION = 2
#: A front end as its authors start one: a framework, a bundler, a compiler, a linter.
_FRONT_END = {
    "name": "front-end",
    "version": "1.0.0",
    "private": True,
    "dependencies": {"react": "^18.3.0", "react-dom": "^18.3.0", "react-router-dom": "^6.28.0"},
    "devDependencies": {
        "@types/react": "^18.3.0",
        "@vitejs/plugin-react": "^4.3.0",
        "eslint": "^8.57.0",
        "prettier": "^3.3.0",
        "typescript": "^5.6.0",
        "vite": "^5.4.0",
    },
    # A newer one may be out before its parts for other systems are; a lock without those is not
    # what `npm ci` takes.
    "overrides": {"rollup": "4.28.1"},
}
NPM_OPTIONS = (
    *("--ignore-scripts", "--no-audit", "--no-fund"),
    # Without the addresses in its lock npm asks for them again, and finds none offline.
    "--omit-lockfile-registry-resolved=false",
)
#: Files of the repository whose branch is rebased.
_BRANCH_FILES = 1_000
#: Objects beside their sources and without optimisation, as in everyday work on a project.
_MAKEFILE = """\
OBJECTS = $(patsubst %.c,%.o,$(wildcard c/*/*.c))
all: $(OBJECTS)
%.o: %.c
\t$(CC) -O0 -g -Ic/include -c -o $@ $<
"""

Maker = Callable[[Kit, Scale], Path]


def tree(kit: Kit, scale: Scale) -> Path:
    """The generated source tree, as an archive."""
    return sources.tree_tar(kit.cache, scale.tree_files)


def wheels(kit: Kit, scale: Scale) -> Path:
    """A directory with wheels, and everything that they depend on."""

    def make(home: Path) -> None:
        kit.pip("download", "--quiet", "--only-binary", ":all:", "-d", home, *scale.wheels)

    return _once(kit, f"wheels-{'-'.join(scale.wheels)}", make)


def front_end(kit: Kit, _scale: Scale) -> Path:
    """A package.json with its lock, and an npm cache that has all of it."""
    npm = kit.program("npm")

    def make(home: Path) -> None:
        project = home / "project"
        project.mkdir()
        (project / "package.json").write_text(json.dumps(_FRONT_END))
        cache = ("--cache", home / "cache", "--prefix", project)
        ways = (("install", "--prefer-online"), ("install", "--offline"), ("ci", "--offline"))
        for verb, how in ways:
            fetch(f"npm {verb}", npm, verb, *NPM_OPTIONS, *cache, how)
            shutil.rmtree(project / "node_modules")

    return _once(kit, "front-end", make)


def c_project(kit: Kit, _scale: Scale) -> Path:
    """Brotli's C sources, with a Makefile."""
    kit.program("gcc")
    kit.program("make")

    def make(home: Path) -> None:
        source = _sdist(kit, "brotli", home)
        (source / "c").rename(home / "c")
        shutil.rmtree(source)
        (home / "Makefile").write_text(_MAKEFILE)

    return _once(kit, "c-project", make)


def autotools_project(kit: Kit, _scale: Scale) -> Path:
    """libsodium with its configure script, as PyNaCl's source distribution has it."""
    kit.program("gcc")
    kit.program("make")

    def make(home: Path) -> None:
        source = _sdist(kit, "pynacl", home)
        if not (source / "src/libsodium/configure").exists():
            raise NotToBeHad("PyNaCl's source distribution has no libsodium to configure")
        (source / "src/libsodium").rename(home / "project")
        shutil.rmtree(source)

    return _once(kit, "autotools-project", make) / "project"


def python_project(kit: Kit, _scale: Scale) -> Path:
    """Jinja with its tests; the bench's own environment has what they need."""

    def make(home: Path) -> None:
        # Its tests want trio, and were written for a pytest before 9.
        kit.pip("install", "--quiet", "jinja2", "trio", "pytest<9")
        project = _sdist(kit, "jinja2", home).rename(home / "project")
        fetch("pytest of Jinja", *pytest_command(kit.python, project))

    return _once(kit, "python-project", make)


def pytest_command(python: Path, project: Path) -> tuple[str | Path, ...]:
    """All tests of a copy of the Python project, without other plugins than it asks for."""
    alone = ("env", f"PYTHONPATH={project / 'src'}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1")
    return (*alone, python, "-m", "pytest", "-q", "--rootdir", project, project / "tests")


def repository(kit: Kit, scale: Scale) -> Path:
    """A bare git repository whose commits are releases of Django, each with a tag."""

    def make(home: Path) -> None:
        git_dir, scratch = home / "django.git", home / "scratch"
        run(*GIT, "init", "-q", "--bare", git_dir)
        for release in scale.releases:
            scratch.mkdir()
            source = _sdist(kit, f"django=={release}", scratch)
            git = (*GIT, f"--git-dir={git_dir}", f"--work-tree={source}")
            run(*git, "add", "-A")
            run(*git, "commit", "-q", "-m", f"release {release}")
            run(*git, "tag", f"v{release}")
            shutil.rmtree(scratch)
        run(*GIT, "-C", git_dir, "repack", "-q", "-a", "-d")

    return _once(kit, f"repository-{'-'.join(scale.releases)}", make) / "django.git"


def branches(kit: Kit, scale: Scale) -> Path:
    """A bare git repository with a branch that left main some commits ago."""

    def make(home: Path) -> None:
        run(*GIT, "init", "-q", "--bare", home)
        stream = b"".join(sources.branch_stream(_BRANCH_FILES, scale.rebase_commits))
        run(*GIT, "-C", home, "fast-import", "--quiet", stdin=stream)

    return _once(kit, f"branches-{scale.rebase_commits}", make, fetched=False)


def _sdist(kit: Kit, requirement: str, home: Path) -> Path:
    """The source distribution of a package, unpacked."""
    downloads = home / "downloads"
    name = requirement.partition("=")[0]
    kit.pip("download", "--quiet", "--no-deps", "--no-binary", name, "-d", downloads, requirement)
    archives = list(downloads.glob("*.tar.gz"))
    if len(archives) != 1:
        raise NotToBeHad(f"{requirement} has no source distribution")
    with tarfile.open(archives[0]) as archive:
        unpack(archive, home)
    shutil.rmtree(downloads)
    return next(each for each in home.iterdir() if each.name.lower().startswith(name))


def _once(kit: Kit, name: str, make: Callable[[Path], None], *, fetched: bool = True) -> Path:
    """Make something in the cache if it is not there; half of it is never there."""
    path = kit.cache / "material" / f"{name}-v{_VERSION}"
    if path.exists():
        return path
    if fetched and not kit.install:
        raise NotToBeHad("not in the cache, and nothing is to be fetched")
    kit.tell(f"{'fetching' if fetched else 'making'} material: {name}")
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.mkdir(parents=True)
    try:
        make(unfinished)
        unfinished.rename(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return path


def bench_python(kit: Kit, _scale: Scale) -> Path:
    """The interpreter of the bench's own environment."""
    return kit.python


MAKERS: dict[str, Maker] = {
    "bench-python": bench_python,
    "tree": tree,
    "wheels": wheels,
    "front-end": front_end,
    "c-project": c_project,
    "autotools-project": autotools_project,
    "python-project": python_project,
    "repository": repository,
    "branches": branches,
}


def gather(wanted: Iterable[str], kit: Kit, scale: Scale) -> tuple[dict[str, Path], dict[str, str]]:
    """Material and programs by name, and why those that are missing are missing."""
    wanted = list(dict.fromkeys(wanted))
    kit.provide(each for each in wanted if each not in MAKERS)
    found: dict[str, Path] = {}
    missing: dict[str, str] = {}
    for name in wanted:
        try:
            found[name] = MAKERS[name](kit, scale) if name in MAKERS else kit.program(name)
        except NotToBeHad as error:
            missing[name] = f"{name}: {error}"
    return found, missing
