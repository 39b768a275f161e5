"""The demo's last step: contact sheets and pages of its policies' episodes, then the report."""

from pathlib import Path

from flows.progress import Reporter
from flows.records.records import read_record
from pipeline.report.pictures import make_run_sheets
from pipeline.report.report import write_report
from pipeline.view.run_pages import write_evaluation_pages


def write_demo_report(out: Path, reporter: Reporter) -> Path:
    """Draw the contact sheets, write the pages of episodes and the report; returns the report."""
    make_run_sheets(out, reporter.say)
    policies = (read_record(out / "summary.json") or {}).get("policies", {})
    write_evaluation_pages(out, [*policies], reporter)
    return write_report(out)
