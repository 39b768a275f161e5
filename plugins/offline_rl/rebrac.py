"""ReBRAC (Tarasov et al., 2023, https://arxiv.org/abs/2305.09836)."""

from dataclasses import dataclass

from torch import Tensor

from gaitforge.common.networks import Ensemble
from gaitforge.plugins.offline_rl.td3_bc import TD3BC, TD3Settings
from gaitforge.plugins.offline_rl.value_learner import Transitions


@dataclass(frozen=True)
class ReBRACSettings(TD3Settings):
    """Settings from the paper's Table 9 that are the same for all tasks.

    Attributes:
        policy_weight, value_weight: beta 1 and beta 2, weights of the distance to the data's
            actions in the policy's loss and in the next value; the paper tunes them per dataset.
    """

    hidden: tuple[int, ...] = (256, 256, 256)
    policy_weight: float = 0.01
    value_weight: float = 0.01


class ReBRAC(TD3BC):
    """TD3+BC with separate weights in policy and value, and deeper critics with layer norms.

    Equations 3 and 4 of the paper. Deviation: after an episode's last step no next action is known,
    and the next value has no penalty (the published code drops such steps).
    """

    settings_class = ReBRACSettings

    def _critics(self, members: int = 2, of_actions: bool = True) -> Ensemble:
        return Ensemble(members, self._critic_sizes(of_actions), norm=True)

    def _next_value(self, step: Transitions, following: Tensor) -> Tensor:
        distance = (following - step.next_action).square().sum(-1).masked_fill(step.last, 0.0)
        return super()._next_value(step, following) - self.settings.value_weight * distance

    def _policy_loss(self, step: Transitions, action: Tensor) -> Tensor:
        value = self.q(step.obs, action).amin(0)
        distance = (action - step.action).square().sum(-1)
        return self.settings.policy_weight * distance - value / value.detach().abs().mean()
