"""What a suite compares, and the suites that ship: `d4rl` and `legged-mixed`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

from gaitforge.collectors.legged.evaluation import EvaluationGrid
from gaitforge.collectors.scenarios.skills import SKILLS
from gaitforge.collectors.scenarios.terrains import TERRAINS
from gaitforge.collectors.timing import EPISODE_STEPS
from gaitforge.datasets.errors import listed
from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.records.records import to_tree
from gaitforge.flows.tasks.registry import evaluation_class
from gaitforge.learners.models.registry import preset
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.objectives import OBJECTIVES

Learners = Mapping[str, Mapping[str, Any]]

COMPLETE = "terminated or truncated"
"""Episodes that were cut off are left out: their return is unknown."""


@dataclass(frozen=True)
class SuitePlan:
    """Learners, the sets of episodes that they learn from, and how they are scored.

    Attributes:
        learners: name -> settings of its training, in place of those recommended for its `model`
            and `objective`; `best` is the share of each cell's episodes, by return, that it sees.
        sets: name -> SQL condition on the episodes' columns; "" for all.
        seeds: of the trainings, a run each.
        targets: what return-conditioned learners are asked for, in units of the best return among
            a set's episodes. The score is that of the first.
        evaluate: the tasks of the stores, each with settings of its evaluation in place of those
            that a store gives; empty for any task.
        expert: whose return scores 100, where the task has no references; empty for the task's own.
        episodes: of an evaluation, or of each of its cells; 0 for those of `evaluate`.
    """

    learners: Learners
    sets: Mapping[str, str] = field(default_factory=lambda: {"all": ""})
    seeds: tuple[int, ...] = (0, 1, 2)
    targets: tuple[float, ...] = (1.0,)
    evaluate: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    expert: str = ""
    episodes: int = 0

    def __post_init__(self) -> None:
        for name, given in (("learners", self.learners), ("sets", self.sets)):
            if not given or not all(re.fullmatch(r"\w[\w.-]*", each) for each in given):
                raise ValueError(
                    f"a suite needs {name}, whose names are letters, digits, '_', '-' and '.'; got "
                    f"{list(given)}"
                )
        for kind, given in self.evaluate.items():
            plan_from_tree(evaluation_class(kind), to_tree(given))
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"a suite needs seeds, each once; got {list(self.seeds)}")
        if not self.targets or not all(isfinite(each) for each in self.targets):
            raise ValueError(f"targets must be finite numbers, got {list(self.targets)}")
        for name in self.learners:
            self.config(name, 0)
            if not 0.0 < self.best(name) <= 1.0:
                raise ValueError(f"learners: {name}: best must lie in (0, 1]")

    def config(self, learner: str, seed: int, **fixed: Any) -> TrainConfig:
        """All settings of one run's training. Raises ValueError for settings that do not exist."""
        given = dict(self.learners[learner])
        given.pop("best", None)
        try:
            chosen = {name: given[name] for name in ("model", "objective") if name in given}
            base = TrainConfig.recommended(**chosen, seed=seed, split_seed=0)
            config = plan_from_tree(TrainConfig, {**to_tree(base), **to_tree(given), **fixed})
            preset(config.model, config.model_overrides)
        except ValueError as error:
            raise ValueError(f"learners: {learner}: {error}") from None
        return config

    def best(self, learner: str) -> float:
        """The share of each cell's episodes that a learner sees, the best by return."""
        return float(self.learners[learner].get("best", 1.0))

    def asked(self, learner: str) -> tuple[float | None, ...]:
        """The targets of a learner's evaluations; (None,) for one that takes no return."""
        objective = str(self.learners[learner].get("objective", "bc"))
        return self.targets if OBJECTIVES[objective].tokens == "return" else (None,)


# The policies of D4RL's papers: two hidden layers of 256 (ReBRAC: three), trained alike.
_MLP = {"model": "mlp", "model_overrides": {"hidden_dim": 256, "n_layers": 2}}
_ADAM = {
    "window_len": 1,
    "batch_size": 256,
    "optimiser": "adam",
    "peak_lr": 3e-4,
    "warmup_fraction": 0.0,
    "schedule": "constant",
    "weight_decay": 0.0,
}
# Chen et al. 2021, appendix A: on Gym's tasks the context is 20 steps.
_SHORT = {"model_overrides": {"context_len": 20}, "window_len": 20}


