"""Quadrupeds as model collections have them: classes, other names and order, turned bodies."""

from collections.abc import Sequence
from pathlib import Path

import mujoco
import numpy as np

from gaitforge.collectors.robots.robot import JOINTS_PER_LEG, LEGS, RobotCard

Edits = Sequence[tuple[str, str]]

_LEGS = {"RF": (1, -1), "LF": (1, 1), "RH": (-1, -1), "LH": (-1, 1)}
"""Right legs first; front +1, left +1. Hips of right legs turn about -x, knees point inwards."""
_HEAD = """<mujoco model="Beast">
  <compiler angle="degree" autolimits="true" meshdir="assets" texturedir="assets"/>
  <option timestep="0.002" integrator="implicitfast" cone="elliptic" impratio="100"/>
  <default>
    <default class="beast">
      <joint damping="0.1" armature="0.01" frictionloss="0.2"/>
      <position kp="90" kv="2" forcerange="-40 40"/>
      <default class="roll"><joint axis="1 0 0" range="-40 40"/></default>
      <default class="pitch"><joint axis="0 0 1" range="-100 100"/></default>
      <default class="knee"><joint axis="0 0 1" range="-150 150"/></default>
      <default class="visual">
        <geom type="mesh" contype="0" conaffinity="0" group="2" material="paint"/>
      </default>
      <default class="collision"><geom group="3" type="capsule"/></default>
    </default>
  </default>
  <asset>
    <texture name="paint" type="2d" file="paint.png"/>
    <material name="paint" texture="paint"/>
    <mesh file="shell.obj"/>
    <mesh name="block" vertex="-.02 -.02 -.02 .02 -.02 -.02 -.02 .02 -.02 .02 .02 -.02
      -.02 -.02 .02 .02 -.02 .02 -.02 .02 .02 .02 .02 .02"/>
  </asset>
  <worldbody>
    <light pos="0 0 3"/>
    <geom name="floor" type="plane" size="0 0 1" material="paint"/>
    <body name="base" pos="0 0 0.5" quat="0 0 0 1" childclass="beast">
      <freejoint/>
      <inertial pos="0 0 0.01" mass="8" diaginertia="0.1 0.2 0.2"/>
      <geom class="visual" mesh="shell"/>
      <geom class="collision" type="box" size="0.2 0.06 0.05"/>
      <geom class="collision" size="0.04" fromto="0.2 0 0.03 0.26 0 0.03"/>
      <site name="imu"/>
      <body name="mast" pos="0 0 0.05"><geom class="collision" type="sphere" size="0.03"/></body>
"""
_LEG = """
      <body name="{leg}_HIP" pos="{hip_x} {hip_y} 0">
        <inertial pos="0 0 0" mass="0.6" diaginertia="0.001 0.001 0.001"/>
        <joint name="{leg}_HAA" class="roll" axis="{roll} 0 0"/>
        <geom class="visual" mesh="shell"/>
        <body name="{leg}_THIGH" pos="0 {thigh_y} 0" euler="90 0 0">
          <inertial pos="0 -0.1 0" mass="0.8" diaginertia="0.004 0.001 0.004"/>
          <joint name="{leg}_HFE" class="pitch"/>
          <geom class="collision" size="0.02" fromto="0 0 0 0 -0.2 0"/>
          <body name="{leg}_SHANK" pos="0 -0.2 0">
            <inertial pos="0 -0.1 0" mass="0.2" diaginertia="0.001 0.0001 0.001"/>
            <joint name="{leg}_KFE" class="knee"/>
            <geom class="collision" size="0.012" fromto="0 0 0 0 -0.15 0"/>
            <body name="{leg}_FOOT" pos="0 -0.2 0.01">
              <geom name="{leg}" class="collision" {foot}/>
            </body>
          </body>
        </body>
      </body>
"""
FOOT = 'size="0.02" fromto="0 0 0 0 0.03 0"'
"""A capsule; its axis is the calf's."""


