"""A training run's export: what the simulator sees of it is what was trained."""

import json
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from gaitforge.collectors.legged.rollout import EvaluationGrid
from gaitforge.collectors.robots.robot import ASSETS, RobotCard, load_robot, robots_attribute
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.plans import PLAN
from gaitforge.flows.stages.evaluate import evaluate_policy
from gaitforge.flows.stages.train import SelectPlan, TrainPlan, run_training
from gaitforge.flows.stages.transfer import ExportPlan, robot_facts, run_export
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.flows.tasks.policy_sources import run_source, trained_robot
from gaitforge.learners.checkpoint import CHECKPOINT, read_checkpoint
from gaitforge.learners.export.export import PolicyExportOptions
from tests.flows.gym_stores import TINY, make_gym_store
from tests.flows.making import small_run
from tests.learners.control.exporting import export_small

ONNX_ONLY = ExportPlan(options=PolicyExportOptions(("onnx",), batch_size=2))
PT2_ONLY = ExportPlan(options=PolicyExportOptions(("pt2",)))


@dataclass
class Listening(Silent):
    """A reporter that keeps what is said."""

    said: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        """See `gaitforge.flows.progress.Reporter.say`."""
        self.said.append(text)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("export"))


@pytest.mark.slow
def test_the_exported_policy_does_in_the_simulator_what_the_run_does(
    run: Path, tmp_path: Path
) -> None:
    run_export(ONNX_ONLY, run, tmp_path / "out", Silent())
    grid = EvaluationGrid(("flat",), ("stand", "run"), (2,), episodes=2)
    plan = LeggedEvaluation(grid=grid, robots=3, threads=1)
    trained, exported = (
        evaluate_policy(run_source(folder), plan, Silent()) for folder in (run, tmp_path / "out")
    )
    assert exported.parameters == trained.parameters
    for expected, found in zip(map(dict, trained.cells), map(dict, exported.cells), strict=True):
        assert (expected.pop("policy"), found.pop("policy")) == (run.name, "out")
        labels = ("terrain", "skill", "return_ci95", "success_ci95")
        same = [(found.pop(name), expected.pop(name)) for name in labels]
        assert all(one == other for one, other in same[:2])
        for one, other in same[2:]:
            assert one == pytest.approx(other, rel=1e-3, abs=1e-3)
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_the_key_of_an_exported_policy_changes_with_its_weights(tmp_path: Path) -> None:
    for name in ("mlp", "history-mlp"):
        export_small(tmp_path / name, name, options=PT2_ONLY.options)
    mlp, again, other = (
        run_source(tmp_path / name).key() for name in ("mlp", "mlp", "history-mlp")
    )
    assert mlp == again != other


def test_the_description_says_where_the_policy_comes_from(run: Path, tmp_path: Path) -> None:
    listening = Listening()
    run_export(PT2_ONLY, run, tmp_path / "out", listening)
    description = json.loads((tmp_path / "out" / "policy.json").read_text())
    _, card = read_checkpoint(run)
    source = description["source"]
    assert source["dataset_hash"] == card["dataset_hash"]
    assert (source["run"], source["store"], source["step"]) == ("run", "walks.zarr", 3)
    assert len(source["dataset_version"]) == len(source["checkpoint_sha256"]) == 64
    assert description["parameters"] == card["parameters"]
    assert description["return_to_go"]["expert_return"] > 0
    assert description["control"]["robot"] == "aliengo"
    assert listening.said == []
    assert run_export(PT2_ONLY, run, tmp_path / "out", listening).already_there


def test_a_run_of_other_data_is_exported_without_a_robots_card(tmp_path: Path) -> None:
    store = make_gym_store(tmp_path / "hopper.zarr")
    run_training(TrainPlan(SelectPlan(where="terminated"), TINY), store, tmp_path / "run", Silent())
    result = run_export(PT2_ONLY, tmp_path / "run", tmp_path / "out", Silent())
    told = json.loads((tmp_path / "out" / "policy.json").read_text())
    assert (told["control"], told["command"]) == (None, None)
    assert told["note"] == result.note
    assert result.note.startswith("hopper.zarr (gymnasium) holds no data of a legged robot's task")
    assert told["observation"]["fields"]["joint_pos"] == {
        "start": 2, "stop": 5, "unit": None, "meaning": None,
    }  # fmt: skip
    assert told["source"]["control_dt_s"] == 0.008
    with pytest.raises(ValueError, match="export it without --robot"):
        run_export(replace(PT2_ONLY, robot="go1"), tmp_path / "run", tmp_path / "new", Silent())


def test_a_run_keeps_a_copy_of_its_own_robot(run: Path, tmp_path: Path) -> None:
    mine = robots_attribute([own_robot(tmp_path / "mine")])
    record = json.loads((run / PLAN).read_text())
    record |= {"robot": "mine", "own_robots": mine, "evaluation": {"robot": str(tmp_path / "mine")}}
    kept = tmp_path / "kept"
    shutil.copytree(run, kept)
    (kept / PLAN).write_text(json.dumps(record))
    assert trained_robot(kept) == str(tmp_path / "mine")
    shutil.rmtree(tmp_path / "mine")
    run_export(PT2_ONLY, kept, tmp_path / "out", Silent())
    told = json.loads((tmp_path / "out" / "policy.json").read_text())
    assert told["control"]["robot"] == "mine"
    assert str(tmp_path) not in json.dumps(told), "an export holds no paths of this machine"


def own_robot(folder: Path) -> RobotCard:
    """A robot that does not ship: Go1's files under another name."""
    shutil.copytree(ASSETS / "go1", folder)
    card = json.loads((folder / "robot.json").read_text())
    (folder / "robot.json").write_text(json.dumps({**card, "name": "mine"}))
    return load_robot(str(folder))


def test_an_unfinished_run_is_exported_with_a_note(run: Path, tmp_path: Path) -> None:
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    _, card = read_checkpoint(run)
    header = {"card": json.dumps({**card, "finished": False})}
    save_file(load_file(run / CHECKPOINT), unfinished / CHECKPOINT, header)
    listening = Listening()
    run_export(PT2_ONLY, unfinished, tmp_path / "out", listening)
    assert listening.said == ["unfinished is unfinished: exporting its last checkpoint, step 3"]


def test_what_cannot_be_exported_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no training run at"):
        run_export(PT2_ONLY, tmp_path / "nowhere", tmp_path / "out", Silent())
    with pytest.raises(ValueError, match="no checkpoint in"):
        run_export(PT2_ONLY, tmp_path, tmp_path / "out", Silent())
    with pytest.raises(ValueError, match="no robot 'nobody'"):
        run_export(replace(PT2_ONLY, robot="nobody"), run, tmp_path / "out", Silent())
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / CHECKPOINT).write_bytes((run / CHECKPOINT).read_bytes()[:500])
    with pytest.raises(ValueError, match="truncated or damaged"):
        run_export(PT2_ONLY, tmp_path / "cut", tmp_path / "out", Silent())
    assert not (tmp_path / "out").exists()


def test_the_facts_are_those_of_the_simulated_robot() -> None:
    robot = load_robot()
    facts = robot_facts(robot)
    assert facts.joint_names == robot.joint_names
    assert facts.kd_nms_per_rad == tuple(robot.kd_nms_per_rad)
    widths = [each.stop - each.start for each in facts.observation.values()]
    assert sum(widths) == 70
    assert {each.name for each in facts.command} >= {"vel_x", "gait_duty", "locomote"}
