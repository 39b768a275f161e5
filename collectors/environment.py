"""The legged task on any physics back end: observation, reward, termination, pushes, signals.

All arrays have the robot as first axis. The environment never resets by itself: when an episode
ends, the observation returned with it is the true final one, and whoever drives the environment
starts the next episode.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collectors.commands import N_COMMANDS, C, ramped
from collectors.episodes import EpisodeDraws, EpisodeSpec, draw_episode
from collectors.gait import leg_phases
from collectors.kinematics import LegKinematics
from collectors.observations import (
    NOISE_DIM,
    SCAN_POINTS,
    policy_observation,
)
from collectors.passages import place_barriers, steer
from collectors.physics import InitialState, make_backend
from collectors.policies import Observation
from collectors.randomisation import N_DRAWS, standardised
from collectors.rewards import StepView, total_reward
from collectors.robots import N_JOINTS, RobotCard
from collectors.rotations import from_yaw, gravity_in_body, rotate_inverse, yaw_of
from collectors.skills import N_SIGNALS, Track, signals, succeeded
from collectors.terrains import TerrainBatch, TerrainTile, make_tile, tile_heights
from collectors.timing import CONTROL_DT_S, EPISODE_STEPS

CONTACT_FORCE_N = 1.0
MIN_UPRIGHT = 0.3
"""Cosine of the lean from the commanded attitude at which an episode ends: about 72 degrees (mjlab:
70 from the vertical). It also ends when the trunk touches the ground."""
MAX_ACTION = 12.0
TARGET_MARGIN_RAD = 0.5
"""How far beyond its limits a joint's target may lie: there the PD law pushes with full torque."""
START_CLEARANCE_M = 0.01

_FOOTPRINT = np.abs(SCAN_POINTS[:, 0]) <= 0.4
_FOOT_X, _FOOT_Y = SCAN_POINTS[_FOOTPRINT].T


@dataclass(frozen=True)
class Transition:
    """Outcome of a control step; `observation` is the one after it, also where an episode ended."""

    observation: Observation
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


