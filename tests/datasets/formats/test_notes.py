"""Notes beside a file's arrays are held against these, whatever the format."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gaitforge.datasets import DatasetError, open_store
from gaitforge.datasets.formats import find_format
from gaitforge.datasets.formats.sources import Span, check_notes
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from gaitforge.plugins.exchange.tests.lerobot_files import DATA, read
from tests.datasets.making import small_store

h5py = pytest.importorskip("h5py", reason="h5py is the extra hdf5")

LENGTHS = np.array([3, 1])
REWARDS = np.array([0.1, 0.2, 0.3, -5.0], np.float32)
RIGHT: dict[str, Any] = {
    "length": [3, 1],
    "terminated": [True, False],
    "truncated": [False, True],
    "return": [0.6, -5.0],
}


def check(changes: dict[str, Any], rewards: np.ndarray = REWARDS) -> None:
    columns = {name: values for name, values in (RIGHT | changes).items() if values is not None}
    check_notes(
        "x.hdf5",
        "notes",
        pa.table(columns),
        Span(LENGTHS, 7, 0),
        remedy="delete them",
        terminated=np.array([True, False]),
        truncated=np.array([False, True]),
        rewards=rewards,
    )


def test_notes_that_say_what_the_arrays_say_pass() -> None:
    check({})
    assert check_notes("x", "notes", pa.table(RIGHT), Span(LENGTHS, 0, 0), remedy="") is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": [3, 2]}, "length of episode 8 is 2 in the notes, but 1 in the arrays; del"),
        ({"terminated": [False, False]}, "terminated of episode 7 is 0 in the notes, but 1 in "),
        ({"truncated": [False, None]}, "truncated of episode 8 is nan in the notes, "),
        ({"return": [0.6, -5.001]}, "return of episode 8 is -5.001 in the notes, but -5 in "),
        ({"return": None}, "the notes lack the column return"),
        ({"return": ["a", "b"]}, "the column return of the notes is not of numbers"),
    ],
)
def test_notes_that_say_something_else_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError, match=f"x.hdf5: notes: {message}") as error:
        check(changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8"])
def test_a_return_summed_before_rounding_or_in_any_order_passes(dtype: str) -> None:
    given = np.random.default_rng(0).normal(scale=3.0, size=2000)
    stored = given.astype(dtype)
    summed = stored.astype("f8") if dtype == "int8" else given
    running = float(np.cumsum(summed[::-1].astype("f4"))[-1])
    table = pa.table({"length": [2000], "return": [running]})
    span = Span(np.array([2000]), 0, 0)
    check_notes("x", "notes", table, span, remedy="", rewards=stored)
    with pytest.raises(DatasetError, match="return of episode 0"):
        check_notes("x", "notes", table, span, remedy="", rewards=stored * 0 + 1)


def relabel_hdf5(key: str) -> Callable[[Path], None]:
    """All rewards of an HDF5 file become 1, or no episode of it failed."""

    def change(path: Path) -> None:
        path = path if path.is_file() else path / "data/main_data.hdf5"
        with h5py.File(path, "a") as file:
            changed: list[Any] = []
            file.visititems(lambda name, each: changed.append(each) if name.endswith(key) else None)
            for each in changed:
                each[...] = key == "rewards"

    return change


def relabel_parquet(key: str) -> Callable[[Path], None]:
    """The same of a LeRobot dataset."""

    def change(path: Path) -> None:
        table = read(path / DATA)
        at = table.column_names.index(key)
        dtype = np.float32 if key == "next.reward" else bool
        rows = np.full(table.num_rows, key == "next.reward", dtype)
        pq.write_table(table.set_column(at, key, pa.array(rows)), path / DATA)

    return change


def without_d4rl_notes(path: Path) -> None:
    with h5py.File(path, "a") as file:
        del file["metadata/gaitforge"]


def without_minari_notes(path: Path) -> None:
    tree = json.loads((path / "data/metadata.json").read_text())
    del tree["gaitforge"]
    (path / "data/metadata.json").write_text(json.dumps(tree))


def without_robomimic_notes(path: Path) -> None:
    with h5py.File(path, "a") as file:
        del file["gaitforge"]


def a_demo_less(path: Path) -> None:
    with h5py.File(path, "a") as file:
        del file["data/demo_1"]


def timed_out(path: Path) -> None:
    with h5py.File(path, "a") as file:
        file["timeouts"][:] |= file["terminals"][:]  # pyright: ignore
        file["terminals"][:] = False  # pyright: ignore[reportIndexIssue]


def an_end_more(path: Path) -> None:
    with h5py.File(path, "a") as file:
        file["terminals"][0] = True  # pyright: ignore[reportIndexIssue]


def another_seed(path: Path) -> None:
    with h5py.File(path / "data/main_data.hdf5", "a") as file:
        file["episode_2"].attrs.modify("seed", 5)


def an_episode_less(path: Path) -> None:
    notes = path / "meta/gaitforge/episodes.parquet"
    pq.write_table(read(notes).slice(1), notes)


REMEDIES: dict[str, tuple[Callable[[Path], None], str]] = {
    "d4rl": (without_d4rl_notes, "metadata/gaitforge: .* delete"),
    "minari": (without_minari_notes, "delete the key gaitforge of metadata.json"),
    "robomimic": (without_robomimic_notes, "delete the group gaitforge"),
    "lerobot": (lambda path: shutil.rmtree(path / "meta/gaitforge"), "delete the folder meta/"),
}
"""Format -> what removes its notes, and what the refusal says of that."""

REWARDS, FAILED = "return of episode 0 is .* in the notes, but ", "terminated of episode 0 is 1 in"
EDITS: list[tuple[str, Callable[[Path], None], str]] = [
    ("d4rl", relabel_hdf5("rewards"), REWARDS),
    ("d4rl", timed_out, FAILED),
    ("d4rl", an_end_more, "the lengths in the notes are not"),
    ("minari", relabel_hdf5("rewards"), REWARDS),
    ("minari", relabel_hdf5("terminations"), FAILED),
    ("minari", another_seed, "seed of episode 2 is 14 in the notes, but 5 beside them"),
    ("robomimic", relabel_hdf5("rewards"), REWARDS),
    ("robomimic", relabel_hdf5("dones"), FAILED),
    ("robomimic", a_demo_less, "the notes have .* episodes, not"),
    ("lerobot", relabel_parquet("next.reward"), REWARDS),
    ("lerobot", relabel_parquet("next.terminated"), FAILED),
    ("lerobot", relabel_parquet("next.truncated"), "truncated of episode 1 is 1 in"),
    ("lerobot", an_episode_less, "not the dataset's episodes"),
]


@pytest.mark.parametrize(
    ("name", "edit", "message"), EDITS, ids=[f"{name}-{said}" for name, _, said in EDITS]
)
def test_a_source_edited_beside_its_notes_is_refused_until_these_are_removed(
    name: str, edit: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    if missing := find_format(name).missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    export_selection(name, small_store(tmp_path / "store").select(), tmp_path / "out")
    edit(tmp_path / "out")
    remove, remedy = REMEDIES[name]
    with pytest.raises(DatasetError, match=message) as error:
        import_source(name, tmp_path / "out", tmp_path / "again")
    assert re.search(remedy, str(error.value))
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "store"]
    remove(tmp_path / "out")
    import_source(name, tmp_path / "out", tmp_path / "again")
    found = open_store(tmp_path / "again").select()
    rewards = np.split(found.read("reward").astype(float), np.cumsum(found.lengths)[:-1])
    returns = found.episodes()["return"].to_pylist()
    np.testing.assert_allclose(returns, [each.sum() for each in rewards], rtol=1e-12)


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_notes_are_refused_before_they_are_unpacked(
    compression: str, tmp_path: Path
) -> None:
    h5py = pytest.importorskip("h5py")
    store = small_store(tmp_path / "s", [(3, 2)])
    path = tmp_path / "x.hdf5"
    export_selection("d4rl", store.select(), path)
    zeros = pa.table({"length": np.zeros(20_000_000, np.int64)})
    words = pa.table({"skill": pa.array(["run"] * 20_000_000).dictionary_encode()})
    for table in (zeros, words):
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
            writer.write_table(table)
        with h5py.File(path, "a") as file:
            del file["metadata/gaitforge/episodes"]
            content = np.frombuffer(sink.getvalue(), np.uint8)
            file["metadata/gaitforge"].create_dataset("episodes", data=content)
        before = pa.total_allocated_bytes()
        with pytest.raises(DatasetError, match=r"notes are damaged: .* is compressed") as refused:
            import_source("d4rl", path, tmp_path / "again")
        assert "\n" not in str(refused.value)
        assert pa.total_allocated_bytes() - before < 10_000_000
