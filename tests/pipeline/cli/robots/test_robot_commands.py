"""`gaitforge robot`, and experts for robots of one's own."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from gaitforge.collectors.experts.expert import FEATURE_DIM, load_expert
from gaitforge.collectors.experts.ppo import ExpertTrainingConfig, train_expert
from gaitforge.collectors.robots.robot import N_JOINTS, absolute_robot, list_robots, load_robot
from gaitforge.pipeline.presets.choices import chosen_claim
from gaitforge.pipeline.presets.experiments import experiment_preset
from gaitforge.pipeline.presets.preset import DAGGER
from tests.collectors.robots.robot_folders import MISSING, family_of, robot_folder
from tests.pipeline.command_line import Run, assert_refused


def write_expert(folder: Path, robot: str) -> Path:
    """An expert that adds nothing to the gait, and its card."""
    folder.mkdir(exist_ok=True)
    weights = {
        "mean": np.zeros(FEATURE_DIM, dtype=np.float32),
        "std": np.ones(FEATURE_DIM, dtype=np.float32),
        "layer0.weight": np.zeros((N_JOINTS, FEATURE_DIM), dtype=np.float32),
        "layer0.bias": np.zeros(N_JOINTS, dtype=np.float32),
    }
    save_file(weights, folder / "expert.safetensors")
    (folder / "expert.json").write_text(json.dumps({"robot": robot}))
    return folder / "expert.safetensors"


def test_the_list_names_every_shipped_robot(run: Run) -> None:
    code, out, _ = run("robot", "list", "--json")
    assert code == 0
    rows = json.loads(out)
    assert [row["name"] for row in rows] == list_robots()
    assert all(Path(row["file"]).is_file() for row in rows)
    masses = {row["name"]: row["mass_kg"] for row in rows}
    assert masses["go1"] == pytest.approx(13.1, abs=0.01)
    assert run("robot", "list").out.split()[0] == "name"


def test_a_good_robot_is_described(run: Run, tmp_path: Path) -> None:
    folder = robot_folder(tmp_path / "mine")
    code, out, err = run("robot", "check", folder)
    assert (code, err) == (0, "")
    assert "mass_kg                13.101" in out
    assert "FL_calf_joint" in out
    assert out.endswith("mine can be used\n")
    code, out, err = run("robot", "check", folder, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["warnings"] == []
    assert found["stood_height_m"] == pytest.approx(found["nominal_height_m"], abs=0.01)
    assert [joint["joint"] for joint in found["joints"]][:2] == ["FL_hip_joint", "FL_thigh_joint"]
    calf = found["joints"][2]
    assert 0 < calf["standing_nm"] < calf["limit_nm"] == 35.55
    assert calf["sag_rad"] == pytest.approx(calf["standing_nm"] / calf["kp"])


def test_what_looks_wrong_is_said_and_can_be_used(run: Run, tmp_path: Path) -> None:
    folder = robot_folder(tmp_path, {"kp_nm_per_rad": 11.0})
    code, out, _ = run("robot", "check", folder)
    assert code == 0
    assert "warning: gains are soft" in out
    assert out.endswith("mine can be used all the same\n")
    assert len(json.loads(run("robot", "check", folder, "--json").out)["warnings"]) == 2


@pytest.mark.parametrize(
    ("card", "mjcf", "complaint"),
    [
        ({"joint_names": ["FL_hip_joint"]}, (), "joint_names needs 12 names, not 1"),
        ({"mass_kg": MISSING}, (), "its card robot.json lacks mass_kg"),
        ({}, [("</mujoco>", "")], "mine.xml: XML parse error"),
        ({"kp_nm_per_rad": 1.0}, (), "under its own weight FL_calf_joint sags by 4.9 rad"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_robot_gets_one_line_and_nothing_is_written(
    run: Run,
    tmp_path: Path,
    card: dict,
    mjcf: list,
    complaint: str,
) -> None:
    folder, out = robot_folder(tmp_path / "mine", card, mjcf), tmp_path / "out"
    words = ["robot", "check", folder]
    if "joint_names" in card:
        words = ["expert", "train", "--robot", folder, "--out", out]
    assert_refused(run(*words), "gaitforge: error: robot 'mine': ", complaint)
    assert not out.exists()


def test_an_expert_of_ones_own_robot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    robot_folder(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    config = ExpertTrainingConfig(
        robot=absolute_robot("mine"), steps=64, robots=8, horizon=8, hidden=(8,), threads=1
    )
    weights, card = train_expert(config, tmp_path / "out", lambda summary: None)
    weights.with_suffix(".json").write_text(json.dumps(card))
    monkeypatch.chdir("/")
    policy = load_expert(str(weights)).policy
    assert policy.robot.name == "mine"
    assert policy.robot.path.parent == tmp_path / "mine"


@pytest.mark.parametrize("inside", [False, True], ids=["beside", "inside"])
@pytest.mark.parametrize("card", ["", "robot.json"], ids=["folder", "card"])
def test_an_expert_moves_with_its_robot(tmp_path: Path, inside: bool, card: str) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    robot = robot_folder(old / "mine")
    write_expert(old / "first", str(robot / card))
    new.mkdir()
    shutil.move(old / "first", new)
    weights = new / "first" / "expert.safetensors"
    assert load_expert(str(weights)).policy.robot.path.parent == robot
    shutil.move(robot, new / "away")
    expected = r"expert\.safetensors: its robot .*is neither shipped .* nor at .*/mine"
    with pytest.raises(ValueError, match=expected):
        load_expert(str(weights))
    place = new / "first" / "mine" if inside else new / "mine"
    shutil.move(new / "away", place)
    assert load_expert(str(weights)).policy.robot.path.parent == place


@pytest.mark.parametrize("robot", ["../mine", "../mine/robot.json", "go1"])
def test_an_experts_card_may_name_its_robot_from_its_own_folder_or_a_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, robot: str
) -> None:
    robot_folder(tmp_path / "mine")
    weights = write_expert(tmp_path / "first", robot)
    monkeypatch.chdir("/")
    assert load_expert(str(weights)).policy.robot.name == ("mine" if "/" in robot else robot)


def test_learners_of_ones_own_robot_drive_it(run: Run, tmp_path: Path) -> None:
    folder, store, trained = robot_folder(tmp_path / "mine"), tmp_path / "store", tmp_path / "run"
    expert = write_expert(tmp_path / "expert", str(folder))
    few = ["--set", "grid.parts=1", "--set", "grid.episodes_per_part=4", "--robots", "4"]
    assert run("collect", store, "--expert", expert, *few, "--threads", "1").code == 0
    words = ["--steps", "2", "--set", "config.held_out_fraction=0.5"]
    assert run("train", store, "--model", "mlp", "--out", trained, *words).code == 0
    cell = ["--terrain", "flat", "--skill", "stand", "--episodes", "1", "--threads", "1"]
    assert run("evaluate", trained, *cell).code == 0
    driven = ["--policy", trained, "--set", "grid.parts=1", "--set", "grid.episodes_per_part=2"]
    assert run("collect", tmp_path / "driven", *driven, "--robots", "2").code == 0
    assert run("export", trained, tmp_path / "exported").code == 0
    preset = experiment_preset(DAGGER)
    claim = chosen_claim(DAGGER, preset, (str(store),), {}, (), tmp_path / "rounds")
    assert claim.experiment.corrections is not None
    assert claim.experiment.corrections.collect.robot == absolute_robot(str(folder))
    assert claim.experiment.corrections.collect.expert == str(expert)
    shutil.rmtree(folder)
    assert_refused(run("dagger", store, "--out", tmp_path / "rounds"), "its robot")


def test_an_expert_is_evaluated_on_families_of_robots(run: Run, tmp_path: Path) -> None:
    family, kept = tmp_path / "family", tmp_path / "kept"
    family_of(load_robot("aliengo"), 2, family)
    words = ("--terrain", "flat", "--skill", "stand", "--level", "0", "--episodes", "1")
    asked = ("evaluate", "aliengo-family", "--robot", f"{family},go1", "--out", kept)
    code, out, _ = run(*asked, *words)
    assert code == 0
    assert {path.stem for path in kept.iterdir()} == {"aliengo-0-000", "aliengo-0-001", "go1"}
    assert "means over 3 robots: return" in out
    assert f"{family}: means over 2 robots: return" in out
    assert "\ngo1: means" not in out


def test_without_a_renderer(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "none")
    code, shown, err = run("robot", "check", "go1", "--picture", tmp_path / "go1.png")
    assert code == 2
    assert shown.endswith("go1 can be used\n")
    assert err.startswith("gaitforge: error: MuJoCo cannot draw here")
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())
