"""One sign convention inside policies for many robots: a robot's own never reaches the network."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.episodes import EpisodeSpec
from gaitforge.collectors.legged.observations import OBS_DIM, POLICY_SLICES
from gaitforge.collectors.legged.rollout import run_episodes
from gaitforge.collectors.robots.robot import (
    BODY_DIM,
    BODY_SLICES,
    N_JOINTS,
    body_vector,
    load_robot,
)
from gaitforge.collectors.scenarios.randomisation import Randomisation
from gaitforge.datasets import Field, Schema, Selection, Store
from gaitforge.learners.checkpoint import CHECKPOINT, load_policy, read_checkpoint
from gaitforge.learners.control.control import LearnedPolicy, TorchStep, compiled_step
from gaitforge.learners.control.step_modules import PolicyStep
from gaitforge.learners.models.registry import build_network, preset
from gaitforge.learners.policy_network import Normaliser, PolicyNetwork
from gaitforge.learners.tokens import TokenLayout
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.train import train
from tests.collectors.robots.robot_folders import GO1, robot_folder
from tests.datasets.making import part_input
from tests.learners.making import OF_VALUES, SMALL, Seen

SIGN = slice(*BODY_SLICES["body_sign"])
FLIPPED = ("joint_vel", "sin_joint_pos", "last_action")
SIGNS = st.lists(st.sampled_from((1.0, -1.0)), min_size=N_JOINTS, max_size=N_JOINTS)
"""Of the joints of another robot, relative to a first one's."""


def factors(signs: np.ndarray) -> np.ndarray:
    """(70,) of observations, by the definition of what a joint that turns the other way shows."""
    whole = np.ones(OBS_DIM, np.float32)
    for name in FLIPPED:
        whole[slice(*POLICY_SLICES[name])] = signs
    return whole


