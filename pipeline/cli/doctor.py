"""`gaitforge doctor`: check data, in stores and in other projects' formats."""

import argparse
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from gaitforge import datasets
from gaitforge.datasets.errors import amount
from gaitforge.datasets.files import check_outside_stores
from gaitforge.datasets.formats import importer_class
from gaitforge.datasets.layout import ROOT_FILE
from gaitforge.pipeline.cli.parsing.parser import command, option, planned, setting
from gaitforge.pipeline.cli.parsing.values import store_address
from gaitforge.pipeline.progress import TerminalReporter
from gaitforge.pipeline.tables import fields_of, show_result

if TYPE_CHECKING:
    from gaitforge.datasets.doctor.data import Data

_MOST_CHARACTERS = 400
"""Longest command on a terminal; the page and the JSON have all."""


@command(
    "gaitforge doctor data/legged.zarr --out doctor.html\n"
    "          gaitforge doctor hopper_medium.hdf5 --json",
    option(
        "source",
        "a store; or a file or folder of one of gaitforge formats, which is not imported",
        store_address,
        metavar="STORE|FOLDER|FILE",
    ),
    option("--format", "one of gaitforge formats (default: the one that reads the source)"),
    setting("horizon=1000 (d4rl, with --format)"),
    option("--out", "also write a page", Path, metavar="FILE"),
    "--json",
)
def doctor_command(arguments: argparse.Namespace) -> int:
    """Look for faults in data, with examples and the commands that help; exit 1 for errors."""
    from gaitforge.datasets.doctor.examine import examine

    page = None if arguments.out is None else check_outside_stores(arguments.out)
    data = _data(arguments)
    with closing(data), TerminalReporter().step("examine", data.steps, "step") as advance:
        findings = examine(data, lambda steps: advance(steps, ""))
    record = fields_of(data, "address", "format", "episodes", "steps")
    record["findings"] = [each.to_json() for each in findings]
    sizes = f"{amount(data.episodes, 'episode')}, {amount(data.steps, 'step')}"
    lines = [f"{data.address}: {sizes}, {amount(len(findings), 'finding')}"]
    rows = []
    for each in findings:
        shown = [f"{at.episode} step {at.step}" for at in each.examples]
        row = {"severity": each.severity, "finding": each.name, "count": each.count}
        rows.append(row | {"what": each.text, "examples": ", ".join(shown)})
        commands = [*(at.view for at in each.examples[:1]), *each.commands]
        short = [line for line in commands if len(line) <= _MOST_CHARACTERS]
        lines += ["", f"{each.severity}, {each.name}:", *short]
        if len(short) < len(commands):
            lines.append("(the command for so many episodes is in --json and --out)")
    if page is not None:
        from gaitforge.pipeline.report.doctor import write_doctor_page

        write_doctor_page(page, lines[0], rows, record["findings"])
        lines += ["", str(page)]
    show_result(record, rows, arguments.json, *lines)
    return int(any(each.severity == "error" for each in findings))


def _data(arguments: argparse.Namespace) -> "Data":
    from gaitforge.datasets.doctor.data import source_data, store_data

    source, name = arguments.source, arguments.format or ""
    if arguments.settings and not name:
        raise ValueError("--set is for the reader of a format; give --format too")
    if not name and (isinstance(source, str) or (source / ROOT_FILE).is_file()):
        data = store_data(datasets.open_store(source).select())
        if not data.steps:
            raise ValueError(f"{source} has no episode to examine")
        return data
    if not name and not source.exists():
        raise ValueError(f"no store, file or folder at {source}")
    options = planned(importer_class(name).Options(), arguments) if name else None
    return source_data(str(source), name, options)
