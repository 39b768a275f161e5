"""Episodes that a page or a recording plays: stored ones, and those that a policy runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.collectors.experts.expert import DEFAULT_EXPERT, load_expert
from gaitforge.collectors.legged.data import part_catalog
from gaitforge.collectors.legged.environment import CONTACT_FORCE_N, MIN_UPRIGHT, LeggedEnvironment
from gaitforge.collectors.legged.episodes import EpisodeSpec, draw_episode
from gaitforge.collectors.legged.observations import POLICY_SLICES
from gaitforge.collectors.legged.replaying import (
    Executed,
    replay_environment,
    robot_of_selection,
    stored_episodes,
    stored_randomisation,
)
from gaitforge.collectors.legged.rewards import REWARDS, Rewards, StepView, total_reward
from gaitforge.collectors.legged.rollout import EpisodeResult, run_episodes
from gaitforge.collectors.policy import Observation, Policy
from gaitforge.collectors.rendering.rendering import Scene, drawn_scene
from gaitforge.collectors.robots.kinematics import C
from gaitforge.collectors.robots.robot import LEGS, RobotCard, load_robot
from gaitforge.collectors.rotations import lengths, yaw_of
from gaitforge.collectors.scenarios.randomisation import Written
from gaitforge.collectors.scenarios.terrains import Barrier, TerrainTile, make_tile, place_barriers
from gaitforge.collectors.timing import CONTROL_DT_S
from gaitforge.collectors.training_folder import POLICY
from gaitforge.common.errors import amount
from gaitforge.datasets import Selection
from gaitforge.datasets.catalog.summaries import episode_id, episode_name
from gaitforge.datasets.edits.operations import REWARD as REWARD_FIELD
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.plans import check_value, plan_from_tree
from gaitforge.flows.records.records import read_record, reading_files
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.flows.tasks.policy_sources import EXPERT, PolicySource, run_source


# Recordings: what a page plays of one episode.
@dataclass(frozen=True)
class Chart:
    """Curves that share an axis."""

    name: str
    unit: str
    curves: tuple[str, ...]


@dataclass(frozen=True)
class Recording:
    """An episode of T steps, to be drawn.

    Attributes:
        poses: (T or T + 1, 7 + J) base position, quaternion wxyz and joint positions before each
            step, and after the last step if known.
        series: (T, C) the curves of all charts, in their order.
        ended: why the episode ended, in words; "" if unknown (its row says whether it fell).
    """

    poses: np.ndarray
    series: np.ndarray
    ended: str


VELOCITY = Chart("velocity", "m/s", ("commanded x", "x", "commanded y", "y"))
TURNING = Chart("yaw rate", "rad/s", ("commanded", "actual"))
ATTITUDE = Chart("pitch and roll", "rad", ("commanded pitch", "pitch", "commanded roll", "roll"))
HEIGHT = Chart("trunk height", "m", ("commanded", "actual"))
REWARD = Chart("reward of a step", "1", ("reward",))
TERMS = Chart(
    "reward terms of a step", "1", tuple(term.__name__.replace("_", " ") for term in REWARDS)
)
CONTACT = Chart("contact force", "N", (*LEGS, "trunk", "barriers"))


def recorded_charts(robot: RobotCard) -> tuple[Chart, ...]:
    """The charts of a recorded episode."""
    return (VELOCITY, TURNING, HEIGHT, ATTITUDE, REWARD, TERMS, *joint_charts(robot), CONTACT)


def joint_charts(robot: RobotCard) -> tuple[Chart, Chart]:
    """Actions as executed, and torques."""
    joints = tuple(name.removesuffix("_joint").replace("_", " ") for name in robot.joint_names)
    scale = f"{robot.action_scale_rad:g} rad from the default pose"
    return Chart("action", scale, joints), Chart("torque", "Nm", joints)


def record(
    env: LeggedEnvironment,
    policy: Policy,
    specs: Sequence[EpisodeSpec],
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[EpisodeResult, Recording]]:
    """Run every episode once, as `run_episodes` does; yields them as they end."""
    watcher = _Watcher(env, policy)
    for result in run_episodes(env, watcher, specs, record=True, progress=progress):
        robot = next(i for i, spec in enumerate(env.specs) if spec is result.spec)
        yield result, watcher.recording(robot, result)


class _Watcher:
    """A policy that forwards to another one, and records the curves of every robot's steps."""

    def __init__(self, env: LeggedEnvironment, policy: Policy):
        self.name = policy.name
        self._env = env
        self._policy = policy
        shape = env.num_robots, env.episode_steps
        curves = sum(len(chart.curves) for chart in recorded_charts(env.robot))
        self._series = np.zeros((*shape, curves), np.float32)
        self._rows = np.arange(env.num_robots)

    def reset(self, ids: np.ndarray) -> None:
        self._policy.reset(ids)

    def act(self, observation: Observation) -> np.ndarray:
        self._note()
        return self._policy.act(observation)

    def recording(self, robot: int, result: EpisodeResult) -> Recording:
        """A robot's recording of the episode that has just ended."""
        view = self._note()
        state = self._env.physics.state
        last = [state.base_pos[robot], state.base_quat[robot], state.joint_pos[robot]]
        assert result.record is not None, "the episode was run to be recorded"
        poses = np.concatenate([result.record.state, np.concatenate(last)[None]])
        series = self._series[robot, : result.length].copy()
        return Recording(poses, series, _why(view, robot, result.terminated))

    def _note(self) -> StepView:
        """Record the last step of all robots; after a reset, the first row is overwritten later."""
        view = self._env.view
        if view is not None:
            steps = np.clip(self._env.step_count - 1, 0, self._env.episode_steps - 1)
            self._series[self._rows, steps] = _curves(view, self._env.rewards)
        return view  # type: ignore[return-value]  # None only before the first step


