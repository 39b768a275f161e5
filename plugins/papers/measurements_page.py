"""The page and the table of measurements, from `summary.json` alone."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from gaitforge.flows.experiments.plan import FAILS, HOLDS, OPEN
from gaitforge.flows.experiments.summary import SUMMARY, grouped_by
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.records import read_record
from gaitforge.pipeline.report import charts, pages
from gaitforge.pipeline.report.charts import Curve, Panel
from gaitforge.pipeline.report.pages import DASH, Record, Section, fixed, interval, write_sections
from gaitforge.pipeline.report.results import VERDICT_GROUPS, VERDICTS, sources, verdict_rows

_REPEATS = VERDICTS.replace("seeds", "repeats")
_SHORT = (
    "The values of each axis at which a paper’s statement has each verdict; the ratio is the "
    "second’s figure over the first’s."
)
_COUNTED = "operations"
"""A fact of candidates that is drawn beside their figures."""
_FACT_NAMES = {"modes": "frequencies", "of modes": "of frequencies"}


def write_page(out: Path, reporter: Reporter) -> Path:
    """Write report.html from a folder's summary."""
    summary = read_record(out / SUMMARY) or {}
    page = out / "report.html"
    shown = []
    if rows := verdict_rows(summary):
        shown.append(Section("In short", _SHORT, _short(summary), ("published",)))
        shown.append(Section("Published", _REPEATS, rows, VERDICT_GROUPS))
    for group in grouped_by(summary["rows"], ("measure",)):
        text = "Medians over the repeats, in brackets their quartiles."
        panels = [*_spectra(group), *_curves(group)]
        groups = ("axis", "value")
        shown.append(Section(group[0]["title"], text, _rows(group), groups, panels))
    write_sections(page, page_title(summary["plan"], "Measurements"), _abstract(summary), shown)
    return page


def page_title(plan: Record, otherwise: str) -> str:
    """The title of a plan's page; of an older plan the figures that its statements are from."""
    return plan.get("title") or sources(plan) or otherwise


def _short(summary: Record) -> list[dict[str, str]]:
    """A row for each statement along each axis: the values at which it has each verdict."""
    rows = []
    for group in grouped_by(summary["verdicts"], ("ahead", "behind", "set")):
        first = group[0]
        ratios = [row["means"][1] / row["means"][0] for row in group]
        places = {
            kind: ", ".join(_value(row) or "yes" for row in group if row["verdict"] == kind)
            for kind in (HOLDS, OPEN, FAILS)
        }
        names = {
            "published": f"{first['ahead']} ahead of {first['behind']}",
            "measure": first["set"],
        }
        ends = [min(ratios), max(ratios)]
        ratio = interval(ends, 1) if len(group) > 1 else fixed(ends[0], 1)
        rows.append({**names, **places, "ratio": ratio})
    return rows


def summary_rows(summary: Record) -> list[dict[str, str]]:
    """A row for each candidate at each point, as text."""
    rows = []
    for row in summary["rows"]:
        figure = f"{_number(row['median'])} {row['unit']}"
        point = {"measure": row["measure"], "axis": row["axis"], "value": _value(row)}
        rows.append({**point, "of": row["series"], "median": figure, "quartiles": _spread(row)})
    return rows


def _abstract(summary: Record) -> str:
    plan = summary["plan"]
    machines = "; ".join(
        f"{group[0]['processor']}, {group[0]['cores']} cores, load "
        + interval(
            [min(machine["load"] for machine in group), max(machine["load"] for machine in group)],
            1,
        )
        for group in grouped_by(summary["machines"], ("processor", "cores"))
    )
    return (
        f"{plan['repeats']} repeats of every figure, in which the candidates take turns; "
        f"{plan['threads']} of PyTorch's threads. Measured on: {machines}."
    )


def _rows(group: Sequence[Record]) -> list[dict[str, str]]:
    """A row for each point and candidate, with what is known of it."""
    facts = dict.fromkeys(name for row in group for name in row["facts"])
    return [
        {
            "axis": pages.words(row["axis"]),
            "value": _value(row),
            "candidate": row["series"],
            row["unit"]: f"{_number(row['median'])} ({_spread(row)})",
            **{_fact_name(name): _fact(row["facts"].get(name)) for name in facts},
        }
        for row in group
    ]


def _value(row: Record) -> str:
    return "" if row["value"] is None else f"{row['value']:g}"


def _spread(row: Record) -> str:
    return interval(row["quartiles"], _digits(row["median"]))


def _number(value: float) -> str:
    return fixed(value, _digits(value))


def _digits(value: float) -> int:
    """So many that three digits of the number can be seen."""
    return 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2


def _fact_name(name: str) -> str:
    """A fact's name on the page."""
    return _FACT_NAMES.get(name, name)


def _fact(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    return DASH if not pages.is_number(value) else fixed(value, 0 if value == int(value) else 2)


def _curves(group: Sequence[Record]) -> Iterator[Panel]:
    """The medians along each axis that has several values, and counted operations."""
    for rows in grouped_by(group, ("axis",)):
        if len({row["value"] for row in rows} - {None}) > 1:
            axis = pages.words(rows[0]["axis"])
            first = rows[0]
            medians = [row["median"] for row in rows]
            yield _panel(rows, f"{first['title']}: {axis}", axis, first["unit"], medians)
            if counts := [row["facts"][_COUNTED] for row in rows if _COUNTED in row["facts"]]:
                yield _panel(rows, f"Operations: {axis}", axis, _COUNTED, counts)


def _panel(
    rows: Sequence[Record], title: str, axis: str, unit: str, figures: Sequence[float]
) -> Panel:
    lines = []
    for name in dict.fromkeys(row["series"] for row in rows):
        pairs = zip(rows, figures, strict=True)
        points = sorted((row["value"], y) for row, y in pairs if row["series"] == name)
        lines.append(Curve(name.replace("-legged", ""), *zip(*points, strict=True)))
    return charts.curves(title, lines, axis, unit, log=min(figures) > 0)


def _spectra(group: Sequence[Record]) -> Iterator[Panel]:
    """The energy by frequency of each signal; the band are the lowest modes."""
    for row in group:
        if row["spectrum"] is not None:
            spectrum = row["spectrum"]
            last = row["facts"]["up to, Hz"]
            cut = last + spectrum["frequency_hz"][1] / 2
            title = f"{pages.words(row['axis'])}, n = {_value(row)}"
            shares = spectrum["frequency_hz"], spectrum["energy_share"]
            label = f"{row['facts']['modes']} of {row['facts']['of modes']} frequencies"
            yield charts.spectrum(title, *shares, cut_hz=cut, cut_label=label, note="")
