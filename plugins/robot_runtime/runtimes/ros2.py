"""A ROS 2 package with a node around the policy's C code.

The node is `templates/policy_node.cpp`. It is built where ROS 2 is; here only its behaviour with
stand-ins for ROS's headers is tested.
"""

from pathlib import Path

from gaitforge.collectors.legged.observations import POLICY_SLICES
from gaitforge.learners.export.export import PolicyExport, WrittenFiles
from gaitforge.plugins.robot_runtime.c_code.robots import facts_of
from gaitforge.plugins.robot_runtime.c_code.writing import write_c
from gaitforge.plugins.robot_runtime.runtimes.configuration import yaml_text
from gaitforge.plugins.robot_runtime.runtimes.stateless import (
    FixedCommand,
    StatelessOptions,
    fixed_command,
)

RUNTIME = "ros2"
NODE = "gaitforge_policy"
_TEMPLATES = Path(__file__).parent / "templates"
_C_FILES = ("policy.h", "policy.c", "policy_weights.c")
_PLACES = {
    "package.xml": "package.xml",
    "CMakeLists.txt": "CMakeLists.txt",
    "README.md": "README.md",
    "policy_node.cpp": "src/policy_node.cpp",
}
"""Template -> its path in the package."""
_SAFETY = {
    "sensor_timeout_s": 0.06,  # three steps
    "command_timeout_s": 0.5,
    "max_tilt_rad": 1.0,
    "stand_s": 2.0,
    "stand_gain": 2.0,
    "damping_nms_per_rad": 5.0,
}
"""Parameters of the node with which a robot of 12 to 20 kg can start; the user sets them."""


def write_ros2(export: PolicyExport, options: StatelessOptions) -> WrittenFiles:
    """The package `ros2/`: node, C code, parameters.

    Raises:
        ValueError: a policy of no known robot, another observation than a legged robot's, a skill
            that it was not trained on, or what the format `c` refuses.
    """
    facts = facts_of(export)
    if dict(export.policy.layout.stored_slices) != dict(POLICY_SLICES):
        raise ValueError(
            f"the ROS 2 node gives {', '.join(POLICY_SLICES)}, and the policy reads more"
        )
    command = fixed_command(export, options)
    code = write_c(export, None)
    package = {f"{RUNTIME}/policy/{name}": code.files[name] for name in _C_FILES}
    package |= {
        f"{RUNTIME}/{place}": (_TEMPLATES / name).read_bytes() for name, place in _PLACES.items()
    }
    comments = [f"Written by gaitforge for {facts.robot}.", *command.lines()]
    package[f"{RUNTIME}/config/policy.yaml"] = yaml_text(parameters(command), comments)
    note = f"{RUNTIME}: {command.lines()[0]}; config/policy.yaml has the constants"
    return WrittenFiles(package, code.error, (note, *code.notes))


def parameters(command: FixedCommand) -> dict[str, object]:
    """The node's parameters, as a ROS 2 parameter file."""
    lower, upper = zip(*command.velocities, strict=True)
    still = [0.0] * len(lower) + list(command.values[len(lower) :])
    values = {
        "command": still,
        "velocity_lower": list(lower),
        "velocity_upper": list(upper),
        **_SAFETY,
    }
    return {NODE: {"ros__parameters": values}}
