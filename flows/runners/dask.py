"""Work on Dask: the parts of a collection, and stages that wait for no other one, in parallel.

A collection has a task per part, each made by `gaitforge.flows.stages.collect.collect_part`. Dask
repeats the parts of a worker that died. A part that two workers make is committed once. The arrays
go from the worker to the store; a task returns a small record.

`gather` waits for the futures of Dask and of Prefect alike.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from gaitforge.common.errors import amount
from gaitforge.common.interrupts import stop_when
from gaitforge.common.trust import trust, trusted
from gaitforge.flows.progress import Advance, Reporter, Silent, StageReporter
from gaitforge.flows.records.part_records import PartCollected
from gaitforge.flows.runners.dask_clusters import DaskSettings, dask_client
from gaitforge.flows.stages.collect import collect_part, prepare
from gaitforge.flows.stages.stage import (
    CollectionStage,
    Stage,
    at_work,
    left_stages,
    ready_stages,
    run_stage,
)
from gaitforge.flows.tasks.interface import CollectionPlan

if TYPE_CHECKING:
    from distributed import Client, Future


# Waiting for the futures of Dask and of Prefect.
POLL_S = 1.0

Record = TypeVar("Record")


class Again(Exception):
    """Raised by a `result` of `gather`: another future will have the part's result."""

    def __init__(self, future: Any):
        super().__init__()
        self.future = future


def gather(
    futures: Mapping[Any, str],
    result: Callable[[Any, str], Record],
    follow: Callable[[list[Record]], None],
    poll_s: float = POLL_S,
) -> list[Record]:
    """The results of all futures, in the order in which they are ready.

    Args:
        futures: future -> part; each has `add_done_callback`.
        result: `result(future, part)`, of a future that is done; it may raise `Again`.
        follow: called every `poll_s` seconds with the results that came since; it stops the wait by
            raising.
    """
    # A queue: waiting for any of n futures costs n each time.
    ended: SimpleQueue[Any] = SimpleQueue()
    parts = dict(futures)
    for future in futures:
        future.add_done_callback(ended.put)
    records: list[Record] = []
    while len(records) < len(futures):
        new: list[Record] = []
        with suppress(Empty):
            future = ended.get(timeout=poll_s)
            while True:
                part = parts.pop(future)
                try:
                    new.append(result(future, part))
                except Again as again:
                    parts[again.future] = part
                    again.future.add_done_callback(ended.put)
                future = ended.get_nowait()
        records += new
        follow(new)
    return records


# Collection: a task per part.
_RESUMES = "The same command again makes the rest; --worker-deaths N allows more deaths"

MASS = 10
"""So many times the deaths of one part in a row, without a finished part, end the work."""
_LOST = (
    "the Dask scheduler went away or dropped the parts; run the same command again to make the rest"
)


def run_dask(
    plan: CollectionPlan,
    store_path: Path | str,
    reporter: Reporter,
    parts: Sequence[str] | None = None,
    settings: DaskSettings | None = None,
    client: "Client | None" = None,
) -> list[PartCollected]:
    """Collect the missing parts on the workers of a Dask cluster; returns their records.

    The cluster is the client's; without one, that of the settings, for the time of the call.
    Interrupted, or once a part fails for good, parts in work are dropped without a commit.

    Raises:
        ValueError: as `dask_client`, what a part's `collect_part` raised, or the cluster was lost.
    """
    address = store_path if isinstance(store_path, str) else str(store_path.resolve())
    collection = prepare(plan, address, parts)
    records = list[PartCollected]()
    with collection.progress(reporter) as advance:
        if missing := collection.missing:
            work = partial(make_part, plan, address)
            follow = collection.followed(advance)
            settings = settings or DaskSettings()
            with nullcontext(client) if client else dask_client(settings, len(missing)) as workers:
                records = run_parts(workers, work, missing, follow, settings.worker_deaths)
    collection.finish()
    return records


def run_parts(
    client: "Client",
    make: Callable[[str], Record],
    parts: Sequence[str],
    follow: Callable[[list[Record]], None],
    deaths: int = DaskSettings.worker_deaths,
) -> list[Record]:
    """The records of `make(part)` for all parts, in the order in which they are ready.

    Args:
        client: of the cluster; make: runs in a worker; follow: as `gather` takes it.
        deaths: of workers, after which a part is given up, see `_Deaths`.

    Raises:
        ValueError: workers died again and again, or the scheduler went away; and what `make`
            raises.
    """
    make = partial(_trusting, tuple(trusted()), make)
    counted = _Deaths(parts, deaths)
    futures: set[Future[Record]] = set()

    def submit(part: str) -> "Future[Record]":
        key = f"collect-{part}-{uuid.uuid4().hex[:8]}"
        # Others come first: a part that kills its workers may take theirs with it.
        last = -counted.count(part)
        future = client.submit(make, part, key=key, pure=False, priority=last)
        futures.add(future)
        return future

    def result(future: "Future[Record]", part: str) -> Record:
        futures.discard(future)
        record = _result(future, part, counted)
        if record is None:
            raise Again(submit(part))
        counted.finished(part)
        return record[0]

    def look(records: list[Record]) -> None:
        follow(records)
        if client.status != "running":
            raise ValueError(_LOST)

    try:
        return gather({submit(part): part for part in parts}, result, look)
    finally:
        # Parts in work see it (`until_cancelled`) and stop without a commit.
        left = [future for future in futures if not future.done()]
        if left and client.status == "running":
            client.cancel(left, force=True)


