"""The legged task on any physics back end: observation, reward, termination, pushes, signals.

The first axis of all arrays is the robot. The environment never resets by itself: the observation
returned at an episode's end is the true final one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from gaitforge.collectors.legged import observations
from gaitforge.collectors.legged.episodes import EpisodeDraws, EpisodeSpec, draw_episodes
from gaitforge.collectors.legged.rewards import (
    FOOTPRINT,
    REWARDS,
    Geometry,
    Rewards,
    StepView,
    ground_at,
    heights_above,
    on_track,
    signals,
    total_reward,
)
from gaitforge.collectors.physics import make_backend
from gaitforge.collectors.physics.interface import PhysicsState, RobotStart
from gaitforge.collectors.policy import Observation
from gaitforge.collectors.robots.kinematics import N_COMMANDS, C, RobotBatch, leg_phases, ramped
from gaitforge.collectors.robots.robot import N_JOINTS, RobotCard
from gaitforge.collectors.rotations import cosine, from_yaw, lengths, sine, yaw_of
from gaitforge.collectors.row_slices import RowSlices, copied, rows_of, write_rows
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
    ALL_ROWS,
    OPEN_GROUND,
    Rows,
    TerrainBatch,
    make_tile,
    place_barriers,
    steer,
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
_NO_COMMAND = np.array([1.0 if c == C.GAIT_DUTY else 0.0 for c in C])
_PASSAGE_KINDS = {"none": 0.0, "bar": -1.0, "walls": 1.0}


@dataclass(frozen=True)
class Transition:
    """Outcome of a control step, with the observation after it."""

    observation: Observation
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


@dataclass(frozen=True)
class _Sight:
    """What is known of N robots before a control step, in the order of the rows.

    Attributes:
        on_track: (N, 3), see `LeggedEnvironment.on_track`; command (N, 16), clock (N,) and policy
            (N, 70): as `Observation` has them.
    """

    geometry: Geometry
    on_track: np.ndarray
    command: np.ndarray
    clock: np.ndarray
    policy: np.ndarray

    @classmethod
    def empty(cls, rows: int) -> "_Sight":
        """Arrays without values."""
        return cls(
            Geometry.empty(rows),
            np.empty((rows, 3)),
            np.empty((rows, N_COMMANDS)),
            np.empty(rows),
            np.empty((rows, observations.OBS_DIM), dtype=np.float32),
        )


@dataclass(frozen=True)
class _Step:
    """What `StepView` follows from, of N robots."""

    state: PhysicsState
    geometry: Geometry
    command: np.ndarray
    action: np.ndarray
    last_action: np.ndarray

    def view(self, robots: RobotBatch) -> StepView:
        """The inputs of reward, termination and signals; robots: the rows'."""
        state = self.state
        geometry = self.geometry
        foot_offset = state.foot_pos - state.base_pos[:, None]
        return StepView(
            robots=robots,
            command=self.command,
            state=state,
            geometry=geometry,
            desired_gravity=geometry.desired_gravity(self.command),
            foot_contact=lengths(state.foot_force) > CONTACT_FORCE_N,
            stance_width_m=geometry.stance_width(foot_offset, robots[0].leg_signs[:, 1]),
            knee_force_n=lengths(state.knee_force),
            trunk_force_n=lengths(state.trunk_force[:, None])[:, 0],
            action=self.action,
            last_action=self.last_action,
        )


