"""The format `c`: a policy as C99 files that need nothing but a compiler."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gaitforge.learners.control.control import step_program
from gaitforge.learners.export.description import RobotFacts
from gaitforge.learners.export.export import TOLERANCE, PolicyExport, WrittenFiles
from gaitforge.plugins.robot_runtime.c_code.compiling import compiler, run_main
from gaitforge.plugins.robot_runtime.c_code.policy_code import PolicyCode, source
from gaitforge.plugins.robot_runtime.c_code.robots import (
    card_of,
    robot_declarations,
    robot_defines,
)
from gaitforge.plugins.robot_runtime.c_code.tables import (
    comment,
    defines,
    filled,
    float_literal,
    identifier,
)
from gaitforge.plugins.robot_runtime.sensors.writing import robot_check_files

HEADER = "policy.h"
SOURCE = "policy.c"
WEIGHTS = "policy_weights.c"
BLOB = "policy_weights.bin"
MAIN = "main.c"


def write_c(export: PolicyExport, _: None) -> WrittenFiles:
    """policy.h, policy.c, the weights as text and as a blob, a program, and how to build it.

    Where a C compiler is, the files are compiled and run before they are given.

    Raises:
        ValueError: a network that has no compiled control step, or C code that acts in another way
            than the policy.
    """
    program = step_program(export.policy, 1)
    if program is None:
        kind = export.metadata["model"]["kind"]
        raise ValueError(
            f"the network {kind} has no compiled control step and cannot be written as C; "
            "export it with --formats onnx"
        )
    code = PolicyCode(export.policy, program, export.facts)
    texts = {
        HEADER: _header(code, export.metadata),
        SOURCE: code.main_source(),
        WEIGHTS: code.weights_source(),
        MAIN: source(MAIN),
        "CMakeLists.txt": source("CMakeLists.txt"),
    }
    check, notes = _sensor_check(code, export)
    texts["README.md"] = _readme(code, export.metadata, bool(check))
    contents = {name: text.encode() for name, text in texts.items()} | {BLOB: code.blob}
    if compiler() is None:
        notes += ("C: no compiler cc is here, so the code was not run; run policy_main before use",)
        return WrittenFiles(contents | check, None, notes)
    return WrittenFiles(contents | check, run_main(contents), notes)


def _sensor_check(
    code: PolicyCode, export: PolicyExport
) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """The check of the robot's sensors in C, and notes; nothing for a policy of no legged robot."""
    if code.facts is None or not code.is_legged:
        return {}, ()
    try:
        robot = card_of(export)
    except ValueError:
        return {}, (f"C: no card of {code.facts.robot} is here, so there is no robot_check.c",)
    pose = np.array(code.facts.default_joint_pos_rad)
    return robot_check_files(replace(robot, default_joint_pos_rad=pose)), ()


def _header(code: PolicyCode, metadata: Mapping[str, Any]) -> str:
    """policy.h."""
    facts = code.facts
    conditioned = code.policy.conditioned
    robot = ""
    if facts is not None:
        robot = robot_declarations(facts, source("robot.h"), code.is_legged)
    of_return = conditioned and 0 in code.condition_kinds()
    holes = {
        "TITLE": comment(_title(metadata, facts)),
        "DEFINES": _public_defines(code, metadata),
        "RETURN_NOTE": "" if conditioned else " (not read here)",
        "REWARD_NOTE": "" if of_return else " (not read here)",
        "STATE": code.state_members(),
        "FIELDS_NOTE": ", see POLICY_AT_...",
        "LIMIT_NOTE": " within +-POLICY_ACTION_LIMIT" if facts is not None else "",
        "ROBOT": robot,
    }
    return filled(source(HEADER), holes)


def _title(metadata: Mapping[str, Any], facts: RobotFacts | None) -> str:
    """A line on what this policy is."""
    kind = metadata["model"]["kind"]
    robot = "" if facts is None else f" of the robot {facts.robot}"
    return f"The policy {metadata['source'].get('run') or kind}{robot}: {kind}"


def _public_defines(code: PolicyCode, metadata: Mapping[str, Any]) -> str:
    """The macros of policy.h."""
    sizes: dict[str, object] = {
        "POLICY_OBSERVATION": code.policy.layout.stored_dim,
        "POLICY_ACTIONS": code.policy.act_dim,
        "POLICY_TOLERANCE": float_literal(TOLERANCE),
        "POLICY_BLOB_BYTES": len(code.blob),
    }
    lines = [defines(sizes)]
    step_s = metadata["source"].get("control_dt_s")
    if code.facts is not None:
        lines.append(robot_defines(code.facts))
    elif step_s:
        lines.append(f"#define POLICY_CONTROL_DT_S {float_literal(step_s)}\n")
    for name, bounds in metadata["observation"]["fields"].items():
        unit = f", {comment(bounds['unit'])}" if bounds["unit"] else ""
        width = bounds["stop"] - bounds["start"]
        place = f"POLICY_AT_{identifier(name)} {bounds['start']}"
        lines.append(f"#define {place} /* {width} numbers{unit} */\n")
    return "".join(lines).rstrip()


