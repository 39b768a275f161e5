"""Minari data sets whose content fits badly: it is kept to the last bit, refused, or named."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaitforge.datasets import DatasetError, Field, Selection, Store, open_store
from gaitforge.datasets.formats.protocol import Report
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from tests.datasets.making import part_input, small_schema, small_store

minari = pytest.importorskip("minari", reason="minari is the extra minari")
h5py = pytest.importorskip("h5py", reason="h5py is the extra hdf5")
gymnasium = pytest.importorskip("gymnasium")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

LARGEST = 2**64 - 1
LENGTHS = (4, 3)
Change = Callable[[int, int], dict[str, Any]]
"""Of an episode's number and length: what of its buffer is another."""


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the library looks for local data sets."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def write_dataset(
    root: Path,
    data_format: str = "hdf5",
    change: Change | None = None,
    name: str = "data",
    lengths: Sequence[int] = LENGTHS,
    **about: Any,
) -> Path:
    """A data set of the library's own making, of short episodes that were cut off."""
    from minari.data_collector import EpisodeBuffer

    spaces, rng, buffers = gymnasium.spaces, np.random.default_rng(0), []
    for number, length in enumerate(lengths):
        values: dict[str, Any] = {
            "seed": number,
            "observations": rng.normal(size=(length + 1, 2)).astype(np.float32),
            "actions": rng.normal(size=(length, 2)).astype(np.float32),
            "rewards": rng.normal(size=length),
            "terminations": np.zeros(length, bool),
            "truncations": np.arange(length) == length - 1,
            "infos": {"q": rng.normal(size=(length + 1, 2))},
        }
        buffers.append(EpisodeBuffer(**(values | (change(number, length) if change else {}))))
    given = {"observation_space": spaces.Box(-9, 9, (2,), np.float32)} | about
    minari.create_dataset_from_buffers(
        dataset_id=f"small/{name}-v0",
        buffer=buffers,
        action_space=spaces.Box(-np.inf, np.inf, (2,), np.float32),
        data_format=data_format,
        **given,
    )
    return root / f"small/{name}-v0/data"


def imported(source: Path, store: Path, **options: Any) -> tuple[Report, Selection]:
    report = import_source("minari", source, store, options)
    return report, open_store(store).select()


def assert_refused(source: Path, folder: Path, message: str) -> None:
    """One line that names the source, and nothing is left."""
    with pytest.raises(DatasetError, match=message) as error:
        import_source("minari", source, folder / "refused")
    assert "\n" not in str(error.value)
    assert str(source) in str(error.value)
    assert not [path.name for path in folder.iterdir() if "refused" in path.name]


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def seeds_there(data: Path) -> list[int | None]:
    storage = minari.MinariDataset(data).storage
    number = storage.total_episodes
    return [each.get("seed") for each in storage.get_episode_metadata(range(number))]


@pytest.mark.parametrize(("data_format", "notes"), [("hdf5", True), ("arrow", False)])
def test_seeds_of_64_bits(data_format: str, notes: bool, root: Path, tmp_path: Path) -> None:
    def there_and_back(name: str, seeds: tuple[int | None, ...]) -> dict[str, list[Any]]:
        data = write_dataset(root, data_format, lambda i, _: {"seed": seeds[i]}, name)
        _, found = imported(data, tmp_path / f"{name}-store")
        out = tmp_path / f"{name}-out"
        export_selection("minari", found, out, {"storage": data_format, "notes": notes})
        assert tuple(seeds_there(out / "data")) == seeds
        _, again = imported(out, tmp_path / f"{name}-again")
        columns = [each.episodes().to_pydict() for each in (found, again)]
        first, second = (
            {key: values for key, values in each.items() if "seed" in key} for each in columns
        )
        assert first == second
        return first

    large = there_and_back("large", (LARGEST, 2**63))
    assert large == {"seed": [-1, -1], "minari_seed": [str(LARGEST), str(2**63)]}
    assert there_and_back("small", (2**63 - 1, None)) == {"seed": [2**63 - 1, -1]}


def _with_text(
    shape: str, rows: Any, texts: Any, as_dict: Any = dict, as_tuple: Any = tuple
) -> Any:
    """Values, or a space, of numbers and of text."""
    if shape == "tuple":
        return as_tuple((texts, rows))
    return as_dict({"first": rows, "pair": as_dict({"numbers": rows, "text": texts})})


@pytest.mark.parametrize(("shape", "data_format"), [("tuple", "hdf5"), ("nested", "arrow")])
def test_text_is_left_out(shape: str, data_format: str, root: Path, tmp_path: Path) -> None:
    spaces, rows = gymnasium.spaces, np.random.default_rng(1).normal(size=(5, 2))
    box, text = spaces.Box(-9, 9, (2,), np.float64), spaces.Text(20)
    data = write_dataset(
        root,
        data_format,
        lambda _, n: {"observations": _with_text(shape, rows[: n + 1], ["go"] * (n + 1))},
        observation_space=_with_text(shape, box, text, spaces.Dict, spaces.Tuple),
    )
    report, found = imported(data, tmp_path / "store")
    assert any(line.endswith("a space of Text holds no numbers") for line in report.carried.left)
    obs = found.read("obs")
    np.testing.assert_array_equal(obs[: LENGTHS[0], :2], rows[: LENGTHS[0]])
    assert obs.shape[1] == (4 if shape == "nested" else 2)


