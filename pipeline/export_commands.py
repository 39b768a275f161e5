"""What `gaitforge export` does."""

from __future__ import annotations

import argparse

from flows.export import ExportPlan, run_export
from learners.export import ExportOptions
from pipeline.progress import TerminalReporter
from pipeline.tables import show_one


def policy(arguments: argparse.Namespace) -> int:
    """Export a run's policy."""
    plan = ExportPlan(
        arguments.checkpoint,
        arguments.robot,
        ExportOptions(arguments.formats, arguments.batch),
    )
    result = run_export(plan, arguments.source, arguments.destination, TerminalReporter())
    record = {
        "folder": str(result.folder),
        "already_there": result.already_there,
        "bytes": result.sizes,
        "largest_error": result.errors,
    }
    show_one(record, arguments.json)
    return 0
