"""A policy: a network with its token layout and normalisers, and what its checkpoint keeps.

`GaussianSpread` has the state-independent standard deviations of a Gaussian policy, one per action.

`LabelScale` is what a conditioned policy's labels are measured by: facts of the episodes that it
learned from. They are kept in the checkpoint, so that labels of other episodes mean the same.

`Normaliser` normalises observations and actions. It is saved in the checkpoint.

Normalised inputs are bounded, as in Stable-Baselines3 (VecNormalize, clip_obs = 10). A channel that
is 0 but for 5 of 100,000 steps has values of 141 standard deviations, and one whose deviation is
rounding has thousands once its sensor fails. Networks do anything with such inputs. Deviation: the
bound of each channel follows from the data, whose own values are within it unless they are such.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from gaitforge.common.errors import listed
from gaitforge.datasets.statistics import ChannelStatistics
from gaitforge.learners.tokens import (
    BODY,
    BODY_SIGN,
    CONDITION,
    LAST_ACTION,
    Condition,
    TokenLayout,
)

# Standard deviations of a Gaussian policy.

# In normalised action units. Without a lower bound the likelihood of noise-free data is unbounded.
MIN_LOG_STD = math.log(0.01)


class GaussianSpread(nn.Module):
    """Learned log std (A,) in normalised action units, or the constant log(fixed_std).

    A learned std starts at 1 and has a smooth lower bound, log std = min + softplus(x - min), as
    the variances of Chua et al. 2018 (PETS, appendix A.1). Raises ValueError for fixed_std <= 0.
    """

    def __init__(self, act_dim: int, fixed_std: float | None = None) -> None:
        super().__init__()
        if fixed_std is not None and not (math.isfinite(fixed_std) and fixed_std > 0):
            raise ValueError(f"fixed_std must be above 0, got {fixed_std}")
        self.fixed_std = fixed_std
        if fixed_std is None:
            start = MIN_LOG_STD + math.log(math.expm1(-MIN_LOG_STD))
            self.unbounded = nn.Parameter(torch.full((act_dim,), start))
        else:
            self.register_buffer("fixed", torch.full((act_dim,), math.log(fixed_std)))

    def log_std(self) -> Tensor:
        """(A,) in normalised action units."""
        if self.fixed_std is not None:
            return self.get_buffer("fixed")
        return MIN_LOG_STD + functional.softplus(self.unbounded - MIN_LOG_STD)


# What labels are measured by: facts of the episodes that a policy learned from.
Key = str
"""Values of some columns of the catalog, as JSON."""


@dataclass(frozen=True)
class ExpectedRate:
    """The rate that a linear function of the observation expects, and what exceeds it by rank.

    Attributes:
        mean, std: (D,) of the observations; weights: (D + 1,), the last one a constant.
        edges: (bins - 1,) bounds of the ranks.
    """

    mean: np.ndarray
    std: np.ndarray
    weights: np.ndarray
    edges: np.ndarray

    def expected(self, obs: np.ndarray) -> np.ndarray:
        """(...) rates that are expected at obs (..., D)."""
        return self.features(obs, self.mean, self.std) @ self.weights

    @staticmethod
    def features(obs: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
        """(..., D + 1) what the function is linear in."""
        return np.concatenate([(obs - mean) / std, np.ones((*obs.shape[:-1], 1))], axis=-1)

    def rank(self, obs: np.ndarray, rates: np.ndarray) -> np.ndarray:
        """(B, T) ranks 0 to 1 of steps with obs (B, T, D) and rates (B, T)."""
        return np.searchsorted(self.edges, rates - self.expected(obs)) / len(self.edges)


@dataclass(frozen=True)
class LabelScale:
    """What labels are measured by; `training.batches` says how.

    Attributes:
        horizon: steps of the longest episode.
        cells: cell -> return that counts as a share of 1.
        drivers: policy whose actions are stored -> its mean share, least disturbed.
        rate: for the label "advantage".
    """

    horizon: int
    cells: Mapping[Key, float]
    drivers: Mapping[Key, float]
    rate: ExpectedRate | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON values; `from_json` is the inverse, bit for bit."""
        rate = self.rate and {name: values.tolist() for name, values in vars(self.rate).items()}
        return {
            **vars(self),
            "cells": dict(self.cells),
            "drivers": dict(self.drivers),
            "rate": rate,
        }

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "LabelScale":
        """The inverse of `to_json`; ValueError for a damaged tree."""
        try:
            rate = tree["rate"] and ExpectedRate(
                **{name: np.array(tree["rate"][name], float) for name in _RATE}
            )
            scale = cls(
                int(tree["horizon"]), _numbers(tree["cells"]), _numbers(tree["drivers"]), rate
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"the scale of the labels cannot be read: {error!r}") from error
        if scale.horizon < 1 or not all(
            map(isfinite, [*scale.cells.values(), *scale.drivers.values()])
        ):
            raise ValueError("the scale of the labels is damaged")
        return scale