def test_observations_without_numbers_are_refused(root: Path, tmp_path: Path) -> None:
    nothing = gymnasium.spaces.Box(0, 1, (0,)), np.zeros((9, 0), np.float32)
    for number, (space, rows) in enumerate([(gymnasium.spaces.Text(9), ["go"] * 9), nothing]):
        data = write_dataset(
            root,
            change=lambda _, n, rows=rows: {"observations": rows[: n + 1]},
            name=f"data-{number}",
            observation_space=space,
        )
        assert_refused(data, tmp_path, "observation_space: a space of .* holds no numbers")


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_a_missing_episode_is_named(data_format: str, root: Path, tmp_path: Path) -> None:
    data = write_dataset(root, data_format)
    if data_format == "hdf5":
        with h5py.File(data / "main_data.hdf5", "a") as file:
            file.move("episode_1", "episode_7")
    else:
        (data / "1").rename(data / "7")
    assert_refused(data, tmp_path, "episode_1: is missing; episodes are numbered from 0 without")


def test_wrong_metadata_of_an_episode_are_refused(root: Path, tmp_path: Path) -> None:
    data = write_dataset(root, "arrow")
    for seed in ("abc", 1.5, -5, 2**64, True, [1]):
        change_json(data / "1/metadata.json", seed=seed)
        assert_refused(data, tmp_path, "data: episode_1/seed: must be null or a whole number from")
    (data / "1/metadata.json").write_text("[3]")
    assert_refused(data, tmp_path, "data: episode_1: its metadata must be a JSON object")
    (data / "1/metadata.json").write_text('{"total_steps": true}')
    assert_refused(data, tmp_path, "data: episode_1/total_steps: must be a whole number from 1 on")


