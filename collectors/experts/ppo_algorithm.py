"""rsl-rl's PPO as the experts use it: a residual policy that starts at zero, a capped rate."""

import contextlib
import io
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from rsl_rl.algorithms import PPO

from collectors.experts.ppo_checkpoint import Progress, actor_layers


class _CappedPPO(PPO):
    """PPO whose adaptive learning rate has a ceiling."""

    ceiling = 1e-3

    @property
    def learning_rate(self) -> float:
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._learning_rate = min(value, self.ceiling)


@dataclass(frozen=True)
class Update:
    """One update: PPO's losses, and the seconds that it and its rollout took."""

    losses: dict[str, float]
    elapsed_s: float
    simulating_s: float


def ppo_updates(
    algorithm: PPO, task: Any, horizon: int, steps: int, progress: Progress
) -> Iterator[Update]:
    """Roll out and update until `steps` environment steps; counts in `progress`."""
    algorithm.train_mode()
    observations = task.get_observations()
    while progress.steps < steps:
        started = time.perf_counter()
        with torch.inference_mode():
            for _ in range(horizon):
                observations, reward, done, extras = task.step(algorithm.act(observations))
                algorithm.process_env_step(observations, reward, done, extras)
            simulated = time.perf_counter()
            algorithm.compute_returns(observations)
        losses = algorithm.update()
        elapsed = time.perf_counter() - started
        progress.iteration += 1
        progress.steps += task.num_envs * horizon
        progress.wall_s += elapsed
        yield Update(losses, elapsed, simulated - started)


def make_algorithm(config: Any, task: Any) -> PPO:
    """PPO for a task with observation groups "features" (actor and critic) and "critic".

    The actor's last layer is scaled by 0.01: training starts from the policy that it corrects.

    Args:
        config: settings as in `ppo.ExpertTrainingConfig`.
    """
    network = {
        "class_name": "rsl_rl.models.MLPModel",
        "hidden_dims": list(config.hidden),
        "activation": "elu",
        "obs_normalization": True,
    }
    distribution = {
        "class_name": "rsl_rl.modules.distribution.GaussianDistribution",
        "init_std": config.initial_std,
    }
    observations = task.get_observations()
    cfg: dict[str, object] = {
        "num_steps_per_env": config.horizon,
        "obs_groups": {"actor": ["features"], "critic": list(observations.keys())},
        "actor": {**network, "distribution_cfg": distribution},
        "critic": dict(network),
        "algorithm": {
            "class_name": _CappedPPO,
            "num_learning_epochs": config.epochs,
            "num_mini_batches": config.mini_batches,
            "clip_param": config.clip,
            "gamma": config.gamma,
            "lam": config.gae_lambda,
            "entropy_coef": config.entropy,
            "learning_rate": config.learning_rate,
            "desired_kl": config.target_kl,
            "schedule": "adaptive",
        },
        "multi_gpu": None,
    }
    _CappedPPO.ceiling = config.max_learning_rate
    with contextlib.redirect_stdout(io.StringIO()):  # rsl-rl prints its models
        algorithm = _CappedPPO.construct_algorithm(observations, task, cfg, "cpu")
    last = actor_layers(algorithm)[-1]
    with torch.no_grad():
        last.weight.mul_(0.01)
        last.bias.zero_()
    return algorithm
