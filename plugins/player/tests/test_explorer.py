"""The explorer: its codes partition each column as SQL does, and its page counts in a browser."""

import base64
import gzip
import json
import re
import shlex
from html import unescape
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.datasets import Selection, Store, open_store
from gaitforge.pipeline.report.card import selected, write_card
from gaitforge.plugins.player.explorer import MOST_NAMES, ChartColumn, binned, explorer_of
from gaitforge.plugins.player.tests.browser import CHROMIUM, browser
from tests.datasets.making import part_input, small_schema
from tests.pipeline.command_line import call

HOSTILE = "</script><b>x</b>"
COUNT = 3000

numbers = st.floats(-1e300, 1e300)
columns = st.one_of(
    st.lists(
        numbers | st.sampled_from([0.1, 0.3, float("nan"), float("inf"), -float("inf"), None])
    ),
    st.builds(  # many distinct values, whose bins have round limits that are values too
        lambda first, step, n: [first + step * k for k in range(n)],
        st.sampled_from([0.0, -1.0, 0.3, 1e15, -7e-9]),
        st.sampled_from([0.01, 0.1, 1e-9, 1e3, 0.125]),
        st.integers(20, 300),
    ),
    st.lists(st.integers(-(2**62), 2**62) | st.integers(-60, 300) | st.none(), max_size=80),
    st.lists(st.booleans() | st.none()),
    st.lists(st.sampled_from([f"it's {k} %_é" for k in range(90)]) | st.none(), max_size=200),
)


def code_conditions(column: ChartColumn) -> list[str]:
    """A condition for each code, as the page writes it."""
    values = [f"'{v.replace(chr(39), chr(39) * 2)}'" if column.text else v for v in column.values]
    found = [f"{column.sql} = {value}" for value in values]
    for low, high in zip(column.edges, column.edges[1:], strict=False):
        found.append(f"{column.sql} >= {low} and {column.sql} < {high}")
    if column.others:
        found.append(f"{column.sql} not in ({', '.join(values)})")
    return [*found, *([column.missing] if column.missing else [])]


def arrow(values: list[Any]) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    named = {float: pa.float64(), int: pa.int64(), bool: pa.bool_(), str: pa.string()}
    return pa.array(values, next((named[kind] for kind in kinds), pa.float64()))


@settings(max_examples=40)
@given(columns, st.sampled_from(["friction", "order", "left"]))
def test_codes_hold_the_rows_of_their_conditions(values: list[Any], name: str) -> None:
    array = arrow(values)
    column = binned(name, array)
    table = pa.table({name: array, "code": pa.array(column.codes)})
    assert table.num_rows == len(values)
    conditions = code_conditions(column)
    assert len(conditions) <= 255
    with duckdb.connect() as connection:
        connection.register("episodes", table)
        counts = [f"count(*) filter ({each})" for each in conditions]
        same = [f"count(*) filter (({each}) and code = {k})" for k, each in enumerate(conditions)]
        query = f"select {', '.join([*counts, *same, 'count(*)'])} from episodes"
        found = connection.execute(query).fetchone()
    assert found is not None
    decoded = np.bincount(column.codes, minlength=len(conditions)).tolist()
    assert list(found) == [*decoded, *decoded, len(values)]