def menagerie_file(
    folder: Path, *edits: tuple[str, str], foot: str = FOOT, legs: Sequence[str] = tuple(_LEGS)
) -> Path:
    """Write an MJCF with parts of its text replaced; its meshes and textures are not there.

    Its angles are in degrees, its pitch axes are -y in the trunk's frame, its right hips' -x.
    """
    text = _HEAD
    for leg in legs:
        front, left = _LEGS[leg]
        places = {"hip_x": 0.22 * front, "hip_y": 0.05 * left, "thigh_y": 0.08 * left}
        text += _LEG.format(leg=leg, roll=left, foot=foot, **places)
    text += "    </body>\n  </worldbody>\n  <actuator>\n"
    for leg in legs:
        for joint in (f"{leg}_HAA", f"{leg}_HFE", f"{leg}_KFE"):
            text += f'    <position class="beast" name="{joint}" joint="{joint}"/>\n'
    text += '  </actuator>\n  <sensor><gyro name="gyro" site="imu"/></sensor>\n'
    home = " ".join("0 -0.7 1.4" if _LEGS[leg][0] > 0 else "0 0.7 -1.4" for leg in legs)
    text += f'  <keyframe><key name="home" qpos="0 0 0.35 1 0 0 0 {home}"/></keyframe>\n</mujoco>\n'
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / "beast.xml"
    path.write_text(text)
    return path


def turned_file(path: Path, robot: RobotCard, seed: int) -> np.ndarray:
    """Write a card's legs as an MJCF of arbitrarily turned bodies; returns joint zeros (12,).

    Frames of bodies, order of legs, zeros of thighs and calves, and the trunk's place are drawn
    from the seed. The MJCF's angles are the card's plus the zeros.
    """
    rng = np.random.default_rng(seed)
    zeros = rng.uniform(-0.5, 0.5, 12)
    zeros[::JOINTS_PER_LEG] = 0.0
    spec = mujoco.MjSpec()
    spec.modelname, spec.compiler.degree = "turned", False
    trunk = spec.worldbody.add_body(name="trunk", pos=rng.normal(size=3), quat=rng.normal(size=4))
    trunk.add_freejoint()
    trunk.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=[0.2, 0.1, 0.05], mass=12.0)
    for leg in rng.permutation(len(LEGS)):
        above, axes = trunk, np.eye(3)
        offsets = (robot.hip_offset_m, robot.thigh_offset_m, robot.knee_offset_m)
        for part, offset in enumerate(offsets):
            i = JOINTS_PER_LEG * leg + part
            turned = _rotation(rng)
            quat = np.zeros(4)
            mujoco.mju_mat2Quat(quat, (axes.T @ turned).ravel())
            above = above.add_body(name=f"body {i}", pos=axes.T @ offset[leg], quat=quat)
            axes = turned
            along = np.eye(3)[0 if part == 0 else 1]
            low, high = robot.joint_lower_rad[i], robot.joint_upper_rad[i]
            above.add_joint(
                name=robot.joint_names[i],
                axis=robot.joint_signs[i] * axes.T @ along,
                range=[low + zeros[i], high + zeros[i]],
                actfrcrange=[-200, 200],
                ref=zeros[i],
                armature=0.02,
            )
            above.add_geom(size=[0.02, 0, 0], mass=0.5)
        place = axes.T @ robot.foot_offset_m[leg]
        above.add_body(pos=place).add_geom(name=f"foot {leg}", size=[0.025, 0, 0], mass=0.1)
    spec.compile()
    path.write_text(spec.to_xml())
    return zeros


def _rotation(rng: np.random.Generator) -> np.ndarray:
    """(3, 3) a random rotation."""
    axes, quat = np.zeros(9), rng.normal(size=4)
    mujoco.mju_quat2Mat(axes, quat / np.linalg.norm(quat))
    return axes.reshape(3, 3)
