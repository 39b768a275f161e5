"""A film of an episode, drawn by MuJoCo's offscreen renderer."""

from pathlib import Path

import numpy as np

from collectors.rendering.rendering import Shot, draw
from collectors.timing import CONTROL_DT_S
from flows.progress import Reporter
from pipeline.report.picture_files import Heading, animation
from pipeline.report.pictures import FILM_FPS, film_shot
from pipeline.view.show import Show, Viewed, scene_of, write_file

FILM_PX = (640, 400)
_FRAMES_AT_ONCE = 50


def write_film(show: Show, viewed: Viewed, path: Path, reporter: Reporter) -> None:
    """Write an episode as a film at 25 frames a second; the path's ending is its format.

    Raises:
        RenderingError: MuJoCo cannot draw here.
        ValueError: another format than `ANIMATIONS`, or a path that cannot be written.
    """
    shot, frames = film_shot(scene_of(viewed, show.robot)), []
    with reporter.step("draw", len(shot.steps), "frame") as advance:
        for first in range(0, len(shot.steps), _FRAMES_AT_ONCE):
            steps = shot.steps[first : first + _FRAMES_AT_ONCE]
            frames += draw([Shot(shot.scene, steps)], *FILM_PX)
            advance(len(steps), viewed.name)
    row = viewed.row
    where = f"{row['terrain']}, level {row['level']}; episode {viewed.name}"
    heading = Heading(row["skill"], where, "", "", bool(row["success"]), "")
    times_s = shot.steps * CONTROL_DT_S
    kind = path.suffix[1:].lower()
    write_file(path, animation(heading, np.concatenate(frames), times_s, FILM_FPS, kind))
