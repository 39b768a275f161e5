"""Training objectives, summed over valid steps without padding.

A deterministic policy is trained by mean squared error, or by its network's `imitation_losses` if
it has a loss of its own; a Gaussian one by the negative log-likelihood of the stored action, or by
KL(expert || policy) if the data have the expert's distribution. Actions are in normalised units; a
KL divergence is the same in any unit.

Legend: B windows, T steps, A numbers of an action.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gaitforge.common.errors import names_allowed
from gaitforge.common.extensions import Registered
from gaitforge.common.limits import check_types

if TYPE_CHECKING:
    from torch import Tensor, nn

    from gaitforge.datasets.schema import Schema
    from gaitforge.learners.policy_network import PolicyNetwork

EXPERT_FIELDS = ("action_mean", "action_std")
"""Fields of the expert's distribution, per step and in the units of `action`."""


@dataclass(frozen=True)
class Objective:
    """A training objective.

    Attributes:
        tokens: one of `tokens.TOKEN_KINDS`.
        gaussian: whether the policy is Gaussian; with values, it imitates stored actions.
        values: "module:class" of the `ValueLosses`, whose policy is bounded; empty for imitation.
        training: settings of `TrainConfig` that suit it, whatever the model.
    """

    tokens: str
    gaussian: bool = False
    values: str = ""
    training: Mapping[str, Any] = field(default_factory=dict)


OBJECTIVES = Registered(
    "objective",
    Objective,
    {
        "bc": Objective("obs"),
        "gaussian-bc": Objective("obs", gaussian=True),
        "return": Objective("return"),
    },
)


def value_class(objective: str) -> Any:
    """The `ValueLosses` of an objective; None for imitation."""
    path = OBJECTIVES[objective].values
    if not path:
        return None
    module, name = path.split(":")  # of an entry in code, never of a file
    return getattr(import_module(module), name)


def value_settings(objective: str, overrides: Mapping[str, Any]) -> Any:
    """The settings of a value-based objective, some replaced; None for imitation.

    Raises:
        ValueError: a setting that the objective does not have, or a value of another type or
            outside its range.
    """
    learner = value_class(objective)
    names = [setting.name for setting in fields(learner.settings_class)] if learner else []
    for name in overrides:
        if name not in names:
            choices = f"; {names_allowed(name, names)}" if names else ", as it learns no values"
            raise ValueError(f"objective {objective} has no setting {name!r}{choices}")
    if not learner:
        return None
    check_types(f"objective {objective}: setting", learner.settings_class, overrides)
    return learner.settings_class(**overrides)


def objective_fields(objective: Objective, schema: Schema, executed: bool) -> tuple[str, ...]:
    """The fields to train on; executed actions have no distribution, so EXPERT_FIELDS are not used.

    ValueError if rewards are needed and missing, or if EXPERT_FIELDS and the action differ in
    shape.
    """
    if objective.values:
        if "reward" not in schema.names("step"):
            raise ValueError(
                "the store has no field reward per step, from which values are learned; train with "
                "the objective bc"
            )
        return ("obs", "action", "reward")
    if executed or not (objective.gaussian and set(EXPERT_FIELDS) <= set(schema.names())):
        return ("obs", "action")
    action = schema.field("action")
    for name in EXPERT_FIELDS:
        field = schema.field(name)
        if (field.shape, field.per) != (action.shape, "step"):
            raise ValueError(
                f"field {name} is {field.shape} per {field.per}, but the expert's distribution "
                f"must be {action.shape} per step, like the action"
            )
    return ("obs", *EXPERT_FIELDS)


def draws_noise(objective: str, network: nn.Module) -> bool:
    """Whether a training draws random numbers: for its loss, or for the network's dropout."""
    from gaitforge.common.networks import has_dropout

    learner = value_class(objective)
    of_loss = has_own_loss(network) or (learner is not None and learner.draws_noise)
    return of_loss or has_dropout(network)


def has_own_loss(network: nn.Module) -> bool:
    """Whether a network has its own imitation loss, which replaces the squared error."""
    return hasattr(network, "imitation_losses")


def summed_loss(policy: PolicyNetwork, batch: Mapping[str, Tensor]) -> Tensor:
    """The policy's loss summed over the valid steps of a batch; scalar.

    The loss of a step is the mean squared error over its action, or nats for a Gaussian policy. A
    network with `imitation_losses` computes the loss in training; in eval mode its actions' squared
    errors count, as for other networks. The batch has mask (B, T), action (B, T, A) or
    EXPERT_FIELDS, and the inputs of `predict_batch`.
    """
    from gaitforge.common.networks import gaussian_kl, gaussian_nll

    normaliser = policy.action_normaliser
    mask = batch["mask"]
    if policy.training and has_own_loss(policy.network):
        target = policy.batch_actions(batch)
        return policy.network.imitation_losses(policy.batch_tokens(batch), target, mask).sum()
    predicted = policy.predict_batch(batch).float()
    if "action_mean" in batch:
        expert_mean = policy.batch_actions(batch, "action_mean")
        expert_std = batch["action_std"] / normaliser.std
        return masked_sum(gaussian_kl(expert_mean, expert_std, predicted, policy.log_std), mask)
    target = policy.batch_actions(batch)
    if policy.gaussian is None:
        return masked_sum(squared_error(predicted, target), mask)
    return masked_sum(gaussian_nll(predicted, policy.log_std, target), mask)


def squared_error(predicted: Tensor, target: Tensor) -> Tensor:
    """(..., A) and (..., A) -> (...) mean over the action's numbers."""
    return (predicted - target).square().mean(-1)


def masked_sum(per_step: Tensor, mask: Tensor) -> Tensor:
    """Sum of (B, T) over the steps where mask (B, T) is true."""
    return per_step.masked_fill(~mask, 0.0).sum()
