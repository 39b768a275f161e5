"""Files for unitree_rl_lab and rl_sar, field by field, and in the loop as those programs do."""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.learners.control.control import LearnedPolicy
from gaitforge.learners.export.policy_formats import policy_format, policy_runtime
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.plugins.robot_runtime.runtimes.configs import check_config
from gaitforge.plugins.robot_runtime.runtimes.configuration import described_robot, yaml_text
from gaitforge.plugins.robot_runtime.runtimes.stateless import StatelessOptions, fixed_command
from gaitforge.plugins.robot_runtime.tests.robots import UNEVEN, Walk, export_folder, small_export
from tests.learners.making import CONTEXT, Seen

_RUNTIMES = {"rl_sar": "rl_sar-onnx", "unitree_rl_lab": "unitree_rl_lab-onnx"}
_DEPLOY = "unitree_rl_lab/params/deploy.yaml"
_BASE = "rl_sar/go2/base.yaml"
_CONFIG = "rl_sar/go2/gaitforge/config.yaml"
# What rl_sar reads of a file without a default (ReadYamlBase and ReadYamlRL of rl_sdk.cpp).
_JOINT_KEYS = {
    "num_of_dofs",
    "wheel_indices",
    "fixed_kp",
    "fixed_kd",
    "torque_limits",
    "default_dof_pos",
    "joint_mapping",
}
_BASE_KEYS = _JOINT_KEYS | {"dt", "decimation", "joint_names", "joint_controller_names"}
_CONFIG_KEYS = _JOINT_KEYS | {
    "model_name",
    "num_observations",
    "observations",
    "observations_history",
    "observations_history_priority",
    "clip_obs",
    "clip_actions_lower",
    "clip_actions_upper",
    "rl_kp",
    "rl_kd",
    "action_scale",
    "lin_vel_scale",
    "ang_vel_scale",
    "dof_pos_scale",
    "dof_vel_scale",
    "commands_scale",
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PolicyNetwork]:
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("runtimes") / "export"
    return folder, export_folder(folder, tuple(_RUNTIMES))


def _tree(folder: Path, name: str) -> Any:
    return yaml.safe_load((folder / name).read_text())


def _by_name(values: Any, names: tuple[str, ...]) -> dict[str, float]:
    return dict(zip(names, values, strict=True))


@pytest.mark.parametrize("name", [_DEPLOY, _BASE, _CONFIG])
def test_the_check_of_configurations_agrees_with_what_is_written(
    exported: tuple[Path, PolicyNetwork], name: str, tmp_path: Path
) -> None:
    facts = described_robot(json.loads((exported[0] / "policy.json").read_text())["control"])
    assert check_config(exported[0] / name, facts).ok
    edited = tmp_path / Path(name).name
    text = (exported[0] / name).read_text()
    tree = _tree(exported[0], name)
    joints = tree if name == _DEPLOY else tree[next(iter(tree))]
    key = "joint_ids_map" if name == _DEPLOY else "joint_mapping"
    swapped = [joints[key][1], joints[key][0], *joints[key][2:]]
    edited.write_text(text.replace(f"{key}: {joints[key]}", f"{key}: {swapped}"))
    report = check_config(edited, facts)
    assert not report.ok
    assert any(UNEVEN.joint_names[0] in finding.text for finding in report.findings)


def test_the_gains_of_deploy_yaml_are_in_the_motors_order(
    exported: tuple[Path, PolicyNetwork],
) -> None:
    tree = _tree(exported[0], _DEPLOY)
    joints, motors = UNEVEN.joint_names, UNEVEN.motor_names
    assert [motors[k] for k in tree["joint_ids_map"]] == list(joints)
    assert _by_name(tree["stiffness"], motors) == _by_name(UNEVEN.kp_nm_per_rad, joints)
    assert _by_name(tree["damping"], motors) == _by_name(UNEVEN.kd_nms_per_rad, joints)
    assert tree["default_joint_pos"] == pytest.approx(UNEVEN.default_joint_pos_rad)
    assert tree["step_dt"] == UNEVEN.control_dt_s


