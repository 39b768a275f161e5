"""Speed of the store, beside plain copies and other libraries' loaders, in one run.

A small set is really collected, for the cost of writing and the bytes per step. Its episodes are
repeated to a set that is large enough to stream and to query. What is compared runs in turns, so
judge by the ratios to the gather, the one copy that every loader needs: of wall time, and on a busy
machine of CPU time, which counts all threads of a loader. A stream's rate counts real steps,
without padding; the others' counts every step of their batches.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.catalog import catalog_figures
from benchmarks.harness import Bench, bar, run_alone
from benchmarks.peers import PEERS, PeerData, Work
from gaitforge.collectors.legged.data import CollectionGrid, StoredForm
from gaitforge.collectors.robots.robot import load_robot
from gaitforge.common.errors import install_extra
from gaitforge.datasets import Schema, Selection, Store, open_store
from gaitforge.flows.progress import Reporter, Silent
from gaitforge.flows.records.part_records import collection_rate
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.learners.tokens import BODY
from gaitforge.learners.training.batches import with_bodies
from gaitforge.plugins.papers.measures.timing import in_turns, seconds_of
from gaitforge.plugins.robots.varying import vary_robots

FIELDS = ("obs", "action")
WIDTH = 82
STORED = (*FIELDS, "reward")
PART_STEPS = 240_000
FLOOR_BATCHES = 20
STREAM_BAR = 5.0
COPY_BAR = 15.0
"""Million steps a second on two quiet cores, at least: from the store, from a materialised copy."""
GATHER_BAR = 0.3
"""Rate of the stream from the store, at least, as a share of that of gathering from memory."""
VARIED_BAR = 0.8
FAMILY = "aliengo-family"
STREAM_ALONE = """
import sys
from gaitforge.datasets import open_store
for batch in open_store(sys.argv[1]).select().windows(int(sys.argv[2]), int(sys.argv[3])):
    pass
"""
VARIED_ALONE = """
import sys
from gaitforge.datasets import open_store
from gaitforge.learners.training.batches import with_bodies
selection = open_store(sys.argv[1]).select()
for batch in with_bodies(selection.windows(int(sys.argv[2]), int(sys.argv[3])), selection):
    pass
"""


@dataclass(frozen=True)
class StoreBenchConfig:
    """Sizes of the benchmark.

    Attributes:
        collected: the episodes that are simulated, on `threads`.
        steps: steps to stream: several pools, so that the stream reads more than once.
        parts: of a catalog of their own, of `episodes_per_part` each, that is queried.
        bodies: different robots in a second large set, beside the first of one robot.
        peers: other libraries' loaders; peer_steps: most steps given to each.
    """

    collected: CollectionGrid
    threads: int = 2
    steps: int = 4_000_000
    parts: int = 320
    episodes_per_part: int = 1000
    rounds: int = 5
    window_len: int = 64
    batch_size: int = 1024
    bodies: int = 100
    peers: tuple[str, ...] = tuple(PEERS)
    peer_steps: int = 500_000


def _measure(config: StoreBenchConfig, folder: Path, reporter: Reporter) -> dict[str, Any]:
    """The figures by name.

    `catalog` and `stream_peak_mib` are of separate processes, `write_share` is of a
    collecting worker's time, `ratio_to_gather` (name -> ratio) is the median over the rounds, and
    `cpu_ratio_to_gather` the same of steps per second of CPU time.
    """
    with reporter.step("bench store", 5, "stage") as advance:
        figures = _collection(folder / "collected.zarr", config)
        advance(1, "collected")
        source = open_store(folder / "collected.zarr").select()
        figures |= _sizes(folder, source)
        sizes = config.parts, config.episodes_per_part
        figures |= catalog_figures(folder / "catalog.zarr", source, *sizes)
        advance(1, "sizes and queries")
        stored = _repeated(folder / "stream.zarr", source, config.steps)
        sizes = (config.window_len, config.batch_size)
        _, figures["stream_peak_mib"] = run_alone(STREAM_ALONE, stored.path, *sizes)
        advance(1, "large set")
        varied = _repeated(folder / "varied.zarr", _varied(folder, config), config.steps)
        _, figures["varied_peak_mib"] = run_alone(VARIED_ALONE, varied.path, *sizes)
        advance(1, "large set of many bodies")
        bars = figures.pop("bars")
        figures |= _streams(folder, stored.select(), varied.select(), config)
        figures["bars"] += bars
        advance(1, "streams")
    return figures


def _collection(path: Path, config: StoreBenchConfig) -> dict[str, Any]:
    """Speed of collecting into a new store, and the share of it that is writing."""
    form = StoredForm(state=True)
    plan = LeggedPlan(grid=config.collected, form=form, threads=config.threads)
    done = collect(plan, path, Silent())
    busy = sum(each.ended - each.started for each in done)
    writing = sum(each.write_s for each in done)
    return {"collect_steps_per_s": collection_rate(done), "write_share": writing / busy}


def _varied(folder: Path, config: StoreBenchConfig) -> Selection:
    """Episodes of many bodies of a family; an Aliengo's expert drives them as well as it can."""
    family = folder / "family"
    path = folder / "bodies.zarr"
    vary_robots(load_robot(), 0, config.bodies, family, lambda: None)
    grid = replace(config.collected, parts=config.bodies, episodes_per_part=4)
    plan = LeggedPlan(grid=grid, expert=FAMILY, robot=str(family), threads=config.threads)
    collect(plan, path, Silent())
    return open_store(path).select()


