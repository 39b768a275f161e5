"""Reference clips: kinematics against dm_control's, files there and back, and wrong files."""

# MuJoCo's compiled modules come without type stubs.
# pyright: reportAttributeAccessIssue=false

import shutil
import zlib
from dataclasses import fields
from pathlib import Path

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.plugins.mocapact.humanoid.clips.motions import MOTIONS, synthetic_clip
from gaitforge.plugins.mocapact.humanoid.clips.reference import (
    ReferenceClip,
    clip_digest,
    clip_lengths,
    read_clip,
    write_reference,
)
from gaitforge.plugins.mocapact.humanoid.observation import CONTROL_DT_S
from gaitforge.plugins.mocapact.humanoid.walker import load_humanoid

dm_control = pytest.importorskip("dm_control")
h5py = pytest.importorskip("h5py")


def test_a_file_gives_the_same_numbers_back(humanoid_reference: Path) -> None:
    made = synthetic_clip("squat", 40, 1)
    read = read_clip(humanoid_reference, "squat_01")
    assert read.digest == clip_digest(humanoid_reference, "squat_01")
    assert read.digest != clip_digest(humanoid_reference, "squat_00")
    for field in fields(made.poses):
        np.testing.assert_array_equal(
            getattr(read.poses, field.name), getattr(made.poses, field.name)
        )
    assert clip_lengths(humanoid_reference) == {"squat_00": 40, "squat_01": 40, "step_00": 40}


def test_tracked_quantities_are_dm_controls(humanoid_reference: Path) -> None:
    from dm_control import mjcf
    from dm_control.locomotion.tasks.reference_pose import utils

    from gaitforge.plugins.mocapact.humanoid.walker import make_arena, walker_class

    arena = make_arena()
    walker = utils.add_walker(walker_class(), arena)
    physics = mjcf.Physics.from_mjcf_model(arena.mjcf_model)
    poses = read_clip(humanoid_reference, "step_00").poses
    for frame in (0, 13, 39):
        with physics.reset_context():
            utils.set_walker(physics, walker, poses.qpos[frame], poses.qvel[frame])
        theirs = utils.get_features(physics, walker)
        ours = {
            "position": poses.qpos[frame, :3],
            "quaternion": poses.qpos[frame, 3:7],
            "joints": poses.qpos[frame, 7:],
            "center_of_mass": poses.center_of_mass[frame],
            "end_effectors": poses.appendages[frame, :4],
            "appendages": poses.appendages[frame],
            "body_positions": poses.body_pos[frame],
            "body_quaternions": poses.body_quat[frame],
            "joints_velocity": poses.qvel[frame, 6:],
        }
        for name, value in ours.items():
            np.testing.assert_allclose(value, theirs[name], atol=1e-9, err_msg=name)


def test_velocities_lead_from_frame_to_frame(humanoid_reference: Path) -> None:
    model = load_humanoid().model
    poses = read_clip(humanoid_reference, "step_00").poses
    for frame in range(39):
        moved = poses.qpos[frame].copy()
        mujoco.mj_integratePos(model, moved, poses.qvel[frame], CONTROL_DT_S)
        np.testing.assert_allclose(moved, poses.qpos[frame + 1], atol=1e-9)


@pytest.mark.slow
@settings(max_examples=8)
@given(st.sampled_from(sorted(MOTIONS)), st.integers(0, 5), st.integers(2, 25))
def test_synthetic_motions_stay_within_the_body(motion: str, variant: int, frames: int) -> None:
    humanoid = load_humanoid()
    clip = synthetic_clip(motion, frames, variant)
    joints = clip.poses.qpos[:, 7 + humanoid.joints]
    low, high = humanoid.joint_range.T
    assert (joints >= low).all()
    assert (joints <= high).all()
    assert clip.poses.body_pos[..., 2].min() > 0.01
    longer = synthetic_clip(motion, frames + 3, variant)
    np.testing.assert_array_equal(longer.poses.qpos[:frames], clip.poses.qpos)


def test_variants_face_anywhere_and_are_alike_from_their_root() -> None:
    humanoid, clips = (
        load_humanoid(),
        [synthetic_clip("step", 12, variant) for variant in (0, 1, 2)],
    )
    headings = []
    for clip in clips:
        frame = np.empty(9)
        mujoco.mju_quat2Mat(frame, clip.poses.qpos[0, 3:7])
        ahead = frame.reshape(3, 3)[:, 2]  # of the root that stands upright
        assert abs(ahead[2]) < 1e-9
        headings.append(np.arctan2(ahead[1], ahead[0]))
        np.testing.assert_allclose(clip.poses.qpos[0, 7:], clips[0].poses.qpos[0, 7:], atol=1e-6)
        np.testing.assert_allclose(
            clip.poses.appendages[0], clips[0].poses.appendages[0], atol=1e-6
        )
        feet = clip.poses.body_pos[:, [humanoid.bodies.tolist().index(humanoid.body("lfoot"))]]
        assert np.ptp(feet[:3, 0, :2], axis=0).max() < 1e-3
    assert headings[0] == pytest.approx(0.0, abs=1e-9)
    assert len({round(each, 3) for each in headings}) == 3


