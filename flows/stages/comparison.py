"""A comparison of models: trained with one budget on the same episodes, evaluated on the same.

Runs, their errors on the held-out episodes and their evaluations are kept: the next call resumes an
interrupted comparison, or adds models and seeds to a finished one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from collectors.experts.expert import DEFAULT_EXPERT, load_expert
from collectors.legged.evaluation import EvaluationGrid
from collectors.legged.observations import POLICY_SLICES
from collectors.robots.robot import load_robot
from collectors.scenarios.skills import SKILLS
from collectors.scenarios.terrains import TERRAINS
from datasets import Selection
from flows.progress import Reporter
from flows.records.records import kept_record, provenance, to_tree, write_record
from flows.stages.comparison_summary import summarise
from flows.stages.evaluate import EvaluatePlan, PolicySource, evaluate_once
from flows.stages.train import SelectPlan, TrainPlan, run_training
from learners.checkpoint import load_policy
from learners.models.registry import preset
from learners.training.config import TrainConfig
from learners.training.held_out import held_out_error, split_episodes

COMPARISON = "comparison.json"
GRID_EPISODES = 20

# A model's own settings; the others are the budget, the data, or how they are counted.
OWN_SETTINGS = (
    "model_overrides",
    "optimiser",
    "peak_lr",
    "warmup_fraction",
    "schedule",
    "weight_decay",
    "betas",
    "eps",
    "grad_clip",
    "precision",
    "ema_decay",
    "accumulate",
)
_SET_BY_THE_RUN = ("model", "seed", "model_overrides")


@dataclass(frozen=True)
class ComparedRun:
    """One model with one seed, and all settings of its training."""

    model: str
    seed: int
    config: TrainConfig

    @property
    def name(self) -> str:
        """The name of the run and of its folder."""
        return f"{self.model}-seed-{self.seed}"


@dataclass(frozen=True)
class ComparisonPlan:
    """What is compared.

    Attributes:
        select: the episodes to learn from, before some are held out.
        models: presets, see `gaitforge models`.
        seeds: of the weights and of the data's order; a run each. All runs hold out the same
            episodes.
        config: the settings that all runs share; not `model`, `model_overrides` and `seed`, which
            `models`, `own` and `seeds` set.
        own: `OWN_SETTINGS` of one model, e.g. {"transformer": {"peak_lr": 0.001}}.
        evaluate: the closed-loop episodes.
        expert: a name or file; returns are given as fractions of its return.

    Raises:
        ValueError: an unknown model or setting, or runs that could not be compared.
    """

    select: SelectPlan = field(default_factory=SelectPlan)
    models: tuple[str, ...] = ("fcnet", "transformer", "history-mlp", "mlp")
    seeds: tuple[int, ...] = (0, 1, 2)
    config: TrainConfig = field(default_factory=lambda: TrainConfig(split_seed=0))
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    evaluate: EvaluatePlan = field(default_factory=EvaluatePlan)
    expert: str = DEFAULT_EXPERT

    def __post_init__(self) -> None:
        check_runs(self.models, self.seeds)
        check_unchanged(self.config, TrainConfig(), _SET_BY_THE_RUN, "config")
        if self.config.split_seed is None or self.config.held_out_fraction == 0.0:
            raise ValueError(
                "compared runs need the same held-out episodes: a config.split_seed, and a "
                "config.held_out_fraction above 0"
            )
        check_own(self.own, self.models, OWN_SETTINGS)
        self.runs()

    def runs(self) -> list[ComparedRun]:
        """All runs in their order: every model before the next seed."""
        return [
            ComparedRun(model, seed, run_config(self.config, self.own, model, seed))
            for seed in self.seeds
            for model in self.models
        ]


def check_runs(models: Sequence[str], seeds: Sequence[int]) -> None:
    """Raise ValueError unless there are models and seeds, each once."""
    for name, values in (("models", models), ("seeds", seeds)):
        if not values or len(set(values)) < len(values):
            raise ValueError(f"a comparison needs {name}, each once; got {list(values)}")


def check_unchanged(given: Any, default: Any, names: Sequence[str], where: str) -> None:
    """Raise ValueError if a field that the comparison itself sets was given."""
    for name in names:
        if getattr(given, name) != getattr(default, name):
            raise ValueError(f"{where}.{name} is set by the comparison itself")


def check_own(own: Any, models: Collection[str], settings: Sequence[str]) -> None:
    """Raise ValueError unless `own` is {model: {setting: value}} of these models and settings."""
    for each in (own, *(own.values() if isinstance(own, Mapping) else ())):
        if not isinstance(each, Mapping):
            raise ValueError('own must be like {"transformer": {"peak_lr": 0.001}}')
    for model, given in own.items():
        if model not in models:
            raise ValueError(f"own: no model {model!r}; models: {', '.join(models)}")
        for name in given:
            if name not in settings:
                raise ValueError(
                    f"own: {model} cannot have its own {name}; settings: {', '.join(settings)}"
                )


def run_config(
    shared: TrainConfig, own: Mapping[str, Mapping[str, Any]], model: str, seed: int, **fixed: Any
) -> TrainConfig:
    """The training of one run.

    Raises:
        ValueError: settings that do not exist.
    """
    given = own.get(model, {})
    try:
        config = replace(shared, model=model, seed=seed, **fixed, **given)
        preset(model, config.model_overrides)
    except TypeError as error:
        raise ValueError(f"the own settings of {model}, {dict(given)}: {error}") from None
    return config


def comparison_grid(selection: Selection, episodes: int = GRID_EPISODES) -> EvaluationGrid:
    """The terrains and skills of the selected episodes, at the middle one of their levels.

    Raises:
        ValueError: terrains or skills that this program cannot simulate.
    """
    table = selection.episodes()

    def present(column: str, order: Mapping[str, Any]) -> tuple[str, ...]:
        found = set(table.column(column).to_pylist())
        return tuple(sorted(found, key=[*order, *sorted(found)].index))

    levels = np.unique(table.column("level").to_numpy())
    middle = int(levels[(len(levels) - 1) // 2])
    return EvaluationGrid(
        present("terrain", TERRAINS), present("skill", SKILLS), (middle,), episodes
    )


def run_comparison(
    plan: ComparisonPlan, store_path: Path | str, out: Path, reporter: Reporter
) -> dict[str, Any]:
    """Run or resume the comparison in `out`; returns what `comparison.json` holds.

    Raises:
        ValueError: no store or nothing selected, data that this program's simulator does not fit,
            or an `out` that cannot be written or holds runs with other settings.
    """
    selection = plan.select.select(store_path)
    _check_control(plan, selection)
    episodes = split_episodes(plan.config, selection)
    held_out = episodes.held_out
    assert held_out is not None, "a plan holds some episodes out"
    # First: it takes no training, and shows whatever is wrong with the evaluation.
    expert = evaluate_once(
        PolicySource("expert", expert=plan.expert),
        plan.evaluate,
        out / "evaluate" / "expert.json",
        reporter,
    )
    runs = [_run(run, plan, store_path, held_out, out, reporter) for run in plan.runs()]
    record = {
        "plan": asdict(plan),
        "store": Path(store_path).name,
        "dataset": selection.store.info(),
        "selection": selection.hash,
        "control_dt_s": selection.store.schema.control_dt_s,
        "trained_on": {"episodes": len(episodes.train), "steps": episodes.train.steps},
        "held_out": {
            "episodes": len(held_out),
            "steps": held_out.steps,
            "selection": held_out.hash,
        },
        **summarise(plan.models, runs, expert),
        **provenance(),
    }
    write_record(out / COMPARISON, record)
    return to_tree(record)


def _check_control(plan: ComparisonPlan, selection: Selection) -> None:
    """Refuse data that can be trained on but not evaluated on."""
    schema = selection.store.schema
    slices = schema.field("obs").slices
    if {name: tuple(each) for name, each in (slices or {}).items()} != POLICY_SLICES:
        raise ValueError(
            "the store's observation is not the one that this program's simulator makes, so no "
            "policy that reads it can be evaluated"
        )
    driven = load_expert(plan.expert).policy.robot
    robot = load_robot(plan.evaluate.robot or schema.robot)
    if robot.name != driven.name:
        raise ValueError(
            f"expert {plan.expert} drives {driven.name}, but the models drive {robot.name}; give "
            "an expert of that robot"
        )


def _run(
    run: ComparedRun,
    plan: ComparisonPlan,
    store_path: Path | str,
    held_out: Selection,
    out: Path,
    reporter: Reporter,
) -> dict[str, Any]:
    """Train, test and evaluate one run, as far as that is not done yet."""
    folder = out / "train" / run.name
    trained = run_training(TrainPlan(plan.select, run.config), store_path, folder, reporter)
    source = PolicySource(run.name, folder)
    tested = _test_once(source, held_out, out / "test" / f"{run.name}.json", reporter)
    path = out / "evaluate" / f"{run.name}.json"
    evaluated = evaluate_once(source, plan.evaluate, path, reporter)
    return {
        "run": run.name,
        "model": run.model,
        "seed": run.seed,
        "parameters": trained.parameters,
        "steps": trained.steps,
        "control_steps": trained.control_steps,
        "train_s": trained.train_s,
        "test_mse": tested["mse"],
        "evaluation": evaluated,
    }


def _test_once(
    source: PolicySource, held_out: Selection, path: Path, reporter: Reporter
) -> dict[str, Any]:
    """The error on the held-out episodes, unless `path` already holds that of these weights."""
    run = source.run
    assert run is not None, "a comparison tests what it trained"

    def make() -> dict[str, Any]:
        policy = load_policy(run, which=source.which)
        with reporter.step(f"test {source.name}", held_out.steps, "step") as advance:
            return asdict(held_out_error(policy, held_out, lambda n: advance(n, "")))

    key = {"held_out": held_out.hash, "weights": source.key()}
    return kept_record(path, key, ("mse",), make)
