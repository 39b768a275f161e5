"""The dataset card as Markdown, for a repository or a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.report.card_charts import sparkline
from pipeline.report.wording import count, fixed, size, words

Record = Mapping[str, Any]


def card_markdown(record: Record) -> str:
    """The card of a record of `datasets.analysis.card`, with `filters` and `origins` added."""
    sections = [
        _summary(record),
        _groups(record),
        _distributions(record),
        _randomisation(record["draws"]),
        _provenance(record),
        _schema(record),
        _channels(record["channels"]),
        how_to_open(record),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def how_to_open(record: Record) -> str:
    """Code that opens the store, with this project and without it."""
    name, part = record["name"], record["parts"][0]["part"]
    place = record["schema"]["group_by"][0]
    return f"""## How to open it

```python
from datasets import open_store

store = open_store("{name}")
selection = store.select({place}="{record["cells"][0][place]}").where('"return" > 0')
for batch in selection.windows(window_len=64, batch_size=1024):
    batch["obs"], batch["action"], batch["mask"]
selection.to_xarray()  # lazy, with named channels
```

It is plain Zarr v3 beside Parquet, so other libraries open it too:

```python
import duckdb, xarray

xarray.open_zarr("{name}/parts/{part}", consolidated=False)
duckdb.sql("SELECT * FROM '{name}/catalog/*.parquet'")
```"""


def _summary(record: Record) -> str:
    store, total = record["store"], record["total"][0]
    rows = [
        ("episodes", count(total["episodes"])),
        ("steps", count(total["steps"])),
        ("mean return", fixed(total["return"])),
        ("success rate", fixed(total["success"], 3)),
        ("survival", fixed(total["survival"], 3)),
        ("robot", record["schema"]["robot"]),
        ("control period", f"{record['schema']['control_dt_s']:g} s"),
        ("store", f"`{store['hash']}`"),
        ("size of the store", f"{size(store['bytes'])} in {count(store['parts'])} parts"),
    ]
    if not record["selection"]["whole_store"]:
        rows += [
            ("selection", f"`{record['selection']['hash']}`"),
            ("filters", f"`{record['filters']}`"),
        ]
    return f"# {record['name']}\n\n" + _table(("", ""), rows)


def _groups(record: Record) -> str:
    names = ("episodes", "steps", "success", "return")
    columns = record["schema"]["group_by"]
    pairs = [(*_place(row, columns), *_measures(row)) for row in record["pairs"]]
    cells = [(*_place(row, columns), row["level"], *_measures(row)) for row in record["cells"]]
    return "\n\n".join(
        [
            f"## {' and '.join(columns).capitalize()}",
            _table((*columns, *names), pairs),
            f"<details><summary>By {', '.join(columns)} and level</summary>",
            _table((*columns, "level", *names), cells),
            "</details>",
        ]
    )


def _place(row: Record, columns: Sequence[str]) -> list[str]:
    return [words(row[name]) for name in columns]


def _measures(row: Record) -> tuple[str, ...]:
    return (
        count(row["episodes"]),
        count(row["steps"]),
        fixed(row["success"]),
        fixed(row["return"]),
    )


def _distributions(record: Record) -> str:
    rows = [
        (title, f"`{sparkline(values['counts'])}`", *_ends(values))
        for title, values in (("return", record["returns"]), ("steps", record["lengths"]))
    ]
    heads = ("of an episode", "histogram", "least", "mean", "most")
    return "## Returns and lengths\n\n" + _table(heads, rows)


def _randomisation(draws: Sequence[Record]) -> str:
    if not draws:
        return ""
    rows = [
        (
            f"`{draw['name']}`",
            draw["unit"],
            f"{draw['low']:g} … {draw['high']:g}",
            f"`{sparkline(draw['counts'])}`",
            *_ends(draw),
            count(draw["outside"]),
        )
        for draw in draws
    ]
    heads = ("draw", "unit", "declared", "histogram", "least", "mean", "most", "outside")
    return "## Randomisation\n\n" + _table(heads, rows)


def _ends(values: Record) -> tuple[str, ...]:
    return tuple(
        "–" if values[name] is None else f"{values[name]:.4g}" for name in ("min", "mean", "max")
    )


def _provenance(record: Record) -> str:
    made = record["provenance"]
    rows = [
        *(
            ("expert", f"{e['expert']} `{e['expert_hash']}`", count(e["episodes"]))
            for e in made["experts"]
        ),
        *(
            ("simulator", f"{s['simulator']} {s['simulator_version']}", count(s["episodes"]))
            for s in made["simulators"]
        ),
        *(("robot", each["robot"], count(each["episodes"])) for each in made["robots"]),
        ("seeds", f"{count(made['seeds']['distinct'])} different", ""),
    ]
    text = "## Provenance\n\n" + _table(("", "", "episodes"), rows)
    if record["origins"]:
        origins = [
            (f"`{each['plan']}`", each["seed"], f"`{each['git_revision']}`", versions(each))
            for each in record["origins"]
        ]
        text += "\n\n" + _table(("plan", "seed", "git revision", "versions"), origins)
    parts = [
        (
            f"`{part['part']}`",
            count(part["episodes"]),
            count(part["steps"]),
            size(part["bytes"]),
            f"`{part['content_hash']}`",
        )
        for part in record["parts"]
    ]
    return "\n\n".join(
        [
            text,
            "<details><summary>Parts</summary>",
            _table(("part", "episodes", "steps", "on disk", "content hash"), parts),
            "</details>",
        ]
    )


def versions(origin: Record) -> str:
    """Packages and their versions in one line."""
    return ", ".join(f"{name} {version}" for name, version in origin["versions"].items())


def _schema(record: Record) -> str:
    schema = record["schema"]
    rows = [
        (
            f"`{field['name']}`",
            field["per"],
            "×".join(map(str, field["shape"])) or "scalar",
            field["dtype"],
            field["unit"],
            field["description"],
        )
        for field in schema["fields"]
    ]
    heads = ("field", "a row per", "shape", "type", "unit", "description")
    title = f"## Schema, version {record['store']['schema_version']}\n\n"
    return title + _table(heads, rows)


def _channels(channels: Sequence[Record]) -> str:
    if not channels:
        return ""
    names = ("mean", "std", "min", "q01", "median", "q99", "max")
    rows = [
        (f"`{row['field']}`", f"`{row['channel']}`", *(f"{row[name]:.4g}" for name in names))
        for row in channels
    ]
    return "\n\n".join(
        [
            "## Statistics of every channel",
            "<details><summary>Mean, spread, range and exact quantiles</summary>",
            _table(("field", "channel", *names), rows),
            "</details>",
        ]
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(_cell(each) for each in line) + " |" for line in lines)


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
