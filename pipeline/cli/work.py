"""A command's work: its stages, done by the chosen runner, and their result."""

import argparse
import os
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gaitforge.common.errors import listed
from gaitforge.common.run_log import TENSORBOARD, RunLog, check_loggers, logging_to
from gaitforge.flows.progress import Reporter, leads
from gaitforge.flows.records.plans import PLAN
from gaitforge.flows.records.records import read_record
from gaitforge.flows.runners.dask_clusters import DaskSettings
from gaitforge.flows.runners.slurm import jobs as slurm
from gaitforge.flows.runners.slurm.script import SlurmSettings
from gaitforge.pipeline.cli.jobs import job_row, show_drafts, show_submitted
from gaitforge.pipeline.cli.parsing.options import TRUST, Options
from gaitforge.pipeline.cli.parsing.parser import Command, command
from gaitforge.pipeline.cli.parsing.runners import RUNNER, runner_arguments, runner_settings
from gaitforge.pipeline.cli.parsing.values import noting, refuse_unread, uses
from gaitforge.pipeline.terminal import (
    NOTHING,
    Rows,
    TerminalReporter,
    own_reporter,
    say_next,
    show,
    show_one,
    show_result,
)

if TYPE_CHECKING:
    from gaitforge.flows.stages.stage import CommandStage, Stage

_NOTHING = "nothing to submit: every stage is done or in a live job"
_SUM_S = 0.003
"""Seconds in which 100,000 numbers are added on the machine of `CommandWork.seconds`."""


@dataclass(frozen=True)
class Result:
    """Output of finished work: on the terminal, as JSON, and in Prefect's page.

    Attributes:
        record: the JSON.
        rows: the table; None for the lines alone, or else the record's names and values.
        lines: text below the table.
        empty: stands for a table without rows.
        title, about: title of the table in Prefect's page, and the store or run that it describes.
        tables: title -> rows of further tables in Prefect's page; texts: title -> Markdown there.
        pages: files to link.
        view: a store or an evaluation's file, whose episodes can be played.
        message: text of the Prefect run's final state.
        exit_code: 1 where the work is done and its result is not what was asked for.
        next: a command for what mostly comes next; a line on the terminal names it.
    """

    record: Any = None
    rows: Rows | None = None
    lines: tuple[str, ...] = ()
    empty: str = NOTHING
    title: str = ""
    about: Path | str | None = None
    tables: Mapping[str, Rows] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    pages: tuple[Path, ...] = ()
    view: Path | str | None = None
    message: str = ""
    exit_code: int = 0
    next: tuple[Path | str, ...] = ()

    def show(self, as_json: bool) -> None:
        """Print it; the next command goes to standard error."""
        self._show(as_json)
        if self.next and not as_json:
            say_next(*self.next)

    def _show(self, as_json: bool) -> None:
        if self.rows is not None:
            show_result(self.record, self.rows, as_json, *self.lines, empty=self.empty)
        elif self.lines and not as_json:
            print(*self.lines, sep="\n")
        else:
            show_one(self.record, as_json)


@dataclass(frozen=True)
class CommandWork:
    """A command's stages, and how to show their result.

    Attributes:
        out: folder of the stages' records and jobs.
        stages: several have keys; see `gaitforge.flows.stages.stage`.
        result: takes the last stage's value, None if that stage ran elsewhere or before.
        words: the command line, which does one of several stages with `--stage NAME`.
        seconds: stage -> seconds on one core of the machine of docs/results.md.
    """

    out: Path
    stages: "Sequence[Stage]"
    result: Callable[[Any], Result]
    words: Sequence[str]
    seconds: Mapping[str, float] = field(default_factory=dict)


def single(
    arguments: argparse.Namespace,
    name: str,
    run: Callable[[Reporter], object],
    result: Callable[[Any], Result],
    out: Path = Path(),
    **more: Any,
) -> CommandWork:
    """Work of one stage, which the command line does; `more`: its other fields."""
    from gaitforge.flows.stages.stage import CommandStage

    return CommandWork(out, [CommandStage(name, run=run, **more)], result, arguments.words)


