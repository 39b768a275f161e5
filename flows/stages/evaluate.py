"""Closed-loop evaluation of experts and trained policies on the same episodes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gaitforge.collectors.intervals import Interval, combined_interval
from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.evaluation import CellResult, EvaluationGrid, cell_result, evaluate
from gaitforge.collectors.policies import Observation, Policy, TaskPolicy
from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.records import evaluation_key, kept_evaluation, read_record
from gaitforge.flows.tasks.legged import check_parallelism
from gaitforge.flows.tasks.policies import PolicySource

LATENCY_REPEATS = 1000
EVALUATION = "evaluation.json"
"""In a training run's folder, its evaluation."""


@dataclass(frozen=True)
class EvaluatePlan:
    """What to evaluate on.

    Attributes:
        grid: the episodes; sim: physics back end; robots: parallel ones; threads: that step them.
        return_target: of a return-conditioned policy, in the units it was trained with.
        robot: a name or a path; empty for the policy's own.
        reset_every: control steps after which a trained policy's memory is cleared; 0 for never.
    """

    grid: EvaluationGrid = field(default_factory=EvaluationGrid)
    sim: str = "mujoco"
    robots: int = 128
    threads: int = 2
    return_target: float = 1.0
    robot: str = ""
    reset_every: int = 0

    def __post_init__(self) -> None:
        check_parallelism(self.robots, self.threads)


@dataclass(frozen=True)
class PolicyMeasures:
    """Means over cells of equal weight, with 95 % intervals; latency of one robot on one thread."""

    return_: float
    return_ci95: Interval | None
    success: float
    success_ci95: Interval | None
    survival: float
    parameters: int
    latency_us_median: float
    latency_us_p99: float


@dataclass(frozen=True)
class PolicyEvaluation(PolicyMeasures):
    """The measures of a policy, its cells, and each cell's returns in the order of the specs."""

    policy: str
    wall_s: float
    steps_per_s: float
    cells: tuple[CellResult, ...]
    returns: tuple[tuple[float, ...], ...]


def evaluate_policy(
    source: PolicySource, plan: EvaluatePlan, reporter: Reporter, path: Path | None = None
) -> PolicyEvaluation:
    """Run every episode of the plan's grid, unless `path` already holds that evaluation.

    Raises:
        ValueError: no such expert or run, a run trained on another observation, or `path` holds
            something else.
    """
    key, work = {"weights": source.key()}, partial(_evaluated, source, plan, reporter)
    return kept_evaluation(path, plan, key, PolicyEvaluation, work)


def is_evaluated(source: PolicySource, plan: EvaluatePlan, path: Path) -> bool:
    """Whether `path` holds the evaluation of this policy by this plan."""
    known = read_record(path) or {}
    return known.get("key") == evaluation_key(plan, {"weights": source.key()})


def _evaluated(source: PolicySource, plan: EvaluatePlan, reporter: Reporter) -> PolicyEvaluation:
    specs = plan.grid.specs()
    robots = min(plan.robots, len(specs))
    policy, parameters, robot = source.load(
        robots, plan.robot, plan.return_target, plan.reset_every
    )
    started = time.perf_counter()
    env = LeggedEnvironment(robot, robots, plan.threads, plan.sim)
    try:
        total = len(specs) * env.episode_steps
        with reporter.step(f"evaluate {source.name}", total, "step") as advance:
            by_cell = evaluate(policy, env, plan.grid, lambda n: advance(n, ""))
        wall_s = time.perf_counter() - started
        single, _, _ = source.load(1, plan.robot, plan.return_target)
        median, p99 = control_latency(single, robot_observations(plan, robot))
    finally:
        env.close()
    steps = sum(result.length for results in by_cell for result in results)
    cells = tuple(cell_result(source.name, results) for results in by_cell)
    returns, successes = [c.return_ for c in cells], [c.success for c in cells]
    return PolicyEvaluation(
        policy=source.name,
        return_=float(np.mean(returns)),
        return_ci95=combined_interval(returns, [cell.return_ci95 for cell in cells]),
        success=float(np.mean(successes)),
        success_ci95=combined_interval(successes, [cell.success_ci95 for cell in cells]),
        survival=float(np.mean([cell.survival for cell in cells])),
        parameters=parameters,
        latency_us_median=median,
        latency_us_p99=p99,
        wall_s=wall_s,
        steps_per_s=steps / wall_s,
        cells=cells,
        returns=tuple(tuple(r.episode_return for r in results) for results in by_cell),
    )


def robot_observations(plan: EvaluatePlan, robot: RobotCard, count: int = 64) -> list[Observation]:
    """Observations of one robot on the grid's first episode, for timing."""
    env = LeggedEnvironment(robot, 1, 1, plan.sim)
    try:
        env.reset(np.arange(1), plan.grid.specs()[:1])
        observations = []
        for _ in range(count):
            observation = env.observe()
            # Computed now, so that the sensor's cost does not count as the policy's.
            assert observation.privileged.size
            observations.append(observation)
            env.step(np.zeros((1, len(env.robot.joint_names)), dtype=np.float32))
        return observations
    finally:
        env.close()


def control_latency(
    policy: Policy | TaskPolicy, observations: Sequence[Any], repeats: int = LATENCY_REPEATS
) -> tuple[float, float]:
    """Median and 99th percentile of one `act` with one robot, in microseconds, on one thread.

    Array conversions count; the simulator does not.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    times = np.empty(repeats + repeats // 4)
    try:
        policy.reset(np.arange(1))
        for i in range(len(times)):
            observation = observations[i % len(observations)]
            start = time.perf_counter()
            policy.act(observation)
            times[i] = time.perf_counter() - start
    finally:
        torch.set_num_threads(threads)
    median, p99 = np.percentile(times[repeats // 4 :], [50, 99]) * 1e6
    return float(median), float(p99)
