"""Robots under a PD law, on the tensors of a built world.

Isaac Gym has quaternions xyzw, angular velocities in the world frame, positions of a body's origin
and linear velocities of its centre of mass (PhysX:
PxArticulationReducedCoordinate::getRootLinearVelocity).
"""

from typing import Any

import numpy as np
import protocol
from isaacgym import gymapi, gymtorch

# isort: split
# Isaac Gym refuses to be imported after torch.
import torch
from world import World

_EVENT = protocol.column_slices(protocol.EVENTS)


class Robots:
    """All robots of a world; resets, pushes and wraps are written together before the next step."""

    def __init__(
        self,
        gym: gymapi.Gym,
        settings: "dict[str, Any]",
        arrays: "dict[str, np.ndarray]",
        world: World,
        device: torch.device,
    ):
        self._gym = gym
        self._sim = world.sim
        self._device = device
        self._decimation = int(settings["decimation"])
        self._root = gymtorch.wrap_tensor(gym.acquire_actor_root_state_tensor(world.sim))
        self._dof = gymtorch.wrap_tensor(gym.acquire_dof_state_tensor(world.sim))
        self._bodies = gymtorch.wrap_tensor(gym.acquire_rigid_body_state_tensor(world.sim))
        self._forces = gymtorch.wrap_tensor(gym.acquire_net_contact_force_tensor(world.sim))
        gym.refresh_dof_state_tensor(world.sim)
        gym.refresh_actor_root_state_tensor(world.sim)
        gym.refresh_rigid_body_state_tensor(world.sim)
        gym.refresh_net_contact_force_tensor(world.sim)
        n = len(world.robot_actors)
        joints = protocol.JOINTS
        self._joint_state = self._dof.view(n, joints, 2)
        self._actors = self._tensor(world.robot_actors, torch.int32)
        self._rows = self._actors.long()
        card = [world.joint_names.index(name) for name in settings["joints"]]
        self._to_card = self._tensor(card, torch.long)
        self._from_card = torch.argsort(self._to_card)

        def rows_of(names: "list[str]") -> torch.Tensor:
            columns = [world.body_names.index(name) for name in names]
            return self._tensor(world.robot_bodies[:, columns], torch.long)

        self._trunk = rows_of([settings["trunk"]])[:, 0]
        self._hips = rows_of(settings["hips"])
        self._feet = rows_of(settings["feet"])
        self._knees = rows_of(settings["knees"])
        self._barriers = self._tensor(world.barrier_bodies, torch.long)
        self._barrier_robot = self._tensor(arrays["barrier_robot"], torch.long)
        self._com = self._tensor(world.base_com)
        self._place = self._tensor(arrays["place"])
        self._period = self._tensor(arrays["period"])[:, None]
        self._damping = self._tensor(settings["damping"])
        self._limit = self._tensor(settings["torque_limit"])
        self._kp = self._zeros(n, joints)
        self._kd = self._zeros(n, joints)
        self._previous = self._zeros(n, joints)
        self._torque = self._zeros(n, joints)
        self._lag = self._zeros(n, 1)
        self._periods = self._zeros(n, 2)
        self._changed = torch.zeros(n, dtype=torch.bool, device=device)
        self._started = torch.zeros(n, dtype=torch.bool, device=device)

    def take_events(self, events: torch.Tensor) -> None:
        """Apply resets and pushes, (N, width) of `protocol.EVENTS`."""
        self._started = events[:, 0] > 0.5
        robots = torch.nonzero(self._started)[:, 0]
        if len(robots):
            self._start(robots, events[robots])
        push = events[:, _EVENT["push"]]
        self._root[self._rows, 7:9] += push
        self._changed |= self._started | (push != 0.0).any(dim=1)

    def step(self, targets: torch.Tensor) -> torch.Tensor:
        """One control step towards joint targets (N, 12); (N, width) of `protocol.STATE`."""
        self._write_states()
        self._move(targets)
        state = self._read()
        self._wrap()
        return state

    def _start(self, robots: torch.Tensor, events: torch.Tensor) -> None:
        def value(name: str) -> torch.Tensor:
            return events[:, _EVENT[name]]

        quat = torch.roll(value("base_quat"), -1, 1)  # to xyzw
        spin = rotate(quat, value("base_ang_vel_body"))
        lever = rotate(quat, self._com[robots])
        velocity = value("base_lin_vel_world") + torch.cross(spin, lever, dim=1)
        position = value("base_pos") + self._place[robots]
        self._root[self._rows[robots]] = torch.cat([position, quat, velocity, spin], dim=1)
        joints = torch.stack([value("joint_pos"), value("joint_vel")], dim=2)
        self._joint_state[robots] = joints[:, self._from_card]
        self._previous[robots] = value("previous_targets")
        self._kp[robots] = value("kp")
        self._kd[robots] = value("kd")
        self._lag[robots] = value("lag_substeps")
        self._periods[robots] = value("periods")

    def _write_states(self) -> None:
        """Write changed states to the simulator."""
        gym = self._gym
        sim = self._sim
        changed = self._actors[self._changed]
        started = self._actors[self._started]
        unwrap = gymtorch.unwrap_tensor
        if len(changed):
            gym.set_actor_root_state_tensor_indexed(
                sim, unwrap(self._root), unwrap(changed), len(changed)
            )
        if len(started):
            gym.set_dof_state_tensor_indexed(sim, unwrap(self._dof), unwrap(started), len(started))
        self._changed.zero_()
        self._started.zero_()

    def _move(self, targets: torch.Tensor) -> None:
        """The PD law at every substep, with torque limits and joint friction.

        The simulator does not document whether its joint friction acts on torque-driven joints.
        """
        gym = self._gym
        sim = self._sim
        for substep in range(self._decimation):
            position = self._joint_state[:, self._to_card, 0]
            velocity = self._joint_state[:, self._to_card, 1]
            target = torch.where(self._lag > substep, self._previous, targets)
            torque = self._kp * (target - position) - self._kd * velocity
            self._torque = torch.max(torch.min(torque, self._limit), -self._limit)
            applied = (self._torque - self._damping * velocity)[:, self._from_card].contiguous()
            gym.set_dof_actuation_force_tensor(sim, gymtorch.unwrap_tensor(applied))
            if substep == self._decimation - 1:
                # Feet are read at the last substep's start.
                gym.refresh_rigid_body_state_tensor(sim)
            gym.simulate(sim)
            if self._device.type == "cpu":
                gym.fetch_results(sim, True)
            gym.refresh_dof_state_tensor(sim)
        self._previous = targets.clone()
        gym.refresh_actor_root_state_tensor(sim)
        gym.refresh_net_contact_force_tensor(sim)

    def _read(self) -> torch.Tensor:
        """(N, width) the columns of `protocol.STATE`."""
        n = len(self._rows)
        root = self._root[self._rows]
        quat = root[:, 3:7]
        spin = root[:, 10:13]
        velocity = root[:, 7:10] - torch.cross(spin, rotate(quat, self._com), dim=1)
        feet = self._bodies[self._feet]
        foot_pos = feet[..., :3] - self._place[:, None]
        on_trunk, on_any, on_body = self._barrier_forces()
        columns = [
            root[:, :3] - self._place,
            torch.roll(quat, 1, 1),  # to wxyz
            velocity,
            rotate(quat, spin, -1.0),
            self._joint_state[:, self._to_card, 0],
            self._joint_state[:, self._to_card, 1],
            self._torque,
            foot_pos.reshape(n, -1),
            feet[..., 7:10].reshape(n, -1),
            self._forces[self._feet].reshape(n, -1),
            self._forces[self._knees].reshape(n, -1),
            on_trunk,
            on_any[:, None],
            on_body[:, None],
            self._periods,
        ]
        return torch.cat(columns, dim=1)

    def _barrier_forces(self) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor]":
        """Ground on trunks (N, 3), barriers on anything (N,), barriers on trunk and hips (N,).

        Isaac Gym gives net forces: on trunk and hips they count as barriers' while any barrier of
        the robot is touched, else as the ground's.
        """
        pressed = length(self._forces[self._barriers])
        on_any = self._zeros(len(self._rows)).index_add_(0, self._barrier_robot, pressed)
        touched = on_any > 0.0
        trunk = self._forces[self._trunk]
        hips = self._forces[self._hips]
        on_body = length(trunk) + length(hips).sum(dim=1)
        on_trunk = torch.where(touched[:, None], torch.zeros_like(trunk), trunk)
        return on_trunk, on_any, torch.where(touched, on_body, torch.zeros_like(on_body))

    def _wrap(self) -> None:
        """Move robots that left their tile to its other side, with the next write."""
        local = self._root[self._rows, :2] - self._place[:, :2]
        crossed = torch.floor(local / self._period + 0.5)
        self._root[self._rows, :2] -= crossed * self._period
        self._periods += crossed
        self._changed |= (crossed != 0.0).any(dim=1)

    def _zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=torch.float32, device=self._device)

    def _tensor(self, values: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values), dtype=dtype, device=self._device)


def rotate(quat: torch.Tensor, vector: torch.Tensor, sign: float = 1.0) -> torch.Tensor:
    """(N, 3) body vectors into the world by unit quaternions xyzw (N, 4); back with the sign -1."""
    xyz = quat[:, :3]
    w = quat[:, 3:]
    t = 2.0 * torch.cross(xyz, vector, dim=1)
    return vector + sign * w * t + torch.cross(xyz, t, dim=1)


def length(vector: torch.Tensor) -> torch.Tensor:
    """(...) of vectors (..., 3)."""
    return (vector * vector).sum(dim=-1).sqrt()
