"""The description of an exported policy, `policy.json`, for a robot's program."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from gaitforge.learners.checkpoint import check_layout
from gaitforge.learners.control.step_modules import PolicyStep, StateTensor
from gaitforge.learners.export.onnx_policy import FORMAT, FORMAT_VERSION
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.learners.tokens import RETURN_TO_GO, TARGET


@dataclass(frozen=True)
class CommandFacts:
    """One number of the command, with its range in training."""

    name: str
    unit: str
    low: float
    high: float


@dataclass(frozen=True)
class FieldFacts:
    """One field of the observation; `meaning` says its frame."""

    start: int
    stop: int
    unit: str
    meaning: str


@dataclass(frozen=True)
class RobotFacts:
    """The robot and the control loop of a policy, joints in the order of `joint_names`.

    A joint's target is default_joint_pos + action_scale * action, with the action clipped to
    +-action_limit and the target to the joint's limits widened by target_margin. The PD law runs
    at least `decimation` times in a control step of `control_dt_s`. `motor_names` are the joints in
    the order of the robot's own motors, empty where that is not known.
    """

    robot: str
    joint_names: tuple[str, ...]
    default_joint_pos_rad: tuple[float, ...]
    joint_lower_rad: tuple[float, ...]
    joint_upper_rad: tuple[float, ...]
    kp_nm_per_rad: tuple[float, ...]
    kd_nms_per_rad: tuple[float, ...]
    torque_limit_nm: tuple[float, ...]
    action_scale_rad: float
    action_limit: float
    target_margin_rad: float
    control_dt_s: float
    decimation: int
    observation: Mapping[str, FieldFacts]
    command: tuple[CommandFacts, ...]
    motor_names: tuple[str, ...] = ()

    @property
    def obs_slices(self) -> dict[str, tuple[int, int]]:
        """Field -> (start, stop)."""
        return {name: (span.start, span.stop) for name, span in self.observation.items()}


def policy_metadata(
    policy: PolicyNetwork,
    card: Mapping[str, Any],
    facts: RobotFacts | None,
    module: PolicyStep,
    source: Mapping[str, Any],
    note: str = "",
) -> dict[str, object]:
    """The description without files and known answers; JSON values.

    Without `facts` the robot's entries are None, and units and meanings of the observation.

    Raises ValueError if the robot has other observations or another number of joints.
    """
    control: dict[str, object] | None = None
    command: list[object] | None = None
    if facts is None:
        slices = sorted(policy.layout.stored_slices.items(), key=lambda item: item[1])
        observation = {
            name: {"start": start, "stop": stop, "unit": None, "meaning": None}
            for name, (start, stop) in slices
        }
    else:
        _check_robot(policy, facts)
        loop = asdict(facts)
        observation = loop.pop("observation")
        command = list(loop.pop("command"))
        control = {k: list(v) if isinstance(v, tuple) else v for k, v in loop.items()}
    targets = module.targets
    returns = {
        "expert_return": policy.return_at(1.0),
        "zero_return": policy.return_at(0.0),
        "unit": "sum of stored rewards",
    }
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "model": dict(card["model"]),
        "parameters": card.get("parameters"),
        "batch_size": module.batch_size,
        "observation": {"dim": module.obs_dim, "fields": observation},
        "command": command,
        "action": {"dim": policy.act_dim, "filter": policy.action_filter},
        "return_to_go": returns if RETURN_TO_GO in targets else None,
        "target": {"labels": policy.condition.labels} if TARGET in targets else None,
        "state": [_state_entry(tensor) for tensor in module.state_tensors],
        "inputs": module.input_names,
        "outputs": module.output_names,
        "control": control,
        "note": note,
        "source": dict(source),
    }


def _check_robot(policy: PolicyNetwork, facts: RobotFacts) -> None:
    check_layout(policy.layout, facts.obs_slices, "the policy")
    if policy.act_dim != len(facts.joint_names):
        raise ValueError(
            f"the policy moves {policy.act_dim} joints, but {facts.robot} has "
            f"{len(facts.joint_names)}"
        )


def model_properties(metadata: Mapping[str, Any]) -> dict[str, object]:
    """The description under short names, for the properties of an ONNX file.

    Names as mjlab's runtimes read them; `gaitforge` holds the whole description. Those of a robot
    are absent without one.
    """
    source = metadata["source"]
    fields = metadata["observation"]["fields"]
    return {
        "run_path": source.get("run", ""),
        "observation_names": list(fields),
        "observation_slices": {name: [f["start"], f["stop"]] for name, f in fields.items()},
        **(_robot_properties(metadata) if metadata["control"] else {}),
        "dataset_version": str(source.get("dataset_version", "")),
        "dataset_hash": source.get("dataset_hash", ""),
        "checkpoint_hash": source.get("checkpoint_sha256", ""),
        "format_version": str(metadata["format_version"]),
        "gaitforge": dict(metadata),
    }


def _robot_properties(metadata: Mapping[str, Any]) -> dict[str, object]:
    control = metadata["control"]
    return {
        "joint_names": control["joint_names"],
        "joint_stiffness": control["kp_nm_per_rad"],
        "joint_damping": control["kd_nms_per_rad"],
        "default_joint_pos": control["default_joint_pos_rad"],
        "command_names": [command["name"] for command in metadata["command"]],
        "action_scale": [control["action_scale_rad"]],
        "action_limit": [control["action_limit"]],
        "joint_pos_lower": control["joint_lower_rad"],
        "joint_pos_upper": control["joint_upper_rad"],
        "joint_torque_limit": control["torque_limit_nm"],
        "control_dt": [control["control_dt_s"]],
        "decimation": [control["decimation"]],
        "command_ranges": {
            command["name"]: [command["low"], command["high"]] for command in metadata["command"]
        },
    }


def _state_entry(state: StateTensor) -> dict[str, object]:
    values = state.initial.unique()
    assert values.numel() == 1, "every network starts from a uniform state"
    fill = values.item()
    return {
        "input": state.name,
        "output": f"next_{state.name}",
        "shape": list(state.initial.shape),
        "dtype": str(np.dtype(str(state.initial.dtype).removeprefix("torch."))),
        # JSON has no infinity.
        "fill": fill if torch.isfinite(values).all() else str(fill),
        "batch_axis": state.batch_axis,
        "in_place": state.in_place,
    }
