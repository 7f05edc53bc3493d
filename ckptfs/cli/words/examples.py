"""What help says beyond the options: examples of every verb, what an ID may be, the settings, and
the few lines that `ckptfs` alone prints. Loaded for help and the manual only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ckptfs.cli.parser import VerbParser

SHORT_HELP = """\
ckptfs gives a directory a history: every step of an agent and every command is
a checkpoint, and one command goes back to it. No root, no git.

  ckptfs mount ~/project        take the directory over, in place
  ckptfs list                   what happened, newest first
  ckptfs diff 12                what changed since checkpoint 12
  ckptfs restore 12             everything as it was; `undo` takes it back
  ckptfs umount ~/project       an ordinary directory again; its history stays

  ckptfs demo                   plays such a session in a temporary directory
  ckptfs hook install claude    tell it the steps of a coding agent
  ckptfs doctor                 whether this machine can, and what to do if not
  ckptfs --help                 all verbs; `ckptfs VERB --help` has examples"""

IDS = """\
An ID may be:
  12               the checkpoint of that number
  release-1        the one with that tag
  latest           the newest
  @, @-2           the workspace as it is; two back along the way that led here
  14:05, "10 minutes ago", yesterday, "2026-11-16 14:05"
                   what stood then
  @ok, @ok:pytest  the newest whose last run, or last run of that, passed"""

#: The verbs by what they are for, as in the table of docs/CLI.md.
GROUPS: dict[str, tuple[str, ...]] = {
    "begin and end": ("mount", "umount", "status", "workspaces", "forget", "service"),
    "look": ("list", "show", "diff", "log", "compare", "watch"),
    "keep": ("save", "tag", "pin", "unpin", "delete", "prune"),
    "go back": ("restore", "rewind", "undo", "redo", "purge"),
    "run commands safely": ("run", "try", "exec", "race", "bisect", "task"),
    "parallel lines of work": ("fork", "forks", "merge"),
    "agents": ("hook", "mcp", "team"),
    "the store": ("config", "compact", "check", "export", "import", "backup"),
    "the machine and the shell": ("doctor", "demo", "shell-init", "completion", "manual"),
}


def verb_lines(help_of: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Every verb with what it does, in its group."""
    import textwrap

    known = dict(help_of)
    for title, verbs in GROUPS.items():
        yield f"{title}:"
        for verb in verbs:
            yield from textwrap.wrap(
                known[verb],
                _WIDTH,
                initial_indent=f"  {verb:<12}",
                subsequent_indent=" " * 14,
            )


#: Verbs of which a word is an ID without being called so.
_TAKES_IDS = frozenset({"diff", "merge", "compare", "list", "bisect"})

