"""Policies under other conditions than those of training: one quantity at a time.

plan.json, evaluate/<policy>/<quantity>-<value>.json, summary.json, report.html
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from gaitforge.collectors.legged.rollout import EvaluationGrid
from gaitforge.collectors.scenarios.randomisation import Randomisation, changed_by
from gaitforge.collectors.scenarios.skills import ALL_SKILLS, SKILLS
from gaitforge.collectors.scenarios.terrains import ALL_TERRAINS, TERRAINS, UNSEEN, check_terrain
from gaitforge.flows.experiments.claim import check_kept, other_experiment
from gaitforge.flows.experiments.plan import check_name, check_once, shown
from gaitforge.flows.experiments.staged_plan import StagedPlan
from gaitforge.flows.experiments.summary import EXPERT, needed
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.records import digest, to_tree
from gaitforge.flows.settings import override, with_named
from gaitforge.flows.stages.evaluate import evaluate_policy
from gaitforge.flows.stages.stage import RecordedStage, Stage
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.flows.tasks.policy_sources import PolicySource, named_source

DEFAULT = "default"
TERRAIN = "terrain"
_AT_ONCE: Mapping[str, Mapping[str, str]] = {
    "payload_kg": {"payload_z_m": "0.08"},  # on the back
    "push_speed_ms": {"push_chance": "1"},
    "push_interval_s": {"push_chance": "1"},
}
"""Quantity -> what else is set with it."""
MEASURES = ("return", "success", "survival", "torque_p99", "action_rate_p99", "power_w")
_MEANS = ("torque_p99", "action_rate_p99", "power_w")
_OPTIONS = ("terrains", "skills", "levels", "episodes", "threads")
"""Values of the command line that replace those of the evaluation."""


def _conditions() -> dict[str, tuple[float | str, ...]]:
    return {
        "friction": (0.2, 0.15, 0.1, 0.05),
        "patch_start_m": (2.0, 1.0, 0.5),
        "payload_kg": (3.0, 5.0, 8.0),
        "motor_strength": (0.85, 0.7, 0.55),
        "action_lag_substeps": (4.0, 6.0, 8.0),
        "sensor_noise": (2.0, 4.0, 8.0),
        "observation_delay_steps": (1.0, 2.0, 3.0),
        "push_speed_ms": (0.5, 1.0, 2.0),
        "joint_friction_nm": (1.0, 2.0, 4.0),
        "gravity_ms2": (12.0, 15.0),
        TERRAIN: tuple(UNSEEN),
    }


@dataclass(frozen=True)
class RobustnessPlan(StagedPlan):
    """Plan of evaluations: policies × conditions.

    Attributes:
        policies: folders of training runs or exported policies; the evaluation's expert stands
            beside them.
        conditions: quantity of the randomisation -> its values, from mild to hard, each of which
            every episode has; or "terrain" -> terrains. All else is as in `evaluation`.
        evaluation: under the default conditions.
    """

    kind: ClassVar[str] = "robustness"

    policies: tuple[str, ...]
    conditions: Mapping[str, Sequence[float | str]] = field(default_factory=_conditions)
    evaluation: LeggedEvaluation = field(
        default_factory=lambda: LeggedEvaluation(
            grid=EvaluationGrid(tuple(TERRAINS), tuple(SKILLS), (4,), 4), robots=240, threads=1
        )
    )

    def __post_init__(self) -> None:
        if not self.policies:
            raise ValueError("robustness needs the folders of training runs")
        names = [source.name for source in self.sources()]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two policies are named {twice[0]}: their folders need other names")
        for name in names:
            check_name("policies", name, spaces=True)
        for quantity, values in self.conditions.items():
            _check_values(quantity, values)
        for _, _, plan in self.evaluations():
            Randomisation.parsed(plan.randomisation)

    def sources(self) -> list[PolicySource]:
        """The policies, the expert first."""
        expert = replace(self.evaluation.source(self.evaluation.expert), name=EXPERT)
        return [expert, *(named_source(policy) for policy in self.policies)]

    def evaluations(self) -> Iterator[tuple[str, float | str, LeggedEvaluation]]:
        """Each condition: quantity, value, and how policies are evaluated; the default first."""
        plan = self.evaluation
        grid = self.evaluation.grid
        yield DEFAULT, "", plan
        for name, values in self.conditions.items():
            for value in values:
                if name == TERRAIN:
                    terrain = ALL_TERRAINS[check_terrain(str(value))]
                    fitting = [
                        skill
                        for skill in grid.skills
                        if ALL_SKILLS[skill].commanded_on(terrain.name)
                    ]
                    if fitting:
                        cells = replace(grid, terrains=(terrain.name,), skills=tuple(fitting))
                        yield name, value, replace(plan, grid=cells)
                else:
                    changes = {**_AT_ONCE.get(name, {}), name: str(value)}
                    changed = changed_by(plan.randomisation, changes)
                    yield name, value, replace(plan, randomisation=changed)

    def with_options(self, values: Mapping[str, Any], settings: Sequence[str]) -> "RobustnessPlan":
        """The plan with chosen cells, `episodes` and `threads`, then with the settings."""
        chosen = {name: values[name] for name in _OPTIONS if name in values}
        return override(with_named(self, chosen), settings)

    def check_grown(self, old: "RobustnessPlan", out: Path) -> None:
        """Raise ValueError unless it has all of its folder's, maybe with more."""
        check_kept(out, "policies", old.policies, self.policies)
        for quantity, values in old.conditions.items():
            check_kept(out, f"values of {quantity}", values, self.conditions.get(quantity, ()))
        was, now = (to_tree(replace(plan.evaluation, threads=0)) for plan in (old, self))
        changed = [name for name in was if was[name] != now.get(name)]
        if changed:
            raise other_experiment(out, f"an evaluation of another {', '.join(changed)}")

    def work(self, out: Path) -> list[Stage]:
        """A stage for each policy and quantity."""
        stages: list[Stage] = []
        for source in self.sources():
            keys = source.place, self.evaluation.key(source)["weights"]
            for quantity in (DEFAULT, *self.conditions):
                chosen = [condition for condition in self.evaluations() if condition[0] == quantity]
                paths = tuple(_path(out, source, quantity, value) for _, value, _ in chosen)
                run = partial(_evaluate, source, [evaluation for *_, evaluation in chosen], paths)
                key = digest([*keys, [to_tree(condition) for condition in chosen]])
                stages.append(
                    RecordedStage(f"{source.name} {quantity}", key, run=run, outputs=paths)
                )
        return stages

    def summary(self, out: Path) -> dict[str, Any]:
        """A row for each policy and condition, and how far each policy gets."""
        rows = []
        limits = []
        for source in self.sources():
            policy_rows = []
            for quantity, value, _ in self.evaluations():
                row = _row(needed(_path(out, source, quantity, value)))
                condition = {"policy": source.name, "quantity": quantity, "value": value}
                policy_rows.append({**condition, **row})
            rows += policy_rows
            for quantity in (name for name in self.conditions if name != TERRAIN):  # has no order
                values = [row for row in policy_rows if row["quantity"] == quantity]
                until = _until(policy_rows[0], values)
                limits.append({"policy": source.name, "quantity": quantity, "until": until})
        return {"name": self.kind, "rows": rows, "limits": limits}


