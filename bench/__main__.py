"""The command line of the benchmark: what to run, and where the results go."""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from bench import (  # noqa: F401
    clients,
    compare,
    document,
    everyday,
    forks,
    growth,
    history,
    portable,
    registry,
    report,
    room,
    upkeep,
)
from bench.figures import figures
from bench.fuse_rivals import FUSE_RIVALS
from bench.keepers import KEEPERS
from bench.kit import Kit, NotToBeHad
from bench.machine import machine_facts, rival_facts
from bench.outcome import Outcome
from bench.product import AUTO_OFF, Installation, ProductFailed, compile_sources
from bench.scale import FULL, NORMAL, QUICK
from bench.session import Plan, default_cache, run_plan

#: Everyone to compare with beyond the directory's own file system.
RIVALS = (*FUSE_RIVALS, *KEEPERS)
#: Stands for the result that was written last.
NEWEST = Path("newest")
_PAGE = Path(__file__).resolve().parent.parent / "docs" / "BENCHMARKS.md"
#: Those that the marks of a quick run need.
QUICK_RIVALS = ("git", "btrfs")

# A table that is piped somewhere should not be folded to 80 columns.
_WIDTH = 170


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.list:
        return _list()
    if options.docs is not None:
        return _write_docs(options.docs)
    try:
        plan = _plan(options)
    except (registry.UnknownWorkload, NotToBeHad) as error:
        print(error, file=sys.stderr)
        return 2
    plan.work_dir.mkdir(parents=True, exist_ok=True)
    facts = machine_facts(plan.work_dir, plan.kit)
    compile_sources()
    try:
        outcome, finished = run_plan(plan)
    except ProductFailed as error:
        print(f"Nothing was measured: {error}", file=sys.stderr)
        return 1
    took_part = [each for each in plan.rivals if each not in outcome.skipped]
    facts |= rival_facts(plan.kit, took_part)
    _show(options, plan, outcome, facts)
    if not finished:
        return 130
    return 1 if outcome.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="smaller, about 5 minutes")
    size.add_argument("--full", action="store_true", help="also with a million files; takes long")
    parser.add_argument(
        "--rivals",
        nargs="*",
        choices=RIVALS,
        metavar="NAME",
        help=f"compare with these too, of {', '.join(RIVALS)}; all, unless it is a quick run",
    )
    parser.add_argument(
        "--docs",
        nargs="?",
        const=NEWEST,
        type=Path,
        metavar="JSON",
        help="measure nothing; write docs/BENCHMARKS.md from a result, the newest by default",
    )
    baseline = parser.add_mutually_exclusive_group()
    baseline.add_argument("--base", metavar="REV", help="compare with another revision of ckptfs")
    baseline.add_argument(
        "--against-off",
        action="store_true",
        help="compare with this very checkout, mounted with --auto off",
    )
    parser.add_argument("--offline", action="store_true", help="install and fetch nothing")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="such as 'git*'")
    parser.add_argument("--list", action="store_true", help="name all workloads and figures")
    parser.add_argument("--repeat", type=int, metavar="N", help="repetitions of each workload")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the JSON goes")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="work here (on the disk to test)")
    parser.add_argument("--keep", action="store_true", help="leave the run's files; unmount anyway")
    parser.add_argument(
        "--under-test",
        type=Path,
        metavar="DIR",
        help="compare with a plain directory instead of a ckptfs mount",
    )
    return parser


def _plan(options: argparse.Namespace) -> Plan:
    known = registry.all_workloads()
    registry.refuse_unknown(options.only, [*(each.name for each in known), *figures])
    chosen = [each for each in known if registry.matches(each.name, options.only)]
    scale = QUICK if options.quick else FULL if options.full else NORMAL
    cache = default_cache()
    tell = _teller()
    kit = Kit(cache, not options.offline, tell)
    base = _base(options, kit)
    wanted_figures = {k: v for k, v in figures.items() if registry.matches(k, options.only)}
    return Plan(
        scale=scale.repeated(options.repeat),
        chosen=chosen,
        needed=registry.with_needs(chosen, known),
        figures={} if base else wanted_figures,
        rivals=() if base else chosen_rivals(options.rivals, options.quick),
        work_dir=(options.dir or cache).resolve(),
        kit=kit,
        under_test=options.under_test and options.under_test.resolve(),
        base=base,
        # Automatic checkpoints make no difference to verbs.
        verbs="growth-files" in wanted_figures and not options.against_off,
        keep=options.keep,
        tell=tell,
    )


def _base(options: argparse.Namespace, kit: Kit) -> Installation | None:
    """The ckptfs that is the baseline, if one is."""
    if options.against_off:
        return AUTO_OFF
    return compare.build(kit, options.base) if options.base else None


def chosen_rivals(asked: list[str] | None, quick: bool) -> tuple[str, ...]:
    """Those asked for, all if only `--rivals` stands there; without it all, or the quick ones."""
    if asked is None:
        return QUICK_RIVALS if quick else RIVALS
    return tuple(asked) or RIVALS


def _teller() -> Callable[[str], None]:
    start = time.monotonic()

    def tell(message: str) -> None:
        print(f"[{time.monotonic() - start:6.1f} s] {message}", file=sys.stderr, flush=True)

    return tell


def _list() -> int:
    for each in registry.all_workloads():
        mark = f"at most {each.mark} times" if each.mark else ""
        print(f"{each.name:22} {mark:20} {each.title.format(scale=NORMAL)}")
    for name in figures:
        print(f"{name:22} {'':20} figure of ckptfs alone")
    return 0


def _show(options: argparse.Namespace, plan: Plan, outcome: Outcome, facts: dict[str, str]) -> None:
    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH)
    show = compare.print_changes if plan.base else report.print_report
    show(console, outcome, plan.scale, facts)
    path = options.json or _default_json(plan)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report.as_json(outcome, plan.scale, facts), indent=1) + "\n")
    print(f"JSON: {path}")


def _write_docs(result: Path) -> int:
    try:
        path = _newest() if result == NEWEST else result
        for written in document.write(document.load(path), _PAGE):
            print(written)
    except document.NotAResult as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _newest() -> Path:
    found = sorted(_results().glob("*.json"))
    if not found:
        raise document.NotAResult(f"There is no result in {_results()} yet. Run: make bench")
    return found[-1]


def _results() -> Path:
    return default_cache() / "results"


def _default_json(plan: Plan) -> Path:
    # A comparison of ckptfs with itself is not what the page is written from.
    kind = "comparisons" if plan.base else "results"
    return default_cache() / kind / time.strftime("%Y-%m-%dT%H-%M-%S.json")


if __name__ == "__main__":
    sys.exit(main())