def test_deploy_yaml_has_actions_ranges_and_terms_as_the_program_reads_them(
    exported: tuple[Path, PolicyNetwork],
) -> None:
    tree = _tree(exported[0], _DEPLOY)
    action = tree["actions"]["JointPositionAction"]
    assert action["scale"] == [UNEVEN.action_scale_rad] * 12
    assert action["offset"] == tree["default_joint_pos"]
    assert action["joint_ids"] is None
    reach = UNEVEN.action_scale_rad * UNEVEN.action_limit
    for (low, high), default, lowest, highest in zip(
        action["clip"],
        UNEVEN.default_joint_pos_rad,
        UNEVEN.joint_lower_rad,
        UNEVEN.joint_upper_rad,
        strict=True,
    ):
        assert low == pytest.approx(max(default - reach, lowest - UNEVEN.target_margin_rad))
        assert high == pytest.approx(min(default + reach, highest + UNEVEN.target_margin_rad))
    ranges = tree["commands"]["base_velocity"]["ranges"]
    command = fixed_command(small_export(), StatelessOptions())
    spans = [ranges[name] for name in ("lin_vel_x", "lin_vel_y", "ang_vel_z")]
    assert np.array(spans) == pytest.approx(np.array(command.velocities), rel=1e-6)
    terms = tree["observations"]
    assert {name: len(term["scale"]) for name, term in terms.items()} == {
        "base_ang_vel": 3,
        "projected_gravity": 3,
        "velocity_commands": 3,
        "joint_pos_rel": 12,
        "joint_vel_rel": 12,
        "last_action": 12,
    }
    for term in terms.values():
        assert isinstance(term["params"], dict)  # the program knows a term by its `params`
        assert (term["clip"], term["history_length"]) == (None, CONTEXT)
        assert set(term["scale"]) == {1.0}


def test_rl_sars_files_have_what_it_reads_in_the_policys_order(
    exported: tuple[Path, PolicyNetwork],
) -> None:
    base = _tree(exported[0], _BASE)["go2"]
    config = _tree(exported[0], _CONFIG)["go2/gaitforge"]
    assert base.keys() == _BASE_KEYS
    assert config.keys() == _CONFIG_KEYS
    # The simulators' part takes joint_names[joint_mapping[i]] for the policy's joint i.
    for entries in (base, config):
        named = [base["joint_names"][k] for k in entries["joint_mapping"]]
        assert named == list(UNEVEN.joint_names)
        assert entries["default_dof_pos"] == pytest.approx(UNEVEN.default_joint_pos_rad)
        assert entries["torque_limits"] == pytest.approx(UNEVEN.torque_limit_nm)
    assert base["joint_names"] == list(UNEVEN.motor_names)
    controllers = [name.removesuffix("_controller") for name in base["joint_controller_names"]]
    assert [f"{name}_joint" for name in controllers] == base["joint_names"]
    assert base["dt"] * base["decimation"] == pytest.approx(UNEVEN.control_dt_s)
    assert config["rl_kp"] == pytest.approx(UNEVEN.kp_nm_per_rad)
    assert config["rl_kd"] == pytest.approx(UNEVEN.kd_nms_per_rad)
    assert config["num_observations"] == 45
    assert config["observations_history"] == list(range(CONTEXT))[::-1]
    targets = np.array(config["action_scale"]) * config["clip_actions_upper"]
    limit = np.array(UNEVEN.joint_upper_rad) + UNEVEN.target_margin_rad
    assert np.all(targets + config["default_dof_pos"] <= limit + 1e-6)
    assert max(config["clip_actions_upper"]) == UNEVEN.action_limit
    assert (exported[0] / "rl_sar/go2/gaitforge" / config["model_name"]).is_file()


def _actions(policy: Any, walk: Walk, restarts: dict[int, list[int]]) -> np.ndarray:
    """(T, N, 12) what the robots execute, whose episodes start anew at the steps of `restarts`."""
    robots = walk.gyro.shape[1]
    policy.reset(np.arange(robots))
    last = np.zeros((robots, 12), np.float32)
    default = np.array(UNEVEN.default_joint_pos_rad)
    actions = []
    for step in range(len(walk.gyro)):
        ids = restarts.get(step, [])
        policy.reset(np.array(ids, np.int64))
        last[ids] = 0.0
        action = policy.act(Seen(walk.observation(step, last), np.zeros(robots)))
        last = action.clip(-UNEVEN.action_limit, UNEVEN.action_limit)
        target = default + UNEVEN.action_scale_rad * last
        margin = UNEVEN.target_margin_rad
        low = np.array(UNEVEN.joint_lower_rad) - margin
        actions.append(target.clip(low, np.array(UNEVEN.joint_upper_rad) + margin))
    return np.array(actions)


@pytest.mark.parametrize("runtime", _RUNTIMES)
def test_the_files_in_the_loop_move_joints_as_the_policy(
    runtime: str, exported: tuple[Path, PolicyNetwork]
) -> None:
    folder, network = exported
    walk = Walk(5, 4 * CONTEXT, fixed_command(small_export(), StatelessOptions()), robots=3)
    restarts = {CONTEXT + 2: [1], 2 * CONTEXT + 1: [0, 2]}
    files = policy_runtime(_RUNTIMES[runtime]).open(folder, 3, "files", 1.0, UNEVEN.action_limit)
    product = LearnedPolicy(network, 3, action_limit=UNEVEN.action_limit)
    difference = _actions(files, walk, restarts) - _actions(product, walk, restarts)
    assert np.abs(difference).max() <= 1e-5
    assert files.parameters == 123
    assert files.description["control"]["robot"] == "go2"


