"""A policy evaluated on several robots, beside each robot's own expert."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.datasets.layout import check_outside_stores
from gaitforge.flows.progress import Reporter
from gaitforge.flows.stages.evaluate import evaluate_policy
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.flows.tasks.policy_source import EXPERT, PolicySource


@dataclass(frozen=True)
class BodyResult:
    """Means over the cells of a grid on one robot; shares are of its own expert's return.

    Without an expert `expert_return` and `share` are None.
    """

    robot: str
    return_: float
    success: float
    survival: float
    expert_return: float | None = None
    share: float | None = None


def evaluate_bodies(
    source: PolicySource,
    plan: LeggedEvaluation,
    robots: Sequence[RobotCard],
    reporter: Reporter,
    out: Path | None = None,
    experts: Mapping[str, str] | None = None,
) -> list[BodyResult]:
    """Evaluate a policy on robots, one after the other.

    Args:
        plan: its robot is replaced by each.
        out: folder that keeps each evaluation for the next call.
        experts: robot's name -> expert that is evaluated on the same episodes.

    Raises:
        ValueError: as `evaluate_policy`.
    """
    if out is not None:
        check_outside_stores(out).mkdir(parents=True, exist_ok=True)
    results = []
    for number, robot in enumerate(robots, start=1):
        robot_plan = replace(plan, robot=str(robot.path))
        reporter.say(f"{robot.name}, {number} of {len(robots)}")
        kept = out / f"{robot.name}.json" if out else None
        evaluation = evaluate_policy(source, robot_plan, reporter, kept)
        means = evaluation.return_, evaluation.success, evaluation.survival
        result = BodyResult(robot.name, *means)
        if expert := (experts or {}).get(robot.name):
            beside = PolicySource(EXPERT, EXPERT, expert)
            kept = out / f"{robot.name}.expert.json" if out else None
            theirs = evaluate_policy(beside, robot_plan, reporter, kept).return_
            result = replace(result, expert_return=theirs, share=evaluation.return_ / theirs)
        results.append(result)
    return results
