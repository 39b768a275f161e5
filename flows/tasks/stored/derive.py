"""A new field of stored legged episodes, by exact replay."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from math import ceil

import numpy as np

from gaitforge.collectors.legged.derived import DERIVABLE, derived_field, measured_by
from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.replaying import (
    replay_environment,
    replayed,
    robot_of_selection,
    simulator_of_selection,
    stored_episodes,
)
from gaitforge.collectors.legged.rollout import Measure
from gaitforge.collectors.robots.robot import load_robot
from gaitforge.common.extensions import called, function_key, named_function
from gaitforge.datasets import Field, Schema, Selection
from gaitforge.flows.progress import Advance
from gaitforge.flows.tasks.interface import PartData, Simulation
from gaitforge.flows.tasks.legged import Robots
from gaitforge.flows.tasks.stored.overlay import OverlayPlan, overlay_part


@dataclass(frozen=True)
class DerivePlan(OverlayPlan):
    """Plan of a derived field and its source.

    Attributes:
        of: one of `DERIVABLE`, or "module:function" (`measured_by`).
        name: of the new field; empty for the usual one.
        unit: of a function's values.
        robot: a name or path; empty for the store's own.
        robots: most parallel robots of a simulator.
    """

    kind = work = "derive"

    of: str = "state"
    name: str = ""
    unit: str = "1"
    robot: str = ""
    robots: Robots = 320

    def __post_init__(self) -> None:
        super().__post_init__()
        if ":" not in self.of and self.of not in DERIVABLE:
            allowed = f"{', '.join(DERIVABLE)}, and module:function"
            raise ValueError(f"unknown field '{self.of}'; allowed: {allowed}")

    @property
    def definition(self) -> Mapping[str, object]:
        """See `OverlayPlan.definition`."""
        function = {"file": function_key(self.of), "unit": self.unit} if ":" in self.of else {}
        return {"of": self.of, "robot": self.robot, **function}

    @property
    def field(self) -> Field:
        """See `OverlayPlan.field`."""
        return _field_and_measure(self)[0]

    def environment(self, selection: Selection, threads: int) -> LeggedEnvironment:
        """The episodes' simulator; its robots replay the longest part in full waves."""
        longest = max(stop - first for first, stop in selection.catalog.part_bounds.values())
        robots = ceil(longest / ceil(longest / self.robots))
        return replay_environment(_made_here(selection), robots, self.robot, threads)

    def simulate(self, threads: int = 1) -> "Replay":
        """See `CollectionPlan.simulate`."""
        return Replay(self, threads)


def parts_of_version(episodes: Selection, simulator_version: str) -> list[str]:
    """The parts that a version of the simulator made; ValueError where there are none."""
    matching = episodes.select(simulator_version=simulator_version).episodes("part")
    if not len(matching):
        raise ValueError(f"{episodes.store.address} has no part of version {simulator_version}")
    return sorted(set(matching.column("part").to_pylist()))


def _made_here(episodes: Selection) -> Selection:
    """The episodes that the installed MuJoCo made, or all where there are none."""
    matching = episodes.select(simulator_version=version("mujoco"))
    return matching if len(matching) else episodes


@cache
def _field_and_measure(plan: DerivePlan) -> tuple[Field, Measure]:
    episodes = plan.episodes()
    if ":" not in plan.of:
        robot = load_robot(plan.robot) if plan.robot else robot_of_selection(episodes)
        field, measure = derived_field(plan.of, robot)
        return replace(field, name=plan.name or field.name), measure
    function = named_function(plan.of)
    measure = measured_by(partial(called, function, plan.of))
    episodes = _made_here(episodes)
    [first] = stored_episodes(episodes.with_rows(episodes.rows[:1]))
    with closing(replay_environment(episodes, 1, plan.robot, threads=1)) as env:
        env.reset(np.arange(1), [first.spec(noise=False)])
        values = measure(env, env.observe())
    text = " ".join((function.__doc__ or plan.of).strip().partition("\n\n")[0].split())
    name = plan.name or plan.of.partition(":")[2]
    return Field(name, values.shape[1:], str(values.dtype), plan.unit, text), measure


class Replay(Simulation):
    """Replays the episodes of one part after another; any difference ends it."""

    def __init__(self, plan: DerivePlan, threads: int):
        self._episodes = plan.episodes()
        self._field, self._measure = _field_and_measure(plan)
        self._env = plan.environment(self._episodes, threads)

    def roll_out(self, part: str, schema: Schema, advance: Advance) -> PartData:
        """See `Simulation.roll_out`.

        Raises:
            ValueError: an episode did not repeat bit for bit; it is named.
        """
        first, stop = self._episodes.catalog.part_bounds[part]
        selection = self._episodes.with_rows(np.arange(first, stop))
        name, made_by = simulator_of_selection(selection)
        if made_by != self._env.physics.version:
            raise ValueError(
                f"part {part} was made by {name} {made_by}; version {self._env.physics.version} "
                "cannot repeat it bit for bit: give --with-recorded-versions"
            )
        stored = stored_episodes(selection)
        values = np.empty((selection.steps, *self._field.shape), self._field.dtype)
        starts = {episode.row["episode"]: episode.row["start"] for episode in stored}
        again = replayed(self._env, stored, {"": self._measure}, lambda n: advance(n, ""))
        for episode, result, text in again:
            if text:
                raise ValueError(
                    f"episode {episode.row['episode']} of part {part} does not repeat: {text}; "
                    "nothing of this part is stored"
                )
            start = starts[episode.row["episode"]]
            assert result.record is not None, "a replay is recorded"
            values[start : start + result.length] = result.record.measured[""]
        return overlay_part(selection, self._field, values)

    def close(self) -> None:
        """See `Simulation.close`."""
        self._env.close()
