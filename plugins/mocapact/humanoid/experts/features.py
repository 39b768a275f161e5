"""Inputs of the PD law and the residual network: named parts of the stored observation.

Computed from an observation, or, for training, from a batch's state; a test compares the two.
"""

from dataclasses import dataclass

import numpy as np

from gaitforge.collectors.rotations import rotate_inverse
from gaitforge.datasets.schema import consecutive_slices
from gaitforge.plugins.mocapact.humanoid.observation import (
    CONTROL_DT_S,
    N_JOINTS,
    OBSERVATION_SLICES,
    REF_STEPS,
)
from gaitforge.plugins.mocapact.humanoid.walker import END_EFFECTORS, CmuHumanoid, TrackedPoses

_SEEN = (
    "actuator_activation",
    "body_height",
    "end_effectors_pos",
    "joints_pos",
    "joints_vel",
    "reference_rel_joints",
    "reference_rel_root_pos_local",
    "reference_rel_root_quat",
    "sensors_gyro",
    "sensors_velocimeter",
    "time_in_clip",
    "world_zaxis",
)
_WIDTHS = {name: OBSERVATION_SLICES[name][1] - OBSERVATION_SLICES[name][0] for name in _SEEN}
FEATURE_SLICES = consecutive_slices(_WIDTHS)
"""Name -> (start, stop) in the features."""

FEATURE_DIM = sum(_WIDTHS.values())
_CHOSEN = np.concatenate([np.arange(*OBSERVATION_SLICES[name]) for name in _SEEN])


def observed_features(observation: np.ndarray) -> np.ndarray:
    """(N, FEATURE_DIM) float32 from observations (N, 2868)."""
    return observation[:, _CHOSEN]


def feature(features: np.ndarray, name: str) -> np.ndarray:
    """(N, width) one named part."""
    start, stop = FEATURE_SLICES[name]
    return features[:, start:stop]


@dataclass(frozen=True)
class BatchState:
    """N humanoids at one moment: tracked poses and activations (N, 56).

    frame (N,) is the reference frame to compare with, clip_time (N,) the elapsed share.
    """

    poses: TrackedPoses
    activation: np.ndarray
    frame: np.ndarray
    clip_time: np.ndarray


def batch_features(humanoid: CmuHumanoid, state: BatchState, reference: TrackedPoses) -> np.ndarray:
    """(N, FEATURE_DIM) float32: the same numbers from a batch's state."""
    poses = state.poses
    count = len(state.poses)
    root_pos = poses.qpos[:, :3]
    root_quat = poses.qpos[:, 3:7]
    ahead = state.frame[:, None] + np.array(REF_STEPS)
    joints = 7 + humanoid.joints
    joint_pos = poses.qpos[:, joints]
    to_root = reference.qpos[ahead, :3] - root_pos[:, None]
    values = {
        "actuator_activation": state.activation,
        "body_height": root_pos[:, 2:],
        "end_effectors_pos": poses.appendages[:, : len(END_EFFECTORS)],
        "joints_pos": joint_pos,
        "joints_vel": poses.qvel[:, 6 + humanoid.joints],
        "reference_rel_joints": reference.qpos[ahead][:, :, joints] - joint_pos[:, None],
        "reference_rel_root_pos_local": rotate_inverse(root_quat[:, None], to_root),
        "reference_rel_root_quat": _relative(root_quat[:, None], reference.qpos[ahead, 3:7]),
        "sensors_gyro": poses.qvel[:, 3:6],
        "sensors_velocimeter": rotate_inverse(root_quat, poses.qvel[:, :3]),
        "time_in_clip": state.clip_time[:, None],
        "world_zaxis": rotate_inverse(root_quat, np.array([0.0, 0.0, 1.0])),
    }
    features = np.empty((count, FEATURE_DIM), dtype=np.float32)
    for name, (start, stop) in FEATURE_SLICES.items():
        features[:, start:stop] = values[name].reshape(count, -1)
    return features


def reference_velocity(features: np.ndarray) -> np.ndarray:
    """(N, 56) rad/s, alphabetical: the reference's joint velocities one step ahead."""
    ahead = feature(features, "reference_rel_joints").reshape(-1, len(REF_STEPS), N_JOINTS)
    return (ahead[:, 1] - ahead[:, 0]) / CONTROL_DT_S


def _relative(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Quaternions (..., 4), wxyz, that lead from source to target, in the source's frame."""
    w = source[..., :1]
    xyz = source[..., 1:]
    v = target[..., :1]
    uvw = target[..., 1:]
    scalar = w * v + (xyz * uvw).sum(axis=-1, keepdims=True)
    vector = w * uvw - v * xyz - np.cross(xyz, uvw)
    return np.concatenate([scalar, vector], axis=-1)
