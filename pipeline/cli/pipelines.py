"""`gaitforge pipeline`, `demo` and `report`, and the running of any command's stages."""

import argparse
import os
import timeit
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gaitforge.flows.records.records import read_record, to_tree
from gaitforge.flows.runners.slurm import jobs as slurm
from gaitforge.flows.runners.slurm.script import SlurmSettings
from gaitforge.flows.settings import override
from gaitforge.flows.stages.status import is_pipeline
from gaitforge.pipeline.cli.parsing.parser import (
    CELL_FIELDS,
    command,
    flag,
    given,
    option,
    planned,
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
from gaitforge.pipeline.tables import show, show_result, table

if TYPE_CHECKING:
    from gaitforge.flows.stages.pipeline.plan import PipelinePlan
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
_TOP = ("expert", "threads", "seeds")
_GRID = {**CELL_FIELDS, "parts": "parts", "episodes": "episodes"}
_CHOICES = ("preset", "plan", "models", *_CONFIG, *_TOP, *_GRID.values())


@command(
    "gaitforge pipeline runs/walk --terrain flat,rough --skill run,stand --seeds 0-2",
    option("out", "folder of the pipeline; a second call needs nothing else", Path),
    option("--preset", "demo, or the size of another collection (default: demo)", metavar="NAME"),
    option("--plan", "a plan's file, e.g. the plan.json of another pipeline", Path, metavar="FILE"),
    "CELLS",
    option("--parts", "of the collection", positive),
    option("--models", "of gaitforge models (default: the preset's)", names),
    option("--seeds", "of the trainings, one run each, e.g. 0-2", numbers),
    "--objective --steps --batch-size --device --expert --episodes --threads",
    *PIPELINE_RUNNER,
    setting("models.fcnet.steps=500"),
    "--json",
)
def pipeline_command(arguments: argparse.Namespace) -> int | None:
    """Collect, train, evaluate, compare and report by one plan; skip what is done."""
    from gaitforge.flows.stages.pipeline.stages import claim
    from gaitforge.pipeline.report.pipeline import stages_of

    out = arguments.out
    settings = runner_settings(arguments)
    if (arguments.stage or arguments.cancel) and not is_pipeline(out):
        raise ValueError(f"no pipeline in {out}")
    plan = _plan(arguments)
    if not arguments.dry_run:
        claim(plan, out)
    if arguments.runner == "prefect" and not arguments.stage:
        if settings is not None:
            raise ValueError("a pipeline's parts are made by Prefect in this process, not on Dask")
        _run_prefect(plan, out)
    else:
        code = do_stages(arguments, out, stages_of(plan, out), ["pipeline", str(out)])
        if code is not None:
            return code
    _show(out, arguments.json, "pipeline")
    return None


def _plan(arguments: argparse.Namespace) -> "PipelinePlan":
    """The plan that was chosen; without a choice the one in the folder, if there is one."""
    from gaitforge.flows.stages.pipeline.plan import pipeline_plan, with_choices
    from gaitforge.flows.stages.pipeline.stages import recorded_plan

    if arguments.plan and arguments.preset:
        raise ValueError("give --plan or --preset, not both")
    if not (given(arguments, *_CHOICES) or arguments.settings) and is_pipeline(arguments.out):
        return recorded_plan(arguments.out)
    start = recorded_plan(arguments.plan) if arguments.plan else None
    plan = with_choices(
        start or pipeline_plan(arguments.preset or "demo"),
        given(arguments, **_GRID),
        given(arguments, *_TOP),
        given(arguments, *_CONFIG),
        arguments.models or (),
    )
    return override(plan, arguments.settings)


@command(
    "gaitforge demo --out runs/demo",
    option("--out", "output folder", Path, Path("runs/demo")),
    flag("--prefect", "run it as a Prefect flow"),
    setting("models.fcnet.steps=500"),
    "--json",
)
def demo_command(arguments: argparse.Namespace) -> None:
    """Run a small pipeline end to end: collect, train, evaluate, report."""
    from gaitforge.flows.stages.pipeline.plan import pipeline_plan
    from gaitforge.flows.stages.pipeline.stages import claim
    from gaitforge.pipeline.report.pipeline import stages_of

    plan, out = planned(pipeline_plan(), arguments), arguments.out
    claim(plan, out)
    if arguments.prefect:
        _run_prefect(plan, out)
    else:
        _run_here(out, stages_of(plan, out), _DEMO_S)
    _show(out, arguments.json, "demo")


def _run_prefect(plan: "PipelinePlan", out: Path) -> None:
    from gaitforge.flows.runners.prefect import run_from_a_program
    from gaitforge.pipeline.serve.pipeline import pipeline

    with run_from_a_program(TerminalReporter()):
        pipeline(str(out), plan=to_tree(plan))


def _show(out: Path, as_json: bool, what: str) -> None:
    """Print the summary of a finished pipeline."""
    from gaitforge.pipeline.report.comparison_page import comparison_rows

    summary = read_record(out / "summary.json") or {}
    policies = [{"policy": name, **row} for name, row in summary["policies"].items()]
    speed = f"{summary['collect']['steps_per_s']:,.0f} steps/s"
    lines = [f"\ncollected {summary['dataset']['steps']:,} steps at {speed}"]
    lines[0] += f"; whole {what} {summary['wall_s']:.0f} s"
    if summary["models"]:
        rows = {"models": summary["models"], "expert": summary["policies"]["expert"]}
        lines.insert(0, "\nmeans over the seeds\n" + table(comparison_rows(rows)))
    show_result(summary, policies, as_json, *lines, f"report: {out / 'report.html'}")


@command("gaitforge report runs/demo", option("folder", "folder of a pipeline or demo", Path))
def report_command(arguments: argparse.Namespace) -> None:
    """Write report.html from a run's files."""
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
