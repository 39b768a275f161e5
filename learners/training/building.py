"""A new policy for a selection of episodes, and the cause of a loss that is not finite.

`build_policy` makes the policy.

`blame` and `data_fault` find the cause of a non-finite loss or gradient.
"""

from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gaitforge.datasets import Selection
from gaitforge.datasets.schema import Schema, executed_place
from gaitforge.datasets.statistics import ChannelStatistics, channel_names
from gaitforge.learners.checkpoint import policy_card
from gaitforge.learners.models.base import BoundedNetwork
from gaitforge.learners.models.registry import build_network, preset
from gaitforge.learners.policy_network import (
    MIN_STD,
    GaussianSpread,
    Normaliser,
    PolicyNetwork,
    input_bounds,
    largest_inputs,
    return_notes,
    scale_notes,
)
from gaitforge.learners.tokens import BODY, BODY_SIGN, TokenLayout
from gaitforge.learners.training.batches import has_bodies, label_scale
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.objectives import OBJECTIVES, has_own_loss, value_class
from gaitforge.learners.training.update import ValueLosses

# Causes of a non-finite loss or gradient.
_NAMED_EPISODES = 4


class NonFiniteError(ValueError):
    """Training met a number that is not finite, in the data or in the loss."""


def blame(batch: Mapping[str, Tensor], selection: Selection, rate: float, alone: bool) -> str:
    """Why a batch's loss is not finite, and in which episodes; `alone`: the run has one process."""
    way_out = "lower peak_lr" if alone else "lower peak_lr, unless another process names its data"
    return data_fault(batch, selection) or (
        f"the loss is not finite at learning rate {rate:.2g}, over "
        f"{_episodes(batch['episode'], selection)}; {way_out}"
    )


def data_fault(batch: Mapping[str, Tensor], selection: Selection) -> str | None:
    """Invalid numbers of a batch and their episodes, in words; None if there are none."""
    for name, value in batch.items():
        if not value.is_floating_point():
            continue
        wrong = ~torch.isfinite(value)
        problem = "numbers that are not finite"
        if name == "action_std" and not wrong.any():
            wrong = (value <= 0) & batch["mask"][..., None]
            problem = "numbers that are not above 0"
        if wrong.any():
            windows = wrong.flatten(1).any(1)
            owners = _episodes(batch["episode"][windows], selection)
            return f"field {name} of the data holds {problem}, in {owners}"
    return None


def _episodes(rows: Tensor, selection: Selection) -> str:
    """The parts and numbers of the first few of the episodes in these rows of the catalog."""
    distinct = rows.unique().cpu().numpy()
    table = selection.episodes().take(distinct[:_NAMED_EPISODES])
    by_part: dict[str, list[str]] = {}
    for row in table.select(["part", "episode"]).to_pylist():
        by_part.setdefault(row["part"], []).append(str(row["episode"]))
    named = ", ".join(
        f"episode{'s' * (len(numbers) > 1)} {', '.join(numbers)} of part {part}"
        for part, numbers in by_part.items()
    )
    omitted = len(distinct) - _NAMED_EPISODES
    return f"{named} and {omitted} more" if omitted > 0 else named


# A new policy for a selection of episodes.
def build_policy(config: TrainConfig, selection: Selection) -> tuple[PolicyNetwork, dict[str, Any]]:
    """A new policy with the selection's statistics, and its checkpoint card.

    A Gaussian policy learns its std unless the network's config has a `fixed_std`. Raises
    ValueError for an unknown model or setting, an objective that does not suit the model, fields
    that are not vectors, or observations without named slices, and NonFiniteError for statistics
    that are not finite.
    """
    _check_vectors(selection.schema)
    objective = OBJECTIVES[config.objective]
    spec = preset(config.model, config.model_overrides)
    bounds = executed_place(selection.schema) if config.executed_actions else None
    shown = None if bounds is None else slice(*bounds)
    act_dim = shown.stop - shown.start if shown else selection.schema.field("action").shape[0]
    stored_slices = selection.schema.field("obs").slices
    body_slices = selection.schema.field(BODY).slices if has_bodies(selection) else None
    condition = config.token_condition()
    layout = TokenLayout.of_data(
        objective.tokens,
        stored_slices,
        act_dim,
        body_slices,
        condition.width,
        own_signs=config.own_joint_signs,
    )
    observed = _statistics("obs", selection, layout)
    acted = _statistics("action", selection, layout)
    action_normaliser = _normaliser("action", acted)
    if shown is not None:
        seen = _normaliser("obs", observed)
        action_normaliser = Normaliser(seen.mean[shown], seen.std[shown])
    obs_normaliser = _inputs(selection, layout, observed, (action_normaliser, acted))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        network = build_network(spec, layout, act_dim)
    if has_own_loss(network) and (objective.values or objective.gaussian):
        options = OBJECTIVES.usable()
        plain = [name for name in options if not (options[name].values or options[name].gaussian)]
        raise ValueError(
            f"model {config.model} learns by a loss of its own, not by the objective "
            f"{config.objective}; allowed: {', '.join(plain)}"
        )
    actions = action_normaliser if config.normalise_actions else Normaliser.identity(act_dim)
    if objective.values:
        network = BoundedNetwork(network)
        actions = _bounds(selection, layout, shown)
    gaussian = None
    if objective.gaussian:
        gaussian = GaussianSpread(act_dim, getattr(spec.config, "fixed_std", None))
    zero, expert = _return_range(config, selection)
    scale = expert - zero
    policy = PolicyNetwork(
        network, layout, obs_normaliser, actions, scale, gaussian, zero, condition
    )
    if policy.conditioned:
        policy.label_scale = label_scale(policy, selection)
    notes = _notes(policy, selection, {"obs": observed, "action": acted})
    return policy, policy_card(policy, spec) | {"input_notes": notes}


