"""One self-contained HTML page from the files of a run folder, and from nothing else.

Every number on the page stands in one of those files, or is a sum or an episode-weighted mean of
such numbers; the page names the file beside it. The page loads nothing, needs no script, and the
same files give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from datasets.files import write_bytes_durably
from pipeline.report import charts
from pipeline.report.bench_charts import bench_panels
from pipeline.report.charts import Panel
from pipeline.report.contact_sheets import drawn_by, sheet_figures
from pipeline.report.expert_table import card_table
from pipeline.report.pages import page_template
from pipeline.report.run_files import EXPERT, Record, RunFiles, TrainingRun, read_run
from pipeline.report.wording import DASH, count, fixed, is_number, words

REPORT_NAME = "report.html"


POLICY_NAMES = {
    EXPERT: "Expert",
    "fcnet": "FCNet",
    "bot": "BoT",
    "fcnet_rc": "FCNet (return)",
}


@dataclass(frozen=True)
class HeatCell:
    """A number as text on its colour; without a number, a dash on none."""

    text: str
    background: str
    colour: str


@dataclass(frozen=True)
class HeatTable:
    """`cells[row][column]` for terrains (rows) by skills (columns)."""

    title: str
    terrains: tuple[str, ...]
    skills: tuple[str, ...]
    cells: tuple[tuple[HeatCell, ...], ...]


@dataclass(frozen=True)
class ModesCut:
    """The lowest `n_modes` of a window of `context_len` steps, which `policy` keeps."""

    policy: str
    n_modes: int
    context_len: int
    control_dt_s: float

    @property
    def highest_hz(self) -> float:
        """The highest mode that is kept, k = m - 1, at k / (n dt) (FCNet paper, Eq. 7)."""
        return (self.n_modes - 1) / (self.context_len * self.control_dt_s)

    @property
    def edge_hz(self) -> float:
        """Half way from the last mode that is kept to the first that is not."""
        return (self.n_modes - 0.5) / (self.context_len * self.control_dt_s)


def write_report(run_dir: Path) -> Path:
    """Write `run_dir/report.html` from the run's files and return its path.

    Raises:
        ValueError: a file is missing or malformed; an older report is then left as it was.
    """
    page = render_report(read_run(run_dir))
    target = run_dir / REPORT_NAME
    write_bytes_durably(target, page.encode())
    return target


def render_report(run: RunFiles) -> str:
    """The page as text."""
    template = page_template("report.html", policy=policy_name, flattened=flattened)
    return template.render(_context(run))


def policy_name(policy: str) -> str:
    """How the page calls a policy."""
    return POLICY_NAMES.get(policy, policy)


def _context(run: RunFiles) -> dict[str, Any]:
    """What the template shows."""
    summary, dataset = run.summary, run.dataset
    cut = _modes_cut(run)
    return {
        "abstract": _abstract(summary),
        "summary": summary,
        "learned": [name for name in summary["policies"] if name != EXPERT],
        "sheets": sheet_figures(run),
        "sheets_drawn_by": drawn_by(run),
        "card": card_table(run),
        "dataset": dataset,
        "dataset_heat": [
            _dataset_heat(dataset["groups"], "episodes", "Episodes", 0),
            _dataset_heat(dataset["groups"], "return", "Mean return", 2),
        ],
        "dataset_charts": _dataset_charts(dataset),
        "randomisation_charts": [_randomisation_chart(draw) for draw in dataset["randomisation"]],
        "cut": cut,
        "spectra_charts": [_spectrum_chart(signal, cut) for signal in dataset["spectra"]],
        "training": run.training,
        "training_charts": _training_charts(run.training),
        "best_validation": {r.policy: _best_validation(r.history) for r in run.training},
        "success_heat": _evaluation_heat(summary, "success", (0.0, 1.0)),
        "return_heat": _evaluation_heat(summary, "return", None),
        "latency_chart": _latency_chart(summary["policies"], dataset["control_dt_s"]),
        "bench": run.bench,
        "bench_charts": bench_panels(run.bench) if run.bench else [],
        "plan": [
            (key, list(flattened(value)) if isinstance(value, Mapping) else [("", value)])
            for key, value in run.plan.items()
        ],
        "info": list(flattened(dataset["info"])),
        "files": [(path.as_posix(), (run.root / path).stat().st_size) for path in run.paths],
    }


def _abstract(summary: Record) -> str:
    """The result in one sentence, from what the summary has."""
    steps = count(summary["dataset"].get("steps"))
    learned = [
        (name, row)
        for name, row in summary["policies"].items()
        if name != EXPERT and is_number(row["return_fraction"])
    ]
    if not learned:
        return f"{steps} recorded control steps; no learned policy has been evaluated."
    name, best = max(learned, key=lambda item: item[1]["return_fraction"])
    sentence = (
        f"Trained on {steps} recorded control steps, {policy_name(name)} reaches "
        f"{fixed(best['return_fraction'], 3)} of the expert's return"
    )
    if is_number(best["success"]):
        sentence += f" and succeeds in {fixed(best['success'])} of the held-out episodes"
    if is_number(best["latency_us_median"]):
        sentence += f", with a median of {count(best['latency_us_median'])} µs for a control step"
    return sentence + "."


def flattened(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings under their dotted names; a list of plain values is a leaf."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flattened(item, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        for index, item in enumerate(value):
            yield from flattened(item, f"{prefix}[{index}]")
    elif isinstance(value, list):
        yield prefix, ", ".join(map(str, value))
    else:
        yield prefix, DASH if value is None else value


def _dataset_heat(groups: Iterable[Record], field: str, title: str, digits: int) -> HeatTable:
    values = {(group["terrain"], group["skill"]): group[field] for group in groups}
    return _heat_table(title, values, digits, None)


def _evaluation_heat(
    summary: Record, field: str, limits: tuple[float, float] | None
) -> list[HeatTable]:
    """One table a policy: means over levels, weighted by episodes; colours on one common scale."""
    tables = {
        policy: _mean_over_levels(summary["cells"], policy, field) for policy in summary["policies"]
    }
    if limits is None:
        numbers = [v for table in tables.values() for v in table.values() if v is not None]
        limits = (min(numbers, default=0.0), max(numbers, default=1.0))
    return [
        _heat_table(policy_name(policy), values, 2, limits)
        for policy, values in tables.items()
        if values
    ]


def _mean_over_levels(
    cells: Iterable[Record], policy: str, field: str
) -> dict[tuple[str, str], float | None]:
    sums: dict[tuple[str, str], tuple[float, float]] = {}
    for cell in cells:
        if cell["policy"] != policy:
            continue
        place = (cell["terrain"], cell["skill"])
        total, episodes = sums.get(place, (0.0, 0.0))
        if is_number(cell[field]) and is_number(cell["episodes"]):
            total += cell[field] * cell["episodes"]
            episodes += cell["episodes"]
        sums[place] = (total, episodes)
    return {place: total / n if n else None for place, (total, n) in sums.items()}


def _heat_table(
    title: str,
    values: Mapping[tuple[str, str], float | None],
    digits: int,
    limits: tuple[float, float] | None,
) -> HeatTable:
    terrains = tuple(dict.fromkeys(terrain for terrain, _ in values))
    skills = tuple(dict.fromkeys(skill for _, skill in values))
    if limits is None:
        numbers = [value for value in values.values() if is_number(value)]
        limits = (min(numbers, default=0.0), max(numbers, default=1.0))
    cells = tuple(
        tuple(_heat_cell(values.get((terrain, skill)), digits, limits) for skill in skills)
        for terrain in terrains
    )
    return HeatTable(title, terrains, skills, cells)


def _heat_cell(value: float | None, digits: int, limits: tuple[float, float]) -> HeatCell:
    if not is_number(value):
        return HeatCell(DASH, "#ffffff", charts.MUTED)
    return HeatCell(fixed(value, digits), *charts.heat_colours(value, *limits))


def _dataset_charts(dataset: Record) -> list[Panel]:
    levels, lengths = dataset["levels"], dataset["episode_lengths"]
    panels = []
    if levels:
        svg = charts.bars(
            [str(row["level"]) for row in levels],
            [row["episodes"] for row in levels],
            "terrain level",
            "Episodes at each terrain level: "
            + ", ".join(f"level {row['level']}: {row['episodes']}" for row in levels),
        )
        panels.append(Panel("Episodes by terrain level", svg))
    if lengths["counts"]:
        svg = charts.histogram(
            lengths["edges"],
            lengths["counts"],
            "control steps",
            f"Histogram of episode lengths, {lengths['edges'][0]} to {lengths['edges'][-1]} steps",
        )
        panels.append(Panel("Episodes by length", svg))
    return panels


def _randomisation_chart(draw: Record) -> Panel:
    name, unit, edges = words(draw["name"]), draw["unit"] or "dimensionless", draw["edges"]
    alt = f"Histogram of the draws of {name}, {edges[0]:g} to {edges[-1]:g} {unit}"
    return Panel(name, charts.histogram(edges, draw["counts"], unit, alt))


def _modes_cut(run: RunFiles) -> ModesCut | None:
    """From the first training configuration that says `n_modes` and `context_len`; else none."""
    for training in run.training:
        leaves = {name.rpartition(".")[2]: leaf for name, leaf in flattened(training.config)}
        n_modes, context_len = leaves.get("n_modes"), leaves.get("context_len")
        if isinstance(n_modes, int) and isinstance(context_len, int):
            dt_s = run.dataset["control_dt_s"]
            return ModesCut(training.policy, n_modes, context_len, dt_s)
    return None


def _spectrum_chart(signal: Record, cut: ModesCut | None) -> Panel:
    name = words(signal["signal"])
    unit = f", {signal['unit']}" if signal["unit"] else ""
    pairs = list(zip(signal["frequency_hz"], signal["energy_share"], strict=True))
    note = f"{signal['channels']} channels{unit}."
    if cut is not None:
        kept = sum(share for frequency, share in pairs if frequency <= cut.edge_hz)
        note += f" Kept: {fixed(100 * kept, 1)} % of the energy."
    svg = charts.spectrum(
        signal["frequency_hz"],
        signal["energy_share"],
        cut.edge_hz if cut else None,
        f"{cut.n_modes} of {cut.context_len} modes" if cut else "",
        f"Share of the energy of {name} at each frequency and its running sum. {note}",
    )
    return Panel(name, svg, note)


def _training_charts(training: Iterable[TrainingRun]) -> list[Panel]:
    panels = []
    for title, field in (("Training loss", "loss"), ("Validation loss", "validation_loss")):
        lines = []
        for run in training:
            points = [(row["step"], row[field]) for row in run.history if _positive(row[field])]
            if points:
                steps, losses = zip(*points, strict=True)
                lines.append(charts.Curve(policy_name(run.policy), steps, losses))
        if lines:
            ends = ", ".join(f"{line.label} ends at {line.y[-1]:.4g}" for line in lines)
            svg = charts.curves(lines, "gradient steps", "loss (logarithmic)", f"{title}: {ends}")
            panels.append(Panel(title, svg))
    return panels


def _positive(value: object) -> TypeGuard[float]:
    """Whether a logarithmic axis can show it."""
    return is_number(value) and value > 0


def _best_validation(history: Iterable[Record]) -> float | None:
    return min(
        (row["validation_loss"] for row in history if is_number(row["validation_loss"])),
        default=None,
    )


def _latency_chart(policies: Mapping[str, Record], control_dt_s: float) -> str:
    """Empty if no policy's latency was measured."""
    rows = [
        charts.LatencyBar(
            policy_name(name),
            row["latency_us_median"],
            row["latency_us_p99"] if _positive(row["latency_us_p99"]) else None,
        )
        for name, row in policies.items()
        if _positive(row["latency_us_median"])
    ]
    if not rows:
        return ""
    alt = "Time of one control step: " + ", ".join(
        f"{row.label} median {count(row.median_us)} µs, p99 {count(row.p99_us)} µs" for row in rows
    )
    return charts.latency(rows, control_dt_s * 1e6, alt)
