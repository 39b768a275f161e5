"""What `gaitforge compare` does."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from flows.stages.comparison import GRID_EPISODES, ComparisonPlan, comparison_grid, run_comparison
from flows.stages.train import SelectPlan
from pipeline.cli.settings import override
from pipeline.progress import TerminalReporter
from pipeline.report.comparison_page import write_comparison
from pipeline.report.comparison_table import table_rows
from pipeline.tables import show, show_one


def compare(arguments: argparse.Namespace) -> int:
    """Compare models, or go on with a comparison, and write its page."""
    plan = _plan(arguments)
    record = run_comparison(plan, arguments.store, arguments.out, TerminalReporter())
    page = write_comparison(arguments.out)
    if arguments.json:
        show_one(record, as_json=True)
        return 0
    show(table_rows(record), as_json=False)
    print(f"\npage: {page}")
    return 0


def _plan(arguments: argparse.Namespace) -> ComparisonPlan:
    """The plan that the arguments ask for, once whatever can be wrong with it is known."""
    select = SelectPlan(
        arguments.terrain or (),
        arguments.skill or (),
        arguments.level or (),
        arguments.where,
        str(arguments.selection or ""),
    )
    plan = ComparisonPlan(select=select)
    shared = _given(arguments, "objective", "steps", "batch_size", "device")
    plan = replace(
        plan,
        config=replace(plan.config, **shared),
        **_given(arguments, "models", "seeds", "expert"),
    )
    grid = comparison_grid(select.select(arguments.store), arguments.episodes or GRID_EPISODES)
    plan = replace(plan, evaluate=replace(plan.evaluate, grid=grid))
    return override(plan, arguments.settings)


def _given(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    values = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}
