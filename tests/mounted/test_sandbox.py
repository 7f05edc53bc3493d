"""ckptfs from inside the sandboxes of agents: bwrap with a pid namespace and a read-only root, and
bwrap with nothing but the workspace, where the mount is the only way to the daemon."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ckptfs import config, control_file
from ckptfs.control.client import Client
from ckptfs.control.server import CONNECTIONS_MAX
from ckptfs.errors import RefusedInSandbox
from tests.support.errnos import fails
from tests.support.mounting import Workspace, succeed, workspace
from tests.support.peer import NOBODY, peer
from tests.support.sandbox import BARE, KINDS, READ_ONLY, ROOT, bwrap, cli, inside, run

pytestmark = [pytest.mark.needs_mount, pytest.mark.needs_program("bwrap")]

#: Suites that ask what a file system does, to be run from inside.
CHOSEN = """
    test_links.py test_append.py test_rename.py
""".split()


@contextmanager
def mounted(server: str, *options: str) -> Iterator[Workspace]:
    """A mounted workspace, answered by the compiled server or by the portable path."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("CKPTFS_SERVER", server)
        made = stack.enter_context(workspace(*options))
        patch.undo()
        yield made


@pytest.fixture(scope="module")
def outside() -> Iterator[Workspace]:
    """A workspace that is mounted outside of the sandboxes."""
    with mounted("on") as made:
        yield made


@pytest.fixture(scope="module", params=["on", "off"])
def served(request: pytest.FixtureRequest, outside: Workspace) -> Iterator[Workspace]:
    """The same, and one that pyfuse3 serves alone."""
    if request.param == "on":
        yield outside
    else:
        with mounted("off", "--no-write-back") as made:
            yield made


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def answered(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(succeed(done).stdout)
    return found


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == RefusedInSandbox.exit_code, done.stdout + done.stderr
    return done.stderr


# -- every verb ------------------------------------------------------------------------------------

SCRIPT = """
set -e
ckptfs() { "$python" -m ckptfs "$@"; }
echo one >file; ckptfs save first --tag start
echo two >file; mkdir sub; (cd sub && echo there >other); ckptfs save second --tag end
ckptfs list; ckptfs diff start; ckptfs log file; (cd sub && ckptfs log other)
ckptfs show start; ckptfs status; ckptfs pin start; ckptfs unpin start
cat .checkpoints/start/file; echo marked >.checkpoints/.mark
ckptfs restore start --force; test "$(cat file)" = one; test ! -e sub
ckptfs undo --force; test "$(cat file)" = two
ckptfs redo --force; test "$(cat file)" = one
ckptfs run -- sh -c 'echo three >file'; ckptfs run --harness -- true
ckptfs task list; ckptfs prune --dry-run; ckptfs check
ckptfs purge sub --force; ckptfs delete end --force; ckptfs rewind 1 --force
"""


def test_every_verb_works_without_the_compiled_server() -> None:
    with mounted("off") as served:
        succeed(run(BARE, served, "sh", "-c", f"python={sys.executable}\n{SCRIPT}"))


def test_every_verb_works(outside: Workspace, kind: str) -> None:
    script = SCRIPT.replace("start", f"{kind}-a").replace("end", f"{kind}-z")
    done = succeed(run(kind, outside, "sh", "-c", f"python={sys.executable}\n{script}"))
    assert "+two" in done.stdout and "clean" in done.stdout
    assert str(inside(kind, outside)) in done.stdout


def test_the_words_name_the_path_that_is_seen_inside(outside: Workspace, kind: str) -> None:
    status = answered(cli(kind, outside, "status", "--json"))
    assert status["mounted"] and status["pid"] == outside.pid
    assert status["workspace"] == str(inside(kind, outside))
    assert status["store"] == str(outside.store)


def test_a_workspace_is_named_from_elsewhere(outside: Workspace, kind: str) -> None:
    words = ["list", "-w", str(inside(kind, outside)), "--json"]
    done = run(
        kind, outside, "sh", "-c", 'cd / && exec "$@"', "sh", sys.executable, "-m", "ckptfs", *words
    )
    assert answered(done)["checkpoints"]


def test_a_hook_takes_its_checkpoint(outside: Workspace, kind: str) -> None:
    event = {"hook_event_name": "PreToolUse", "session_id": "s", "tool_name": "Bash"}
    event |= {"cwd": str(inside(kind, outside)), "tool_input": {"command": f"make {kind}"}}
    (outside.path / "made").write_text(kind)
    hook = [sys.executable, "-m", "ckptfs", "hook", "--agent", "claude"]
    done = succeed(run(kind, outside, *hook, stdin=json.dumps(event)))
    assert done.stderr == ""
    newest = answered(outside.cli("list", "-w", outside.path, "--json"))["checkpoints"][0]
    assert newest["kind"] == "hook" and f"make {kind}" in newest["message"]


API = """
import sys
from ckptfs import CheckpointService
service = CheckpointService(sys.argv[1])
service.initialize()
with service.watch() as events:
    open("told", "w").write(sys.argv[2])
    state = {"talk": ["word"] * 100_000, "blob": bytes(range(256)) * 8_000}
    saved = service.save("by the API", state=state)
    told = next(events)
assert told.checkpoint_id == saved.id and told.workspace == sys.argv[1], told
assert service.state(saved.id) == state
open("told", "w").write("otherwise")
assert service.restore(saved.id, state=False).before_id
assert service.mounted and service.status().mounted
assert open("told").read() == sys.argv[2]
"""


def test_the_api_works_with_documents_and_events(outside: Workspace, kind: str) -> None:
    path = inside(kind, outside)
    succeed(run(kind, outside, sys.executable, "-c", API, path, kind))
    assert not list(outside.store.glob("state-*")), "what was staged is left"


def test_the_caller_is_known_by_its_number_outside(outside: Workspace, kind: str) -> None:
    script = f"{sys.executable} -m ckptfs save --allow-empty --json called && exec cat"
    words = [*bwrap(kind, outside.path), "sh", "-c", script]
    env = {**os.environ, **outside.env}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, env=env, **pipes) as sandbox:  # type: ignore[call-overload]
        saved = json.loads(sandbox.stdout.readline())
        words_of = Path(f"/proc/{saved['cause']['pid']}/cmdline")
        # In the middle of its exec it has none.
        caller = next(filter(None, iter(words_of.read_bytes, None)))
        sandbox.stdin.close()
        assert sandbox.wait(30) == 0
    assert caller.startswith((b"sh\0", b"cat\0"))


