"""The expert's training task: curriculum, restarts, and inputs of actor and critic.

Every robot keeps one terrain and has a level for each skill. The level rises after 80 % of the
commanded distance, through the passage if there is one; it falls below 40 % or after a fall
(legged_gym's rule, but relative to the command because windows are short).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from gaitforge.collectors.experts.expert import expert_features
from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.episodes import EpisodeSpec
from gaitforge.collectors.legged.rewards import track_linear_velocity
from gaitforge.collectors.policies import Observation
from gaitforge.collectors.robots.commands import C
from gaitforge.collectors.robots.descriptor import body_vector
from gaitforge.collectors.robots.gait import GaitReference
from gaitforge.collectors.robots.robot import N_JOINTS, N_LEGS, RobotCard
from gaitforge.collectors.scenarios.randomisation import DEFAULT, Randomisation
from gaitforge.collectors.scenarios.skills import SKILLS
from gaitforge.collectors.scenarios.terrains import N_LEVELS, TERRAINS, difficulty
from gaitforge.collectors.timing import CONTROL_DT_S, EPISODE_STEPS

TERRAIN_SHARES = {t.name: t.share for t in TERRAINS.values() if t.share > 0}
SKILL_SHARES = {s.name: s.share for s in SKILLS.values() if s.share > 0}
"""Skills that experts are trained on; the critic's one-hot inputs are in this order."""
SKILL_NAMES = tuple(SKILL_SHARES)
MAX_RESIDUAL = 6.0
_EVEN = 1.0
"""A skill is drawn in proportion to its share times this plus its rate of failure on the terrain:
cells that fail are practised more. With 0.15 standing, which rarely fails, was unlearned."""
_MEAN_RATE = 0.005
CRITIC_DIM = 1 + (1 + len(TERRAIN_SHARES) + len(SKILL_SHARES)) + N_LEGS + 1


