"""The stateless model: equal to the policy, whatever a runtime fills its history with."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.collectors.robots.kinematics import C, command_scale
from gaitforge.collectors.robots.robot import load_robot
from gaitforge.learners.control.control import LearnedPolicy
from gaitforge.plugins.robot_runtime.runtimes.stateless import (
    FRAME,
    StatelessOptions,
    StatelessPolicy,
    as_input,
    fixed_command,
    stateless_model,
)
from gaitforge.plugins.robot_runtime.tests.robots import UNEVEN, Walk, small_export
from tests.learners.making import KIND_SETTINGS, NETWORKS, Seen

_HISTORIES = ("bot", "body-mlp", "history-mlp", "mlp", "flow")
_REFUSED = [kind for kind in NETWORKS if kind not in _HISTORIES]
_RUN = StatelessOptions("run")
_TOLERANCE = 1e-5


@st.composite
def _networks(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A kind with a stacked memory, of random sizes."""
    history = draw(st.integers(1, 7))
    width = draw(st.sampled_from([4, 8, 12]))
    layers = draw(st.integers(1, 3))
    if draw(st.booleans()):
        return "history-mlp", {"hidden_dim": width, "n_layers": layers, "context_len": history}
    masking = draw(st.sampled_from(["hard", "mix", "soft", "none"]))
    sizes = {"embed_dim": width, "n_layers": layers, "feedforward_dim": 2 * width}
    return "bot", {**sizes, "history": history, "masking": masking}


def _frame(walk: Walk, step: int, raw: np.ndarray) -> np.ndarray:
    """(K,) a runtime's frame in the order of `FRAME`, with the raw last action (12,)."""
    default = np.array(UNEVEN.default_joint_pos_rad)
    terms = [
        walk.gyro[step, 0],
        walk.gravity[step, 0],
        walk.velocity[step, 0],
        walk.joint_pos[step, 0] - default,
        walk.joint_vel[step, 0],
        raw,
    ]
    assert [len(term) for term in terms] == list(FRAME.values())
    return np.concatenate(terms).astype(np.float32)


def _differences(
    kind: str, sizes: dict[str, Any], tokens: str, seed: int, by_term: bool, filling: str
) -> tuple[np.ndarray, int]:
    """The largest difference to `LearnedPolicy` at each step of an episode, and n."""
    export = small_export(kind, sizes, tokens)
    command = fixed_command(export, _RUN)
    model = StatelessPolicy(export.policy, UNEVEN, command, by_term)
    steps = model.steps
    walk = Walk(seed, 3 * steps + 4, command)
    product = LearnedPolicy(export.policy, 1, action_limit=UNEVEN.action_limit)
    product.reset(np.array([0]))
    raw = np.zeros(12, np.float32)
    first = _frame(walk, 0, raw)
    rng = np.random.default_rng(seed)
    history = {
        "zeros": np.zeros((steps, len(first)), np.float32),
        "first": np.tile(first, (steps, 1)),
        "other": rng.normal(size=(steps, len(first))).astype(np.float32),
    }[filling]
    differences = []
    action = np.zeros((1, 12), np.float32)
    for step in range(len(walk.gyro)):
        history = np.concatenate([history[1:], _frame(walk, step, raw)[None]])
        with torch.no_grad():
            raw = model(torch.from_numpy(as_input(history, by_term)))[0][0].numpy()
        action = product.act(Seen(walk.observation(step, action), np.zeros(1)))
        clipped = raw.clip(-UNEVEN.action_limit, UNEVEN.action_limit)
        differences.append(np.abs(clipped - action[0]).max())
    return np.array(differences), steps


@settings(max_examples=12, deadline=None)
@given(
    network=_networks(),
    tokens=st.sampled_from(["obs", "return"]),
    seed=st.integers(0, 10**6),
    by_term=st.booleans(),
    filling=st.sampled_from(["zeros", "first"]),
)
def test_it_acts_as_the_policy_from_the_first_step_however_a_runtime_fills_its_history(
    network: tuple[str, dict[str, Any]], tokens: str, seed: int, by_term: bool, filling: str
) -> None:
    differences, _ = _differences(*network, tokens, seed, by_term, filling)
    assert differences.max() <= _TOLERANCE


