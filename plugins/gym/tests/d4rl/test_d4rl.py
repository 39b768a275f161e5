"""D4RL files as others write and read them; what holds for any format is in `test_formats`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest

from gaitforge.datasets import DatasetError, Selection, Store, open_store
from gaitforge.datasets.formats import sources
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from gaitforge.plugins.gym.d4rl.d4rl_tasks import normalised_return
from tests.datasets.formats.format_stores import plain_store, random_episodes
from tests.datasets.making import part_input, small_schema

OBS, ACTION = 4, 2


def rows(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """The arrays of a file of `count` rows in which nothing ends."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(count + 1, OBS)).astype(np.float32)
    return {
        "observations": obs[:-1],
        "next_observations": obs[1:],
        "actions": rng.normal(size=(count, ACTION)).astype(np.float32),
        "rewards": rng.normal(size=count).astype(np.float32),
        "terminals": np.zeros(count, bool),
        "timeouts": np.zeros(count, bool),
    }


def write(path: Path, arrays: Mapping[str, Any]) -> Path:
    """A file as D4RL's scripts write it, policy and all."""
    with h5py.File(path, "w") as file:
        for key, values in arrays.items():
            file.create_dataset(key, data=values, compression="gzip")
        file["metadata/algorithm"] = np.bytes_("SAC")
        file["metadata/policy/fc0/weight"] = np.zeros((3, 3))
    return path


def imported(path: Path, **options: Any) -> Selection:
    store = path.with_suffix(".zarr")
    import_source("d4rl", path, store, options)
    return open_store(store).select()


def endings(selection: Selection) -> list[str]:
    table = selection.episodes()
    flags = zip(
        table.column("terminated").to_pylist(), table.column("truncated").to_pylist(), strict=True
    )
    return ["terminated" if t else "truncated" if u else "cut off" for t, u in flags]


def test_episodes_end_at_terminals_and_timeouts_and_the_rest_is_cut_off(tmp_path: Path) -> None:
    arrays = rows(20)
    arrays["terminals"][[4, 5]] = True
    arrays["timeouts"][11] = True
    found = imported(write(tmp_path / "maze.hdf5", arrays))
    assert found.lengths.tolist() == [5, 1, 6, 8]
    assert endings(found) == ["terminated", "terminated", "truncated", "cut off"]
    assert np.array_equal(found.read("obs"), arrays["observations"])
    assert np.array_equal(found.read("action"), arrays["actions"])
    assert np.array_equal(found.read("reward"), arrays["rewards"])
    assert np.array_equal(found.read("final_obs"), arrays["next_observations"][[4, 5, 11, 19]])
    sums = [part.sum() for part in np.split(arrays["rewards"].astype(float), [5, 6, 12])]
    assert found.episodes().column("return").to_pylist() == pytest.approx(sums, abs=1e-12)


def test_without_timeouts_the_horizon_of_the_environment_ends_episodes(tmp_path: Path) -> None:
    arrays = rows(3500)
    del arrays["timeouts"], arrays["next_observations"]
    arrays["terminals"][[199, 2299]] = True
    found = imported(write(tmp_path / "hopper_mixed.hdf5", arrays))
    assert found.lengths.tolist() == [200, 1000, 1000, 100, 1000, 200]
    assert endings(found) == [
        "terminated", "truncated", "truncated", "terminated", "truncated", "cut off"
    ]  # fmt: skip
    table = found.episodes()
    assert table.column("quality").to_pylist() == ["medium-replay"] * 6
    assert "final_obs" not in found.store.schema.names()


def test_a_horizon_of_ones_own(tmp_path: Path) -> None:
    arrays = rows(10)
    del arrays["timeouts"]
    path = write(tmp_path / "mine.hdf5", arrays)
    with pytest.raises(DatasetError, match=r"mine.hdf5: timeouts: the key is missing.*horizon=N"):
        imported(path)
    found = imported(path, horizon=5)
    assert endings(found) == ["truncated", "truncated"]


def test_a_timeout_before_the_horizon_is_where_recording_stopped(tmp_path: Path) -> None:
    arrays = rows(2040)
    arrays["timeouts"][[39, 1039, 2038]] = True
    path = write(tmp_path / "walker2d_medium_replay-v2.hdf5", arrays)
    found = imported(path)
    assert found.lengths.tolist() == [40, 1000, 999, 1]
    assert endings(found) == ["cut off", "truncated", "truncated", "cut off"]
    path = path.rename(path.with_name("again.hdf5"))
    as_marked = imported(path, task="walker2d", early_timeouts="truncated")
    assert endings(as_marked)[0] == "truncated"


