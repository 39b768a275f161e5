"""The worker process that runs Isaac Gym under its own Python, and the file of the worker's world.

The worker ends with this process. If it fails, a one-line error quotes its last output.

From its file the worker builds an Isaac Gym world.
"""

import contextlib
import json
import math
import mmap
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.collectors.physics.interface import BackendUnavailable
from gaitforge.collectors.scenarios.terrains import GRID, Barrier, TerrainTile
from gaitforge.collectors.simulators import ISAACGYM_PYTHON_VARIABLE
from gaitforge.plugins.simulators.isaacgym.worker import protocol

# The worker process.
DEVICE_VARIABLE = "GAITFORGE_ISAACGYM_DEVICE"
TIMEOUT_VARIABLE = "GAITFORGE_ISAACGYM_TIMEOUT_S"
DEFAULT_TIMEOUT_S = 600.0
"""Compiling gymtorch and cooking hundreds of tiles take minutes."""
WORKER = Path(__file__).parent / "worker" / "worker.py"
_FAREWELL_S = 5.0
_READ_BYTES = 4096
_QUOTED_LINES = 3
_QUOTED_CHARACTERS = 400
_TRACEBACK = "Traceback (most recent call last)"


class WorkerError(ValueError):
    """A worker that failed; the message says why, with its last output."""


@dataclass(frozen=True)
class IsaacGymConfig:
    """Where Isaac Gym runs: its interpreter, "cuda:0" or "cpu", and the limit for an answer."""

    python: str
    device: str = "cuda:0"
    timeout_s: float = DEFAULT_TIMEOUT_S


def config_from_environment() -> IsaacGymConfig:
    """The configuration from environment variables; BackendUnavailable if they are wrong."""
    python = os.environ.get(ISAACGYM_PYTHON_VARIABLE, "")
    if not python:
        raise BackendUnavailable(
            "no interpreter: give the Python 3.6, 3.7 or 3.8 that has isaacgym and torch with "
            f"--isaacgym-python or in {ISAACGYM_PYTHON_VARIABLE}"
        )
    device = os.environ.get(DEVICE_VARIABLE, "cuda:0")
    if not re.fullmatch(r"cpu|cuda:\d+", device):
        raise BackendUnavailable(f"{DEVICE_VARIABLE} is '{device}'; it has to be cpu or cuda:0 …")
    limit = os.environ.get(TIMEOUT_VARIABLE, str(DEFAULT_TIMEOUT_S))
    try:
        timeout_s = float(limit)
    except ValueError:
        timeout_s = 0.0
    if not 0.0 < timeout_s < float("inf"):
        raise BackendUnavailable(f"{TIMEOUT_VARIABLE} is '{limit}'; it has to be seconds above 0")
    return IsaacGymConfig(python, device, timeout_s)


def child_environment(python: str) -> dict[str, str]:
    """This environment plus the interpreter's lib folder: Isaac Gym links to conda's libpython."""
    paths = [os.environ.get("LD_LIBRARY_PATH", ""), str(Path(python).parent.parent / "lib")]
    return os.environ | {"LD_LIBRARY_PATH": ":".join(path for path in paths if path)}


