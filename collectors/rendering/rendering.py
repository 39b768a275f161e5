"""Draw scenes with MuJoCo's offscreen renderer, through EGL or OSMesa."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gaitforge.collectors.rendering.scene import Scene

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
