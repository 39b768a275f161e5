"""Environments of Gymnasium's registry and of a user's module: collected, trained, evaluated."""

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from gaitforge.collectors.policy import Memoryless, StoredObservation
from gaitforge.common.trust import VARIABLE, trust, trusting
from gaitforge.datasets import open_store
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.replay import replay
from gaitforge.plugins.gym.environments.batch import TaskBatch
from gaitforge.plugins.gym.environments.tasks import find_task
from gaitforge.plugins.gym.episodes import evaluate, evaluation_seeds
from tests.pipeline.command_line import Run, assert_refused

gymnasium = pytest.importorskip("gymnasium")

MODULE = '''
import os
import gymnasium, numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Text

class Line(gymnasium.Env):
    """Go to the goal on a line."""

    action_space = Box(-3.0, 3.0, (1,), np.float32)
    observation_space = Dict(place=Box(-9, 9, (1,)), goal=Box(-9, 9, (1,)))
    dt = 0.1

    def _seen(self):
        return {"place": self.place.astype(np.float32), "goal": self.goal}

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-1, 1, 1)
        self.goal = np.ones(1, np.float32)
        return self._seen(), {}

    def step(self, action):
        self.place = self.place + self.dt * action
        far = float(abs(self.place - self.goal)[0])
        return self._seen(), -far, far < 0.2, False, {"is_success": far < 0.2}

class Free(Line):
    action_space = Box(-np.inf, np.inf, (1,), np.float32)

class Told(Line):
    observation_space = gymnasium.spaces.Sequence(Box(0, 1))

class Broken(Line):
    def __init__(self):
        raise KeyError("no")

class Ahead:
    name = "ahead"

    def __init__(self, environments):
        self.parameters = 0

    def reset(self, ids):
        pass

    def act(self, observation):
        return np.full((len(observation.policy), 1), 0.5, np.float32)

def several():
    return gymnasium.vector.SyncVectorEnv([Line, Line])

class Raises(Line):
    def step(self, action):
        raise RuntimeError("the motor is hot")

class Loses(Line):
    """Its observation lacks a key that the space names."""

    def _seen(self):
        return {"place": self.place.astype(np.float32)}

class Blows(Line):
    """Its reward is no number in the second step."""

    steps = 0

    def step(self, action):
        self.steps += 1
        seen, reward, *rest = super().step(action)
        return seen, np.nan if self.steps == 2 else reward, *rest

class Room(gymnasium.Env):
    """Go right to the door; it prints as simulators in C do."""

    action_space = MultiDiscrete([3, 2])
    observation_space = Dict(
        eyes=Dict(image=Box(0, 255, (2, 3), np.uint8), side=Discrete(2, start=1)),
        place=Box(-np.inf, np.inf, (), np.float64),
        mission=Text(20),
    )

    def __init__(self, width=5.0, render_mode=None):
        os.write(1, b"room build time\\n")
        self.width, self.render_mode = width, render_mode

    def _seen(self):
        image = np.full((2, 3), min(255, int(10 * abs(self.place))), np.uint8)
        eyes = {"image": image, "side": 1 + int(self.place > 0)}
        return {"eyes": eyes, "place": self.place, "mission": "to the door", "more": 1}

    def reset(self, seed=None, options=None):
        np.random.RandomState(seed)  # takes 32 bits only, as dm_control's generator
        super().reset(seed=seed)
        self.place = (options or {}).get("start", self.np_random.uniform(-1, 1))
        return self._seen(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.place += (action[0] - 1) * (1 + action[1]) / 2
        out = abs(self.place) > self.width
        return self._seen(), -1.0, out, False, {"at_door": np.array(out and self.place > 0)}

class Luck(Room):
    """Its start is drawn from a generator that no seed reaches."""

    def reset(self, seed=None, options=None):
        return super().reset(seed=seed, options={"start": np.random.uniform(-1, 1)})

class Twice(gymnasium.RewardWrapper):
    def reward(self, reward):
        return 2 * reward

class Right:
    name = "right"

    def __init__(self, environments):
        self.parameters = 0

    def reset(self, ids):
        pass

    def act(self, observation):
        return np.tile(np.float32([0, 0.1, 0.5, -1, -0.5]), (len(observation.policy), 1))

for name in ("Line", "Free", "Told", "Broken", "Raises", "Loses", "Blows"):
    gymnasium.register(f"{name}-v0", f"lines:{name}", max_episode_steps=20)
gymnasium.register("Endless-v0", "lines:Line")
'''


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lines.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(VARIABLE, "")


