"""Expert files: what is read, what is refused, and policies that always answer the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from collectors.environment import LeggedEnvironment
from collectors.experts import (
    DEFAULT_EXPERT,
    EXPERTS,
    FEATURE_DIM,
    ExpertPolicy,
    list_experts,
    load_expert,
)
from collectors.gait import GaitReference
from collectors.policies import Observation
from collectors.robots import N_JOINTS
from tests.collectors.making import ROBOT, spec


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The shipped expert's weights, copied with their card."""
    for suffix in (".safetensors", ".json"):
        shutil.copy(EXPERTS / f"{DEFAULT_EXPERT}{suffix}", tmp_path / f"mine{suffix}")
    return tmp_path / "mine.safetensors"


@pytest.fixture
def observation() -> Iterator[Observation]:
    """Three robots in the middle of an episode."""
    env = LeggedEnvironment(ROBOT, 3, threads=1)
    env.reset(np.arange(3), [spec(k, seed=k, terrain="rough") for k in range(3)])
    for _ in range(7):
        env.step(np.zeros((3, N_JOINTS)))
    yield env.observe()
    env.close()


def weights(hidden: int = 8, features: int = FEATURE_DIM, seed: int = 0) -> dict[str, np.ndarray]:
    """A small untrained expert."""
    rng = np.random.default_rng(seed)
    return {
        "mean": rng.normal(size=features).astype(np.float32),
        "std": rng.uniform(0.5, 2.0, features).astype(np.float32),
        "layer0.weight": rng.normal(size=(hidden, features)).astype(np.float32) / 10,
        "layer0.bias": rng.normal(size=hidden).astype(np.float32),
        "layer1.weight": rng.normal(size=(N_JOINTS, hidden)).astype(np.float32) / 10,
        "layer1.bias": rng.normal(size=N_JOINTS).astype(np.float32),
    }


def refusal(path: Path | str) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        load_expert(str(path))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_shipped_experts_load() -> None:
    assert DEFAULT_EXPERT in list_experts()
    for name in list_experts():
        expert = load_expert(name)
        assert expert.policy.name == name
        assert expert.policy.parameters() > 0
        assert {"robot", "skills", "terrains", "steps", "wall_s"} <= set(expert.card)


def test_the_hash_is_that_of_the_weights(copied: Path) -> None:
    assert load_expert(str(copied)).hash == load_expert().hash
    tensors = load_file(copied)
    tensors["layer0.bias"] = tensors["layer0.bias"] + 1.0
    save_file(tensors, copied)
    assert load_expert(str(copied)).hash != load_expert().hash


def test_acting_is_deterministic_and_does_not_change_what_is_read(
    observation: Observation,
) -> None:
    policy = load_expert().policy
    before = observation.policy.copy()
    first, second = policy.act(observation), policy.act(observation)
    policy.reset(np.arange(3))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(policy.act(observation), first)
    np.testing.assert_array_equal(observation.policy, before)
    assert first.shape == (3, N_JOINTS)
    assert first.dtype == np.float32
    assert np.isfinite(first).all()


def test_an_expert_without_corrections_is_the_gait(observation: Observation) -> None:
    tensors = weights()
    tensors["layer1.weight"][:] = 0.0
    tensors["layer1.bias"][:] = 0.0
    action = ExpertPolicy("gait", ROBOT, tensors).act(observation)
    targets = GaitReference(ROBOT).joint_targets(observation.command, observation.clock)
    expected = (targets - ROBOT.default_joint_pos_rad) / ROBOT.action_scale_rad
    np.testing.assert_allclose(action, expected, atol=1e-5)


def test_an_unknown_expert_is_refused_with_the_shipped_ones() -> None:
    assert f"no expert 'nobody'; shipped experts: {DEFAULT_EXPERT}" in refusal("nobody")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "no expert" in refusal(tmp_path / "gone.safetensors")


def test_a_missing_card_is_refused(copied: Path) -> None:
    copied.with_suffix(".json").unlink()
    assert "has no card mine.json beside it" in refusal(copied)


@pytest.mark.parametrize(
    ("card", "complaint"),
    [
        (b"{", "mine.safetensors cannot be read"),
        (b"\xff", "mine.safetensors cannot be read"),
        (b"[]", "its card mine.json names no robot"),
        (b"{}", "its card mine.json names no robot"),
        (b'{"robot": "spot"}', "unknown robot 'spot'"),
    ],
)
def test_a_card_that_does_not_name_a_known_robot_is_refused(
    copied: Path, card: bytes, complaint: str
) -> None:
    copied.with_suffix(".json").write_bytes(card)
    assert complaint in refusal(copied)


@pytest.mark.parametrize("kept", [0, 7, 100, 0.5])
def test_a_truncated_file_is_refused(copied: Path, kept: float) -> None:
    content = copied.read_bytes()
    copied.write_bytes(content[: int(kept * len(content)) if kept == 0.5 else int(kept)])
    assert "mine.safetensors cannot be read" in refusal(copied)


def test_weights_for_other_features_are_refused(copied: Path) -> None:
    save_file(weights(features=FEATURE_DIM - 1), copied)
    assert f"{FEATURE_DIM - 1} features, this version makes {FEATURE_DIM}" in refusal(copied)


def test_a_missing_tensor_is_refused(copied: Path) -> None:
    tensors = weights()
    del tensors["layer0.bias"]
    save_file(tensors, copied)
    assert "lacks the tensor 'layer0.bias'" in refusal(copied)


@pytest.mark.parametrize(
    "changed",
    [
        {"std": np.ones(3, np.float32)},
        {"layer0.weight": np.ones((8, 5), np.float32)},
        {"layer0.bias": np.ones(7, np.float32)},
        {"layer1.weight": np.ones((N_JOINTS, 9), np.float32)},
        {
            "layer1.weight": np.ones((N_JOINTS + 1, 8), np.float32),
            "layer1.bias": np.ones(N_JOINTS + 1, np.float32),
        },
    ],
)
def test_layers_that_do_not_fit_together_are_refused(
    copied: Path, changed: dict[str, np.ndarray]
) -> None:
    save_file(weights() | changed, copied)
    assert "do not fit together" in refusal(copied)


def test_a_file_of_ones_own_loads_by_its_path(copied: Path) -> None:
    save_file(weights(), copied)
    card = json.loads(copied.with_suffix(".json").read_text())
    expert = load_expert(str(copied))
    assert expert.policy.name == "mine"
    assert expert.card == card
    assert expert.policy.parameters() == 8 * FEATURE_DIM + 8 + N_JOINTS * 8 + N_JOINTS
