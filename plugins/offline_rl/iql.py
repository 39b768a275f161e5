"""Implicit Q-learning (Kostrikov et al., 2022, https://arxiv.org/abs/2110.06169)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gaitforge.common.networks import gaussian_nll
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.plugins.offline_rl.value_learner import Batch, ValueLearner, ValueSettings


@dataclass(frozen=True)
class IQLSettings(ValueSettings):
    """Settings from the paper's appendix B for locomotion.

    Attributes:
        expectile: tau; a state's value is this expectile of its actions' values.
        beta: inverse temperature of the weights exp(beta (Q - V)); largest_weight: their limit.
    """

    reward_scale: float | None = None
    expectile: float = 0.7
    beta: float = 3.0
    largest_weight: float = 100.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.expectile < 1.0:
            raise ValueError(f"expectile must lie in (0, 1), got {self.expectile}")


class IQL(ValueLearner):
    """Values by expectile regression on the data's actions alone; the policy by weighted imitation.

    Equations 5 (V), 6 (Q) and 7 (policy) of the paper. Deviation: the policy's rate is constant by
    default, where the published one falls to 0 by a cosine.
    """

    settings_class = IQLSettings
    settings: IQLSettings
    draws_noise: ClassVar[bool] = False

    def __init__(self, policy: PolicyNetwork, settings: IQLSettings, reward_scale: float) -> None:
        super().__init__(policy, settings, reward_scale)
        self.v = self._critics(1, of_actions=False)

    def summed_loss(self, policy: PolicyNetwork, batch: Batch, number: int) -> Tensor:
        """See `ValueLearner`."""
        step = self.transitions(policy, batch)
        settings = self.settings
        value = self.v(step.obs)[0]
        with torch.no_grad():
            advantage = self.target_q(step.obs, step.action).amin(0) - value
            following = self.v(step.next_obs)[0]
            weight = (settings.beta * advantage).exp().clamp(max=settings.largest_weight)
        error = advantage + value.detach() - value
        side = torch.where(error > 0, settings.expectile, 1.0 - settings.expectile)
        loss = (side * error.square()).sum() + self._critic_loss(step, following)
        mean = self.action(policy, batch)
        return loss + (weight * gaussian_nll(mean, policy.log_std, step.action)).sum()
