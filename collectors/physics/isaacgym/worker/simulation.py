"""A sequence of worlds that share one memory."""

import mmap
import os
import time
from typing import Any, Optional

import numpy as np
import protocol
from isaacgym import gymapi

# isort: split
# Isaac Gym refuses to be imported after torch.
import torch
from robots import Robots
from world import World


def isaacgym_version() -> str:
    """Isaac Gym's own version."""
    version = gymapi.acquire_gym().get_version()
    return f"{version.major}.{version.minor}"


class WorkerSimulation:
    """The robots of a worker in the current world; memory is of `protocol.memory_bytes`."""

    def __init__(self, settings: "dict[str, Any]", memory: mmap.mmap):
        self.device = torch.device(settings["device"])
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError(f"no GPU: torch {torch.__version__} sees none for {self.device}")
        if self.device.type == "cpu":
            torch.set_num_threads(settings["threads"])
        self._settings = settings
        self._gym = gymapi.acquire_gym()
        views = protocol.block_views(memory, settings["robots"])
        self._clock = protocol.clock_view(memory)
        self._blocks = {name: torch.as_tensor(view) for name, view in views.items()}
        self._world: Optional[World] = None  # noqa: UP045
        self._robots: Optional[Robots] = None  # noqa: UP045

    def build(self) -> None:
        """Build the world of the world file; EVENTS holds the starts of all robots."""
        path = self._settings["world"]
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        os.unlink(path)
        if self._world is not None:
            self._robots = None  # its tensors must be freed before their world
            self._gym.destroy_sim(self._world.sim)
        columns = protocol.column_slices(protocol.EVENTS)
        starts = self._blocks["events"].numpy()
        position = starts[:, columns["base_pos"]] + arrays["place"]
        quat = np.roll(starts[:, columns["base_quat"]], -1, axis=1)
        poses = np.concatenate([position, quat], axis=1)
        self._world = World(self._gym, self._settings, arrays, poses)
        self._robots = Robots(self._gym, self._settings, arrays, self._world, self.device)

    def step(self, with_events: bool) -> None:
        """One control step; RuntimeError without a world."""
        started = time.perf_counter()
        if self._robots is None:
            raise RuntimeError("a step before a world was built")
        if with_events:
            self._robots.take_events(self._blocks["events"].to(self.device))
        state = self._robots.step(self._blocks["targets"].to(self.device))
        self._blocks["state"].copy_(state)
        self._clock += time.perf_counter() - started
