"""Collection: the parts of a plan that a store still lacks, one rollout and one commit each."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import ceil
from pathlib import Path
from types import TracebackType

from collectors.environment import LeggedEnvironment
from collectors.experts import DEFAULT_EXPERT, load_expert
from collectors.legged_data import (
    CollectionGrid,
    StoredForm,
    legged_schema,
    part_arrays,
    part_catalog,
)
from collectors.physics import BACKENDS
from collectors.rollout import run_episodes
from collectors.timing import EPISODE_STEPS
from datasets import DatasetError, Store, create_store, open_store
from datasets.bucket import Bucket, is_bucket_url
from flows.progress import Advance, Reporter
from flows.records import digest, provenance, read_record, to_tree, write_record


@dataclass(frozen=True)
class CollectPlan:
    """What to collect and with how many robots at once.

    Attributes:
        grid: the episodes; expert: name or file of the policy that acts; sim: physics back end.
        form: which fields are kept, and how exactly.
        robots: most that are simulated at once; threads: that step them.
    """

    grid: CollectionGrid = field(default_factory=CollectionGrid)
    form: StoredForm = field(default_factory=StoredForm)
    expert: str = DEFAULT_EXPERT
    sim: str = "mujoco"
    robots: int = 320
    threads: int = 2

    def __post_init__(self) -> None:
        if self.sim not in BACKENDS:
            raise ValueError(f"unknown simulator '{self.sim}'; simulators: {', '.join(BACKENDS)}")
        if self.robots < 1 or self.threads < 1:
            raise ValueError(
                f"{self.robots} robots on {self.threads} threads: both must be at least 1"
            )

    def part_ids(self) -> list[str]:
        """Names of the parts.

        They change with anything that changes a part's content, so that a store can hold several
        plans, and grow with `parts`.
        """
        content = {
            **asdict(replace(self.grid, parts=1)),
            "expert": load_expert(self.expert).hash,
            "sim": self.sim,
            "form": asdict(self.form),
        }
        return self.grid.part_ids(digest(content)[:6])


@dataclass(frozen=True)
class PartCollected:
    """A collected part: its size, and when (seconds since the epoch), the commit included."""

    part: str
    episodes: int
    steps: int
    bytes: int
    started: float
    write_s: float
    ended: float


class Interrupted(Exception):
    """Raised in a worker that was told to stop; its part is not committed."""


class Collector:
    """An expert on N simulated robots that fills parts; use it in a `with` statement."""

    def __init__(self, plan: CollectPlan, threads: int):
        self._plan = plan
        self._expert = load_expert(plan.expert)
        # Full waves: a last wave of a few episodes would leave the other robots idle.
        waves = ceil(plan.grid.episodes_per_part / plan.robots)
        robots = ceil(plan.grid.episodes_per_part / waves)
        self._env = LeggedEnvironment(self._expert.policy.robot, robots, threads, plan.sim)

    def __enter__(self) -> Collector:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._env.close()

    def collect(self, store: Store, part_id: str, advance: Advance) -> PartCollected:
        """Roll out one part and commit it."""
        started = time.time()
        specs = self._plan.grid.part_specs(part_id)
        policy, physics = self._expert.policy, self._env.physics
        results = list(
            run_episodes(
                self._env,
                policy,
                specs,
                record=True,
                privileged=self._plan.form.privileged,
                progress=lambda n: advance(n, ""),
            )
        )
        rolled_out = time.time()
        steps, per_episode = part_arrays(results, store.schema)
        simulator = (physics.name, physics.version)
        catalog = part_catalog(results, policy.robot, simulator, (policy.name, self._expert.hash))
        record = store.write_part(part_id, steps, catalog, per_episode)
        ended = time.time()
        return PartCollected(
            part_id,
            record.episodes,
            record.steps,
            record.bytes,
            started,
            ended - rolled_out,
            ended,
        )


def collect(
    plan: CollectPlan,
    store_path: Path | str,
    reporter: Reporter,
    parts: Sequence[str] | None = None,
) -> list[PartCollected]:
    """Collect the parts that the store lacks, of all or of the given ones.

    The store is a folder, or `s3://bucket/prefix`.

    Every thread simulates a part of its own: what Python does for one overlaps with the physics of
    another. Interrupted, it loses the parts in work and nothing else. The plan and a record of
    every part lie beside the store, in `<store>.records`. Whoever commits the plan's last part also
    makes the catalog's index, if the store can still be written.

    Returns:
        The records of what was collected now.
    """
    robot = load_expert(plan.expert).policy.robot
    store = create_store(store_path, legged_schema(robot, plan.form), to_tree(asdict(plan)))
    wanted = list(plan.part_ids() if parts is None else parts)
    missing = store.missing(wanted)
    write_record(_plan_path(store_path, plan), {"plan": asdict(plan), **provenance()})
    per_part = plan.grid.episodes_per_part * EPISODE_STEPS
    done = (len(wanted) - len(missing)) * per_part
    workers = max(1, min(plan.threads, len(missing)))
    with reporter.step("collect", len(wanted) * per_part, "step", done) as advance:
        shared = _Stoppable(advance)
        with ThreadPoolExecutor(workers) as pool:
            work = partial(_collect_share, plan, store_path, plan.threads // workers, shared)
            shares = [pool.submit(work, missing[k::workers]) for k in range(workers)]
            try:
                # A worker that fails is told at once, not after those before it have finished.
                for share in wait(shares, return_when=FIRST_EXCEPTION).done:
                    share.result()
                collected = [record for share in shares for record in share.result()]
            except BaseException:
                shared.stop()
                raise
    if collected and not store.missing(plan.part_ids()):
        _index(store)
    return collected


def _index(store: Store) -> None:
    """Spare the first query the reading of all catalog files; the collection does not need it."""
    # A part of an earlier collection that is damaged is for `verify` and for queries to name.
    with suppress(DatasetError):
        store.files.rebuild_index()


def part_records(store_path: Path | str, parts: Sequence[str]) -> list[PartCollected]:
    """The records of the given parts of a store, in order; parts without one are left out."""
    found = (read_record(_record_path(store_path, part)) for part in parts)
    return [PartCollected(**record) for record in found if record is not None]


def collection_rate(records: Sequence[PartCollected]) -> float:
    """Steps a second over the time in which at least one of the parts was in work."""
    busy, reached = 0.0, 0.0
    for record in sorted(records, key=lambda r: r.started):
        busy += max(0.0, record.ended - max(record.started, reached))
        reached = max(reached, record.ended)
    return sum(record.steps for record in records) / busy if busy else 0.0


class _Stoppable:
    """Progress of several threads, which also tells them to stop."""

    def __init__(self, advance: Advance):
        self._advance = advance
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def __call__(self, n: int, note: str) -> None:
        if self._stopped.is_set():
            raise Interrupted
        with self._lock:
            self._advance(n, note)


def _collect_share(
    plan: CollectPlan, store_path: Path | str, threads: int, advance: Advance, parts: Sequence[str]
) -> list[PartCollected]:
    collected = []
    with Collector(plan, threads) as collector:
        store = open_store(store_path)
        for part_id in parts:
            record = collector.collect(store, part_id, advance)
            write_record(_record_path(store_path, part_id), record)
            collected.append(record)
    return collected


def records_folder(store: Path | str) -> Path:
    """Where a store's plans and part records lie: beside it, or beside a remote one's mirror."""
    if is_bucket_url(store):
        from datasets.object_store import default_mirror

        place = default_mirror(Bucket(str(store)))
    else:
        place = Path(store)
    return place.with_name(f"{place.name}.records")


def _plan_path(store: Path | str, plan: CollectPlan) -> Path:
    return records_folder(store) / f"plan-{digest(plan)}.json"


def _record_path(store: Path | str, part_id: str) -> Path:
    return records_folder(store) / f"{part_id}.json"
