"""What `gaitforge import`, `gaitforge formats` and `gaitforge export STORE FORMAT DST` do."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from datasets import DatasetError, open_store
from datasets.formats import FORMATS, exporter_class, importer_class
from datasets.formats.interface import Advance, Report
from pipeline.cli.settings import override, setting_names
from pipeline.cli.store_commands import chosen_episodes
from pipeline.progress import TerminalReporter
from pipeline.tables import show, show_one


def import_data(arguments: argparse.Namespace) -> int:
    """Import a source into a store."""
    from flows.stages.importing import ImportPlan, run_import

    options = override(importer_class(arguments.format).Options(), arguments.settings)
    chosen = {} if arguments.workers is None else {"workers": arguments.workers}
    plan = ImportPlan(arguments.format, asdict(options), **chosen)
    report = run_import(plan, arguments.source, arguments.store, TerminalReporter())
    show_report(report, arguments.json)
    return 0


def export_data(arguments: argparse.Namespace) -> int:
    """Write a selection of a store in another project's format."""
    from datasets.formats.transfer.exporting import export_selection

    options = override(exporter_class(arguments.format).Options(), arguments.settings)
    store = open_store(arguments.store, tag=arguments.tag)
    selection = chosen_episodes(store, arguments)
    reporter = TerminalReporter()
    with ExitStack() as stack:

        def begin(total: int) -> Advance:
            advance = stack.enter_context(reporter.step("export", total, "step"))
            return lambda steps: advance(steps, "")

        report = export_selection(
            arguments.format, selection, arguments.destination, asdict(options), begin
        )
    show_report(report, arguments.json)
    return 0


def show_report(report: Report, as_json: bool) -> None:
    """Print what was carried over and what was not."""
    tree = asdict(report)
    if as_json:
        show_one(tree, as_json=True)
        return
    carried = tree.pop("carried")
    megabytes = report.bytes / 1e6
    show_one(tree, as_json=False)
    for title, lines in (
        ("carried over", carried["kept"]),
        ("not carried over", carried["left"]),
        ("note", carried["notes"]),
    ):
        for line in lines:
            print(f"{title}: {line}")
    print(f"{megabytes:,.1f} MB in {report.seconds:.1f} s")


def formats(arguments: argparse.Namespace) -> int:
    """List the formats."""
    show([_row(name, arguments.json) for name in FORMATS], arguments.json)
    return 0


def _row(name: str, with_options: bool) -> dict[str, Any]:
    entry = FORMATS[name]
    missing = entry.missing
    row = {
        "format": name,
        "what": entry.summary,
        "on_disk": entry.layout,
        "available": not missing,
        "install": f"pip install 'gaitforge[{entry.extra}]'" if missing else "",
    }
    if not with_options:
        return row
    return row | {
        "import_options": _options(importer_class, name, missing),
        "export_options": _options(exporter_class, name, missing),
    }


def _options(cls: Any, name: str, missing: Sequence[str]) -> list[str]:
    try:
        return [] if missing else setting_names(cls(name).Options())
    except DatasetError:
        return []
