"""Closed-loop evaluation: any policy on the episodes of its task, once."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.collectors.policy import Policy, TaskPolicy
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.records import evaluation_key, kept_evaluation, read_record
from gaitforge.flows.tasks.evaluation import (
    EXPERT,
    RUN,
    EvaluationPlan,
    PolicyEvaluation,
    PolicySource,
    References,
    measured,
)
from gaitforge.learners.training.train import torch_threads

LATENCY_REPEATS = 1000
EVALUATION = "evaluation.json"
"""File of its evaluation in a training run's folder."""


def evaluate_policy(
    source: PolicySource, plan: EvaluationPlan, reporter: Reporter, path: Path | None = None
) -> PolicyEvaluation:
    """Run every episode of the plan, unless `path` already holds that evaluation.

    Raises:
        ValueError: no such policy, one of another task or trained on another observation, a package
            that the task needs is missing, or `path` holds something else.
    """
    if plan.reset_every and source.kind != RUN:
        raise ValueError(f"reset_every needs the policy of a training run; {source.name} is none")
    work = partial(_evaluated, source, plan, reporter)
    key = dict(plan.key(source))
    if not source.is_known:
        key["made"] = uuid.uuid4().hex  # as no other: it is not used again
    return kept_evaluation(path, plan, key, PolicyEvaluation, work)


def is_evaluated(source: PolicySource, plan: EvaluationPlan, path: Path) -> bool:
    """Whether `path` holds the evaluation of this policy by this plan.

    That is never known of a user's class without a `key`.
    """
    record = read_record(path) or {}
    return record.get("key") == evaluation_key(plan, plan.key(source))


def reference_files(plan: EvaluationPlan, folder: Path) -> tuple[Path, ...]:
    """The files that `with_references` leaves in a folder; none where the task has references."""
    if plan.known_references() is not None:
        return ()
    return tuple(folder / f"{name}.json" for name in (EXPERT, plan.baseline) if name)


def with_references(
    plan: EvaluationPlan, folder: Path, reporter: Reporter, expert: str = ""
) -> tuple[EvaluationPlan, References]:
    """The plan with its references, and these; measured here unless the task has them.

    Args:
        folder: in which these evaluations are kept; expert: empty for the task's own.
    """
    if (references := plan.known_references()) is not None:
        return replace(plan, references=references), references

    def return_of(name: str, policy: str) -> float:
        source = replace(plan.source(policy), name=name)
        return evaluate_policy(source, plan, reporter, folder / f"{name}.json").return_

    best = expert or plan.expert
    zero = return_of(plan.baseline, plan.baseline) if plan.baseline else 0.0
    references = References(zero, return_of(EXPERT, best), best)
    return replace(plan, references=references), references


def _evaluated(source: PolicySource, plan: EvaluationPlan, reporter: Reporter) -> PolicyEvaluation:
    started = time.perf_counter()
    with reporter.step(f"evaluate {source.name}", plan.work(), plan.unit) as advance:
        cells, parameters = plan.roll_out(source, lambda n: advance(n, ""))
    wall_s = time.perf_counter() - started
    latency = control_latency(plan.load(source, 1)[0], plan.observations(source))
    return measured(source, plan, cells, parameters, wall_s, latency)


def control_latency(
    policy: Policy | TaskPolicy, observations: Sequence[Any], repeats: int = LATENCY_REPEATS
) -> tuple[float, float]:
    """Median and 99th percentile of one `act` with one robot, in microseconds, on one thread.

    Array conversions count; the simulator does not.
    """
    times = np.empty(repeats + repeats // 4)
    with torch_threads(1):
        policy.reset(np.arange(1))
        for i in range(len(times)):
            observation = observations[i % len(observations)]
            start = time.perf_counter()
            policy.act(observation)
            times[i] = time.perf_counter() - start
    median, p99 = np.percentile(times[repeats // 4 :], [50, 99]) * 1e6
    return float(median), float(p99)
