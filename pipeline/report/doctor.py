"""The page of the doctor's findings."""

from collections.abc import Sequence
from pathlib import Path

from gaitforge.pipeline.report.pages import Record, Section, write_sections
from gaitforge.pipeline.tables import Rows


def write_doctor_page(page: Path, about: str, rows: Rows, findings: Sequence[Record]) -> None:
    """Write a page.

    Args:
        about: the data in one line.
        rows: a row a finding; findings: the same as `gaitforge doctor --json` prints them.
    """
    plays = [
        {"finding": finding["name"], **example}
        for finding in findings
        for example in finding["examples"]
    ]
    commands = [
        {"finding": finding["name"], "command": line}
        for finding in findings
        for line in finding["commands"]
    ]
    shown = [
        Section("Findings", "Errors are wrong for any use, warnings for many.", rows),
        Section("Examples", "Commands that play an episode, or list its columns.", plays),
        Section("Commands", "They drop episodes, or note what was found.", commands),
    ]
    write_sections(
        page, "Doctor", about, [section for section in shown if section.rows] or shown[:1]
    )
