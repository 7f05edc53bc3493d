"""`ckptfs hook`: what an agent's hook calls. It starts fast and never holds the agent up.

Only what a call needs is imported at the top; not even `typing` is.
"""

from __future__ import annotations

import _thread
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

#: A call ends after this many seconds, even if it still waits.
DEADLINE = 5.0


#: What is said where there is nothing to say, until it is known what this agent takes for that.
_nothing = b"{}"


def call(agent: str = "", event: str = "") -> NoReturn:
    """Answer one hook call on standard input. Always ends with 0: nothing may block an agent.

    ``agent`` and ``event`` stand in the command that was installed, where the input lacks them.
    """
    global _nothing
    _thread.start_new_thread(_give_up, (time.monotonic() + DEADLINE,))
    try:
        from ckptfs.agents import hook_call

        _nothing = hook_call.nothing(agent, event)
        _say(*hook_call.answer(lambda size: os.read(0, size), agent, event))
    except BaseException as error:  # noqa: BLE001 - an edge: the agent goes on
        _say(_nothing, f"failed: {type(error).__name__}: {error}. No checkpoint was taken.")
    os._exit(0)


def decline(words: list[str], reason: str) -> None:
    """Answer a call with a wrong command line. The caller ends with 0: 2 would block the agent."""
    from ckptfs.agents import hook_call, hook_input

    output = hook_call.nothing(_value_of("--agent", words), _value_of("--event", words))
    _say(output, f"{hook_input.clean(reason)} No checkpoint was taken.")


def _value_of(option: str, words: list[str]) -> str:
    """The option's value; empty if there is none."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == option:
            return value if equals else following
    return ""


def _give_up(deadline: float) -> None:
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(left)
    _say(_nothing, f"gave up after {DEADLINE:.0f} seconds. No checkpoint was taken.")
    os._exit(0)


def _say(output: bytes, warning: str) -> None:
    try:
        if warning:
            os.write(2, f"ckptfs: {warning}\n".encode(errors="backslashreplace"))
        if output:
            os.write(1, output + b"\n")
    except OSError:
        pass  # the agent closed its end
