"""Pictures of scenes and robots, drawn with MuJoCo's offscreen renderer through EGL or OSMesa.

A scene is a recorded episode to draw: states, ground, barriers, and a viewpoint. It is in the world
frame, m and rad. Positions are unwrapped: the periodic tile is laid out under the whole path.

A portrait of a robot shows it in its default pose on flat ground.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gaitforge.collectors.legged.episodes import EpisodeDraws
from gaitforge.collectors.legged.rollout import EpisodeResult
from gaitforge.collectors.robots.kinematics import standing_height_m
from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.collectors.rotations import yaw_of
from gaitforge.collectors.scenarios.terrains import (
    Barrier,
    Passage,
    TerrainTile,
    make_tile,
    place_barriers,
    tile_heights,
)
from gaitforge.collectors.timing import CONTROL_DT_S

# Scenes.
GROUND_MARGIN_M = 5.0
"""Ground beyond the path on every side, out of the camera's sight."""
_POSITION_SMOOTHING_S = 0.5
_HEADING_SMOOTHING_S = 1.0


@dataclass(frozen=True)
class GroundPatch:
    """Heights (ny, nx) in m on a grid whose first corner is `low_m` (2,)."""

    heights: np.ndarray
    low_m: np.ndarray
    resolution_m: float

    def at(self, points: np.ndarray) -> np.ndarray:
        """Bilinear heights (..., ) at world points (..., 2); the edge's height beyond the edge."""
        last = np.array(self.heights.shape[::-1]) - 1
        cell = np.clip((points - self.low_m) / self.resolution_m, 0.0, last)
        corner = np.minimum(cell.astype(np.int64), last - 1)
        x, y = np.moveaxis(corner, -1, 0)
        fx, fy = np.moveaxis(cell - corner, -1, 0)
        near = self.heights[y, x] * (1 - fx) + self.heights[y, x + 1] * fx
        far = self.heights[y + 1, x] * (1 - fx) + self.heights[y + 1, x + 1] * fx
        return near * (1 - fy) + far * fy


@dataclass(frozen=True)
class Scene:
    """An episode of T steps, ready to draw.

    Attributes:
        state: (T, 19) base position, quaternion wxyz, joint positions.
        barriers: the boxes of `passage`, which is None on open ground.
        view_pos: (T, 3) the point on the ground that the camera follows.
        view_yaw: (T,) rad, along the track, or the smoothed heading.
        ghost: (T, 19) states of a second robot, drawn translucent; None without.
    """

    robot: RobotCard
    state: np.ndarray
    ground: GroundPatch
    barriers: tuple[Barrier, ...]
    passage: Passage | None
    view_pos: np.ndarray
    view_yaw: np.ndarray
    ghost: np.ndarray | None = None


def scene_of(result: EpisodeResult, robot: RobotCard) -> Scene:
    """The scene of a recorded episode; ValueError if it was not recorded."""
    if result.record is None:
        raise ValueError(f"episode {result.spec.index} was not recorded; there is nothing to draw")
    spec = result.spec
    draws = result.draws
    tile = make_tile(spec.terrain, spec.level, draws.terrain_variant)
    return drawn_scene(robot, result.record.state, tile, draws)


def drawn_scene(
    robot: RobotCard, state: np.ndarray, tile: TerrainTile, draws: EpisodeDraws
) -> Scene:
    """The scene of states (T, 7 + J) on a tile, with the passage that was drawn."""
    state = state.astype(np.float64)
    ground = lay_out(tile, state[:, :2].min(axis=0), state[:, :2].max(axis=0))
    barriers = place_barriers(draws.passage, tile, draws.offset_xy, draws.yaw)
    position = _smoothed(state[:, :2], _POSITION_SMOOTHING_S)
    below = _smoothed(ground.at(position)[:, None], _HEADING_SMOOTHING_S)
    if draws.passage:
        yaw = np.full(len(state), draws.yaw)
    else:
        heading = np.unwrap(yaw_of(state[:, 3:7]))
        yaw = _smoothed(heading[:, None], _HEADING_SMOOTHING_S)[:, 0]
    view_pos = np.concatenate([position, below], axis=1)
    return Scene(robot, state, ground, tuple(barriers), draws.passage, view_pos, yaw)


def lay_out(tile: TerrainTile, low: np.ndarray, high: np.ndarray) -> GroundPatch:
    """A periodic tile repeated over the rectangle from `low` (2,) to `high` (2,) and a margin."""
    resolution = tile.resolution_m
    first = np.floor((low - GROUND_MARGIN_M) / resolution).astype(np.int64)
    last = np.ceil((high + GROUND_MARGIN_M) / resolution).astype(np.int64)
    x, y = np.meshgrid(
        *(np.arange(a, b + 1) * resolution for a, b in zip(first, last, strict=True))
    )
    points = np.stack([x, y], axis=-1)
    heights = tile_heights(tile, points.reshape(-1, 2)).reshape(x.shape)
    return GroundPatch(heights, first * resolution, resolution)


def frame_steps(steps: int, frames: int) -> np.ndarray:
    """(frames,) steps spread evenly over an episode, first and last included."""
    return np.linspace(0, steps - 1, frames).round().astype(np.int64)


