"""Policies from elsewhere: what they observe, what their actions mean, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.collectors.experts.expert import average_experts, load_expert
from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.observations import OBS_DIM, POLICY_SLICES, PRIVILEGED_DIM
from gaitforge.collectors.policy import Observation
from gaitforge.collectors.robots.kinematics import N_COMMANDS
from gaitforge.collectors.robots.robot import N_JOINTS
from gaitforge.collectors.scenarios.terrains import make_tile, tile_heights
from gaitforge.plugins.robots.imported_experts.checking import check_imported, terms_in
from gaitforge.plugins.robots.imported_experts.importing import (
    CARD,
    LAYOUTS,
    import_expert,
    imported_policy,
    open_network,
    read_answers,
    template,
)
from gaitforge.plugins.robots.imported_experts.networks import Arrays
from gaitforge.plugins.robots.imported_experts.policy import ImportedPolicy, Term, parse_layout
from tests.collectors.imported_files import (
    GO1,
    JOINTS,
    TERMS,
    WIDTH,
    metadata,
    write_policy,
)
from tests.collectors.making import spec

ANSWERS = Path(__file__).parent / "mjlab_go1_answers.json"
IMU = (
    "terms: [{name: base_lin_vel, at_m: [-0.01592, -0.06659, -0.00617]}, base_ang_vel, "
    "projected_gravity, joint_pos, joint_vel, actions, command]\n"
)
"""Where mjlab's Go1 has its IMU (asset_zoo/robots/unitree_go1/xmls/go1.xml)."""
TWICE = (
    f"joints: {[*JOINTS, JOINTS[0]]}\ndefault_joint_pos: 0\naction_scale: 1\n"
    "stiffness: 35\ndamping: 1\n"
)
"""A layout that names a joint twice."""
VALUES: dict[str, Any] = {"joints": JOINTS, "default_joint_pos": 0.1, "action_scale": 0.25}


class Sums:
    """A network whose actions are the sum of what it observes."""

    parameters, normaliser = 0, None

    def __init__(self) -> None:
        self.state: Arrays = []
        self.inputs: Arrays = []

    def step(self, inputs: np.ndarray, state: Arrays) -> tuple[np.ndarray, Arrays]:
        self.inputs.append(inputs)
        return np.repeat(inputs.sum(axis=1, keepdims=True), N_JOINTS, axis=1), state


class Pair(torch.nn.Module):
    """A network that gives two tensors, as those with a critic do."""

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return obs, obs


def seen(values: np.ndarray, executed: np.ndarray | float = 0.0) -> Observation:
    """An observation of N robots whose commanded forward speeds are `values` (N,)."""
    rows = len(values)
    command = np.zeros((rows, N_COMMANDS))
    command[:, 0] = values
    policy = np.zeros((rows, OBS_DIM), np.float32)
    policy[:, slice(*POLICY_SLICES["last_action"])] = executed
    privileged = np.zeros((rows, PRIVILEGED_DIM), np.float32)
    zero = np.zeros(rows)
    return Observation(policy, zero, command, zero, lambda: privileged, lambda _: zero)


def policy_of(**changed: Any) -> tuple[ImportedPolicy, Sums]:
    network, terms = Sums(), [{"name": "command", "columns": ["vel_x"], "history": 3}]
    layout = parse_layout({**VALUES, "terms": terms, **changed}, "test")
    policy = ImportedPolicy("test", GO1, layout, network)
    network.inputs.clear()
    return policy, network


def imported(folder: Path, layout: str = "", **changed: Any) -> ImportedPolicy:
    path = folder / "layout.yaml"
    path.write_text(layout or "control_hz: 50\n")
    file = write_policy(folder / "policy.onnx", **changed)
    import_expert(file, folder / "mine", "go1", path)
    return imported_policy(str(folder / "mine"))


def test_the_terms_are_mjlabs(tmp_path: Path) -> None:
    """Observations that mjlab itself computed, in six states."""
    policy, known = imported(tmp_path, IMU), read_answers(ANSWERS)
    terms = np.concatenate(terms_in(policy, known), axis=1)
    assert np.abs(terms - known["observation"]).max() < 1e-5