def test_rare_names_share_a_code() -> None:
    names = [f"clip-{k}" for k in range(MOST_NAMES + 40) for _ in range(1 + (k == 70))]
    column = binned("clip", pa.array(names))
    assert (len(column.values), column.others) == (MOST_NAMES, True)
    assert "clip-70" in column.values
    assert np.bincount(column.codes).tolist()[-1] == 40


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two plans' episodes, whose second terrain would be markup if it were not escaped."""
    made = Store.create(tmp_path_factory.mktemp("a 'b' & c") / "legged.zarr", small_schema())
    for part, first in enumerate((0xA293CB << 32, 17)):
        given = part_input([4] * (COUNT // 2), first, terrain=("flat", HOSTILE))
        made.write_part(f"part-{part}", **given)
    return made


def test_the_page_holds_the_catalog_and_nothing_else_loads(store: Store, tmp_path: Path) -> None:
    write_card(store.select(), tmp_path, channels=False)
    page = (tmp_path / "explorer.html").read_text()
    assert not re.search(r"url\((?!#)|@import|https?://(?!www\.w3\.org/2000/svg\")", page)
    assert HOSTILE not in page
    assert set(re.findall(r'(?:src|href)="([^"#]+)', page)) == {"card.html"}
    blocks = dict(re.findall(r'<script type="application/[^"]*" id="([^"]+)">([^<]*)', page))
    catalog = json.loads(blocks["catalog"])
    terrain = next(k for k, each in enumerate(catalog["columns"]) if each["name"] == "terrain")
    codes = gzip.decompress(base64.b64decode(blocks[f"column-{terrain}"]))
    values = [catalog["columns"][terrain]["values"][code] for code in codes]
    assert values == store.select().episodes()["terrain"].to_pylist()
    ids = np.frombuffer(gzip.decompress(base64.b64decode(blocks["ids"])), "<i8").cumsum()
    assert (ids == store.select().episode_ids()).all()


def test_of_too_many_episodes_the_page_holds_an_even_share_and_says_so(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gaitforge.plugins.player.explorer.MOST_EPISODES", COUNT // 2 - 1)
    page = explorer_of(store.select(), tmp_path)
    assert "1,000 episodes, one in 3 of 3,000: every count is of these" in page
    blocks = dict(re.findall(r'<script type="application/[^"]*" id="([^"]+)">([^<]*)', page))
    ids = np.frombuffer(gzip.decompress(base64.b64decode(blocks["ids"])), "<i8").cumsum()
    assert (ids == store.select().episode_ids()[::3]).all()


def shown(folder: Path, state: str) -> tuple[str, list[str]]:
    """The page's document in a browser, and the command that it gives."""
    with browser() as page:
        page.open(f"{(folder / 'explorer.html').as_uri()}#{state}")
        document = page.value("document.documentElement.outerHTML")
    command = re.search(r'<code id="query">([^<]*)</code>', document)
    assert command is not None
    return document, shlex.split(unescape(command[1]))


def queried(store: Store, command: list[str]) -> Selection:
    assert command[:2] == ["gaitforge", "query"]
    assert Path(command[2]).samefile(store.path)
    return open_store(command[2]).select().where(command[4])


@pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium: the explorer was not opened in a browser"
)
def test_a_browser_counts_as_the_command(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    selection, filters, condition = selected(store, {"level": [0, 2]}, "length > 1")
    beside = store.path.parent / "card"
    write_card(selection, beside, filters=filters, condition=condition, channels=False)
    state = "split=skill&brush.terrain=0&brush.friction=3-9,12&brush.success=1&measure=return"
    page, command = shown(beside, state)
    chosen = queried(store, command)
    assert 0 < len(chosen) < len(selection)
    assert f"<dd>{len(chosen):,}<small> of {len(selection):,} (" in page
    mean = np.mean(chosen.episodes()["return"].to_numpy())
    assert f"<dd>{mean:.2f}<" in page
    for group in chosen.describe(["skill"]):
        cells = f"<td>{group['episodes']:,}</td><td>{group['return']:.2f}</td>"
        assert re.search(rf"</span>{group['skill']}</th>{cells}", page)
    assert HOSTILE not in page
    assert unescape(page).count(HOSTILE) > 0
    worst = chosen.episodes().sort_by("return")["episode"][0].as_py()
    name = f"{worst >> 32:06x}-{worst % 2**32:05d}" if worst >> 32 else str(worst)
    assert re.search(rf'<div id="list"><details><summary><code>{name}</code>', page)
    assert call(*command[1:]) == 0
    assert capsys.readouterr().out
