"""The report says what the run's files say, stands alone, and never half-exists."""

import json
import re
from base64 import b64decode
from collections.abc import Callable
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gaitforge.pipeline.report.pages import DASH, Shade, count, fixed, size
from gaitforge.pipeline.report.report import write_report
from gaitforge.pipeline.terminal import duration
from tests.pipeline.report.run_folder import (
    write_json,
    write_run_folder,
)

LOADING_TAGS = {"script", "link", "img", "iframe", "object", "embed", "audio", "video", "source"}
EXPERTS_ROW = ["rough", "crawl", "0.98", "0.95", "0.91", "1.00", "11.00", "0.12", "33.3", "27.7"]
VOID_TAGS = {"meta", "br", "hr", "img", "input", "link", "wbr"}


class PageReader(HTMLParser):
    """Collects a page's text, its table cells by row, and whatever could load something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.unnamed_charts = 0
        self.pictures: dict[str, str] = {}
        self._open: list[str] = []
        self._cell: list[str] | None = None
        self.feed(page)
        assert not self._open, f"unclosed tags: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = dict(attrs)
        if tag not in VOID_TAGS:
            self._open.append(tag)
        source = values.get("src") or ""
        embedded = tag == "img" and re.match(r"data:image/(png|webp);base64,", source) is not None
        if tag in LOADING_TAGS and not embedded:
            self.loads.append(tag)
        for name in ("src", "href", "xlink:href", "data", "action", "srcset"):
            if name in values and not (embedded or (values[name] or "").startswith("#")):
                self.loads.append(f"{tag} {name}={values[name]}")
        if embedded:
            self.pictures[values.get("alt") or ""] = source.partition(",")[2]
        if tag == "svg" and not values.get("aria-label"):
            self.unnamed_charts += 1
        if tag == "section":
            self.ids.append(values.get("id") or "")
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self._cell = []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID_TAGS:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1] == tag, f"</{tag}> closes <{self._open[-1]}>"
        self._open.pop()
        if tag in {"td", "th"} and self._cell is not None:
            self.rows[-1].append("".join(self._cell).strip())
            self._cell = None

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.append(data)

    def row(self, head: str) -> list[str]:
        """The first row that begins with `head`."""
        return next(row for row in self.rows if row and row[0] == head)


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = write_run_folder(tmp_path_factory.mktemp("run"))
    assert write_report(run_dir) == run_dir / "report.html"
    return run_dir


@pytest.fixture(scope="module")
def page(finished_run: Path) -> str:
    return (finished_run / "report.html").read_text(encoding="utf-8")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return write_run_folder(tmp_path)


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    value = json.loads(path.read_text())
    change(value)
    write_json(path, value)


def test_headline_table_shows_every_policys_numbers(finished_run: Path, page: str) -> None:
    summary = json.loads((finished_run / "summary.json").read_text())
    reader = PageReader(page)
    names = {
        "expert": "Expert",
        "fcnet": "FCNet",
        "bot": "BoT",
        "fcnet_rc": "FCNet, return-conditioned",
    }
    heads = reader.row("learner")
    for row in (summary["expert"], *summary["runs"]):
        shown = dict(zip(heads, reader.row(names[row["run"]]), strict=True))
        assert shown["of the expert's return"] == f"{row['return_fraction']:.3f}"
        assert shown["return"] == f"{row['return']:.2f}"
        assert shown["success"] == f"{row['success']:.3f}"
        assert shown["survival"] == f"{row['survival']:.3f}"
        assert shown["parameters"] == f"{row['parameters']:,}"
        assert shown["training"] == duration(row["train_s"], DASH)
        assert shown["control step, µs"] == f"{row['latency_us_median']:,.0f}"
        assert shown["its 99th percentile"] == f"{row['latency_us_p99']:,.0f}"


@pytest.mark.usefixtures("no_charts")
def test_intervals_and_what_a_return_is_out_of_are_said(run_dir: Path) -> None:
    def add(summary: dict[str, Any]) -> None:
        summary["results"][0] |= {
            "return_ci95": [9.0, 9.25],
            "return_fraction_ci95": [0.9, 0.95],
            "success_ci95": [0.71, 0.82],
        }
        summary["cells"] = [cell for cell in summary["cells"] if cell["level"] == 3]
        for cell in summary["cells"]:
            cell |= {"return": 5.0, "return_ci95": [4.0, 6.0], "success_ci95": [0.0, 1.0]}

    edit(run_dir / "summary.json", add)
    text = write_report(run_dir).read_text()
    reader = PageReader(text)
    shown = dict(zip(reader.row("learner"), reader.row("FCNet"), strict=True))
    row = {name: " ".join(cell.split()) for name, cell in shown.items()}
    assert row["return"].endswith(" 9.00 to 9.25")
    assert row["of the expert's return"].endswith(" 0.900 to 0.950")
    assert row["success"].endswith(" 0.710 to 0.820")
    assert "terrain level 3 of 0 to 9, 16 held-out episodes per cell" in text
    assert "largest possible return of an episode is 12.288" in text
    heat = text[text.index("<h3>Return</h3>") :]
    assert " ".join(first_table(heat)["flat"][0].split()) == "5.00 4.0 to 6.0"


@pytest.mark.usefixtures("no_charts")
def test_heat_map_is_the_episode_weighted_mean_over_levels(run_dir: Path) -> None:
    cells = [
        {"policy": "fcnet", "terrain": "flat", "skill": "run", "level": level, "return": 1.0,
         "return_ci95": None, "success_ci95": None, "success": success, "survival": 1.0,
         "episodes": episodes}
        for level, success, episodes in ((0, 1.0, 30), (1, 0.5, 10), (2, None, 5))
    ]  # fmt: skip
    edit(run_dir / "summary.json", lambda summary: summary.update(cells=cells))
    page = write_report(run_dir).read_text()
    assert first_table(page[page.index('id="evaluation"') :])["flat"] == ["0.88"]


def first_table(fragment: str) -> dict[str, list[str]]:
    """The rows of a fragment's first table by their heads."""
    table = fragment[fragment.index("<table") : fragment.index("</table>") + len("</table>")]
    return {row[0]: row[1:] for row in PageReader(table).rows if row}


