"""Conflicting labels: far actions at nearly equal observations of different episodes.

All pairs would be too many. A slab is kept: the steps whose observation lies nearest to a plane.
Nearly equal observations have nearly the same distance to it, so that both of a pair are kept.
"""

from collections.abc import Iterator

import numpy as np

from gaitforge.datasets.doctor.finding import Finding, of_episodes

_KEPT = 1024
"""Steps of a slab."""

_QUANTILES = (0.2, 0.4, 0.6, 0.8)
"""Where the planes lie, along random directions, among the first observations."""

_NEAR, _FAR = 0.05, 1.0
"""Root mean square differences of channels in standard deviations: near observations, and
actions that are as far apart as any two; independent ones are 1.4 apart on average."""

_LEAST_PAIRS = 8


class Labels:
    """Slabs of the steps seen so far."""

    def __init__(self) -> None:
        self._planes: tuple[np.ndarray, ...] = ()
        self._slabs: list[tuple[np.ndarray, ...]] = []

    def add(self, obs: np.ndarray, action: np.ndarray, episode: np.ndarray) -> None:
        """See steps: `obs` (T, C), `action` (T, A), and `episode` (T,), their episodes' numbers."""
        keep = np.isfinite(obs).all(axis=1) & np.isfinite(action).all(axis=1)
        obs, action, episode = obs[keep], action[keep], episode[keep]
        if not len(obs):
            return
        if not self._planes:
            deviations = obs.std(axis=0), action.std(axis=0)
            scale = [np.where(each > 1e-6, each, 1.0) for each in deviations]
            directions = np.random.default_rng(0).normal(size=(obs.shape[1], len(_QUANTILES)))
            planes = (directions / scale[0][:, None]).astype(np.float32)
            at = [np.quantile(obs @ planes[:, k], q) for k, q in enumerate(_QUANTILES)]
            self._planes = planes, np.array(at), *scale
        planes, at, obs_scale, action_scale = self._planes
        distances = np.abs(obs @ planes - at)
        for k in range(len(at)):
            most = self._slabs[k][0].max() if k < len(self._slabs) else np.inf
            new = np.flatnonzero(distances[:, k] < most)
            slab = distances[new, k], obs[new] / obs_scale, action[new] / action_scale, episode[new]
            if k == len(self._slabs):
                self._slabs.append(slab)
            else:
                pairs = zip(self._slabs[k], slab, strict=True)
                slab = tuple(np.concatenate(pair) for pair in pairs)
            if len(slab[0]) > _KEPT:
                best = np.argpartition(slab[0], _KEPT)[:_KEPT]
                slab = tuple(each[best] for each in slab)
            self._slabs[k] = slab

    def findings(self) -> Iterator[Finding]:
        """A note if near observations mostly have far actions, a warning if only some have."""
        near = far = 0
        rows: set[int] = set()
        for _, obs, action, episode in self._slabs:
            apart = episode[:, None] < episode
            close = (_distances(obs) < _NEAR) & apart
            conflict = close & (_distances(action) > _FAR)
            near, far = near + int(close.sum()), far + int(conflict.sum())
            rows |= set(episode[np.nonzero(conflict)[0]].tolist())
            rows |= set(episode[np.nonzero(conflict)[1]].tolist())
        if far < _LEAST_PAIRS:
            return
        noisy = far > near / 2
        text = f"{far:,} of {near:,} sampled pairs of nearly equal observations have far actions"
        text += ": the policy is random, or sees more than is stored" if noisy else ""
        severity = "note" if noisy else "warning"
        yield from of_episodes("conflicting-labels", severity, text, np.array(sorted(rows)))


def _distances(values: np.ndarray) -> np.ndarray:
    """(N, N) root mean square differences of rows (N, C)."""
    values = values.astype(np.float64) - values.mean(axis=0)
    squares = np.square(values).sum(axis=1)
    squared = squares[:, None] + squares - 2 * values @ values.T
    return np.sqrt(np.maximum(squared, 0.0) / values.shape[1])
