"""Conflicting labels: far actions at nearly equal observations of different episodes.

All pairs would be too many. A slab is kept: the steps whose observation lies nearest to a plane.
Nearly equal observations have nearly the same distance to it, so that both of a pair are kept.
"""

from collections.abc import Iterator

import numpy as np

from gaitforge.datasets.doctor.data import Arrays
from gaitforge.datasets.doctor.finding import Finding, Severity, of_episodes
from gaitforge.datasets.doctor.measures import Measures, flattened, roughness

_KEPT = 1024
"""Steps of a slab."""

_QUANTILES = (0.2, 0.4, 0.6, 0.8)
"""Where the planes lie, along random directions, among the first observations."""

_NEAR = 0.05
_FAR = 1.0
"""Root mean square differences of channels in standard deviations: near observations, and
actions that are as far apart as any two; independent ones are 1.4 apart on average."""

_LEAST_PAIRS = 8
_CONSTANT = 1e-3
"""Deviation over size below which a channel is no part of how near observations are."""

_WHITE = 0.35
"""Roughness of actions that are drawn anew in each step: 0.7 if they are uniform, and about 0.4 if
they are normal and the range is six deviations; that of motions is below 0.1."""


class LabelSlabs:
    """Slabs of the steps seen so far."""

    def __init__(self) -> None:
        self._planes: tuple[np.ndarray, ...] = ()
        self._slabs: list[tuple[np.ndarray, ...]] = []

    def add(self, rows: np.ndarray, lengths: np.ndarray, arrays: Arrays) -> None:
        """See episodes `rows` of the data, whose steps lie end to end in `arrays`."""
        if {"obs", "action"} <= arrays.keys():
            obs = flattened(arrays["obs"])
            action = flattened(arrays["action"])
            self._add(obs, action, rows.repeat(lengths))

    def _add(self, obs: np.ndarray, action: np.ndarray, episode: np.ndarray) -> None:
        keep = np.isfinite(obs).all(axis=1) & np.isfinite(action).all(axis=1)
        if not keep.all():
            obs = obs[keep]
            action = action[keep]
            episode = episode[keep]
        if not len(obs):
            return
        if not self._planes:
            scale = [_deviations(values) for values in (obs, action)]
            directions = np.random.default_rng(0).normal(size=(obs.shape[1], len(_QUANTILES)))
            planes = (directions / scale[0][:, None]).astype(np.float32)
            at = [np.quantile(obs @ planes[:, k], q) for k, q in enumerate(_QUANTILES)]
            self._planes = planes, np.array(at), *scale
        planes, at, obs_scale, action_scale = self._planes
        distances = np.abs(obs @ planes - at)
        for k in range(len(at)):
            new = _least(distances[:, k])
            slab = distances[new, k], obs[new] / obs_scale, action[new] / action_scale, episode[new]
            if k == len(self._slabs):
                self._slabs.append(slab)
                continue
            both = [np.concatenate(pair) for pair in zip(self._slabs[k], slab, strict=True)]
            best = _least(both[0])
            self._slabs[k] = tuple(values[best] for values in both)

    def findings(self, m: Measures) -> Iterator[Finding]:
        """Findings for each policy in each cell; a note if its actions are abrupt at every step."""
        policy = m.codes(*m.schema.group_by, "expert", "expert_hash")
        near, far = np.zeros((2, len(m.rows)), np.int64)
        involved: list[np.ndarray] = []
        for _, obs, action, episode in self._slabs:
            index = np.searchsorted(m.rows, episode)
            codes = policy[index]
            close = (_distances(obs) < _NEAR) & (index[:, None] < index) & (codes[:, None] == codes)
            first, second = np.nonzero(close)
            apart = _distances(action)[first, second] > _FAR
            near += np.bincount(codes[first], minlength=len(near))
            far += np.bincount(codes[first[apart]], minlength=len(far))
            involved += [index[first[apart]], index[second[apart]]]
        rows = np.unique(np.concatenate([np.zeros(0, np.int64), *involved]))
        sizes = np.maximum(np.bincount(policy, minlength=len(near)), 1)
        white = np.bincount(policy, roughness(m.fields["action"]), len(near)) / sizes > _WHITE
        kinds: tuple[tuple[Severity, np.ndarray, str], ...] = (
            ("warning", ~white, "annotate"),
            ("note", white, "limitations"),
        )
        for severity, kind, remedy in kinds:
            flags = (far >= _LEAST_PAIRS) & kind
            text = f"{far[flags].sum():,} of {near[flags].sum():,} sampled pairs of nearly equal "
            text += "observations have far actions"
            text += (
                ", of a policy that changes its actions abruptly anyway"
                if severity == "note"
                else ""
            )
            involved_rows = m.rows[rows[flags[policy[rows]]]]
            yield from of_episodes(
                "conflicting-labels", severity, text, involved_rows, remedy=remedy
            )


def _deviations(values: np.ndarray) -> np.ndarray:
    """(C,) standard deviations of (T, C); of nearly constant channels their size, or 1."""
    deviations = values.std(axis=0)
    size = np.abs(values).max(axis=0)
    return np.where(deviations > _CONSTANT * size, deviations, np.maximum(size, 1.0))


def _least(values: np.ndarray) -> np.ndarray:
    """Indices of the `_KEPT` least values."""
    return np.argpartition(values, _KEPT)[:_KEPT] if len(values) > _KEPT else np.arange(len(values))


def _distances(values: np.ndarray) -> np.ndarray:
    """(N, N) root mean square differences of rows (N, C)."""
    values = values.astype(np.float64) - values.mean(axis=0)
    squares = np.square(values).sum(axis=1)
    squared = squares[:, None] + squares - 2 * values @ values.T
    return np.sqrt(np.maximum(squared, 0.0) / values.shape[1])
