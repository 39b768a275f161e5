"""What a legged expert's training tells while it goes on."""

from typing import Any

from gaitforge.collectors.scenarios.skills import SKILLS
from gaitforge.collectors.scenarios.terrains import TERRAINS
from gaitforge.flows.stages.expert_training import ProgressTable, progress_note

EARLY: dict[str, Any] = {
    "steps": 120_000,
    "return": 0.8,
    "success": 0.0,
    "survival": 0.25,
    "level": 1.13,
    "levels": {"stand": 0.8, "run": 9.0},
}


def test_the_note_has_the_numbers_that_rise_first() -> None:
    assert progress_note(EARLY) == "return 0.8, survival 25%, success 0%, level 1.1"
    nothing_ended = EARLY | dict.fromkeys(("return", "success", "survival"))
    assert progress_note(nothing_ended) == "level 1.1"


def test_the_table_has_means_over_the_updates_since_the_last_one() -> None:
    table = ProgressTable()
    table.add({"flat/stand": [1.0, 1.0, 1], "rough/run": [0.0, 1.0, 2]})
    table.add({"flat/stand": [0.0, 1.0, 3]})
    lines = table.take(EARLY).splitlines()
    assert lines[0] == "success/survival in % while exploring, at 0.12 M steps"
    assert lines[1].split() == list(SKILLS)
    rows = {line.split()[0]: line.split()[1:] for line in lines[2:]}
    assert list(rows) == [*TERRAINS, "level"]
    assert rows["flat"] == ["25/100"]
    assert rows["rough"] == ["0/100"]
    assert rows["level"] == ["0.8", "9.0"]
    assert lines[2].index("25/100") + 6 == lines[1].index("stand") + 5, "under its skill"
    assert table.take(EARLY).count("/") == 1, "it begins again"


def test_the_table_fits_80_columns() -> None:
    table = ProgressTable()
    table.add({f"{terrain}/{skill}": [1.0, 1.0, 1] for terrain in TERRAINS for skill in SKILLS})
    assert max(map(len, table.take(EARLY | {"steps": 10**10}).splitlines())) <= 80
