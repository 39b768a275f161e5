"""Checks of episodes: lengths, copies, seeds, endings, returns, balance, odd ones out, and labels.

Labels conflict where actions are far apart at nearly equal observations of different episodes. All
pairs would be too many. A slab is kept: the steps whose observation lies nearest to a plane. Nearly
equal observations have nearly the same distance to it, so that both of a pair are kept.
"""

from collections.abc import Iterator

import numpy as np

from gaitforge.datasets.data_checks import Severity
from gaitforge.plugins.doctor.data import Arrays, Finding, of_episodes
from gaitforge.plugins.doctor.measures import Measures, flattened, roughness

_LEAST = 8
"""Fewest episodes of a kind, or with a flag, that say what is usual."""

_ROUGHER = 5.0
_IDLER = 0.05
"""Factors of the median. Noise, levels and falls change the roughness by up to 3."""

_BALANCE = 20
_NEAR_ACTIONS = 1e-3
"""Rounding of near copies' actions, as a share of their range."""


def one_step(measures: Measures) -> Iterator[Finding]:
    """Episodes of a single step, which have no transition."""
    rows = measures.rows[measures.columns["length"] == 1]
    yield from of_episodes("one-step", "warning", "episodes of one step", rows, remedy="drop")


def copies(measures: Measures) -> Iterator[Finding]:
    """Episodes with the same values as an earlier one, or with nearly its actions.

    Near copies have equal means of the actions over short stretches, rounded in either of two
    ways, since a value may lie at a rounding's edge. Actions that never change are no sign.
    """
    if not measures.fields or not len(measures.rows):
        return
    keys = np.stack([field["key"] for field in measures.fields.values()], axis=1)
    lengths = measures.columns["length"].astype(np.int64)
    exact = _repeated(np.column_stack([lengths.astype(np.uint64), keys]))
    text = "episodes that equal an earlier one: they count twice, and may be trained and tested on"
    yield from of_episodes("copy", "error", text, measures.rows[exact], remedy="drop")
    if "action" not in measures.fields:
        return
    action = measures.fields["action"]
    spread = action["high"].max() - action["low"].min()
    bins = action["features"] / max(float(_NEAR_ACTIONS * spread), 1e-12)
    near = np.zeros(len(measures.rows), bool)
    for offset in (0.0, 0.5):
        near |= _repeated(np.column_stack([lengths, np.floor(bins + offset).astype(np.int64)]))
    moving = (action["high"] - action["low"]).max(axis=1) > 0.01 * spread
    near &= ~exact & moving & (lengths >= _LEAST)
    text = "episodes with nearly the actions of an earlier one of the same length"
    yield from of_episodes("near-copy", "warning", text, measures.rows[near], remedy="annotate")


def seeds(measures: Measures) -> Iterator[Finding]:
    """Seeds that occur on several sides of a split, or twice in a cell with the same policy."""
    seed = measures.columns.get("seed")
    if seed is None:
        return
    known = seed >= 0
    same = measures.codes(*measures.schema.group_by, "robot")
    pairs = np.column_stack([seed, same])
    if "split" in measures.columns:
        side = measures.codes("split")
        _, of, counts = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
        firsts = np.full(len(counts), -1)
        firsts[of.ravel()[::-1]] = side[::-1]
        crossing = known & (side != firsts[of.ravel()])
        text = "episodes with the seed of one on another side of the split"
        yield from of_episodes(
            "seed-in-both", "error", text, measures.rows[crossing], remedy="drop"
        )
    twice = known & _repeated(np.column_stack([pairs, measures.codes("expert", "expert_hash")]))
    text = "episodes with the seed, cell and policy of an earlier one"
    yield from of_episodes("same-seed", "note", text, measures.rows[twice])


def endings(measures: Measures) -> Iterator[Finding]:
    """Terminal and success flags that contradict lengths or rewards."""
    length = measures.columns["length"]
    columns = measures.columns
    ended = columns["terminated"].astype(bool)
    cut = columns["truncated"].astype(bool)
    late = ended & ~cut & (length == length.max(initial=0))
    if late.sum() >= max(_LEAST, 0.5 * ended.sum()) and not (cut & (length == length.max())).any():
        text = f"terminal at {length.max()} steps, the longest there is: a time limit looks so"
        yield from of_episodes("time-limit-as-terminal", "warning", text, measures.rows[late])
    if len(ended) and not (ended | cut).any():
        text = "no episode is marked as terminated or truncated: returns-to-go are unknown"
        yield Finding("no-ending", "note", text, len(ended), remedy="limitations")
    reward = measures.fields.get("reward")
    if reward is None or reward["low"].shape[1] != 1:
        return
    low = reward["low"].min()
    high = reward["high"].max()
    lows, highs = ((reward[e] == v) * reward[f"at_{e}"] for e, v in (("low", low), ("high", high)))
    if low == high or lows.sum() + highs.sum() != length.sum():
        return  # a dense reward does not show success
    success = columns["success"].astype(bool)
    reached = reward["high"][:, 0] == high
    text = f"success, but the reward is never {high:g}, its other value"
    yield from of_episodes(
        "success-without-reward", "error", text, measures.rows[success & ~reached]
    )
    if success.any():
        text = f"no success, but the reward is {high:g} at some step"
        wrong = ~success & reached
        yield from of_episodes("reward-without-success", "warning", text, measures.rows[wrong])


