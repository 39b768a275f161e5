"""One NaN in a source of any format: refused with its episode named, or left out on request."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gaitforge.datasets import DatasetError, Selection, open_store
from gaitforge.datasets.formats import sources
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from gaitforge.plugins.exchange.tests.lerobot_files import DATA, read
from tests.datasets.formats.format_stores import CASES, random_episodes

EPISODES = random_episodes(6)


def spoil_hdf5(path: Path, key: str, row: int = 0) -> None:
    import h5py

    with h5py.File(path, "r+") as file:
        file[key][row] = np.nan  # pyright: ignore[reportIndexIssue]


def spoil_mocapact(path: Path) -> None:
    import h5py

    path = path if path.is_file() else next(path.glob("*.hdf5"))
    with h5py.File(path) as file:
        name = next(name for name in file if "0" in file[name])  # pyright: ignore
    spoil_hdf5(path, f"{name}/0/actions")


def spoil_map(path: Path) -> None:
    [file] = path.glob("tgt_*.dat")
    values = np.fromfile(file, "<f4")
    values[12 * 3] = np.inf
    values.tofile(file)


def spoil_parquet(path: Path) -> None:
    table = read(path / DATA)
    rows = table.column("action").to_pylist()
    rows[5] = [float("nan")] * len(rows[5])
    at, kind = table.column_names.index("action"), table.schema.field("action").type
    pq.write_table(table.set_column(at, "action", pa.array(rows, kind)), path / DATA)


SPOIL: dict[str, Callable[[Path], None]] = {
    "d4rl": lambda path: spoil_hdf5(path, "rewards", 5),
    "fcnet": spoil_map,
    "lerobot": spoil_parquet,
    "minari": lambda path: spoil_hdf5(path / "data/main_data.hdf5", "episode_3/actions"),
    "mocapact": spoil_mocapact,
    "robomimic": lambda path: spoil_hdf5(path, "data/demo_3/actions"),
}


def actions(selection: Selection) -> list[bytes]:
    return sorted(selection.episode(i)["action"].tobytes() for i in range(len(selection)))


@pytest.mark.slow
def test_an_episode_with_nan_is_named_or_left_out(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "SHARD_STEPS", 10)
    whole = CASES[name].make(tmp_path / "store", EPISODES).select()
    export_selection(name, whole, tmp_path / "out")
    SPOIL[name](tmp_path / "out")
    with pytest.raises(DatasetError, match=r"is not finite, in episode \d+; --drop-nan") as error:
        import_source(name, tmp_path / "out", tmp_path / "again")
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "store"]

    for _ in range(2):  # importing again changes nothing
        report = import_source(name, tmp_path / "out", tmp_path / "again", drop_nan=True)
        again = open_store(tmp_path / "again")
        kept, before = actions(again.select()), actions(whole)
        assert len(kept) == len(before) - 1
        assert all(episode in before for episode in kept)
        assert (report.episodes, report.steps) == (len(kept), again.select().steps)
        assert again.verify() == []
    report = import_source(name, tmp_path / "out", tmp_path / "anew", drop_nan=True)
    left_out = f"not finite: 1 episode of {whole.steps - report.steps} step"
    assert left_out in " ".join(report.carried.notes)


def test_a_source_with_nothing_finite_is_refused(tmp_path: Path) -> None:
    CASES["fcnet"].make(tmp_path / "store", EPISODES)
    export_selection("fcnet", open_store(tmp_path / "store").select(), tmp_path / "out")
    [file] = (tmp_path / "out").glob("tgt_*.dat")
    np.full(file.stat().st_size // 4, np.nan, "<f4").tofile(file)
    with pytest.raises(DatasetError, match="out: every episode has values that are not finite"):
        import_source("fcnet", tmp_path / "out", tmp_path / "again", drop_nan=True)
    assert not (tmp_path / "again").exists()
