"""Training a task's policies: the buffer, going on, D4RL's choice, and that it learns."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gaitforge.plugins.gym.training.recipe as recipe_module
from gaitforge.common.history import read_history
from gaitforge.common.locks import exclusive_lock
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.records import TRAINING_LOCK
from gaitforge.plugins.gym.expert_training import run_gym_training
from gaitforge.plugins.gym.experts import load_gym_expert, read_recipe
from gaitforge.plugins.gym.training.recipe import (
    choose_medium,
    choose_policies,
    medium_candidates,
)
from gaitforge.plugins.gym.training.records import (
    REPLAY_FILE,
    ReplayBuffer,
    ReplayReader,
    read_training,
)
from gaitforge.plugins.gym.training.sac import SAC, SACConfig
from gaitforge.plugins.gym.training.settings import GymTrainingConfig
from gaitforge.plugins.gym.training.train import train_gym, trained_gym_steps

SMALL = GymTrainingConfig(
    env="Hopper-v5",
    steps=400,
    random_steps=100,
    steps_per_update=10,
    evaluate_every=100,
    evaluation_episodes=1,
    checkpoint_every_s=0.0,
    sac=SACConfig(hidden=16, batch_size=16),
)


def nothing(summary: dict[str, Any]) -> None:
    """Report to nobody."""


@pytest.fixture
def few_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies are chosen by few episodes."""
    few = {"CANDIDATES": 2, "CANDIDATE_EPISODES": 4, "EPISODES": 20, "ENVIRONMENTS": 4}
    for name, value in few.items():
        monkeypatch.setattr(recipe_module, name, value)


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=8), until=st.integers(1, 50))
def test_the_buffer_gives_back_episodes_and_marks_the_one_cut_off(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], until: int
) -> None:
    folder = tmp_path_factory.mktemp("replay")
    buffer = ReplayBuffer(folder / REPLAY_FILE, 100, 2, 1, rows=0)
    total = 0
    for number, length in enumerate(lengths):
        for step in range(length):
            last = step == length - 1
            buffer.add(
                obs=np.array([number, step]),
                action=np.array([0.5]),
                log_prob=-1.0,
                reward=total,
                terminated=last and number % 3 == 0,
                truncated=last and number % 3 == 1,
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
    kind = np.arange(len(whole)) % 3
    np.testing.assert_array_equal(episodes.terminated, whole & (kind == 0))
    np.testing.assert_array_equal(episodes.truncated, whole & (kind == 1))
    assert len(whole) == np.searchsorted(np.cumsum(lengths), min(until, total)) + 1


def test_a_buffer_that_lost_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too short for its 5 rows"):
        ReplayBuffer(tmp_path / REPLAY_FILE, 10, 2, 1, rows=5)
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
    second.load_state_dict({key: value.clone() for key, value in first.state_dict().items()})
    for sac in (first, second):
        sac.update(batch, torch.Generator().manual_seed(1))
    ours, theirs = first.state_dict(), second.state_dict()
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        assert torch.equal(value, theirs[key]), key


def test_a_terminal_state_is_worth_nothing_and_a_horizon_is_bootstrapped() -> None:
    """With reward 1, gamma 0.5 and no entropy, values go to 1 at an end and to 2 without one."""
    sac = SAC(SACConfig(hidden=32, batch_size=64, gamma=0.5, learning_rate=1e-9,
                        critic_learning_rate=1e-2, tau=0.1), 1, 1, seed=0)  # fmt: skip
    with torch.no_grad():
        sac.log_temperature.fill_(-20.0)
    ends = torch.arange(64) % 2
    obs = ends[:, None].float() * 2 - 1
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
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

    assert medium_candidates(history(10, 80, 30, 34, 44, 110), 10, 110, 5)[:3] == [4, 3, 2]
    assert medium_candidates(history(10, 70, 110), 10, 110, expert_step=2) == [1, 0, 2]
    assert medium_candidates(history(10, 60, 110, 43, 110), 10, 110, 2)[0] == 1, "no fallen one"
    again = {3: 90.0, 4: 50.0, 2: 43.0, 5: 20.0}
    assert choose_medium([3, 4, 2, 5], 10, 110, again.__getitem__) == 2, "nearest, measured again"


def test_a_training_leaves_policies_a_recipe_and_its_buffer(
    tmp_path: Path, few_episodes: None
) -> None:
    recipe = run_gym_training(SMALL, tmp_path, Silent())
    read = read_recipe(tmp_path)
    assert read.expert_return == recipe["returns"]["expert"] > read.random_return
    assert read.normalised(read.random_return) == 0.0
    assert read.normalised(read.expert_return) == pytest.approx(100.0)
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
    # A checkpoint waits for an episode's end, so that none is cut off.
    episodes = ReplayReader(tmp_path, 400, 11, 3).episodes(done)
    assert (episodes.terminated | episodes.truncated).all()
    with pytest.raises(ValueError, match="holds a training with seed=0, not 7"):
        train_gym(replace(SMALL, seed=7), tmp_path, nothing)


def test_an_extended_training_glues_no_two_episodes_into_one(tmp_path: Path) -> None:
    """Its end is in the midst of an episode of HalfCheetah, which lasts 1,000 steps."""
    cheetah = replace(SMALL, env="HalfCheetah-v5", steps=30, random_steps=999, evaluate_every=999)
    train_gym(cheetah, tmp_path, nothing)
    train_gym(replace(cheetah, steps=50), tmp_path, nothing)
    episodes = ReplayReader(tmp_path, 50, 17, 6).episodes(50)
    assert episodes.lengths.tolist() == [30, 20]
    assert not (episodes.terminated | episodes.truncated).any()


def test_only_evaluations_of_the_training_itself_choose_its_policies(tmp_path: Path) -> None:
    """An attempt with another seed that was killed before its first checkpoint leaves none."""

    def stop(summary: dict[str, Any]) -> None:
        if summary["steps"] == 300:
            raise Interrupted

    late = replace(SMALL, checkpoint_every_s=1e6)
    with pytest.raises(Interrupted):
        train_gym(late, tmp_path, stop)
    with open(tmp_path / "history.jsonl", "a") as file:
        file.write('{"steps": 40')
    train_gym(replace(late, seed=7, evaluate_every=200), tmp_path, nothing)
    record = read_training(tmp_path)
    assert record is not None
    history = read_history(tmp_path)
    assert [row["steps"] for row in history] == [200, 400]
    times = [row["wall_s"] for row in history]
    assert 0 < times[0] < times[1] <= record.wall_s


def test_rows_after_the_checkpoint_are_written_anew(tmp_path: Path, few_episodes: None) -> None:
    train_gym(replace(SMALL, steps=200), tmp_path, nothing)
    known = read_history(tmp_path)
    with open(tmp_path / "history.jsonl", "a") as file:
        file.write('{"steps": 300, "return": 1e9}\n{"steps": 1')
    recipe = run_gym_training(replace(SMALL, steps=300), tmp_path, Silent())
    history = read_history(tmp_path)
    assert history[:2] == known
    assert [row["steps"] for row in history] == [100, 200, 300]
    assert recipe["trained_steps"] == 300


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    with exclusive_lock(tmp_path / TRAINING_LOCK) as held:
        assert held
        with pytest.raises(ValueError, match="another process trains in"):
            run_gym_training(SMALL, tmp_path, Silent())


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"seed": 7}, "holds a training with seed=0, not 7"),
        ({"sac": replace(SMALL.sac, gamma=0.9)}, "with sac.gamma=0.99, not 0.9; choose"),
    ],
)
def test_another_trainings_recipe_is_not_ones_own(
    changed: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    recipe = {
        "env": "Hopper-v5",
        "returns": {"random": 1.0, "medium": 2.0, "expert": 3.0},
        "return_std": {},
        "lengths": {},
        "episodes": 100,
        "medium_step": 100,
        "replay_rows": 100,
        "training": asdict(SMALL),
        "trained_steps": 400,
    }
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    assert run_gym_training(replace(SMALL, steps=300, threads=2), tmp_path, Silent()) == recipe
    with pytest.raises(ValueError, match=complaint):
        run_gym_training(replace(SMALL, **changed), tmp_path, Silent())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("training.json", "{}"),
        ("training.json", '{"trained'),
        ("recipe.json", '{"trained_steps": 9999999}'),
        ("recipe.json", "[1]"),
    ],
)
def test_files_that_are_none_of_a_training_are_named(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(
        ValueError, match=f"{name} (is not the record|is not a recipe|is no record|cannot be read)"
    ):
        run_gym_training(SMALL, tmp_path, Silent())


def test_a_training_that_is_no_longer_finite_ends_before_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="target_entropy must be a finite number, got nan"):
        SACConfig(target_entropy=float("nan"))
    update = SAC.update

    def spoiled(self: SAC, *arguments: Any) -> None:
        update(self, *arguments)
        with torch.no_grad():
            self.log_temperature.fill_(float("nan"))

    monkeypatch.setattr(SAC, "update", spoiled)
    with pytest.raises(ValueError, match="temperature nan after 100 steps; start again"):
        train_gym(replace(SMALL, checkpoint_every_s=1e6), tmp_path, nothing)
    assert trained_gym_steps(tmp_path) == 0
    assert read_history(tmp_path) == []
    with pytest.raises(ValueError, match="weights that are not finite after"):
        train_gym(replace(SMALL, evaluate_every=1_000, steps_per_update=100), tmp_path, nothing)