def _curves(view: StepView, rewards: Rewards) -> np.ndarray:
    """(N, C) the curves of `recorded_charts`; terms that data sets lack are in the sum alone."""
    geometry = view.geometry
    command = view.command
    robots = view.robots
    terms = [rewards.get(term, 0.0) * CONTROL_DT_S * term(view) for term in REWARDS]
    speed, (pitch, roll) = geometry.lin_vel_heading, _attitude(geometry.gravity)
    commanded_pitch, commanded_roll = _attitude(view.desired_gravity)
    columns = [
        command[:, C.VEL_X],
        speed[:, 0],
        command[:, C.VEL_Y],
        speed[:, 1],
        command[:, C.YAW_RATE],
        geometry.yaw_rate,
        robots.nominal_height_m + command[:, C.BODY_HEIGHT],
        geometry.height,
        commanded_pitch,
        pitch,
        commanded_roll,
        roll,
        CONTROL_DT_S * total_reward(view, rewards),
        *terms,
        *view.action.T,
        *view.state.joint_torque.T,
        *lengths(view.state.foot_force).T,
        view.trunk_force_n,
        view.state.barrier_force,
    ]
    return np.stack(columns, axis=1)


def _attitude(gravity: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N,) pitch (nose down) and roll (to the right) in rad of a trunk that sees this gravity."""
    x, y, z = gravity.T
    return np.arcsin(np.clip(x, -1.0, 1.0)), np.arctan2(-y, -z)


def _why(view: StepView, robot: int, terminated: bool) -> str:
    if not terminated:
        return "time ran out"
    if view.trunk_force_n[robot] > CONTACT_FORCE_N:
        return "fell: the trunk touched the ground"
    lean = int(np.degrees(np.arccos(MIN_UPRIGHT)))
    return f"fell: leaned more than {lean}° from the commanded attitude"


# What a page plays.
MOST_PARALLEL = 64
"""Most robots that run a page's episodes in parallel."""


class NothingToShow(ValueError):
    """Episodes of which no page can be made, however often it is tried; the message says why."""


@dataclass(frozen=True)
class Viewed:
    """One episode: its catalog row, its recording, and its surroundings.

    `ghost` is another policy's, on the same start and seed.
    """

    row: Mapping[str, Any]
    recording: Recording
    tile: TerrainTile
    barriers: tuple[Barrier, ...]
    ghost: "Viewed | None" = None

    @property
    def name(self) -> str:
        """The episode's name, as `gaitforge query --list` prints it."""
        return episode_name(int(self.row["episode"]))

    @property
    def ended(self) -> str:
        """Why the episode ended, in words."""
        return self.recording.ended or ("fell" if self.row["terminated"] else "time ran out")


