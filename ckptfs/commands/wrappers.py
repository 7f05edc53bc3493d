"""What others put around a command: shells, sandboxes, time limits, and the scripts of agents.

Owns one table of programs that run another program, and one of the scripts that coding agents write
around a command. What a row does not recognise stays as it is. A command that a shell was given as
text stays that text, with the quotes and variables that it was typed with.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath

from ckptfs.commands.words import (
    CONTROL,
    REDIRECT,
    WORD,
    Simple,
    Token,
    quoted,
    simple_commands,
    tokens,
)

#: How many shells within shells are followed.
_SHELLS_MAX = 16

#: What is longer is no simple command.
_SIMPLE_MAX = 16 << 10

#: Takes one wrapper off a command: from its words and the place of the wrapper to the place of the
#: command in it, or to the text that a shell is given; None if it runs nothing.
Wrapper = Callable[[Sequence[str], int], int | str | None]


def unwrapped(argv: Sequence[str]) -> str:
    """The command that a command line is about, as one would type it. A single argument is a title
    that a program gave itself, and stands for a whole line."""
    if len(argv) == 1 and argv[0]:
        return unwrapped_text(argv[0])
    at = 0
    while isinstance(inside := _inside(argv, at), int):
        at = inside
    if isinstance(inside, str) and inside.strip():
        return unwrapped_text(inside.strip())
    return quoted(argv[at:])


def unwrapped_text(text: str) -> str:
    """The same for a command line that is a text."""
    for _ in range(_SHELLS_MAX):
        inner = (_from_agent(text) or _from_programs(text) or "").strip()
        if not inner:
            break
        text = inner
    return text


def _from_programs(text: str) -> str | None:
    """The command behind the programs at the beginning of a text that is one simple command."""
    if len(text) > _SIMPLE_MAX:
        return None
    found = tokens(text)
    commands = simple_commands(found)
    if len(commands) != 1 or commands[0].ends not in ("", ";", "&", "\n"):
        return None
    words, values = commands[0].words, commands[0].values
    at = 0
    while isinstance(inside := _inside(values, at), int):
        at = inside
    if inside is not None and not any(token.kind == REDIRECT for token in found):
        return inside
    ahead = (token for token in found if token.start < words[at].start)
    if not at or any(token.kind == REDIRECT for token in ahead):
        return None
    return text[words[at].start :]


def _inside(values: Sequence[str], at: int) -> int | str | None:
    """One wrapper taken off."""
    wrapper = _PROGRAMS.get(program_name(values[at]))
    inside = wrapper(values, at) if wrapper else None
    return inside if not isinstance(inside, int) or inside < len(values) else None


def program_name(word: str) -> str:
    """A program's name without its directory; a login shell's without its dash."""
    return os.path.basename(word).lstrip("-")


def command_at(values: Sequence[str]) -> int:
    """Where the command of a simple command stands, behind assignments and wrappers."""
    at = 0
    while at < len(values):
        if _is_assignment(values[at]) or values[at] in _RESERVED:
            at += 1
        elif isinstance(inside := _inside(values, at), int):
            at = inside
        else:
            break
    return at


#: Programs that run others' text, and names of scripts that do not tell whose they are.
_INTERPRETER = re.compile(r"python[\d.]*|pypy[\d.]*|node|nodejs|bun|deno|ruby|perl")
_ANY_NAME = frozenset(
    "__init__ __main__ app bin build cli dist entry index lib main run src".split()
)


def first_program(text: str) -> str:
    """The name of the first program that a text runs; a builtin's if there is no other."""
    names = [name for name in map(_program_of, simple_commands(tokens(text))) if name]
    return next((name for name in names if name not in _BUILTINS), names[0] if names else "")


def _program_of(command: Simple) -> str:
    at = command_at(command.values)
    if at == len(command.words):
        return ""
    if isinstance(inside := _inside(command.values, at), str):
        return first_program(unwrapped_text(inside))
    return program_name(command.values[at]).rstrip(":")


def program_of(text: str) -> str:
    """The program that a command line is about, by the name that people know it by: "claude",
    "pytest", "bash". An interpreter is called what it runs."""
    name = first_program(text)
    for command in simple_commands(tokens(text)):
        words = command.values[command_at(command.values) :]
        if words and program_name(words[0]) == name and _INTERPRETER.fullmatch(name):
            return _script_of(words) or name
    return name


def _script_of(words: Sequence[str]) -> str:
    """What an interpreter runs: a module, a script, or the package that has a script of a name
    like any other. Empty if it is a text, or nothing."""
    rest = iter(words[1:])
    for word in rest:
        if word == "-m":
            return next(rest, "").partition(".")[0]
        if word.startswith("-"):
            if word in ("-c", "-e", "-p", "--eval", "--print"):
                return ""
            continue
        path = PurePath(word)
        for part in (path.stem, *(parent.name for parent in path.parents)):
            if part and part not in _ANY_NAME:
                return part
        return ""
    return ""