def test_another_order_of_terms_shows(tmp_path: Path) -> None:
    swapped = IMU.replace("joint_pos, joint_vel", "joint_vel, joint_pos")
    known = read_answers(ANSWERS)
    policy = imported(tmp_path, swapped)
    errors = np.abs(policy.first_inputs(terms_in(policy, known)) - known["observation"])
    assert np.flatnonzero(errors.max(axis=0) > 1e-5).tolist() == list(range(9, 33))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(-2, 2), min_size=12, max_size=12), st.floats(0.1, 1))
def test_an_executed_action_is_observed_as_the_networks(output: list[float], scale: float) -> None:
    policy, _ = policy_of(terms=["actions"], action_scale=scale)
    executed = policy.own_action(np.array([output]))
    observed = policy.terms(seen(np.zeros(1), executed.astype(np.float32)), np.zeros(1, bool))
    assert np.allclose(observed[0], output, atol=1e-5)
    at_the_start = policy.terms(seen(np.zeros(1), executed), np.ones(1, bool))
    assert not at_the_start[0].any()


@pytest.mark.parametrize("newest", [True, False])
def test_histories_start_full_and_forget_at_a_reset(newest: bool) -> None:
    order = "newest_first" if newest else "oldest_first"
    policy, network = policy_of(history_order=order)
    for step in range(4):
        if step == 2:
            policy.reset(np.array([1]))
        policy.act(seen(np.array([step, 10.0 + step])))
    expected = [[0, 0, 0, 10, 10, 10], [0, 0, 1, 10, 10, 11], [0, 1, 2, 12, 12, 12],
                [1, 2, 3, 12, 12, 13]]  # fmt: skip
    for inputs, rows in zip(network.inputs, np.reshape(expected, (-1, 2, 3)), strict=True):
        assert np.array_equal(inputs, rows[:, ::-1] if newest else rows)


def test_steps_lie_together_where_the_layout_says_so() -> None:
    pair = [{"name": "command", "columns": [c], "history": 2} for c in ("vel_x", "vel_y")]
    policy, network = policy_of(terms=pair, history_by="step")
    for value in (1.0, 2.0):
        policy.act(seen(np.array([value])))
    assert network.inputs[-1].tolist() == [[1.0, 0.0, 2.0, 0.0]]


def test_a_slower_policy_holds_its_actions_from_its_own_start() -> None:
    policy, _ = policy_of(control_hz=25, terms=[{"name": "command", "columns": ["vel_x"]}])
    acted = []
    for step in range(4):
        if step == 1:
            policy.reset(np.array([1]))
        acted.append(policy.act(seen(np.full(2, float(step + 1))))[:, 1])
    first, second = (np.array(acted) - acted[0][0]).T
    assert first[0] == first[1] < first[2] == first[3]
    assert second[1] == second[2] < second[3]


@pytest.mark.parametrize("name", [path.stem for path in LAYOUTS.glob("*.yaml")])
def test_the_templates_are_layouts(name: str) -> None:
    layout = parse_layout(yaml.safe_load(template(name)), name)
    assert len(layout.joints) == N_JOINTS
    assert [sum(term.width for term in layout.terms if term.name != "height_scan")] == [WIDTH]
    assert layout.by_joint("default_joint_pos").min() < -1


def test_clips_come_before_scales() -> None:
    term = {"name": "command", "columns": ["vel_x"], "clip": [-1, 1], "scale": 5.0}
    policy, network = policy_of(terms=[term], observation_clip=4)
    policy.act(seen(np.array([0.5, 3.0, -3.0])))
    assert network.inputs[-1].ravel().tolist() == [2.5, 4.0, -4.0]


def test_heights_are_those_of_the_terrain() -> None:
    """legged_gym's 187 points: x of 17 outside, y of 11 inside, clipped, times 5."""
    layout = parse_layout(yaml.safe_load(template("legged_gym")), "template")
    term = layout.terms[-1]
    assert np.allclose(term.points()[[0, 1, 11, 186]], [[-0.8, -0.5], [-0.8, -0.4], [-0.7, -0.5],
                                                      [0.8, 0.5]])  # fmt: skip
    assert np.allclose(Term("height_scan").points()[1], [-0.7, -0.5])
    env = LeggedEnvironment(GO1, 2, threads=1)
    try:
        env.reset(np.arange(2), [spec(k, seed=k, terrain="rough") for k in range(2)])
        heights = env.observe().heights(term.points())
        for row, drawn in enumerate(env.episode_draws):
            assert drawn is not None
            turned = np.array([[np.cos(drawn.yaw), -np.sin(drawn.yaw)],
                               [np.sin(drawn.yaw), np.cos(drawn.yaw)]])  # fmt: skip
            points = term.points() @ turned.T + drawn.offset_xy
            each = spec(row, seed=row, terrain="rough")
            tile = make_tile("rough", each.level, drawn.terrain_variant)
            expected = env.physics.state.base_pos[row, 2] - tile_heights(tile, points)
            assert np.mean(np.abs(heights[row] - expected) < 1e-6) > 0.98  # cells' borders
    finally:
        env.close()