def returns(measures: Measures) -> Iterator[Finding]:
    """Returns of the catalog that are not the sum of the rewards.

    They may differ by the rounding of a float32 sum of n terms, n units in the last place of the
    sum of their sizes (Higham, Accuracy and Stability of Numerical Algorithms, 2002, 4.2).
    """
    reward = measures.fields.get("reward")
    if reward is None or reward["low"].shape[1] != 1:
        return
    stated = measures.columns["return"]
    total = reward["sum"]
    length = measures.columns["length"]
    largest = np.maximum(np.abs(reward["low"]), np.abs(reward["high"]))[:, 0].astype(np.float64)
    sizes = np.maximum(length * largest, 1e-9)
    wrong = ~(np.abs(stated - total) <= (length + 1) * np.finfo(np.float32).eps * sizes)
    wrong &= ~reward["bad"].any(axis=1)
    if wrong.any():
        at = int(np.argmax(wrong))
        text = f"the return is {stated[at]:.6g}, and the rewards' sum is {total[at]:.6g}"
        yield from of_episodes("return", "error", text, measures.rows[wrong], remedy="drop")


def balance(measures: Measures) -> Iterator[Finding]:
    """Cells with far fewer steps than others; terrains, skills and so on without some noise."""
    cells = measures.codes(*measures.schema.group_by)
    steps = np.bincount(cells, measures.columns["length"])
    by = " and ".join(measures.schema.group_by)
    if steps.max() >= _BALANCE * steps.min():
        rows = measures.rows[steps[cells] == steps.min()]
        text = f"a {by} has {steps.min():,.0f} steps, another one {steps.max():,.0f}"
        yield Finding("unbalanced", "note", text, len(rows), rows)
    if "action_noise" not in measures.columns:
        return
    noise = measures.codes("action_noise")
    levels = np.unique(measures.columns["action_noise"].astype(str))
    if len(levels) == 1:
        text = f"one level of action noise, {levels[0]}: no recoveries beside the others"
        yield Finding("noise-mix", "note", text, len(noise), remedy="limitations")
        return
    lacking = np.zeros(len(noise), bool)
    for name in measures.schema.group_by:  # cells may be too small for every level
        kinds = measures.codes(name)
        table = np.zeros((kinds.max() + 1, len(levels)), int)
        np.add.at(table, (kinds, noise), 1)
        few = (table == 0).any(axis=1) & (table.sum(axis=1) >= _LEAST * len(levels))
        lacking |= few[kinds]
    kind = " or ".join(measures.schema.group_by)
    text = f"episodes of a {kind} that lacks some level of action noise"
    yield from of_episodes("noise-mix", "warning", text, measures.rows[lacking])


def odd_ones(measures: Measures) -> Iterator[Finding]:
    """Episodes whose actions are far rougher or more idle than usual.

    They are compared within a skill or quality, whose cells may be too small to say what is usual.
    """
    if "action" not in measures.fields:
        return
    action = measures.fields["action"]
    spread = np.maximum(action["high"].max(axis=0) - action["low"].min(axis=0), 1e-9)
    rough = roughness(action)
    moves = (action["moves"] / spread).mean(axis=1)
    column = measures.schema.group_by[1]
    long = measures.columns["length"] > 2
    cells = measures.codes(column)
    flags = np.zeros((2, len(measures.rows)), bool)
    for cell in np.unique(cells):
        cell_rows = np.flatnonzero((cells == cell) & long)
        if len(cell_rows) >= _LEAST:
            flags[0, cell_rows] = rough[cell_rows] > _ROUGHER * np.median(rough[cell_rows])
            flags[1, cell_rows] = moves[cell_rows] < _IDLER * np.median(moves[cell_rows])
    text = f"actions are over {_ROUGHER:g} times as rough as usual for the {column}"
    yield from of_episodes("rough", "warning", text, measures.rows[flags[0]])
    text = f"actions move less than {_IDLER:.0%} of what is usual for the {column}"
    yield from of_episodes("idle", "warning", text, measures.rows[flags[1]])


def _repeated(keys: np.ndarray) -> np.ndarray:
    """(E,) whether the row of `keys` (E, K) is that of an earlier episode."""
    again = np.ones(len(keys), bool)
    again[np.unique(keys, axis=0, return_index=True)[1]] = False
    return again


# Conflicting labels.
_KEPT = 1024
"""Steps of a slab."""

_QUANTILES = (0.2, 0.4, 0.6, 0.8)
"""Where the planes lie, along random directions, among the first observations."""

_NEAR_OBSERVATIONS = 0.05
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

    def findings(self, measures: Measures) -> Iterator[Finding]:
        """Findings for each policy in each cell; a note if its actions are abrupt at every step."""
        policy = measures.codes(*measures.schema.group_by, "expert", "expert_hash")
        near, far = np.zeros((2, len(measures.rows)), np.int64)
        involved: list[np.ndarray] = []
        for _, obs, action, episode in self._slabs:
            index = np.searchsorted(measures.rows, episode)
            codes = policy[index]
            close = (
                (_distances(obs) < _NEAR_OBSERVATIONS)
                & (index[:, None] < index)
                & (codes[:, None] == codes)
            )
            first, second = np.nonzero(close)
            apart = _distances(action)[first, second] > _FAR
            near += np.bincount(codes[first], minlength=len(near))
            far += np.bincount(codes[first[apart]], minlength=len(far))
            involved += [index[first[apart]], index[second[apart]]]
        rows = np.unique(np.concatenate([np.zeros(0, np.int64), *involved]))
        sizes = np.maximum(np.bincount(policy, minlength=len(near)), 1)
        white = (
            np.bincount(policy, roughness(measures.fields["action"]), len(near)) / sizes > _WHITE
        )
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
            involved_rows = measures.rows[rows[flags[policy[rows]]]]
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
