"""Programs that build and install: gcc and make, pip into a venv, npm."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.programs import run
from tests.support.trees import plant, tree

#: On Debian npm is hundreds of packages; `make setup` goes on where it cannot be had.
needs_npm = pytest.mark.needs_program("npm")

C_PROJECT = {
    "Makefile": (
        "CFLAGS = -O1 -Wall -MMD\n"
        "OBJECTS = main.o add.o name.o\n"
        "program: $(OBJECTS) libtwice.a\n"
        "\t$(CC) -o $@ $(OBJECTS) -L. -ltwice\n"
        "libtwice.a: twice.o\n"
        "\t$(AR) rcs $@ $^\n"
        "clean:\n"
        "\trm -f *.o *.d *.a program\n"
        "-include $(wildcard *.d)\n"
    ),
    "add.c": '#include "all.h"\nint add(int a, int b) { return a + b; }\n',
    "name.c": '#include "all.h"\nconst char *name(void) { return NAME; }\n',
    "twice.c": "int twice(int a) { return 2 * a; }\n",
    "all.h": (
        '#define NAME "first"\nint add(int, int);\nint twice(int);\nconst char *name(void);\n'
    ),
    "main.c": (
        '#include <stdio.h>\n#include "all.h"\n'
        'int main(void) { printf("%s %d\\n", name(), add(1, twice(2))); return 0; }\n'
    ),
}


def made(where: Path, *arguments: str) -> set[str]:
    """The files that make compiled or linked."""
    output = run("make", *arguments, cwd=where)
    words = [line.split() for line in output.splitlines() if "-o" in line.split()]
    return {line[line.index("-o") + 1] for line in words}


def test_make_builds_what_changed_and_nothing_else(mount: Path) -> None:
    plant(mount, C_PROJECT)
    assert made(mount) == {"main.o", "add.o", "name.o", "twice.o", "program"}
    assert run(mount / "program", cwd=mount) == "first 5\n"
    assert "up to date" in run("make", cwd=mount)
    header = (mount / "all.h").read_text()
    (mount / "all.h").write_text(header.replace("first", "second"))
    assert made(mount) == {"main.o", "add.o", "name.o", "program"}
    assert run(mount / "program", cwd=mount) == "second 5\n"
    (mount / "twice.c").write_text("int twice(int a) { return 3 * a; }\n")
    assert made(mount) == {"twice.o", "program"}
    assert run(mount / "program", cwd=mount) == "second 7\n"
    assert "up to date" in run("make", cwd=mount)
    run("make", "clean", cwd=mount)
    assert set(tree(mount)) == set(C_PROJECT)


def test_make_in_parallel(mount: Path) -> None:
    sources = {f"f{number}.c": f"int f{number}(void) {{ return 0; }}\n" for number in range(24)}
    objects = " ".join(name.replace(".c", ".o") for name in sources)
    plant(mount, {**sources, "Makefile": f"lib.a: {objects}\n\t$(AR) rcs $@ $^\n"})
    run("make", "-j8", cwd=mount)
    assert len(run("ar", "t", "lib.a", cwd=mount).split()) == 24
    assert "up to date" in run("make", "-j8", cwd=mount)


def test_a_shared_library_is_built_and_loaded(mount: Path) -> None:
    plant(mount, {"f.c": "int f(int x) { return x + 1; }\n"})
    run("gcc", "-shared", "-fPIC", "-g", "-o", "libf.so", "f.c", cwd=mount)
    loader = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).f(41))"
    assert run(sys.executable, "-c", loader, mount / "libf.so", cwd=mount) == "42\n"


def make_wheel(directory: Path, version: str) -> Path:
    """A wheel with a module, many small files and a console script, made by hand: no network."""
    info = f"tiny-{version}.dist-info"
    files = {
        "tiny/__init__.py": f'VERSION = "{version}"\n\n\ndef main():\n    print("tiny", VERSION)\n',
        **{f"tiny/data/d{n % 7}/f{n}.txt": "x" * n for n in range(100)},
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\ntiny = tiny:main\n",
    }
    record = "".join(f"{name},{_digest(text)},{len(text)}\n" for name, text in files.items())
    files[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    path = directory / f"tiny-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return path


def _digest(text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
    return "sha256=" + digest.rstrip(b"=").decode()


def test_pip_installs_into_a_venv(mount: Path) -> None:
    run(sys.executable, "-m", "venv", mount / "venv", cwd=mount)
    python, tiny = mount / "venv/bin/python", mount / "venv/bin/tiny"
    pip = (python, "-m", "pip", "--quiet", "install", "--no-index", "--no-cache-dir")
    run(*pip, make_wheel(mount, "1.0"), cwd=mount)
    assert run(tiny, cwd=mount) == "tiny 1.0\n"
    assert len(list((mount / "venv").glob("lib/python*/site-packages/tiny/data/*/*.txt"))) == 100
    run(*pip, "--upgrade", make_wheel(mount, "2.0"), cwd=mount)
    assert run(tiny, cwd=mount) == "tiny 2.0\n"
    run(python, "-m", "pip", "--quiet", "uninstall", "--yes", "tiny", cwd=mount)
    assert not tiny.exists()
    assert list((mount / "venv").glob("lib/python*/site-packages/tiny*")) == []


@needs_npm
def test_npm_installs_local_packages(mount: Path) -> None:
    """One by link and one from a tarball, which npm unpacks through its cache."""
    package = {"name": "linked", "version": "1.0.0", "main": "index.js", "bin": "cli.js"}
    plant(
        mount,
        {
            "linked": {
                "package.json": json.dumps(package),
                "index.js": "module.exports = () => 'linked'\n",
                "cli.js": "#!/usr/bin/env node\nconsole.log(require('./index.js')())\n",
            },
            "packed": {
                "package.json": json.dumps({"name": "packed", "version": "2.0.0"}),
                "index.js": "module.exports = () => 'packed'\n",
                "lib": {f"m{number}.js": "// nothing\n" * number for number in range(50)},
            },
            "app": {"package.json": json.dumps({"name": "app", "version": "0.0.1"})},
        },
    )
    (mount / "linked/cli.js").chmod(0o755)
    cache = f"--cache={mount / 'cache'}"
    run("npm", "pack", cache, "--pack-destination", mount, cwd=mount / "packed")
    install = ("npm", "install", cache, "--offline", "--no-audit", "--no-fund")
    run(*install, mount / "linked", mount / "packed-2.0.0.tgz", cwd=mount / "app")
    script = "console.log(require('linked')(), require('packed')())"
    assert run("node", "-e", script, cwd=mount / "app") == "linked packed\n"
    assert run(mount / "app/node_modules/.bin/linked", cwd=mount) == "linked\n"
    assert len(list((mount / "app/node_modules/packed/lib").iterdir())) == 50
    run("npm", "uninstall", cache, "--offline", "packed", cwd=mount / "app")
    assert not (mount / "app/node_modules/packed").exists()


@needs_npm
def test_npm_installs_from_its_registry(mount: Path) -> None:
    plant(mount, {"app": {"package.json": json.dumps({"name": "app", "version": "0.0.1"})}})
    install = ("npm", "install", f"--cache={mount / 'cache'}", "--no-audit", "--no-fund")
    run(*install, "is-number@7.0.0", cwd=mount / "app")
    script = "console.log(require('is-number')('5e3'))"
    assert run("node", "-e", script, cwd=mount / "app") == "true\n"
    run("npm", "ci", f"--cache={mount / 'cache'}", "--prefer-offline", cwd=mount / "app")
    assert run("node", "-e", script, cwd=mount / "app") == "true\n"
