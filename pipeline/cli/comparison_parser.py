"""The parser of `gaitforge compare`."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.cli.arguments import (
    add_cells,
    add_json,
    add_settings,
    command,
    names,
    numbers,
    positive,
    store_address,
)


def add_compare(commands: argparse._SubParsersAction) -> None:
    """`gaitforge compare STORE`."""
    compare = command(
        commands,
        "compare",
        "train models with one budget on the same episodes and evaluate them, or go on with that",
        "gaitforge compare legged.zarr --models fcnet,transformer --steps 5000 --out runs/compare",
    )
    compare.add_argument("store", type=store_address)
    compare.add_argument(
        "--models", type=names, help="see gaitforge models (default: fcnet and three baselines)"
    )
    compare.add_argument("--seeds", type=numbers, help="a run each, e.g. 0-2 (default: 0,1,2)")
    compare.add_argument("--objective", help="bc, gaussian-bc or return (default: bc)")
    compare.add_argument("--steps", type=positive, help="optimiser steps of every run")
    compare.add_argument("--batch-size", type=positive, help="windows a step")
    compare.add_argument("--device", help="cpu or cuda")
    compare.add_argument("--out", type=Path, required=True, help="folder of the comparison")
    add_cells(compare)
    compare.add_argument(
        "--where", default="", help="a boolean SQL expression over the catalog's columns"
    )
    compare.add_argument(
        "--selection", type=Path, metavar="FILE", help="what gaitforge query --save kept"
    )
    compare.add_argument(
        "--episodes", type=positive, help="to evaluate, of every terrain and skill (default: 20)"
    )
    compare.add_argument("--expert", help="a shipped expert's name, or a .safetensors file")
    add_settings(compare, """'own={"transformer":{"peak_lr":0.001}}'""")
    add_json(compare)
    compare.set_defaults(run="cli.comparison_commands:compare")
