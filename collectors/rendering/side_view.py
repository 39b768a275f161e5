"""Drawing a scene without OpenGL: a side view, and a front view where walls stand.

Orthographic and to scale. The viewer of the side stands to the robot's right, so it walks to the
right of the picture; the viewer of the front looks it in the face. Right legs are dark blue, left
legs light blue, barriers amber, in the MuJoCo pictures as here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from collectors.rendering.scene import Scene, leg_points
from collectors.rotations import from_yaw, rotate
from collectors.scenarios.passages import Barrier

Colour = tuple[int, int, int]
Points = list[tuple[float, float]]

RIGHT_LEGS: Colour = (213, 94, 0)
LEFT_LEGS: Colour = (0, 114, 178)
TRUNK: Colour = (70, 83, 99)
HEAD: Colour = (126, 141, 158)
FEET: Colour = (24, 28, 34)
BARRIER: Colour = (230, 159, 0)
SKY: Colour = (246, 248, 250)
_FAR_GROUND: Colour = (222, 227, 232)
_NEAR_GROUND: Colour = (189, 198, 207)
_GROUND_EDGE: Colour = (112, 124, 137)
_MARKS: Colour = (88, 99, 111)

_SUPERSAMPLING = 3
_WIDTH_M = {"none": 1.5, "bar": 1.5, "walls": 1.8}
"""Of the whole picture, by what stands on the track."""
_FRONT_SHARE = 0.42
"""Of the picture's width, where there is a front view."""
_GROUND_LINE = 0.24
"""Height of the viewed point in the picture, from below."""
_LEG_SIDE_M = 0.14
_HEAD_SHARE = 0.2
_SECTION_WITHIN_M = 1.3
_SECTION_ALPHA, _PALE_ALPHA = 225, 60


@dataclass(frozen=True)
class _Projection:
    """An axis-aligned view in the viewer's frame: `across` is 0 for the side, 1 for the front."""

    across: int
    towards_viewer: np.ndarray

    def depth(self, points: np.ndarray) -> np.ndarray:
        """(...): larger is nearer."""
        return points @ self.towards_viewer


_SIDE = _Projection(0, np.array([0.0, -1.0, 0.0]))
_FRONT = _Projection(1, np.array([1.0, 0.0, 0.0]))


def draw_side_views(
    scene: Scene, steps: np.ndarray, width_px: int, height_px: int
) -> list[np.ndarray]:
    """Pictures (height_px, width_px, 3) uint8 of some steps of a scene."""
    kind = scene.passage.kind if scene.passage else "none"
    front_px = round(width_px * _FRONT_SHARE) if kind == "walls" else 0
    px_per_m = width_px / (_WIDTH_M[kind] * scene.robot.leg_length_m / 0.5)
    way = scene.way_m()
    frames = []
    for step in steps.tolist():
        geometry = _Geometry(scene, step)
        side = _Canvas(width_px - front_px, height_px, px_per_m)
        _draw_side(side, geometry, float(way[step]))
        panels = [side.pixels()]
        if front_px:
            front = _Canvas(front_px, height_px, px_per_m)
            _draw_front(front, geometry)
            panels.append(front.pixels())
        frames.append(np.concatenate(panels, axis=1))
    return frames