_RATE = tuple(ExpectedRate.__dataclass_fields__)


def _numbers(tree: Mapping[str, Any]) -> dict[Key, float]:
    return {str(key): float(value) for key, value in tree.items()}


def key_of(values: Sequence[Any]) -> Key:
    """The key of some columns' values."""
    return json.dumps(list(values), default=str)


# Normalisation of observations and actions.

# Channels with a smaller std in the data count as constant.
MIN_STD = 1e-5


class Normaliser(nn.Module):
    """Channel-wise (x - mean) / std and its inverse; constant channels are not divided.

    mean, std: (D,) in the units of x. Raises ValueError if they are not finite vectors of one size.
    bound: (D,) the largest size of a normalised value, see `bounded`; kept in a checkpoint's card.
    """

    mean: Tensor
    std: Tensor
    bound: Tensor | None

    def __init__(self, mean: np.ndarray | Tensor, std: np.ndarray | Tensor) -> None:
        super().__init__()
        mean = torch.as_tensor(mean, dtype=torch.float32).clone()
        std = torch.as_tensor(std, dtype=torch.float32).clone()
        if mean.shape != std.shape or mean.ndim != 1:
            raise ValueError(
                f"mean and std must be vectors of the same size, got shapes {tuple(mean.shape)} "
                f"and {tuple(std.shape)}"
            )
        if not (mean.isfinite().all() and std.isfinite().all()):
            channels = (~(mean.isfinite() & std.isfinite())).nonzero().flatten().tolist()
            raise ValueError(
                f"mean or std of channels {channels} is not finite; check the data for NaN"
            )
        self.register_buffer("mean", mean)
        self.register_buffer("std", torch.where(std < MIN_STD, 1.0, std))
        self.register_buffer("bound", None, persistent=False)

    @classmethod
    def identity(cls, size: int) -> "Normaliser":
        """A normaliser that changes nothing, to load a checkpoint into."""
        return cls(torch.zeros(size), torch.ones(size))

    def followed_by(self, other: "Normaliser") -> "Normaliser":
        """The normaliser of this one's channels followed by the other's."""
        return Normaliser(torch.cat([self.mean, other.mean]), torch.cat([self.std, other.std]))

    def bounded(self, bound: np.ndarray | Sequence[float] | None) -> "Normaliser":
        """Limit normalised values to -bound .. bound, (D,); None for no limit. Returns itself.

        Raises ValueError if they are not D numbers above 0.
        """
        limit = None if bound is None else torch.as_tensor(bound, dtype=torch.float32)
        if limit is not None and not (limit.shape == self.mean.shape and bool((limit > 0).all())):
            raise ValueError(f"bounds of inputs must be {len(self.mean)} numbers above 0")
        self.bound = limit
        return self

    def limits(self) -> Tensor:
        """(D,) the bounds, infinite where there are none."""
        return torch.full_like(self.mean, torch.inf) if self.bound is None else self.bound

    def normalise(self, x: Tensor) -> Tensor:
        """(..., D) in data units, any dtype -> (..., D) normalised, float32."""
        normalised = ((x - self.mean) / self.std).to(self.mean.dtype)
        if self.bound is None:
            return normalised
        return torch.minimum(torch.maximum(normalised, -self.bound), self.bound)

    def restore(self, x: Tensor) -> Tensor:
        """(..., D) normalised -> (..., D) in data units."""
        return torch.addcmul(self.mean, x, self.std)


