"""The doctor: all checks over a store or a source, in one pass with bounded memory."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from gaitforge.common.errors import DatasetError
from gaitforge.datasets.catalog.summaries import episode_name
from gaitforge.datasets.data_checks import SAMPLE_STEPS, DataCheck
from gaitforge.datasets.selection import EpisodeSelection
from gaitforge.plugins.doctor import boundaries, channels, episodes
from gaitforge.plugins.doctor.boundaries import Boundaries, BoundaryCollector
from gaitforge.plugins.doctor.channels import nearly_constant
from gaitforge.plugins.doctor.data import (
    FINAL,
    Data,
    Example,
    Finding,
    catalog_columns,
    in_order,
    store_data,
)
from gaitforge.plugins.doctor.episodes import LabelSlabs
from gaitforge.plugins.doctor.measures import Collector, Measures, flattened, runs
from gaitforge.plugins.doctor.quaternions import QuaternionCollector

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
    nearly_constant,
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

BOUNDARY_CHECKS: tuple[Callable[[Measures, Boundaries], Iterable[Finding]], ...] = (
    boundaries.joined_episodes,
    boundaries.ignored_actions,
    boundaries.final_observations,
)
"""Checks of what lies at the ends of episodes and within them."""

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
    collector = Collector(data.stated)
    labels = LabelSlabs()
    findings = list[Finding]()
    resets = BoundaryCollector(data.schema)
    quaternions = QuaternionCollector(data.schema)
    with ThreadPoolExecutor(1) as pool:  # reads the next span meanwhile
        ahead = None
        for number, span in enumerate(data.spans):
            loading = ahead or pool.submit(data.read, span)
            following = data.spans[number + 1 : number + 2]
            ahead = pool.submit(data.read, following[0]) if following else None
            try:
                arrays, columns = loading.result()
            except DatasetError as error:
                lost = len(span.lengths)
                findings.append(Finding("unreadable", "error", str(error), lost, remedy="verify"))
            else:
                rows = np.arange(span.first, span.first + len(span.lengths))
                steps = {name: values for name, values in arrays.items() if name != FINAL}
                collector.add(rows, span.lengths, steps, columns)
                labels.add(rows, span.lengths, steps)
                resets.add(rows, span.lengths, arrays)
                quaternions.add(rows, span.lengths, steps)
            advance(span.n_steps)
    measures = collector.measures(data.schema)
    if len(measures.rows):
        for check in checks:
            findings += check(measures)
        findings += channels.statistics(measures, data.stated)
        findings += labels.findings(measures)
        findings += quaternions.findings(measures)
        if (ends := resets.boundaries()) is not None:
            for check in BOUNDARY_CHECKS:
                findings += check(measures, ends)
    return list(_completed(data, measures, in_order(findings)))


def seams(
    selection: EpisodeSelection, advance: Advance = lambda steps: None
) -> dict[int, list[int]]:
    """Id of an episode -> the steps at which another one seems to begin, of those with any."""
    data = store_data(selection)
    resets = BoundaryCollector(data.schema)
    for span in data.spans:
        arrays, _ = data.read(span)
        resets.add(np.arange(span.first, span.first + len(span.lengths)), span.lengths, arrays)
        advance(span.n_steps)
    ends = resets.boundaries()
    ids = selection.episodes().column("episode").to_pylist()
    return {ids[row]: steps.tolist() for row, steps in (ends.seams if ends else {}).items()}


def merge_findings(
    selections: Sequence[EpisodeSelection], steps: int = SAMPLE_STEPS
) -> list[Finding]:
    """Mixed orders of quaternions between selections of one schema, of about `steps` of each."""
    collector = QuaternionCollector(selections[0].schema)
    ids: list[int] = []
    for selection in selections:
        if not len(selection):
            continue
        data = store_data(_spread(selection, steps))
        for span in data.spans:
            arrays, columns = data.read(span)
            rows = len(ids) + np.arange(len(span.lengths))
            collector.add(rows, span.lengths, arrays)
            ids += columns["episode"].tolist()
    measures = Measures(selections[0].schema, np.arange(len(ids)), {"episode": np.array(ids)})
    return [finding for finding in collector.findings(measures) if finding.name == "quaternion-mix"]


def _spread(selection: EpisodeSelection, steps: int) -> EpisodeSelection:
    """Some of the episodes, of about so many steps."""
    count = min(len(selection), max(1, round(len(selection) * steps / selection.steps)))
    rows = np.random.default_rng(0).choice(selection.rows, count, replace=False)
    return selection.with_rows(np.sort(rows))


def quick_findings(selection: EpisodeSelection, steps: int = SAMPLE_STEPS) -> list[Finding]:
    """Findings from the catalog and the arrays of some episodes.

    Args:
        steps: about how many are read; 0 for none.
    """
    if not len(selection):
        return []
    columns = catalog_columns(selection.episodes(), selection.schema.group_by)
    measures = Measures(selection.schema, np.arange(len(selection)), columns)
    findings = [finding for check in CATALOG_CHECKS for finding in check(measures)]
    if steps:
        findings += examine(store_data(_spread(selection, steps)), checks=ARRAY_CHECKS)
    return in_order(findings)


CHECK = DataCheck("gaitforge doctor", quick_findings, merge_findings)
"""What imports, cards and merges say of the data."""


def _completed(data: Data, measures: Measures, findings: Iterable[Finding]) -> Iterator[Finding]:
    """The findings with examples and commands."""
    read = lru_cache(1)(data.read)  # examples of several findings lie in the same spans
    firsts = [span.first for span in data.spans]

    def step(row: int, finding: Finding) -> int:
        if finding.steps is not None:
            return int(finding.steps[np.searchsorted(finding.rows, row)])
        if finding.location is None:
            return 0
        field, channel = finding.location
        span = data.spans[int(np.searchsorted(firsts, row, side="right")) - 1]
        start = int(span.starts[row - span.first])
        steps = slice(start, start + int(span.lengths[row - span.first]))
        return _FINDERS[finding.name](flattened(read(span)[0][field])[steps], channel)

    for finding in findings:
        commands = tuple(data.commands(finding, _ids(measures, finding.rows)))
        rows = finding.rows if len(finding.rows) or finding.remedy == "verify" else measures.rows
        rows = rows[:_EXAMPLES]
        examples = [
            Example(episode_name(episode), step(row, finding), data.view(episode, measures.columns))
            for episode, row in zip(_ids(measures, rows), rows.tolist(), strict=True)
        ]
        yield replace(finding, examples=tuple(examples), commands=commands)


def _ids(measures: Measures, rows: np.ndarray) -> list[int]:
    """Ids of the episodes `rows`; nothing was measured where no part could be read."""
    return measures.ids(rows).tolist() if len(rows) else []


def _first(values: Any) -> int:
    return int(np.argmax(values)) if len(values) else 0


_FINDERS: dict[str, Callable[[np.ndarray, int], int]] = {
    "not-finite": lambda values, _: _first(~np.isfinite(values).all(axis=1)),
    "unit": lambda values, k: _first(np.abs(values[:, k])),
    "frozen-sensor": lambda values, k: _first(runs(np.diff(values, axis=0) == 0)[:, k]),
    "jump": lambda values, k: _first(np.abs(np.diff(values[:, k]))) + 1,
    "time-jump": lambda values, k: _first(np.abs(np.diff(values[:, k]))) + 1,
}
"""Name of a finding -> the step that shows it, of an episode's values (T, C) and a channel."""
