"""Proximal policy optimisation of an actor that was first trained by behaviour cloning.

Cloning is for tasks whose rare success exploration does not find, as in DAPG (Rajeswaran et al.
2018). Deviations from DAPG: PPO's clipped objective (Schulman et al. 2017, Eq. 7) in place of the
natural gradient, and no demonstrations after the cloning.

Legend: T steps, N parallel episodes, B rows, Do observation, A action.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from gaitforge.common.networks import gaussian_kl, gaussian_nll
from gaitforge.plugins.gym.training.sac import Actor, Algorithm, adam

_MAX_GRAD_NORM = 1.0
_LEAST_VALUE_SCALE = 1e-3


@dataclass(frozen=True)
class PPOConfig:
    """Settings of behaviour cloning and PPO.

    Attributes:
        hidden: units of each of the two hidden layers.
        episodes: parallel episodes of a rollout, all to the horizon.
        imitations: first rollouts, after each of which the actor is only cloned: imitation_updates
            of imitation_batch_size rows at imitation_learning_rate.
        imitation_noise: std of noise on the cloned observations, in units of their spread.
        epochs: over a rollout; batch_size: rows of a minibatch.
        learning_rate: of the actor; value_learning_rate: of the critic.
        gamma: discount; gae_lambda: of the advantages (Schulman et al. 2016, Eq. 16).
        clip: of the probability ratio (epsilon of Eq. 7).
        target_kl: from the rollout's policy, in nats; beyond it the actor's epochs stop.
    """

    hidden: int = 256
    episodes: int = 60
    imitations: int = 8
    imitation_updates: int = 200
    imitation_batch_size: int = 256
    imitation_learning_rate: float = 1e-3
    imitation_noise: float = 0.1
    epochs: int = 10
    batch_size: int = 2000
    learning_rate: float = 5e-5
    value_learning_rate: float = 1e-3
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.3
    target_kl: float = 0.05


@dataclass(frozen=True)
class Rollout:
    """N episodes of T steps: obs (T + 1, N, Do), pre_tanh_action (T, N, A), reward (T, N)."""

    obs: Tensor
    pre_tanh_action: Tensor
    reward: Tensor


class PPO(Algorithm):
    """Actor with a state-independent std, and critic, with their optimisers."""

    def __init__(
        self, config: PPOConfig, obs_dim: int, std: Tensor, value_scale: float, seed: int
    ) -> None:
        """Initialise the weights from the seed.

        Args:
            std: (A,) initial standard deviations of the pre-tanh actions.
            value_scale: unit of the critic's values, see `value_scale`.
        """
        self.config = config
        self._value_scale = value_scale
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor = Actor(obs_dim, len(std), config.hidden)
            self._critic = nn.Sequential(
                nn.Linear(obs_dim, config.hidden),
                nn.Tanh(),
                nn.Linear(config.hidden, config.hidden),
                nn.Tanh(),
                nn.Linear(config.hidden, 1),
            )
        with torch.no_grad():
            self.actor.log_std.weight.zero_()
            self.actor.log_std.bias.copy_(std.log())
        self.actor.log_std.weight.requires_grad_(False)
        self.modules = {"actor": self.actor, "values": self._critic}
        trained = [each for each in self.actor.parameters() if each.requires_grad]
        self.optimisers = {
            "imitation": adam(trained, config.imitation_learning_rate),
            "actor": adam(trained, config.learning_rate),
            "values": adam(self._critic.parameters(), config.value_learning_rate),
        }

    def imitate(self, obs: Tensor, action: Tensor, generator: torch.Generator) -> None:
        """One behaviour-cloning update, mean squared error, on obs (B, Do) and action (B, A)."""
        noise = self.config.imitation_noise * torch.randn(obs.shape, generator=generator)
        error = self.actor(obs + noise)[0].tanh() - action
        self.minimise(error.square().sum(-1).mean(), "imitation")

    def update(self, rollout: Rollout, generator: torch.Generator, actor: bool = True) -> None:
        """One PPO update, of the critic alone unless `actor`; the generator shuffles."""
        config = self.config
        advantage, target = self._advantages(rollout)
        obs = rollout.obs[:-1].flatten(0, 1)
        action = rollout.pre_tanh_action.flatten(0, 1)
        with torch.no_grad():
            old_mean, old_log_std = self.actor(obs)
            old_nll = gaussian_nll(old_mean, old_log_std, action)
        for _ in range(config.epochs):
            for rows in torch.randperm(len(obs), generator=generator).split(config.batch_size):
                values = self._critic(obs[rows]).squeeze(-1)
                self.minimise(mse_loss(values, target[rows]), "values")
                if actor:
                    # Of the actions before tanh, whose own part cancels in the ratio.
                    mean, log_std = self.actor(obs[rows])
                    nll = gaussian_nll(mean, log_std, action[rows])
                    ratio = (old_nll[rows] - nll).exp()
                    clipped = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
                    gain = torch.minimum(ratio * advantage[rows], clipped * advantage[rows])
                    self.minimise(-gain.mean(), "actor", _MAX_GRAD_NORM)
            if actor:
                with torch.no_grad():
                    mean, log_std = self.actor(obs)
                divergence = gaussian_kl(old_mean, old_log_std.exp(), mean, log_std).mean()
                actor = float(divergence) < config.target_kl

    @torch.no_grad()
    def _advantages(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Normalised advantages and value targets, each (T N,)."""
        values = self._critic(rollout.obs).squeeze(-1)
        reward = symlog(rollout.reward) / self._value_scale
        config = self.config
        advantage = generalised_advantages(reward, values, config.gamma, config.gae_lambda)
        target = advantage + values[:-1]
        normalised = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        return normalised.flatten(), target.flatten()


def symlog(reward: Tensor) -> Tensor:
    """sign(x) log(1 + |x|) (Hafner et al. 2023, "Mastering Diverse Domains through World Models").

    Rewards range from hundredths for reaching to 100 for success.
    """
    return reward.sign() * reward.abs().log1p()


def value_scale(reward: Tensor, gamma: float) -> float:
    """Spread of the discounted sums of symlog rewards (T, N), at least `_LEAST_VALUE_SCALE`."""
    return max(float(_discounted_sums(symlog(reward), gamma).std()), _LEAST_VALUE_SCALE)


def generalised_advantages(
    reward: Tensor, values: Tensor, gamma: float, gae_lambda: float
) -> Tensor:
    """Advantages (T, N) of rewards (T, N) and values (T + 1, N) (Schulman et al. 2016, Eq. 16).

    The last step is bootstrapped like any other.
    """
    residual = reward + gamma * values[1:] - values[:-1]
    return _discounted_sums(residual, gamma * gae_lambda)


def _discounted_sums(summed: Tensor, factor: float) -> Tensor:
    """(T, N) discounted sums from each step on."""
    sums = torch.zeros_like(summed)
    later = torch.zeros_like(summed[0])
    for step in reversed(range(len(summed))):
        later = summed[step] + factor * later
        sums[step] = later
    return sums
