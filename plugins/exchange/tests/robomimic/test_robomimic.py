"""Files of robomimic and of Isaac Lab: what becomes what, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.datasets import (
    DatasetError,
    Selection,
    merge_stores,
    open_store,
    save_split,
    split_by_fractions,
)
from gaitforge.datasets.edits.split import cut_episodes
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from gaitforge.plugins.exchange.tests.format_cases import robomimic_store
from gaitforge.plugins.exchange.tests.robomimic.robomimic_files import (
    isaac_lab_episode,
    robomimic_demo,
    write_isaac_lab,
    write_robomimic,
)
from tests.datasets.formats.format_stores import ENDINGS
from tests.datasets.making import small_store, write_small_part

h5py = pytest.importorskip("h5py", reason="h5py is an extra: gaitforge[hdf5]")

ROBOT = "articulation_robot"


def imported(path: Path, **options: Any) -> Selection:
    import_source("robomimic", path, path.with_suffix(".zarr"), options)
    return open_store(path.with_suffix(".zarr")).select()


def column(selection: Selection, name: str) -> list[Any]:
    return selection.episodes(name).column(name).to_pylist()


@settings(max_examples=4, deadline=None)
@given(
    episodes=st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from(list(ENDINGS))), min_size=2, max_size=6
    ),
    layout=st.sampled_from(["robomimic", "isaaclab"]),
    chosen=st.integers(1, 2**6 - 1),
)
def test_values_ends_and_selections_come_back(
    tmp_path_factory: pytest.TempPathFactory,
    episodes: list[tuple[int, str]],
    layout: str,
    chosen: int,
) -> None:
    folder = tmp_path_factory.mktemp("law")
    whole = robomimic_store(folder / "store", episodes).select()
    picked = [at for at in range(len(whole)) if chosen >> at & 1] or [0]
    whole.with_rows(whole.rows[picked]).save(folder / "picked.json")
    options = {"layout": layout, "masks": (str(folder / "picked.json"),)}
    export_selection("robomimic", whole, folder / "out.hdf5", options)
    again = imported(folder / "out.hdf5")
    for name in ("obs", "action", "reward", "final_obs"):
        assert whole.read(name).tobytes() == again.read(name).tobytes()
    assert whole.episodes("terminated", "truncated") == again.episodes("terminated", "truncated")
    saved = Selection.load(again.store, folder / "out.zarr.selections/picked.json")
    assert saved.episode_ids().tolist() == whole.episode_ids()[picked].tolist()


def test_what_isaac_lab_records_goes_in_and_out(tmp_path: Path) -> None:
    trees = [isaac_lab_episode(steps, steps) for steps in (5, 1, 7)]
    said = ({"success": True, "seed": 42}, {"success": False}, {})
    write_isaac_lab(tmp_path / "demos.hdf5", [*zip(trees, said, strict=True), ({}, {})])
    selection = imported(tmp_path / "demos.hdf5")
    schema, seen = selection.schema, trees[2]["obs"]
    assert selection.lengths.tolist() == [5, 1, 7]
    assert schema.field("obs").slices == {
        "actions": (0, 7),
        "eef_pose": (7, 13),
        "joint_pos": (13, 22),
    }
    last = selection.episode(2)
    flat = [seen[key].reshape(7, -1) for key in ("actions", "eef_pose", "joint_pos")]
    assert last["obs"].tobytes() == np.concatenate(flat, axis=1).tobytes()
    grasped = last["obs_datagen_info_subtask_term_signals_grasp_1"]
    assert grasped.tolist() == seen["datagen_info"]["subtask_term_signals"]["grasp_1"].tolist()
    robot = trees[2]["states"]["articulation"]["robot"]
    assert last[f"states_{ROBOT}_joint_position"].tobytes() == robot["joint_position"].tobytes()
    assert last[f"initial_state_{ROBOT}_root_pose"].tolist() == robot["root_pose"][0].tolist()
    assert column(selection, "success") == [True, False, False]
    assert column(selection, "terminated") == [True, False, False]
    assert column(selection, "truncated") == [False, True, False]
    assert column(selection, "seed") == [42, -1, -1]
    assert not selection.read("reward").any()

    export_selection("robomimic", selection, tmp_path / "out.hdf5", {"layout": "isaaclab"})
    with h5py.File(tmp_path / "demos.hdf5") as before, h5py.File(tmp_path / "out.hdf5") as after:
        keys: list[str] = []
        before["data"].visit(keys.append)
        arrays = [key for key in keys if isinstance(before["data"][key], h5py.Dataset)]
        for key in (each for each in arrays if "table_cam" not in each):
            assert before["data"][key][()].tobytes() == after["data"][key][()].tobytes(), key
        assert dict(after["data/demo_0"].attrs) == {"num_samples": 5, **said[0]}
        assert json.loads(after["data"].attrs["env_args"])["env_name"].startswith("Isaac-Stack")


def test_one_observation_array_as_isaac_lab_concatenates_it(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(4, 48)).astype(np.float32)
    tree = {"obs": rows, "actions": rows[:, :12]}
    write_isaac_lab(tmp_path / "demos.hdf5", [(tree, {"success": True})])
    selection = imported(tmp_path / "demos.hdf5")
    assert selection.read("obs").tobytes() == rows.tobytes()
    export_selection("robomimic", selection, tmp_path / "out.hdf5", {"layout": "isaaclab"})
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert file["data/demo_0/obs"][()].tobytes() == rows.tobytes()


def test_what_robomimic_writes_comes_in(tmp_path: Path) -> None:
    demos = {f"demo_{n}": robomimic_demo(4 + n, n, solved=n != 2) for n in (10, 0, 2)}
    masks = {"train": ["demo_0", "demo_10", "demo_11"], "20_percent": ["demo_2"], "all": ["x"]}
    write_robomimic(tmp_path / "lift.hdf5", demos, masks)
    with h5py.File(tmp_path / "lift.hdf5", "a") as file:
        file["data/demo_2"].attrs["num_samples"] = 5
        file["data/demo_2"].create_dataset("obs/depth", data=np.zeros((6, 8, 8, 1), np.float32))
    report = import_source("robomimic", tmp_path / "lift.hdf5", tmp_path / "lift.zarr")
    store = open_store(tmp_path / "lift.zarr")
    selection = store.select()
    assert column(selection, "demo") == [0, 2, 10]
    assert selection.lengths.tolist() == [4, 6, 14]
    first, given = selection.episode(0), demos["demo_0"]
    assert first["obs"].dtype == np.float64
    obs = np.concatenate([given["obs"][key] for key in ("eef", "object")], axis=1)
    assert first["obs"].tobytes() == obs.tobytes()
    final = np.concatenate([given["next_obs"][key][-1] for key in ("eef", "object")])
    assert first["final_obs"].tobytes() == final.tobytes()
    assert first["states"].tobytes() == given["states"].tobytes()
    assert column(selection, "success") == [True, False, True]
    assert column(selection, "truncated") == [False, True, False]
    assert (store.schema.control_dt_s, store.schema.robot) == (0.05, "Lift")
    notes = " ".join(report.carried.notes)
    assert "demo_2 (5 for 6)" in notes.replace("np.int64(5)", "5")
    assert "mask/train: demo_11 are not there" in notes
    left = " ".join(report.carried.left)
    assert "obs/depth: data/demo_0 lacks it" in left
    assert "attribute model_file" in left
    folder = tmp_path / "lift.zarr.selections"
    assert sorted(each.name for each in folder.iterdir()) == ["20_percent.json", "train.json"]
    assert column(Selection.load(store, folder / "train.json"), "demo") == [0, 10]
    export_selection("robomimic", selection, tmp_path / "out.hdf5", {"masks": (str(folder),)})
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert file["mask/train"][()].tolist() == [b"demo_0", b"demo_2"]
        assert json.loads(file["data"].attrs["env_args"])["type"] == 1
        assert "model_file" not in file["data/demo_0"].attrs


@pytest.mark.parametrize(("mode", "solved"), [(0, [True, True]), (1, [True, False])])
def test_what_a_done_says_is_an_option(mode: int, solved: list[bool], tmp_path: Path) -> None:
    demos = [robomimic_demo(5, n, solved=n == 0) for n in range(2)]
    demos[1]["dones"][-1] = 1  # of the end, which done_mode 1 and 2 mark too
    write_robomimic(tmp_path / "x.hdf5", {f"demo_{n}": each for n, each in enumerate(demos)})
    selection = imported(tmp_path / "x.hdf5", done_mode=mode)
    assert column(selection, "success") == column(selection, "terminated") == solved


def test_observations_are_chosen_by_name_and_order(tmp_path: Path) -> None:
    write_isaac_lab(tmp_path / "x.hdf5", [(isaac_lab_episode(4, 0), {})])
    selection = imported(
        tmp_path / "x.hdf5", obs=("joint_pos", "datagen_info/*"), fields=("obs/eef_*", "states/*")
    )
    slices = selection.schema.field("obs").slices
    assert next(iter(slices)) == "joint_pos"
    assert selection.schema.field("obs").shape == (9 + 16 + 1,)
    names = {"obs_eef_pose", f"states_{ROBOT}_root_pose", f"states_{ROBOT}_joint_position"}
    assert {*selection.schema.names()} == {"obs", "action", "reward", *names}


def test_unlike_next_observations_are_kept_on_request(tmp_path: Path) -> None:
    demo = robomimic_demo(5)
    demo["next_obs"]["eef"][1] += 1e-9
    write_robomimic(tmp_path / "x.hdf5", {"demo_0": demo})
    problem = r"data/demo_0/next_obs: row 1 is not row 2 of obs; .* name it in fields, as fields=\*"
    with pytest.raises(DatasetError, match=problem):
        import_source("robomimic", tmp_path / "x.hdf5", tmp_path / "x.zarr")
    selection = imported(tmp_path / "x.hdf5", fields=("next_obs/*",))
    assert selection.read("next_obs_eef").tobytes() == demo["next_obs"]["eef"].tobytes()


Edit = Callable[[Any], None]


def drop(key: str) -> Edit:
    return lambda file: file.__delitem__(key)


def put(key: str, value: Any) -> Edit:
    def change(file: Any) -> None:
        if key in file:
            del file[key]
        file[key] = value

    return change


def declare(*key_and_shape: tuple[str, tuple[int, ...]]) -> Edit:
    """Arrays of shapes that the file holds no values of."""

    def change(file: Any) -> None:
        for key, shape in key_and_shape:
            if key in file:
                del file[key]
            file.create_dataset(key, shape, "f4", chunks=tuple(min(each, 64) for each in shape))

    return change


def say(group: str, name: str, value: Any) -> Edit:
    return lambda file: file[group].attrs.__setitem__(name, value)


def in_turn(*edits: Edit) -> Edit:
    def change(file: Any) -> None:
        for edit in edits:
            edit(file)

    return change


LONG = [(f"data/demo_0/{key}", (10**12, 3)) for key in ("actions", "obs/eef", "obs/object")]
WIDE = ("data/demo_0/initial_state/x", (1, 10**12))
PICTURE = np.zeros((4, 8, 8, 3), np.uint8)
REFUSED: dict[str, tuple[Edit, dict[str, Any]]] = {
    "data: no such group; a robomimic file has data/demo_0": (drop("data"), {}),
    "data/demo_0/actions: is missing or has no rows": (drop("data/demo_0/actions"), {}),
    "obs: no demo has observations that are numbers": (drop("data/demo_0/obs"), {}),
    "obs/eef: in data/demo_0 its shape is .3, 3., not .4, 3.; name others with obs=": (
        put("data/demo_0/obs/eef", np.zeros((3, 3))),
        {},
    ),
    "obs/eef: in data/demo_0 its dtype .S2 is not one of numbers": (
        put("data/demo_0/obs/eef", np.zeros((4, 3), "S2")),
        {},
    ),
    "rewards: needs 1 number a step, not shape .2,": (
        put("data/demo_0/rewards", np.zeros((4, 2))),
        {},
    ),
    "data/demo_0/dones: has values other than 0 and 1": (
        put("data/demo_0/dones", [0, 0, 0, 2]),
        {},
    ),
    "data/demo_0: is not a group": (put("data/demo_0", 3), {}),
    "episode 0 of 1000000000000 steps takes .* MB.*; cut it into several demos": (
        in_turn(drop("data/demo_0/rewards"), drop("data/demo_0/dones"), declare(*LONG)),
        {},
    ),
    "data: the arrays with a row a demo are too large": (declare(WIDE), {}),
    "data/demo_0: seed: must be a whole number": (say("data/demo_0", "seed", 1.5), {}),
    "data: env_args: must be a JSON object": (say("data", "env_args", "[" * 9**4), {}),
    "option obs: no 'camera'; allowed: eef, object": (in_turn(), {"obs": ("camera",)}),
    "option obs: rgb: a picture of shape .8, 8, 3": (
        put("data/demo_0/obs/rgb", PICTURE),
        {"obs": ("eef", "rgb")},
    ),
    "option fields: no 'x'; allowed: states": (in_turn(), {"fields": ("x",)}),
    "option done_mode is 3; allowed: 0, 1, 2": (in_turn(), {"done_mode": 3}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_refusal_is_one_line(message: str, tmp_path: Path) -> None:
    edit, options = REFUSED[message]
    write_robomimic(tmp_path / "x.hdf5", {"demo_0": robomimic_demo(4, following=False)})
    with h5py.File(tmp_path / "x.hdf5", "a") as file:
        edit(file)
    with pytest.raises(DatasetError, match=message) as error:
        import_source("robomimic", tmp_path / "x.hdf5", tmp_path / "x.zarr", options)
    assert "\n" not in str(error.value)
    assert [each.name for each in tmp_path.iterdir()] == ["x.hdf5"]


def test_an_array_that_one_demo_lacks_is_refused_if_it_is_needed(tmp_path: Path) -> None:
    for key in ("rewards", "dones", "obs/eef"):
        demos = {f"demo_{n}": robomimic_demo(4, n) for n in range(2)}
        write_robomimic(tmp_path / "x.hdf5", demos)
        with h5py.File(tmp_path / "x.hdf5", "a") as file:
            del file[f"data/demo_1/{key}"]
        with pytest.raises(DatasetError, match=f"{key}: data/demo_1 lacks it"):
            import_source("robomimic", tmp_path / "x.hdf5", tmp_path / "x.zarr")


def test_what_an_export_refuses_and_says(tmp_path: Path) -> None:
    whole = robomimic_store(tmp_path / "store", [(3, "truncated")] * 4).select()
    whole.with_rows(whole.rows[:1]).save(tmp_path / "one.json")
    for options, message in (
        ({"held_out": 1e-9}, "filter key valid: none of its episodes is exported"),
        ({"masks": (str(tmp_path / "none.json"),)}, f"no file {tmp_path}/none.json"),
        ({"masks": (str(tmp_path / "one.json"),) * 2}, "two filter keys would be named one"),
    ):
        with pytest.raises(DatasetError, match=message):
            export_selection("robomimic", whole, tmp_path / "out.hdf5", options)
    report = export_selection("robomimic", whole, tmp_path / "out.hdf5", {"held_out": 0.5})
    assert "actions reach" in " ".join(report.carried.notes)
    with h5py.File(tmp_path / "out.hdf5") as file:
        sides = [{*file[f"mask/{name}"][()].tolist()} for name in ("train", "valid")]
        assert json.loads(file["data"].attrs["env_args"])["env_name"] == "aliengo"
    rest, held_out = whole.split(0.5, 0)
    assert [len(each) for each in sides] == [len(rest), len(held_out)]
    assert not sides[0] & sides[1]


def test_a_merged_store_names_the_versions_of_all_its_sources(tmp_path: Path) -> None:
    versions = {"old": "2.3.0", "new": "3.0.0", "plain": None}
    for number, (name, version) in enumerate(versions.items()):
        path = tmp_path / f"{name}.hdf5"
        write_isaac_lab(path, [(isaac_lab_episode(4, number), {"success": True})])
        with h5py.File(path, "a") as file:
            env_args = {"env_name": "Isaac-Stack-Cube-Franka-v0", "type": 2}
            env_args |= {"isaaclab_version": version} if version else {}
            env_args |= {"env_kwargs": {"control_freq": 50 + number, "table": [number]}}
            file["data"].attrs["env_args"] = json.dumps(env_args)
        import_source("robomimic", path, tmp_path / name, {"control_dt_s": 0.02})
    stores = {name: open_store(tmp_path / name) for name in versions}
    both = open_store(merge_stores(stores["old"], stores["new"], tmp_path / "both"))
    both.tag("v1")
    every = open_store(merge_stores(both, stores["plain"], tmp_path / "every"))
    every.select().annotate({"note": "x"})
    every.compact()
    [first, *_] = both.select().episode_ids().tolist()
    first_states = both.schema.names("episode")
    cut = open_store(cut_episodes(both, tmp_path / "cut", {first: [2]}, without=first_states))
    sides = split_by_fractions(both.select(), {"a": 0.5, "b": 0.5}, 0)
    side = open_store(save_split(sides, tmp_path / "sides", {})["a"])
    for number, (store, words) in enumerate(
        [
            (both, "2.3.0 and 3.0.0"),
            (open_store(both.path, tag="v1"), "2.3.0 and 3.0.0"),
            (cut, "2.3.0 and 3.0.0"),
            (every, "2.3.0 and 3.0.0 and none"),
            (side, None),
        ]
    ):
        out = tmp_path / f"out-{number}.hdf5"
        report = export_selection("robomimic", store.select(), out, {"layout": "isaaclab"})
        with h5py.File(out) as file:
            env_args = json.loads(file["data"].attrs["env_args"])
        assert env_args["env_name"] == "Isaac-Stack-Cube-Franka-v0"
        said = [line for line in report.carried.left if "isaaclab_version" in line]
        if words is None:
            assert env_args["isaaclab_version"] in ("2.3.0", "3.0.0")
            assert not said
            continue
        assert env_args["isaaclab_version"] == words
        assert env_args["env_kwargs"] == {"control_freq": 50.0}
        what = "one isaaclab_version for all episodes in env_args"
        assert said == [f"{what}: the sources have {words}; it says so"]
        import_source("robomimic", out, tmp_path / f"again-{number}")


def test_filter_keys_whose_names_are_no_files_have_a_file_each(tmp_path: Path) -> None:
    demos = {f"demo_{n}": robomimic_demo(3, n) for n in range(4)}
    masks = {"a b": ["demo_0"], "a_b": ["demo_1"], "a?b": ["demo_2"], "x" * 300: ["demo_3"]}
    write_robomimic(tmp_path / "lift.hdf5", demos, masks)
    selection = imported(tmp_path / "lift.hdf5")
    folder = tmp_path / "lift.zarr.selections"
    saved = [Selection.load(selection.store, path) for path in sorted(folder.iterdir())]
    assert sorted(each.episode_ids().tolist()[0] for each in saved) == sorted(
        selection.episode_ids().tolist()
    )
    assert [len(each) for each in saved] == [1] * 4
    assert (folder / "a_b.json").is_file()


def test_a_filter_key_grows_also_after_its_episodes_were_edited(tmp_path: Path) -> None:
    for number in range(3):
        demos = {f"demo_{n}": robomimic_demo(4, 10 * number + n) for n in range(3)}
        write_robomimic(tmp_path / f"{number}.hdf5", demos, {"train": ["demo_0", "demo_1"]})
    path = tmp_path / "s.zarr"
    import_source("robomimic", tmp_path / "0.hdf5", path)
    open_store(path).select().where("demo = 0").trim(1)
    open_store(path).select().where("demo = 1").drop()
    import_source("robomimic", tmp_path / "1.hdf5", path)
    saved = tmp_path / "s.zarr.selections/train.json"
    train = Selection.load(open_store(path), saved)
    assert sorted(zip(column(train, "demo"), train.lengths.tolist(), strict=True)) == [
        (0, 3), (0, 4), (1, 4),
    ]  # fmt: skip
    saved.write_text("mine")
    with pytest.raises(DatasetError, match="not a saved selection"):
        import_source("robomimic", tmp_path / "2.hdf5", path)
    assert len(open_store(path).select()) == 5
    assert saved.read_text() == "mine"


def test_a_filter_key_names_its_episodes_after_parts_were_added(tmp_path: Path) -> None:
    store = open_store(small_store(tmp_path / "s.zarr").path)
    store.select().where("episode in (1, 3)").save(tmp_path / "picked.json")
    earlier = store.select()
    write_small_part(store, "before", [4, 6], 50)
    options = {"masks": (str(tmp_path / "picked.json"),)}
    for selection in (earlier, open_store(store.path).select()):
        out = tmp_path / f"{len(selection)}.hdf5"
        export_selection("robomimic", selection, out, options)
        ids = selection.episode_ids().tolist()
        with h5py.File(out) as file:
            names = [name.decode() for name in file["mask/picked"][()]]
        assert sorted(ids[int(name.removeprefix("demo_"))] for name in names) == [1, 3]


def test_success_is_true_or_false(tmp_path: Path) -> None:
    write_isaac_lab(tmp_path / "x.hdf5", [(isaac_lab_episode(4, 0), {"success": -1})])
    with pytest.raises(DatasetError, match=r"demo_0: success: must be true or false"):
        imported(tmp_path / "x.hdf5")
