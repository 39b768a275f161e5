"""The collection engine of all tasks: rolls out and commits the parts that a store lacks.

`collect_part` makes one part in any process; `collect` makes parts on this machine, and the other
runners (`flows/runners`) give `collect_part` to their workers. Committed parts are skipped.

`run_in_processes` shares work among processes of this machine, which do not wait for each other's
interpreter lock. Transient errors are tried again: a full or slow disk, a lost connection.
"""

import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from pathlib import Path
from threading import Thread
from typing import Annotated, Any

from gaitforge.common.interrupts import Interrupted, stop_signals, stop_when
from gaitforge.common.limits import Positive, Range, check_ranges
from gaitforge.common.locks import file_system_time
from gaitforge.datasets import DatasetError, Store, create_store, open_store
from gaitforge.flows.progress import Advance, Reporter, no_progress
from gaitforge.flows.records.logs import log_event
from gaitforge.flows.records.part_records import (
    Failure,
    FollowedParts,
    PartActivity,
    PartCollected,
    check_catalog,
    check_versions,
    forget_stale,
    last_line,
    part_records,
    read_failures,
    records_folder,
    records_of_commits,
    write_part_record,
    write_plan_record,
)
from gaitforge.flows.records.records import digest, to_tree
from gaitforge.flows.tasks.interface import (
    CollectionPlan,
    Simulation,
    check_planned_ids,
    check_stored_ids,
)

_LASTING = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
"""System errors that are not transient."""


@dataclass(frozen=True)
class Retry:
    """At most `attempts`, with waits of `first_wait_s` x 1, 4, 16, … in between.

    Each wait is drawn from 0.5 to 1.5 of its length, so that processes that met the same error do
    not retry at the same moment.
    """

    attempts: Positive = 3
    first_wait_s: Annotated[float, Range(0)] = 2.0

    def __post_init__(self) -> None:
        check_ranges(self)

    def wait_s(self, attempt: int, error: Exception) -> float | None:
        """Seconds until the next attempt, after number `attempt` (from 0) ended in an error.

        None where there is none: it was the last one, or the error is not `is_passing`.
        """
        if attempt + 1 >= self.attempts or not is_passing(error):
            return None
        # Jitter needs no seed: nothing that is stored depends on it.
        return self.first_wait_s * 4**attempt * random.uniform(0.5, 1.5)


