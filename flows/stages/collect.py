"""Collection: the parts of a plan that a store still lacks, one rollout and one commit each.

`collect_part` makes one part in any process, and every way to run a collection (`flows.runners`)
comes down to it or to its loop here. What is missing is what the catalog lacks, so whoever is told
to make a part that is there already does nothing, and running a plan again makes the rest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import ceil
from pathlib import Path
from types import TracebackType

from collectors.experts.expert import DEFAULT_EXPERT, load_expert
from collectors.legged.data import (
    CollectionGrid,
    StoredForm,
    legged_schema,
    part_arrays,
    part_catalog,
)
from collectors.legged.environment import LeggedEnvironment
from collectors.legged.rollout import run_episodes
from collectors.policies import Policy
from collectors.simulators import check_backend
from collectors.timing import EPISODE_STEPS
from datasets import DatasetError, Store, create_store, open_store
from flows.progress import Advance, Interrupted, Reporter, unheard
from flows.records.activity import PartActivity, last_line
from flows.records.logs import log_event
from flows.records.part_records import (
    PartCollected,
    records_folder,
    records_of_commits,
    write_part_record,
)
from flows.records.records import digest, provenance, to_tree, write_record
from flows.runners.retrying import Retry


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
        check_backend(self.sim)
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


class Collector:
    """An expert on N simulated robots that fills parts; use it in a `with` statement.

    Args:
        plan: of the parts; threads: that step the robots of the one simulator.

    Attributes:
        env: the simulated robots; policy: who acts.
    """

    def __init__(self, plan: CollectPlan, threads: int):
        self.plan = plan
        self._expert = load_expert(plan.expert)
        # Full waves: a last wave of a few episodes would leave the other robots idle.
        waves = ceil(plan.grid.episodes_per_part / plan.robots)
        robots = ceil(plan.grid.episodes_per_part / waves)
        self.policy: Policy = self._expert.policy
        self.env = LeggedEnvironment(self._expert.policy.robot, robots, threads, plan.sim)

    def __enter__(self) -> Collector:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the simulator."""
        self.env.close()

    def collect(
        self,
        store: Store,
        part_id: str,
        advance: Advance,
        before_write: Callable[[], None] = lambda: None,
    ) -> PartCollected:
        """Roll out one part and commit it; `before_write` is called in between.

        A part that another process committed meanwhile stays as it is: the store writes under the
        part's lock and looks again.
        """
        started = time.time()
        specs = self.plan.grid.part_specs(part_id)
        policy, physics = self.policy, self.env.physics
        results = list(
            run_episodes(
                self.env,
                policy,
                specs,
                record=True,
                privileged=self.plan.form.privileged,
                progress=lambda n: advance(n, ""),
            )
        )
        rolled_out = time.time()
        before_write()
        steps, per_episode = part_arrays(results, store.schema)
        simulator = (physics.name, physics.version)
        catalog = part_catalog(results, self.env.robot, simulator, (policy.name, self._expert.hash))
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


class _LastCollector(threading.local):
    """The collector that this thread used last: the next part needs no new simulator."""

    key: tuple[CollectPlan, str, int] | None = None
    collector: Collector | None = None

    def get(self, plan: CollectPlan, threads: int) -> Collector:
        key = plan, load_expert(plan.expert).hash, threads
        if self.collector is None or self.key != key:
            if self.collector is not None:
                self.collector.close()
            self.key, self.collector = key, Collector(plan, threads)
        return self.collector


_last_collector = _LastCollector()


def collect_part(
    plan: CollectPlan,
    store_path: Path | str,
    part_id: str,
    advance: Advance = unheard,
    threads: int = 1,
    retry: Retry | None = None,
) -> PartCollected:
    """Make one part, in whichever process this is, and return its record.

    The store must exist (`prepare`). A part that is committed is not made again. A fault of the
    system that may pass is met by further attempts. Parts of the same plan in the same thread share
    a simulator.

    Args:
        advance: hears of every step, and stops the work by raising; threads: that step the robots.
        retry: None for three attempts.

    Raises:
        ValueError: the part is not the plan's, also because the expert's file changed since the
            part was named; there is no store; or it refuses the part.
    """
    parts = plan.part_ids()
    if part_id not in parts:
        raise ValueError(
            f"part {part_id} is not one of the plan's {len(parts)}, {parts[0]} to {parts[-1]}: its "
            "settings or its expert are others"
        )
    store = open_store(store_path)
    if not store.missing([part_id]):
        return records_of_commits(store, store_path, [part_id])[0]
    collector = _last_collector.get(plan, threads)
    return _collect_missing(collector, store, store_path, part_id, advance, retry or Retry())


