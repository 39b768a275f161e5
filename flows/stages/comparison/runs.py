"""What comparisons share: the checked plan, its runs, and means over seeds."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, ClassVar

from gaitforge.flows.progress import Reporter
from gaitforge.flows.stages.train import SelectPlan, TrainPlan, run_training
from gaitforge.learners.models.registry import preset
from gaitforge.learners.training.config import TrainConfig

COMPARISON = "comparison.json"

Row = dict[str, Any]


@dataclass(frozen=True)
class ComparedRun:
    """One model with one seed."""

    model: str
    seed: int

    @property
    def name(self) -> str:
        """The name of the run and of its files."""
        return f"{self.model}-seed-{self.seed}"

    def folder(self, out: Path) -> Path:
        """The training run's folder, in the comparison's."""
        return out / "train" / self.name

    def record(self, out: Path, kind: str) -> Path:
        """The file of its evaluation or test."""
        return out / kind / f"{self.name}.json"


@dataclass(frozen=True)
class ComparedModels:
    """Models and seeds that are trained with one budget.

    Attributes:
        own_settings: what one model may have for itself; the other settings are the budget, the
            data, or how they are counted.
        set_by_run: settings of the training that the comparison itself sets.
        models: presets, see `gaitforge models`.
        seeds: of the weights and of the data's order; a run each.
        config: the settings that all runs share.
        own: settings of one model, e.g. {"transformer": {"peak_lr": 0.001}}.
    """

    own_settings: ClassVar[tuple[str, ...]] = (
        *("model_overrides", "optimiser", "peak_lr", "warmup_fraction", "schedule"),
        *("weight_decay", "betas", "eps", "grad_clip", "precision", "ema_decay", "accumulate"),
        "prefix_len",
    )
    set_by_run: ClassVar[tuple[str, ...]] = ("model", "seed", "model_overrides")

    models: tuple[str, ...] = ("fcnet", "transformer", "history-mlp", "mlp")
    seeds: tuple[int, ...] = (0, 1, 2)
    config: TrainConfig = field(default_factory=lambda: TrainConfig(split_seed=0))
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, values in (("models", self.models), ("seeds", self.seeds)):
            if not values or len(set(values)) < len(values):
                raise ValueError(f"a comparison needs {name}, each once; got {list(values)}")
        check_unchanged(self.config, TrainConfig(), self.set_by_run, "config")
        if self.config.split_seed is None:
            raise ValueError("compared runs need the same held-out episodes: a config.split_seed")
        self._check_own(self.own)
        for seed in self.seeds:
            for model in self.models:
                self.train_config(model, seed)

    def own_names(self) -> Collection[str]:
        """The settings that `own` may have."""
        return self.own_settings

    def settings_of(self, model: str) -> Mapping[str, Any]:
        """The settings of one model."""
        return self.own.get(model, {})

    def train_config(self, model: str, seed: int, **fixed: Any) -> TrainConfig:
        """All settings of one run's training; `fixed` are set by the comparison.

        Raises:
            ValueError: settings that do not exist.
        """
        given = self.settings_of(model)
        try:
            config = replace(self.config, model=model, seed=seed, **fixed, **given)
            preset(model, config.model_overrides)
        except TypeError as error:
            raise ValueError(f"the own settings of {model}, {dict(given)}: {error}") from None
        return config

    def _check_own(self, own: Any) -> None:
        for each in (own, *(own.values() if isinstance(own, Mapping) else ())):
            if not isinstance(each, Mapping):
                raise ValueError('own must be like {"transformer": {"peak_lr": 0.001}}')
        for model, given in own.items():
            if model not in self.models:
                allowed = ", ".join(self.models)
                raise ValueError(f"own: no model {model!r}; allowed: {allowed}")
            allowed = self.own_names()
            if alien := [name for name in given if name not in allowed]:
                raise ValueError(
                    f"own: {model} cannot have its own {alien[0]}; allowed: {', '.join(allowed)}"
                )


def check_unchanged(given: Any, default: Any, names: Iterable[str], where: str) -> None:
    """Raise ValueError if a field that the comparison itself sets was given."""
    for name in names:
        if getattr(given, name) != getattr(default, name):
            raise ValueError(f"{where}.{name} is set by the comparison itself")


def train_once(
    run: ComparedRun,
    config: TrainConfig,
    select: SelectPlan,
    store: Path | str,
    out: Path,
    reporter: Reporter,
) -> Row:
    """Train one run of a comparison, or resume it; returns its columns in the table."""
    trained = run_training(TrainPlan(select, config), store, run.folder(out), reporter)
    return {
        "run": run.name,
        "model": run.model,
        "seed": run.seed,
        "parameters": trained.parameters,
        "steps": trained.steps,
        "control_steps": trained.control_steps,
        "train_s": trained.train_s,
        "validation_loss": trained.validation_loss,
    }


def over_seeds(rows: Sequence[Row], measures: Iterable[str]) -> Row:
    """{measure: {"mean", "std"}} over the rows."""
    return {name: mean_and_std([row[name] for row in rows]) for name in measures}


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation."""

    mean: float | None
    std: float | None


def mean_and_std(values: Sequence[float | None]) -> Spread:
    """Mean and sample standard deviation; None where a value is missing, or for too few values."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known or len(known) < len(values):
        return Spread(None, None)
    return Spread(fmean(known), stdev(known) if len(known) > 1 else None)
