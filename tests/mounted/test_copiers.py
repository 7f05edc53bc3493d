"""Programs that copy and walk whole trees: cp, tar, rsync, find, grep, du, rm."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.mounting import Workspace
from tests.support.programs import run
from tests.support.trees import Directory, Facts, Fifo, File, Link, Same, Tree, facts, fsync, plant

#: Something of everything that a faithful copy must keep.
SAMPLE: Tree = {
    "plain": File("text\n", mtime_ns=1_111_111_111_123_456_789),
    "empty": "",
    "binary": os.urandom(200_000),
    "program": File("#!/bin/sh\n", mode=0o755),
    "secret": File("x", mode=0o400, mtime_ns=1),
    "set-id": File("x", mode=0o6755),
    "name with\nnewline": "x",
    "\udcff\udcfe": "a name that is not UTF-8",
    "link": Link("plain"),
    "dangling": Link("no/such/file"),
    "twin": Same("binary"),
    "pipe": Fifo(),
    "dir": Directory(
        {f"f{number}": File("y" * number, mtime_ns=number * 10**15) for number in range(40)},
        mode=0o750,
        mtime_ns=1_222_222_222_000_000_001,
    ),
    "deep": {"er": {"and": {"deeper": {"file": "z", "twin": Same("plain")}}}},
    "void": Directory({}, mode=0o2711, mtime_ns=5_000_000_000),
}


def sample(at: Path) -> Path:
    at.mkdir()
    plant(at, SAMPLE)
    with open(at / "sparse", "wb") as file:
        file.seek(3_000_000)
        file.write(b"end")
    os.utime(at / "link", ns=(1, 1_333_333_333_000_000_007), follow_symlinks=False)
    if os.geteuid() == 0:
        os.chown(at / "plain", 1234, 5678)
        os.chown(at / "link", 1234, 5678, follow_symlinks=False)
    os.utime(at, ns=(3, 1_444_444_444_000_000_003))
    return at


def whole_seconds(known: dict[str, Facts]) -> dict[str, Facts]:
    """What a format that keeps seconds only can bring back."""
    return {name: fact._replace(mtime_ns=fact.mtime_ns // 10**9) for name, fact in known.items()}


def test_cp_a_copies_a_tree_in_through_and_out(mount: Path, elsewhere: Path) -> None:
    expected = facts(sample(elsewhere / "sample"))
    run("cp", "-a", elsewhere / "sample", mount / "in", cwd=mount)
    assert facts(mount / "in") == expected
    run("cp", "-a", mount / "in", mount / "through", cwd=mount)
    assert facts(mount / "through") == expected
    run("cp", "-a", mount / "through", elsewhere / "out", cwd=mount)
    assert facts(elsewhere / "out") == expected


def test_cp_keeps_holes(mount: Path) -> None:
    with open(mount / "sparse", "wb") as file:
        file.truncate(30_000_000)
        file.seek(10_000_000)
        file.write(b"x")
    run("cp", "--sparse=always", "sparse", "copy", cwd=mount)
    run("cmp", "sparse", "copy", cwd=mount)
    assert (mount / "copy").stat().st_blocks * 512 < 3_000_000


def test_a_sample_survives_a_remount(own_mount: Workspace) -> None:
    expected = facts(sample(own_mount.path / "sample"))
    own_mount.remount()
    assert facts(own_mount.path / "sample") == expected


@pytest.mark.parametrize("form", ["posix", "gnu"])
def test_tar_packs_and_unpacks_a_tree(mount: Path, elsewhere: Path, form: str) -> None:
    """posix archives keep nanoseconds, the older gnu form does not."""
    keep = (lambda known: known) if form == "posix" else whole_seconds
    expected = keep(facts(sample(elsewhere / "sample")))
    pack = ("tar", f"--format={form}", "--sparse", "-cf")
    unpack = ("tar", "--same-permissions", "-xf")
    run(*pack, elsewhere / "one.tar", "-C", elsewhere, "sample", cwd=mount)
    run(*unpack, elsewhere / "one.tar", cwd=mount)
    assert keep(facts(mount / "sample")) == expected
    run(*pack, mount / "two.tar", "sample", cwd=mount)
    (elsewhere / "out").mkdir()
    run(*unpack, mount / "two.tar", cwd=elsewhere / "out")
    assert keep(facts(elsewhere / "out/sample")) == expected
    run("tar", "--compare", "-f", mount / "two.tar", cwd=mount)


def rsync(source: Path, target: Path, *options: str) -> str:
    """Mirror. A modify window of -1 makes rsync compare nanoseconds, not just seconds."""
    command = ("rsync", "-aH", "--delete", "--modify-window=-1")
    return run(*command, *options, f"{source}/", f"{target}/", cwd=source)


def change(at: Path) -> None:
    """Additions, edits, deletions, renames and a change of type."""
    (at / "plain").write_text("edited\n")
    (at / "program").chmod(0o700)
    (at / "dangling").unlink()
    (at / "dir/f1").rename(at / "dir/renamed")
    shutil.rmtree(at / "deep/er")
    (at / "empty").unlink()
    plant(at, {"empty": {"now": "a directory"}, "new": File("n", mtime_ns=77)})


@pytest.mark.parametrize("way", ["in", "out"])
def test_rsync_copies_a_tree_in_and_out(mount: Path, elsewhere: Path, way: str) -> None:
    here, there = (elsewhere, mount) if way == "in" else (mount, elsewhere)
    source, copy = sample(here / "sample"), there / "copy"
    rsync(source, copy)
    assert facts(copy) == facts(source)
    assert rsync(source, copy, "-n", "-i") == ""
    change(source)
    rsync(source, copy)
    assert facts(copy) == facts(source)
    assert rsync(source, copy, "-n", "-i", "--checksum") == ""


def test_rsync_updates_a_file_in_place(mount: Path, elsewhere: Path) -> None:
    """--inplace and --append write into files that are there, block by block."""
    (elsewhere / "a").mkdir()
    (mount / "b").mkdir()
    data = bytearray(os.urandom(500_000))
    (elsewhere / "a/file").write_bytes(data)
    rsync(elsewhere / "a", mount / "b")
    data[200_000:200_010] = b"0123456789"
    data += b"and a tail"
    (elsewhere / "a/file").write_bytes(data)
    rsync(elsewhere / "a", mount / "b", "--inplace", "--no-whole-file")
    assert (mount / "b/file").read_bytes() == data


@pytest.fixture
def forest(mount: Path) -> Path:
    """Three hundred files in thirty directories, every tenth with a needle in it."""
    for number in range(300):
        directory = mount / f"d{number % 30}"
        directory.mkdir(exist_ok=True)
        text = "hay\n" * number + ("needle\n" if number % 10 == 0 else "")
        (directory / f"f{number}").write_text(text)
    return mount


def test_find_sees_every_entry(forest: Path) -> None:
    assert len(run("find", ".", "-type", "f", cwd=forest).split()) == 300
    assert len(run("find", ".", "-type", "d", cwd=forest).split()) == 31
    assert run("find", ".", "-name", "f17", cwd=forest) == "./d17/f17\n"
    assert len(run("find", ".", "-type", "f", "-size", "0", cwd=forest).split()) == 0
    run("find", ".", "-name", "f1*", "-delete", cwd=forest)
    assert len(run("find", ".", "-type", "f", cwd=forest).split()) == 300 - 111
    run("find", ".", "-type", "f", "-newermt", "2001-01-01", "-exec", "rm", "{}", "+", cwd=forest)
    assert run("find", ".", "-type", "f", cwd=forest) == ""


def test_grep_finds_every_match(forest: Path) -> None:
    found = run("grep", "-rl", "needle", ".", cwd=forest).split()
    assert sorted(found) == sorted(f"./d{n % 30}/f{n}" for n in range(0, 300, 10))


def test_du_and_ls_count_every_file(forest: Path) -> None:
    apparent = int(run("du", "-sb", "--apparent-size", "d29", cwd=forest).split()[0])
    files = sum(path.stat().st_size for path in (forest / "d29").iterdir())
    assert apparent >= files
    assert len(run("ls", "-lR", cwd=forest).splitlines()) >= 300


def test_rm_rf_leaves_nothing(forest: Path) -> None:
    run("rm", "-rf", *(path.name for path in forest.iterdir()), cwd=forest)
    assert os.listdir(forest) == []
    assert forest.stat().st_nlink == 2


def test_mv_moves_a_tree_in_and_out(mount: Path, elsewhere: Path) -> None:
    expected = facts(sample(elsewhere / "sample"))
    run("mv", elsewhere / "sample", mount / "sample", cwd=mount)
    assert facts(mount / "sample") == expected
    run("mv", mount / "sample", elsewhere / "back", cwd=mount)
    assert facts(elsewhere / "back") == expected
    assert os.listdir(mount) == []


def test_save_as_editors_do(mount: Path) -> None:
    """Write a new file, make it durable, rename it over; keep the old one as a backup."""
    (mount / "text").write_text("version 0\n")
    for number in range(1, 30):
        with open(mount / ".text.new", "w") as new:
            new.write(f"version {number}\n")
            new.flush()
            os.fsync(new.fileno())
        if (mount / "text~").exists():
            (mount / "text~").unlink()
        os.link(mount / "text", mount / "text~")
        os.rename(mount / ".text.new", mount / "text")
        fsync(mount)
        assert (mount / "text").read_text() == f"version {number}\n"
        assert (mount / "text~").read_text() == f"version {number - 1}\n"
    assert sorted(os.listdir(mount)) == ["text", "text~"]


VIMS = ("vim.tiny", "vim")


@pytest.mark.needs_program(*VIMS)
@pytest.mark.parametrize("backupcopy", ["yes", "no"])
def test_vim_saves(mount: Path, backupcopy: str) -> None:
    vim = next(name for name in VIMS if shutil.which(name))
    (mount / "text").write_text("one\ntwo\n")
    (mount / "text").chmod(0o640)
    settings = ["set backup", "set backupskip=", f"set backupcopy={backupcopy}"]
    script = [*settings, "%s/one/first/", "$s/two/second/", "wq"]
    commands = [word for line in script for word in ("-c", line)]
    run(vim, "-e", "-s", "-u", "NONE", *commands, "text", cwd=mount, HOME=str(mount))
    assert (mount / "text").read_text() == "first\nsecond\n"
    assert (mount / "text~").read_text() == "one\ntwo\n"
    assert (mount / "text").stat().st_mode & 0o777 == 0o640
    assert not list(mount.glob(".*.sw*"))


def test_sed_in_place_and_shell_redirections_write_what_they_should(mount: Path) -> None:
    script = (
        "for i in 1 2 3 4 5; do echo line $i >> log; done; sed -i s/line/LINE/ log;"
        "sort -r log -o log; head -1 log > top; cat log top | tee both | wc -l"
    )
    assert subprocess.check_output(["sh", "-c", script], cwd=mount, text=True).strip() == "6"
    assert (mount / "top").read_text() == "LINE 5\n"
    assert (mount / "both").read_text().count("LINE") == 6
