"""Training or averaging of experts, measures of the result, and evaluation on several robots.

The result is an expert's weights and their card.

`evaluate_bodies` evaluates a policy on several robots, beside each robot's own expert.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from gaitforge.collectors.experts.expert import average_experts, robots_of_expert
from gaitforge.collectors.experts.ppo import WEIGHTS, ExpertTrainingConfig, train_expert
from gaitforge.collectors.experts.ppo_algorithm import trained_steps
from gaitforge.collectors.legged.rollout import EvaluationGrid
from gaitforge.collectors.robots.robot import RobotCard, load_robots
from gaitforge.collectors.scenarios.skills import SKILLS
from gaitforge.collectors.scenarios.terrains import TERRAINS
from gaitforge.common.files import write_bytes_durably
from gaitforge.datasets.layout import check_outside_stores
from gaitforge.flows.intervals import ratio
from gaitforge.flows.progress import Reporter, from_totals
from gaitforge.flows.records.plans import PLAN
from gaitforge.flows.records.records import provenance, training_lock, write_record
from gaitforge.flows.stages.evaluate import evaluate_policy
from gaitforge.flows.tasks.evaluation import EvaluationPlan
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.flows.tasks.policy_sources import EXPERT, RUN, PolicySource
from gaitforge.learners.actor_critic import RegistryModel, RegistryNetworks


# A policy on several robots, beside each robot's own expert.
@dataclass(frozen=True)
class BodyResult:
    """Means over the cells of a grid on one robot; shares are of its own expert's return.

    Without an expert `expert_return` and `share` are None; beside a return of at most 0 `share` is.
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
            share = ratio(evaluation.return_, theirs)
            result = replace(result, expert_return=theirs, share=share)
        results.append(result)
    return results


# Training or averaging of experts.
CARD_GRID = EvaluationGrid(tuple(TERRAINS), tuple(SKILLS), levels=(1, 4, 8), episodes=200)
"""Grid of the card's table: easy, middle and hard levels, fully randomised, held-out tiles."""

CARD_BODIES = 8
"""Most bodies of a family in the card of its expert."""

_OF_EPISODES = ("episode_s", "rewards")
"""Settings that a training shares with its policy's evaluation."""

TABLE_EVERY = 20
"""Updates between tables of success and survival."""


def run_expert_training(
    config: ExpertTrainingConfig,
    out: Path,
    reporter: Reporter,
    grid: EvaluationGrid | None = CARD_GRID,
) -> Path:
    """Train an expert in `out`, or resume the training there; returns its weights.

    The card lies beside the weights; `history.jsonl` has a line for each update.

    Args:
        grid: what the card's table is measured on; None for a card without one.

    Raises:
        ValueError: another process trains in `out`, or as `train_expert`.
        Stopped: (a KeyboardInterrupt) by a signal, after saving a checkpoint.
    """
    with training_lock(out):
        weights, card = _train(config, out, reporter)
        write_record(weights.with_suffix(".json"), card | provenance())
        if grid is not None:
            cells = config.terrains or grid.terrains, config.skills or grid.skills
            grid = replace(grid, terrains=cells[0], skills=cells[1])
            _measure(weights, card, config.threads, reporter, grid)
    return weights


def average_into(
    names: Sequence[str],
    shares: Sequence[float],
    out: Path,
    threads: int,
    reporter: Reporter,
    grid: EvaluationGrid = CARD_GRID,
) -> Path:
    """Write and measure the mean of experts, see `average_experts`; returns its weights.

    Raises:
        ValueError: another process works in `out`, or as `average_experts`.
    """
    mean, card = average_experts(names, shares)
    with training_lock(out):
        weights = out / WEIGHTS
        write_bytes_durably(weights, save(mean))
        _measure(weights, card, threads, reporter, grid)
    return weights


def _measure(
    weights: Path, card: dict[str, Any], threads: int, reporter: Reporter, grid: EvaluationGrid
) -> None:
    """Write an expert's card with its table."""
    # The policy needs a card to be loaded, and measured.
    path = weights.with_suffix(".json")
    write_record(path, card | provenance())
    training = card.get("training", {})
    own = {name: training[name] for name in _OF_EPISODES if name in training}
    plan = LeggedEvaluation(grid=grid, threads=threads, **own)
    if weights.is_dir():
        source = PolicySource(weights.name, RUN, str(weights))
        plan = replace(plan, robot=card["robot"])
        bodies = load_robots(card["robot"])
    else:
        source = PolicySource(EXPERT, EXPERT, str(weights))
        bodies = robots_of_expert(str(weights))
    if len(bodies) == 1:
        evaluation = replace(evaluate_policy(source, plan, reporter), returns=())
        measured: dict[str, object] = {"evaluation": evaluation}
    else:
        sample = bodies[:: ceil(len(bodies) / CARD_BODIES)]
        plan = replace(plan, grid=replace(grid, episodes=ceil(grid.episodes / len(sample))))
        measured = {"bodies": evaluate_bodies(source, plan, sample, reporter)}
    write_record(path, card | provenance() | measured)


