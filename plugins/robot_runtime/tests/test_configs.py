"""A runtime's configuration against a policy: each deviation is one finding with both values."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaitforge.collectors.robots.robot import load_robot
from gaitforge.plugins.robot_runtime.runtimes.configs import (
    DEPLOY_TERMS,
    RL_SAR_TERMS,
    check_config,
)
from gaitforge.plugins.robot_runtime.runtimes.configuration import (
    described_robot,
    target_limits,
)

yaml = pytest.importorskip("yaml", reason="PyYAML: install the extra robots")

GAINS = np.array([20.0, 30.0, 40.0] * 2 + [25.0, 35.0, 45.0] * 2)
"""Gains that differ between joints and between front and rear, so that orders show."""


def control(**changes: Any) -> dict[str, Any]:
    """`control` of a Go2's policy.json, with hips that differ between left and right."""
    robot = load_robot("go2")
    default = [0.1, 0.8, -1.5, -0.1, 0.8, -1.5, 0.1, 1.0, -1.5, -0.1, 1.0, -1.5]
    return {
        "robot": "go2",
        "joint_names": list(robot.joint_names),
        "motor_names": list(robot.motor_names),
        "default_joint_pos_rad": default,
        "joint_lower_rad": robot.joint_lower_rad.tolist(),
        "joint_upper_rad": robot.joint_upper_rad.tolist(),
        "kp_nm_per_rad": GAINS.tolist(),
        "kd_nms_per_rad": (GAINS / 40).tolist(),
        "torque_limit_nm": robot.torque_limit_nm.tolist(),
        "action_scale_rad": 0.25,
        "action_limit": 12.0,
        "target_margin_rad": 0.5,
        "control_dt_s": 0.02,
        "decimation": 4,
        **changes,
    }


MOTORS = [3, 4, 5, 0, 1, 2, 9, 10, 11, 6, 7, 8]
"""Motor of each joint of a Go2, as unitree_rl_lab's and rl_sar's own files have it."""


def deploy() -> dict[str, Any]:
    """A deploy.yaml that fits the policy."""
    policy = described_robot(control())
    gains = GAINS[np.argsort(MOTORS)]
    return {
        "joint_ids_map": list(MOTORS),
        "step_dt": 0.02,
        "stiffness": gains.tolist(),
        "damping": (gains / 40).tolist(),
        "default_joint_pos": list(policy.default_joint_pos_rad),
        "actions": {
            "JointPositionAction": {
                "clip": target_limits(policy).tolist(),
                "scale": [0.25] * 12,
                "offset": list(policy.default_joint_pos_rad),
            }
        },
        "observations": {
            name: {"scale": [1.0] * (3 if k < 3 else 12), "history_length": 4}
            for k, name in enumerate(DEPLOY_TERMS)
        },
    }


def rl_sar() -> dict[str, Any]:
    """The policy's entries of an rl_sar config.yaml that fits the policy."""
    policy = described_robot(control())
    actions = (target_limits(policy) - np.array(policy.default_joint_pos_rad)[:, None]) / 0.25
    return {
        "num_of_dofs": 12,
        "joint_mapping": list(MOTORS),
        "default_dof_pos": list(policy.default_joint_pos_rad),
        "torque_limits": list(policy.torque_limit_nm),
        "wheel_indices": [],
        "rl_kp": GAINS.tolist(),
        "rl_kd": (GAINS / 40).tolist(),
        "action_scale": [0.25] * 12,
        "clip_actions_lower": actions[:, 0].tolist(),
        "clip_actions_upper": actions[:, 1].tolist(),
        "observations": list(RL_SAR_TERMS),
        "num_observations": 45,
        "observations_history": [1, 0],
        "observations_history_priority": "time",
        "lin_vel_scale": 1.0,
        "ang_vel_scale": 1.0,
        "dof_pos_scale": 1.0,
        "dof_vel_scale": 1.0,
        "commands_scale": [1.0, 1.0, 1.0],
    }


def base() -> dict[str, Any]:
    """The robot's entries of an rl_sar base.yaml that fits the policy."""
    config = rl_sar()
    keys = ("num_of_dofs", "joint_mapping", "default_dof_pos", "torque_limits", "wheel_indices")
    names = list(load_robot("go2").motor_names)
    return {key: config[key] for key in keys} | {"dt": 0.005, "decimation": 4, "joint_names": names}


