"""What agents, shells and sandboxes put around a command is taken off."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptfs.commands import command_line, program_of, quoted, unwrapped
from ckptfs.commands.words import simple_commands, tokens

SNAPSHOT = "source /home/u/.claude/shell-snapshots/snapshot-bash-1764912682391-862f45.sh"
CWD = "pwd -P >| /tmp/claude-e959-cwd"
ALIASES = r"{ \builtin unalias -- 'unsetenv'; \builtin unset -f -- 'unsetenv'; } >/dev/null 2>&1"

#: The scripts in which coding agents run `{}`: a command that a shell quotes within the script.
QUOTING = {
    "claude": f"{SNAPSHOT} && eval {{}} < /dev/null && {CWD}",
    "claude with a failing snapshot": f"{SNAPSHOT} 2>/dev/null || true && eval {{}} && {CWD}",
    "claude with an escaped redirection": f"{SNAPSHOT} && eval {{}} \\< /dev/null && {CWD}",
    "claude for two shells": (
        f"{SNAPSHOT} && {{{{ shopt -u extglob || setopt NO_EXTENDED_GLOB; }}}} 2>/dev/null || true "
        f"&& eval {{}} < /dev/null && {CWD}"
    ),
    "claude in 2.1.258": (
        'export CLAUDE_CODE_VERSION="2.1.258 (Claude Code)"\n: && shopt -u extglob 2>/dev/null '
        f"|| true && {ALIASES.replace('{', '{{').replace('}', '}}')} || true && eval {{}} "
        f"< /dev/null && {CWD}"
    ),
    "claude in a sandbox": (
        "setopt NO_EXTENDED_GLOB NO_BARE_GLOB_QUAL 2>/dev/null || true "
        "&& eval {} < /dev/null && pwd"
    ),
    "codex": "if . '/h/.codex/snap.sh' >/dev/null 2>&1; then :; fi\n\nexec '/bin/zsh' -c {}",
    "codex with exports": (
        "a=\"${{B-}}\"\n\nif . '/h/.codex/s.sh' >/dev/null 2>&1; then :; fi\n\n"
        "export B=\"$a\"\n\nexec '/bin/bash' -c {}"
    ),
    "opencode": (
        "\n        shopt -s expand_aliases\n        [[ -f ~/.bashrc ]] && source ~/.bashrc "
        '>/dev/null 2>&1 || true\n        cd -- "$1"\n        eval {}\n      '
    ),
    "sandbox-runtime": (
        "socat TCP-LISTEN:3128,fork UNIX-CONNECT:/tmp/h >/dev/null 2>&1 &\n"
        "socat TCP-LISTEN:1080,fork UNIX-CONNECT:/tmp/s >/dev/null 2>&1 &\n"
        'trap "kill %1 %2 2>/dev/null; exit" EXIT\neval {}'
    ),
    "sandbox-runtime with a filter": (
        "socat TCP-LISTEN:3128,fork UNIX-CONNECT:/tmp/h >/dev/null 2>&1 &\n"
        "trap 'rc=$?; kill %1 %2 2>/dev/null; exit $rc' EXIT\n"
        "ARGV0=apply-seccomp /opt/apply-seccomp /opt/x.bpf /bin/bash -c {}"
    ),
}
#: The scripts in which the command stands as it is.
PLAIN = {
    "gemini, a group": "{{ {}; }}; __code=$?; pgrep -g 0 >/tmp/a.tmp 2>&1; exit $__code;",
    "gemini, a subshell": (
        "(\n  trap 'jobs -p > /tmp/shell_pgrep_a.tmp' EXIT\n{}\n)\n__code=$?\nexit $__code"
    ),
    "gemini with options": (
        "shopt -u promptvars nullglob extglob nocaseglob dotglob; _bgpids_file='/tmp/x.tmp'\n"
        "(\n  trap 'jobs -p > \"$_bgpids_file\"' EXIT\n{}\n)\n__code=$?\nexit $__code"
    ),
    "qwen": "trap '__code=$?; pgrep -g 0 >/tmp/x.tmp 2>&1; exit $__code' EXIT\n{}",
}
COMMANDS = [
    "npm test",
    "git commit -m 'it'\"'\"'s done'",
    'cd "$HOME/x" && make | tail -n 5 > log 2>&1',
    "cat > a.py <<'EOF'\nprint('don\\'t')\nEOF\npython a.py",
    'for f in *; do\n  echo "$f"\ndone',
    "eval 'x' && pwd",
    "echo '}; __code=$?; ' # )",
]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("script", QUOTING.values(), ids=QUOTING)
def test_the_command_that_an_agent_quotes_in_a_script_is_unwrapped(
    script: str, command: str
) -> None:
    text = script.format(shlex.quote(command))
    assert unwrapped(["/bin/bash", "-c", text, "opencode", "/dir"]) == command
    assert unwrapped(["/bin/bash", "-c", "-l", text]) == command


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("script", PLAIN.values(), ids=PLAIN)
def test_the_command_that_an_agent_writes_into_a_script_is_unwrapped(
    script: str, command: str
) -> None:
    assert unwrapped(["bash", "-c", script.format(command)]) == command


def test_a_command_in_the_background_is_no_part_of_the_group() -> None:
    text = "{ my-server & }; __code=$?; pgrep -g 0 >/tmp/x 2>&1; exit $__code;"
    assert unwrapped(["bash", "-c", text]) == "my-server &"


def test_the_empty_input_that_claude_gives_to_a_pipeline_is_not_of_the_command() -> None:
    text = f"{SNAPSHOT} && eval 'ps aux < /dev/null | grep x' && {CWD}"
    assert unwrapped(["bash", "-c", text]) == "ps aux | grep x"


def test_a_command_in_double_quotes() -> None:
    text = f'{SNAPSHOT} && eval "say \\"it\'s \\$1\\"" \\< /dev/null && {CWD}'
    assert unwrapped(["bash", "-c", text]) == 'say "it\'s $1"'


def test_a_script_that_is_cut_still_has_its_command() -> None:
    text = f"{SNAPSHOT} && eval 'echo {'x' * 20_000}' < /dev/null && {CWD}"
    assert unwrapped(["bash", "-c", text[: 16 << 10]]).startswith("echo xxx")
    text = PLAIN["gemini with options"].format("echo " + "x" * 20_000)
    assert unwrapped(["bash", "-c", text[: 16 << 10]]).startswith("echo xxx")


def test_cursor_gives_the_command_as_an_argument() -> None:
    text = (
        'snap=$(command cat <&3) && builtin shopt -s extglob && builtin eval -- "$snap" && '
        '{ builtin set +u 2>/dev/null || true; builtin eval "${X:-}"; builtin eval "$1"; }; '
        "CODE=$?; dump_bash_state >&4; builtin exit $CODE"
    )
    assert unwrapped(["/bin/bash", "-O", "extglob", "-c", text, "--", "cd x && make"]) == (
        "cd x && make"
    )


@pytest.mark.parametrize(
    "text, arguments",
    [
        ('a="$1"; b="$2"; shift 2; exec bwrap --args 8 "$@" 8< "$b" 9< "$a"', ["/a", "/b", "--"]),
        ('exec 9<"$1" && shift && exec "$@"', ["/tmp/args", "bwrap", "--args", "9", "--"]),
        ('"$@"', []),
    ],
)
def test_a_shell_that_runs_its_arguments_is_unwrapped(text: str, arguments: list[str]) -> None:
    argv = ["sh", "-c", text, "_", *arguments, "bash", "-c", "npm i && npm test"]
    assert unwrapped(argv) == "npm i && npm test"


# -- programs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "bash -c {}",
        "/usr/bin/bash -lc {}",
        "-bash -c {}",
        "sh -c {}",
        "dash -e -c {}",
        "zsh -lic {}",
        "bash -i -c {}",
        "bash --login -c {}",
        "bash --rcfile /dev/null --noprofile -c {}",
        "bash -euo pipefail -c {}",
        "bash -o pipefail -ec {}",
        "bash +x -c -- {}",
        "bash -c {} name",
        "fish -c {}",
        "fish --command {}",
        "fish --command={}",
        "busybox sh -c {}",
        "script -qec {} /dev/null",
        "script -q --command {} /dev/null",
        "su - joe -c {}",
        "su -c {} joe",
        "runuser -l joe -c {}",
        "srt -s settings.json -c {}",
        "env -S {}",
    ],
)
def test_a_text_for_a_shell_stays_as_it_was_typed(line: str) -> None:
    command = 'echo "$HOME" | sort; ls'
    assert unwrapped(shlex.split(line.format(shlex.quote(command)))) == command


@pytest.mark.parametrize(
    "line",
    [
        "bwrap --new-session --ro-bind / / --dev /dev --perms 555 --tmpfs /t --setenv A -- --",
        "bwrap --die-with-parent --unshare-pid --proc /proc --cap-drop ALL --argv0 x --",
        "bwrap --bind / / --overlay a b c --unshare-net",
        "codex-linux-sandbox --sandbox-policy-cwd /w --permission-profile {} --",
        "/opt/codex --sandbox-policy-cwd /w --apply-seccomp-then-exec --",
        "timeout 60",
        "timeout -k 5 --signal=KILL -s INT --foreground 1m",
        "env",
        "env -i -u HOME PATH=/bin X=",
        "nice",
        "nice -n 5",
        "nice --adjustment=5",
        "ionice -c 2 -n7",
        "chrt -f 10",
        "taskset -c 0-3",
        "prlimit --as=1000",
        "nohup",
        "stdbuf -oL -e 0",
        "setsid -w",
        "sudo -u x -E",
        "sudo -n -- ",
        "sudo --user=x A=1",
        "doas -u x",
        "runuser -u x --",
        "time -p",
        "unshare -r --mount-proc --wd /x --",
        "nsenter -t 1 -m -S 0",
        "firejail --quiet --net=none",
        "flatpak-spawn --host --env=A=b",
        "fakeroot -s x",
        "chroot /mnt",
        "xvfb-run -a -s '-screen 0 1x1x24'",
        "systemd-run --user --scope -p MemoryMax=1G --unit x",
        "dbus-run-session --",
        "strace -f -o out -e trace=file",
        "tini -s --",
        "unbuffer",
        "exec -a x",
        "command",
        "apply-seccomp x.bpf bash -c 'make -j2 \"a b\"' #",
        "timeout 5 nice env A=1 sudo nohup",
    ],
)
def test_programs_that_run_a_program_are_left_out(line: str) -> None:
    argv = [*shlex.split(line, comments=True), "make", "-j2", "a b"]
    wanted = 'make -j2 "a b"' if line.endswith("#") else "make -j2 'a b'"
    assert unwrapped(argv) == wanted
    assert unwrapped(["sh", "-c", quoted(argv)]) == wanted


@pytest.mark.parametrize(
    "line",
    [
        "env",
        "env A=1",
        "sudo -l",
        "timeout 5",
        "timeout --help",
        "bash",
        "bash script.sh -c x",
        "bash -c ''",
        "bash -c ' '",
        "bash -i",
        "command -v make",
        "codex exec -- 'fix it'",
        "bwrap --args 9",
        "sh -c 'mv \"$1\" x' _ file",
        "git commit -m 'bash -c x'",
        "find . -exec sh -c x ';'",
    ],
)
def test_what_holds_no_command_stays(line: str) -> None:
    assert shlex.split(unwrapped(shlex.split(line))) == shlex.split(line)


@pytest.mark.parametrize(
    "text",
    [
        "timeout 5 make && make install",
        "FOO=1 timeout 5 make",
        "nohup ./server > log & sleep 1",
        "bash -c 'make' > log",
        "> log timeout 5 make",
        "if timeout 5 make; then ls; fi",
        'cd src && eval "$(direnv hook bash)"',
        "eval 'x'",
        "{ a; }",
        "(timeout 5 make)",
    ],
)
def test_a_text_of_more_than_one_simple_command_stays(text: str) -> None:
    assert unwrapped(["bash", "-c", text]) == text


@pytest.mark.parametrize(
    "text, inner",
    [
        ("timeout 5 make > log 2>&1", "make > log 2>&1"),
        ("nohup make &", "make &"),
        ("timeout 6 cat <<'EOF'\nit's a; b\nEOF", "cat <<'EOF'\nit's a; b\nEOF"),
        ("# build\ntimeout 5 make", "make"),
        ("sudo bash -c 'timeout 5 make'", "make"),
        ("timeout 5 echo $HOME", "echo $HOME"),
    ],
)
def test_a_text_of_one_simple_command_is_unwrapped(text: str, inner: str) -> None:
    assert unwrapped(["bash", "-c", text]) == inner


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv, name",
    [
        (["curl", "-u", "a:b", "https://x"], "curl"),
        (["/usr/bin/python3", "x.py"], "python3"),
        (["bash", "-lc", "cd x && npm test"], "npm"),
        (["bash", "-c", "export A=1; B=2 timeout 5 make"], "make"),
        (["bash", "-c", "if ! grep -q x y; then z; fi"], "grep"),
        (["bash", "-c", "A=1 bash -c 'ls -l'"], "ls"),
        (["bash", "-c", "cd x"], "cd"),
        (["sudo", "-u", "x", "id"], "id"),
        (["-bash"], "bash"),
        (["nginx: worker process"], "nginx"),
        (["bash", "-c", f"{SNAPSHOT} && eval 'make x' && {CWD}"], "make"),
        (["bash", "-c", "A=secret"], "?"),
        (["bash", "-c", "> x"], "?"),
    ],
)
def test_the_setting_name_records_only_the_first_program(argv: list[str], name: str) -> None:
    assert command_line([word.encode() for word in argv], "name") == name


# -- properties ------------------------------------------------------------------------------------

WORDS = st.text(alphabet=st.sampled_from("abc /-='\"\\$ \n;&|()<>#{}*~é\x1b"), max_size=12)
PARTS = st.sampled_from(
    [
        *"sh -c bash -lc eval timeout 5 env A=1 sudo -u x -- bwrap --bind / nice make && |".split(),
        *"<<EOF EOF \\< /dev/null pwd -P $1 $@ exec shift ' \" \\ ( # { ; >".split(),
        *("\n", "a b", SNAPSHOT),
    ]
)
TEXTS = st.lists(PARTS, max_size=25).map(" ".join) | st.text(max_size=40)
ARGV = st.lists(WORDS | PARTS | TEXTS, min_size=1, max_size=8)


@given(st.lists(WORDS, min_size=1, max_size=8))
def test_what_is_quoted_is_taken_apart_into_the_same_words(words: list[str]) -> None:
    (command,) = simple_commands(tokens(quoted(words)))
    assert command.values == words == shlex.split(quoted(words))


@given(TEXTS)
def test_every_text_is_taken_apart_in_order_and_without_gaps(text: str) -> None:
    end = 0
    for token in tokens(text):
        assert end <= token.start < token.end <= len(text)
        assert not text[end : token.start].replace("\\\n", "").strip(" \t\r")
        end = token.end
    assert not text[end:].replace("\\\n", "").strip(" \t\r")


@given(ARGV)
@settings(deadline=None, max_examples=300)
def test_unwrapping_twice_is_unwrapping_once(argv: list[str]) -> None:
    once = unwrapped(argv)
    assert once
    if once.strip():
        assert unwrapped(["sh", "-c", "--", once]).strip() == once.strip()


@given(st.lists(st.sampled_from(sorted({*QUOTING, *PLAIN})), max_size=3), st.sampled_from(COMMANDS))
@settings(deadline=None)
def test_scripts_within_scripts_are_unwrapped(kinds: list[str], command: str) -> None:
    argv = ["bash", "-c", command]
    for kind in kinds:
        script = QUOTING.get(kind) or PLAIN[kind]
        inner = quoted(argv)
        argv = ["bash", "-c", script.format(shlex.quote(inner) if kind in QUOTING else inner)]
    assert unwrapped(argv) == command


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("claude --resume", "claude"),
        ("/usr/bin/bash", "bash"),
        ("-bash", "bash"),
        ("python3 -m pytest -q", "pytest"),
        ("/opt/venv/bin/python3.12 /opt/venv/bin/aider --model x", "aider"),
        (
            "node --max-old-space-size=4096 /usr/lib/node_modules/gemini-cli/dist/index.js",
            "gemini-cli",
        ),
        ("python3 -c 'print(1)'", "python3"),
        ("python3", "python3"),
        ("node index.js", "node"),
        ("cd src && make -j2", "make"),
        ("FOO=1 timeout 5 npm test", "npm"),
        ("", ""),
    ],
)
def test_a_command_is_called_by_the_program_that_it_is_about(text: str, name: str) -> None:
    assert program_of(text) == name
