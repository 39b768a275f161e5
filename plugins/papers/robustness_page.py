"""The page and the table of policies under other conditions, from `summary.json` alone."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from gaitforge.collectors.scenarios.randomisation import DRAWS, GROUPS
from gaitforge.flows.experiments.summary import EXPERT, SUMMARY
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.records import read_record
from gaitforge.pipeline.report import charts, pages
from gaitforge.pipeline.report.charts import Curve, Panel
from gaitforge.pipeline.report.pages import DASH, Record, Section, fixed, interval, write_sections
from gaitforge.plugins.papers.robustness import DEFAULT, TERRAIN

NEVER = "never succeeds"
_MEASURES = {
    "fastest joint target, rad/s (99 %)": ("action_rate_p99", 1),
    "largest torque, Nm (99 %)": ("torque_p99", 1),
    "power, W": ("power_w", 0),
}


def write_page(out: Path, reporter: Reporter) -> Path:
    """Write report.html from a folder's summary."""
    summary = read_record(out / SUMMARY) or {}
    rows = summary["rows"]
    page = out / "report.html"
    shown = [
        Section(
            "How far",
            "The last value, from mild to hard, at which a policy still succeeds in at least half "
            "as many episodes as under default conditions; none: it does not at the first. Of a "
            "policy that never succeeds by default nothing can be told.",
            limit_rows(summary),
        ),
        Section("Smoothness", "Under default conditions.", _smoothness(rows)),
        Section(
            "Curves",
            "The default conditions stand at the quantity's nominal value, though most are drawn "
            "around it.",
            charts=list(_charts(rows)),
        ),
        Section("All conditions", rows=summary_rows(summary), groups=("condition",)),
    ]
    title = "Robustness: trained policies under other conditions"
    write_sections(page, title, _abstract(rows), shown)
    return page


def summary_rows(summary: Record) -> list[dict[str, str]]:
    """A row for each condition and policy, as text; in brackets 95 % intervals over episodes."""
    return [
        {
            "condition": _named(row),
            "policy": pages.policy(row["policy"]),
            **{name: _with_interval(row, name) for name in ("return", "success")},
            "survival": fixed(row["survival"]),
            **{name: fixed(row[key], digits) for name, (key, digits) in _MEASURES.items()},
        }
        for row in sorted(summary["rows"], key=lambda entry: _order(summary["rows"], entry))
    ]


def _with_interval(row: Record, name: str) -> str:
    bounds = interval(row[f"{name}_ci95"])
    return f"{fixed(row[name])} ({bounds})" if bounds else fixed(row[name])


def limit_rows(summary: Record) -> list[dict[str, str]]:
    """A row for each quantity: the last value before a policy's success halves.

    A policy that never succeeds under default conditions has no such value.
    """
    table: dict[str, dict[str, str]] = {}
    last = {row["quantity"]: row["value"] for row in summary["rows"]}
    default = [row for row in summary["rows"] if row["quantity"] == DEFAULT]
    succeeds = {row["policy"]: row["success"] > 0 for row in default}
    for limit in summary["limits"]:
        row = table.setdefault(limit["quantity"], {"quantity": _label(limit["quantity"])})
        until = limit["until"]
        name = pages.policy(limit["policy"])
        row[name] = "none" if until is None else str(until)
        if not succeeds[limit["policy"]]:
            row[name] = NEVER
        elif until == last[limit["quantity"]]:
            row[name] = f"{until} and beyond"
    return list(table.values())


def _order(rows: Sequence[Record], row: Record) -> tuple[int, int]:
    conditions = [(entry["quantity"], entry["value"]) for entry in rows]
    return conditions.index((row["quantity"], row["value"])), rows.index(row)


def _smoothness(rows: Iterable[Record]) -> list[dict[str, str]]:
    return [
        {
            "policy": pages.policy(row["policy"]),
            **{name: fixed(row[key], digits) for name, (key, digits) in _MEASURES.items()},
        }
        for row in rows
        if row["quantity"] == DEFAULT
    ]


def _abstract(rows: Sequence[Record]) -> str:
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    conditions = {(row["quantity"], row["value"]) for row in rows}
    default = next(row for row in rows if row["policy"] == EXPERT)
    return (
        f"{len(policies)} policies under {len(conditions)} conditions, one quantity at a time; all "
        f"else is drawn as in training. {default['episodes']} held-out episodes each, the same "
        "for every policy."
    )


def _charts(rows: Sequence[Record]) -> Iterable[Panel]:
    """Success and return over each quantity's values, the default's at its nominal one."""
    quantities = [q for q in dict.fromkeys(row["quantity"] for row in rows) if q != DEFAULT]
    for quantity in quantities:
        if quantity == TERRAIN:
            continue
        nominal = DRAWS[GROUPS[quantity][0]].quantity.nominal
        most = max(float(row["value"]) for row in rows if row["quantity"] == quantity)
        default = DEFAULT if nominal <= 10 * most else ""  # else it would be out of sight
        for measure in ("success", "return"):
            lines = []
            for policy in dict.fromkeys(row["policy"] for row in rows):
                policy_rows = [row for row in rows if row["policy"] == policy]
                points = [
                    (nominal, row[measure]) for row in policy_rows if row["quantity"] == default
                ]
                points += [
                    (float(row["value"]), row[measure])
                    for row in policy_rows
                    if row["quantity"] == quantity
                ]
                x, y = zip(*sorted(points), strict=True)
                lines.append(Curve(pages.policy(policy), x, y))
            title = f"{measure.capitalize()}: {_label(quantity)}"
            yield charts.curves(title, lines, _label(quantity), measure, log=False)


def _named(row: Record) -> str:
    return DEFAULT if row["quantity"] == DEFAULT else f"{_label(row['quantity'])} {row['value']}"


def _label(quantity: str) -> str:
    return quantity if quantity == TERRAIN else pages.words(quantity) or DASH
