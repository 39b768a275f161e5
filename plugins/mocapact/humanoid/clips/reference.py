"""Reference clips, and files of them in dm_control's HDF5 form.

Files are the user's `cmu_2020_*.h5` with the CMU clips, or written by `write_reference`.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from gaitforge.common.files import fsync_path, replace_durably, temporary_file
from gaitforge.plugins.mocapact.humanoid.observation import CONTROL_DT_S
from gaitforge.plugins.mocapact.humanoid.walker import (
    END_EFFECTORS,
    PREFIX,
    TrackedPoses,
    finite_velocities,
    load_humanoid,
    load_mocapact,
    quiet_loading,
    track,
)


@dataclass(frozen=True)
class ReferenceClip:
    """A clip to track: its name and its frames, 0.03 s apart."""

    name: str
    poses: TrackedPoses

    @property
    def frames(self) -> int:
        """Number of frames."""
        return len(self.poses)

    @property
    def digest(self) -> str:
        """A short hash, equal to `clip_digest` of the clip in a file."""
        qpos = self.poses.qpos
        count = self.frames
        parts = (qpos[:, :3], qpos[:, 3:7], qpos[:, 7:], self.poses.body_pos.reshape(count, -1))
        return _digest([part.T for part in parts])

    @classmethod
    def of_poses(cls, name: str, qpos: np.ndarray) -> Self:
        """A clip from root poses and joint angles, qpos (T, 63); ValueError for unfit poses."""
        humanoid = load_humanoid()
        qpos = np.asarray(qpos, dtype=np.float64)
        if qpos.ndim != 2 or qpos.shape[1] != humanoid.model.nq or len(qpos) < 2:
            needed = f"(T >= 2, {humanoid.model.nq})"
            raise ValueError(f"clip {name} needs poses of shape {needed}, not {qpos.shape}")
        if not np.isfinite(qpos).all():
            raise ValueError(f"clip {name} holds numbers that are not finite")
        qvel = finite_velocities(humanoid.model, qpos, CONTROL_DT_S)
        return cls(name, track(humanoid, qpos, qvel))


def clip_lengths(path: Path) -> dict[str, int]:
    """Clip -> frames, sorted by name; ValueError for no such file, or another kind."""
    with _opened(path) as file:
        try:
            return {name: int(file[name].attrs["num_steps"]) for name in sorted(file)}
        except (KeyError, AttributeError):
            raise ValueError(f"{path} is not a reference file of dm_control's form") from None


def clip_digest(path: Path, name: str) -> str:
    """A short hash of a clip's numbers; ValueError for no such file or clip."""
    with _opened(path) as file:
        if name not in file:
            raise ValueError(f"{path} has no clip {name}")
        from gaitforge.datasets.formats.hdf5 import dataset_at, read_whole

        walker = file[name]["walkers/walker_0"]
        fields = ("position", "quaternion", "joints", "body_positions")
        return _digest([read_whole(dataset_at(walker, field)) for field in fields])


def read_clip(path: Path, name: str) -> ReferenceClip:
    """A clip by dm_control's own loader; ValueError for no such clip or another walker."""
    clips = clip_lengths(path)
    if name not in clips:
        first = ", ".join(list(clips)[:5])
        raise ValueError(f"{path} has no clip {name}; allowed: {first} … ({len(clips)} in all)")
    with _opened(path) as file:
        from gaitforge.datasets.formats.hdf5 import check_readable

        check_readable(file[name])  # the loader reads whatever an array holds
    loader = load_mocapact("dm_control.locomotion.mocap.loader")
    with quiet_loading():
        trajectory = loader.HDF5TrajectoryLoader(str(path)).get_trajectory(
            name, zero_out_velocities=False
        )
    if abs(trajectory.dt - CONTROL_DT_S) > 1e-9:
        raise ValueError(f"clip {name} has a time step of {trajectory.dt} s, not {CONTROL_DT_S}")
    features = {key.removeprefix(PREFIX): value for key, value in trajectory.as_dict().items()}
    bodies = features["body_positions"].shape[1]
    expected = len(load_humanoid().bodies)
    if bodies != expected:
        raise ValueError(f"clip {name} has {bodies} bodies, not {expected}: use the clips of 2020")
    root_first = ("position", "quaternion", "joints")
    velocities = ("velocity", "angular_velocity", "joints_velocity")
    poses = TrackedPoses(
        qpos=np.concatenate([features[key] for key in root_first], axis=1),
        qvel=np.concatenate([features[key] for key in velocities], axis=1),
        body_pos=features["body_positions"],
        body_quat=features["body_quaternions"],
        center_of_mass=features["center_of_mass"],
        appendages=features["appendages"],
    )
    return ReferenceClip(name, poses)


def write_reference(path: Path, clips: Sequence[ReferenceClip]) -> None:
    """Write or replace a reference file; ValueError for no clip or two of one name."""
    names = [clip.name for clip in clips]
    if not names or len(set(names)) != len(names):
        raise ValueError("a reference file needs at least one clip, each with a name of its own")
    h5py = load_mocapact("h5py")
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_file(path) as temporary:
        with h5py.File(temporary, "w", locking=False) as file:
            for clip in clips:
                _write_clip(file.create_group(clip.name), clip)
        fsync_path(temporary)
        replace_durably(temporary, path)


def _digest(arrays: Sequence[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype=np.float64).tobytes())
    return digest.hexdigest()[:16]


def _write_clip(group: Any, clip: ReferenceClip) -> None:
    group.attrs["num_steps"] = clip.frames
    group.attrs["dt"] = CONTROL_DT_S
    group.create_group("props")
    walker = group.create_group("walkers/walker_0")
    walker.create_group("scaling")
    walker.create_group("markers")
    poses = clip.poses
    count = clip.frames
    values = {
        "position": poses.qpos[:, :3],
        "quaternion": poses.qpos[:, 3:7],
        "joints": poses.qpos[:, 7:],
        "velocity": poses.qvel[:, :3],
        "angular_velocity": poses.qvel[:, 3:6],
        "joints_velocity": poses.qvel[:, 6:],
        "body_positions": poses.body_pos,
        "body_quaternions": poses.body_quat,
        "center_of_mass": poses.center_of_mass,
        "appendages": poses.appendages,
        "end_effectors": poses.appendages[:, : len(END_EFFECTORS)],
    }
    for name, value in values.items():
        walker.create_dataset(name, data=value.reshape(count, -1).T)


def _opened(path: Path) -> Any:
    load_mocapact("h5py")
    from gaitforge.datasets.formats.hdf5 import open_hdf5

    if not path.exists():
        raise ValueError(
            f"no reference file at {path}; give the path of cmu_2020_*.h5, or make one: "
            "gaitforge humanoid reference"
        )
    return open_hdf5(path)
