"""Fields added to stored episodes: by exact replay, or a new reward computed from stored fields."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from math import ceil

import numpy as np

from gaitforge.collectors.legged.data import StoredForm, legged_schema
from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.observations import N_SCAN, PRIVILEGED_SLICES
from gaitforge.collectors.legged.replaying import (
    replay_environment,
    replayed,
    robot_of_selection,
    simulator_of_selection,
    stored_episodes,
)
from gaitforge.collectors.legged.rollout import Measure, pose_of
from gaitforge.collectors.physics.interface import PhysicsState
from gaitforge.collectors.policy import Observation
from gaitforge.collectors.robots.robot import RobotCard, load_robot
from gaitforge.common.extensions import called, function_key, named_function
from gaitforge.datasets import Field, Schema, Selection, open_store
from gaitforge.datasets.catalog.catalog import required_columns
from gaitforge.datasets.catalog.edit_log import added_field, edited
from gaitforge.datasets.edits.operations import REWARD, add_field, check_new_field
from gaitforge.datasets.layout import OVERLAYS
from gaitforge.datasets.storage.integrity import overlay_folders
from gaitforge.flows.progress import Advance
from gaitforge.flows.records.records import digest
from gaitforge.flows.tasks.interface import CollectionPlan, PartData, Simulation, Workers
from gaitforge.flows.tasks.legged import Robots


# Base of the plans that add a field to stored episodes.
@dataclass(frozen=True)
class OverlayPlan(CollectionPlan):
    """A field to add.

    Attributes:
        source: address of the store.
        threads: of a local run.
    """

    parallelism = "threads"
    keeps_version = True

    source: str
    threads: Workers = 0

    @property
    @abstractmethod
    def field(self) -> Field:
        """The field, with its name, shape, unit and description."""

    @property
    @abstractmethod
    def definition(self) -> Mapping[str, object]:
        """Inputs that determine the values; hashed into the folder's name."""

    @property
    def folder(self) -> str:
        """The overlay's folder, named after field and definition."""
        return f"{self.field.name}-{digest(self.definition)[:8]}"

    @property
    def address(self) -> str:
        """Address of the field's arrays."""
        return f"{self.source.rstrip('/')}/{OVERLAYS}/{self.folder}"

    def complete(self) -> None:
        """Add the field to the store, unless it is added or parts are missing."""
        store = open_store(self.source)
        begun = self.folder in overlay_folders(store)
        if begun and not store.overlay(self.folder).missing(store.parts()):
            add_field(store, self.folder, self.definition)

    def episodes(self) -> Selection:
        """The store's episodes as they were collected, from which the field is computed.

        Raises:
            ValueError: no store, or one without episodes.
        """
        episodes = open_store(self.source).as_collected()
        if not len(episodes):
            raise ValueError(f"{self.source} has no episodes")
        return episodes

    def expected_steps(self) -> dict[str, int]:
        """See `CollectionPlan.expected_steps`: the parts that the store holds now."""
        manifests = self.episodes().catalog.manifests
        return {part: manifest.steps for part, manifest in manifests.items()}

    def schema(self) -> Schema:
        """See `CollectionPlan.schema`: the one field; ValueError if its store cannot get it."""
        store = open_store(self.source)
        check_new_field(store, self.field, self.folder)
        of = store.schema
        return Schema((self.field,), of.control_dt_s, of.robot, group_by=of.group_by)


def overlay_part(selection: Selection, field: Field, values: np.ndarray) -> PartData:
    """A part of an overlay: its field, and the episodes to which the values belong, in order."""
    columns = required_columns(selection.schema.group_by)
    table = selection.episodes(*columns)
    return PartData({field.name: values}, {}, {name: table[name].to_pylist() for name in columns})


# Fields by exact replay.
StateFunction = Callable[[PhysicsState], np.ndarray]
"""function(state) -> (N, *shape) for N robots."""

_SCAN = slice(*PRIVILEGED_SLICES["height_scan"])
_WORLD = "in the order of the robot's legs, world frame (x, y, z up)"


def measured_by(function: StateFunction) -> Measure:
    """A measure that records a function of the state; float64 becomes float32.

    Raises:
        ValueError: at the first step, the function gave no array with a row for each robot.
    """

    def measure(env: LeggedEnvironment, observation: Observation) -> np.ndarray:
        values = np.asarray(function(env.physics.state))
        if values.ndim == 0 or len(values) != env.num_robots:
            raise ValueError(
                f"the function must return an array of shape (robots, ...), {env.num_robots} rows, "
                f"not {values.shape}"
            )
        return values.astype(np.float32) if values.dtype == np.float64 else values

    return measure


_SCAN_TEXT = (
    "height of the base above the ground at 7 x 5 points of its heading frame "
    "(x -0.4 to 0.8 m, y -0.3 to 0.3 m), minus the nominal height, clipped to 1 m"
)
_FORCES = f"force of the ground on each foot, {_WORLD}"
_FEET = f"position of each foot's centre, {_WORLD}"