class LeggedEnvironment:
    """N independent robots, each in its own episode.

    Args:
        robot: the robot card; backend: name of the simulator; threads: how many step it.
        episode_steps: control steps after which an episode is truncated.
    """

    def __init__(
        self,
        robot: RobotCard,
        num_robots: int,
        threads: int = 2,
        backend: str = "mujoco",
        episode_steps: int = EPISODE_STEPS,
    ):
        self.robot = robot
        self.num_robots = num_robots
        self.episode_steps = episode_steps
        self.physics = make_backend(backend, robot, num_robots, threads)
        self.terrain = TerrainBatch(num_robots)
        self.specs: list[EpisodeSpec | None] = [None] * num_robots
        self.episode_draws: list[EpisodeDraws | None] = [None] * num_robots
        self.step_count = np.zeros(num_robots, dtype=np.int64)
        self.target_command = np.zeros((num_robots, N_COMMANDS))
        self.target_command[:, C.GAIT_DUTY] = 1.0
        self.track_origin = np.zeros((num_robots, 2))
        self.track_yaw = np.zeros(num_robots)
        self._passage = np.zeros((num_robots, 4))
        self._rows = np.arange(num_robots)
        feet = LegKinematics(robot).foot_positions(robot.default_joint_pos_rad[None])
        self._standing_height_m = float(robot.foot_radius_m - feet[0, :, 2].min())
        self._draws = np.zeros((num_robots, N_DRAWS))
        self._noise = np.zeros((num_robots, episode_steps + 1, NOISE_DIM), dtype=np.float32)
        self._push_step = np.full(num_robots, -1)
        self._push_velocity = np.zeros((num_robots, 2))
        self._last_action = np.zeros((num_robots, N_JOINTS))
        self._reward = np.zeros(num_robots, dtype=np.float32)
        self._signals = np.zeros((num_robots, episode_steps, N_SIGNALS), dtype=np.float32)

    def reset(self, ids: np.ndarray, specs: list[EpisodeSpec]) -> None:
        """Start the episode `specs[k]` on robot `ids[k]`; the others are untouched."""
        for index, spec in zip(ids.tolist(), specs, strict=True):
            drawn = draw_episode(spec, self.robot, self.episode_steps)
            tile = make_tile(spec.terrain, spec.level, drawn.terrain_variant)
            self.terrain.set(index, tile)
            self.specs[index], self.episode_draws[index] = spec, drawn
            self.target_command[index] = drawn.command
            self._draws[index] = drawn.draws
            self._noise[index] = drawn.observation_noise
            self._push_step[index] = drawn.push_step
            self._push_velocity[index] = drawn.push_velocity
            joint_pos = np.clip(
                self.robot.default_joint_pos_rad + drawn.joint_offset,
                self.robot.joint_lower_rad,
                self.robot.joint_upper_rad,
            )
            base_pos = np.array([*drawn.offset_xy, self._start_height(tile, drawn)])
            quat = from_yaw(np.array(drawn.yaw))
            start = InitialState(base_pos, quat, drawn.base_vel, joint_pos)
            self.track_origin[index], self.track_yaw[index] = drawn.offset_xy, drawn.yaw
            self._passage[index] = _passage_row(drawn)
            barriers = (
                place_barriers(drawn.passage, tile, drawn.offset_xy, drawn.yaw)
                if drawn.passage
                else ()
            )
            self.physics.reset(index, tile, barriers, drawn.draws, start)
        self.step_count[ids] = 0
        self._last_action[ids] = 0.0
        self._reward[ids] = 0.0

    def _start_height(self, tile: TerrainTile, drawn: EpisodeDraws) -> float:
        """Height at which the default pose stands on the highest point under the robot."""
        c, s = np.cos(drawn.yaw), np.sin(drawn.yaw)
        footprint = SCAN_POINTS[_FOOTPRINT] @ np.array([[c, s], [-s, c]]) + drawn.offset_xy
        ground = tile_heights(tile, footprint).max()
        return float(ground) + self._standing_height_m + START_CLEARANCE_M

    def observe(self) -> Observation:
        """The observation before the next control step."""
        return self._observation(self._geometry())

    def step(self, action: np.ndarray) -> Transition:
        """Execute actions (N, 12) for one control step.

        Raises:
            ValueError: an action of another shape, or one that is not finite.
        """
        if action.shape != (self.num_robots, N_JOINTS):
            raise ValueError(f"action has shape {action.shape}, not {(self.num_robots, N_JOINTS)}")
        if not np.isfinite(action).all():
            raise ValueError("action holds a value that is not finite")
        action = np.clip(action.astype(np.float64), -MAX_ACTION, MAX_ACTION)
        command = self.command()
        pushed = np.flatnonzero(self.step_count == self._push_step)
        if len(pushed):
            self.physics.push(pushed, self._push_velocity[pushed])
        self.physics.step(self.joint_targets(action))

        geometry = self._geometry()
        view = self._view(geometry, command, action)
        reward = (total_reward(view) * CONTROL_DT_S).astype(np.float32)
        recorded = signals(view, self.physics.state.base_pos, self.on_track()[:, :2])
        self._signals[self._rows, np.minimum(self.step_count, self.episode_steps - 1)] = recorded
        self.step_count += 1
        upright = np.einsum("nk,nk->n", view.gravity, view.desired_gravity)
        terminated = (view.trunk_force_n > CONTACT_FORCE_N) | (upright < MIN_UPRIGHT)
        truncated = ~terminated & (self.step_count >= self.episode_steps)
        self._last_action = action
        self._reward = reward
        return Transition(self._observation(geometry), reward, terminated, truncated)

    def joint_targets(self, action: np.ndarray) -> np.ndarray:
        """(N, 12) rad: default pose plus scaled action, within the joint limits and a margin."""
        robot = self.robot
        targets = robot.default_joint_pos_rad + robot.action_scale_rad * action
        margin = TARGET_MARGIN_RAD
        return np.clip(targets, robot.joint_lower_rad - margin, robot.joint_upper_rad + margin)

    def command(self) -> np.ndarray:
        """(N, 16) the command in force; where a passage stands, it steers along the track."""
        command = ramped(self.target_command, self.step_count * CONTROL_DT_S)
        where = self._passage[:, 0] != 0
        if where.any():
            _, across, heading = self.on_track()[where].T
            command[where] = steer(command[where], across, heading)
        return command

    def on_track(self) -> np.ndarray:
        """(N, 3): how far along and across its track each base is, m, and its heading, rad."""
        state = self.physics.state
        ahead = state.base_pos[:, :2] - self.track_origin
        c, s = np.cos(self.track_yaw), np.sin(self.track_yaw)
        heading = yaw_of(state.base_quat) - self.track_yaw
        return np.stack(
            [
                c * ahead[:, 0] + s * ahead[:, 1],
                c * ahead[:, 1] - s * ahead[:, 0],
                (heading + np.pi) % (2 * np.pi) - np.pi,
            ],
            axis=1,
        )

    def clock(self) -> np.ndarray:
        """(N,) gait clock in cycles.

        It is 0 at an episode's start, so that the phase is a function of what can be observed.
        """
        return self.target_command[:, C.GAIT_FREQUENCY] * self.step_count * CONTROL_DT_S

    def track(self, index: int) -> Track:
        """The signals of robot `index`'s episode so far."""
        signals_so_far = self._signals[index, : self.step_count[index]].copy()
        drawn = self.episode_draws[index]
        return Track(
            signals_so_far,
            self.target_command[index].copy(),
            drawn.passage if drawn else None,
            self.robot.trunk_half_size_m[0],
        )

    def success(self, index: int, terminated: bool) -> bool:
        """Whether robot `index`'s episode, now ended, met its skill's criterion."""
        spec = self.specs[index]
        return spec is not None and succeeded(spec.skill, self.track(index), terminated)

    def close(self) -> None:
        """Free the simulator."""
        self.physics.close()

    def _geometry(self) -> _Geometry:
        state = self.physics.state
        yaw = yaw_of(state.base_quat)
        cos, sin = np.cos(yaw), np.sin(yaw)
        x = cos[:, None] * SCAN_POINTS[:, 0] - sin[:, None] * SCAN_POINTS[:, 1]
        y = sin[:, None] * SCAN_POINTS[:, 0] + cos[:, None] * SCAN_POINTS[:, 1]
        points = np.stack([x, y], axis=-1) + state.base_pos[:, None, :2]
        scan = self.terrain.heights_at(points).astype(np.float64)
        under = scan[:, _FOOTPRINT]
        # Least-squares plane under the robot: the sample grid is symmetric, so the sums decouple.
        # Sums row by row: a matrix product's last bit depends on how many robots there are.
        slope_x = (under * _FOOT_X).sum(axis=1) / np.square(_FOOT_X).sum()
        slope_y = (under * _FOOT_Y).sum(axis=1) / np.square(_FOOT_Y).sum()
        ground = under.mean(axis=1)
        gravity = gravity_in_body(state.base_quat)
        vx, vy = state.base_lin_vel_world[:, 0], state.base_lin_vel_world[:, 1]
        return _Geometry(
            scan=scan,
            height=state.base_pos[:, 2] - ground,
            slope_x=slope_x,
            slope_y=slope_y,
            gravity=gravity,
            lin_vel_body=rotate_inverse(state.base_quat, state.base_lin_vel_world),
            lin_vel_heading=np.stack([cos * vx + sin * vy, cos * vy - sin * vx], axis=1),
            yaw_rate=-np.einsum("nk,nk->n", gravity, state.base_ang_vel_body),
            heading=np.stack([cos, sin], axis=1),
        )

    def _stance_width(self, geometry: _Geometry) -> np.ndarray:
        """(N,) distance between the left and the right feet across the heading, m."""
        feet = self.physics.state.foot_pos[..., :2] - self.physics.state.base_pos[:, None, :2]
        cos, sin = geometry.heading.T
        across = -sin[:, None] * feet[..., 0] + cos[:, None] * feet[..., 1]
        side = self.robot.leg_signs[:, 1]
        return (across * side).sum(axis=1) / 2

    def _foot_contact(self) -> np.ndarray:
        return np.linalg.norm(self.physics.state.foot_force, axis=2) > CONTACT_FORCE_N

    def _view(self, geometry: _Geometry, command: np.ndarray, action: np.ndarray) -> StepView:
        state = self.physics.state
        return StepView(
            robot=self.robot,
            command=command,
            lin_vel_body=geometry.lin_vel_body,
            lin_vel_heading=geometry.lin_vel_heading,
            yaw_rate=geometry.yaw_rate,
            ang_vel_body=state.base_ang_vel_body,
            gravity=geometry.gravity,
            desired_gravity=_desired_gravity(geometry, command),
            height_m=geometry.height,
            joint_pos=state.joint_pos,
            joint_vel=state.joint_vel,
            joint_torque=state.joint_torque,
            foot_vel=state.foot_vel,
            foot_contact=self._foot_contact(),
            stance_width_m=self._stance_width(geometry),
            knee_force_n=np.linalg.norm(state.knee_force, axis=2),
            trunk_force_n=np.linalg.norm(state.trunk_force, axis=1),
            barrier_force_n=state.barrier_force,
            barrier_body_force_n=state.barrier_body_force,
            action=action,
            last_action=self._last_action,
        )

    def _observation(self, geometry: _Geometry) -> Observation:
        state = self.physics.state
        command, clock = self.command(), self.clock()
        noise = self._noise[self._rows, np.minimum(self.step_count, self.episode_steps)]
        policy = policy_observation(
            geometry.gravity,
            state.joint_vel,
            state.joint_pos,
            state.base_ang_vel_body,
            self._last_action,
            command,
            noise,
        )
        return Observation(
            policy=policy,
            reward=self._reward.copy(),
            command=command,
            clock=clock,
            make_privileged=lambda: self._privileged(geometry, command, clock),
        )

    def _privileged(
        self, geometry: _Geometry, command: np.ndarray, clock: np.ndarray
    ) -> np.ndarray:
        """(N, PRIVILEGED_DIM) float32 in the order of `observations.PRIVILEGED_SLICES`."""
        state = self.physics.state
        phase = 2 * np.pi * leg_phases(command, clock)
        height_error = geometry.height - self.robot.nominal_height_m - command[:, C.BODY_HEIGHT]
        scan = state.base_pos[:, 2:3] - geometry.scan - self.robot.nominal_height_m
        return np.concatenate(
            [
                geometry.lin_vel_body,
                state.base_ang_vel_body,
                geometry.lin_vel_heading,
                geometry.yaw_rate[:, None],
                geometry.gravity,
                geometry.gravity - _desired_gravity(geometry, command),
                state.joint_pos - self.robot.default_joint_pos_rad,
                state.joint_vel,
                height_error[:, None],
                self._foot_contact(),
                np.sin(phase),
                np.cos(phase),
                np.minimum(clock, 4.0)[:, None] / 4.0,
                self._passage_ahead(),
                np.clip(scan, -1.0, 1.0),
                standardised(self._draws),
            ],
            axis=1,
        ).astype(np.float32)

    def _passage_ahead(self) -> np.ndarray:
        """(N, 6): kind (-1 bar, 1 walls), m to the start and the end, opening, offset, heading.

        All 0 on open ground.
        """
        kind, start, end, opening = self._passage.T
        along, across, heading = self.on_track().T
        ahead = np.stack([kind, start - along, end - along, opening, across, heading], axis=1)
        return np.where(kind[:, None] != 0, ahead, 0.0)