def work(
    example: str, *options: Options, runner: bool = True, alone: bool = False
) -> Callable[[Callable[[argparse.Namespace], CommandWork]], Command]:
    """Decorate a function from arguments to `CommandWork` as a command.

    Args:
        runner: whether to add the options of all runners; without them this machine does it.
        alone: whether Prefect runs one at a time: two collections would compete for the cores.
    """

    def decorate(begin: Callable[[argparse.Namespace], CommandWork]) -> Command:
        def begun(arguments: argparse.Namespace) -> CommandWork:
            noted = noting(arguments)
            work = begin(noted)
            loggers = asked_loggers(noted, work.stages)
            check_options(noted)
            return work if loggers is None else _logging(work, loggers)

        begins = (lambda parser: parser.set_defaults(begin=begun, alone=alone), TRUST)
        extras = (*begins, *(RUNNER if runner else ()))
        return command(example, *options, *extras)(update_wrapper(partial(_perform, begun), begin))

    return decorate


def asked_loggers(
    arguments: argparse.Namespace, stages: "Sequence[Stage]"
) -> tuple[str, ...] | None:
    """The names of `--log`, None without it; unread where no stage trains.

    Raises:
        ValueError: there is no such logger, or its package is missing.
    """
    trains = any(stage.name.partition(" ")[0] == "train" for stage in stages)
    if not trains or "log" not in vars(arguments):
        return None
    names: tuple[str, ...] | None = arguments.log
    if names is not None:
        check_loggers(names)
    return names


def _logging(work: CommandWork, loggers: Sequence[str]) -> CommandWork:
    """The same work, whose stages log; the names go with them to whatever process does them."""
    group = work.out.absolute().name if len(work.stages) > 1 else ""
    stages: list[Stage] = []
    for stage in work.stages:
        run = getattr(stage, "run", None)
        if run is not None:
            page = stage.page if stage.name == "report" else None
            run = partial(_run_logged, loggers, group, page, run)
            stage = replace(cast("CommandStage", stage), run=run)
        stages.append(stage)
    return replace(work, stages=stages)


def _run_logged(
    loggers: Sequence[str],
    group: str,
    page: Path | None,
    run: Callable[[Reporter], object],
    reporter: Reporter,
) -> object:
    """A stage's work, whose trainings log; the page of a whole experiment is a run of its own."""
    with logging_to(loggers, group):
        result = run(reporter)
        if page is not None:
            plan = read_record(page.parent / PLAN) or {}
            log = RunLog(page.parent, plan, left_out=(TENSORBOARD,), strict=False)
            log.finish("finished", [page, *(page.parent / name for name in (PLAN, "summary.json"))])
    return result


_OF_ALL_WORK = {"json", "stage", *runner_arguments()}
"""Arguments that `_perform` reads."""


def check_options(arguments: argparse.Namespace) -> None:
    """Raise ValueError for options that a command's work has not read.

    `work` does it once a command has named its stages; commands that write before, do it first.
    """
    refuse_unread(noting(arguments), besides=_OF_ALL_WORK)


def _perform(
    begin: Callable[[argparse.Namespace], CommandWork], arguments: argparse.Namespace
) -> int | None:
    """Do a command's work with the chosen runner, and print the result; returns the exit code."""
    from gaitforge.flows.stages.stage import find_stage

    uses(arguments, *(name for name in _OF_ALL_WORK if name in arguments))
    runner = vars(arguments).setdefault("runner", "local")
    settings = runner_settings(arguments) if "dask_jobqueue" in arguments else None
    work = begin(arguments)
    only = None
    if getattr(arguments, "stage", None):
        only = find_stage(work.stages, arguments.stage)
    if isinstance(settings, SlurmSettings):
        code = _on_slurm(work, only, arguments, settings)
        if code is not None:
            return code
        value = None
    else:
        share = getattr(arguments, "gpu_share", None) or 1
        value = _by_processes(work, only, arguments.command, runner, settings, share)
    if only is not None:  # the command's result needs the other stages, too
        return None
    result = work.result(value)
    if leads():
        result.show(getattr(arguments, "json", False))
    return result.exit_code


