"""Episodes of a page as other files: films, and recordings for Rerun's viewer.

Rerun (https://rerun.io) is the extra `rerun`, films as .mp4 the extra `video`.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.collectors.rendering.colours import BARRIER, GHOST, Colour
from gaitforge.collectors.rendering.rendering import Scene, draw
from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.collectors.rotations import from_yaw, rotate, yaw_of
from gaitforge.collectors.timing import CONTROL_DT_S
from gaitforge.common.errors import missing_package
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.records import write_file
from gaitforge.pipeline.report import pictures
from gaitforge.pipeline.report.picture_files import Heading, animation
from gaitforge.plugins.player.episodes import VELOCITY, Chart, Show, Viewed, scene_of
from gaitforge.plugins.player.robot_shapes import body_poses, decoded, robot_shapes

FILM_PX = (640, 400)
TILE_PX = (320, 200)
TIMELINE = "time"
_ROBOT = "world/robot"
_GROUND: Colour = (190, 197, 204)
_COMMAND: Colour = (204, 121, 167)
_ARROW_M_PER_MS = 0.35
_ARROW_RADIUS_M = 0.01
_ARROW_ABOVE = (0.0, 0.0, 0.2)
_EYE = (-2.0, -5.0, 2.0)
"""Camera position relative to the trunk, in leg lengths: ahead, left, up."""
_XYZW = [1, 2, 3, 0]


def write_film(show: Show, path: Path, reporter: Reporter) -> None:
    """Write a show's episodes as a film, of several as tiles; the path's ending is its format.

    Raises:
        RenderingError: MuJoCo cannot draw here.
        ValueError: another format than `ANIMATIONS`, or a path that cannot be written.
    """
    alone = len(show.episodes) == 1
    films = []
    size_px, frame_ms = (FILM_PX, pictures.FILM_MS) if alone else (TILE_PX, pictures.TILES_MS)
    shots = [pictures.film_shot(scene_of(viewed, show.robot), frame_ms) for viewed in show.episodes]
    with reporter.step("draw", sum(len(shot.steps) for shot in shots), "frame") as advance:
        for viewed, shot in zip(show.episodes, shots, strict=True):
            row = viewed.row
            where = f"{row['terrain']}, level {row['level']}"
            where += f"; episode {viewed.name}" if alone else ""
            heading = Heading(row["skill"], where, "", "", bool(row["success"]), "")
            films.append((heading, draw([shot], *size_px)[0]))
            advance(len(shot.steps), viewed.name)
    write_file(path, animation(films, frame_ms, path.suffix[1:].lower()))


def load_rerun() -> Any:
    """The package `rerun`; ValueError, with the command to install it, where it is missing."""
    try:
        import rerun  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError(missing_package("--rerun", "rerun-sdk", "rerun")) from None
    return rerun


def write_recording(show: Show, viewed: Viewed, path: Path, reporter: Reporter) -> None:
    """Write an episode of a page as an .rrd file.

    Time is in seconds from the start. `world` has the robot, its ghost, ground, barriers and the
    commanded velocity (m, z up); `curves` a chart an entity; `episode` the catalog's row.

    Raises:
        ValueError: no rerun-sdk, or a path that cannot be written.
    """
    rr = load_rerun()
    stream = rr.RecordingStream("gaitforge")
    with (
        tempfile.TemporaryDirectory(prefix="gaitforge-") as folder,
        reporter.step("record", 1, "episode") as advance,
    ):
        stream.save(Path(folder, "out.rrd"), default_blueprint=_blueprint(show, viewed))
        stream.send_recording_name(f"{show.title} {viewed.name}")
        facts = [f"{name}: {value}" for name, value in viewed.row.items()]
        text = "\n".join([viewed.ended, *facts])
        stream.log("episode", rr.TextDocument(text), static=True)
        stream.log("world", rr.ViewCoordinates.RIGHT_HAND_Z_UP, static=True)
        _surroundings(stream, scene_of(viewed, show.robot))
        _robot(stream, _ROBOT, show.robot, viewed.recording.poses)
        if viewed.ghost:
            _robot(stream, "world/ghost", show.robot, viewed.ghost.recording.poses, GHOST)
        _curves(stream, show, viewed)
        stream.disconnect()
        write_file(path, Path(folder, "out.rrd").read_bytes())
        advance(1, viewed.name)


def _blueprint(show: Show, viewed: Viewed) -> Any:
    """The charts beside the scene, whose camera follows the robot from behind its right side."""
    rr = load_rerun()
    rrb = rr.blueprint
    base = viewed.recording.poses[0]
    away = rotate(from_yaw(yaw_of(base[3:7])), show.robot.leg_length_m * np.array(_EYE))
    trunk = rr.new_entity_path([*_ROBOT.split("/"), show.robot.trunk_body])
    eye = rrb.EyeControls3D(position=base[:3] + away, look_target=base[:3], tracking_entity=trunk)
    charts = [
        rrb.TimeSeriesView(origin=_curve(chart), name=f"{chart.name} ({chart.unit})")
        for chart in show.charts
    ]
    scene = rrb.Spatial3DView(origin="world", eye_controls=eye)
    grid = rrb.Grid(*charts, grid_columns=2)
    return rrb.Blueprint(rrb.Horizontal(scene, grid, column_shares=[3, 2]), collapse_panels=True)


def _curve(chart: Chart) -> str:
    return f"curves/{chart.name.replace(' ', '_')}"


def _surroundings(stream: Any, scene: Scene) -> None:
    """The ground as a mesh, and the barriers."""
    rr = load_rerun()
    ground = scene.ground
    ny, nx = ground.heights.shape
    cells = np.stack(np.meshgrid(np.arange(nx), np.arange(ny)), axis=-1)
    places = ground.low_m + ground.resolution_m * cells
    corners = np.concatenate([places, ground.heights[..., None]], axis=-1).reshape(-1, 3)
    up, right = np.gradient(ground.heights, ground.resolution_m)
    normals = np.stack([-right, -up, np.ones_like(up)], axis=-1).reshape(-1, 3)
    at = np.arange(ny * nx).reshape(ny, nx)
    a, b, c, d = (grid.ravel() for grid in (at[:-1, :-1], at[:-1, 1:], at[1:, 1:], at[1:, :-1]))
    triangles = np.concatenate([np.stack([a, b, c], axis=1), np.stack([a, c, d], axis=1)])
    mesh = rr.Mesh3D(
        vertex_positions=corners,
        triangle_indices=triangles,
        vertex_normals=normals / np.linalg.norm(normals, axis=1, keepdims=True),
        albedo_factor=_GROUND,
    )
    stream.log("world/ground", mesh, static=True)
    if scene.barriers:
        boxes = rr.Boxes3D(
            centers=[barrier.centre_m for barrier in scene.barriers],
            half_sizes=[barrier.half_size_m for barrier in scene.barriers],
            quaternions=[from_yaw(np.array(b.yaw_rad))[_XYZW] for b in scene.barriers],
            colors=BARRIER,
            fill_mode=rr.components.FillMode.TransparentFillMajorWireframe,
        )
        stream.log("world/barriers", boxes, static=True)


def _robot(
    stream: Any, path: str, robot: RobotCard, poses: np.ndarray, colour: Colour | None = None
) -> None:
    """The shapes of every body, static, all in a colour or their own; the poses over time."""
    rr = load_rerun()
    bodies = robot_shapes(robot)["bodies"]
    for body, (name, moved) in zip(bodies, body_poses(robot, poses).items(), strict=True):
        entity = rr.new_entity_path([*path.split("/"), name])
        placed = rr.Transform3D.columns(translation=moved[:, :3], quaternion=moved[:, 3:][:, _XYZW])
        stream.send_columns(entity, [_times(len(moved))], placed)
        for k, shape in enumerate(body["shapes"]):
            quat = np.array(shape["quat"])[_XYZW]
            transform = rr.Transform3D(translation=shape["pos"], quaternion=quat)
            drawn = _shape(shape, colour or shape["colour"])
            stream.log(f"{entity}/{k}", transform, drawn, static=True)


def _shape(shape: dict[str, Any], colour: Sequence[int]) -> Any:
    """A shape of `robot_shapes` about its own centre; sizes as MuJoCo's."""
    rr = load_rerun()
    kind = shape["kind"]
    size = shape["size"]
    if kind == "mesh":
        corners = decoded(shape["triangles"])
        a, b, c = corners.reshape(-1, 3, 3).swapaxes(0, 1)
        turned = np.cross(b - a, c - a).repeat(3, axis=0)
        normals = turned / np.maximum(np.linalg.norm(turned, axis=1, keepdims=True), 1e-12)
        return rr.Mesh3D(vertex_positions=corners, vertex_normals=normals, albedo_factor=colour)
    look = {"colors": colour, "fill_mode": rr.components.FillMode.Solid}
    if kind == "box":
        return rr.Boxes3D(half_sizes=size, **look)
    if kind == "capsule":
        low = [0.0, 0.0, -size[1]]
        return rr.Capsules3D(radii=size[0], lengths=2 * size[1], translations=low, **look)
    if kind == "cylinder":
        return rr.Cylinders3D(radii=size[0], lengths=2 * size[1], **look)
    return rr.Ellipsoids3D(half_sizes=size if kind == "ellipsoid" else size[:1] * 3, **look)


