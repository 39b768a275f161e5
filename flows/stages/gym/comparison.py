"""A comparison of return-conditioned models on D4RL's sets of a task.

All runs have the same number of updates and windows and the same evaluation. Several processes may
work in one folder: a lock gives each run to one of them.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

from collectors.gym.tasks import find_task, package_version
from datasets import StoreInfo, open_store
from datasets.formats.d4rl.tasks import TASKS as D4RL_TASKS
from flows.progress import Reporter
from flows.records.records import digest, held_lock, provenance, read_record, to_tree, write_record
from flows.stages.comparison.runs import (
    COMPARISON,
    ComparedModels,
    ComparedRun,
    Row,
    check_unchanged,
    train_once,
)
from flows.stages.gym import evaluation as scoring
from flows.stages.gym.comparison_summary import set_quality, summarise
from flows.stages.train import SelectPlan
from learners.models.registry import PRESETS
from learners.training.config import TrainConfig
from learners.training.objectives import OBJECTIVES

RUNS = "runs"
COMPLETE = "terminated or truncated"
"""Episodes that were cut off are left out: their return-to-go is unknown."""

D4RL_SETS: Mapping[str, Sequence[str]] = {
    "medium": ("medium",),
    "medium-replay": ("medium-replay",),
    "medium-expert": ("medium", "expert"),
}
PUBLISHED_TARGETS = {"medium": 1.0, "medium-replay": 1.0, "medium-expert": 1.15}
"""Tan et al. 2024 (FCNet), Table 4, in units of the expert's return."""
OTHER_TARGET = 1.0
"""Of any other set."""

OURS, FROM_D4RL, FROM_ELSEWHERE = "gymnasium", "d4rl", ""
"""The data's source, by the store's attribute `format`."""


def _shared_settings() -> TrainConfig:
    return TrainConfig(objective="return", steps=5000, validation_every=1000, split_seed=0)


def _own_settings() -> dict[str, Any]:
    # Chen et al. 2021, Appendix A: on Gym's tasks the context is 20 steps, here and in training.
    return {"dt": {"model_overrides": {"context_len": 20}, "window_len": 20}}