class _Geometry:
    """One step of a scene in the viewer's frame: forward, left, up, from the viewed point."""

    def __init__(self, scene: Scene, step: int):
        self.robot = scene.robot
        self._scene, self._pos, self._yaw = scene, scene.view_pos[step], scene.view_yaw[step]
        state = scene.state[step]
        self.legs = self.to_view(leg_points(scene.robot, state))
        half = np.array(scene.robot.trunk_half_size_m)
        split = half[0] * (1 - 2 * _HEAD_SHARE)
        self.body = self._box(state, (-half[0], split), half)
        self.head = self._box(state, (split, half[0]), half)
        self.barriers = [self.to_view(_barrier_corners(b)) for b in scene.barriers]

    def to_view(self, points: np.ndarray) -> np.ndarray:
        """World points (..., 3) as the viewer has them."""
        c, s = np.cos(self._yaw), np.sin(self._yaw)
        x, y, z = np.moveaxis(points - self._pos, -1, 0)
        return np.stack([c * x + s * y, c * y - s * x, z], axis=-1)

    def ground(self, forward: np.ndarray, left: np.ndarray) -> np.ndarray:
        """Heights above the viewed point."""
        c, s = np.cos(self._yaw), np.sin(self._yaw)
        xy = np.stack([c * forward - s * left, s * forward + c * left], axis=-1) + self._pos[:2]
        return self._scene.ground.at(xy) - self._pos[2]

    def _box(self, state: np.ndarray, along: tuple[float, float], half: np.ndarray) -> np.ndarray:
        corners = _corners(np.array([along[0], *-half[1:]]), np.array([along[1], *half[1:]]))
        return self.to_view(rotate(state[3:7], corners) + state[:3])


