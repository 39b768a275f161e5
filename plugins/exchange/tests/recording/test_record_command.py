"""`gaitforge record`: environments and policies by name."""

import json
from pathlib import Path

import numpy as np
import pytest

from gaitforge.datasets import open_store
from gaitforge.plugins.exchange.tests.recording.counting import Batch, batched_actions
from tests.pipeline.command_line import Run

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

HERE = "gaitforge.plugins.exchange.tests.recording.test_record_command"


def batch(robots: int) -> Batch:
    """Robots that reset themselves, on torch."""
    return Batch(robots, 5)


def batch_without_reset(robots: int) -> Batch:
    """Robots that the loop resets, on torch."""
    return Batch(robots, 5, auto_reset=False)


def actor(observation: dict[str, object]) -> np.ndarray:
    """Zeros."""
    return batched_actions(len(observation["policy"]), 0)  # type: ignore[arg-type]


def policy_file(path: Path, rows: int | str, width: int = 3) -> Path:
    """A model whose actions are twice the first two numbers of the observation."""
    helper = onnx.helper
    matrix = np.zeros((width, 2), np.float32)
    matrix[:2] = 2 * np.eye(2)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["seen", "matrix"], ["acted"])],
        "policy",
        [helper.make_tensor_value_info("seen", onnx.TensorProto.FLOAT, [rows, width])],
        [helper.make_tensor_value_info("acted", onnx.TensorProto.FLOAT, [rows, 2])],
        [onnx.numpy_helper.from_array(matrix, "matrix")],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


@pytest.mark.parametrize("name", ["batch", "batch_without_reset"])
@pytest.mark.parametrize("rows", [1, "robots"])
def test_an_onnx_policy_acts_and_every_episode_is_recorded(
    name: str, rows: int | str, tmp_path: Path, run: Run
) -> None:
    model = policy_file(tmp_path / "policy.onnx", rows)
    store = tmp_path / "s.zarr"
    words = ["record", store, "--env", f"{HERE}:{name}", "--policy", model, "--robots", "3"]
    done = run(*words, "--steps", "20", "--json")
    assert done.code == 0, done.err
    selection = open_store(store).select()
    assert json.loads(done.out)["episodes"] == len(selection)
    np.testing.assert_array_equal(selection.read("action"), 2 * selection.read("obs")[:, :2])
    ends = selection.episodes().to_pydict()
    assert sum(ends["terminated"]) + sum(ends["truncated"]) > 6


def test_own_actions_and_own_environments(tmp_path: Path, run: Run) -> None:
    store = tmp_path / "s.zarr"
    words = ["record", store, "--env", f"{HERE}:batch", "--policy", f"{HERE}:actor"]
    assert run(*words, "--robots", "2", "--steps", "9").code == 0
    assert open_store(store).select().steps == 18


def test_gymnasiums_environments_with_random_actions(tmp_path: Path, run: Run) -> None:
    pytest.importorskip("gymnasium")
    for name, steps in (("Pendulum-v1", "20"), ("CartPole-v1", "30")):
        store = tmp_path / f"{name}.zarr"
        words = ["record", store, "--env", f"gymnasium:{name}", "--robots", "2"]
        done = run(*words, "--steps", steps)
        assert done.code == 0, done.err
        assert open_store(store).select().steps > 30


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--env", "gymnasium:Nothing-v0"], "Nothing"),
        (["--env", f"{HERE}:nothing"], "no function"),
        (["--env", "mjlab:Some"], "install mjlab"),
        (["--env", f"{HERE}:batch", "--policy", "none.onnx"], "no file none.onnx"),
        (["--env", f"{HERE}:batch", "--policy", "wide.onnx"], "takes 5 numbers, not 3"),
        (["--env", f"{HERE}:batch", "--policy", "text.onnx"], "no model that onnxruntime loads"),
    ],
)
def test_what_cannot_be_is_one_line(
    words: list[str], complaint: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    policy_file(tmp_path / "wide.onnx", "robots", 5)
    Path("text.onnx").write_text("no model")
    done = run("record", "s.zarr", *words, "--robots", "2", "--steps", "3")
    assert done.code == 2
    assert complaint in done.err
    assert len(done.err.strip().splitlines()) <= 2
    assert not Path("s.zarr").exists()


def test_the_last_observations_are_known_where_the_loop_resets(tmp_path: Path, run: Run) -> None:
    store = tmp_path / "s.zarr"
    words = ["record", store, "--env", f"{HERE}:batch_without_reset", "--policy", f"{HERE}:actor"]
    assert run(*words, "--robots", "1", "--steps", "40").code == 0
    assert "final_obs" in open_store(store).schema.names("episode")
