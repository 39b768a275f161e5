"""The observation's names and places: the published ones, dm_control's, and the learners'."""

import numpy as np
import pytest

from gaitforge.learners.models.bodies import BODIES, body_view
from gaitforge.plugins.mocapact.humanoid.environment import TrackingEnvironment
from gaitforge.plugins.mocapact.humanoid.observation import (
    JOINT_NAMES,
    N_BODIES,
    OBS_DIM,
    OBSERVATION_SLICES,
    REF_STEPS,
)
from gaitforge.plugins.mocapact.humanoid.walker import PREFIX, load_humanoid

pytest.importorskip("dm_control")

# First index of every observable in MoCapAct's published data files.
PUBLISHED = {
    "actuator_activation": 0, "appendages_pos": 56, "body_height": 71, "end_effectors_pos": 72,
    "gyro_anticlockwise_spin": 84, "gyro_backward_roll": 85, "gyro_control": 86,
    "gyro_rightward_roll": 89, "head_height": 90, "joints_pos": 91, "joints_vel": 147,
    "joints_vel_control": 203, "orientation": 259, "position": 268,
    "reference_appendages_pos": 271, "reference_ego_bodies_quats": 346,
    "reference_rel_bodies_pos_global": 966, "reference_rel_bodies_pos_local": 1431,
    "reference_rel_bodies_quats": 1896, "reference_rel_joints": 2516,
    "reference_rel_root_pos_local": 2796, "reference_rel_root_quat": 2811,
    "sensors_accelerometer": 2831, "sensors_gyro": 2834, "sensors_torque": 2837,
    "sensors_touch": 2843, "sensors_velocimeter": 2853, "time_in_clip": 2856,
    "torso_xvel": 2857, "torso_yvel": 2858, "veloc_forward": 2859, "veloc_strafe": 2860,
    "veloc_up": 2861, "velocimeter_control": 2862, "world_zaxis": 2865,
}  # fmt: skip


def test_slices_are_the_published_ones() -> None:
    assert {name: start for name, (start, _) in OBSERVATION_SLICES.items()} == PUBLISHED
    assert list(OBSERVATION_SLICES) == sorted(OBSERVATION_SLICES)
    assert OBS_DIM == 2868


def test_slices_are_what_the_environment_observes(environment: TrackingEnvironment) -> None:
    sizes = {
        name.removeprefix(PREFIX): int(np.prod(spec.shape))
        for name, spec in environment._env.observation_spec().items()
    }
    assert sizes == {name: stop - start for name, (start, stop) in OBSERVATION_SLICES.items()}


def test_parts_of_the_observation_agree_with_each_other(environment: TrackingEnvironment) -> None:
    seen = environment.reset(1, 9)
    part = {name: seen[start:stop] for name, (start, stop) in OBSERVATION_SLICES.items()}
    qpos, qvel = environment.state()
    joints = load_humanoid().joints
    np.testing.assert_allclose(part["position"], qpos[:3], atol=1e-6)
    np.testing.assert_allclose(part["joints_pos"], qpos[7 + joints], atol=1e-6)
    np.testing.assert_allclose(part["joints_vel"], qvel[6 + joints], atol=1e-5)
    np.testing.assert_allclose(part["orientation"][6:], part["world_zaxis"])
    np.testing.assert_allclose(part["time_in_clip"], (9 - 5) / (35 - 5))


def test_joints_bodies_and_fields_are_those_of_the_learners_body() -> None:
    body = BODIES["cmu-humanoid"]
    assert tuple(name.rsplit("r", 1)[0] for name in JOINT_NAMES) == body.actions
    for name, holders in body.fields.items():
        start, stop = OBSERVATION_SLICES[name]
        assert stop - start == len(holders)
    humanoid = load_humanoid()
    names = [humanoid.model.body(int(each)).name.removeprefix(PREFIX) for each in humanoid.bodies]
    held = body.fields["reference_rel_bodies_pos_local"]
    assert tuple(names) == held[: 3 * N_BODIES : 3]
    assert held == held[: 3 * N_BODIES] * len(REF_STEPS)


def test_the_body_transformer_reads_the_published_share_of_it() -> None:
    graph, chosen = body_view("cmu-humanoid", OBSERVATION_SLICES, 56)
    assert chosen is not None
    assert len(chosen) == graph.obs_dim == 1294
    assert sorted(set(chosen)) == list(chosen)
