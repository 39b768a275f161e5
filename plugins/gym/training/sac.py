"""Soft actor-critic with a tuned temperature (Haarnoja et al. 2018b, Algorithm 1).

`Algorithm` is the base of all that train its actor. Truncated episodes are bootstrapped at their
last step (Pardo et al. 2018).

Legend: B rows, Do observation, A action, H hidden units.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, relu

from gaitforge.common.files import tensors_below
from gaitforge.common.limits import AboveZero, Fraction, Positive, Range, Share, check_ranges
from gaitforge.common.networks import (
    Ensemble,
    follow,
    load_optimiser_tensors,
    optimiser_tensors,
    squashed_log_density,
    without_compiler,
)
from gaitforge.plugins.gym.experts import LOG_STD_RANGE


class Actor(nn.Module):
    """Observation (B, Do) -> Gaussian (mean, log_std), each (B, A), of the pre-tanh action.

    Two hidden ReLU layers (Haarnoja et al. 2018b, Table 1).
    """

    def __init__(self, obs_dim: int, act_dim: int, hidden: int) -> None:
        super().__init__()
        self.layer0 = nn.Linear(obs_dim, hidden)
        self.layer1 = nn.Linear(hidden, hidden)
        self.mean = nn.Linear(hidden, act_dim)
        self.log_std = nn.Linear(hidden, act_dim)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """(B, Do) -> mean (B, A), log_std (B, A)."""
        x = relu(self.layer1(relu(self.layer0(obs))))
        return self.mean(x), self.log_std(x).clamp(*LOG_STD_RANGE)

    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Action (B, A) in (-1, 1) for standard normal noise (B, A), and its log-density (B,)."""
        mean, log_std = self(obs)
        pre_tanh_action = mean + log_std.exp() * noise
        return pre_tanh_action.tanh(), squashed_log_density(pre_tanh_action, log_std, noise)


class Algorithm:
    """Networks under training, with an Adam optimiser each, and their checkpoint.

    `modules` and `optimisers` are named as in a checkpoint.
    """

    actor: Actor
    modules: dict[str, nn.Module]
    optimisers: dict[str, torch.optim.Optimizer]

    def state_dict(self) -> dict[str, Tensor]:
        """State to checkpoint: {"MODULE.PARAMETER": …, "OPTIMISER-adam.INDEX.KEY": …}."""
        tensors: dict[str, Tensor] = {}
        for name, module in self.modules.items():
            tensors |= {f"{name}.{key}": value for key, value in module.state_dict().items()}
        for name, optimiser in self.optimisers.items():
            tensors |= optimiser_tensors(optimiser, f"{name}-adam")
        return tensors

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore `state_dict`'s tensors into networks of the same sizes."""
        for name, module in self.modules.items():
            module.load_state_dict(tensors_below(name, state))
        for name, optimiser in self.optimisers.items():
            load_optimiser_tensors(optimiser, state, f"{name}-adam")

    def minimise(self, loss: Tensor, name: str, max_grad_norm: float | None = None) -> None:
        """One step of an optimiser."""
        optimiser = self.optimisers[name]
        optimiser.zero_grad()
        loss.backward()
        if max_grad_norm is not None:
            nn.utils.clip_grad_norm_(optimiser.param_groups[0]["params"], max_grad_norm)
        optimiser.step()


def adam(parameters: Iterable[nn.Parameter], learning_rate: float) -> torch.optim.Adam:
    """Adam in one kernel for all parameters."""
    return without_compiler(torch.optim.Adam)(parameters, learning_rate, fused=True)


BATCH_KEYS = ("obs", "action", "reward", "terminated", "next_obs")


@dataclass(frozen=True)
class SACConfig:
    """SAC's settings, by default the paper's (Table 1); ValueError for a number out of its range.

    Attributes:
        hidden: units of each of the two hidden layers; batch_size: transitions per update.
        learning_rate: for actor and temperature; critic_learning_rate: for the critics.
        gamma: discount; tau: Polyak step of the target critics.
        target_entropy: of the action, in nats; None for -A.
    """

    hidden: Positive = 256
    batch_size: Positive = 256
    learning_rate: AboveZero = 3e-4
    critic_learning_rate: AboveZero = 3e-4
    gamma: Fraction = 0.99
    tau: Share = 0.005
    target_entropy: Annotated[float | None, Range()] = None

    def __post_init__(self) -> None:
        check_ranges(self)


class SAC(Algorithm):
    """Actor, critics, target critics and temperature, with their optimisers."""

    def __init__(self, config: SACConfig, obs_dim: int, act_dim: int, seed: int) -> None:
        self.config = config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor = Actor(obs_dim, act_dim, config.hidden)
            self.critics = Ensemble(2, (obs_dim + act_dim, config.hidden, config.hidden))
        self.targets = self.critics.frozen()
        self.log_temperature = torch.nn.Parameter(torch.tensor(0.0))
        self._entropy = -float(act_dim) if config.target_entropy is None else config.target_entropy
        self.modules = {"actor": self.actor, "critics": self.critics, "targets": self.targets}
        self.optimisers = {
            "actor": adam(self.actor.parameters(), config.learning_rate),
            "critics": adam(self.critics.parameters(), config.critic_learning_rate),
            "temperature": adam([self.log_temperature], config.learning_rate),
        }
        self._noise_shape = (config.batch_size, act_dim)

    def update(self, batch: Mapping[str, Tensor], generator: torch.Generator) -> None:
        """One update of critics, actor, temperature and target critics.

        Args:
            batch: obs and next_obs (B, Do), action (B, A), reward and terminated (B,), float32.
        """
        temperature = self.log_temperature.detach().exp()
        with torch.no_grad():
            noise = torch.randn(self._noise_shape, generator=generator)
            action, log_prob = self.actor.sample(batch["next_obs"], noise)
            value = self.targets(batch["next_obs"], action).amin(0) - temperature * log_prob
            target = batch["reward"] + self.config.gamma * (1.0 - batch["terminated"]) * value
        values = self.critics(batch["obs"], batch["action"])
        self.minimise(2.0 * mse_loss(values, target.expand_as(values)), "critics")

        noise = torch.randn(self._noise_shape, generator=generator)
        action, log_prob = self.actor.sample(batch["obs"], noise)
        self.critics.requires_grad_(False)
        value = self.critics(batch["obs"], action).amin(0)
        self.minimise((temperature * log_prob - value).mean(), "actor")
        self.critics.requires_grad_(True)

        gap = log_prob.detach().mean() + self._entropy
        self.minimise(-self.log_temperature * gap, "temperature")
        follow(self.targets, self.critics, self.config.tau)

    def state_dict(self) -> dict[str, Tensor]:
        """See `Algorithm`."""
        return {**super().state_dict(), "log_temperature": self.log_temperature.detach()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `Algorithm`."""
        super().load_state_dict(state)
        with torch.no_grad():
            self.log_temperature.copy_(state["log_temperature"])
