"""Files for rl_sar, a program that runs policies on robots: two configurations and an ONNX model.

Source of fields, orders and rules: github.com/fan-ziqi/rl_sar, src/rl_sar/library/core:
rl_sdk/rl_sdk.cpp and observation_buffer/observation_buffer.cpp, and src/rl_real_go2.cpp.

Numbers of joints are in the policy's order: `joint_mapping` has the motor of each joint. The names
in `base.yaml` are in the motors' order, since the simulator's part looks them up by the motor's
number. A target is action_scale * action + default_dof_pos, without a limit: the limits of the
action are those of the product's targets. `base.yaml` has the same order as `config.yaml`, because
the pose that rl_sar keeps while one is in force is used while the other is.
"""

from typing import Any

from gaitforge.learners.export.description import RobotFacts
from gaitforge.learners.export.export import PolicyExport, WrittenFiles
from gaitforge.plugins.robot_runtime.c_code.robots import facts_of
from gaitforge.plugins.robot_runtime.runtimes.configuration import (
    MotorOrder,
    target_limits,
    yaml_text,
)
from gaitforge.plugins.robot_runtime.runtimes.stateless import (
    FRAME,
    FRAME_SIZE,
    GRAVITY,
    GYRO,
    JOINT_POS,
    JOINT_VEL,
    LAST,
    VELOCITY,
    StatelessModel,
    StatelessOptions,
    stateless_model,
)

RUNTIME = "rl_sar"
POLICY = "gaitforge"
"""Name of the policy's folder below the robot's."""
MODEL_NAME = "policy.onnx"
TERMS = {
    GYRO: "ang_vel",
    GRAVITY: "gravity_vec",
    VELOCITY: "commands",
    JOINT_POS: "dof_pos",
    JOINT_VEL: "dof_vel",
    LAST: "actions",
}
"""Term of a frame -> its name there."""
_CLIP_OBS = 100.0
_STAND_FACTOR = 2.0
"""Gains of standing up over the policy's. rl_sar's own files have 1.25 (B2) to 4 (Go2) times."""


def write_rl_sar(export: PolicyExport, options: StatelessOptions) -> WrittenFiles:
    """`rl_sar/ROBOT/base.yaml`, and `config.yaml` and `policy.onnx` in `rl_sar/ROBOT/gaitforge`.

    Raises:
        ValueError: no order of motors, or what `stateless_model` refuses.
    """
    facts = facts_of(export)
    order = MotorOrder.of(facts, RUNTIME)
    model = stateless_model(export, options, by_term=False)
    written = f"Written by gaitforge for {facts.robot}."
    base = yaml_text({facts.robot: base_tree(facts, order)}, [written])
    policy = f"{facts.robot}/{POLICY}"
    comments = [written, *model.command.lines()]
    config = yaml_text({policy: config_tree(facts, order, model)}, comments)
    files = {
        f"{RUNTIME}/{facts.robot}/base.yaml": base,
        f"{RUNTIME}/{policy}/config.yaml": config,
        f"{RUNTIME}/{policy}/{MODEL_NAME}": model.content,
    }
    note = f"{RUNTIME}: {model.command.lines()[0]}; config.yaml has the constants"
    return WrittenFiles(files, model.error, (note,))


def base_tree(facts: RobotFacts, order: MotorOrder) -> dict[str, Any]:
    """The robot's entries in `base.yaml`."""
    names = list(facts.motor_names)
    return {
        "dt": facts.control_dt_s / facts.decimation,
        "decimation": facts.decimation,
        "joint_names": names,
        "joint_controller_names": [_controller(name) for name in names],
        **_joints(facts, order),
    }


def config_tree(facts: RobotFacts, order: MotorOrder, model: StatelessModel) -> dict[str, Any]:
    """The policy's entries in `config.yaml`."""
    default = facts.default_joint_pos_rad
    limits = target_limits(facts)
    actions = (limits - [[angle] for angle in default]) / facts.action_scale_rad
    return {
        "model_name": MODEL_NAME,
        "num_observations": FRAME_SIZE,
        "observations": [TERMS[term] for term in FRAME],
        # Ages of the frames, oldest first; empty for the newest alone.
        "observations_history": list(range(model.steps))[::-1] if model.steps > 1 else [],
        "observations_history_priority": "time",
        "clip_obs": _CLIP_OBS,
        "clip_actions_lower": actions[:, 0].tolist(),
        "clip_actions_upper": actions[:, 1].tolist(),
        "rl_kp": list(facts.kp_nm_per_rad),
        "rl_kd": list(facts.kd_nms_per_rad),
        "action_scale": [facts.action_scale_rad] * len(default),
        # The normaliser is in the model.
        "lin_vel_scale": 1.0,
        "ang_vel_scale": 1.0,
        "dof_pos_scale": 1.0,
        "dof_vel_scale": 1.0,
        "commands_scale": [1.0] * FRAME[VELOCITY],
        **_joints(facts, order),
    }


def _joints(facts: RobotFacts, order: MotorOrder) -> dict[str, Any]:
    """What both files say of the joints."""
    return {
        "num_of_dofs": len(facts.joint_names),
        "wheel_indices": [],
        "fixed_kp": [_STAND_FACTOR * gain for gain in facts.kp_nm_per_rad],
        "fixed_kd": [_STAND_FACTOR * gain for gain in facts.kd_nms_per_rad],
        "torque_limits": list(facts.torque_limit_nm),
        "default_dof_pos": list(facts.default_joint_pos_rad),
        "joint_mapping": list(order.motor_of_joint),
    }


def _controller(joint: str) -> str:
    """The name of a joint's controller in Gazebo."""
    return f"{joint.removesuffix('_joint')}_controller"
