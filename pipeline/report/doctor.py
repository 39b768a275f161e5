"""The page of the doctor's findings."""

from collections.abc import Iterator
from pathlib import Path

from gaitforge.pipeline.report.pages import Record, Section, write_sections

_WHAT = {
    "error": "Wrong for any use.",
    "warning": "Wrong for many uses, or a sign of something wrong.",
    "note": "Good to know.",
}


def write_doctor_page(page: Path, record: Record, about: str) -> None:
    """Write the page of a record of `gaitforge doctor --json`; `about` are the data in a line."""
    shown = [*_severities(record), *_details(record)]
    write_sections(page, "Doctor", about, shown or [Section("No finding")])


def _severities(record: Record) -> Iterator[Section]:
    for severity, words in _WHAT.items():
        rows = [
            {"finding": each["name"], "count": each["count"], "what": each["text"]}
            for each in record["findings"]
            if each["severity"] == severity
        ]
        if rows:
            yield Section(f"{severity.capitalize()}s", words, rows)


def _details(record: Record) -> Iterator[Section]:
    examples = [
        {"finding": each["name"], "episode": at["episode"], "step": at["step"], "play": at["view"]}
        for each in record["findings"]
        for at in each["examples"]
    ]
    commands = [
        {"finding": each["name"], "command": line}
        for each in record["findings"]
        for line in each["commands"]
    ]
    if examples:
        yield Section("Examples", "Each command writes a page that plays the episode.", examples)
    if commands:
        yield Section("Commands", "They drop episodes, or note what was found.", commands)
