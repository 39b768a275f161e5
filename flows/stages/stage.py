"""Work in stages, one after the other or side by side: a stage is skipped when its files say so.

There are three kinds: a collection, a stage of a plan, and a whole command's work. A stage with a
key leaves a record,

    <out>/stages/<name>.json   the key of the plan that it was done for, start and seconds of
                               every run, the error of the last one, and of the stages that it
                               comes after the starts of the runs whose results it has

`run_side_by_side` does stages in processes of this machine: those that wait for no other one run
side by side.
"""

import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gaitforge.common.files import join_inside
from gaitforge.common.interrupts import Stopped, stop_signals
from gaitforge.common.locks import exclusive_lock, file_system_time, shared_lock
from gaitforge.common.machine import usable_cores
from gaitforge.datasets import open_store
from gaitforge.datasets.layout import ROOT_FILE
from gaitforge.datasets.storage.s3 import is_bucket_url
from gaitforge.flows.progress import Advance, Reporter, StageReporter, leads, no_progress
from gaitforge.flows.records.plans import read_fields
from gaitforge.flows.records.records import prepare_folder, read_record, write_record
from gaitforge.flows.stages.collect import Work, collect, run_in_processes
from gaitforge.flows.tasks.interface import CollectionPlan

# Stages, their records, and their work one after the other.
WORK_LOCK = ".work.lock"
"""File in an experiment's folder that its working stages hold together."""

Collector = Callable[[CollectionPlan, Path | str, Reporter, Sequence[str] | None], object]
"""Collects the missing ones of a plan's parts (None: all) into a store."""


@dataclass(frozen=True)
class Stage(ABC):
    """A piece of work that may be a process of its own, in one of the three kinds below.

    Attributes:
        name: e.g. "train fcnet".
        key: changes with the plan that it is done for; empty for work that leaves no record.
        after: the stages whose results it reads.
        outputs: the files that exist when it is done.
        place: the store or training run that it makes; reads: stores and runs that it is made of.
        trains: whether the processes of torchrun can share it.
        page: what shows its result; device: "cuda" of a stage that wants a GPU.
    """

    name: str
    key: str = ""
    _: KW_ONLY
    after: tuple[str, ...] = ()
    outputs: tuple[Path, ...] = ()
    place: Path | str | None = None
    reads: tuple[Path | str, ...] = ()
    trains: bool = False
    page: Path | None = None
    device: str = "cpu"

    @property
    def file_name(self) -> str:
        """The name for files and folders."""
        return _file_name(self.name)

    @abstractmethod
    def is_done(self, out: Path) -> bool:
        """Whether the files say that it is done; `out`: the folder of the stages."""

    @abstractmethod
    def work(self, reporter: Reporter, collector: Collector) -> object:
        """Do what is left of it; returns the result, if it has one."""


@dataclass(frozen=True)
class CollectionStage(Stage):
    """Collects into a store: done when no part of its plan is missing.

    Attributes:
        place: the store.
        collection: the plan; raises ValueError while the policy that drives is missing.
        parts: the parts to collect; None for all.
    """

    _: KW_ONLY
    place: Path | str
    collection: Callable[[], CollectionPlan]
    parts: tuple[str, ...] | None = None

    def is_done(self, out: Path) -> bool:
        """See `Stage`; `out` has nothing to say."""
        if not is_bucket_url(self.place) and not Path(self.place, ROOT_FILE).exists():
            return False
        try:
            parts = self.collection().part_ids() if self.parts is None else self.parts
            return not open_store(self.place).missing(parts)
        except ValueError:  # the policy that drives, or a bucket's store, is missing
            return False

    def work(self, reporter: Reporter, collector: Collector) -> object:
        """See `Stage`."""
        return collector(self.collection(), self.place, reporter, self.parts)


