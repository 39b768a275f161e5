"""The description of an exported policy for a robot's program."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from gaitforge.learners.checkpoint import check_layout
from gaitforge.learners.control.step_modules import PolicyStep
from gaitforge.learners.control.step_state import StateTensor
from gaitforge.learners.export.onnx_policy import FORMAT, FORMAT_VERSION
from gaitforge.learners.policy.conditioning import RETURN_TO_GO, TARGET
from gaitforge.learners.policy.policy_network import PolicyNetwork


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
    at least `decimation` times in a control step of `control_dt_s`.
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

    @property
    def obs_slices(self) -> dict[str, tuple[int, int]]:
        """Field -> (start, stop)."""
        return {name: (span.start, span.stop) for name, span in self.observation.items()}


def policy_metadata(
    policy: PolicyNetwork,
    card: Mapping[str, Any],
    facts: RobotFacts,
    module: PolicyStep,
    source: Mapping[str, Any],
) -> dict[str, object]:
    """The description without files and known answers; JSON values.

    Raises ValueError if the robot has other observations or another number of joints.
    """
    check_layout(policy.layout, facts.obs_slices, "the policy")
    if policy.act_dim != len(facts.joint_names):
        raise ValueError(
            f"the policy moves {policy.act_dim} joints, but {facts.robot} has "
            f"{len(facts.joint_names)}"
        )
    loop = asdict(facts)
    observation = loop.pop("observation")
    command = loop.pop("command")
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
        "command": list(command),
        "action": {"dim": policy.act_dim, "filter": policy.action_filter},
        "return_to_go": returns if RETURN_TO_GO in targets else None,
        "target": {"labels": policy.condition.labels} if TARGET in targets else None,
        "state": [_state_entry(tensor) for tensor in module.state_tensors],
        "inputs": module.input_names,
        "outputs": module.output_names,
        "control": {k: list(v) if isinstance(v, tuple) else v for k, v in loop.items()},
        "source": dict(source),
    }


def model_properties(metadata: Mapping[str, Any]) -> dict[str, object]:
    """The description under short names, for the properties of an ONNX file.

    run_path to action_scale are the names that mjlab's runtimes read; `gaitforge` holds the whole
    description.
    """
    control = metadata["control"]
    source = metadata["source"]
    fields = metadata["observation"]["fields"]
    return {
        "run_path": source.get("run", ""),
        "joint_names": control["joint_names"],
        "joint_stiffness": control["kp_nm_per_rad"],
        "joint_damping": control["kd_nms_per_rad"],
        "default_joint_pos": control["default_joint_pos_rad"],
        "command_names": [command["name"] for command in metadata["command"]],
        "observation_names": list(fields),
        "action_scale": [control["action_scale_rad"]],
        "action_limit": [control["action_limit"]],
        "joint_pos_lower": control["joint_lower_rad"],
        "joint_pos_upper": control["joint_upper_rad"],
        "joint_torque_limit": control["torque_limit_nm"],
        "control_dt": [control["control_dt_s"]],
        "decimation": [control["decimation"]],
        "observation_slices": {name: [f["start"], f["stop"]] for name, f in fields.items()},
        "command_ranges": {
            command["name"]: [command["low"], command["high"]] for command in metadata["command"]
        },
        "dataset_version": str(source.get("dataset_version", "")),
        "dataset_hash": source.get("dataset_hash", ""),
        "checkpoint_hash": source.get("checkpoint_sha256", ""),
        "format_version": str(metadata["format_version"]),
        "gaitforge": dict(metadata),
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