def test_the_catalog_has_normalised_returns(tmp_path: Path) -> None:
    arrays = rows(1000)
    arrays["timeouts"][-1] = True
    found = imported(write(tmp_path / "halfcheetah_medium_expert-v2.hdf5", arrays))
    table = found.episodes()
    total = table.column("return").to_pylist()[0]
    expected = normalised_return("halfcheetah", total)
    returns = np.array([-20.272305, 3234.3, 1607.0138475])
    assert normalised_return("hopper", returns) == pytest.approx([0.0, 100.0, 50.0])
    assert table.column("normalised_return").to_pylist() == pytest.approx([expected])
    assert len(found.where("normalised_return < 50 and quality = 'medium-expert'")) == 1
    assert found.store.schema.control_dt_s == 0.05
    assert found.store.schema.attributes["reference_returns"]["expert"] == 12135.0


def widened(arrays: dict[str, np.ndarray], width: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(len(arrays["rewards"]) + 1, width)).astype(np.float32)
    return arrays | {"observations": obs[:-1], "next_observations": obs[1:]}


@pytest.mark.parametrize(
    ("name", "width", "expected"),
    [
        (
            "hopper_medium",
            11,
            {"root_pos": (0, 2), "joint_pos": (2, 5), "root_vel": (5, 8), "joint_vel": (8, 11)},
        ),
        ("hopper_medium", 12, {"state": (0, 12)}),
        ("ant_medium", 27, {"state": (0, 27)}),
        ("mine", 3, {"state": (0, 3)}),
    ],
)
def test_observations_have_names(
    name: str, width: int, expected: dict[str, tuple[int, int]], tmp_path: Path
) -> None:
    arrays = widened(rows(5), width)
    arrays["terminals"][-1] = True
    schema = imported(write(tmp_path / f"{name}.hdf5", arrays)).store.schema
    assert schema.field("obs").slices == expected
    assert schema.field("final_obs").slices == expected


def test_infos_become_fields(tmp_path: Path) -> None:
    arrays: dict[str, Any] = rows(6)
    arrays["terminals"][-1] = True
    arrays["infos/qpos"] = np.arange(18.0).reshape(6, 3)
    arrays["infos/Env State/a"] = np.arange(6, dtype=">u2")
    arrays["infos/goal"] = np.zeros((5, 2))
    path = write(tmp_path / "x.hdf5", arrays)
    report = import_source("d4rl", path, tmp_path / "store")
    found = open_store(tmp_path / "store").select()
    assert np.array_equal(found.read("info_qpos"), arrays["infos/qpos"])
    assert found.read("info_env_state_a").tolist() == [0, 1, 2, 3, 4, 5]
    left = "\n".join(report.carried.left)
    assert "infos/goal: shape (5, 2) is not of 6 rows" in left
    assert "metadata" not in left
    assert any(line.startswith("metadata -> kept") for line in report.carried.kept)
    without = import_source("d4rl", path, tmp_path / "bare", {"infos": False})
    assert "infos/qpos: left out as asked" in without.carried.left


def test_columns_of_one_number_are_taken_as_numbers(tmp_path: Path) -> None:
    arrays = rows(6)
    arrays["terminals"][-1] = True
    columns = {key: arrays[key].astype("f4")[:, None] for key in ("rewards", "terminals")}
    found = imported(write(tmp_path / "x.hdf5", arrays | columns))
    assert np.array_equal(found.read("reward"), arrays["rewards"])


def test_next_observations_of_their_own_are_asked_for_and_then_kept(tmp_path: Path) -> None:
    arrays = rows(6)
    arrays["terminals"][2] = True
    arrays["next_observations"] = arrays["next_observations"].copy()
    arrays["next_observations"][2] += 1  # the end of an episode: no contradiction
    arrays["next_observations"][4] += 1
    path = write(tmp_path / "x.hdf5", arrays)
    with pytest.raises(DatasetError, match=r"x.hdf5: next_observations: row 4 is not row 5.*keep_"):
        imported(path)
    found = imported(path, keep_next=True)
    assert np.array_equal(found.read("next_obs"), arrays["next_observations"])
    export_selection("d4rl", found, tmp_path / "out.hdf5")
    with h5py.File(tmp_path / "out.hdf5") as file:
        written = np.asarray(file["next_observations"])
    assert np.array_equal(written, arrays["next_observations"])


