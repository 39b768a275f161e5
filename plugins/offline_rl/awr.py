"""Advantage-weighted regression (Peng et al., 2019, https://arxiv.org/abs/1910.00177)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gaitforge.common.networks import gaussian_nll
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.plugins.offline_rl.value_learner import Batch, ValueLearner, ValueSettings


@dataclass(frozen=True)
class AWRSettings(ValueSettings):
    """Settings; lambda and the weights' limit are from section 5 of the paper.

    Attributes:
        trace: lambda of the returns, over the steps of a window.
        temperature: beta of the weights exp(A / beta); largest_weight: their limit.
    """

    reward_scale: float | None = None
    trace: float = 0.95
    temperature: float = 1.0
    largest_weight: float = 20.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trace > 1.0:
            raise ValueError(f"trace must lie in [0, 1], got {self.trace}")
        if self.temperature == 0.0:
            raise ValueError("temperature must be above 0")


class AWR(ValueLearner):
    """A value by regression on TD(lambda) returns, a policy by imitation weighted with them.

    Algorithm 1 of the paper, on a fixed set of data. Deviations: returns end with their window,
    where the value stands for the rest, since windows are shuffled; and advantages are divided by
    their standard deviation in a batch, so that one temperature suits tasks of any reward.
    """

    settings_class = AWRSettings
    settings: AWRSettings
    draws_noise: ClassVar[bool] = False
    values_actions: ClassVar[bool] = False

    def __init__(self, policy: PolicyNetwork, settings: AWRSettings, reward_scale: float) -> None:
        super().__init__(policy, settings, reward_scale)
        self.v = self._critics(1, of_actions=False)

    def summed_loss(self, policy: PolicyNetwork, batch: Batch, number: int) -> Tensor:
        """See `ValueLearner`."""
        step = self.transitions(policy, batch)
        settings = self.settings
        mask = batch["mask"]
        value = self.v(step.obs)[0]
        with torch.no_grad():
            returns = self._returns(step.reward, step.going_on, self.v(step.next_obs)[0], mask)
            advantage = returns - value
            spread = advantage.std() if len(advantage) > 1 else advantage.new_ones(())
            weight = (advantage / (settings.temperature * spread.clamp(min=1e-6))).exp()
            weight = weight.clamp(max=settings.largest_weight)
        mean = self.action(policy, batch)
        imitation = gaussian_nll(mean, policy.log_std, step.action)
        return (value - returns).square().sum() + (weight * imitation).sum()

    def _returns(self, reward: Tensor, going_on: Tensor, following: Tensor, mask: Tensor) -> Tensor:
        """(N,) TD(lambda) returns of the valid steps, computed from each window's end backwards."""
        gamma = self.settings.gamma
        trace = self.settings.trace
        spread = following.new_zeros(3, *mask.shape)
        spread[:, mask] = torch.stack([reward, going_on, following])
        rewards, going, values = spread
        returns = torch.zeros_like(rewards)
        later = values[:, -1]
        for t in range(mask.shape[1] - 1, -1, -1):
            last = ~mask[:, t + 1] if t + 1 < mask.shape[1] else torch.ones_like(mask[:, t])
            ahead = torch.where(last, values[:, t], (1 - trace) * values[:, t] + trace * later)
            later = returns[:, t] = rewards[:, t] + gamma * going[:, t] * ahead
        return returns[mask]