_STEP_EXAMPLE = """\
#include "policy.h"

static policy_state state;

policy_reset(&state);
while (running) { /* every POLICY_CONTROL_DT_S seconds */
    policy_sensors sensors; /* joints in the order of policy_joint_names: see policy_map */
    float command[POLICY_COMMANDS], target_rad[POLICY_ACTIONS];
    read_robot(&sensors, command);
    if (policy_step(&state, &sensors, command, target_rad) != POLICY_OK)
        break; /* damp the motors */
    send_to_motors(target_rad, policy_kp_nm_per_rad, policy_kd_nms_per_rad);
}"""

_ACT_EXAMPLE = """\
#include "policy.h"

static policy_state state;

policy_reset(&state);
while (running) {
    float observation[POLICY_OBSERVATION], action[POLICY_ACTIONS];
    observe(observation);
    if (policy_act(&state, observation, action) != POLICY_OK)
        break;
    use(action);
}"""


_CHECK = """
## Check the sensors

Order, signs, units and zeros, before a motor moves: `robot_check.h` says how. CMake builds its
program, or

```
cc -std=c99 -O2 robot_check.c robot_check_main.c -lm -o robot_check && ./robot_check < tilted.csv
```
"""


def _readme(code: PolicyCode, metadata: Mapping[str, Any], has_check: bool) -> str:
    """README.md of the folder."""
    holes = {
        "ABOUT": f"{comment(_title(metadata, code.facts))}. `policy.json` describes it in full.",
        "STEPS": str(int(code.answers.steps[-1]) + 1),
        "BYTES": f"{len(code.blob):,}",
        "CHECK": _CHECK if has_check else "",
        "EXAMPLE": _STEP_EXAMPLE if code.is_legged else _ACT_EXAMPLE,
        "INPUTS": _inputs_text(code, metadata),
        "STATE_BYTES": f"about {code.state_bytes:,}",
        "CONDITION": _condition_text(code),
        "ROBOT": "" if code.facts is None else _robot_text(code.facts),
    }
    return filled(source("README.md"), holes)


def _inputs_text(code: PolicyCode, metadata: Mapping[str, Any]) -> str:
    """What the functions read."""
    rows = []
    for name, bounds in metadata["observation"]["fields"].items():
        places = f"{bounds['start']} to {bounds['stop'] - 1}"
        meaning = f"{bounds['unit'] or ''} | {bounds['meaning'] or ''}"
        rows.append(f"| `{comment(name)}` | {places} | {meaning} |")
    text = (
        "`policy_act` reads an observation of your own, unscaled, and gives the action:\n\n"
        "| field | places | unit | |\n|---|---|---|---|\n" + "\n".join(rows)
    )
    if not code.is_legged:
        return text
    step = (
        "`policy_step` makes the observation from the trunk's quaternion (w, x, y, z; from its "
        "frame,\nx forward, y left, z up, to the world's), the gyroscope in the trunk's frame "
        "(rad/s), and the joints'\nangles (rad) and velocities (rad/s). The command's numbers, "
        "units and ranges are the macros\n`POLICY_COMMAND_…` of `policy.h`; speed, height, pitch "
        "and roll move to a new command at the rates of the\ntraining. The targets are within "
        "the joints' limits.\n\n"
    )
    return step + text


def _condition_text(code: PolicyCode) -> str:
    """What the state's return is for."""
    if not code.policy.conditioned:
        return ""
    text = (
        "\n\nThe policy is asked for `return_target` times the expert's return: set it in the "
        "state after\n`policy_reset`; it is 1 at first."
    )
    if 0 in code.condition_kinds():
        text += (
            " The return that remains falls by `reward_per_step` at each step: leave what an\n"
            "expert earns, or set the measured reward of the last step before each call."
        )
    return text


def _robot_text(facts: RobotFacts) -> str:
    """Order of the joints, and gains."""
    lines = [
        "\n## The robot",
        f"\nJoints in the order {comment(', '.join(facts.joint_names))}.",
        "Your robot's order may be another: `policy_map(names, count, places)` finds each joint in "
        "its names.",
    ]
    if facts.motor_names:
        lines.append(
            f"Its motors count {comment(', '.join(facts.motor_names))}: `policy_motor_places` has "
            "each joint's place there."
        )
    lines.append(
        "A PD law, `kp (target - q) - kd dq` within the torque limit, holds the targets; the gains "
        "are in `policy.h`.\n"
    )
    return "\n".join(lines)
