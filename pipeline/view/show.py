"""Content of a page: recorded episodes and their surroundings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gaitforge.collectors.legged.episodes import HELD_OUT_VARIANTS, EpisodeSpec, draw_episode
from gaitforge.collectors.rendering.scene import Scene, drawn_scene
from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.collectors.scenarios.passages import Barrier, place_barriers
from gaitforge.collectors.scenarios.randomisation import Written
from gaitforge.collectors.scenarios.terrains import TerrainTile, make_tile
from gaitforge.datasets.catalog.listing import episode_id, episode_name
from gaitforge.pipeline.view.recording import Chart, Recording

MOST_PARALLEL = 64
"""Most robots that run a page's episodes in parallel."""


class NothingToShow(ValueError):
    """Episodes of which no page can be made, however often it is tried; the message says why."""


@dataclass(frozen=True)
class Viewed:
    """One episode: its catalog row, its recording, and its surroundings.

    `ghost` is another policy's, on the same start and seed.
    """

    row: Mapping[str, Any]
    recording: Recording
    tile: TerrainTile
    barriers: tuple[Barrier, ...]
    ghost: "Viewed | None" = None

    @property
    def name(self) -> str:
        """The episode's name, as `gaitforge query --list` prints it."""
        return episode_name(int(self.row["episode"]))

    @property
    def ended(self) -> str:
        """Why the episode ended, in words."""
        return self.recording.ended or ("fell" if self.row["terminated"] else "time ran out")


@dataclass(frozen=True)
class Show:
    """The episodes of a page.

    Attributes:
        charts: the curves of every recording's `series`, in their order.
        note: a remark on the episodes for the viewer, or "".
        ghost: name of the ghosts' policy, or "".
        randomisation: that of the episodes, see `LeggedPlan`.
    """

    title: str
    robot: RobotCard
    charts: tuple[Chart, ...]
    episodes: tuple[Viewed, ...]
    note: str = ""
    ghost: str = ""
    randomisation: Written = field(default_factory=dict)

    def chosen(self, names: Sequence[str]) -> "Show":
        """The same with the episodes of these names or ids, or else that of the lowest return.

        ValueError without such an episode.
        """
        by_id = {int(episode.row["episode"]): episode for episode in self.episodes}
        ids = [episode_id(name) for name in names]
        if missing := [name for name, i in zip(names, ids, strict=True) if i not in by_id]:
            least, most = (episode_name(i) for i in (min(by_id), max(by_id)))
            raise ValueError(f"no episode {missing[0]} in {self.title}; they are {least} to {most}")
        first = min(self.episodes, key=lambda episode: episode.row["return"])
        episodes = [by_id[i] for i in dict.fromkeys(ids)] or [first]
        return replace(self, episodes=tuple(episodes))


def spec_of(row: Mapping[str, Any]) -> EpisodeSpec:
    """The specification of a catalog's row; the tile's number says whether it is held out."""
    return EpisodeSpec(
        *(row[name] for name in ("episode", "terrain", "level", "skill", "seed")),
        held_out=HELD_OUT_VARIANTS[0] <= row["terrain_variant"] < HELD_OUT_VARIANTS[1],
        action_noise=row.get("action_noise", 0.0),
    )


def scene_of(viewed: Viewed, robot: RobotCard) -> Scene:
    """An episode as a scene to draw, with its ghost, under the whole path."""
    draws = draw_episode(spec_of(viewed.row), robot)
    scene = drawn_scene(robot, viewed.recording.poses, viewed.tile, draws)
    if viewed.ghost is None:
        return scene
    poses = viewed.ghost.recording.poses
    return replace(scene, ghost=poses[np.minimum(np.arange(len(scene.state)), len(poses) - 1)])


def viewed(row: Mapping[str, Any], recording: Recording, robot: RobotCard) -> Viewed:
    """An episode with the ground and barriers that its row and seed give."""
    tile = make_tile(row["terrain"], row["level"], row["terrain_variant"])
    drawn = draw_episode(spec_of(row), robot)
    barriers = place_barriers(drawn.passage, tile, drawn.offset_xy, drawn.yaw)
    return Viewed(row, recording, tile, tuple(barriers))
