"""The legged task on any physics back end: observation, reward, termination, pushes, signals.

The first axis of all arrays is the robot. The environment never resets by itself: the observation
returned at an episode's end is the true final one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gaitforge.collectors.legged import observations
from gaitforge.collectors.legged.episodes import EpisodeDraws, EpisodeSpec, draw_episode
from gaitforge.collectors.legged.rewards import (
    FOOTPRINT,
    REWARDS,
    Geometry,
    Rewards,
    StepView,
    heights_above,
    on_track,
    signals,
    total_reward,
)
from gaitforge.collectors.physics import make_backend
from gaitforge.collectors.physics.interface import RobotStart
from gaitforge.collectors.policy import Observation
from gaitforge.collectors.robots.kinematics import N_COMMANDS, C, RobotBatch, leg_phases, ramped
from gaitforge.collectors.robots.robot import N_JOINTS, RobotCard
from gaitforge.collectors.rotations import cosine, from_yaw, lengths, sine, yaw_of
from gaitforge.collectors.scenarios.quantities import MAX_DELAY_STEPS
from gaitforge.collectors.scenarios.randomisation import (
    DEFAULT,
    DRAW_INDEX,
    DRAWS,
    N_STANDARD,
    Randomisation,
    check_draws,
    indices,
    standardised,
)
from gaitforge.collectors.scenarios.schedules import Schedule
from gaitforge.collectors.scenarios.skills import ALL_SKILLS, N_SIGNALS, Track
from gaitforge.collectors.scenarios.terrains import (
    OPEN_GROUND,
    TerrainBatch,
    make_tile,
    place_barriers,
    steer,
    tile_heights,
    to_world,
)
from gaitforge.collectors.timing import CONTROL_DT_S, EPISODE_STEPS

CONTACT_FORCE_N = 1.0
MIN_UPRIGHT = 0.3
"""Cosine of the largest lean from the commanded attitude, 72 degrees (mjlab: 70 from the vertical).
An episode ends beyond it, or when the trunk touches the ground."""
MAX_ACTION = 12.0
TARGET_MARGIN_RAD = 0.5
"""Joint targets may lie this far beyond the limits: full torque at the limit."""
START_CLEARANCE_M = 0.01
_REALISED_WITHIN = 0.02
"""Allowed difference between a range's end and what a back end realises: Isaac Gym's frictions."""
_PUSH_TURN = np.pi * (3.0 - np.sqrt(5.0))
"""The golden angle, by which each further push is turned from the one before."""
_SENSOR_NOISE = indices("sensor_noise")
_NOISE_WIDTHS = [stop - start for start, stop in observations.NOISE_SLICES.values()]
_PATCH = DRAW_INDEX["patch_start_m"]
_PATCH_FRICTION = DRAW_INDEX["patch_friction"]
_DELAY = DRAW_INDEX["observation_delay_steps"]
_INTERVAL = DRAW_INDEX["push_interval_s"]
_PASSAGE_KINDS = {"none": 0.0, "bar": -1.0, "walls": 1.0}


@dataclass(frozen=True)
class Transition:
    """Outcome of a control step, with the observation after it."""

    observation: Observation
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


class LeggedEnvironment:
    """N independent robots, each in its own episode.

    Args:
        robot: one robot for all rows, or one of a family for each row.
        episode_steps: control steps after which an episode is truncated.
        randomisation: what the draws of episodes are drawn from.
        rewards: the terms of the reward.

    Raises:
        ValueError: a randomisation that the back end cannot simulate, or a robot cannot have.

    Attributes:
        robots: the rows' robots; robot: the first of them.
        view: inputs of reward and termination at the last step; None before the first.
    """

    def __init__(
        self,
        robot: RobotCard | Sequence[RobotCard],
        num_robots: int,
        threads: int = 2,
        backend: str = "mujoco",
        episode_steps: int = EPISODE_STEPS,
        randomisation: Randomisation = DEFAULT,
        rewards: Rewards = REWARDS,
    ):
        self.robots = RobotBatch(*([robot] if isinstance(robot, RobotCard) else robot))
        self.robot = self.robots[0]
        if len(self.robots) not in (1, num_robots):
            raise ValueError(f"{len(self.robots)} robots for {num_robots} rows")
        self.num_robots = num_robots
        self.episode_steps = episode_steps
        self.randomisation = randomisation
        self.rewards = rewards
        self.physics = make_backend(backend, self.robots.robots, num_robots, threads)
        try:
            self._check_randomisation()
        except ValueError:
            self.physics.close()
            raise
        self.terrain = TerrainBatch(num_robots)
        self.specs: list[EpisodeSpec | None] = [None] * num_robots
        self.episode_draws: list[EpisodeDraws | None] = [None] * num_robots
        self.step_count = np.zeros(num_robots, dtype=np.int64)
        self.target_command = np.zeros((num_robots, N_COMMANDS))
        self.target_command[:, C.GAIT_DUTY] = 1.0
        # Commands and gait clock of each step, for robots whose command changes within the episode.
        self._scheduled = np.zeros(num_robots, dtype=bool)
        self._commands = np.zeros((0, 0, N_COMMANDS))
        self._clocks = np.zeros((0, 0))
        self.track_origin = np.zeros((num_robots, 2))
        self.track_yaw = np.zeros(num_robots)
        self._passage = np.zeros((num_robots, 4))  # kind, start, end, opening; 0 on open ground
        self._rows = np.arange(num_robots)
        self._draws = np.zeros((num_robots, N_STANDARD), dtype=np.float32)
        self._noise = np.zeros(
            (num_robots, episode_steps + 1, observations.NOISE_DIM), dtype=np.float32
        )
        self._push_step = np.full(num_robots, -1)
        self._push_velocity = np.zeros((num_robots, 2))
        self._push_every = np.zeros(num_robots, dtype=np.int64)
        self._delay = np.zeros(num_robots, dtype=np.int64)
        # Where slippery ground begins, and its friction; NaN beyond it.
        self._patch = np.full((num_robots, 2), np.nan)
        # The measured values of the last steps, for robots whose sensors lag.
        self._measured = np.zeros((num_robots, MAX_DELAY_STEPS + 1, observations.NOISE_DIM))
        self._last_action = np.zeros((num_robots, N_JOINTS))
        self._command: np.ndarray | None = None
        self._where = np.zeros((num_robots, 3))
        self._reward = np.zeros(num_robots, dtype=np.float32)
        self.view: StepView | None = None
        self._signals = np.zeros((num_robots, episode_steps, N_SIGNALS), dtype=np.float32)
        self._action_noise = np.zeros((num_robots, episode_steps, N_JOINTS), dtype=np.float32)

    def reset(self, ids: np.ndarray, specs: list[EpisodeSpec]) -> None:
        """Start episode `specs[k]` on robot `ids[k]`."""
        for index, spec in zip(ids.tolist(), specs, strict=True):
            robot = self.robots[index]
            drawn = draw_episode(spec, robot, self.episode_steps, self.randomisation)
            drawn = replace(drawn, draws=self.physics.realised(drawn.draws))
            tile = make_tile(spec.terrain, spec.level, drawn.terrain_variant)
            self.terrain.set(index, tile)
            self.specs[index] = spec
            self.episode_draws[index] = drawn
            self.target_command[index] = drawn.command
            self._schedule(index, drawn.schedule)
            self._draws[index] = standardised(drawn.draws)
            noise = np.repeat(drawn.draws[_SENSOR_NOISE], _NOISE_WIDTHS).astype(np.float32)
            self._noise[index] = drawn.observation_noise * noise
            self._patch[index] = drawn.draws[_PATCH], drawn.draws[_PATCH_FRICTION]
            self._delay[index] = int(drawn.draws[_DELAY])
            self._push_every[index] = round(drawn.draws[_INTERVAL] / CONTROL_DT_S)
            self._action_noise[index] = drawn.action_noise if spec.action_noise > 0 else 0.0
            self._push_step[index] = drawn.push_step
            self._push_velocity[index] = drawn.push_velocity
            joint_pos = np.clip(
                robot.default_joint_pos_rad + drawn.joint_offset,
                robot.joint_lower_rad,
                robot.joint_upper_rad,
            )
            height = self.robots.standing_height_m[index % len(self.robots)]
            footprint = to_world(observations.SCAN_POINTS[FOOTPRINT], drawn.offset_xy, drawn.yaw)
            height += float(tile_heights(tile, footprint).max()) + START_CLEARANCE_M
            base_pos = np.array([*drawn.offset_xy, height])
            quat = from_yaw(np.array(drawn.yaw))
            self.track_origin[index] = drawn.offset_xy
            self.track_yaw[index] = drawn.yaw
            passage = drawn.passage or OPEN_GROUND
            kind = _PASSAGE_KINDS[passage.kind]
            self._passage[index] = kind, passage.start_m, passage.end_m, passage.opening_m
            barriers = place_barriers(drawn.passage, tile, drawn.offset_xy, drawn.yaw)
            start = RobotStart(
                base_pos, joint_pos, quat, drawn.base_vel, tile, barriers, drawn.draws
            )
            self.physics.reset(index, start)
        self._command = None
        self.step_count[ids] = 0
        self._last_action[ids] = 0.0
        self._where[ids] = 0.0
        self._reward[ids] = 0.0

    def observe(self) -> Observation:
        """The observation before the next control step."""
        return self._observation(*self._look())

    def step(self, action: np.ndarray) -> Transition:
        """Execute finite actions (N, 12) for one control step; ValueError for others."""
        if action.shape != (self.num_robots, N_JOINTS):
            raise ValueError(f"action has shape {action.shape}, not {(self.num_robots, N_JOINTS)}")
        if not np.isfinite(action).all():
            raise ValueError("action holds a value that is not finite")
        action = np.clip(action.astype(np.float64), -MAX_ACTION, MAX_ACTION)
        # Still the last observation's if nothing has changed since.
        command = self.command() if self._command is None else self._command
        self._push()
        self._slip(self._where)
        self.physics.step(self.joint_targets(action))

        geometry, on_track = self._look()
        view = self.view = self._view(geometry, command, action)
        reward = (total_reward(view, self.rewards) * CONTROL_DT_S).astype(np.float32)
        recorded = signals(view, on_track)
        self._signals[self._rows, np.minimum(self.step_count, self.episode_steps - 1)] = recorded
        self.step_count += 1
        upright = np.einsum("nk,nk->n", view.geometry.gravity, view.desired_gravity)
        terminated = (view.trunk_force_n > CONTACT_FORCE_N) | (upright < MIN_UPRIGHT)
        truncated = ~terminated & (self.step_count >= self.episode_steps)
        self._last_action = action
        self._reward = reward
        return Transition(self._observation(geometry, on_track), reward, terminated, truncated)

    def _schedule(self, index: int, schedule: Schedule | None) -> None:
        """Take the commands of robot `index`'s episode from a schedule; None for a constant one."""
        self._scheduled[index] = schedule is not None
        if schedule is None:
            return
        if not len(self._commands):
            self._commands = np.zeros((self.num_robots, self.episode_steps + 1, N_COMMANDS))
            self._clocks = np.zeros((self.num_robots, self.episode_steps + 1))
        commands = self._commands[index] = schedule.commands(self.episode_steps + 1)
        self._clocks[index] = schedule.clock(commands)

    def _slip(self, on_track: np.ndarray) -> None:
        """Change the friction under robots that come to where the ground turns slippery."""
        for index in np.flatnonzero(on_track[:, 0] >= self._patch[:, 0]):
            self.physics.set_friction(int(index), self._patch[index, 1])
            self._patch[index] = np.nan

    def _push(self) -> None:
        """Push robots whose push is due, each further time in another direction."""
        since = self.step_count - self._push_step
        every = self._push_every
        again = (every > 0) & (since > 0) & (since % np.maximum(every, 1) == 0)
        pushed = np.flatnonzero((self._push_step >= 0) & ((since == 0) | again))
        if not len(pushed):
            return
        angle = _PUSH_TURN * (since[pushed] // np.maximum(every[pushed], 1))
        x, y = self._push_velocity[pushed].T
        sin, cos = np.where(since[pushed] == 0, [[0.0], [1.0]], [sine(angle), cosine(angle)])
        self.physics.push(pushed, np.stack([cos * x - sin * y, sin * x + cos * y], axis=1))

    def action_noise(self) -> np.ndarray:
        """(N, 12) float32 noise on the next executed actions."""
        return self._action_noise[self._rows, np.minimum(self.step_count, self.episode_steps - 1)]

    def joint_targets(self, action: np.ndarray) -> np.ndarray:
        """(N, 12) rad: default pose plus scaled action, within the joint limits and a margin."""
        robot = self.robots
        targets = robot.default_joint_pos_rad + robot.action_scale_rad * action
        margin = TARGET_MARGIN_RAD
        return np.clip(targets, robot.joint_lower_rad - margin, robot.joint_upper_rad + margin)

    def command(self) -> np.ndarray:
        """(N, 16) the command in force, with steering on tracks that have a passage."""
        return self._steered(self.on_track())

    def on_track(self) -> np.ndarray:
        """(N, 3): each base's position along and across its track, m, and its heading, rad."""
        return self._on_track(yaw_of(self.physics.state.base_quat))

    def clock(self) -> np.ndarray:
        """(N,) gait clock in cycles, 0 at an episode's start and while a schedule says stand."""
        clock = self.target_command[:, C.GAIT_FREQUENCY] * self.step_count * CONTROL_DT_S
        if self._scheduled.any():
            rows, step = self._scheduled_steps()
            clock[rows] = self._clocks[rows, step]
        return clock

    def track(self, index: int) -> Track:
        """The signals of robot `index`'s episode so far."""
        values = self._signals[index, : self.step_count[index]].copy()
        drawn = self.episode_draws[index]
        spec = self.specs[index]
        passage = drawn.passage if drawn else None
        command = self.target_command[index].copy()
        noise = spec.action_noise if spec else 0.0
        return Track(values, command, passage, self.robots[index].trunk_half_size_m[0], noise)

    def success(self, index: int, terminated: bool) -> bool:
        """Whether an episode met its skill's or schedule's criterion; never after a fall."""
        spec = self.specs[index]
        drawn = self.episode_draws[index]
        if spec is None or drawn is None or terminated:
            return False
        judge = drawn.schedule or ALL_SKILLS[spec.skill]
        return judge.succeeded(self.track(index))

    def close(self) -> None:
        """Free the simulator."""
        self.physics.close()

    def _steered(self, on_track: np.ndarray) -> np.ndarray:
        command = ramped(self.target_command, self.step_count * CONTROL_DT_S)
        where = self._passage[:, 0] != 0
        if self._scheduled.any():
            rows, step = self._scheduled_steps()
            command[rows] = self._commands[rows, step]
            where &= command[:, C.LOCOMOTE] > 0
        if where.any():
            _, across, heading = on_track[where].T
            command[where] = steer(command[where], across, heading)
        return command

    def _scheduled_steps(self) -> tuple[np.ndarray, np.ndarray]:
        """Robots whose command changes, and the step of each."""
        rows = np.flatnonzero(self._scheduled)
        return rows, np.minimum(self.step_count[rows], self.episode_steps)

    def _on_track(self, yaw: np.ndarray) -> np.ndarray:
        return on_track(self.physics.state.base_pos, yaw, self.track_origin, self.track_yaw)

    def _look(self) -> tuple[Geometry, np.ndarray]:
        geometry = Geometry.of(self.physics.state, self.terrain)
        return geometry, self._on_track(geometry.yaw)

    def _foot_contact(self) -> np.ndarray:
        """(N, 4) bool."""
        return lengths(self.physics.state.foot_force) > CONTACT_FORCE_N

    def _view(self, geometry: Geometry, command: np.ndarray, action: np.ndarray) -> StepView:
        state = self.physics.state
        foot_offset = state.foot_pos - state.base_pos[:, None]
        return StepView(
            robots=self.robots,
            command=command,
            state=state,
            geometry=geometry,
            desired_gravity=geometry.desired_gravity(command),
            foot_contact=self._foot_contact(),
            stance_width_m=geometry.stance_width(foot_offset, self.robot.leg_signs[:, 1]),
            knee_force_n=lengths(state.knee_force),
            trunk_force_n=lengths(state.trunk_force[:, None])[:, 0],
            action=action,
            last_action=self._last_action,
        )

    def _observation(self, geometry: Geometry, on_track: np.ndarray) -> Observation:
        state = self.physics.state
        self._where = on_track
        self._command = command = self._steered(on_track)
        clock = self.clock()
        noise = self._noise[self._rows, np.minimum(self.step_count, self.episode_steps)]
        gravity, joint_vel, joint_pos, ang_vel = self._sensed(
            (geometry.gravity, state.joint_vel, state.joint_pos, state.base_ang_vel_body)
        )
        policy = observations.policy_observation(
            gravity, joint_vel, joint_pos, ang_vel, self._last_action, command, noise
        )
        return Observation(
            policy=policy,
            reward=self._reward.copy(),
            command=command,
            clock=clock,
            make_privileged=lambda: self._privileged(geometry, on_track, command, clock),
            heights=lambda points: heights_above(points, state, geometry, self.terrain),
        )

    def _sensed(self, values: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Measured values, laid out by `NOISE_SLICES`, as the robots' sensors show them now."""
        if not self._delay.any():
            return values
        slots = self._measured.shape[1]
        step = self.step_count
        self._measured[self._rows, step % slots] = np.concatenate(values, axis=1)
        late = self._measured[self._rows, np.maximum(step - self._delay, 0) % slots]
        return [late[:, start:stop] for start, stop in observations.NOISE_SLICES.values()]

    def _check_randomisation(self) -> None:
        """ValueError where the back end cannot simulate a draw, or a robot cannot have it."""
        changed = [DRAW_INDEX[name] for name in self.randomisation.changed]
        names = {DRAWS[index].quantity.group: DRAWS[index].quantity.place for index in changed}
        lacking = [name for name, location in names.items() if location == "model"]
        if lacking and not self.physics.model_fields:
            raise ValueError(f"{self.physics.name} cannot vary {', '.join(lacking)}; mujoco can")
        for index, robot in enumerate(self.robots.robots):
            lowest, highest = self.randomisation.ends(robot)
            check_draws(robot, self.physics.trunk_kg(index), lowest)
            check_draws(robot, self.physics.trunk_kg(index), highest)
            for ends in (lowest, highest):
                off = np.abs(self.physics.realised(ends) - ends)[changed]
                if (off > _REALISED_WITHIN).any():
                    worst = changed[int(off.argmax())]
                    name = DRAWS[worst].name
                    value = ends[worst]
                    raise ValueError(f"{self.physics.name} cannot realise {name} {value:g}")

    def _privileged(
        self, geometry: Geometry, on_track: np.ndarray, command: np.ndarray, clock: np.ndarray
    ) -> np.ndarray:
        """(N, PRIVILEGED_DIM) float32 in the order of `observations.PRIVILEGED_SLICES`."""
        state = self.physics.state
        phase = 2 * np.pi * leg_phases(command, clock)
        nominal = self.robots.nominal_height_m
        height_error = geometry.height - nominal - command[:, C.BODY_HEIGHT]
        scan = state.base_pos[:, 2:3] - geometry.scan - nominal[:, None]
        parts = {
            "base_lin_vel_body": geometry.lin_vel_body,
            "base_ang_vel_body": state.base_ang_vel_body,
            "velocity_heading": geometry.velocity_heading,
            "projected_gravity": geometry.gravity,
            "gravity_error": geometry.gravity - geometry.desired_gravity(command),
            "joint_pos_error": state.joint_pos - self.robots.default_joint_pos_rad,
            "joint_vel": state.joint_vel,
            "height_error": height_error[:, None],
            "foot_contact": self._foot_contact(),
            "gait_clock_sin": sine(phase),
            "gait_clock_cos": cosine(phase),
            "gait_clock_cycles": np.minimum(clock, 4.0)[:, None] / 4.0,
            "passage": self._passage_ahead(on_track),
            "height_scan": np.clip(scan, -1.0, 1.0),
            "randomisation": self._draws,
        }
        return observations.joined(parts, observations.PRIVILEGED_SLICES)

    def _passage_ahead(self, on_track: np.ndarray) -> np.ndarray:
        """(N, 6): kind (-1 bar, 1 walls), m to start and end, opening, offset, heading; else 0."""
        kind, start, end, opening = self._passage.T
        along, across, heading = on_track.T
        ahead = np.stack([kind, start - along, end - along, opening, across, heading], axis=1)
        return np.where(kind[:, None] != 0, ahead, 0.0)