def test_no_old_recipe_lies_beside_new_policies(
    tmp_path: Path, few_episodes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_gym_training(replace(SMALL, steps=200), tmp_path, Silent())
    write: Callable[..., None] = recipe_module.write_bytes_durably

    def interrupted(path: Path, content: bytes) -> None:
        if path.name == "expert.json":
            raise Interrupted
        write(path, content)

    monkeypatch.setattr(recipe_module, "write_bytes_durably", interrupted)
    with pytest.raises(Interrupted):
        choose_policies(tmp_path, "sac", {})
    with pytest.raises(ValueError, match="no finished training"):
        read_recipe(tmp_path)
    monkeypatch.undo()


@pytest.mark.slow
def test_what_trains_needs_no_library_of_another_algorithm() -> None:
    code = "import sys, gaitforge.plugins.gym.training.recipe; sys.exit('rsl_rl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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


@pytest.mark.long
def test_hopper_learns_to_stand_and_hop_within_a_few_thousand_steps(tmp_path: Path) -> None:
    config = GymTrainingConfig(
        seed=1,
        steps=3_000,
        random_steps=1_000,
        evaluate_every=1_000,
        sac=SACConfig(hidden=64, batch_size=64, learning_rate=1e-3, critic_learning_rate=1e-3),
    )
    run_gym_training(config, tmp_path, Silent())
    history = read_history(tmp_path)
    assert len(history) == 3
    recipe = read_recipe(tmp_path)
    assert recipe.expert_return > 5 * recipe.random_return