# The policy.
class PolicyNetwork(nn.Module):
    """Maps observations to actions, both in the units of the data.

    The network works in normalised units. A conditioned one also sees labels, see `Condition`; a
    return R as its share (R - `return_zero`) / `return_scale` of the expert's.

    Observations (..., Do) have the fields of the layout. If the layout has fields of the body, or
    keeps the last action, they are appended to the stored observation (..., Ds), see `observation`.
    Where the layout has signed fields, the network reads and writes all joints as turning about +x
    and +y: observations and actions outside it have each robot's own signs.

    With `gaussian` the policy is a Gaussian with the network's output as mean; `forward` and `step`
    return the mean.
    """

    network: Any
    return_scale: Tensor
    return_zero: Tensor
    body: Tensor
    sign_places: Tensor
    action_filter = 1.0
    """See `filtered`."""
    label_scale: LabelScale | None = None
    """What the labels were measured by in training; None if it is not conditioned, or older."""

    def __init__(
        self,
        network: nn.Module,
        layout: TokenLayout,
        obs_normaliser: Normaliser,
        action_normaliser: Normaliser,
        return_scale: float = 1.0,
        gaussian: GaussianSpread | None = None,
        return_zero: float = 0.0,
        condition: Condition | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.layout = layout
        self.condition = condition or Condition()
        self.obs_normaliser = obs_normaliser
        self.action_normaliser = action_normaliser
        self.gaussian = gaussian
        self.register_buffer("return_scale", torch.tensor(return_scale, dtype=torch.float32))
        zero = torch.tensor(return_zero, dtype=torch.float32)
        self.register_buffer("return_zero", zero, persistent=False)  # in the card
        self.register_buffer("body", torch.full((layout.body_dim,), torch.nan), persistent=False)
        self.register_buffer("sign_places", torch.tensor(layout.sign_places), persistent=False)

    @property
    def conditioned(self) -> bool:
        """Whether the policy takes a condition."""
        return self.layout.kind == "return"

    def return_at(self, share: float) -> float:
        """The return that the network sees as `share`; a share of 1.0 is the expert's return."""
        return float(self.return_zero) + share * float(self.return_scale)

    @property
    def act_dim(self) -> int:
        """Size of an action."""
        return self.action_normaliser.mean.numel()

    @property
    def log_std(self) -> Tensor:
        """(A,) in normalised action units; ValueError for a deterministic policy."""
        if self.gaussian is None:
            raise ValueError(
                "this policy is deterministic and cannot be sampled; "
                "train one with the objective gaussian-bc"
            )
        return self.gaussian.log_std()

    def action_std(self) -> Tensor:
        """(A,) in the units of the data; ValueError for a deterministic policy."""
        return self.log_std.exp() * self.action_normaliser.std

    def drive(self, body: np.ndarray) -> None:
        """Set the body (layout.body_dim,) of every robot, until the next call.

        ValueError for a body of another size.
        """
        if body.shape != self.body.shape:
            raise ValueError(
                f"the policy reads bodies of {self.body.numel()} numbers, not {body.size}"
            )
        self.body.copy_(torch.from_numpy(body))

    def filtered(self, share: float) -> "PolicyNetwork":
        """Put a first-order low-pass filter behind the network; returns the policy.

        An action is then the last one, as the observation holds it, plus `share` times the
        difference to the network's; 1.0 is no filter. Raises ValueError for a share outside (0, 1],
        or if the observation has no last action.
        """
        if not 0.0 < share <= 1.0:
            raise ValueError(f"the filter's share must be above 0 and at most 1, got {share}")
        if share < 1.0 and LAST_ACTION not in self.layout.obs_slices:
            raise ValueError(f"a filter of actions needs an observation field named {LAST_ACTION}")
        self.action_filter = share
        return self

    def observation(
        self, stored: Tensor, last_action: Tensor | None = None, body: Tensor | None = None
    ) -> Tensor:
        """Stored (..., Ds) -> (..., Do).

        Args:
            last_action: (..., A), needed if the layout keeps it.
            body: (..., layout.body_dim); by default the one that `drive` set.
        """
        parts = [stored]
        if self.layout.body_fields:
            body = self.body if body is None else body
            parts.append(body.expand(*stored.shape[:-1], -1))
        if self.layout.keeps_last_action:
            if last_action is None:
                raise ValueError("the stored observation has no last action; give last_action")
            parts.append(last_action)
        return torch.cat(parts, dim=-1) if len(parts) > 1 else stored

    def batch_tokens(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Tokens (B, T, D) of a batch of windows.

        The batch has obs (B, T, Ds) and, if the policy takes them, condition (B, T, C),
        last_action (B, T, A) and body (B, D). Where `shown` (B, T) is false tokens are zeros, and
        where `action_shown` (B,) is false the last action is.
        """
        body = batch[BODY][:, None] if self.layout.body_fields else None
        obs = self.observation(batch["obs"], batch.get(LAST_ACTION), body)
        tokens = self.tokens(obs, batch.get(CONDITION))
        if "shown" in batch:
            tokens = tokens * batch["shown"][..., None]
        if "action_shown" in batch and LAST_ACTION in self.layout.slices:
            kept = torch.ones(len(tokens), 1, tokens.shape[-1], device=tokens.device)
            kept[..., slice(*self.layout.slices[LAST_ACTION])] = batch["action_shown"][
                :, None, None
            ]
            tokens = tokens * kept
        return tokens

    def batch_actions(self, batch: Mapping[str, Tensor], name: str = "action") -> Tensor:
        """A batch's actions (B, T, A) as the network gives them, normalised.

        The batch has `name` (B, T, A) and, if the policy takes it, body (B, D).
        """
        actions = batch[name]
        if self.layout.signed_fields:
            actions = actions * batch[BODY][:, None, self.layout.body_signs]
        return self.action_normaliser.normalise(actions)

    def predict_batch(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Normalised actions (B, T, A) for a batch of windows, for the loss.

        The batch has mask (B, T), and the inputs of `batch_tokens`. Actions are undefined where the
        mask is false: a network that `takes_mask` does not compute them.
        """
        tokens = self.batch_tokens(batch)
        if getattr(self.network, "takes_mask", False):
            return self.network(tokens, batch["mask"])
        return self.network(tokens)

    def share(self, returns: Any) -> Any:
        """The network's share of returns, an array or tensor of any shape; see `return_at`."""
        if isinstance(returns, Tensor):
            return (returns - self.return_zero) / self.return_scale
        return (returns - float(self.return_zero)) / float(self.return_scale)

    def tokens(self, obs: Tensor, condition: Tensor | None = None) -> Tensor:
        """(..., Do) and, for return tokens, condition (..., C) -> normalised tokens (..., D)."""
        if self.layout.signed_fields:
            signs = functional.pad(obs, (0, 1), value=1.0).index_select(-1, self.sign_places)
            obs = obs * signs
        normalised = self.obs_normaliser.normalise(obs)
        if not self.conditioned:
            return normalised
        if condition is None:
            raise ValueError("this policy is conditioned on the return; give the condition")
        start, stop = self.layout.obs_slices[LAST_ACTION]
        before = normalised[..., :start]
        last_action = normalised[..., start:stop]
        return torch.cat([last_action, condition, before, normalised[..., stop:]], dim=-1)

    def predict_normalised(self, obs: Tensor, condition: Tensor | None = None) -> Tensor:
        """(B, T, Do) [and condition (B, T, C)] -> normalised actions (B, T, A)."""
        return self.network(self.tokens(obs, condition))

    def forward(self, obs: Tensor, condition: Tensor | None = None) -> Tensor:
        """(B, T, Do) [and condition (B, T, C)] -> actions (B, T, A) in the units of the data."""
        return self.restored(self.predict_normalised(obs, condition), obs)

    def restored(self, normalised: Tensor, obs: Tensor) -> Tensor:
        """The network's actions (..., A) at obs (..., Do), filtered, in the units of the data."""
        action = self.action_normaliser.restore(normalised)
        if self.layout.signed_fields:
            action = action * obs[..., slice(*self.layout.obs_slices[BODY_SIGN])]
        if self.action_filter == 1.0:
            return action
        last = obs[..., slice(*self.layout.obs_slices[LAST_ACTION])]
        return last + self.action_filter * (action - last)

    def init_state(self, batch_size: int) -> Any:
        """Recurrent state of `batch_size` robots before their first step."""
        return self.network.init_state(batch_size)

    def step(self, obs: Tensor, state: Any, condition: Tensor | None = None) -> tuple[Tensor, Any]:
        """One control step: obs (B, Do) [and condition (B, C)] -> action (B, A), next state."""
        action, state = self.network.step(self.tokens(obs, condition), state)
        return self.restored(action, obs), state

    def reset_state(self, state: Any, rows: Tensor) -> None:
        """Reset the state of the robots `rows` (indices), in place."""
        self.network.reset_state(state, rows)


# Bounds of normalised inputs, and channels that hardly ever change.
LEAST = 10.0
MOST = 50.0
"""The bounds lie between these. Falling robots reach 19 standard deviations."""
_MARGIN = 2.0
_STILL = 1e-4
"""Standard deviation over size below which a channel hardly changes."""
_SHOWN = 4


def largest_inputs(statistics: ChannelStatistics) -> np.ndarray:
    """(C,) the largest normalised value of each channel in the data."""
    std = np.where(statistics.std < MIN_STD, 1.0, statistics.std)
    return np.maximum(statistics.max - statistics.mean, statistics.mean - statistics.min) / std


def input_bounds(largest: np.ndarray) -> np.ndarray:
    """(C,) bounds of normalised inputs: twice the data's largest ones, between LEAST and MOST."""
    return np.clip(_MARGIN * largest, LEAST, MOST)


def scale_notes(named: Sequence[tuple[Sequence[str], ChannelStatistics]]) -> list[str]:
    """A line that names the channels which hardly ever change, if there are any.

    `named`: names and statistics of the channels of each field.
    """
    rare: list[str] = []
    for names, statistics in named:
        size = np.maximum(np.abs(statistics.min), np.abs(statistics.max))
        still = (statistics.std >= MIN_STD) & (statistics.std < _STILL * size)
        rare += np.array(names)[still | (largest_inputs(statistics) > MOST)].tolist()
    if not rare:
        return []
    which = f"channel {rare[0]} hardly ever changes" if len(rare) == 1 else ""
    which = which or f"channels {listed(rare, _SHOWN)} hardly ever change"
    limits = f"{LEAST:.0f} to {MOST:.0f} standard deviations"
    return [f"{which}: normalised inputs are bounded at {limits}"]


def return_notes(shares: np.ndarray) -> list[str]:
    """A line if the returns' shares of the expert's are as large as no input should be."""
    largest = float(np.abs(shares).max(initial=0.0))
    if largest <= MOST:
        return []
    return [f"returns reach {largest:,.0f} times the expert's, as the network sees them; "
            "set config.return_scale"]  # fmt: skip
