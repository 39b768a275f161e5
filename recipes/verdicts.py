"""Keep what a run measured, and write the tables of docs/results from what is kept.

    python -m recipes.verdicts keep runs/sizes fcnet-sizes-6m
    python -m recipes.verdicts write

`keep` makes docs/results/summaries/NAME.json of a finished folder's summary.json: the numbers of
every seed, the statements, and how to repeat them. `write` puts the verdicts between two markers of
docs/results.md, and on the pages of docs/results the table of a kept summary between

    <!-- table of NAME: written by `python -m recipes.verdicts write` -->
    <!-- end of the table -->

Verdicts are computed again from the numbers of the seeds.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gaitforge.flows.experiments.kinds import PLAN_KINDS
from gaitforge.flows.experiments.plan import (
    FAILS,
    HOLDS,
    LEAST_SEEDS,
    OPEN,
    Published,
    check_name,
    verdicts,
)
from gaitforge.flows.experiments.summary import SUMMARY
from gaitforge.flows.records.plans import PLAN, plan_from_tree
from gaitforge.flows.records.records import read_record, to_tree, write_record
from gaitforge.flows.stages.status import EXPERIMENT, staged_kind
from gaitforge.pipeline.presets.preset import PRESETS
from gaitforge.pipeline.report.pages import fixed, markdown_table, policy, words
from gaitforge.pipeline.report.results import chance_text

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "results.md"
SUMMARIES = ROOT / "docs" / "results" / "summaries"
BEGIN = "<!-- verdicts: written by `python -m recipes.verdicts write` -->"
END = "<!-- end of the verdicts -->"
TABLE_END = "<!-- end of the table -->"
_TABLE = re.compile(
    r"(<!-- table of (\S+): written by `python -m recipes.verdicts write` -->)\n"
    rf"(.*?)({TABLE_END}|\Z)",
    re.DOTALL,
)
# The folders of an absolute path, also after = or a quote; not a division, which has blanks.
_FOLDERS = re.compile(r"(?<![^\s='\"\[(,])~?/(?:[^\s/'\",]+/)+(?=[^\s/])")
_GROWING = ("learners", "seeds")
"""Parts of a plan that a later command may add to."""
MOST_BYTES = 100_000
WRONG_INPUT = 2
WORDS = {HOLDS: "**holds**", FAILS: "**does not hold**", OPEN: "**open**"}
MEASUREMENT = "measurement"

Summary = Mapping[str, Any]
_PLAN = (
    "learners",
    "seeds",
    "settings",
    "sets",
    "vary",
    "train_s",
    "targets",
    "curve",
    "evaluate",
    "evaluations",
    "expert",
    "tasks",
    "measures",
    "stores",
    "repeats",
    "threads",
    "conditions",
    "qualities",
    "draws",
    "zero",
    "published",
)
_RUN = (
    "task",
    "set",
    "learner",
    "value",
    "seed",
    "draws",
    "model",
    "parameters",
    "steps",
    "train_s",
    "validation_loss",
    "test_mse",
    "train_mse",
    "score",
    "score_ci95",
    "return",
    "return_fraction",
    "success",
    "survival",
    "episodes",
    "measures",
    "curve",
)
_ROW = ("measure", "title", "unit", "axis", "value", "series", "median", "figures", "facts")
_SET = ("task", "set", "store", "collection", "dataset", "episodes", "steps", "zero", "expert")


# What is kept.
def kept_summary(summary: Summary, kind: str, preset: str, command: str) -> dict[str, Any]:
    """What is kept of a summary.json; absolute paths are cut to their last name.

    Args:
        kind: of the folder's plan; preset: that it is of; command: that repeats it.
    """
    chosen = {
        "plan": _named(summary["plan"], _PLAN),
        "sets": [_named(row, _SET) for row in summary.get("sets", ())],
        "runs": [_named(row, _RUN) for row in summary.get("runs", ())],
        "rows": [_named(row, _ROW) for row in summary.get("rows", ())],
        "verdicts": list(summary.get("verdicts", ())),
    }
    provenance = _named(summary, ("git_revision", "versions", "machine"))
    facts = {"preset": preset, "kind": kind, "command": command}
    return _without_folders({**facts, **{k: v for k, v in chosen.items() if v}, **provenance})


def keep(
    run: Path,
    name: str,
    preset: str = "",
    command: str = "",
    folder: Path = SUMMARIES,
    replaces: bool = False,
) -> Path:
    """Keep the summary of a finished folder; returns the file's path.

    Args:
        name: of the file; preset: empty for the plan's own name, or `name`; command: empty for the
            preset on the plan's stores, where the plan is the preset's.
        replaces: a kept file of this name may have more runs.

    Raises:
        ValueError: the folder is not finished, no preset has this name, the command is needed, the
            kept file has more runs, or too much is to be kept.
    """
    check_name("NAME", name)
    kind, summary = _finished(run)
    preset = preset or summary.get("name") or name
    if preset not in PRESETS:
        raise ValueError(f"no preset '{preset}'; name it by --preset")
    stores = [row["store"] for row in summary.get("sets", ())]
    stores += [Path(store).name for store in summary["plan"].get("stores") or ()]
    if not command and (changed := _changed(summary["plan"], preset)):
        raise ValueError(
            f"{run} has not the preset's {', '.join(changed)}; give the command by --repeat"
        )
    command = command or " ".join(["gaitforge run", preset, *dict.fromkeys(stores),
                                   f"--out runs/{name}"])  # fmt: skip
    record = kept_summary(summary, kind, preset, command)
    size = len(json.dumps(record, indent=1))
    if size > MOST_BYTES:
        raise ValueError(f"{size:,} bytes are to be kept of {run}, at most {MOST_BYTES:,} may be")
    path = folder / f"{name}.json"
    kept_runs = len((read_record(path) or {}).get("runs", ()))
    if kept_runs > len(record.get("runs", ())) and not replaces:
        raise ValueError(f"{path} has more runs than {run}: {kept_runs}; --replace keeps fewer")
    write_record(path, record)
    return path


def _finished(run: Path) -> tuple[str, Summary]:
    """The kind and the summary of a folder whose plan is done; ValueError for others."""
    summary = read_record(run / SUMMARY)
    if summary is None:
        raise ValueError(f"{run} has no {SUMMARY}; finish it by gaitforge run {run}")
    kind = staged_kind(run)
    if not kind:
        raise ValueError(f"{run} has no {PLAN} of a kind that is installed")
    record = read_record(run / PLAN) or {}
    plan = next((record[key] for key in ("experiment", "plan") if key in record), record)
    if any(plan.get(key) != summary["plan"].get(key) for key in _GROWING if key in plan):
        raise ValueError(f"{run} has grown since its {SUMMARY}; finish it by gaitforge run {run}")
    return kind, summary


def _changed(plan: Summary, preset: str) -> list[str]:
    """The parts of a plan, as a summary has it, that a preset of a fixed plan has otherwise."""
    if PRESETS[preset].places:
        return []
    usual = to_tree(PRESETS[preset].make())
    usual = usual.get("experiment", usual)
    return [key for key in (*_GROWING, "settings", "vary") if plan.get(key) != usual.get(key)]


def _named(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: row[name] for name in names if name in row}


def _without_folders(value: Any) -> Any:
    """JSON values in which a text that is an absolute path, or several, is their last names."""
    if isinstance(value, Mapping):
        return {name: _without_folders(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folders(item) for item in value]
    return _FOLDERS.sub("", value) if isinstance(value, str) else value


# The tables.
def read_summaries(folder: Path = SUMMARIES) -> dict[str, Summary]:
    """Name -> what is kept, in the order of the presets' names.

    Raises:
        ValueError: a file is no kept summary.
    """
    summaries = {}
    for path in sorted(folder.glob("*.json")):
        record = read_record(path) or {}
        if record.get("preset") not in PRESETS:
            raise ValueError(f"{path} is no kept summary of a preset")
        summaries[path.stem] = record
    return dict(sorted(summaries.items(), key=lambda item: (item[1]["preset"], item[0])))


def told_verdicts(summary: Summary) -> list[dict[str, Any]]:
    """The verdicts of a kept summary; of an experiment, from the numbers of its seeds.

    Where either side has fewer than `LEAST_SEEDS`, nothing can be told.
    """
    rows = [dict(row) for row in summary.get("verdicts", ())]
    if summary["kind"] == EXPERIMENT:
        published = summary["plan"].get("published", ())
        said = [plan_from_tree(Published, statement) for statement in published]
        rows = list(verdicts(said, summary["runs"], "score"))
    for row in rows:
        if min(row.get("seeds", (0,))) < LEAST_SEEDS:
            row["verdict"] = OPEN
    return rows


def tables(summaries: Mapping[str, Summary]) -> str:
    """The Markdown between the markers."""
    lines = [
        "| preset | where | statement | at | measure | verdict | numbers | n, p | cost |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [row for name, summary in summaries.items() for row in _rows(name, summary)]
    lines += ["", "Each summary, and the command that repeats it:", ""]
    lines += ["| summary | command | steps of data | made with |", "|---|---|---|---|"]
    lines += [_source(name, summary) for name, summary in summaries.items()]
    kept = {summary["preset"] for summary in summaries.values()}
    missing = [name for name in with_statements() if name not in kept]
    if missing:
        names = ", ".join(f"`{name}`" for name in missing)
        lines += ["", f"No summary is kept yet of: {names}."]
    return "\n".join(lines)


def with_statements() -> list[str]:
    """The presets whose plans hold statements, by name."""
    plans = {name: preset.make() for name, preset in PRESETS.usable().items() if not preset.places}
    measured = [name for name, preset in PRESETS.usable().items() if preset.places == "stores"]
    return sorted({*measured, *(name for name in plans if getattr(plans[name], "published", ()))})


def _rows(name: str, summary: Summary) -> Iterator[str]:
    preset = summary["preset"]
    link = f"[`{preset}`](results/summaries/{name}.json)"
    hours = f"{PRESETS[preset].hours:g} h"
    for alike in _alike(told_verdicts(summary), summary):
        row = alike[-1]
        cells = [
            link,
            row["source"],
            f"{policy(row['ahead'])} ahead of {policy(row['behind'])}",
            _places(alike, summary),
            _measure(row, summary),
            WORDS[row["verdict"]],
            _numbers(row, summary),
            f"{_count(row, summary)}, p\u00a0{chance_text(row['chance'])}",
            hours,
        ]
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _alike(rows: Sequence[Summary], summary: Summary) -> list[list[Summary]]:
    """The rows, in groups that share a line: the sizes along a measurement's axis with one verdict.

    The line has the numbers of its last row, the largest size.
    """
    if summary["kind"] != MEASUREMENT:
        return [[row] for row in rows]
    groups: dict[tuple[str, ...], list[Summary]] = {}
    for row in rows:
        names = ("source", "ahead", "behind", "set", "measure", "verdict")
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return list(groups.values())


def _places(rows: Sequence[Summary], summary: Summary) -> str:
    """Where a line's verdict is: the first row's place, and the other rows' values."""
    values = [f"{row['value']:g}" for row in rows[1:]]
    numbers = f"; numbers at {values[-1]}" if values else ""
    return ", ".join([_place(rows[0], summary), *values]) + numbers


