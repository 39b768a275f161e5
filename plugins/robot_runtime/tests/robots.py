"""A robot whose joints all differ, and episodes of small policies on it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.collectors.robots.robot import load_robot
from gaitforge.flows.stages.transfer import robot_facts
from gaitforge.learners.checkpoint import policy_card
from gaitforge.learners.control.step_modules import PolicyStep
from gaitforge.learners.export.description import RobotFacts, policy_metadata
from gaitforge.learners.export.export import PolicyExport, PolicyExportOptions, export_policy
from gaitforge.learners.models.registry import preset
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.plugins.robot_runtime.runtimes.stateless import FixedCommand
from tests.learners.making import KIND_SETTINGS, OBS_SLICES, make_policy

_GO2 = robot_facts(load_robot("go2"))
_ONE_TO_TWELVE = tuple(range(1, 13))
_MOTORS = (7, 2, 10, 0, 5, 11, 3, 8, 1, 6, 4, 9)
UNEVEN: RobotFacts = replace(
    _GO2,
    default_joint_pos_rad=tuple(
        angle + 0.01 * k
        for angle, k in zip(_GO2.default_joint_pos_rad, _ONE_TO_TWELVE, strict=True)
    ),
    kp_nm_per_rad=tuple(10.0 + k for k in _ONE_TO_TWELVE),
    kd_nms_per_rad=tuple(1.0 + k / 8 for k in _ONE_TO_TWELVE),
    torque_limit_nm=tuple(20.0 + k for k in _ONE_TO_TWELVE),
    action_limit=0.6,
    motor_names=tuple(_GO2.joint_names[k] for k in _MOTORS),
)
"""Go2 with other numbers at each joint, its motors in no simple order.

Its action limit is one that small policies reach.
"""


def small_export(
    kind: str = "bot",
    settings: Mapping[str, Any] | None = None,
    tokens: str = "obs",
    facts: RobotFacts | None = UNEVEN,
    skills: tuple[str, ...] = ("stand", "rush", "run"),
) -> PolicyExport:
    """What formats write from, of a small untrained policy."""
    policy, card, source = _policy(kind, settings, tokens, skills)
    module = PolicyStep(policy, 1)
    metadata = policy_metadata(policy, card, facts, module, source)
    return PolicyExport(policy, facts, module, metadata)


def export_folder(
    folder: Path, formats: tuple[str, ...], kind: str = "bot", facts: RobotFacts = UNEVEN
) -> PolicyNetwork:
    """Export a small policy into a folder; returns it."""
    policy, card, source = _policy(kind, None, "obs", ("stand", "rush", "run"))
    export_policy(policy, card, facts, folder, PolicyExportOptions(formats), source)
    return policy


def _policy(
    kind: str, settings: Mapping[str, Any] | None, tokens: str, skills: tuple[str, ...]
) -> tuple[PolicyNetwork, dict[str, Any], dict[str, Any]]:
    settings = settings or KIND_SETTINGS[kind]
    policy = make_policy(kind, tokens, 7.0, return_zero=-2.0, settings=settings).eval()
    card = policy_card(policy, preset(kind, settings)) | {"parameters": 123}
    return policy, card, {"run": "small", "evaluation": {"grid": {"skills": list(skills)}}}


class Walk:
    """What N robots measure in an episode, at random; commands within a policy's ranges.

    Attributes:
        gyro, gravity (T, N, 3), joint_pos, joint_vel (T, N, 12), velocity (T, N, 3); SI units,
        joints in the policy's order.
    """

    def __init__(self, seed: int, steps: int, command: FixedCommand, robots: int = 1) -> None:
        rng = np.random.default_rng(seed)
        shape = steps, robots
        self.fixed = np.array(command.values, np.float32)[3:]
        self.gyro = rng.normal(size=(*shape, 3)).astype(np.float32)
        gravity = rng.normal((0.0, 0.0, -3.0), 0.5, (*shape, 3))
        self.gravity = gravity / np.linalg.norm(gravity, axis=-1, keepdims=True)
        self.joint_pos = rng.normal(UNEVEN.default_joint_pos_rad, 0.4, (*shape, 12))
        self.joint_vel = rng.normal(0.0, 2.0, (*shape, 12)).astype(np.float32)
        low, high = np.transpose(command.velocities)
        self.velocity = rng.uniform(low, high, (*shape, 3)).astype(np.float32)

    def observation(self, step: int, last_action: np.ndarray) -> np.ndarray:
        """(N, 70) what the policy observes, as the product's task gives it."""
        fields = {
            "projected_gravity": self.gravity[step],
            "joint_vel": self.joint_vel[step],
            "sin_joint_pos": np.sin(self.joint_pos[step]),
            "cos_joint_pos": np.cos(self.joint_pos[step]),
            "base_ang_vel_body": self.gyro[step],
            "last_action": last_action,
            "command": np.concatenate(
                [self.velocity[step], np.tile(self.fixed, (len(last_action), 1))], axis=1
            ),
        }
        return np.concatenate([fields[name] for name in OBS_SLICES], axis=1).astype(np.float32)
