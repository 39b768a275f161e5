"""`gaitforge bench`: speeds on this machine."""

import argparse
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from gaitforge.flows.settings import override
from gaitforge.pipeline.cli.parsing.parser import command, flag, option, setting
from gaitforge.pipeline.progress import TerminalReporter

if TYPE_CHECKING:
    from gaitforge.pipeline.bench.harness import Bench

_BENCHES = ("all", "store", "learners", "flows", "sim", "formats")


@command(
    "gaitforge bench --out runs/bench",
    option(
        "what",
        "all: one figure per step of the pipeline; store: beside other libraries' loaders; "
        "learners: the models beside each other; flows: the cost of orchestration; sim: the "
        "simulators, and collection beside bare physics; formats: imports",
        default="all",
        nargs="?",
        choices=_BENCHES,
        metavar="WHAT",
    ),
    option("--out", "output folder", Path, Path("runs/bench")),
    flag("--quick", "tiny sizes, to check that it runs"),
    option(
        "--recorded",
        "with flows: simulate many workers with the durations of this store's parts",
        lambda store: f"recorded={store}",
        [],
        action="append",
        metavar="STORE",
        dest="settings",
    ),
    option(
        "--parts",
        "with store: of the catalog that is indexed and queried",
        lambda parts: f"parts={parts}",
        [],
        action="append",
        metavar="N",
        dest="settings",
    ),
    setting("rounds=3"),
    "--isaacgym-python --json",
)
def bench_command(arguments: argparse.Namespace) -> None:
    """Measure speeds on this machine."""
    # Each benchmark loads what it measures, and no other one's.
    name = "overview" if arguments.what == "all" else arguments.what
    bench: Bench = import_module(f"gaitforge.pipeline.bench.{name}").BENCH
    config = override(bench.quick if arguments.quick else bench.config, arguments.settings)
    bench.show(bench.run(arguments.out, config, TerminalReporter()), arguments.json)
