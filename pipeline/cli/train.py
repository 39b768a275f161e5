"""`gaitforge train`, `models`, `compare`, `dagger`: policies from a store."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace

from gaitforge.flows.progress import Silent
from gaitforge.flows.records.part_records import store_address
from gaitforge.flows.records.records import read_record
from gaitforge.flows.runners.slurm.script import SlurmSettings
from gaitforge.flows.settings import override, with_chosen
from gaitforge.learners.models.registry import describe_models
from gaitforge.learners.training.config import TrainConfig
from gaitforge.pipeline.cli.parsing.parser import (
    command,
    given,
    option,
    planned,
    setting,
)
from gaitforge.pipeline.cli.parsing.runners import (
    JOB_RUNNER,
    STAGES_RUNNER,
    TRAINING_RUNNER,
    TRAINING_RUNNERS,
    runner_settings,
)
from gaitforge.pipeline.cli.parsing.values import names, numbers, positive
from gaitforge.pipeline.cli.pipelines import do_stages, submitted
from gaitforge.pipeline.cli.running import show_submitted
from gaitforge.pipeline.progress import TerminalReporter
from gaitforge.pipeline.tables import show, show_one, show_result

SELECTED = ("terrain", "skill", "level", "where")
TRAINED = ("objective", "steps", "batch_size", "device")
"""Arguments that are fields of a selection's plan, and of every training's config."""


@command(
    "gaitforge train legged.zarr --model fcnet --terrain flat,rough --out runs/fcnet",
    "store --model --objective --out --steps --batch-size",
    option("--optimiser", "adamw, adam or lion (default: adamw)", metavar="NAME"),
    option("--seed", "random seed of the weights and the data order", int),
    "--device CELLS --where --selection",
    *TRAINING_RUNNER,
    setting("config.peak_lr=0.001"),
    "--json",
)
def train_command(arguments: argparse.Namespace) -> None:
    """Train a model on a selection of a store, or resume a run."""
    from gaitforge.flows.stages.train import SelectPlan, TrainPlan, run_training
    from gaitforge.learners.training.distributed import process_rank

    select = SelectPlan(**given(arguments, *SELECTED, saved="selection"))
    config = TrainConfig.recommended(**given(arguments, *TRAINED, "model", "optimiser", "seed"))
    plan = planned(TrainPlan(select, config), arguments)
    job_settings = runner_settings(arguments, TRAINING_RUNNERS)
    if isinstance(job_settings, SlurmSettings):
        from gaitforge.flows.runners.slurm.training import run_training_on_slurm

        job = run_training_on_slurm(plan, arguments.store, arguments.out, job_settings)
        show_submitted(job, arguments.json)
        return
    leads = process_rank() == 0  # of the processes that torchrun may have started
    reporter = TerminalReporter() if leads else Silent()
    result = run_training(plan, arguments.store, arguments.out, reporter)
    if leads:
        show_one({**asdict(result), "run_dir": str(result.run_dir)}, arguments.json)


@command("gaitforge models --json", "--json")
def models_command(arguments: argparse.Namespace) -> None:
    """List the models and their sizes."""
    show(describe_models(), arguments.json)


@command(
    "gaitforge compare legged.zarr --models fcnet,transformer --steps 5000 --out runs/compare\n"
    "          gaitforge compare hopper.zarr walker2d.zarr --suite d4rl --out runs/d4rl\n"
    "          gaitforge compare mixed.zarr --suite legged-mixed --out runs/mixed",
    option("store", "folder, or s3://bucket/prefix; of a suite one for each task", nargs="+"),
    option(
        "--suite",
        "the learners of a suite, d4rl or legged-mixed, on its sets of episodes",
        metavar="NAME",
    ),
    option(
        "--models",
        "of gaitforge models (default: fcnet and three baselines), or learners of the suite",
        names,
    ),
    option("--seeds", "random seeds, one run each, e.g. 0-2 (default: 0,1,2)", numbers),
    "--objective --steps --batch-size --device --out CELLS --where --selection",
    option(
        "--train-time",
        "seconds of training per run instead of --steps, each model with its own settings",
        float,
        metavar="SECONDS",
        dest="train_s",
    ),
    option("--episodes", "episodes to evaluate per terrain and skill (default: 20)", positive),
    "--expert",
    *STAGES_RUNNER,
    setting('\'own={"transformer":{"peak_lr":0.001}}\''),
    "--json",
)
def compare_command(arguments: argparse.Namespace) -> int | None:
    """Train models with equal budgets on the same episodes, or a suite's learners; evaluate."""
    if arguments.suite:
        return _compare_suite(arguments)
    if len(arguments.store) > 1:
        raise ValueError("several stores are for --suite; models are compared on one")
    (store,) = arguments.store
    from gaitforge.flows.stages.comparison.legged import (
        COMPARISON,
        GRID_EPISODES,
        ComparisonPlan,
        comparison_grid,
    )
    from gaitforge.flows.stages.comparison.stages import comparison_stages
    from gaitforge.flows.stages.train import SelectPlan
    from gaitforge.pipeline.report.comparison_page import (
        comparison_rows,
        first_runs,
        write_comparison,
    )
    from gaitforge.pipeline.report.pictures import make_comparison_sheets
    from gaitforge.pipeline.view.run_pages import write_evaluation_pages

    select = SelectPlan(**given(arguments, *SELECTED, saved="selection"))
    grid = comparison_grid(select.select(store), arguments.episodes or GRID_EPISODES)
    plan = ComparisonPlan(select=select)
    config = replace(plan.config, **given(arguments, *TRAINED))
    plan = replace(plan, config=config, evaluate=replace(plan.evaluate, grid=grid))
    plan = planned(plan, arguments, "models", "seeds", "expert", "train_s")
    out, reporter = arguments.out, TerminalReporter()
    stages = comparison_stages(plan, store_address(store), out)
    code = do_stages(arguments, out, stages, arguments.words)
    if code is not None:
        return code
    record = read_record(out / COMPARISON) or {}
    make_comparison_sheets(out, reporter.say)
    write_evaluation_pages(out, first_runs(record), reporter)
    page = write_comparison(out)
    lines = f"\nevaluated on {plan.evaluate.grid}", f"page: {page}"
    show_result(record, comparison_rows(record), arguments.json, *lines)
    return None