@pytest.mark.parametrize("kind", _HISTORIES)
def test_every_kind_with_a_stacked_memory_can_be_written(kind: str) -> None:
    differences, steps = _differences(kind, KIND_SETTINGS[kind], "obs", 1, False, "other")
    assert differences.max() <= _TOLERANCE
    assert steps == KIND_SETTINGS[kind].get("history", KIND_SETTINGS[kind].get("context_len", 1))


def test_the_history_is_read() -> None:
    export = small_export()
    command = fixed_command(export, _RUN)
    model = StatelessPolicy(export.policy, UNEVEN, command, by_term=False)
    walk = Walk(0, model.steps, command)
    moved = np.full(12, 0.5)
    history = np.stack([_frame(walk, step, moved) for step in range(model.steps)])
    with torch.no_grad():
        [action] = model(torch.from_numpy(as_input(history, False)))
        history[0, :3] += 1.0
        [changed] = model(torch.from_numpy(as_input(history, False)))
    assert (action - changed).abs().max() > 1e-4


def test_the_written_model_is_checked_and_has_one_input_and_one_output() -> None:
    onnx = pytest.importorskip("onnx")
    export = small_export("history-mlp")
    model = stateless_model(export, _RUN, by_term=True)
    assert model.error <= _TOLERANCE
    graph = onnx.load_from_string(model.content).graph
    assert [value.name for value in graph.input] == ["obs"]
    assert [value.name for value in graph.output] == ["actions"]
    shapes = [
        [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    ]
    assert shapes == [[1, model.steps * sum(FRAME.values())], [1, 12]]


@pytest.mark.parametrize("kind", _REFUSED)
def test_networks_that_remember_more_are_refused_in_a_line_that_names_the_c_code(kind: str) -> None:
    tokens = "return" if kind.startswith("dt") else "obs"
    with pytest.raises(ValueError, match=r"^[^\n]*--formats c[^\n]*$"):
        stateless_model(small_export(kind, tokens=tokens), _RUN, by_term=False)


def test_a_spectral_memory_is_refused() -> None:
    sizes = KIND_SETTINGS["history-mlp"] | {"history_kind": "spectral", "n_modes": 2}
    with pytest.raises(ValueError, match="--formats c"):
        stateless_model(small_export("history-mlp", sizes), _RUN, by_term=False)


def test_the_fixed_command_is_one_of_the_skill_in_the_robots_size() -> None:
    command = fixed_command(small_export(), StatelessOptions("rush"))
    scale = command_scale(load_robot("go2"))
    assert command.values[C.GAIT_FREQUENCY] == pytest.approx(3.5 * scale[C.GAIT_FREQUENCY])
    assert command.values[C.ACCEL_LIMIT] == 4.5
    assert command.velocities[0] == pytest.approx((0.0, 2.5 * scale[C.VEL_X]))
    assert all(low <= 0.0 <= high for low, high in command.velocities)
    still = fixed_command(small_export(), StatelessOptions("stand"))
    assert still.velocities == ((0.0, 0.0),) * 3
    assert still.values[C.LOCOMOTE] == 0.0


@pytest.mark.parametrize(
    ("skills", "chosen"),
    [
        (("stand", "rush", "run"), "run"),
        (("stand", "crawl", "rush"), "rush"),
        (("stand", "crawl"), "crawl"),
        (("stand",), "stand"),
        ((), "run"),
    ],
)
def test_by_default_it_walks_where_the_policy_can(skills: tuple[str, ...], chosen: str) -> None:
    assert fixed_command(small_export(skills=skills), StatelessOptions()).skill == chosen


def test_wrong_options_are_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"untrained skill 'crawl'; allowed: stand, rush, run"):
        fixed_command(small_export(), StatelessOptions("crawl"))
    other = replace(small_export(), robot=replace(load_robot("go2"), joint_names=("wheel",)))
    with pytest.raises(ValueError, match="the export is of go2, but go2 has other joints"):
        fixed_command(other, StatelessOptions())
    with pytest.raises(ValueError, match="needs a robot's card"):
        fixed_command(small_export(facts=None), StatelessOptions())
