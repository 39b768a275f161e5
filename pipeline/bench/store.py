"""Speed of the store, beside plain copies and other libraries' loaders, in one run.

A small set is really collected, for the cost of writing and the bytes per step. Its episodes are
repeated to a set that is large enough to stream and to query. What is compared runs in turns, so
judge by the ratios to the gather, the one copy that every loader needs. A stream's rate counts real
steps, without padding; the others' counts every step of their batches.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from collectors.legged.data import CollectionGrid, StoredForm
from datasets import Schema, Selection, Store, open_store, query
from flows.progress import Reporter, Silent
from flows.records.part_records import collection_rate
from flows.records.records import provenance, write_record
from flows.stages.collect import collect
from flows.tasks.legged import LeggedPlan
from pipeline.bench.common import in_turns, seconds_of
from pipeline.bench.peers import LEROBOT_NOTE, PEERS, PeerData, Work
from pipeline.tables import show_one

FIELDS = ("obs", "action")
WIDTH = 82
STORED = (*FIELDS, "reward")
PART_STEPS = 240_000
FLOOR_BATCHES = 20
QUERY_PARTS = 64
WHERE = "friction < 0.6 and level > 2"
COLD_QUERY = """
import sys
from datasets import open_store, query
query(open_store(sys.argv[1]), skill="run", where=sys.argv[2])
"""
STREAM_ALONE = """
import resource, sys
from datasets import open_store
for batch in open_store(sys.argv[1]).select().windows(int(sys.argv[2]), int(sys.argv[3])):
    pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@dataclass(frozen=True)
class StoreBenchConfig:
    """What is measured.

    Attributes:
        collected: what is really simulated, on `threads`.
        steps: to stream; several pools of them, or nothing would be read again.
        episodes: of the queried catalog.
        peer_steps: given to the other libraries, at most.
    """

    collected: CollectionGrid = field(
        default_factory=lambda: CollectionGrid(parts=2, episodes_per_part=160)
    )
    threads: int = 2
    steps: int = 4_000_000
    episodes: int = 320_000
    rounds: int = 5
    window_len: int = 64
    batch_size: int = 1024
    peer_steps: int = 500_000


def run(arguments: argparse.Namespace, reporter: Reporter) -> None:
    """Measure and print the figures."""
    show_one(run_store_bench(arguments.out, reporter=reporter), arguments.json)


def run_store_bench(
    out: Path, config: StoreBenchConfig | None = None, reporter: Reporter | None = None
) -> dict[str, Any]:
    """Measure everything; writes ``bench_store.json`` into `out`.

    Returns:
        ``query_ms`` (store open), ``query_cold_ms`` (a new process, interpreter included),
        ``stream_steps_per_s``, ``stream_peak_mib`` (a process of its own), ``single_steps_per_s``
        (windows of one step), ``materialised_steps_per_s``, ``collect_steps_per_s``,
        ``write_share`` (of a collecting worker's time), ``bytes_per_step`` in four forms,
        ``float16_error`` (field -> the largest), ``floor`` and ``peers`` (name -> steps/s),
        ``ratio_to_gather`` (name -> median over the turns) and ``notes``.
    """
    config, reporter = config or StoreBenchConfig(), reporter or Silent()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as name:
        folder = Path(name)
        with reporter.step("bench store", 5, "stage") as advance:
            records = _collected(folder / "collected.zarr", config)
            advance(1, "collected")
            source = open_store(folder / "collected.zarr").select()
            records |= _sizes(folder, source)
            advance(1, "sizes")
            records |= _queries(folder / "catalog.zarr", source, config)
            advance(1, "queries")
            stored = _repeated(folder / "stream.zarr", source, config.steps)
            records |= {"stream_peak_mib": _peak_mib(stored, config)}
            advance(1, "large set")
            records |= _streams(folder, stored.select(), config)
            advance(1, "streams")
    write_record(out / "bench_store.json", {**records, "config": asdict(config), **provenance()})
    return records