def is_passing(error: BaseException) -> bool:
    """Whether an error, or its cause, is a transient system error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError):
            return not isinstance(cause, _LASTING)
        cause = cause.__cause__
    return False


# Work shared by processes of this machine.
POLL_S = 0.5
END_S = 10.0
"""How long a process may take to end after SIGTERM."""

Work = Callable[[Sequence[str], Advance], object]


def run_in_processes(work: Work, shares: Sequence[Sequence[str]], look: Callable[[], None]) -> bool:
    """Do each share of the work in a process of its own; True if all succeed.

    If one fails, or this process is interrupted or killed, the others end.

    Args:
        work: `work(share, advance)`, at the top of a module; `advance` stops it by raising.
        look: called about twice a second, and after the last process has ended.
    """
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_run, args=(work, share), daemon=True) for share in shares]
    # Processes start with Ctrl-C blocked: it interrupts this one, which ends them. Starting the
    # resource tracker would unblock it.
    resource_tracker.ensure_running()
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        try:
            for worker in workers:
                worker.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        running = list(workers)
        while running:
            wait([worker.sentinel for worker in running], POLL_S)
            # Before `look`: what a process that has ended left behind is seen by it.
            ended = {worker: worker.exitcode for worker in running if worker.exitcode is not None}
            look()
            if any(ended.values()):
                return False
            running = [worker for worker in running if worker not in ended]
        return True
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.terminate()
        for worker in workers:
            if worker.pid is not None:
                worker.join(END_S)


def _run(work: Work, share: Sequence[str]) -> None:
    # The work ends at its next step: an exception in the midst of a commit or of what removes a
    # part's files would leave them behind.
    try:
        with stop_signals(signal.SIGTERM) as notices:
            Thread(target=_end_with_parent, daemon=True).start()
            work(share, stop_when(lambda: notices.received))
    except (ValueError, OSError, Interrupted, KeyboardInterrupt):
        sys.exit(1)  # the parent reports it in one line


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


# The collection engine.
@dataclass(frozen=True)
class Collection:
    """A plan and its store, ready to be collected.

    Attributes:
        planned: every part of the plan -> expected steps.
        parts: the parts to have; missing: those of them that the store lacks.
    """

    plan: CollectionPlan
    store: Path | str
    planned: dict[str, int]
    parts: list[str]
    missing: list[str]

    def progress(self, reporter: Reporter) -> AbstractContextManager[Advance]:
        """Report the collection as a step of its parts, the committed ones done."""
        total = sum(self.planned[part] for part in self.parts)
        left = sum(self.planned[part] for part in self.missing)
        return reporter.step(self.plan.work, total, "step", total - left)

    def followed(self, advance: Advance) -> FollowedParts:
        """Progress of the missing parts, which other processes make."""
        return FollowedParts(records_folder(self.store), self.missing, advance)

    def finish(self) -> None:
        """Complete the plan once no part is missing; prebuild the index of a catalog that grew."""
        store = open_store(self.store)
        if store.missing(self.planned):
            return
        if self.missing:
            # A damaged part of an earlier collection is for `verify` and for queries to name.
            with suppress(DatasetError):
                store.files.update_index()
            check_stored_ids(store)
        self.plan.complete()


def prepare(
    plan: CollectionPlan, store_path: Path | str, parts: Sequence[str] | None = None
) -> Collection:
    """Create the store and the record of the plan, before any of its parts (None: all).

    Raises:
        ValueError: a part that is not the plan's, no such expert, another schema or version of the
            task is there, parts of another version of the simulator are, or the place cannot be
            written.
    """
    planned = plan.expected_steps()
    parts = list(planned if parts is None else parts)
    for part in parts:
        if part not in planned:
            plan.listed_with(part)  # raises
    store = create_store(store_path, plan.schema(), to_tree(plan))
    missing = store.missing(parts)
    if missing:
        check_planned_ids(plan, store, planned)
        if (simulator := plan.simulator()) is not None:
            check_versions(store, store_path, *simulator)
    write_plan_record(store_path, plan.kind, plan, planned)
    forget_stale(records_folder(store_path))
    counts = {"plan": digest(plan), "parts": len(parts), "missing": len(missing)}
    log_event(records_folder(store_path), "info", "plan prepared", **counts)
    return Collection(plan, store_path, planned, parts, missing)


def collect_part(
    plan: CollectionPlan,
    store_path: Path | str,
    part: str,
    advance: Advance = no_progress,
    threads: int = 1,
    retry: Retry | None = None,
) -> PartCollected:
    """Make one part in this process, unless it is committed; returns its record.

    The store must exist (`prepare`). Parts of one plan in one thread share a simulator.

    Args:
        advance: called before the work and after every step; it stops the work by raising.
        threads: of the simulator; retry: of transient system errors; None for three attempts.

    Raises:
        ValueError: the part is not the plan's, there is no store, or it refuses the part.
    """
    planned = plan.listed_with(part)
    store = open_store(store_path)
    if not store.missing([part]):
        return records_of_commits(store, store_path, [part])[0]
    simulation = partial(_last_simulation.get, plan, list(planned), threads)
    check = partial(check_catalog, store, store_path, plan.keeps_version)
    retry = retry or Retry()
    for attempt in count():
        try:
            return _attempt(simulation, planned[part], store, store_path, part, advance, check)
        except Exception as error:
            wait_s = retry.wait_s(attempt, error)
            if wait_s is None:
                raise
            fields = {"part": part, "error": last_line(error), "wait_s": round(wait_s, 2)}
            log_event(records_folder(store_path), "warning", "part is tried again", **fields)
            time.sleep(wait_s)
    raise AssertionError("the last attempt returns or raises")


def collect(
    plan: CollectionPlan,
    store_path: Path | str,
    reporter: Reporter,
    parts: Sequence[str] | None = None,
) -> list[PartCollected]:
    """Collect the missing parts (of those named, or of all) on this machine; returns their records.

    Each of the plan's workers is a process that simulates a part of its own; a single worker is
    this process. A script that uses several needs `if __name__ == "__main__":`. Interrupted, the
    run loses the parts in work alone.
    """
    collection = prepare(plan, store_path, parts)
    missing = collection.missing
    workers = min(plan.workers, len(missing))
    records = []
    with collection.progress(reporter) as advance, closing(_last_simulation):
        if workers > 1:
            records = _collect_in_processes(collection, workers, advance)
        else:
            for part in missing:
                records.append(collect_part(plan, store_path, part, advance, plan.workers))
    collection.finish()
    return records


class _LastSimulation(threading.local):
    """The simulation that this thread used last, for the next part of the same plan."""

    key: tuple[CollectionPlan, list[str], int] | None = None
    simulation: Simulation | None = None

    def get(self, plan: CollectionPlan, parts: list[str], threads: int) -> Simulation:
        # The parts' names change with the expert's weights.
        if self.simulation is None or self.key != (plan, parts, threads):
            self.close()
            self.simulation = plan.simulate(threads)
            self.key = plan, parts, threads
        return self.simulation

    def close(self) -> None:
        if self.simulation is not None:
            self.simulation.close()
        self.key = self.simulation = None


_last_simulation = _LastSimulation()


def _attempt(
    simulation: Callable[[], Simulation],
    expected: int,
    store: Store,
    store_path: Path | str,
    part: str,
    advance: Advance,
    check: Callable[[Mapping[str, Any]], None],
) -> PartCollected:
    """Roll out and commit a part (a no-op if another process committed it meanwhile).

    `check` raises where the store must not have the part's catalog columns.
    """
    advance(0, "")  # the simulator takes seconds to build
    with PartActivity(records_folder(store_path), part, expected) as activity:

        def report(n: int, note: str) -> None:
            activity.advance(n)
            advance(n, note)

        started = time.monotonic()
        try:
            data = simulation().roll_out(part, store.schema, report)
            rolled_out = time.monotonic()
            check(data.catalog)
            activity.writing()
            entry = store.write_part(part, data.steps, data.catalog, data.per_episode)
        except Exception as error:
            if not isinstance(error, Interrupted):
                advance(-activity.steps, "")  # the next attempt begins at the first step
            raise
        write_s = time.monotonic() - rolled_out
        seconds = time.monotonic() - started
        # All hosts' parts by one clock, and a duration that no jump of a clock changes.
        ended = file_system_time(records_folder(store_path))
        sizes = entry.episodes, entry.steps, entry.bytes
        record = PartCollected(part, *sizes, ended - seconds, write_s, ended)
        write_part_record(store_path, record)
        return record


def _collect_share(
    plan: CollectionPlan,
    store_path: Path | str,
    threads: int,
    parts: Sequence[str],
    advance: Advance,
) -> None:
    """Make parts one after another in this process, with one simulator."""
    with closing(_last_simulation):
        for part in parts:
            collect_part(plan, store_path, part, advance, threads)


def _collect_in_processes(
    collection: Collection, workers: int, advance: Advance
) -> list[PartCollected]:
    missing = collection.missing
    open_parts = set(collection.missing)
    follow = collection.followed(advance)
    earlier = read_failures(records_folder(collection.store))

    def look() -> None:
        records = part_records(collection.store, sorted(open_parts))
        open_parts.difference_update(record.part for record in records)
        follow(records)

    shares = [missing[k::workers] for k in range(workers)]
    threads = collection.plan.workers // workers
    work = partial(_collect_share, collection.plan, collection.store, threads)
    if not run_in_processes(work, shares, look):
        raise ValueError(_failure(collection, earlier))
    return records_of_commits(open_store(collection.store), collection.store, missing)


def _failure(collection: Collection, earlier: Sequence[Failure]) -> str:
    """Why a process failed, from its part's record, which is not one of the `earlier` ones."""
    for failure in reversed(read_failures(records_folder(collection.store))):
        if failure.part in collection.missing and failure not in earlier:
            return f"part {failure.part} failed: {failure.error}"
    return (
        "a collecting process ended before its parts were made: see the lines above, or the "
        "machine's memory"
    )