def test_the_page_shows_the_run_names_its_sources_and_loads_nothing(page: str) -> None:
    for text in ("412,160", "2,318", "17,843", "138.4 MB", "9f2c61d07be2a3c1f0d4"):
        assert text in page
    for text in ("gaitforge run runs/demo/plan.json", "5e0f3b8c21aa", "2.13.0", "model.n_modes"):
        assert text in page
    # mode 9 of a window of 64 steps of 20 ms
    assert f"{9 / (64 * 0.02):.2f} Hz" in page
    assert "10 of 33 frequencies" in page
    reader = PageReader(page)
    assert reader.loads == []
    assert reader.unnamed_charts == 0
    assert reader.tags.count("svg") >= 10
    assert not re.search(r"https?:|file:|@import|url\((?!#)", page)
    targets = set(re.findall(r'(?:xlink:href="#|url\(#|href="#)([\w.-]+)', page))
    assert targets <= set(re.findall(r'id="([\w.-]+)"', page))
    assert reader.ids == [
        "result", "expert", "dataset", "randomisation", "spectra", "training", "evaluation",
        "latency", "repeat", "next",
    ]  # fmt: skip
    menu = re.findall(r'<a href="#(\w+)">([^<]+)</a>', page[: page.index("<main>")])
    assert menu == re.findall(r'<section id="(\w+)">\s*<h2>([^<]+)</h2>', page)
    for section in page.split("<section")[1:]:
        assert re.search(r"(summary|dataset|plan|pictures|expert)\.json|history\.jsonl", section)


def add_pictures(run_dir: Path) -> dict[str, bytes]:
    """Two sheets in a run folder; returns their bytes by skill."""
    folder = run_dir / "pictures"
    folder.mkdir()
    sheets, contents = [], {}
    for skill, colour in (("crawl", "#e69f00"), ("run", "#0072b2")):
        Image.new("RGB", (40, 20), colour).save(folder / f"{skill}.png")
        contents[skill] = (folder / f"{skill}.png").read_bytes()
        sheets.append(
            {"file": f"{skill}.png", "policy": "expert", "caption": f"median return: {skill}",
             "skill": skill, "terrain": "rough", "level": 4, "command": "0.5 m/s", "seed": 2**62,
             "success": skill == "run", "succeeded": 3, "episodes": 5}
        )  # fmt: skip
    film = {**sheets[0], "file": "film.webp", "still": "film.png", "policy": "fcnet", "seed": 2**62}
    for name in ("film.webp", "film.png"):
        Image.new("RGB", (40, 20), "#009e73").save(folder / name)
    write_json(folder / "pictures.json", {"renderer": "side", "film": film, "sheets": sheets})
    contents |= {"Film": (folder / "film.webp").read_bytes()}
    return contents | {"Still": (folder / "film.png").read_bytes()}