def commands_in(text: str) -> Iterator[Sequence[str]]:
    """The words of each command that a text runs, behind assignments and wrappers; and of what an
    interpreter or a runner is given to run the same, from there on."""
    for command in simple_commands(tokens(text)):
        at = command_at(command.values)
        words: Sequence[str] = command.values[at:]
        if words and isinstance(inside := _inside(command.values, at), str):
            yield from commands_in(unwrapped_text(inside))
        while words:
            words = [program_name(words[0]), *words[1:]]
            yield words
            words = _given(words)


def _given(words: Sequence[str]) -> Sequence[str]:
    """What `python -m pytest`, `npx jest` and `uv run pytest` run."""
    rest = words[1:]
    if rest[:1] and rest[0] in ("run", "exec"):
        rest = rest[1:]
    elif not _GIVES.fullmatch(words[0]):
        return ()
    return rest[next((at for at, word in enumerate(rest) if word[:1] != "-"), len(rest)) :]


#: Programs whose first operand is a program.
_GIVES = re.compile(r"(python|pypy|node|ruby|perl|bash|sh|npx|bunx|uvx)[0-9.]*")


def _is_assignment(word: str) -> bool:
    return re.match(r"[A-Za-z_]\w*\+?=", word) is not None


# -- programs that run a program -------------------------------------------------------------------


def _runs(
    short: str = "", long: str = "", *, operands: int = 0, assigns: bool = False, script: str = ""
) -> Wrapper:
    """A program that runs what stands behind its options and ``operands``.

    ``short`` and ``long`` are the options with a value, ``script`` those whose value is a text for
    a shell. ``assigns`` tells that there may be assignments in front of the command.
    """
    names = frozenset(long.split()) | frozenset(short) | frozenset(script.split())

    def take_off(words: Sequence[str], at: int) -> int | str | None:
        at += 1
        while at < len(words) and (
            words[at].startswith("-") or (assigns and _is_assignment(words[at]))
        ):
            word, at = words[at], at + 1
            if word == "--":
                break
            name, value = _option(word, names)
            if name and value is None:
                value, at = "".join(words[at : at + 1]), at + 1
            if name in script.split():
                return value
        while assigns and at < len(words) and _is_assignment(words[at]):
            at += 1
        return at + operands

    return take_off


def _option(word: str, names: frozenset[str]) -> tuple[str, str | None]:
    """The option with a value in a word, and the value if it is in the word, too."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        return (name, value if equals else None) if name in names else ("", None)
    for place, letter in enumerate(word[1:], 2):
        if letter in names:
            return letter, word[place:] or None
    return "", None


def _shell(words: Sequence[str], at: int) -> str | None:
    """SHELL [options] -c TEXT [NAME [ARGUMENT...]]"""
    takes_text = False
    at += 1
    while at < len(words) and words[at][:1] in ("-", "+") and words[at] != "-":
        word, at = words[at], at + 1
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if name == "command":
                return value if equals else "".join(words[at : at + 1])
            at += name in ("rcfile", "init-file", "emulate", "init-command") and not equals
        else:
            takes_text = takes_text or (word.startswith("-") and "c" in word)
            at += "o" in word or "O" in word
    if not takes_text or at >= len(words):
        return None
    return _text_with_arguments(words[at], words[at + 2 :])


def _text_with_arguments(text: str, arguments: Sequence[str]) -> str | None:
    """What a shell's text runs, given $1 and so on. A text that only works on its arguments is not
    the command without them, so it stays with its shell."""
    if not arguments or _from_agent(text) is not None:
        return text
    shifted = 0
    for values in (command.values for command in simple_commands(tokens(text))):
        if values[0] == "shift":
            shifted += int(values[1]) if len(values) > 1 and values[1].isdigit() else 1
        elif values[0] in ("exec", "$@") and "$@" in values:
            rest = arguments[shifted:]
            return quoted(rest[1:] if rest[:1] == ["--"] else rest)
        elif "eval" in values and values[values.index("eval") :][1:2] == ["$1"]:
            return arguments[0]
    return None if re.search(r"\$\{?[1-9@*]", text) else text


#: Options of bwrap by the number of their values; those without any are not needed.
_BWRAP = {
    **dict.fromkeys(
        "args argv0 userns userns2 pidns uid gid hostname chdir unsetenv lock-file sync-fd "
        "remount-ro overlay-src tmp-overlay ro-overlay exec-label file-label proc dev tmpfs mqueue "
        "dir seccomp add-seccomp-fd block-fd userns-block-fd info-fd json-status-fd cap-add "
        "cap-drop perms size".split(),
        1,
    ),
    **dict.fromkeys(
        "setenv bind bind-try dev-bind dev-bind-try ro-bind ro-bind-try bind-fd ro-bind-fd file "
        "bind-data ro-bind-data symlink chmod".split(),
        2,
    ),
    "overlay": 3,
}


def _bwrap(words: Sequence[str], at: int) -> int:
    at += 1
    while at < len(words) and words[at].startswith("--"):
        if words[at] == "--":
            return at + 1
        at += 1 + _BWRAP.get(words[at][2:], 0)
    return at


def _behind_dashes(words: Sequence[str], at: int) -> int | None:
    """Codex's helper: its options are its own affair, the command stands behind `--`."""
    own = program_name(words[at]) == "codex-linux-sandbox"
    if not own and words[at + 1 : at + 2] != ["--sandbox-policy-cwd"]:
        return None
    return words.index("--", at) + 1 if "--" in words[at:] else None


