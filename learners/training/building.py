"""A new policy for a selection of episodes, and the cause of a loss that is not finite.

`build_policy` makes the policy, with random weights or with those of another run.

`blame` and `data_fault` find the cause of a non-finite loss or gradient.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gaitforge.common.errors import listed
from gaitforge.common.files import sha256_file
from gaitforge.common.trust import naming
from gaitforge.datasets import Selection
from gaitforge.datasets.schema import Schema, executed_place
from gaitforge.datasets.statistics import ChannelStatistics, channel_names
from gaitforge.learners.checkpoint import (
    CHECKPOINT,
    Checkpoint,
    check_layout,
    checkpoint_path,
    policy_card,
    policy_from,
    read_checkpoint,
)
from gaitforge.learners.models.base import BoundedNetwork
from gaitforge.learners.models.registry import ModelSpec, build_network, preset, spec_from_json
from gaitforge.learners.policy_network import (
    MIN_STD,
    GaussianSpread,
    LabelScale,
    Normaliser,
    PolicyNetwork,
    input_bounds,
    largest_inputs,
    return_notes,
    scale_notes,
)
from gaitforge.learners.run_files import run_folder, shipped_policies
from gaitforge.learners.tokens import BODY, BODY_SIGN, TokenLayout
from gaitforge.learners.training.batches import kind_columns, label_scale
from gaitforge.learners.training.config import OF_POLICY, TrainConfig, shown_value
from gaitforge.learners.training.objectives import OBJECTIVES, has_own_loss, value_class
from gaitforge.learners.training.update import ValueLosses

LARGE_STEPS = 1 << 22
STATISTICS_STEPS = 1 << 20
"""Steps that the normalisers of a selection of more than `LARGE_STEPS` are computed from.

The error of a mean of so many independent steps is 0.1 % of their standard deviation; steps of one
episode are alike, so it is some times that. Bounds of inputs are twice the largest value seen.
"""

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


_EQUAL = 1e-6
"""Largest difference of equal returns, which are sums in float32, relative to them."""


# A new policy for a selection of episodes.
def build_policy(
    config: TrainConfig,
    selection: Selection,
    start: Checkpoint | None = None,
    spec: ModelSpec | None = None,
) -> tuple[PolicyNetwork, dict[str, Any]]:
    """The policy that a training begins with, and its checkpoint card.

    `spec`: of a training that goes on, the network that it has; by default the config's model.

    A new one has random weights and the selection's statistics; of more than `LARGE_STEPS` those
    of `STATISTICS_STEPS`, of all robots, experts and cells, so that the first update need not wait
    for all data. A Gaussian policy learns its std unless the network's config has a `fixed_std`.

    With `start` it is the policy of that checkpoint, its average if it has one. Normalisers and
    bounds of inputs stay as they are: the weights were learned in these units, and in others the
    same observation would give other actions. So do the returns that count as 0 and 1 (unless the
    config has a `return_scale`, and with it maybe a `return_zero`) and what labels are measured by;
    the data add what the policy lacks.

    Raises ValueError for an unknown model or setting, an objective that does not suit the model,
    fields that are not vectors, observations without named slices, or as `check_start`, and
    NonFiniteError for statistics that are not finite.
    """
    _check_vectors(selection.schema)
    spec = spec or _begun_spec(config, start)
    layout, act_dim, shown = _layout(config, selection.schema)
    measured = selection
    if selection.steps > LARGE_STEPS:
        measured = selection.spread(STATISTICS_STEPS, kind_columns(config, selection.schema))
    observed = _statistics("obs", measured, layout)
    acted = _statistics("action", measured, layout)
    if start is None:
        policy = _new_policy(config, selection, spec, (layout, act_dim, shown), (observed, acted))
        notes = _scale_notes(selection.schema, {"obs": observed, "action": acted})
    else:
        policy = check_start(config, selection.schema, start, spec)
        notes = _cut_notes(config, policy, selection.schema, observed)
        if config.return_scale is not None:
            kept = float(policy.return_zero)
            with_zero = replace(config, return_zero=kept) if _says_no_zero(config) else config
            zero, expert = _return_range(with_zero, selection)
            policy.return_zero.fill_(zero)
            policy.return_scale.fill_(expert - zero)
            policy.label_scale = None  # it is of the other unit
    if policy.conditioned:
        policy.label_scale = _joined(policy.label_scale, label_scale(policy, selection))
        notes += return_notes(policy.share(selection.episodes("return")["return"].to_numpy()))
    return policy, policy_card(policy, spec) | {"input_notes": notes}


def _begun_spec(config: TrainConfig, start: Checkpoint | None) -> ModelSpec:
    """The config's model, of the sizes that a policy to start from was trained with under its name.

    Sizes of presets may change between versions.
    """
    named = preset(config.model, config.model_overrides)
    theirs = {} if start is None else start.card.get("train_config", {})
    same = theirs.get("model"), theirs.get("model_overrides")
    if start is None or same != (config.model, dict(config.model_overrides)):
        return named
    with naming(config.start_from):
        return spec_from_json(start.card["model"])


Layout = tuple[TokenLayout, int, slice | None]
"""Layout of the tokens, size of an action, and where `obs` shows the executed action."""


def _layout(config: TrainConfig, schema: Schema) -> Layout:
    """The layout of a training's tokens; the slice is None where stored actions are learned."""
    bounds = executed_place(schema) if config.executed_actions else None
    shown = None if bounds is None else slice(*bounds)
    act_dim = shown.stop - shown.start if shown else schema.field("action").shape[0]
    layout = TokenLayout.of_data(
        OBJECTIVES[config.objective].tokens,
        schema.field("obs").slices,
        act_dim,
        schema.field(BODY).slices if BODY in schema.names("episode") else None,
        config.token_condition().width,
        own_signs=config.own_joint_signs,
    )
    return layout, act_dim, shown


