"""Time of the legged task without its physics: a control step on 1 and 2 threads, and a reset."""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness import Rows, bar
from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.episodes import EpisodeSpec
from gaitforge.collectors.physics.scene import ROBOT
from gaitforge.collectors.row_slices import RowSlices
from gaitforge.collectors.scenarios.skills import SKILLS, matching_cells
from gaitforge.collectors.scenarios.terrains import N_LEVELS, TERRAINS
from gaitforge.collectors.timing import EPISODE_STEPS

RATIO_BAR = 0.6
"""The task's time on two threads over that on one, at most."""
RESET_BAR_MS = 0.15
THREADS = (1, 2)


@dataclass(frozen=True)
class TaskSizes:
    """Parallel robots, robots that are reset together, and rounds, of which the fastest counts."""

    robots: int = 4096
    resets: int = 1024
    rounds: int = 60


def measure_task(sizes: TaskSizes) -> dict[str, Any]:
    """µs a robot of a step and its privileged block by threads, and ms a reset, physics' included.

    The numbers of threads take turns. CPU time is that of the whole process.
    """
    with closing(LeggedEnvironment(ROBOT, sizes.robots, max(THREADS))) as env:
        _start(env, sizes.robots, 0)
        action = np.zeros((sizes.robots, env.physics.state.joint_pos.shape[1]), np.float32)
        env.step(action)
        resets = [_fastest(lambda k=k: _start(env, sizes.resets, k), 1) for k in range(3)]
        env.physics.step = lambda joint_targets: None
        slices = {threads: RowSlices(sizes.robots, threads) for threads in THREADS}
        times: dict[int, list[tuple[float, float]]] = {threads: [] for threads in THREADS}
        for _ in range(sizes.rounds):
            for threads, parts in slices.items():
                env.slices = parts
                env.robots_of = [env.robots] * len(parts.parts)
                env.step_count[:] %= EPISODE_STEPS
                times[threads].append(_fastest(lambda: env.step(action).observation.privileged, 2))
        for parts in slices.values():
            parts.close()
    us = {
        threads: 1e6 * min(wall for wall, _ in of) / sizes.robots for threads, of in times.items()
    }
    cpu = 1e6 * min(cpu for _, cpu in times[1]) / sizes.robots
    return {
        "robots": sizes.robots,
        "step_us_1_thread": us[1],
        "step_us_2_threads": us[2],
        "cpu_us_1_thread": cpu,
        "resets": sizes.resets,
        "reset_ms": 1e3 * min(wall for wall, _ in resets) / sizes.resets,
        "reset_cpu_ms": 1e3 * min(cpu for _, cpu in resets) / sizes.resets,
    }


def task_bars(row: dict[str, Any]) -> Rows:
    """The limits beside what was measured."""
    ratio = row["step_us_2_threads"] / row["step_us_1_thread"]
    return [
        bar(f"task on 2 threads / on 1, robots: {row['robots']}", ratio, most=RATIO_BAR),
        bar(f"ms of a reset, {row['resets']} together", row["reset_ms"], most=RESET_BAR_MS),
    ]


def _start(env: LeggedEnvironment, count: int, round_of: int) -> None:
    """Start episodes of all cells and levels in turn on the first robots."""
    cells = matching_cells(tuple(TERRAINS), tuple(SKILLS), (0,))
    specs = []
    for index in range(count):
        terrain, skill = cells[index % len(cells)]
        seed = round_of * count + index
        specs.append(EpisodeSpec(index, terrain, index % N_LEVELS, skill, seed))
    env.reset(np.arange(count), specs)


def _fastest(work: Callable[[], object], calls: int) -> tuple[float, float]:
    """Wall and CPU seconds of the fastest of some calls."""
    walls = []
    for _ in range(calls):
        wall = time.perf_counter()
        cpu = time.process_time()
        work()
        walls.append((time.perf_counter() - wall, time.process_time() - cpu))
    return min(wall for wall, _ in walls), min(cpu for _, cpu in walls)
