"""The labels of a conditioned policy in training: how good the episode of a step is.

In all of them 1.0 stands for the expert. Legend: G an episode's return, R_t the rewards from step
t to its end, H the steps of the longest selected episode, N(x) = (x - zero) / (expert - zero) with
the returns that count as 0 and 1.

- return_to_go: N(R_t), as in Decision Transformer (Chen et al. 2021) and the FCNet paper.
- return: N(G), the same at all steps of an episode.
- rate: N(R_t H / (H - t)), the mean reward of the steps that are left, times H.
- share: (G - zero) / (E - zero), where E is the mean return in the episode's cell (terrain, skill
  and level) of the policy that is the best in all cells together, least disturbed.
- driver: the mean share of the least disturbed episodes of the policy whose actions are stored:
  with its least noise, and driven by no other policy. It has no luck in it, and suits learners of
  those actions, which are chosen as if undisturbed.
- advantage: the rank, 0 to 1 in `ADVANTAGE_BINS` bins, of rate minus the rate that a linear
  function of the observation expects.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from gaitforge.datasets import Selection
from gaitforge.learners.policy.conditioning import RETURN_TO_GO
from gaitforge.learners.policy.policy_network import PolicyNetwork

CELL = ("terrain", "skill", "level", "robot")
DRIVER = ("expert", "expert_hash", "quality")
DISTURBANCE = ("action_noise", "policy_share")
"""Columns that name an episode's cell, the policy whose actions are stored, and what disturbed it
(noise, another policy that drove), where a store has them."""
LABEL_COLUMNS = (*CELL, *DRIVER, *DISTURBANCE)
"""All columns that labels are made of, beside the return."""
ADVANTAGE_BINS = 10
_PER_STEP = (RETURN_TO_GO, "rate", "advantage")
_SAMPLED_STEPS = 100_000
_SALT = {"labels": 1, "action": 2, "history": 3}


class Labels:
    """The labels of a selection's batches.

    Args:
        policy: its condition says which labels, its returns those that count as 0 and 1.
        selection: the episodes, whose rows the batches name.
        prefix_len: of the stream of the batches.
        others: further episodes over which means are taken, such as those of the training.
    """

    def __init__(
        self,
        policy: PolicyNetwork,
        selection: Selection,
        prefix_len: int,
        others: Selection | None = None,
    ) -> None:
        self._condition, self._share = policy.condition, policy.share
        self._prefix_len = prefix_len
        both = [selection] if others is None else [selection, others]
        self._horizon = int(max(each.lengths.max() for each in both))
        tables = pa.concat_tables([each.episodes() for each in both])
        labels = _episode_labels(policy, tables)
        self._episodes = {name: values[: len(selection)] for name, values in labels.items()}
        self._value = None
        if "advantage" in self._condition.labels:
            self._value = _ExpectedRate(self, others or selection)

    def of_batch(self, batch: Mapping[str, Tensor], shown: Tensor | None = None) -> Tensor:
        """The condition (B, T, C) of a batch of windows.

        Args:
            shown: (B,) bool, windows whose labels are not hidden; None for all.
        """
        labels = self._condition.labels
        condition = np.empty((*batch["obs"].shape[:2], self._condition.width), np.float32)
        for index, name in enumerate(labels):
            condition[..., index] = self._column(name, batch)
        if self._condition.hides:
            condition[..., -1] = 1.0
            if shown is not None:
                condition[~shown.numpy()] = 0.0
        return torch.from_numpy(condition * np.float32(self._condition.scale))

    def _column(self, name: str, batch: Mapping[str, Tensor]) -> np.ndarray:
        """(B, T) of a label, or (B, 1) of one that is the same at all steps."""
        if name in self._episodes:
            return self._episodes[name][batch["episode"].numpy()][:, None]
        if name == RETURN_TO_GO:
            return self._share(batch[RETURN_TO_GO].numpy())
        rate = self.rates(batch, self._prefix_len)
        if name == "rate":
            return rate
        assert self._value is not None, "advantage is a label"
        return self._value.rank(batch["obs"].numpy(), rate)

    def rates(self, batch: Mapping[str, Tensor], prefix_len: int) -> np.ndarray:
        """(B, T) of the label "rate", for a batch of a stream with this `prefix_len`."""
        remaining, offset = batch[RETURN_TO_GO].numpy(), batch["offset"].numpy()
        first = offset - np.minimum(offset, prefix_len)
        steps = self._horizon - (first[:, None] + np.arange(remaining.shape[1]))
        return self._share(remaining * (self._horizon / np.maximum(steps, 1)))


class _ExpectedRate:
    """Ridge regression of the rate on the observation, and the quantiles of what exceeds it."""

    def __init__(self, labels: Labels, selection: Selection) -> None:
        obs, rates = [], []
        stream = selection.windows(
            window_len=1, batch_size=4096, fields=("obs",), return_to_go=True
        )
        for batch in stream:
            obs.append(batch["obs"][:, 0].numpy().astype(np.float64))
            rates.append(labels.rates(batch, prefix_len=0)[:, 0])
            if sum(map(len, obs)) >= _SAMPLED_STEPS:
                break
        stream.close()
        x, y = np.concatenate(obs), np.concatenate(rates)
        self._mean, self._std = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-6)
        features = self._features(x)
        squares = features.T @ features + 1e-3 * len(x) * np.eye(features.shape[1])
        self._weights = np.linalg.solve(squares, features.T @ y)
        levels = np.arange(1, ADVANTAGE_BINS) / ADVANTAGE_BINS
        self._edges = np.quantile(y - features @ self._weights, levels)

    def _features(self, obs: np.ndarray) -> np.ndarray:
        normalised = (obs - self._mean) / self._std
        return np.concatenate([normalised, np.ones((*obs.shape[:-1], 1))], axis=-1)

    def rank(self, obs: np.ndarray, rates: np.ndarray) -> np.ndarray:
        """(B, T) ranks 0 to 1 of steps with obs (B, T, D) and rates (B, T)."""
        advantage = rates - self._features(obs) @ self._weights
        return np.searchsorted(self._edges, advantage) / (ADVANTAGE_BINS - 1)


def _episode_labels(policy: PolicyNetwork, table: pa.Table) -> dict[str, np.ndarray]:
    """(E,) labels that are the same at all steps of an episode, from the episodes' catalog."""
    names = [name for name in policy.condition.labels if name not in _PER_STEP]
    if not names:
        return {}
    total = table.column("return").to_numpy()
    labels = {"return": policy.share(total)}
    if {"share", "driver"} & set(names):
        zero, expert = policy.return_at(0.0), policy.return_at(1.0)
        labels["driver"], labels["share"] = driver_and_share(table, total, zero, expert)
    return {name: labels[name] for name in names}


