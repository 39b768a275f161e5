"""One self-contained HTML page from the files of a run folder, and from nothing else.

Every number on the page stands in one of those files, or is a sum or an episode-weighted mean of
such numbers; the page names the file beside it. The page loads nothing, needs no script, and the
same files give the same bytes.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os.path import relpath
from pathlib import Path
from statistics import fmean
from urllib.parse import quote

from gaitforge.common.errors import amount
from gaitforge.flows.experiments.experiment_stages import STORE
from gaitforge.flows.experiments.page_files import card_of, page_address
from gaitforge.flows.intervals import ratio
from gaitforge.flows.records.plans import PLAN
from gaitforge.flows.records.records import reading_files, write_file
from gaitforge.pipeline.report import charts, pages, results
from gaitforge.pipeline.report.added_pages import CARD_PAGES, episode_pages
from gaitforge.pipeline.report.charts import Panel
from gaitforge.pipeline.report.pages import Record, Shade
from gaitforge.pipeline.report.report_files import EXPERT, RunFiles, read_run

Place = tuple[str, str]
"""Terrain and skill."""
Limits = tuple[float, float]

REPORT_NAME = "report.html"
TABLE_NAME = "results.md"
_MOST_STAGES = 60
_OF_POLICIES = ("train", "evaluate", "show")
"""First words of stages whose second is a policy."""

_STAGES = {
    "collect": "The expert drives; its episodes are stored.",
    "train first": "A first learner, from the expert’s episodes alone.",
    "collect corrections": "The first learner drives in short stretches; what the expert would "
    "have done is stored (DAgger).",
    "describe": "Statistics of the dataset.",
    "time": "How many optimiser steps fit in the time.",
    "train": "From all episodes.",
    "evaluate": "In closed loop, on the held-out episodes.",
    "show collected": "A page that plays some of the collected episodes, and one to explore all.",
    "show": "A page that plays the worst, the median and the best episode of every cell.",
    "compare": "All results in one file.",
    "report": "Pictures, and this page.",
}
"""A stage's name, or its first word -> what it does."""


@dataclass(frozen=True)
class Door:
    """Pages beside the report: `links`, address -> name, or the `command` that writes them."""

    title: str
    links: Mapping[str, str]
    command: str = ""


def write_report(run_dir: Path) -> Path:
    """Write `report.html`, whose path is returned, and `results.md` with its table.

    Raises:
        ValueError: a file is missing or malformed; an older report is then left as it was.
    """
    with reading_files(run_dir):
        run = read_run(run_dir)
        rows = results.result_rows(run.summary)
        page = pages.render("report.html", **_context(run, rows))
    write_file(run_dir / TABLE_NAME, pages.markdown_table(rows).encode())
    write_file(run_dir / REPORT_NAME, page.encode())
    return run_dir / REPORT_NAME


def _context(run: RunFiles, rows: Sequence[Mapping[str, str]]) -> dict[str, object]:
    """The values of the template."""
    summary = run.summary
    dataset = run.dataset
    cut = _modes_cut(run)
    shown = [EXPERT, *results.first_runs(summary)]
    linked = {name: page for name in shown if (page := page_address(run.root, name))}
    learners = {row["run"]: row["learner"] for row in summary["runs"]}
    histories = [
        (pages.policy(learners.get(training.policy, training.policy)), training.history)
        for training in run.training
    ]
    return {
        "shows": results.sources(summary["plan"]),
        "abstract": results.abstract(summary),
        "film": run.film,
        "doors": _doors(run, linked),
        "best": results.best_run(summary),
        "next": _next_commands(run),
        "commit": "" if summary["git_revision"] == "unknown" else summary["git_revision"],
        "returns": any(
            pages.policy(name).endswith("return-conditioned") for name in learners.values()
        ),
        "summary": summary,
        "source": results.SOURCE if "published" in rows[0] else "",
        "rows": rows,
        "overall": results.overall_rows(summary),
        "robots": results.robot_rows(summary),
        "verdicts": results.verdict_rows(summary),
        "verdict_groups": results.VERDICT_GROUPS,
        "verdicts_text": results.VERDICTS,
        "charts": results.result_charts(summary),
        "linked": linked,
        "sheets": run.sheets,
        "card": _card_table(run.expert),
        "dataset": dataset,
        "described": _described(dataset, cut) if dataset is not None else {},
        "cut": cut,
        "training": run.training,
        "training_charts": charts.losses(histories),
        "stages": _stages(run),
        "best_validation": {r.policy: _best_validation(r.history) for r in run.training},
        "success_heat": _evaluation_heat(summary, shown, "success", (0.0, 1.0), linked),
        "return_heat": _evaluation_heat(summary, shown, "return", None, linked),
        "cells": _cells(summary, shown),
        "files": [(path.as_posix(), (run.root / path).stat().st_size) for path in run.paths],
    }


