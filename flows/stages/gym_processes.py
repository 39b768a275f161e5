"""Parts of a `GymPlan` in processes of this machine, which talk through the store alone.

Stepping an environment is work for Python, so that only processes do more of it at once.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from pathlib import Path

from flows.progress import Advance, Interrupted
from flows.records.activity import read_failures
from flows.records.following import FollowedParts
from flows.records.part_records import part_records, records_folder
from flows.stages.gym import GymPlan, collect_gym_parts

POLL_S = 0.5
END_S = 10.0
"""How long a process may take to end after it was told to."""


def collect_in_processes(
    plan: GymPlan, store_path: Path | str, parts: Sequence[str], processes: int, advance: Advance
) -> None:
    """Make the given parts of a prepared store; returns when all are committed.

    If one process fails, or this one is interrupted, the others are ended.

    Raises:
        ValueError: a process failed; with what went wrong where that is known.
    """
    started = time.time()
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_work, args=(plan, store_path, parts[k::processes]), daemon=True)
        for k in range(processes)
    ]
    follow, open_parts = FollowedParts(records_folder(store_path), parts, advance), set(parts)
    try:
        for worker in workers:
            worker.start()
        running = list(workers)
        while running:
            wait([worker.sentinel for worker in running], POLL_S)
            # Before the records are read: what a process that has ended committed is among them.
            ended = {worker: worker.exitcode for worker in running if worker.exitcode is not None}
            records = part_records(store_path, sorted(open_parts))
            open_parts -= {record.part for record in records}
            follow(records)
            if any(ended.values()):
                raise ValueError(_failure(store_path, parts, started))
            running = [worker for worker in running if worker not in ended]
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.terminate()
        for worker in workers:
            if worker.pid is not None:
                worker.join(END_S)


def _work(plan: GymPlan, store_path: Path | str, parts: Sequence[str]) -> None:
    # The parent is interrupted by the same key, and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    last_look = time.monotonic()

    def unless_orphaned(steps: int, note: str) -> None:
        nonlocal last_look
        if time.monotonic() - last_look > POLL_S:
            last_look = time.monotonic()
            if parent is not None and not parent.is_alive():
                raise Interrupted

    try:
        collect_gym_parts(plan, store_path, parts, unless_orphaned)
    except (ValueError, OSError, Interrupted):
        sys.exit(1)  # the parent tells of it, in one line


def _failure(store_path: Path | str, parts: Sequence[str], started: float) -> str:
    failures = [
        failure
        for failure in read_failures(records_folder(store_path))
        if failure.part in parts and failure.time >= started
    ]
    if not failures:
        return "a collecting process ended before its parts were made; see the machine's memory"
    return f"part {failures[-1].part} failed: {failures[-1].error}"