@dataclass(frozen=True)
class Show:
    """The episodes of a page.

    Attributes:
        charts: the curves of every recording's `series`, in their order.
        note: a remark on the episodes for the viewer, or "".
        ghost: name of the ghosts' policy, or "".
        randomisation: that of the episodes, see `LeggedPlan`.
        start: number of the episode that plays when the page opens; None for the worst, still.
    """

    title: str
    robot: RobotCard
    charts: tuple[Chart, ...]
    episodes: tuple[Viewed, ...]
    note: str = ""
    ghost: str = ""
    randomisation: Written = field(default_factory=dict)
    start: int | None = None

    def chosen(self, names: Sequence[str]) -> "Show":
        """The same with the episodes of these names or ids, or else that of the lowest return.

        ValueError without such an episode.
        """
        by_id = {int(episode.row["episode"]): episode for episode in self.episodes}
        ids = [episode_id(name) for name in names]
        if missing := [name for name, i in zip(names, ids, strict=True) if i not in by_id]:
            least, most = (episode_name(i) for i in (min(by_id), max(by_id)))
            raise ValueError(f"no episode {missing[0]} in {self.title}; they are {least} to {most}")
        first = min(self.episodes, key=lambda episode: episode.row["return"])
        episodes = [by_id[i] for i in dict.fromkeys(ids)] or [first]
        return replace(self, episodes=tuple(episodes), start=None)


def scene_of(viewed: Viewed, robot: RobotCard) -> Scene:
    """An episode as a scene to draw, with its ghost, under the whole path."""
    draws = draw_episode(EpisodeSpec.of_row(viewed.row), robot)
    scene = drawn_scene(robot, viewed.recording.poses, viewed.tile, draws)
    if viewed.ghost is None:
        return scene
    poses = viewed.ghost.recording.poses
    return replace(scene, ghost=poses[np.minimum(np.arange(len(scene.state)), len(poses) - 1)])


def viewed(row: Mapping[str, Any], recording: Recording, robot: RobotCard) -> Viewed:
    """An episode with the ground and barriers that its row and seed give."""
    tile = make_tile(row["terrain"], row["level"], row["terrain_variant"])
    drawn = draw_episode(EpisodeSpec.of_row(row), robot)
    barriers = place_barriers(drawn.passage, tile, drawn.offset_xy, drawn.yaw)
    return Viewed(row, recording, tile, tuple(barriers))


# Stored episodes.
NEEDED = ("terrain", "level", "skill", "seed", "terrain_variant", "simulator", "simulator_version")
_LAST_ACTION, _COMMAND = (slice(*POLICY_SLICES[name]) for name in ("last_action", "command"))


def spread_over_returns(selection: Selection, count: int) -> Selection:
    """`count` episodes of a selection: the worst, the best and evenly ranked ones between."""
    if len(selection) <= count:
        return selection
    order = np.argsort(selection.episodes("return")["return"].to_numpy(), kind="stable")
    ranks = np.linspace(0, len(order) - 1, count).round().astype(np.int64)
    return selection.with_rows(np.sort(selection.rows[order[ranks]]))


def stored_show(selection: Selection, reporter: Reporter, robot: str = "") -> Show:
    """Stored legged episodes: simulated again as collected, or drawn from their stored states.

    Args:
        robot: a name or path; empty for the store's own.

    Raises:
        NothingToShow: no legged episodes, or neither of the two is possible.
    """
    store = selection.store
    columns = selection.catalog.column_names
    if missing := [name for name in NEEDED if name not in columns]:
        raise NothingToShow(
            f"{store.address} has no column {missing[0]}: view shows stores of the legged task"
        )
    card = load_robot(robot) if robot else robot_of_selection(selection)
    rows = selection.episodes().to_pylist()
    whole = selection.as_collected()
    try:
        env = replay_environment(whole, min(MOST_PARALLEL, len(rows)), str(card.path))
    except ValueError as error:
        if "state" not in selection.schema.names():
            raise NothingToShow(
                f"{store.address} can neither be simulated again ({error}) nor has it the field "
                "state, which gaitforge collect --state stores"
            ) from None
        recordings = [_from_state(selection.episode(k)) for k in range(len(rows))]
        note = f"Drawn from stored states, without torques and reward terms: {error}."
        charts = (VELOCITY, REWARD, joint_charts(card)[0])
    else:
        recordings, unequal = _replayed(whole, env, reporter)
        note = _edits_note(selection, whole)
        if unequal:
            note = f"{amount(unequal, 'episode')} came out otherwise than stored. {note}".strip()
        charts = recorded_charts(card)
    episodes = [
        viewed(row, recording, card) for row, recording in zip(rows, recordings, strict=True)
    ]
    name = Path(store.address).name
    draws = stored_randomisation(store.schema).written()
    return Show(name, card, charts, tuple(episodes), note, randomisation=draws)


