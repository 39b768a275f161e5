"""Episodes in closed loop, and closed-loop evaluation of policies.

Any policy runs any list of episodes, N robots at a time.

An evaluation runs the same held-out episodes for every policy and averages them per cell. A cell is
a terrain, a skill and a level.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.episodes import Driver, EpisodeDraws, EpisodeSpec
from gaitforge.collectors.legged.observations import OBS_DIM, PRIVILEGED_DIM
from gaitforge.collectors.physics.interface import PhysicsState
from gaitforge.collectors.policy import Observation, Policy, actions_of
from gaitforge.collectors.robots.robot import N_JOINTS
from gaitforge.collectors.scenarios.schedules import CONSTANT, check_manoeuvres, fitting
from gaitforge.collectors.scenarios.skills import SKILLS, S, matching_cells
from gaitforge.collectors.scenarios.terrains import TERRAINS
from gaitforge.common.errors import amount
from gaitforge.common.limits import LATER, Positive, Whole, check_ranges

# Episodes in closed loop.
STATE_DIM = 3 + 4 + N_JOINTS

Measure = Callable[[LeggedEnvironment, Observation], np.ndarray]
"""measure(env, observation) -> (N, *shape) for all robots before a control step."""


def pose_of(state: PhysicsState) -> np.ndarray:
    """(N, STATE_DIM): base position, quaternion wxyz, joint positions."""
    return np.concatenate([state.base_pos, state.base_quat, state.joint_pos], axis=1)


@dataclass(frozen=True)
class EpisodeRecord:
    """The arrays of one episode of T steps, float32.

    obs (T, 70), action (T, 12): the policy's. The executed action, with noise and from the driver
    where it drove, is the next observation's `last_action`.
    state (T, 19): base position, quaternion wxyz, joint positions before each step.
    privileged (T, P): the expert's further inputs. final_obs (70,): observed after the last step.
    measured: name -> (T, *shape), values of further measures.
    """

    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    state: np.ndarray
    final_obs: np.ndarray
    privileged: np.ndarray | None = None
    measured: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class EpisodeResult:
    """Outcome of an episode; `record` is None unless it was recorded.

    torque_nm (T,) float32 is the largest |torque| of any joint, action_rate_rads (T,) the speed of
    the fastest joint target; power_w the joints' mean mechanical power.
    """

    spec: EpisodeSpec
    draws: EpisodeDraws
    length: int
    episode_return: float
    success: bool
    terminated: bool
    vel_x_error_ms: float
    torque_nm: np.ndarray
    action_rate_rads: np.ndarray
    power_w: float
    record: EpisodeRecord | None


class _Slots:
    """Assigns episodes to robots.

    In a simulator with a fixed world, robots idle until all episodes have ended.
    """

    def __init__(
        self,
        env: LeggedEnvironment,
        policy: Policy,
        specs: Sequence[EpisodeSpec],
        driver: Driver | None,
    ):
        self._env = env
        self._policy = policy
        self._driver = driver
        self._waiting = iter(specs)
        self.running = np.zeros(env.num_robots, dtype=bool)

    def fill(self, ids: np.ndarray) -> np.ndarray:
        """Start waiting episodes on free robots; returns these. Robots without one idle."""
        self.running[ids] = False
        if self._env.physics.fixed_world:
            ids = np.arange(0 if self.running.any() else len(self.running))
        pairs = list(zip(ids.tolist(), self._waiting, strict=False)) if len(ids) else []
        started = np.array([index for index, _ in pairs], dtype=np.int64)
        if not pairs:
            return started
        specs = [spec for _, spec in pairs]
        self._env.reset(started, specs)
        self._policy.reset(started)
        if self._driver is not None:
            self._driver.reset(started, specs)
        self.running[started] = True
        return started


def run_episodes(
    env: LeggedEnvironment,
    policy: Policy,
    specs: Sequence[EpisodeSpec],
    record: bool = False,
    privileged: bool = False,
    progress: Callable[[int], None] | None = None,
    driver: Driver | None = None,
    measures: Mapping[str, Measure] | None = None,
) -> Iterator[EpisodeResult]:
    """Run every episode of `specs` once; yields results as episodes end.

    An episode depends on its spec and the executed actions only, not on its neighbours.

    Args:
        record, privileged: keep the episodes' arrays, and the privileged block.
        progress: called with the number of robot steps after every control step.
        driver: drives in the policy's place at times; the policy's actions are recorded.
        measures: name -> measure to record beside the other arrays.
    """
    slots = _Slots(env, policy, specs, driver)
    recorder = _Recorder(env, privileged, measures or {}) if record else None
    returns = np.zeros(env.num_robots)
    slots.fill(np.arange(env.num_robots))
    observation = env.observe()
    while slots.running.any():
        action = executed = actions_of(policy, observation, N_JOINTS)
        if driver is not None:
            executed = driver.replaced(action, observation, env.step_count)
        executed = executed + np.where(slots.running[:, None], env.action_noise(), np.float32(0.0))
        if recorder is not None:
            recorder.before_step(observation, action)
        transition = env.step(executed)
        returns += np.where(slots.running, transition.reward, 0.0)
        if recorder is not None:
            recorder.write(reward=transition.reward)
        if progress is not None:
            progress(int(slots.running.sum()))
        observation = transition.observation
        ended = np.flatnonzero(slots.running & (transition.terminated | transition.truncated))
        if len(ended):
            for index in ended.tolist():
                fell = bool(transition.terminated[index])
                yield _result(env, index, returns[index], fell, recorder, observation)
            returns[ended] = 0.0
            observation = env.observe(slots.fill(ended))


class _Recorder:
    """Per-robot buffers of the running episodes."""

    def __init__(self, env: LeggedEnvironment, privileged: bool, measures: Mapping[str, Measure]):
        widths = {"obs": (OBS_DIM,), "action": (N_JOINTS,), "reward": (), "state": (STATE_DIM,)}
        if privileged:
            widths["privileged"] = (PRIVILEGED_DIM,)
        shape = (env.num_robots, env.episode_steps)
        self._env = env
        self._rows = np.arange(env.num_robots)
        self._buffers = {
            name: np.zeros((*shape, *width), np.float32) for name, width in widths.items()
        }
        self._measures = measures
        self._measured: dict[str, np.ndarray] = {}
        self._step = np.zeros(env.num_robots, dtype=np.int64)

    def before_step(self, observation: Observation, action: np.ndarray) -> None:
        # Idle robots step on past the episode's end; they overwrite their last column.
        self._step = np.minimum(self._env.step_count, self._env.episode_steps - 1)
        state = pose_of(self._env.physics.state)
        self.write(obs=observation.policy, action=action, state=state)
        if "privileged" in self._buffers:
            self.write(privileged=observation.privileged)
        for name, measure in self._measures.items():
            values = measure(self._env, observation)
            if name not in self._measured:
                shape = (self._env.num_robots, self._env.episode_steps, *values.shape[1:])
                self._measured[name] = np.zeros(shape, values.dtype)
            self._measured[name][self._rows, self._step] = values

    def take(self, index: int, length: int, final_obs: np.ndarray) -> EpisodeRecord:
        arrays, measured = (
            {name: buffer[index, :length].copy() for name, buffer in buffers.items()}
            for buffers in (self._buffers, self._measured)
        )
        return EpisodeRecord(**arrays, final_obs=final_obs.copy(), measured=measured)

    def write(self, **values: np.ndarray) -> None:
        for name, value in values.items():
            self._buffers[name][self._rows, self._step] = value


def _result(
    env: LeggedEnvironment,
    index: int,
    episode_return: float,
    terminated: bool,
    recorder: _Recorder | None,
    observation: Observation,
) -> EpisodeResult:
    spec = env.specs[index]
    draws = env.episode_draws[index]
    if spec is None or draws is None:
        raise RuntimeError(f"robot {index} ended an episode that it never started")
    length = int(env.step_count[index])
    track = env.track(index)
    return EpisodeResult(
        spec=spec,
        draws=draws,
        length=length,
        episode_return=float(episode_return),
        success=env.success(index, terminated, track),
        terminated=terminated,
        vel_x_error_ms=track.vel_x_error(),
        torque_nm=track.values[:, S.TORQUE].copy(),
        action_rate_rads=track.values[:, S.ACTION_RATE].copy(),
        power_w=float(track.values[:, S.POWER].mean()),
        record=recorder.take(index, length, observation.policy[index]) if recorder else None,
    )


# Evaluation.
GRID_EPISODES = 20
"""Evaluated episodes per cell."""
GRID_LEVEL = 4
"""The middle one, which the demo, the comparisons and `gaitforge view` show, too."""


@dataclass(frozen=True)
class EvaluationGrid:
    """The cells to evaluate: every level of every terrain and skill that go together.

    The defaults are the cells and episodes of the demo's report.

    Attributes:
        manoeuvres: as those of `CollectionGrid`; a cell's episodes take those that fit in turn.
    """

    terrains: tuple[str, ...] = tuple(TERRAINS)
    skills: tuple[str, ...] = tuple(SKILLS)
    levels: tuple[int, ...] = (GRID_LEVEL,)
    episodes: Positive = GRID_EPISODES
    seed: Whole = 1_000_003
    manoeuvres: tuple[str, ...] = field(default=(CONSTANT,), metadata=LATER)

    def __post_init__(self) -> None:
        cells = matching_cells(self.terrains, self.skills, self.levels)
        check_manoeuvres(self.manoeuvres, cells)
        check_ranges(self)

    def __str__(self) -> str:
        terrains, skills, levels = (
            ", ".join(map(str, names)) for names in (self.terrains, self.skills, self.levels)
        )
        changing = ", ".join(self.manoeuvres)
        commands = "" if changing == CONSTANT else f", commands that change ({changing})"
        return (
            f"{amount(len(self.cells()), 'cell')}: {terrains} x {skills}, terrain level {levels} "
            f"of 0 to 9, {amount(self.episodes, 'episode')} per cell{commands}"
        )

    def cells(self) -> list[tuple[str, int, str]]:
        """Terrain, level and skill of every cell."""
        return [
            (terrain, level, skill)
            for terrain, skill in matching_cells(self.terrains, self.skills, self.levels)
            for level in self.levels
        ]

    def specs(self) -> list[EpisodeSpec]:
        """The episodes, on held-out terrain tiles, with seeds that no collection uses."""
        cells = self.cells()
        seeds = np.random.SeedSequence([0xE7A1, self.seed]).generate_state(
            len(cells) * self.episodes, np.uint64
        )
        halved = (seeds >> np.uint64(1)).tolist()
        return [self._spec(i, *cells[i // self.episodes], seed) for i, seed in enumerate(halved)]

    def _spec(self, index: int, terrain: str, level: int, skill: str, seed: int) -> EpisodeSpec:
        choices = fitting(self.manoeuvres, terrain, skill)
        manoeuvre = choices[index % self.episodes % len(choices)]
        return EpisodeSpec(index, terrain, level, skill, seed, True, manoeuvre=manoeuvre)


def evaluate(
    policy: Policy,
    env: LeggedEnvironment,
    grid: EvaluationGrid,
    progress: Callable[[int], None] | None = None,
) -> list[list[EpisodeResult]]:
    """Run the grid's episodes; returns those of every cell, in the order of their specs."""
    cells: dict[tuple[str, str, int], list[EpisodeResult]] = {}
    for result in run_episodes(env, policy, grid.specs(), progress=progress):
        spec = result.spec
        cells.setdefault((spec.terrain, spec.skill, spec.level), []).append(result)
    # Episodes end in a different order for every policy; a fixed order keeps the means' last bit.
    return [sorted(cells[key], key=lambda r: r.spec.index) for key in sorted(cells)]


def cell_measures(results: Sequence[EpisodeResult]) -> dict[str, float]:
    """Measures of a cell's episodes beside return and success.

    vx_error is the mean |v_x error| over the last 2 s, m/s; torque_p99 and action_rate_p99 are the
    99th percentiles over all steps of the largest joint torque, Nm, and of the fastest joint
    target, rad/s; power_w is the joints' mean mechanical power.
    """
    return {
        "vx_error": float(np.mean([r.vel_x_error_ms for r in results])),
        "torque_p99": _p99([r.torque_nm for r in results]),
        "action_rate_p99": _p99([r.action_rate_rads for r in results]),
        "power_w": float(np.mean([r.power_w for r in results])),
    }


def _p99(steps: list[np.ndarray]) -> float:
    return float(np.percentile(np.concatenate(steps), 99))
