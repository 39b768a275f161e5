"""FCNet's memory maps as its own code writes and reads them: shapes in the names, flat bytes."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gaitforge.collectors.legged.observations import OBS_DIM, POLICY_SLICES
from gaitforge.datasets import DatasetError, Field, Schema, Selection, Store, open_store
from gaitforge.datasets.formats import sources
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.collect import collect
from gaitforge.plugins.gym.d4rl.d4rl_tasks import TASKS, normalised_return
from gaitforge.plugins.gym.fcnet.fcnet_schema import OBS_SLICES, STATE
from gaitforge.plugins.gym.tests.fcnet_cases import legged_store
from tests.datasets.formats.format_stores import plain_store, random_episodes
from tests.datasets.making import part_input
from tests.flows.making import COLLECT

LENGTHS = (6, 1, 6, 3)


def write_maps(folder: Path, lengths: tuple[int, ...] = LENGTHS) -> tuple[np.ndarray, np.ndarray]:
    """The three maps of random trajectories; returns states and actions."""
    rng, steps = np.random.default_rng(0), sum(lengths)
    state = rng.normal(size=(steps, 58)).astype(np.float32)
    action = rng.normal(size=(steps, 12)).astype(np.float32)
    folder.mkdir()
    for kind, values in (
        ("src", state),
        ("tgt", action),
        ("meta", np.array(lengths, np.int32)),
    ):
        name = "_".join([kind, *map(str, values.shape)])
        np.memmap(folder / f"{name}.dat", values.dtype, "w+", shape=values.shape)[:] = values
    return state, action


def imported(source: Path) -> Selection:
    import_source("fcnet", source, source.with_suffix(".zarr"))
    return open_store(source.with_suffix(".zarr")).select()


def test_our_channels_are_those_of_the_paper() -> None:
    assert OBS_SLICES == POLICY_SLICES
    assert max(stop for _, stop in OBS_SLICES.values()) == OBS_DIM


def test_channels_go_by_name_and_the_last_action_is_rebuilt(tmp_path: Path) -> None:
    state, action = write_maps(tmp_path / "maps")
    found = imported(tmp_path / "maps")
    obs = found.read("obs")
    assert np.array_equal(obs[:, slice(*OBS_SLICES["projected_gravity"])], state[:, :3])
    assert np.array_equal(obs[:, slice(*OBS_SLICES["base_ang_vel_body"])], state[:, 39:42])
    assert np.array_equal(obs[:, slice(*OBS_SLICES["command"])], state[:, 42:])
    last = obs[:, slice(*OBS_SLICES["last_action"])]
    starts = np.cumsum(LENGTHS) - np.array(LENGTHS)
    assert not last[starts].any()
    inside = np.setdiff1d(np.arange(sum(LENGTHS)), starts)
    assert np.array_equal(last[inside], action[inside - 1])
    assert np.array_equal(found.read("action"), action)
    assert found.lengths.tolist() == list(LENGTHS)
    assert found.episodes().column("truncated").to_pylist() == [True, False, True, False]
    assert found.episodes().column("terminated").to_pylist() == [False, True, False, True]


def test_an_export_is_read_by_the_shapes_in_the_names(tmp_path: Path) -> None:
    store = legged_store(tmp_path / "store", random_episodes(30))
    report = export_selection("fcnet", store.select(), tmp_path / "maps")
    maps = {}
    for path in (tmp_path / "maps").iterdir():
        kind, *shape = path.stem.split("_")
        dtype = np.int32 if kind == "meta" else np.float32
        maps[kind] = np.memmap(path, dtype, "r", shape=tuple(map(int, shape)))
    whole = store.select()
    assert maps["src"].shape == (whole.steps, 58)
    assert maps["meta"].tolist() == whole.lengths.tolist()
    obs, at = whole.read("obs"), 0
    for name, size in STATE.items():
        assert np.array_equal(maps["src"][:, at : at + size], obs[:, slice(*POLICY_SLICES[name])])
        at += size
    assert np.array_equal(maps["tgt"], whole.read("action"))
    assert report.carried.left == (
        "reward: the layout has no place for it",
        "final_obs: the layout has no place for it",
        "the catalog: the layout has only the episodes' lengths",
    )


def test_last_actions_that_were_executed_with_noise_are_counted(tmp_path: Path) -> None:
    store = legged_store(tmp_path / "a", [(5, "truncated"), (4, "truncated")], parts=1)
    whole = store.select()
    obs = whole.read("obs")
    obs[6, POLICY_SLICES["last_action"][0]] += 0.5
    noisy = Store.create(tmp_path / "b", store.schema)
    steps = {"obs": obs, "action": whole.read("action"), "reward": whole.read("reward")}
    rows = whole.episodes().drop_columns(["part", "start"])
    noisy.write_part("p", steps, rows, {"final_obs": whole.read("final_obs")})
    report = export_selection("fcnet", noisy.select(), tmp_path / "maps")
    assert any(line.startswith("last_action of 1 episode:") for line in report.carried.left)


def change(folder: Path, kind: str, action: str) -> None:
    [path] = folder.glob(f"{kind}_*.dat")
    if action == "remove":
        path.unlink()
    elif action == "cut":
        path.write_bytes(path.read_bytes()[:-40])
    elif action == "double":
        np.fromfile(path, np.float32).astype(np.float64).tofile(path)
    elif action == "second":
        path.with_name(f"{kind}_1_1.dat").write_bytes(b"")
    elif action == "folder":
        path.unlink()
        path.mkdir()
    elif action == "empty":
        path.rename(path.with_name(f"{kind}_0.dat")).write_bytes(b"")
    elif action == "narrow":
        path.rename(path.with_name("src_32_29.dat"))
    else:
        np.array([int(n) for n in action.split(",")], np.int32).tofile(path)


@pytest.mark.parametrize(
    ("kind", "action", "message"),
    [
        ("tgt", "remove", r"maps: tgt: no file tgt_<shape>.dat"),
        ("tgt", "folder", r"maps: tgt: no file tgt_<shape>.dat"),
        ("meta", "empty", r"meta_0.dat: meta: has no rows"),
        ("src", "cut", r"src_16_58.dat: cannot be read as .*: it has 3672 bytes, .* says 3712"),
        ("tgt", "double", r"tgt_16_12.dat: .* it has 1536 bytes, its name says 768"),
        ("meta", "second", r"maps: meta: there are two: meta_1_1.dat and meta_4.dat"),
        ("src", "narrow", r"tgt_16_12.dat: tgt: shape \(16, 12\) in its name must be \(32, 12\)"),
        ("meta", "6,1,6,99", r"meta_4.dat: meta: episode 3 of 99 steps goes beyond the 16 rows"),
        ("meta", "6,1,6,2", r"meta_4.dat: meta: episode 3 ends at row 15, but src has 16 rows"),
        ("meta", "6,0,6,4", r"meta_4.dat: meta: episode 1 has 0 steps"),
    ],
)
def test_bad_input_names_the_file(kind: str, action: str, message: str, tmp_path: Path) -> None:
    write_maps(tmp_path / "maps")
    change(tmp_path / "maps", kind, action)
    with pytest.raises(DatasetError, match=message) as error:
        imported(tmp_path / "maps")
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["maps"]


def test_an_observation_of_two_axes_is_refused(tmp_path: Path) -> None:
    fields = Field("obs", (2, OBS_DIM), slices=POLICY_SLICES), Field("action", (12,))
    store = Store.create(tmp_path / "store", Schema(fields, 0.02, "aliengo"))
    steps = {"obs": np.zeros((7, 2, OBS_DIM), np.float32), "action": np.zeros((7, 12), np.float32)}
    store.write_part("p", steps, part_input([3, 4])["episodes"])
    with pytest.raises(DatasetError, match=r"need obs of one axis per step, not \(2, 70\)"):
        export_selection("fcnet", store.select(), tmp_path / "maps")


def test_a_store_without_the_channels_is_refused_by_name(tmp_path: Path) -> None:
    store = plain_store(tmp_path / "store", random_episodes(3))
    with pytest.raises(DatasetError, match="need the slice projected_gravity of 3 channels in obs"):
        export_selection("fcnet", store.select(), tmp_path / "maps")


def write_task_maps(folder: Path, task: str, rewards: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Maps of a D4RL task as FCNet's scripts convert it; returns states and actions."""
    facts, lengths = TASKS[task], [len(each) for each in rewards]
    rng, steps = np.random.default_rng(1), sum(lengths)
    state = rng.normal(size=(steps, 11)).astype(np.float32)
    action = rng.normal(size=(steps, 3)).astype(np.float32)
    to_go = np.concatenate([np.cumsum(each[::-1])[::-1] for each in rewards])
    to_go = (to_go - facts.random_score) / (facts.expert_score - facts.random_score)
    source = np.concatenate([to_go[:, None], state], axis=1).astype(np.float32)
    folder.mkdir()
    for kind, values in (("src", source), ("tgt", action), ("meta", np.array(lengths, np.int32))):
        values.tofile(folder / f"{'_'.join([kind, *map(str, values.shape)])}.dat")
    return state, action


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    lengths=st.lists(st.sampled_from([1, 998, 999, 1000]), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_maps_of_d4rl_tasks_give_back_their_rewards(
    lengths: list[int], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = np.random.default_rng(seed)
    rewards = [rng.uniform(0.0, 4.0, length) for length in lengths]
    longest, folder = max(lengths), tmp_path_factory.mktemp("maps")
    source = folder / f"hopper_medium-expert_{len(lengths)}_{longest}"
    state, action = write_task_maps(source, "hopper", rewards)
    found = imported(source)
    assert np.array_equal(found.read("obs"), state)
    assert np.array_equal(found.read("action"), action)
    np.testing.assert_allclose(found.read("reward"), np.concatenate(rewards), atol=2e-3)
    table = found.episodes()
    expected = [normalised_return("hopper", float(each.sum())) for each in rewards]
    np.testing.assert_allclose(table.column("normalised_return"), expected, atol=1e-3)
    assert set(table.column("quality").to_pylist()) == {"medium-expert"}
    timed_out = [length >= 999 for length in lengths]
    assert table.column("success").to_pylist() == timed_out
    assert table.column("truncated").to_pylist() == timed_out


def test_maps_of_the_kitchen_are_judged_by_its_rule(tmp_path: Path) -> None:
    rewards = [np.repeat([1.0, 3.0], 150), np.repeat([2.0, 4.0], 40)]
    write_task_maps(tmp_path / "kitchen_mixed_2_300", "kitchen", rewards)
    table = imported(tmp_path / "kitchen_mixed_2_300").episodes()
    assert table.column("success").to_pylist() == [False, True]
    assert table.column("terminated").to_pylist() == [True, True]
    assert table.column("quality").to_pylist() == ["mixed", "mixed"]


def test_maps_of_no_known_task_and_options_for_others_are_refused(tmp_path: Path) -> None:
    write_task_maps(tmp_path / "maps", "hopper", [np.ones(5)])
    with pytest.raises(DatasetError, match=r"maps: .* names no task of D4RL: give task="):
        imported(tmp_path / "maps")
    import_source("fcnet", tmp_path / "maps", tmp_path / "store", {"task": "hopper"})
    assert open_store(tmp_path / "store").schema.robot == "hopper"
    write_maps(tmp_path / "legged")
    with pytest.raises(DatasetError, match="options task and quality are for maps of D4RL's tasks"):
        import_source("fcnet", tmp_path / "legged", tmp_path / "other", {"task": "hopper"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizon": -5}, "horizon must be a number of steps, .* not -5"),
        ({"robot": ""}, "robot needs a name"),
    ],
)
def test_options_out_of_their_range_are_refused(
    options: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DatasetError, match=f"option {message}"):
        import_source("fcnet", tmp_path / "whatever", tmp_path / "store", options)


def test_an_episode_beyond_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_maps(tmp_path / "maps")
    monkeypatch.setattr(sources, "EPISODE_BYTES", 20 * 24)
    with pytest.raises(DatasetError, match=r"meta: episode 0 of 6 steps takes"):
        import_source("fcnet", tmp_path / "maps", tmp_path / "store")


def test_maps_hold_the_clean_actions_unless_asked(tmp_path: Path) -> None:
    collect(COLLECT, tmp_path / "legged.zarr", Silent())
    maps = export_selection("fcnet", open_store(tmp_path / "legged.zarr").select(), tmp_path / "m")
    assert any(line.startswith("actions: clean") for line in maps.carried.notes)
