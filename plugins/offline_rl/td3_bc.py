"""TD3+BC (Fujimoto and Gu, 2021, https://arxiv.org/abs/2106.06860)."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gaitforge.common.networks import follow
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.plugins.offline_rl.value_learner import (
    Batch,
    Transitions,
    ValueLearner,
    ValueSettings,
    frozen_parameters,
)


@dataclass(frozen=True)
class TD3Settings(ValueSettings):
    """Settings of TD3 (Fujimoto et al., 2018).

    Attributes:
        policy_noise, noise_clip: std and limit of the noise on the target's action, relative to the
            largest action.
        policy_every: critic updates per policy update.
    """

    at_least_one: ClassVar = ("policy_every",)
    policy_noise: float = 0.2
    noise_clip: float = 0.5
    policy_every: int = 2


@dataclass(frozen=True)
class TD3BCSettings(TD3Settings):
    """Settings from the paper's Table 3; alpha is the weight of the value beside imitation."""

    alpha: float = 2.5


class TD3BC(ValueLearner):
    """TD3's clipped double Q and smoothed target, and a policy that also imitates.

    Equation 3 of the paper, pi = argmax lambda Q(s, pi(s)) - (pi(s) - a)^2, with equation 4's
    lambda = alpha / mean |Q|; the mean is that of the processed part of a batch.
    """

    settings_class = TD3BCSettings
    settings: Any

    def __init__(self, policy: PolicyNetwork, settings: Any, reward_scale: float) -> None:
        super().__init__(policy, settings, reward_scale)
        self.target_policy = deepcopy(policy).requires_grad_(False)

    def summed_loss(self, policy: PolicyNetwork, batch: Batch, number: int) -> Tensor:
        """See `ValueLearner`."""
        step = self.transitions(policy, batch)
        settings = self.settings
        with torch.no_grad():
            following = self.next_action(self.target_policy, batch)
            noise = settings.policy_noise * torch.randn_like(following)
            noise = noise.clamp(-settings.noise_clip, settings.noise_clip)
            following = (following + noise).clamp(-1.0, 1.0)
            value = self._next_value(step, following)
        loss = self._critic_loss(step, value)
        if self.updates_policy(number):
            action = self.action(policy, batch)
            with frozen_parameters(self.q):
                loss = loss + self._policy_loss(step, action).sum()
        return loss

    def _next_value(self, step: Transitions, following: Tensor) -> Tensor:
        """(N,) values of the next observations with the target policy's actions (N, A)."""
        return self.target_q(step.next_obs, following).amin(0)

    def _policy_loss(self, step: Transitions, action: Tensor) -> Tensor:
        """(N,) losses of the policy's actions (N, A)."""
        value = self.q(step.obs, action, members=1)[0]
        weight = self.settings.alpha / value.detach().abs().mean()
        return (action - step.action).square().mean(-1) - weight * value

    def updates_policy(self, number: int) -> bool:
        """See `ValueLosses`."""
        return number % self.settings.policy_every == 0

    def after_step(self, policy: PolicyNetwork, number: int) -> None:
        """See `ValueLearner`; as in the published code, targets move when the policy does."""
        if self.updates_policy(number):
            super().after_step(policy, number)
            follow(self.target_policy, policy, self.settings.tau)