def test_the_user_may_have_another_number_inside(outside: Workspace) -> None:
    done = cli(BARE, outside, "list", "--json", more=["--uid", "1234", "--gid", "1234"])
    assert answered(done)["checkpoints"]


def test_a_workspace_that_is_bound_over_another_is_the_one_that_is_meant(
    outside: Workspace, make_workspace: Callable[..., Workspace]
) -> None:
    """The registry, which the sandbox sees, knows the path as that of the other one."""
    other = make_workspace()
    bound = ["--bind", str(outside.path), str(other.path)]
    status = answered(cli(READ_ONLY, other, "status", "-w", other.path, "--json", more=bound))
    assert status["pid"] == outside.pid and status["store"] == str(outside.store)


# -- what is refused -------------------------------------------------------------------------------


def test_verbs_that_reach_outside_are_refused(outside: Workspace, kind: str) -> None:
    """They would be done by the daemon, on the machine outside of the sandbox."""
    goal = outside.store.parent / f"goal-{kind}"
    goal.mkdir()
    words = ("export", "backup", "import", "umount")
    script = f"""
import sys
from pathlib import Path
from ckptfs.config import Workspace
from ckptfs.control.client import Client
from ckptfs.errors import CkptfsError
workspace = Workspace(Path(sys.argv[1]), Path(sys.argv[2]))
for op in {words!r}:
    with Client(workspace) as client:
        try:
            client.call(op, {{"dest": sys.argv[3], "source": "/etc", "checkpoint": None}})
        except CkptfsError as error:
            print(op, error.kind)
"""
    path = inside(kind, outside)
    done = succeed(run(kind, outside, sys.executable, "-c", script, path, outside.store, goal))
    assert done.stdout.split() == [word for op in words for word in (op, RefusedInSandbox.kind)]
    assert not os.listdir(goal)
    outside.quiet()


#: Connects, makes the workspace its root directory, changes that, and asks for an export.
_CHROOTED = """
import json, os, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[2])
os.chroot(sys.argv[1])
os.close(os.open("/made here", os.O_WRONLY | os.O_CREAT))
asked = {"v": 1, "op": "export", "args": {"dest": "/tmp/anywhere"}}
connection.sendall(json.dumps(asked).encode() + b"\\n")
print(json.loads(connection.makefile().readline())["error"]["kind"])
"""