def _collected(path: Path, config: StoreBenchConfig) -> dict[str, Any]:
    """Simulate, act and write."""
    plan = LeggedPlan(grid=config.collected, form=StoredForm(state=True), threads=config.threads)
    done = collect(plan, path, Silent())
    busy = sum(each.ended - each.started for each in done)
    return {
        "collect_steps_per_s": collection_rate(done),
        "write_share": sum(each.write_s for each in done) / busy,
    }


def _sizes(folder: Path, source: Selection) -> dict[str, Any]:
    """Bytes a step, catalog included, of the same episodes in other forms."""
    schema = source.store.schema
    without_state = _schema_of(schema, STORED)
    halves = [_halved(each) for each in (schema, without_state)]
    names = ("", "_without_state", "_float16", "_float16_without_state")
    sizes = {}
    for name, form in zip(names, (schema, without_state, *halves), strict=True):
        store = Store.create(folder / f"size{name}.zarr", form)
        _write_repeated(store, source, parts=1, repeats=1)
        sizes[f"bytes_per_step{name}"] = store.info()["bytes"] / source.steps
    errors = {name: _rounding_error(source.read(name)) for name in schema.names("step")}
    return {**sizes, "float16_error": errors}


def _rounding_error(values: np.ndarray) -> dict[str, float]:
    """Largest error of half floats: as it is, and over the standard deviation of its channel."""
    error = np.abs(values.astype(np.float16).astype(np.float32) - values).max(axis=0)
    spread = values.std(axis=0)
    relative = np.divide(error, spread, out=np.zeros_like(error), where=spread > 0)
    return {"absolute": float(error.max()), "over_std": float(relative.max())}


def _queries(path: Path, source: Selection, config: StoreBenchConfig) -> dict[str, float]:
    """Two conditions and a group-by, over as many one-step episodes."""
    store = Store.create(path, _schema_of(source.store.schema, ("reward",)))
    table = source.episodes().drop_columns(["part", "start"])
    size = config.episodes // QUERY_PARTS
    chosen = table.take(pa.array(np.arange(size) % len(table)))
    chosen = _with_column(chosen, "length", np.ones(size, np.int64))
    for part in range(QUERY_PARTS):
        episodes = _with_column(chosen, "episode", part * size + np.arange(size))
        store.write_part(f"part-{part:03d}", {"reward": np.zeros(size, np.float32)}, episodes)
    warm = [seconds_of(lambda: query(store, skill="run", where=WHERE)) for _ in range(12)][2:]
    command = [sys.executable, "-c", COLD_QUERY, str(path), WHERE]
    cold = [seconds_of(lambda: subprocess.run(command, check=True)) for _ in range(4)][1:]
    return {"query_ms": 1e3 * float(np.median(warm)), "query_cold_ms": 1e3 * min(cold)}


def _streams(folder: Path, selection: Selection, config: StoreBenchConfig) -> dict[str, Any]:
    window, batch = config.window_len, config.batch_size
    single = selection.windows(1, window * batch, fields=FIELDS)
    stored = selection.windows(window, batch, fields=FIELDS)
    copy = selection.materialise(folder / "copies", FIELDS)
    mapped = copy.windows(window, batch)
    candidates: dict[str, Work] = {
        "memcpy": _memcpy(window * batch),
        "gather": _gather(selection, config),
        "stream": lambda: _drained(stored),
        "single_steps": lambda: _drained(single),
        "materialised": lambda: _drained(mapped),
    }
    peers, notes = _peers(folder, selection, config)
    rates = _rates(candidates | peers, config.rounds)
    best = {name: max(values) for name, values in rates.items()}
    ratios = {
        name: float(np.median(np.array(values) / np.array(rates["gather"])))
        for name, values in rates.items()
    }
    return {
        "stream_steps_per_s": best["stream"],
        "single_steps_per_s": best["single_steps"],
        "materialised_steps_per_s": best["materialised"],
        "floor": {name: best[name] for name in ("memcpy", "gather")},
        "peers": {name: best[name] for name in peers},
        "ratio_to_gather": ratios,
        "notes": notes,
    }


def _rates(candidates: Mapping[str, Work], rounds: int) -> dict[str, list[float]]:
    """Steps per second of each in each round."""
    steps: dict[str, int] = {}

    def work(name: str) -> None:
        steps[name] = candidates[name]()

    seconds = in_turns({name: partial(work, name) for name in candidates}, rounds)
    return {name: [steps[name] / each for each in taken] for name, taken in seconds.items()}


