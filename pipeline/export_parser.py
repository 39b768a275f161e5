"""The parser of `gaitforge export`."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.arguments import add_json, command, names, positive


def add_export(commands: argparse._SubParsersAction) -> None:
    """`gaitforge export RUN DST`."""
    export = command(
        commands,
        "export",
        "write a trained policy as files for a robot's program",
        "gaitforge export runs/fcnet exports/fcnet",
    )
    export.add_argument("source", metavar="RUN", type=Path, help="folder of a training run")
    export.add_argument("destination", metavar="DST", type=Path, help="the new folder")
    export.add_argument(
        "--formats", type=names, default=("onnx", "pt2"), help="onnx, pt2 (default: both)"
    )
    export.add_argument(
        "--checkpoint", choices=("last", "best"), default="last", help="(default: %(default)s)"
    )
    export.add_argument(
        "--batch", type=positive, default=1, help="robots that one step controls (default: 1)"
    )
    export.add_argument("--robot", default="", help="a name or path, if not the run's own")
    add_json(export)
    export.set_defaults(run="export_commands:policy")
