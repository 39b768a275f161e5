"""`gaitforge run`, `demo`, `pipeline`, `compare`, `dagger`, `report`: experiments in stages."""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gaitforge.common.errors import names_allowed
from gaitforge.flows.records.part_records import store_address
from gaitforge.flows.records.records import read_plan, read_record, reading_files
from gaitforge.flows.stages.status import EXPERIMENT, is_experiment, recorded_kind, staged_kind
from gaitforge.pipeline.cli.parsing.options import (
    BATCH_SIZE,
    CELL_FIELDS,
    CELLS,
    DEVICE,
    EXPERT,
    JSON,
    LOG,
    MODEL,
    OBJECTIVE,
    OUT,
    SELECTION,
    SHARE,
    STEPS,
    STORE,
    STRETCH,
    THREADS,
    TRUST,
    WHERE,
    Options,
    cells,
    flag,
    needs,
    option,
    setting,
    with_default,
)
from gaitforge.pipeline.cli.parsing.parser import command
from gaitforge.pipeline.cli.parsing.values import ChosenValues, experts, names, numbers, positive
from gaitforge.pipeline.cli.work import CommandWork, Result, asked_loggers, check_options, work
from gaitforge.pipeline.terminal import own_reporter

if TYPE_CHECKING:
    from gaitforge.flows.experiments.staged_plan import FolderPlan
    from gaitforge.flows.stages.stage import Stage
    from gaitforge.pipeline.presets.preset import Preset

_DEMO_S = {
    "collect": 107, "show collected": 2, "train first": 139, "collect corrections": 81,
    "describe": 11, "train fcnet": 270, "train bot": 197, "train fcnet_rc": 306,
    "train bot_rc": 200, "evaluate expert": 16, "evaluate fcnet": 20, "evaluate bot": 23,
    "evaluate fcnet_rc": 15, "evaluate bot_rc": 23, "show fcnet": 7, "show bot": 8,
    "show fcnet_rc": 5, "show bot_rc": 8, "report": 26,
}  # fmt: skip
"""Seconds of one core that the demo's stages took on the machine of docs/results/demo.md."""
_SAME = (
    "learners",
    "seeds",
    "parts",
    "expert",
    "episodes",
    "threads",
    "train_s",
    "where",
    "randomisation",
)
_CHOICES = {
    **{name: name for name in (*_SAME, "rounds", "share", "stretch", "plain")},
    **{name: name for name in ("objective", "steps", "batch_size", "device")},
    **CELL_FIELDS,
    "saved": "selection",
}
"""Value that plans look up -> argument of the command line."""

_THE_PLANS = "the experiment's"
_LEARNERS = option(
    "--learners",
    "of the experiment, or of gaitforge models (default: the experiment's)",
    names,
    metavar="NAME,NAME",
    also=("--models",),
)
_SEEDS = option(
    "--seeds", "random seeds, one run each, e.g. 0-2 (default: the experiment's)", numbers
)
_TRAIN_TIME = option(
    "--train-time",
    "seconds of training per run instead of --steps, each model with its own settings",
    float,
    metavar="SECONDS",
    dest="train_s",
)
_EPISODES = option(
    "--episodes", "episodes to evaluate per cell or task (default: the experiment's)", positive
)
_PARTS = option(
    "--parts", "of the collection, or to collect in a round (default: the experiment's)", positive
)
_RANDOMISATION = option(
    "--randomisation",
    "of the episodes that are collected, and on which policies are evaluated: none, default, heavy "
    "or a JSON file; single quantities by --set collect.randomisation.friction=0.1:0.3",
    metavar="NAME|FILE",
)
_STAGE = option("--stage", 'do only this stage, e.g. "train fcnet"', metavar="NAME")
_STORES = option("stores", "folder, or s3://bucket/prefix; of each task one", nargs="+")
_CHOSEN: tuple[Options, ...] = (
    _LEARNERS,
    _SEEDS,
    OBJECTIVE,
    with_default(STEPS, _THE_PLANS),
    with_default(BATCH_SIZE, "the model's"),
    with_default(DEVICE, "cpu"),
    cells(_THE_PLANS),
    _EPISODES,
    THREADS,
)