def test_a_batch_is_the_environment_with_scaled_actions() -> None:
    env, batch = gymnasium.make("Pendulum-v1"), TaskBatch(find_task("Pendulum-v1"), 2)
    batch.reset([1], [5])
    env.reset(seed=5)
    for action in np.linspace(-1, 1, 7, dtype=np.float32):
        obs, reward, *_ = env.step(np.array([2.0 * action]))
        step = batch.step([1], np.array([[action]]))
        np.testing.assert_array_equal(batch.observation.policy[1], obs.astype(np.float32))
        assert step.reward[0] == np.float32(reward)
    assert batch.task.facts.horizon == 200
    assert batch.task.facts.control_dt_s == 0.05
    with pytest.raises(ValueError, match="no state of MuJoCo"):
        batch.physics(0)


def test_a_discrete_action_is_the_highest_of_its_scores() -> None:
    env, batch = gymnasium.make("FrozenLake-v1"), TaskBatch(find_task("FrozenLake-v1"), 1)
    assert (batch.obs_dim, batch.act_dim) == (16, 4)
    batch.reset([0], [3])
    env.reset(seed=3)
    for action in (2, 1, 1, 2, 0):
        place, *_ = env.step(action)
        batch.step([0], 2 * np.eye(4, dtype=np.float32)[[action]] - 1)
        np.testing.assert_array_equal(batch.observation.policy[0], np.eye(16)[place])


@pytest.mark.usefixtures("lines")
def test_a_users_environment_and_policy_go_all_the_way(run: Run, tmp_path: Path) -> None:
    task = ("--env", "lines:Line-v0")
    for policy, quality in (("lines:Ahead", "expert"), ("", "random")):
        store = tmp_path / f"{quality}.zarr"
        words = ("--policies", policy) if policy else ()
        done = run("gym", "collect", store, *task, *words, "--quality", quality, "--steps", 60)
        assert done.code == 0, done.err
        selection = open_store(store).select()
        assert selection.schema.control_dt_s == 0.1
        assert dict(selection.schema.field("obs").slices) == {"place": (0, 1), "goal": (1, 2)}
        assert selection.steps >= 60

    trained = run("train", tmp_path / "expert.zarr", "--out", tmp_path / "bc", "--model", "mlp",
                  "--steps", 3, "--set", "config.held_out_fraction=0.3")  # fmt: skip
    assert trained.code == 0, trained.err
    sizes = ("horizon=8", "environments=4", "epochs=1", "mini_batches=2")
    settings = [word for size in sizes for word in ("--set", size)]
    out = tmp_path / "ppo"
    done = run("expert", "train", *task, "--model", "mlp", "--steps", 64, "--out", out, *settings)
    assert done.code == 0, done.err
    for policy in (tmp_path / "bc", out / "policy", "lines:Ahead"):
        of = ("--trust", "lines:Line-v0")
        if not isinstance(policy, Path):
            of = ("--task", "gym", "--set", "env=lines:Line-v0")
        scored = run("evaluate", policy, *of, "--episodes", 4, "--json")
        assert scored.code == 0, scored.err
        assert json.loads(scored.out)["episodes"] == 4
    assert json.loads(scored.out)["success"] == 1.0


ROOM = ("--env", "lines:Room", "--max-steps", 12, "--success", "at_door", "--make", "width=3",
        "--wrapper", "lines:Twice")  # fmt: skip


