"""Soft actor-critic with a tuned temperature (Haarnoja et al. 2018b, Algorithm 1).

Episodes that reach the horizon are not failures: their last step is bootstrapped like any other
(Pardo et al. 2018).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from collectors.gym.algorithms.learner_state import adam, load_state_tensors, state_tensors
from collectors.gym.algorithms.networks import Actor, TwinCritics

BATCH_KEYS = ("obs", "action", "reward", "terminated", "next_obs")


@dataclass(frozen=True)
class SACConfig:
    """Settings of the algorithm; the defaults are the paper's (Table 1).

    Attributes:
        hidden: units of each of the two hidden layers.
        batch_size: transitions an update.
        learning_rate: of Adam, for actor and temperature; critic_learning_rate: for the critics.
        gamma: discount; tau: how far the target critics move to the critics an update.
        target_entropy: of the action, in nats; None for -A.

    Raises:
        ValueError: a number out of its range.
    """

    hidden: int = 256
    batch_size: int = 256
    learning_rate: float = 3e-4
    critic_learning_rate: float = 3e-4
    gamma: float = 0.99
    tau: float = 0.005
    target_entropy: float | None = None

    def __post_init__(self) -> None:
        if self.hidden < 1 or self.batch_size < 1:
            raise ValueError("hidden and batch_size must be at least 1")
        for rate in (self.learning_rate, self.critic_learning_rate):
            if not (isfinite(rate) and rate > 0):
                raise ValueError(f"learning rates must be above 0, got {rate}")
        if not (0.0 <= self.gamma < 1.0 and 0.0 < self.tau <= 1.0):
            raise ValueError("gamma must lie in [0, 1), tau in (0, 1]")
        if self.target_entropy is not None and not isfinite(self.target_entropy):
            raise ValueError(f"target_entropy must be a finite number, got {self.target_entropy}")


class SAC:
    """Actor, critics, target critics and temperature, with their optimisers."""

    def __init__(self, config: SACConfig, obs_dim: int, act_dim: int, seed: int) -> None:
        self.config = config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor = Actor(obs_dim, act_dim, config.hidden)
            sizes = obs_dim, act_dim, config.hidden
            self.critics, self.targets = TwinCritics(*sizes), TwinCritics(*sizes)
        self.targets.load_state_dict(self.critics.state_dict())
        self.targets.requires_grad_(False)
        self.log_temperature = torch.nn.Parameter(torch.tensor(0.0))
        self._entropy = -float(act_dim) if config.target_entropy is None else config.target_entropy
        self._modules = {"actor": self.actor, "critics": self.critics, "targets": self.targets}
        self._optimisers = {
            "actor": adam(self.actor.parameters(), config.learning_rate),
            "critics": adam(self.critics.parameters(), config.critic_learning_rate),
            "temperature": adam([self.log_temperature], config.learning_rate),
        }
        self._noise_shape = (config.batch_size, act_dim)

    def update(self, batch: Mapping[str, Tensor], generator: torch.Generator) -> None:
        """One step of each of the three optimisers, and of the target critics.

        Args:
            batch: obs and next_obs (B, Do), action (B, A), reward and terminated (B,), float32.
            generator: of the actions that are sampled.
        """
        temperature = self.log_temperature.detach().exp()
        with torch.no_grad():
            noise = torch.randn(self._noise_shape, generator=generator)
            action, log_density = self.actor.sample(batch["next_obs"], noise)
            value = self.targets(batch["next_obs"], action).amin(0) - temperature * log_density
            wanted = batch["reward"] + self.config.gamma * (1.0 - batch["terminated"]) * value
        values = self.critics(batch["obs"], batch["action"])
        self._step("critics", 2.0 * mse_loss(values, wanted.expand_as(values)))

        noise = torch.randn(self._noise_shape, generator=generator)
        action, log_density = self.actor.sample(batch["obs"], noise)
        self.critics.requires_grad_(False)
        value = self.critics(batch["obs"], action).amin(0)
        self._step("actor", (temperature * log_density - value).mean())
        self.critics.requires_grad_(True)

        gap = log_density.detach().mean() + self._entropy
        self._step("temperature", -self.log_temperature * gap)
        with torch.no_grad():
            for target, critic in zip(
                self.targets.parameters(), self.critics.parameters(), strict=True
            ):
                target.lerp_(critic, self.config.tau)

    def tensors(self) -> dict[str, Tensor]:
        """All that goes on changing, by name; what `load_tensors` takes back."""
        found = state_tensors(self._modules, self._optimisers)
        return {**found, "log_temperature": self.log_temperature.detach()}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the state that `tensors` gave, of the same sizes."""
        load_state_tensors(self._modules, self._optimisers, tensors)
        with torch.no_grad():
            self.log_temperature.copy_(tensors["log_temperature"])

    def _step(self, name: str, loss: Tensor) -> None:
        optimiser = self._optimisers[name]
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
