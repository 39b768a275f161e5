"""`gaitforge compare`: models with equal budgets on the same episodes."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from flows.settings import override
from pipeline.cli.arguments import CELLS, Parser, given, names, numbers, option, positive
from pipeline.progress import TerminalReporter
from pipeline.tables import show, show_one

if TYPE_CHECKING:
    from flows.stages.comparison import ComparisonPlan


def add_compare(parser: Parser) -> None:
    """`gaitforge compare STORE`."""
    parser.take("store")
    option(parser, "--models", "see gaitforge models (default: fcnet and three baselines)", names)
    option(parser, "--seeds", "one run each, e.g. 0-2 (default: 0,1,2)", numbers)
    parser.take("--objective", "--steps", "--batch-size", "--device", "--out", *CELLS, "--where")
    parser.take("--selection")
    option(
        parser, "--episodes", "episodes to evaluate per terrain and skill (default: 20)", positive
    )
    parser.take("--expert")
    parser.take("--set", "--json", settings="""'own={"transformer":{"peak_lr":0.001}}'""")
    parser.runs(
        _compare,
        "gaitforge compare legged.zarr --models fcnet,transformer --steps 5000 --out runs/compare",
    )


def _compare(arguments: argparse.Namespace) -> int:
    from flows.stages.comparison import run_comparison
    from pipeline.report.comparison_page import comparison_rows, write_comparison

    plan = _plan(arguments)
    record = run_comparison(plan, arguments.store, arguments.out, TerminalReporter())
    page = write_comparison(arguments.out)
    if arguments.json:
        show_one(record, as_json=True)
        return 0
    show(comparison_rows(record), as_json=False)
    print(f"\npage: {page}")
    return 0


def _plan(arguments: argparse.Namespace) -> ComparisonPlan:
    from flows.stages.comparison import GRID_EPISODES, ComparisonPlan, comparison_grid
    from flows.stages.train import SelectPlan

    select = SelectPlan(
        arguments.terrain or (),
        arguments.skill or (),
        arguments.level or (),
        arguments.where or "",
        str(arguments.selection or ""),
    )
    plan = ComparisonPlan(select=select)
    shared = given(arguments, "objective", "steps", "batch_size", "device")
    plan = replace(
        plan, config=replace(plan.config, **shared), **given(arguments, "models", "seeds", "expert")
    )
    grid = comparison_grid(select.select(arguments.store), arguments.episodes or GRID_EPISODES)
    plan = replace(plan, evaluate=replace(plan.evaluate, grid=grid))
    return override(plan, arguments.settings)