@pytest.mark.parametrize("seed", ["12", 2**62, 0.5, True])
def test_a_large_seed_that_is_none_is_refused_before_anything_is_written(
    seed: Any, tmp_path: Path
) -> None:
    store = Store.create(tmp_path / "store", small_schema())
    given = part_input([2])
    columns = given["episodes"] | {"minari_seed": [seed]}
    store.write_part("p", given["steps"], columns, given["per_episode"])
    with pytest.raises(DatasetError, match=f"column minari_seed must be empty or .*, not {seed!r}"):
        export_selection("minari", store.select(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def _flags(*values: int) -> np.ndarray:
    return np.array(values, bool)


def _rows(count: int, dtype: str = "f4") -> np.ndarray:
    return np.arange(count * 2, dtype=dtype).reshape(count, 2)


LATER = "episode_1/infos/z: the first episode has no such infos; with infos=false none are"
MISFITS: dict[str, Change] = {
    r"episode_0/terminations: is set at step 0 of 4; an episode ends": lambda i, n: {
        "terminations": _flags(1, *[0] * (n - 1))
    },
    r"episode_1/truncations: has shape \(4,\) and dtype bool, not \(3,\)": lambda i, n: {
        "truncations": _flags(*[0] * (n + i))
    },
    "episode_0/observations: has dtype float64, but its space is of float32": lambda i, n: {
        "observations": _rows(n + 1, "f8") / 3
    },
    "episode_1/actions: has dtype int64, but its space is of float32": lambda i, n: {
        "actions": _rows(n, "i8" if i else "f4")
    },
    r"episode_1/infos/q: has shape \(11, 2\), not 4 rows as 3 steps have": lambda i, n: {
        "infos": {"q": _rows(n + 1 + 7 * i)}
    },
    r"episode_1/infos/q: has shape \(4, 2\), not 3 rows as 3 steps have": lambda i, n: {
        "infos": {"q": _rows(n + i)}
    },
    LATER: lambda i, n: {"infos": {"q": _rows(n)} | ({"z": _rows(n)} if i else {})},
    "episode_1/infos/q: the key is missing; with infos=false none are imported": lambda i, n: {
        "infos": {"q": _rows(n)} if not i else {"z": _rows(n)}
    },
    "episode_1/infos/q: has dtype float64, the first episode float32": lambda i, n: {
        "infos": {"q": _rows(n, "f8" if i else "f4")}
    },
}


@pytest.mark.parametrize("message", MISFITS)
def test_what_would_be_lost_or_rounded_is_refused(message: str, root: Path, tmp_path: Path) -> None:
    assert_refused(write_dataset(root, change=MISFITS[message]), tmp_path, f"data: {message}")


def test_infos_that_differ_are_left_out_as_asked(root: Path, tmp_path: Path) -> None:
    data = write_dataset(root, change=MISFITS[LATER])
    report, found = imported(data, tmp_path / "store", infos=False)
    assert found.store.schema.names("step") == ["obs", "action", "reward"]
    assert "infos/q: left out as asked" in report.carried.left


def test_numbers_that_a_wider_dtype_holds_are_widened(root: Path, tmp_path: Path) -> None:
    data = write_dataset(root, change=lambda i, n: {"actions": _rows(n, "f2"), "infos": _wide(n)})
    _, found = imported(data, tmp_path / "store")
    assert found.store.schema.field("action").dtype == "float32"
    assert found.store.schema.field("info_q").dtype == "int32"
    assert found.read("info_q").tolist() == [*range(65530, 65534), *range(65530, 65533)]


def _wide(count: int) -> dict[str, np.ndarray]:
    return {"q": np.arange(65530, 65530 + count, dtype=np.uint16)}


def test_totals_that_the_episodes_contradict_are_refused(root: Path, tmp_path: Path) -> None:
    data = write_dataset(root)
    for changes, message in (
        ({"total_episodes": 1}, "total_episodes: is 1, but there is an episode_1"),
        ({"total_episodes": 3}, "episode_2: is missing; episodes are numbered"),
        ({"total_episodes": 0}, "total_episodes: must be a whole number from 1 on, not 0"),
        ({"total_episodes": 2, "total_steps": 8}, "total_steps: is 8, but the episodes have 7"),
    ):
        change_json(data / "metadata.json", **changes)
        assert_refused(data, tmp_path, message)


def test_all_of_the_metadata_is_used_or_named_as_left(root: Path, tmp_path: Path) -> None:
    data = write_dataset(root, algorithm_name="waypoints")
    spec = gymnasium.envs.registration.EnvSpec("Walk-v0", "walks:Walk")
    unused = {
        "author": ["us"],
        "author_email": ["us@example.org"],
        "code_permalink": "https://example.org",
        "description": "two walks",
        "ref_min_score": 0.0,
        "ref_max_score": 9.0,
    }
    change_json(data / "metadata.json", env_spec=spec.to_json(), **unused)
    with h5py.File(data / "main_data.hdf5", "a") as file:
        file["episode_1"].attrs["rewards_sum"] = 3.0
    report, found = imported(data, tmp_path / "store")
    assert set(report.carried.left) == {
        "bounds of observation_space",
        "env_spec of the metadata, but for its id",
        "rewards_sum of the episodes' metadata",
        *(f"{key} of the metadata" for key in (*unused, "minari_version", "dataset_size")),
    }
    export_selection("minari", found, tmp_path / "out", {"author": "us"})
    report, _ = imported(tmp_path / "out", tmp_path / "again")
    assert "author of the metadata" in report.carried.left


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_observations_that_are_booleans_come_back(data_format: str, tmp_path: Path) -> None:
    fields = (Field("obs", (3,), "bool"), Field("action", (1,), "uint8"), Field("reward"))
    store = Store.create(tmp_path / "store", small_schema(fields=fields))
    given, flags = part_input([2, 3]), np.arange(15).reshape(5, 3) % 2 == 0
    steps = {"obs": flags, "action": np.full((5, 1), 255, np.uint8)}
    store.write_part("p", {**steps, "reward": given["steps"]["reward"]}, given["episodes"])
    export_selection("minari", store.select(), tmp_path / "out", {"storage": data_format})
    _, again = imported(tmp_path / "out", tmp_path / "again")
    assert_same(store.select(), again)


def test_infos_that_were_added_to_an_export_are_named_as_left(tmp_path: Path) -> None:
    export_selection("minari", small_store(tmp_path / "store").select(), tmp_path / "out")
    with h5py.File(tmp_path / "out/data/main_data.hdf5", "a") as file:
        for episode in file.values():
            episode["infos/extra"] = np.zeros(len(episode["rewards"]) + 1)
    report, _ = imported(tmp_path / "out", tmp_path / "again")
    assert "infos/extra: was added to the export" in report.carried.left


def test_an_episode_that_the_library_would_cut_is_refused(tmp_path: Path) -> None:
    data_format = "arrow"
    store = small_store(tmp_path / "store", [[32767], [32768]])
    export_selection(
        "minari", store.select(part="part-000"), tmp_path / "fits", {"storage": data_format}
    )
    _, again = imported(tmp_path / "fits", tmp_path / "again")
    assert_same(store.select(part="part-000"), again)
    with pytest.raises(
        DatasetError, match=r"32,767 steps .* one here has 32,768; export with stor"
    ):
        export_selection("minari", store.select(), tmp_path / "out", {"storage": data_format})
    assert not (tmp_path / "out").exists()
    export_selection("minari", store.select(), tmp_path / "out")
    _, again = imported(tmp_path / "out", tmp_path / "long")
    assert_same(store.select(), again)


def assert_same(before: Selection, after: Selection) -> None:
    for name in before.store.schema.names():
        assert before.read(name).tobytes() == after.read(name).tobytes()


def test_arrow_that_the_library_would_cut_is_refused(root: Path, tmp_path: Path) -> None:
    data = write_dataset(root, "arrow")
    change_json(data / "0/metadata.json", total_steps=32768)
    message = r"data: episode_0/total_steps: is 32768; Minari reads back 32,767 steps of an episode"
    assert_refused(data, tmp_path, message)
