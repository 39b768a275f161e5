"""A stored episode as a film: simulated again from its seed and actions, drawn by MuJoCo."""

from pathlib import Path

import numpy as np

from collectors.legged.environment import LeggedEnvironment
from collectors.legged.episodes import EpisodeSpec
from collectors.legged.observations import POLICY_SLICES
from collectors.legged.rollout import EpisodeResult, run_episodes
from collectors.physics import is_exact
from collectors.policies import Observation
from collectors.rendering.rendering import draw
from collectors.rendering.scene import scene_of
from collectors.robots.robot import load_robot
from collectors.timing import CONTROL_DT_S
from datasets import Selection
from datasets.files import check_outside_stores, write_bytes_durably
from pipeline.report.picture_files import Heading, animation
from pipeline.report.pictures import FILM_FPS, describe, film_shot

VIDEO_FORMATS = ("webp", "gif", "mp4")
VIDEO_PX = (640, 400)
NEEDED = ("terrain", "level", "skill", "seed", "simulator", "action_noise")
_LAST_ACTION = slice(*POLICY_SLICES["last_action"])


class _Playback:
    """Plays the executed actions (T, 12) of one episode on one robot."""

    name = "playback"

    def __init__(self, executed: np.ndarray):
        self._actions = iter(executed)

    def reset(self, ids: np.ndarray) -> None:
        """See `Policy.reset`."""

    def act(self, observation: Observation) -> np.ndarray:
        """See `Policy.act`."""
        return next(self._actions)[None]


def write_video(
    selection: Selection,
    index: int,
    path: Path,
    robot: str = "",
    size_px: tuple[int, int] = VIDEO_PX,
) -> None:
    """Write a film of a selection's episode, at 25 frames a second.

    Args:
        path: its ending says the format: webp, gif, or mp4, which needs the extra `video`.
        robot: a name or path; empty for the store's own.
        size_px: width and height without the line above the picture; even numbers.

    Raises:
        RenderingError: MuJoCo cannot draw here.
        ValueError: another format, no such episode, one that cannot be repeated exactly, or a
            path that cannot be written.
    """
    kind = path.suffix.removeprefix(".").lower()
    if kind not in VIDEO_FORMATS:
        raise ValueError(f"unknown format '{kind}' of {path}; allowed: {', '.join(VIDEO_FORMATS)}")
    if any(side % 2 or side < 2 for side in size_px):
        raise ValueError(f"size_px has to be two even numbers, got {size_px}")
    check_outside_stores(path)
    result = replayed(selection, index, robot)
    spec = result.spec
    where = f"{spec.terrain}, level {spec.level}"
    heading = Heading(spec.skill, where, describe(result), "", result.success, "")
    shot = film_shot(scene_of(result, load_robot(robot or selection.store.schema.robot)))
    (frames,) = draw([shot], *size_px)
    film = animation(heading, frames, shot.steps * CONTROL_DT_S, FILM_FPS, kind)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes_durably(path, film)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None


def replayed(selection: Selection, index: int, robot: str = "") -> EpisodeResult:
    """A legged selection's episode, simulated again and recorded.

    Raises:
        ValueError: no such episode, or it came out otherwise than stored.
    """
    if not 0 <= index < len(selection):
        raise ValueError(f"no episode {index} in a selection of {len(selection)}")
    row = selection.episodes().slice(index, 1).to_pylist()[0]
    if missing := [name for name in NEEDED if name not in row]:
        raise ValueError(f"the store has no column {missing[0]}: films show legged episodes")
    if not is_exact(row["simulator"]):
        raise ValueError(f"{row['simulator']} repeats no episode bit for bit")
    stored = selection.episode(index)
    # Executed actions, noise and another driver's included: what the next observation reports.
    after = np.concatenate([stored["obs"][1:], stored["final_obs"][None]])
    spec = EpisodeSpec(*(row[name] for name in ("episode", "terrain", "level", "skill", "seed")))
    env = LeggedEnvironment(load_robot(robot or selection.store.schema.robot), 1, 1)
    try:
        playback = _Playback(after[:, _LAST_ACTION])
        (result,) = run_episodes(env, playback, [spec], record=True)
    finally:
        env.close()
    assert result.record is not None, "it was run to be recorded"
    if not np.array_equal(result.record.reward, stored["reward"]):
        raise ValueError(
            f"episode {row['episode']} came out otherwise than stored, by "
            f"{row['simulator']} {row['simulator_version']}"
        )
    return result
