"""A new policy for a selection of episodes."""

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
    """A new policy with the selection's statistics, and its checkpoint card.

    A Gaussian policy learns its std unless the network's config has a `fixed_std`. Raises
    ValueError for an unknown model or setting or observations without named slices, and
    NonFiniteError for statistics that are not finite.
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
    gaussian = None
    if objective.gaussian:
        gaussian = GaussianSpread(act_dim, getattr(spec.config, "fixed_std", None))
    policy = PolicyNetwork(
        network,
        layout,
        obs_normaliser,
        action_normaliser,
        _return_scale(config, selection),
        gaussian,
    )
    return policy, policy_card(policy, spec)


def _normaliser(name: str, selection: Selection) -> Normaliser:
    # With threads, not on a Dask client that may be open in this process.
    statistics = selection.statistics(name, scheduler="threads")
    try:
        return Normaliser(statistics.mean, statistics.std)
    except ValueError as error:
        raise NonFiniteError(f"field {name}: {error}") from error


def _return_scale(config: TrainConfig, selection: Selection) -> float:
    """The return that returns-to-go are divided by; 1 if the objective uses none.

    FCNet's are "normalized, with 1.0 indicating an expert policy". The scale is, in this order: the
    config's; the store's reference return of an expert, which imports of D4RL have; the mean return
    of the episodes.
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
    """The positive "expert" of the attribute `reference_returns`, if the store has it."""
    known = schema.attributes.get("reference_returns")
    expert = known.get("expert") if isinstance(known, Mapping) else None
    if not isinstance(expert, int | float) or expert <= 0:
        return None
    return float(expert)
