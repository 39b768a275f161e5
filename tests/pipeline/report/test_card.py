"""The dataset card as pages: complete, self-contained, and the same for the same store."""

import json
import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from gaitforge.datasets import Store, open_store
from gaitforge.pipeline.report.added_pages import CARD_PAGES
from gaitforge.pipeline.report.card import (
    MARKDOWN_NAME,
    PAGE_NAME,
    RECORD_NAME,
    card_record,
    sparkline,
    write_card,
)
from gaitforge.pipeline.report.charts import histogram
from gaitforge.pipeline.report.pages import short
from gaitforge.pipeline.report.pictures import draw_stored
from tests.datasets.making import part_input, small_schema
from tests.pipeline.command_line import call
from tests.pipeline.report.test_report import PageReader

ADDED = [f"a href={page.file}" for page in CARD_PAGES.values()]
RANDOMISATION = {"friction": {"unit": "1", "low": 0.4, "high": 1.2}}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("card")
    schema = small_schema(attributes={"randomisation": RANDOMISATION})
    made = Store.create(folder / "legged.zarr", schema)
    for number, lengths in enumerate([(5, 1, 9, 30), (130, 64)]):
        made.write_part(f"part-{number:03d}", **part_input(lengths, 10 * number))
    records = folder / "legged.zarr.records"
    records.mkdir()
    plan = {
        "plan": {"grid": {"seed": 17}},
        "git_revision": "0123abcd",
        "versions": {"mujoco": "3.17.0"},
    }
    (records / "plan-77.json").write_text(json.dumps(plan))
    return made


@pytest.fixture(scope="module")
def card(store: Store) -> Path:
    """The folder of the store's card."""
    write_card(store.select(), store.path.parent / "card")
    return store.path.parent / "card"


def test_the_page_stands_alone_and_shows_every_cell(store: Store, card: Path) -> None:
    page, markdown = card / PAGE_NAME, card / MARKDOWN_NAME
    text = page.read_text()
    reader = PageReader(text)
    assert reader.loads == ADDED
    assert reader.unnamed_charts == 0
    assert reader.tags.count("svg") == 3 + 3, "histograms and spectra"
    assert {"size", "cells", "episodes", "randomisation", "provenance", "open"} <= set(reader.ids)
    assert not re.search(r"url\((?!#)|@import|https?://(?!www\.w3\.org)", text)
    assert reader.row("seeds")[1:] == ["6 different", "one per episode, in the catalog", "6"]
    assert "prefers-color-scheme: dark" in text
    for name in (store.info().hash, "0123abcd", "seed 17", "part-001", "gravity[0]"):
        assert name in text
        assert name in markdown.read_text() or name == "seed 17"
    for group in store.select().describe(("terrain", "skill")):
        shown = [row for row in reader.rows if group["skill"] in row[:2]]
        assert any(row[-1] == f"{group['return']:.2f}" for row in shown), group


def test_cards_of_the_same_store_are_equal_bytes(store: Store, card: Path, tmp_path: Path) -> None:
    write_card(store.select(), tmp_path / "card")
    for file in (PAGE_NAME, MARKDOWN_NAME, RECORD_NAME):
        assert (tmp_path / "card" / file).read_bytes() == (card / file).read_bytes()


def test_the_range_of_the_seeds_is_that_of_the_known_ones(tmp_path: Path) -> None:
    made = open_store(Store.create(tmp_path / "seeds.zarr", small_schema()).path)
    part = part_input((4, 5, 6), 10)
    made.write_part("p", **{**part, "episodes": {**part["episodes"], "seed": [7, -1, 21]}})
    known = card_record(made.select(), channels=False)["provenance"]["seeds"]
    assert known == {"distinct": 2, "min": 7, "max": 21}
    unknown = card_record(made.select(seed=-1), channels=False)["provenance"]["seeds"]
    assert unknown == {"distinct": 0, "min": None, "max": None}


def test_hostile_names_are_text(tmp_path: Path) -> None:
    path = tmp_path / "a|<img src=x onerror=alert(1)>[x](javascript:alert(1)).zarr"
    store = Store.create(path, small_schema())
    store.write_part("p", **part_input((4, 5), terrain=("<script>alert(1)</script>", "a|b")))
    page, markdown, record = write_card(store.select(), tmp_path / "card", channels=False)
    assert json.loads(record.read_text())["channels"] == []
    assert "script" not in PageReader(page.read_text()).tags
    assert "a\\|b" in markdown.read_text()
    assert markdown.read_text().startswith(
        r"# a\|\<img src=x onerror=alert(1)>[x]\(javascript:alert(1)).zarr"
    )
    assert PageReader(page.read_text()).loads == ADDED
    assert "<img src=x" not in page.read_text()


