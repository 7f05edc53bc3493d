"""What one step made, no other step destroys unseen: every harness, every destroyer, every pause.

The default selection has each harness with a few destroyers, and each destroyer with the plainest
harness at the shortest pause and at a second; the whole product is `deep`.
"""

from __future__ import annotations

import pytest

from tests.steps.cases import SERVERS, Case, mounted, report_of, run, story
from tests.steps.conftest import Served
from tests.steps.destroyers import DESTROYERS
from tests.steps.harnesses import HARNESSES

GAPS = (0.05, 0.3, 1.0, 3.0)
#: In one tool call only what stood for a second is promised, and timers are not exact.
ONE_STEP_GAPS = (1.2, 3.0)
SHORTEST = GAPS[0]

#: How many workspaces at once, where cases mostly wait.
SIDE_BY_SIDE = 8
_CHOSEN = 2


def selection() -> list[tuple[str, Case]]:
    """Each harness with some destroyers, so chosen that each pair of neighbours differs; each
    destroyer with the plainest harness; some of them through the portable path."""
    every = list(DESTROYERS)
    found = [("compiled", Case("python", destroyer, SHORTEST)) for destroyer in every]
    for place, harness in enumerate(HARNESSES.values()):
        if harness.name == "python" or harness.one_step:
            continue
        for turn in range(_CHOSEN):
            destroyer = every[(place * _CHOSEN + turn * 7) % len(every)]
            found.append(("compiled", Case(harness.name, destroyer, SHORTEST)))
    found += [
        ("pyfuse3", Case("python", destroyer, SHORTEST))
        for destroyer in ("rm-rf", "sed-i", "python-in-place", "sqlite", "truncate")
    ]
    found += [
        ("pyfuse3", Case(harness, "rm-rf", SHORTEST)) for harness in ("edit", "bash-pipe", "bwrap")
    ]
    return found


def _parameters() -> list[object]:
    return [pytest.param(server, case, id=f"{case}-{server}") for server, case in selection()]


@pytest.mark.parametrize("server, case", _parameters())
def test_what_a_step_made_comes_back_after_another_destroyed_it(
    served: Served, server: str, case: Case
) -> None:
    if case.missing:
        pytest.skip(case.missing)
    work = served(server)
    lost = run(case, work).losses()
    assert not lost, "\n".join([*lost, story(work)])
    work.quiet()


def test_what_a_step_made_comes_back_after_each_destroyer_a_second_later() -> None:
    cases = [Case("python", destroyer, 1.0) for destroyer in DESTROYERS]
    cases += [Case("script-whole", name, ONE_STEP_GAPS[0]) for name in ("rm-rf", "sed-i", "sqlite")]
    report = report_of("compiled", [case for case in cases if not case.missing], SIDE_BY_SIDE)
    assert not report, report


def test_the_matrix_fails_where_no_checkpoints_are_taken() -> None:
    """A check that cannot fail would prove nothing."""
    with mounted("compiled", "--auto", "off") as work:
        for destroyer in ("rm-rf", "sed-i", "git-checkout", "python-in-place"):
            done = run(Case("python", destroyer, SHORTEST), work)
            assert len(done.losses()) == len(done.plan.lost), story(work)


def _rows() -> list[object]:
    return [
        pytest.param(server, harness.name, gap, id=f"{server}-{harness.name}-{gap * 1000:.0f}ms")
        for server in SERVERS
        for harness in HARNESSES.values()
        for gap in (ONE_STEP_GAPS if harness.one_step else GAPS)
    ]


@pytest.mark.deep
@pytest.mark.parametrize("server, harness, gap", _rows())
def test_every_maker_and_destroyer_loses_nothing(server: str, harness: str, gap: float) -> None:
    able = [made for made in DESTROYERS.values() if server == "compiled" or not made.compiled_only]
    cases = [Case(harness, destroyer.name, gap) for destroyer in able]
    runnable = [case for case in cases if not case.missing]
    if not runnable:
        pytest.skip(cases[0].missing)
    report = report_of(server, runnable, SIDE_BY_SIDE if gap >= 1 else 2)
    assert not report, report
