"""Shared parts of the value-based objectives: a batch's transitions, critics and their targets.

Legend: B windows, T steps, N valid steps of a batch, D token, A action.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from gaitforge.common.networks import Ensemble, follow
from gaitforge.learners.models.base import BoundedNetwork
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.learners.tokens import BODY
from gaitforge.learners.training.batches import Batch
from gaitforge.learners.training.update import ValueLosses


@dataclass(frozen=True)
class ValueSettings:
    """Settings of every value-based objective.

    Attributes:
        gamma: discount per control step.
        tau: rate at which target networks follow, per optimiser step.
        hidden: widths of the critics' hidden layers.
        reward_scale: factor on rewards; None for 1000 over the spread of the episodes' returns
            (IQL, section 5 and its code: "dividing by the difference of returns"), and for 1 where
            all returns are equal.
        at_least_one: names of a subclass's settings that must not be below 1.

    Raises ValueError for a value outside its range.
    """

    at_least_one: ClassVar[tuple[str, ...]] = ()
    gamma: float = 0.99
    tau: float = 0.005
    hidden: tuple[int, ...] = (256, 256)
    reward_scale: float | None = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        if not (self.hidden and all(width > 0 for width in self.hidden)):
            raise ValueError(f"hidden must be widths above 0, got {list(self.hidden)}")
        for name in ("gamma", "tau"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must lie in (0, 1], got {getattr(self, name)}")
        names = {field.name for field in fields(self)} - {"hidden", "gamma", "tau"}
        for name in sorted(names):
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be a number of at least 0, got {value}")
        for name in self.at_least_one:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def over(self, steps: int) -> Self:
        """The settings of a run of `steps` optimiser steps."""
        return self


@dataclass(frozen=True)
class Transitions:
    """The valid steps of a batch, in normalised units.

    Attributes:
        obs, next_obs: (N, D) tokens; action, next_action: (N, A) actions of the data.
        reward: (N,) scaled; going_on: (N,) 0 where the episode failed, else 1; last: (N,) bool,
            true where no next action is known.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    next_action: Tensor
    going_on: Tensor
    last: Tensor


class ValueLearner(ValueLosses):
    """Losses with critics of states or actions, see `ValueLosses`.

    Args:
        reward_scale: the settings' factor on rewards, with None resolved.

    Attributes:
        values_actions: whether there are critics of actions, `q`, with a target that follows.
    """

    q: Ensemble
    target_q: Ensemble
    settings_class: ClassVar[type[ValueSettings]] = ValueSettings
    values_actions: ClassVar[bool] = True

    def __init__(self, policy: PolicyNetwork, settings: Any, reward_scale: float) -> None:
        super().__init__()
        self.settings = settings
        self.reward_scale = reward_scale
        self._obs_dim = policy.layout.dim
        self._act_dim = policy.act_dim
        if self.values_actions:
            self.q = self._critics()
            self.target_q = self.q.frozen()

    def after_step(self, policy: PolicyNetwork, number: int) -> None:
        """Update the targets after optimiser step `number`."""
        if self.values_actions:
            follow(self.target_q, self.q, self.settings.tau)

    def _critics(self, members: int = 2, of_actions: bool = True) -> Ensemble:
        return Ensemble(members, self._critic_sizes(of_actions))

    def _critic_sizes(self, of_actions: bool = True) -> tuple[int, ...]:
        inputs = self._obs_dim + (self._act_dim if of_actions else 0)
        return inputs, *self.settings.hidden

    def _critic_loss(self, step: Transitions, value: Tensor) -> Tensor:
        """The critics' squared errors, with `value` (N,) after the steps; scalar sum."""
        target = step.reward + self.settings.gamma * step.going_on * value
        return (self.q(step.obs, step.action) - target).square().sum()

    def _least_value(self, obs: Tensor, action: Tensor) -> Tensor:
        """(N,) the critics' least values, with gradients for the actions alone."""
        with frozen_parameters(self.q):
            return self.q(obs, action).amin(0)

    @staticmethod
    def _soft_minimum(values: Tensor) -> Tensor:
        """(members, N) -> (N,): 0.75 of the least and 0.25 of the largest (BCQ, BEAR, BRAC)."""
        return 0.75 * values.amin(0) + 0.25 * values.amax(0)

    def transitions(self, policy: PolicyNetwork, batch: Batch) -> Transitions:
        """The valid steps of a batch."""
        mask = batch["mask"]
        rows = mask.flatten().nonzero().squeeze(1)
        body = batch[BODY][rows // mask.shape[1]] if policy.layout.body_fields else None

        def valid(name: str) -> Tensor:
            return batch[name].flatten(0, 1)[rows]

        def tokens(name: str) -> Tensor:
            return policy.tokens(policy.observation(valid(name), body=body))

        def actions(name: str) -> Tensor:
            return policy.batch_actions(batch, name).flatten(0, 1)[rows]

        return Transitions(
            tokens("obs"),
            actions("action"),
            self.reward_scale * valid("reward"),
            tokens("next_obs"),
            actions("next_action"),
            1.0 - valid("terminal").float(),
            valid("last"),
        )

    def action(self, policy: PolicyNetwork, batch: Batch, bounded: bool = True) -> Tensor:
        """(N, A) actions of the policy at the valid steps."""
        with _bounds(policy, bounded):
            return policy.predict_batch(batch)[batch["mask"]]

    @torch.no_grad()
    def next_action(self, policy: PolicyNetwork, batch: Batch, bounded: bool = True) -> Tensor:
        """(N, A) actions of the policy at the steps after the valid ones, without gradients.

        A window and the step after it are one sequence of T + 1 steps, so that a network with a
        memory has seen the same as in `action`. Dropout is off, as in control.
        """
        mask = batch["mask"]
        after = torch.cat([mask.new_zeros(len(mask), 1), mask], dim=1)
        obs = torch.cat([batch["obs"][:, :1], batch["next_obs"]], dim=1)
        longer = {"obs": obs, "mask": after}
        if BODY in batch:
            longer[BODY] = batch[BODY]
        with _bounds(policy, bounded), _evaluated(policy):
            return policy.predict_batch(longer)[after]


def _bounds(policy: PolicyNetwork, bounded: bool) -> AbstractContextManager[None]:
    assert isinstance(policy.network, BoundedNetwork), "those of these objectives are"
    return nullcontext() if bounded else policy.network.unbounded()


@contextmanager
def _evaluated(module: nn.Module) -> Iterator[None]:
    """Within the block, a module is in eval mode."""
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)


@contextmanager
def frozen_parameters(module: nn.Module) -> Iterator[None]:
    """Within the block, a module's parameters get no gradient; its inputs do."""
    module.requires_grad_(False)
    try:
        yield
    finally:
        module.requires_grad_(True)