def test_a_walk_goes_ahead_over_a_foot_that_stands() -> None:
    humanoid = load_humanoid()
    poses = synthetic_clip("walk", 60).poses
    bodies = humanoid.bodies.tolist()
    feet = poses.body_pos[:, [bodies.index(humanoid.body(f"{side}foot")) for side in "lr"]]
    moved = np.linalg.norm(np.diff(feet[..., :2], axis=0), axis=-1)
    assert moved.min(axis=1).max() < 1e-6, "one of them is always at its place"
    assert (moved.max(axis=0) > 0.01).all(), "each steps"
    way = poses.center_of_mass[:, 0] - poses.center_of_mass[0, 0]
    assert (np.diff(way) >= 0).all()
    period_s, stride_m = 1.2, 0.4
    assert way[-1] == pytest.approx(stride_m * (59 * CONTROL_DT_S / period_s - 0.25), abs=0.01)


def test_feet_stand_where_the_centre_of_mass_is(humanoid_reference: Path) -> None:
    humanoid = load_humanoid()
    names = [humanoid.model.body(int(each)).name for each in humanoid.bodies]
    feet = [names.index(f"walker/{side}foot") for side in "lr"]
    poses = read_clip(humanoid_reference, "squat_00").poses
    moved = np.abs(poses.body_pos[:, feet] - poses.body_pos[0, feet]).max()
    assert moved < 1e-3
    assert np.ptp(poses.center_of_mass[:, 0]) < 0.01
    assert np.ptp(poses.center_of_mass[:, 2]) > 0.03


def test_a_replaced_file_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "clips.h5"
    for frames in (2, 5):
        write_reference(path, [synthetic_clip("stand", frames)])
        assert clip_lengths(path) == {"stand_00": frames}
    assert [each.name for each in tmp_path.iterdir()] == ["clips.h5"]


def test_clips_of_another_walker_are_refused() -> None:
    shipped = Path(dm_control.__file__).parent / "locomotion/mocap/test_trajectories.h5"
    name = next(iter(clip_lengths(shipped)))
    with pytest.raises(ValueError, match=r"tracked bodies, not 31|a time step of"):
        read_clip(shipped, name)


def test_wrong_files_and_poses_are_refused(tmp_path: Path, humanoid_reference: Path) -> None:
    text = tmp_path / "notes.h5"
    text.write_text("no clips")
    with pytest.raises(ValueError, match="no reference file at"):
        clip_lengths(tmp_path / "none.h5")
    with pytest.raises(ValueError, match="cannot be read as HDF5"):
        clip_lengths(text)
    with pytest.raises(ValueError, match="has no clip run_00; allowed: squat_00"):
        read_clip(humanoid_reference, "run_00")
    with pytest.raises(ValueError, match="has no clip run_00"):
        clip_digest(humanoid_reference, "run_00")
    with pytest.raises(ValueError, match="needs poses of shape"):
        ReferenceClip.of_poses("flat", np.zeros((5, 7)))
    with pytest.raises(ValueError, match="not finite"):
        ReferenceClip.of_poses("broken", np.full((3, 63), np.nan))
    with pytest.raises(ValueError, match="each with a name of its own"):
        write_reference(text, [])
    with pytest.raises(ValueError, match="unknown motion 'fly'"):
        synthetic_clip("fly")


def test_a_clip_that_unpacks_to_more_than_it_states_is_refused(
    humanoid_reference: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copy(humanoid_reference, tmp_path / "clips.h5"))
    name = next(iter(clip_lengths(path)))
    with h5py.File(path, "a") as file:
        walker = file[f"{name}/walkers/walker_0"]
        shape = walker["joints"].shape
        del walker["joints"]
        bomb = walker.create_dataset("joints", shape, "f8", chunks=shape, compression="gzip")
        bomb.id.write_direct_chunk((0, 0), zlib.compress(bytes(50_000_000)))
    for use in (clip_digest, read_clip):
        with pytest.raises(ValueError, match="a chunk holds more than the"):
            use(path, name)


def test_clips_that_lie_elsewhere_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "clips.h5", "w") as file:
        file["CMU_001"] = h5py.ExternalLink("other.h5", "/")
    with pytest.raises(ValueError, match="CMU_001: is an external link"):
        clip_lengths(tmp_path / "clips.h5")
