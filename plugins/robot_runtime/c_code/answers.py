"""Known answers of a policy: observations that C makes again bit for bit, and its actions."""

from dataclasses import dataclass

import numpy as np

from gaitforge.learners.control.control import LearnedPolicy
from gaitforge.learners.policy_network import PolicyNetwork

_STORED = 12
_MORE_STEPS = 16
"""Steps of the episode beyond the policy's memory."""


@dataclass(frozen=True)
class Answers:
    """The actions of some steps of an episode.

    steps: (K,), the last one is the episode's last; actions: (K, A) float32.
    """

    steps: np.ndarray
    actions: np.ndarray


@dataclass(frozen=True)
class _Seen:
    """A step of one robot: policy (1, D) and reward (1,)."""

    policy: np.ndarray
    reward: np.ndarray


def known_answers(
    policy: PolicyNetwork,
    observations: np.ndarray,
    reward: float,
    action_limit: float,
) -> Answers:
    """The product's own actions at observations (T, D)."""
    learned = LearnedPolicy(policy, 1, action_limit=action_limit)
    learned.reset(np.arange(1))
    rewards = np.full(1, reward, np.float32)
    actions = np.concatenate([learned.act(_Seen(row[None], rewards)) for row in observations])
    if not np.isfinite(actions).all():
        raise ValueError("the policy's actions are not finite for usual observations")
    last = len(observations) - 1
    steps = np.unique(np.linspace(0, last, min(_STORED, last + 1)).round().astype(np.int64))
    return Answers(steps, actions[steps])


def episode_steps(reach: int) -> int:
    """Steps of the known answers' episode, for a policy that sees `reach` steps back."""
    return reach + 1 + _MORE_STEPS


def known_observations(
    steps: int,
    width: int,
    source: np.ndarray,
    mean: np.ndarray,
    std: np.ndarray,
    signs: np.ndarray | None,
) -> np.ndarray:
    """(T, D) float32 observations around the training data's mean, as `source/check.c` makes them.

    Args:
        source, mean, std: as in `StepProgram.source` and its first two parts.
        signs: factors (Do,) of the observation's numbers; None for none.
    """
    numbers = normalised_numbers(steps * width).reshape(steps, width)
    observed = numbers.copy()
    for token, place in enumerate(source.tolist()):
        if 0 <= place < width:
            observed[:, place] = mean[token] + std[token] * numbers[:, place]
            if signs is not None:
                observed[:, place] *= signs[place]
    return observed


def normalised_numbers(count: int) -> np.ndarray:
    """(count,) float32: sums of four uniform numbers, one in 64 four times as large.

    All are multiples of 2^-15; `test_number` of `source/check.c` gives the same.
    """
    index = 3 * np.arange(count, dtype=np.uint32)
    a = _scattered(index)
    b = _scattered(index + np.uint32(1))
    halves = (a >> 16, a & 0xFFFF, b >> 16, b & 0xFFFF)
    total = sum(half.astype(np.int64) for half in halves) - 2 * 0xFFFF
    large = _scattered(index + np.uint32(2)) >> 26 == 0
    return (np.where(large, 4 * total, total) / 2**15).astype(np.float32)


def _scattered(index: np.ndarray) -> np.ndarray:
    """(count,) 32 bits that look random: the last mixing steps of MurmurHash3 (Appleby 2011)."""
    bits = index * np.uint32(0x9E3779B9) + np.uint32(0x7F4A7C15)
    bits = (bits ^ bits >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    bits = (bits ^ bits >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return bits ^ bits >> np.uint32(16)