def _curves(stream: Any, show: Show, viewed: Viewed) -> None:
    """A chart's curves as one entity, and the commanded velocity as an arrow above the trunk."""
    rr = load_rerun()
    series = viewed.recording.series
    first = 0
    poses = viewed.recording.poses[: len(series)]
    times = [_times(len(series))]
    for chart in show.charts:
        columns = series[:, first : first + len(chart.curves)]
        first += len(chart.curves)
        stream.log(_curve(chart), rr.SeriesLines(names=chart.curves), static=True)
        values = rr.Scalars.columns(scalars=columns.ravel())
        sizes = [columns.shape[1]] * len(series)
        stream.send_columns(_curve(chart), times, values.partition(sizes))
        if chart == VELOCITY:
            ahead = columns[:, 0]
            left = columns[:, 2]
            command = np.stack([ahead, left, np.zeros(len(series))], axis=1)
            arrows = rr.Arrows3D.columns(
                vectors=_ARROW_M_PER_MS * rotate(from_yaw(yaw_of(poses[:, 3:7])), command),
                origins=poses[:, :3] + _ARROW_ABOVE,
            )
            look = rr.Arrows3D.from_fields(colors=_COMMAND, radii=_ARROW_RADIUS_M)
            stream.log("world/command", look, static=True)
            stream.send_columns("world/command", times, arrows)


def _times(count: int) -> Any:
    return load_rerun().TimeColumn(TIMELINE, duration=np.arange(count) * CONTROL_DT_S)
