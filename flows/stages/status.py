"""The status of a collection or a training run, read from its files alone."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gaitforge import datasets
from gaitforge.common.extensions import extension_names
from gaitforge.common.history import HISTORY, read_history
from gaitforge.common.locks import file_system_time
from gaitforge.datasets.layout import ROOT_FILE
from gaitforge.datasets.storage.s3 import is_bucket_url
from gaitforge.flows.records.part_records import (
    Heartbeat,
    PlanRecord,
    collection_rate,
    part_records,
    plan_records,
    read_active,
    read_failures,
    records_folder,
)
from gaitforge.flows.records.plans import PLAN, read_fields
from gaitforge.flows.records.records import read_record, to_tree

RECENT_PARTS = 10
"""Parts that the rate is taken over; twice the parts in work, if that is more."""

QUIET_S = 60.0
"""A training run that wrote nothing for this long, or for five history rows, has stopped."""

EXPERIMENT = "experiment"
"""The `kind` in the plan.json of an experiment on stores."""

RUN_CONFIG = "config.json"
RUN_CHECKPOINT = "checkpoint.json"
_RUN_FILES = (RUN_CONFIG, HISTORY, RUN_CHECKPOINT)
_JOBS = "jobs"

State = Literal["empty", "working", "stopped", "complete"]


@dataclass(frozen=True)
class ActivePart:
    """A part in work; `stale`: its process died or has been silent for long."""

    part: str
    host: str
    pid: int
    phase: str
    steps: int
    total: int
    steps_per_s: float
    heartbeat_age_s: float
    stale: bool


@dataclass(frozen=True)
class FailedPart:
    """A part that failed: how often, its last error and time, and whether it was made since."""

    part: str
    failures: int
    error: str
    time: float
    made_since: bool


@dataclass(frozen=True)
class CollectionStatus:
    """A store's collection.

    Attributes:
        state: "empty" (no plan, no part), "working" (a part is in work), "stopped", "complete".
        planned, done, missing: parts of the store's plans; other: committed parts of no plan.
        steps, episodes, bytes: of the store.
        active: parts in work, stale ones included; failed: parts that failed at some time.
        steps_per_s: over the last parts; working_steps_per_s: of the parts in work.
        remaining_steps: of the missing parts; remaining_s: None unless it is working.
    """

    store: str
    state: State
    planned: int
    done: int
    missing: int
    other: int
    steps: int
    episodes: int
    bytes: int
    active: tuple[ActivePart, ...]
    failed: tuple[FailedPart, ...]
    steps_per_s: float
    working_steps_per_s: float
    remaining_steps: int
    remaining_s: float | None


@dataclass(frozen=True)
class TrainingStatus:
    """A training run.

    Attributes:
        state: "empty" (no step yet), "working" (it wrote a moment ago), "stopped", "complete".
        step, steps: optimiser steps done, and in all; loss, validation_loss: the last ones.
        steps_per_s: control steps a second; elapsed_s: training seconds over all resumes.
        quiet_s: seconds since it last wrote; metrics: other values of the history's last row.
    """

    run: str
    state: State
    model: str
    step: int
    steps: int
    loss: float | None
    validation_loss: float | None
    steps_per_s: float | None
    elapsed_s: float
    remaining_s: float | None
    quiet_s: float | None
    metrics: dict[str, object]


@dataclass(frozen=True)
class _Settings:
    """What a status tells of a training's settings."""

    model: str = ""
    steps: int | None = None


@dataclass(frozen=True)
class _Progress:
    """What a status tells of a checkpoint's progress."""

    step: int = 0
    loss: float | None = None
    validation_loss: float | None = None
    train_s: float = 0.0


@dataclass(frozen=True)
class _Checkpoint:
    """What a status tells of a checkpoint's file; `progress` has more than `_Progress`."""

    progress: Mapping[str, Any] = field(default_factory=dict)
    finished: bool = False
    stopped: bool = False


