"""`gaitforge demo` and `gaitforge report`: a small pipeline end to end, and the page of a run."""

import argparse
from pathlib import Path

from flows.records.records import to_tree
from pipeline.cli.parsing.parser import command, flag, option, planned, setting
from pipeline.progress import TerminalReporter
from pipeline.tables import show_result


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

    plan = planned(DemoPlan(), arguments)
    reporter = TerminalReporter()
    if arguments.prefect:
        from flows.runners.prefect import run_from_a_program
        from pipeline.serve.deployments import demo_report

        with run_from_a_program(reporter):
            summary, page = demo_report(str(arguments.out), [], to_tree(plan))
    else:
        summary = run_demo(plan, arguments.out, reporter)
        page = write_demo_report(arguments.out, reporter)
    policies = [{"policy": name, **to_tree(each)} for name, each in summary.policies.items()]
    speed = f"{summary.collect['steps_per_s']:,.0f} steps/s"
    collected = f"\ncollected {summary.dataset.steps:,} steps at {speed}"
    wall = f"whole demo {summary.wall_s:.0f} s"
    lines = (f"{collected}; {wall}", f"report: {page}")
    show_result(to_tree(summary), policies, arguments.json, *lines)


@command("gaitforge report runs/demo", option("folder", "output folder of gaitforge demo", Path))
def report_command(arguments: argparse.Namespace) -> None:
    """Write report.html from a run's files."""
    from pipeline.report.report import write_report

    print(write_report(arguments.folder))
