"""The demo's last step: contact sheets of its expert, then the report."""

from pathlib import Path

from flows.progress import Reporter
from pipeline.report.pictures import make_run_sheets
from pipeline.report.report import write_report


def write_demo_report(out: Path, reporter: Reporter) -> Path:
    """Draw the contact sheets and write the report of a demo's folder; returns the page."""
    make_run_sheets(out, reporter.say)
    return write_report(out)
