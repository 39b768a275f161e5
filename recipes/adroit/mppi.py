"""Model predictive path integral control (MPPI) on a task's own simulator.

On the Adroit hand reward is too rare for exploration. A planner that simulates ahead from the
current state finds it at once, in seconds per second, and a policy learns from its episodes
(`demonstrations`).

MPPI: Williams et al. 2017, "Information Theoretic MPC for Model-Based Reinforcement Learning",
Algorithm 2; on spline knots of the actions as in MuJoCo MPC (Howell et al. 2022, Section 4.3).
Deviations: a sample's noise has one of three strengths, returns are weighted in units of their
spread, and knots are offsets from a reference, the actions of a good episode.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import mujoco
import numpy as np
from mujoco.rollout import Rollout

from gaitforge.plugins.gym.environments.tasks import GymTask, make_environment

_STATE = int(mujoco.mjtState.mjSTATE_FULLPHYSICS)
_SENSOR = "planner-{}"
_STRENGTHS = (0.1, 0.3, 1.0)
_SET_BY_TASKS = (
    "body_pos",
    "body_quat",
    "site_pos",
    "site_quat",
    "actuator_gainprm",
    "actuator_biasprm",
)
"""Model fields that the tasks set when they are made and at an episode's start."""

_SLACK = 0.015
"""In metres: tolerance when the hand's distance is compared with the reference's."""

Points = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Objective:
    """Objective of a planner.

    Attributes:
        points: of the model, as "site NAME" or "body NAME".
        value: (N, H) of simulated control steps, from the points' positions, {point: (N, H, 3)} in
            metres in the world frame, and the generalised positions (N, H, nq).
        unguided: leading actions without a reference, as they depend on where things lie.
        reach: two points whose distance tells how far an episode has come; None where time does.
    """

    points: tuple[str, ...]
    value: Callable[[Points, np.ndarray], np.ndarray]
    unguided: int = 0
    reach: tuple[str, str] | None = None


@dataclass(frozen=True)
class Reference:
    """An episode to stay close to; beyond its end the last step holds.

    Attributes:
        actions: (T, A).
        distances: (T,) between the objective's `reach`, in metres.
        noise: seed of the plans' noise, shared so that similar starts give similar actions.
    """

    actions: np.ndarray
    distances: np.ndarray
    noise: int


@dataclass(frozen=True)
class PlannerConfig:
    """MPPI's settings.

    Attributes:
        horizon: control steps; knots: of the piecewise linear actions over it.
        samples: plans simulated in each of `rounds` (iterations).
        every: control steps between plans.
        noise: std of the strongest samples' knots, of actions in [-1, 1].
        effort: weight of the squared differences from the reference; without it, joints that do not
            matter wander, and the episodes cannot be cloned.
        temperature: of the weights, in standard deviations of the samples' returns.
        substeps: physics steps per control step; the tasks themselves have 5.
    """

    horizon: int = 32
    knots: int = 4
    samples: int = 16
    rounds: int = 6
    every: int = 4
    noise: float = 0.3
    effort: float = 0.05
    temperature: float = 0.2
    substeps: int = 2


