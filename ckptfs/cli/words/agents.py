"""The words of verbs for coding agents and shells."""

from __future__ import annotations

from collections.abc import Callable

from ckptfs.cli.parser import VerbParser

#: What `hook` does for people. Without one of these words an agent calls it.
HOOK_ACTIONS = ("install", "uninstall", "status", "plugin")


def _hook(hook: VerbParser) -> None:
    hook.usage = (
        "ckptfs hook [--agent AGENT [--event EVENT]]\n"
        "       ckptfs hook install|uninstall AGENT|--all [--project | --user]\n"
        "                   [--forks] [--dry-run | --yes]\n"
        "       ckptfs hook status\n"
        "       ckptfs hook plugin DIR"
    )
    hook.add_argument("action", nargs="?", choices=HOOK_ACTIONS, help="what to do")
    hook.add_argument("subject", nargs="?", metavar="AGENT", help="the agent, or where to put it")
    hook.add_argument("--all", action="store_true", help="all agents that are on this machine")
    where = hook.add_mutually_exclusive_group()
    where.add_argument(
        "--project",
        action="store_true",
        help="in the settings of the workspace (the default, but not for opencode)",
    )
    where.add_argument("--user", action="store_true", help="in your own settings, for all projects")
    hook.add_argument(
        "--forks",
        action="store_true",
        help="of Claude Code: work trees are forks of the workspace, too",
    )
    how = hook.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="only show what would change")
    how.add_argument("--yes", action="store_true", help="do not ask")
    hook.add_argument(
        "--agent", metavar="AGENT", help="of a call: the agent, if its input does not say"
    )
    hook.add_argument("--event", metavar="EVENT", help="of a call: the event, likewise")


def _mcp(mcp: VerbParser) -> None:
    mcp.add_argument("--read-only", action="store_true", help="only the tools that change nothing")
    mcp.add_argument(
        "--allow-commands",
        action="store_true",
        help="also the tool that runs commands, outside of the agent's own sandbox",
    )


def _shell_init(shell: VerbParser) -> None:
    shell.usage = 'eval "$(ckptfs shell-init bash)"    in ~/.bashrc; zsh and fish likewise'
    _which_shell(shell)


def _completion(completion: VerbParser) -> None:
    completion.usage = 'eval "$(ckptfs completion bash)"    in ~/.bashrc; zsh and fish likewise'
    _which_shell(completion)


def _which_shell(parser: VerbParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="which shell")


def _manual(manual: VerbParser) -> None:
    manual.add_argument("subject", metavar="VERB", nargs="?", help="only this verb's page")


WORDS: dict[str, Callable[[VerbParser], None]] = {
    "hook": _hook,
    "mcp": _mcp,
    "shell-init": _shell_init,
    "completion": _completion,
    "manual": _manual,
}