def _folder(run: RunFiles) -> str:
    """The run's folder in commands, as in `summary.json`'s own: no absolute path on a page."""
    return run.root.name if run.root.is_absolute() else str(run.root)


def _doors(run: RunFiles, linked: Mapping[str, str]) -> list[Door]:
    """The pages that play episodes, the card and the explorer, as far as there are any to make."""
    folder = _folder(run)
    view = episode_pages()
    command = view.command if view else ""
    doors = []
    if run.summary["cells"] and (linked or command):
        links = {page: pages.policy(name) for name, page in linked.items()}
        made = f"{command} {folder}/evaluate/{EXPERT}.json --out {folder}/episodes/{EXPERT}.html"
        doors.append(Door("Watch the policies", links, made))
    if run.dataset is not None and (page_address(run.root, "collected") or command):
        links = {page_address(run.root, "collected"): "collected by the expert"}
        links.pop("", None)  # no page
        made = f"{command} {folder}/{STORE} --out {folder}/episodes/collected.html"
        doors.append(Door("Watch the data", links, made))
    return [*doors, *_data_doors(run)]


def _data_doors(run: RunFiles) -> list[Door]:
    """The cards of the stores that lie on this machine, and the pages beside them."""
    if run.dataset is not None:
        stores = {str(run.root / STORE): f"{_folder(run)}/{STORE}"}
    else:
        plan = json.loads((run.root / PLAN).read_text(encoding="utf-8"))
        stores = {store: store for store in plan.get("stores", ()) if "://" not in store}
    doors = []
    for store, address in stores.items():
        card = card_of(Path(store))
        files = {card: "dataset card"}
        files |= {
            card.with_name(page.file): page.link.lower() for page in CARD_PAGES.usable().values()
        }
        links = {
            quote(relpath(file, run.root)): name for file, name in files.items() if file.is_file()
        }
        title = "About the data" if len(stores) == 1 else f"About {Path(store).name}"
        doors.append(Door(title, links, f"gaitforge card {address}"))
    return doors


def _next_commands(run: RunFiles) -> dict[str, str]:
    """Commands for the best learner -> what they do; none where its folder is gone."""
    best = results.best_run(run.summary)
    place = f"{_folder(run)}/train/{best}"
    if not best or not (run.root / "train" / best).is_dir():
        return {}
    view = episode_pages()
    commands = {}
    if run.summary["cells"] and view and view.command:
        commands[f"{view.command} {place}"] = "play its episodes in 3-D, on any terrain"
    commands[f"gaitforge evaluate {place}"] = "measure it again, in other cells or conditions"
    commands[f"gaitforge export {place} exports/{best}"] = "take it to a robot"
    if run.dataset is None and len(run.summary["plan"].get("seeds", ())) == 1:
        commands[f"gaitforge run {_folder(run)} --seeds 0-2"] = "tell differences from chance"
    return commands


