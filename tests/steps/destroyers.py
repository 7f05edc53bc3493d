"""Ways in which an agent loses content, each with the steps that made the content before.

Every plan makes a version of a file by one step, a second version and two more files by another,
and then destroys what a program of its kind destroys. All that the last step destroys is of the
step before it: what is older may be in a checkpoint that was taken for something else.
"""

from __future__ import annotations

import atexit
import json
import shlex
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.steps.plans import Plan, Run, Step, Text, Version, Write
from tests.support.mounting import scratch
from tests.support.programs import run

_PYTHON = f"{shlex.quote(sys.executable)} -S"
_SQLITE_ROWS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300)"


@dataclass(frozen=True)
class Destroyer:
    """`make` is given a text that no other case has, and a directory outside of the workspace that
    commands may use."""

    name: str
    make: Callable[[str, Path], Plan]
    needs: str = "bash"
    #: pyfuse3 answers EOPNOTSUPP.
    compiled_only: bool = False

    @property
    def missing(self) -> bool:
        return shutil.which(self.needs) is None


def _plain(
    command: str, *gone: str, before: str = "", folder: str = "src", base: bool = False
) -> Callable[[str, Path], Plan]:
    """A plan that ends in a command which destroys the newest versions of the files `gone`: app,
    extra, data. `before` runs first; if it commits a version of app.py, that is the `base`."""

    def make(unique: str, outside: Path) -> Plan:
        place = {"unique": unique, "outside": outside}
        app, extra, data = (f"{folder}/{name}" for name in ("app.py", "extra.py", "data.txt"))
        first, second = Text(f"{unique} app v1"), Text(f"{unique} app v2")
        whole = Text(f"{unique} data", 1000)
        steps: list[Step] = [Run((before.format(**place),))] if before else []
        steps += [
            Write({app: first}),
            Write({app: second, extra: Text(f"{unique} extra"), data: whole}),
            Run((command.format(**place),)),
        ]
        lost = [Version(app, "v1", first)]
        newest = {
            "app": Version(app, "v2", second),
            "extra": Version(extra, "v1", Text(f"{unique} extra")),
            "data": Version(data, "v1", whole),
        }
        lost += [newest[name] for name in gone]
        if base:
            lost.append(Version(app, "base", Text(f"{unique} base")))
        return Plan(tuple(steps), tuple(lost), setup=len(steps) - 3)

    return make


# -- git ------------------------------------------------------------------------------------------

_COMMIT = (
    "git init -q --template= . && mkdir src && echo '{unique} base' > src/app.py{more}"
    " && git add -A && git commit -qm base"
)


def _repository(command: str, *gone: str, more: str = "") -> Callable[[str, Path], Plan]:
    return _plain(command, *gone, before=_COMMIT.replace("{more}", more), base=True)


# -- npm ------------------------------------------------------------------------------------------


@cache
def _npm_project() -> Path:
    """An installed project with one dependency from a tarball; made once a run."""
    keeping = ExitStack()
    atexit.register(keeping.close)
    base = keeping.enter_context(scratch())
    dependency, app = base / "dep", base / "app"
    dependency.mkdir()
    app.mkdir()
    (dependency / "package.json").write_text(json.dumps({"name": "dep", "version": "1.0.0"}))
    (dependency / "index.js").write_text("module.exports = 1\n")
    npm = {"npm_config_cache": str(base / "cache"), "npm_config_update_notifier": "false"}
    run("npm", "pack", "--pack-destination", app, cwd=dependency, **npm)
    wanted = {"name": "app", "version": "0.0.1", "dependencies": {"dep": "file:dep-1.0.0.tgz"}}
    (app / "package.json").write_text(json.dumps(wanted))
    run("npm", "install", "--offline", "--no-audit", "--no-fund", cwd=app, **npm)
    return app


_NPM_CI = (
    "npm ci --cache {outside}/npm --offline --no-audit --no-fund --no-update-notifier"
    " --loglevel=error"
)


