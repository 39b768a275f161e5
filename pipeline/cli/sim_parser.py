"""The parsers of the commands on simulators."""

from __future__ import annotations

import argparse

from collectors.simulators import BACKENDS
from pipeline.cli.arguments import add_isaacgym_python, add_json, command, positive, simulator


def add_sim(commands: argparse._SubParsersAction) -> None:
    """`gaitforge sim …`."""
    sim = command(commands, "sim", "list and check simulators", "gaitforge sim check isaacgym")
    actions = sim.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = command(
        actions,
        "list",
        "list the simulators, and what those that are not available lack",
        "gaitforge sim list --json",
    )
    add_isaacgym_python(listing)
    add_json(listing)
    listing.set_defaults(run="cli.sim_commands:list_them")

    check = command(
        actions,
        "check",
        "put a simulator that is installed here through every check of the contract",
        "gaitforge sim check isaacgym --isaacgym-python ~/miniconda3/envs/gym/bin/python",
    )
    check.add_argument(
        "sim", metavar="NAME", type=simulator, choices=tuple(BACKENDS), help=", ".join(BACKENDS)
    )
    check.add_argument(
        "--robots",
        type=positive,
        default=256,
        help="that the throughput is measured with (default: %(default)s)",
    )
    add_isaacgym_python(check)
    add_json(check)
    check.set_defaults(run="cli.sim_commands:check")
