"""Sizes of steps at the ends of episodes and within them, and checks of what resets leave.

The sizes tell how large each step is, beside the usual one. A step's size is the mean over the
moving channels of its change, each in units of the channel's median change. So it is about 1 for an
ordinary step, and large only where many channels jump at once, as they do when a robot is reset.

Resets leave joined episodes in recordings, and rows of vector environments. Gymnasium's vector
environments reset by themselves, in one of two ways that recordings show. In next-step mode (the
default since 1.0) the step after an end ignores its action and gives the next episode's first
observation: recorded, it is a first row with the episode before's final observation. In same-step
mode the observation that a step returns at an end is the next episode's first already.
https://farama.org/Vector-Autoreset-Mode
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gaitforge.common.errors import amount, listed
from gaitforge.datasets.catalog.summaries import episode_name
from gaitforge.datasets.schema import Schema
from gaitforge.plugins.doctor.channels import COMMAND, POSE, blocks_of
from gaitforge.plugins.doctor.data import Arrays, Finding, of_episodes
from gaitforge.plugins.doctor.measures import Measures, chunks, flattened

# Sizes of steps.
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

    Neither the first nor the last step of an episode counts: see the head of this file.
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


# Checks of what resets leave.
_JUMP = 3.0
"""A reset's size over the largest usual step of an episode."""

_ORDINARY = 1.5
"""The same of a way from an episode to the next that is no reset."""

_LEAST = 2
_LEAST_GUESSED = 5
"""Fewest episodes that show a fault, by equal observations, and by the sizes of steps alone."""

_LEAST_COMPARED = 8
_LARGER = 1.4
_MOSTLY = 0.7
"""Fewest episodes whose last steps are compared with the ones before, the least median factor
between the two, and the least share in which it exceeds 1."""

_ZEROS = 0.3
"""Share of rewards that are 0 above which a first reward of 0 says nothing."""

_SHARE = 0.2
_MOST = 0.6
"""The least share of all episodes: by equal observations, and by sizes alone."""

_SHOWN = 3
_SHOWN_SEAMS = 4


def joined_episodes(measures: Measures, ends: Boundaries) -> Iterator[Finding]:
    """Episodes within which a new one seems to begin."""
    if not ends.seams:
        return
    rows = np.array(sorted(ends.seams), np.int64)
    ids = measures.ids(rows).tolist()
    names = [episode_name(episode) for episode in ids]
    steps = [ends.seams[row].tolist() for row in rows.tolist()]
    told = [f"{name} at step {_listed(seams)}" for name, seams in zip(names, steps, strict=True)]
    count = sum(map(len, steps))
    surplus = len(told) - _SHOWN
    suffix = f" and {amount(surplus, 'episode')} more" if surplus > 0 else ""
    text = (
        f"{amount(count, 'jump')} of most channels at once, far above the episode's own steps: "
        f"several episodes saved as one, or steps missing; {'; '.join(told[:_SHOWN])}{suffix}"
    )
    yield Finding(
        "joined-episodes",
        "warning",
        text,
        len(rows),
        rows,
        steps=np.array([seams[0] for seams in steps]),
        details={"seams": dict(zip(names, steps, strict=True))},
        remedy="cut",
    )


def _listed(steps: list[int]) -> str:
    shown = listed(steps[:_SHOWN_SEAMS])
    return f"{shown} and {len(steps) - _SHOWN_SEAMS} more" if len(steps) > _SHOWN_SEAMS else shown


def ignored_actions(measures: Measures, ends: Boundaries) -> Iterator[Finding]:
    """First rows that only carried out a reset (next-step autoreset)."""
    jumps = ends.first_jump > _JUMP
    unpaid = _unpaid(ends)
    text = "the first row is the reset of the episode before: its action was ignored, its reward 0"
    by = "next-step autoreset of a vector environment"
    if ends.final is not None:
        equal, single = _equal_to_others(ends.first, ends.final)
        shown = equal & (jumps | (unpaid & single))
        if _enough(shown, _LEAST, _SHARE) and shown.sum() > 0.5 * equal.sum():
            text = f"{text}; it starts with another episode's final_obs ({by})"
            rows = ends.rows[equal & _can_be_trimmed(measures)]
            yield from of_episodes("ignored-action", "error", text, rows, remedy="trim head")
            return
    # As a rule an episode is entered by a reset, and its first step is an ordinary one.
    reversed_sizes = bool(np.median(ends.first_jump) > np.median(ends.entry_jump))
    guessed = (jumps & (ends.entry_jump < _ORDINARY)) | (unpaid & (jumps | reversed_sizes))
    if _enough(guessed, _LEAST_GUESSED, _MOST):
        text = f"{text}, as it seems: the first step jumps far above the others ({by})"
        rows = ends.rows[guessed & _can_be_trimmed(measures)]
        yield from of_episodes("ignored-action", "warning", text, rows, remedy="trim head")


