"""Files for unitree_rl_lab's program on the robot: `deploy.yaml` and a stateless ONNX model.

Source of fields, orders and rules: github.com/unitreerobotics/unitree_rl_lab, deploy/include:
isaaclab/envs/manager_based_rl_env.h, envs/mdp/observations.h, envs/mdp/actions/joint_actions.h,
manager/observation_manager.h, manager/manager_term_cfg.h and FSM/State_RLBase.h.

The file has two orders of joints: `joint_ids_map`, `default_joint_pos` and the action's arrays are
in the policy's, `stiffness` and `damping` in the motors'. A target is scale * action + offset, then
clipped. Each term keeps its own history, oldest first, filled with the first observation.
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

RUNTIME = "unitree_rl_lab"
MODEL = f"{RUNTIME}/exported/policy.onnx"
DEPLOY = f"{RUNTIME}/params/deploy.yaml"
TERMS = {
    GYRO: "base_ang_vel",
    GRAVITY: "projected_gravity",
    VELOCITY: "velocity_commands",
    JOINT_POS: "joint_pos_rel",
    JOINT_VEL: "joint_vel_rel",
    LAST: "last_action",
}
"""Term of a frame -> its name there."""
_RANGES = ("lin_vel_x", "lin_vel_y", "ang_vel_z")


def write_unitree_rl_lab(export: PolicyExport, options: StatelessOptions) -> WrittenFiles:
    """`unitree_rl_lab/exported/policy.onnx` and `unitree_rl_lab/params/deploy.yaml`.

    Raises:
        ValueError: no order of motors, or what `stateless_model` refuses.
    """
    facts = facts_of(export)
    order = MotorOrder.of(facts, RUNTIME)
    model = stateless_model(export, options, by_term=True)
    comments = [f"Written by gaitforge for {facts.robot}.", *model.command.lines()]
    deploy = yaml_text(deploy_tree(facts, order, model), comments)
    note = f"{RUNTIME}: {model.command.lines()[0]}; deploy.yaml has the constants"
    return WrittenFiles({MODEL: model.content, DEPLOY: deploy}, model.error, (note,))


def deploy_tree(facts: RobotFacts, order: MotorOrder, model: StatelessModel) -> dict[str, Any]:
    """The tree of `deploy.yaml`."""
    default = list(facts.default_joint_pos_rad)
    velocities = [list(span) for span in model.command.velocities]
    ranges: dict[str, Any] = dict(zip(_RANGES, velocities, strict=True))
    return {
        "joint_ids_map": list(order.motor_of_joint),
        "step_dt": facts.control_dt_s,
        "stiffness": order.by_motor(facts.kp_nm_per_rad),
        "damping": order.by_motor(facts.kd_nms_per_rad),
        "default_joint_pos": default,
        "commands": {"base_velocity": {"ranges": ranges | {"heading": None}}},
        "actions": {
            "JointPositionAction": {
                "clip": target_limits(facts).tolist(),
                "joint_names": [".*"],
                "scale": [facts.action_scale_rad] * len(default),
                "offset": default,
                "joint_ids": None,
            }
        },
        "observations": {
            TERMS[term]: {
                "params": {"command_name": "base_velocity"} if term == VELOCITY else {},
                "clip": None,
                "scale": [1.0] * numbers,
                "history_length": model.steps,
            }
            for term, numbers in FRAME.items()
        },
    }
