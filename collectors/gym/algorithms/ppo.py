"""Proximal policy optimisation of an actor that has begun by imitating.

Where success is rare, an actor that has to find it never does. One that has seen it done succeeds
now and then, and what it then does better than usual is made more likely: imitation, then policy
gradients, as in DAPG (Rajeswaran et al. 2018, "Learning Complex Dexterous Manipulation with Deep
Reinforcement Learning and Demonstrations"). Deviations from it: the gradient is that of proximal
policy optimisation (Schulman et al. 2017, Eq. 7) in place of the natural one, and demonstrations
are left behind once the actor has imitated them.

Legend: T steps, N episodes at once, B rows, Do observation, A action.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import isfinite

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from collectors.gym.algorithms.learner_state import adam, load_state_tensors, state_tensors
from collectors.gym.algorithms.networks import Actor

_GRADIENT_NORM = 1.0
"""At most; larger gradients are scaled down to it."""

_LEAST_VALUE = 1e-3
"""To learn values in units of; rewards that are all the same have no spread."""


@dataclass(frozen=True)
class PPOConfig:
    """Settings of imitation and of the algorithm.

    Attributes:
        hidden: units of each of the two hidden layers.
        episodes: that are run at once between updates, all to the horizon.
        imitations: the first rounds of them, after which the actor only imitates; imitation_updates
            in each of these, of imitation_batch_size rows at imitation_learning_rate.
        imitation_noise: standard deviation of noise on the imitated observations, in units of their
            spread, so that the actor knows what to do beside them, too.
        epochs: over a round's rows, of the values and, unless the policy has moved too far, of the
            actor; batch_size: rows an update.
        learning_rate: of the actor; value_learning_rate: of the values.
        gamma: discount; trace: decay of advantages (lambda of Schulman et al. 2016, Eq. 16).
        clip: of the densities' ratio (epsilon of Eq. 7).
        divergence: of the policy from that of the round, in nats, beyond which its epochs end.

    Raises:
        ValueError: a number out of its range.
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
    trace: float = 0.95
    clip: float = 0.3
    divergence: float = 0.05

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (isfinite(value) and value >= 0):
                raise ValueError(f"ppo.{name} must be a number from 0, got {value}")
            if value == 0 and name not in ("imitations", "imitation_noise", "gamma", "trace"):
                raise ValueError(f"ppo.{name} must be above 0")
        if self.gamma >= 1.0 or self.trace > 1.0:
            raise ValueError("ppo.gamma must lie in [0, 1), ppo.trace in [0, 1]")


@dataclass(frozen=True)
class Round:
    """What an actor met in N episodes of T steps.

    Attributes:
        obs: (T + 1, N, Do), with what the last step led to.
        before: (T, N, A) actions before tanh.
        reward: (T, N).
    """

    obs: Tensor
    before: Tensor
    reward: Tensor