def _edits_note(selection: Selection, whole: Selection) -> str:
    """What edits changed in episodes that are played as collected; "" for nothing."""
    notes = []
    if trimmed := int((selection.lengths != whole.lengths).sum()):
        notes.append(f"Played whole, as collected: {amount(trimmed, 'trimmed episode')}.")
    if REWARD_FIELD in selection.catalog.fields:
        notes.append("Rewards are as collected; returns are the new reward's.")
    return " ".join(notes)


def _replayed(
    selection: Selection, env: LeggedEnvironment, reporter: Reporter
) -> tuple[list[Recording], int]:
    """The recordings in the order of the rows, and how many differ from what is stored."""
    episodes = {episode.row["episode"]: episode for episode in stored_episodes(selection)}
    specs = [episode.spec(noise=False) for episode in episodes.values()]
    recordings: dict[int, Recording] = {}
    unequal = 0
    with closing(env), reporter.step("replay", selection.steps, "step") as advance:
        policy = Executed(env, episodes)
        for result, recording in record(env, policy, specs, lambda n: advance(n, "")):
            k = result.spec.index
            recordings[k] = recording
            unequal += bool(episodes[k].difference(result, env.robot))
    return [recordings[k] for k in episodes], unequal


def _from_state(stored: dict[str, np.ndarray]) -> Recording:
    """The curves `VELOCITY`, `REWARD` and actions from stored fields; speeds are differences."""
    state = stored["state"].astype(np.float64)
    command = stored["obs"][:, _COMMAND]
    yaw = yaw_of(state[:, 3:7])
    change = np.diff(state[:, :2], axis=0, append=state[-1:, :2]) / CONTROL_DT_S
    ahead = np.cos(yaw) * change[:, 0] + np.sin(yaw) * change[:, 1]
    left = -np.sin(yaw) * change[:, 0] + np.cos(yaw) * change[:, 1]
    velocity = [command[:, C.VEL_X], ahead, command[:, C.VEL_Y], left]
    after = np.concatenate([stored["obs"][1:], stored["final_obs"][None]])
    columns = [*velocity, stored["reward"], *after[:, _LAST_ACTION].T]
    return Recording(state, np.stack(columns, axis=1), "")


# Episodes that a policy runs.
def policy_show(
    source: PolicySource, plan: LeggedEvaluation, specs: Sequence[EpisodeSpec], reporter: Reporter
) -> Show:
    """A policy on episodes, in their order, with the plan's simulator, robot and settings.

    ValueError without such a policy, or without episodes.
    """
    if not specs:
        raise ValueError("no episode to run")
    robots = min(MOST_PARALLEL, len(specs))
    policy = plan.load(source, robots)[0]
    card = plan.card_of(source)
    with closing(plan.environment(card, robots)) as env:
        total = len(specs) * env.episode_steps
        with reporter.step("run", total, "step") as advance:
            pairs = list(record(env, policy, specs, lambda n: advance(n, source.name)))
        simulator = env.physics.name, env.physics.version
    # The order of the catalog's rows.
    pairs.sort(key=lambda pair: pair[0].spec.index)
    actor = source.name, plan.key(source)["weights"]
    results = [result for result, _ in pairs]
    names = env.randomisation.names
    columns = part_catalog(results, card, simulator, actor, draws=names)
    columns |= {"policy": columns.pop("expert"), "policy_hash": columns.pop("expert_hash")}
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    episodes = [
        viewed(row, recording, card) for row, (_, recording) in zip(rows, pairs, strict=True)
    ]
    return Show(
        f"policy {source.name}",
        card,
        recorded_charts(card),
        tuple(episodes),
        randomisation=plan.randomisation,
    )


def opening_with_a_walk(show: Show) -> Show:
    """The same page, which opens with the success that goes farthest and says how many succeed."""
    good = [k for k, episode in enumerate(show.episodes) if episode.row["success"]]
    if not good:
        return show
    start = max(good, key=lambda k: _distance(show.episodes[k].recording))
    counts = f"{len(good)} of {amount(len(show.episodes), 'episode')}"
    note = f"Success in {counts}; the page opens with the one of these that goes farthest."
    return replace(show, start=start, note=f"{show.note} {note}".strip())


def _distance(recording: Recording) -> float:
    """From the first to the last position of the base, m."""
    return float(np.linalg.norm(recording.poses[-1, :2] - recording.poses[0, :2]))