def _compare_suite(arguments: argparse.Namespace) -> int | None:
    """Train and score a suite's learners; its page is `suite.html`."""
    from gaitforge.flows.stages.suites.plan import chosen_suite
    from gaitforge.flows.stages.suites.suite import SUITE, suite_stages
    from gaitforge.pipeline.report.suite_page import suite_rows, write_suite

    alien = given(arguments, *SELECTED, "selection", "train_s", "objective", "batch_size", "device")
    if alien:
        raise ValueError(f"a suite has its own {', '.join(alien)}; leave it out, or use --set")
    chosen = given(arguments, "models", "seeds", "steps", "episodes", "expert")
    plan = override(chosen_suite(arguments.suite, **chosen), arguments.settings)
    out, stores = arguments.out, [store_address(store) for store in arguments.store]
    code = do_stages(
        arguments, out, suite_stages(arguments.suite, plan, stores, out), arguments.words
    )
    if code is not None:
        return code
    record, page = read_record(out / SUITE) or {}, write_suite(out)
    show_result(record, suite_rows(record), arguments.json, f"\npage: {page}")
    return None


@command(
    "gaitforge dagger data/legged.zarr --rounds 3 --steps 3000 --out runs/dagger",
    "store --out",
    option("--rounds", "of collecting and training, after a first training", positive, 3),
    "--model --objective --steps --batch-size --device --share --stretch",
    option("--labeller", "the expert: a shipped one, or a .safetensors file", metavar="NAME"),
    option("--parts", "to collect in a round (default: 4)", positive),
    option("--plain", "learn from the expert alone, too", action=argparse.BooleanOptionalAction),
    "CELLS --where --episodes --threads",
    *JOB_RUNNER,
    setting("config.window_len=192"),
    "--json",
)
def dagger_command(arguments: argparse.Namespace) -> None:
    """Train in rounds, with an expert's corrections on the policy's own states."""
    from gaitforge.flows.stages.comparison.legged import GRID_EPISODES, comparison_grid
    from gaitforge.flows.stages.dagger import DaggerPlan, run_dagger
    from gaitforge.flows.stages.train import SelectPlan

    select = SelectPlan(**given(arguments, *SELECTED))
    selection = select.select(arguments.store)
    grid = comparison_grid(selection, arguments.episodes or GRID_EPISODES)
    levels = sorted(selection.episodes("level").column("level").unique().to_pylist())
    config = TrainConfig.recommended(**given(arguments, *TRAINED, "model"))
    more = given(arguments, "rounds", "share", "stretch", "plain")
    plan = DaggerPlan(select=select, config=config, **more)
    cells = {"terrains": grid.terrains, "skills": grid.skills, "levels": tuple(levels)}
    made = with_chosen(plan.collect.grid, {**cells, "parts": arguments.parts})
    chosen = {"grid": made, "expert": arguments.labeller, "threads": arguments.threads}
    collect = with_chosen(plan.collect, chosen)
    evaluate = with_chosen(plan.evaluate, {"grid": grid, "threads": arguments.threads})
    plan = planned(replace(plan, collect=collect, evaluate=evaluate), arguments)
    if submitted(arguments, "dagger", arguments.out):
        return
    show(run_dagger(plan, arguments.store, arguments.out, TerminalReporter()), arguments.json)
