"""Figures of several works that take turns, and the machine that they were taken on."""

import os
import platform
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from gaitforge.learners.models.bodies import Space
from gaitforge.learners.models.registry import ModelSpec, build_network
from gaitforge.learners.policy_network import Normaliser, PolicyNetwork

Key = TypeVar("Key")
Figure = TypeVar("Figure")


def seconds_of(work: Callable[[], Any]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def in_turns(
    works: Mapping[Key, Callable[[], Figure]],
    rounds: int,
    after_round: Callable[[], object] = lambda: None,
) -> dict[Key, list[Figure]]:
    """The figure of each work in each round; taking turns spreads other load over all of them.

    The order changes from round to round. A first round, to warm up, does not count.
    """
    figures: dict[Key, list[Figure]] = {key: [] for key in works}
    for number in range(rounds + 1):
        for key, work in list(works.items())[:: -1 if number % 2 else 1]:
            figure = work()
            if number > 0:
                figures[key].append(figure)
        after_round()
    return figures


def machine() -> dict[str, Any]:
    """Processor, cores, and processes that ran on average in the last minute."""
    processor = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            names = [
                line.partition(":")[2].strip() for line in file if line.startswith("model name")
            ]
        processor = names[0] if names else processor
    except OSError:  # not Linux
        pass
    return {"processor": processor, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}


def untrained_policy(spec: ModelSpec, space: Space, seed: int = 0) -> PolicyNetwork:
    """A policy with random weights and identity normalisers."""
    torch.manual_seed(seed)
    network = build_network(spec, space.layout, space.act_dim)
    obs = Normaliser.identity(space.layout.obs_dim)
    action = Normaliser.identity(space.act_dim)
    return PolicyNetwork(network, space.layout, obs, action)
