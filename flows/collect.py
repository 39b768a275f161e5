"""Collection: the parts of a plan that a store still lacks, one rollout and one commit each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType

from collectors.episodes import EPISODE_STEPS
from collectors.environment import LeggedEnvironment
from collectors.experts import DEFAULT_EXPERT, load_expert
from collectors.legged_data import CollectionGrid, legged_schema, part_arrays, part_catalog
from collectors.physics import BACKENDS
from collectors.rollout import run_episodes
from datasets import Store
from flows.progress import Advance, Reporter
from flows.records import digest, provenance, read_record, write_record


@dataclass(frozen=True)
class CollectPlan:
    """What to collect and with how many robots at once.

    Attributes:
        grid: the episodes; expert: name or file of the policy that acts; sim: physics back end.
        robots: simulated at once; threads: that step them.
    """

    grid: CollectionGrid = field(default_factory=CollectionGrid)
    expert: str = DEFAULT_EXPERT
    sim: str = "mujoco"
    robots: int = 288
    threads: int = 2

    def __post_init__(self) -> None:
        if self.sim not in BACKENDS:
            raise ValueError(f"unknown simulator '{self.sim}'; simulators: {', '.join(BACKENDS)}")
        if self.robots < 1 or self.threads < 1:
            raise ValueError(f"{self.robots} robots on {self.threads} threads: both must be at least 1")

    def part_ids(self) -> list[str]:
        """Names of the parts. They change with anything that changes a part's content, so that a store can hold
        several plans, and grow with `parts`.
        """
        content = {**asdict(replace(self.grid, parts=1)), "expert": load_expert(self.expert).hash, "sim": self.sim}
        return self.grid.part_ids(digest(content)[:6])


@dataclass(frozen=True)
class PartCollected:
    """A part that was collected now; seconds are wall time, writing included in wall_s."""

    part: str
    episodes: int
    steps: int
    wall_s: float
    write_s: float
    bytes: int


class Collector:
    """An expert on N simulated robots that fills parts; use it in a `with` statement."""

    def __init__(self, plan: CollectPlan):
        self._plan = plan
        self._expert = load_expert(plan.expert)
        robot = self._expert.policy.robot
        robots = min(plan.robots, plan.grid.episodes_per_part)
        self._env = LeggedEnvironment(robot, robots, plan.threads, plan.sim)

    def __enter__(self) -> Collector:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._env.close()

    def create_store(self, path: Path) -> Store:
        """The store with this robot's schema, made if it is not there."""
        return Store.create(path, legged_schema(self._expert.policy.robot))

    def collect(self, store: Store, part_id: str, advance: Advance) -> PartCollected:
        """Roll out one part and commit it."""
        started = time.perf_counter()
        specs = self._plan.grid.part_specs(part_id)
        policy, physics = self._expert.policy, self._env.physics
        results = list(
            run_episodes(self._env, policy, specs, record=True, progress=lambda n: advance(n, part_id))
        )
        rolled_out = time.perf_counter()
        steps, per_episode = part_arrays(results)
        catalog = part_catalog(
            results,
            policy.robot,
            (physics.name, physics.version),
            (policy.name, self._expert.hash),
        )
        record = store.write_part(part_id, steps, catalog, per_episode)
        now = time.perf_counter()
        return PartCollected(
            part_id, record.episodes, record.steps, now - started, now - rolled_out, record.bytes
        )


def collect(
    plan: CollectPlan, store_path: Path, reporter: Reporter, parts: Sequence[str] | None = None
) -> list[PartCollected]:
    """Collect the parts that the store lacks, of all or of the given ones; returns what was collected now.

    The plan and a record of every part lie beside the store, in `<store>.records`.
    """
    with Collector(plan) as collector:
        store = collector.create_store(store_path)
        wanted = list(plan.part_ids() if parts is None else parts)
        missing = store.missing(wanted)
        write_record(_plan_path(store_path, plan), {"plan": asdict(plan), **provenance()})
        collected = []
        per_part = plan.grid.episodes_per_part * EPISODE_STEPS
        done = (len(wanted) - len(missing)) * per_part
        with reporter.step("collect", len(wanted) * per_part, "step", done) as advance:
            for part_id in missing:
                result = collector.collect(store, part_id, advance)
                write_record(_record_path(store_path, part_id), result)
                collected.append(result)
    return collected


def part_records(store_path: Path, parts: Sequence[str]) -> list[PartCollected]:
    """The records of parts that were collected on this store, in order; parts without one are left out."""
    found = (read_record(_record_path(store_path, part)) for part in parts)
    return [PartCollected(**record) for record in found if record is not None]


def _plan_path(store_path: Path, plan: CollectPlan) -> Path:
    return store_path.with_name(f"{store_path.name}.records") / f"plan-{digest(plan)}.json"


def _record_path(store_path: Path, part_id: str) -> Path:
    return store_path.with_name(f"{store_path.name}.records") / f"{part_id}.json"
