"""Names in other projects' files lead nowhere outside the folder that they are read into."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from gaitforge.datasets import open_store
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from gaitforge.plugins.exchange.tests.format_cases import CASES
from tests.collectors.test_names_in_files import NAMES, assert_nothing_outside, changed_json
from tests.datasets.formats.format_stores import random_episodes

h5py = pytest.importorskip("h5py", reason="h5py is an extra: gaitforge[hdf5]")

EPISODES = random_episodes(3)


def exported(name: str, folder: Path, notes: bool = False) -> Path:
    store = CASES[name].make(folder / "store", EPISODES)
    export_selection(name, store.select(), folder / "source", {"notes": notes})
    return folder / "source"


def lerobot_template(folder: Path, name: str) -> None:
    """LeRobot's templates of files, its splits and features."""
    source = exported("lerobot", folder)

    def change(info: dict[str, Any]) -> None:
        info["data_path"] = name + "{chunk_index}{file_index}"
        info["video_path"] = name

    changed_json(source / "meta/info.json", change)
    import_source("lerobot", source, folder / "again")


def lerobot_split(folder: Path, name: str) -> None:
    """The names of LeRobot's splits, which become files of selections."""
    source = exported("lerobot", folder)
    splits = {name: "0:1", "other": "1:2"}
    changed_json(source / "meta/info.json", lambda info: info.update(splits=splits))
    import_source("lerobot", source, folder / "again")


def robomimic_mask(folder: Path, name: str) -> None:
    """The names of robomimic's filter keys, which become files of selections."""
    source = exported("robomimic", folder)
    with h5py.File(source, "a") as file, suppress(OSError):  # HDF5 has no such name
        file[f"mask/{name}"] = np.array(["demo_0"], "S")
    import_source("robomimic", source, folder / "again")


def minari_id(folder: Path, name: str) -> None:
    """The id of a Minari dataset, and of its environment."""
    source = exported("minari", folder)
    path = next(source.rglob("metadata.json"))
    changed_json(path, lambda tree: tree.update(dataset_id=name, env_spec=name))
    import_source("minari", source, folder / "again")
    export_selection("minari", open_store(folder / "again").select(), folder / "out")


KINDS = (lerobot_template, lerobot_split, robomimic_mask, minari_id)


@pytest.mark.slow
@pytest.mark.parametrize("use", KINDS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=NAMES)
def test_nothing_is_written_outside(
    use: Callable[[Path, str], None], tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    assert_nothing_outside(use, tmp_path_factory, name)
