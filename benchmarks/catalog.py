"""A catalog of many parts: the time to index, open and query it, and the memory of its readers.

Its parts have no arrays, which nothing here reads. Every work has a process of its own.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import bar, run_alone
from gaitforge.datasets import Selection, Store
from gaitforge.datasets.catalog.catalog_files import write_catalog_file
from gaitforge.datasets.catalog.episodes import episode_table, episodes_digest
from gaitforge.datasets.layout import PARTS
from gaitforge.flows.records.part_records import PartCollected, records_folder, write_part_record
from gaitforge.flows.records.records import write_record

MOST_S = {"index": 20.0, "append": 0.5, "open": 0.3, "query": 0.5}
"""From opening the store on: what Python and its packages take to start does not grow with it."""
MOST_MIB = 2048.0
MOST_REPEATED = 24
"""Distinct values of a column of settings, such as levels of noise; others were measured."""
BEFORE = """
import sys, time
from pathlib import Path
from gaitforge.datasets import difference, open_store, query
started = time.perf_counter()
store = open_store(sys.argv[1])
"""
AFTER = """
print(time.perf_counter() - started, time.process_time())
"""
QUERY = 'query(store, skill="run", where="friction < 0.6 and level > 2")\n'
WORKS = {
    "index": "store.files.update_index()",
    "append": """
import os
for stem in list(store.files.stamps())[:10]:
    os.utime(store.files.path(stem))  # as if these parts were new
store.files.update_index()
""",
    "open": "store.select()",
    "query": QUERY,
    "query again": f"{QUERY}started = time.perf_counter()\n{QUERY}",
    "status": "from gaitforge.flows.stages.status import status; status(sys.argv[1])",
    "card": """
from gaitforge.pipeline.report.card import write_card
write_card(store.select(), Path(sys.argv[1] + ".card"), channels=False)
""",
    "explorer": """
from gaitforge.plugins.player.explorer import explorer_of
explorer_of(store.select(), Path(sys.argv[1]).parent)
""",
    "gc": "store.gc()",
    "window order": "len(store.select().windows(64, 1024))",
    "edit": """
store.tag("before")
store.select().with_rows(store.select().rows[::10]).drop()
store.select().with_rows(store.select().rows[::2]).annotate({"mark": 0.5})
""",
    "diff": 'difference(open_store(sys.argv[1], tag="before"), store)',
}
"""What is done with the store, in order."""


def catalog_figures(path: Path, source: Selection, parts: int, episodes: int) -> dict[str, Any]:
    """Seconds, CPU seconds of the whole process and peak memory of each work, and the bars."""
    write_catalog(path, source, parts, episodes)
    works = {name: _measured(work, path) for name, work in WORKS.items()}
    bars = [
        bar(f"{name}, {parts:,} parts", works[name]["seconds"], most=most, unit="s")
        for name, most in MOST_S.items()
    ]
    for name, each in works.items():
        bars.append(bar(f"{name}, {parts:,} parts", each["peak_mib"], most=MOST_MIB, unit="MiB"))
    return {"catalog": works, "bars": bars}


def _measured(work: str, path: Path) -> dict[str, float]:
    printed, peak_mib = run_alone(BEFORE + work + AFTER, path)
    seconds, process_cpu_s = map(float, printed.split())
    return {"seconds": seconds, "process_cpu_s": process_cpu_s, "peak_mib": peak_mib}


def write_catalog(path: Path, source: Selection, parts: int, episodes: int) -> None:
    """A store of parts with so many episodes each, drawn from the source's, and its records."""
    store = Store.create(path, source.store.schema)
    rng = np.random.default_rng(0)
    rows = source.episodes().drop_columns(["part", "start"])
    committed = next(iter(source.catalog.manifests.values()))
    names = [f"2b5deb-{part:05d}" for part in range(parts)]
    for number, name in enumerate(names):
        drawn = dict(_drawn(rows, number * episodes + np.arange(episodes), rng))
        table = episode_table(drawn, name, store.schema.group_by)
        steps = int(table.column("length").to_numpy().sum())
        sizes = {"part_id": name, "steps": steps, "episodes": episodes}
        manifest = replace(committed, **sizes, episodes_digest=episodes_digest(table))
        (store.path / PARTS / name).mkdir()
        write_catalog_file(store.files.path(name), table, manifest)
        times = float(number), 0.0, number + 1.0
        size = manifest.stored_bytes
        write_part_record(path, PartCollected(name, episodes, steps, size, *times))
    plan = {"kind": "legged", "plan": {}, "parts": names, "steps": [250 * episodes] * parts}
    write_record(records_folder(path) / "plan-0.json", plan)


def _drawn(rows: pa.Table, ids: np.ndarray, rng: np.random.Generator) -> Iterator[tuple[str, Any]]:
    """Columns of random rows with new ids; measured numbers vary, so that they compress as such."""
    chosen = rows.take(pa.array(rng.integers(len(rows), size=len(ids))))
    for name, column in zip(rows.column_names, chosen.columns, strict=True):
        if pa.types.is_floating(column.type) and len(rows[name].unique()) > MOST_REPEATED:
            factors = rng.uniform(0.9, 1.0, len(ids))
            column = pa.array(column.to_numpy() * factors, from_pandas=True)  # NaN is missing
        yield name, ids if name == "episode" else column
