"""Measure the speed of a training."""

import time

import torch

from gaitforge.datasets import Selection
from gaitforge.learners.training.batches import TrainingBatches
from gaitforge.learners.training.building import build_policy, build_values
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.distributed import Ranks
from gaitforge.learners.training.held_out import split_episodes
from gaitforge.learners.training.process import torch_threads
from gaitforge.learners.training.update import Updater

WARM_UP_S = 2.0
MEASURED_S = 4.0
"""A few hundred steps of a small network; the first ones also allocate and fill caches."""


def updates_per_s(config: TrainConfig, selection: Selection) -> float:
    """Measure a training's optimiser steps per second, without validation and checkpoints.

    On one thread these are seconds of CPU time, which do not depend on other programs or on the
    time to first read a large store. Raises ValueError as `train`.
    """
    with torch_threads(config.threads), torch.random.fork_rng():
        return _measure(config.settled(None), selection)


def _measure(config: TrainConfig, selection: Selection) -> float:
    ranks = Ranks(device=torch.device(config.device))
    episodes = split_episodes(config, selection)
    policy, _ = build_policy(config, episodes.train)
    updater = Updater(policy, config, ranks, build_values(config, policy, episodes.train))
    batches = TrainingBatches(config, episodes.train, ranks, policy)
    clock = time.thread_time if config.threads == 1 else time.perf_counter
    try:
        started = clock()
        timed = None
        warm = 0
        for number, (_, batch) in enumerate(batches):
            now = clock()
            if timed is None and now - started >= WARM_UP_S:
                timed = now
                warm = number
            if timed is not None and now - timed >= MEASURED_S:
                return (number - warm) / (now - timed)
            updater.step(batch, number, config.peak_lr * config.warmup_fraction)
    finally:
        batches.stream.close()
    raise AssertionError("batches are endless")