def _corners(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """(8, 3) corners of a box, z fastest."""
    return np.stack(np.meshgrid(*zip(low, high, strict=True), indexing="ij"), -1).reshape(-1, 3)


def _barrier_corners(barrier: Barrier) -> np.ndarray:
    half = np.array(barrier.half_size_m)
    quat = from_yaw(np.array(barrier.yaw_rad))
    return rotate(quat, _corners(-half, half)) + np.array(barrier.centre_m)


class _Canvas:
    """A supersampled picture in metres; y is up, the origin is the viewed point."""

    def __init__(self, width_px: int, height_px: int, px_per_m: float):
        size = (width_px * _SUPERSAMPLING, height_px * _SUPERSAMPLING)
        self.image = Image.new("RGB", size, SKY)
        self._draw = ImageDraw.Draw(self.image, "RGBA")
        self._scale = px_per_m * _SUPERSAMPLING
        self._origin = np.array([size[0] / 2, size[1] * (1 - _GROUND_LINE)])
        self.half_width_m = width_px / px_per_m / 2
        self.bottom_m = -height_px * _GROUND_LINE / px_per_m

    def _px(self, points: np.ndarray) -> Points:
        return [tuple(p) for p in (points * [1, -1] * self._scale + self._origin).tolist()]

    def polygon(self, points: np.ndarray, colour: Colour, alpha: int = 255) -> None:
        """Fill (K, 2) points."""
        self._draw.polygon(self._px(points), fill=(*colour, alpha))

    def line(self, points: np.ndarray, colour: Colour, width_m: float) -> None:
        """A line through (K, 2) points."""
        width = max(_SUPERSAMPLING, round(width_m * self._scale))
        self._draw.line(self._px(points), fill=colour, width=width, joint="curve")

    def capsule(self, ends: np.ndarray, radius_m: float, colour: Colour) -> None:
        """A line between (2, 2) points with round ends and a thin pale rim."""
        rim = 1.2 / self._scale * _SUPERSAMPLING
        for radius, fill in ((radius_m + rim, SKY), (radius_m, colour)):
            self._draw.line(self._px(ends), fill=fill, width=round(2 * radius * self._scale))
            for end in ends:
                self.disc(end, radius, fill)

    def disc(self, centre: np.ndarray, radius_m: float, colour: Colour) -> None:
        """A filled circle."""
        (x, y), r = self._px(centre[None])[0], radius_m * self._scale
        self._draw.ellipse((x - r, y - r, x + r, y + r), fill=colour)

    def text(self, point: np.ndarray, text: str, size_px: int) -> None:
        """Text centred below a point."""
        font = ImageFont.load_default(size_px * _SUPERSAMPLING)
        self._draw.text(self._px(point[None])[0], text, fill=_MARKS, font=font, anchor="mt")

    def pixels(self) -> np.ndarray:
        """(height, width, 3) uint8."""
        return np.asarray(self.image.reduce(_SUPERSAMPLING))


def _draw_side(canvas: _Canvas, geometry: _Geometry, way_m: float) -> None:
    """`way_m`, the distance that the viewer has come, numbers the ground's marks."""
    scale = geometry.robot.leg_length_m / 0.5
    far, near = (_side_profile(canvas, geometry, side * _LEG_SIDE_M * scale) for side in (1, -1))
    _draw_ground(canvas, far, _FAR_GROUND)
    before = _draw_barriers_behind(canvas, geometry)
    _draw_robot(canvas, geometry, _SIDE, near)
    for outline in before:
        (x0, _), _, (x1, top), _ = outline
        inside = near[(near[:, 0] > x0) & (near[:, 0] < x1)]
        face = np.concatenate([[[x0, top]], inside, [[x1, top]]])
        canvas.polygon(face, BARRIER, _PALE_ALPHA)
        canvas.line(np.concatenate([face, face[:2]]), BARRIER, 0.008 * scale)
    _draw_marks(canvas, near, way_m, scale)


def _draw_front(canvas: _Canvas, geometry: _Geometry) -> None:
    _draw_wall_section(canvas, geometry)
    _draw_ground(canvas, _front_profile(canvas, geometry), _NEAR_GROUND)
    _draw_robot(canvas, geometry, _FRONT, near_ground=None)
    left = -canvas.half_width_m
    canvas.line(np.array([[left, -9.0], [left, 9.0]]), (255, 255, 255), 0.012)


def _side_profile(canvas: _Canvas, geometry: _Geometry, left_m: float) -> np.ndarray:
    """(K, 2) forward and height of the ground along a line beside the robot."""
    forward = np.arange(-canvas.half_width_m, canvas.half_width_m + 0.02, 0.02)
    return np.stack([forward, geometry.ground(forward, np.full_like(forward, left_m))], axis=-1)


def _front_profile(canvas: _Canvas, geometry: _Geometry) -> np.ndarray:
    left = np.arange(-canvas.half_width_m, canvas.half_width_m + 0.02, 0.02)
    forward = geometry.legs[:2, 3, 0].mean()
    return np.stack([left, geometry.ground(np.full_like(left, forward), left)], axis=-1)


def _draw_ground(canvas: _Canvas, profile: np.ndarray, colour: Colour) -> None:
    ends = np.array([[profile[-1, 0], canvas.bottom_m], [profile[0, 0], canvas.bottom_m]])
    canvas.polygon(np.concatenate([profile, ends]), colour)
    canvas.line(profile, _GROUND_EDGE, 0.004)


def _draw_marks(canvas: _Canvas, profile: np.ndarray, way_m: float, scale: float) -> None:
    """Ticks every quarter of a metre along the way, numbered every metre."""
    first, last = (way_m + side * canvas.half_width_m for side in (-1, 1))
    for quarter in range(int(np.ceil(first * 4)), int(np.floor(last * 4)) + 1):
        x = quarter / 4 - way_m
        top = float(np.interp(x, profile[:, 0], profile[:, 1]))
        metre = quarter % 4 == 0
        end = top - (0.05 if metre else 0.025) * scale
        canvas.line(np.array([[x, top], [x, end]]), _GROUND_EDGE, 0.004 * scale)
        if metre:
            canvas.text(np.array([x, end - 0.015 * scale]), f"{quarter // 4} m", 9)


def _draw_barriers_behind(canvas: _Canvas, geometry: _Geometry) -> list[np.ndarray]:
    """Draw what stands behind the robot or over it; returns the outlines of what stands before."""
    before = []
    for corners in geometry.barriers:
        outline = _bounds(corners[:, [0, 2]])
        depths = _SIDE.depth(corners)
        nearest, farthest = depths.max(), depths.min()
        if farthest > 0:
            before.append(outline)
        else:
            canvas.polygon(outline, BARRIER, _SECTION_ALPHA if nearest > 0 else _PALE_ALPHA)
    return before


def _draw_wall_section(canvas: _Canvas, geometry: _Geometry) -> None:
    """Walls as the front view cuts them: solid around the trunk, pale before and after."""
    trunk = np.concatenate([geometry.body, geometry.head])[:, 0]
    for corners in geometry.barriers:
        start, end = corners[:, 0].min(), corners[:, 0].max()
        ahead = max(start - trunk.max(), trunk.min() - end)
        if ahead < _SECTION_WITHIN_M:
            alpha = _SECTION_ALPHA if ahead < 0 else _PALE_ALPHA
            canvas.polygon(_bounds(corners[:, 1:]), BARRIER, alpha)


def _bounds(points: np.ndarray) -> np.ndarray:
    """(4, 2) corners of the rectangle around points; barriers stand straight in their views."""
    (x0, y0), (x1, y1) = points.min(axis=0), points.max(axis=0)
    return np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]])


