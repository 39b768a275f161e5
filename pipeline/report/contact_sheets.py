"""The contact sheets of a run as figures that the report holds within itself."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass

from pipeline.report.run_files import PICTURES, RunFiles

_RENDERERS = {
    "mujoco": "Drawn by MuJoCo’s renderer.",
    "side": "Drawn from the recorded poses, to scale, without a renderer.",
}


@dataclass(frozen=True)
class SheetFigure:
    """A contact sheet as a data URI, and what it shows in words."""

    skill: str
    uri: str
    alt: str


def sheet_figures(run: RunFiles) -> list[SheetFigure]:
    """A figure a sheet, in the order of `pictures.json`; none where nothing was drawn."""
    sheets = run.pictures["sheets"] if run.pictures else []
    figures = []
    for sheet in sheets:
        content = (run.root / PICTURES / sheet["file"]).read_bytes()
        alt = (
            f"{sheet['skill']} on {sheet['terrain']}, level {sheet['level']}: {sheet['command']}; "
            f"{'success' if sheet['success'] else 'no success'}, "
            f"{sheet['succeeded']} of {sheet['episodes']} episodes succeed"
        )
        uri = "data:image/png;base64," + b64encode(content).decode("ascii")
        figures.append(SheetFigure(sheet["skill"], uri, alt))
    return figures


def drawn_by(run: RunFiles) -> str:
    """How the sheets were drawn, as a sentence."""
    return _RENDERERS.get(run.pictures["renderer"], "") if run.pictures else ""
