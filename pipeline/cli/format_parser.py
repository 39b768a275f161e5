"""The parsers of `gaitforge import` and `gaitforge formats`."""

from __future__ import annotations

import argparse

from pipeline.cli.arguments import add_json, add_settings, command, positive, store_address


def add_format_commands(commands: argparse._SubParsersAction) -> None:
    """`gaitforge import FORMAT SRC STORE` and `gaitforge formats`."""
    importing = command(
        commands,
        "import",
        "import data of another project's format into a store",
        "gaitforge import d4rl hopper_medium.hdf5 hopper.zarr",
    )
    importing.add_argument("format", metavar="FORMAT", help="see gaitforge formats")
    importing.add_argument("source", metavar="SRC", help="file or folder of that format")
    importing.add_argument(
        "store", metavar="STORE", type=store_address, help="folder, or s3://bucket/prefix"
    )
    importing.add_argument("--workers", type=positive, help="threads that read and write parts")
    add_settings(importing, "horizon=1000 (d4rl)")
    add_json(importing)
    importing.set_defaults(run="cli.format_commands:import_data")

    formats = command(
        commands,
        "formats",
        "list the formats of other projects, and what their options are",
        "gaitforge formats --json",
    )
    add_json(formats)
    formats.set_defaults(run="cli.format_commands:formats")
