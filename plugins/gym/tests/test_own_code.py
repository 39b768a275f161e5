"""Own environments and policies: nothing made by other code or weights is used again, or mixed."""

import json
import os
import sys
import types
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from gaitforge.collectors.policy import StoredObservation
from gaitforge.common.extensions import code_hash, module_version
from gaitforge.common.trust import trusting
from gaitforge.datasets import open_store
from gaitforge.flows.experiments.claim import Claim
from gaitforge.flows.experiments.plan import Experiment
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.stage import Stage, run_stage
from gaitforge.flows.tasks.policy_sources import named_source
from gaitforge.pipeline.report.experiment import stages_of
from gaitforge.plugins.gym.environments.batch import TaskBatch
from gaitforge.plugins.gym.environments.tasks import find_task
from gaitforge.plugins.gym.episodes import evaluate, run_episode
from gaitforge.plugins.gym.evaluation import GymEvaluation
from gaitforge.plugins.gym.task import DrawnPolicy
from tests.pipeline.command_line import Run, assert_refused

pytest.importorskip("gymnasium")

ENVIRONMENT = """
import gymnasium, numpy as np
from gymnasium.spaces import Box
from {package}.values import REWARD

class Still(gymnasium.Env):
    observation_space, action_space = Box(-9, 9, (3,)), Box(-1, 1, (1,))

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.normal(size=3).astype("f4"), {{}}

    def step(self, action):
        return np.zeros(3, "f4"), REWARD, False, False, {{}}
"""
POLICY = """
import numpy as np

class Loaded:
    def __init__(self, robots):
        self.weights = np.load("w.npy")
        {key}

    def reset(self, ids):
        pass

    def act(self, observation):
        return np.clip(observation.policy @ self.weights, -1, 1)[:, None].astype(np.float32)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def forget(package: str) -> None:
    """Import a package anew, as another process would."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


def test_a_store_holds_one_version_of_an_environment_of_several_files(run: Run, here: Path) -> None:
    package = here / "stillness"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "envs.py").write_text(ENVIRONMENT.format(package="stillness"))
    (package / "values.py").write_text("REWARD = 1.0")
    env = "stillness.envs:Still,max_steps=5"
    collect = ["gym", "collect", "s.zarr", "--env", env, "--quality", "random", "--part-steps", "5"]
    evaluate_it = ["evaluate", "random", "--task", "gym", "--set", f"env={env}", "--episodes", "2"]
    evaluate_it += ["--out", "e.json", "--json"]
    assert run(*collect, "--steps", "5", "--processes", "1").code == 0
    assert json.loads(run(*evaluate_it).out)["return"] == 5.0
    (package / "values.py").write_text("REWARD = 100.0")
    forget("stillness")
    more = run(*collect, "--steps", "10", "--processes", "1")
    assert_refused(more, "s.zarr was made by stillness ", "or give --mix-versions")
    assert len(open_store("s.zarr").parts()) == 1
    assert json.loads(run(*evaluate_it).out)["return"] == 500.0
    assert run(*collect, "--steps", "10", "--processes", "1", "--mix-versions").code == 0
    assert len(open_store("s.zarr").select().describe(("simulator_version",))) == 2


def test_the_hash_of_own_code_covers_what_it_imports_and_nothing_else(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(name: str, text: str) -> None:
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text)

    write("whole/__init__.py", "")
    write("whole/inner.py", "import numpy, beside\nfrom . import other")
    write("whole/other.py", "")
    write("whole/scene.xml", "<mujoco/>")
    write("beside.py", "def late():\n    import further.deep")
    write("further/deep.py", "x = 1")  # a folder without __init__.py is a package, too
    write("unrelated.py", "")
    seen = {code_hash(["whole.inner"])}
    for name in ("whole/other.py", "whole/scene.xml", "beside.py", "further/deep.py"):
        write(name, (here / name).read_text() + "\n")
        seen.add(code_hash(["whole.inner"]))
    assert len(seen) == 5
    write("unrelated.py", "changed = True")
    (here / "whole" / "__pycache__").mkdir()
    write("whole/__pycache__/inner.py", "")
    assert code_hash(["whole.inner"]) in seen
    # Another process on this path must find the same, whatever this one has loaded.
    stray = types.ModuleType("stray")
    stray.__file__ = str(here / "unrelated.py")
    write("beside.py", (here / "beside.py").read_text() + "    import stray\n")
    without = code_hash(["whole.inner"])
    monkeypatch.setitem(sys.modules, "stray", stray)
    assert code_hash(["whole.inner"]) == without
    write("gymnasium_of_mine.py", "")
    assert module_version("gymnasium_of_mine") != module_version("unrelated")
    assert module_version("gymnasium")[0].isdigit()
    assert (code_hash(["os.path"]), code_hash(["numpy"]), code_hash(["nowhere"])) == ("", "", "")
    write("other/site-packages/theirs.py", "")  # another environment's, which is on the path
    monkeypatch.syspath_prepend(str(here / "other" / "site-packages"))
    assert code_hash(["theirs"]) == ""


