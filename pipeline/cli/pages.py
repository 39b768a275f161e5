"""`gaitforge demo`, `report` and `view`: a small pipeline end to end, and pages to look at."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import datasets
from datasets.errors import amount
from datasets.files import check_outside_stores
from datasets.layout import ROOT_FILE
from flows.records.records import to_tree
from pipeline.cli.parsing.parser import CELL_FIELDS, command, flag, given, option, planned, setting
from pipeline.cli.parsing.values import names, positive, store_address
from pipeline.cli.store import chosen_episodes
from pipeline.progress import TerminalReporter
from pipeline.tables import show_one, show_result

if TYPE_CHECKING:
    from pipeline.view.show import Show

_LEVEL = 4
_HELD_OUT_EPISODES = 3


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


def _ids(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(each) for each in names(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of episode numbers") from None


@command(
    'gaitforge view data/legged.zarr --terrain stairs --where "not success"',
    option(
        "source",
        "a store; the folder of a training run or exported policy, which then runs on held-out "
        "episodes; or an evaluation's file, whose worst, median and best episodes run again",
        store_address,
        metavar="STORE|RUN|EVALUATION",
    ),
    "CELLS --where",
    option("--episode", "stored episodes by their column episode", _ids, metavar="ID,ID"),
    option(
        "--limit",
        "most stored episodes; of more, the worst, the best and a spread between",
        positive,
        200,
    ),
    option(
        "--episodes",
        f"of a run: episodes per terrain, skill and level (default: {_HELD_OUT_EPISODES}; "
        f"of level {_LEVEL}, unless levels are given)",
        positive,
    ),
    option(
        "--against",
        "another policy on the same starts and seeds, as a ghost: expert, or a run's folder",
        metavar="RUN",
    ),
    option("--robot", "a name or path, if not the store's or run's own robot", default=""),
    option("--out", "the page (default: SOURCE.view.html)", Path, metavar="FILE"),
    "--json",
)
def view_command(arguments: argparse.Namespace) -> None:
    """Write a page that plays episodes in 3-D, with their curves; it opens without a network."""
    from pipeline.view.page import bundle, write_page

    bundle()  # before the work
    source = arguments.source
    is_store = isinstance(source, str) or (source / ROOT_FILE).is_file()
    beside = source.absolute().parent if isinstance(source, Path) else Path()
    path = check_outside_stores(arguments.out or beside / f"{Path(source).name}.view.html")
    make = _stored if is_store else _run
    show = make(arguments) if arguments.against is None else _haunted(arguments, make)
    size = write_page(show, path)
    if show.note:
        TerminalReporter().say(show.note)
    if arguments.json:
        record = {"page": str(path), "episodes": len(show.episodes), "bytes": size}
        show_one(record, as_json=True)
        return
    opened = f"#e={arguments.episode[0]}" if arguments.episode else ""
    print(f"{path}{opened} ({amount(len(show.episodes), 'episode')}, {size / 1e6:.1f} MB)")


def _stored(arguments: argparse.Namespace) -> "Show":
    from pipeline.view.stored import spread_over_returns, stored_show

    selection = chosen_episodes(datasets.open_store(arguments.source), arguments)
    if arguments.episode is not None:
        known = set(selection.episode_ids().tolist())
        if missing := [each for each in arguments.episode if each not in known]:
            raise ValueError(f"{arguments.source} has no such episode {missing[0]}")
        ids = ", ".join(map(str, arguments.episode))
        selection = selection.where(f"episode IN ({ids})")
    if len(selection) == 0:
        raise ValueError("the selection is empty; select at least one episode")
    chosen = spread_over_returns(selection, arguments.limit)
    if len(chosen) < len(selection):
        TerminalReporter().say(
            f"{len(chosen)} of {len(selection):,} episodes, from the worst return to the best; "
            "--limit shows more"
        )
    return stored_show(chosen, TerminalReporter(), arguments.robot)


def _haunted(arguments: argparse.Namespace, make: Callable[[argparse.Namespace], "Show"]) -> "Show":
    from pipeline.view.policies import ghost_source, with_ghosts

    source = ghost_source(arguments.against)  # before the work
    return with_ghosts(make(arguments), source, TerminalReporter())


def _run(arguments: argparse.Namespace) -> "Show":
    from collectors.legged.evaluation import EvaluationGrid
    from collectors.scenarios.skills import SKILLS
    from collectors.scenarios.terrains import TERRAINS
    from flows.stages.evaluate import EvaluatePlan
    from flows.tasks.policies import run_source
    from pipeline.view.policies import evaluation_files, evaluation_show, policy_show

    source = arguments.source
    if arguments.where is not None or arguments.episode is not None:
        raise ValueError(f"--where and --episode choose episodes of a store; {source} is none")
    files = evaluation_files(source)
    if files == [source]:
        return evaluation_show(source, TerminalReporter())
    if files:
        one_of = ", ".join(file.relative_to(source).as_posix() for file in files)
        raise ValueError(f"{source} holds several evaluations; give one of its files: {one_of}")
    if not source.is_dir():
        raise ValueError(f"no store, training run or evaluation at {source}")
    every = {"terrains": tuple(TERRAINS), "skills": tuple(SKILLS), "levels": (_LEVEL,)}
    cells = every | given(arguments, **CELL_FIELDS)
    grid = EvaluationGrid(**cells, episodes=arguments.episodes or _HELD_OUT_EPISODES)
    plan = EvaluatePlan(grid=grid, robot=arguments.robot)
    return policy_show(run_source(source), plan, grid.specs(), TerminalReporter())
