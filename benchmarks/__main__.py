"""Measure speeds on this machine: `python -m benchmarks store --out runs/bench`."""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from gaitforge.flows.settings import override
from gaitforge.pipeline.cli.parsing.options import (
    ISAACGYM_PYTHON,
    JSON,
    add_options,
    flag,
    option,
    setting,
)
from gaitforge.pipeline.cli.parsing.parser import WRONG_INPUT, Parser
from gaitforge.pipeline.process_setup import prepare_process
from gaitforge.pipeline.terminal import TerminalReporter

if TYPE_CHECKING:
    from benchmarks.harness import Bench

BENCHES = ("store", "learners", "sim", "formats", "recording", "web", "flows")


def build_parser() -> Parser:
    """The parser of the command line."""
    parser = Parser(prog="python -m benchmarks", description=__doc__)
    add_options(
        parser,
        option(
            "what",
            "store: beside other libraries' loaders; learners: the models beside each other; "
            "sim: the simulators, and collection beside bare physics; formats: imports; recording: "
            "what gaitforge.record costs a loop; web: training from a server; flows: the cost of "
            "orchestration",
            default="all",
            nargs="?",
            choices=("all", *BENCHES),
            metavar="WHAT",
        ),
        option("--out", "output folder", Path, Path("runs/bench")),
        flag("--quick", "tiny sizes, to check that it runs"),
        setting("rounds=3"),
        ISAACGYM_PYTHON,
        JSON,
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark or all; returns the exit code, 2 after one line on what was wrong."""
    prepare_process()
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        for name in BENCHES if arguments.what == "all" else [arguments.what]:
            # Each benchmark loads what it measures, and no other one's.
            bench: Bench = import_module(f"benchmarks.{name}").BENCH
            sizes = override(bench.quick if arguments.quick else bench.config, arguments.settings)
            bench.show(bench.run(arguments.out, sizes, TerminalReporter()), arguments.json)
    except (ValueError, OSError) as error:
        print(f"{parser.prog}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return WRONG_INPUT
    return 0


if __name__ == "__main__":
    sys.exit(main())
