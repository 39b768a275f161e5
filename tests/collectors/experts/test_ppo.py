"""Training an expert: tiny, resumed, exported."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from gaitforge.collectors.experts.expert import (
    FEATURE_DIM,
    ExpertPolicy,
    load_expert,
    robots_of_expert,
)
from gaitforge.collectors.experts.ppo import (
    CRITIC_DIM,
    SKILL_SHARES,
    TERRAIN_SHARES,
    ExpertTask,
    ExpertTrainingConfig,
    train_expert,
)
from gaitforge.collectors.experts.ppo_algorithm import trained_steps
from gaitforge.collectors.experts.training_scope import TrainingScope
from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.episodes import EpisodeSpec
from gaitforge.collectors.legged.rewards import rewards_of, track_linear_velocity
from gaitforge.collectors.robots.robot import BODY_DIM, N_JOINTS
from gaitforge.collectors.scenarios.randomisation import Randomisation
from gaitforge.collectors.scenarios.skills import SKILLS
from gaitforge.collectors.scenarios.terrains import TERRAINS
from gaitforge.collectors.timing import CONTROL_DT_S, EPISODE_STEPS
from gaitforge.common.history import read_history
from tests.collectors.making import FIRM_STANCE, ROBOT
from tests.collectors.robots.robot_folders import family_of

PER_UPDATE = 16 * 8
TINY = ExpertTrainingConfig(
    steps=2 * PER_UPDATE,
    robots=16,
    horizon=8,
    epochs=1,
    mini_batches=2,
    hidden=(16, 8),
    threads=1,
    checkpoint_every_s=0.0,
)


@dataclass
class Trained:
    """What a first training of two updates and a second that goes on to three have left."""

    folder: Path
    weights: Path
    card: dict[str, Any]
    first: list[dict[str, Any]] = field(default_factory=list)
    second: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("expert")
    first: list[dict[str, Any]] = []
    second: list[dict[str, Any]] = []
    train_expert(TINY, folder, first.append)
    weights, card = train_expert(replace(TINY, steps=3 * PER_UPDATE), folder, second.append)
    return Trained(folder, weights, card, first, second)


def test_training_reports_every_update_and_goes_on_where_it_stopped(trained: Trained) -> None:
    assert [s["steps"] for s in trained.first] == [PER_UPDATE, 2 * PER_UPDATE]
    for summary in trained.first:
        assert summary["steps_per_s"] > 0
        assert all(np.isfinite(value) for value in summary["losses"].values())
    assert [(s["steps"], s["iteration"]) for s in trained.second] == [(3 * PER_UPDATE, 3)]
    record = json.loads((trained.folder / "training.json").read_text())
    assert (record["iteration"], record["steps"]) == (3, 3 * PER_UPDATE)
    assert [p.name for p in trained.folder.glob("training-*")] == [record["tensors"]]
    again: list[dict[str, Any]] = []
    weights, _ = train_expert(replace(TINY, steps=3 * PER_UPDATE), trained.folder, again.append)
    assert again == []
    assert weights == trained.weights
    card = trained.card
    assert (card["steps"], card["robot"]) == (3 * PER_UPDATE, "aliengo")
    assert (set(card["skills"]), set(card["terrains"])) == (set(SKILLS), set(TERRAINS))
    assert card["training"]["hidden"] == (16, 8)


class Actor(torch.nn.Module):
    """The actor of a checkpoint, built from its tensors alone."""

    def __init__(self, tensors: dict[str, np.ndarray]):
        super().__init__()
        actor = {k.removeprefix("actor."): torch.from_numpy(v) for k, v in tensors.items()}
        self.mean, self.std = actor["obs_normalizer._mean"], actor["obs_normalizer._std"]
        numbers = sorted({int(k.split(".")[1]) for k in actor if k.startswith("mlp.")})
        self.layers = [(actor[f"mlp.{i}.weight"], actor[f"mlp.{i}.bias"]) for i in numbers]

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        # rsl-rl adds 0.01 to the standard deviation it divides by.
        x = (features - self.mean) / (self.std + 1e-2)
        for number, (weight, bias) in enumerate(self.layers):
            x = torch.nn.functional.linear(x, weight, bias)
            x = torch.nn.functional.elu(x) if number < len(self.layers) - 1 else x
        return x


def test_the_simulators_threads_change_nothing(tmp_path: Path) -> None:
    one, three = (
        load_file(
            train_expert(replace(TINY, threads=count), tmp_path / str(count), lambda row: None)[0]
        )
        for count in (1, 3)
    )
    for name, value in one.items():
        np.testing.assert_array_equal(value, three[name])


def test_the_exported_expert_is_the_trained_actor(trained: Trained) -> None:
    record = json.loads((trained.folder / "training.json").read_text())
    actor = Actor(load_file(trained.folder / record["tensors"]))
    policy = ExpertPolicy("expert", ROBOT, load_file(trained.weights))
    features = np.random.default_rng(0).normal(0, 2, (50, FEATURE_DIM)).astype(np.float32)
    with torch.no_grad():
        expected = actor(torch.from_numpy(features)).numpy()
    np.testing.assert_allclose(policy._residual(features), expected, atol=1e-5)
    assert np.abs(expected).max() > 1e-4


def test_a_training_on_other_terrains_cannot_go_on(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "gaitforge.collectors.experts.training_scope.TERRAIN_SHARES",
        TERRAIN_SHARES | {"gravel": 0.0},
    )
    with pytest.raises(ValueError, match="training with other network inputs"):
        train_expert(replace(TINY, steps=9 * PER_UPDATE), trained.folder, lambda _: None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_here_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"device cuda was asked for, but .*use device=cpu"):
        train_expert(replace(TINY, device="cuda"), tmp_path, lambda _: None)
    with pytest.raises(ValueError, match="unknown device 'tpu'; allowed: cpu, cuda"):
        replace(TINY, device="tpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_training_on_a_gpu_goes_on_and_is_saved_on_the_host(tmp_path: Path) -> None:
    on_gpu = replace(TINY, device="cuda")
    train_expert(on_gpu, tmp_path, lambda _: None)
    weights, _ = train_expert(replace(on_gpu, steps=3 * PER_UPDATE), tmp_path, lambda _: None)
    assert load_file(weights)["mean"].shape == (FEATURE_DIM,)


@pytest.mark.parametrize(
    "changes", [{"hidden": (16, 16)}, {"horizon": 12}], ids=lambda c: next(iter(c))
)
def test_another_configuration_in_the_folder_is_refused(
    trained: Trained, changes: dict[str, Any]
) -> None:
    before = sorted(path.name for path in trained.folder.iterdir())
    name = next(iter(changes))
    with pytest.raises(ValueError, match=f"holds a training with {name}=") as refusal:
        train_expert(replace(TINY, **changes), trained.folder, lambda summary: None)
    assert "\n" not in str(refusal.value)
    assert sorted(path.name for path in trained.folder.iterdir()) == before


class Interrupted(Exception):
    """Stands for whatever ends a process."""


@pytest.mark.parametrize(("every_s", "saved"), [(0.0, PER_UPDATE), (1e6, 0)])
def test_checkpoints_come_by_the_clock(tmp_path: Path, every_s: float, saved: int) -> None:
    with pytest.raises(ValueError, match="checkpoint_every_s must be at least 0, got -1"):
        replace(TINY, checkpoint_every_s=-1.0)

    def stop(row: dict[str, Any]) -> None:
        if row["iteration"] == 2:
            raise Interrupted

    config = replace(TINY, checkpoint_every_s=every_s)
    with pytest.raises(Interrupted):
        train_expert(config, tmp_path, stop)
    assert trained_steps(tmp_path) == saved
    assert [row["steps"] for row in read_history(tmp_path)] == [PER_UPDATE, 2 * PER_UPDATE]
    heard: list[int] = []
    train_expert(config, tmp_path, lambda row: heard.append(row["steps"]))
    assert heard[0] == saved + PER_UPDATE
    assert [row["steps"] for row in read_history(tmp_path)] == [PER_UPDATE, 2 * PER_UPDATE]


SLOTS = 80


@pytest.fixture
def task() -> Iterator[ExpertTask]:
    """Slots with every terrain and skill among them."""
    made = ExpertTask([ROBOT], SLOTS, 1, 0)
    yield made
    made.close()


def specs_of(task: ExpertTask) -> list[EpisodeSpec]:
    return [spec for spec in task._env.specs if spec is not None]


def test_the_critic_alone_sees_the_time_left_the_cell_and_the_forces(task: ExpertTask) -> None:
    assert task.get_observations()["features"].shape == (SLOTS, FEATURE_DIM)
    assert task.get_observations()["critic"].shape == (SLOTS, CRITIC_DIM)
    # Legs thrown up, so that some start again; then the gait, so that they stand.
    for correction, steps in ((6.0, 20), (0.0, 10)):
        for _ in range(steps):
            task.step(torch.full((SLOTS, N_JOINTS), correction))
    seen = task.get_observations()["critic"].numpy()
    time_left, level, terrain, skill, feet, barriers = np.split(seen, [1, 2, 7, 13, 17], axis=1)
    assert len(np.unique(task._env.step_count)) > 1
    np.testing.assert_allclose(
        time_left[:, 0], 1.0 - task._env.step_count / EPISODE_STEPS, rtol=1e-6
    )
    for row, spec in enumerate(specs_of(task)):
        assert level[row, 0] == pytest.approx(spec.level / 9)
        assert terrain[row].tolist() == [float(name == spec.terrain) for name in TERRAIN_SHARES]
        assert skill[row].tolist() == [float(name == spec.skill) for name in SKILL_SHARES]
    state = task._env.physics.state
    weight_n = ROBOT.mass_kg * 9.81
    expected = np.linalg.norm(state.foot_force, axis=2) / weight_n
    np.testing.assert_allclose(feet, expected, rtol=1e-5)
    assert 0.2 < np.median(feet.sum(axis=1)) < 2.0, "feet carry about the weight"
    np.testing.assert_allclose(barriers[:, 0], state.barrier_force / weight_n, rtol=1e-5)


def stand_still(task: ExpertTask) -> torch.Tensor:
    """(N, 12) corrections that keep a firm stance whatever the gait does."""
    action = (FIRM_STANCE - ROBOT.default_joint_pos_rad) / ROBOT.action_scale_rad
    return torch.from_numpy((action - task._reference).astype(np.float32))


@pytest.mark.slow
def test_levels_rise_with_the_way_walked_and_fall_with_falls_each_skill_for_itself(
    task: ExpertTask,
) -> None:
    """All slots stand still: who is asked to stand has done it, who is asked to walk has not."""
    stand = list(SKILL_SHARES).index("stand")
    terrains = [spec.terrain for spec in specs_of(task)]
    for name, share in TERRAIN_SHARES.items():
        assert terrains.count(name) == pytest.approx(share * SLOTS, abs=1)
    task.levels[::2, stand], task.levels[1::4] = 9, 0
    moved, mastered = [], []
    for _ in range(EPISODE_STEPS):
        before, specs = task.levels.copy(), specs_of(task)
        whole = task._env.step_count == EPISODE_STEPS - 1
        _, _, done, extras = task.step(stand_still(task))
        fell = done.numpy() * (1 - extras["time_outs"].numpy()) > 0
        expected = before.copy()
        for row in np.flatnonzero(whole | fell):
            skill = list(SKILL_SHARES).index(specs[row].skill)
            change = 1 if skill == stand and not fell[row] else -1
            expected[row, skill] = max(0, before[row, skill] + change)
            moved.append((bool(fell[row]), change))
            if expected[row, skill] == 10:
                # Who masters the hardest level goes on at a random one.
                mastered.append(int(task.levels[row, skill]))
                expected[row, skill] = mastered[-1]
        # Windows that were cut short say nothing.
        np.testing.assert_array_equal(task.levels, expected)
    assert set(moved) == {(True, -1), (False, -1), (False, 1)}
    assert len(task.finished) == len(moved)
    assert mastered
    assert all(0 <= level <= 9 for level in mastered)
    assert [spec.terrain for spec in specs_of(task)] == terrains, "slots keep theirs"


def test_a_checkpoint_brings_the_levels_back(tmp_path: Path) -> None:
    train_expert(replace(TINY, steps=PER_UPDATE), tmp_path, lambda summary: None)
    record = json.loads((tmp_path / "training.json").read_text())
    tensors = load_file(tmp_path / record["tensors"])
    assert tensors["levels"].shape == (TINY.robots, len(SKILLS))
    tensors["levels"] = 4 + np.arange(tensors["levels"].size).reshape(tensors["levels"].shape) % 5
    save_file(tensors, tmp_path / record["tensors"])
    summaries: list[dict[str, Any]] = []
    train_expert(replace(TINY, steps=2 * PER_UPDATE), tmp_path, summaries.append)
    assert [row["steps"] for row in summaries] == [2 * PER_UPDATE]
    record = json.loads((tmp_path / "training.json").read_text())
    after = load_file(tmp_path / record["tensors"])["levels"]
    # In so few steps a slot ends no window, but it may fall.
    fallen = tensors["levels"] - after
    assert set(np.unique(fallen)) <= {0, 1}
    assert fallen.mean() < 0.1
    assert summaries[0]["level"] == pytest.approx(float(after.mean()))


def test_a_training_starts_from_an_expert_whose_actor_waits_for_the_critic(
    trained: Trained, tmp_path: Path
) -> None:
    config = replace(TINY, start_from=str(started_from(trained, tmp_path)), critic_updates=1)
    weights, _ = train_expert(replace(config, steps=PER_UPDATE), tmp_path / "one", lambda row: None)
    before, after = load_file(trained.weights), load_file(weights)
    tensors = json.loads((tmp_path / "one" / "training.json").read_text())["tensors"]
    assert load_file(tmp_path / "one" / tensors)["levels"].max() > 5
    assert before.keys() == after.keys()
    for name in before:
        if name.startswith("layer"):
            np.testing.assert_array_equal(after[name], before[name])
    weights, _ = train_expert(
        replace(config, steps=2 * PER_UPDATE), tmp_path / "two", lambda row: None
    )
    assert not np.array_equal(load_file(weights)["layer0.weight"], before["layer0.weight"])
    with pytest.raises(ValueError, match="other inputs or layers"):
        train_expert(replace(config, hidden=(16, 9)), tmp_path / "wide", lambda row: None)


def test_a_familys_training_starts_from_the_expert_of_one_robot_and_drives_other_bodies(
    trained: Trained, tmp_path: Path
) -> None:
    family_of(ROBOT, 3, tmp_path / "family")
    (tmp_path / "family" / "aliengo-0-002").rename(tmp_path / "unseen")
    config = replace(
        TINY,
        robot=str(tmp_path / "family"),
        start_from=str(started_from(trained, tmp_path)),
        critic_updates=1,
        steps=PER_UPDATE,
    )
    weights, card = train_expert(config, tmp_path / "expert", lambda row: None)
    weights.with_suffix(".json").write_text(json.dumps(card))
    assert load_file(weights)["mean"].shape == (FEATURE_DIM + BODY_DIM,)
    names = [robot.name for robot in robots_of_expert(str(weights))]
    assert names == ["aliengo-0-000", "aliengo-0-001"]
    first = load_expert(str(weights)).policy
    assert first.robot.name == names[0]
    unseen = load_expert(str(weights), str(tmp_path / "unseen")).policy
    assert unseen.robot.name == "aliengo-0-002"
    single = ExpertPolicy("one", unseen.robot, load_file(trained.weights))
    with closing(LeggedEnvironment(unseen.robot, 2, 1)) as env:
        env.reset(np.arange(2), [EpisodeSpec(0, "flat", 0, "rush", 1)] * 2)
        observation = env.observe()
    # One update moves the normaliser of the features, hardly the actions.
    np.testing.assert_allclose(unseen.act(observation), single.act(observation), atol=0.05)
    assert not np.allclose(unseen.act(observation), first.act(observation), atol=1e-3)


def test_tracking_can_weigh_more_in_training() -> None:
    actions = torch.zeros(4, N_JOINTS)
    with (
        closing(ExpertTask([ROBOT], 4, 1, 0)) as plain,
        closing(ExpertTask([ROBOT], 4, 1, 0, tracking_weight=2.0)) as weighted,
    ):
        for _ in range(5):
            own, more = plain.step(actions)[1], weighted.step(actions)[1]
            assert plain._env.view is not None
            tracked = track_linear_velocity(plain._env.view)
            np.testing.assert_allclose(more - own, 2.0 * CONTROL_DT_S * tracked, atol=1e-6)


def started_from(trained: Trained, folder: Path) -> Path:
    """The trained expert with a card beside it."""
    path = folder / "first.safetensors"
    path.write_bytes(trained.weights.read_bytes())
    path.with_suffix(".json").write_text(json.dumps(trained.card))
    return path


def test_what_fails_is_practised_more() -> None:
    task = ExpertTask([ROBOT], 400, 1, 0)
    flat = list(TERRAIN_SHARES).index("flat")
    successes = np.ones((len(TERRAIN_SHARES), len(SKILL_SHARES)))
    successes[flat, list(SKILL_SHARES).index("tilt")] = 0.0
    try:
        task.begin(0, task.levels, successes)
        drawn = [spec.skill for spec in task._env.specs if spec and spec.terrain == "flat"]
    finally:
        task.close()
    share = SKILLS["tilt"].share / sum(skill.share for skill in SKILLS.values())
    assert drawn.count("tilt") > 1.4 * share * len(drawn)
    assert set(drawn) >= {"stand", "run"}, "what succeeds is not forgotten"


def test_a_resumed_training_reports_no_episodes_before_full_ones_can_end() -> None:
    """Those that end earlier are falls, which would make the curve dip."""
    with closing(ExpertTask([ROBOT], 8, 1, seed=0)) as task:
        wild = torch.full((8, task.num_actions), 6.0)
        counts = []
        for iteration in (0, 1):
            task.begin(iteration, task.levels, task.successes)
            for _ in range(EPISODE_STEPS):
                task.step(wild)
            counts.append(len(task.finished))
            task.finished.clear()
        for _ in range(EPISODE_STEPS):
            task.step(wild)
        assert counts[0] > 0
        assert counts[1] == 0
        assert task.finished


def test_an_own_length_and_reward_are_those_of_every_episode() -> None:
    """Of a robot that stands: 2 a second for being alive, less twice its speed's error."""
    scope = TrainingScope.of(("flat",), ("walk",), blind=True)
    scope = replace(scope, episode_steps=300, rewards=rewards_of({"alive": 2.0, "speed_error": -1}))
    with closing(
        ExpertTask(
            [ROBOT], 4, 1, 0, randomisation=Randomisation.parsed({"preset": "none"}), scope=scope
        )
    ) as task:
        assert task.max_episode_length == 300
        returns = []
        for _ in range(300):
            _, reward, _, _ = task.step(torch.zeros(4, N_JOINTS))
            returns.append(reward.numpy())
        whole = [episode for episode in task.finished if episode["survived"]]
        assert whole
        # The command is ramped up to 0.5 m/s in the first second.
        assert whole[0]["return"] == pytest.approx(6.0 * (2.0 - 0.5), rel=0.15)
        total = np.sum(returns, axis=0)
        assert total.max() == pytest.approx(6.0 * 1.5, rel=0.15)