def _place(row: Mapping[str, Any], summary: Summary) -> str:
    """The set, the value of what varies, or the axis of a measurement."""
    value = "" if row["value"] is None else f"{row['value']:g}"
    axis = next(iter(summary["plan"].get("vary") or ()), "").rpartition(".")[2]
    return ", ".join(filter(None, (words(row.get("set", "")), f"{words(axis)} {value}".strip())))


def _measure(row: Mapping[str, Any], summary: Summary) -> str:
    if summary["kind"] == MEASUREMENT:
        return row.get("unit", "")
    usual = "score" if summary["kind"] == EXPERIMENT else "return"
    return words(row["measure"] or usual)


def _numbers(row: Mapping[str, Any], summary: Summary) -> str:
    """Both means with their names; scores with one digit after the point, others with two."""
    digits = 1 if _measure(row, summary).endswith("score") else 2
    pairs = zip((row["ahead"], row["behind"]), row["means"], strict=True)
    return " | ".join(f"{policy(name)} {fixed(mean, digits)}" for name, mean in pairs)


def _count(row: Mapping[str, Any], summary: Summary) -> str:
    """How many seeds, or repeats of a measurement, each side has."""
    unit = "repeats" if summary["kind"] == MEASUREMENT else "seeds"
    counts = " and ".join(map(str, dict.fromkeys(row.get("seeds", ()))))
    return f"{counts} {unit}" if counts != "1" else f"1 {unit.removesuffix('s')}"


