"""What this plug-in brings, by the names of its entry points; loads none of its work."""

from gaitforge.learners.export.policy_formats import PolicyFormat, PolicyRuntime
from gaitforge.pipeline.cli.parsing.entries import CommandEntry

_HERE = "gaitforge.plugins.robot_runtime"

C = PolicyFormat("C99 without dependencies", f"{_HERE}.c_code.writing:write_c")
UNITREE_RL_LAB = PolicyFormat(
    "deploy.yaml and an ONNX model for unitree_rl_lab",
    f"{_HERE}.runtimes.unitree_rl_lab:write_unitree_rl_lab",
    options=f"{_HERE}.runtimes.stateless:StatelessOptions",
    of_runtime=True,
)
RL_SAR = PolicyFormat(
    "configuration and an ONNX model for rl_sar",
    f"{_HERE}.runtimes.rl_sar:write_rl_sar",
    options=f"{_HERE}.runtimes.stateless:StatelessOptions",
    of_runtime=True,
)
ROS2 = PolicyFormat(
    "a ROS 2 package with a node around the C code",
    f"{_HERE}.runtimes.ros2:write_ros2",
    options=f"{_HERE}.runtimes.stateless:StatelessOptions",
    of_runtime=True,
)
C_RUNTIME = PolicyRuntime("the C code, compiled here", f"{_HERE}.c_code.loop:CPolicy")
RL_SAR_ONNX = PolicyRuntime(
    "rl_sar's ONNX model with its history", f"{_HERE}.runtimes.loop:RLSarPolicy"
)
UNITREE_RL_LAB_ONNX = PolicyRuntime(
    "unitree_rl_lab's ONNX model with its history", f"{_HERE}.runtimes.loop:UnitreePolicy"
)
CHECK = CommandEntry(
    "check order, signs, units and pose of a robot's sensors, or of a runtime's configuration",
    f"{_HERE}.commands:export_check",
)