def _card_table(card: Record) -> Record | None:
    """The expert's card as a table; None where it holds no evaluation.

    Returns:
        `levels`, `middle_level`, `episodes` (of a cell), `steps`, mean `success` and
        `survival`, and `rows`: terrain, skill, success by level, and the cell of the middle
        level.
    """
    cells = card.get("evaluation", {}).get("cells", [])
    if not cells:
        return None
    levels = sorted({cell["level"] for cell in cells})
    middle = levels[len(levels) // 2]
    places: dict[Place, dict[int, Record]] = {}
    for cell in cells:
        places.setdefault(_place(cell), {})[cell["level"]] = cell
    rows = [
        {
            "terrain": terrain,
            "skill": skill,
            "success": [of.get(level, {}).get("success") for level in levels],
            "middle": of.get(middle, {}),
        }
        for (terrain, skill), of in places.items()
    ]
    means = {name: sum(c[name] for c in cells) / len(cells) for name in ("success", "survival")}
    episodes = min(cell["episodes"] for cell in cells)
    steps = int(card.get("steps", 0))
    shown = {"levels": levels, "middle_level": middle, "rows": rows} | means
    return shown | {"episodes": episodes, "steps": steps}


def _described(dataset: Record, cut: Record | None) -> dict[str, object]:
    """Tables and charts of the collected dataset."""
    groups = dataset["groups"]
    return {
        "heat": [
            _heat_table(title, {_place(group): group[field] for group in groups}, digits)
            for field, title, digits in (("episodes", "Episodes", 0), ("return", "Mean return", 2))
        ],
        "charts": _dataset_charts(dataset),
        "randomisation": [_randomisation_chart(draw) for draw in dataset["randomisation"]],
        "spectra": [_spectrum_chart(signal, cut) for signal in dataset["spectra"]],
    }


def _place(record: Record) -> Place:
    return record["terrain"], record["skill"]


def _cells(summary: Record, names: Sequence[str]) -> list[Record]:
    """The cells of each learner's first run, with the share of the expert's return."""
    cells = summary["cells"]

    def place(cell: Record) -> tuple[object, ...]:
        return (*_place(cell), cell["level"], cell.get("robot"))

    expert = {place(cell): cell["return"] for cell in cells if cell["policy"] == EXPERT}

    def fraction(cell: Record) -> float | None:
        value = cell["return"]
        return ratio(value, expert.get(place(cell), 0.0)) if pages.is_number(value) else None

    return [{**c, "return_fraction": fraction(c)} for c in cells if c["policy"] in names]


def _stages(run: RunFiles) -> list[tuple[str, str, float]]:
    """Name, what it does, and seconds of every stage; nothing where there are too many to read."""
    rows = []
    for stage, seconds in run.stages.items() if len(run.stages) <= _MOST_STAGES else ():
        kind, _, policy = stage.partition(" ")
        shown = f"{kind} {pages.policy(policy)}" if kind in _OF_POLICIES else stage
        rows.append((shown, _STAGES.get(stage, _STAGES.get(kind, "")), seconds))
    return rows


def _evaluation_heat(
    summary: Record,
    names: Sequence[str],
    field: str,
    limits: Limits | None,
    linked: Mapping[str, str],
) -> list[Record]:
    """One table a policy: means over levels, weighted by episodes; colours on one common scale."""
    cells = {name: [c for c in summary["cells"] if c["policy"] == name] for name in names}
    tables = {policy: _mean_over_levels(rows, field) for policy, rows in cells.items()}
    limits = limits or _limits(value for table in tables.values() for value in table.values())
    heat = []
    for policy, values in tables.items():
        bounds = {_place(cell): cell[f"{field}_ci95"] for cell in cells[policy]}
        if len(bounds) < len(cells[policy]):  # several levels were averaged
            bounds = {}
        if values:
            title = pages.policy(policy)
            page = linked.get(policy, "")
            heat.append(_heat_table(title, values, 2, limits, bounds, page))
    return heat


def _mean_over_levels(cells: Iterable[Record], field: str) -> dict[Place, float | None]:
    groups: dict[Place, list[tuple[float, float]]] = {}
    for cell in cells:
        pairs = groups.setdefault(_place(cell), [])
        if pages.is_number(cell[field]) and pages.is_number(cell["episodes"]):
            pairs.append((cell[field], cell["episodes"]))
    return {
        key: fmean(*zip(*pairs, strict=True)) if pairs else None for key, pairs in groups.items()
    }


def _limits(values: Iterable[float | None]) -> Limits:
    numbers = [value for value in values if pages.is_number(value)]
    return min(numbers, default=0.0), max(numbers, default=1.0)


def _heat_table(
    title: str,
    values: Mapping[Place, float | None],
    digits: int,
    limits: Limits | None = None,
    bounds: Mapping[Place, Sequence[float] | None] | None = None,
    page: str = "",
) -> Record:
    """`rows[terrain][skill]`, with the 95 % intervals `bounds`; `page` has their episodes."""
    limits = limits or _limits(values.values())

    def cell(key: Place) -> Shade:
        value = values.get(key)
        ci = (bounds or {}).get(key)
        # At most 12 characters fit.
        shown = pages.interval(ci, 1 if pages.is_number(value) and abs(value) >= 2 else 2)
        return pages.shade(value, partial(pages.fixed, digits=digits), limits, 0.5, shown)

    terrains, skills = (list(dict.fromkeys(key[k] for key in values)) for k in (0, 1))
    rows = {terrain: {skill: cell((terrain, skill)) for skill in skills} for terrain in terrains}
    return {"title": title, "skills": skills, "rows": rows, "page": page}


def _dataset_charts(dataset: Record) -> list[Panel]:
    levels = dataset["levels"]
    lengths = dataset["episode_lengths"]
    panels = []
    if levels:
        names = [str(row["level"]) for row in levels]
        episodes = [row["episodes"] for row in levels]
        panels.append(charts.bars("Episodes by terrain level", names, episodes, "terrain level"))
    if lengths["counts"]:
        panels.append(charts.histogram("Episodes by length", lengths, "control steps"))
    return panels


def _randomisation_chart(draw: Record) -> Panel:
    unit = "dimensionless" if draw["unit"] in ("", "1") else draw["unit"]
    return charts.histogram(pages.words(draw["name"]).removesuffix(f" {unit}"), draw, unit)


def _modes_cut(run: RunFiles) -> Record | None:
    """The lowest modes of a window that a policy keeps; None without such a policy.

    `n_modes` and `context_len` are those of the first training configuration that has both;
    `frequencies` is how many a window of `context_len` real steps has.
    `highest_hz` is the highest mode that is kept, k = m - 1, at k / (n dt) (FCNet paper, Eq. 7),
    `edge_hz` half way from it to the first that is not.
    """
    runs = [row["run"] for row in run.summary["runs"]]
    for training in (training for training in run.training if training.policy in runs):
        leaves = {name.rpartition(".")[2]: leaf for name, leaf in pages.flattened(training.config)}
        n_modes = leaves.get("n_modes")
        context_len = leaves.get("context_len")
        if isinstance(n_modes, int) and isinstance(context_len, int):
            window_s = context_len * run.summary["sets"][0]["control_dt_s"]
            cut = {"policy": training.policy, "n_modes": n_modes, "context_len": context_len,
                   "frequencies": context_len // 2 + 1}  # fmt: skip
            hz = {"highest_hz": (n_modes - 1) / window_s, "edge_hz": (n_modes - 0.5) / window_s}
            return cut | hz
    return None


def _spectrum_chart(signal: Record, cut: Record | None) -> Panel:
    unit = "" if signal["unit"] in ("", "1") else f", in {signal['unit']}"
    frequency_hz = signal["frequency_hz"]
    share = signal["energy_share"]
    note = f"{amount(signal['channels'], 'channel')}{unit}."
    edge_hz = None
    label = ""
    if cut is not None:
        edge_hz = cut["edge_hz"]
        label = f"{cut['n_modes']} of {cut['frequencies']} frequencies"
        kept = sum(s for hz, s in zip(frequency_hz, share, strict=True) if hz <= edge_hz)
        note += f" Kept: {pages.fixed(100 * kept, 1)} % of the energy."
    return charts.spectrum(pages.words(signal["signal"]), frequency_hz, share, edge_hz, label, note)


def _best_validation(history: Iterable[Record]) -> float | None:
    losses = (row["validation_loss"] for row in history)
    return min(filter(pages.is_number, losses), default=None)