def test_robots_have_memories_of_their_own(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).normal(size=(WIDTH, N_JOINTS)).astype(np.float32)
    network = open_network(write_policy(tmp_path / "p.onnx", weights, memory=True), WIDTH)
    inputs = np.random.default_rng(1).normal(size=(3, 4, WIDTH)).astype(np.float32)
    state = [np.repeat(part[None], 4, axis=0) for part in network.state]
    for step in range(3):
        output, state = network.step(inputs[step], state)
        assert np.allclose(output, inputs[: step + 1].sum(axis=0) @ weights, atol=1e-4)


def test_gains_of_its_own_become_a_robot(tmp_path: Path) -> None:
    soft = metadata(joint_stiffness=",".join(["20.000,25.000,30.000"] * 4))
    file = write_policy(tmp_path / "policy.onnx", properties=soft)
    with pytest.raises(ValueError, match=r"kp 20/25/30, kd 1, and go1's kp 35, kd 1: --gains"):
        import_expert(file, tmp_path / "soft", "go1")
    assert not (tmp_path / "soft").exists()
    import_expert(file, tmp_path / "soft", "go1", gains="policy")
    import_expert(file, tmp_path / "same", "go1", gains="robot")
    soft_robot, robot = (load_expert(str(tmp_path / n)).policy.robot for n in ("soft", "same"))
    assert (soft_robot.name, robot.name) == ("go1-soft", "go1")
    assert np.array_equal(soft_robot.kp_nm_per_rad, [20, 25, 30] * 4)
    assert np.array_equal(soft_robot.default_joint_pos_rad[:6], [-0.1, 0.9, -1.8, 0.1, 0.9, -1.8])
    assert np.array_equal(robot.kp_nm_per_rad, GO1.kp_nm_per_rad)


def test_gains_of_a_policy_that_tells_none_are_asked_for(tmp_path: Path) -> None:
    layout = tmp_path / "layout.yaml"
    layout.write_text(json.dumps({"stiffness": None, "damping": None}))
    file = write_policy(tmp_path / "policy.onnx")
    with pytest.raises(ValueError, match="--gains policy needs the policy's stiffness and damping"):
        import_expert(file, tmp_path / "mine", "go1", layout, gains="policy")
    import_expert(file, tmp_path / "mine", "go1", layout)