@dataclass(frozen=True)
class RecordedStage(Stage):
    """A stage of a plan: done when its record names the present key and its outputs exist.

    A stage before it that has run again since undoes it, unless it only `waits`. Records of earlier
    versions do not tell.

    Attributes:
        run: the work.
        waits: whether it reads nothing of the stages in `after`, only runs after them.
    """

    _: KW_ONLY
    run: Callable[[Reporter], object]
    waits: bool = False

    def is_done(self, out: Path) -> bool:
        """See `Stage`; ValueError for a damaged record."""
        state = _read_state(out, self.name)
        if state.key != self.key or not all(path.exists() for path in self.outputs):
            return False
        known = [] if self.waits else [name for name in self.after if name in state.after]
        return all(_last_run(out, name) == state.after[name] for name in known)

    def work(self, reporter: Reporter, collector: Collector) -> object:
        """See `Stage`; nothing is collected. ValueError if an output is missing afterwards."""
        result = self.run(reporter)
        missing = [path for path in self.outputs if leads() and not path.exists()]
        if missing:  # else it would be done again and again
            raise ValueError(f"it ended and has not written {missing[0]}")
        return result


@dataclass(frozen=True)
class CommandStage(Stage):
    """A whole command's work, which knows by files of its own what is left of it.

    Attributes:
        run: the work.
        done: whether it is done; None for work that is repeated whenever it is asked for.
    """

    key: str = field(default="", init=False)
    _: KW_ONLY
    run: Callable[[Reporter], object]
    done: Callable[[], bool] | None = None

    def is_done(self, out: Path) -> bool:
        """See `Stage`; `out` has nothing to say."""
        return self.done is not None and self.done()

    def work(self, reporter: Reporter, collector: Collector) -> object:
        """See `Stage`; nothing is collected."""
        return self.run(reporter)


def collection_stage(
    name: str, plan: CollectionPlan, store: Path | str, parts: Sequence[str] | None = None
) -> CollectionStage:
    """The work of a command that collects: the missing ones of a plan's parts (None: all)."""
    names = None if parts is None else tuple(parts)
    collection = partial(itself, plan)
    return CollectionStage(
        name, place=store, collection=collection, parts=names, device=plan.processor
    )


def itself(plan: CollectionPlan) -> CollectionPlan:
    """The plan; a stage's `collection` where the plan is known from the start."""
    return plan


def ready_stages(left: Sequence[Stage]) -> list[Stage]:
    """Stages that wait for none of the others that are left."""
    names = {stage.name for stage in left}
    return [stage for stage in left if names.isdisjoint(stage.after)]


def left_stages(out: Path, stages: Sequence[Stage]) -> list[Stage]:
    """Stages that are not done, and those that read the results of one that is left."""
    left: dict[str, Stage] = {}
    for stage in stages:
        reads = isinstance(stage, RecordedStage) and not stage.waits
        if (reads and not left.keys().isdisjoint(stage.after)) or not stage.is_done(out):
            left[stage.name] = stage
    return [*left.values()]


def find_stage(stages: Sequence[Stage], name: str) -> Stage:
    """The stage of a name. Raises ValueError if there is none."""
    for stage in stages:
        if stage.name == name:
            return stage
    raise ValueError(f"no stage '{name}'; there are {', '.join(stage.name for stage in stages)}")


def run_stage(out: Path, stage: Stage, reporter: Reporter, collector: Collector = collect) -> Any:
    """Do what is left of a stage.

    One with a key is recorded, and nothing is done where it is done.

    Returns:
        What the work of a stage without a key returns.

    Raises:
        ValueError: what the work raised; of a stage with a key, with its name.
    """
    if stage.key and stage.is_done(out):
        return None
    with _recorded(out, stage) if stage.key else nullcontext():
        result = stage.work(reporter, collector)
    if stage.page is not None and stage.page.is_file():
        reporter.say(f"look at {stage.page}")
    return None if stage.key else result


@contextmanager
def at_work(out: Path, stages: Sequence[Stage]) -> Iterator[None]:
    """Hold an experiment's folder, beside other processes that do its stages: its plan stays.

    Raises:
        ValueError: the folder cannot be made.
    """
    if not any(stage.key for stage in stages):
        yield
        return
    prepare_folder(out)
    with shared_lock(out / WORK_LOCK):
        yield