def _source(name: str, summary: Summary) -> str:
    steps = [row["steps"] for row in summary.get("sets", ())]
    versions = summary.get("versions", {})
    made = [
        f"{package} {versions[package]}" for package in ("torch", "mujoco") if package in versions
    ]
    data = ", ".join(f"{count:,}" for count in dict.fromkeys(steps)) or "–"
    link = f"[`{name}`](results/summaries/{name}.json)"
    return f"| {link} | `{summary['command']}` | {data} | {', '.join(made)} |"


def written(page: str, summaries: Mapping[str, Summary]) -> str:
    """A page with the tables between its markers; ValueError where it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page has no lines '{BEGIN}' and '{END}'")
    return f"{before}{BEGIN}\n\n{tables(summaries)}\n\n{END}{after}"


def with_tables(page: str, summaries: Mapping[str, Summary]) -> str:
    """A page with the table of each kept summary that a marker of it names.

    Raises:
        ValueError: a marker without its end, or of a summary that is not kept.
    """

    def filled(marker: re.Match[str]) -> str:
        begin, name, inner, end = marker.groups()
        if "<!-- table of" in inner or not end:
            raise ValueError(f"the table of {name} has no line '{TABLE_END}'")
        if name not in summaries:
            raise ValueError(f"no summary '{name}' is kept")
        summary = summaries[name]
        kind = PLAN_KINDS[summary["kind"]]
        path = SUMMARIES / f"{name}.json"
        beside = kind.shown_beside(path, summary)
        texts = [f"**{title}**\n\n{table}" for title, table in beside.get("texts", {}).items()]
        lines = [f"- {line}" for line in beside.get("lines", ()) if line]
        table = markdown_table(kind.summary_rows(path, summary))
        text = "\n\n".join([table, *texts, "\n".join(lines)])
        return f"{begin}\n\n{text}\n\n{end}"

    return _TABLE.sub(filled, page)


def build_parser() -> argparse.ArgumentParser:
    """The command line's options."""
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser("python -m recipes.verdicts", description=about)
    commands = parser.add_subparsers(dest="command", required=True)
    keeping = commands.add_parser("keep", help="keep the summary of a finished folder")
    keeping.add_argument("run", type=Path, metavar="RUN", help="the folder")
    keeping.add_argument("name", metavar="NAME", help="of the kept file")
    keeping.add_argument("--preset", default="", help="that the folder is of")
    keeping.add_argument("--repeat", default="", metavar="COMMAND", help="that repeats it")
    keeping.add_argument("--replace", action="store_true", help="a kept file that has more runs")
    commands.add_parser("write", help="write the tables of docs/results.md and docs/results")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Keep a summary, or write the tables; returns an exit code."""
    options = build_parser().parse_args(arguments)
    try:
        if options.command == "keep":
            chosen = options.preset, options.repeat
            print(keep(options.run, options.name, *chosen, replaces=options.replace))
        else:
            summaries = read_summaries()
            PAGE.write_text(written(PAGE.read_text(), summaries))
            for page in sorted(SUMMARIES.parent.glob("*.md")):
                page.write_text(with_tables(page.read_text(), summaries))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG_INPUT
    return 0


if __name__ == "__main__":
    sys.exit(main())