def status(place: Path | str) -> CollectionStatus | TrainingStatus:
    """The status of a store or of a training run, whichever is at `place`.

    A folder with the plan of a training, or with nothing but jobs, is a run that is "empty".

    Raises:
        ValueError: neither is there, or what is there cannot be read.
    """
    if is_bucket_url(place):
        return collection_status(place)
    folder = Path(place)
    if (folder / ROOT_FILE).exists():
        return collection_status(folder)
    if not folder.exists():
        raise ValueError(f"nothing is at {folder}; give a store, a training run or a pipeline")
    submitted = folder.is_dir() and os.listdir(folder) == [_JOBS]
    if has_begun(folder) or _planned_config(folder) or submitted:
        return training_status(folder)
    raise ValueError(
        f"{folder} is neither a store ({ROOT_FILE}) nor a training run ({RUN_CONFIG}); give one "
        "of those inside it"
    )


def has_begun(place: Path | str) -> bool:
    """Whether a store or a training run is at `place`; its folder or plan alone is neither."""
    if is_bucket_url(place):
        return True
    return any((Path(place) / name).exists() for name in (ROOT_FILE, *_RUN_FILES))


def is_experiment(place: Path | str) -> bool:
    """Whether a folder is an experiment's."""
    return staged_kind(place) == EXPERIMENT


def staged_kind(place: Path | str) -> str:
    """The kind of a folder's plan in stages, "" without one that is installed."""
    kind = recorded_kind(place)
    return kind if kind in extension_names("plan_kind") else ""


def recorded_kind(place: Path | str) -> str:
    """The kind that a folder's plan.json names, "" without one."""
    record = None if is_bucket_url(place) else read_record(Path(place) / PLAN)
    kind = record.get("kind") if isinstance(record, dict) else None
    return kind if isinstance(kind, str) else ""


def as_tree(result: CollectionStatus | TrainingStatus) -> dict[str, object]:
    """A status as JSON values; `kind` is "store" or "run"."""
    kind = "store" if isinstance(result, CollectionStatus) else "run"
    return {"kind": kind, **to_tree(result)}


def collection_status(store_path: Path | str) -> CollectionStatus:
    """The status of a store's collection."""
    records = records_folder(store_path)
    # Before the catalog: a part that is committed in between counts as committed.
    beats = read_active(records)
    store = datasets.open_store(store_path)
    info = store.info()
    committed = set(store.parts())
    planned = _planned(plan_records(store_path))
    missing = {part: steps for part, steps in planned.items() if part not in committed}
    open_beats = [beat for beat in beats if beat.part not in committed]
    working = [beat for beat in open_beats if not beat.is_stale]
    done = [part for part in planned if part in committed]
    by_end = sorted(part_records(store_path, done), key=lambda record: record.ended)
    rate = collection_rate(by_end[-max(RECENT_PARTS, 2 * len(working)) :])
    live_rate = sum((beat.rate for beat in working), 0.0)
    # Episodes end early: the missing parts are taken to be as full as the others.
    most = sum(planned[part] for part in done)
    fill = min(1.0, info.steps / most) if most else 1.0
    remaining = sum(missing.values()) - sum(beat.steps for beat in working)
    remaining = round(max(0, remaining) * fill)
    pace = live_rate or rate
    state: State = "complete" if committed else "empty"
    if working or missing:
        state = "working" if working else "stopped"
    return CollectionStatus(
        store=str(store_path),
        state=state,
        planned=len(planned),
        done=len(done),
        missing=len(missing),
        other=len(committed) - len(done),
        steps=info.steps,
        episodes=info.episodes,
        bytes=info.bytes,
        active=tuple(_active(beat) for beat in open_beats),
        failed=tuple(_failed(records, committed)),
        steps_per_s=rate,
        working_steps_per_s=live_rate,
        remaining_steps=remaining,
        remaining_s=remaining / pace if working and pace else None,
    )


