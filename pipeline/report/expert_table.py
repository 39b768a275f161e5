"""The expert's card as the report's table: a row a terrain and skill, a column a level."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.report.run_files import Record, RunFiles


@dataclass(frozen=True)
class CardRow:
    """One terrain and skill: success by level, and the rest at the middle one."""

    terrain: str
    skill: str
    success: list[float | None]
    middle: Record


@dataclass(frozen=True)
class CardTable:
    """The card's table; `episodes` were run a cell."""

    levels: list[int]
    middle_level: int
    episodes: int
    steps: int
    success: float
    survival: float
    rows: list[CardRow]


def card_table(run: RunFiles) -> CardTable | None:
    """The table of the expert's card; None where the run holds no card with an evaluation."""
    cells = (run.expert or {}).get("evaluation", {}).get("cells", [])
    if not cells:
        return None
    levels = sorted({cell["level"] for cell in cells})
    middle = levels[len(levels) // 2]
    known = {(cell["terrain"], cell["skill"], cell["level"]): cell for cell in cells}
    pairs = dict.fromkeys((cell["terrain"], cell["skill"]) for cell in cells)
    rows = [
        CardRow(
            terrain,
            skill,
            [known.get((terrain, skill, level), {}).get("success") for level in levels],
            known.get((terrain, skill, middle), {}),
        )
        for terrain, skill in pairs
    ]
    return CardTable(
        levels,
        middle,
        min(cell["episodes"] for cell in cells),
        int((run.expert or {}).get("steps", 0)),
        sum(cell["success"] for cell in cells) / len(cells),
        sum(cell["survival"] for cell in cells) / len(cells),
        rows,
    )
