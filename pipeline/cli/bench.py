"""`gaitforge bench`: speeds on this machine."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

from pipeline.cli.arguments import Parser, flag, option
from pipeline.progress import TerminalReporter

_QUICK = ("learners", "sim", "formats")
_BENCHES = ("all", "store", "learners", "flows", "sim", "formats")


def add_bench(parser: Parser) -> None:
    """`gaitforge bench [WHAT]`."""
    option(
        parser,
        "what",
        "all: one figure per step of the pipeline; store: beside other libraries' loaders; "
        "learners: the models beside each other; flows: what orchestration costs; sim: the "
        "simulators, and collection beside bare physics; formats: imports",
        default="all",
        nargs="?",
        choices=_BENCHES,
        metavar="WHAT",
    )
    option(parser, "--out", "output folder", Path, Path("runs/bench"))
    flag(parser, "--quick", f"tiny sizes, to check that it runs; for {', '.join(_QUICK)}")
    option(
        parser,
        "--recorded",
        "with flows: simulate many workers with the durations of this store's parts",
        Path,
        metavar="STORE",
    )
    parser.take("--isaacgym-python", "--json")
    parser.runs(_bench, "gaitforge bench --out runs/bench")


def _bench(arguments: argparse.Namespace) -> int:
    if arguments.quick and arguments.what not in _QUICK:
        raise ValueError("--quick is for `gaitforge bench learners`, `sim` and `formats` only")
    # Each benchmark loads what it measures, and no other one's.
    name = "overview" if arguments.what == "all" else arguments.what
    import_module(f"pipeline.bench.{name}").run(arguments, TerminalReporter())
    return 0