class PPO:
    """An actor whose deviation is the same everywhere, and values, with their optimisers."""

    def __init__(
        self, config: PPOConfig, obs_dim: int, noise: Tensor, value_scale: float, seed: int
    ) -> None:
        """Begin with random weights.

        Args:
            noise: (A,) standard deviations of the actions before tanh, at the start.
            value_scale: what values are learned in units of, see `value_scale`.
        """
        self.config, self._value_scale = config, value_scale
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor = Actor(obs_dim, len(noise), config.hidden)
            self._values = nn.Sequential(
                nn.Linear(obs_dim, config.hidden),
                nn.Tanh(),
                nn.Linear(config.hidden, config.hidden),
                nn.Tanh(),
                nn.Linear(config.hidden, 1),
            )
        with torch.no_grad():
            self.actor.log_std.weight.zero_()
            self.actor.log_std.bias.copy_(noise.log())
        self.actor.log_std.weight.requires_grad_(False)
        self._modules = {"actor": self.actor, "values": self._values}
        self._trained = [each for each in self.actor.parameters() if each.requires_grad]
        self._optimisers = {
            "imitation": adam(self._trained, config.imitation_learning_rate),
            "actor": adam(self._trained, config.learning_rate),
            "values": adam(self._values.parameters(), config.value_learning_rate),
        }

    def imitate(self, obs: Tensor, action: Tensor, generator: torch.Generator) -> None:
        """One step towards actions (B, A) of demonstrations for their observations (B, Do).

        The loss is the squared distance from the mean action.
        """
        noise = self.config.imitation_noise * torch.randn(obs.shape, generator=generator)
        away = self.actor(obs + noise)[0].tanh() - action
        self._step("imitation", away.square().sum(-1).mean())

    def improve(self, met: Round, generator: torch.Generator, act: bool = True) -> None:
        """Make what led to more than expected more likely, and learn what to expect.

        Args:
            generator: of the order of the rows.
            act: whether the actor learns, too, or the values alone.
        """
        config = self.config
        advantage, wanted = self._judged(met)
        obs, before = met.obs[:-1].flatten(0, 1), met.before.flatten(0, 1)
        with torch.no_grad():
            old_mean, old_log_std = self.actor(obs)
            old_density = _log_density(before, old_mean, old_log_std)
        for _ in range(config.epochs):
            for rows in _batches(len(obs), config.batch_size, generator):
                values = self._values(obs[rows]).squeeze(-1)
                self._step("values", mse_loss(values, wanted[rows]))
                if act:
                    density = _log_density(before[rows], *self.actor(obs[rows]))
                    ratio = (density - old_density[rows]).exp()
                    clipped = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
                    gain = torch.minimum(ratio * advantage[rows], clipped * advantage[rows])
                    self._step("actor", -gain.mean())
            if act:
                with torch.no_grad():
                    mean, log_std = self.actor(obs)
                act = _divergence(old_mean, old_log_std, mean, log_std) < config.divergence

    def tensors(self) -> dict[str, Tensor]:
        """All that goes on changing, by name; what `load_tensors` takes back."""
        return state_tensors(self._modules, self._optimisers)

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the state that `tensors` gave, of the same sizes."""
        load_state_tensors(self._modules, self._optimisers, tensors)

    @torch.no_grad()
    def _judged(self, met: Round) -> tuple[Tensor, Tensor]:
        """Normalised advantages of every step, and the values to learn, each (T N,)."""
        values = self._values(met.obs).squeeze(-1)
        reward = symlog(met.reward) / self._value_scale
        advantage = generalised_advantages(reward, values, self.config.gamma, self.config.trace)
        wanted = advantage + values[:-1]
        normalised = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        return normalised.flatten(), wanted.flatten()

    def _step(self, name: str, loss: Tensor) -> None:
        optimiser = self._optimisers[name]
        optimiser.zero_grad()
        loss.backward()
        if name == "actor":
            nn.utils.clip_grad_norm_(self._trained, _GRADIENT_NORM)
        optimiser.step()


def symlog(reward: Tensor) -> Tensor:
    """sign(x) log(1 + |x|) (Hafner et al. 2023, "Mastering Diverse Domains through World Models",
    Eq. 1): what is learned from in place of rewards.

    The tasks pay 20 or 100 a step for success, 1 for having lifted a thing, hundredths for reaching
    it; beside a few successes, all that leads to others would be lost.
    """
    return reward.sign() * reward.abs().log1p()


def value_scale(reward: Tensor, gamma: float) -> float:
    """Spread of the discounted sums of symlog rewards (T, N): their values are of that size."""
    return max(float(_discounted_sums(symlog(reward), gamma).std()), _LEAST_VALUE)


def generalised_advantages(reward: Tensor, values: Tensor, gamma: float, trace: float) -> Tensor:
    """Of every step (Schulman et al. 2016, Eq. 16); the last is bootstrapped like any other.

    Args:
        reward: (T, N); values: (T + 1, N), with that of what the last step led to.

    Returns:
        (T, N).
    """
    surprise = reward + gamma * values[1:] - values[:-1]
    return _discounted_sums(surprise, gamma * trace)


def _discounted_sums(summed: Tensor, factor: float) -> Tensor:
    """(T, N) of what follows each step, itself included."""
    sums, later = torch.zeros_like(summed), torch.zeros_like(summed[0])
    for step in reversed(range(len(summed))):
        later = summed[step] + factor * later
        sums[step] = later
    return sums


def _log_density(before: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """(B,) of the action before tanh, but for a constant; what tanh adds cancels in ratios."""
    return (-0.5 * ((before - mean) / log_std.exp()).square() - log_std).sum(-1)


def _divergence(old_mean: Tensor, old_log_std: Tensor, mean: Tensor, log_std: Tensor) -> float:
    """Mean Kullback-Leibler divergence of the Gaussians from the old ones, in nats."""
    spread = old_log_std.exp().square() + (old_mean - mean).square()
    each = log_std - old_log_std + spread / (2.0 * log_std.exp().square()) - 0.5
    return float(each.sum(-1).mean())


def _batches(rows: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    yield from torch.randperm(rows, generator=generator).split(size)
