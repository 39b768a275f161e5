"""A source that is damaged or incomplete is refused with the reason of the format that it is of.

An import as another format names the right one.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gaitforge.datasets import DatasetError
from gaitforge.datasets.formats import find_format, format_names
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from tests.datasets.formats.format_stores import CASES, random_episodes

h5py = pytest.importorskip("h5py", reason="h5py is an extra: gaitforge[hdf5]")

Damage = Callable[[Path], object]


def halved(pattern: str = "") -> Damage:
    """Take the second half off the source, or off the first file that matches."""

    def damage(source: Path) -> None:
        path = sorted(source.glob(pattern))[0] if pattern else source
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])

    return damage


def gone(pattern: str) -> Damage:
    """Remove a file or folder of the source."""

    def damage(source: Path) -> None:
        for path in sorted(source.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def without(*keys: str) -> Damage:
    """Remove arrays or groups of an HDF5 file, or of the first in a folder: one for each key."""

    def damage(source: Path) -> None:
        path = sorted(source.glob("*.hdf5"))[0] if source.is_dir() else source
        with h5py.File(path, "a") as file:
            names: list[str] = []
            file.visit(names.append)
            for key in keys:
                del file[next(name for name in names if name.endswith(key))]

    return damage


def text(pattern: str, content: str) -> Damage:
    """Replace a file of the source."""
    return lambda source: sorted(source.glob(pattern))[0].write_text(content)


def older(source: Path) -> None:
    """A LeRobot dataset of the version before."""
    path = source / "meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"codebase_version": "v2.1"}))


def all_halved(source: Path) -> None:
    """Take the second half off every file of a folder."""
    for path in source.iterdir():
        halved()(path)


DAMAGES: dict[str, dict[str, Damage]] = {
    "d4rl": {
        "half": halved(),
        "no actions": without("actions"),
        "rewards alone gone": without("rewards"),
        "notes without episodes": without("metadata/gaitforge/episodes"),
    },
    "robomimic": {
        "half": halved(),
        "a demo without actions": without("demo_0/actions"),
        "no demo": without("data/demo_0", "data/demo_1", "data/demo_2", "data/demo_3"),
    },
    "mocapact": {
        "every file is half": all_halved,
        "the first file is half": halved("*.hdf5"),
        "no rewards in the first file": without("/rewards"),
        "no actions in the first file": without("/actions"),
    },
    "minari": {
        "half of the arrays": halved("data/main_data.hdf5"),
        "no array file": gone("data/main_data.hdf5"),
        "no metadata": gone("data/metadata.json"),
        "metadata that are no JSON": text("data/metadata.json", "{"),
        "empty metadata": text("data/metadata.json", "{}"),
    },
    "lerobot": {
        "no info": gone("meta/info.json"),
        "info that is no JSON": text("meta/info.json", "{"),
        "an empty info": text("meta/info.json", "{}"),
        "an older version": older,
        "no episodes": gone("meta/episodes"),
        "no data": gone("data"),
        "half of the data": halved("data/*/*.parquet"),
        "half of the episodes": halved("meta/episodes/*/*.parquet"),
    },
    "fcnet": {
        "no targets": gone("tgt_*.dat"),
        "no ends": gone("meta_*.dat"),
        "half of the states": halved("src_*.dat"),
    },
}


def test_every_format_is_tried() -> None:
    assert set(DAMAGES) == set(format_names())


@pytest.mark.parametrize("name", DAMAGES)
def test_the_reason_of_the_format_that_recognises_a_source_is_given(
    name: str, tmp_path: Path
) -> None:
    if missing := find_format(name).missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    store = CASES[name].make(tmp_path / "store", random_episodes(4))
    for case, damage in DAMAGES[name].items():
        source = tmp_path / case / "source"
        source.parent.mkdir()
        export_selection(name, store.select(), source)
        damage(source)
        with pytest.raises(DatasetError) as refused:
            import_source(name, source, tmp_path / "again")
        reason = str(refused.value)
        assert "\n" not in reason
        assert "it seems to be" not in reason, case
        other = "lerobot" if name != "lerobot" else "fcnet"
        with pytest.raises(DatasetError) as mistaken:
            import_source(other, source, tmp_path / "again")
        recognised = f"it seems to be of the format {name}" in str(mistaken.value)
        assert recognised or case == "half", case
        assert not (tmp_path / "again").exists()
