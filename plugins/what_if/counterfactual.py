"""Stored legged episodes simulated again with one thing changed: a draw, the policy, the actions.

Seeds, starts, commands, noise and pushes stay, so that what differs is due to the change alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np

from gaitforge.collectors.experts.expert import DEFAULT_EXPERT
from gaitforge.collectors.legged.replaying import (
    Executed,
    StoredEpisode,
    check_whole,
    stored_episodes,
)
from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.collectors.scenarios.randomisation import (
    Randomisation,
    Written,
    changed_by,
    expanded,
)
from gaitforge.collectors.timing import EPISODE_STEPS
from gaitforge.common.trust import naming
from gaitforge.datasets import Schema, Selection, open_store
from gaitforge.flows.progress import Advance
from gaitforge.flows.records.part_records import plan_records
from gaitforge.flows.records.records import digest
from gaitforge.flows.tasks.interface import CollectionPlan, PartData, Simulation, Workers
from gaitforge.flows.tasks.legged import LeggedPlan, LeggedSimulation
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.flows.tasks.policy_sources import named_source
from gaitforge.flows.tasks.registry import recorded_plan

STORED = "stored"
DIVERGED_BEYOND = 1e-3
"""Difference of any observed value, in its own unit, from which an episode counts as diverged."""


@dataclass(frozen=True)
class CounterfactualPlan(CollectionPlan):
    """Plan of a counterfactual: episodes that are simulated again, and what is changed.

    Catalog columns beside those of `LeggedPlan`: original_part, original_episode, original_return,
    original_success; diverged_at, the first step whose observation differs by more than
    `DIVERGED_BEYOND` from the original's, -1 for none.

    Attributes:
        source: the store; where: a condition on its episodes' columns, empty for all.
        randomisation: quantity -> distribution, on top of the store's own.
        actions: "stored" for the recorded actions; empty for a policy's.
        policy: folder of the one that drives, or "module:Class"; empty for the one that drove.
        threads: of a local run.
    """

    kind = work = "counterfactual"
    parallelism = "threads"
    evaluation = LeggedPlan.evaluation

    source: str
    where: str = ""
    randomisation: Written = field(default_factory=dict)
    actions: str = ""
    policy: str = ""
    threads: Workers = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        Randomisation.parsed(self.randomisation)
        # Not its shortest form: the default is a change, too, where the store has another range.
        object.__setattr__(self, "randomisation", expanded(self.randomisation))
        if self.actions not in ("", STORED):
            raise ValueError(f"actions '{self.actions}': allowed are stored, or a policy")
        if self.actions and self.policy:
            raise ValueError("stored actions and a policy exclude each other")

    @cached_property
    def episodes(self) -> dict[str, Selection]:
        """Part of the source -> its chosen episodes, as they were collected.

        The present version chooses: what was dropped stays out, annotations can be asked for.

        Raises:
            ValueError: no such store or column, or no episodes.
        """
        store = open_store(self.source)
        shown = store.select()
        chosen = store.as_collected()
        if self.where:
            shown = shown.where(self.where)
        kept = np.isin(chosen.episode_ids(), shown.episode_ids())
        chosen = chosen.with_rows(np.flatnonzero(kept))
        parts = {part: chosen.of_parts([part]) for part in chosen.catalog.part_bounds}
        parts = {part: selection for part, selection in parts.items() if len(selection)}
        if not parts:
            raise ValueError(f"no episodes of {self.source} are selected")
        return parts

    @cached_property
    def plans(self) -> dict[str, LeggedPlan]:
        """Part of the source -> the plan that it was made by, with the changed randomisation.

        Raises:
            ValueError: no plan beside the store has made the part.
        """
        plans: dict[str, LeggedPlan] = {}
        for record in plan_records(self.source):
            if parts := [part for part in self.episodes if part in record["parts"]]:
                with naming(self.source):
                    plan = recorded_plan(record)
                if isinstance(plan, LeggedPlan):
                    plan.listed_with(parts[0])
                    draws = changed_by(plan.randomisation, self.randomisation)
                    if self.actions or self.policy:  # it drives alone
                        plan = _of_an_expert(plan)
                    plans |= dict.fromkeys(parts, replace(plan, randomisation=draws))
        if lost := [part for part in self.episodes if part not in plans]:
            raise ValueError(f"{self.source} has no plan of legged robots that made part {lost[0]}")
        return plans

    def robot_cards(self) -> list[RobotCard]:
        """See `CollectionPlan.robot_cards`."""
        return [robot for plan in self.plans.values() for robot in plan.robot_cards()]

    def originals(self) -> dict[str, str]:
        """Part -> the source's part whose episodes it repeats."""
        name = digest(self.content())[:6]
        return {f"{name}-{k:05d}": part for k, part in enumerate(self.episodes)}

    def content(self) -> dict[str, object]:
        """Settings that determine the parts; hashed into their names."""
        policy = named_source(self.policy).weights_hash() if self.policy else ""
        named = {name: str(value) for name, value in sorted(self.randomisation.items())}
        hashes = [selection.hash for selection in self.episodes.values()]
        return {"episodes": hashes, "draws": named, "actions": self.actions, "policy": policy}

    def unknown_policy(self) -> str:
        """See `CollectionPlan.unknown_policy`."""
        return self.policy if self.policy and not named_source(self.policy).is_known else ""

    def expected_steps(self) -> dict[str, int]:
        """See `CollectionPlan.expected_steps`."""
        parts = self.originals().items()
        return {part: len(self.episodes[of]) * EPISODE_STEPS for part, of in parts}

    def episode_ids(self) -> dict[str, range]:
        """See `CollectionPlan.episode_ids`."""
        return {
            part: range(first, first + len(self.episodes[original]))
            for part, original in self.originals().items()
            for first in [_first_id(part)]
        }

    def schema(self) -> Schema:
        """See `CollectionPlan.schema`: the source's, with the changed randomisation."""
        schema = open_store(self.source).as_collected().schema
        robots = {robot.name: robot for robot in self.robot_cards()}
        changed = next(iter(self.plans.values())).randomisation
        draws = Randomisation.parsed(changed).declared(*robots.values())
        return replace(schema, attributes={**schema.attributes, "randomisation": draws})

    def simulate(self, threads: int = 1) -> "Counterfactual":
        """See `CollectionPlan.simulate`."""
        return Counterfactual(self, threads)


