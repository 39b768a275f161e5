"""PPO (rsl-rl-lib) on a Gymnasium task with networks of the registry.

Defaults are those of Isaac Gym's humanoid (github.com/isaac-sim/IsaacGymEnvs, isaacgymenvs/cfg/
train/HumanoidPPO.yaml), but for 64 environments in place of 4,096 and the ceiling of the rate.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from gaitforge.collectors.experts import ppo_algorithm
from gaitforge.collectors.experts import ppo_algorithm as checkpoint
from gaitforge.collectors.experts.ppo_algorithm import Networks, PPOSettings, PpoUpdate
from gaitforge.collectors.training_folder import POLICY, Report
from gaitforge.common.limits import AboveZero, NotNegative, Positive
from gaitforge.plugins.gym.environments.batch import TaskBatch
from gaitforge.plugins.gym.environments.tasks import find_task

Slices = Mapping[str, tuple[int, int]]
_FIXED = ("env", "environments", "horizon", "model", "model_overrides", "reward_scale")
_FIXED += ("initial_weights",)
"""Settings that must not change when a training resumes."""


@dataclass(frozen=True)
class GymPPOConfig(PPOSettings):
    """A training by PPO.

    Attributes:
        env: environment id, see `tasks.TASKS`; environments: number of parallel ones, stepped by
            `threads`.
        model: a network of the registry, for actor and critic; both see the observation.
        model_overrides: settings of the model's config that differ from its preset's.
        reward_scale: factor of the rewards in training; returns in the history are without it.
    """

    env: str = "Humanoid-Mod-v0"
    environments: Positive = 64
    model: str = "mlp"
    model_overrides: Mapping[str, Any] = field(default_factory=dict)
    reward_scale: AboveZero = 0.01
    horizon: Positive = 32
    epochs: Positive = 5
    learning_rate: AboveZero = 5e-4
    target_kl: AboveZero = 0.008
    entropy: NotNegative = 0.0
    initial_std: AboveZero = 1.0
    threads: Positive = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        find_task(self.env)


class GymPPOTask:
    """The parts of `rsl_rl.env.VecEnv` that PPO reads; episodes that end start anew at once."""

    def __init__(self, config: GymPPOConfig) -> None:
        self._batch = TaskBatch(find_task(config.env), config.environments, config.threads)
        self._seed = config.seed
        self._scale = config.reward_scale
        self.num_envs = config.environments
        self.num_actions = self._batch.act_dim
        self.max_episode_length = self._batch.task.facts.horizon
        self.device = "cpu"
        self.cfg: dict[str, object] = {}
        self._ids = list(range(self.num_envs))
        self.begin(0)

    @property
    def slices(self) -> dict[str, Slices]:
        """Field -> (start, stop) in the groups of observations; the critic has none of its own."""
        return {ppo_algorithm.FEATURES: self._batch.obs_slices, ppo_algorithm.CRITIC: {}}

    def begin(self, iteration: int) -> None:
        """Restart every environment; a resumed training draws new episodes."""
        self._rng = np.random.default_rng([self._seed, iteration])
        self._returns, self._lengths = np.zeros(self.num_envs), np.zeros(self.num_envs)
        self.finished: list[tuple[float, float]] = []
        self._restart(self._ids)

    def get_observations(self) -> TensorDict:
        """{"features": (N, D)}, a copy."""
        features = torch.from_numpy(self._batch.observation.policy.copy())
        return TensorDict({ppo_algorithm.FEATURES: features}, batch_size=[self.num_envs])

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict]:
        """Apply actions (N, A), clipped to [-1, 1]; see `rsl_rl.env.VecEnv.step`."""
        step = self._batch.step(self._ids, actions.clamp(-1.0, 1.0).numpy())
        self._returns += step.reward
        self._lengths += 1
        done = step.terminated | step.truncated
        if done.any():
            ended = np.flatnonzero(done)
            self.finished += zip(self._returns[ended], self._lengths[ended], strict=True)
            self._restart(ended.tolist())
        timed_out = torch.from_numpy((step.truncated & ~step.terminated).astype(np.float32))
        reward = torch.from_numpy(step.reward * np.float32(self._scale))
        ended = torch.from_numpy(done.astype(np.int64))
        return self.get_observations(), reward, ended, {"time_outs": timed_out}

    def close(self) -> None:
        """Free the environments."""
        self._batch.close()

    def _restart(self, ids: list[int]) -> None:
        self._batch.reset(ids, self._rng.integers(2**62, size=len(ids)).tolist())
        self._returns[ids] = self._lengths[ids] = 0.0


def train_gym_ppo(
    config: GymPPOConfig,
    out: Path,
    report: Report,
    build: Callable[..., Networks],
) -> Path:
    """Train in `out`, or resume from the checkpoint there; returns the policy's folder.

    Args:
        build: makes the networks for the slices of the observations and the size of an action,
            with `initial_weights` and the folder `begun` of what an earlier call has trained.
        report: called after every update with its row of `history.jsonl`; return and length are
            means over the episodes that ended, None without any.

    Raises:
        ValueError: a checkpoint of another configuration is in `out`.
        Stopped: (a KeyboardInterrupt) by a signal, after saving a checkpoint.
    """
    out.mkdir(parents=True, exist_ok=True)
    config = checkpoint.as_begun(out, config)
    torch.manual_seed(config.seed)
    torch.set_num_threads(config.learner_threads)
    settings = asdict(config)
    with closing(GymPPOTask(config)) as task:
        begun = {"initial_weights": config.initial_weights, "begun": out / POLICY}
        networks = build(task.slices, task.num_actions, **begun)
        algorithm = ppo_algorithm.make_algorithm(config, task, networks)
        progress, _ = checkpoint.load_training(out, settings, _FIXED, algorithm)
        if progress.iteration:
            task.begin(progress.iteration)

        def row(update: PpoUpdate) -> dict[str, Any]:
            finished = task.finished
            task.finished = []
            means = np.mean(finished, axis=0).tolist() if finished else (None, None)
            return update.row(config.steps) | dict(zip(("return", "length"), means, strict=True))

        def write() -> None:
            card = {"env": config.env, "steps": progress.steps, "wall_s": progress.wall_s}
            card |= {"seed": config.seed, "training": settings}
            networks.save(algorithm.get_policy(), out / POLICY, card)
            checkpoint.save_training(out, settings, algorithm, progress, {})

        run = algorithm, task, config, progress, out
        ppo_algorithm.run_updates(*run, row, write, report)
    return out / POLICY
