"""`gaitforge run`, `demo`, `pipeline`, `compare`, `dagger`, `report`: experiments in stages."""

import argparse
import os
import timeit
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaitforge.flows.records.part_records import store_address
from gaitforge.flows.records.records import read_record, to_tree
from gaitforge.flows.runners.slurm import jobs as slurm
from gaitforge.flows.runners.slurm.script import SlurmSettings
from gaitforge.flows.stages.status import is_experiment
from gaitforge.pipeline.cli.parsing.parser import (
    CELL_FIELDS,
    Option,
    command,
    flag,
    given,
    option,
    setting,
)
from gaitforge.pipeline.cli.parsing.runners import (
    PIPELINE_RUNNER,
    STAGE_RUNNERS,
    TRAINING_RUNNERS,
    runner_settings,
)
from gaitforge.pipeline.cli.parsing.values import names, numbers, positive
from gaitforge.pipeline.cli.running import job_row, own_reporter, show_submitted
from gaitforge.pipeline.progress import TerminalReporter
from gaitforge.pipeline.tables import show, show_result

if TYPE_CHECKING:
    from gaitforge.flows.experiments.plan import Experiment
    from gaitforge.flows.experiments.stages import Claim
    from gaitforge.flows.stages.staging import Stage

_DEMO_S = {
    **{"collect": 107, "show collected": 2, "train first": 139, "collect corrections": 81},
    **{"describe": 11, "train fcnet": 270, "train bot": 197, "train fcnet_rc": 306},
    **{"evaluate expert": 16, "evaluate fcnet": 20, "evaluate bot": 23, "evaluate fcnet_rc": 15},
    **{"show fcnet": 7, "show bot": 8, "show fcnet_rc": 5, "report": 26},
}
"""Seconds of one core that the demo's stages took where 100,000 numbers are added in _SUM_S."""
_SUM_S = 0.003
_CONFIG = ("objective", "steps", "batch_size", "device")
_SAME = ("learners", "seeds", "parts", "expert", "episodes", "threads", "train_s", "where")
_CHOICES = {
    **{name: name for name in (*_SAME, "rounds", "share", "stretch", "plain")},
    **CELL_FIELDS,
    "saved": "selection",
}
"""What `chosen_claim` takes -> the option's name."""