BAD: dict[str, dict[str, Any]] = {
    r"x.hdf5: rewards: dtype \|?V8 is not one of": {"rewards": np.zeros(20, "V8")},
    "x.hdf5: terminals: row 2 is 2, not 0 or 1": {"terminals": np.arange(20)},
    "x.hdf5: observations: has no rows": {"observations": np.zeros((0, 3))},
    r"x.hdf5: actions: has no numbers: its shape is": {"actions": np.zeros((20, 0))},
    "rewards: needs one number per row, not shape": {"rewards": np.zeros((20, 2))},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_one_line_that_names_file_and_key(message: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        for key, values in (rows(20) | BAD[message]).items():
            file.create_dataset(key, data=values)
    with pytest.raises(DatasetError, match=message) as error:
        import_source("d4rl", tmp_path / "x.hdf5", tmp_path / "store")
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["x.hdf5"]


def test_damaged_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "hopper.hdf5", rows(5000))
    with h5py.File(path) as file:
        at = file["actions"].id.get_chunk_info(0).byte_offset  # pyright: ignore
    content = bytearray(path.read_bytes())
    content[at + 10 : at + 60] = bytes(50)
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"hopper.hdf5: actions: rows 0 to \d+ cannot be read"):
        import_source("d4rl", path, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_an_episode_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PART_BYTES", 1000)
    store = plain_store(tmp_path / "store", random_episodes(10))
    path = tmp_path / "out.hdf5"
    export_selection("d4rl", store.select(), path)
    with h5py.File(path, "a") as file:
        key = "metadata/gaitforge/episodes"
        with pa.ipc.open_stream(pa.py_buffer(np.asarray(file[key]))) as reader:
            noted = reader.read_all()
        ids = pa.array([7, *noted.column("episode").to_pylist()[1:-1], 7], pa.int64())
        changed = noted.set_column(noted.column_names.index("episode"), "episode", ids)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, changed.schema) as writer:
            writer.write_table(changed)
        del file[key]
        file[key] = np.frombuffer(sink.getvalue(), np.uint8)
    with pytest.raises(DatasetError, match=r"out\.hdf5: .*episode") as error:
        import_source("d4rl", path, tmp_path / "again")
    assert "\n" not in str(error.value)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out.hdf5", "store"]


def test_a_store_without_rewards_cannot_be_a_d4rl_file(tmp_path: Path) -> None:
    fields = tuple(each for each in small_schema().fields if each.name != "reward")
    bare = Store.create(tmp_path / "bare", small_schema(fields=fields))
    given = part_input([3, 4])
    del given["steps"]["reward"]
    bare.write_part("a", **given)
    with pytest.raises(
        DatasetError, match=r"needs the fields obs, action, reward; .* lacks reward"
    ):
        export_selection("d4rl", bare.select(), tmp_path / "out.hdf5")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizon": -5}, "horizon must be a number of steps, .* not -5"),
        ({"horizon": 2.5}, "horizon must be a number of steps, .* not 2.5"),
        (
            {"control_dt_s": float("inf")},
            "control_dt_s must be a number of seconds, .* not inf",
        ),
        ({"early_timeouts": "maybe"}, "early_timeouts is 'maybe'; allowed: cut_off, truncated"),
    ],
)
def test_options_out_of_their_range_are_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DatasetError, match=f"option {message}"):
        import_source("d4rl", tmp_path / "whatever", tmp_path / "store", options)
    assert list(tmp_path.iterdir()) == []


def test_an_episode_beyond_memory_may_be_cut_by_a_horizon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "maze.hdf5", rows(60))
    monkeypatch.setattr(sources, "EPISODE_BYTES", 20 * 40)
    message = r"maze.hdf5: terminals: episode 0 of 60 steps takes .* give horizon=N"
    with pytest.raises(DatasetError, match=message):
        import_source("d4rl", path, tmp_path / "store")
    import_source("d4rl", path, tmp_path / "store", {"horizon": 20})
    assert open_store(tmp_path / "store").select().lengths.tolist() == [20, 20, 20]


def test_a_file_whose_name_says_another_quality_is_not_imported_twice(tmp_path: Path) -> None:
    source = write(tmp_path / "hopper_medium.hdf5", rows(20))
    import_source("d4rl", source, tmp_path / "store")
    renamed = source.rename(source.with_name("hopper_expert.hdf5"))
    with pytest.raises(DatasetError, match=r"episode ids .* of the source are in store"):
        import_source("d4rl", renamed, tmp_path / "store")
