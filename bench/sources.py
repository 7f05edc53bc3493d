"""The material the workloads work on, made from a seed: the same bytes on every machine.

A source tree looks like a repository with its dependencies: packages some levels deep, mostly
text of 200 B to 20 KB, a few large files, licences that repeat, some scripts and links. It has
four files a directory: Django has 2.1, npm itself 4.2, Python's library 5.9, a virtual environment
9. Its archive names the directories before what is in them, as tar does.
"""

import io
import os
import random
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_SEED = 20_260_101
# Part of the cached file's name: raise it when the content of the tree changes.
_TREE_VERSION = 2
_MTIME = 1_700_000_000
#: The branch that is rebased, and by how many commits main has moved on since.
TOPIC = "topic"
_MAIN_COMMITS = 10
_STEMS = [
    *("index", "main", "util", "parse", "render", "token", "lexer", "config", "cache", "client"),
    *("server", "route", "model", "schema", "query", "stream", "buffer", "event", "logger"),
    *("format", "loader", "plugin", "worker", "session", "handler", "test", "types"),
]
_SUFFIXES = (".js", ".js", ".ts", ".py", ".py", ".c", ".h", ".md", ".json", ".map", ".txt")
_SHAPES = (
    "    {a} = {b}.{c}({n})",
    "        if ({a} !== {b}.{c}) return {a};",
    "def {a}_{b}({c}, {a}=None):",
    "import {{ {a}, {b} }} from './{c}';",
    "    # {a} {b} {c} {a} the {b}, see {n}",
    "static int {a}_{b}(struct {c} *{a}, size_t {b});",
    '    "{a}-{b}": "^{n}.0.1",',
    "}}",
    "",
)


@dataclass(frozen=True)
class Entry:
    path: str
    mode: int
    content: bytes = b""
    link: str = ""


def tree_entries(files: int) -> Iterator[Entry]:
    """`files` regular files and a link for every 200 of them, in packages of some 60 files."""
    rng = random.Random(_SEED)
    lines = _lines(rng, 20_000)
    licence = "\n".join(rng.choices(lines, k=40)).encode()
    made, package = 0, 0
    while made < files:
        root = _package_root(rng, package)
        package += 1
        yield Entry(f"{root}/LICENSE", 0o644, licence)
        made += 1
        size = min(files - made, rng.randint(10, 110))
        places = _places(rng, size)
        for number in range(size):
            yield _file(rng, lines, f"{root}/{rng.choice(places)}", number)
        made += size
        if package % 3 == 0:
            yield Entry(f"{root}/current", 0o777, link="LICENSE")


def _package_root(rng: random.Random, number: int) -> str:
    name = f"{rng.choice(_STEMS)}-{rng.choice(_STEMS)}-{number}"
    return f"src/{name}" if number % 5 == 0 else f"node_modules/{name}"