def test_the_hash_is_of_file_layout_and_robot(tmp_path: Path) -> None:
    hashes = set()
    weights = np.ones((WIDTH, N_JOINTS), np.float32)
    for k, (layout, each) in enumerate([("", None), (IMU, None), ("", weights), ("", None)]):
        (tmp_path / str(k)).mkdir()
        imported(tmp_path / str(k), layout, weights=each)
        hashes.add(load_expert(str(tmp_path / str(k) / "mine")).hash)
    assert len(hashes) == 3
    card = tmp_path / "0" / "mine" / CARD
    card.write_text(json.dumps(json.loads(card.read_text()) | {"robot": "go2"}))
    assert load_expert(str(card.parent)).hash not in hashes


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        ("terms: [base_lin_vel, joints]", "no term 'joints'; allowed: base_lin_vel"),
        ("terms: [base_lin_vel, joint_pos]", "reads 48 numbers, the layout has 15; the layout's"),
        ("control_hz: 40", "control_hz 40 does not divide the task's 50 Hz"),
        ("control_hz: 100", "control_hz 100 does not divide"),
        ("action_scale: 0", "action_scale has to differ from 0"),
        ("action_scale: [1, 2]", "action_scale needs 1 or 12 finite numbers"),
        ("default_joint_pos: {.*hip_joint: 0}", "default_joint_pos has to name FR_thigh_joint"),
        ("default_joint_pos: {'*': 0}", "'*' is no regular expression"),
        ("terms: 3", "terms: a list is needed"),
        ("terms: [{name: joint_pos, clip: [1, -1]}]", "clip of joint_pos: the low end comes first"),
        ("terms: [{name: joint_pos, clip: [.nan, 1]}]", "clip of joint_pos: the low end"),
        ("terms: [{name: joint_pos, scale: .nan}]", "joint_pos needs finite numbers"),
        ("action_clip: -1", "action_clip and observation_clip are magnitudes above 0"),
        ("observation_clip: .nan", "action_clip and observation_clip are magnitudes above 0"),
        ("stiffness: null", "stiffness and damping of a layout go together: give both or none"),
        (TWICE, "drives the joints FR_hip_joint"),
        ("joints: [a, b]", "default_joint_pos needs 1 or 2 finite numbers"),
        ("speed: 3", "speed: "),
        ("terms: [{name: joint_pos, scale: [1, 2]}]", "joint_pos has 12 columns, not 2"),
        ("terms: [{name: command, columns: [speed]}]", "no command speed; allowed: vel_x"),
        ("[1, 2]", "has to hold keys"),
        ("a: [", "cannot be read as YAML"),
    ],
)
def test_wrong_layouts_are_refused_in_one_line(tmp_path: Path, layout: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        imported(tmp_path, layout)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.npz", b"", "holds no known answers"),
        ("a.npz", b"PK\x03\x04", "holds no known answers"),
        ("a.json", b'{"observation": []}', "needs a row for each observation"),
        ("a.json", b'{"observation": [[1]], "action": [[1, 2]]}', "action needs 12 columns, not 2"),
    ],
)
def test_wrong_answers_are_refused_in_one_line(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=reason):
        read_answers(tmp_path / name)


def test_answers_are_found_again_by_any_name_and_have_the_layouts_width(tmp_path: Path) -> None:
    answers = tmp_path / "known.txt"
    answers.write_text(json.dumps({"observation": [[0.0] * 47], "action": [[0.0] * N_JOINTS]}))
    import_expert(write_policy(tmp_path / "policy.onnx"), tmp_path / "mine", "go1", None, answers)
    with pytest.raises(ValueError, match="observations have 47 numbers, the layout has 48"):
        check_imported(imported_policy(str(tmp_path / "mine")), tmp_path / "mine")


def test_a_network_that_cannot_be_called_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    file = write_policy(tmp_path / "policy.onnx")
    model = onnx.load(file)
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    model.graph.node.insert(0, onnx.helper.make_node("Cast", ["obs"], ["real"], to=1))
    model.graph.node[1].input[0] = "real"
    onnx.save(model, file)
    with pytest.raises(ValueError, match=r"policy\.onnx cannot read 48 numbers: "):
        import_expert(file, tmp_path / "mine", "go1")
    number = onnx.helper.make_tensor_value_info("obs", onnx.TensorProto.FLOAT, [])
    for inputs in ([], [number]):
        del model.graph.input[:]
        model.graph.input.extend(inputs)
        del model.graph.node[:]
        constant = onnx.numpy_helper.from_array(np.zeros((1, 12), np.float32))
        model.graph.node.append(onnx.helper.make_node("Constant", [], ["actions"], value=constant))
        onnx.save(model, file)
        with pytest.raises(ValueError, match=r"policy\.onnx reads no rows of numbers"):
            import_expert(file, tmp_path / "mine", "go1")
    torch.jit.script(Pair()).save(str(tmp_path / "policy.pt"))
    layout = tmp_path / "layout.yaml"
    layout.write_text(json.dumps(VALUES | {"terms": list(TERMS)}))
    with pytest.raises(ValueError, match=r"policy\.pt cannot read 48 numbers: "):
        import_expert(tmp_path / "policy.pt", tmp_path / "mine", "go1", layout, trust=True)


def test_it_is_neither_trained_nor_averaged(tmp_path: Path) -> None:
    imported(tmp_path)
    mine = str(tmp_path / "mine")
    with pytest.raises(ValueError, match="is imported; its network cannot be trained"):
        average_experts([mine, mine], [1.0, 1.0])
