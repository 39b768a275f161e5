"""Training runs on selections of a store."""

from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gaitforge.collectors.robots.robot import ROBOTS
from gaitforge.common.limits import Whole, check_ranges
from gaitforge.datasets import Schema, Selection, open_store
from gaitforge.flows.progress import Reporter, from_totals, leads
from gaitforge.flows.records.plans import PLAN
from gaitforge.flows.records.records import provenance, training_lock, write_record
from gaitforge.flows.settings import with_named
from gaitforge.flows.tasks.registry import evaluation_of
from gaitforge.learners.checkpoint import CHECKPOINT
from gaitforge.learners.models.registry import preset
from gaitforge.learners.training.batches import training_fields
from gaitforge.learners.training.building import check_start, read_start, start_record
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.train import TrainResult, split_note, train
from gaitforge.learners.training.trainer import HistoryRow

_SHARE_SEED = 1_000_001
"""Seed of `SelectPlan.share`; differs from trainings' seeds, which split held-out episodes off."""


@dataclass(frozen=True)
class SelectPlan:
    """Which episodes of a store; empty means all.

    `where` is a boolean SQL expression over the catalog's columns; `best` the share with the
    highest returns of each terrain, skill and level, see `Selection.best`; `share` a random share
    of the episodes, which contains any smaller one; `first` takes so many episodes in the store's
    order; `saved` is a file of `Selection.save`, instead of terrain, skill and level; `parts` are
    the names of parts.
    """

    terrain: tuple[str, ...] = ()
    skill: tuple[str, ...] = ()
    level: tuple[int, ...] = ()
    where: str = ""
    saved: str = ""
    best: float = 1.0
    share: float = 1.0
    first: Whole = 0
    parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_ranges(self)

    def select(self, store_path: Path | str) -> Selection:
        """Open the store and select.

        Raises:
            ValueError: no store, unknown values, a bad expression, or nothing selected.
        """
        store = open_store(store_path)
        if self.saved and (self.terrain or self.skill or self.level):
            raise ValueError(
                "a saved selection has its terrains, skills and levels; only --where narrows it"
            )
        terrain, skill, level = (
            list(values) or None for values in (self.terrain, self.skill, self.level)
        )
        if self.saved:
            selection = Selection.load(store, self.saved)
        else:
            selection = store.select(terrain=terrain, skill=skill, level=level)
        if self.parts:
            selection = selection.of_parts(self.parts)
        if self.where:
            selection = selection.where(self.where)
        if self.best != 1.0:
            selection = selection.best(self.best)
        if self.share != 1.0:
            _, selection = selection.split(self.share, _SHARE_SEED)
        if self.first > len(selection):
            raise ValueError(
                f"the first {self.first} episodes are asked for, and {len(selection)} of "
                f"{store_path} are selected"
            )
        if self.first:
            selection = selection.with_rows(selection.rows[: self.first])
        if len(selection) == 0:
            raise ValueError(f"no episode of {store_path} is selected; widen the selection")
        return selection


@dataclass(frozen=True)
class TrainPlan:
    """A training run: what to learn from, and how."""

    select: SelectPlan = field(default_factory=SelectPlan)
    config: TrainConfig = field(default_factory=TrainConfig)

    def selection(self, store_path: Path | str) -> Selection:
        """The episodes.

        Raises:
            ValueError: as `SelectPlan.select`, they have no column `equal_shares`, or the objective
                cannot learn from their fields.
        """
        selection = self.select.select(store_path)
        training_fields(self.config, selection.schema)
        if self.config.equal_shares is not None:
            selection.catalog.check_column(self.config.equal_shares)
        return selection

    def check_start(self, selection: Selection, out: Path) -> None:
        """Raise ValueError unless a run in `out` can begin as planned; a run that did goes on."""
        if self.config.start_from and not (out / CHECKPOINT).exists():
            check_start(self.config, selection.schema, read_start(self.config))


def run_training(
    plan: TrainPlan,
    store_path: Path | str,
    out: Path,
    reporter: Reporter,
    evaluate: Mapping[str, Any] | None = None,
    expert: str = "",
) -> TrainResult:
    """Train in `out`, or resume the run there; a finished run returns at once.

    Under `torchrun` every process calls this; the first one writes.

    Args:
        evaluate: settings of the evaluation that the run's record keeps, which is on the cells of
            the episodes; expert: the record's expert, empty for the one that collected them.

    Raises:
        ValueError: another process trains in `out`, or as `TrainPlan.selection` and `train`.
        Stopped: (a KeyboardInterrupt) by a signal, after saving a checkpoint.
    """
    selection = plan.selection(store_path)
    plan.check_start(selection, out)
    preset(plan.config.model, plan.config.model_overrides)
    with training_lock(out) if leads() else nullcontext():
        # The trainer refuses a folder with another run; its plan must survive that.
        if leads() and not (out / PLAN).exists():
            _write_plan(
                plan, store_path, selection, out, _evaluated(selection, evaluate or {}, expert)
            )
            if note := split_note(plan.config, selection):
                reporter.say(note)
        with reporter.step(f"train {out.name}", plan.config.steps, "update") as advance:
            show = from_totals(advance)

            def report(done: int, total: int, row: HistoryRow) -> None:
                show(done, f"loss {row.loss:.4f}, {row.steps_per_s:,.0f} steps/s")

            return train(plan.config, selection, out, report, reporter.say)


def _evaluated(selection: Selection, settings: Mapping[str, Any], expert: str) -> dict[str, object]:
    """What a run's record says of its evaluation: the task, the plan, and the episodes' expert."""
    evaluation = evaluation_of(selection.store)
    if evaluation is None:
        return {"task": None, "evaluation": None, "expert": ""}
    with suppress(ValueError):  # cells that this program cannot simulate
        evaluation = with_named(evaluation.trained_on(selection), settings)
    with suppress(ValueError):  # robots or code that are not here, or not trusted
        expert = expert or evaluation.collecting_expert(selection)
    return {"task": evaluation.kind, "evaluation": evaluation, "expert": expert}


def _write_plan(
    plan: TrainPlan,
    store_path: Path | str,
    selection: Selection,
    out: Path,
    evaluated: Mapping[str, object],
) -> None:
    version = selection.store.info()
    record: dict[str, object] = {
        "plan": plan,
        "store": Path(store_path).name,
        "dataset": version.hash,
        "schema_version": version.schema_version,
        "selection": selection.hash,
        "robot": selection.schema.robot,
        "own_robots": _own_robot(selection.schema),
        "format": selection.schema.attributes.get("format"),
        "control_dt_s": selection.schema.control_dt_s,
        **evaluated,
    }
    if plan.config.start_from:
        record["start"] = start_record(plan.config)
    write_record(out / PLAN, record | provenance())


def _own_robot(schema: Schema) -> Mapping[str, Any]:
    """The card and MJCF of a store's only robot by its name; empty if it is shipped or unknown."""
    stored = schema.attributes.get(ROBOTS)
    mine = stored.get(schema.robot) if isinstance(stored, Mapping) else None
    return {schema.robot: mine} if mine else {}
