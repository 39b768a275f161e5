"""Memory mirrored on host and Warp device: one block for a step, and a bank of tiles."""

import math
from typing import Any

import mujoco
import numpy as np
import warp as wp

from gaitforge.collectors.scenarios.terrains import TerrainTile

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