@pytest.mark.usefixtures("no_charts")
def test_sheets_stages_and_the_experts_card_are_shown(run_dir: Path, page: str) -> None:
    contents = add_pictures(run_dir)
    assert "The stages:" not in page, "their times are not there"
    copytree(run_dir / "train" / "fcnet", run_dir / "train" / "first")
    stages = [("collect", 30.0), ("train first", 20.0), ("train fcnet", 70.5), ("collect", 5.0)]
    write_json(run_dir / "wall.json", [{"stage": s, "seconds": t} for s, t in stages])
    text = write_report(run_dir).read_text()
    reader = PageReader(text)
    assert reader.loads == []
    assert {alt.split()[0]: b64decode(data) for alt, data in reader.pictures.items()} == contents
    assert "no success, 3 of 5 episodes succeed" in text
    for name in ("crawl.png", "film.webp", "film.png"):
        assert f"<code>pictures/{name}</code>" in text
    shown = re.sub(r"<[^>]*>", "", text[text.index("<body>") :])
    assert str(2**62) in text
    assert str(2**62) not in shown, "a seed is in the title of its caption"
    assert reader.row("collect")[-1] == "35 s", "of both runs of an interrupted stage"
    assert reader.row("train FCNet, first stage")[-1] == "20 s"
    assert reader.row("train FCNet")[-1] == "70 s"
    assert reader.row("FCNet, first stage")[1] == "3,000"
    assert EXPERTS_ROW in reader.rows
    write_json(run_dir / "wall.json", {"collect": 30.0})
    with pytest.raises(ValueError, match=r"wall\.json must be a JSON list"):
        write_report(run_dir)


@pytest.mark.usefixtures("no_charts")
def test_the_report_links_the_pages_beside_it_or_says_what_makes_them(run_dir: Path) -> None:
    store = f"{run_dir.name}/legged.zarr"
    alone = write_report(run_dir).read_text()
    assert f"<code>gaitforge card {store}</code>" in alone
    beside = ["episodes/fcnet.html", "episodes/collected.html", "legged.zarr.card/card.html"]
    for name in beside:
        (run_dir / name).parent.mkdir(exist_ok=True)
        (run_dir / name).touch()
    text = write_report(run_dir).read_text()
    opening = text[: text.index("<main>")]
    assert re.findall(r'<a href="([^#"]+)"', opening) == beside
    cell = re.search(r'<a title="([^"]+)" href="episodes/fcnet.html#[^"]*stairs[^"]*">', text)
    assert cell is not None
    assert cell[1].endswith("on stairs")
    assert f"<code>gaitforge card {store}</code>" not in text
    assert f"<code>gaitforge export {run_dir.name}/train/fcnet exports/fcnet</code>" in text
    assert "with gaitforge 0.1.0 (git revision <code>5e0f3b8c21aa</code>)" in text
    edit(run_dir / "summary.json", lambda summary: summary.update(git_revision="unknown"))
    assert "with gaitforge 0.1.0." in write_report(run_dir).read_text()


def test_sheets_are_read_from_the_pictures_folder_alone(run_dir: Path) -> None:
    add_pictures(run_dir)
    (run_dir / "pictures" / "crawl.png").unlink()
    with pytest.raises(ValueError, match=re.escape("the report needs pictures/crawl.png")):
        write_report(run_dir)

    def point_outside(index: dict[str, Any]) -> None:
        index["sheets"][0]["file"] = "../summary.json"

    edit(run_dir / "pictures" / "pictures.json", point_outside)
    with pytest.raises(ValueError, match="is not the name of a file beside it"):
        write_report(run_dir)


@pytest.mark.slow
def test_same_files_give_the_same_bytes_and_nothing_else(run_dir: Path) -> None:
    before = {path for path in run_dir.rglob("*") if path.is_file()}
    first = write_report(run_dir).read_bytes()
    assert write_report(run_dir).read_bytes() == first
    after = {path for path in run_dir.rglob("*") if path.is_file()}
    assert after - before == {run_dir / "report.html", run_dir / "results.md"}


