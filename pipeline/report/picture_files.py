"""Frames as files of bounded size: contact sheets (PNG) and animations (GIF, WebP, MP4)."""

import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont

from gaitforge.collectors.rendering.colours import BARRIER, FEET, LEFT_LEGS, RIGHT_LEGS, SKY, TRUNK
from gaitforge.common.errors import install_extra

FRAME_PX = (400, 250)
SHEET_FRAMES = 8
MAX_SHEET_BYTES = 400_000
MAX_ANIMATION_BYTES = 1_500_000
MAX_EMBEDDED_BYTES = 500_000
"""Of an animation that a page holds."""
FADE_FRAMES = 5
"""Frames that blend the end of an animation into its start."""
ANIMATIONS = ("gif", "webp", "mp4")

_COLUMNS = 4
_GAP_PX = 6
_HEADER_PX = 76
_BAR_PX = 30
_INK, _MUTED, _PAPER = "#1f2933", "#5c6773", "#ffffff"
_GOOD, _BAD = "#00735c", "#b33a00"
_SHEET_COLOURS = (256, 128, 64, 32)
_SHADE = 0.62
# Robots and barriers are small, and would lose their colours to the many shades of the ground.
_KEPT_COLOURS = (
    RIGHT_LEGS,
    LEFT_LEGS,
    BARRIER,
    TRUNK,
    FEET,
    SKY,
    *(tuple(round(_SHADE * part) for part in colour) for colour in (RIGHT_LEGS, LEFT_LEGS)),
    *(ImageColor.getrgb(colour)[:3] for colour in (_INK, _MUTED, _PAPER)),
)
# Share of the full size and number of colours, best first.
_GIF_TRIES = ((1.0, 128), (1.0, 64), (0.8, 64), (0.8, 40), (0.6, 40), (0.5, 24))
_WEBP_TRIES = ((1.0, 75), (1.0, 60), (1.0, 50), (0.8, 50), (0.6, 40))


@dataclass(frozen=True)
class Heading:
    """Text over pictures: the skill, where, the command, and how it went."""

    skill: str
    where: str
    command: str
    outcome: str
    success: bool
    tally: str


def contact_sheet(heading: Heading, frames: np.ndarray, times_s: np.ndarray) -> bytes:
    """A PNG of the frames (F, height, width, 3) uint8 in rows of four, each with its time."""
    images = [_stamped(frame, t) for frame, t in zip(frames, times_s.tolist(), strict=True)]
    tiles = _montage(images, _COLUMNS, _GAP_PX)
    size = (tiles.width + 2 * _GAP_PX, _HEADER_PX + tiles.height + _GAP_PX)
    sheet = Image.new("RGB", size, _PAPER)
    outcome = _GOOD if heading.success else _BAD
    _write_heading(ImageDraw.Draw(sheet), heading, size[0], outcome)
    sheet.paste(tiles, (_GAP_PX, _HEADER_PX))
    palettes = (_palette(sheet, n, ImageColor.getrgb(outcome)[:3]) for n in _SHEET_COLOURS)
    tries = (_encoded(_indexed(sheet, palette), "PNG", optimize=True) for palette in palettes)
    return _first_within(MAX_SHEET_BYTES, tries)


def side_by_side(frames: np.ndarray) -> bytes:
    """A PNG of the frames (F, height, width, 3) uint8 in one row."""
    row = _montage([Image.fromarray(frame) for frame in frames], len(frames))
    return _encoded(row, "PNG", optimize=True)


def check_animation(kind: str) -> None:
    """ValueError for another format than `ANIMATIONS`, or an mp4 without PyAV."""
    if kind not in ANIMATIONS:
        raise ValueError(f"unknown format '{kind}'; allowed: {', '.join(ANIMATIONS)}")
    if kind == "mp4" and find_spec("av") is None:
        raise ValueError(f"mp4 needs PyAV, and webp does not: {install_extra('video')}")


Film = tuple[Heading | None, np.ndarray]
"""Frames (F, height, width, 3) uint8, and the text of the bar over them; None for no bar."""


def animation(
    films: Sequence[Film], frame_ms: int, kind: str, most_bytes: int = MAX_ANIMATION_BYTES
) -> bytes:
    """A "gif" or "webp" that repeats endlessly, or an "mp4".

    Several films are tiles of one picture; those that end before the others show their last frame.
    A gif or webp fades from its end to its start; its colours (or quality), then its size, are
    reduced until it is small enough. ValueError as by `check_animation`.
    """
    check_animation(kind)
    images = [_tiled(films, k, frame_ms) for k in range(max(len(frames) for _, frames in films))]
    if kind == "mp4":
        return _mp4(images, frame_ms)
    steps = np.linspace(0.0, 1.0, FADE_FRAMES + 2)[1:-1].tolist()
    images += [Image.blend(images[-1], images[0], share) for share in steps]
    settings = _GIF_TRIES if kind == "gif" else _WEBP_TRIES
    tries = (_looped(images, *setting, frame_ms, kind) for setting in settings)
    return _first_within(most_bytes, tries)