def _by_processes(
    work: CommandWork,
    only: "Stage | None",
    name: str,
    runner: str,
    settings: DaskSettings | None,
    gpu_share: int,
) -> Any:
    """Do the stages here, on Dask or in a Prefect run; returns what the last one returns.

    Args:
        only: the stage to do; None for all. name: of the command.
    """
    from gaitforge.flows.stages.stage import run_stage

    stages = work.stages if only is None else (only,)
    out = work.out
    reporter = own_reporter()
    if runner == "prefect":
        from gaitforge.flows.runners.prefect_stages import run_as_flow

        return run_as_flow(name, out, stages, reporter, settings)
    if isinstance(settings, DaskSettings):
        from gaitforge.flows.runners.dask import run_stages_on_dask

        return run_stages_on_dask(out, stages, reporter, settings)
    if len(stages) == 1:
        return run_stage(out, stages[0], reporter)
    if stages:
        from gaitforge.flows.stages.stage import run_side_by_side

        _say_stages(work, reporter)
        lines = TerminalReporter(lines=True)
        run_side_by_side(out, stages, reporter, lines, gpu_share=gpu_share)
    return None


def _say_stages(work: CommandWork, reporter: Reporter) -> None:
    """Say which stages of work on this machine are planned, and which are done."""
    from gaitforge.flows.stages.stage import left_stages

    stages = work.stages
    left = [stage.name for stage in left_stages(work.out, stages)]
    done = [stage.name for stage in stages if stage.name not in left]
    if left:
        about = f", about {_minutes(work.seconds, left)} min here" if work.seconds else ""
        reporter.say(f"{len(stages)} stages{about}: {listed(stage.name for stage in stages)}")
    if left and done:
        reporter.say(f"skipped, since done before: {listed(done)}")


def _minutes(seconds: Mapping[str, float], left: Sequence[str]) -> int:
    """Estimate of the minutes that stages take on this machine, by the speed of a sum."""
    slower = min(timeit.repeat("sum(range(100_000))", number=1, repeat=20)) / _SUM_S
    whole = slower * sum(seconds.get(name, 0.0) for name in left)
    return max(1, round(whole / min(2, os.cpu_count() or 1) / 60))


def _on_slurm(
    work: CommandWork, only: "Stage | None", arguments: argparse.Namespace, settings: SlurmSettings
) -> int | None:
    """Submit, follow or cancel work, or one stage of it, as jobs.

    Returns:
        The exit code; None where there is nothing to submit of a command of one stage, or all is
        done and was followed.
    """
    from gaitforge.flows.runners.slurm.chain import cancel_stages, follow_stages
    from gaitforge.flows.runners.slurm.submission import submit_stages

    out = work.out
    reporter = own_reporter()
    stages = work.stages if only is None else (only,)
    if arguments.cancel:
        new = cancel_stages(out, stages)
    elif len(work.stages) == 1 and stages[0].is_done(out):
        return None
    else:
        new = submit_stages(out, work.stages, work.words, settings, reporter, only)
    if settings.dry_run:
        drafts = [draft for draft in new if not isinstance(draft, slurm.Job)]
        show_drafts(drafts, arguments.scripts, arguments.json)
        return 0
    if arguments.follow:
        done = follow_stages(out, stages, reporter.say)
        return None if done and not arguments.cancel else 1
    jobs = [job for job in new if isinstance(job, slurm.Job)]
    if not jobs:
        reporter.say("no job to cancel" if arguments.cancel else _NOTHING)
    if len(work.stages) == 1 and jobs and not arguments.cancel:
        show_submitted(jobs[0], arguments.json)
    else:
        show([job_row(job, tasks) for job, tasks in slurm.states_of(jobs)], arguments.json)
    return 0