def _check_vectors(schema: Schema) -> None:
    for name in ("obs", "action"):
        field = schema.field(name)
        if len(field.shape) != 1:
            raise ValueError(
                f"field {name} has shape {field.shape} and dtype {field.dtype}; models learn from "
                "vectors, of shape (N,), not from images or discrete numbers"
            )


def _inputs(
    selection: Selection,
    layout: TokenLayout,
    observed: ChannelStatistics,
    actions: tuple[Normaliser, ChannelStatistics],
) -> Normaliser:
    """The bounded normaliser of a policy's observations, bodies and kept last actions.

    `actions`: normaliser of the learned actions, and statistics of the stored ones.
    """
    normaliser = _normaliser("obs", observed)
    largest = [largest_inputs(observed)]
    if layout.body_fields:
        bodies = selection.read(BODY).astype(np.float64)
        if layout.signed_fields:
            bodies[:, layout.body_signs] = 1.0
        spread = Normaliser(bodies.mean(axis=0), bodies.std(axis=0))
        normaliser = normaliser.followed_by(spread)
        largest.append(largest_inputs(ChannelStatistics.of(bodies)))
    if layout.keeps_last_action:
        learned, acted = actions
        normaliser = normaliser.followed_by(learned)
        largest.append(largest_inputs(acted))
    return normaliser.bounded(input_bounds(np.concatenate(largest)))


def _notes(
    policy: PolicyNetwork, selection: Selection, statistics: Mapping[str, ChannelStatistics]
) -> list[str]:
    """Lines about channels and returns of awkward scale."""
    fields = {name: selection.schema.field(name) for name in statistics}
    named = [(channel_names(fields[name]), summary) for name, summary in statistics.items()]
    notes = scale_notes(named)
    if policy.conditioned:
        notes += return_notes(policy.share(selection.episodes("return")["return"].to_numpy()))
    return notes


def _statistics(name: str, selection: Selection, layout: TokenLayout) -> ChannelStatistics:
    """Statistics of obs or action, with the joints' signs taken out where the layout does so."""
    # Threads, not a Dask client that may be open in this process.
    if not layout.signed_fields:
        return selection.statistics(name, scheduler="threads")
    body_signs = selection.read(BODY)[:, layout.body_signs]
    signs, group = np.unique(body_signs, axis=0, return_inverse=True)
    alike = []
    for number, row in enumerate(signs):
        episodes = selection.with_rows(selection.rows[group.ravel() == number])
        factors = np.ones(layout.obs_dim + 1)
        factors[slice(*layout.obs_slices[BODY_SIGN])] = row
        factors = factors[layout.sign_places][: layout.stored_dim] if name == "obs" else row
        alike.append(episodes.statistics(name, scheduler="threads").scaled(factors))
    return reduce(ChannelStatistics.merge, alike)


def _normaliser(name: str, statistics: ChannelStatistics) -> Normaliser:
    try:
        return Normaliser(statistics.mean, statistics.std)
    except ValueError as error:
        raise NonFiniteError(f"field {name}: {error}") from error


def build_values(
    config: TrainConfig, policy: PolicyNetwork, selection: Selection
) -> ValueLosses | None:
    """The new critics of a policy, with the seed's weights; None for imitation."""
    learner = value_class(config.objective)
    settings = config.value_settings()
    if learner is None:
        return None
    scale = settings.reward_scale
    if scale is None:
        returns = selection.episodes("return").column("return").to_numpy()
        scale = 1000.0 / max(float(returns.max() - returns.min()), 1e-6)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return learner(policy, settings, scale)


def _bounds(selection: Selection, layout: TokenLayout, shown: slice | None) -> Normaliser:
    """A normaliser that maps the range of each action channel to [-1, 1].

    Args:
        shown: slice of an observation with the executed action; None for the stored actions.
    """
    statistics = _statistics("action" if shown is None else "obs", selection, layout)
    low, high = (extremes[shown or slice(None)] for extremes in (statistics.min, statistics.max))
    # A channel that never changes keeps its value: tanh's -1 to 1 are rounding there.
    rounding = np.maximum(MIN_STD, 1e-6 * np.maximum(np.abs(low), np.abs(high)))
    return Normaliser((high + low) / 2, np.maximum((high - low) / 2, 2.0 * rounding))


def _return_range(config: TrainConfig, selection: Selection) -> tuple[float, float]:
    """The returns that the network sees as 0 and 1; (0, 1) if the objective uses no returns.

    FCNet's are "normalized, with 1.0 indicating an expert policy". The expert's return is, in this
    order: the config's; the store's reference return of an expert, which imports of D4RL have; the
    mean return of the episodes.
    """
    if OBJECTIVES[config.objective].tokens != "return":
        return 0.0, 1.0
    schema = selection.schema
    zero = config.return_zero
    if zero is None:
        zero = _reference_return(schema, "random") or 0.0
    expert = config.return_scale
    if expert is None:
        expert = _reference_return(schema, "expert")
        if expert is None or expert <= zero:
            expert = float(selection.episodes("return").column("return").to_numpy().mean())
    if not expert > zero:
        raise ValueError(
            f"the return objective needs an expert's return above {zero:g}, got {expert:g}; "
            "set return_scale"
        )
    return zero, expert


def _reference_return(schema: Schema, policy: str) -> float | None:
    """A policy's return in the attribute `reference_returns`; None if the store has none."""
    returns = schema.attributes.get("reference_returns")
    value = returns.get(policy) if isinstance(returns, Mapping) else None
    return float(value) if isinstance(value, int | float) else None