def _spoil(folder: Path, name: str, change: Any) -> None:
    """Change a configuration, also its hash in the description."""
    path = folder / name
    path.write_text(change(path.read_text()))
    described = json.loads((folder / "policy.json").read_text())
    described["files"][name] = sha256(path.read_bytes()).hexdigest()
    (folder / "policy.json").write_text(json.dumps(described))


@pytest.mark.parametrize(
    ("runtime", "name", "key", "wrong"),
    [
        ("unitree_rl_lab", _DEPLOY, "joint_ids_map", list(range(12))),
        ("unitree_rl_lab", _DEPLOY, "default_joint_pos", [0.0] * 12),
        ("rl_sar", _CONFIG, "joint_mapping", list(range(12))),
        ("rl_sar", _CONFIG, "dof_vel_scale", 0.05),
        ("rl_sar", _CONFIG, "observations_history", list(range(CONTEXT))),
    ],
)
def test_a_wrong_entry_of_a_configuration_moves_other_joints(
    runtime: str,
    name: str,
    key: str,
    wrong: Any,
    exported: tuple[Path, PolicyNetwork],
    tmp_path: Path,
) -> None:
    """So the loop reads the files, and does not go round them."""
    folder = tmp_path / "export"
    for path in exported[0].rglob("*"):
        if path.is_file():
            copy = folder / path.relative_to(exported[0])
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    walk = Walk(5, 2 * CONTEXT, fixed_command(small_export(), StatelessOptions()))
    arguments = (folder, 1, "files", 1.0, UNEVEN.action_limit)
    right = _actions(policy_runtime(_RUNTIMES[runtime]).open(*arguments), walk, {})

    def change(text: str) -> str:
        lines = text.splitlines()
        [place] = [k for k, line in enumerate(lines) if line.strip().startswith(f"{key}:")]
        indent = lines[place].partition(key)[0]
        lines[place] = f"{indent}{key}: {wrong}"
        return "\n".join(lines)

    _spoil(folder, name, change)
    changed = _actions(policy_runtime(_RUNTIMES[runtime]).open(*arguments), walk, {})
    assert np.abs(changed - right).max() > 1e-3


def test_an_export_without_the_files_or_with_damaged_ones_is_refused(
    exported: tuple[Path, PolicyNetwork], tmp_path: Path
) -> None:
    described = json.loads((exported[0] / "policy.json").read_text())
    open_policy = policy_runtime("unitree_rl_lab-onnx").open
    (tmp_path / _DEPLOY).parent.mkdir(parents=True)
    (tmp_path / _DEPLOY).write_text("joint_ids_map: []\n")
    (tmp_path / "policy.json").write_text(json.dumps(described))
    with pytest.raises(ValueError, match="not the file that was exported"):
        open_policy(tmp_path, 1)
    described["files"] = {}
    (tmp_path / "policy.json").write_text(json.dumps(described))
    with pytest.raises(ValueError, match="export it with --for unitree_rl_lab"):
        open_policy(tmp_path, 1)
    with pytest.raises(ValueError, match="num_robots"):
        open_policy(exported[0], 0)


@pytest.mark.parametrize("runtime", _RUNTIMES)
def test_what_a_runtime_cannot_do_is_refused_before_anything_is_written(runtime: str) -> None:
    written = policy_format(runtime)
    unnamed = replace(UNEVEN, motor_names=())
    with pytest.raises(ValueError, match=r'^[^\n]*go2 has no "motor_names"[^\n]*$'):
        written.write(small_export(facts=unnamed), written.new_options())
    with pytest.raises(ValueError, match=r"^[^\n]*--formats c[^\n]*$"):
        written.write(small_export("fcnet"), written.new_options())
    with pytest.raises(ValueError, match="robot's card"):
        written.write(small_export(facts=None), written.new_options())


_TEXTS = st.text(max_size=8) | st.sampled_from(["null", "yes", "1", "1e3", "go2/gaitforge"])
_TEXTS = _TEXTS.filter(lambda text: all(letter <= "\uffff" for letter in text))
_NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)
_SCALARS = st.one_of(st.none(), _NUMBERS, st.integers(-(10**9), 10**9), _TEXTS)
_VALUES = st.one_of(_SCALARS, st.lists(_SCALARS, max_size=3), st.lists(st.lists(_NUMBERS)))
_TREES = st.recursive(
    st.dictionaries(_TEXTS, _VALUES, max_size=3),
    lambda inner: st.dictionaries(_TEXTS, st.one_of(_VALUES, inner), max_size=3),
    max_leaves=6,
)


def _as_float32(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _as_float32(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_as_float32(value) for value in tree]
    return np.float32(tree) if isinstance(tree, float) else tree


@settings(max_examples=50, deadline=None)
@given(tree=st.dictionaries(_TEXTS, st.one_of(_VALUES, _TREES), min_size=1, max_size=4))
def test_written_yaml_is_read_as_it_was_in_float32(tree: dict[str, Any]) -> None:
    assert _as_float32(yaml.safe_load(yaml_text(tree, ["a line"]))) == _as_float32(tree)
