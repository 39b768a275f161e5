"""`gaitforge run` and `compare`: what they print and leave, and the line that wrong input gets."""

import json
from pathlib import Path
from typing import Any

import pytest

from gaitforge.pipeline.report.report import REPORT_NAME, TABLE_NAME, write_report
from tests.pipeline.command_line import call
from tests.pipeline.report.test_pictures import draw_blocks
from tests.pipeline.report.test_report import PageReader

pytestmark = pytest.mark.slow
Capture = pytest.CaptureFixture[str]

OWN = {
    "mlp": {"model_overrides": {"hidden_dim": 16, "n_layers": 1}},
    "history-mlp": {"model_overrides": {"hidden_dim": 8, "n_layers": 1}, "peak_lr": 0.001},
}
SETTINGS = [
    "settings.window_len=8",
    "settings.held_out_fraction=0.5",
    "settings.history_every=1",
    "settings.validation_every=1",
    "evaluate.robots=4",
    *(f"learners.{name}.{k}={json.dumps(v)}" for name, own in OWN.items() for k, v in own.items()),
]
OPTIONS = ["--models", "mlp,history-mlp", "--seeds", "0-1", "--steps", "2", "--batch-size", "2"]
OPTIONS += ["--terrain", "flat", "--episodes", "1"]
OPTIONS += [word for setting in SETTINGS for word in ("--set", setting)]


@pytest.fixture(scope="module")
def compared(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished comparison."""
    out = tmp_path_factory.mktemp("compare") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gaitforge.pipeline.report.pictures.draw", draw_blocks)
        assert call("compare", store, *OPTIONS, "--out", out) == 0
    return out


def test_the_same_command_again_prints_the_record(
    store: Path, compared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in (compared / "train").rglob("*.safetensors")}
    assert call("compare", store, *OPTIONS, "--out", compared, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record == json.loads((compared / "summary.json").read_text())
    assert [each["learner"] for each in record["results"]] == ["mlp", "history-mlp"]
    assert record["plan"]["evaluate"]["terrains"] == ["flat"]
    assert record["plan"]["evaluate"]["skills"] == ["stand", "run"]
    assert {run["seed"] for run in record["runs"]} == {0, 1}
    assert len(before) == 8, "the last and the best of four runs"
    assert {path: path.stat().st_mtime_ns for path in before} == before

    assert call("compare", store, *OPTIONS, "--out", compared) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["mlp", "history-mlp", "Expert"]
    assert "\u00a0±\u00a0" in lines[2]
    assert lines[-1] == f"page: {compared / REPORT_NAME}"


def test_the_folder_is_resumed_and_seen_by_its_name_alone(
    compared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = json.loads((compared / "summary.json").read_text())
    assert call("run", compared, "--json") == 0
    assert json.loads(capsys.readouterr().out) == before
    assert call("status", compared, "--json") == 0
    assert json.loads(capsys.readouterr().out)["state"] == "complete"


def test_the_page_and_the_markdown_show_the_records_numbers(compared: Path) -> None:
    record = json.loads((compared / "summary.json").read_text())
    text = (compared / REPORT_NAME).read_text()
    page = PageReader(text)
    links = [each.removeprefix("a href=").partition("#") for each in page.loads]
    assert all((compared / file).is_file() for file, _, _ in links)
    cells = [(file, cell) for file, mark, cell in links if mark]
    assert all((compared / file).parent.name == "episodes" for file, _ in cells)
    assert all("&skill=" in cell for _, cell in cells)
    assert page.unnamed_charts == 0
    sections = ["result", "pictures", "data", "training", "evaluation", "latency", "repeat"]
    assert page.ids == [*sections, "next"]
    assert "at terrain level 2 of 0 to 9" in text
    assert "12.288" in text
    assert "mlp, seed 0<small>median return" in text
    assert "mlp, seed 1<small>" not in text, "of the first seed only"
    markdown = (compared / TABLE_NAME).read_text().splitlines()
    for result, row in zip(record["results"], markdown[2:], strict=False):
        shown = [result["learner"], f"{result['parameters']:,}"]
        mse = result["test_mse"]
        shown.append(f"{mse['mean']:.5f}\u00a0±\u00a0{mse['std']:.5f}")
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        for value in shown:
            assert value in page.row(result["learner"])
            assert value in cells
    assert record["sets"][0]["selection"] in text
    assert "learners.history-mlp.peak_lr" in text


def test_the_same_files_give_the_same_page(compared: Path) -> None:
    before = (compared / REPORT_NAME).read_bytes()
    assert write_report(compared).read_bytes() == before


def test_an_evaluation_of_a_run_says_what_the_report_says(
    compared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    summary = json.loads((compared / "summary.json").read_text())
    rows = [row for row in summary["runs"] if row["learner"] == "mlp"]

    def evaluated(row: dict[str, Any], *words: str) -> tuple[dict[str, Any], bool]:
        """What `evaluate` says, and whether it has evaluated the expert."""
        run = compared / "train" / row["run"]
        again = ("--against", "expert", "--threads", "1", "--json", *words)
        assert call("evaluate", run, *again) == 0
        shown = capsys.readouterr()
        return json.loads(shown.out), "evaluate expert" in shown.err

    made: dict[str, Any] = {}
    for number, row in enumerate(rows):
        made, is_new = evaluated(row)
        assert is_new == (number == 0), "the second policy does not pay for the expert"
        told = ("return", "success", "return_fraction", "return_fraction_ci95")
        assert [made[name] for name in told] == [row[name] for name in told]
        cells = ("terrain", "skill", "level", "return_fraction")
        mine, reported = (
            [[cell[name] for name in cells] for cell in record["cells"]] for record in (made, row)
        )
        assert mine == reported
        assert made["against"]["return"] == summary["expert"]["return"]
        assert made["against"]["place"] == "aliengo-locomotion"
    [kept] = tmp_path.rglob("*.json")
    whole = kept.read_text()
    for damaged in (whole.replace('"return": ', '"return": 1', 1), whole[:-9], ""):
        kept.write_text(damaged)
        again, is_new = evaluated(rows[-1])
        assert is_new, "a damaged file is not trusted"
        assert again["against"] == made["against"]
    assert evaluated(rows[-1], "--seed", "5")[1], "of other episodes it is another evaluation"


def test_the_best_checkpoint_evaluates(compared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = ["--terrain", "flat", "--skill", "stand", "--episodes", "1", "--threads", "1", "--json"]
    run = compared / "train" / "mlp-seed-0"
    assert call("evaluate", run, "--checkpoint", "best", *grid) == 0
    assert json.loads(capsys.readouterr().out)["policy"] == "mlp-seed-0"
    assert call("evaluate", run, "--checkpoint", "first", *grid) == 2
