"""Own recordings from their file to exported policies, with and without a legged robot."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from gaitforge.collectors.legged.observations import POLICY_SLICES
from gaitforge.collectors.robots.robot import ASSETS
from gaitforge.datasets import open_store
from gaitforge.learners.export.onnx_policy import OnnxPolicy
from tests.pipeline.command_line import Run, assert_refused

h5py = pytest.importorskip("h5py", reason="h5py is an extra: gaitforge[hdf5]")

ARM = {"joint_pos": 9, "object": 3}
LEGGED = {name: stop - start for name, (start, stop) in POLICY_SLICES.items()}
TINY = ("--model", "mlp", "--steps", "2", "--set", "config.held_out_fraction=0")


def write_logs(path: Path, widths: Mapping[str, int], actions: int) -> Path:
    """Four demos of twenty steps; one is not solved."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for number in range(4):
            demo = file.create_group(f"data/demo_{number}")
            demo["actions"] = rng.uniform(-0.1, 0.1, (20, actions)).astype(np.float32)
            obs = demo.create_group("obs", track_order=True)
            for name, width in widths.items():
                obs[name] = rng.normal(size=(20, width)).astype(np.float32)
            demo.attrs["success"] = number != 3
    return path


def own_robot(folder: Path) -> Path:
    """A robot that does not ship: Go1's files under another name."""
    shutil.copytree(ASSETS / "go1", folder)
    card = json.loads((folder / "robot.json").read_text())
    (folder / "robot.json").write_text(json.dumps({**card, "name": "mine"}))
    return folder


def done(run: Run, *words: object) -> str:
    outcome = run(*map(str, words))
    assert outcome.code == 0, outcome.err
    return outcome.out


def test_a_policy_of_an_arm_is_exported_and_not_taken_for_a_legged_robots(
    tmp_path: Path, run: Run
) -> None:
    source = write_logs(tmp_path / "demos.hdf5", ARM, 7)
    store, trained, out = tmp_path / "demos.zarr", tmp_path / "arm", tmp_path / "exported"
    done(run, "import", "robomimic", source, store)
    for shown in (done(run, "query", store), done(run, "query", store, "--list")):
        assert "terminated" in shown
        assert not {"survival", "fell"} & set(shown.split())
    done(run, "train", store, "--out", trained, *TINY)

    said = done(run, "export", trained, out, "--formats", "onnx")
    assert said.count("demos.zarr (robomimic) holds no data of a legged robot's task") == 1
    policy = OnnxPolicy(out)
    assert policy.check_known_answers() <= 1e-5
    told = policy.description
    assert (told["control"], told["command"]) == (None, None)
    assert told["note"] in said
    assert told["observation"]["fields"] == {
        "joint_pos": {"start": 0, "stop": 9, "unit": None, "meaning": None},
        "object": {"start": 9, "stop": 12, "unit": None, "meaning": None},
    }
    assert (told["action"]["dim"], told["source"]["control_dt_s"]) == (7, 0.02)
    again = done(run, "export", trained, out, "--formats", "onnx", "--json")
    assert json.loads(again)["already_there"]

    for place in (trained, out):
        assert_refused(
            run("evaluate", str(place)), "trained on demos.zarr (robomimic)", "--task names one"
        )
    legged = ("trained on demos.zarr (robomimic) and reads joint_pos (9), object (3)", "legged")
    assert_refused(run("evaluate", str(trained), "--task", "legged"), *legged)
    other = ("export", str(trained), str(tmp_path / "new"), "--robot", "go1")
    assert_refused(run(*other), "reads projected_gravity", "export it without --robot")


@pytest.mark.slow
def test_logs_of_an_own_quadruped_keep_their_robot(tmp_path: Path, run: Run) -> None:
    source = write_logs(tmp_path / "logs.hdf5", LEGGED, 12)
    robot = own_robot(tmp_path / "robots" / "mine")
    store, trained, out = tmp_path / "logs.zarr", tmp_path / "walk", tmp_path / "exported"
    said = done(run, "import", "robomimic", source, store, "--set", f"robot={robot}")
    assert "policies are evaluated, and exported, as those of mine" in said
    assert open_store(store).select().episodes("robot").column("robot").to_pylist() == ["mine"] * 4
    assert open_store(store).verify() == []
    done(run, "import", "robomimic", source, store, "--set", f"robot={robot}")
    assert len(open_store(store).select()) == 4, "the same import changes nothing"
    assert_refused(run("import", "robomimic", str(source), str(store)), "in its robot")
    done(run, "train", store, "--out", trained, *TINY)
    shutil.rmtree(robot.parent)

    small = ("--terrain", "flat", "--skill", "stand", "--episodes", "1", "--threads", "1", "--json")
    [cell] = json.loads(done(run, "evaluate", trained, *small))["cells"]
    assert (cell["terrain"], cell["episodes"]) == ("flat", 1)
    assert done(run, "export", trained, out, "--formats", "onnx").count("null") == 0
    assert json.loads((out / "policy.json").read_text())["control"]["robot"] == "mine"

    unnamed, run_of_it = tmp_path / "unnamed.zarr", tmp_path / "unnamed"
    done(run, "import", "robomimic", source, unnamed)
    done(run, "train", unnamed, "--out", run_of_it, *TINY)
    said = done(run, "export", run_of_it, tmp_path / "plain", "--formats", "onnx")
    assert "no robot 'unknown' is here; --robot names one" in said
    assert_refused(run("evaluate", str(run_of_it)), "of robot 'unknown'", "--robot names")
    done(run, "evaluate", run_of_it, "--robot", "go1", *small)


@pytest.mark.parametrize(
    ("widths", "actions", "robot", "complaint"),
    [
        (ARM, 7, "go1", "action has 7 numbers a step, and go1 has 12 joints"),
        (ARM | {"joint_vel": 9}, 12, "go1", "obs/joint_vel has 9 numbers a step, and go1 has 12"),
        (LEGGED, 12, "nobody", "no robot 'nobody'; allowed: a1"),
        (LEGGED, 12, "", "needs a robot: a name, a card or its folder"),
    ],
)
def test_a_robot_that_does_not_fit_is_refused_before_anything_is_written(
    widths: dict[str, int], actions: int, robot: str, complaint: str, tmp_path: Path, run: Run
) -> None:
    source = write_logs(tmp_path / "logs.hdf5", widths, actions)
    words = ("import", "robomimic", str(source), str(tmp_path / "new.zarr"))
    assert_refused(run(*words, "--set", f"robot={robot}"), complaint)
    assert_refused(run(*words, "--set", "robbot=go1"), "'robbot'; did you mean 'robot'? allowed: ")
    assert [path.name for path in tmp_path.iterdir()] == ["logs.hdf5"]