class Planner:
    """MPPI for an Adroit task; actions do not depend on the number of threads.

    The caller steps `env`, the task's environment; `horizon` is an episode's.
    """

    def __init__(
        self, task: GymTask, objective: Objective, config: PlannerConfig, threads: int = 1
    ) -> None:
        self.env = make_environment(task)
        self.horizon = task.facts.horizon
        self.obs_dim, self.act_dim = (
            int(space.shape[0]) for space in (self.env.observation_space, self.env.action_space)
        )
        self._objective = objective
        self._config = config
        inner = self._inner = self.env.unwrapped
        self._model = model = _with_sensors(inner.fullpath, objective.points)
        self._data = [mujoco.MjData(model) for _ in range(threads)]
        self._pool = Rollout(nthread=threads if threads > 1 else 0)
        self._first_sensor = int(model.sensor(_SENSOR.format(0)).adr[0])
        model.opt.timestep *= inner.frame_skip / config.substeps
        # For steps longer than the task's own.
        model.opt.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
        model.opt.noslip_iterations = 0  # half of the time of a grasp
        self._knot_times = np.linspace(0.0, config.horizon - 1.0, config.knots)
        unit = np.eye(config.knots)
        steps = np.arange(config.horizon)
        self._lines = np.stack([np.interp(steps, self._knot_times, one) for one in unit], axis=1)
        self._rng = np.random.default_rng()
        self._plan = np.zeros((config.knots, model.nu))
        self._reference = self.no_reference(0)
        self._step = self._at = 0

    def no_reference(self, noise: int) -> Reference:
        """Actions of 0, the middle of every joint's range."""
        return Reference(np.zeros((1, self.act_dim)), np.zeros(1), noise)

    def reset(self, seed: int, reference: Reference) -> np.ndarray:
        """Start the seed's episode and a new plan; returns the first observation."""
        obs, _ = self.env.reset(seed=seed)
        for name in _SET_BY_TASKS:
            getattr(self._model, name)[:] = getattr(self._inner.model, name)
        self._rng = np.random.default_rng(reference.noise)
        self._plan[:] = 0.0
        actions = np.array(reference.actions, np.float64)
        actions[:, : self._objective.unguided] = 0.0
        self._reference = replace(reference, actions=actions)
        self._step = self._at = 0
        return obs

    def distance(self) -> float:
        """Current distance between the objective's `reach` in metres; 0 without one."""
        if self._objective.reach is None:
            return 0.0
        data = self._inner.data
        first, second = (
            getattr(data, kind)(name).xpos
            for kind, _, name in (point.partition(" ") for point in self._objective.reach)
        )
        return float(np.linalg.norm(first - second))

    def act(self) -> np.ndarray:
        """(A,) float32 in [-1, 1] for `env`'s current state; call once per step."""
        ahead = self._step % self._config.every
        if ahead == 0:
            if self._step:
                self._shift_plan()
            self._at = self._clock()
            following = self._following(self._at)
            for _ in range(self._config.rounds):
                self._update_plan(following)
        action = self._following(self._at + ahead)[0] + self._lines[ahead] @ self._plan
        self._step += 1
        return np.clip(action, -1.0, 1.0).astype(np.float32)

    def close(self) -> None:
        """Free the environment."""
        self._pool.close()
        self.env.close()

    def _shift_plan(self) -> None:
        """Start the next plan from the rest of the last one; the last knot stays."""
        times = np.minimum(self._knot_times + self._config.every, self._knot_times[-1])
        columns = self._plan.T
        self._plan = np.stack([np.interp(times, self._knot_times, one) for one in columns], axis=1)

    def _clock(self) -> int:
        """The reference's step to follow: at most the last one as far away as the hand is now.

        So the hand closes where the object is, and opens again if it lost it.
        """
        on = self._at + self._config.every if self._step else 0
        distances = self._reference.distances
        as_far = np.flatnonzero(distances >= self.distance() - _SLACK)
        latest = int(as_far[-1]) if len(as_far) else 0
        return on if latest == len(distances) - 1 else min(on, latest)

    def _following(self, step: int) -> np.ndarray:
        """(H, A) actions of the reference from one of its steps on."""
        steps = np.arange(step, step + self._config.horizon)
        return self._reference.actions[np.minimum(steps, len(self._reference.actions) - 1)]

    def _update_plan(self, following: np.ndarray) -> None:
        """One iteration: sample plans and average them by the exponential of their returns."""
        config = self._config
        rng = self._rng
        strength = config.noise * rng.choice(_STRENGTHS, size=(config.samples, 1, 1))
        noise = rng.standard_normal((config.samples, *self._plan.shape)) * strength
        plans = self._plan + noise
        plans[0] = self._plan
        returns = self._simulate(plans, following)
        spread = max(float(returns.std()), 1e-9)
        weights = np.exp((returns - returns.max()) / (config.temperature * spread))
        self._plan = np.einsum("n,nka->ka", weights / weights.sum(), plans)

    def _simulate(self, plans: np.ndarray, following: np.ndarray) -> np.ndarray:
        """(N, K, A) -> (N,) sums of the objective over the horizon."""
        inner = self._inner
        substeps = self._config.substeps
        model = self._model
        differences = np.einsum("hk,nka->nha", self._lines, plans)
        actions = np.clip(following + differences, -1.0, 1.0)
        control = np.repeat(inner.act_mean + actions * inner.act_rng, substeps, axis=1)
        start = np.empty(mujoco.mj_stateSize(inner.model, _STATE))
        mujoco.mj_getState(inner.model, inner.data, start, _STATE)
        starts = np.tile(start, (len(plans), 1))
        states, sensors = self._pool.rollout(model, self._data, starts, control)
        last = slice(substeps - 1, None, substeps)
        positions = states[:, last, 1 : 1 + model.nq]  # behind the time
        seen = sensors[:, last, self._first_sensor :]
        names = self._objective.points
        points = {name: seen[:, :, 3 * k : 3 * k + 3] for k, name in enumerate(names)}
        effort = self._config.effort * np.square(differences).sum(axis=(1, 2))
        return self._objective.value(points, positions).sum(axis=1) - effort


def _with_sensors(path: str, points: tuple[str, ...]) -> mujoco.MjModel:
    """The model with a position sensor per point added behind its own sensors."""
    spec = mujoco.MjSpec.from_file(path)
    kinds = {"site": mujoco.mjtObj.mjOBJ_SITE, "body": mujoco.mjtObj.mjOBJ_XBODY}
    for index, point in enumerate(points):
        kind, _, name = point.partition(" ")
        sensor = spec.add_sensor()
        sensor.type = mujoco.mjtSensor.mjSENS_FRAMEPOS
        sensor.objtype = kinds[kind]
        sensor.objname, sensor.name = name, _SENSOR.format(index)
    return spec.compile()
