"""A film of an episode, drawn by MuJoCo's offscreen renderer."""

from pathlib import Path

import numpy as np

from collectors.legged.episodes import draw_episode
from collectors.rendering.rendering import Shot, draw
from collectors.rendering.scene import drawn_scene
from collectors.robots.robot import RobotCard
from collectors.timing import CONTROL_DT_S
from flows.progress import Reporter
from pipeline.report.picture_files import Heading, animation
from pipeline.report.pictures import FILM_FPS, film_shot
from pipeline.view.show import Viewed, spec_of, write_file

FILM_PX = (640, 400)
_FRAMES_AT_ONCE = 50


def write_film(viewed: Viewed, robot: RobotCard, path: Path, reporter: Reporter) -> None:
    """Write an episode as a film at 25 frames a second; the path's ending is its format.

    Raises:
        RenderingError: MuJoCo cannot draw here.
        ValueError: another format than `ANIMATIONS`, or a path that cannot be written.
    """
    spec = spec_of(viewed.row)
    scene = drawn_scene(robot, viewed.recording.poses, viewed.tile, draw_episode(spec, robot))
    shot = film_shot(scene)
    frames = []
    with reporter.step("draw", len(shot.steps), "frame") as advance:
        for first in range(0, len(shot.steps), _FRAMES_AT_ONCE):
            steps = shot.steps[first : first + _FRAMES_AT_ONCE]
            frames += draw([Shot(scene, steps)], *FILM_PX)
            advance(len(steps), viewed.name)
    where = f"{spec.terrain}, level {spec.level}; episode {viewed.name}"
    heading = Heading(spec.skill, where, "", viewed.ended, bool(viewed.row["success"]), "")
    kind = path.suffix.removeprefix(".").lower()
    write_file(
        path,
        animation(heading, np.concatenate(frames), shot.steps * CONTROL_DT_S, FILM_FPS, kind),
    )