#: Of every verb a command or some, each with what it does.
EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "mount": (
        ("ckptfs mount ~/project", "give the directory a history"),
        ("ckptfs mount ~/project --exclude node_modules/", "leave that out of history"),
        ("ckptfs mount ~/new --from ~/old", "a new workspace with what ~/old has"),
    ),
    "umount": (
        ("ckptfs umount ~/project", "the directory is an ordinary one again"),
        ("ckptfs umount ~/project --lazy", "now, though programs still have files open there"),
    ),
    "status": (
        ("ckptfs status", "of the workspace around the current directory"),
        ("ckptfs status --space", "where the store's bytes are"),
    ),
    "save": (
        ('ckptfs save "parser works"', "a checkpoint with a message"),
        ("ckptfs save --tag release-1 --pin", "one with a name, which never expires"),
    ),
    "list": (
        ("ckptfs list", "the newest 20"),
        ('ckptfs list --since "10 minutes ago"', "what happened since"),
        ("ckptfs list --path src/app.py", "in which that file changed"),
    ),
    "diff": (
        ("ckptfs diff", "what changed since the latest checkpoint"),
        ("ckptfs diff 12 15 --stat", "how many lines changed between two"),
        ("ckptfs diff 12 -- src", "of one directory"),
    ),
    "show": (
        ("ckptfs show 12", "who made it, and the names of what it changed"),
        ("ckptfs show latest --patch", "with the text"),
    ),
    "log": (
        ("ckptfs log src/app.py", "the versions of a file"),
        ("ckptfs log --restores", "what was restored, and when"),
    ),
    "restore": (
        ("ckptfs restore 12", "everything"),
        ("ckptfs restore 12 src/app.py 'docs/*.md'", "some paths; the rest stays"),
        ("ckptfs restore 14:05 --dry-run", "only say what it would do"),
    ),
    "rewind": (("ckptfs rewind 2", "two steps back"),),
    "undo": (("ckptfs undo", "as it was before the last restore"),),
    "redo": (("ckptfs redo", "as it was before the last undo"),),
    "fork": (
        ("ckptfs fork idea-2", "a second line of work, as the workspace is now"),
        ("ckptfs fork idea -n 3 --from 12", "idea-1 to idea-3, from a checkpoint"),
        ("ckptfs fork --delete idea-2", "end it"),
    ),
    "forks": (("ckptfs forks", "where they are, and what each changed"),),
    "merge": (
        ("ckptfs merge idea-2 --dry-run", "what it would bring, and what both changed"),
        ("ckptfs merge idea-2 --theirs", "where both changed something, take theirs"),
    ),
    "compare": (("ckptfs compare main idea-2", "what each of them changed"),),
    "tag": (
        ("ckptfs tag 12 release-1", "name a checkpoint"),
        ("ckptfs tag 12 --delete", "take its name away"),
    ),
    "pin": (("ckptfs pin 12 15", "these stay until they are unpinned"),),
    "unpin": (("ckptfs unpin 12", "it may expire again"),),
    "delete": (("ckptfs delete 3 4", "these, and what only they hold"),),
    "prune": (("ckptfs prune --dry-run", "what would go, and why"),),
    "compact": (("ckptfs compact", "make the store as small as it can be"),),
    "purge": (("ckptfs purge .env", "a secret that got into history"),),
    "config": (
        ("ckptfs config", "all settings, and where they were set"),
        ("ckptfs config retention.keep_all 8h", "for this workspace"),
        ("ckptfs config --global exclude.patterns 'node_modules/,*.o'", "for all of yours"),
    ),
    "import": (("ckptfs import ~/old -w ~/project", "bring ~/old into an empty workspace"),),
    "export": (
        ("ckptfs export /tmp/now", "the workspace as it is"),
        ("ckptfs export /tmp/then --checkpoint 12", "as it was"),
    ),
    "check": (
        ("ckptfs check --deep", "also read every byte"),
        ("ckptfs check --repair --store DIR", "save what is whole"),
    ),
    "backup": (("ckptfs backup /media/usb/project", "files and history; no need to unmount"),),
    "workspaces": (("ckptfs workspaces", "of this user, mounted or not"),),
    "forget": (("ckptfs forget ~/project", "delete its history; the directory stays"),),
    "run": (
        (
            "ckptfs run -- make test",
            "its outcome stands in the list; @ok finds the last that passed",
        ),
        ("ckptfs run --on-failure restore -- ./migrate.sh", "take it back if it fails"),
        ("ckptfs run --harness -- my-agent", "each command that it starts is a step"),
    ),
    "try": (("ckptfs try -- ./refactor.sh", "look at what it did, then take it or not"),),
    "exec": (("ckptfs exec 12 -- pytest", "did it pass then?"),),
    "race": (
        ("ckptfs race -n 3 --score 'wc -c < out' --take best -- ./attempt.sh", "the best of three"),
    ),
    "bisect": (("ckptfs bisect run -- pytest -q", "the first checkpoint on which it fails"),),
    "task": (
        ("ckptfs task start parser", "what follows belongs to it"),
        ("ckptfs task done", "until here"),
        ("ckptfs task revert parser", "take it back without the others"),
    ),
    "team": (
        ("ckptfs team snapshot crew --tag before", "all members, and the team's state"),
        ("ckptfs team restore crew before --dry-run", "what it would change"),
    ),
    "service": (
        ("ckptfs service install ~/project", "mount it at every login"),
        ("ckptfs service remove ~/project", "no longer"),
    ),
    "doctor": (("ckptfs doctor", "the machine, the workspaces, the agents"),),
    "demo": (("ckptfs demo --fast", "without pauses"),),
    "watch": (("ckptfs watch --json", "an event a line, for a program"),),
    "hook": (
        ("ckptfs hook install claude", "in the workspace's settings"),
        ("ckptfs hook install --all --user", "for all agents here, in all projects"),
        ("ckptfs hook status", "which are installed"),
    ),
    "mcp": (("ckptfs mcp -w ~/project --read-only", "as an agent's settings call it"),),
    "shell-init": (("ckptfs shell-init bash", "the code to be evaluated"),),
    "completion": (("ckptfs completion zsh", "the code to be evaluated"),),
    "manual": (("ckptfs manual restore", "one verb's page; pipe it into `man -l -`"),),
}


def epilog_of(name: str, parser: VerbParser) -> str:
    """What stands below a verb's options: its examples, what an ID may be, the settings."""
    examples = EXAMPLES.get(name, ())
    width = max((len(command) for command, _ in examples), default=0)
    lines = ["Examples:"] if examples else []
    for command, what in examples:
        if width + len(what) + 4 > _WIDTH:
            lines += [f"  {command}", f"      {what}"]
        else:
            lines.append(f"  {command:<{width}}  {what}")
    if name in _TAKES_IDS or (name != "team" and _has_id(parser)):
        lines += ["", IDS]
    if name == "config":
        lines += ["", *_settings()]
    return "\n".join(lines)


#: Help fits a terminal of 80 columns.
_WIDTH = 78


def _has_id(parser: VerbParser) -> bool:
    return any(action.metavar == "ID" for action in parser._actions)


def _settings() -> list[str]:
    """Every setting with its default and meaning."""
    from ckptfs.history.settings import SETTINGS

    lines = ["The keys, each with its default:"]
    for name, setting in SETTINGS.items():
        lines += [f"  {name} = {setting.default or '(empty)'}", f"      {setting.meaning}"]
    return lines