def _npm(unique: str, outside: Path) -> Plan:
    return _plain(
        _NPM_CI,
        *("app", "extra", "data"),
        before=f"cp -r {_npm_project()}/. .",
        folder="node_modules/dep",
    )(unique, outside)


# -- SQLite ---------------------------------------------------------------------------------------


def _sqlite(unique: str, outside: Path) -> Plan:
    """The bytes of a database are nobody's to foretell: each step copies them, too."""

    def step(statement: str, version: str) -> Run:
        kept = f" && cp app.db {outside}/{unique}.{version}" if version else ""
        return Run((f'sqlite3 app.db "{statement}"{kept}',))

    made = "CREATE TABLE t (id INTEGER PRIMARY KEY, x TEXT);"
    filled = f"INSERT INTO t (x) {_SQLITE_ROWS} SELECT '{unique} ' || i FROM n;"
    return Plan(
        (
            step(f"{made} {filled}", "v1"),
            step("UPDATE t SET x = x || ' v2' WHERE id % 50 = 0;", "v2"),
            step("DELETE FROM t; VACUUM;", ""),
        ),
        tuple(Version("app.db", name, outside / f"{unique}.{name}") for name in ("v1", "v2")),
    )


# -- all of them ----------------------------------------------------------------------------------


def _python(program: str) -> str:
    return f"{_PYTHON} -c {shlex.quote(program)}"


DESTROYERS = {
    made.name: made
    for made in (
        Destroyer("rm-rf", _plain("rm -rf src", "app", "extra", "data")),
        Destroyer("git-checkout", _repository("git checkout -q .", "app"), "git"),
        Destroyer(
            "git-reset",
            _repository("git add -A && git reset -q --hard", "app", "extra", "data"),
            "git",
        ),
        Destroyer(
            "git-clean",
            _repository("git clean -qfdx", "extra", "data", more=" && echo '*.txt' > .gitignore"),
            "git",
        ),
        Destroyer("git-stash", _repository("git stash -q -u", "app", "extra", "data"), "git"),
        Destroyer("sed-i", _plain("sed -i s/v2/v9/ src/app.py", "app")),
        Destroyer("mv-over", _plain("cp src/extra.py new && mv new src/app.py", "app")),
        Destroyer("redirect", _plain(": > src/app.py", "app")),
        Destroyer("truncate", _plain("truncate -s 0 src/app.py src/data.txt", "app", "data")),
        Destroyer("find-delete", _plain("find src -type f -delete", "app", "extra", "data")),
        Destroyer(
            "python-in-place",
            _plain(
                _python(
                    "a = open('src/app.py', 'r+'); a.write('XX'); a.close(); "
                    "d = open('src/data.txt', 'r+'); d.seek(5000); d.write('XX'); d.close()"
                ),
                *("app", "data"),
            ),
        ),
        Destroyer(
            "mmap",
            _plain(
                _python(
                    "import mmap; d = open('src/data.txt', 'r+b'); m = mmap.mmap(d.fileno(), 0); "
                    "m[5000:5002] = b'XX'; m.flush()"
                ),
                "data",
            ),
        ),
        Destroyer(
            "dd-notrunc",
            _plain(
                "printf XX | dd of=src/data.txt conv=notrunc bs=1 seek=5000 status=none", "data"
            ),
        ),
        Destroyer(
            "vim",
            _plain("vim -Nu NONE -i NONE -es -c '%s/v2/v9/' -c wq src/app.py", "app"),
            "vim",
        ),
        Destroyer("ed", _plain("printf '%s\\n' '1s/v2/v9/' w q | ed -s src/app.py", "app"), "ed"),
        Destroyer("npm-ci", _npm, "npm"),
        Destroyer("sqlite", _sqlite, "sqlite3"),
        Destroyer(
            "punch",
            _plain("fallocate -p -o 0 -l 4096 src/data.txt", "data"),
            compiled_only=True,
        ),
        Destroyer(
            "os-truncate",
            _plain(_python("import os; os.truncate('src/data.txt', 5000)"), "data"),
        ),
    )
}