def policy_for_bodies(model: str, own_signs: bool = False) -> PolicyNetwork:
    """An untrained policy with uneven normalisers, for a store of many robots."""
    layout = TokenLayout.of_data("obs", POLICY_SLICES, N_JOINTS, BODY_SLICES, own_signs=own_signs)
    rng = np.random.default_rng(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = build_network(preset(model, SMALL.get(model)), layout, N_JOINTS)
    sizes = layout.obs_dim, N_JOINTS
    pairs = [(rng.normal(size=size), rng.uniform(0.5, 2.0, size)) for size in sizes]
    observations, actions = (Normaliser(*pair) for pair in pairs)
    return PolicyNetwork(network, layout, observations, actions).eval()


def steps(policy: PolicyNetwork, body: np.ndarray, observations: np.ndarray) -> dict[str, Any]:
    """The actions of every way to step a policy, (T, 1, A) each."""
    policy.drive(body)
    compiled, module = compiled_step(policy, 1), PolicyStep(policy)
    assert compiled is not None
    stepping: Mapping[str, Any] = {"compiled": compiled, "torch": TorchStep(policy, 1)}
    found: dict[str, list[np.ndarray]] = {name: [] for name in (*stepping, "exported", "control")}
    state, control = module.initial_state(), LearnedPolicy(policy, 1)
    for each in observations:
        row = each[None]
        for name, step in stepping.items():
            found[name].append(step.step(np.concatenate([row, body[None]], axis=1), None))
        with torch.no_grad():
            action, *state = module(torch.from_numpy(row), *state)
        found["exported"].append(action.numpy())
        found["control"].append(control.act(Seen(row, np.zeros(1))).copy())
    return {name: np.stack(actions) for name, actions in found.items()}


@pytest.mark.parametrize("model", ["fcnet", "bot"])
@given(signs=SIGNS, seed=st.integers(0, 2**16))
@settings(max_examples=5, deadline=None)
def test_flipped_joints_give_flipped_actions_however_a_policy_is_stepped(
    model: str, signs: list[float], seed: int
) -> None:
    flips, rng = np.array(signs, np.float32), np.random.default_rng(seed)
    policy, body = policy_for_bodies(model), rng.normal(size=BODY_DIM).astype(np.float32)
    body[SIGN] = rng.choice([-1.0, 1.0], N_JOINTS)
    other = body.copy()
    other[SIGN] *= flips
    observations = rng.normal(size=(12, OBS_DIM)).astype(np.float32)
    first = steps(policy, body, observations)
    second = steps(policy, other, observations * factors(flips))
    for name, actions in first.items():
        np.testing.assert_array_equal(second[name], flips * actions, err_msg=name)
        np.testing.assert_allclose(actions, first["torch"], atol=1e-4, err_msg=name)


def mirrored(folder: Path, flipped: tuple[int, ...]) -> Path:
    """Go1 with some joints' axes turned round, in its MJCF and its card."""
    signs = np.where(np.isin(np.arange(N_JOINTS), flipped), -1.0, 1.0)
    low, high = GO1.joint_lower_rad * signs, GO1.joint_upper_rad * signs
    low, high = np.minimum(low, high), np.maximum(low, high)
    kinds, edits = ("hip", "thigh", "calf"), []
    for i in flipped:
        name, kind = GO1.joint_names[i], kinds[i % 3]
        axis = "-1 0 0" if kind == "hip" else "0 -1 0"
        old = f'<joint name="{name}" class="{kind}"/>'
        new = f'<joint name="{name}" class="{kind}" axis="{axis}" range="{low[i]} {high[i]}"/>'
        edits.append((old, new))
    default = (signs * GO1.default_joint_pos_rad).tolist()
    card = {"joint_signs": signs.tolist(), "default_joint_pos_rad": default}
    card |= {"joint_lower_rad": low.tolist(), "joint_upper_rad": high.tolist()}
    return robot_folder(folder, card, edits)


def driven(robot: str, policy: PolicyNetwork) -> Any:
    """The record of an episode without noise."""
    card = load_robot(robot)
    policy.drive(body_vector(card))
    nominal = Randomisation.parsed({"preset": "none"})
    env = LeggedEnvironment(card, 1, 1, randomisation=nominal)
    try:
        spec = EpisodeSpec(0, "flat", 0, "run", 7)
        [result] = run_episodes(env, LearnedPolicy(policy, 1), [spec], record=True)
    finally:
        env.close()
    return result.record


@pytest.mark.parametrize("flipped", [(1, 2, 4, 5, 7, 8, 10, 11), (0, 5, 9, 10)])
def test_a_robot_and_its_mirrored_description_move_alike(
    flipped: tuple[int, ...], tmp_path: Path
) -> None:
    folder = mirrored(tmp_path / "mine", flipped)
    flips = load_robot(str(folder)).joint_signs.astype(np.float32)
    bodies = [body_vector(robot) for robot in (GO1, load_robot(str(folder)))]
    np.testing.assert_array_equal(bodies[1][SIGN], flips)
    np.testing.assert_allclose(np.delete(bodies[1], np.r_[SIGN]), np.delete(bodies[0], np.r_[SIGN]))
    policy = policy_for_bodies("fcnet")
    first, second = driven("go1", policy), driven(str(folder), policy)
    assert len(second.obs) == len(first.obs)
    np.testing.assert_allclose(second.obs, first.obs * factors(flips), atol=1e-3)
    np.testing.assert_allclose(second.action, first.action * flips, atol=1e-3)
    own = policy_for_bodies("fcnet", own_signs=True)
    assert not np.allclose(driven(str(folder), own).action[0], driven("go1", own).action[0] * flips)


def store_of_bodies(path: Path, flips: np.ndarray) -> Selection:
    """Random walks of two robots, of which the second's joints turn the other way as `flips` say.

    Its actions and observations are the same motion in its own signs.
    """
    rng, lengths = np.random.default_rng(3), [20] * 16
    steps, second = sum(lengths), np.repeat(np.arange(16) % 2 == 1, 20)
    obs = np.cumsum(rng.normal(size=(steps, OBS_DIM)) * 0.1, axis=0).astype(np.float32) + 0.5
    action = np.tanh(obs[:, 3:15] + obs[:, 15:27] + 0.3)
    obs[second] *= factors(flips)
    action[second] *= flips
    body = rng.normal(size=(16, BODY_DIM)).astype(np.float32)
    body[:, SIGN] = 1.0
    body[1::2, SIGN] = flips
    columns = part_input(lengths)["episodes"] | {"robot": ["one", "two"] * 8}
    fields = (
        Field("obs", (OBS_DIM,), slices=POLICY_SLICES), Field("action", (N_JOINTS,)),
        Field("reward"), Field("final_obs", (OBS_DIM,), slices=POLICY_SLICES, per="episode"),
        Field("body", (BODY_DIM,), slices=BODY_SLICES, per="episode"),
    )  # fmt: skip
    store = Store.create(path, Schema(fields, control_dt_s=0.02, robot="several"))
    arrays = {"obs": obs, "action": action, "reward": np.ones(steps, np.float32)}
    final = obs[np.cumsum(lengths) - 1]
    store.write_part("walks", arrays, columns, {"final_obs": final, "body": body})
    return store.select()


@pytest.mark.parametrize("objective", ["bc", "gaussian-bc", *OF_VALUES[:1]])
def test_a_store_in_other_signs_trains_the_same_policy(objective: str, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"steps": 6, "batch_size": 8, "window_len": 8, "threads": 1}
    config = TrainConfig(
        "fcnet", SMALL["fcnet"], objective, **sizes, held_out_fraction=0.2, equal_shares="robot"
    )
    flips = np.where(np.arange(N_JOINTS) % 3 > 0, -1.0, 1.0).astype(np.float32)
    states = []
    for name, each in {"plain": np.ones(N_JOINTS, np.float32), "other": flips}.items():
        selection = store_of_bodies(tmp_path / f"{name}.zarr", each)
        train(config, selection, tmp_path / name)
        states.append(load_policy(tmp_path / name).state_dict())
        with pytest.raises(ValueError, match="another own_joint_signs"):
            train(replace(config, own_joint_signs=True), selection, tmp_path / name)
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, atol=1e-4, rtol=1e-4, msg=name)


def test_a_policy_of_an_older_version_is_used_as_it_was_trained_and_not_trained_further(
    tmp_path: Path,
) -> None:
    flips = np.where(np.arange(N_JOINTS) % 3 > 0, -1.0, 1.0).astype(np.float32)
    selection = store_of_bodies(tmp_path / "walks.zarr", flips)
    config = TrainConfig(
        "fcnet", SMALL["fcnet"], steps=2, batch_size=8, window_len=8, held_out_fraction=0.0
    )
    train(replace(config, own_joint_signs=True), selection, tmp_path)
    tensors, card = read_checkpoint(tmp_path)
    older = json.loads(json.dumps(card)) | {"finished": False}
    del older["tokens"]["signed_fields"], older["train_config"]["own_joint_signs"]
    save_file(tensors, tmp_path / CHECKPOINT, {"card": json.dumps(older)})
    assert load_policy(tmp_path).layout.signed_fields == ()
    with pytest.raises(ValueError, match="holds a run of an older version, which reads other"):
        train(config, selection, tmp_path)
    save_file(tensors, tmp_path / CHECKPOINT, {"card": json.dumps(older | {"finished": True})})
    assert train(config, selection, tmp_path).steps == 2