@pytest.mark.needs_root
def test_a_client_whose_root_is_the_workspace_does_not_stop_the_daemon() -> None:
    """The daemon looks at its client's root directory, which is its own to answer for."""
    with workspace("--no-write-back") as made:
        words = [sys.executable, "-c", _CHROOTED, made.path, made.store / "control.sock"]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=20)
        except subprocess.TimeoutExpired:
            made.kill()  # or nothing here would ever end
            made.mount()
            raise
        assert done.stdout == "refused-in-sandbox\n", done.stderr


def test_the_command_line_says_what_to_do_instead(outside: Workspace) -> None:
    assert "cp -a .checkpoints/" in refused(cli(BARE, outside, "export", "/tmp/goal"))
    assert "outside of the sandbox" in refused(cli(BARE, outside, "umount", "/ws"))
    assert "outside of the sandbox" in refused(cli(BARE, outside, "config"))
    assert "outside of the sandbox" in refused(cli(READ_ONLY, outside, "umount"))
    already = cli(BARE, outside, "mount", "/ws")
    assert "is already mounted there" in already.stderr


def test_settings_are_not_changed_from_inside(outside: Workspace) -> None:
    said = refused(cli(READ_ONLY, outside, "config", "retention.max_checkpoints", "7"))
    assert "Cannot change the settings from inside a sandbox" in said
    assert "Nothing was changed." in said and "outside of the sandbox" in said


def test_a_part_of_a_workspace_is_not_enough(outside: Workspace) -> None:
    part = outside.path / "part"
    part.mkdir()
    done = cli(BARE, outside, "list", bound=part)
    assert "/ws is only part of a mounted workspace" in done.stderr


def test_a_sandbox_without_proc_says_so(outside: Workspace) -> None:
    done = cli(BARE, outside, "list", more=["--tmpfs", "/proc"])
    assert "without /proc" in done.stderr


def test_a_workspace_that_is_bound_read_only_says_so(outside: Workspace) -> None:
    done = cli(BARE, outside, "list", read_only=True)
    assert "cannot be written to" in refused(done)


