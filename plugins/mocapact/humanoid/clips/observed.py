"""Reference clips out of the rollouts that observed them.

A MoCapAct file holds no clip. Each of its observations has the pose of the root in the world and,
relative to it, the reference of the next five frames. A rollout from its snippet's start has frame
`start + t + k` in step t as reference k. Its first observation is the pose of frame `start`.
Positions are float32 there, so a clip made this way differs from the original one by some 1e-6 m.
Velocities, which no observation has, are central differences of the poses.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import h5py
import mujoco
import numpy as np

from gaitforge.common.errors import DatasetError, listed
from gaitforge.datasets.formats.hdf5 import open_hdf5
from gaitforge.datasets.schema import consecutive_slices
from gaitforge.plugins.mocapact.format import mocapact_schema as layout
from gaitforge.plugins.mocapact.format.mocapact_files import (
    FileContents,
    Rollouts,
    read_contents,
    read_float32,
)
from gaitforge.plugins.mocapact.humanoid.clips.reference import ReferenceClip
from gaitforge.plugins.mocapact.humanoid.observation import (
    CONTROL_DT_S,
    LOOK_AHEAD,
    N_JOINTS,
    OBSERVATION_SLICES,
    REF_STEPS,
)
from gaitforge.plugins.mocapact.humanoid.walker import finite_velocities, load_humanoid, track

_NEEDED = (
    "joints_pos",
    "orientation",
    "position",
    "reference_rel_joints",
    "reference_rel_root_pos_local",
    "reference_rel_root_quat",
)


def observed_clips(path: Path) -> list[ReferenceClip]:
    """The clips of a MoCapAct file, from frame 0 to the last one that its rollouts saw.

    Raises:
        ValueError: the file has no rollouts of the 2020 humanoid, or none of them saw a frame.
    """
    contents = read_contents(path)
    if contents is None:
        raise DatasetError(f"{path} has no group <clip>-<start>-<end>; is it MoCapAct's?")
    _check_observation(contents)
    by_clip: dict[str, list[Rollouts]] = {}
    for rollouts in contents.rollouts:
        by_clip.setdefault(layout.clip_of(rollouts.snippet.clip), []).append(rollouts)
    with open_hdf5(path) as file:
        return [_clip(name, file, contents, of_clip) for name, of_clip in by_clip.items()]


def _check_observation(contents: FileContents) -> None:
    widths = {name: stop - start for name, (start, stop) in OBSERVATION_SLICES.items()}
    unfit = [name for name in _NEEDED if contents.widths.get(name) != widths[name]]
    if unfit or (contents.ref_steps or REF_STEPS) != REF_STEPS:
        raise DatasetError(
            f"{contents.path} does not show its clips: it needs {listed(unfit or _NEEDED)} of the "
            f"humanoid of 2020, with references of {REF_STEPS[0]} to {LOOK_AHEAD} steps ahead"
        )


def _clip(
    name: str, file: h5py.File, contents: FileContents, snippets: Sequence[Rollouts]
) -> ReferenceClip:
    slices = consecutive_slices(contents.widths)
    poses: dict[int, np.ndarray] = {}
    for rollouts in snippets:
        number = _longest_from_start(contents, rollouts)
        length = int(rollouts.columns["length"][number])
        seen = np.empty((length + 1, sum(contents.widths.values())), np.float32)
        key = f"{rollouts.snippet.name}/{number}/{layout.PROPRIOCEPTIVE}"
        read_float32(contents.path, file, key, seen)
        parts = {part: seen[:, slice(*slices[part])].astype(np.float64) for part in _NEEDED}
        first = rollouts.snippet.start
        for offset, pose in enumerate(_observed_poses(parts)):
            poses.setdefault(first + offset, pose)
    lacking = sorted({*range(max(poses) + 1)} - {*poses})
    if lacking:
        raise DatasetError(
            f"clip {name}: no rollout of {contents.path} shows frame {lacking[0]} "
            f"({len(lacking)} of {max(poses) + 1} frames); rollouts from the snippets' starts must "
            "reach the next snippet"
        )
    return _tracked(name, np.stack([poses[frame] for frame in sorted(poses)]))


def _tracked(name: str, qpos: np.ndarray) -> ReferenceClip:
    """The clip of poses (T, 63), at the velocities from the frame before to the one after."""
    humanoid = load_humanoid()
    forward = finite_velocities(humanoid.model, qpos, CONTROL_DT_S)
    qvel = forward.copy()
    qvel[1:-1] = (forward[:-2] + forward[1:-1]) / 2
    return ReferenceClip(name, track(humanoid, qpos, qvel))


def _longest_from_start(contents: FileContents, rollouts: Rollouts) -> int:
    """The rollout from the snippet's start that shows most of it."""
    lengths = np.where(rollouts.columns["random_start"], 0, rollouts.columns["length"])
    if not lengths.any():
        raise DatasetError(f"{contents.path}: no rollout of {rollouts.snippet.name} from its start")
    return int(lengths.argmax())


def _observed_poses(parts: Mapping[str, np.ndarray]) -> np.ndarray:
    """(T + 6, 63) poses of the frames that a rollout of T steps saw, from its own first pose on."""
    count = len(parts["position"])
    poses = np.empty((count + LOOK_AHEAD, load_humanoid().model.nq))
    poses[0] = _pose(parts, 0, 0)
    for frame in range(1, len(poses)):
        row = max(0, frame - LOOK_AHEAD)  # the step that sees it first, furthest ahead
        poses[frame] = _pose(parts, row, frame - row)
    return poses


def _pose(parts: Mapping[str, np.ndarray], row: int, ahead: int) -> np.ndarray:
    """(63,) the pose in an observation: the walker's (0), or that of a reference ahead of it."""
    humanoid = load_humanoid()
    root_quat = np.empty(4)
    mujoco.mju_mat2Quat(root_quat, parts["orientation"][row])
    qpos = np.empty(humanoid.model.nq)
    qpos[:3] = parts["position"][row]
    qpos[3:7] = root_quat
    joints = parts["joints_pos"][row]
    if ahead:
        local = parts["reference_rel_root_pos_local"][row].reshape(-1, 3)[ahead - 1]
        turn = parts["reference_rel_root_quat"][row].reshape(-1, 4)[ahead - 1]
        qpos[:3] += parts["orientation"][row].reshape(3, 3) @ local
        mujoco.mju_mulQuat(qpos[3:7], root_quat, turn)
        joints = joints + parts["reference_rel_joints"][row].reshape(-1, N_JOINTS)[ahead - 1]
    mujoco.mju_normalize4(qpos[3:7])
    qpos[7 + humanoid.joints] = joints
    return qpos
