"""BEAR (Kumar et al., 2019, https://arxiv.org/abs/1906.00949)."""

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from gaitforge.common.networks import Ensemble, follow
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.plugins.offline_rl.squashed import SquashedGaussian
from gaitforge.plugins.offline_rl.value_learner import (
    Batch,
    ValueLearner,
    ValueSettings,
    frozen_parameters,
)


@dataclass(frozen=True)
class BEARSettings(ValueSettings):
    """Settings from the paper's appendix and its code.

    Attributes:
        threshold: epsilon, largest discrepancy between the policy's actions and the data's.
        samples: actions of each that are compared; width: sigma of the Laplacian kernel.
        candidates: actions of the policy from which the next value takes the best.
        warm_up: first optimiser steps, in which the policy learns the threshold only; below 1 a
            share of the run's. Published: 40,000 of a million.
    """

    at_least_one: ClassVar = ("samples", "candidates", "width")
    threshold: float = 0.05
    samples: int = 4
    width: float = 10.0
    candidates: int = 10
    warm_up: float = 0.04

    def over(self, steps: int) -> Self:
        """See `ValueSettings.over`."""
        return replace(self, warm_up=round(self.warm_up * steps)) if self.warm_up < 1 else self


class BEAR(ValueLearner):
    """Actor-critic whose policy stays within the support of the data's.

    Algorithm 1 of the paper: a VAE draws actions like the data's, the maximum mean discrepancy
    (equation 3) of the policy's actions to them has a Lagrange multiplier, and the next value is
    the best 0.75 min + 0.25 max of several candidates, which a target policy draws. As in the
    published code, actions are compared before the tanh, where saturated ones still have a
    gradient, the policy's value is the least of the critics' means over its samples, and the
    logarithm of the multiplier is clipped to [-5, 10] after each step. Deviations: the multiplier
    learns at the critics' rate (published code: 1e-3 beside 3e-4), like all parameters but the
    policy's; and the robot acts by the mean, where the published code takes the sample of ten that
    the first critic values most.
    """

    settings_class = BEARSettings
    settings: BEARSettings
    policy_rate: ClassVar[float] = 1 / 3  # 1e-4 beside 3e-4

    def __init__(self, policy: PolicyNetwork, settings: BEARSettings, reward_scale: float) -> None:
        super().__init__(policy, settings, reward_scale)
        self.spread = SquashedGaussian(self._critic_sizes(of_actions=False), self._act_dim)
        self.behaviour = ActionVAE(self._obs_dim, self._act_dim, settings.hidden)
        self.target_policy = deepcopy(policy).requires_grad_(False)
        self.target_spread = deepcopy(self.spread).requires_grad_(False)
        self.log_multiplier = nn.Parameter(torch.zeros(()))
        # Checkpoints of versions that did not clip it may hold one beyond the range.
        self.register_load_state_dict_post_hook(lambda *_: self._project_multiplier())

    def summed_loss(self, policy: PolicyNetwork, batch: Batch, number: int) -> Tensor:
        """See `ValueLearner`."""
        step = self.transitions(policy, batch)
        settings = self.settings
        mean = self.action(policy, batch, bounded=False)
        next_mean = self.next_action(self.target_policy, batch, bounded=False)
        with torch.no_grad():
            following, _ = self.target_spread.sample(next_mean, step.next_obs, settings.candidates)
            obs = step.next_obs.expand(len(following), *step.next_obs.shape)
            values = self.target_q(obs.flatten(0, 1), following.flatten(0, 1))
            value = self._soft_minimum(values).unflatten(0, following.shape[:2]).amax(0)
        loss = self._critic_loss(step, value) + self.behaviour.losses(step.obs, step.action).sum()
        samples, _ = self.spread.samples_before_tanh(mean, step.obs, settings.samples)
        like_data = self.behaviour.draw_before_tanh(step.obs, settings.samples)
        discrepancy = mean_discrepancy(samples, like_data, settings.width)
        if number >= settings.warm_up:
            loss = loss - self._value_of(step.obs, samples.tanh()).sum()
        multiplier = self.log_multiplier.exp()
        loss = loss + (multiplier.detach() * discrepancy).sum()
        return loss - multiplier * (discrepancy.detach() - settings.threshold).sum()

    def after_step(self, policy: PolicyNetwork, number: int) -> None:
        """See `ValueLearner`."""
        super().after_step(policy, number)
        follow(self.target_policy, policy, self.settings.tau)
        follow(self.target_spread, self.spread, self.settings.tau)
        self._project_multiplier()

    def _value_of(self, obs: Tensor, actions: Tensor) -> Tensor:
        """(N,) the least of the critics' mean values of actions (n, N, A), which get gradients."""
        repeated = obs.expand(len(actions), *obs.shape).flatten(0, 1)
        with frozen_parameters(self.q):
            values = self.q(repeated, actions.flatten(0, 1)).unflatten(1, actions.shape[:2])
        return values.mean(1).amin(0)

    @torch.no_grad()
    def _project_multiplier(self) -> None:
        self.log_multiplier.clamp_(-5.0, 10.0)


class ActionVAE(nn.Module):
    """A variational autoencoder of actions given a token, with twice as many latent numbers."""

    def __init__(self, obs_dim: int, act_dim: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self._latent = 2 * act_dim
        self.encoder = Ensemble(1, (obs_dim + act_dim, *hidden), 2 * self._latent)
        self.decoder = Ensemble(1, (obs_dim + self._latent, *hidden), act_dim)

    def losses(self, obs: Tensor, action: Tensor) -> Tensor:
        """(N,) squared errors of the reconstruction plus half the KL divergence to N(0, 1)."""
        encoded = self.encoder(obs, action)[0]
        mean = encoded[:, : self._latent]
        log_std = encoded[:, self._latent :].clamp(-4.0, 15.0)
        latent = mean + log_std.exp() * torch.randn_like(mean)
        error = (self._decoded(obs, latent).tanh() - action).square().mean(-1)
        divergence = -0.5 * (1.0 + 2.0 * log_std - mean.square() - (2.0 * log_std).exp()).mean(-1)
        return error + 0.5 * divergence

    @torch.no_grad()
    def draw_before_tanh(self, obs: Tensor, count: int) -> Tensor:
        """(count, N, A): their tanh are actions like the data's; latent numbers lie within 0.5."""
        latent = torch.randn(count, len(obs), self._latent, device=obs.device).clamp(-0.5, 0.5)
        repeated = obs.expand(count, *obs.shape)
        return self._decoded(repeated.flatten(0, 1), latent.flatten(0, 1)).unflatten(
            0, latent.shape[:2]
        )

    def _decoded(self, obs: Tensor, latent: Tensor) -> Tensor:
        return self.decoder(obs, latent)[0].reshape(len(obs), -1)


def mean_discrepancy(one: Tensor, other: Tensor, width: float) -> Tensor:
    """(N,) maximum mean discrepancy of samples (n, N, A) and (m, N, A), Laplacian kernel.

    The square root of the estimate, as in the published code.
    """

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        distance = (a[:, None] - b[None]).abs().sum(-1)
        return (-distance / (2.0 * width)).exp().mean((0, 1))

    one = one.float()
    other = other.float()  # bf16 would make differences of kernels negative
    squared = kernel(one, one) + kernel(other, other) - 2.0 * kernel(one, other)
    return (squared + 1e-6).sqrt()
