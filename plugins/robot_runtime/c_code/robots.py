"""A robot's joints, gains and command as C tables and declarations."""

import numpy as np

from gaitforge.collectors.legged.observations import POLICY_SLICES
from gaitforge.collectors.robots.kinematics import RAMP_RATES, RAMPED, C
from gaitforge.collectors.robots.robot import RobotCard, load_robot
from gaitforge.learners.export.description import RobotFacts
from gaitforge.learners.export.export import PolicyExport
from gaitforge.plugins.robot_runtime.c_code.tables import (
    comment,
    defines,
    float_literal,
    identifier,
    table,
    text_literal,
)

_PLACES = {
    "GRAVITY_AT": "projected_gravity",
    "JOINT_VEL_AT": "joint_vel",
    "SINE_AT": "sin_joint_pos",
    "COSINE_AT": "cos_joint_pos",
    "GYRO_AT": "base_ang_vel_body",
    "EXECUTED_AT": "last_action",
    "COMMAND_AT": "command",
}
"""Macros of source/robot.c and the observation's fields."""


def robot_tables(facts: RobotFacts, legged: bool) -> str:
    """The arrays that policy.h declares, and what source/robot.c reads."""
    names = ",\n".join(f"    {text_literal(name)}" for name in facts.joint_names)
    margin = facts.target_margin_rad
    joints = {
        "policy_default_rad": facts.default_joint_pos_rad,
        "policy_lower_rad": np.array(facts.joint_lower_rad) - margin,
        "policy_upper_rad": np.array(facts.joint_upper_rad) + margin,
        "policy_kp_nm_per_rad": facts.kp_nm_per_rad,
        "policy_kd_nms_per_rad": facts.kd_nms_per_rad,
        "policy_torque_limit_nm": facts.torque_limit_nm,
    }
    parts = [f"const char *const policy_joint_names[POLICY_ACTIONS] = {{\n{names},\n}};\n"]
    parts += [table("float", name, values, static=False) for name, values in joints.items()]
    if facts.motor_names:
        parts.append(table("int32_t", "policy_motor_places", motor_places(facts), static=False))
    if legged:
        sizes: dict[str, object] = {name: POLICY_SLICES[f][0] for name, f in _PLACES.items()}
        sizes |= {"RAMPS": len(RAMPED), "CONTROL_DT_S": float_literal(facts.control_dt_s)}
        parts.append(defines(sizes))
        parts.append(table("int32_t", "ramp_places", [int(index) for index in RAMPED]))
        # The first rate is a number of the command itself.
        parts.append(table("float", "ramp_rates", [0.0, *RAMP_RATES]))
    return "\n".join(parts)


def card_of(export: PolicyExport) -> RobotCard:
    """The card of an export's robot: the one that it was exported with, or a shipped one.

    Raises:
        ValueError: a policy of no known robot, or a robot whose card is not here.
    """
    facts = facts_of(export)
    robot = export.robot or load_robot(facts.robot)
    if robot.joint_names != facts.joint_names:
        raise ValueError(f"the export is of {facts.robot}, but {robot.name} has other joints")
    return robot


def facts_of(export: PolicyExport) -> RobotFacts:
    """The export's robot; ValueError for a policy of no known robot."""
    if export.facts is None:
        raise ValueError("a robot's runtime needs a robot's card; --robot names it")
    return export.facts


def motor_places(facts: RobotFacts) -> list[int]:
    """For each joint of the policy its place in the order of the robot's motors."""
    return [facts.motor_names.index(name) for name in facts.joint_names]


def robot_defines(facts: RobotFacts) -> str:
    """The macros of policy.h that a robot's card gives, with their units."""
    lines = [
        defines(
            {
                "POLICY_CONTROL_DT_S": float_literal(facts.control_dt_s),
                "POLICY_ACTION_LIMIT": float_literal(facts.action_limit),
                "POLICY_ACTION_SCALE_RAD": float_literal(facts.action_scale_rad),
                "POLICY_COMMANDS": len(facts.command),
            }
        )
    ]
    for index, command in enumerate(facts.command):
        bounds = f"{comment(command.unit)}, trained on {command.low:.6g} to {command.high:.6g}"
        name = identifier(command.name)
        lines.append(f"#define POLICY_COMMAND_{name} {index} /* {bounds} */\n")
    return "".join(lines)


def robot_declarations(facts: RobotFacts, template: str, legged: bool) -> str:
    """The part of policy.h for a robot, from source/robot.h; policy_step if it is legged."""
    motors = ""
    if facts.motor_names:
        order = comment(", ".join(facts.motor_names))
        motors = (
            f"\n/* Where each joint stands in the order of the motors, which is\n * {order}. */\n"
            "extern const int32_t policy_motor_places[POLICY_ACTIONS];\n"
        )
    joints, step = template.split("@STEP@")
    return joints.replace("@MOTORS@", motors) + (step if legged else "")


assert RAMPED[0] == C.VEL_X, "source/robot.c takes the first ramp's rate from the command"