def _new_policy(
    config: TrainConfig,
    selection: Selection,
    spec: ModelSpec,
    placed: Layout,
    statistics: tuple[ChannelStatistics, ChannelStatistics],
) -> PolicyNetwork:
    """A policy with random weights; `statistics`: of obs and action."""
    layout, act_dim, shown = placed
    observed, acted = statistics
    objective = OBJECTIVES[config.objective]
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
    condition = config.token_condition()
    return PolicyNetwork(
        network, layout, obs_normaliser, actions, expert - zero, gaussian, zero, condition
    )


def _joined(kept: LabelScale | None, new: LabelScale) -> LabelScale:
    """A policy's scale of labels, with the cells and drivers of new data that it lacks."""
    if kept is None:
        return new
    cells = {**new.cells, **kept.cells}
    return replace(kept, cells=cells, drivers={**new.drivers, **kept.drivers})


# The weights of another run.
_MATCHED = ("model", "act_dim", "tokens", "gaussian", "bounded", "condition")
"""Parts of a card in which a new policy and the one that it begins with are the same."""


def read_start(config: TrainConfig) -> Checkpoint:
    """The checkpoint whose weights a run begins with.

    Raises:
        ValueError: there is none, or it cannot be read.
    """
    try:
        return read_checkpoint(run_folder(config.start_from), config.start_checkpoint)
    except ValueError as error:
        ships = ", ".join(shipped_policies())
        raise ValueError(f"start_from: {error} (policies that ship: {ships})") from None


def policy_settings(start_from: str, out: Path) -> dict[str, Any]:
    """The settings of another run that a run in `out` has by default, see `config.OF_POLICY`.

    Once the run in `out` has begun, they are read there: it does not need the other one any more.
    """
    begun = (out / CHECKPOINT).exists()
    start = TrainConfig(start_from=start_from)
    card = (read_checkpoint(out) if begun else read_start(start)).card
    settings = card.get("train_config") or _settings_of_network(card)
    return {name: settings[name] for name in OF_POLICY if name in settings}