def _sizes(folder: Path, source: Selection) -> dict[str, object]:
    """Bytes a step, catalog included, of the same episodes with and without poses."""
    sizes = {}
    schema = source.store.schema
    for name, form in {"": schema, "_without_state": _schema_of(schema, STORED)}.items():
        store = Store.create(folder / f"size{name}.zarr", form)
        _write_repeated(store, source, parts=1, repeats=1)
        sizes[f"bytes_per_step{name}"] = store.info().bytes / source.steps
    return sizes


def _streams(
    folder: Path, selection: Selection, varied: Selection, config: StoreBenchConfig
) -> dict[str, object]:
    window = config.window_len
    batch = config.batch_size
    copy = selection.materialise(folder / "copies", FIELDS)
    streams = {
        "stream": selection.windows(window, batch, fields=FIELDS),
        "single_steps": selection.windows(1, window * batch, fields=FIELDS),
        "materialised": copy.windows(window, batch),
        "varied": varied.windows(window, batch, fields=FIELDS),
    }
    floors = _floors(selection, config)
    streamed: dict[str, Work] = {
        name: partial(_drained, stream) for name, stream in streams.items()
    }
    streamed["varied"] = lambda: _drained(with_bodies(streams["varied"], varied))
    peers, notes = _peers(folder, selection, config)
    rates, cpu_rates = _rates(floors | streamed | peers, config.rounds)
    best = {name: float(max(values)) for name, values in rates.items()}
    unit = "million steps/s"
    speed = {name: value / 1e6 for name, value in best.items()}
    ratios = _ratios_to_gather(rates)
    of_one = float(np.median(rates["varied"] / rates["stream"]))
    return {
        "stream_steps_per_s": best["stream"],
        "single_steps_per_s": best["single_steps"],
        "materialised_steps_per_s": best["materialised"],
        "varied_ratio_to_stream": of_one,
        "floor": {name: best[name] for name in floors},
        "peers": {name: best[name] for name in peers},
        "ratio_to_gather": ratios,
        "cpu_ratio_to_gather": _ratios_to_gather(cpu_rates),
        "bars": [
            bar("stream from the store", speed["stream"], least=STREAM_BAR, unit=unit),
            bar("stream over gather", ratios["stream"], least=GATHER_BAR, unit="of its rate"),
            bar("materialised stream", speed["materialised"], least=COPY_BAR, unit=unit),
            bar("many bodies over one", of_one, least=VARIED_BAR, unit="of its rate"),
        ],
        "notes": notes,
    }


def _ratios_to_gather(rates: Mapping[str, np.ndarray]) -> dict[str, float]:
    return {name: float(np.median(values / rates["gather"])) for name, values in rates.items()}