@pytest.mark.parametrize("known", [True, False])
def test_other_weights_of_a_class_are_never_taken_for_its_own(
    run: Run, here: Path, known: bool
) -> None:
    name = f"loads_{known}".lower()
    key = "self.key = self.weights.tobytes().hex()" if known else ""
    (here / f"{name}.py").write_text(POLICY.format(key=key))
    task = ("--task", "gym", "--set", "env=Pendulum-v1,max_steps=20", "--episodes", "2")
    evaluation = ("evaluate", f"{name}:Loaded", *task, "--out", "e.json", "--json")
    collect = ("gym", "collect", "s.zarr", "--env", "Pendulum-v1,max_steps=20", "--policies",
               f"{name}:Loaded", "--part-steps", "20", "--processes", "1")  # fmt: skip
    records, codes = [], []
    for weights, steps in (([0, 0, 0], 40), ([0, 0, 0], 40), ([-1, -8, -2], 60)):
        np.save("w.npy", np.array(weights, np.float32))
        records.append(json.loads(run(*evaluation).out))
        done = run(*collect, "--steps", steps)
        codes.append(done.code)
    first, again, other = records
    assert first["return"] == again["return"] != other["return"]
    assert (first["wall_s"] == again["wall_s"]) == known, "with a key, it is not made again"
    rows = open_store("s.zarr").select().describe(("expert_hash",))
    assert len(rows) == (2 if known else 1)
    assert codes == ([0, 0, 0] if known else [0, 0, 2])
    if not known:
        *_, error = done.err.splitlines()
        assert error.startswith("gaitforge: error: ")
        assert "holds episodes of loads_false:Loaded, which has no `key`" in error
        assert "differs (return is " in error
        np.save("w.npy", np.zeros(3, np.float32))
        assert run(*collect, "--steps", 60).code == 0, "with the old weights it goes on"
        assert len(open_store("s.zarr").parts()) == 3


def test_an_experiments_scores_follow_the_code_and_key_of_the_class_that_gives_100(
    run: Run, here: Path
) -> None:
    collect = ["gym", "collect", "s.zarr", "--env", "Pendulum-v1,max_steps=5", "--quality"]
    assert run(*collect, "random", "--steps", "200", "--processes", "1").code == 0
    code = POLICY.format(key="self.key = self.weights.tobytes().hex()")
    (here / "scores.py").write_text(code)
    experiment = Experiment(
        {"mlp": {"model": "mlp"}}, seeds=(0,), expert="scores:Loaded", evaluate={"episodes": 2}
    )
    claim, out = Claim("compare", experiment, ("s.zarr",)), here / "many"

    def stages() -> dict[str, Stage]:
        forget("scores")
        every = stages_of(claim, out)
        return {each.name.partition(" of ")[0]: each for each in every}

    def keys() -> list[str]:
        return [stages()[name].key for name in ("evaluate expert", "evaluate mlp-seed-0")]

    untrusted = keys()
    assert "scores" not in sys.modules
    with trusting(["scores:Loaded"]):
        np.save("w.npy", np.zeros(3, np.float32))
        first = keys()
        run_stage(out, stages()["evaluate expert"], Silent())
        assert stages()["evaluate expert"].is_done(out)
        assert keys() == first
        np.save("w.npy", np.ones(3, np.float32))
        other_weights = keys()
        assert not stages()["evaluate expert"].is_done(out)
        (here / "scores.py").write_text(code + "\n")
        other_code = keys()
    for among in zip(untrusted, first, other_weights, other_code, strict=True):
        assert len(set(among)) == 4


def test_a_run_collects_as_it_is_evaluated(run: Run, here: Path) -> None:
    env = "Pendulum-v1,max_steps=60"
    collect = ["gym", "collect", "s.zarr", "--env", env, "--quality", "random", "--steps", "240"]
    assert run(*collect, "--processes", "1").code == 0
    settings = ("held_out_fraction=0", "return_scale=100", "window_len=8", "peak_lr=0.05")
    words = [word for each in settings for word in ("--set", f"config.{each}")]
    words += ["--set", 'config.model_overrides={"hidden_dim":16,"n_layers":1,"context_len":8}']
    words += ["--objective", "return", "--steps", "20", "--batch-size", "4", "--out", "run"]
    done = run("train", "s.zarr", "--model", "dt", *words)
    assert done.code == 0, done.err
    source, task, seed = named_source("run"), find_task(env), 5
    drawn = DrawnPolicy(source)
    network = source.network(None)
    assert network.conditioned
    assert network.layout.keeps_last_action
    with closing(TaskBatch(task, 1)) as batch:
        collected = run_episode(batch, drawn, seed)
        policy = GymEvaluation(env=env).driven(source, network, 1)
        [evaluated] = evaluate(policy, batch, [seed])
    assert float(collected.reward.sum(dtype=np.float64)) == pytest.approx(evaluated.episode_return)
    left = drawn._mean._remaining[0]  # type: ignore[attr-defined]
    asked = network.return_at(1.0)
    assert left == pytest.approx(asked - float(collected.reward[:-1].sum()), rel=1e-4)