def _draw_robot(
    canvas: _Canvas, geometry: _Geometry, view: _Projection, near_ground: np.ndarray | None
) -> None:
    """Far legs, trunk, ground under the near legs, near legs."""
    plane = [view.across, 2]
    middle = float(view.depth(np.concatenate([geometry.body, geometry.head])).mean())
    depths = view.depth(geometry.legs[:, 1])
    order = np.argsort(depths, kind="stable").tolist()
    far = [leg for leg in order if depths[leg] < middle]
    for leg in far:
        _draw_leg(canvas, geometry, leg, plane, faded=view is _FRONT)
    boxes = [(geometry.body, TRUNK), (geometry.head, HEAD)]
    for corners, colour in sorted(boxes, key=lambda box: float(view.depth(box[0]).mean())):
        _draw_box(canvas, corners, view, colour)
    if near_ground is not None:
        _draw_ground(canvas, near_ground, _NEAR_GROUND)
    for leg in order[len(far) :]:
        _draw_leg(canvas, geometry, leg, plane, faded=False)
    if view is _FRONT:
        _draw_box(canvas, geometry.head, view, HEAD)


def _draw_leg(
    canvas: _Canvas, geometry: _Geometry, leg: int, plane: list[int], faded: bool
) -> None:
    robot = geometry.robot
    hip, thigh, knee, foot = geometry.legs[leg][:, plane]
    colour = LEFT_LEGS if robot.leg_signs[leg, 1] > 0 else RIGHT_LEGS
    trunk = TRUNK
    if faded:
        colour, trunk = _faded(colour), _faded(trunk)
    size = robot.leg_length_m
    canvas.capsule(np.stack([knee, foot]), 0.026 * size, colour)
    canvas.disc(foot, robot.foot_radius_m, _faded(FEET) if faded else FEET)
    canvas.capsule(np.stack([hip, thigh]), 0.08 * size, trunk)
    canvas.capsule(np.stack([thigh, knee]), 0.044 * size, colour)


def _draw_box(canvas: _Canvas, corners: np.ndarray, view: _Projection, colour: Colour) -> None:
    """The faces of a box (8 corners, z fastest) that look at the viewer, shaded by their tilt."""
    centre = corners.mean(axis=0)
    for face in (
        (0, 1, 3, 2),
        (4, 5, 7, 6),
        (0, 1, 5, 4),
        (2, 3, 7, 6),
        (0, 2, 6, 4),
        (1, 3, 7, 5),
    ):
        points = corners[list(face)]
        normal = points.mean(axis=0) - centre
        normal /= np.linalg.norm(normal)
        facing = float(normal @ view.towards_viewer)
        if facing > 0.02:
            light = 0.85 + 0.3 * max(float(normal[2]), 0.0) + 0.15 * facing
            shaded = tuple(min(255, round(part * light)) for part in colour)
            canvas.polygon(points[:, [view.across, 2]], (shaded[0], shaded[1], shaded[2]))


def _faded(colour: Colour) -> Colour:
    r, g, b = (round(0.55 * part + 0.45 * sky) for part, sky in zip(colour, SKY, strict=True))
    return r, g, b
