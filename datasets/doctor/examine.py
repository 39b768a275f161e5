"""The doctor: all checks over a store or a source, in one pass with bounded memory."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from gaitforge.datasets.catalog.listing import episode_name
from gaitforge.datasets.doctor import channels, episodes
from gaitforge.datasets.doctor.data import Arrays, Data, StoreData
from gaitforge.datasets.doctor.finding import Example, Finding, in_order
from gaitforge.datasets.doctor.labels import Labels
from gaitforge.datasets.doctor.measures import (
    Collector,
    Measures,
    flattened,
    runs,
)
from gaitforge.datasets.errors import DatasetError
from gaitforge.datasets.selection.selection import Selection

Check = Callable[[Measures], Iterable[Finding]]
Advance = Callable[[int], object]

CATALOG_CHECKS: tuple[Check, ...] = (
    episodes.one_step,
    episodes.seeds,
    episodes.balance,
)
"""Checks of the catalog, which read no array."""

ARRAY_CHECKS: tuple[Check, ...] = (
    channels.not_finite,
    channels.constant,
    channels.units,
    channels.at_limits,
    channels.frozen,
    channels.jumps,
    episodes.copies,
    episodes.endings,
    episodes.returns,
    episodes.odd_ones,
)
"""Checks of what each episode's channels do."""

QUICK_STEPS = 50_000
"""Steps that `quick_findings` reads: a second."""

_EXAMPLES = 3


def examine(
    data: Data,
    advance: Advance = lambda steps: None,
    checks: Iterable[Check] = (*CATALOG_CHECKS, *ARRAY_CHECKS),
) -> list[Finding]:
    """All findings about the data, errors first, with examples and commands.

    Steps that the data's reader refuses are a finding too; the other ones are examined all the
    same. Memory: two spans (`sources.PART_BYTES`), and about 50 bytes a channel and episode.
    """
    collector, labels, findings = Collector(data), Labels(), list[Finding]()
    with ThreadPoolExecutor(1) as pool:  # reads the next span meanwhile
        ahead = None
        for number, span in enumerate(data.spans):
            loading = ahead or pool.submit(data.load, span)
            following = data.spans[number + 1 : number + 2]
            ahead = pool.submit(data.load, following[0]) if following else None
            try:
                arrays, columns = loading.result()
            except DatasetError as error:
                lost = len(span.lengths)
                findings.append(Finding("unreadable", "error", str(error), lost, remedy="verify"))
            else:
                rows = np.arange(span.first, span.first + len(span.lengths))
                collector.add(rows, span.lengths, arrays, columns)
                _add_labels(labels, arrays, rows.repeat(span.lengths))
            advance(span.n_steps)
    measures = collector.measures()
    if len(measures.rows):
        for check in checks:
            findings += check(measures)
        findings += channels.statistics(measures, data.stated)
        findings += labels.findings(measures)
    return list(_completed(data, measures, in_order(findings)))


def quick_findings(selection: Selection, steps: int = QUICK_STEPS) -> list[Finding]:
    """What the catalog shows, and the arrays of some episodes.

    Args:
        steps: about how many are read; 0 for none.
    """
    if not len(selection):
        return []
    data = StoreData(selection)
    measures = Measures(data.schema, np.arange(len(selection)), data.catalog)
    findings = [each for check in CATALOG_CHECKS for each in check(measures)]
    if steps:
        findings += examine(data.sampled(steps), checks=ARRAY_CHECKS)
    return in_order(findings)


def _add_labels(labels: Labels, arrays: Arrays, episode: np.ndarray) -> None:
    if {"obs", "action"} <= arrays.keys():
        labels.add(flattened(arrays["obs"]), flattened(arrays["action"]), episode)


def _completed(data: Data, m: Measures, findings: Iterable[Finding]) -> Iterator[Finding]:
    """The findings with examples and commands."""
    for each in findings:
        places = np.searchsorted(m.rows, each.rows)
        ids = m.columns["episode"][places].tolist() if len(places) else []
        commands = data.commands(each.remedy, each.name, each.text, ids)
        steps = _steps(data, each)
        named = [
            Example(episode_name(name), step, data.view(name))
            for name, step in zip(ids, steps, strict=False)
        ]
        yield replace(each, examples=tuple(named), commands=tuple(commands))


def _steps(data: Data, finding: Finding) -> list[int]:
    """The step that shows a finding in each of its first episodes; 0 where no channel shows it."""
    rows = finding.rows[:_EXAMPLES].tolist()
    if finding.place is None:
        return [0] * len(rows)
    name, channel = finding.place
    find = _FINDERS[finding.name]
    firsts = [span.first for span in data.spans]
    found = []
    for row in rows:
        span = data.spans[int(np.searchsorted(firsts, row, side="right")) - 1]
        values = flattened(data.load(span)[0][name])
        start = int(span.starts[row - span.first])
        found.append(find(values[start : start + int(span.lengths[row - span.first])], channel))
    return found


def _first(flags: np.ndarray) -> int:
    return int(np.argmax(flags)) if flags.size else 0


def _changes(values: np.ndarray) -> np.ndarray:
    return np.abs(np.diff(values))


_FINDERS: dict[str, Callable[[np.ndarray, int], int]] = {
    "not-finite": lambda values, _: _first(~np.isfinite(values).all(axis=1)),
    "unit": lambda values, k: _first(np.abs(values[:, k])),
    "frozen-sensor": lambda values, k: _first(runs(np.diff(values, axis=0) == 0)[:, k]),
    "jump": lambda values, k: _first(_changes(values[:, k])) + 1,
    "time-jump": lambda values, k: _first(_changes(values[:, k])) + 1,
}
"""Name of a finding -> the step that shows it, of an episode's values (T, C) and a channel."""