def _places(rng: random.Random, files: int) -> list[str]:
    """The directories in a package, from its own on."""
    deep = ("/".join(rng.choices(_STEMS[:8], k=rng.randint(1, 3))) for _ in range(files // 6))
    return ["", *(f"{place}/" for place in deep)]


def _file(rng: random.Random, lines: list[str], place: str, number: int) -> Entry:
    path = f"{place}{rng.choice(_STEMS)}{number}{rng.choice(_SUFFIXES)}"
    if number % 150 == 149:
        return Entry(path, 0o644, rng.randbytes(rng.randint(50_000, 400_000)))
    size = min(max(int(rng.lognormvariate(7.8, 1.2)), 60), 300_000)
    text = "\n".join(rng.choices(lines, k=size // 36 + 1)).encode()
    return Entry(path, 0o755 if number % 40 == 7 else 0o644, text)


def _lines(rng: random.Random, count: int) -> list[str]:
    words = [f"{rng.choice(_STEMS)}{rng.choice(_STEMS).title()}{n % 97}" for n in range(3_000)]
    return [
        rng.choice(_SHAPES).format(
            a=rng.choice(words), b=rng.choice(words), c=rng.choice(_STEMS), n=rng.randint(0, 999)
        )
        for _ in range(count)
    ]


def tree_tar(cache: Path, files: int) -> Path:
    """The tree as an archive: not compressed, since unpacking is what a row measures."""
    path = cache / f"tree-{files}-v{_TREE_VERSION}.tar"
    if path.exists():
        return path
    cache.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    with tarfile.open(unfinished, "w", format=tarfile.GNU_FORMAT) as archive:
        named: set[PurePosixPath] = set()
        for entry in tree_entries(files):
            for directory in reversed(PurePosixPath(entry.path).parents):
                if directory not in named:
                    archive.addfile(_directory_info(directory))
                    named.add(directory)
            archive.addfile(_tar_info(entry), io.BytesIO(entry.content))
    unfinished.rename(path)
    return path


def _tar_info(entry: Entry) -> tarfile.TarInfo:
    info = tarfile.TarInfo(f"tree/{entry.path}")
    info.mode, info.mtime, info.size = entry.mode, _MTIME, len(entry.content)
    if entry.link:
        info.type, info.linkname = tarfile.SYMTYPE, entry.link
    return info


def _directory_info(path: PurePosixPath) -> tarfile.TarInfo:
    info = tarfile.TarInfo(f"{'tree' / path}/")
    info.mode, info.mtime, info.type = 0o755, _MTIME, tarfile.DIRTYPE
    return info


def write_tree(root: Path, files: int) -> int:
    """The tree as a directory; returns the bytes in it."""
    total = 0
    for entry in tree_entries(files):
        path = root / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if entry.link:
            path.symlink_to(entry.link)
        else:
            path.write_bytes(entry.content)
            path.chmod(entry.mode)
            total += len(entry.content)
    return total


# -- a build ---------------------------------------------------------------------------------------

_MAKEFILE = """\
OBJECTS = $(patsubst %.c,%.o,$(wildcard *.c))
program: $(OBJECTS)
\t$(CC) -o $@ $^
%.o: %.c
\t$(CC) -O0 -g -DROUND=$(ROUND) -c -o $@ $<
clean:
\trm -f program $(OBJECTS)
"""


def write_c_project(root: Path, files: int) -> None:
    """A program of so many C files. Built with another ROUND it has other bytes throughout, so that
    no build's can be stored once for two."""
    root.mkdir(parents=True)
    (root / "Makefile").write_text(_MAKEFILE)
    for number in range(files - 1):
        text = f"int table{number}[3000] = {{[0 ... 2999] = ROUND * {files} + {number}}};\n"
        (root / f"part{number}.c").write_text(text)
    names = [f"table{number}" for number in range(files - 1)]
    uses = "".join(f"extern int {name}[];\n" for name in names)
    total = " + ".join(f"{name}[0]" for name in names)
    (root / "main.c").write_text(f"{uses}int main(void) {{ return !({total}); }}\n")


# -- a branch to rebase ----------------------------------------------------------------------------


def branch_stream(files: int, commits: int) -> Iterator[bytes]:
    """The tree as main, and a branch of so many commits that left it some commits ago, for git
    fast-import. The branch adds files and changes the ends of others, main the beginnings of the
    same: a rebase has to merge, and meets no conflict."""
    rng = random.Random(_SEED)
    first = {each.path: each.content for each in tree_entries(files) if not each.link}
    texts = [path for path, content in first.items() if _can_merge(content)]
    yield _commit("main", 1, 0, first)
    ours, theirs = dict(first), dict(first)
    for number in range(_MAIN_COMMITS):
        changed = {
            path: b"# main %d\n%s" % (number, theirs[path]) for path in rng.sample(texts, 20)
        }
        theirs |= changed
        yield _commit("main", 2 + number, 1 + number, changed)
    mark = 1 + _MAIN_COMMITS
    for number in range(commits):
        changed = {path: b"%s\n# topic %d" % (ours[path], number) for path in rng.sample(texts, 4)}
        changed[f"src/topic/{number}.py"] = b"# new %d\n%s" % (number, ours[rng.choice(texts)])
        ours |= changed
        yield _commit(TOPIC, mark + 1 + number, mark + number if number else 1, changed)


def _can_merge(content: bytes) -> bool:
    """Whether a text is so long that its beginning and its end are merged apart."""
    return b"\0" not in content and content.count(b"\n") >= 30


def _commit(branch: str, mark: int, parent: int, changed: Mapping[str, bytes]) -> bytes:
    """One commit in the words of git fast-import; a parent of 0 is none."""
    head = f"commit refs/heads/{branch}\nmark :{mark}\n"
    head += f"committer bench <bench@localhost> {_MTIME + mark} +0000\n"
    head += f"data {len(branch)}\n{branch}\n"
    head += f"from :{parent}\n" if parent else ""
    files = (
        b"M 100644 inline %s\ndata %d\n%s\n" % (path.encode(), len(content), content)
        for path, content in changed.items()
    )
    return head.encode() + b"".join(files)


# -- large files -----------------------------------------------------------------------------------


def write_large_files(root: Path, megabytes: int) -> int:
    """Files of 64 MB that no block of can be stored once for two; returns the bytes in them."""
    root.mkdir(parents=True)
    rng = random.Random(_SEED)
    for number in range(megabytes // 64):
        (root / f"large-{number}").write_bytes(rng.randbytes(64 << 20))
    return (megabytes // 64) * (64 << 20)


def chunks(seed: int, megabytes: int) -> list[memoryview]:
    """Pieces of 1 MiB, no two alike at any block boundary, so that nothing is stored once for two.

    They are windows into one random buffer at odd offsets: making 512 MB of random bytes would
    take longer than writing them.
    """
    size = 16 << 20
    pool = memoryview(random.Random(seed).randbytes(size))
    step = 10_007
    if megabytes * step > size - (1 << 20):
        raise ValueError("too many pieces for one buffer")
    return [pool[n * step : n * step + (1 << 20)] for n in range(megabytes)]
