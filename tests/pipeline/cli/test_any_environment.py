"""Environments of Gymnasium's registry and of a user's module: collected, trained, evaluated."""

import json
from pathlib import Path

import numpy as np
import pytest

from gaitforge.collectors.gym.batch import TaskBatch
from gaitforge.collectors.gym.tasks import find_task
from gaitforge.datasets import open_store
from tests.pipeline.command_line import Run, assert_refused

gymnasium = pytest.importorskip("gymnasium")

MODULE = '''
import gymnasium, numpy as np
from gymnasium.spaces import Box, Dict

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

for name in ("Line", "Free", "Told", "Broken"):
    gymnasium.register(f"{name}-v0", f"lines:{name}", max_episode_steps=20)
gymnasium.register("Endless-v0", "lines:Line")
'''


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lines.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))


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
        of = () if isinstance(policy, Path) else ("--task", "gym", "--set", "env=lines:Line-v0")
        scored = run("evaluate", policy, *of, "--episodes", 4, "--json")
        assert scored.code == 0, scored.err
        assert json.loads(scored.out)["episodes"] == 4
    assert json.loads(scored.out)["success"] == 1.0


@pytest.mark.usefixtures("lines")
@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("lines:Free-v0", "has the actions Box(-inf, inf, (1,), float32); allowed: Discrete"),
        ("lines:Told-v0", "observes Sequence(Box(0.0, 1.0, (1,), float32)"),
        ("lines:Endless-v0", "has no time limit; register it with max_episode_steps"),
        ("lines:Broken-v0", "cannot be made: KeyError('no')"),
        ("nothing:Line-v0", "no task 'nothing:Line-v0' (No module named 'nothing'); allowed"),
        ("Bee-v5", "no task 'Bee-v5' (Environment `Bee` doesn't exist.); allowed: HalfCheetah-v5"),
    ],
)
def test_an_environment_that_does_not_fit_is_refused_in_a_line(
    run: Run, tmp_path: Path, env: str, message: str
) -> None:
    assert_refused(run("gym", "collect", tmp_path / "x.zarr", "--env", env), message)
