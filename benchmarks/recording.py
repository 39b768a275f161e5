"""What `gaitforge.record` costs a loop that steps many robots at a fixed rate.

The loop stands for a simulator and a policy: it keeps one core busy for the time that its steps
take at that rate. It runs with and without a recording in turns.
"""

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import torch

from benchmarks.harness import Bench
from gaitforge.flows.progress import Reporter
from gaitforge.plugins.exchange.recording.recording import record

WANTED_RATIO = 0.9


@dataclass(frozen=True)
class RecordingBenchConfig:
    """Sizes of the measurement.

    Attributes:
        robots: stepped together; obs, actions: their widths; episode_steps: of an episode.
        steps_per_s: of the loop without a recording; calls: of `step`; rounds: of both in turns.
    """

    robots: int = 4096
    obs: int = 48
    actions: int = 12
    episode_steps: int = 1000
    steps_per_s: float = 50_000
    calls: int = 250
    rounds: int = 3


class BusyBatch:
    """Robots on torch tensors whose step takes the time that the rate allows."""

    def __init__(self, config: RecordingBenchConfig) -> None:
        rng = np.random.default_rng(0)
        noise = rng.standard_normal((config.robots, config.obs), np.float32)
        self.num_envs = config.robots
        self.step_dt = 0.02
        self._config = config
        self._obs = torch.from_numpy(noise)
        self._reward = torch.ones(config.robots)
        self._time = torch.from_numpy(rng.integers(0, config.episode_steps, config.robots))

    def get_observations(self) -> dict[str, torch.Tensor]:
        """The present ones."""
        return {"policy": self._obs}

    def reset(self) -> Any:
        """Nothing changes."""
        return self.get_observations(), {}

    def step(self, actions: torch.Tensor) -> Any:
        """Keep the core busy, and end the episodes that are long enough."""
        until = time.perf_counter() + self.num_envs / self._config.steps_per_s
        while time.perf_counter() < until:
            self._obs.roll(1, 0)
        self._time += 1
        done = self._time >= self._config.episode_steps
        self._time[done] = 0
        return self.get_observations(), self._reward, done & ~done, done, {}


def _measure(config: RecordingBenchConfig, folder: Path, reporter: Reporter) -> dict[str, Any]:
    """The rates with and without a recording, their ratio in the median round, and the load.

    `close_s` is the end of the recording: the episodes that still run become a part.
    """
    rows = []
    ways: dict[str, Callable[[Any], AbstractContextManager[Any]]] = {
        "alone": nullcontext,
        "recorded": lambda env: record(folder / "recorded.zarr", env),
    }
    with reporter.step("bench recording", config.rounds, "round") as advance:
        for number in range(config.rounds):
            alone, _ = _run(config, ways["alone"])
            recorded, close_s = _run(config, ways["recorded"])
            rmtree(folder / "recorded.zarr", ignore_errors=True)
            rows.append({"alone": alone, "recorded": recorded, "close_s": close_s})
            advance(1, str(number))
    ratio = float(np.median([row["recorded"] / row["alone"] for row in rows]))
    row = {
        "robots": config.robots,
        "alone_steps_per_s": float(np.median([row["alone"] for row in rows])),
        "recorded_steps_per_s": float(np.median([row["recorded"] for row in rows])),
        "ratio": ratio,
        "close_s": float(np.median([row["close_s"] for row in rows])),
        "load": os.getloadavg()[0],
        "met": ratio >= WANTED_RATIO,
    }
    return {"rounds": rows, "rows": [row]}


def _run(
    config: RecordingBenchConfig, way: Callable[[Any], AbstractContextManager[Any]]
) -> tuple[float, float]:
    """Steps per second of a loop, and the seconds that its end takes."""
    env = BusyBatch(config)
    actions = torch.zeros(config.robots, config.actions)
    with way(env):
        started = time.perf_counter()
        for _ in range(config.calls):
            env.step(actions)
        stopped = time.perf_counter()
    steps = config.calls * config.robots
    return steps / (stopped - started), time.perf_counter() - stopped


BENCH = Bench(
    "bench_recording.json",
    RecordingBenchConfig(),
    RecordingBenchConfig(robots=64, episode_steps=20, calls=30, rounds=1),
    _measure,
    lambda record: [("A loop at a fixed rate, alone and recorded", record["rows"])],
)
