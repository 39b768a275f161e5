"""PPO on a Gymnasium task: what its environments promise; trainings go on and learn."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gaitforge.common.history import read_history
from gaitforge.flows.tasks.expert_trainers import network_trainer
from gaitforge.learners.actor_critic import RegistryNetworks
from gaitforge.learners.checkpoint import load_policy
from gaitforge.plugins.gym.environments.batch import TaskBatch
from gaitforge.plugins.gym.environments.tasks import find_task
from gaitforge.plugins.gym.training.ppo import GymPPOConfig, GymPPOTask, train_gym_ppo

pytest.importorskip("gymnasium")

SIZES: dict[str, dict[str, Any]] = {
    "mlp": {"hidden_dim": 8, "n_layers": 1},
    "bot": {"n_layers": 2, "embed_dim": 8, "feedforward_dim": 8, "masking": "mix"},
}
TINY = GymPPOConfig(
    env="Hopper-v5",
    environments=4,
    horizon=8,
    epochs=2,
    mini_batches=2,
    steps=64,
    checkpoint_every_s=0.0,
    model_overrides=SIZES["mlp"],
)


def train(config: GymPPOConfig, out: Path) -> list[dict[str, Any]]:
    """The rows that a training reports."""
    rows: list[dict[str, Any]] = []
    build = lambda slices, width, **settings: RegistryNetworks(  # noqa: E731
        config.model, config.model_overrides, slices, width, **settings
    )
    assert train_gym_ppo(config, out, rows.append, build) == out / "policy"
    return rows


def test_episodes_that_end_start_anew_and_time_outs_are_told_from_falls() -> None:
    with closing(GymPPOTask(replace(TINY, reward_scale=0.5))) as task:
        alone = TaskBatch(find_task("Hopper-v5"), 1)
        seeds = np.random.default_rng([0, 0]).integers(2**62, size=4).tolist()
        alone.reset([0], [seeds[1]])
        rng, total, length = np.random.default_rng(1), 0.0, 0
        while True:
            before = task.get_observations()["features"]
            np.testing.assert_array_equal(before[1].numpy(), alone.observation.policy[0])
            kept = before.clone()
            action = rng.normal(0, 1, (4, 3)).astype(np.float32)
            _, reward, done, extras = task.step(torch.from_numpy(action))
            torch.testing.assert_close(before, kept)
            single = alone.step([0], np.clip(action[1:2], -1, 1))
            assert reward[1] == 0.5 * single.reward[0]
            total, length = total + float(single.reward[0]), length + 1
            if single.terminated[0]:
                break
        assert done[1] == 1
        assert extras["time_outs"].sum() == 0
        assert any(r == pytest.approx(total) and n == length for r, n in task.finished)
        assert not np.array_equal(
            task.get_observations()["features"][1].numpy(), alone.observation.policy[0]
        )
        alone.close()


def test_a_time_limit_is_a_time_out() -> None:
    pytest.importorskip("gymnasium_robotics")
    with closing(GymPPOTask(replace(TINY, env="AdroitHandPen-v1", environments=1))) as task:
        for step in range(1, 101):
            _, _, done, extras = task.step(torch.zeros(1, 24))
            assert done[0] == extras["time_outs"][0] == (step == 100)


@pytest.mark.parametrize(("env", "model"), [("Hopper-v5", "mlp"), ("Humanoid-Board-v0", "bot")])
def test_a_training_goes_on_where_it_stopped(env: str, model: str, tmp_path: Path) -> None:
    if env.startswith("Humanoid"):
        pytest.importorskip("dm_control")
    config = replace(TINY, env=env, model=model, model_overrides=SIZES[model])
    first = train(config, tmp_path)
    assert [row["steps"] for row in first] == [32, 64]
    assert all(np.isfinite(list(row["losses"].values())).all() for row in first)
    before = load_policy(tmp_path / "policy").state_dict()
    assert [row["steps"] for row in train(replace(config, steps=96), tmp_path)] == [96]
    assert [row["iteration"] for row in read_history(tmp_path)] == [1, 2, 3]
    after = load_policy(tmp_path / "policy").state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert train(replace(config, steps=96), tmp_path) == []
    with pytest.raises(ValueError, match="holds a training with environments=4, not 5"):
        train(replace(config, environments=5), tmp_path)


def test_two_trainings_of_a_seed_are_equal(tmp_path: Path) -> None:
    weights = []
    for name in ("one", "two"):
        train(TINY, tmp_path / name)
        weights.append(load_policy(tmp_path / name / "policy").state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_an_experiment_finds_the_trainer_by_its_setting() -> None:
    found = network_trainer({"env": "Hopper-v5", "steps": 1})
    assert found is not None
    task, trainer = found
    assert (task, trainer.setting) == ("gym", "env")
    assert trainer.settings_class() is GymPPOConfig
    assert network_trainer({"robot": "a1"}) is None


@pytest.mark.parametrize("setting", ["epochs", "learning_rate", "reward_scale", "target_kl"])
def test_settings_outside_their_range_are_refused(setting: str) -> None:
    with pytest.raises(ValueError, match=f"^{setting} must be "):
        replace(TINY, **{setting: 0})
