"""The command line of the benchmark: what to run, and where the results go."""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from bench import history, registry, report  # noqa: F401  history registers figures
from bench.figures import figures
from bench.machine import machine_facts
from bench.outcome import Outcome
from bench.product import ProductFailed, compile_sources
from bench.scale import FULL, NORMAL, QUICK, Scale
from bench.session import Plan, default_cache, run_plan

# A table that is piped somewhere should not be folded to 80 columns.
_WIDTH = 170


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.list:
        return _list()
    try:
        plan = _plan(options)
    except registry.UnknownWorkload as error:
        print(error, file=sys.stderr)
        return 2
    plan.work_dir.mkdir(parents=True, exist_ok=True)
    facts = machine_facts(plan.work_dir)
    compile_sources()
    try:
        outcome, finished = run_plan(plan)
    except ProductFailed as error:
        print(f"Nothing was measured: {error}", file=sys.stderr)
        return 1
    _show(options, plan.scale, outcome, facts)
    if not finished:
        return 130
    return 1 if outcome.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="smaller, about 3 minutes")
    size.add_argument("--full", action="store_true", help="also memory with a million files")
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
    return Plan(
        scale=scale.repeated(options.repeat),
        chosen=chosen,
        needed=registry.with_needs(chosen, known),
        figures={k: v for k, v in figures.items() if registry.matches(k, options.only)},
        work_dir=(options.dir or cache).resolve(),
        cache_dir=cache,
        under_test=options.under_test and options.under_test.resolve(),
        keep=options.keep,
        tell=_teller(),
    )


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


def _show(
    options: argparse.Namespace, scale: Scale, outcome: Outcome, facts: dict[str, str]
) -> None:
    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH)
    report.print_report(console, outcome, scale, facts)
    path = options.json or _default_json()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report.as_json(outcome, scale, facts), indent=1) + "\n")
    print(f"JSON: {path}")


def _default_json() -> Path:
    return default_cache() / "results" / time.strftime("%Y-%m-%dT%H-%M-%S.json")


if __name__ == "__main__":
    sys.exit(main())