def _smoothed(values: np.ndarray, seconds: float) -> np.ndarray:
    """(T, D) centred moving average, ends extrapolated by reflection."""
    half = max(1, round(seconds / CONTROL_DT_S / 2))
    padded = np.pad(values, ((half, half), (0, 0)), mode="reflect", reflect_type="odd")
    sums = np.cumsum(np.concatenate([np.zeros((1, values.shape[1])), padded]), axis=0)
    return (sums[2 * half + 1 :] - sums[: -2 * half - 1]) / (2 * half + 1)


# The renderer.
OPENGL_BACKENDS = ("egl", "osmesa")
"""Back ends in the order they are tried, GPU before software; MUJOCO_GL replaces them if set."""
START_LIMIT_S = 20.0
FRAME_LIMIT_S = 1.0
"""Time limit per frame; one busy core takes about 0.1 s."""
# MuJoCo is imported first, with its renderer: this package imports it without one.
_PROGRAM = "import mujoco; from gaitforge.collectors.rendering.mujoco_view import main; main()"
_EXCEPTION = re.compile(r"[\w.]*(Error|Exception)\b")
_REASON_LENGTH = 160


class RenderingError(ValueError):
    """MuJoCo cannot draw on this machine."""


@dataclass(frozen=True)
class Shot:
    """The steps (F,) of a scene to draw."""

    scene: Scene
    steps: np.ndarray


def draw(shots: Sequence[Shot], width_px: int, height_px: int) -> list[np.ndarray]:
    """Draw every shot, (F, height_px, width_px, 3) uint8; RenderingError if no OpenGL works."""
    if not shots:
        return []
    choice = os.environ.get("MUJOCO_GL")
    limit_s = START_LIMIT_S + FRAME_LIMIT_S * sum(len(shot.steps) for shot in shots)
    failures = []
    with tempfile.TemporaryDirectory(prefix="gaitforge-") as folder:
        request = Path(folder, "request.npz")
        answer = Path(folder, "answer.npz")
        _write_shots(request, shots, width_px, height_px)
        for backend in (choice,) if choice else OPENGL_BACKENDS:
            failure = _run(backend, request, answer, limit_s)
            if failure is None:
                with np.load(answer, allow_pickle=False) as drawn:
                    return [drawn[str(k)] for k in range(len(shots))]
            failures.append(f"{backend}: {failure}")
    remedy = f"unset MUJOCO_GL, or set it to {' or '.join(OPENGL_BACKENDS)}; " if choice else ""
    raise RenderingError(
        f"MuJoCo cannot draw here ({'; '.join(failures)}); {remedy}install OSMesa (Debian: "
        "libosmesa6) or a graphics driver with EGL"
    )


def _write_shots(path: Path, shots: Sequence[Shot], width_px: int, height_px: int) -> None:
    arrays: dict[str, np.ndarray] = {
        "robot": np.array(str(shots[0].scene.robot.path.resolve())),
        "size_px": np.array([width_px, height_px]),
    }
    for k, shot in enumerate(shots):
        scene = shot.scene
        steps = shot.steps
        barriers = [(*b.centre_m, *b.half_size_m, b.yaw_rad) for b in scene.barriers]
        fields = {
            "state": scene.state[steps],
            "ghost": scene.state[:0] if scene.ghost is None else scene.ghost[steps],
            "heights": scene.ground.heights,
            "low_m": scene.ground.low_m,
            "resolution_m": np.array(scene.ground.resolution_m),
            "barriers": np.array(barriers).reshape(-1, 7),
            "view_pos": scene.view_pos[steps],
            "view_yaw": scene.view_yaw[steps],
            "passage": np.array(scene.passage.kind if scene.passage else "none"),
        }
        arrays |= {f"{k}/{name}": value for name, value in fields.items()}
    np.savez(path, allow_pickle=False, **arrays)


def _run(backend: str, request: Path, answer: Path, limit_s: float) -> str | None:
    """Run the drawing process; returns why it failed, or None."""
    command = [sys.executable, "-c", _PROGRAM, str(request), str(answer)]
    try:
        done = subprocess.run(
            command,
            env=os.environ | {"MUJOCO_GL": backend},
            cwd=Path(__file__).resolve().parents[3],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no picture after {limit_s:.0f} s"
    if done.returncode == 0 and answer.is_file():
        return None
    return _reason(done.stderr) or f"the process ended with code {done.returncode}"


def _reason(stderr: str) -> str:
    """First line of the exception that ended a process, or its last line of output."""
    lines = [line.rstrip() for line in stderr.splitlines() if line.strip()]
    raised = [line for line in lines if _EXCEPTION.match(line)]
    text = (raised or lines or [""])[-1].strip()
    return text if len(text) <= _REASON_LENGTH else text[: _REASON_LENGTH - 3] + "..."


# Portraits.
_BEHIND_RAD = 2.6
"""Angle from the first view to the second."""


def draw_portrait(robot: RobotCard, width_px: int, height_px: int) -> np.ndarray:
    """(2, height_px, width_px, 3) uint8: from the right and front, then from the left and rear.

    RenderingError if no OpenGL works.
    """
    origin = np.zeros(2)
    base = [0.0, 0.0, standing_height_m(robot), 1.0, 0.0, 0.0, 0.0]
    state = np.tile([*base, *robot.default_joint_pos_rad], (2, 1))
    scene = Scene(
        robot=robot,
        state=state,
        ground=lay_out(make_tile("flat", 0, 0), origin, origin),
        barriers=(),
        passage=None,
        view_pos=np.zeros((2, 3)),
        view_yaw=np.array([0.0, _BEHIND_RAD]),
    )
    return draw([Shot(scene, np.arange(2))], width_px, height_px)[0]