class WorkerProcess:
    """A running worker and its shared memory; WorkerError if it does not start.

    Args:
        facts: the robot's entries for the worker's settings file; urdf: text of its URDF.

    Attributes:
        blocks: {name: (robots, width) float32} views of the shared memory.
        hello: Isaac Gym's version and the worker's device.
        world_path: the file of the world to build.
    """

    def __init__(self, config: IsaacGymConfig, robots: int, facts: Mapping[str, Any], urdf: str):
        self._config = config
        folder = Path(tempfile.mkdtemp(prefix="gaitforge-isaacgym-"))
        self._log = folder / "output.log"
        self.world_path = folder / "world.npz"
        (folder / "robot.urdf").write_text(urdf, encoding="utf-8")
        memory_fd = os.memfd_create("gaitforge-isaacgym")
        os.ftruncate(memory_fd, protocol.memory_bytes(robots))
        memory = mmap.mmap(memory_fd, protocol.memory_bytes(robots))
        self._clock = protocol.clock_view(memory)
        self.blocks = protocol.block_views(memory, robots)
        commands_out, self._commands = os.pipe()
        self._answers, answers_in = os.pipe()
        theirs = (memory_fd, commands_out, answers_in)
        settings = dict(facts) | {
            "robots": robots,
            "device": config.device,
            "memory_fd": memory_fd,
            "command_fd": commands_out,
            "answer_fd": answers_in,
            "parent": os.getpid(),
            "folder": str(folder),
            "urdf": str(folder / "robot.urdf"),
            "world": str(self.world_path),
        }
        settings_path = folder / "settings.json"
        settings_path.write_text(json.dumps(settings), encoding="utf-8")
        try:
            self._process = self._start(settings_path, theirs)
        except OSError as error:
            os.close(self._commands)
            os.close(self._answers)
            shutil.rmtree(folder, ignore_errors=True)
            raise WorkerError(f"{self._title}: it cannot be started: {error.strerror}") from None
        finally:
            for fd in theirs:
                os.close(fd)
        self._poll = select.poll()
        self._poll.register(self._answers, select.POLLIN)
        pipes = self._commands, self._answers
        self.close = weakref.finalize(self, _end, os.getpid(), self._process, pipes, folder)
        """End the process; may be called twice."""
        self.hello = self._answer(config.timeout_s)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def step_s(self) -> float:
        """Seconds that the worker spent on steps."""
        return float(self._clock[0])

    def ask(self, command: bytes, limit_s: float | None = None) -> None:
        """Run a command within a time limit; WorkerError, and the worker ended, if it fails."""
        if not self.close.alive:
            raise WorkerError(f"{self._title}: it has ended")
        with contextlib.suppress(BrokenPipeError):  # the answer says what happened
            os.write(self._commands, command)
        self._answer(limit_s or self._config.timeout_s)

    @property
    def _title(self) -> str:
        return f"Isaac Gym worker ({self._config.python})"

    def _start(self, settings: Path, fds: tuple[int, ...]) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [self._config.python, "-u", str(WORKER), str(settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=fds,
                start_new_session=True,
                env=child_environment(self._config.python),
            )

    def _answer(self, limit_s: float) -> dict[str, Any]:
        """The worker's next message."""
        line = b""
        while not line.endswith(b"\n"):
            if not self._poll.poll(1000.0 * limit_s):
                raise self._failure(
                    f"no answer within {limit_s:g} s ({TIMEOUT_VARIABLE}), so it was killed"
                )
            text = os.read(self._answers, _READ_BYTES)
            if not text:
                raise self._failure(self._death())
            line += text
        if line == protocol.DONE:
            return {}
        try:
            message = json.loads(line)
        except ValueError:
            raise self._failure(f"it answered {line[:80]!r}") from None
        if "error" in message:
            raise self._failure(f"it failed: {message['error']}", quote_traceback=False)
        return message

    def _death(self) -> str:
        try:
            status = self._process.wait(_FAREWELL_S)
        except subprocess.TimeoutExpired:
            return "it closed its pipe"
        if status < 0:
            return f"it was killed by {signal.Signals(-status).name}"
        return f"it ended with exit status {status}"

    def _failure(self, reason: str, quote_traceback: bool = True) -> WorkerError:
        """End the process; returns the error to raise."""
        _kill(self._process)
        text = self._log.read_text(encoding="utf-8", errors="replace")
        self.close()
        if not quote_traceback:
            text = text.rpartition(_TRACEBACK)[0]  # the rest is the failure itself
        lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
        output = " | ".join(lines[-_QUOTED_LINES:])[-_QUOTED_CHARACTERS:]
        printed = f"it last printed: {output}" if output else "it printed nothing"
        return WorkerError(f"{self._title}: {reason}; {printed}")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a worker's process group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _end(
    owner: int, process: subprocess.Popen[bytes], pipes: tuple[int, int], folder: Path
) -> None:
    """Ask a worker to quit, kill it if it does not, and remove its folder."""
    if os.getpid() != owner:
        return  # in a fork
    with contextlib.suppress(BrokenPipeError):  # it has ended already
        os.write(pipes[0], protocol.QUIT)
    for fd in pipes:
        os.close(fd)
    try:
        process.wait(_FAREWELL_S)
    except subprocess.TimeoutExpired:
        _kill(process)
    shutil.rmtree(folder, ignore_errors=True)


# The file of the worker's world.
GAP_M = 4.0
"""Distance between tiles: more than robots and barriers reach beyond their own."""


