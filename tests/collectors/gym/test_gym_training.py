"""Training a task's policies: the buffer, going on, D4RL's choice, and that it learns."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.gym.experts import load_gym_expert, read_recipe
from collectors.gym.recipe import medium_step
from collectors.gym.replay import ReplayBuffer, ReplayReader
from collectors.gym.sac import SAC, SACConfig
from collectors.gym.training import GymTrainingConfig, train_gym, trained_gym_steps
from flows.gym_training import run_gym_training
from flows.progress import Silent

SMALL = GymTrainingConfig(
    env="Hopper-v5",
    steps=400,
    random_steps=100,
    evaluate_every=100,
    evaluation_episodes=1,
    checkpoint_every=100,
    sac=SACConfig(hidden=16, batch_size=16),
)


def nothing(summary: dict[str, Any]) -> None:
    """Report to nobody."""


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=8), until=st.integers(1, 50))
def test_the_buffer_gives_back_episodes_and_marks_the_one_cut_off(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], until: int
) -> None:
    folder = tmp_path_factory.mktemp("replay")
    buffer = ReplayBuffer(folder, 100, 2, 1, rows=0)
    total = 0
    for number, length in enumerate(lengths):
        for step in range(length):
            last = step == length - 1
            buffer.add(
                obs=np.array([number, step]),
                action=np.array([0.5]),
                log_prob=-1.0,
                reward=total,
                terminated=last and number % 2 == 0,
                truncated=last and number % 2 == 1,
                next_obs=np.array([number, step + 1]),
            )
            total += 1
    buffer.flush()
    reader = ReplayReader(folder, total, 2, 1)
    rows = reader.read(0, total)
    np.testing.assert_array_equal(rows["reward"], np.arange(total))
    np.testing.assert_array_equal(rows["next_obs"], rows["obs"] + [0, 1])
    episodes = reader.episodes(until)
    assert episodes.lengths.sum() == min(until, total)
    np.testing.assert_array_equal(np.cumsum(episodes.lengths)[:-1], episodes.starts[1:])
    whole = np.array([lengths[i] == n for i, n in enumerate(episodes.lengths)])
    even = np.arange(len(whole)) % 2 == 0
    np.testing.assert_array_equal(episodes.terminated, whole & even)
    np.testing.assert_array_equal(episodes.truncated, whole & ~even)


def test_a_buffer_that_lost_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has not the 5 rows"):
        ReplayBuffer(tmp_path, 10, 2, 1, rows=5)
    with pytest.raises(ValueError, match="no replay buffer of 5 rows"):
        ReplayReader(tmp_path, 5, 2, 1)


def test_a_saved_algorithm_goes_on_as_if_never_saved() -> None:
    config = SACConfig(hidden=8, batch_size=4)
    first, second = SAC(config, 3, 2, seed=0), SAC(config, 3, 2, seed=1)
    batch = {
        "obs": torch.randn(4, 3),
        "next_obs": torch.randn(4, 3),
        "action": torch.rand(4, 2) * 2 - 1,
        "reward": torch.randn(4),
        "terminated": torch.tensor([0.0, 1.0, 0.0, 0.0]),
    }
    first.update(batch, torch.Generator().manual_seed(0))
    second.load_tensors({key: value.clone() for key, value in first.tensors().items()})
    for sac in (first, second):
        sac.update(batch, torch.Generator().manual_seed(1))
    ours, theirs = first.tensors(), second.tensors()
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        assert torch.equal(value, theirs[key]), key


def test_a_terminal_state_is_worth_nothing_and_a_horizon_is_bootstrapped() -> None:
    """With reward 1, gamma 0.5 and no entropy, values go to 1 at an end and to 2 without one."""
    sac = SAC(SACConfig(hidden=32, batch_size=64, gamma=0.5, learning_rate=1e-9,
                        critic_learning_rate=3e-3, tau=0.05), 1, 1, seed=0)  # fmt: skip
    with torch.no_grad():
        sac.log_temperature.fill_(-20.0)
    ends = torch.arange(64) % 2
    obs = ends[:, None].float() * 2 - 1
    generator = torch.Generator().manual_seed(0)
    for _ in range(600):
        action = torch.rand((64, 1), generator=generator) * 2 - 1
        batch = {"obs": obs, "next_obs": obs, "action": action}
        batch |= {"reward": torch.ones(64), "terminated": ends.float()}
        sac.update(batch, generator)
    with torch.no_grad():
        values = sac.critics(obs, torch.zeros(64, 1)).mean(0)
    assert values[ends == 1].mean().item() == pytest.approx(1.0, abs=0.1)
    assert values[ends == 0].mean().item() == pytest.approx(2.0, abs=0.15)


def test_medium_is_the_first_policy_of_about_a_third() -> None:
    def history(*returns: float) -> list[dict[str, Any]]:
        return [{"steps": i, "return": value} for i, value in enumerate(returns)]

    assert medium_step(history(10, 80, 30, 34, 110), random=10, expert=110) == 3
    assert medium_step(history(10, 80, 40, 43, 110), random=10, expert=110) == 2
    assert medium_step(history(10, 70, 110), random=10, expert=110) == 1


def test_a_training_leaves_policies_a_recipe_and_its_buffer(tmp_path: Path) -> None:
    recipe = run_gym_training(SMALL, tmp_path, Silent())
    read = read_recipe(tmp_path)
    assert read.expert_return == recipe["returns"]["expert"] > read.random_return
    assert read.normalised(read.random_return) == 0.0
    assert read.normalised(read.expert_return) == 100.0
    for quality in ("medium", "expert"):
        assert load_gym_expert(tmp_path, quality).task.env_id == "Hopper-v5"
    episodes = ReplayReader(tmp_path, read.replay_rows, 11, 3).episodes(read.replay_rows)
    assert episodes.lengths.sum() == read.medium_step
    before = (tmp_path / "recipe.json").read_bytes()
    assert run_gym_training(SMALL, tmp_path, Silent()) == recipe
    assert (tmp_path / "recipe.json").read_bytes() == before


class Interrupted(Exception):
    """Stands for whatever ends a process."""


def test_an_interrupted_training_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    def stop(summary: dict[str, Any]) -> None:
        if summary["steps"] >= 300:
            raise Interrupted

    with pytest.raises(Interrupted):
        train_gym(SMALL, tmp_path, stop)
    done = trained_gym_steps(tmp_path)
    assert 100 <= done < 400
    seen: list[int] = []
    train_gym(SMALL, tmp_path, lambda summary: seen.append(summary["steps"]))
    assert seen[0] > done
    assert trained_gym_steps(tmp_path) == 400
    # A checkpoint waits for an episode's end, so no episode of the buffer has another's steps.
    episodes = ReplayReader(tmp_path, 400, 11, 3).episodes(done)
    assert bool(episodes.terminated[-1] or episodes.truncated[-1])


def test_a_folder_of_another_training_is_refused(tmp_path: Path) -> None:
    train_gym(replace(SMALL, steps=100), tmp_path, nothing)
    with pytest.raises(ValueError, match="holds a training with seed=0, not 7"):
        train_gym(replace(SMALL, seed=7), tmp_path, nothing)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"env": "Hopper-v1"}, "no task 'Hopper-v1'"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_wrong_settings_are_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **setting)


@pytest.mark.slow
def test_hopper_learns_to_stand_and_hop_within_a_few_thousand_steps(tmp_path: Path) -> None:
    config = GymTrainingConfig(
        steps=6_000,
        random_steps=1_000,
        evaluate_every=1_000,
        sac=SACConfig(hidden=128, batch_size=64, learning_rate=1e-3, critic_learning_rate=1e-3),
    )
    run_gym_training(config, tmp_path, Silent())
    history = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert len(history) == 6
    recipe = read_recipe(tmp_path)
    assert recipe.expert_return > 5 * recipe.random_return
