"""Stored legged episodes as contact sheets."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.collectors.legged.replaying import (
    by_robot,
    replay_environment,
    replayed,
    stored_episodes,
)
from gaitforge.collectors.legged.rollout import EpisodeResult
from gaitforge.collectors.rendering.rendering import RenderingError
from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.datasets import Selection
from gaitforge.datasets.catalog.summaries import episode_name
from gaitforge.pipeline.report import pictures

STORED_FRAMES = 4


def _replayed(selection: Selection) -> tuple[dict[int, EpisodeResult], RobotCard]:
    """Stored episodes by id, simulated again and recorded, with the success that is stored."""
    try:
        env = replay_environment(selection, len(selection))
    except ValueError as error:
        why = str(error).replace(selection.store.address, "the store")
        raise RenderingError(f"the episodes cannot be simulated here: {why}") from None
    results = {}
    with closing(env):
        for episode, result, difference in replayed(env, stored_episodes(selection)):
            if difference:
                raise RenderingError("the episodes do not repeat here bit for bit")
            row = episode.row
            results[row["episode"]] = replace(result, success=row["success"])
    return results, env.robot


def stored_takes(selection: Selection) -> tuple[dict[str, pictures.Take], RobotCard]:
    """Stored median-return episodes by `SKILL.png`, of the first robot if there are several.

    RenderingError if they are not the legged task's own, or do not repeat here.
    """
    if "skill" not in selection.catalog.column_names:
        raise RenderingError("only episodes that gaitforge collected with legged robots are drawn")
    selection = by_robot(selection)[0]
    tallies = _typical(selection)
    chosen = selection.rows[np.isin(selection.episode_ids(), list(tallies))]
    results, robot = _replayed(selection.with_rows(chosen))
    takes = (pictures.Take(results[k], *tallies[k], episode_name(k)) for k in tallies)
    return pictures.by_skill(takes), robot


def _typical(selection: Selection) -> dict[int, tuple[int, int]]:
    """Each skill's median-return episode that the expert drove -> its (successes, episodes)."""
    names = ["policy_hash"] if "policy_hash" in selection.catalog.column_names else []
    names += ["episode", "skill", "return", "success", "expert_hash"]
    rows = selection.catalog.rows(selection.rows, names).to_pylist()
    skills: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["return"]):
        if row.get("policy_hash") in (None, row["expert_hash"]):
            skills.setdefault(row["skill"], []).append(row)
    return {
        mine[len(mine) // 2]["episode"]: (sum(row["success"] for row in mine), len(mine))
        for _, mine in sorted(skills.items())
    }


def draw_stored(selection: Selection, folder: Path) -> list[dict[str, object]]:
    """Draw a sheet of one typical stored episode per skill; returns their records.

    RenderingError as by `stored_takes`, or where MuJoCo cannot draw.
    """
    sheets = pictures.draw_sheets(folder, *stored_takes(selection), STORED_FRAMES)
    return [{**sheet, "episode": sheet["policy"]} for sheet in sheets]
