"""Episodes as they run: poses, and the curves beside them, of any policy on the legged task."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gaitforge.collectors.legged.environment import CONTACT_FORCE_N, MIN_UPRIGHT, LeggedEnvironment
from gaitforge.collectors.legged.episodes import EpisodeSpec
from gaitforge.collectors.legged.rewards import REWARDS, StepView
from gaitforge.collectors.legged.rollout import EpisodeResult, run_episodes
from gaitforge.collectors.policy import Observation, Policy
from gaitforge.collectors.robots.commands import C
from gaitforge.collectors.robots.robot import LEGS, RobotCard
from gaitforge.collectors.rotations import lengths
from gaitforge.collectors.timing import CONTROL_DT_S


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
            self._series[self._rows, steps] = _curves(view)
        return view  # type: ignore[return-value]  # None only before the first step


def _curves(view: StepView) -> np.ndarray:
    """(N, C) the curves of `recorded_charts`."""
    geometry = view.geometry
    command = view.command
    robots = view.robots
    terms = [weight * CONTROL_DT_S * term(view) for term, weight in REWARDS.items()]
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
        np.sum(terms, axis=0),
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
