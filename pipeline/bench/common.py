"""What the benchmarks share: timing in turns, notes about the machine, records and tables."""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from flows.records.records import provenance, to_tree, write_record
from learners.models.registry import ModelSpec, build_network
from learners.models.spaces import Space
from learners.policy.normalisation import Normaliser
from learners.policy.policy_network import PolicyNetwork
from pipeline.tables import table

Figures = Mapping[str, Any]
Rows = list[dict[str, Any]]
Key = TypeVar("Key")

_QUIET_LOAD = 0.5
"""Busy processes, averaged over the last minute."""


def seconds_of(work: Callable[[], Any]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def median(values: Iterable[float]) -> float:
    """The median as a plain float."""
    return float(np.median(list(values)))


def in_turns(
    works: Mapping[Key, Callable[[], Any]],
    rounds: int,
    fewer: Mapping[Key, int] | None = None,
    after_round: Callable[[], None] = lambda: None,
) -> dict[Key, list[float]]:
    """Seconds of each work in each round; taking turns spreads other load over all of them.

    A first round, to warm up, does not count.

    Args:
        fewer: number of rounds of those works that need fewer.
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


def untrained_policy(spec: ModelSpec, space: Space, seed: int = 0) -> PolicyNetwork:
    """A policy with random weights and identity normalisers."""
    torch.manual_seed(seed)
    network = build_network(spec, space.layout, space.act_dim)
    obs, action = Normaliser.identity(space.layout.obs_dim), Normaliser.identity(space.act_dim)
    return PolicyNetwork(network, space.layout, obs, action)


def load_notes(load: float) -> list[str]:
    """The machine's load before a benchmark, and a warning if it was busy."""
    notes = [f"load average {load:.1f} before, on {os.cpu_count()} cores"]
    if load > _QUIET_LOAD:
        notes.append("the machine was busy: judge by the ratios, not by the times")
    return notes


def save_bench(out: Path, name: str, figures: Figures, config: Any) -> dict[str, Any]:
    """Write ``bench_NAME.json`` into `out`; returns it: figures, config and provenance.

    Raises:
        ValueError: the folder cannot be written.
    """
    record = to_tree({**figures, "config": config, **provenance()})
    write_record(out / f"bench_{name}.json", record)
    return record


def show_tables(record: Figures, tables: Iterable[tuple[str, Rows]], as_json: bool) -> None:
    """Print a record as JSON, or as tables with titles and its notes."""
    if as_json:
        print(json.dumps(record, indent=1))
        return
    for title, rows in tables:
        print(f"{title}\n{table(rows)}\n")
    for note in record["notes"]:
        print(note)
