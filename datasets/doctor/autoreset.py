"""Checks of what resets leave in recordings: joined episodes, and rows of vector environments.

Gymnasium's vector environments reset by themselves, in one of two ways that recordings show. In
next-step mode (the default since 1.0) the step after an end ignores its action and gives the next
episode's first observation: recorded, it is a first row with the episode before's final
observation. In same-step mode the observation that a step returns at an end is the next episode's
first already. https://farama.org/Vector-Autoreset-Mode
"""

from collections.abc import Iterator

import numpy as np

from gaitforge.common.errors import amount, listed
from gaitforge.datasets.catalog.listing import episode_name
from gaitforge.datasets.doctor.boundaries import Boundaries
from gaitforge.datasets.doctor.finding import Finding, of_episodes
from gaitforge.datasets.doctor.measures import Measures

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


def joined_episodes(m: Measures, b: Boundaries) -> Iterator[Finding]:
    """Episodes within which a new one seems to begin."""
    if not b.seams:
        return
    rows = np.array(sorted(b.seams), np.int64)
    ids = m.columns["episode"][np.searchsorted(m.rows, rows)].tolist()
    names = [episode_name(episode) for episode in ids]
    steps = [b.seams[row].tolist() for row in rows.tolist()]
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
        more={"seams": dict(zip(names, steps, strict=True))},
        remedy="cut",
    )


def _listed(steps: list[int]) -> str:
    shown = listed(steps[:_SHOWN_SEAMS])
    return f"{shown} and {len(steps) - _SHOWN_SEAMS} more" if len(steps) > _SHOWN_SEAMS else shown


def ignored_actions(m: Measures, b: Boundaries) -> Iterator[Finding]:
    """First rows that only carried out a reset (next-step autoreset)."""
    jumps = b.first_jump > _JUMP
    unpaid = _unpaid(b)
    text = "the first row is the reset of the episode before: its action was ignored, its reward 0"
    by = "next-step autoreset of a vector environment"
    if b.final is not None:
        equal, single = _equal_to_others(b.first, b.final)
        shown = equal & (jumps | (unpaid & single))
        if _enough(shown, _LEAST, _SHARE) and shown.sum() > 0.5 * equal.sum():
            text = f"{text}; it starts with another episode's final_obs ({by})"
            rows = b.rows[equal & _can_be_trimmed(m)]
            yield from of_episodes("ignored-action", "error", text, rows, remedy="trim head")
            return
    # As a rule an episode is entered by a reset, and its first step is an ordinary one.
    reversed_sizes = bool(np.median(b.first_jump) > np.median(b.entry_jump))
    guessed = (jumps & (b.entry_jump < _ORDINARY)) | (unpaid & (jumps | reversed_sizes))
    if _enough(guessed, _LEAST_GUESSED, _MOST):
        text = f"{text}, as it seems: the first step jumps far above the others ({by})"
        rows = b.rows[guessed & _can_be_trimmed(m)]
        yield from of_episodes("ignored-action", "warning", text, rows, remedy="trim head")


def final_observations(m: Measures, b: Boundaries) -> Iterator[Finding]:
    """Observations after the last step that are another episode's first (same-step autoreset)."""
    if b.final is None:
        return
    jumps = b.final_jump > _JUMP
    equal, _ = _equal_to_others(b.final, b.first)
    by = "same-step autoreset of a vector environment"
    lost = "the true one is lost; a trim takes the last step off"
    clear = (equal & jumps).sum() > 0.5 * equal.sum()
    if _enough(equal, _LEAST, _SHARE) and (clear or _larger_than_before(equal, b)):
        text = f"final_obs is the next episode's first observation ({by}): {lost}"
        rows = b.rows[equal & _can_be_trimmed(m)]
        yield from of_episodes("final-observation", "error", text, rows, remedy="trim tail")
    elif _enough(jumps, _LEAST_GUESSED, _MOST):
        text = (
            f"final_obs is far from the observation before it: it may be the next episode's first "
            f"({by}); then {lost}"
        )
        rows = b.rows[jumps & _can_be_trimmed(m)]
        yield from of_episodes("final-observation", "warning", text, rows, remedy="trim tail")


def _can_be_trimmed(m: Measures) -> np.ndarray:
    """(E,) episodes of several steps; `one_step` names the others, to drop."""
    return m.columns["length"] > 1


def _larger_than_before(flags: np.ndarray, b: Boundaries) -> bool:
    """Whether the steps to `final` are, as a rule, larger than the steps before them.

    They are not where one long recording was cut into pieces, whose ends and starts meet as well.
    """
    if flags.sum() < _LEAST_COMPARED:
        return False
    ratio = b.final_jump[flags] / np.maximum(b.last_jump[flags], 1e-9)
    return bool(np.median(ratio) > _LARGER and (ratio > 1).mean() > _MOSTLY)


def _unpaid(b: Boundaries) -> np.ndarray:
    """(E,) whether the first reward is 0, where other rewards seldom are."""
    first, zeros, counts = b.rewards.T
    if zeros.sum() > _ZEROS * counts.sum() or not counts.sum():
        return np.zeros(len(b.rows), bool)
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