def _rates(
    candidates: Mapping[str, Work], rounds: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Steps per second of each in each round, of wall time and of CPU time."""
    steps: dict[str, int] = {}

    def work(name: str) -> None:
        steps[name] = candidates[name]()

    def timed(name: str) -> tuple[float, float]:
        started = time.process_time()
        wall = seconds_of(partial(work, name))
        return wall, time.process_time() - started

    seconds = in_turns({name: partial(timed, name) for name in candidates}, rounds)
    rates = {name: steps[name] / np.array(taken) for name, taken in seconds.items()}
    wall, cpu = ({name: rate[:, kind] for name, rate in rates.items()} for kind in (0, 1))
    return wall, cpu


def _drained(stream: Iterable[Mapping[str, Any]]) -> int:
    """Read one epoch; returns its steps without padding, counted without torch's threads."""
    return sum(int(np.count_nonzero(batch["mask"].numpy())) for batch in stream)


def _floors(selection: Selection, config: StoreBenchConfig) -> dict[str, Work]:
    """Copies into the same batch again and again: in one piece, and random windows of a table."""
    rows = min(selection.steps, config.peer_steps)
    steps = config.window_len * config.batch_size
    table = np.ones((rows, WIDTH), np.float32)
    batch = np.ones((steps, WIDTH), np.float32)
    source = np.zeros_like(batch)
    rng = np.random.default_rng(0)

    def gather() -> None:
        first = rng.integers(rows - config.window_len, size=config.batch_size)
        window = (first[:, None] + np.arange(config.window_len)).reshape(-1)
        np.take(table, window, axis=0, out=batch, mode="clip")

    def repeated(copy: Callable[[], object]) -> int:
        for _ in range(FLOOR_BATCHES):
            copy()
        return FLOOR_BATCHES * steps

    copies = {"memcpy": partial(np.copyto, batch, source), "gather": gather}
    return {name: partial(repeated, copy) for name, copy in copies.items()}


def _peers(
    folder: Path, selection: Selection, config: StoreBenchConfig
) -> tuple[dict[str, Work], list[str]]:
    """The installed libraries' loaders, and a line for each that is missing."""
    long_enough = np.flatnonzero(selection.lengths >= config.window_len)
    kept = np.cumsum(selection.lengths[long_enough]) <= config.peer_steps
    chosen = selection.with_rows(selection.rows[long_enough[kept]])
    obs, action = (chosen.read(name) for name in FIELDS)
    data = PeerData(obs, action, chosen.lengths, config.window_len, config.batch_size)
    found: dict[str, Work] = {}
    notes = []
    for name in config.peers:
        try:
            found[name] = PEERS[name](data, folder)
        except ImportError as error:
            notes.append(f"{name}: {error.name} is not installed: {install_extra('bench')}")
    return found, notes


def _repeated(path: Path, source: Selection, steps: int) -> Store:
    """A store of about `steps` steps, in parts of one shard that repeat the source's episodes."""
    names = source.store.schema.names()
    store = Store.create(path, _schema_of(source.store.schema, (*STORED, *({BODY} & {*names}))))
    repeats = max(1, round(min(PART_STEPS, steps) / source.steps))
    _write_repeated(store, source, max(1, round(steps / (repeats * source.steps))), repeats)
    return store


def _write_repeated(store: Store, source: Selection, parts: int, repeats: int) -> None:
    """Write parts that each hold the source's episodes several times, under ids of their own."""
    steps, ends = (
        {name: np.concatenate([source.read(name)] * repeats) for name in store.schema.names(per)}
        for per in ("step", "episode")
    )
    table = pa.concat_tables([source.episodes().drop_columns(["part", "start"])] * repeats)
    for part in range(parts):
        episodes = _with_column(table, "episode", part * len(table) + np.arange(len(table)))
        store.write_part(f"part-{part:03d}", steps, episodes, ends)


def _schema_of(schema: Schema, names: tuple[str, ...]) -> Schema:
    return replace(schema, fields=tuple(schema.field(name) for name in names))


def _with_column(table: pa.Table, name: str, values: np.ndarray) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, pa.array(values))


BENCH = Bench(
    "bench_store.json",
    StoreBenchConfig(CollectionGrid(parts=2, episodes_per_part=160)),
    StoreBenchConfig(
        CollectionGrid(terrains=("flat",), skills=("run",), parts=1, episodes_per_part=4),
        threads=1,
        steps=4000,
        parts=2,
        rounds=1,
        window_len=16,
        batch_size=4,
        bodies=2,
        peer_steps=700,
    ),
    _measure,
)
