"""The parser of `gaitforge export`: a run's policy, or a store's data.

What is exported follows from how many names there are, RUN DST or STORE FORMAT DST, and from
nothing that happens to lie on the disk.
"""

from __future__ import annotations

import argparse

from pipeline.cli.arguments import (
    add_cells,
    add_json,
    add_settings,
    add_where,
    command,
    names,
    positive,
)

USAGE = """gaitforge export RUN DST [--formats F,G] [--checkpoint last|best] [--batch N] [--robot R]
       gaitforge export STORE FORMAT DST [--where CONDITION] [--terrain T] [--skill S] [--level L]
                        [--tag NAME] [--set NAME=VALUE]"""


def add_export(commands: argparse._SubParsersAction) -> None:
    """`gaitforge export RUN DST` and `gaitforge export STORE FORMAT DST`."""
    export = command(
        commands,
        "export",
        "write a trained policy as files for a robot's program, or a store's data in another "
        "project's format",
        "gaitforge export runs/fcnet exports/fcnet\n"
        "          gaitforge export legged.zarr d4rl rough.hdf5 --where \"terrain = 'rough'\"",
    )
    export.usage = USAGE
    export.add_argument(
        "places",
        nargs="+",
        metavar="RUN DST | STORE FORMAT DST",
        help="folder of a training run and the new folder; or a store, a format (see gaitforge "
        "formats) and the new file or folder",
    )
    policy = export.add_argument_group("of a policy")
    policy.add_argument("--formats", type=names, help="onnx, pt2 (default: both)")
    policy.add_argument("--checkpoint", choices=("last", "best"), help="(default: last)")
    policy.add_argument("--batch", type=positive, help="robots that one step controls (default: 1)")
    policy.add_argument("--robot", help="a name or path, if not the run's own")
    data = export.add_argument_group("of data")
    add_cells(data)
    add_where(data)
    data.add_argument("--tag", help="a version of the store that has a name")
    add_settings(data, "compression=none (d4rl)")
    add_json(export)
    export.set_defaults(run="cli.export_commands:export")
