"""What `gaitforge export` does: `RUN DST` is a policy, `STORE FORMAT DST` is data."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.cli.arguments import store_address
from pipeline.tables import show_one

_OF_POLICY = {"formats": ("onnx", "pt2"), "checkpoint": "last", "batch": 1, "robot": ""}
_OF_DATA = ("terrain", "skill", "level", "where", "tag", "settings")


def export(arguments: argparse.Namespace) -> int:
    """Export a run's policy, or a selection of a store."""
    places = arguments.places
    if len(places) == 2:
        _refuse(arguments, _OF_DATA, "data, and RUN DST names a policy: give STORE FORMAT DST")
        return _policy(arguments)
    if len(places) == 3:
        _refuse(arguments, _OF_POLICY, "a policy, and STORE FORMAT DST names data: give RUN DST")
        return _data(arguments)
    raise ValueError(
        f"export needs RUN DST (a policy) or STORE FORMAT DST (data), not {len(places)} names"
    )


def _refuse(arguments: argparse.Namespace, names: object, reason: str) -> None:
    for name in names:  # type: ignore[attr-defined]
        if getattr(arguments, name):
            option = "set" if name == "settings" else name
            raise ValueError(f"--{option} is for {reason}")


def _policy(arguments: argparse.Namespace) -> int:
    from flows.stages.export import ExportPlan, run_export
    from learners.deploy.export import ExportOptions
    from pipeline.progress import TerminalReporter

    chosen = {
        name: default if getattr(arguments, name) is None else getattr(arguments, name)
        for name, default in _OF_POLICY.items()
    }
    plan = ExportPlan(
        chosen["checkpoint"],
        chosen["robot"],
        ExportOptions(chosen["formats"], chosen["batch"]),
    )
    run, destination = map(Path, arguments.places)
    result = run_export(plan, run, destination, TerminalReporter())
    record = {
        "folder": str(result.folder),
        "already_there": result.already_there,
        "bytes": result.sizes,
        "largest_error": result.errors,
    }
    show_one(record, arguments.json)
    return 0


def _data(arguments: argparse.Namespace) -> int:
    from pipeline.cli.format_commands import export_data

    store, arguments.format, destination = arguments.places
    arguments.store, arguments.destination = store_address(store), Path(destination)
    return export_data(arguments)
