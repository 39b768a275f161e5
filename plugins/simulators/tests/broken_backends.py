"""Back ends that break the contract in one way each, and one that keeps it in float32."""

from dataclasses import fields, replace

import numpy as np

from gaitforge.collectors.physics import make_backend
from gaitforge.collectors.physics.interface import PhysicsState, RobotStart
from gaitforge.collectors.physics.scene import ROBOT
from gaitforge.collectors.rotations import rotate, rotate_inverse
from gaitforge.collectors.scenarios.randomisation import DRAW_INDEX, DRAWS, nominal_draws
from gaitforge.plugins.simulators.checks.measure import STATE_NAMES


class Wrapped:
    """The default back end, with what goes in and comes out still as it is."""

    name = "wrapped"
    version = "1"
    exact = True
    fixed_world = False
    several_robots = False
    model_fields = True

    def __init__(self, num_robots: int, threads: int):
        self.num_robots = num_robots
        self.inner = make_backend("mujoco", ROBOT, num_robots, threads)
        self.state = self.shown(self.inner.state)

    def realised(self, draws: np.ndarray) -> np.ndarray:
        return self.inner.realised(draws)

    def reset(self, index: int, start: RobotStart) -> None:
        self.inner.reset(index, self.heard(start))
        self.state = self.shown(self.inner.state)

    def set_friction(self, index: int, friction: float) -> None:
        self.inner.set_friction(index, friction)

    def trunk_kg(self, index: int) -> float:
        return self.inner.trunk_kg(index)

    def heard(self, start: RobotStart) -> RobotStart:
        """What a reset takes the start for."""
        return start

    def push(self, ids: np.ndarray, velocity_xy: np.ndarray) -> None:
        self.inner.push(ids, velocity_xy)
        self.state = self.shown(self.inner.state)

    def step(self, joint_targets: np.ndarray) -> None:
        self.inner.step(joint_targets)
        self.state = self.shown(self.inner.state)

    def close(self) -> None:
        self.inner.close()

    def shown(self, state: PhysicsState) -> PhysicsState:
        """What the task gets to see; a copy."""
        return PhysicsState(
            **{field.name: getattr(state, field.name).copy() for field in fields(state)}
        )


class Float32(Wrapped):
    """Keeps the contract, as far as numbers of 32 bits can."""

    exact = False

    def shown(self, state: PhysicsState) -> PhysicsState:
        rounded = {name: getattr(state, name).astype(np.float32) for name in STATE_NAMES}
        return PhysicsState(**{name: values.astype(float) for name, values in rounded.items()})

    def step(self, joint_targets: np.ndarray) -> None:
        super().step(joint_targets.astype(np.float32).astype(float))


class SwapsJoints(Wrapped):
    """Takes the left thigh for the right one throughout."""

    order = np.array([0, 4, 2, 3, 1, 5, 6, 7, 8, 9, 10, 11])

    def heard(self, start: RobotStart) -> RobotStart:
        return replace(start, joint_pos=start.joint_pos[self.order])

    def step(self, joint_targets: np.ndarray) -> None:
        super().step(joint_targets[:, self.order])

    def shown(self, state: PhysicsState) -> PhysicsState:
        names = ("joint_pos", "joint_vel", "joint_torque")
        return replace(
            super().shown(state), **{name: getattr(state, name)[:, self.order] for name in names}
        )


class TurnsJointRound(Wrapped):
    """Counts the front left thigh the other way about its default position."""

    def _turned(self, joint_pos: np.ndarray) -> np.ndarray:
        turned = joint_pos.copy()
        turned[..., 1] = 2 * ROBOT.default_joint_pos_rad[1] - joint_pos[..., 1]
        return turned

    def step(self, joint_targets: np.ndarray) -> None:
        super().step(self._turned(joint_targets))

    def shown(self, state: PhysicsState) -> PhysicsState:
        speed = state.joint_vel * np.where(np.arange(12) == 1, -1, 1)
        return replace(
            super().shown(state), joint_pos=self._turned(state.joint_pos), joint_vel=speed
        )


class QuaternionsEndWithW(Wrapped):
    def shown(self, state: PhysicsState) -> PhysicsState:
        return replace(super().shown(state), base_quat=np.roll(state.base_quat, -1, axis=1))


class RatesInWorldFrame(Wrapped):
    def shown(self, state: PhysicsState) -> PhysicsState:
        rate = rotate(state.base_quat, state.base_ang_vel_body)
        return replace(super().shown(state), base_ang_vel_body=rate)


class VelocityOfCentreOfMass(Wrapped):
    """Shows the velocity of a point beside the trunk's origin."""

    def shown(self, state: PhysicsState) -> PhysicsState:
        beside = np.cross(state.base_ang_vel_body, [0.05, 0.0, 0.0])
        velocity = state.base_lin_vel_world + rotate(state.base_quat, beside)
        return replace(super().shown(state), base_lin_vel_world=velocity)


class PushesInBodyFrame(Wrapped):
    def push(self, ids: np.ndarray, velocity_xy: np.ndarray) -> None:
        world = np.concatenate([velocity_xy, np.zeros((len(ids), 1))], axis=1)
        super().push(ids, rotate_inverse(self.inner.state.base_quat[ids], world)[:, :2])


class ForcesUpsideDown(Wrapped):
    def shown(self, state: PhysicsState) -> PhysicsState:
        return replace(super().shown(state), foot_force=-state.foot_force)


class GroundTooHigh(Wrapped):
    def heard(self, start: RobotStart) -> RobotStart:
        tile = replace(start.tile, heights=start.tile.heights + np.float32(0.04))
        return replace(start, tile=tile)


class BarriersUnturned(Wrapped):
    def heard(self, start: RobotStart) -> RobotStart:
        unturned = [replace(barrier, yaw_rad=0.0) for barrier in start.barriers]
        return replace(start, barriers=unturned)


class ResetsANeighbour(Wrapped):
    def reset(self, index: int, start: RobotStart) -> None:
        super().reset(index, start)
        if index + 1 < self.num_robots:
            super().reset(index + 1, start)


class TakesImpossibleDraws(Wrapped):
    """Simulates what is nearest to draws that no robot can have."""

    def heard(self, start: RobotStart) -> RobotStart:
        return replace(
            start, draws=np.clip(start.draws, [draw.quantity.allowed.low for draw in DRAWS], None)
        )


class Trembles(Wrapped):
    """No two simulations of it are alike."""

    made = 0

    def __init__(self, num_robots: int, threads: int):
        Trembles.made += 1
        self._noise = np.random.default_rng(Trembles.made)
        super().__init__(num_robots, threads)

    def step(self, joint_targets: np.ndarray) -> None:
        super().step(joint_targets + 1e-6 * self._noise.normal(size=joint_targets.shape))


def ignoring(draw: str) -> type[Wrapped]:
    """A back end in which one draw always has its nominal value."""

    class Ignores(Wrapped):
        def heard(self, start: RobotStart) -> RobotStart:
            draws = start.draws.copy()
            draws[DRAW_INDEX[draw]] = nominal_draws()[DRAW_INDEX[draw]]
            return replace(start, draws=draws)

    return Ignores
