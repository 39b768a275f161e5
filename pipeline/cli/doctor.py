"""`gaitforge doctor`: check data, in stores and in other projects' formats."""

import argparse
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from gaitforge import datasets
from gaitforge.datasets.errors import amount, listed
from gaitforge.datasets.files import check_outside_stores
from gaitforge.datasets.formats import importer_class
from gaitforge.datasets.layout import ROOT_FILE
from gaitforge.pipeline.cli.parsing.parser import command, option, planned, setting
from gaitforge.pipeline.cli.parsing.values import store_address
from gaitforge.pipeline.progress import TerminalReporter
from gaitforge.pipeline.tables import show_result

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
    with closing(_data(arguments)) as data:
        with TerminalReporter().step("examine", data.steps, "step") as advance:
            findings = examine(data, lambda steps: advance(steps, ""))
        record = {"source": data.address, "format": data.format, "episodes": data.episodes}
        record |= {"steps": data.steps, "findings": [each.to_json() for each in findings]}
    about = f"{data.address}: {amount(data.episodes, 'episode')}, {amount(data.steps, 'step')}"
    lines = [f"{about}, {amount(len(findings), 'finding')}"]
    for each in findings:
        short = [line for line in each.commands if len(line) <= _MOST_CHARACTERS]
        long = len(each.commands) - len(short)
        more = [f"({amount(long, 'command')} for many episodes: see --json or --out)"] * bool(long)
        views = [example.view for example in each.examples[:1]]
        lines += ["", f"{each.severity}, {each.name}:", *views, *short, *more]
    if page is not None:
        from gaitforge.pipeline.report.doctor import write_doctor_page

        write_doctor_page(page, record, about)
        lines += ["", str(page)]
    rows = [
        {
            "severity": each.severity,
            "finding": each.name,
            "count": each.count,
            "what": each.text,
            "examples": listed(f"{at.episode} step {at.step}" for at in each.examples)
            if each.examples
            else "",
        }
        for each in findings
    ]
    show_result(record, rows, arguments.json, *lines)
    return int(any(each.severity == "error" for each in findings))


def _data(arguments: argparse.Namespace) -> "Data":
    from gaitforge.datasets.doctor.data import StoreData, open_source

    source, name = arguments.source, arguments.format or ""
    if arguments.settings and not name:
        raise ValueError("--set is for the reader of a format; give --format too")
    if not name and (isinstance(source, str) or (source / ROOT_FILE).is_file()):
        selection = datasets.open_store(source).select()
        if not len(selection):
            raise ValueError(f"{source} has no episode to examine")
        return StoreData(selection)
    if not name and not source.exists():
        raise ValueError(f"no store, file or folder at {source}")
    options = planned(importer_class(name).Options(), arguments) if name else None
    return open_source(str(source), name, options)