_DERIVED: dict[str, tuple[Measure, Field | None]] = {
    "height_scan": (
        lambda env, observation: observation.privileged[:, _SCAN],
        Field("height_scan", (N_SCAN,), unit="m", description=_SCAN_TEXT),
    ),
    "contact_forces": (
        measured_by(lambda state: state.foot_force),
        Field("contact_forces", (4, 3), unit="N", description=_FORCES),
    ),
    "privileged": (lambda env, observation: observation.privileged, None),
    "state": (measured_by(pose_of), None),
    "foot_positions": (
        measured_by(lambda state: state.foot_pos),
        Field("foot_positions", (4, 3), unit="m", description=_FEET),
    ),
}
"""Measure and field by name; None for a field of the legged task's own schema."""
DERIVABLE = tuple(_DERIVED)
"""Names of the known fields."""


def derived_field(name: str, robot: RobotCard) -> tuple[Field, Measure]:
    """A field of `DERIVABLE` for a robot, and the measure that computes it.

    height_scan (35,) m: the nominal height subtracted from the base's height above the ground at
    7 x 5 points around it (`observations.SCAN_POINTS`, heading frame), clipped to 1 m.
    contact_forces (4, 3) N: the ground's force on each foot, world frame.
    privileged (P,) and state (19,): as collection stores them (`StoredForm`).
    foot_positions (4, 3) m: of each foot's centre, world frame.

    Raises:
        ValueError: no such field.
    """
    if name not in _DERIVED:
        raise ValueError(
            f"unknown field '{name}'; allowed: {', '.join(DERIVABLE)}, and module:function"
        )
    measure, field = _DERIVED[name]
    form = StoredForm(state=True, privileged=True)
    return field or legged_schema(robot, form=form).field(name), measure


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


# A new reward from stored fields.
@dataclass(frozen=True)
class RelabelPlan(OverlayPlan):
    """A new reward.

    Attributes:
        reward: "module:function", called with the fields of one episode: name -> (T, *shape), or
            (*shape) for a field per episode; it returns the T rewards. It always gets the
            collected reward, so that the same plan twice changes nothing.
    """

    kind = work = "relabel"

    reward: str = ""

    @property
    def definition(self) -> Mapping[str, object]:
        """See `OverlayPlan.definition`."""
        return {"of": self.reward, "file": function_key(self.reward)}

    @property
    def field(self) -> Field:
        """See `OverlayPlan.field`."""
        said = (named_function(self.reward).__doc__ or "").strip()
        text = (said or self.reward).splitlines()[0]
        return Field(REWARD, (), "float32", "1", f"{text} ({self.reward})")

    def episodes(self) -> Selection:
        """See `OverlayPlan.episodes`; with added fields, except rewards."""
        collected = super().episodes()
        edits = [edit for edit in collected.store.edits() if edit.kind == "field"]
        kept_edits = [edit for edit in edits if added_field(edit).field.name != REWARD]
        catalog = edited(collected.catalog, kept_edits)
        return type(collected)(collected.store, catalog, np.arange(catalog.num_rows))

    def simulate(self, threads: int = 1) -> "Relabelling":
        """See `CollectionPlan.simulate`."""
        return Relabelling(self)


class Relabelling(Simulation):
    """Calls a function for one episode after another."""

    def __init__(self, plan: RelabelPlan):
        self._plan, self._function = plan, named_function(plan.reward)
        self._episodes = plan.episodes()
        self._field = plan.field

    def roll_out(self, part: str, schema: Schema, advance: Advance) -> PartData:
        """See `Simulation.roll_out`.

        Raises:
            ValueError: the function failed, or returned no finite reward for each step.
        """
        first, stop = self._episodes.catalog.part_bounds[part]
        selection = self._episodes.with_rows(np.arange(first, stop))
        fields = {field.name: selection.read(field.name) for field in selection.schema.fields}
        per_step = selection.schema.names("step")
        rewards = np.empty(selection.steps, np.float32)
        name = self._plan.reward
        ids = selection.episode_ids()
        for k, (start, length) in enumerate(
            zip(selection.starts.tolist(), selection.lengths.tolist(), strict=True)
        ):
            steps = slice(start, start + length)
            episode = {
                n: values[steps] if n in per_step else values[k] for n, values in fields.items()
            }
            returned = np.asarray(called(self._function, name, episode))
            if returned.shape != (length,) or returned.dtype.kind not in "fiub":
                raise ValueError(
                    f"{name} must return {length} rewards for episode {ids[k]}, not an array of "
                    f"shape {returned.shape} and type {returned.dtype}"
                )
            if not np.isfinite(returned).all():
                raise ValueError(f"{name} returned a reward that is not finite in episode {ids[k]}")
            rewards[steps] = returned
            advance(length, "")
        return overlay_part(selection, self._field, rewards)
