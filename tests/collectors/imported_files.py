"""Small policies in ONNX files, as mjlab and rsl-rl write them, with known weights."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from gaitforge.collectors.robots.robot import N_JOINTS, load_robot

GO1 = load_robot("go1")
JOINTS = [f"{leg}_{joint}_joint" for leg in ("FR", "FL", "RR", "RL") for joint in
          ("hip", "thigh", "calf")]  # fmt: skip
"""mjlab's order of Go1's joints, in which the right leg comes first."""
TERMS = ("base_lin_vel", "base_ang_vel", "projected_gravity", "joint_pos", "joint_vel", "actions",
         "command")  # fmt: skip
WIDTH = 48


def metadata(**changed: str) -> dict[str, str]:
    """The metadata of mjlab 1.6 for a policy with Go1's gains."""
    names = {"joint_names": ",".join(JOINTS), "observation_names": ",".join(TERMS)}
    return names | {
        "run_path": "local",
        "command_names": "twist",
        "joint_stiffness": ",".join(["35.000"] * N_JOINTS),
        "joint_damping": ",".join(["1.000"] * N_JOINTS),
        "default_joint_pos": ",".join(["0.100,0.900,-1.800", "-0.100,0.900,-1.800"] * 2),
        "action_scale": ",".join(["0.373,0.373,0.249"] * 4),
        "observation_terms_scale": ",".join(["1.000"] * len(TERMS)),
        "observation_terms_clip": ",".join(["-inf;inf"] * len(TERMS)),
        "observation_terms_history_length": ",".join(["0.000"] * len(TERMS)),
        **changed,
    }


def write_policy(
    path: Path,
    weights: np.ndarray | None = None,
    properties: dict[str, str] | None = None,
    memory: bool = False,
) -> Path:
    """Write actions = observation @ weights (D, 12), zeros by default; with mjlab's metadata.

    With a memory, what is multiplied is the sum of all observations of the episode.
    """
    weights = np.zeros((WIDTH, N_JOINTS), np.float32) if weights is None else weights
    width = len(weights)
    inputs: dict[str, tuple[int, ...]] = {"obs": (1, width)}
    outputs: dict[str, tuple[int, ...]] = {"actions": (1, N_JOINTS)}
    constants = {"weights": weights.astype(np.float32)}
    seen, nodes = "obs", []
    if memory:
        inputs["h_in"] = outputs["h_out"] = (1, 1, width)
        nodes.append(helper.make_node("Add", ["obs", "h_in"], ["h_out"]))
        nodes.append(helper.make_node("Squeeze", ["h_out", "first"], ["sum"]))
        seen, constants["first"] = "sum", np.array([0])
    nodes.append(helper.make_node("MatMul", [seen, "weights"], ["actions"]))
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, v) for k, v in inputs.items()],
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, v) for k, v in outputs.items()],
        [numpy_helper.from_array(each, name) for name, each in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    helper.set_model_props(model, metadata() if properties is None else properties)
    onnx.save(model, path)
    return path
