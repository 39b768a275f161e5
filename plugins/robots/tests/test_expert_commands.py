"""An imported expert from the command line: checked, collected with, labelling, evaluated."""

import json
from pathlib import Path

import numpy as np
import pytest

from gaitforge.collectors.experts.expert import load_expert
from gaitforge.common.trust import trusting
from gaitforge.datasets import open_store
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.replay import replay
from tests.collectors.imported_files import WIDTH, metadata, write_policy
from tests.pipeline.command_line import TINY_GRID, call

COMMAND = slice(45, 48)
NORMAL_POSE = ",".join(["0.000,0.800,-1.500"] * 4)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the expert `still`, which holds Go1's default pose."""
    monkeypatch.chdir(tmp_path)
    write_policy(Path("policy.onnx"), properties=metadata(default_joint_pos=NORMAL_POSE))
    assert call("expert", "import", "policy.onnx", "--name", "still", "--robot", "go1") == 0
    return tmp_path


def test_it_collects_labels_and_is_evaluated(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "hold.py").write_text(
        "import numpy as np\n\nclass Hold:\n    name = 'hold'\n\n"
        "    def __init__(self, robots): pass\n\n    def reset(self, ids): pass\n\n"
        "    def act(self, observation):\n"
        "        return np.full((len(observation.policy), 12), 0.1, np.float32)\n"
    )
    monkeypatch.syspath_prepend(place)
    small = [*TINY_GRID, "--skill", "stand"]
    assert call("collect", "own.zarr", "--expert", "still", *small) == 0
    driven = ["--policy", "hold:Hold", "--labeller", "still", "--robot", "go1"]
    assert call("collect", "own.zarr", *driven, *small) == 0
    store = open_store(place / "own.zarr")
    rows = store.select().episodes().to_pylist()
    assert {row["policy"] for row in rows} == {None, "hold"}
    assert {(row["expert"], row["expert_hash"]) for row in rows} == {
        ("still", load_expert("still").hash)
    }
    assert store.select().episode(0)["action"].shape[1] == 12
    assert all(not store.select().episode(k)["action"].any() for k in range(8))
    with trusting(["hold:Hold"]):
        assert replay(place / "own.zarr", 8, 0, Silent()) == []
    capsys.readouterr()
    options = ["--skill", "stand", "--terrain", "flat", "--episodes", "4", "--json"]
    assert call("evaluate", "still", *options) == 0
    assert json.loads(capsys.readouterr().out)["survival"] == 1.0


def test_a_check_names_what_is_wrong(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Actions that grow with the commanded speed and are wrong in order: it falls, and more."""
    weights = np.zeros((WIDTH, 12), np.float32)
    weights[COMMAND.start] = [9.0, -9.0, 9.0] * 4
    answers = {"observation": np.eye(WIDTH)[44:46].tolist(), "action": [[0.0] * 12] * 2}
    Path("answers.json").write_text(json.dumps(answers))
    scales = ",".join(["1.000"] * 4 + ["30.000", "1.000", "1.000"])
    properties = metadata(default_joint_pos=NORMAL_POSE, observation_terms_scale=scales)
    write_policy(Path("wild.onnx"), weights, properties)
    wild = ["wild.onnx", "--name", "wild", "--robot", "go1", "--answers", "answers.json"]
    assert call("expert", "import", *wild) == 0
    capsys.readouterr()
    assert call("expert", "check", "wild", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["figures"]["stood_fallen"] == 0
    assert found["figures"]["walked_fallen"] > 0
    assert found["figures"]["action_error"] == pytest.approx(9.0)
    complaints = " ".join(found["warnings"])
    for each in ("walking: ", "the actions differ from the known answers", "is a scale lost"):
        assert each in complaints
    assert [row["columns"] for row in found["terms"]][:2] == ["0-2", "3-5"]
    assert all(row["gait_low"] <= row["gait_high"] for row in found["terms"])


def test_a_stand_is_a_fault_of_a_policy_that_is_told_a_speed(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("expert", "check", "still") == 1
    [warning] = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
    assert "told 0.5 m/s, and the actions never change" in warning
