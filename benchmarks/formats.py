"""Speed and memory of importing other projects' files, beside just reading them with h5py.

The sources are made here, of the sizes and layouts of the real ones: Hopper's 11 + 3 + 1 numbers a
step in a flat D4RL file, plain and compressed, and in robomimic's demos; the CMU humanoid's 2,868 +
56 + 56 + 1 in MoCapAct's rollout files. Their values are noise, which compresses no better than
sensors do.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np

from benchmarks.harness import Bench, run_alone
from gaitforge.datasets import Field, Schema, create_store, open_store
from gaitforge.datasets.formats.sources import catalog_columns, episode_returns
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.flows.progress import Reporter
from gaitforge.plugins.gym.environments.tasks import find_task
from gaitforge.plugins.mocapact.humanoid.snippet_grid import humanoid_schema

WANTED_MB_PER_S = 100.0
WANTED_MIB = 1024.0
"""Limits: megabytes imported per second on two cores, and the most memory."""

PART_BYTES = 64 << 20
IMPORT_ALONE = """
import json, sys, time
from gaitforge.flows.stages.transfer import ImportPlan, run_import
from gaitforge.flows.progress import Silent
cpu = time.process_time()
report = run_import(ImportPlan(sys.argv[1]), sys.argv[2], sys.argv[3], Silent())
print(json.dumps({"seconds": report.seconds, "cpu_s": time.process_time() - cpu}))
"""


@dataclass(frozen=True)
class Source:
    """One kind of file: its name, format, the exporter's options, and the schema of its data."""

    name: str
    format: str
    options: Mapping[str, Any]
    schema: Schema
    episode_steps: int


@dataclass(frozen=True)
class FormatBenchConfig:
    """Megabytes of steps in each source, and rounds of which the best counts."""

    megabytes: int = 600
    rounds: int = 2


def made_sources() -> tuple[Source, ...]:
    """D4RL plain and compressed, robomimic's compressed demos, and MoCapAct as its files are."""
    fields = (Field("obs", (11,)), Field("action", (3,)), Field("reward"))
    final = Field("final_obs", (11,), per="episode")
    hopper = Schema((*fields, final), find_task("Hopper-v5").facts.control_dt_s, "hopper")
    return (
        Source("D4RL, plain", "d4rl", {"compression": "none", "notes": False}, hopper, 500),
        Source("D4RL, gzip", "d4rl", {"compression": "gzip", "notes": False}, hopper, 500),
        Source("robomimic", "robomimic", {"notes": False}, hopper, 500),
        Source("MoCapAct", "mocapact", {"notes": False}, humanoid_schema(has_value=True), 160),
    )


def _measure(config: FormatBenchConfig, folder: Path, reporter: Reporter) -> dict[str, Any]:
    """A row per source.

    `mb` is uncompressed, `cpu_mb_per_s` by the time of all threads, `read_mb_per_s` with h5py
    alone, `of_reading` the ratio to it, and `peak_mib` of a separate process.
    """
    rows = []
    sources = made_sources()
    with reporter.step("bench formats", len(sources), "source") as advance:
        for number, source in enumerate(sources):
            place = folder / str(number)
            place.mkdir()
            rows.append(_imported(source, place, config))
            rmtree(place)
            advance(1, source.name)
    return {"rows": rows}


def _imported(source: Source, folder: Path, config: FormatBenchConfig) -> dict[str, Any]:
    path = _write_source(source, folder, config.megabytes)
    runs = []
    peaks = []
    reads = []
    for number in range(config.rounds):
        store = folder / f"{number}.zarr"
        printed, peak_mib = run_alone(IMPORT_ALONE, source.format, path, store)
        runs.append(json.loads(printed))
        peaks.append(peak_mib)
        reads.append(_read_everything(path))
    megabytes = reads[0][0] / 1e6
    rate = megabytes / min(run["seconds"] for run in runs)
    read = megabytes / min(seconds for _, seconds in reads)
    return {
        "source": source.name,
        "mb": megabytes,
        "file_mb": path.stat().st_size / 1e6,
        "mb_per_s": rate,
        "cpu_mb_per_s": megabytes / min(run["cpu_s"] for run in runs),
        "read_mb_per_s": read,
        "of_reading": rate / read,
        "peak_mib": max(peaks),
        "met": rate >= WANTED_MB_PER_S and max(peaks) <= WANTED_MIB,
    }


def _write_source(source: Source, folder: Path, megabytes: int) -> Path:
    """A file of this many megabytes, written through a store and our exporter."""
    row_bytes = sum(each.row_bytes for each in source.schema.fields if each.per == "step")
    episode_bytes = row_bytes * source.episode_steps
    episodes = max(1, megabytes * 1_000_000 // episode_bytes)
    part_episodes = max(1, PART_BYTES // episode_bytes)
    store = create_store(folder / "source.zarr", source.schema, {})
    rng = np.random.default_rng(0)
    for first in range(0, episodes, part_episodes):
        count = min(part_episodes, episodes - first)
        rows = {"step": count * source.episode_steps, "episode": count}
        noise: dict[str, dict[str, np.ndarray]] = {"step": {}, "episode": {}}
        for each in source.schema.fields:
            shape = (rows[each.per], *each.shape)
            noise[each.per][each.name] = rng.standard_normal(shape, dtype=np.float32)
        lengths = np.full(count, source.episode_steps)
        returns = episode_returns(noise["step"]["reward"], lengths)
        columns: dict[str, object] = {"terminated": True, "return": returns}
        columns[source.schema.group_by[1]] = "noise"
        catalog = catalog_columns(first, lengths, "0" * 7, source.schema.group_by, **columns)
        store.write_part(f"part-{first:06d}", noise["step"], catalog, noise["episode"])
    path = folder / f"{source.schema.robot}-noise.hdf5"
    selection = open_store(folder / "source.zarr").select()
    export_selection(source.format, selection, path, source.options)
    return path


def _read_everything(path: Path) -> tuple[int, float]:
    """Bytes and seconds of reading all data sets of a file, one after the other."""
    import h5py  # of the extra `hdf5`

    started = time.perf_counter()
    sizes = []
    with h5py.File(path) as file:

        def read(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                sizes.append(np.asarray(item[()]).nbytes)

        file.visititems(read)
    return sum(sizes), time.perf_counter() - started


BENCH = Bench(
    "bench_formats.json",
    FormatBenchConfig(),
    FormatBenchConfig(megabytes=4, rounds=1),
    _measure,
    lambda record: [("Imports, and reading the same files with h5py alone", record["rows"])],
)
