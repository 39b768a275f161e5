"""DAgger: rounds of collecting with the last trained policy and training on all so far.

Ross et al., "A Reduction of Imitation Learning and Structured Prediction to No-Regret Online
Learning" (2011), with the deviation of `gaitforge.collectors.legged.driving`. Beside it, plain
imitation of equally many episodes: the same ones with the expert alone.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gaitforge.collectors.legged.data import CollectionGrid, StoredForm
from gaitforge.datasets import open_store
from gaitforge.datasets.schema import Schema
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.records.records import provenance, read_record, to_tree, write_record
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.stages.evaluate import EvaluatePlan, PolicySource, evaluate_policy
from gaitforge.flows.stages.train import SelectPlan, TrainPlan, run_training
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.flows.tasks.legged_policy import LeggedPolicyPlan, driven_by
from gaitforge.learners.training.config import TrainConfig

RECORD = "dagger.json"
ROUND = CollectionGrid(parts=4, seed=1000)


@dataclass(frozen=True)
class DaggerPlan:
    """What the rounds do.

    Attributes:
        rounds: after round 0, which trains on the store as it is; more may be added later.
        collect: of each round, by the expert that labels; round k adds k to its grid's seed.
        share, stretch: as of `LeggedPolicyPlan`.
        plain: whether plain imitation is collected, trained and evaluated beside the rounds.
        select: the store's episodes of round 0.
        config: of every training; its `steps` are those of round 0. Later trainings have more in
            proportion to their data, so that each passes over it as often.
        evaluate: of each.
    """

    rounds: int = 3
    collect: LeggedPlan = field(default_factory=lambda: LeggedPlan(ROUND))
    share: float = LeggedPolicyPlan.share
    stretch: int = LeggedPolicyPlan.stretch
    plain: bool = True
    select: SelectPlan = field(default_factory=SelectPlan)
    config: TrainConfig = field(default_factory=TrainConfig)
    evaluate: EvaluatePlan = field(default_factory=EvaluatePlan)

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"{self.rounds} rounds: needs at least 1")
        if self.select.saved:
            raise ValueError("a saved selection cannot grow; select by columns instead")


def run_dagger(
    plan: DaggerPlan, store_path: Path | str, out: Path, reporter: Reporter
) -> list[dict[str, Any]]:
    """Run or resume the rounds; the new parts go into the same store, everything else into `out`.

    Finished stages are skipped: committed parts, finished trainings, evaluations by their files.

    Returns:
        A row a round: {"round", "steps", "updates", "return", "success"} and the last four with
        the prefix "plain_", of plain imitation; steps are those to learn from.

    Raises:
        ValueError: no store, an `out` of another plan, or what the stages refuse.
    """
    corrected = _claim(plan, store_path, out)
    plain, rows = list(corrected), list[dict[str, Any]]()
    form = _stored_form(open_store(store_path).schema)

    def chosen(parts: Sequence[str]) -> SelectPlan:
        return replace(plan.select, parts=tuple(parts))

    first_steps = chosen(plain).select(store_path).steps

    def learn(name: str, parts: Sequence[str]) -> dict[str, Any]:
        select, run = chosen(parts), out / "train" / name
        steps = select.select(store_path).steps
        updates = round(plan.config.steps * steps / first_steps)
        config = replace(plan.config, steps=updates)
        run_training(TrainPlan(select, config), store_path, run, reporter)
        source, path = PolicySource(name, run), out / "evaluate" / f"{name}.json"
        found = evaluate_policy(source, plan.evaluate, reporter, path)
        row = {"steps": steps, "updates": updates}
        return row | {"return": found.return_, "success": found.success}

    for number in range(plan.rounds + 1):
        seed = plan.collect.grid.seed + number
        expert = replace(plan.collect, form=form, grid=replace(plan.collect.grid, seed=seed))
        if number:
            last = str(out / "train" / f"round-{number - 1}")
            driven = driven_by(expert, last, expert.expert, share=plan.share, stretch=plan.stretch)
            collect(driven, store_path, reporter)
            corrected += driven.part_ids()
        rows.append({"round": number, **learn(f"round-{number}", corrected)})
        if plan.plain and number:
            collect(expert, store_path, reporter)
            plain += expert.part_ids()
        if plan.plain:
            row = learn(f"plain-{number}" if number else "round-0", plain)
            rows[-1] |= {f"plain_{name}": value for name, value in row.items()}
        write_record(out / RECORD, {"plan": asdict(plan), "rounds": rows, **provenance()})
    return rows


def _claim(plan: DaggerPlan, store_path: Path | str, out: Path) -> list[str]:
    """Write the plan, or check that the one in the folder is this one; returns round 0's parts."""
    known = read_record(out / "plan.json")
    if known is None:
        parts = plan.select.parts or open_store(store_path).parts()
        known = {"plan": to_tree(plan), "parts": list(parts)}
        del known["plan"]["rounds"]
        write_record(out / "plan.json", known | provenance())
    recorded = plan_from_tree(DaggerPlan, {**known["plan"], "rounds": plan.rounds})
    if to_tree(recorded) != to_tree(plan):
        raise ValueError(f"{out} holds rounds with other settings; choose another --out")
    return known["parts"]


def _stored_form(schema: Schema) -> StoredForm:
    """Which fields parts need that are added to a store of this schema."""
    names, half = schema.names(), schema.field("obs").dtype == "float16"
    return StoredForm("state" in names, "privileged" in names, half)
