"""`gaitforge sim check`."""

import argparse
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from gaitforge.pipeline.cli.parsing.options import ISAACGYM_PYTHON, JSON, needs, option
from gaitforge.pipeline.cli.parsing.parser import command
from gaitforge.pipeline.cli.parsing.values import of_simulator, positive, simulator, uses
from gaitforge.pipeline.terminal import TerminalReporter, show_one

FAILED = 1


@command(
    "gaitforge sim check isaacgym --isaacgym-python ~/miniconda3/envs/gym/bin/python",
    option("sim", "a simulator of gaitforge sim list", simulator, metavar="NAME"),
    option("--robots", "parallel robots when measuring the speed", positive, 256),
    ISAACGYM_PYTHON,
    JSON,
    needs("sim"),
)
def sim_check(arguments: argparse.Namespace) -> Callable[[], int]:
    """Run the physics contract's checks on an installed simulator."""
    uses(arguments, "robots", "json")
    of_simulator(arguments, arguments)
    return partial(_run_checks, arguments)


def _run_checks(arguments: argparse.Namespace) -> int:
    from gaitforge.collectors.physics import availability
    from gaitforge.plugins.simulators.checks.contract import CHECKS, run_checks

    backend = availability(arguments.sim)
    if not backend.available:
        raise ValueError(f"simulator '{backend.name}' is not available: {backend.why_not}")
    results = []
    with TerminalReporter().step(f"check {backend.name}", len(CHECKS), "check") as advance:
        for result in run_checks(backend.name, arguments.robots):
            results.append(result)
            if not arguments.json:
                outcome = "passed" if result.passed else "FAILED"
                name = f"{result.name:<{max(map(len, CHECKS))}}"
                finding = f"{result.what}: {result.found}"
                print(f"{outcome}  {name}  {result.seconds:6.1f} s  {finding}", flush=True)
            advance(1, result.name)
    failed = [result.name for result in results if not result.passed]
    if arguments.json:
        record = {"name": backend.name, "version": backend.version, "passed": not failed}
        show_one(record | {"checks": [asdict(result) for result in results]}, as_json=True)
    else:
        kept = f"{len(results) - len(failed)} of {len(results)} checks passed"
        print(
            ", ".join(
                [f"{backend.name} {backend.version}: {kept}", *(f"{n} failed" for n in failed)]
            )
        )
    return FAILED if failed else 0