def ghost_source(name: str) -> PolicySource:
    """The default expert by "expert", or the policy in a folder; ValueError without one."""
    if name == "expert":
        return PolicySource(name, EXPERT, DEFAULT_EXPERT)
    return run_source(Path(name))


def default_robot() -> str:
    """The name of the robot that the default expert drives."""
    return load_expert(DEFAULT_EXPERT).policy.robot.name


def with_ghosts(show: Show, source: PolicySource, reporter: Reporter) -> Show:
    """The same page with another policy on the same starts and seeds, without action noise.

    ValueError as by `policy_show`.
    """
    rows = [episode.row for episode in show.episodes]
    specs = [replace(EpisodeSpec.of_row(row, noise=False), index=k) for k, row in enumerate(rows)]
    plan = LeggedEvaluation(robot=str(show.robot.path), randomisation=show.randomisation)
    ghosts = policy_show(source, plan, specs, reporter).episodes
    pairs = zip(show.episodes, ghosts, strict=True)
    episodes = tuple(replace(episode, ghost=ghost) for episode, ghost in pairs)
    return replace(show, episodes=episodes, ghost=source.name)


def evaluation_files(path: Path) -> list[Path]:
    """The evaluations of a path: itself, or those that demo, compare and dagger leave in it."""
    if path.suffix == ".json" and path.is_file():
        return [path]
    folder = path if path.name == "evaluate" else path / "evaluate"
    return sorted(folder.rglob("*.json"))


def evaluation_show(path: Path, reporter: Reporter) -> Show:
    """The worst, the median and the best episode of every cell of an evaluation, run again.

    An evaluation keeps each episode's return, not its steps; an episode is a function of its seed
    and the policy.

    Raises:
        NothingToShow: it is of several robots, or of an expert that it does not tell.
        ValueError: no evaluation of the legged task, or its policy is gone or was trained further.
    """
    tree = read_record(path)
    if not isinstance(tree, dict) or not {"plan", "key", "returns", "cells"} <= tree.keys():
        raise ValueError(f"{path} is no evaluation with its plan and returns")
    check_value(Mapping[str, Any], tree["key"], f"{path}: key")
    plan = plan_from_tree(LeggedEvaluation, tree["plan"])
    if plan.each_robot():
        raise NothingToShow(
            f"{path} is of several robots; a page shows one: gaitforge view --robot"
        )
    source = _evaluated(path, tree["key"].get("weights"))
    with reading_files(path.parent):
        returns = _extremes(plan, tree)
    specs = [spec for spec in plan.grid.specs() if spec.index in returns]
    show = policy_show(source, plan, specs, reporter)
    apart = sum(abs(v.row["return"] - returns[v.row["episode"]]) > 1e-3 for v in show.episodes)
    note = "The worst, the median and the best episode of every cell, run again."
    # A network's last bits depend on how many robots it drives at once.
    note += f" {amount(apart, 'episode')} came out otherwise than evaluated." if apart else ""
    return replace(show, title=f"evaluation {path.stem}", note=note)


def _evaluated(path: Path, weights: str | None) -> PolicySource:
    """The policy of OUT/evaluate/NAME.json: the run OUT/train/NAME, or the default expert."""
    run = path.parent.parent / "train" / path.stem
    run = run / POLICY if (run / POLICY).is_dir() else run  # of reinforcement learning
    expert = PolicySource(path.stem, EXPERT, DEFAULT_EXPERT)
    source = run_source(run) if run.is_dir() else expert
    if LeggedEvaluation().key(source)["weights"] == weights:
        return source
    # An expert's evaluation does not tell where it is.
    kind = ValueError if run.is_dir() else NothingToShow
    raise kind(
        f"{path} keeps no episodes, and its policy is not at {run}; "
        "give the folder of its training run to view"
    )


def _extremes(plan: LeggedEvaluation, tree: dict[str, Any]) -> dict[int, float]:
    """Index -> return of the worst, median and best episode of every cell."""
    extremes = {}
    for cell, returns in zip(tree["cells"], tree["returns"], strict=True):
        where = cell["terrain"], cell["skill"], cell["level"]
        indices = [s.index for s in plan.grid.specs() if (s.terrain, s.skill, s.level) == where]
        order = np.argsort(returns, kind="stable")
        for k in order[[0, len(order) // 2, -1]]:
            extremes[indices[k]] = float(returns[k])
    return extremes
