"""N worlds of one MuJoCo model on a Warp device; needs the extra `warp`."""

import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import mujoco
import mujoco_warp as mjw
import numpy as np
import warp as wp
from mujoco_warp import DisableBit, OverflowType

from gaitforge.collectors.physics.mujoco_warp.memory import Mirror, TileBank
from gaitforge.collectors.scenarios.terrains import TerrainTile

DEVICE_VARIABLE = "GAITFORGE_WARP_DEVICE"
_CPU_FLAGS = "-march=native"
"""Leaves out Warp's inlining thresholds: kernels compile in 2/3 of the time and run as fast."""
_MODEL_FIELDS = (
    "body_mass",
    "body_inertia",
    "body_ipos",
    "body_subtreemass",
    "body_invweight0",
    "dof_invweight0",
    "geom_friction",
    "geom_size",
    "actuator_gainprm",
    "actuator_biasprm",
)
"""Model fields that draws and barriers change, or that MuJoCo derives from those."""
_DATA_FIELDS = ("geom_xpos", "geom_xmat")
"""Data fields with poses of ground and barriers, which steps do not update."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorldLimits:
    """Memory for contacts and constraints, doubled when a step needs more.

    Attributes:
        contacts: pairs of shapes, and contacts, per world on average.
        convex_pairs: pairs of convex shapes per world on average; 5 kB each.
        constraints: most solver rows of a world: four per contact, one per joint limit.
        matches: most contacts that a sensor sums.
    """

    contacts: int = 48
    convex_pairs: int = 12
    constraints: int = 128
    matches: int = 32

    def enlarged(self, overflow: int) -> Self:
        """The limits with those doubled that overflowed."""
        limits = self
        if overflow & (OverflowType.BROADPHASE | OverflowType.NARROWPHASE):
            limits = replace(limits, contacts=2 * self.contacts)
        if overflow & OverflowType.CCD:
            pairs = 2 * self.convex_pairs
            limits = replace(limits, convex_pairs=pairs, contacts=max(limits.contacts, pairs))
        if overflow & OverflowType.NEFC:
            limits = replace(limits, constraints=2 * self.constraints)
        if overflow & OverflowType.CONTACT_MATCH:
            limits = replace(limits, matches=2 * self.matches)
        return limits


def chosen_device() -> Any:
    """Warp's device: the environment's (ValueError if unknown), else the first GPU or the CPU."""
    wp.config.log_level = wp.LOG_WARNING
    wp.init()
    devices = [device.alias for device in wp.get_devices()]
    default = "cuda:0" if "cuda:0" in devices else "cpu"
    name = os.environ.get(DEVICE_VARIABLE) or default
    if name not in devices:
        raise ValueError(f"{DEVICE_VARIABLE} is '{name}'; allowed: {', '.join(devices)}")
    device = wp.get_device(name)
    if not any(Path(str(wp.config.kernel_cache_dir)).glob("wp_mujoco_warp*")):
        _log.warning("mujoco_warp compiles its kernels now, once: this takes some minutes")
    if device.is_cpu:
        wp.config.cpu_compiler_flags = _CPU_FLAGS
    return device


class WarpWorlds:
    """Model and data on the device, and their exchange with the host."""

    def __init__(
        self,
        model: mujoco.MjModel,
        num_worlds: int,
        substeps: int,
        ground: int,
        limits: WorldLimits | None = None,
    ) -> None:
        self.limits = limits or WorldLimits()
        self.device = chosen_device()
        self._host_model = model
        self._num_worlds = num_worlds
        self._substeps = substeps
        with wp.ScopedDevice(self.device):
            batched: dict[str, int] = {"geom_dataid": num_worlds}
            batched.update(dict.fromkeys(_MODEL_FIELDS, num_worlds))
            self._model = mjw.put_model(model, batch_sizes=batched)
            # `run` reports overflow.
            self._model.opt.warn_overflow = 0
            if self.device.is_cuda:
                self._model.opt.graph_conditional = wp.is_conditional_graph_supported()
            self._tiles = TileBank(self._model, num_worlds, ground)
            self._mirror = Mirror(
                {
                    "control": (substeps, num_worlds, model.nu),
                    "qpos": (num_worlds, model.nq),
                    "qvel": (num_worlds, model.nv),
                    "sensordata": (num_worlds, model.nsensordata),
                    "overflow": (num_worlds,),
                },
                self.device,
            )
            self._data: Any = None
            self._allocate()
        widths = [getattr(model, name).size for name in _MODEL_FIELDS]
        self._widths = [*widths, 3 * model.ngeom, 9 * model.ngeom]
        self._pending: dict[int, np.ndarray] = {}

    def place(
        self, world: int, model: mujoco.MjModel, data: mujoco.MjData, tile: TerrainTile
    ) -> None:
        """Set a world's masses, gains, friction, tile (from `model`) and static poses (`data`)."""
        values = [getattr(model, name) for name in _MODEL_FIELDS]
        values += [getattr(data, name) for name in _DATA_FIELDS]
        self._pending[world] = np.concatenate([value.ravel() for value in values])
        self._tiles.place(world, model, tile)

    def run(
        self, control: np.ndarray, qpos: np.ndarray, qvel: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Run the substeps from qpos (N, nq), qvel (N, nv) under control (substeps, N, nu).

        Returns:
            qpos and qvel, and sensor data of the last substep's start, float32, valid until the
            next call.
        """
        host = self._mirror.host
        with wp.ScopedDevice(self.device):
            self._write_pending()
            while True:
                host["control"][:] = control
                host["qpos"][:] = qpos
                host["qvel"][:] = qvel
                self._mirror.upload("qvel")
                self._launch()
                self._mirror.download("qpos")
                overflow = int(np.bitwise_or.reduce(host["overflow"].view(np.int32)))
                limits = self.limits.enlarged(overflow)
                if limits == self.limits:
                    return host["qpos"], host["qvel"], host["sensordata"]
                _log.warning("mujoco_warp needs more memory for contacts: now %s", limits)
                self.limits = limits
                self._allocate()

    def _allocate(self) -> None:
        """Allocate data for the present limits, keeping static poses."""
        before = self._data
        limits = self.limits
        self._model.opt.contact_sensor_maxmatch = limits.matches
        data = mjw.make_data(
            self._host_model,
            nworld=self._num_worlds,
            nconmax=limits.contacts,
            nccdmax=limits.convex_pairs,
            njmax=limits.constraints,
        )
        if before is not None:
            for name in _DATA_FIELDS:
                wp.copy(getattr(data, name), getattr(before, name))
        on_device = self._mirror.device
        data.qpos = on_device["qpos"]
        data.qvel = on_device["qvel"]
        data.sensordata = on_device["sensordata"]
        data.overflow = on_device["overflow"].view(wp.int32)
        self._data = data
        self._graph = None

    def _write_pending(self) -> None:
        self._tiles.upload()
        if not self._pending:
            return
        ids = wp.array(list(self._pending), dtype=wp.int32)
        rows: Any = wp.array(np.stack(list(self._pending.values())), dtype=wp.float32)
        indices: Any = [ids, None]
        self._pending.clear()
        fields = [getattr(self._model, name) for name in _MODEL_FIELDS]
        fields += [getattr(self._data, name) for name in _DATA_FIELDS]
        start = 0
        for field, width in zip(fields, self._widths, strict=True):
            shape = (self._num_worlds, width)
            flat = wp.array(ptr=field.ptr, dtype=wp.float32, shape=shape, copy=False)
            target: Any = wp.indexedarray(flat, indices)
            wp.copy(target, rows[:, start : start + width])
            start += width

    def _launch(self) -> None:
        """Run the substeps, from the second time on as a graph.

        The first run compiles the kernels; a GPU without memory pools cannot capture a step.
        """
        if self._graph is not None:
            wp.capture_launch(self._graph)
            return
        self._step()
        if self.device.is_cpu or wp.is_mempool_enabled(self.device):
            with wp.ScopedCapture() as capture:
                self._step()
            self._graph = capture.graph

    def _step(self) -> None:
        model = self._model
        data = self._data
        flags = model.opt.disableflags
        data.qacc_warmstart.zero_()
        data.overflow.zero_()
        for substep in range(self._substeps):
            # Sensors are read at the last substep only.
            sensing = substep == self._substeps - 1
            model.opt.disableflags = flags if sensing else flags | DisableBit.SENSOR
            data.ctrl = self._mirror.device["control"][substep]
            mjw.step(model, data)