def _check_values(quantity: str, values: object) -> None:
    """Raise ValueError unless these are different values, whose texts can be files' names."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ValueError(f"conditions: {quantity} needs a list of values, not {values!r}")
    for value in values:
        if not re.fullmatch(r"[\w.:+-]+", str(value)):
            raise ValueError(f"conditions: {quantity} cannot be {shown(value)}")
    check_once(f"conditions: {quantity}", [_number(value) for value in values])


def _number(value: object) -> object:
    """The number of a text that is one: 0.2 and "0.20" are one value."""
    try:
        return float(str(value))
    except ValueError:
        return value


def _path(out: Path, source: PolicySource, quantity: str, value: float | str) -> Path:
    name = f"{quantity}-{value}" if value != "" else quantity
    return out / "evaluate" / source.name / f"{name}.json"


def _evaluate(
    source: PolicySource,
    plans: Sequence[LeggedEvaluation],
    paths: Sequence[Path],
    reporter: Reporter,
) -> None:
    for plan, path in zip(plans, paths, strict=True):
        evaluate_policy(source, plan, reporter, path)


def _row(record: Mapping[str, Any]) -> dict[str, Any]:
    cells = record["cells"]
    means = {name: sum(cell[name] for cell in cells) / len(cells) for name in _MEANS}
    kept = ("return", "return_ci95", "success", "success_ci95", "survival", "episodes")
    return {name: record[name] for name in kept} | means


def _until(default: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> float | str | None:
    """The last value, from mild to hard, before success falls below half of the default's.

    None: it does at the first, or the policy never succeeds by default, so that it has no half.
    """
    last: float | str | None = None
    if default["success"] <= 0:
        return None
    for row in rows:
        if row["success"] < default["success"] / 2:
            break
        last = row["value"]
    return last
