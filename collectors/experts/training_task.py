"""The training task of experts and of blind policies: curriculum, inputs of actor and critic.

Every robot keeps one terrain and has a level for each skill. The level rises after 80 % of the
commanded distance, through the passage if there is one; it falls below 40 % or after a fall
(legged_gym's rule, but relative to the command because windows are short).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from gaitforge.collectors.experts.expert import expert_features
from gaitforge.collectors.experts.ppo_algorithm import CRITIC, FEATURES
from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.episodes import EpisodeSpec
from gaitforge.collectors.legged.observations import POLICY_SLICES, PRIVILEGED_SLICES
from gaitforge.collectors.legged.rewards import track_linear_velocity
from gaitforge.collectors.policy import Observation
from gaitforge.collectors.robots.commands import C
from gaitforge.collectors.robots.descriptor import body_vector
from gaitforge.collectors.robots.gait import GaitReference
from gaitforge.collectors.robots.robot import N_JOINTS, N_LEGS, RobotCard
from gaitforge.collectors.scenarios.randomisation import DEFAULT, Randomisation
from gaitforge.collectors.scenarios.skills import ALL_SKILLS, SKILLS, matching_cells
from gaitforge.collectors.scenarios.terrains import N_LEVELS, TERRAINS, difficulty
from gaitforge.collectors.timing import CONTROL_DT_S, EPISODE_STEPS
from gaitforge.common.errors import listed
from gaitforge.datasets.schema import consecutive_slices

TERRAIN_SHARES = {t.name: t.share for t in TERRAINS.values() if t.share > 0}
SKILL_SHARES = {s.name: s.share for s in SKILLS.values() if s.share > 0}
"""Skills that experts are trained on if none are named; the critic's one-hot inputs are in this
order."""
MAX_RESIDUAL = 6.0
_EVEN = 1.0
"""A skill is drawn in proportion to its share times this plus its rate of failure on the terrain:
cells that fail are practised more. With 0.15 standing, which rarely fails, was unlearned."""
_MEAN_RATE = 0.005
CRITIC_DIM = 1 + (1 + len(TERRAIN_SHARES) + len(SKILL_SHARES)) + N_LEGS + 1


@dataclass(frozen=True)
class TrainingScope:
    """The terrains and skills that are trained, with their shares, what the actor sees, and where.

    Attributes:
        blind: the actor sees the stored observation alone, as a learner does, and its actions are
            joint targets; the critic sees the simulator's state beside it. Else the actor sees that
            state, and its actions correct the kinematic gait.
        action_filter: the newest action's share in what a blind actor's robot executes, beside the
            last executed one.
        sim: the physics back end.
    """

    terrains: Mapping[str, float] = field(default_factory=lambda: TERRAIN_SHARES)
    skills: Mapping[str, float] = field(default_factory=lambda: SKILL_SHARES)
    blind: bool = False
    action_filter: float = 1.0
    sim: str = "mujoco"

    @classmethod
    def of(
        cls, terrains: Sequence[str], skills: Sequence[str], blind: bool = False
    ) -> "TrainingScope":
        """The scope of the named terrains and skills (all for none); shares keep their proportions.

        Raises:
            ValueError: an unknown name, or one that goes with none of the others.
        """
        chosen = tuple(terrains or TERRAIN_SHARES), tuple(skills or SKILL_SHARES)
        cells = matching_cells(*chosen, (0,))
        lone = {*chosen[0], *chosen[1]} - {name for cell in cells for name in cell}
        if lone:
            raise ValueError(
                f"{listed(sorted(lone))}: none of the chosen skills is commanded on one of the "
                "chosen terrains"
            )
        return cls(_shares(chosen[0], TERRAIN_SHARES), _shares(chosen[1], SKILL_SHARES), blind)


def _shares(names: Sequence[str], shares: Mapping[str, float]) -> dict[str, float]:
    """Their shares, which add up to 1; names without one weigh as much as the mean of all."""
    weights = {name: shares.get(name, 1.0 / len(shares)) for name in names}
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}


class ExpertTask:
    """The parts of `rsl_rl.env.VecEnv` that PPO reads.

    Args:
        bodies: robots that the parallel rows take in turn; with more than one, the features hold
            their descriptors.
        tracking_weight: extra weight of `track_linear_velocity` per second.
        first_levels: starting levels are drawn below this one.
        randomisation: of the training's episodes.
        scope: terrains, skills and the actor's sight.
    """

    def __init__(
        self,
        bodies: Sequence[RobotCard],
        robots: int,
        threads: int,
        seed: int,
        tracking_weight: float = 0.0,
        first_levels: int = 4,
        randomisation: Randomisation = DEFAULT,
        scope: TrainingScope | None = None,
    ):
        scope = scope or TrainingScope()
        self._terrains, self._skills = tuple(scope.terrains), tuple(scope.skills)
        self._skill_shares = scope.skills
        self._blind = scope.blind
        self._filter = scope.action_filter
        self.num_envs = robots
        self.num_actions = N_JOINTS
        self.max_episode_length = EPISODE_STEPS
        self.device = "cpu"
        self.cfg: dict[str, object] = {}
        self.speed_scale = 0.0
        rows = [bodies[i % len(bodies)] for i in range(robots)] if len(bodies) > 1 else bodies
        self._env = LeggedEnvironment(rows, robots, threads, scope.sim, randomisation=randomisation)
        self._gait = GaitReference(*rows)
        self._bodies = None
        if len(bodies) > 1:
            self._bodies = np.stack([body_vector(robot) for robot in rows])
        self._seed = seed
        self._tracking_weight = tracking_weight
        shares = np.array(list(scope.terrains.values()))
        quota = np.floor(np.cumsum(shares) * robots + 1e-9)
        places = np.minimum(np.searchsorted(quota, np.arange(robots), "right"), len(shares) - 1)
        self._terrain = [self._terrains[index] for index in places.tolist()]
        self._what = np.zeros((robots, 1 + len(self._terrains) + len(self._skills)))
        self._returns = np.zeros(robots)
        self.finished: list[dict[str, Any]] = []
        size = len(self._terrains), len(self._skills)
        levels = np.random.default_rng(seed).integers(0, first_levels, (robots, size[1]))
        self.begin(0, levels, np.full(size, 0.5))

    def begin(self, iteration: int, levels: np.ndarray, successes: np.ndarray) -> None:
        """Restart every robot at levels (N, skills); a resumed training draws new episodes.

        It does not report those that end within an episode's length: only falls end so early, which
        would make the learning curve dip.

        Args:
            successes: (terrains, skills) moving means of success.
        """
        self.levels, self.successes = levels.copy(), successes.copy()
        self._rng = np.random.default_rng([self._seed, iteration])
        self._unreported_steps = EPISODE_STEPS if iteration else 0
        ids = np.arange(self.num_envs)
        self._restart(ids)
        # Robots start at different steps, so that updates see every phase of an episode.
        early = self._rng.integers(20, EPISODE_STEPS, len(ids))
        self._end_at = np.where(ids % 4 == 0, EPISODE_STEPS, early)
        self._look(self._env.observe())

    @property
    def slices(self) -> dict[str, dict[str, tuple[int, int]]]:
        """Field -> (start, stop) in the groups of a blind actor's observations."""
        cell = 1 + len(self._terrains) + len(self._skills)
        task_widths = {"time_left": 1, "cell": cell, "foot_force": N_LEGS, "barrier_force": 1}
        state = {name: stop - start for name, (start, stop) in PRIVILEGED_SLICES.items()}
        return {FEATURES: POLICY_SLICES, CRITIC: consecutive_slices(state | task_widths)}

    def get_observations(self) -> TensorDict:
        """{"features": (N, FEATURE_DIM or more; blind 70), "critic": CRITIC_DIM or more}."""
        groups = {FEATURES: self._features, CRITIC: self._critic_only()}
        tensors = {name: torch.from_numpy(array) for name, array in groups.items()}
        return TensorDict(tensors, batch_size=[self.num_envs])

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict]:
        """Apply actions (N, 12); see `rsl_rl.env.VecEnv.step`."""
        residual = np.clip(actions.numpy(), -MAX_RESIDUAL, MAX_RESIDUAL)
        if self._blind:
            last = self._features[:, slice(*POLICY_SLICES["last_action"])]
            residual = last + np.float32(self._filter) * (residual - last)
        transition = self._env.step(self._reference + residual)
        self._returns += transition.reward
        cut = ~transition.terminated & (self._env.step_count >= self._end_at)
        timed_out = transition.truncated | cut
        done = transition.terminated | timed_out
        observation = transition.observation
        if done.any():
            ids = np.flatnonzero(done)
            self._finish(ids, transition.terminated)
            self._restart(ids)
            self._end_at[ids] = EPISODE_STEPS
            observation = self._env.observe()
        self._unreported_steps = max(0, self._unreported_steps - 1)
        self._look(observation)
        # A small penalty keeps the gait where it works.
        price = (0.0 if self._blind else 0.0005) * np.square(residual).sum(axis=1)
        if self._tracking_weight:
            assert self._env.view is not None, "it has just stepped"
            price -= self._tracking_weight * CONTROL_DT_S * track_linear_velocity(self._env.view)
        reward = torch.from_numpy((transition.reward - price).astype(np.float32))
        extras = {"time_outs": torch.from_numpy(timed_out.astype(np.float32))}
        observations = self.get_observations()
        ended = torch.from_numpy(done.astype(np.int64))
        return observations, reward, ended, extras

    def skill_levels(self) -> dict[str, float]:
        """Mean level of each skill, over the robots on terrains where it is trained."""
        means = {}
        for column, name in enumerate(self._skills):
            skill = ALL_SKILLS[name]
            rows = [i for i, terrain in enumerate(self._terrain) if skill.commanded_on(terrain)]
            if rows:
                means[name] = float(self.levels[rows, column].mean())
        return means

    def close(self) -> None:
        """Free the simulator."""
        self._env.close()

    def _look(self, observation: Observation) -> None:
        robots = self._env.robots
        if self._blind:
            self._features = observation.policy
            self._reference = 0.0
            self._state = observation.privileged
            return
        seen = expert_features(observation, robots, self._gait, self._bodies)
        self._features, self._reference = seen

    def _critic_only(self) -> np.ndarray:
        """(N, CRITIC_DIM) float32 for the critic only; with a blind actor after the state.

        Time left in the window, level, terrain, skill, then forces on the feet and of barriers in
        units of the weight.
        """
        state = self._env.physics.state
        weight_n = self._env.robots.weight_n
        left = 1.0 - self._env.step_count / EPISODE_STEPS
        return np.concatenate(
            [
                *([self._state] if self._blind else []),
                left[:, None],
                self._what,
                np.linalg.norm(state.foot_force, axis=2) / weight_n[:, None],
                (state.barrier_force / weight_n)[:, None],
            ],
            axis=1,
        ).astype(np.float32)

    def _restart(self, ids: np.ndarray) -> None:
        specs = []
        for index in ids.tolist():
            terrain = self._terrain[index]
            row = self._terrains.index(terrain)
            weights = self._skill_shares
            skills = [name for name in self._skills if ALL_SKILLS[name].commanded_on(terrain)]
            failures = 1.0 - self.successes[row]
            shares = np.array(
                [weights[s] * (_EVEN + failures[self._skills.index(s)]) for s in skills]
            )
            skill = str(self._rng.choice(skills, p=shares / shares.sum()))
            seed = int(self._rng.integers(2**62))
            column = self._skills.index(skill)
            level = int(self.levels[index, column])
            specs.append(EpisodeSpec(0, terrain, level, skill, seed, speed_scale=self.speed_scale))
            self._what[index] = 0.0
            self._what[index, 0] = difficulty(level)
            self._what[index, [1 + row, 1 + len(self._terrains) + column]] = 1.0
        self._env.reset(ids, specs)
        self._returns[ids] = 0.0

    def _finish(self, ids: np.ndarray, terminated: np.ndarray) -> None:
        """Record ended full episodes and move their robots up or down a level."""
        for index in ids.tolist():
            spec = self._env.specs[index]
            fell = bool(terminated[index])
            if spec is None or (not fell and self._env.step_count[index] < EPISODE_STEPS):
                continue
            track = self._env.track(index)
            commanded_m = track.commanded_distance_m()
            share = track.distance_m() / commanded_m if commanded_m > 0.5 else float(not fell)
            skill = self._skills.index(spec.skill)
            level = int(self.levels[index, skill])
            stuck = track.passage is not None and not track.passed()
            if not fell and not stuck and share > 0.8:
                top = level == N_LEVELS - 1
                level = int(self._rng.integers(N_LEVELS)) if top else level + 1
            elif fell or share < 0.4:
                level = max(0, level - 1)
            self.levels[index, skill] = level
            succeeded = self._env.success(index, fell)
            # Exploration shakes a robot that stands, so that only its falls count.
            mastered = succeeded if track.command[C.LOCOMOTE] else not fell
            cell = self._terrains.index(spec.terrain), skill
            self.successes[cell] += _MEAN_RATE * (mastered - self.successes[cell])
            if self._unreported_steps:
                continue
            self.finished.append(
                {
                    "cell": f"{spec.terrain}/{spec.skill}",
                    "return": float(self._returns[index]),
                    "success": succeeded,
                    "survived": not fell,
                }
            )
