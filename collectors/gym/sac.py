"""Soft actor-critic with a tuned temperature (Haarnoja et al. 2018b, Algorithm 1).

Episodes that reach the horizon are not failures: their last step is bootstrapped like any other
(Pardo et al. 2018).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from math import isfinite, log

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from collectors.gym.networks import Actor, TwinCritics

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
        temperature: at the start. Where rewards are far below 1 a step, the entropy alone is
            learned until a higher one has come down.
        layer_norm: of the critics' hidden units: bounds what they make of actions that nobody took
            (Ball et al. 2023, Section 4.2).
        entropy_in_values: as the paper has it; Ball et al. leave it out on the Adroit hand.
        imitation: weight of the squared distance between the actor's mean actions and those of the
            rows to imitate, beside values divided by their mean size (Fujimoto and Gu 2021, Eq. 3
            to 5); 0 for the paper's loss. imitation_noise: standard deviation of noise on those
            rows' observations there, so that the actor knows what to do beside them, too.
        actor_tau: how far the actor that is evaluated and kept moves to the one in training an
            update, as a moving average of it; 1 keeps the one in training, as the paper does.

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
    temperature: float = 1.0
    layer_norm: bool = False
    entropy_in_values: bool = True
    imitation: float = 0.0
    imitation_noise: float = 0.0
    actor_tau: float = 1.0

    def __post_init__(self) -> None:
        if self.hidden < 1 or self.batch_size < 1:
            raise ValueError("hidden and batch_size must be at least 1")
        for value in (self.learning_rate, self.critic_learning_rate, self.temperature):
            if not (isfinite(value) and value > 0):
                raise ValueError(f"learning rates and temperature must be above 0, got {value}")
        if not (0.0 <= self.gamma < 1.0 and 0.0 < self.tau <= 1.0 and 0.0 < self.actor_tau <= 1.0):
            raise ValueError("gamma must lie in [0, 1), tau and actor_tau in (0, 1]")
        for name in ("imitation", "imitation_noise"):
            value = getattr(self, name)
            if not (isfinite(value) and value >= 0.0):
                raise ValueError(f"{name} must not be negative, got {value}")
        if self.target_entropy is not None and not isfinite(self.target_entropy):
            raise ValueError(f"target_entropy must be a finite number, got {self.target_entropy}")


class SAC:
    """Actor, critics, target critics and temperature, with their optimisers."""

    def __init__(self, config: SACConfig, obs_dim: int, act_dim: int, seed: int) -> None:
        self.config = config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor = Actor(obs_dim, act_dim, config.hidden)
            sizes = obs_dim, act_dim, config.hidden, config.layer_norm
            self.critics, self.targets = TwinCritics(*sizes), TwinCritics(*sizes)
        self._average = None if config.actor_tau == 1.0 else deepcopy(self.actor)
        self.targets.load_state_dict(self.critics.state_dict())
        self.targets.requires_grad_(False)
        self.log_temperature = torch.nn.Parameter(torch.tensor(log(config.temperature)))
        self._entropy = -float(act_dim) if config.target_entropy is None else config.target_entropy
        self.optimisers = {
            "actor": _adam(self.actor.parameters(), config.learning_rate),
            "critics": _adam(self.critics.parameters(), config.critic_learning_rate),
            "temperature": _adam([self.log_temperature], config.learning_rate),
        }
        self._noise_shape = (config.batch_size, act_dim)

    def update(
        self, batch: Mapping[str, Tensor], generator: torch.Generator, imitated: int = 0
    ) -> None:
        """One step of each of the three optimisers, and of the target critics.

        Args:
            batch: obs and next_obs (B, Do), action (B, A), reward and terminated (B,), float32.
            generator: of the actions that are sampled.
            imitated: rows at the end of the batch that the actor imitates, see `SACConfig`.
        """
        temperature = self.log_temperature.detach().exp()
        with torch.no_grad():
            noise = torch.randn(self._noise_shape, generator=generator)
            action, log_density = self.actor.sample(batch["next_obs"], noise)
            value = self.targets(batch["next_obs"], action).amin(0)
            if self.config.entropy_in_values:
                value = value - temperature * log_density
            wanted = batch["reward"] + self.config.gamma * (1.0 - batch["terminated"]) * value
        values = self.critics(batch["obs"], batch["action"])
        self._step("critics", 2.0 * mse_loss(values, wanted.expand_as(values)))

        noise = torch.randn(self._noise_shape, generator=generator)
        action, log_density = self.actor.sample(batch["obs"], noise)
        self.critics.requires_grad_(False)
        value = self.critics(batch["obs"], action).amin(0)
        loss = (temperature * log_density - value).mean()
        if self.config.imitation and imitated:
            obs = batch["obs"][-imitated:]
            noise = self.config.imitation_noise * torch.randn(obs.shape, generator=generator)
            away = self.actor(obs + noise)[0].tanh() - batch["action"][-imitated:]
            loss = loss / value.detach().abs().mean() + self.config.imitation * (
                away.square().sum(-1).mean()
            )
        self._step("actor", loss)
        self.critics.requires_grad_(True)

        gap = log_density.detach().mean() + self._entropy
        self._step("temperature", -self.log_temperature * gap)
        with torch.no_grad():
            for target, critic in zip(
                self.targets.parameters(), self.critics.parameters(), strict=True
            ):
                target.lerp_(critic, self.config.tau)
            if self._average is not None:
                for mean, now in zip(
                    self._average.parameters(), self.actor.parameters(), strict=True
                ):
                    mean.lerp_(now, self.config.actor_tau)

    @property
    def kept_actor(self) -> Actor:
        """The actor to evaluate and to keep."""
        return self.actor if self._average is None else self._average

    def tensors(self) -> dict[str, Tensor]:
        """All that goes on changing, by name; what `load_tensors` takes back."""
        found = {
            f"{part}.{key}": value
            for part, module in self._modules().items()
            for key, value in module.state_dict().items()
        }
        found["log_temperature"] = self.log_temperature.detach()
        for part, optimiser in self.optimisers.items():
            for index, state in optimiser.state_dict()["state"].items():
                found |= {f"{part}-adam.{index}.{key}": value for key, value in state.items()}
        return found

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the state that `tensors` gave, of the same sizes."""
        for part, module in self._modules().items():
            module.load_state_dict(_below(part, tensors))
        with torch.no_grad():
            self.log_temperature.copy_(tensors["log_temperature"])
        for part, optimiser in self.optimisers.items():
            state: dict[int, dict[str, Tensor]] = {}
            for name, value in _below(f"{part}-adam", tensors).items():
                index, key = name.split(".", 1)
                state.setdefault(int(index), {})[key] = value
            groups = optimiser.state_dict()["param_groups"]
            optimiser.load_state_dict({"state": state, "param_groups": groups})

    def _modules(self) -> dict[str, torch.nn.Module]:
        found = {"actor": self.actor, "critics": self.critics, "targets": self.targets}
        return found if self._average is None else {**found, "average": self._average}

    def _step(self, name: str, loss: Tensor) -> None:
        optimiser = self.optimisers[name]
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def _adam(parameters: Iterable[torch.nn.Parameter], rate: float) -> torch.optim.Adam:
    return torch.optim.Adam(parameters, rate, fused=True)


def _below(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    prefix = f"{part}."
    return {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}