@work(
    "gaitforge run d4rl hopper.zarr walker2d.zarr --out runs/d4rl --runner slurm\n"
    "          gaitforge run legged-mixed mixed.zarr --out runs/mixed --seeds 0-4\n"
    "          gaitforge run runs/mixed",
    option(
        "what",
        "a preset; a plan's file; or the folder of an experiment, which is resumed",
        nargs="?",
        default="",
    ),
    option(
        "stores",
        "stores to learn from: folders, or s3://bucket/prefix; of presets that try policies, "
        "folders of trained or exported ones",
        nargs="*",
    ),
    option("--out", "output folder (not for an experiment's folder)", Path, metavar="FOLDER"),
    *_CHOSEN,
    _PARTS,
    _RANDOMISATION,
    with_default(EXPERT, _THE_PLANS),
    WHERE,
    SELECTION,
    _TRAIN_TIME,
    _STAGE,
    option(
        "--size",
        "of a preset: small, for two cores, or full, the papers'",
        choices=("small", "full"),
        default="small",
    ),
    option("--list", "show the presets", action="store_true", dest="list_presets"),
    LOG,
    setting("learners.fcnet.steps=500"),
    JSON,
    needs("learn"),
    needs("sim", "report", unless="list_presets"),
    alone=True,
)
def run_command(arguments: argparse.Namespace) -> CommandWork:
    """Run or resume an experiment: learners on sets of episodes, scored in closed loop."""
    from gaitforge.pipeline.presets.preset import PRESETS

    if arguments.list_presets:
        return CommandWork(Path(), (), lambda _: _listed(PRESETS.usable()), ())
    # Not before the list, which needs no torch.
    from gaitforge.flows.experiments.staged_plan import plan_class

    if not arguments.what:
        raise ValueError("name a preset, a plan or a folder; gaitforge run --list shows presets")
    path = Path(arguments.what)
    out = arguments.out
    kind = "" if arguments.what in PRESETS else _kind_at(path)
    if out is None and not (kind and path.is_dir()):
        raise ValueError(f"{arguments.what} needs --out, the folder of its results")
    if not kind:
        return _work(arguments, _shipped(arguments.what, arguments.size, arguments.stores), out)
    plan = plan_class(kind).claimed(path)
    if arguments.stores and not plan.takes_stores:
        raise ValueError(f"{arguments.what} has its stores or policies, got {arguments.stores[0]}")
    return _work(arguments, plan, out or path, arguments.stores)


def _kind_at(path: Path) -> str:
    """The kind of the plan in a file or folder, "" without one.

    Raises:
        ValueError: no installed package brings the kind.
    """
    from gaitforge.flows.experiments.kinds import PLAN_KINDS

    kind = read_plan(path)[1] or EXPERIMENT if path.is_file() else recorded_kind(path)
    if kind and kind not in PLAN_KINDS:
        raise ValueError(
            f"{path} holds a plan of the kind '{kind}', which no installed package brings to "
            f"gaitforge run; {names_allowed(kind, PLAN_KINDS)}"
        )
    return kind


def _shipped(name: str, size: str, stores: Sequence[str]) -> "FolderPlan":
    """The plan of a preset, on the stores if it learns from some."""
    from gaitforge.flows.experiments.plan import Experiment
    from gaitforge.pipeline.presets.experiment_plan import ExperimentPlan
    from gaitforge.pipeline.presets.experiments import preset

    plan = preset(name, size, stores)
    if isinstance(plan, Experiment):
        return ExperimentPlan(name, plan, tuple(stores))
    return plan


