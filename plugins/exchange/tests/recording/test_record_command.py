"""`gaitforge record`: environments and policies by name."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gaitforge.datasets import DatasetError, open_store
from gaitforge.plugins.exchange.recording.loops import made_policy, run_loop
from gaitforge.plugins.exchange.tests.recording.counting import Batch, Counting, batched_actions
from tests.pipeline.command_line import Run

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

FLOAT_MIN = float(np.finfo(np.float32).min)
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


def alone(robots: int) -> Counting:
    """One robot, whatever the number."""
    return Counting()


def test_an_onnx_policy_acts_in_a_single_environment(tmp_path: Path, run: Run) -> None:
    model = policy_file(tmp_path / "policy.onnx", "robots")
    words = ["record", tmp_path / "s.zarr", "--env", f"{HERE}:alone", "--policy", model]
    done = run(*words, "--steps", "9")
    assert done.code == 0, done.err
    selection = open_store(tmp_path / "s.zarr").select()
    np.testing.assert_array_equal(selection.read("action"), 2 * selection.read("obs")[:, :2])


def test_an_onnx_policy_needs_the_policys_observation(tmp_path: Path) -> None:
    act = made_policy(str(policy_file(tmp_path / "policy.onnx", "robots")), None, 0)
    with pytest.raises(DatasetError, match="none of obs_left, obs_right"):
        act({"left": np.zeros((2, 3)), "right": np.zeros((2, 3))})


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


@st.composite
def spaces_of_actions(draw: st.DrawFn) -> Any:
    """Spaces of gymnasium with arrays of numbers."""
    spaces = pytest.importorskip("gymnasium").spaces
    number = st.floats(-1e3, 1e3, width=32)
    kind = draw(st.sampled_from(["box", "half", "whole", "discrete", "several", "bits"]))
    start = draw(st.integers(-3, 3))
    if kind == "box":
        ends = [sorted(draw(st.tuples(number, number))) for _ in range(2)]
        dtype = draw(st.sampled_from([np.float32, np.float64]))
        low, high = np.array(ends, dtype).T
        return spaces.Box(low, high, dtype=dtype)
    if kind == "half":
        ends = draw(st.sampled_from([(-np.inf, 5), (3, np.inf), (-np.inf, np.inf), (FLOAT_MIN, 2)]))
        return spaces.Box(*(np.full(2, end, np.float32) for end in ends))
    if kind == "whole":
        return spaces.Box(start, start + 4, (3,), np.int64)
    if kind == "discrete":
        return spaces.Discrete(3, start=start)
    if kind == "several":
        return spaces.MultiDiscrete([3, 2], start=[start, 0])
    return spaces.MultiBinary(3)


@given(
    space=spaces_of_actions(),
    robots=st.integers(1, 3),
    form=st.sampled_from(["single", "both", "batch", "robot"]),
)
@settings(max_examples=80)
def test_random_actions_fill_their_space(space: Any, robots: int, form: str) -> None:
    from gymnasium.vector.utils import batch_space

    assume(form != "robot" or space.shape[:1] != (robots,) or not hasattr(space, "nvec"))
    env = SimpleNamespace(step=None, num_envs=robots, action_space=batch_space(space, robots))
    if form in ("single", "robot"):  # some batches tell the space of one robot
        env.action_space = space
    if form == "single":
        env.num_envs = None
    if form == "both":
        env.single_action_space = space
    act = made_policy("random", env, 0)
    batches = np.array([act(None) for _ in range(60)])
    assert batches.shape == (60, *(() if form == "single" else (robots,)), *space.shape)
    actions = batches.reshape(-1, *space.shape)
    for action in actions:
        assert space.contains(action.astype(space.dtype))
        assert np.abs(action).max() <= 1e3
    if np.dtype(space.dtype).kind == "f":
        spread = np.ptp(actions, axis=0)
        assert (spread >= 0.5 * np.minimum(space.high - space.low, 2)).all()
    else:
        for values in actions.reshape(len(actions), -1).T:
            assert len(set(values)) >= 2


@pytest.mark.parametrize("space", ["none", "dict", "text"])
def test_spaces_without_numbers_are_refused_in_a_line(space: str) -> None:
    spaces = pytest.importorskip("gymnasium").spaces
    env = SimpleNamespace(step=None, num_envs=2)
    if space != "none":
        discrete = spaces.Dict({"jump": spaces.Discrete(2)})
        env.action_space = discrete if space == "dict" else spaces.Text(3)
    with pytest.raises(DatasetError, match="name a policy, module:function") as refused:
        made_policy("random", env, 0)
    assert "\n" not in str(refused.value)


def test_batches_without_a_space_tell_the_number_of_actions() -> None:
    actions = made_policy("random", SimpleNamespace(step=None, num_envs=3, num_actions=2), 0)(None)
    assert actions.shape == (3, 2)
    assert np.abs(actions).max() <= 1


def spaceless(robots: int) -> Batch:
    """Robots whose space of actions is unknown, on torch."""
    batch = Batch(robots, 4)
    batch.num_actions = 2  # type: ignore[attr-defined]
    return batch


def test_an_environment_of_rsl_rl_with_random_actions(tmp_path: Path, run: Run) -> None:
    words = ["record", tmp_path / "s.zarr", "--env", f"{HERE}:spaceless", "--robots", "2"]
    done = run(*words, "--steps", "9")
    assert done.code == 0, done.err
    assert np.ptp(open_store(tmp_path / "s.zarr").select().read("action")) > 1


def test_a_wrapper_that_hides_how_robots_are_reset_is_refused() -> None:
    gymnasium = pytest.importorskip("gymnasium")

    class Hiding(gymnasium.Env):  # type: ignore[misc]
        metadata = {"render_modes": []}  # noqa: RUF012, as gymnasium has it

        def __init__(self, batch: Batch) -> None:
            self.num_envs = batch.num_envs
            self.cfg = batch.cfg
            self.step = batch.step

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return env.reset()

    env = batch_without_reset(2)
    with pytest.raises(DatasetError, match="takes no env_ids"):
        run_loop(Hiding(env), actor, 9, 0, lambda steps: None)