def prepare(
    plan: CollectPlan, store_path: Path | str, parts: Sequence[str] | None = None
) -> tuple[list[str], list[str]]:
    """Make the store and its record of the plan, before any part is made.

    Returns:
        The parts that are wanted (all, or the given ones), and those of them that are missing.

    Raises:
        ValueError: no such expert, another schema is there, or the place cannot be written.
    """
    robot = load_expert(plan.expert).policy.robot
    store = create_store(store_path, legged_schema(robot, plan.form), to_tree(asdict(plan)))
    named = plan.part_ids()
    record = {"plan": asdict(plan), "parts": named, **provenance()}
    write_record(records_folder(store_path) / f"plan-{digest(plan)}.json", record)
    wanted = list(named if parts is None else parts)
    missing = store.missing(wanted)
    counts = {"plan": digest(plan), "parts": len(wanted), "missing": len(missing)}
    log_event(records_folder(store_path), "info", "plan prepared", **counts)
    return wanted, missing


def steps_at_most(plan: CollectPlan) -> int:
    """Steps of one part when no episode ends early."""
    return plan.grid.episodes_per_part * EPISODE_STEPS


def collect(
    plan: CollectPlan,
    store_path: Path | str,
    reporter: Reporter,
    parts: Sequence[str] | None = None,
) -> list[PartCollected]:
    """Collect the parts that the store lacks, of all or of the given ones, in this process.

    The store is a folder, or `s3://bucket/prefix`.

    Every thread simulates a part of its own: what Python does for one overlaps with the physics of
    another. Interrupted, it loses the parts in work and nothing else. The plan and a record of
    every part lie beside the store, in `<store>.records`. Whoever commits the plan's last part also
    makes the catalog's index, if the store can still be written.

    Returns:
        The records of what was collected now.
    """
    wanted, missing = prepare(plan, store_path, parts)
    per_part = steps_at_most(plan)
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
                return [record for share in shares for record in share.result()]
            except BaseException:
                shared.stop()
                raise


def _index(store: Store) -> None:
    """Spare the first query the reading of all catalog files; the collection does not need it."""
    # A part of an earlier collection that is damaged is for `verify` and for queries to name.
    with suppress(DatasetError):
        store.files.rebuild_index()


def run_local(
    plan: CollectPlan,
    store_path: Path | str,
    reporter: Reporter,
    parts: Sequence[str] | None = None,
    settings: None = None,
) -> list[PartCollected]:
    """`collect` as a runner; it has no settings beside the plan's threads."""
    return collect(plan, store_path, reporter, parts)


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
    with Collector(plan, threads) as collector:
        store = open_store(store_path)
        work = partial(_collect_missing, collector, store, store_path)
        return [work(part_id, advance, Retry()) for part_id in parts]


def _collect_missing(
    collector: Collector,
    store: Store,
    store_path: Path | str,
    part_id: str,
    advance: Advance,
    retry: Retry,
) -> PartCollected:
    """Attempts at one part, each with its heartbeat, and the record of the one that succeeds."""
    records = records_folder(store_path)

    def attempt() -> PartCollected:
        with PartActivity(records, part_id, steps_at_most(collector.plan)) as activity:

            def heard(n: int, note: str) -> None:
                activity.advance(n)
                advance(n, note)

            try:
                record = collector.collect(store, part_id, heard, activity.writing)
            except Exception as error:
                if not isinstance(error, Interrupted):
                    advance(-activity.steps, "")  # the next attempt begins at the first step
                raise
            write_part_record(store_path, record)
            if not store.missing(collector.plan.part_ids()):
                _index(store)
            return record

    def tell(error: Exception, wait_s: float) -> None:
        known = {"part": part_id, "error": last_line(error), "wait_s": round(wait_s, 2)}
        log_event(records, "warning", "part is tried again", **known)

    return retry.call(attempt, tell)


if __name__ == "__main__":
    import sys

    from flows.direct import main

    sys.exit(main("collect"))