def _settings_of_network(card: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a policy that PPO trained, whose card has its network alone."""
    try:
        network = card["model"]
        settings = {"model": network["kind"], "model_overrides": network["config"]}
        gaussian = card["gaussian"] is not None
    except (KeyError, TypeError) as error:
        raise ValueError(f"the checkpoint's card cannot be read: {error!r}") from error
    return settings | {"objective": "gaussian-bc" if gaussian else "bc"}


def start_record(config: TrainConfig) -> dict[str, str]:
    """The run whose weights another begins with, and the SHA-256 of their file."""
    path = checkpoint_path(run_folder(config.start_from), config.start_checkpoint)
    named = {"run": config.start_from, "checkpoint": config.start_checkpoint}
    return named | {"sha256": sha256_file(path)}


def check_start(
    config: TrainConfig, schema: Schema, start: Checkpoint, spec: ModelSpec | None = None
) -> PolicyNetwork:
    """The policy of a checkpoint, with which a training on data of this schema begins.

    `spec`: of the network that it needs; by default the config's model.

    Raises:
        ValueError: it has another network, layout of observations, size of actions, kind of output
            (mean alone, Gaussian, bounded actor of an offline objective) or condition, or a filter
            of its actions.
    """
    _check_vectors(schema)
    spec = spec or _begun_spec(config, start)
    objective = OBJECTIVES[config.objective]
    layout, act_dim, _ = _layout(config, schema)
    fixed = {"fixed_std": getattr(spec.config, "fixed_std", None)}
    needed = {
        "model": spec.to_json(),
        "act_dim": act_dim,
        "tokens": asdict(layout),
        "gaussian": fixed if objective.gaussian else None,
        "bounded": bool(objective.values),
        "condition": asdict(config.token_condition()),
    }
    name = config.start_from
    with naming(name):
        policy = policy_from(start.tensors, start.card)
        held = policy_card(policy, spec_from_json(start.card["model"]))
    check_layout(policy.layout, layout.stored_slices, name)
    if policy.action_filter != 1.0:
        raise ValueError(
            f"this training cannot start from {name}: a filter of actions follows its network, "
            "which no training learns through"
        )
    kept = float(policy.return_zero)
    given = config.return_zero
    if config.return_scale is None and not (given is None or _says_no_zero(config)):
        raise ValueError(
            f"return_zero {given:g} needs return_scale: {name} has {kept:g}, and its own unit"
        )
    held = json.loads(json.dumps({part: held[part] for part in _MATCHED}))
    if difference := _first_difference(held, json.loads(json.dumps(needed))):
        theirs = start.card.get("train_config", {}).get("objective", config.objective)
        if theirs != config.objective:
            difference += f" (objective {theirs} there, {config.objective} here)"
        raise ValueError(f"this training cannot start from {name}: {difference}")
    return policy


def _says_no_zero(config: TrainConfig) -> bool:
    """Whether a config leaves the return that counts as 0 to the policy that it begins with."""
    return config.return_zero == TrainConfig.return_zero


def _first_difference(held: Any, needed: Any, path: str = "") -> str:
    """The first of two cards' values that differ, in words; empty where none does."""
    if held == needed:
        return ""
    if not (isinstance(held, Mapping) and isinstance(needed, Mapping)):
        return f"{path} is {shown_value(held)} there, {shown_value(needed)} here"
    for key in (*needed, *(held.keys() - needed.keys())):
        inner = f"{path}.{key}" if path else key
        if difference := _first_difference(held.get(key), needed.get(key), inner):
            return difference
    return ""


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


def _scale_notes(schema: Schema, statistics: Mapping[str, ChannelStatistics]) -> list[str]:
    """A line about channels of awkward scale, if there are any."""
    fields = {name: schema.field(name) for name in statistics}
    return scale_notes(
        [(channel_names(fields[name]), summary) for name, summary in statistics.items()]
    )


def _cut_notes(
    config: TrainConfig, policy: PolicyNetwork, schema: Schema, observed: ChannelStatistics
) -> list[str]:
    """A line about channels whose values are cut at the bounds of a policy's inputs, if any."""
    normaliser = policy.obs_normaliser
    mean, std, limit = (
        values.numpy()[: policy.layout.stored_dim]
        for values in (normaliser.mean, normaliser.std, normaliser.limits())
    )
    largest = np.maximum(observed.max - mean, mean - observed.min) / std
    cut = np.array(channel_names(schema.field("obs")))[largest > limit].tolist()
    if not cut:
        return []
    return [f"inputs are cut at the bounds of {config.start_from}: {listed(cut, 4)}"]


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
        scale = _reward_scale(selection.episodes("return").column("return").to_numpy())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return learner(policy, settings, scale)


def _reward_scale(returns: np.ndarray) -> float:
    """1000 over the spread of the returns; 1 where they differ by rounding alone."""
    spread = float(returns.max() - returns.min())
    return 1000.0 / spread if spread > _EQUAL * float(np.abs(returns).max()) else 1.0


def _bounds(selection: Selection, layout: TokenLayout, shown: slice | None) -> Normaliser:
    """A normaliser that maps the range of each action channel to [-1, 1].

    The range of all episodes, however many: actions beyond it are out of the policy's reach.

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
    mean return of the episodes. Returns may be negative.
    """
    if OBJECTIVES[config.objective].tokens != "return":
        return 0.0, 1.0
    zero = config.return_zero
    if zero is None:
        zero = _reference_return(selection, "random") or 0.0
    expert = config.return_scale
    if expert is None:
        expert = _reference_return(selection, "expert")
        if expert is None or expert <= zero:
            expert = float(selection.episodes("return").column("return").to_numpy().mean())
    if not expert > zero:
        raise ValueError(
            f"the return objective needs an expert's return above {zero:g}, got {expert:g}; "
            "set return_scale, or a lower return_zero"
        )
    return zero, expert


def _reference_return(selection: Selection, policy: str) -> float | None:
    """A policy's return in the attribute `reference_returns`; None if the store has none.

    They are of the collected reward: a store with a new one has none.
    """
    if selection.has_new_reward:
        return None
    returns = selection.schema.attributes.get("reference_returns")
    value = returns.get(policy) if isinstance(returns, Mapping) else None
    return float(value) if isinstance(value, int | float) else None