def _drained(stream: Iterable[Mapping[str, Any]]) -> int:
    """Real steps of one epoch."""
    return sum(int(batch["mask"].sum()) for batch in stream)


def _memcpy(steps: int) -> Work:
    """A batch's bytes copied as they lie."""
    source, target = np.zeros((steps, WIDTH), np.float32), np.ones((steps, WIDTH), np.float32)

    def work() -> int:
        for _ in range(FLOOR_BATCHES):
            np.copyto(target, source)
        return FLOOR_BATCHES * steps

    return work


def _gather(selection: Selection, config: StoreBenchConfig) -> Work:
    """Random windows copied out of memory into a batch that is used again."""
    rows = min(selection.steps, config.peer_steps)
    source = np.zeros((rows, WIDTH), np.float32)
    source[:] = 1.0
    steps = config.window_len * config.batch_size
    target = np.zeros((steps, WIDTH), np.float32)
    rng = np.random.default_rng(0)

    def work() -> int:
        for _ in range(FLOOR_BATCHES):
            first = rng.integers(rows - config.window_len, size=config.batch_size)
            window = (first[:, None] + np.arange(config.window_len)).reshape(-1)
            np.take(source, window, axis=0, out=target, mode="clip")
        return FLOOR_BATCHES * steps

    return work


def _peers(
    folder: Path, selection: Selection, config: StoreBenchConfig
) -> tuple[dict[str, Work], list[str]]:
    """The installed libraries' loaders, and a line for each that is missing."""
    long_enough = np.flatnonzero(selection.lengths >= config.window_len)
    kept = np.cumsum(selection.lengths[long_enough]) <= config.peer_steps
    chosen = selection.with_rows(selection.rows[long_enough[kept]])
    columns = {name: chosen.read(name) for name in FIELDS}
    data = PeerData(
        **columns,
        lengths=chosen.lengths,
        window_len=config.window_len,
        batch_size=config.batch_size,
    )
    found: dict[str, Work] = {}
    notes = [LEROBOT_NOTE]
    for name, build in PEERS.items():
        try:
            found[name] = build(data, folder)
        except ImportError as error:
            notes.append(f"{name}: {error.name} is not installed; pip install 'gaitforge[bench]'")
    return found, notes


def _peak_mib(store: Store, config: StoreBenchConfig) -> float:
    """Peak resident memory of a process that streams one epoch, interpreter and torch included."""
    sizes = (str(config.window_len), str(config.batch_size))
    command = [sys.executable, "-c", STREAM_ALONE, str(store.path), *sizes]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout) / 1024


def _repeated(path: Path, source: Selection, steps: int) -> Store:
    """A store of about ``steps`` steps, in parts of one shard that repeat the source's episodes."""
    store = Store.create(path, _schema_of(source.store.schema, STORED))
    repeats = max(1, round(min(PART_STEPS, steps) / source.steps))
    _write_repeated(store, source, max(1, round(steps / (repeats * source.steps))), repeats)
    return store


def _write_repeated(store: Store, source: Selection, parts: int, repeats: int) -> None:
    """Write parts that each hold the source's episodes several times, under ids of their own."""
    names = {per: store.schema.names(per) for per in ("step", "episode")}
    arrays = {name: np.concatenate([source.read(name)] * repeats) for name in store.schema.names()}
    table = pa.concat_tables([source.episodes().drop_columns(["part", "start"])] * repeats)
    for part in range(parts):
        episodes = _with_column(table, "episode", part * len(table) + np.arange(len(table)))
        store.write_part(
            f"part-{part:03d}",
            {name: arrays[name] for name in names["step"]},
            episodes,
            {name: arrays[name] for name in names["episode"]},
        )


def _schema_of(schema: Schema, names: tuple[str, ...]) -> Schema:
    return replace(schema, fields=tuple(schema.field(name) for name in names))


def _halved(schema: Schema) -> Schema:
    return replace(schema, fields=tuple(replace(each, dtype="float16") for each in schema.fields))


def _with_column(table: pa.Table, name: str, values: np.ndarray) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, pa.array(values))