def _listed(presets: "Mapping[str, Preset]") -> Result:
    """The presets, as JSON values and as a table."""
    rows = []
    table = []
    for name, entry in presets.items():
        sizes = "small, full" if entry.full else "small"
        names = {"preset": name, "shows": entry.shows}
        rows.append({**names, "hours_of_two_cores": entry.hours, "sizes": sizes})
        table.append({**names, "hours of two cores": f"{entry.hours or '-'}", "sizes": sizes})
    return Result(rows, table)


@work(
    "gaitforge pipeline --out runs/walk --terrain flat,rough --skill run,stand --seeds 0-2",
    option(
        "--out",
        "folder of the pipeline; a second call needs nothing else",
        Path,
        required=True,
        last=True,
    ),
    option("--preset", "demo, or the size of another collection (default: demo)", metavar="NAME"),
    option("--plan", "a plan's file, e.g. the plan.json of another pipeline", Path, metavar="FILE"),
    *_CHOSEN,
    _PARTS,
    _RANDOMISATION,
    with_default(EXPERT, _THE_PLANS),
    _STAGE,
    LOG,
    setting("learners.fcnet.steps=500"),
    JSON,
    needs("learn", "sim", "report"),
    alone=True,
)
def pipeline_command(arguments: argparse.Namespace) -> CommandWork:
    """Collect, train, evaluate, compare and report by one plan; skip what is done."""
    from gaitforge.flows.experiments.claim import claimed
    from gaitforge.pipeline.presets.experiment_plan import ExperimentPlan
    from gaitforge.pipeline.presets.experiments import collecting_preset

    out = arguments.out
    if (arguments.stage or arguments.cancel) and not is_experiment(out):
        raise ValueError(f"no experiment in {out}")
    if arguments.plan and arguments.preset:
        raise ValueError("give --plan or --preset, not both")
    chosen = _choices(arguments) or arguments.settings or arguments.plan or arguments.preset
    if (is_experiment(out) and not chosen) or arguments.plan:
        claim = claimed(arguments.plan or out)
        plan = ExperimentPlan.of_claim(claim)
    else:
        name = arguments.preset or "demo"
        plan = ExperimentPlan(name, collecting_preset(name))
    return _work(arguments, plan, out)


@work(
    "gaitforge demo --out runs/demo",
    option("--out", "output folder", Path, Path("runs/demo")),
    flag("--prefect", "run it as a Prefect flow"),
    LOG,
    setting("learners.fcnet.steps=500"),
    JSON,
    needs("learn", "sim", "report"),
    runner=False,
    alone=True,
)
def demo_command(arguments: argparse.Namespace) -> CommandWork:
    """Run a small pipeline end to end: collect, train, evaluate, report."""
    from gaitforge.pipeline.presets.preset import DEMO

    arguments.runner = "prefect" if arguments.prefect else arguments.runner
    return _work(arguments, _on_stores(DEMO), arguments.out, seconds=_DEMO_S)


@work(
    "gaitforge compare legged.zarr --learners fcnet,transformer --steps 5000 --out runs/compare\n"
    "          gaitforge compare hopper.zarr walker2d.zarr --suite d4rl --out runs/d4rl",
    _STORES,
    option("--suite", "learners and sets of another preset: d4rl or legged-mixed", metavar="NAME"),
    *_CHOSEN,
    OUT,
    WHERE,
    SELECTION,
    with_default(EXPERT, _THE_PLANS),
    _TRAIN_TIME,
    _STAGE,
    LOG,
    setting("learners.transformer.peak_lr=0.001"),
    JSON,
    needs("learn", "sim", "report"),
)
def compare_command(arguments: argparse.Namespace) -> CommandWork:
    """Train models with equal settings on the same episodes, or a suite's learners; evaluate."""
    from gaitforge.pipeline.presets.preset import COMPARE

    plan = _on_stores(arguments.suite or COMPARE)
    return _work(arguments, plan, arguments.out, arguments.stores)