def texts(tmp_path: Path, tree: dict[str, Any], **changes: Any) -> list[str]:
    """What is found in a file with a tree."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    report = check_config(path, described_robot(control(**changes)))
    assert json.loads(json.dumps(report.to_json()))["ok"] == (not report.findings)
    return [finding.text for finding in report.findings]


@pytest.mark.parametrize("tree", [deploy(), {"go2/x": rl_sar()}, {"go2": base()}])
def test_a_file_that_fits_has_no_finding(tmp_path: Path, tree: dict[str, Any]) -> None:
    assert texts(tmp_path, tree) == []


def by_motor(values: Any) -> list[Any]:
    return np.array(values)[np.argsort(MOTORS)].tolist()


DEPLOY_FAULTS: list[tuple[str, Any, str]] = [
    ("joint_ids_map", list(range(12)), "FL_hip_joint motor 0, not 3"),
    ("joint_ids_map", [0] * 12, "not each of the 12 motors once"),
    ("step_dt", 0.005, "step_dt: 0.005, not 0.02"),
    ("stiffness", (2 * GAINS[np.argsort(MOTORS)]).tolist(), "stiffness is 2 times the policy's"),
    ("default_joint_pos", by_motor(control()["default_joint_pos_rad"]), "in the motors' order"),
    ("default_joint_pos", np.degrees(control()["default_joint_pos_rad"]).tolist(), "in degrees"),
    ("actions.JointPositionAction.scale", [0.5] * 12, "actions.scale is 2 times"),
    ("actions.JointPositionAction.scale", None, "actions.scale is None, not 12 numbers"),
    ("actions.JointPositionAction.clip", None, "nothing limits the joints' targets"),
    ("observations.joint_vel_rel.scale", [0.05] * 12, "observations.joint_vel_rel.scale: 0.05"),
    ("observations.joint_vel_rel.history_length", 5, "history_length differs"),
]


@pytest.mark.parametrize(("place", "value", "words"), DEPLOY_FAULTS)
def test_a_fault_of_deploy_yaml_is_one_finding(
    tmp_path: Path, place: str, value: Any, words: str
) -> None:
    tree = deploy()
    inner: dict[str, Any] = tree
    *parents, last = place.split(".")
    for name in parents:
        inner = inner[name]
    inner[last] = value
    (found,) = texts(tmp_path, tree)
    assert words in found


def test_gains_in_the_policys_order_are_named(tmp_path: Path) -> None:
    gains = GAINS * np.array([1.0] * 3 + [1.1] * 3 + [1.2] * 3 + [1.3] * 3)
    tree = deploy() | {"stiffness": gains.tolist()}
    found = texts(tmp_path, tree, kp_nm_per_rad=gains.tolist())
    assert found == ["stiffness is in the policy's order, not in the motors'"]


def test_terms_in_another_order_and_unknown_ones(tmp_path: Path) -> None:
    tree = deploy()
    turned = dict(reversed(tree["observations"].items()))
    path = tmp_path / "turned.yaml"
    path.write_text(yaml.safe_dump(tree | {"observations": turned}, sort_keys=False))
    (finding,) = check_config(path, described_robot(control())).findings
    assert "observations come as last_action, joint_vel_rel" in finding.text
    observations = copy.deepcopy(tree["observations"]) | {"gait_phase": {"history_length": 4}}
    path.write_text(yaml.safe_dump(tree | {"observations": observations}, sort_keys=False))
    (finding,) = check_config(path, described_robot(control())).findings
    assert "the model does not read gait_phase" in finding.text


RL_SAR_FAULTS: list[tuple[str, Any, str]] = [
    ("joint_mapping", list(range(12)), "joint_mapping: FL_hip_joint motor 0, not 3"),
    ("default_dof_pos", by_motor(control()["default_joint_pos_rad"]), "in the motors' order"),
    ("default_dof_pos", (-np.array(control()["default_joint_pos_rad"])).tolist(), "wrong signs"),
    (
        "rl_kp",
        [*GAINS[:2].tolist(), 41.0, *GAINS[3:].tolist()],
        "rl_kp: FL_calf_joint 41, not 40",
    ),
    (
        "rl_kd",
        (GAINS / 40).reshape(4, 3).T.ravel().tolist(),
        "rl_kd comes by kind (hips, thighs, calves)",
    ),
    ("action_scale", 0.5, "action_scale is 2 times the policy's"),
    ("clip_actions_upper", [100.0] * 12, "clip_actions_upper: FL_hip_joint 100"),
    ("observations", ["gravity_vec", "ang_vel", *RL_SAR_TERMS[2:]], "come as gravity_vec, ang_vel"),
    ("observations_history_priority", "term", "is 'term', not 'time'"),
    ("ang_vel_scale", 0.25, "ang_vel_scale: 0.25, not 1"),
    ("commands_scale", [2.0, 2.0, 0.25], "commands_scale: 2, 2, 0.25, not 1"),
    ("wheel_indices", [3], "driven by velocity"),
]


@pytest.mark.parametrize(("name", "value", "words"), RL_SAR_FAULTS)
def test_a_fault_of_rl_sars_config_is_one_finding(
    tmp_path: Path, name: str, value: Any, words: str
) -> None:
    (found,) = texts(tmp_path, {"go2/gaitforge": rl_sar() | {name: value}})
    assert words in found


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("dt", 0.02, "dt: 0.02, not 0.005"),
        ("decimation", 2, "decimation: 2, not 4"),
        ("joint_names", control()["joint_names"], "in the policy's order, not in the motors'"),
    ],
)
def test_a_fault_of_rl_sars_base_is_one_finding(
    tmp_path: Path, name: str, value: Any, words: str
) -> None:
    (found,) = texts(tmp_path, {"go2": base() | {name: value}})
    assert words in found


def test_without_motor_names_the_order_of_motors_is_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "deploy.yaml"
    tree = deploy() | {"joint_ids_map": list(range(12))}
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    report = check_config(path, described_robot(control(motor_names=[])))
    assert report.findings == ()
    assert "motor_names" in report.unjudged[0]


@pytest.mark.parametrize("text", ["", "[1, 2]", "a: 1", "a: {", "go2: {num_of_dofs: 12}"])
def test_another_file_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"x\.yaml"):
        check_config(path, described_robot(control()))


@pytest.mark.parametrize(
    "change",
    [
        {"default_joint_pos_rad": "x"},
        {"joint_lower_rad": [1.0, 2.0]},
        {"kp_nm_per_rad": [float("nan")] * 12},
        {"motor_names": ["wheel"]},
        {"decimation": None},
        {"unknown": 1},
    ],
)
def test_a_damaged_description_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"policy\.json is damaged"):
        described_robot(control() | change)
    with pytest.raises(ValueError, match="damaged"):
        described_robot({})
    with pytest.raises(ValueError, match="no known robot"):
        described_robot(None)