def _trusting(texts: Sequence[str], make: Callable[[str], Record], part: str) -> Record:
    """`make(part)` in a worker, which may have been started without the user's trust."""
    trust(*texts)
    return make(part)


class _Deaths:
    """Deaths of workers, and whether a part is to blame.

    A worker may die of its part, such as one that needs too much memory, or of its host. A part
    whose workers died is made after the others, and given up after `limit` more deaths once it is
    the last one. Where no part is finished any more, all are given up, after `MASS` times as many
    deaths, without blame.
    """

    def __init__(self, parts: Sequence[str], limit: int):
        self._left = len(parts)
        self._limit = limit
        self._deaths: dict[str, int] = {}
        self._row: set[str] = set()  # workers that died since a part was finished

    def count(self, part: str) -> int:
        """How often a worker died with a part."""
        return self._deaths.get(part, 0)

    def finished(self, part: str) -> None:
        """Note that a part was made."""
        self._left -= 1
        self._deaths.pop(part, None)
        self._row.clear()
        if self._left == 1:
            self._deaths.clear()  # those of the last one may have been of its host

    def died(self, part: str, worker: str, times: int) -> None:
        """Note that a worker died with a part, the last one of `times`; ValueError ends the work.

        A worker may have had several parts at hand.
        """
        self._deaths[part] = self.count(part) + times
        self._row.add(worker)
        count = self.count(part)
        if count >= self._limit and self._left == 1:
            raise ValueError(
                f"part {part}: the worker that made it died {amount(count, 'time')}; see its "
                f"host's memory, and the log of the worker. {_RESUMES}"
            )
        if len(self._row) >= self._limit * MASS:
            raise ValueError(
                f"{len(self._row)} workers died in a row and no part was finished: see the hosts' "
                f"memory, and the logs of the workers. {_RESUMES}"
            )


def _result(future: "Future[Record]", part: str, deaths: _Deaths) -> tuple[Record] | None:
    """A part's record; None where its worker died and the part is to be made again."""
    from distributed.client import FutureCancelledError
    from distributed.scheduler import KilledWorker

    try:
        record = future.result()
        # Else a worker that holds a record cannot be retired without losing it.
        future.release()
        return (record,)
    except KilledWorker as error:
        deaths.died(part, error.last_worker.address, error.allowed_failures + 1)
        return None
    except FutureCancelledError:
        raise ValueError(_LOST) from None


def make_part(plan: CollectionPlan, address: str, part: str) -> PartCollected:
    """One part, in a worker of a cluster; ends early once its task is cancelled."""
    return collect_part(plan, address, part, until_cancelled())


def until_cancelled() -> Advance:
    """An `Advance` in a worker that stops once its task was cancelled or its client is gone."""
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()

    def cancelled() -> bool:
        task = worker.state.tasks.get(key)
        return task is None or task.state == "cancelled"

    return stop_when(cancelled)


# Stages on the workers of a cluster.
def run_stages_on_dask(
    out: Path, stages: Sequence[Stage], reporter: Reporter, settings: DaskSettings | None = None
) -> Any:
    """Do what is left of all stages; parts, trainings and evaluations run on the workers.

    One cluster serves all: a worker takes seconds to load what the stages need.

    Returns:
        What the last stage returns, see `run_stage`.

    Raises:
        ValueError: as `run_dask`, and what a stage raises.
    """
    out = out.absolute()
    result = None
    left = left_stages(out, stages)
    if not left:
        return None
    most = None if any(isinstance(stage, CollectionStage) for stage in left) else len(left)
    settings = settings or DaskSettings()
    with at_work(out, left), dask_client(settings, most) as client:
        while left:
            ready = {stage.name: stage for stage in ready_stages(left)}
            result = run_ready(client, out, ready, reporter, settings)
            left = [stage for stage in left if stage.name not in ready]
    return result


def run_ready(
    client: "Client",
    out: Path,
    ready: Mapping[str, Stage],
    reporter: Reporter,
    settings: DaskSettings | None = None,
) -> Any:
    """Run stages that wait for no other: collections part by part, the others whole.

    Returns:
        What the last stage returns, see `run_stage`.
    """
    result = None
    for stage in ready.values():
        if isinstance(stage, CollectionStage):
            result = run_stage(
                out, stage, reporter, partial(run_dask, settings=settings, client=client)
            )
    names = [name for name, stage in ready.items() if not isinstance(stage, CollectionStage)]
    if names:
        title = names[0] if len(names) == 1 else f"{len(names)} stages"
        with reporter.step(title, len(names), "stage") as advance:
            work = partial(_make, out, ready)
            deaths = (settings or DaskSettings()).worker_deaths
            results = run_parts(client, work, names, lambda ended: advance(len(ended), ""), deaths)
            result = results[-1]
    return result


def _make(out: Path, stages: Mapping[str, Stage], name: str) -> Any:
    return run_stage(out, stages[name], StageReporter(Silent(), until_cancelled()))
