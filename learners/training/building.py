"""A fresh policy for a selection of episodes."""

from collections.abc import Mapping
from typing import Any

import torch

from datasets import Selection
from datasets.schema import Schema
from learners.checkpoint import policy_card
from learners.models.registry import build_network, preset
from learners.policy.gaussian import GaussianSpread
from learners.policy.normalisation import Normaliser
from learners.policy.policy_network import PolicyNetwork
from learners.policy.tokens import TokenLayout
from learners.training.config import TrainConfig
from learners.training.nonfinite import NonFiniteError
from learners.training.objectives import OBJECTIVES


def build_policy(config: TrainConfig, selection: Selection) -> tuple[PolicyNetwork, dict[str, Any]]:
    """A fresh policy with the selection's statistics, and the card that describes it.

    A Gaussian policy learns its standard deviation, unless the network's own settings have a
    `fixed_std`, as BoT's stochastic variant does.

    Raises:
        ValueError: an unknown model or setting, observations without named slices, or
            (NonFiniteError) statistics that are not finite.
    """
    objective = OBJECTIVES[config.objective]
    spec = preset(config.model, config.model_overrides)
    action_normaliser = _normaliser("action", selection)
    act_dim = action_normaliser.mean.numel()
    stored_slices = selection.store.schema.field("obs").slices
    layout = TokenLayout.of_data(objective.tokens, stored_slices, act_dim)
    obs_normaliser = _normaliser("obs", selection)
    if layout.keeps_last_action:
        obs_normaliser = obs_normaliser.followed_by(action_normaliser)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        network = build_network(spec, layout, act_dim)
    policy = PolicyNetwork(
        network,
        layout,
        obs_normaliser,
        action_normaliser,
        _return_scale(config, selection),
        GaussianSpread(act_dim, getattr(spec.config, "fixed_std", None))
        if objective.gaussian
        else None,
    )
    return policy, policy_card(policy, spec)


def _normaliser(name: str, selection: Selection) -> Normaliser:
    # Not by whatever Dask client happens to be open in this process: its cluster may be gone.
    statistics = selection.statistics(name, scheduler="threads")
    try:
        return Normaliser(statistics.mean, statistics.std)
    except ValueError as error:
        raise NonFiniteError(f"field {name}: {error}") from error


def _return_scale(config: TrainConfig, selection: Selection) -> float:
    """The expert's return that returns-to-go are divided by; 1 where returns are not used.

    FCNet's are "normalized, with 1.0 indicating an expert policy". So it is, in this order: what
    the config says; the return of an expert that the store names, as imports of D4RL do, whose data
    may be far from expert; the mean return of an episode, for data that an expert collected.
    """
    if OBJECTIVES[config.objective].tokens != "return":
        return 1.0
    if config.return_scale is not None:
        return config.return_scale
    expert = _reference_expert_return(selection.store.schema)
    if expert is not None:
        return expert
    scale = float(selection.episodes().column("return").to_numpy().mean())
    if not scale > 0:
        raise ValueError(
            f"the episodes' mean return is {scale}, but the return objective needs a positive "
            "scale; set return_scale"
        )
    return scale


def _reference_expert_return(schema: Schema) -> float | None:
    """Of the attributes `reference_returns`; None where there is none, or none to divide by."""
    known = schema.attributes.get("reference_returns")
    expert = known.get("expert") if isinstance(known, Mapping) else None
    if not isinstance(expert, int | float) or expert <= 0:
        return None
    return float(expert)
