"""Collection on Dask: a part a task, each made by `flows.stages.collect.collect_part`.

Dask hands out parts and runs those of a worker that died again elsewhere. What is committed is
decided by the catalog, so a part that two workers make is committed once. Results are records of a
few numbers; the arrays go from the worker to the store.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from flows.progress import Interrupted, Reporter
from flows.records.following import FollowedParts
from flows.records.part_records import PartCollected, records_folder
from flows.runners.dask_clusters import DaskSettings, dask_client
from flows.stages.collect import CollectPlan, collect_part, prepare, steps_at_most

if TYPE_CHECKING:
    from distributed import Client, Future

POLL_S = 1.0
CANCEL_CHECK_S = 1.0

Record = TypeVar("Record")

_LOST = "the Dask scheduler went away or dropped the parts; the same command goes on from here"


def run_dask(
    plan: CollectPlan,
    store_path: Path | str,
    reporter: Reporter,
    parts: Sequence[str] | None = None,
    settings: DaskSettings | None = None,
) -> list[PartCollected]:
    """Collect the parts that the store lacks on the workers of a Dask cluster.

    Interrupted, or once a part fails for good, parts in work are dropped and nothing of them is
    committed.

    Returns:
        The records of what was collected now.

    Raises:
        ValueError: as `dask_client`, what a part's `collect_part` raised, or the cluster was lost.
    """
    wanted, missing = prepare(plan, store_path, parts)
    address = store_path if isinstance(store_path, str) else str(store_path.resolve())
    per_part = steps_at_most(plan)
    done = (len(wanted) - len(missing)) * per_part
    if not missing:
        with reporter.step("collect", len(wanted) * per_part, "step", done):
            return []
    with (
        dask_client(settings or DaskSettings(), len(missing)) as client,
        reporter.step("collect", len(wanted) * per_part, "step", done) as advance,
    ):
        follow = FollowedParts(records_folder(store_path), missing, advance)
        return run_parts(client, partial(make_part, plan, address), missing, follow)


def run_parts(
    client: Client,
    make: Callable[[str], Record],
    parts: Sequence[str],
    follow: Callable[[list[Record]], None],
    poll_s: float = POLL_S,
) -> list[Record]:
    """The records of `make(part)` for all parts, in the order in which they are ready.

    Args:
        client: of the cluster; make: runs in a worker; follow: told about every `poll_s` seconds of
            the records that came since.

    Raises:
        ValueError: workers died over one part again and again, or the scheduler went away;
            and what `make` raises.
    """
    run = uuid.uuid4().hex[:8]
    keys = {part: f"collect-{part}-{run}" for part in parts}
    futures = {client.submit(make, part, key=keys[part], pure=False): part for part in parts}
    # A queue, for to wait for any of many futures costs as much as there are.
    ended: SimpleQueue[Future] = SimpleQueue()
    for future in futures:
        future.add_done_callback(ended.put)
    records: list[Record] = []
    try:
        while futures:
            ready = {future: futures.pop(future) for future in _taken(ended, poll_s)}
            new = [_result(future, part) for future, part in ready.items()]
            records += new
            follow(new)
            if client.status != "running":
                raise ValueError(_LOST)
    finally:
        # What is in work hears of it (`_UntilCancelled`) and stops without a commit.
        if futures and client.status == "running":
            client.cancel(list(futures), force=True)
    return records


def _taken(ended: SimpleQueue[Future], wait_s: float) -> list[Future]:
    """All that is in the queue, once something is; nothing after the wait."""
    found: list[Future] = []
    with suppress(Empty):
        found.append(ended.get(timeout=wait_s))
        while True:
            found.append(ended.get_nowait())
    return found


def _result(future: Future[Any], part: str) -> Any:
    from distributed.client import FutureCancelledError
    from distributed.scheduler import KilledWorker

    try:
        return future.result()
    except KilledWorker as error:
        deaths = error.allowed_failures + 1
        raise ValueError(
            f"part {part}: the worker that made it died {deaths} times; see its host's memory, and "
            "the log of the worker"
        ) from None
    except FutureCancelledError:
        raise ValueError(_LOST) from None


def make_part(plan: CollectPlan, address: str, part: str) -> PartCollected:
    """One part, in a worker of a cluster; ends early once its task is cancelled."""
    return collect_part(plan, address, part, _UntilCancelled())


class _UntilCancelled:
    """An `Advance` in a worker that raises once its task was cancelled or its client is gone."""

    def __init__(self) -> None:
        from distributed import get_worker

        self._worker = get_worker()
        self._key = self._worker.get_current_task()
        self._checked = time.monotonic()

    def __call__(self, n: int, note: str) -> None:
        if time.monotonic() - self._checked < CANCEL_CHECK_S:
            return
        self._checked = time.monotonic()
        task = self._worker.state.tasks.get(self._key)
        if task is None or task.state == "cancelled":
            raise Interrupted