def test_names_are_escaped(run_dir: Path) -> None:
    evil = "<script>alert('$x$')</script>"

    def rename_cells(summary: dict[str, Any]) -> None:
        summary["command"] = evil
        for cell in summary["cells"]:
            cell["terrain"] = evil

    def rename_groups(dataset: dict[str, Any]) -> None:
        dataset["groups"][0]["terrain"] = evil
        dataset["randomisation"][0]["name"] = evil
        dataset["randomisation"][0]["unit"] = evil
        dataset["spectra"][0]["signal"] = evil + '"'

    edit(run_dir / "summary.json", rename_cells)
    edit(run_dir / "dataset.json", rename_groups)
    page = write_report(run_dir).read_text()
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 5
    assert PageReader(page).loads == []


def test_a_run_with_nothing_recorded_still_has_a_report(run_dir: Path) -> None:
    def clear_dataset(dataset: dict[str, Any]) -> None:
        dataset.update(groups=[], levels=[], randomisation=[], spectra=[])
        dataset["episode_lengths"] = {"edges": [], "counts": []}

    def clear(summary: dict[str, Any]) -> None:
        summary["cells"] = []
        summary["dataset"]["bytes"] = None
        for result in summary["results"]:
            result["success"] = {"mean": None, "std": None}

    edit(run_dir / "dataset.json", clear_dataset)
    edit(run_dir / "summary.json", clear)
    (run_dir / "expert.json").unlink()
    text = write_report(run_dir).read_text()
    assert "recorded none" in text
    reader = PageReader(text)
    assert EXPERTS_ROW not in reader.rows
    assert "None" not in "".join(cell for row in reader.rows for cell in row)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("summary.json", None, "summary.json"),
        ("train/bot/history.jsonl", None, "train/bot/history.jsonl"),
        ("train/fcnet/config.json", None, "train/fcnet/config.json"),
        ("summary.json", "{", "summary.json is not JSON"),
        ("summary.json", "[]", "must be a JSON object, not a list"),
        ("summary.json", "{}", "lacks 'name'"),
        ("dataset.json", '{"control_dt_s": 0.02}', "lacks 'groups'"),
        ("train/bot/history.jsonl", "", "is empty"),
        ("train/bot/history.jsonl", '{"step": 1}\n', "lacks 'loss'"),
    ],
)
def test_a_bad_file_keeps_the_report(run_dir: Path, name: str, text: str | None, said: str) -> None:
    (run_dir / "report.html").write_text("old")
    (run_dir / name).unlink()
    if text is not None:
        (run_dir / name).write_text(text)
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        write_report(run_dir)
    assert "\n" not in str(caught.value)
    assert (run_dir / "report.html").read_text() == "old"


def test_numbers_read_well() -> None:
    values = fixed(0.98765, 3), fixed(-0.001), fixed(float("nan")), fixed(None)
    assert values == ("0.988", "0.00", "–", "–")
    shown = [duration(each, DASH) for each in (8.44, 119.4, 119.6, 7325, None)]
    assert shown == ["8.4 s", "119 s", "2 min 00 s", "2 h 02 min", "–"]
    assert [count(1234567), size(999), size(1_500_000)] == ["1,234,567", "999 B", "1.5 MB"]


@pytest.mark.parametrize("mode", ["light", "dark"])
@given(share=st.floats(0.0, 1.0))
def test_heat_text_always_contrasts_with_its_background(mode: str, share: float) -> None:
    css = files("gaitforge.pipeline.report").joinpath("templates/report.css").read_text()
    found = re.findall(r"--(heat-low|heat-high|on-low|on-high): #(\w{6})", css)
    named = dict(found[:4] if mode == "light" else found[4:8])
    low, high, on_low, on_high = (
        np.array(list(bytes.fromhex(named[name])))
        for name in ("heat-low", "heat-high", "on-low", "on-high")
    )
    background = low + share * (high - low)
    text = on_high if Shade("", share).deep else on_low
    lighter, darker = sorted((_luminance(background), _luminance(text)), reverse=True)
    # WCAG 2.1, level AA for normal text
    assert (lighter + 0.05) / (darker + 0.05) >= 4.5


def _luminance(colour: np.ndarray) -> float:
    parts = colour / 255
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
