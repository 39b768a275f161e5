"""`gaitforge doctor` and `dataset cut`: faults in data, and episodes that were saved as one."""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaitforge import datasets
from gaitforge.common.errors import amount
from gaitforge.datasets.formats import importer_class
from gaitforge.datasets.layout import ROOT_FILE, check_outside_stores
from gaitforge.flows.records.part_records import copy_records
from gaitforge.pipeline.cli.parsing.options import (
    JSON,
    NEW_STORE,
    STORE,
    option,
    planned,
    setting,
)
from gaitforge.pipeline.cli.parsing.parser import command
from gaitforge.pipeline.cli.parsing.values import names, store_address
from gaitforge.pipeline.terminal import Rows, TerminalReporter, fields_of, show_one, show_result

if TYPE_CHECKING:
    from gaitforge.plugins.doctor.data import Data, Finding

_MOST_CHARACTERS = 400
"""Longest command on a terminal; page and JSON have all."""


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
    JSON,
)
def doctor_command(arguments: argparse.Namespace) -> int:
    """Look for faults in data, with examples and the commands that help; exit 1 for errors."""
    from gaitforge.plugins.doctor.examine import examine

    page = None if arguments.out is None else check_outside_stores(arguments.out)
    data = _data(arguments)
    with closing(data), TerminalReporter().step("examine", data.steps, "step") as advance:
        findings = examine(data, lambda steps: advance(steps, ""))
    record = fields_of(data, "address", "format", "episodes", "steps")
    record["findings"] = [finding.to_json() for finding in findings]
    sizes = f"{amount(data.episodes, 'episode')}, {amount(data.steps, 'step')}"
    lines = [f"{data.address}: {sizes}, {amount(len(findings), 'finding')}"]
    rows = [_row(finding) for finding in findings]
    if page is not None:
        _write_page(page, lines[0], rows, record["findings"])
    for finding in findings:
        lines += ["", f"{finding.severity}, {finding.name}:", *_shown_commands(finding, data)]
    if page is not None:
        lines += ["", str(page)]
    show_result(record, rows, arguments.json, *lines, empty="no faults")
    return int(any(finding.severity == "error" for finding in findings))


def _data(arguments: argparse.Namespace) -> "Data":
    from gaitforge.plugins.doctor.data import source_data, store_data

    source = arguments.source
    name = arguments.format or ""
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
    return source_data(str(source), name, options, arguments.settings)


def _row(finding: "Finding") -> dict[str, object]:
    """A finding in the table."""
    examples = [f"{example.episode} step {example.step}" for example in finding.examples]
    row = {"severity": finding.severity, "finding": finding.name, "count": finding.count}
    return row | {"what": finding.text, "examples": ", ".join(examples)}


def _shown_commands(finding: "Finding", data: "Data") -> list[str]:
    """The commands for a terminal: the import of a source, an example, what helps."""
    first = 1 if data.format else 0  # the import
    views = [example.view for example in finding.examples[:1]]
    commands = [*finding.commands[:first], *views, *finding.commands[first:]]
    short = [line for line in commands if len(line) <= _MOST_CHARACTERS]
    if len(short) < len(commands):
        short.append("(the command for so many episodes is in --json and --out)")
    return short


def _write_page(page: Path, about: str, rows: Rows, findings: Sequence[Mapping[str, Any]]) -> None:
    """Write the page.

    Args:
        about: the data in one line.
        rows: a row a finding; findings: the same as `--json` prints them.
    """
    from gaitforge.pipeline.report.pages import Section, write_sections

    views = [
        {"finding": finding["name"], **example}
        for finding in findings
        for example in finding["examples"]
    ]
    commands = [
        {"finding": finding["name"], "command": line}
        for finding in findings
        for line in finding["commands"]
    ]
    sections = [
        Section("Findings", "Errors are wrong for any use, warnings for many.", rows),
        Section("Examples", "Commands that play an episode, or list its columns.", views),
        Section("Commands", "They drop episodes, or note what was found.", commands),
    ]
    shown = [section for section in sections if section.rows] or sections[:1]
    write_sections(page, "Doctor", about, shown)


@command(
    "gaitforge dataset cut data/joined.zarr --out data/cut.zarr",
    STORE,
    NEW_STORE,
    option("--without", "episode fields to leave out: they tell of whole episodes", names, ()),
    JSON,
)
def cut(arguments: argparse.Namespace) -> None:
    """Write a new store whose episodes are cut where the doctor sees several saved as one."""
    from gaitforge.datasets.edits.split import cut_episodes
    from gaitforge.plugins.doctor.examine import seams

    store = datasets.open_store(arguments.store)
    reporter = TerminalReporter()
    selection = store.select()
    with reporter.step("look for seams", selection.steps, "step") as advance:
        cuts = seams(selection, lambda steps: advance(steps, ""))
    with reporter.step("cut", selection.steps, "step") as advance:
        cut_episodes(
            store, arguments.out, cuts, lambda steps: advance(steps, ""), arguments.without
        )
    copy_records([arguments.store], arguments.out)
    info = datasets.open_store(arguments.out).info()
    record = {"store": str(arguments.out), "cut": len(cuts), "seams": sum(map(len, cuts.values()))}
    show_one({**record, **asdict(info)}, arguments.json)