def _train(
    config: ExpertTrainingConfig, out: Path, reporter: Reporter
) -> tuple[Path, dict[str, Any]]:
    done = trained_steps(out)
    table = ProgressTable(config.terrains or TERRAINS, config.skills or SKILLS)
    with reporter.step("train expert", config.steps, "step", done) as advance:
        show = from_totals(advance, done)

        def report(row: dict[str, Any]) -> None:
            show(row["steps"], progress_note(row))
            table.add(row["cells"])
            if row["iteration"] % TABLE_EVERY == 0:
                reporter.say(table.take(row))

        networks = partial(
            TaskNetworks,
            _own_evaluation(config),
            _place(config.robot),
            reporter.say,
            config.model,
            config.model_overrides,
            action_filter=config.action_filter,
        )
        return train_expert(config, out, report, networks)


def _own_evaluation(config: ExpertTrainingConfig) -> LeggedEvaluation:
    """On what it was trained on."""
    cells = config.terrains or tuple(TERRAINS), config.skills or tuple(SKILLS)
    own = {name: getattr(config, name) for name in _OF_EPISODES}
    return LeggedEvaluation(grid=EvaluationGrid(*cells), robot=_place(config.robot), **own)


def _place(robot: str) -> str:
    """A robot's name, or its path from anywhere."""
    return str(Path(robot).resolve()) if Path(robot).exists() else robot


def progress_note(row: Mapping[str, Any]) -> str:
    """An update's means in a few words; those of episodes only where one ended."""
    level = f"level {row['level']:.1f}"
    if row["return"] is None:
        return level
    shares = f"survival {row['survival']:.0%}, success {row['success']:.0%}"
    return f"return {row['return']:.1f}, {shares}, {level}"


class ProgressTable:
    """Success and survival by terrain and skill, from the episodes of the last updates."""

    def __init__(
        self, terrains: Iterable[str] = tuple(TERRAINS), skills: Iterable[str] = tuple(SKILLS)
    ) -> None:
        self._terrains, self._skills = tuple(terrains), tuple(skills)
        self._sums: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(3))

    def add(self, cells: Mapping[str, Sequence[float]]) -> None:
        """Count an update's cells: {"terrain/skill": [success, survival, episodes]}."""
        for cell, (success, survival, episodes) in cells.items():
            self._sums[cell] += [success * episodes, survival * episodes, episodes]

    def take(self, row: Mapping[str, Any]) -> str:
        """The table as text, with the levels of an update's row; clears it."""
        head = f"success/survival in % while exploring, at {row['steps'] / 1e6:.2f} M steps"
        lines = [head, _line("", self._skills)]
        for terrain in self._terrains:
            texts = [self._text(f"{terrain}/{skill}") for skill in self._skills]
            lines.append(_line(terrain, texts))
        levels = [row["levels"].get(skill) for skill in self._skills]
        lines.append(_line("level", ["" if level is None else f"{level:.1f}" for level in levels]))
        self._sums.clear()
        return "\n".join(lines)

    def _text(self, cell: str) -> str:
        if cell not in self._sums:
            return ""
        success, survival, episodes = self._sums[cell]
        return f"{100 * success / episodes:.0f}/{100 * survival / episodes:.0f}"


def _line(name: str, cells: Iterable[str]) -> str:
    return f"{name:<10}{''.join(f'{cell:>9}' for cell in cells)}".rstrip()


class TaskNetworks(RegistryNetworks):
    """Networks in PPO whose saved actor is the run of a task, from the first checkpoint on.

    `RegistryNetworks` gets the other arguments.

    Args:
        evaluation: how the policy is evaluated if nothing else is said; robot: its robot's name or
            path, or the task's name; say: is told of masks that do not join all body parts.
    """

    def __init__(
        self,
        evaluation: EvaluationPlan,
        robot: str,
        say: Callable[[str], object],
        *arguments: Any,
        **settings: Any,
    ) -> None:
        super().__init__(*arguments, **settings)
        if note := self.note():
            say(note)
        self._record = {"task": evaluation.kind, "evaluation": evaluation, "robot": robot}

    def save(self, actor: RegistryModel, folder: Path, card: Mapping[str, Any]) -> Path:
        """See `RegistryNetworks.save`."""
        write_record(folder / PLAN, self._record | provenance())
        return super().save(actor, folder, card)