class Counterfactual(Simulation):
    """Simulates the episodes of one part after another again."""

    def __init__(self, plan: CounterfactualPlan, threads: int):
        self._plan, self._threads, self._originals = plan, threads, plan.originals()
        self._opened: tuple[LeggedPlan, LeggedSimulation] | None = None

    def roll_out(self, part: str, schema: Schema, advance: Advance) -> PartData:
        """See `Simulation.roll_out`."""
        of = self._originals[part]
        check_whole(self._plan.episodes[of])
        stored = stored_episodes(self._plan.episodes[of])
        stored.sort(key=lambda episode: episode.row["episode"])
        simulation = self._simulation(of)
        simulation.specs = lambda _: [episode.spec(not self._plan.actions) for episode in stored]
        simulation.acting = None
        who: dict[str, Sequence[object]] = {}
        if self._plan.actions:
            episodes = {episode.row["episode"]: episode for episode in stored}
            simulation.acting = lambda env: Executed(env, episodes)
            who = {
                name: [episode.row[name] for episode in stored]
                for name in ("expert", "expert_hash")
            }
        elif self._plan.policy:
            source = named_source(self._plan.policy)
            evaluation = LeggedEvaluation(robot=str(simulation.env.robot.path))
            simulation.acting = lambda env: evaluation.load(source, env.num_robots)[0]
            columns = {"expert": source.name, "expert_hash": source.weights_hash()}
            who = {name: [value] * len(stored) for name, value in columns.items()}
        data = simulation.roll_out(of, schema, advance)
        catalog = {**data.catalog, **who, **_originals(of, stored, data)}
        first = _first_id(part)
        catalog["episode"] = [first + k for k in range(len(stored))]
        return replace(data, catalog=catalog)

    def _simulation(self, part: str) -> LeggedSimulation:
        plan = self._plan.plans[part]
        grid = replace(plan.grid, episodes_per_part=len(self._plan.episodes[part]))
        plan = replace(plan, grid=grid)  # no more robots than episodes
        if self._opened is None or self._opened[0] != plan:
            self.close()
            self._opened = plan, plan.simulate(self._threads)
        return self._opened[1]

    def close(self) -> None:
        """See `Simulation.close`."""
        if self._opened is not None:
            self._opened[1].close()
        self._opened = None


def _first_id(part: str) -> int:
    """The id of a part's first episode: the plan's digits, the part's number, and its place."""
    tag, number = part.split("-")
    return int(tag, 16) << 32 | int(number) << 16


def _of_an_expert(plan: LeggedPlan) -> LeggedPlan:
    """The plan without a learned policy that drives in turns."""
    if type(plan) is LeggedPlan:
        return plan
    values = {setting.name: getattr(plan, setting.name) for setting in fields(LeggedPlan)}
    robot = str(plan.pairs()[0][0].path)
    return LeggedPlan(**{**values, "expert": plan.expert or DEFAULT_EXPERT, "robot": robot})


def _originals(
    part: str, stored: Sequence[StoredEpisode], data: PartData
) -> Mapping[str, Sequence[object]]:
    """The columns that link episodes to the stored ones."""
    obs = np.split(data.steps["obs"], np.cumsum(data.catalog["length"])[:-1])
    return {
        "original_part": [part] * len(stored),
        "original_episode": [episode.row["episode"] for episode in stored],
        "original_return": [episode.row["return"] for episode in stored],
        "original_success": [episode.row["success"] for episode in stored],
        "diverged_at": [
            _diverged_at(episode.obs, new_obs) for episode, new_obs in zip(stored, obs, strict=True)
        ],
    }


def _diverged_at(original: np.ndarray, obs: np.ndarray) -> int:
    steps = min(len(original), len(obs))
    off = np.abs(original[:steps].astype(np.float32) - obs[:steps]).max(axis=1) > DIVERGED_BEYOND
    if off.any():
        return int(off.argmax())
    return -1 if len(original) == len(obs) else steps
