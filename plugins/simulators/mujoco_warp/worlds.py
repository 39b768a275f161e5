"""N worlds of one MuJoCo model on a Warp device, and their memory; needs the extra `warp`.

The memory is mirrored on host and Warp device: one block for a step, and a bank of tiles.
"""

import logging
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import mujoco
import mujoco_warp as mjw
import numpy as np
import warp as wp
from mujoco_warp import DisableBit, OverflowType

from gaitforge.collectors.scenarios.terrains import TerrainTile

# Memory.
_ALIGNED_FLOATS = 64


class Mirror:
    """Named float32 arrays in one block on the host and one on the device."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], device: Any) -> None:
        self._start = {}
        self._stop = {}
        size = 0
        for name, shape in shapes.items():
            self._start[name], self._stop[name] = size, size + math.prod(shape)
            size += -(-math.prod(shape) // _ALIGNED_FLOATS) * _ALIGNED_FLOATS
        self._size = size
        self._at = device
        self._device: Any = wp.zeros(size, dtype=wp.float32, device=device)
        self._host = wp.zeros(size, dtype=wp.float32, device="cpu", pinned=device.is_cuda)
        memory = self._host.numpy()
        self.host: dict[str, np.ndarray] = {}
        self.device: dict[str, Any] = {}
        for name, shape in shapes.items():
            part = slice(self._start[name], self._stop[name])
            self.host[name] = memory[part].reshape(shape)
            self.device[name] = self._device[part].reshape(shape)

    def upload(self, last: str) -> None:
        """Copy the arrays up to and including `last` to the device."""
        wp.copy(self._device, self._host, count=self._stop[last])

    def download(self, first: str) -> None:
        """Copy the arrays from `first` on to the host, and wait."""
        start = self._start[first]
        wp.copy(self._host, self._device, start, start, self._size - start)
        wp.synchronize_device(self._at)


class TileBank:
    """The terrain tiles of N worlds, as N height fields; worlds on the same tile share one."""

    def __init__(self, model: Any, num_worlds: int, ground: int) -> None:
        rows = int(model.hfield_nrow.numpy()[0])
        columns = int(model.hfield_ncol.numpy()[0])
        self._cells = rows * columns
        self._model = model
        self._ground = ground
        self._tiles: list[TerrainTile | None] = [None] * num_worlds
        self._slots: dict[int, int] = {}
        self._dataid = model.geom_dataid.numpy().copy()
        self._size = np.tile(model.hfield_size.numpy(), (num_worlds, 1))
        self._users = np.zeros(num_worlds, dtype=np.int64)
        self._users[0] = num_worlds
        self._new: dict[int, np.ndarray] = {}
        self._changed = False
        model.hfield_size = wp.array(self._size, dtype=wp.vec4)
        model.hfield_nrow = wp.full(num_worlds, rows, dtype=int)
        model.hfield_ncol = wp.full(num_worlds, columns, dtype=int)
        model.hfield_adr = wp.array(self._cells * np.arange(num_worlds), dtype=int)
        model.hfield_data = wp.zeros(num_worlds * self._cells, dtype=wp.float32)

    def place(self, world: int, model: mujoco.MjModel, tile: TerrainTile) -> None:
        """Put a world on the tile that is in the model's height field."""
        self._users[self._dataid[world, self._ground]] -= 1
        slot = self._slots.get(id(tile))
        if slot is None:
            slot = int(np.argmin(self._users))
            self._slots.pop(id(self._tiles[slot]), None)
            # Keeping the tile keeps its id unique.
            self._tiles[slot] = tile
            self._slots[id(tile)] = slot
            self._new[slot] = model.hfield_data.astype(np.float32)
            self._size[slot] = model.hfield_size[0]
        self._users[slot] += 1
        self._dataid[world, self._ground] = slot
        self._changed = True

    def upload(self) -> None:
        """Copy changes to the device."""
        if not self._changed:
            return
        self._changed = False
        self._model.geom_dataid.assign(self._dataid)
        if self._new:
            self._model.hfield_size.assign(self._size)
        for slot, heights in self._new.items():
            wp.copy(self._model.hfield_data, wp.array(heights, device="cpu"), slot * self._cells)
        self._new.clear()


# Worlds.
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
