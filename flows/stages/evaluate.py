"""Closed-loop evaluation: any policy on the episodes of its task, once."""

import inspect
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge import collectors
from gaitforge.collectors.policy import Policy, TaskPolicy
from gaitforge.common.files import cache_folder, sha256_file
from gaitforge.common.trust import UntrustedCodeError, naming
from gaitforge.flows.intervals import ratio, ratio_interval
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.plans import PLAN, record_from_tree
from gaitforge.flows.records.records import (
    digest,
    evaluation_key,
    kept_evaluation,
    provenance,
    read_record,
    to_tree,
    write_record,
)
from gaitforge.flows.tasks.evaluation import EvaluationPlan, PolicyEvaluation, References, measured
from gaitforge.flows.tasks.policy_sources import EXPERT, RUN, PolicySource, recorded_expert
from gaitforge.learners.training.train import torch_threads

LATENCY_REPEATS = 1000
_COUNTED = (".py", ".xml", ".json")
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


# Beside another policy.
def compared_policy(
    source: PolicySource, plan: EvaluationPlan, against: str
) -> tuple[PolicySource, EvaluationPlan]:
    """The policy that another one is compared with, and the plan that it is evaluated by.

    Args:
        source: the other one; plan: its plan.
        against: "expert" for the one that collected the episodes that a run was trained on, or the
            robot's shipped one; or a policy, as `EvaluationPlan.source` takes it.

    Raises:
        ValueError: no such policy, or one of another robot.
    """
    shared = plan.comparable(source)
    try:
        if against != EXPERT:
            compared = shared.source(against)
        else:
            recorded = recorded_expert(source)
            with naming(source.folder / PLAN):
                compared = replace(shared.source(recorded or shared.usual_expert()), name=EXPERT)
        shared.key(compared)
    except UntrustedCodeError:
        raise
    except ValueError as error:
        raise ValueError(f"{error}; name another policy to compare with: --against") from error
    return compared, shared


def shared_evaluation(
    source: PolicySource, plan: EvaluationPlan, reporter: Reporter
) -> PolicyEvaluation:
    """The evaluation of a policy that several are compared with, from the user's cache if there.

    Its file's name is a hash of the weights, the plan, and all code and versions that the episodes
    depend on. A file that is damaged is made again.

    Raises:
        ValueError: as `evaluate_policy`.
    """
    made_by = {"content": plan.content(), "files": _own_files(type(plan)), **provenance()}
    made_by.pop("git_revision")  # of whatever repository the program is in
    key = digest({**evaluation_key(plan, plan.key(source)), **made_by, "name": source.name})
    path = cache_folder() / "evaluations" / f"{key}.json"
    kept = _intact(path) if source.is_known else None
    if kept is not None:
        return kept
    evaluation = evaluate_policy(source, plan, reporter)
    if source.is_known:
        with suppress(ValueError):  # the folder cannot be written
            write_record(path, {"evaluation": evaluation, "digest": digest(evaluation)})
    return evaluation


@cache
def _own_files(kind: type[EvaluationPlan]) -> str:
    """A hash of the files of the simulators, and of the task's folder."""
    folders = [Path(collectors.__file__).parent, Path(inspect.getfile(kind)).parent]
    files = [path for root in folders for path in root.rglob("*") if path.suffix in _COUNTED]
    return digest([[path.name, sha256_file(path)] for path in sorted(files)])


def _intact(path: Path) -> PolicyEvaluation | None:
    """The evaluation in a file, None where there is none that is whole."""
    with suppress(ValueError):
        record = read_record(path) or {}
        tree = record.get("evaluation")
        if tree is not None and record.get("digest") == digest(tree):
            return record_from_tree(PolicyEvaluation, tree)
    return None


def evaluate_beside(
    source: PolicySource,
    plan: EvaluationPlan,
    compared: tuple[PolicySource, EvaluationPlan] | None,
    reporter: Reporter,
    path: Path | None = None,
) -> tuple[PolicyEvaluation, PolicyEvaluation | None]:
    """`evaluate_policy`, and the evaluation of a `compared_policy` on the same episodes, if any."""
    evaluation = evaluate_policy(source, plan, reporter, path)
    return evaluation, shared_evaluation(*compared, reporter) if compared else None


def shares(record: Mapping[str, Any], compared: Mapping[str, Any], place: str) -> dict[str, Any]:
    """An evaluation's record with its return as a share of another policy's, as in summaries.

    Over all cells and of each one: `return_fraction`, None where the other return is not above 0,
    with its 95 % interval over the episodes, whose starts both share. `against` tells of the other
    one, which is at `place`.
    """
    grouped = any("group" in cell for cell in record["cells"])  # means may be over some alone
    interval = None if grouped else ratio_interval(record["returns"], compared["returns"])
    cells = [
        {
            **cell,
            "return_fraction": ratio(cell["return"], other["return"]),
            "return_fraction_ci95": ratio_interval([mine], [theirs]),
        }
        for cell, other, mine, theirs in zip(
            record["cells"],
            compared["cells"],
            record["returns"],
            compared["returns"],
            strict=True,
        )
    ]
    told = {name: compared[name] for name in ("policy", "return", "return_ci95", "success")}
    return to_tree(
        {
            **record,
            "cells": cells,
            "return_fraction": ratio(record["return"], compared["return"]),
            "return_fraction_ci95": interval,
            "against": {**told, "place": place},
        }
    )


# The policies that score 0 and 100.
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
        path = folder / f"{name}.json"
        return evaluate_policy(source, plan.undriven(), reporter, path).return_

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