def test_a_drawn_episode_tells_rewards_and_executed_actions() -> None:
    class Wide:
        """Actions beyond the range, as a Gaussian's are before they are clipped."""

        def __init__(self) -> None:
            self.rewards: list[float] = []
            self.told: list[np.ndarray] = []

        def draw(
            self, observation: StoredObservation, rng: np.random.Generator
        ) -> tuple[np.ndarray, float]:
            self.rewards.append(float(observation.reward[0]))
            return np.clip(rng.normal(0, 3, 1), -1, 1).astype(np.float32), 0.0

        def executed(self, actions: np.ndarray) -> None:
            self.told.append(actions[0].copy())

    policy = Wide()
    with closing(TaskBatch(find_task("Pendulum-v1,max_steps=9"), 1)) as batch:
        for seed in (1, 2):
            policy.rewards.clear()
            policy.told.clear()
            episode = run_episode(batch, policy, seed)
            assert policy.rewards == [0.0, *map(float, episode.reward[:-1])]
            np.testing.assert_array_equal(policy.told, episode.action)


SHAPES = """
import numpy as np

class Gives:
    parameters = 0

    def __init__(self, environments):
        self.environments = environments

    def reset(self, ids):
        pass

class Flat(Gives):
    def act(self, observation):
        return np.zeros(2, np.float32)

class One(Gives):
    def act(self, observation):
        return np.zeros((1, 2), np.float32)

class Lost(Gives):
    def act(self, observation):
        return np.full((len(observation.policy), 2), np.nan, np.float32)
"""


@pytest.mark.parametrize(
    ("name", "collected", "evaluated"),
    [
        ("Flat", r"shape \(2,\) for 1 robot;", r"shape \(2,\) for 2 robots"),
        ("One", "", r"shape \(1, 2\) for 2 robots"),
        ("Lost", "action that is not finite", "action that is not finite"),
    ],
)
def test_a_policy_of_other_shapes_or_without_numbers_is_refused(
    here: Path, name: str, collected: str, evaluated: str
) -> None:
    """Of scores that are no numbers the first choice would be taken."""
    (here / "shapes_of_policies.py").write_text(SHAPES)
    with trusting([f"shapes_of_policies:{name}"]):
        source = named_source(f"shapes_of_policies:{name}")
        if collected:
            with (
                closing(TaskBatch(find_task("CartPole-v1"), 1)) as one,
                pytest.raises(ValueError, match=collected),
            ):
                run_episode(one, DrawnPolicy(source), 0)
        with (
            closing(TaskBatch(find_task("CartPole-v1"), 2)) as two,
            pytest.raises(ValueError, match=evaluated),
        ):
            evaluate(source.policy_class()(2), two, [0, 1])


def test_an_environment_whose_time_step_cannot_be_read_has_steps_of_a_second(here: Path) -> None:
    raising = "\n    @property\n    def dt(self):\n        raise RuntimeError('not yet')\n"
    text = ENVIRONMENT.format(package="timeless") + raising
    (here / "timeless").mkdir()
    (here / "timeless" / "__init__.py").write_text(text)
    (here / "timeless" / "values.py").write_text("REWARD = 1.0\n")
    with trusting(["timeless:Still"]):
        assert find_task("timeless:Still,max_steps=5").facts.control_dt_s == 1.0


def test_files_that_an_environments_settings_name_are_part_of_its_version(here: Path) -> None:
    from gaitforge.common.trust import trusting
    from gaitforge.plugins.gym.environments.tasks import package_version

    (here / "filed.py").write_text(
        "import gymnasium\n\ndef make(file):\n    return gymnasium.make('Pendulum-v1')\n"
    )
    Path("scene.xml").write_text("<a/>")
    with trusting(["filed:make", "scene.xml"]):
        task = find_task("filed:make,max_steps=5,make.file=scene.xml")
        first = package_version(task)
        Path("scene.xml").write_text("<b/>")
        assert package_version(task) != first
        Path("filed.py").write_text(Path("filed.py").read_text() + "\n")
        assert package_version(task).split(", ")[0] == first.split(", ")[0]
        assert "filed " in first
        assert package_version(task).split(", ")[1] != first.split(", ")[1]
    assert os.environ.get("GAITFORGE_TRUST", "") == ""
