"""Collection on Dask: a task per part, each made by `gaitforge.flows.stages.collect.collect_part`.

Dask repeats the parts of a worker that died. A part that two workers make is committed once. The
arrays go from the worker to the store; a task returns a small record.
"""

import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gaitforge.datasets.code.trust import trust, trusted
from gaitforge.datasets.errors import amount
from gaitforge.datasets.interrupts import stop_when
from gaitforge.flows.progress import Advance, Reporter
from gaitforge.flows.records.part_records import PartCollected
from gaitforge.flows.runners.dask_clusters import DaskSettings, dask_client
from gaitforge.flows.runners.gather import gather
from gaitforge.flows.stages.collect import collect_part, prepare
from gaitforge.flows.tasks.interface import CollectionPlan

if TYPE_CHECKING:
    from distributed import Client, Future

Record = TypeVar("Record")

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
    collection, records = prepare(plan, address, parts), list[PartCollected]()
    with collection.progress(reporter) as advance:
        if missing := collection.missing:
            work, follow = partial(make_part, plan, address), collection.followed(advance)
            settings = settings or DaskSettings()
            with nullcontext(client) if client else dask_client(settings, len(missing)) as workers:
                records = run_parts(workers, work, missing, follow)
    collection.finish()
    return records


def run_parts(
    client: "Client",
    make: Callable[[str], Record],
    parts: Sequence[str],
    follow: Callable[[list[Record]], None],
) -> list[Record]:
    """The records of `make(part)` for all parts, in the order in which they are ready.

    Args:
        client: of the cluster; make: runs in a worker; follow: as `gather` takes it.

    Raises:
        ValueError: workers died over one part again and again, or the scheduler went away;
            and what `make` raises.
    """
    run, make = uuid.uuid4().hex[:8], partial(_trusting, tuple(trusted()), make)
    keys = {part: f"collect-{part}-{run}" for part in parts}
    futures = {client.submit(make, part, key=keys[part], pure=False): part for part in parts}

    def look(records: list[Record]) -> None:
        follow(records)
        if client.status != "running":
            raise ValueError(_LOST)

    try:
        return gather(futures, _result, look)
    finally:
        # Parts in work see it (`until_cancelled`) and stop without a commit.
        left = [future for future in futures if not future.done()]
        if left and client.status == "running":
            client.cancel(left, force=True)


def _trusting(texts: Sequence[str], make: Callable[[str], Record], part: str) -> Record:
    """`make(part)` in a worker, which may have been started without the user's trust."""
    trust(*texts)
    return make(part)


def _result(future: "Future[Record]", part: str) -> Record:
    from distributed.client import FutureCancelledError
    from distributed.scheduler import KilledWorker

    try:
        record = future.result()
        # Else a worker that holds a record cannot be retired without losing it.
        future.release()
        return record
    except KilledWorker as error:
        deaths = error.allowed_failures + 1
        raise ValueError(
            f"part {part}: the worker that made it died {amount(deaths, 'time')}; see its host's "
            "memory, and the log of the worker"
        ) from None
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
