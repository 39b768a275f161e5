"""Notes of other projects' files are held against the arrays beside them."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gaitforge.datasets.formats import find_format
from gaitforge.plugins.exchange.tests.lerobot.lerobot_files import DATA, read
from tests.datasets.formats.format_stores import (
    FAILURE_DIFFERS,
    RETURN_DIFFERS,
    Change,
    assert_notes_hold,
    relabel_hdf5,
)

h5py = pytest.importorskip("h5py", reason="h5py is the extra hdf5")


def of_minari(key: str) -> Change:
    return lambda path: relabel_hdf5(key, path / "data/main_data.hdf5")


def relabel_parquet(key: str) -> Callable[[Path], None]:
    """All rewards of a LeRobot dataset become 1, or no episode of it failed."""

    def change(path: Path) -> None:
        table = read(path / DATA)
        at = table.column_names.index(key)
        dtype = np.float32 if key == "next.reward" else bool
        rows = np.full(table.num_rows, key == "next.reward", dtype)
        pq.write_table(table.set_column(at, key, pa.array(rows)), path / DATA)

    return change


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


def another_seed(path: Path) -> None:
    with h5py.File(path / "data/main_data.hdf5", "a") as file:
        file["episode_2"].attrs.modify("seed", 5)


def an_episode_less(path: Path) -> None:
    notes = path / "meta/gaitforge/episodes.parquet"
    pq.write_table(read(notes).slice(1), notes)


REMEDIES: dict[str, tuple[Change, str]] = {
    "minari": (without_minari_notes, "delete the key gaitforge of metadata.json"),
    "robomimic": (without_robomimic_notes, "delete the group gaitforge"),
    "lerobot": (lambda path: shutil.rmtree(path / "meta/gaitforge"), "delete the folder meta/"),
}
"""Format -> what removes its notes, and what the refusal says of that."""

EDITS: list[tuple[str, Change, str]] = [
    ("minari", of_minari("rewards"), RETURN_DIFFERS),
    ("minari", of_minari("terminations"), FAILURE_DIFFERS),
    ("minari", another_seed, "seed of episode 2 is 14 in the notes, but 5 beside them"),
    ("robomimic", partial(relabel_hdf5, "rewards"), RETURN_DIFFERS),
    ("robomimic", partial(relabel_hdf5, "dones"), FAILURE_DIFFERS),
    ("robomimic", a_demo_less, "the notes have .* episodes, not"),
    ("lerobot", relabel_parquet("next.reward"), RETURN_DIFFERS),
    ("lerobot", relabel_parquet("next.terminated"), FAILURE_DIFFERS),
    ("lerobot", relabel_parquet("next.truncated"), "truncated of episode 1 is 1 in"),
    ("lerobot", an_episode_less, "not the dataset's episodes"),
]


@pytest.mark.parametrize(
    ("name", "edit", "message"), EDITS, ids=[f"{name}-{said}" for name, _, said in EDITS]
)
def test_a_source_edited_beside_its_notes_is_refused_until_these_are_removed(
    name: str, edit: Change, message: str, tmp_path: Path
) -> None:
    if missing := find_format(name).missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    assert_notes_hold(name, edit, message, *REMEDIES[name], tmp_path)
