"""`gaitforge demo` and `gaitforge report`: a small pipeline end to end, and the page of a run."""

import argparse
from pathlib import Path

from flows.records.records import to_tree
from flows.settings import override
from pipeline.cli.arguments import command, flag, option, setting
from pipeline.progress import TerminalReporter
from pipeline.tables import show, show_one


@command(
    "gaitforge demo --out runs/demo",
    option("--out", "output folder", Path, Path("runs/demo")),
    flag("--prefect", "run it as a Prefect flow"),
    setting("fcnet.config.steps=500"),
    "--json",
)
def demo_command(arguments: argparse.Namespace) -> None:
    """Run a small pipeline end to end: collect, train, evaluate, report."""
    from flows.stages.demo import DemoPlan, run_demo
    from pipeline.report.demo import write_demo_report

    plan = override(DemoPlan(), arguments.settings)
    reporter = TerminalReporter()
    if arguments.prefect:
        from flows.runners.prefect import run_from_a_program
        from pipeline.serve.deployments import demo_report

        with run_from_a_program(reporter):
            summary, page = demo_report(str(arguments.out), [], to_tree(plan))
    else:
        summary = run_demo(plan, arguments.out, reporter)
        page = write_demo_report(arguments.out, reporter)
    if arguments.json:
        show_one(to_tree(summary), as_json=True)
        return
    policies = [{"policy": name, **to_tree(each)} for name, each in summary.policies.items()]
    show(policies, as_json=False)
    rate = summary.collect["steps_per_s"]
    print(f"\ncollected {summary.dataset.steps:,} steps at {rate:,.0f} steps/s; ", end="")
    print(f"whole demo {summary.wall_s:.0f} s")
    print(f"report: {page}")


@command("gaitforge report runs/demo", option("folder", "output folder of gaitforge demo", Path))
def report_command(arguments: argparse.Namespace) -> None:
    """Write report.html from a run's files."""
    from pipeline.report.report import write_report

    print(write_report(arguments.folder))