def _apply_seccomp(words: Sequence[str], at: int) -> int:
    """The helper of sandbox-runtime, with the file of a filter in front of the shell or without."""
    return at + 1 if program_name("".join(words[at + 1 : at + 2])) in SHELLS else at + 2


def _command(words: Sequence[str], at: int) -> int | str | None:
    """`command -v` runs nothing."""
    return None if words[at + 1 : at + 2] in (["-v"], ["-V"]) else _runs()(words, at)


def _su(words: Sequence[str], at: int) -> str | None:
    """Here the user may stand in front of the options."""
    for place, word in enumerate(words[at + 1 :], at + 2):
        name, value = _option(word, frozenset(("c", "command"))) if word[:1] == "-" else ("", None)
        if name:
            return "".join(words[place : place + 1]) if value is None else value
    return None


def _runuser(words: Sequence[str], at: int) -> int | str | None:
    """With -u it is like sudo, without it like su."""
    is_sudo = any(word in ("-u", "--user") for word in words[at:])
    return _runs("ugG", "user group supp-group")(words, at) if is_sudo else _su(words, at)


SHELLS = frozenset("ash bash dash fish ksh ksh93 mksh nu oksh rbash sh yash zsh".split())

_NAMESPACES = (
    "wd root setuid setgid propagation setgroups map-user map-group map-users map-groups boottime "
    "monotonic load-interp"
)
_SYSTEMD = (
    "property unit description slice setenv uid gid nice working-directory service-type machine "
    "host on-active on-calendar"
)
_TYPESCRIPT = "log-in log-out log-io log-timing logging-format echo output-limit"
_SUDO = "user group host prompt close-from role type command-timeout chroot chdir other-user"

_PROGRAMS: Mapping[str, Wrapper] = {
    **dict.fromkeys(SHELLS, _shell),
    # Sandboxes and namespaces.
    "apply-seccomp": _apply_seccomp,
    "bwrap": _bwrap,
    "chroot": _runs(operands=1),
    "codex": _behind_dashes,
    "codex-linux-sandbox": _behind_dashes,
    "fakeroot": _runs("lsib"),
    "firejail": _runs(),
    "flatpak-spawn": _runs(),
    "nsenter": _runs("tSGW", "target setuid setgid wdns net-socket"),
    "srt": _runs("s", "settings", script="c"),
    "unshare": _runs("wRSGl", _NAMESPACES),
    # Users.
    "doas": _runs("uC"),
    "runuser": _runuser,
    "su": _su,
    "sudo": _runs("ughpCrtTRDU", _SUDO, assigns=True),
    # Time, priorities, limits.
    "chrt": _runs("TPD", "sched-runtime sched-period sched-deadline", operands=1),
    "ionice": _runs("cn", "class classdata"),
    "nice": _runs("n", "adjustment"),
    "prlimit": _runs(),
    "systemd-run": _runs("puEMH", _SYSTEMD),
    "taskset": _runs(operands=1),
    "time": _runs("fo", "format output"),
    "timeout": _runs("ks", "kill-after signal", operands=1),
    # Terminals, sessions, environments.
    "busybox": _runs(),
    "command": _command,
    "dbus-run-session": _runs("", "config-file dbus-daemon"),
    "dumb-init": _runs("r", "rewrite"),
    "env": _runs("uC", "unset chdir", assigns=True, script="S split-string"),
    "exec": _runs("a"),
    "nohup": _runs(),
    "script": _runs("IOBTEmo", _TYPESCRIPT, script="c command"),
    "setsid": _runs(),
    "stdbuf": _runs("ioe", "input output error"),
    "strace": _runs("abeEIoOpPsSuUX", "output trace"),
    "tini": _runs("pe"),
    "unbuffer": _runs(),
    "xvfb-run": _runs("efnpsw", "error-file auth-file server-num xauth-protocol server-args wait"),
}

