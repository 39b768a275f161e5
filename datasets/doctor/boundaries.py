"""What lies at the ends of episodes and within them: how large each step is, beside the usual one.

A step's size is the mean over the moving channels of its change, each in units of the channel's
median change. So it is about 1 for an ordinary step, and large only where many channels jump at
once, as they do when a robot is reset.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from gaitforge.datasets.doctor.channels import COMMAND, POSE, blocks_of
from gaitforge.datasets.doctor.data import Arrays
from gaitforge.datasets.doctor.measures import chunks, flattened
from gaitforge.datasets.schema import Schema

_LARGEST = 30.0
"""Largest change of one channel that counts, in median changes: one channel alone is no reset."""

_SAMPLE_STEPS = 1 << 16
"""Steps of the first span from which the median changes are taken."""

_LARGE = 3.0
_FAR = 2.2
"""A seam is a step of at least this size, and so many times that of its neighbours and of nine
tenths of its episode's steps. Without seams, 671,000 steps of legged robots and ten tasks of
Gymnasium under random actions reach 2.5 and 1.9."""

_CLEAR = 1.2
"""An episode has seams if one of them exceeds the limits by this factor."""

_LEAST_STEPS = 20


@dataclass
class Boundaries:
    """Ends and seams of E episodes, in the order of the data.

    Attributes:
        rows: (E,) their numbers. first, last, final: (E, C) first and last observation, and the
            one after the last step; `final` is None where no episode has it.
        first_jump: (E,) size of the first step over the episode's usual largest step.
        last_jump: (E,) the same of the last step between stored observations.
        final_jump: (E,) the same of the step to `final`; 0 without it.
        entry_jump: (E,) the same of the way from the last observation of the episode before.
        rewards: (E, 3) reward of the first step, and numbers of other rewards that are 0, and all.
        seams: number of an episode -> steps after which a new episode seems to begin.
    """

    rows: np.ndarray
    first: np.ndarray
    last: np.ndarray
    final: np.ndarray | None
    first_jump: np.ndarray
    last_jump: np.ndarray
    final_jump: np.ndarray
    entry_jump: np.ndarray
    rewards: np.ndarray
    seams: dict[int, np.ndarray]


class BoundaryCollector:
    """Collects the `Boundaries` of spans as they are read."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._scales: dict[str, tuple[np.ndarray, np.ndarray]] | None = None
        self._parts: defaultdict[str, list[np.ndarray]] = defaultdict(list)
        self._seams: dict[int, np.ndarray] = {}

    def add(self, rows: np.ndarray, lengths: np.ndarray, arrays: Arrays) -> None:
        """See episodes `rows` of the data, whose steps lie end to end in `arrays`."""
        if self._scales is None:
            self._scales = _scales(self._schema, lengths, arrays)
        if "obs" not in arrays:
            return
        for first, stop, steps in chunks(lengths):
            part = {name: arrays[name][steps] for name in {*self._scales, "obs"}}
            reward = arrays["reward"][steps] if "reward" in arrays else None
            final = arrays["final_obs"][first:stop] if "final_obs" in arrays else None
            self._add(rows[first:stop], lengths[first:stop], part, reward, final)

    def _add(
        self,
        rows: np.ndarray,
        lengths: np.ndarray,
        arrays: Arrays,
        reward: np.ndarray | None,
        final: np.ndarray | None,
    ) -> None:
        assert self._scales is not None
        stops = np.cumsum(lengths)
        starts = stops - lengths
        sizes = _step_sizes(self._scales, arrays, len(arrays["obs"]))
        sizes[stops - 1] = 0
        usual = _upper(sizes, lengths)
        obs = flattened(arrays["obs"])
        scale = self._scales.get("obs")
        new: dict[str, np.ndarray] = {"rows": rows, "first": obs[starts], "last": obs[stops - 1]}
        new |= {"usual": usual, "first_step": sizes[starts]}
        new["last_step"] = sizes[np.maximum(stops - 2, starts)]
        if final is not None:
            new["final"] = flattened(final)
            new["final_step"] = _size(scale, new["final"], new["last"])
        if reward is not None and reward.ndim == 1:
            zeros = np.add.reduceat(reward == 0, starts, dtype=np.int64)
            first_rewards = reward[starts]
            new["rewards"] = np.stack(
                [first_rewards, zeros - (first_rewards == 0), lengths - 1], axis=1
            )
        for name, values in new.items():
            self._parts[name].append(values)
        self._seams |= _seams(rows, lengths, sizes, usual)

    def boundaries(self) -> Boundaries | None:
        """Those of all episodes that were added; None if they have no field `obs`."""
        if not self._parts:
            return None
        joined = {name: np.concatenate(parts) for name, parts in self._parts.items()}
        count = len(joined["rows"])
        usual = np.maximum(joined["usual"], 1e-9)
        entry = np.full(count, np.inf)
        scale = (self._scales or {}).get("obs")
        entry[1:] = _size(scale, joined["first"][1:], joined["last"][:-1]) / usual[1:]
        entry[1:][np.diff(joined["rows"]) != 1] = np.inf
        return Boundaries(
            joined["rows"],
            joined["first"],
            joined["last"],
            joined.get("final"),
            joined["first_step"] / usual,
            joined["last_step"] / usual,
            joined["final_step"] / usual if "final_step" in joined else np.zeros(count),
            entry,
            joined.get("rewards", np.zeros((count, 3))),
            self._seams,
        )


