"""What a submission asks the cluster for: its jobs as rows, and estimates of size and hours.

The size and CPU hours of a collection follow from measured bytes per step and steps per second: of
the parts that the store has, or else those that the plan's task knows, see `CollectionPlan.rates`.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.common.errors import amount
from gaitforge.datasets import open_store
from gaitforge.datasets.layout import ROOT_FILE
from gaitforge.datasets.schema import Schema
from gaitforge.datasets.storage.s3 import is_bucket_url
from gaitforge.flows.records.part_records import part_records
from gaitforge.flows.runners.slurm.script import SlurmSettings, limit_s
from gaitforge.flows.tasks.interface import CollectionPlan, Rates

RATED_PARTS = 20
"""Parts of a store that its rates are taken from; the last ones by name."""


@dataclass(frozen=True)
class Collected:
    """What a job collects, as it is estimated.

    Attributes:
        store: the address; parts: how many; steps: at most, since episodes may end early.
        rates: measured; None where nothing was.
        raw_bytes: per step without compression.
    """

    store: str
    parts: int
    steps: int
    rates: Rates | None
    raw_bytes: int

    @property
    def bytes(self) -> int:
        """The size, which is the largest possible one where nothing was measured."""
        return round(self.steps * (self.rates.bytes_per_step if self.rates else self.raw_bytes))

    @property
    def cpu_hours(self) -> float | None:
        """Hours of one CPU; None where nothing was measured."""
        if self.rates is None or not self.rates.steps_per_s:
            return None
        return self.steps / self.rates.steps_per_s / 3600

    def line(self) -> str:
        """Steps, size and hours, and where the rates come from."""
        size = f"{self.bytes / 1e9:,.2f} GB"
        text = f"{self.store}: {amount(self.parts, 'part')}, at most {self.steps:,} steps, "
        if self.rates is None:
            text += f"at most {size} (without compression; nothing is measured yet)"
        else:
            text += f"about {size}"
            if self.cpu_hours is not None:
                text += f" and {self.cpu_hours:,.1f} CPU hours"
            text += f" ({self.rates.bytes_per_step:.0f} bytes a step"
            if self.cpu_hours is not None:
                text += f", {self.rates.steps_per_s:,.0f} steps/s on a CPU"
            text += f": {self.rates.source})"
        free = _free_bytes(self.store)
        if free is not None:
            text += f"; {free / 1e9:,.0f} GB free there"
            if free < self.bytes:
                text += ": TOO LITTLE"
        return text


@dataclass(frozen=True)
class Draft:
    """A job as it is submitted, or would be.

    Attributes:
        kind: of the job, e.g. "train"; tasks: the parts or the stage of each task.
        settings: of one task; array: whether it is an array.
        script: its text, in a dry run.
        after: kinds of the jobs that it waits for; task_by_task: those of them whose task k its
            task k waits for.
        collected: what it collects.
    """

    kind: str
    tasks: tuple[tuple[str, ...], ...]
    settings: SlurmSettings
    array: bool
    script: str = ""
    after: tuple[str, ...] = ()
    task_by_task: tuple[str, ...] = ()
    collected: Collected | None = None

    @property
    def cpus(self) -> int:
        """CPUs of a task."""
        return self.settings.cpus * self.settings.processes * self.settings.nodes

    @property
    def gpus(self) -> int:
        """GPUs of a task."""
        return self.settings.gpus * self.settings.nodes

    @property
    def at_once(self) -> int:
        """Most tasks that run at a time."""
        limit = self.settings.max_parallel if self.array else 0
        return min(limit or len(self.tasks), len(self.tasks))

    @property
    def clock_s(self) -> float:
        """Seconds of the clock if every task runs once, to its limit."""
        return -(-len(self.tasks) // self.at_once) * limit_s(self.settings.time)

    def row(self) -> dict[str, object]:
        """A row of a table."""
        waits = [f"{name}, task by task" for name in self.task_by_task]
        return {
            "stage": self.kind,
            "tasks": len(self.tasks),
            "at once": self.at_once,
            "CPUs": self.cpus,
            "GPUs": self.gpus,
            "time limit": self.settings.time,
            "partition": self.settings.partition,
            "after": "; ".join([*self.after, *waits]),
        }

    def record(self) -> dict[str, object]:
        """All of it, as JSON values."""
        values = {name.lower().replace(" ", "_"): value for name, value in self.row().items()}
        values |= {"after": self.after, "after_task_by_task": self.task_by_task}
        values |= {"tasks": len(self.tasks), "work": self.tasks, "script": self.script}
        made = self.collected
        if made is not None:
            source = made.rates.source if made.rates else "without compression"
            values |= {"store": made.store, "steps": made.steps, "bytes": made.bytes}
            values |= {"cpu_hours": made.cpu_hours, "measured": source}
        return values


def estimates(drafts: Sequence[Draft]) -> list[str]:
    """Sizes and hours of the jobs of a submission, a line each."""
    lines = [draft.collected.line() for draft in drafts if draft.collected is not None]
    if not drafts:
        return lines
    tasks = sum(len(draft.tasks) for draft in drafts)
    hours = [limit_s(draft.settings.time) / 3600 * len(draft.tasks) for draft in drafts]
    cpus = sum(draft.cpus * used for draft, used in zip(drafts, hours, strict=True))
    gpus = sum(draft.gpus * used for draft, used in zip(drafts, hours, strict=True))
    most = f"{cpus:,.0f} CPU hours" + (f", {gpus:,.0f} GPU hours" if gpus else "")
    limit = "to its time limit" if tasks == 1 else "every task once, to its time limit"
    lines.append(
        f"{amount(len(drafts), 'job')} of {amount(tasks, 'task')}: at most {most}, and "
        f"{_hours_of_clock(drafts):,.1f} h by the clock if none waits for a node ({limit})"
    )
    return lines


def _hours_of_clock(drafts: Sequence[Draft]) -> float:
    """Hours of the longest chain of jobs that wait for each other."""
    first_s: dict[str, float] = {}
    last_s: dict[str, float] = {}
    for draft in drafts:
        limit = limit_s(draft.settings.time)
        before = [last_s.get(name, 0.0) for name in draft.after]
        tasks = [(first_s.get(name, 0.0), last_s.get(name, 0.0)) for name in draft.task_by_task]
        begin = max([0.0, *before, *(first for first, _ in tasks)])
        end = max([begin + draft.clock_s, *(last + limit for _, last in tasks)])
        first_s[draft.kind] = max(first_s.get(draft.kind, 0.0), begin + limit)
        last_s[draft.kind] = max(last_s.get(draft.kind, 0.0), end)
    return max(last_s.values()) / 3600


def collected(plan: CollectionPlan, store: Path | str, parts: Sequence[str]) -> Collected:
    """The estimate of some parts of a plan in a store."""
    steps = plan.expected_steps()
    rates = _measured(store) or plan.rates()
    expected = sum(steps[part] for part in parts)
    return Collected(str(store), len(parts), expected, rates, _raw_bytes(plan.schema()))


def _measured(store: Path | str) -> Rates | None:
    """The rates of a store's last parts; None without parts that have records."""
    if is_bucket_url(store) or not Path(store, ROOT_FILE).exists():
        return None
    try:
        names = sorted(open_store(store).parts())[-RATED_PARTS:]
        records = part_records(store, names)
    except ValueError:  # damaged records: the collection says so, an estimate does not
        return None
    steps = sum(record.steps for record in records)
    seconds = sum(max(0.0, record.ended - record.started) for record in records)
    if not steps:
        return None
    size = sum(record.bytes for record in records) / steps
    source = f"measured in {amount(len(records), 'part')} of this store"
    return Rates(size, steps / seconds if seconds else 0.0, source)


def _raw_bytes(schema: Schema) -> int:
    """Bytes of a step as it is in memory."""
    sizes: list[Any] = [
        np.dtype(entry.dtype).itemsize * int(np.prod(entry.shape, dtype=int))
        for entry in schema.fields
        if entry.per == "step"
    ]
    return sum(sizes)


def _free_bytes(store: str) -> int | None:
    """Free bytes of the file system of a store that is or will be there; None in a bucket."""
    if is_bucket_url(store):
        return None
    folder = Path(store).absolute()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