@dataclass(frozen=True)
class GymComparisonPlan(ComparedModels):
    """What is compared; a run learns from one of the sets.

    Attributes:
        own: also "objective" and "window_len" (all models see as many windows, not steps).
        env: the task's environment.
        sets: set -> qualities of the store whose episodes it holds.
        return_targets: set -> return target in units of the expert's measured return; default
            `PUBLISHED_TARGETS`, else `OTHER_TARGET`.
        evaluate: the closed-loop episodes; not its `env`, `return_target` and `references`.
        policies: folder of the experts' training, whose measured returns normalise; empty for the
            store's own reference returns.
        only: the sets to run in this call; empty for all.
    """

    own_settings = (*ComparedModels.own_settings, "objective", "window_len")
    set_by_run = (*ComparedModels.set_by_run, "return_scale")

    models: tuple[str, ...] = ("fcnet", "dt")
    config: TrainConfig = field(default_factory=_shared_settings)
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=_own_settings)
    env: str = "Hopper-v5"
    sets: Mapping[str, Sequence[str]] = field(default_factory=lambda: dict(D4RL_SETS))
    return_targets: Mapping[str, float] = field(default_factory=dict)
    evaluate: scoring.GymEvaluationPlan = field(default_factory=scoring.GymEvaluationPlan)
    policies: str = ""
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        find_task(self.env)
        super().__post_init__()
        self._check_sets()
        given = ("env", "return_target", "references")
        check_unchanged(self.evaluate, scoring.GymEvaluationPlan(), given, "evaluate")

    def own_models(self) -> Collection[str]:
        """See `ComparedModels.own_models`: any, as Decision Transformer has its own by default."""
        return PRESETS

    def runs(self) -> list[ComparedRun]:
        """The runs of this call in their order: every set and model before the next seed."""
        return [
            ComparedRun(model, seed, set_name)
            for seed in self.seeds
            for set_name in self.chosen()
            for model in self.models
        ]

    def chosen(self) -> tuple[str, ...]:
        """The sets of this call."""
        return self.only or tuple(self.sets)

    def return_target(self, set_name: str) -> float:
        """The return target of a set."""
        return float((PUBLISHED_TARGETS | dict(self.return_targets)).get(set_name, OTHER_TARGET))

    def shared(self) -> dict[str, Any]:
        """What compared runs must have in common, beside the data (`_Data`)."""
        shared = asdict(self)
        for name in ("models", "seeds", "only", "policies"):
            del shared[name]
        return shared | {"return_targets": {name: self.return_target(name) for name in self.sets}}

    def _check_sets(self) -> None:
        like = 'sets must be like {"medium-expert": ["medium", "expert"]}'
        if not isinstance(self.sets, Mapping) or not self.sets:
            raise ValueError(f"{like}; got {self.sets}")
        for name, qualities in self.sets.items():
            if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name):
                raise ValueError(f"a set's name is letters, digits, '_', '-' and '.'; got {name!r}")
            listed = isinstance(qualities, list | tuple) and len(qualities) > 0
            if not listed or not all(isinstance(quality, str) for quality in qualities):
                raise ValueError(f"{like}; see {name}")
        targets = self.return_targets
        if not isinstance(targets, Mapping):
            raise ValueError(f'return_targets must be like {{"medium": 1.0}}; got {targets}')
        for name, target in targets.items():
            if type(target) not in (int, float) or not isfinite(target):
                raise ValueError(f"return_targets needs a finite number for {name}, not {target}")
        if unknown := [name for name in (*targets, *self.only) if name not in self.sets]:
            raise ValueError(f"no set {', '.join(unknown)}; allowed: {', '.join(self.sets)}")


@dataclass(frozen=True)
class _Data:
    """A comparison's store, the sets of this call, and the returns to normalise by.

    `recorded_by` is one of OURS, FROM_D4RL and FROM_ELSEWHERE; `simulation` is what evaluates.
    """

    store_path: Path | str
    selects: Mapping[str, SelectPlan]
    quality: Mapping[str, Row]
    references: scoring.ReferenceReturns
    dataset: StoreInfo
    recorded_by: str
    simulation: str


def run_gym_comparison(
    plan: GymComparisonPlan, store_path: Path | str, out: Path, reporter: Reporter
) -> Row:
    """Run or resume the comparison in `out`; returns what `comparison.json` holds.

    It also has the runs of other calls with the same settings; `left_out` names the other runs.

    Raises:
        ValueError: no store, nothing in a set, data of another task, no measured returns, or an
            `out` that cannot be written or holds such a run with other settings.
    """
    data = _open(plan, store_path)
    key = digest([plan.shared(), data.dataset.hash, data.references, data.simulation])
    for run in plan.runs():
        lock = run.folder(out).with_name(f".{run.name}.lock")
        with held_lock(
            lock, reporter, f"{run.name}: waiting for another process, which works on it"
        ):
            row = _run(run, plan, data, out, reporter)
            record = to_tree({"key": key, "data": data.quality[run.set_name], **row})
            path = out / RUNS / f"{run.name}.json"
            if changed := read_record(path) != record:
                write_record(path, record)
        if changed:
            _gather(plan, data, key, out)
    return _gather(plan, data, key, out)


