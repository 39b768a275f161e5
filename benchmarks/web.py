"""A training that reads its store from a web server: time to its first update, and bytes.

The store has as many steps as the paper's data set. It is one collected part, whose files all
parts share by hard links, so that it takes the disk of one. A server on loopback answers in a
process of its own; each training is a process with an empty cache, then with what the one before
it has fetched.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.harness import Bench, bar, median, run_alone
from gaitforge.collectors.legged.data import CollectionGrid
from gaitforge.datasets import Store, open_store
from gaitforge.datasets.catalog.catalog_files import write_catalog_file
from gaitforge.datasets.catalog.episodes import episode_table, episodes_digest
from gaitforge.datasets.layout import PARTS
from gaitforge.flows.progress import Reporter, Silent
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.plugins.exchange.web.cache import CACHE
from gaitforge.plugins.exchange.web.manifest import write_manifest

FIRST_UPDATE_BAR_S = 10.0
BYTES_BAR = 1.1
"""Bytes fetched of parts over those of the fields that a training reads of them, at most."""
FIELDS = ("obs", "action")
_SERVER = """
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
class Quiet(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=sys.argv[1]))
print(server.server_port, flush=True)
server.serve_forever()
"""
_TRAINING = """
import sys, time
started = time.perf_counter()
from gaitforge.datasets import open_store
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.train import train
after = []
config = TrainConfig.recommended("mlp", steps=2, threads=1)
selection = open_store(sys.argv[1]).select()
train(config, selection, sys.argv[2], lambda *_: after.append(time.perf_counter() - started))
print(after[0])
"""


@dataclass(frozen=True)
class WebBenchConfig:
    """Sizes: parts of the store, episodes of each, and rounds of both trainings."""

    parts: int = 250
    episodes: int = 1280
    rounds: int = 3


def _measure(config: WebBenchConfig, folder: Path, reporter: Reporter) -> dict[str, Any]:
    store = linked_store(folder, config.parts, config.episodes)
    write_manifest(store)
    fresh: list[float] = []
    kept: list[float] = []
    ratios: list[float] = []
    with (
        _served(folder) as address,
        reporter.step("bench web", 2 * config.rounds, "training") as advance,
    ):
        for number in range(config.rounds):
            cache = folder / f"cache-{number}"
            for seconds in (fresh, kept):
                seconds.append(_first_update_s(f"{address}/{store.path.name}", cache, folder))
                advance(1, "")
            ratios.append(_bytes_ratio(cache, store))
            shutil.rmtree(cache)
    return {
        "steps": store.info().steps,
        "first_update_s": median(fresh),
        "first_update_again_s": median(kept),
        "bytes_ratio": max(ratios),
        "bars": [
            bar("first update from a server, s", median(fresh), most=FIRST_UPDATE_BAR_S),
            bar("bytes fetched / bytes of the fields read", max(ratios), most=BYTES_BAR),
        ],
    }


def linked_store(folder: Path, parts: int, episodes: int) -> Store:
    """A store of so many parts, which are hard links to one collected part."""
    one = folder / "one.zarr"
    grid = CollectionGrid(parts=1, episodes_per_part=episodes)
    collect(LeggedPlan(grid=grid, threads=1), one, Silent())
    source = open_store(one)
    store = Store.create(folder / "many.zarr", source.schema)
    selection = source.select()
    rows = selection.episodes().drop_columns(["part", "start"])
    [(name, committed)] = source.catalog().manifests.items()
    column = rows.schema.get_field_index("episode")
    for number in range(parts):
        ids = pa.array(range(number * episodes, (number + 1) * episodes))
        numbered = rows.set_column(column, "episode", ids)
        columns = dict(zip(numbered.column_names, numbered.columns, strict=True))
        part = f"abc123-{number:05d}"
        table = episode_table(columns, part, store.schema.group_by)
        digest = episodes_digest(table)
        manifest = replace(committed, part_id=part, episodes_digest=digest)
        shutil.copytree(one / PARTS / name, store.path / PARTS / part, copy_function=os.link)
        write_catalog_file(store.files.path(part), table, manifest)
    return Store.open(store.path)


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-c", _SERVER, folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
        finally:
            server.terminate()


def _first_update_s(address: str, cache: Path, folder: Path) -> float:
    """Seconds from the start of a training's program, imports included, to its first update."""
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    before = os.environ.get(CACHE)
    os.environ[CACHE] = str(cache)
    try:
        printed, _ = run_alone(_TRAINING, address, run)
    finally:
        os.environ.pop(CACHE)
        if before is not None:
            os.environ[CACHE] = before
    return float(printed)


def _bytes_ratio(cache: Path, store: Store) -> float:
    """Bytes of parts in the cache over all bytes there of the fields of the same parts."""
    objects = [path for path in cache.rglob("*") if path.is_file() and f"/{PARTS}/" in str(path)]
    names = {path.parts[path.parts.index(PARTS) + 1] for path in objects} & set(store.parts())
    wanted = 0
    for name in names:
        for field in FIELDS:
            files = (store.path / PARTS / name / field).rglob("*")
            wanted += sum(file.stat().st_size for file in files if file.is_file())
    return sum(path.stat().st_size for path in objects) / wanted


BENCH = Bench(
    "bench_web.json", WebBenchConfig(), WebBenchConfig(parts=3, episodes=20, rounds=1), _measure
)