def final_observations(measures: Measures, ends: Boundaries) -> Iterator[Finding]:
    """Observations after the last step that are another episode's first (same-step autoreset)."""
    if ends.final is None:
        return
    jumps = ends.final_jump > _JUMP
    equal, _ = _equal_to_others(ends.final, ends.first)
    by = "same-step autoreset of a vector environment"
    lost = "the true one is lost; a trim takes the last step off"
    clear = (equal & jumps).sum() > 0.5 * equal.sum()
    if _enough(equal, _LEAST, _SHARE) and (clear or _larger_than_before(equal, ends)):
        text = f"final_obs is the next episode's first observation ({by}): {lost}"
        rows = ends.rows[equal & _can_be_trimmed(measures)]
        yield from of_episodes("final-observation", "error", text, rows, remedy="trim tail")
    elif _enough(jumps, _LEAST_GUESSED, _MOST):
        text = (
            f"final_obs is far from the observation before it: it may be the next episode's first "
            f"({by}); then {lost}"
        )
        rows = ends.rows[jumps & _can_be_trimmed(measures)]
        yield from of_episodes("final-observation", "warning", text, rows, remedy="trim tail")


def _can_be_trimmed(measures: Measures) -> np.ndarray:
    """(E,) episodes of several steps; `one_step` names the others, to drop."""
    return measures.columns["length"] > 1


def _larger_than_before(flags: np.ndarray, ends: Boundaries) -> bool:
    """Whether the steps to `final` are, as a rule, larger than the steps before them.

    They are not where one long recording was cut into pieces, whose ends and starts meet as well.
    """
    if flags.sum() < _LEAST_COMPARED:
        return False
    ratio = ends.final_jump[flags] / np.maximum(ends.last_jump[flags], 1e-9)
    return bool(np.median(ratio) > _LARGER and (ratio > 1).mean() > _MOSTLY)


def _unpaid(ends: Boundaries) -> np.ndarray:
    """(E,) whether the first reward is 0, where other rewards seldom are."""
    first, zeros, counts = ends.rewards.T
    if zeros.sum() > _ZEROS * counts.sum() or not counts.sum():
        return np.zeros(len(ends.rows), bool)
    return first == 0


def _enough(flags: np.ndarray, least: int, share: float) -> bool:
    """Whether so many episodes show it; the first ones of each environment need not."""
    return bool(flags.sum() >= max(least, share * len(flags)))


def _equal_to_others(values: np.ndarray, references: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(E,) whether a row of `values` (E, C) is that of another episode in `references`.

    Also whether the row occurs once in each, as observations of many digits do.
    """
    ours = _keys(values)
    theirs = _keys(references)
    rows_of: dict[bytes, list[int]] = {}
    for row, key in enumerate(theirs):
        rows_of.setdefault(key, []).append(row)
    count: dict[bytes, int] = {}
    for key in ours:
        count[key] = count.get(key, 0) + 1
    equal = np.zeros(len(ours), bool)
    single = np.zeros(len(ours), bool)
    for row, key in enumerate(ours):
        matches = rows_of.get(key, [])
        equal[row] = any(match != row for match in matches[:2])
        single[row] = len(matches) == 1 and count[key] == 1
    return equal, single


def _keys(values: np.ndarray) -> list[bytes]:
    """The bytes of each row; 0.0 turns -0.0, an equal number with other bytes, into 0.0."""
    rows = np.ascontiguousarray(values + 0.0)
    return [row.tobytes() for row in rows]