class LeggedEnvironment:
    """N independent robots, each in its own episode.

    Args:
        robot: one robot for all rows, or one of a family for each row.
        threads: of the physics; of the task where the physics computes on a GPU.
        episode_steps: control steps after which an episode is truncated.
        randomisation: what the draws of episodes are drawn from.
        rewards: the terms of the reward.

    Raises:
        ValueError: a randomisation that the back end cannot simulate, or a robot cannot have.

    Attributes:
        robots: the rows' robots; robot: the first of them.
        slices: of the rows, for work by threads; robots_of: the robots of each slice.
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
        on_gpu = self.physics.processor == "cuda"
        self.slices = RowSlices(num_robots, threads if on_gpu else 1)
        self.robots_of = [self.robots.of(rows) for rows in self.slices.parts]
        self.terrain = TerrainBatch(num_robots)
        self.specs: list[EpisodeSpec | None] = [None] * num_robots
        self.episode_draws: list[EpisodeDraws | None] = [None] * num_robots
        self.step_count = np.zeros(num_robots, dtype=np.int64)
        self.target_command = np.tile(_NO_COMMAND, (num_robots, 1))
        # Commands and gait clock of each step, for robots whose command changes within the episode.
        self._scheduled = np.zeros(num_robots, dtype=bool)
        self._commands = np.zeros((0, 0, N_COMMANDS))
        self._clocks = np.zeros((0, 0))
        self.track_origin = np.zeros((num_robots, 2))
        self.track_yaw = np.zeros(num_robots)
        self._passage = np.zeros((num_robots, 4))  # kind, start, end, opening; 0 on open ground
        self._rows = np.arange(num_robots)
        self._draws = np.zeros((num_robots, N_STANDARD), dtype=np.float32)
        noise_shape = num_robots, episode_steps + 1, observations.NOISE_DIM
        self._noise = np.zeros(noise_shape, dtype=np.float32)
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
        self._sight: _Sight | None = None
        self._where = np.zeros((num_robots, 3))
        self._reward = np.zeros(num_robots, dtype=np.float32)
        self._stepped: _Step | None = None
        self._signals = np.zeros((num_robots, episode_steps, N_SIGNALS), dtype=np.float32)
        self._action_noise = np.zeros((num_robots, episode_steps, N_JOINTS), dtype=np.float32)

    def reset(self, ids: np.ndarray, specs: list[EpisodeSpec]) -> None:
        """Start episode `specs[k]` on robot `ids[k]`."""
        if not len(ids):
            return
        robots = [self.robots[index] for index in ids.tolist()]
        drawn = draw_episodes(
            specs, robots, self.episode_steps, self.randomisation, self.physics.realised
        )
        noise_widths = self._keep(ids, drawn)
        rows = zip(ids.tolist(), specs, drawn, noise_widths, strict=True)
        for index, spec, draws, noise_width in rows:
            self.specs[index] = spec
            self.episode_draws[index] = draws
            tile = make_tile(spec.terrain, spec.level, draws.terrain_variant)
            self.terrain.set(index, tile)
            self._schedule(index, draws.schedule)
            np.multiply(draws.observation_noise, noise_width, out=self._noise[index])
            self._action_noise[index] = draws.action_noise
            passage = draws.passage or OPEN_GROUND
            kind = _PASSAGE_KINDS[passage.kind]
            self._passage[index] = kind, passage.start_m, passage.end_m, passage.opening_m
        self._start(ids, drawn)
        self._command = None
        self.step_count[ids] = 0
        self._last_action[ids] = 0.0
        self._where[ids] = 0.0
        self._reward[ids] = 0.0

    def _keep(self, ids: np.ndarray, drawn: Sequence[EpisodeDraws]) -> np.ndarray:
        """Keep the numbers of episodes that start on robots `ids`.

        Returns the factors (K, NOISE_DIM) float32 of their sensors' noise.
        """
        draws = np.stack([episode.draws for episode in drawn])
        self.target_command[ids] = [episode.command for episode in drawn]
        self._draws[ids] = standardised(draws)
        self._patch[ids] = draws[:, [_PATCH, _PATCH_FRICTION]]
        self._delay[ids] = draws[:, _DELAY]
        self._push_every[ids] = np.rint(draws[:, _INTERVAL] / CONTROL_DT_S)
        self._push_step[ids] = [episode.push_step for episode in drawn]
        self._push_velocity[ids] = [episode.push_velocity for episode in drawn]
        self.track_origin[ids] = [episode.offset_xy for episode in drawn]
        self.track_yaw[ids] = [episode.yaw for episode in drawn]
        return np.repeat(draws[:, _SENSOR_NOISE], _NOISE_WIDTHS, axis=1).astype(np.float32)

    def _start(self, ids: np.ndarray, drawn: Sequence[EpisodeDraws]) -> None:
        """Start robots `ids` in the simulator, on their tiles."""
        origin = self.track_origin[ids]
        yaw = self.track_yaw[ids]
        quat = from_yaw(yaw)
        member = ids % len(self.robots)
        robots = self.robots
        joint_pos = np.clip(
            robots.default_joint_pos_rad[member] + [episode.joint_offset for episode in drawn],
            robots.joint_lower_rad[member],
            robots.joint_upper_rad[member],
        )
        heading = np.stack([cosine(yaw), sine(yaw)], axis=1)
        points = observations.SCAN_POINTS[FOOTPRINT]
        ground = ground_at(self.terrain.under(ids), origin, heading, points).max(axis=1)
        height = robots.standing_height_m[member] + (ground + START_CLEARANCE_M)
        base_pos = np.concatenate([origin, height[:, None]], axis=1)
        for k, (index, episode) in enumerate(zip(ids.tolist(), drawn, strict=True)):
            spec = self.specs[index]
            assert spec is not None, "it has just been set"
            tile = make_tile(spec.terrain, spec.level, episode.terrain_variant)
            barriers = place_barriers(episode.passage, tile, episode.offset_xy, episode.yaw)
            start = base_pos[k], joint_pos[k], quat[k], episode.base_vel
            self.physics.reset(index, RobotStart(*start, tile, barriers, episode.draws))

    def observe(self, started: np.ndarray | None = None) -> Observation:
        """The observation before the next control step.

        Args:
            started: robots that were reset since the last observation, if nothing else has
                changed; None looks at all robots.
        """
        if self._sight is None or started is None:
            sight = _Sight.empty(self.num_robots)
            self.slices.run(lambda _, rows: self._look(sight, rows))
        else:
            # The last step's view and observation keep their arrays.
            sight = copied(self._sight)
            self._look(sight, started)
        return self._observation(sight)

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

        sight = _Sight.empty(self.num_robots)
        self._stepped = _Step(
            self.physics.state, sight.geometry, command, action, self._last_action
        )
        self._last_action = action
        self._reward = np.empty(self.num_robots, dtype=np.float32)
        terminated = np.empty(self.num_robots, dtype=bool)
        self.slices.run(partial(self._judge, self._stepped, sight, terminated))
        truncated = ~terminated & (self.step_count >= self.episode_steps)
        return Transition(self._observation(sight), self._reward, terminated, truncated)

    @property
    def view(self) -> StepView | None:
        """Inputs of reward and termination at the last step; None before the first."""
        return None if self._stepped is None else self._stepped.view(self.robots)

    def _judge(
        self, step: _Step, sight: _Sight, terminated: np.ndarray, number: int, rows: slice
    ) -> None:
        """Reward, signals and terminations of rows of a step, and what is seen after it."""
        state = rows_of(step.state, rows)
        self._place(sight, state, rows)
        view = rows_of(step, rows).view(self.robots_of[number])
        self._reward[rows] = total_reward(view, self.rewards) * CONTROL_DT_S
        steps = self.step_count[rows]
        recorded = np.minimum(steps, self.episode_steps - 1)
        self._signals[self._rows[rows], recorded] = signals(view, sight.on_track[rows])
        steps += 1
        upright = np.einsum("nk,nk->n", view.geometry.gravity, view.desired_gravity)
        terminated[rows] = (view.trunk_force_n > CONTACT_FORCE_N) | (upright < MIN_UPRIGHT)
        self._sense(sight, state, rows)

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
        state = self.physics.state
        yaw = yaw_of(state.base_quat)
        return on_track(state.base_pos, yaw, self.track_origin, self.track_yaw)

    def clock(self, rows: Rows = ALL_ROWS) -> np.ndarray:
        """(N,) gait clock in cycles, 0 at an episode's start and while a schedule says stand."""
        clock = self.target_command[rows, C.GAIT_FREQUENCY] * self.step_count[rows] * CONTROL_DT_S
        if self._scheduled.any():
            changing, robots, step = self._scheduled_steps(rows)
            clock[changing] = self._clocks[robots, step]
        return clock

    def track(self, index: int) -> Track:
        """The signals of robot `index`'s episode so far."""
        values = self._signals[index, : self.step_count[index]].copy()
        drawn = self.episode_draws[index]
        spec = self.specs[index]
        passage = drawn.passage if drawn else None
        command = self.target_command[index].copy()
        noise = max(spec.action_noise, spec.repeated_noise) if spec else 0.0
        return Track(values, command, passage, self.robots[index].trunk_half_size_m[0], noise)

    def success(self, index: int, terminated: bool, track: Track | None = None) -> bool:
        """Whether an episode met its skill's or schedule's criterion; never after a fall.

        track: the robot's, where it is at hand.
        """
        spec = self.specs[index]
        drawn = self.episode_draws[index]
        if spec is None or drawn is None or terminated:
            return False
        judge = drawn.schedule or ALL_SKILLS[spec.skill]
        return judge.succeeded(track or self.track(index))

    def close(self) -> None:
        """Free the simulator and the threads."""
        self.physics.close()
        self.slices.close()

    def _steered(self, on_track: np.ndarray, rows: Rows = ALL_ROWS) -> np.ndarray:
        command = ramped(self.target_command[rows], self.step_count[rows] * CONTROL_DT_S)
        where = self._passage[rows, 0] != 0
        if self._scheduled.any():
            changing, robots, step = self._scheduled_steps(rows)
            command[changing] = self._commands[robots, step]
            where &= command[:, C.LOCOMOTE] > 0
        if where.any():
            _, across, heading = on_track[where].T
            command[where] = steer(command[where], across, heading)
        return command

    def _scheduled_steps(self, rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Which of the rows have a command that changes, their robots, and the step of each."""
        changing = np.flatnonzero(self._scheduled[rows])
        robots = self._rows[rows][changing]
        return changing, robots, np.minimum(self.step_count[robots], self.episode_steps)

    def _look(self, sight: _Sight, rows: Rows) -> None:
        """Write what is seen of rows now."""
        state = rows_of(self.physics.state, rows)
        self._place(sight, state, rows)
        self._sense(sight, state, rows)

    def _place(self, sight: _Sight, state: PhysicsState, rows: Rows) -> None:
        """Write where the robots of rows are; state: theirs."""
        geometry = Geometry.of(state, self.terrain, rows)
        write_rows(sight.geometry, rows, geometry)
        tracks = self.track_origin[rows], self.track_yaw[rows]
        sight.on_track[rows] = on_track(state.base_pos, geometry.yaw, *tracks)

    def _sense(self, sight: _Sight, state: PhysicsState, rows: Rows) -> None:
        """Write commands and stored observations of rows, after `_place`; state: theirs."""
        command = self._steered(sight.on_track[rows], rows)
        sight.command[rows] = command
        sight.clock[rows] = self.clock(rows)
        noise_step = np.minimum(self.step_count[rows], self.episode_steps)
        gravity = sight.geometry.gravity[rows]
        gravity, joint_vel, joint_pos, ang_vel = self._sensed(
            (gravity, state.joint_vel, state.joint_pos, state.base_ang_vel_body), rows
        )
        noise = self._noise[self._rows[rows], noise_step]
        last_action = self._last_action[rows]
        sight.policy[rows] = observations.policy_observation(
            gravity, joint_vel, joint_pos, ang_vel, last_action, command, noise
        )

    def _observation(self, sight: _Sight) -> Observation:
        state = self.physics.state
        self._sight = sight
        self._where = sight.on_track
        self._command = sight.command
        return Observation(
            policy=sight.policy,
            reward=self._reward.copy(),
            command=sight.command,
            clock=sight.clock,
            make_privileged=partial(self._privileged, sight, state),
            heights=lambda points: heights_above(points, state, sight.geometry, self.terrain),
        )

    def _sensed(self, values: Sequence[np.ndarray], rows: Rows) -> Sequence[np.ndarray]:
        """Measured values, laid out by `NOISE_SLICES`, as the robots' sensors show them now."""
        if not self._delay.any():
            return values
        slots = self._measured.shape[1]
        step = self.step_count[rows]
        robots = self._rows[rows]
        self._measured[robots, step % slots] = np.concatenate(values, axis=1)
        late = self._measured[robots, np.maximum(step - self._delay[rows], 0) % slots]
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

    def _privileged(self, sight: _Sight, state: PhysicsState) -> np.ndarray:
        """(N, PRIVILEGED_DIM) float32 in the order of `observations.PRIVILEGED_SLICES`."""
        block = np.empty((self.num_robots, observations.PRIVILEGED_DIM), dtype=np.float32)

        def write(number: int, rows: slice) -> None:
            block[rows] = self._privileged_rows(
                rows_of(sight, rows), rows_of(state, rows), self.robots_of[number], rows
            )

        self.slices.run(write)
        return block

    def _privileged_rows(
        self, sight: _Sight, state: PhysicsState, robots: RobotBatch, rows: slice
    ) -> np.ndarray:
        """The block of rows; sight, state, robots: theirs."""
        geometry = sight.geometry
        command = sight.command
        phase = 2 * np.pi * leg_phases(command, sight.clock)
        nominal = robots.nominal_height_m
        height_error = geometry.height - nominal - command[:, C.BODY_HEIGHT]
        scan = state.base_pos[:, 2:3] - geometry.scan - nominal[:, None]
        parts = {
            "base_lin_vel_body": geometry.lin_vel_body,
            "base_ang_vel_body": state.base_ang_vel_body,
            "velocity_heading": geometry.velocity_heading,
            "projected_gravity": geometry.gravity,
            "gravity_error": geometry.gravity - geometry.desired_gravity(command),
            "joint_pos_error": state.joint_pos - robots.default_joint_pos_rad,
            "joint_vel": state.joint_vel,
            "height_error": height_error[:, None],
            "foot_contact": lengths(state.foot_force) > CONTACT_FORCE_N,
            "gait_clock_sin": sine(phase),
            "gait_clock_cos": cosine(phase),
            "gait_clock_cycles": np.minimum(sight.clock, 4.0)[:, None] / 4.0,
            "passage": _passage_ahead(self._passage[rows], sight.on_track),
            "height_scan": np.clip(scan, -1.0, 1.0),
            "randomisation": self._draws[rows],
        }
        return observations.joined(parts, observations.PRIVILEGED_SLICES)


def _passage_ahead(passage: np.ndarray, on_track: np.ndarray) -> np.ndarray:
    """(N, 6): kind (-1 bar, 1 walls), m to start and end, opening, offset, heading; else 0."""
    kind, start, end, opening = passage.T
    along, across, heading = on_track.T
    ahead = np.stack([kind, start - along, end - along, opening, across, heading], axis=1)
    return np.where(kind[:, None] != 0, ahead, 0.0)