def test_the_last_step_of_an_episode_has_its_reward() -> None:
    """Also of an episode that ends in a fall, or in the time limit."""
    scope = TrainingScope.of(("flat",), ("stand",), blind=True)
    scope = replace(scope, episode_steps=30, rewards=rewards_of({"alive": 2.0}))
    with closing(ExpertTask([ROBOT], 8, 1, 0, scope=scope)) as task:
        ended = []
        for step in range(90):
            actions = torch.full((8, N_JOINTS), 6.0 if step > 45 else 0.0)
            _, reward, done, extras = task.step(actions)
            np.testing.assert_allclose(reward, 2.0 * CONTROL_DT_S, rtol=1e-6)
            ended += extras["time_outs"][done > 0].tolist()
        assert {0.0, 1.0} <= set(ended), "falls and ends of the time"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": {"alife": 1.0}}, "no reward term 'alife'; did you mean 'alive'"),
        ({"episode_s": 0.1}, "episode_s must be 0.5 to 60"),
        ({"initial_weights": "zero"}, "no initial_weights 'zero'; allowed: normal, torch"),
    ],
)
def test_unknown_rewards_lengths_and_weights_are_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **change)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *((name, 0) for name in ("steps", "horizon", "epochs", "mini_batches", "robots")),
        *((name, -1e-3) for name in ("learning_rate", "max_learning_rate", "target_kl", "clip")),
        *((name, 1.5) for name in ("gamma", "gae_lambda")),
        *((name, -1) for name in ("falling_steps", "entropy", "initial_std", "seed")),
        ("hidden", ()),
    ],
)
def test_settings_outside_their_range_are_refused(setting: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{setting} must be "):
        replace(TINY, **{setting: value})