def _open(plan: GymComparisonPlan, store_path: Path | str) -> _Data:
    """Open and check the data before anything is trained."""
    store, task = open_store(store_path), find_task(plan.env)
    if store.schema.robot in D4RL_TASKS and store.schema.robot != task.name:
        raise ValueError(f"{store_path} is of {store.schema.robot}, but {plan.env} is {task.name}")
    known = scoring.stored_references(store.schema)
    if plan.policies:
        known = scoring.measured_references(plan.policies, plan.env)
    if known is None:
        raise ValueError(
            f"{store_path} has no reference returns of a random policy and an expert; give the "
            "folder of the experts' training"
        )
    selects, quality = {}, {}
    column = store.schema.group_by[1]
    found = set(store.select().where(COMPLETE).episodes().column(column).to_pylist())
    for name in plan.chosen():
        if missing := [each for each in plan.sets[name] if each not in found]:
            raise ValueError(f"set {name} has no finished episode of {column} {', '.join(missing)}")
        quoted = ", ".join("'" + each.replace("'", "''") + "'" for each in plan.sets[name])
        chosen = f'"{column}" in ({quoted})'
        selects[name] = SelectPlan(where=f"({COMPLETE}) and {chosen}")
        selected, every = (
            select.select(store_path) for select in (selects[name], SelectPlan(where=chosen))
        )
        quality[name] = set_quality(every, selected, known, plan.sets[name])
    source = store.schema.attributes.get("format")
    recorded_by = source if source in (OURS, FROM_D4RL) else FROM_ELSEWHERE
    simulation = package_version(task)
    return _Data(store_path, selects, quality, known, store.info(), recorded_by, simulation)


def _run(
    run: ComparedRun, plan: GymComparisonPlan, data: _Data, out: Path, reporter: Reporter
) -> Row:
    """Train and evaluate one run, as far as that is not done yet."""
    zero, expert = plan.config.return_zero, data.references.expert
    if zero is None:
        zero = data.references.random
    config = plan.train_config(run.model, run.seed, return_scale=expert, return_zero=zero)
    row = train_once(run, config, data.selects[run.set_name], data.store_path, out, reporter)
    target = plan.return_target(run.set_name)
    known = {"env": plan.env, "return_target": target, "references": data.references}
    evaluation = replace(plan.evaluate, **known)
    source = scoring.GymSource(run.name, run.folder(out))
    evaluated = scoring.evaluate_gym(source, evaluation, reporter, run.record(out, "evaluate"))
    best, asked_best = data.quality[run.set_name]["return_best"], evaluated
    if OBJECTIVES[config.objective].tokens == "return":
        asking = replace(evaluation, return_target=(best - zero) / (expert - zero))
        path = run.record(out, "evaluate", "-asked-best")
        asked_best = scoring.evaluate_gym(source, asking, reporter, path)
    return {
        **row,
        "set": run.set_name,
        "kind": PRESETS[run.model].kind,
        "objective": config.objective,
        "window_len": config.window_len,
        "return_target": target,
        "simulation": evaluated.simulation,
        "return": evaluated.return_.mean,
        "length": evaluated.length.mean,
        "normalised": evaluated.normalised.mean,
        "d4rl_normalised": evaluated.d4rl_normalised.mean,
        "normalised_asked_best": asked_best.normalised.mean,
        "success": evaluated.success,
        "return_std_over_episodes": evaluated.return_.std,
    }


def _gather(plan: GymComparisonPlan, data: _Data, key: str, out: Path) -> Row:
    """Write `comparison.json` from the runs on the disk.

    Repeated until it holds them all: another process may finish a run in between.
    """
    written = None
    while (record := _record(plan, data, key, out)) != written:
        write_record(out / COMPARISON, record)
        written = record
    return record


def _record(plan: GymComparisonPlan, data: _Data, key: str, out: Path) -> Row:
    found = [read_record(path) for path in sorted((out / RUNS).glob("*.json"))]
    rows = [row for row in found if row is not None]
    record = {
        "plan": plan.shared(),
        "env": plan.env,
        "task": find_task(plan.env).name,
        "store": Path(data.store_path).name,
        "dataset": data.dataset,
        "recorded_by": data.recorded_by,
        "references": data.references,
        **summarise(plan.sets, [row for row in rows if row["key"] == key]),
        "left_out": [row["run"] for row in rows if row["key"] != key],
        **provenance(),
    }
    return to_tree(record)