def still(frame: np.ndarray) -> bytes:
    """A small PNG of a frame (height, width, 3) uint8."""
    image = Image.fromarray(frame)
    return _encoded(_indexed(image, _palette(image, _SHEET_COLOURS[1])), "PNG", optimize=True)


def _first_within(limit_bytes: int, tries: Iterable[bytes]) -> bytes:
    """The first that is small enough, or else the last."""
    content = b""
    for content in tries:
        if len(content) <= limit_bytes:
            break
    return content


def _write_heading(pen: ImageDraw.ImageDraw, heading: Heading, width: int, colour: str) -> None:
    left = _GAP_PX + 6
    right = width - _GAP_PX - 6
    pen.text((left, 12), heading.skill, fill=_INK, font=_font(24, bold=True))
    start = left + pen.textlength(heading.skill, font=_font(24, bold=True)) + 14
    pen.text((start, 18), heading.where, fill=_INK, font=_font(18))
    pen.text((left, 45), heading.command, fill=_MUTED, font=_font(17))
    pen.text((right, 12), heading.outcome, fill=colour, font=_font(24, bold=True), anchor="ra")
    pen.text((right, 45), heading.tally, fill=_MUTED, font=_font(17), anchor="ra")


def _stamped(frame: np.ndarray, time_s: float) -> Image.Image:
    image = Image.fromarray(frame)
    ImageDraw.Draw(image).text((10, 8), f"{time_s:.2f} s", fill=_INK, font=_font(15))
    return image


def _tiled(films: Sequence[Film], frame: int, frame_ms: int) -> Image.Image:
    """One frame of all films, in about as many rows as columns."""
    shown = [(heading, frames, min(frame, len(frames) - 1)) for heading, frames in films]
    images = [_titled(frames[k], k * frame_ms / 1000, heading) for heading, frames, k in shown]
    return _montage(images, math.ceil(math.sqrt(len(images))))


def _titled(frame: np.ndarray, time_s: float, heading: Heading | None) -> Image.Image:
    """A frame under a bar with the skill, where it is, and the time."""
    if heading is None:
        return Image.fromarray(frame)
    height, width, _ = frame.shape
    image = Image.new("RGB", (width, height + _BAR_PX), _PAPER)
    image.paste(Image.fromarray(frame), (0, _BAR_PX))
    pen = ImageDraw.Draw(image)
    pen.text((8, 6), heading.skill, fill=_INK, font=_font(15, bold=True))
    start = 8 + pen.textlength(heading.skill, font=_font(15, bold=True)) + 8
    pen.text((start, 8), heading.where, fill=_MUTED, font=_font(13))
    pen.text((width - 8, 8), f"{time_s:.2f} s", fill=_MUTED, font=_font(13), anchor="ra")
    return image


def _encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _looped(
    images: Sequence[Image.Image], share: float, quality: int, frame_ms: int, kind: str
) -> bytes:
    """An endless animation at a share of the size; a gif's `quality` is its number of colours."""
    size = round(images[0].width * share), round(images[0].height * share)
    images = [image.resize(size, Image.Resampling.LANCZOS) for image in images]
    options: dict[str, Any] = {"quality": quality, "method": 4}
    if kind == "gif":
        samples = images[:: max(1, len(images) // 8)]
        palette = _palette(_montage(samples, len(samples)), quality)
        images = [_indexed(image, palette) for image in images]
        options = {"optimize": True}
    options |= {"save_all": True, "append_images": images[1:], "duration": frame_ms, "loop": 0}
    return _encoded(images[0], kind, **options)


def _mp4(images: Sequence[Image.Image], frame_ms: int) -> bytes:
    """H.264 that every browser and slide program plays."""
    import av  # pyright: ignore[reportMissingImports]

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as film:
        stream = film.add_stream("libx264", rate=Fraction(1000, frame_ms), options={"crf": "20"})
        stream.width, stream.height = images[0].size
        stream.pix_fmt = "yuv420p"
        for image in images:
            film.mux(stream.encode(av.VideoFrame.from_image(image)))
        film.mux(stream.encode(None))
    return buffer.getvalue()


def _palette(image: Image.Image, colours: int, *kept: tuple[int, ...]) -> Image.Image:
    """A picture that holds the palette: the picture's own colours, and those that are kept."""
    kept = (*_KEPT_COLOURS, *kept)
    values = image.quantize(colours - len(kept)).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([*values, *(part for colour in kept for part in colour)])
    return palette


def _indexed(image: Image.Image, palette: Image.Image) -> Image.Image:
    return image.quantize(palette=palette, dither=Image.Dither.NONE)


def _montage(images: Sequence[Image.Image], columns: int, gap_px: int = 0) -> Image.Image:
    """Pictures of one size in rows."""
    width = images[0].width + gap_px
    height = images[0].height + gap_px
    size = columns * width - gap_px, -(-len(images) // columns) * height - gap_px
    whole = Image.new("RGB", size, _PAPER)
    for k, image in enumerate(images):
        whole.paste(image, (k % columns * width, k // columns * height))
    return whole


@cache
def _font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which comes with matplotlib."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(mpl.get_data_path(), "fonts", "ttf", name)), size)