def _scales(
    schema: Schema, lengths: np.ndarray, arrays: Arrays
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Field -> its moving channels, and the inverse of their median change; poses only."""
    scales: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name in [key for key in arrays if POSE.fullmatch(key)]:
        field = schema.field(name)
        if field.per != "step":
            continue
        blocks = blocks_of(field).items()
        told = [channels for block, channels in blocks if COMMAND.fullmatch(block)]
        values = flattened(arrays[name][:_SAMPLE_STEPS])
        with np.errstate(invalid="ignore", over="ignore"):
            change = np.abs(np.diff(values, axis=0))
        inner = np.ones(len(change), bool)
        ends = np.cumsum(lengths)[:-1] - 1
        inner[ends[ends < len(change)]] = False
        change = np.where(np.isfinite(change[inner]), change[inner], 0)
        if not len(change):
            continue
        median = np.median(change, axis=0)
        moving = np.setdiff1d(np.flatnonzero(median > 0), np.concatenate([[], *told]))
        if len(moving):
            scales[name] = moving, (1.0 / median[moving]).astype(np.float32)
    return scales


def _step_sizes(
    scales: dict[str, tuple[np.ndarray, np.ndarray]], arrays: Arrays, steps: int
) -> np.ndarray:
    """(T,) float32 size of the step from each row to the next."""
    total = np.zeros(steps, np.float32)
    channels = 0
    for name, scale in scales.items():
        values = flattened(arrays[name])
        total[:-1] += len(scale[0]) * _size(scale, values[1:], values[:-1])
        channels += len(scale[0])
    return total / max(1, channels)


def _size(
    scale: tuple[np.ndarray, np.ndarray] | None, after: np.ndarray, before: np.ndarray
) -> np.ndarray:
    """(N,) sizes of the changes between rows (N, C); 0 where no channel moves."""
    if scale is None:
        return np.zeros(len(after), np.float32)
    moving, inverse = scale
    if len(moving) < after.shape[1]:
        after = after[:, moving]
        before = before[:, moving]
    with np.errstate(invalid="ignore", over="ignore"):
        change = np.abs(after - before) * inverse
    np.nan_to_num(change, copy=False, nan=0.0)
    return np.minimum(change, _LARGEST).mean(axis=1, dtype=np.float32)


def _upper(sizes: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """(E,) the size that nine tenths of an episode's steps do not exceed."""
    episode = np.arange(len(lengths)).repeat(lengths)
    ordered = sizes[np.lexsort((sizes, episode))]
    starts = np.cumsum(lengths) - lengths
    return ordered[starts + (0.9 * (lengths - 1)).astype(np.int64)]


def _seams(
    rows: np.ndarray, lengths: np.ndarray, sizes: np.ndarray, usual: np.ndarray
) -> dict[int, np.ndarray]:
    """Number of an episode -> steps, counted in it, that begin what seems another episode.

    Pieces are looked at again, as episodes of their own: `dataset cut` leaves none behind.
    """
    stops = np.cumsum(lengths)
    cuts: list[np.ndarray] = []
    pieces = lengths
    inner = sizes.copy()
    new = _seam_rows(pieces, inner, usual)
    while len(new):
        cuts.append(new)
        inner[new] = 0  # it ends a piece
        ends = np.union1d(stops, np.concatenate(cuts) + 1)
        pieces = np.diff(ends, prepend=0)
        new = _seam_rows(pieces, inner, _upper(inner, pieces))
    seams = np.sort(np.concatenate(cuts)) if cuts else np.zeros(0, np.int64)
    episode = np.searchsorted(stops, seams, side="right")
    return {
        int(rows[number]): seams[episode == number] - (stops - lengths)[number] + 1
        for number in np.unique(episode)
    }


def _seam_rows(lengths: np.ndarray, sizes: np.ndarray, usual: np.ndarray) -> np.ndarray:
    """Rows from which the step to the next one is a seam.

    Neither the first nor the last step of an episode counts: see `autoreset.py`.
    """
    limit = np.maximum(_LARGE, _FAR * usual).repeat(lengths)
    candidates = np.flatnonzero(sizes > limit)
    stops = np.cumsum(lengths)
    before = sizes[np.maximum(candidates - 1, 0)]
    after = sizes[np.minimum(candidates + 1, len(sizes) - 1)]
    limit = np.maximum(limit[candidates], _FAR * np.maximum(before, after))
    episode = np.searchsorted(stops, candidates, side="right")
    at = candidates - (stops - lengths)[episode]
    inner = (at > 0) & (at < lengths[episode] - 2) & (lengths[episode] >= _LEAST_STEPS)
    seam = inner & (sizes[candidates] > limit)
    clear = np.unique(episode[seam & (sizes[candidates] > _CLEAR * limit)])
    return candidates[seam & np.isin(episode, clear)]
