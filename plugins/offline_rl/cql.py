"""Conservative Q-learning (Kumar et al., 2020, https://arxiv.org/abs/2006.04779)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.plugins.offline_rl.squashed import SquashedGaussian
from gaitforge.plugins.offline_rl.value_learner import Batch, ValueLearner, ValueSettings


@dataclass(frozen=True)
class CQLSettings(ValueSettings):
    """Settings from the paper's appendix F and its code.

    Attributes:
        conservative: weight alpha of the critics' values of actions that are not the data's.
        samples: actions of each kind (uniform, the policy's here and after the step).
    """

    at_least_one: ClassVar = ("samples",)
    conservative: float = 5.0
    samples: int = 10


class CQL(ValueLearner):
    """Soft actor-critic whose critics value other actions than the data's lower: CQL(H).

    Equation 4 of the paper, with importance sampling as in appendix F; a fixed weight, a target
    without entropy and a temperature learned for an entropy of -A, as in its code. The robot acts
    by the mean.
    """

    settings_class = CQLSettings
    settings: CQLSettings
    policy_rate: ClassVar[float] = 1 / 3  # 1e-4 beside 3e-4

    def __init__(self, policy: PolicyNetwork, settings: CQLSettings, reward_scale: float) -> None:
        super().__init__(policy, settings, reward_scale)
        self.spread = SquashedGaussian(self._critic_sizes(of_actions=False), self._act_dim)
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def summed_loss(self, policy: PolicyNetwork, batch: Batch, number: int) -> Tensor:
        """See `ValueLearner`."""
        step = self.transitions(policy, batch)
        settings = self.settings
        mean = self.action(policy, batch, bounded=False)
        next_mean = self.next_action(policy, batch, bounded=False)
        action, log_prob = (samples[0] for samples in self.spread.sample(mean, step.obs, 1))
        with torch.no_grad():
            following = self.spread.sample(next_mean, step.next_obs, 1)[0][0]
            value = self.target_q(step.next_obs, following).amin(0)
            target = step.reward + settings.gamma * step.going_on * value
        stored_q = self.q(step.obs, step.action)
        other_q = self._others(step.obs, mean, next_mean, step.next_obs)
        loss = (stored_q - target).square().sum()
        loss = loss + settings.conservative * (other_q - stored_q).sum()
        value = self._least_value(step.obs, action)
        temperature = self.log_temperature.exp()
        loss = loss + (temperature.detach() * log_prob - value).sum()
        surplus = (self._act_dim - log_prob).detach()  # entropy minus its target, -A
        return loss + temperature * surplus.sum()

    def _others(self, obs: Tensor, mean: Tensor, next_mean: Tensor, next_obs: Tensor) -> Tensor:
        """(members, N) log of the mean exp value over all actions, by importance sampling."""
        count = self.settings.samples
        with torch.no_grad():
            uniform = torch.empty(count, *mean.shape, device=mean.device).uniform_(-1.0, 1.0)
            density = torch.full(uniform.shape[:-1], -self._act_dim * math.log(2.0))
            kinds = [
                (uniform, density.to(mean.device)),
                self.spread.sample(mean, obs, count),
                self.spread.sample(next_mean, next_obs, count),
            ]
        # One kind at a time: its activations fit into the cache.
        repeated = obs.expand(count, *obs.shape).flatten(0, 1)
        values = [
            self.q(repeated, actions.flatten(0, 1)).unflatten(1, density.shape) - density
            for actions, density in kinds
        ]
        return torch.cat(values, dim=1).logsumexp(1)
