"""`diff`, `show`, `log` and the counts of `list`, as a user types them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from ckptfs import errors
from tests.support.mounting import HAVE_FUSE, Workspace, succeed

pytestmark = pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")


def run(workspace: Workspace, *words: str | Path) -> str:
    return succeed(workspace.cli(words[0], "-w", workspace.path, *words[1:])).stdout


def as_json(workspace: Workspace, *words: str | Path) -> dict[str, Any]:
    answer = json.loads(run(workspace, words[0], "--json", *words[1:]))
    assert isinstance(answer, dict)
    return answer


def fails(workspace: Workspace, error: type[errors.CkptfsError], *words: str) -> str:
    done = workspace.cli(words[0], "-w", workspace.path, *words[1:])
    assert done.returncode == error.exit_code, done.stdout + done.stderr
    return done.stderr


@pytest.fixture
def planted(workspace: Workspace) -> Workspace:
    """A mounted workspace with some files and no checkpoint but the first."""
    path = workspace.path
    (path / "src").mkdir()
    (path / "src" / "app.py").write_text("".join(f"line {n}\n" for n in range(30)))
    (path / "src" / "same.py").write_text("the same\n")
    (path / "notes").write_text("one\ntwo\n")
    (path / "goes").write_text("bye\n")
    workspace.mount("--auto", "off")
    return workspace


def edit(path: Path) -> None:
    app = path / "src" / "app.py"
    app.write_text(app.read_text().replace("line 7\n", "line seven\n"))
    (path / "goes").unlink()
    (path / "new file").write_text("fresh\n")
    (path / "notes").chmod(0o755)


def tree(path: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(file.relative_to(path)): (file.read_bytes(), file.stat().st_mode)
        for file in path.rglob("*")
        if file.is_file()
    }


# -- diff ------------------------------------------------------------------------------------------


def test_name_status_lists_what_became_of_each_path(planted: Workspace) -> None:
    assert run(planted, "diff", "--name-status") == ""
    edit(planted.path)
    (planted.path / "src").rename(planted.path / "lib")
    assert run(planted, "diff", "--name-status").splitlines() == [
        "D\tgoes",
        "R\tsrc/\tlib/",
        "M\tlib/app.py",
        "A\tnew file",
        "m\tnotes",
    ]


@pytest.mark.parametrize("command", [["git", "apply", "--unsafe-paths"], ["patch", "-p1", "-i"]])
def test_the_text_can_be_applied(planted: Workspace, command: list[str]) -> None:
    edit(planted.path)
    (planted.path / "src").rename(planted.path / "lib")
    text = run(planted, "diff")
    copy, patch = planted.path.parent / "copy", planted.path.parent / "patch"
    patch.write_text(text)
    run(planted, "export", "--checkpoint", "0", copy)
    env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(copy.parent)}
    subprocess.run([*command, patch], cwd=copy, env=env, check=True, capture_output=True)
    assert tree(copy) == tree(planted.path)


def test_a_diff_the_other_way_round_swaps_added_and_deleted(planted: Workspace) -> None:
    edit(planted.path)
    run(planted, "save", "edited")
    (planted.path / "later").write_text("later\n")
    assert run(planted, "diff", "--name-status") == "A\tlater\n"
    assert "later" not in run(planted, "diff", "0", "1", "--name-status")
    forth, back = (as_json(planted, "diff", *ends) for ends in (("0", "1"), ("1", "0")))
    assert (forth["added"], forth["deleted"]) == (back["deleted"], back["added"]) == (1, 1)
    assert forth["from"]["id"] == 0 and forth["to"]["message"] == "edited"
    assert as_json(planted, "diff", "0")["to"] is None
    assert "A\tlater" in run(planted, "diff", "--name-status", "0", "@")


def test_stat_counts_lines_and_bytes_of_each_file(planted: Workspace) -> None:
    edit(planted.path)
    (planted.path / "bin").write_bytes(b"\0" * 20)
    lines = run(planted, "diff", "--stat").splitlines()
    assert lines[-1] == " 5 files changed, 2 insertions(+), 2 deletions(-)"
    assert any("src/app.py" in line and "2 +-" in line for line in lines)
    assert any("binary 0 -> 20 bytes" in line for line in lines)


def test_stat_and_names_are_about_the_same_paths(planted: Workspace) -> None:
    path = planted.path
    os.mkfifo(path / "pipe")
    run(planted, "save")
    (path / "pipe").unlink()
    (path / "empty").mkdir()
    (path / "full" / "er").mkdir(parents=True)
    (path / "full" / "er" / "file").write_text("one\n")
    os.utime(path / "notes", (1, 1))
    assert run(planted, "diff", "--stat").splitlines() == [
        " full/er/file |     1 +",
        " empty/       | directory: added",
        " pipe         | fifo: deleted",
        " 1 file changed, 1 insertion(+)",
    ]
    assert "notes" in run(planted, "diff", "--stat", "--times")
    assert "notes" not in run(planted, "diff", "--name-status")


def test_only_named_paths_are_compared(planted: Workspace) -> None:
    edit(planted.path)
    inside = ["-w", planted.path, "diff", "--name-status", "--"]
    assert planted.cli(*inside, planted.path / "src").stdout == "M\tsrc/app.py\n"
    assert planted.cli(*inside, planted.path / "no*", planted.path / "goes").stdout == (
        "D\tgoes\nm\tnotes\n"
    )
    done = planted.cli(*inside, planted.path / "nobody")
    assert done.returncode == errors.PathUnknown.exit_code
    assert "nobody" in done.stderr and "neither" in done.stderr
    assert planted.cli(*inside, "/etc").returncode == errors.PathUnknown.exit_code


def test_names_that_are_not_utf8(planted: Workspace) -> None:
    odd = os.path.join(os.fsencode(planted.path), b"n\xff\n")
    with open(odd, "wb") as file:
        file.write(b"odd\n")
    [change] = as_json(planted, "diff")["changes"]
    assert b64decode(change["path_b64"]) == b"n\xff\n"
    assert run(planted, "diff", "--name-status") == 'A\t"n\\377\\n"\n'
    assert 'b"' not in run(planted, "diff") and '+++ "b/n\\377\\n"' in run(planted, "diff")


def test_what_git_has_no_words_for_is_said_in_remarks(planted: Workspace) -> None:
    (planted.path / "notes").chmod(0o600)
    (planted.path / "empty").mkdir()
    os.mkfifo(planted.path / "fifo")
    os.chown(planted.path / "goes", 12, 13)
    text = run(planted, "diff")
    assert "# notes: mode 0644 -> 0600\n" in text
    assert "# empty: directory added\n" in text
    assert "# fifo: fifo added\n" in text
    assert "# goes: owner 0:0 -> 12:13\n" in text or os.geteuid() != 0
    assert "diff --git" not in text


def test_changed_times_are_listed_only_if_asked_for(planted: Workspace) -> None:
    os.utime(planted.path / "notes", (1, 1))
    assert run(planted, "diff", "--name-status") == run(planted, "diff") == ""
    assert run(planted, "diff", "--name-status", "--times") == "t\tnotes\n"
    assert as_json(planted, "diff")["changes"] == []


def test_a_large_file_is_not_compared_by_lines(planted: Workspace) -> None:
    big = planted.path / "big"
    with big.open("wb") as file:
        file.truncate(100 << 20)
    run(planted, "save")
    with big.open("r+b") as file:
        file.seek(50 << 20)
        file.write(b"!")
    text = run(planted, "diff")
    assert "Files a/big (104857600 bytes) and b/big (104857600 bytes) differ" in text


def test_a_diff_of_many_files_is_whole(planted: Workspace) -> None:
    """More than go into one answer of the daemon."""
    for number in range(1200):
        (planted.path / f"f{number}").write_text(f"{number}\n")
    text = run(planted, "diff")
    assert text.count("new file mode 100644") == 1200
    assert "+1199\n" in text


def test_references_that_make_no_sense_are_refused(planted: Workspace) -> None:
    assert "more than two" in fails(planted, errors.UsageError, "diff", "0", "0", "0")
    assert "99" in fails(planted, errors.CheckpointUnknown, "diff", "99")
    fails(planted, errors.CheckpointUnknown, "show", "99")
    fails(planted, errors.UsageError, "diff", "--stat", "--name-status")


def test_a_diff_is_the_same_without_a_mount(planted: Workspace) -> None:
    edit(planted.path)
    mounted = run(planted, "diff", "0")
    planted.umount()
    assert run(planted, "diff", "0") == mounted
    (planted.path / "outside").write_text("outside\n")
    assert "A\toutside" in run(planted, "diff", "0", "--name-status")


# -- on a terminal ---------------------------------------------------------------------------------


def on_terminal(workspace: Workspace, *words: str, **env: str) -> bytes:
    """What a terminal would have got."""
    command = [sys.executable, "-m", "ckptfs", "-w", str(workspace.path), *words]
    master, slave = pty.openpty()
    full = {**os.environ, **workspace.env, "TERM": "xterm", **env}
    with subprocess.Popen(command, stdin=slave, stdout=slave, env=full) as process:
        os.close(slave)
        got = []
        while True:
            try:
                data = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            got.append(data)
    os.close(master)
    assert process.returncode == 0
    return b"".join(got).replace(b"\r\n", b"\n")


def test_a_terminal_gets_colours_and_no_control_characters(planted: Workspace) -> None:
    (planted.path / "notes").write_text("one\n\x1b]0;title\x07\ttwo\n")
    text = on_terminal(planted, "diff", PAGER="cat")
    assert b"\x1b[32m+\\x1b]0;title\\x07\ttwo\x1b[m\n" in text
    assert b"\x1b[31m-two\x1b[m\n" in text
    assert b"\x1b" not in on_terminal(planted, "diff", PAGER="cat", NO_COLOR="1")


def test_a_terminal_gets_a_diff_through_its_pager(planted: Workspace) -> None:
    edit(planted.path)
    text = on_terminal(planted, "diff", "--name-status", PAGER="sed s/^/paged:/", NO_COLOR="1")
    assert text.splitlines()[0] == b"paged:D\tgoes"


def test_a_pager_that_is_left_early(planted: Workspace) -> None:
    (planted.path / "notes").write_text("".join(f"{n}\n" for n in range(50_000)))
    assert b"diff --git" in on_terminal(planted, "diff", PAGER="head -1")


# -- show, list, log -------------------------------------------------------------------------------


def test_show_describes_a_checkpoint_and_what_it_changed(planted: Workspace) -> None:
    edit(planted.path)
    run(planted, "save", "a message", "--tag", "named", "--pin", "--meta", "k=v")
    text = run(planted, "show", "named")
    for words in ("checkpoint 1 [named] (pinned)", "a message", "k=v", "+1 ~2 -1", "D\tgoes"):
        assert words in text
    assert "+line seven" in run(planted, "show", "1", "--patch")
    assert "insertions" in run(planted, "show", "1", "--stat")
    record = as_json(planted, "show", "1")
    assert record["to"]["tag"] == "named" and record["from"]["id"] == 0
    assert as_json(planted, "show", "0")["from"] is None
    assert as_json(planted, "show", "0")["added"] == 5


def test_a_list_counts_what_each_checkpoint_changed(planted: Workspace) -> None:
    edit(planted.path)
    run(planted, "save", "edited")
    assert "+1 ~2 -1" in run(planted, "list").splitlines()[0]
    newest, first = as_json(planted, "list")["checkpoints"]
    assert [newest[key] for key in ("added", "modified", "deleted")] == [1, 2, 1]
    assert [first[key] for key in ("added", "modified", "deleted")] == [5, 0, 0]
    assert len(as_json(planted, "list", "-n", "1")["checkpoints"]) == 1


def test_log_follows_a_path_through_renames(planted: Workspace) -> None:
    edit(planted.path)
    run(planted, "save", "edited")
    (planted.path / "src").rename(planted.path / "lib")
    run(planted, "save", "moved")
    (planted.path / "lib" / "app.py").unlink()
    lines = run(planted, "log", planted.path / "lib" / "app.py").splitlines()
    assert [line.split()[0] for line in lines] == ["now", "2", "1", "0"]
    assert "src/app.py -> lib/app.py" in lines[1] and "moved" in lines[1]
    versions = as_json(planted, "log", planted.path / "goes")["versions"]
    assert [(v["status"], v["saved"]["id"]) for v in versions] == [("D", 1), ("A", 0)]
    done = planted.cli("log", "-w", planted.path, planted.path / "nobody")
    assert done.returncode == errors.PathUnknown.exit_code
    fails(planted, errors.UsageError, "log")


def test_log_lists_the_restores(planted: Workspace) -> None:
    edit(planted.path)
    run(planted, "restore", "0", "--force")
    told = run(planted, "log", "--restores")
    assert told.startswith("    #") and "restore of checkpoint 0" in told
    [entry] = as_json(planted, "log", "--restores")["restores"]
    assert entry["checkpoint"] == 0


def test_the_text_and_the_json_name_files_in_the_same_order(planted: Workspace) -> None:
    edit(planted.path)
    (planted.path / "a new one").write_text("first by its name\n")
    listed = [item["path"] for item in as_json(planted, "diff")["changes"]]
    text = run(planted, "diff").splitlines()
    shown = [line.rpartition("b/")[2].rstrip('"') for line in text if line.startswith("diff --git")]
    assert shown == listed == sorted(listed) and "goes" in shown[1:-1]


def test_show_names_the_state_documents_that_a_checkpoint_carries(planted: Workspace) -> None:
    document = planted.path.parent / "talk.json"
    document.write_text("[1]")
    run(planted, "save", "with state", "--state", f"talk={document}")
    assert "state      talk" in run(planted, "show", "latest").splitlines()
