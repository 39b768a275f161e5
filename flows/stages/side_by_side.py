"""Stages in processes of this machine: those that wait for no other one run side by side."""

import os
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from gaitforge.datasets.files import exclusive_lock
from gaitforge.datasets.interrupts import Stopped, stop_signals
from gaitforge.flows.progress import Advance, Reporter
from gaitforge.flows.stages.processes import run_in_processes
from gaitforge.flows.stages.staging import (
    Stage,
    is_done,
    numbered,
    prepare_records,
    ready_stages,
    run_stage,
    stage_error,
)

POLL_S = 0.2


def run_side_by_side(
    out: Path,
    stages: Sequence[Stage],
    reporter: Reporter,
    workers: Reporter,
    processes: int | None = None,
) -> None:
    """Do what is left of all stages, in several processes once no collection is left.

    Until then in this process, in their order: a collection starts processes of its own, and what
    it waits for has all cores. The processes share the cores equally.

    Args:
        reporter: of this process; workers: of the processes, which report at the same time; it can
            be pickled.
        processes: most processes; None for one a core that this process may use.

    Raises:
        ValueError: what a stage raises, with its name, or a process that ended early.
    """
    processes = processes or len(os.sched_getaffinity(0))
    while left := [stage for stage in stages if not is_done(out, stage)]:
        count = min(processes, len(left))
        if count > 1 and not any(stage.collection for stage in left):
            _in_processes(out, stages, left, workers, count, processes // count)
        else:
            stage = ready_stages(left)[0]
            run_stage(out, stage, numbered(reporter, stages, stage))


def _in_processes(
    out: Path,
    stages: Sequence[Stage],
    group: Sequence[Stage],
    reporter: Reporter,
    count: int,
    threads: int,
) -> None:
    prepare_records(out)
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(threads)  # torch reads it where it is imported
    names = [stage.name for stage in group]
    try:
        work = partial(_share_work, out, stages, reporter)
        with stop_signals(signal.SIGTERM, signal.SIGUSR2, error=_stopped):
            done = run_in_processes(work, [names] * count, lambda: None)
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
    if not done:
        errors = [error for stage in group if (error := stage_error(out, stage))]
        raise ValueError(
            errors[0]
            if errors
            else "a process ended before its stage was done: see the lines above, or the "
            "machine's memory"
        )


def _stopped(number: int) -> Stopped:
    return Stopped(number, "the processes of the stages saved and ended")


def _share_work(
    out: Path, stages: Sequence[Stage], reporter: Reporter, names: Sequence[str], advance: Advance
) -> None:
    """Do stages of these names until none is left; each is done by the process that locks it."""
    group = [stage for stage in stages if stage.name in names]
    while left := [stage for stage in group if not is_done(out, stage)]:
        if not any(_do_alone(out, stages, each, reporter, advance) for each in ready_stages(left)):
            time.sleep(POLL_S)
            advance(0, "")


def _do_alone(
    out: Path, stages: Sequence[Stage], stage: Stage, reporter: Reporter, advance: Advance
) -> bool:
    """Do a stage, unless another process does it; whether this one did."""
    with exclusive_lock(out / "stages" / f"{stage.lock}.lock", wait=False) as alone:
        if alone:
            run_stage(out, stage, numbered(reporter, stages, stage, advance))
    return alone
