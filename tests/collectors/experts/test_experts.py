"""Expert files: what is read, what is refused, and policies that always answer the same."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from gaitforge.collectors.experts.expert import (
    DEFAULT_EXPERT,
    EXPERTS,
    FEATURE_DIM,
    ExpertPolicy,
    average_experts,
    drives_a_family,
    expert_features,
    list_experts,
    load_expert,
    shipped_experts,
)
from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.observations import POLICY_SLICES
from gaitforge.collectors.policy import Observation
from gaitforge.collectors.robots.kinematics import GaitReference, RobotBatch
from gaitforge.collectors.robots.robot import N_JOINTS
from tests.collectors.making import ROBOT, spec
from tests.collectors.robots.robot_folders import family_of

KNOWN = (POLICY_SLICES["last_action"][0], POLICY_SLICES["command"][1])
"""Where the last action and the command lie in the observation."""


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


def test_a_file_of_ones_own_loads_by_its_path_with_the_hash_of_its_weights(copied: Path) -> None:
    assert load_expert(str(copied)).hash == load_expert().hash
    save_file(weights(), copied)
    own = load_expert(str(copied))
    assert own.hash != load_expert().hash
    assert (own.policy.name, own.card) == ("mine", load_expert().card)
    assert own.policy.parameters() == 8 * FEATURE_DIM + 8 + N_JOINTS * 8 + N_JOINTS


def test_the_hash_depends_on_the_card_of_a_robot_of_ones_own(tmp_path: Path) -> None:
    (body,) = family_of(ROBOT, 1, tmp_path / "first" / "bodies")
    expert = tmp_path / "first" / "mine.safetensors"
    save_file(weights(), expert)
    expert.with_suffix(".json").write_text(json.dumps({"robot": f"bodies/{body.path.parent.name}"}))
    before = load_expert(str(expert)).hash
    shutil.copytree(tmp_path / "first", tmp_path / "moved")
    assert load_expert(str(tmp_path / "moved" / expert.name)).hash == before
    card = json.loads(body.path.read_text())
    body.path.write_text(json.dumps(card | {"action_scale_rad": 2 * card["action_scale_rad"]}))
    assert load_expert(str(expert)).hash != before


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


def test_features_are_what_is_known_and_the_truth_without_the_noise(
    observation: Observation,
) -> None:
    gait = GaitReference(ROBOT)
    features, reference = expert_features(observation, RobotBatch(ROBOT), gait)
    known = observation.policy[:, slice(*KNOWN)]
    parts = [known, observation.privileged, reference]
    np.testing.assert_array_equal(features, np.concatenate(parts, axis=1))
    assert features.shape == (3, FEATURE_DIM)
    assert features.dtype == np.float32
    measured = observation.policy.copy()
    measured[:, : KNOWN[0]] += np.random.default_rng(0).normal(size=(3, KNOWN[0]))
    noisier = replace(observation, policy=measured)
    again, _ = expert_features(noisier, RobotBatch(ROBOT), gait)
    np.testing.assert_array_equal(again, features)


@pytest.mark.parametrize(
    ("card", "complaint"),
    [
        (None, "has no card mine.json beside it"),
        (b"\xff", "mine.safetensors cannot be read"),
        (b"[]", "its card mine.json names no robot"),
        (b'{"robot": 3}', "its card mine.json names no robot"),
        (b'{"robot": "rex"}', "expert mine.safetensors: its robot 'rex' is neither shipped"),
    ],
)
def test_a_card_that_does_not_name_a_known_robot_is_refused(
    copied: Path, card: bytes | None, complaint: str
) -> None:
    copied.with_suffix(".json").unlink()
    if card is not None:
        copied.with_suffix(".json").write_bytes(card)
    assert complaint in refusal(copied)
    assert f"no expert 'nobody'; allowed: {', '.join(list_experts())}" in refusal("nobody")


def test_a_robot_of_ones_own_may_move_together_with_its_expert(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(ROBOT.path.parent, first / "mine")
    card = json.loads(ROBOT.path.read_text())
    (first / "mine" / "robot.json").write_text(json.dumps(card | {"name": "mine"}))
    save_file(weights(), first / "expert.safetensors")
    for named in ("mine", str(first / "mine"), str(first / "mine" / "robot.json")):
        (first / "expert.json").write_text(json.dumps({"robot": named}))
        assert load_expert(str(first / "expert.safetensors")).policy.robot.name == "mine"
        first.rename(second)
        moved = load_expert(str(second / "expert.safetensors"))
        assert moved.policy.robot.path == second / "mine" / "robot.json"
        second.rename(first)


def test_a_truncated_file_and_one_of_other_tensors_are_refused(copied: Path) -> None:
    content = copied.read_bytes()
    for kept in (0, 7, 100, len(content) // 2):
        copied.write_bytes(content[:kept])
        assert "mine.safetensors cannot be read" in refusal(copied)
    save_file(weights(features=FEATURE_DIM - 1), copied)
    assert f"{FEATURE_DIM - 1} features, this version makes {FEATURE_DIM}" in refusal(copied)
    save_file({k: v for k, v in weights().items() if k != "layer0.bias"}, copied)
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


def test_shipped_experts_are_found_by_their_robots() -> None:
    assert shipped_experts(["go1", "rex", "aliengo"]) == ["go1-locomotion", "aliengo-locomotion"]
    for name in list_experts():
        expert = load_expert(name)
        for_families = drives_a_family(expert.weights)
        whole = not for_families and "quality" not in expert.card
        assert (shipped_experts([expert.policy.robot.name]) == [name]) == whole
        assert expert.card["bodies"] if for_families else expert.card["evaluation"]["cells"]


def test_the_mean_of_experts_is_that_of_their_networks_layers(
    observation: Observation, tmp_path: Path
) -> None:
    rng, own = np.random.default_rng(0), load_expert().weights
    for name, changed in (("a", 0.0), ("b", 0.3)):
        # Other statistics of the inputs, and a first layer that makes up for them.
        mean = own["mean"] + rng.normal(size=own["mean"].shape).astype(np.float32)
        std = own["std"] * rng.uniform(0.5, 2.0, own["std"].shape).astype(np.float32)
        shift = own["layer0.weight"] @ ((mean - own["mean"]) / own["std"]).ravel()
        tensors = own | {
            "mean": mean,
            "std": std,
            "layer0.weight": own["layer0.weight"] * (std / own["std"]).reshape(1, -1),
            "layer0.bias": own["layer0.bias"] + shift,
            "layer3.bias": own["layer3.bias"] + np.float32(changed),
        }
        save_file(tensors, tmp_path / f"{name}.safetensors")
        (tmp_path / f"{name}.json").write_text(json.dumps({"robot": "aliengo"}))
    names = [DEFAULT_EXPERT, *(str(tmp_path / f"{name}.safetensors") for name in "ab")]
    mean, card = average_experts(names, [1.0, 1.0, 2.0])
    assert card["robot"] == "aliengo"
    assert [each["share"] for each in card["average_of"]] == [0.25, 0.25, 0.5]
    found = ExpertPolicy("mean", load_expert().policy.robot, mean).act(observation)
    np.testing.assert_allclose(found, load_expert().policy.act(observation) + 0.15, atol=2e-3)


def test_what_cannot_be_averaged_is_refused() -> None:
    for names, shares, complaint in (
        ([DEFAULT_EXPERT], [1.0], "give at least two experts"),
        ([DEFAULT_EXPERT] * 2, [1.0], "give a share above 0 for each of 2 experts"),
        ([DEFAULT_EXPERT] * 2, [1.0, -1.0], "give a share above 0 for each of 2 experts"),
        ([DEFAULT_EXPERT, "go1-locomotion"], [1.0, 1.0], "go1-locomotion drives go1, and aliengo"),
        ([DEFAULT_EXPERT, "aliengo-family"], [1.0, 1.0], "aliengo-family has another network"),
    ):
        with pytest.raises(ValueError, match=complaint):
            average_experts(names, shares)
