"""BRAC-v (Wu et al., 2019, https://arxiv.org/abs/1911.11361)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.plugins.offline_rl.squashed import Behaviour, SquashedGaussian
from gaitforge.plugins.offline_rl.value_learner import (
    Batch,
    ValueLearner,
    ValueSettings,
    frozen_parameters,
)


@dataclass(frozen=True)
class BRACSettings(ValueSettings):
    """Penalty: weight alpha of the divergence from the data's policy; the paper tries 0.3 to 30."""

    penalty: float = 3.0


class BRACv(ValueLearner):
    """Actor-critic with a penalty for leaving the data's policy, in the values and in the policy.

    Equations 1 and 3 of the paper with its KL divergence, estimated by one sample ("primal form"),
    and its ensemble's 0.75 min + 0.25 max. Deviation: the data's policy is learned alongside, not
    before.
    """

    settings_class = BRACSettings
    settings: BRACSettings

    def __init__(self, policy: PolicyNetwork, settings: BRACSettings, reward_scale: float) -> None:
        super().__init__(policy, settings, reward_scale)
        sizes = self._critic_sizes(of_actions=False)
        self.spread = SquashedGaussian(sizes, self._act_dim)
        self.behaviour = Behaviour(sizes, self._act_dim)

    def summed_loss(self, policy: PolicyNetwork, batch: Batch, number: int) -> Tensor:
        """See `ValueLearner`."""
        step = self.transitions(policy, batch)
        settings = self.settings
        mean = self.action(policy, batch, bounded=False)
        next_mean = self.next_action(policy, batch, bounded=False)
        with torch.no_grad():
            following, divergence = self._sample(next_mean, step.next_obs)
            value = self._soft_minimum(self.target_q(step.next_obs, following))
            value = value - settings.penalty * divergence
        density = self.behaviour.log_density(step.action, step.obs)
        loss = self._critic_loss(step, value) - density.sum()
        with frozen_parameters(self.behaviour):
            action, divergence = self._sample(mean, step.obs)
        value = self._least_value(step.obs, action)
        return loss + (settings.penalty * divergence - value).sum()

    def _sample(self, mean: Tensor, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (N, A), and (N,) log of their density by the policy over that by the data's."""
        action, density = (samples[0] for samples in self.spread.sample(mean, obs, 1))
        return action, density - self.behaviour.log_density(action, obs)
