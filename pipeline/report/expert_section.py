"""The report's contact sheets, and the expert's card as a table."""

from dataclasses import dataclass
from pathlib import Path

from gaitforge.datasets.errors import amount
from gaitforge.pipeline.report.pages import Record, data_uri
from gaitforge.pipeline.report.run_files import PICTURES, RunFiles


@dataclass(frozen=True)
class SheetFigure:
    """A contact sheet as a data URI, and what it shows in words."""

    policy: str
    caption: str
    uri: str
    alt: str


def sheet_figures(folder: Path, pictures: Record | None) -> list[SheetFigure]:
    """One figure per sheet, in the order of `pictures.json`; none if nothing was drawn."""
    figures = []
    for sheet in pictures["sheets"] if pictures else []:
        alt = (
            f"{sheet['skill']} on {sheet['terrain']}, level {sheet['level']}: {sheet['command']}; "
            f"{'success' if sheet['success'] else 'no success'}, "
            f"{sheet['succeeded']} of {amount(sheet['episodes'], 'episode')} succeed"
        )
        uri = data_uri(folder / PICTURES / sheet["file"])
        figures.append(SheetFigure(sheet["policy"], sheet["caption"], uri, alt))
    return figures


def card_table(run: RunFiles) -> Record | None:
    """The expert's card as a table; None where the run holds no card with an evaluation.

    Returns:
        `levels`, `middle_level`, `episodes` (of a cell), `steps`, mean `success` and
        `survival`, and `rows`: terrain, skill, success by level, and the cell of the middle
        level.
    """
    card = run.expert or {}
    cells = card.get("evaluation", {}).get("cells", [])
    if not cells:
        return None
    levels = sorted({cell["level"] for cell in cells})
    middle = levels[len(levels) // 2]
    by_place = {(cell["terrain"], cell["skill"], cell["level"]): cell for cell in cells}
    rows = [
        {
            "terrain": terrain,
            "skill": skill,
            "success": [
                by_place.get((terrain, skill, level), {}).get("success") for level in levels
            ],
            "middle": by_place.get((terrain, skill, middle), {}),
        }
        for terrain, skill in dict.fromkeys((cell["terrain"], cell["skill"]) for cell in cells)
    ]
    means = {
        name: sum(cell[name] for cell in cells) / len(cells) for name in ("success", "survival")
    }
    episodes = min(cell["episodes"] for cell in cells)
    shown = {"levels": levels, "middle_level": middle, "episodes": episodes, "rows": rows}
    return shown | means | {"steps": int(card.get("steps", 0))}
