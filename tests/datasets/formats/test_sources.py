"""What identifies a source: imported again, changed in place, renamed, or read in another way."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaitforge.datasets import DatasetError, open_store
from gaitforge.datasets.formats import sources
from gaitforge.datasets.formats.sources import CONTENT_DIGITS, content_digests, identity
from gaitforge.datasets.formats.transfer.importing import import_source
from gaitforge.datasets.schema import Schema
from gaitforge.plugins.gym.tests.test_fcnet_format import write_maps
from tests.datasets.making import small_schema

h5py = pytest.importorskip("h5py", reason="h5py is the extra hdf5")

STEPS = 60


def d4rl_file(path: Path, steps: int = STEPS, timeouts: bool = True) -> Path:
    """A file without notes; an episode ends every ten rows."""
    rng = np.random.default_rng(0)
    ends = np.arange(steps) % 10 == 9
    with h5py.File(path, "w") as file:
        file["observations"] = rng.normal(size=(steps, 3)).astype("f4")
        file["actions"] = rng.normal(size=(steps, 2)).astype("f4")
        file["rewards"] = rng.normal(size=steps).astype("f4")
        file["terminals"] = np.zeros(steps, bool)
        if timeouts:
            file["timeouts"] = ends
    return path


def maps(folder: Path) -> Path:
    write_maps(folder)
    return folder


def change_a_file(path: Path) -> None:
    """Other bytes in the middle, the size and the times as they were."""
    file = path if path.is_file() else max(path.iterdir(), key=lambda each: each.stat().st_size)
    status, content = file.stat(), bytearray(file.read_bytes())
    at = content.find(np.random.default_rng(0).normal(size=3).astype("f4").tobytes())
    content[at : at + 4] = np.float32(0.5).tobytes()
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    ("name", "make"), [("d4rl", d4rl_file), ("fcnet", maps)], ids=["file", "folder"]
)
def test_a_source_changed_in_place(name: str, make: Callable[[Path], Path], tmp_path: Path) -> None:
    source = make(tmp_path / "source")
    import_source(name, source, tmp_path / "store")
    import_source(name, source, tmp_path / "store")
    change_a_file(source)
    with pytest.raises(DatasetError, match=r"store holds another content of .*source, .* new sto"):
        import_source(name, source, tmp_path / "store")
    import_source(name, source, tmp_path / "new")
    old, new = (open_store(tmp_path / each).select() for each in ("store", "new"))
    assert not np.array_equal(old.read("obs"), new.read("obs"))
    assert not set(old.episodes()["episode"].to_pylist()) & set(
        new.episodes()["episode"].to_pylist()
    )


def test_a_source_changed_after_it_joined_a_store_is_refused(tmp_path: Path) -> None:
    """The second source of a store is remembered as the first one is."""
    first, second = d4rl_file(tmp_path / "a.hdf5"), d4rl_file(tmp_path / "b.hdf5", 40)
    for path in (first, second):
        import_source("d4rl", path, tmp_path / "store", {"quality": "mine"})
    change_a_file(second)
    with pytest.raises(DatasetError, match=r"another content of .*b.hdf5"):
        import_source("d4rl", second, tmp_path / "store", {"quality": "mine"})
    import_source("d4rl", first, tmp_path / "store", {"quality": "mine"})
    assert len(open_store(tmp_path / "store").select()) == 10


@pytest.mark.parametrize(
    ("name", "make", "options"),
    [
        ("d4rl", d4rl_file, {"quality": "expert"}),
        ("fcnet", maps, {"horizon": 3}),
    ],
)
def test_the_same_content_read_in_another_way_is_not_imported_twice(
    name: str, make: Callable[[Path], Path], options: dict[str, Any], tmp_path: Path
) -> None:
    source = make(tmp_path / "source")
    import_source(name, source, tmp_path / "store")
    before = open_store(tmp_path / "store").info()
    with pytest.raises(DatasetError, match=r"episode ids .* of the source are in store"):
        import_source(name, source, tmp_path / "store", options)
    assert open_store(tmp_path / "store").info() == before


def test_the_same_content_under_another_name_is_not_imported_twice(tmp_path: Path) -> None:
    source = d4rl_file(tmp_path / "hopper_medium.hdf5")
    import_source("d4rl", source, tmp_path / "store")
    renamed = source.with_name("hopper_expert.hdf5")
    shutil.copy(source, renamed)
    with pytest.raises(DatasetError, match=r"episode ids .* of the source are in store"):
        import_source("d4rl", renamed, tmp_path / "store")
    moved = tmp_path / "elsewhere" / source.name
    moved.parent.mkdir()
    shutil.move(source, moved)
    before = open_store(tmp_path / "store").info()
    import_source("d4rl", moved, tmp_path / "store")
    assert open_store(tmp_path / "store").info() == before, "where it lies does not matter"


def test_the_identity_of_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_HASH_BLOCK", 64)
    monkeypatch.setattr(sources, "_HASH_READ", 16)
    path, content = tmp_path / "x", bytes(range(200))
    seen = set()
    for at in [None, 0, 63, 64, 100, 199]:
        changed = bytearray(content)
        if at is not None:
            changed[at] ^= 1
        path.write_bytes(changed)
        seen.add(identity([path])[:CONTENT_DIGITS])
    assert len(seen) == 6
    path.write_bytes(b"")
    assert content_digests([path, path]) == content_digests([path]) * 2
    assert identity([path, path]) != identity([path])
    one, other = identity([path], "a"), identity([path], "b")
    assert one != other
    assert one[:CONTENT_DIGITS] == other[:CONTENT_DIGITS]


def test_a_file_that_went_away_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="gone: cannot be read: No such file"):
        identity([tmp_path / "gone"])


BAD_OPTIONS = [
    ("d4rl", {"horizon": -5}, "horizon must be a number of steps, .* not -5"),
    ("d4rl", {"horizon": 2.5}, "horizon must be a number of steps, .* not 2.5"),
    (
        "d4rl",
        {"control_dt_s": float("inf")},
        "control_dt_s must be a number of seconds, .* not inf",
    ),
    ("d4rl", {"early_timeouts": "maybe"}, "early_timeouts is 'maybe'; allowed: cut_off, truncated"),
    ("fcnet", {"horizon": -5}, "horizon must be a number of steps, .* not -5"),
    ("fcnet", {"robot": ""}, "robot needs a name"),
]


@pytest.mark.parametrize(("name", "options", "message"), BAD_OPTIONS)
def test_options_out_of_their_range_are_refused(
    name: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DatasetError, match=f"option {message}"):
        import_source(name, tmp_path / "whatever", tmp_path / "store", options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 0.0, -0.02])
def test_a_time_step_is_positive_and_finite(seconds: float) -> None:
    with pytest.raises(DatasetError, match="control_dt_s must be positive and finite"):
        Schema(small_schema().fields, seconds, "aliengo")


def test_an_episode_beyond_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = d4rl_file(tmp_path / "maze.hdf5", timeouts=False)
    with h5py.File(path, "a") as file:
        file["timeouts"] = np.zeros(STEPS, bool)
    monkeypatch.setattr(sources, "EPISODE_BYTES", 20 * 24)
    message = r"maze.hdf5: terminals: episode 0 of 60 steps takes .* give horizon=N"
    with pytest.raises(DatasetError, match=message):
        import_source("d4rl", path, tmp_path / "store")
    import_source("d4rl", path, tmp_path / "store", {"horizon": 20})
    assert open_store(tmp_path / "store").select().lengths.tolist() == [20, 20, 20]
    with pytest.raises(DatasetError, match=r"meta: episode 0 of 6 steps takes"):
        import_source("fcnet", maps(tmp_path / "maps"), tmp_path / "other")