@dataclass(frozen=True)
class FixedPart:
    """A robot's properties that a built world cannot change: tile, barriers, friction, mass."""

    tile: int
    barriers: tuple[Barrier, ...]
    friction: float
    mass_offset_kg: float
    com_offset_m: tuple[float, ...]


class TileBook:
    """Numbers of tiles; equal tiles share one."""

    def __init__(self) -> None:
        self.tiles: list[TerrainTile] = []
        self._numbers: dict[tuple[float, float, bytes], int] = {}

    def number(self, tile: TerrainTile) -> int:
        """The tile's number."""
        content = tile.resolution_m, tile.period_m, tile.heights.tobytes()
        number = self._numbers.setdefault(content, len(self.tiles))
        if number == len(self.tiles):
            self.tiles.append(tile)
        return number


def write_world(path: Path, book: TileBook, robots: Sequence[FixedPart]) -> None:
    """Write the world of N robots with T tiles and B barriers; float32, m, kg, rad, scene frame.

    Arrays: `vertices` (T, 121 * 121, 3), `triangles` (F, 3) of each tile; `place` (N, 3) and
    `period` (N,) of each robot's tile; `barrier_robot` (B,), `barrier_centre` (B, 3),
    `barrier_half` (B, 3), `barrier_yaw` (B,); `foot_friction` (N,), twice the wanted one as it is
    averaged with the ground's 0; `mass_offset` (N,), `com_offset` (N, 3).
    """
    used = sorted({robot.tile for robot in robots})
    tiles = [book.tiles[number] for number in used]
    places = tile_places(tiles)
    index = [used.index(robot.tile) for robot in robots]
    barriers = [(i, barrier) for i, robot in enumerate(robots) for barrier in robot.barriers]
    owner = np.array([i for i, _ in barriers], dtype=np.int32)
    centres = np.array([b.centre_m for _, b in barriers]).reshape(-1, 3)
    halves = np.array([b.half_size_m for _, b in barriers]).reshape(-1, 3)
    arrays = {
        "vertices": np.stack(
            [tile_vertices(tile) + offset for tile, offset in zip(tiles, places, strict=True)]
        ),
        "place": places[index],
        "period": np.array([tiles[i].period_m for i in index]),
        "barrier_centre": centres + places[index][owner],
        "barrier_half": halves,
        "barrier_yaw": np.array([b.yaw_rad for _, b in barriers]),
        "foot_friction": np.array([2.0 * robot.friction for robot in robots]),
        "mass_offset": np.array([robot.mass_offset_kg for robot in robots]),
        "com_offset": np.array([robot.com_offset_m for robot in robots]),
    }
    floats = {name: array.astype(np.float32) for name, array in arrays.items()}
    np.savez(path, triangles=grid_triangles(), barrier_robot=owner, **floats)


def tile_places(tiles: Sequence[TerrainTile]) -> np.ndarray:
    """(T, 3) m: middles of the tiles on a square grid around the origin.

    float32 resolves 0.03 mm at 256 m.
    """
    side = math.ceil(math.sqrt(len(tiles)))
    pitch = 2.0 * max(tile.extent_m for tile in tiles) + GAP_M
    rows, columns = np.divmod(np.arange(len(tiles)), side)
    x, y = ((axis - (side - 1) / 2) * pitch for axis in (columns, rows))
    return np.stack([x, y, np.zeros(len(tiles))], axis=1)


def tile_vertices(tile: TerrainTile) -> np.ndarray:
    """(121 * 121, 3) m: points of the height map, relative to its middle."""
    axis = (np.arange(GRID + 1) - GRID / 2) * tile.resolution_m
    x, y = np.meshgrid(axis, axis)
    return np.stack([x, y, tile.heights], axis=-1).reshape(-1, 3)


def grid_triangles() -> np.ndarray:
    """(2 * 120 * 120, 3) uint32, counter-clockwise from above; cells cut as MuJoCo cuts them."""
    corner = np.arange(GRID * (GRID + 1)).reshape(GRID, GRID + 1)[:, :-1].ravel()
    right = corner + 1
    above = corner + GRID + 1
    opposite = corner + GRID + 2
    lower = np.stack([corner, right, opposite], axis=1)
    upper = np.stack([corner, opposite, above], axis=1)
    return np.stack([lower, upper], axis=1).reshape(-1, 3).astype(np.uint32)
