"""A policy that drives in place of the recorded one, for stretches drawn from the episode's seed.

DAgger (Ross et al., "A Reduction of Imitation Learning and Structured Prediction to No-Regret
Online Learning", 2011): the learner visits its own states and the expert says what it would do
there. Deviation: the paper draws who drives for every step; here it is drawn for a stretch of
steps (docs/howto/corrections.md says why).
"""

import numpy as np

from gaitforge.collectors.legged.episodes import EpisodeSpec
from gaitforge.collectors.policy import Observation, Policy
from gaitforge.collectors.timing import EPISODE_STEPS

_TURNS = 0xDA66


def driven_steps(seed: int, share: float, stretch: int, steps: int = EPISODE_STEPS) -> np.ndarray:
    """(steps,) whether the policy drives; each stretch of an episode is drawn on its own."""
    turns = np.random.default_rng([_TURNS, seed]).random(-(-steps // stretch)) < share
    return np.repeat(turns, stretch)[:steps]


class Driver:
    """A policy whose actions are executed in place of the recorded ones, by `driven_steps`.

    Args:
        policy: acts for `robots` robots; it sees every step, also those it does not drive.
        share: share of the stretches that it drives; stretch: control steps of each.
    """

    def __init__(self, policy: Policy, robots: int, share: float, stretch: int):
        self._policy = policy
        self._share = share
        self._stretch = stretch
        self._driven = np.zeros((robots, EPISODE_STEPS), dtype=bool)
        self._rows = np.arange(robots)

    def reset(self, ids: np.ndarray, specs: list[EpisodeSpec]) -> None:
        """Robots `ids` start these episodes."""
        self._policy.reset(ids)
        for index, spec in zip(ids.tolist(), specs, strict=True):
            self._driven[index] = driven_steps(spec.seed, self._share, self._stretch)

    def replaced(
        self, action: np.ndarray, observation: Observation, step: np.ndarray
    ) -> np.ndarray:
        """(N, 12) `action`, or the policy's where it drives at the episodes' `step` (N,)."""
        driven = self._driven[self._rows, np.minimum(step, EPISODE_STEPS - 1)]
        return np.where(driven[:, None], self._policy.act(observation), action)