class ExpertTask:
    """The parts of `rsl_rl.env.VecEnv` that PPO reads: actions correct the gait.

    Args:
        bodies: robots that the parallel rows take in turn; with more than one, the features hold
            their descriptors.
        tracking_weight: extra weight of `track_linear_velocity` per second.
        first_levels: starting levels are drawn below this one.
        randomisation: of the training's episodes.
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
    ):
        self.num_envs = robots
        self.num_actions = N_JOINTS
        self.max_episode_length = EPISODE_STEPS
        self.device = "cpu"
        self.cfg: dict[str, object] = {}
        self.speed_scale = 0.0
        rows = [bodies[i % len(bodies)] for i in range(robots)] if len(bodies) > 1 else bodies
        self._env = LeggedEnvironment(rows, robots, threads, randomisation=randomisation)
        self._gait = GaitReference(*rows)
        self._bodies = None
        if len(bodies) > 1:
            self._bodies = np.stack([body_vector(robot) for robot in rows])
        self._seed, self._tracking_weight = seed, tracking_weight
        names, shares = list(TERRAIN_SHARES), np.array(list(TERRAIN_SHARES.values()))
        quota = np.floor(np.cumsum(shares) * robots + 1e-9)
        self._terrain = [names[int(np.searchsorted(quota, i, side="right"))] for i in range(robots)]
        self._what = np.zeros((robots, 1 + len(TERRAIN_SHARES) + len(SKILL_SHARES)))
        self._returns = np.zeros(robots)
        self.finished: list[dict[str, Any]] = []
        levels = np.random.default_rng(seed).integers(0, first_levels, (robots, len(SKILL_SHARES)))
        self.begin(0, levels, np.full((len(TERRAIN_SHARES), len(SKILL_SHARES)), 0.5))

    def begin(self, iteration: int, levels: np.ndarray, successes: np.ndarray) -> None:
        """Restart every robot at levels (N, skills); a resumed training draws new episodes.

        Args:
            successes: (terrains, skills) moving means of success.
        """
        self.levels, self.successes = levels.copy(), successes.copy()
        self._rng = np.random.default_rng([self._seed, iteration])
        ids = np.arange(self.num_envs)
        self._restart(ids)
        # Robots start at different steps, so that updates see every phase of an episode.
        early = self._rng.integers(20, EPISODE_STEPS, len(ids))
        self._end_at = np.where(ids % 4 == 0, EPISODE_STEPS, early)
        self._look(self._env.observe())

    def get_observations(self) -> TensorDict:
        """{"features": (N, FEATURE_DIM or more), "critic": (N, CRITIC_DIM)}."""
        features = torch.from_numpy(self._features)
        hidden = torch.from_numpy(self._critic_only())
        return TensorDict({"features": features, "critic": hidden}, batch_size=[self.num_envs])

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict]:
        """Apply corrections (N, 12); see `rsl_rl.env.VecEnv.step`."""
        residual = np.clip(actions.numpy(), -MAX_RESIDUAL, MAX_RESIDUAL)
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
        self._look(observation)
        # A small penalty keeps the gait where it works.
        price = 0.0005 * np.square(residual).sum(axis=1)
        if self._tracking_weight:
            assert self._env.view is not None, "it has just stepped"
            price -= self._tracking_weight * CONTROL_DT_S * track_linear_velocity(self._env.view)
        reward = torch.from_numpy((transition.reward - price).astype(np.float32))
        extras = {"time_outs": torch.from_numpy(timed_out.astype(np.float32))}
        observations, ended = self.get_observations(), torch.from_numpy(done.astype(np.int64))
        return observations, reward, ended, extras

    def skill_levels(self) -> dict[str, float]:
        """Mean level of each skill, over the robots on terrains where it is trained."""
        means = {}
        for column, name in enumerate(SKILL_NAMES):
            skill = SKILLS[name]
            rows = [i for i, terrain in enumerate(self._terrain) if skill.commanded_on(terrain)]
            if rows:
                means[name] = float(self.levels[rows, column].mean())
        return means

    def close(self) -> None:
        """Free the simulator."""
        self._env.close()

    def _look(self, observation: Observation) -> None:
        robots = self._env.robots
        seen = expert_features(observation, robots, self._gait, self._bodies)
        self._features, self._reference = seen

    def _critic_only(self) -> np.ndarray:
        """(N, CRITIC_DIM) float32 for the critic only.

        Time left in the window, level, terrain, skill, then forces on the feet and of barriers in
        units of the weight.
        """
        state = self._env.physics.state
        weight_n = self._env.robots.weight_n
        left = 1.0 - self._env.step_count / EPISODE_STEPS
        return np.concatenate(
            [
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
            skills = [name for name in SKILL_SHARES if SKILLS[name].commanded_on(terrain)]
            failures = 1.0 - self.successes[list(TERRAIN_SHARES).index(terrain)]
            shares = np.array(
                [SKILL_SHARES[s] * (_EVEN + failures[SKILL_NAMES.index(s)]) for s in skills]
            )
            skill = str(self._rng.choice(skills, p=shares / shares.sum()))
            seed = int(self._rng.integers(2**62))
            level = int(self.levels[index, SKILL_NAMES.index(skill)])
            specs.append(EpisodeSpec(0, terrain, level, skill, seed, speed_scale=self.speed_scale))
            self._what[index] = 0.0
            self._what[index, 0] = difficulty(level)
            self._what[index, 1 + list(TERRAIN_SHARES).index(terrain)] = 1.0
            self._what[index, 1 + len(TERRAIN_SHARES) + SKILL_NAMES.index(skill)] = 1.0
        self._env.reset(ids, specs)
        self._returns[ids] = 0.0

    def _finish(self, ids: np.ndarray, terminated: np.ndarray) -> None:
        """Record ended full episodes and move their robots up or down a level."""
        for index in ids.tolist():
            spec, fell = self._env.specs[index], bool(terminated[index])
            if spec is None or (not fell and self._env.step_count[index] < EPISODE_STEPS):
                continue
            track = self._env.track(index)
            commanded_m = track.commanded_distance_m()
            share = track.distance_m() / commanded_m if commanded_m > 0.5 else float(not fell)
            skill = SKILL_NAMES.index(spec.skill)
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
            cell = list(TERRAIN_SHARES).index(spec.terrain), skill
            self.successes[cell] += _MEAN_RATE * (mastered - self.successes[cell])
            self.finished.append(
                {
                    "cell": f"{spec.terrain}/{spec.skill}",
                    "return": float(self._returns[index]),
                    "success": succeeded,
                    "survived": not fell,
                }
            )
