"""`gaitforge bench`: speeds on this machine."""

import argparse
from importlib import import_module
from pathlib import Path

from pipeline.cli.arguments import command, flag, option
from pipeline.progress import TerminalReporter

_QUICK = ("learners", "sim", "formats")
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
    flag("--quick", f"tiny sizes, to check that it runs; for {', '.join(_QUICK)}"),
    option(
        "--recorded",
        "with flows: simulate many workers with the durations of this store's parts",
        Path,
        metavar="STORE",
    ),
    "--isaacgym-python --json",
)
def bench_command(arguments: argparse.Namespace) -> None:
    """Measure speeds on this machine."""
    if arguments.quick and arguments.what not in _QUICK:
        raise ValueError("--quick is for `gaitforge bench learners`, `sim` and `formats` only")
    # Each benchmark loads what it measures, and no other one's.
    name = "overview" if arguments.what == "all" else arguments.what
    import_module(f"pipeline.bench.{name}").run(arguments, TerminalReporter())