@pytest.mark.usefixtures("lines")
def test_discrete_actions_wrappers_and_success_by_name_go_all_the_way(
    run: Run, tmp_path: Path
) -> None:
    store, words = tmp_path / "room.zarr", ("--policies", "lines:Right", "--steps", 60)
    done = run("gym", "collect", store, *ROOM, *words, "--json")
    assert done.code == 0, done.err
    assert "room build time" in done.err
    assert "note: the observation is stored without mission (Text)" in done.err
    [row] = json.loads(done.out)
    assert row["success"] == 1.0
    opened = open_store(store)
    schema, selection = opened.schema, opened.select()
    obs = schema.field("obs")
    slices = {"eyes_image": (0, 6), "eyes_side": (6, 8), "place": (8, 9)}
    assert dict(obs.slices) == slices
    assert obs.description == "observation before the step, without mission (Text)"
    assert schema.attributes["choices"] == [3, 2]
    episode = selection.episode(0)
    np.testing.assert_array_equal(episode["action"], len(episode["action"]) * [[-1, -1, 1, -1, 1]])
    np.testing.assert_array_equal(episode["reward"], -2.0)
    code = ("--trust", "lines:Room", "--trust", "lines:Twice")
    with trusting(code), trusting(["lines:Right"]):
        assert replay(store, 3, 0, Silent()) == []

    again = run("gym", "collect", store, "--env", schema.attributes["env"], *words, "--json")
    assert json.loads(again.out) == [row], "the text in the schema is the same environment"

    run_folder = tmp_path / "dt"
    sizes = ("--set", "config.held_out_fraction=0.3")
    trained = run("train", store, "--out", run_folder, "--model", "mlp", "--steps", 30, *sizes)
    assert trained.code == 0, trained.err
    refused = run("train", store, "--out", tmp_path / "td3", "--objective", "td3-bc")
    assert_refused(refused, "actions are discrete, and the critics of td3-bc judge")
    scored = run("evaluate", run_folder, *code, "--episodes", 4, "--json")
    assert scored.code == 0, scored.err
    result = json.loads(scored.out)
    assert (result["success"], result["survival"]) == (1.0, 0.0)
    assert "success_known" not in result["cells"][0]
    known = run("evaluate", "random", "--task", "gym", "--set", "env=lines:Room,max_steps=3",
                "--episodes", 4, "--json")  # fmt: skip
    assert json.loads(known.out)["cells"][0]["success_known"] == 0.0


@pytest.mark.slow
@pytest.mark.usefixtures("lines")
def test_the_policy_that_collected_scores_100_in_experiments(run: Run, tmp_path: Path) -> None:
    words = ("--learners", "mlp", "--seeds", 0, "--steps", 3, "--episodes", 3)
    for name, more in (("ahead", ("--policies", "lines:Ahead")), ("random", ())):
        store = tmp_path / f"{name}.zarr"
        quality = ("--quality", "expert,random" if more else "random", "--steps", 40)
        assert run("gym", "collect", store, "--env", "lines:Line-v0", *more, *quality).code == 0
    words = (*words, "--trust", "lines:Line-v0", "--trust", "lines:Ahead")
    done = run("run", "compare", tmp_path / "ahead.zarr", "--out", tmp_path / "run", *words)
    assert done.code == 0, done.err
    [scored] = json.loads((tmp_path / "run/summary.json").read_text())["sets"]
    assert scored["expert"] > scored["zero"]
    refused = run("run", "compare", tmp_path / "random.zarr", "--out", tmp_path / "no", *words)
    assert refused.code != 0
    assert "give RUN|module:Class|FILE.onnx, to an experiment as --expert" in refused.err


def save_onnx(path: Path, weights: np.ndarray) -> None:
    """A policy whose scores are linear in the observation."""
    onnx = pytest.importorskip("onnx")
    names = {"seen": (None, weights.shape[0]), "scores": (None, weights.shape[1])}
    seen, scores = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in names.items()
    )
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["seen", "weights"], ["scores"])],
        "policy",
        [seen],
        [scores],
        [onnx.numpy_helper.from_array(weights, "weights")],
    )
    opset = onnx.helper.make_opsetid("", 20)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10), path)


@pytest.mark.usefixtures("lines")
def test_an_onnx_file_drives_and_is_evaluated(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    weights, store, file = np.zeros((9, 5), np.float32), tmp_path / "x.zarr", tmp_path / "p.onnx"
    weights[6:8, 2] = 1  # whatever the side, right
    save_onnx(file, weights)
    done = run("gym", "collect", store, *ROOM, "--policies", file, "--steps", 30)
    assert done.code == 0, done.err
    assert (open_store(store).select().episode(0)["action"][:, :3] == [-1, -1, 1]).all()
    env = open_store(store).schema.attributes["env"]
    scored = run(
        "evaluate", file, "--task", "gym", "--set", f"env={env}", "--episodes", 3, "--json"
    )
    assert json.loads(scored.out)["success"] == 1.0


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((3, 2), "Pendulum-v1 takes actions of size 1, the policy gave 2"),
        ((4, 1), "does not take an observation of size 3: "),
        (None, "cannot be read as ONNX: "),
    ],
)
def test_an_onnx_file_that_does_not_fit_is_refused(
    run: Run, tmp_path: Path, shape: tuple[int, int] | None, message: str
) -> None:
    file = tmp_path / "p.onnx"
    if shape:
        save_onnx(file, np.zeros(shape, np.float32))
    else:
        file.write_text("no graph")
    words = ("--env", "Pendulum-v1", "--policies", file, "--steps", 30)
    refused = run("gym", "collect", tmp_path / "x.zarr", *words)
    assert refused.code == 2
    assert message in refused.err
    assert "Traceback" not in refused.err
    assert not (tmp_path / "x.zarr").exists()


