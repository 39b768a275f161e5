"""The plan of a pipeline, and its presets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gaitforge.collectors.legged.data import COLLECTION_PRESETS
from gaitforge.collectors.legged.evaluation import EvaluationGrid
from gaitforge.collectors.scenarios.skills import SKILLS
from gaitforge.collectors.scenarios.terrains import TERRAINS
from gaitforge.collectors.timing import EPISODE_STEPS
from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.records.records import to_tree
from gaitforge.flows.settings import with_chosen
from gaitforge.flows.stages.train import SelectPlan
from gaitforge.flows.tasks.legged import LeggedPlan, legged_plan
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.learners.models.registry import preset
from gaitforge.learners.training.config import TrainConfig

Models = Mapping[str, Mapping[str, Any]]

# A window is a whole episode, so every step has its full history. A training takes a minute.
_FCNET_BUDGET = {
    "steps": 3000,
    "batch_size": 8,
    "window_len": EPISODE_STEPS,
    "peak_lr": 8e-3,
    "warmup_fraction": 0.2,
    "ema_decay": 0.995,
}
_DEMO_MODELS: Models = {
    "fcnet": _FCNET_BUDGET,
    "bot": {"steps": 3000},
    "fcnet_rc": {"model": "fcnet", "objective": "return", **_FCNET_BUDGET},
}


@dataclass(frozen=True)
class CorrectionsPlan:
    """A round of DAgger before the trainings, see `stages.dagger`.

    Attributes:
        config: of the training, on the collected episodes, of the policy that then drives.
        collect: what it drives in; the expert labels.
    """

    config: TrainConfig
    collect: LeggedPlan


@dataclass(frozen=True)
class PipelinePlan:
    """What is collected, learned from it and evaluated.

    Attributes:
        corrections: None for none.
        select: the episodes to learn from.
        models: name -> settings of its training, in place of those recommended for the model of
            that name (or for the setting `model`).
        seeds: of the trainings; a run of every model for each.
        evaluate: the episodes for the expert and every run.
    """

    collect: LeggedPlan = field(default_factory=LeggedPlan)
    corrections: CorrectionsPlan | None = None
    select: SelectPlan = field(default_factory=SelectPlan)
    models: Models = field(default_factory=lambda: {"fcnet": {}, "bot": {}})
    seeds: tuple[int, ...] = (0,)
    evaluate: LeggedEvaluation = field(default_factory=LeggedEvaluation)

    def __post_init__(self) -> None:
        for name, values in (("models", list(self.models)), ("seeds", self.seeds)):
            if not values or len(set(values)) < len(values):
                raise ValueError(f"a pipeline needs {name}, each once; got {list(values)}")
        for name in self.models:
            if not name.replace("-", "").replace("_", "").isalnum() or name in ("expert", "first"):
                raise ValueError(f"models: '{name}' cannot be a run's name; letters, digits, - _")
        for config in self.runs().values():
            preset(config.model, config.model_overrides)

    def runs(self) -> dict[str, TrainConfig]:
        """Name -> training of every run: every model before the next seed."""
        return {
            self.run_name(model, seed): self._config(model, seed)
            for seed in self.seeds
            for model in self.models
        }

    def run_name(self, model: str, seed: int) -> str:
        """The name of a run: the model's where there is one seed."""
        return model if len(self.seeds) == 1 else f"{model}-seed-{seed}"

    def _config(self, model: str, seed: int) -> TrainConfig:
        given = self.models[model]
        if not isinstance(given, Mapping) or "seed" in given:
            raise ValueError(f'models must be like {{"{model}": {{"steps": 500}}}}, without seeds')
        base = TrainConfig.recommended(given.get("model", model), seed=seed)
        try:
            return plan_from_tree(TrainConfig, {**to_tree(base), **to_tree(given)})
        except ValueError as error:
            raise ValueError(f"models: {model}: {error}") from None


def _demo() -> PipelinePlan:
    """Sizes fit two cores, seven minutes and 4 GiB."""
    grid = COLLECTION_PRESETS["demo"]
    first = TrainConfig.recommended("fcnet", **{**_FCNET_BUDGET, "steps": 1200})
    corrections = LeggedPlan(grid=replace(grid, parts=grid.parts // 2, seed=1000))
    return PipelinePlan(
        LeggedPlan(grid=grid),
        CorrectionsPlan(first, corrections),
        models=_DEMO_MODELS,
        evaluate=_evaluation(),
    )


def _evaluation() -> LeggedEvaluation:
    grid = EvaluationGrid(tuple(TERRAINS), tuple(SKILLS), levels=(4,), episodes=20)
    return LeggedEvaluation(grid=grid, robots=240)


def pipeline_plan(name: str = "demo") -> PipelinePlan:
    """The plan of a preset: "demo", or FCNet and BoT with three seeds on another collection's size.

    Raises:
        ValueError: no such preset.
    """
    if name not in COLLECTION_PRESETS:
        known = ", ".join(COLLECTION_PRESETS)
        raise ValueError(f"unknown preset '{name}'; allowed: {known}")
    if name == "demo":
        return _demo()
    collect = legged_plan(name, {}, {}, ())
    return PipelinePlan(collect, seeds=(0, 1, 2), evaluate=_evaluation())


def with_choices(
    plan: PipelinePlan,
    cells: Mapping[str, Any],
    top: Mapping[str, Any],
    config: Mapping[str, Any],
    models: Sequence[str] = (),
) -> PipelinePlan:
    """The plan with some values replaced; None leaves a value as it is.

    Args:
        cells: terrains, skills, levels of the collections and the evaluation, which is at the
            middle one of the levels; parts of the collection, episodes of the evaluation.
        top: expert and threads of all that simulates, seeds.
        config: settings of every training.
        models: in place of the plan's; one of its names keeps the plan's settings.
    """
    both = {name: cells.get(name) for name in ("terrains", "skills", "levels")}
    works = {name: top.get(name) for name in ("expert", "threads")}

    def collection(of: LeggedPlan, parts: int | None) -> LeggedPlan:
        return with_chosen(of, {"grid": with_chosen(of.grid, {**both, "parts": parts}), **works})

    levels = both["levels"] and (sorted(both["levels"])[(len(both["levels"]) - 1) // 2],)
    grid = {**both, "levels": levels, "episodes": cells.get("episodes")}
    settings = {name: value for name, value in config.items() if value is not None}
    known = {name: plan.models.get(name, {}) for name in models} or plan.models
    corrections = plan.corrections and replace(
        plan.corrections, collect=collection(plan.corrections.collect, None)
    )
    evaluate = {"grid": with_chosen(plan.evaluate.grid, grid), "threads": top.get("threads")}
    chosen = {
        "collect": collection(plan.collect, cells.get("parts")),
        "corrections": corrections,
        "models": {name: {**given, **settings} for name, given in known.items()},
        "evaluate": with_chosen(plan.evaluate, evaluate),
        "seeds": top.get("seeds"),
    }
    return with_chosen(plan, chosen)
