"""MuJoCo Warp: all robots in one batch on a GPU, or on the CPU if there is none.

Model, terrain and barriers are those of the back end `mujoco`. Differences: float32; at most four
ground contacts a shape (MuJoCo: one for every prism it touches); constraints solved to 1e-6, not
1e-8.
"""

import copy
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from gaitforge.collectors.physics.interface import BackendUnavailable, RobotStart
from gaitforge.collectors.physics.mujoco.backend import HostBackend
from gaitforge.collectors.physics.mujoco.model import GROUND, build_model
from gaitforge.collectors.robots.robot import N_JOINTS, RobotCard
from gaitforge.collectors.timing import DECIMATION
from gaitforge.common.errors import install_extra

if TYPE_CHECKING:
    from gaitforge.plugins.simulators.mujoco_warp.worlds import WorldLimits

_PACKAGES = {"warp": "warp-lang", "mujoco_warp": "mujoco-warp"}
_MAX_STATE = 1e10
"""MuJoCo's mjMAXVAL: a state beyond it has diverged."""


def installed_version() -> str:
    """MuJoCo Warp's version; BackendUnavailable if packages are missing."""
    missing = [package for module, package in _PACKAGES.items() if find_spec(module) is None]
    if missing:
        why_not = f"{' and '.join(missing)} not installed: {install_extra('warp')}"
        raise BackendUnavailable(why_not)
    return metadata.version(_PACKAGES["mujoco_warp"])


class MujocoWarpBackend(HostBackend):
    """Every robot is a world of one batch; the state is on the host between control steps.

    A robot whose simulation diverges lies on its back at rest after that step, which the task ends
    as a fall; `mujoco` raises. No solver warm start crosses a control step. GAITFORGE_WARP_DEVICE
    names the device ("cuda:1", "cpu"), by default the first GPU, else the CPU. Kernels are compiled
    once, into Warp's cache.

    Args:
        threads: not used.
        limits: initial memory for contacts, doubled whenever a step needs more.

    Raises:
        BackendUnavailable: the packages are missing.
        RobotError: an MJCF that MuJoCo simulates and MuJoCo Warp does not.
        ValueError: a device that Warp does not have.
    """

    name = "mujoco_warp"
    package = _PACKAGES["mujoco_warp"]
    processor = "cuda"

    def __init__(
        self, robot: RobotCard, num_robots: int, threads: int, limits: "WorldLimits | None" = None
    ) -> None:
        self.version = installed_version()
        from gaitforge.plugins.simulators.mujoco_warp.worlds import WarpWorlds

        model = build_model(robot)
        n = num_robots
        super().__init__([robot] * n, [model] * n, [copy.copy(model)] * n)
        try:
            self._worlds = WarpWorlds(model, n, DECIMATION, model.geom(GROUND).id, limits)
        except NotImplementedError as error:
            lacks = " ".join(str(error).split())
            raise robot.wrong(f"MuJoCo Warp cannot simulate it: {lacks}") from None

        self._pos, self._vel = np.tile(model.qpos0, (n, 1)), np.zeros((n, model.nv))
        self._on_its_back = model.qpos0.copy()
        self._on_its_back[3:7] = (0.0, 1.0, 0.0, 0.0)
        self._sensors = np.zeros((n, model.nsensordata))
        self._control = np.zeros((DECIMATION, n, N_JOINTS))
        self.state = self._read()

    def reset(self, index: int, start: RobotStart) -> None:
        """See `PhysicsBackend.reset`."""
        super().reset(index, start)
        self._worlds.place(index, self._models[index], self._scratch, start.tile)

    def step(self, joint_targets: np.ndarray) -> None:
        """See `PhysicsBackend.step`."""
        rows = self._rows
        rows.delay(joint_targets, self._control.swapaxes(0, 1))
        pos, vel, sensors = self._worlds.run(self._control, self._pos, self._vel)
        self._pos[:] = pos
        self._vel[:] = vel
        self._sensors[:] = sensors
        # Diverged robots lie on their backs, so that their episodes end as falls: an error, as
        # MuJoCo's, would end the other thousands, too. NaN compares as false.
        state = np.concatenate([self._pos, self._vel], axis=1)
        diverged = ~(np.abs(state) < _MAX_STATE).all(axis=1)
        self._pos[diverged] = self._on_its_back
        self._vel[diverged] = 0.0
        self._sensors[diverged] = 0.0
        rows.sensor_origin[:] = rows.origin
        # Robots that left their tile re-enter on the other side.
        crossed = rows.period * np.floor(self._pos[:, :2] / rows.period + 0.5)
        self._pos[:, :2] -= crossed
        rows.origin += crossed
        self.state = self._read()

    def close(self) -> None:
        """Free the device's memory."""
        if hasattr(self, "_worlds"):
            del self._worlds
