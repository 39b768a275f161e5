"""A task's policies: NumPy and torch agree, densities are densities, and bad files are refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from gaitforge.plugins.gym.environments.batch import TaskBatch
from gaitforge.plugins.gym.environments.tasks import TASKS, find_task
from gaitforge.plugins.gym.episodes import evaluate, evaluation_seeds
from gaitforge.plugins.gym.experts import (
    GymExpert,
    known_recipe,
    load_gym_expert,
    policies_folder,
    read_recipe,
)
from gaitforge.plugins.gym.training.sac import Actor
from gaitforge.plugins.gym.training.settings import check_same, recommended_training

HOPPER = find_task("Hopper-v5")
SHIPPED = [name for name in TASKS if known_recipe(name)]


def make_actor(seed: int, obs_dim: int = 11, act_dim: int = 3, hidden: int = 16) -> Actor:
    torch.manual_seed(seed)
    return Actor(obs_dim, act_dim, hidden)


def in_numpy(actor: Actor) -> GymExpert:
    weights = {key: value.numpy() for key, value in actor.state_dict().items()}
    return GymExpert("expert", HOPPER, weights, "0" * 16)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31 - 1))
def test_numpy_acts_as_torch_does(seed: int) -> None:
    actor, rng = make_actor(seed), np.random.default_rng(seed)
    obs = rng.normal(0, 3, (5, 11)).astype(np.float32)
    noise = rng.standard_normal((5, 3), dtype=np.float32)
    action, density = in_numpy(actor).sample(obs, noise)
    with torch.inference_mode():
        wanted, log_density = actor.sample(torch.from_numpy(obs), torch.from_numpy(noise))
        mean, _ = actor(torch.from_numpy(obs))
    np.testing.assert_allclose(action, wanted.numpy(), atol=1e-5)
    np.testing.assert_allclose(density, log_density.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(in_numpy(actor).mean(obs), mean.tanh().numpy(), atol=1e-5)


def test_the_density_of_actions_integrates_to_one() -> None:
    expert = in_numpy(make_actor(3, act_dim=1))
    obs = np.full((1, 11), 0.3, np.float32)
    noise = np.linspace(-8, 8, 40_001, dtype=np.float32)[:, None]
    action, log_density = expert.sample(np.repeat(obs, len(noise), axis=0), noise)
    total = np.trapezoid(np.exp(log_density.astype(np.float64)), action[:, 0].astype(np.float64))
    assert total == pytest.approx(1.0, abs=2e-3)


def write_policy(folder: Path, env: str = "Hopper-v5") -> Path:
    path = folder / "expert.safetensors"
    save_file(make_actor(0).state_dict(), path)
    path.with_suffix(".json").write_text(json.dumps({"env": env}))
    return path


def test_a_policy_is_found_by_its_folder_and_quality(tmp_path: Path) -> None:
    write_policy(tmp_path)
    expert = load_gym_expert(tmp_path, "expert")
    assert (expert.task.env_id, expert.obs_dim, expert.act_dim) == ("Hopper-v5", 11, 3)
    with pytest.raises(ValueError, match=r"no policy at .*medium"):
        load_gym_expert(tmp_path, "medium")
    with pytest.raises(ValueError, match="no policy 'good'; allowed: medium, expert"):
        load_gym_expert(tmp_path, "good")


def test_files_that_are_no_policy_are_named(tmp_path: Path) -> None:
    path = write_policy(tmp_path)
    path.with_suffix(".json").write_text("{}")
    with pytest.raises(ValueError, match=r"expert\.json is not the card of a policy"):
        load_gym_expert(tmp_path, "expert")
    write_policy(tmp_path, env="Hopper-v9")
    with pytest.raises(ValueError, match="no task 'Hopper-v9'"):
        load_gym_expert(tmp_path, "expert")
    write_policy(tmp_path)
    path.write_bytes(b"\x80\x04broken")
    with pytest.raises(ValueError, match=r"policy .* cannot be read"):
        load_gym_expert(tmp_path, "expert")
    save_file({"layer0.weight": torch.zeros(2, 2)}, path)
    with pytest.raises(ValueError, match="lacks the tensor"):
        load_gym_expert(tmp_path, "expert")


def test_a_folder_without_a_whole_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no finished training"):
        read_recipe(tmp_path)
    (tmp_path / "recipe.json").write_text('{"env": "Hopper-v5"}')
    with pytest.raises(ValueError, match="is not a recipe"):
        read_recipe(tmp_path)


@pytest.mark.parametrize(
    "env_id",
    [pytest.param(name, marks=() if name == "Hopper-v5" else pytest.mark.long) for name in SHIPPED],
)
def test_shipped_policies_do_what_their_cards_say(env_id: str) -> None:
    folder = policies_folder(env_id)
    recipe, task = read_recipe(folder), find_task(env_id)
    batch = TaskBatch(task, 5)
    # More of the hand's short episodes: the pen's differ by thousands of return.
    seeds = evaluation_seeds(max(5, 3_000 // task.facts.horizon), seed=1)
    returns = {}
    for quality in ("medium", "expert"):
        episodes = evaluate(load_gym_expert(folder, quality), batch, seeds)
        returns[quality] = np.mean([episode.episode_return for episode in episodes])
    batch.close()
    # Wide, for a fall more or less may depend on the processor's last bit.
    assert recipe.normalised(returns["expert"]) > 70
    assert 10 < recipe.normalised(returns["medium"]) < 65
    assert 20 < recipe.normalised(recipe.medium_return) < 50


@pytest.mark.parametrize("env_id", SHIPPED)
def test_the_recommended_settings_are_those_of_the_shipped_policies(env_id: str) -> None:
    folder = policies_folder(env_id)
    if json.loads((folder / "expert.json").read_text())["kind"] == "gymnasium-ppo":
        with pytest.raises(ValueError, match=f"python -m recipes.adroit {env_id}"):
            recommended_training(env_id)
        return
    recorded = json.loads((folder / "recipe.json").read_text())["training"]
    check_same(recommended_training(env_id), recorded, folder)


def test_policies_of_ones_own_come_before_those_that_ship() -> None:
    assert policies_folder("AdroitHandRelocate-v1", "mine") == Path("mine")
    with pytest.raises(ValueError, match="no task 'Bee-v5'"):
        policies_folder("Bee-v5")
    with pytest.raises(ValueError, match="no policies of Humanoid-Mod-v0 ship with gaitforge"):
        policies_folder("Humanoid-Mod-v0")
    assert known_recipe("Humanoid-Mod-v0") is None