def _d4rl() -> SuitePlan:
    """The methods of the FCNet paper's Table 2 and later ones, on D4RL's sets.

    Each trains for about a minute of one core: at most 1 % of the papers' million updates.
    """
    updates = {
        "td3-bc": 5000,
        "iql": 5000,
        "awr": 3000,
        "cql": 500,
        "bear": 2000,
        "brac-v": 3000,
        "rebrac": 5000,
    }
    valued = {
        name: _MLP | {"objective": name, "batch_size": 256, "steps": steps}
        for name, steps in updates.items()
    }
    valued["awr"] |= {"batch_size": 8}  # windows of 32 steps
    valued["bear"] |= {"values": {"warm_up": 80}}  # the published share of the updates, 1 in 25
    learners: Learners = {
        "bc": _MLP | _ADAM | {"objective": "bc", "steps": 10_000},
        **valued,
        "dt": {"model": "dt", "objective": "return", "steps": 1000, **_SHORT},
        "dt-retnet": {"model": "retnet", "objective": "return", "steps": 1000},
        "fcnet": {"model": "fcnet", "objective": "return", "steps": 1000},
    }
    qualities = {
        "medium": ("medium",),
        "medium-replay": ("medium-replay",),
        "medium-expert": ("medium", "expert"),
    }
    sets = {name: f"quality in ({', '.join(map(repr, each))})" for name, each in qualities.items()}
    return SuitePlan(learners, sets, evaluate={"gym": {}}, targets=(1.0, 1.15))


def _legged_mixed() -> SuitePlan:
    """Imitation, filtered and return-conditioned, and two value-based methods, on mixed quality."""
    # Imitation learns the clean actions; values the executed ones, as their objectives recommend.
    shared = {"ema_decay": 0.995}
    # A window is a whole episode, so every step has its full history.
    fcnet = shared | {
        "model": "fcnet",
        "steps": 3000,
        "batch_size": 8,
        "window_len": EPISODE_STEPS,
        "peak_lr": 8e-3,
        "warmup_fraction": 0.2,
    }
    # Values need many updates, which a network of single steps makes in the same time.
    valued = shared | _MLP | {"batch_size": 256, "steps": 10_000}
    learners: Learners = {
        "bc": fcnet,
        **{f"bc-top{share}": fcnet | {"best": share / 100} for share in (50, 25, 10)},
        "fcnet": fcnet | {"objective": "return"},
        "dt": shared | {"model": "dt", "objective": "return", "steps": 2000, "batch_size": 16},
        "bot": shared | {"model": "bot", "objective": "return", "steps": 4000},
        "bc-mlp": shared | _MLP | _ADAM | {"steps": 10_000},
        "iql": valued | {"objective": "iql", "values": {"reward_scale": 1.0}},
        # Noise makes the range of actions wide, so that distances within it are small.
        "td3-bc": valued | {"objective": "td3-bc", "values": {"reward_scale": 16.0, "alpha": 0.02}},
    }
    grid = EvaluationGrid(tuple(TERRAINS), tuple(SKILLS), levels=(4,), episodes=4)
    return SuitePlan(
        learners,
        {"mixed": ""},
        targets=(1.0, 0.25, 0.5, 0.75),
        evaluate={"legged": {"grid": grid, "robots": 108, "threads": 1}},
    )


SUITES = {"d4rl": _d4rl, "legged-mixed": _legged_mixed}


def suite_plan(name: str) -> SuitePlan:
    """The plan of a suite that ships; ValueError lists them."""
    if name not in SUITES:
        raise ValueError(f"no suite {name!r}; allowed: {listed(SUITES)}")
    return SUITES[name]()


def chosen_suite(
    name: str,
    models: Sequence[str] = (),
    seeds: Sequence[int] = (),
    steps: int | None = None,
    episodes: int | None = None,
    expert: str = "",
) -> SuitePlan:
    """A suite with some of its learners and seeds, and other numbers of updates and episodes.

    Raises:
        ValueError: no such suite or learner.
    """
    plan = suite_plan(name)
    learners = dict(plan.learners)
    if lost := [model for model in models if model not in learners]:
        raise ValueError(f"suite {name} has no learner {lost[0]}; allowed: {listed(learners)}")
    learners = {each: learners[each] for each in models or learners}
    if steps is not None:
        learners = {each: {**given, "steps": steps} for each, given in learners.items()}
    return replace(
        plan,
        learners=learners,
        seeds=tuple(seeds) or plan.seeds,
        expert=expert or plan.expert,
        episodes=episodes or plan.episodes,
    )