def training_status(run_dir: Path) -> TrainingStatus:
    """The status of a training run."""
    config = _settings(run_dir)
    path = run_dir / RUN_CHECKPOINT
    checkpoint = read_fields(_Checkpoint, read_record(path) or {}, path)
    saved = read_fields(_Progress, checkpoint.progress, path)
    rows = read_history(run_dir)
    last = rows[-1] if rows else {}
    # An expert's history counts environment steps.
    step = max(last.get("step", last.get("steps", 0)), saved.step)
    steps = last.get("total_steps", step) if config.steps is None else config.steps
    elapsed = float(max(last.get("elapsed_s", 0.0), saved.train_s))
    quiet = _quiet_s(run_dir)
    state: State = "stopped" if step else "empty"
    if checkpoint.finished:
        state = "complete"
    elif checkpoint.stopped and not _resumed(run_dir):
        state = "stopped"
    elif quiet is not None and quiet <= max(QUIET_S, 5 * elapsed / max(len(rows), 1)):
        state = "working"
    shown = {"step", "loss", "validation_loss", "steps_per_s", "elapsed_s"}
    validated = [row["validation_loss"] for row in rows if row.get("validation_loss") is not None]
    return TrainingStatus(
        run=str(run_dir),
        state=state,
        model=config.model,
        step=step,
        steps=steps,
        loss=last.get("loss", saved.loss),
        validation_loss=validated[-1] if validated else saved.validation_loss,
        steps_per_s=last.get("steps_per_s"),
        elapsed_s=elapsed,
        remaining_s=elapsed / step * (steps - step) if state == "working" and step else None,
        quiet_s=quiet,
        metrics={name: value for name, value in last.items() if name not in shown},
    )


def _settings(run_dir: Path) -> _Settings:
    """The settings of a training, as it began or else as it was planned."""
    path = run_dir / RUN_CONFIG
    values = (read_record(path) or {}).get("train_config")
    if values is None:
        path = run_dir / PLAN
        values = _planned_config(run_dir)
    return read_fields(_Settings, values, path)


def _planned_config(run_dir: Path) -> dict[str, Any]:
    """The settings in the plan of a training; empty without one."""
    plan = (read_record(run_dir / PLAN) or {}).get("plan")
    config = plan.get("config") if isinstance(plan, dict) else None
    return config if isinstance(config, dict) else {}


def _resumed(run_dir: Path) -> bool:
    """Whether a run was started again after its last checkpoint."""
    started, saved = ((run_dir / name).stat().st_mtime_ns for name in (RUN_CONFIG, RUN_CHECKPOINT))
    return started > saved


def _active(beat: Heartbeat) -> ActivePart:
    return ActivePart(
        part=beat.part,
        host=beat.host,
        pid=beat.pid,
        phase=beat.phase,
        steps=beat.steps,
        total=beat.total,
        steps_per_s=beat.rate,
        heartbeat_age_s=beat.age_s,
        stale=beat.is_stale,
    )


def _planned(plans: Sequence[PlanRecord]) -> dict[str, int]:
    """Part -> expected steps, of all plans."""
    return {
        part: steps
        for record in plans
        for part, steps in zip(record["parts"], record["steps"], strict=True)
    }


def _failed(records: Path, committed: set[str]) -> Iterator[FailedPart]:
    """Each part that failed, with its last failure."""
    failures = read_failures(records)
    counts = Counter(failure.part for failure in failures)
    last = {failure.part: failure for failure in failures}
    for part, failure in last.items():
        yield FailedPart(part, counts[part], failure.error, failure.time, part in committed)


def _quiet_s(run_dir: Path) -> float | None:
    """Seconds since a run's files were last written, by the file system's clock."""
    paths = [run_dir / name for name in (RUN_CONFIG, HISTORY, RUN_CHECKPOINT)]
    times = [path.stat().st_mtime for path in paths if path.exists()]
    return max(0.0, file_system_time(run_dir) - max(times)) if times else None