@work(
    "gaitforge dagger data/legged.zarr --rounds 3 --steps 3000 --out runs/dagger",
    STORE,
    OUT,
    option("--rounds", "of collecting and training, after a first training (default: 3)", positive),
    MODEL,
    OBJECTIVE,
    with_default(STEPS, _THE_PLANS),
    with_default(BATCH_SIZE, "the model's"),
    with_default(DEVICE, "cpu"),
    SHARE,
    STRETCH,
    option(
        "--labeller", "the expert: as --expert of collect", experts, metavar="NAME", dest="expert"
    ),
    _PARTS,
    option("--plain", "learn from the expert alone, too", action=argparse.BooleanOptionalAction),
    CELLS,
    WHERE,
    _EPISODES,
    THREADS,
    _STAGE,
    LOG,
    setting("config.window_len=192"),
    JSON,
    needs("learn", "sim", "report"),
)
def dagger_command(arguments: argparse.Namespace) -> CommandWork:
    """Train in rounds, with an expert's corrections on the policy's own states."""
    from gaitforge.pipeline.presets.preset import DAGGER

    arguments.learners = (arguments.model,)
    return _work(arguments, _on_stores(DAGGER), arguments.out, (arguments.store,))


def _on_stores(name: str) -> "FolderPlan":
    """The plan of a preset that is an experiment on stores; they come later."""
    from gaitforge.pipeline.presets.experiment_plan import ExperimentPlan
    from gaitforge.pipeline.presets.experiments import experiment_preset

    return ExperimentPlan(name, experiment_preset(name))


def _choices(arguments: argparse.Namespace) -> ChosenValues:
    """The values of the command line for a plan, which reads those that it uses."""
    return ChosenValues(arguments, _CHOICES)


def _work(
    arguments: argparse.Namespace,
    plan: "FolderPlan",
    out: Path,
    stores: Sequence[Path | str] = (),
    seconds: Mapping[str, float] | None = None,
) -> CommandWork:
    """The stages of a plan in `out`, which is claimed unless only a script is asked for."""
    values = _choices(arguments)
    addresses = [str(store_address(store)) for store in stores]
    plan = plan.chosen(values, arguments.settings, addresses, out, own_reporter().say)
    stages = plan.stages(out)
    loggers = asked_loggers(arguments, stages)
    check_options(arguments)
    _check_stage(arguments, stages)
    plan.claim(out, write=_begins(arguments))
    result = partial(_result, plan.kind, out)
    words = ["run", str(out), *(["--log", ",".join(loggers)] if loggers else [])]
    return CommandWork(out, stages, result, words, seconds or {})


def _check_stage(arguments: argparse.Namespace, stages: Sequence["Stage"]) -> None:
    """Raise ValueError for a --stage that there is none of, before a plan is written."""
    from gaitforge.flows.stages.stage import find_stage

    if getattr(arguments, "stage", None):
        find_stage(stages, arguments.stage)


def _begins(arguments: argparse.Namespace) -> bool:
    """Whether a command does or submits work, for which its folder's plan is written."""
    return not (getattr(arguments, "dry_run", False) or getattr(arguments, "cancel", False))


def _result(name: str, out: Path, _: object) -> Result:
    """The summary of the finished plan of a kind."""
    from gaitforge.flows.experiments.kinds import PLAN_KINDS

    kind = PLAN_KINDS[name]
    with reading_files(out):
        summary = read_record(out / "summary.json") or {}
    rows = kind.summary_rows(out, summary)
    beside = {"title": name, "lines": (), **kind.shown_beside(out, summary)}
    page = out / "report.html"
    lines = (*beside.pop("lines"), f"page: {page}")
    return Result(summary, rows, lines, about=out, pages=(page,), **beside)


@command(
    "gaitforge report runs/demo",
    option("folder", "folder of an experiment", Path),
    TRUST,
    needs("learn", "sim", "report"),
)
def report_command(arguments: argparse.Namespace) -> None:
    """Write report.html from an experiment's files."""
    from gaitforge.flows.experiments.kinds import PLAN_KINDS

    kind = staged_kind(arguments.folder) or EXPERIMENT
    print(PLAN_KINDS[kind].write_page(arguments.folder, own_reporter()))