_LEARNERS = option(
    "--learners",
    "of the experiment, or of gaitforge models (default: the experiment's)",
    names,
    metavar="NAME,NAME",
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
_EPISODES = option("--episodes", "episodes to evaluate per cell or task", positive)
_PARTS = option("--parts", "of the collection, or to collect in a round", positive)
_STORES = option("stores", "folder, or s3://bucket/prefix; of each task one", nargs="+")
_CHOSEN: tuple[Option, ...] = (
    _LEARNERS,
    _SEEDS,
    "--objective --steps --batch-size --device CELLS",
    _EPISODES,
    "--threads",
)


@command(
    "gaitforge run d4rl hopper.zarr walker2d.zarr --out runs/d4rl --runner slurm\n"
    "          gaitforge run legged-mixed mixed.zarr --out runs/mixed --seeds 0-4\n"
    "          gaitforge run runs/mixed",
    option("what", "a preset; a plan's file; or the folder of an experiment, which is resumed"),
    option("stores", "stores to learn from: folders, or s3://bucket/prefix", nargs="*"),
    option("--out", "output folder (not for an experiment's folder)", Path, metavar="FOLDER"),
    *_CHOSEN,
    _PARTS,
    "--expert --where --selection",
    _TRAIN_TIME,
    *PIPELINE_RUNNER,
    setting("learners.fcnet.steps=500"),
    "--json",
)
def run_command(arguments: argparse.Namespace) -> int | None:
    """Run or resume an experiment: learners on sets of episodes, scored in closed loop."""
    from gaitforge.flows.experiments.stages import claimed
    from gaitforge.pipeline.experiments.presets import preset

    place, stores = Path(arguments.what), arguments.stores
    if is_experiment(place):
        known, out = claimed(place), arguments.out or place
        return _run(arguments, known.name, known.experiment, stores or known.stores, out)
    if arguments.out is None:
        raise ValueError("an experiment needs --out, the folder of its results")
    if place.is_file():
        known = claimed(place)
        return _run(arguments, known.name, known.experiment, stores, arguments.out)
    return _run(arguments, arguments.what, preset(arguments.what), stores, arguments.out)


@command(
    "gaitforge pipeline runs/walk --terrain flat,rough --skill run,stand --seeds 0-2",
    option("out", "folder of the pipeline; a second call needs nothing else", Path),
    option("--preset", "demo, or the size of another collection (default: demo)", metavar="NAME"),
    option("--plan", "a plan's file, e.g. the plan.json of another pipeline", Path, metavar="FILE"),
    *_CHOSEN,
    _PARTS,
    "--expert",
    *PIPELINE_RUNNER,
    setting("learners.fcnet.steps=500"),
    "--json",
)
def pipeline_command(arguments: argparse.Namespace) -> int | None:
    """Collect, train, evaluate, compare and report by one plan; skip what is done."""
    from gaitforge.flows.experiments.stages import Claim, claimed
    from gaitforge.pipeline.experiments.presets import collecting_preset

    out = arguments.out
    if (arguments.stage or arguments.cancel) and not is_experiment(out):
        raise ValueError(f"no experiment in {out}")
    if arguments.plan and arguments.preset:
        raise ValueError("give --plan or --preset, not both")
    chosen = _choices(arguments) or arguments.settings or arguments.plan or arguments.preset
    if is_experiment(out) and not chosen:
        known = claimed(out)
    elif arguments.plan:
        known = claimed(arguments.plan)
    else:
        name = arguments.preset or "demo"
        known = Claim(name, collecting_preset(name))
    return _run(arguments, known.name, known.experiment, known.stores, out)


@command(
    "gaitforge demo --out runs/demo",
    option("--out", "output folder", Path, Path("runs/demo")),
    flag("--prefect", "run it as a Prefect flow"),
    setting("learners.fcnet.steps=500"),
    "--json",
)
def demo_command(arguments: argparse.Namespace) -> int | None:
    """Run a small pipeline end to end: collect, train, evaluate, report."""
    from gaitforge.pipeline.experiments.presets import DEMO, preset

    arguments.runner = "prefect" if arguments.prefect else "local"
    arguments.stage = None
    return _run(arguments, DEMO, preset(DEMO), (), arguments.out, _DEMO_S)


@command(
    "gaitforge compare legged.zarr --models fcnet,transformer --steps 5000 --out runs/compare\n"
    "          gaitforge compare hopper.zarr walker2d.zarr --suite d4rl --out runs/d4rl",
    _STORES,
    option("--suite", "learners and sets of another preset: d4rl or legged-mixed", metavar="NAME"),
    option("--models", "the same as --learners", names, metavar="NAME,NAME", dest="learners"),
    *_CHOSEN,
    "--out --where --selection --expert",
    _TRAIN_TIME,
    *PIPELINE_RUNNER,
    setting("learners.transformer.peak_lr=0.001"),
    "--json",
)
def compare_command(arguments: argparse.Namespace) -> int | None:
    """Train models with equal settings on the same episodes, or a suite's learners; evaluate."""
    from gaitforge.pipeline.experiments.presets import COMPARE, preset

    name = arguments.suite or COMPARE
    return _run(arguments, name, preset(name), arguments.stores, arguments.out)


@command(
    "gaitforge dagger data/legged.zarr --rounds 3 --steps 3000 --out runs/dagger",
    "store --out",
    option("--rounds", "of collecting and training, after a first training (default: 3)", positive),
    "--model --objective --steps --batch-size --device --share --stretch",
    option("--labeller", "the expert: a shipped one, or a file", metavar="NAME", dest="expert"),
    _PARTS,
    option("--plain", "learn from the expert alone, too", action=argparse.BooleanOptionalAction),
    "CELLS --where",
    _EPISODES,
    "--threads",
    *PIPELINE_RUNNER,
    setting("settings.window_len=192"),
    "--json",
)
def dagger_command(arguments: argparse.Namespace) -> int | None:
    """Train in rounds, with an expert's corrections on the policy's own states."""
    from gaitforge.pipeline.experiments.presets import DAGGER, preset

    arguments.learners = (arguments.model,)
    return _run(arguments, DAGGER, preset(DAGGER), (arguments.store,), arguments.out)


def _choices(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the command line chose, as `chosen_claim` takes it."""

    def there(names: Mapping[str, str]) -> dict[str, Any]:
        return given(arguments, **{k: name for k, name in names.items() if name in arguments})

    config = there({name: name for name in _CONFIG})
    return there(_CHOICES) | ({"config": config} if config else {})


def _run(
    arguments: argparse.Namespace,
    name: str,
    experiment: "Experiment",
    stores: Sequence[Any],
    out: Path,
    seconds: Mapping[str, float] | None = None,
) -> int | None:
    """Have the chosen runner do an experiment in `out`, and print its results."""
    from gaitforge.flows.experiments.stages import claim
    from gaitforge.pipeline.experiments.presets import chosen_claim
    from gaitforge.pipeline.report.experiment import stages_of

    settings = runner_settings(arguments) if "dry_run" in arguments else None
    addresses = tuple(str(store_address(store)) for store in stores)
    chosen = _choices(arguments)
    made = chosen_claim(name, experiment, addresses, chosen, arguments.settings, out)
    stages = stages_of(made, out)
    if not getattr(settings, "dry_run", False):
        claim(made, out)
    if arguments.runner == "prefect" and not arguments.stage:
        if settings is not None:
            raise ValueError(
                "an experiment's parts are made by Prefect in this process, not on Dask"
            )
        _run_prefect(made, out)
    elif seconds is not None:
        _run_here(out, stages, seconds)
    else:
        code = do_stages(arguments, out, stages, ["run", str(out)])
        if code is not None:
            return code
    _show(out, arguments.json)
    return None


def _run_prefect(made: "Claim", out: Path) -> None:
    from gaitforge.flows.runners.prefect import run_from_a_program
    from gaitforge.pipeline.serve.experiment import experiment

    with run_from_a_program(TerminalReporter()):
        experiment(str(out), plan=to_tree(made))


def _show(out: Path, as_json: bool) -> None:
    """Print the summary of a finished experiment."""
    from gaitforge.pipeline.report.results import result_rows

    summary = read_record(out / "summary.json") or {}
    lines = []
    if summary["dataset"]:
        speed = f"{summary['collect']['steps_per_s']:,.0f} steps/s"
        lines.append(f"\ncollected {summary['dataset']['steps']:,} steps at {speed}")
    lines.append(f"{'' if lines else chr(10)}all of it in {summary['wall_s']:.0f} s")
    show_result(summary, result_rows(summary), as_json, *lines, f"page: {out / 'report.html'}")


@command("gaitforge report runs/demo", option("folder", "folder of an experiment", Path))
def report_command(arguments: argparse.Namespace) -> None:
    """Write report.html from an experiment's files."""
    from gaitforge.pipeline.report.report import write_report

    print(write_report(arguments.folder))


def do_stages(
    arguments: argparse.Namespace, out: Path, stages: "Sequence[Stage]", words: Sequence[str]
) -> int | None:
    """Have the chosen runner do what is left of a command's stages.

    Args:
        words: the command line, which with `--stage NAME` does one of them.

    Returns:
        None if all are done, else the exit code.
    """
    from gaitforge.flows.stages.staging import find_stage, run_stage

    settings = runner_settings(arguments, STAGE_RUNNERS)
    if arguments.stage:
        run_stage(out, find_stage(stages, arguments.stage), own_reporter())
        return 0
    if isinstance(settings, SlurmSettings):
        return _stages_on_slurm(arguments, out, stages, words, settings)
    if arguments.runner == "dask":
        from gaitforge.flows.runners.dask_stages import run_stages_on_dask

        run_stages_on_dask(out, stages, own_reporter(), settings)
    else:
        _run_here(out, stages)
    return None


def _run_here(
    out: Path, stages: "Sequence[Stage]", seconds: Mapping[str, float] | None = None
) -> None:
    """Do what is left of the stages on this machine; says what there is and what was done.

    Args:
        seconds: that the stages took, one core each, on the machine of docs/results.md.
    """
    from gaitforge.flows.stages.side_by_side import run_side_by_side
    from gaitforge.flows.stages.staging import is_done

    reporter = TerminalReporter()
    done = [stage.name for stage in stages if is_done(out, stage)]
    left = [stage.name for stage in stages if stage.name not in done]
    if left:
        about = f", about {_minutes(seconds, left)} min here" if seconds else ""
        reporter.say(f"{len(stages)} stages{about}: {', '.join(stage.name for stage in stages)}")
    if left and done:
        reporter.say(f"skipped, since done before: {', '.join(done)}")
    run_side_by_side(out, stages, reporter, TerminalReporter(lines=True))


def _minutes(seconds: Mapping[str, float], left: Sequence[str]) -> int:
    """Estimate of the minutes that stages take on this machine, by the speed of a sum."""
    slower = min(timeit.repeat("sum(range(100_000))", number=1, repeat=20)) / _SUM_S
    whole = slower * sum(seconds.get(name, 0.0) for name in left)
    return max(1, round(whole / min(2, os.cpu_count() or 1) / 60))


def _stages_on_slurm(
    arguments: argparse.Namespace,
    out: Path,
    stages: "Sequence[Stage]",
    words: Sequence[str],
    settings: SlurmSettings,
) -> int | None:
    from gaitforge.flows.runners.slurm.stages import cancel_stages, follow_stages, submit_stages

    if arguments.cancel:
        made = cancel_stages(out, stages)
    else:
        made = submit_stages(out, stages, words, settings)
    if settings.dry_run:
        print(*made, sep="\n")
        return 0
    if arguments.follow:
        done = follow_stages(out, stages, own_reporter().say)
        return None if done and not arguments.cancel else 1
    jobs = [job for job in made if isinstance(job, slurm.Job)]
    rows = [job_row(job, tasks) for job, tasks in slurm.states_of(jobs)]
    if not rows:
        own_reporter().say("no job to cancel" if arguments.cancel else _NOTHING)
    show(rows, arguments.json)
    return 0


def submitted(
    arguments: argparse.Namespace, name: str, out: Path, words: Sequence[str] = ()
) -> bool:
    """Submit a command line with some more words as a job if that was asked for; whether it was."""
    from gaitforge.flows.runners.slurm.runner import check_idle
    from gaitforge.flows.runners.slurm.stages import run_command_on_slurm

    settings = runner_settings(arguments, TRAINING_RUNNERS)
    if not isinstance(settings, SlurmSettings):
        return False
    if not settings.dry_run:
        check_idle(out / "jobs", name, f"does the {name} of {out}")
    job = run_command_on_slurm([*arguments.words, *words], name, out, settings)
    show_submitted(job, arguments.json)
    return True


_NOTHING = "nothing to submit: every stage is done or in a live job"
