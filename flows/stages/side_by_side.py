"""Stages in processes of this machine: those that wait for no other one run side by side."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from gaitforge.common.files import join_inside
from gaitforge.common.interrupts import Stopped, stop_signals
from gaitforge.common.locks import exclusive_lock
from gaitforge.common.machine import usable_cores
from gaitforge.flows.progress import Advance, Reporter
from gaitforge.flows.stages.processes import Work, run_in_processes
from gaitforge.flows.stages.stage import (
    Stage,
    at_work,
    is_done,
    numbered,
    prepare_records,
    ready_stages,
    run_stage,
    stage_error,
    stage_runs,
)

POLL_S = 0.2


def run_side_by_side(
    out: Path,
    stages: Sequence[Stage],
    reporter: Reporter,
    workers: Reporter,
    processes: int | None = None,
    gpu_share: int = 1,
) -> None:
    """Do what is left of all stages, in several processes once no collection is left.

    Until then in this process, in their order: a collection starts processes of its own, and what
    it waits for has all cores. The processes share the cores equally.

    Args:
        reporter: of this process; workers: of the processes, which report at the same time; it can
            be pickled.
        processes: most processes; None for one a core that this process may use.
        gpu_share: most stages at a time that want a GPU.

    Raises:
        ValueError: what a stage raises, with its name, or a process that ended early.
    """
    processes = processes or usable_cores()
    left = [stage for stage in stages if not is_done(out, stage)]
    with at_work(out, left):
        while left := [stage for stage in stages if not is_done(out, stage)]:
            count = min(processes, len(left))
            if count > 1 and not any(stage.collection for stage in left):
                work = partial(_share_work, out, stages, workers, gpu_share)
                _in_processes(out, left, work, count, processes // count)
            else:
                stage = ready_stages(left)[0]
                run_stage(out, stage, numbered(reporter, stages, stage))


def _in_processes(out: Path, group: Sequence[Stage], work: Work, count: int, threads: int) -> None:
    prepare_records(out)
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(threads)  # torch reads it where it is imported
    names = [stage.name for stage in group]
    earlier = [stage_runs(out, stage) for stage in group]
    try:
        with stop_signals(signal.SIGTERM, signal.SIGUSR2, error=_stopped):
            done = run_in_processes(work, [names] * count, lambda: None)
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
    if not done:
        # Only what ended since: a stage whose process was killed keeps the error of an earlier run.
        ended = [
            stage
            for stage, runs in zip(group, earlier, strict=True)
            if stage_runs(out, stage) > runs
        ]
        errors = [error for stage in ended if (error := stage_error(out, stage))]
        raise ValueError(
            errors[0]
            if errors
            else "a process ended before its stage was done: see the lines above, or the "
            "machine's memory"
        )


def _stopped(number: int) -> Stopped:
    return Stopped(number, "the processes of the stages saved and ended")


def _share_work(
    out: Path,
    stages: Sequence[Stage],
    reporter: Reporter,
    gpu_share: int,
    names: Sequence[str],
    advance: Advance,
) -> None:
    """Do stages of these names until none is left; each is done by the process that locks it."""
    group = [stage for stage in stages if stage.name in names]
    while left := [stage for stage in group if not is_done(out, stage)]:
        for stage in ready_stages(left):
            with _alone(out, stage, gpu_share) as alone:
                if alone:
                    run_stage(out, stage, numbered(reporter, stages, stage, advance))
                    break
        else:
            time.sleep(POLL_S)
            advance(0, "")


@contextmanager
def _alone(out: Path, stage: Stage, gpu_share: int) -> Iterator[bool]:
    """Lock a stage, and a share of the GPU where it wants one; whether both were free."""
    cards = [f"{stage.device}-{share}" for share in range(gpu_share)]
    with _locked(out, stage.file_name) as alone:
        if not alone or stage.device == "cpu":
            yield alone
            return
        for card in cards:
            with _locked(out, card) as free:
                if free:
                    yield True
                    return
        yield False


def _locked(out: Path, name: str) -> AbstractContextManager[bool]:
    return exclusive_lock(join_inside(out / "stages", f"{name}.lock"), wait=False)