@pytest.mark.usefixtures("lines")
def test_episodes_that_no_seed_repeats_are_collected_with_a_note(run: Run, tmp_path: Path) -> None:
    words = ("--quality", "random", "--steps", 20)
    done = run("gym", "collect", tmp_path / "x.zarr", "--env", "lines:Luck,max_steps=5", *words)
    assert done.code == 0, done.err
    assert "episodes of lines:Luck are no function of their seed: the observation" in done.err
    assert "in its info" not in done.err
    more = ("--reset", "start=0.25", "--success", "hapy", *words)
    fixed = run("gym", "collect", tmp_path / "y.zarr", *ROOM, *more)
    assert "no function" not in fixed.err
    assert "none of the first steps had 'hapy' in its info" in fixed.err
    first = open_store(tmp_path / "y.zarr").select().episode(0)
    assert first["obs"][0, 8] == 0.25


CONTRACT = ("CartPole-v1", "MountainCarContinuous-v0,max_steps=20", "Acrobot-v1,max_steps=15",
            "Pendulum-v1,max_steps=15", "Blackjack-v1,max_steps=9", "Taxi-v4,max_steps=15",
            "FrozenLake-v1,success=rewarded", "lines:Room,max_steps=9")  # fmt: skip


@pytest.mark.usefixtures("lines")
@pytest.mark.parametrize("env", CONTRACT)
def test_an_episode_is_a_function_of_its_seed_whatever_runs_beside_it(env: str) -> None:
    trust(env)
    task, seeds = find_task(env), evaluation_seeds(5, 3)

    class ByObservation(Memoryless):
        """Another action for each observation, but none for the rows beside it."""

        def __init__(self, act_dim: int) -> None:
            self._act_dim = act_dim

        def act(self, observation: StoredObservation) -> np.ndarray:
            phases = np.arange(self._act_dim, dtype=np.float32)
            return np.sin(7 * observation.policy.sum(axis=1, keepdims=True) + phases)

    outcomes = []
    for count in (1, 3, 5):
        with closing(TaskBatch(task, count)) as batch:
            outcomes.append(evaluate(ByObservation(batch.act_dim), batch, seeds))
    assert outcomes[0] == outcomes[1] == outcomes[2]


@pytest.mark.usefixtures("lines")
@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("lines:Free-v0", "has the actions Box(-inf, inf, (1,), float32); allowed: Discrete"),
        ("lines:Told-v0", "observes Sequence(Box(0.0, 1.0, (1,), float32), stack=False), of which"),
        ("lines:Endless-v0", "has no time limit: give one with --max-steps, or in an id as"),
        ("lines:Raises-v0", "step 1 of the episode with seed 1 failed: RuntimeError('the motor"),
        ("lines:Loses-v0", "the reset with seed 1 failed: KeyError('goal') at "),
        ("lines:Blows-v0", "step 2 of the episode with seed 1 failed: ValueError('its obs"),
        ("lines:Room", "lines:Room has no time limit"),
        ("lines:Right,max_steps=9", "cannot be made: TypeError("),
        ("lines:Line-v0,speed=3", "no setting 'speed'; allowed: max_steps, success, wrapper"),
        ("lines:Line-v0,wrapper=lines:No", "cannot be made: AttributeError("),
        ("lines:Line-v0,max_steps=0", "max_steps must be a number of at least 1, not '0'"),
        ("lines:Broken-v0", "cannot be made: KeyError('no')"),
        ("lines:several,max_steps=9", "is a SyncVectorEnv, not a single gymnasium.Env; vectors"),
        ("lines:Line-v0,wrapper=builtins:str", "is a str, not a single gymnasium.Env; vectors"),
        ("nothing:Line-v0", "no task 'nothing:Line-v0' (No module named 'nothing'); allowed"),
        ("Bee-v5", "no task 'Bee-v5' (Environment `Bee` doesn't exist.); allowed: HalfCheetah-v5"),
    ],
)
def test_an_environment_that_does_not_fit_is_refused_in_a_line(
    run: Run, tmp_path: Path, env: str, message: str
) -> None:
    assert_refused(run("gym", "collect", tmp_path / "x.zarr", "--env", env), message)
