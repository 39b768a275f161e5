"""A paper's statements about learners as data, and whether the runs here tell the same."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any

import numpy as np

HOLDS = "holds here"
FAILS = "does not hold here"
OPEN = "cannot be told"
CHANCE = 0.05
_MOST_SPLITS = 200_000
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Published:
    """A paper's statement that one learner is ahead of another.

    Attributes:
        ahead, behind: learners of the experiment.
        source: paper, and figure or table.
        numbers: the paper's, as text; "" for a figure without any.
        measure: what is compared, the higher the better, such as "success"; "" for the score of an
            experiment on stores, or the return.
    """

    ahead: str
    behind: str
    source: str
    numbers: str = ""
    measure: str = ""


def statements(
    learner: str, others: Mapping[str, str], source: str, measure: str = ""
) -> tuple[Published, ...]:
    """Statements that a learner is ahead of others; their numbers as text."""
    return tuple(Published(learner, name, source, text, measure) for name, text in others.items())


def chance(ahead: Sequence[float], behind: Sequence[float]) -> float:
    """The p-value of a one-sided permutation test of the difference of means; never 0.

    It is the share of all ways to split the runs into groups of these sizes whose difference is at
    least the one seen. Where there are more than 200,000, so many are drawn and the split seen is
    counted with them: a drawn share alone can be 0, which no permutation test gives (Phipson and
    Smyth 2010, "Permutation P-values Should Never Be Zero"). Three runs each that are all apart
    give 0.05. A run without a finite number tells nothing: 1.
    """
    runs = np.array([*ahead, *behind], dtype=float)
    size = len(ahead)
    if not np.isfinite(runs).all():
        return 1.0
    runs /= max(np.abs(runs).max(), 1.0)  # sums stay finite
    # The runs' total is the same in every split, so a higher sum is a higher difference of means.
    least = runs[:size].sum() - 1e-9 * np.abs(runs).sum()
    if comb(len(runs), size) <= _MOST_SPLITS:
        splits = combinations(range(len(runs)), size)  # the one seen is among them
        return float(np.mean([runs[list(split)].sum() >= least for split in splits]))
    rng = np.random.default_rng(0)
    drawn = (rng.permutation(runs)[:size].sum() for _ in range(_MOST_SPLITS))
    hits = sum(float(total) >= least for total in drawn)
    return (1 + hits) / (1 + _MOST_SPLITS)


def verdict(ahead: Sequence[float], behind: Sequence[float]) -> str:
    """Whether runs tell that the first learner is ahead, or behind, with a chance of 5 %."""
    if chance(ahead, behind) <= CHANCE:
        return HOLDS
    return FAILS if chance(behind, ahead) <= CHANCE else OPEN


def verdicts(
    statements: Sequence[Published], runs: Sequence[Row], measure: str, less_is_better: bool = False
) -> Iterator[dict[str, Any]]:
    """A row for each statement whose learners have run, and each value of a number that varies.

    A seed counts with its mean over all sets.

    Args:
        measure: what statements without a measure of their own compare.
        less_is_better: whether the learner with the lower number is ahead.

    Raises:
        ValueError: runs have no such measure.
    """
    for value in dict.fromkeys(row.get("value") for row in runs):
        for statement in statements:
            pair = [
                _by_seed([row for row in runs
                          if (row["learner"], row.get("value")) == (name, value)],
                         statement.measure or measure)
                for name in (statement.ahead, statement.behind)
            ]  # fmt: skip
            if all(pair):
                higher, lower = pair[::-1] if less_is_better else pair
                yield {
                    **{name: getattr(statement, name) for name in ("ahead", "behind")},
                    **{name: getattr(statement, name) for name in ("source", "numbers", "measure")},
                    "value": value,
                    "means": [float(np.mean(values)) for values in pair],
                    "chance": chance(higher, lower),
                    "verdict": verdict(higher, lower),
                }


def _by_seed(runs: Sequence[Row], measure: str) -> list[float]:
    """The mean of each seed's runs."""
    seeds = dict.fromkeys(row["seed"] for row in runs)
    measured = [{**row, **row.get("measures", {})} for row in runs]
    for row in measured:
        if not isinstance(row.get(measure), float | int):
            numbers = [name for name, value in row.items() if isinstance(value, float)]
            raise ValueError(f"runs have no measure '{measure}'; allowed: {', '.join(numbers)}")
    return [float(np.mean([r[measure] for r in measured if r["seed"] == seed])) for seed in seeds]