def test_a_dead_daemon_is_never_taken_for_a_living_one(kind: str) -> None:
    with workspace() as made:
        holder = subprocess.Popen(
            [*bwrap(kind, made.path), sys.executable, "-c", DYING],
            env={**os.environ, **made.env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert holder.stdout is not None
        assert holder.stdout.readline() == "alive\n"
        made.kill()
        said, _ = holder.communicate("go on\n", timeout=60)
        succeed(made.cli("umount", made.path))
    assert "Lost the daemon" in said


DYING = """
import os, subprocess, sys
ckptfs = [sys.executable, "-m", "ckptfs", "-w", os.getcwd()]
os.chdir("/")
subprocess.run([*ckptfs, "list"], check=True, stdout=subprocess.DEVNULL)
print("alive", flush=True)
input()
done = subprocess.run([*ckptfs, "list"], capture_output=True, text=True)
print(done.returncode, done.stderr)
"""


# -- the control file ------------------------------------------------------------------------------


def connect(made: Workspace) -> control_file.Connection:
    mount = control_file.mount_at(str(made.path))
    assert mount is not None and mount.is_whole and mount.store == str(made.store)
    connection = control_file.Connection(mount)
    connection.settimeout(30)
    return connection


def ask(connection: control_file.Connection, op: str) -> dict[str, Any]:
    connection.sendall(json.dumps({"v": 1, "op": op}).encode() + b"\n")
    line = b""
    while not line.endswith(b"\n"):
        line += connection.recv(65536)
    found: dict[str, Any] = json.loads(line)
    return found


def test_it_stands_in_no_listing(served: Workspace) -> None:
    assert ".control" not in os.listdir(served.path / ".checkpoints")


def test_reading_it_without_a_question_ends(served: Workspace) -> None:
    with fails(errno.EINVAL):
        (served.path / ".checkpoints/.control").read_bytes()


def test_connections_do_not_mix(served: Workspace) -> None:
    one, other = connect(served), connect(served)
    one.sendall(b'{"v": 1, "op": "li')
    assert "pid" in ask(other, "status")["result"]
    one.sendall(b'st"}\n')
    assert one.recv(65536).startswith(b'{"v":1,"result":{"checkpoints"')
    one.close()
    other.close()


def test_garbage_is_answered_and_hung_up_on(served: Workspace) -> None:
    connection = connect(served)
    connection.sendall(b"\xff garbage\n")
    assert b'"error"' in connection.recv(65536)
    assert connection.recv(65536) == b""
    connection.close()


def test_one_that_ends_its_requests_still_hears_the_answer(served: Workspace) -> None:
    connection = connect(served)
    connection.sendall(b'{"v": 1, "op": "status"}\n')
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(65536).startswith(b'{"v":1,"result"')
    assert connection.recv(65536) == b""
    connection.close()


def test_clients_that_vanish_leave_nothing_behind(served: Workspace) -> None:
    """More of them than there are places; none says that it goes."""
    descriptors = f"/proc/{served.pid}/fd"
    before = len(os.listdir(descriptors))
    for _ in range(CONNECTIONS_MAX + 20):
        connection = connect(served)
        assert "result" in ask(connection, "status")
        os.close(connection._fd)
    assert len(os.listdir(descriptors)) < before + 20


def test_places_are_shared_with_the_socket(served: Workspace) -> None:
    """Of one more than there are places, one is refused or hung up on."""
    held = [connect(served) for _ in range(CONNECTIONS_MAX + 1)]
    try:
        for connection in held:
            connection.sendall(b'{"v": 1, "op": "status"}\n')
            connection.recv(65536)
        assert sum(map(is_served, held)) <= CONNECTIONS_MAX
    finally:
        for connection in held:
            connection.close()


def is_served(connection: control_file.Connection) -> bool:
    connection.sendall(b'{"v": 1, "op": "sync"}\n')
    return b'"result"' in connection.recv(65536)


def test_the_mount_serves_others_while_many_wait(served: Workspace) -> None:
    """More waiting readers than the daemon has tasks for requests."""
    waiting = [connect(served) for _ in range(20)]
    for connection in waiting:
        assert "result" in ask(connection, "watch")
        connection.settimeout(0.01)
        with pytest.raises(TimeoutError):
            connection.recv(65536)
    (served.path / "served").write_text("yes")
    assert (served.path / "served").read_text() == "yes"
    for connection in waiting:
        connection.close()


@pytest.mark.needs_root
@pytest.mark.parametrize("server", ["on", "off"])
def test_only_its_owner_and_root_may_open_it(server: str) -> None:
    with mounted(server, "--allow-other") as made:
        path = made.path / ".checkpoints/.control"
        with peer(NOBODY) as nobody, fails(errno.EACCES):
            nobody(os.open, path, os.O_RDWR)
        made.path.chmod(0o777)
        with peer(NOBODY) as nobody, fails(errno.EACCES):
            nobody(os.open, path, os.O_RDWR)


@pytest.mark.needs_root
def test_one_that_is_handed_on_is_of_no_use_to_others() -> None:
    """The compiled server is told who asks, with every request."""
    with mounted("on", "--allow-other") as made:
        connection = connect(made)
        assert "result" in ask(connection, "status")
        try:
            with peer(NOBODY) as nobody, fails(errno.EACCES):
                nobody(os.pread, connection._fd, 4096, connection._received)
        finally:
            connection.close()


def test_a_client_that_may_not_use_sockets_goes_through_the_mount(
    outside: Workspace,
) -> None:
    """As where seccomp forbids connect(2)."""
    there = config.Workspace(outside.path, outside.store)
    hidden = outside.store / "hidden.sock"
    os.rename(there.socket, hidden)
    try:
        with Client(there) as client:
            assert client.call("list")["checkpoints"]
    finally:
        os.rename(hidden, there.socket)


# -- whole suites ----------------------------------------------------------------------------------


@pytest.mark.timeout(280)
@pytest.mark.parametrize("kind", [BARE, pytest.param(READ_ONLY, marks=pytest.mark.deep)])
def test_the_basic_suites_pass_inside_a_sandbox(
    make_workspace: Callable[..., Workspace], kind: str
) -> None:
    made = make_workspace("--no-write-back")
    chosen = [f"{ROOT}/tests/mounted/{name}" for name in CHOSEN]
    options = [
        "-q",
        "-m",
        "not needs_root and not deep",
        "--maxfail=5",
        "-p",
        "no:cacheprovider",
        f"--rootdir={ROOT}",
    ]
    base = inside(kind, made)
    env = ["env", f"CKPTFS_TEST_PLAIN={base}", f"TMPDIR={base}", f"HOME={base}"]
    done = run(kind, made, *env, sys.executable, "-m", "pytest", *options, *chosen)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