def driver_and_share(
    table: pa.Table, total: np.ndarray, zero: float, expert: float
) -> tuple[np.ndarray, np.ndarray]:
    """The labels "driver" and "share" (E,) of episodes with a catalog and returns `total` (E,)."""
    cell, driver = _codes(table, CELL), _codes(table, DRIVER)
    disturbance = np.zeros(len(total))
    for name in DISTURBANCE:
        if name in table.column_names:
            disturbance += table.column(name).fill_null(0.0).to_numpy()
    least = np.full(driver.max() + 1, np.inf)
    np.minimum.at(least, driver, disturbance)
    clean = disturbance == least[driver]
    best = clean & (driver == _means(driver[clean], total[clean], len(least)).argmax())
    reference = _means(cell[best], total[best], cell.max() + 1)[cell]
    # A cell in which the best policy did not act, or is no better than 0, has no share of its own.
    reference = np.where(reference > zero, reference, expert)
    share = (total - zero) / (reference - zero)
    mean_share = _means(driver[clean], share[clean], len(least))
    return mean_share[driver].astype(np.float32), share.astype(np.float32)


def _means(group: np.ndarray, values: np.ndarray, groups: int) -> np.ndarray:
    """(groups,) means of the values of each group; -inf for an empty one."""
    counts = np.bincount(group, minlength=groups)
    sums = np.bincount(group, values, groups)
    return np.where(counts > 0, sums / np.maximum(counts, 1), -np.inf)


def _codes(table: pa.Table, columns: tuple[str, ...]) -> np.ndarray:
    """(E,) the number of each episode's combination of values in those columns that there are."""
    codes = np.zeros(len(table), np.int64)
    for name in columns:
        if name in table.column_names:
            values = table.column(name).combine_chunks().dictionary_encode("encode")
            indices = values.indices.to_numpy()
            codes = np.unique(codes * (indices.max() + 1) + indices, return_inverse=True)[1]
    return codes


def shown_windows(
    kind: str, hidden: float, batch: Mapping[str, Tensor], seed: int, epoch: int
) -> Tensor:
    """(B,) windows in which something is shown, a function of seed, epoch and window alone.

    Args:
        kind: what may be hidden, a key of `_SALT`; hidden: the share of windows in which it is.
    """
    words = (seed, epoch, _SALT[kind])
    mixed = np.uint64(np.random.SeedSequence(words).generate_state(1, np.uint64)[0])
    for each in (batch["episode"], batch["offset"]):
        mixed = _mix(mixed ^ _mix(each.numpy().astype(np.uint64)))
    uniform = (mixed >> np.uint64(11)) * 2.0**-53
    return torch.from_numpy(uniform >= hidden)


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64, one step from state x.

    Steele et al. 2014, "Fast Splittable Pseudorandom Number Generators".
    """
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