#: Words of a shell's grammar in front of a command.
_RESERVED = frozenset("! { } do done elif else esac fi if then until while".split())
#: What a shell does itself, mostly to prepare for the program that a command is about.
_BUILTINS = frozenset(
    ". : [ [[ alias builtin case cd declare eval export for function hash local popd pushd read "
    "readonly return set setopt shift shopt source test trap true typeset ulimit umask unalias "
    "unset until wait".split()
)


# -- the scripts of agents -------------------------------------------------------------------------


def _from_agent(text: str) -> str | None:
    """The command in a script that an agent wrote around it."""
    return next((inner for take_off in _SCRIPTS if (inner := take_off(text)) is not None), None)


def _gemini_options(text: str) -> str | None:
    """Gemini CLI switches options of bash off first."""
    found = re.match(r"shopt -u promptvars [a-z ]+; ", text)
    return text[found.end() :] if found else None


def _gemini_group(text: str) -> str | None:
    """Gemini CLI and Qwen Code: a group, whose processes are listed behind it."""
    end = text.rfind("}; __code=$?; ")
    return text[2:end].rstrip().removesuffix(";") if text.startswith("{ ") and end > 0 else None


def _gemini_subshell(text: str) -> str | None:
    """Their later form: a subshell that lists its jobs when it ends."""
    begin = re.match(r"(?:_bgpids_file=[^\n]*\n)?\(\n *trap '(?:jobs|pgrep) [^\n]* EXIT\n", text)
    end = text.rfind("\n)\n__code=$?")
    return text[begin.end() : end if end > 0 else len(text)] if begin else None


def _qwen_trap(text: str) -> str | None:
    """A form in between: the list is made by a trap in front of the command."""
    found = re.match(r"trap '__code=\$\?; pgrep -g 0 [^\n]* EXIT\n", text)
    return text[found.end() :] if found else None


def _codex_snapshot(text: str) -> str | None:
    """Codex reads a snapshot of the shell's state, then executes the shell that it was to start."""
    begin = text.find(" >/dev/null 2>&1; then :; fi\n")
    if begin < 0:
        return None
    last = ""
    for token in tokens(text):
        if token.start > begin and token.value == "exec" and last == "\n":
            return text[token.start :]
        last = token.value
    return None


def _sandbox_runtime(text: str) -> str | None:
    """sandbox-runtime starts two proxies, and ends them with the command."""
    begin = text.find(" EXIT\n", text.find("kill %1 %2"))
    if begin < 0 or not re.match(r"[^\s'\"]*socat TCP-LISTEN:", text):
        return None
    inner = re.sub(r"\AARGV0=\S+ ", "", text[begin + 6 :].strip())
    words = [token.value for token in tokens(inner)]
    return words[1] if words[:1] == ["eval"] and len(words) == 2 else inner


#: What a script has that restores an agent's shell before it evaluates the command.
_RESTORING = ("/shell-snapshots/", "/dev/null && pwd", "pwd -P >|", "~/.bashrc ]]", "~/.zshenv ]]")


def _evaluated(text: str) -> str | None:
    """Claude Code and opencode: the state of the shell is restored, then the command is evaluated;
    Claude Code notes the directory behind it."""
    if not any(sign in text for sign in _RESTORING):
        return None
    found = tokens(text)
    at = next((place for place in range(len(found)) if _is_eval(found, place)), None)
    if at is None or not _only_notes_the_directory(rest := found[at + 2 :]):
        return None
    command = found[at + 1].value
    if any(token.value == "/dev/null" for token in rest) or "pwd" not in text[found[at + 1].end :]:
        return command
    # In a pipeline the empty input is given to its first part, within the text.
    return command.replace(" < /dev/null |", " |", 1)


def _is_eval(found: Sequence[Token], at: int) -> bool:
    """Whether a word is the beginning of `eval TEXT`, behind another command."""
    begins = at > 0 and found[at - 1].kind == CONTROL
    followed = found[at + 1 : at + 2]
    return begins and found[at].value == "eval" and any(token.kind == WORD for token in followed)


def _only_notes_the_directory(rest: Sequence[Token]) -> bool:
    """Whether nothing follows but an empty input, perhaps with an escaped `<`, and `pwd`."""
    commands = [command.values for command in simple_commands(rest)]
    return all(values in (["<", "/dev/null"], ["pwd"], ["pwd", "-P"]) for values in commands)


_SCRIPTS: Sequence[Callable[[str], str | None]] = (
    _gemini_options,
    _gemini_group,
    _gemini_subshell,
    _qwen_trap,
    _codex_snapshot,
    _sandbox_runtime,
    _evaluated,
)