def _passage_row(drawn: EpisodeDraws) -> tuple[float, float, float, float]:
    """Kind (0 on open ground, -1 bar, 1 walls), start, end and opening of an episode's passage."""
    passage = drawn.passage
    if passage is None:
        return 0.0, 0.0, 0.0, 0.0
    kind = -1.0 if passage.kind == "bar" else 1.0
    return kind, passage.start_m, passage.end_m, passage.opening_m


@dataclass(frozen=True)
class _Geometry:
    """Where the trunk is relative to the ground and the world; (N, ...) float64.

    slope_x, slope_y: rise of the terrain plane along and across the heading, m/m.
    """

    scan: np.ndarray
    height: np.ndarray
    slope_x: np.ndarray
    slope_y: np.ndarray
    gravity: np.ndarray
    lin_vel_body: np.ndarray
    lin_vel_heading: np.ndarray
    yaw_rate: np.ndarray
    heading: np.ndarray


def _desired_gravity(geometry: _Geometry, command: np.ndarray) -> np.ndarray:
    """(N, 3) gravity in the frame of a trunk with the commanded pitch and roll over the terrain."""
    slope_x, slope_y = geometry.slope_x, geometry.slope_y
    norm = np.sqrt(1.0 + slope_x**2 + slope_y**2)
    x = -slope_x / np.sqrt(1.0 + slope_x**2)
    z = -1.0 / norm
    y = -np.sign(slope_y) * np.sqrt(np.maximum(1.0 - x * x - z * z, 0.0))
    sp, cp = np.sin(command[:, C.BODY_PITCH]), np.cos(command[:, C.BODY_PITCH])
    sr, cr = np.sin(command[:, C.BODY_ROLL]), np.cos(command[:, C.BODY_ROLL])
    x, z = cp * x - sp * z, sp * x + cp * z
    y, z = cr * y + sr * z, -sr * y + cr * z
    return np.stack([x, y, z], axis=1)