@pytest.mark.parametrize("compacted", [False, True])
def test_the_code_of_a_card_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compacted: bool
) -> None:
    path = tmp_path / """it's "a" [1] & <b> `c`.zarr"""
    made = open_store(Store.create(path, small_schema(group_by=("class", "skill"))).path)
    for number in range(2):
        given = part_input((4, 5), 2 * number)
        columns = {**given["episodes"], "class": ["a'\"b&", "c"]}
        columns |= {"note": ["late", "column"]} if number else {}
        made.write_part(f"p-{number}", **{**given, "episodes": columns})
    if compacted:
        made.compact()
        made.gc()
    page, markdown, _ = write_card(made.select(), tmp_path / "card", channels=False)
    blocks = re.findall(r"```python\n(.*?)\n```", markdown.read_text(), re.DOTALL)
    assert len(blocks) == 2
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block.replace("duckdb.sql", "rows = duckdb.sql"), "card.md", "exec"), names)
    assert len(names["rows"].fetchall()) == 4
    assert "note" in names["rows"].columns
    shown = re.findall(r"<pre>(.*?)</pre>", page.read_text(), re.DOTALL)
    assert [unescape(each) for each in shown[-2:]] == blocks


def test_markdown_tables_are_well_formed(card: Path) -> None:
    blocks = re.split(r"\n(?!\|)", (card / MARKDOWN_NAME).read_text())
    tables = [block.strip().splitlines() for block in blocks if block.lstrip().startswith("|")]
    assert len(tables) >= 7
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1, table[0]


def test_the_command_names_its_filters(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = "length > 1 and friction < 2"
    options = ["--out", tmp_path / "card", "--terrain", "rough", "--where", where, "--no-channels"]
    assert call("card", store.path, *options) == 0
    written = capsys.readouterr().out.split()
    names = [PAGE_NAME, *(page.file for page in CARD_PAGES.values()), MARKDOWN_NAME, RECORD_NAME]
    assert written == [str(tmp_path / "card" / name) for name in names]
    filters = "terrain=rough; length > 1 and friction < 2"
    assert filters in (tmp_path / "card" / MARKDOWN_NAME).read_text()
    page = unescape((tmp_path / "card" / PAGE_NAME).read_text())
    assert filters in page
    assert "This card is of a selection" in page
    assert 'id="channels"' not in page


@pytest.mark.usefixtures("no_charts")
def test_the_card_says_what_its_publishers_say(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "said.zarr"
    shutil.copytree(store.path, path)
    words = ["--licence", "CC-BY-4.0", "--author", "Ada", "--author", "Bo <b@c.org>"]
    words += ["--description", "For <b>gaits</b>.", "--citation", "me ``` 2026"]
    assert call("card", path, *words, "--limitations", "No rain.", "--no-channels") == 0
    assert call("card", path, "--limitations", "", "--no-channels", "--no-pictures") == 0
    folder = tmp_path / "said.zarr.card"
    page, text = (folder / PAGE_NAME).read_text(), (folder / MARKDOWN_NAME).read_text()
    for said in ("CC-BY-4.0", "Ada, Bo", "me"):
        assert said in page
        assert said in text
    assert "No rain." not in page + text
    for line in ("Lab floors.", "No wind.", "Lab floors."):
        assert call("card", path, "--add-limitation", line, "--no-channels", "--no-pictures") == 0
    assert open_store(path).about().limitations == "Lab floors.\n\nNo wind."
    assert "<b>" not in page.replace("\\<b>", "")
    places = [text.index(f"## {title}") for title in ("Licence", "How to load", "Provenance")]
    places.append(text.index("## Returns and lengths"))
    assert places == sorted(places)
    assert open_store(path).info().hash == store.info().hash


def test_a_card_without_pictures_says_why(store: Store, tmp_path: Path) -> None:
    page, markdown, _ = write_card(store.select(), tmp_path, channels=False, draw=draw_stored)
    said = "No pictures: the episodes cannot be simulated here: the store does not hold episodes of"
    for path in (page, markdown):
        assert said in path.read_text()
        assert store.address not in path.read_text()


def test_charts_survive_odd_counts() -> None:
    empty = histogram("Returns", {"edges": [0.0, 1.0], "counts": [0]}, "x <&>")
    assert 'aria-label="Returns. Histogram from 0 to 1 x &lt;&amp;&gt;"' in empty.svg
    assert sparkline([0, 1, 8]) == "·▁█"
    assert [short(value) for value in (12, 12_000, 3_400_000)] == ["12", "12k", "3.4M"]


def test_the_declared_range_is_marked() -> None:
    bins = {"edges": [0.0, 1.0, 2.0], "counts": [3, 1]}
    plain = histogram("a", bins, "x").svg
    marked = histogram("a", bins, "x", declared=(0.5, 1.5)).svg
    assert "var(--limit" in marked
    assert "var(--limit" not in plain
