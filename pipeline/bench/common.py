"""What the benchmarks share: timing in turns, notes about the machine, and tables."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from pipeline.tables import table

Figures = Mapping[str, Any]
Rows = list[dict[str, Any]]
Key = TypeVar("Key")

_QUIET_LOAD = 0.5
"""Other processes that compute, on the average of the last minute."""


def seconds_of(work: Callable[[], Any]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def in_turns(
    works: Mapping[Key, Callable[[], Any]],
    rounds: int,
    fewer: Mapping[Key, int] | None = None,
    after_round: Callable[[], None] = lambda: None,
) -> dict[Key, list[float]]:
    """Seconds of each work in each round, so that other load on the machine meets all alike.

    A first round, which warms up, does not count.

    Args:
        fewer: rounds of works that take part in fewer.
    """
    seconds: dict[Key, list[float]] = {key: [] for key in works}
    for number in range(rounds + 1):
        for key, work in works.items():
            if number > (fewer or {}).get(key, rounds):
                continue
            took = seconds_of(work)
            if number > 0:
                seconds[key].append(took)
        after_round()
    return seconds


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch on one thread and without gradients."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_num_threads(threads)


def load_notes(load: float) -> list[str]:
    """The machine's load before a benchmark, and whether that was too much."""
    notes = [f"load average {load:.1f} before, on {os.cpu_count()} cores"]
    if load > _QUIET_LOAD:
        notes.append("the machine was busy: judge by the ratios, not by the times")
    return notes


def show_tables(record: Figures, tables: Iterable[tuple[str, Rows]], as_json: bool) -> None:
    """Print a record as JSON, or as tables with titles and its notes."""
    if as_json:
        print(json.dumps(record, indent=1))
        return
    for title, rows in tables:
        print(f"{title}\n{table(rows)}\n")
    for note in record["notes"]:
        print(note)