def run_stages(
    out: Path, stages: Sequence[Stage], reporter: Reporter, collector: Collector = collect
) -> None:
    """Do what is left of all stages, in their order, in this process."""
    for stage in stages:
        run_stage(out, stage, numbered(reporter, stages, stage), collector)


def numbered(
    reporter: Reporter, stages: Sequence[Stage], stage: Stage, stop: Advance = no_progress
) -> Reporter:
    """A `StageReporter` whose lines begin with the stage's number: "stage 3/13"."""
    number = [entry.name for entry in stages].index(stage.name) + 1
    return StageReporter(reporter, stop, f"stage {number}/{len(stages)}  ")


def stage_seconds(out: Path, stages: Sequence[Stage]) -> list[dict[str, Any]]:
    """{"stage", "started", "seconds"} of every run of every stage, interrupted ones included."""
    return [
        {"stage": stage.name, **vars(run)}
        for stage in stages
        for run in _read_state(out, stage.name).runs
    ]


def seconds_in_all(runs: Sequence[Mapping[str, Any]]) -> float:
    """The seconds in which some stage ran; those of several at a time count once."""
    total = 0.0
    until = 0.0
    for run in sorted(runs, key=lambda run: run["started"]):
        end = run["started"] + run["seconds"]
        total += max(0.0, end - max(until, run["started"]))
        until = max(until, end)
    return total


def stage_error(out: Path, stage: Stage) -> str:
    """The error that a stage's last run ended with; "" for none."""
    return _read_state(out, stage.name).error


def stage_runs(out: Path, stage: Stage) -> int:
    """How many runs of a stage ended and wrote it down; a killed process writes nothing."""
    return len((read_record(_record(out, stage.name)) or {}).get("runs", []))


def prepare_records(out: Path) -> None:
    """Make the folder of the stages' records and locks; ValueError if it cannot be made."""
    prepare_folder(out / "stages")


@dataclass(frozen=True)
class _StageRun:
    """Start, in seconds since the epoch, and duration of a run of a stage."""

    started: float
    seconds: float


@dataclass(frozen=True)
class _StageState:
    """What a stage's file holds: see above."""

    key: str | None = None
    runs: tuple[_StageRun, ...] = ()
    error: str = ""
    after: Mapping[str, float | None] = field(default_factory=dict)
    """Name of a stage before it -> `_last_run` of that stage."""


def _file_name(name: str) -> str:
    return name.replace(" ", "-")


def _record(out: Path, name: str) -> Path:
    return join_inside(out / "stages", f"{_file_name(name)}.json")


def _read_state(out: Path, name: str) -> _StageState:
    """The file of a stage; ValueError if it is damaged."""
    path = _record(out, name)
    return read_fields(_StageState, read_record(path) or {}, path)


def _last_run(out: Path, name: str) -> float | None:
    """When the last run of a stage began; None where there is none."""
    runs = _read_state(out, name).runs
    return runs[-1].started if runs else None


@contextmanager
def _recorded(out: Path, stage: Stage) -> Iterator[None]:
    started = time.monotonic()
    path = _record(out, stage.name)
    before = _read_state(out, stage.name)
    after = {name: _last_run(out, name) for name in stage.after}
    done = False
    fault = ""
    try:
        with at_work(out, [stage]):
            yield
        done = True
    except ValueError as error:
        fault = f"{stage.name}: {error}"
        raise ValueError(fault) from error
    except OSError as error:
        fault = str(error)
        raise
    finally:
        if leads():
            seconds = round(time.monotonic() - started, 3)
            # By one clock for the stages of all hosts; a jump of a clock changes no duration.
            path.parent.mkdir(parents=True, exist_ok=True)
            began = round(file_system_time(path.parent) - seconds, 3)
            runs = (*before.runs, _StageRun(began, seconds))
            write_record(path, _StageState(stage.key if done else None, runs, fault, after))


# Stages side by side in processes of this machine.
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
    with at_work(out, left_stages(out, stages)):
        while left := left_stages(out, stages):
            count = min(processes, len(left))
            if count > 1 and not any(isinstance(stage, CollectionStage) for stage in left):
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
    while left := left_stages(out, group):
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
