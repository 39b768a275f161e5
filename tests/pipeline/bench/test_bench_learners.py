"""The learners' benchmark: its structure, and that every ratio follows from the times shown."""

from __future__ import annotations

import copy
import json
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from gaitforge.flows.progress import Silent
from gaitforge.learners.models.registry import PRESETS
from gaitforge.pipeline.bench.control_step import (
    DEMO,
    ControlStepConfig,
    by_runtime,
    control_step_us,
    paper_modes,
    setting_name,
)
from gaitforge.pipeline.bench.learners import BENCH, check_bars
from gaitforge.pipeline.report.bench_page import sweep
from gaitforge.pipeline.report.report import write_report
from tests.pipeline.command_line import Run, assert_refused, call
from tests.pipeline.report.run_folder import write_run_folder

PARAMETERS = 787_852  # of FCNet at the paper's legged setting (its Table 7)
TINY = ControlStepConfig(
    context_lens=(),
    n_layers=(),
    hidden_dims=(),
    others=(),
    seeds=2,
    warm_up=1,
    blocks=1,
    block_steps=3,
)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def record(out: Path) -> dict[str, Any]:
    """What the command prints."""
    printed = StringIO()
    with redirect_stdout(printed):
        assert call("bench", "learners", "--quick", "--json", "--out", out) == 0
    return json.loads(printed.getvalue())


def test_what_is_printed_is_saved_beside_a_page(record: dict[str, Any], out: Path) -> None:
    assert sorted(path.name for path in out.iterdir()) == ["bench.html", "bench_learners.json"]
    assert json.loads((out / "bench_learners.json").read_text()) == record
    assert record["load_average"]["cores"] >= 1
    assert record["notes"][0].startswith("load average")


def test_a_training_step_of_every_model(record: dict[str, Any]) -> None:
    steps = record["train_step_ms"]
    assert set(steps["fcnet-legged"]) == {"folded", "fft-modes"}
    baselines = {"transformer", "retnet", "dt", "history-mlp", "mlp"}
    assert set(steps) == {"fcnet-legged", "bot", *(f"{name}-legged" for name in baselines)}
    sizes = record["config"]["training"]
    for model, settings in steps.items():
        for each in settings.values():
            assert 0 < each["min_ms"] <= each["median_ms"]
            tokens = sizes["batch_size"] * sizes["window_len"]
            assert each["tokens_per_s"] == pytest.approx(1e3 * tokens / each["median_ms"])
            if model != "bot":
                assert each["parameters"] == pytest.approx(PARAMETERS, rel=0.05)


def test_a_control_step_of_every_model_and_size(record: dict[str, Any]) -> None:
    steps = record["control_step_us"]
    assert set(steps["fcnet-compiled"]) >= {
        "legged",
        "context_len=512",
        "context_len=1024",
        "context_len=1024,n_modes=17",
        "n_layers=2",
        "hidden_dim=128",
    }
    assert set(steps["transformer-torch"]) >= {"legged", "context_len=512", "n_layers=2"}
    others = {"retnet", "dt-legged", "history-mlp-legged", "mlp-legged", "bot"}
    assert set(steps) >= {"fcnet-torch", "bot-compiled", *(f"{name}-torch" for name in others)}
    for settings in steps.values():
        for each in settings.values():
            assert 0 < each["median_us"] <= each["p99_us"]
            assert len(each["seed_medians_us"]) == record["config"]["control"]["seeds"]


def test_baselines_have_as_many_parameters_at_every_size(record: dict[str, Any]) -> None:
    steps = record["control_step_us"]
    for name in ("legged", "context_len=512", "context_len=1024"):
        assert steps["fcnet-compiled"][name]["parameters"] == PARAMETERS
    for baseline in ("transformer-torch", "retnet-torch"):
        for name, each in steps[baseline].items():
            fcnet = steps["fcnet-compiled"][name]
            assert each["fcnet"] == fcnet["fcnet"]
            assert each["parameters"] == pytest.approx(fcnet["parameters"], rel=0.05)
            assert each["network"]["config"]["n_layers"] == fcnet["fcnet"]["n_layers"]


def test_attention_figures_follow_from_the_times(record: dict[str, Any]) -> None:
    layers = record["attention"]["layers"]
    assert {(each["mask"], each["nodes"]) for each in layers} == {
        ("quadruped", 13),
        ("adroit-door", 25),
        ("cmu-humanoid", 32),
        ("random", 16),
        ("random", 128),
    }
    for each in layers:
        assert set(each["forward_ms"]) == {"dense", "gathered", "compiled", "flex"}
        assert set(each["train_ms"]) == {"dense", "gathered", "compiled"}
        assert each["train_ms"][each["fastest"]] == min(each["train_ms"].values())
        for name, value in each["train_ms"].items():
            ratio = each["train_ms"]["dense"] / value
            assert each["train_over_dense"][name] == pytest.approx(ratio)
    for each in record["attention"]["single_sequence"]:
        ratio = each["median_us"]["numpy dense"] / each["median_us"]["compiled"]
        assert each["speed_up_percent"]["compiled"] == pytest.approx(100 * ratio - 100)


def test_bars_follow_from_the_figures_shown(record: dict[str, Any]) -> None:
    train, control = record["train_step_ms"], record["control_step_us"]
    folded, demo = train["fcnet-legged"]["folded"]["median_ms"], setting_name(DEMO)
    compiled = {name: each["median_us"] for name, each in control["fcnet-compiled"].items()}
    baseline = {name: each["median_us"] for name, each in control["transformer-torch"].items()}
    expected = [
        train["fcnet-legged"]["fft-modes"]["median_ms"] / folded,
        folded / train["transformer-legged"]["preset"]["median_ms"],
        compiled["legged"],
        control["fcnet-onnx"]["legged"]["median_us"],
        control["fcnet-torch"][demo]["median_us"] / compiled[demo],
        control["bot-torch"]["legged"]["median_us"]
        / control["bot-compiled"]["legged"]["median_us"],
        baseline["legged"] / compiled["legged"],
        baseline["context_len=512"] / compiled["context_len=512"],
        compiled["context_len=1024"] / compiled["legged"],
        compiled["context_len=1024,n_modes=17"] / compiled["legged"],
        record["attention"]["single_sequence"][-1]["speed_up_percent"]["compiled"],
    ]
    assert [each["value"] for each in record["bars"]] == pytest.approx(expected)
    for each in record["bars"]:
        word, limit = each["wanted"].split()[1:3]
        met = (each["value"] >= float(limit)) if word == "least" else each["value"] <= float(limit)
        assert each["met"] is met


def test_a_bar_that_was_not_measured_is_neither_met_nor_missed(record: dict[str, Any]) -> None:
    figures = copy.deepcopy(record)
    del figures["control_step_us"]["fcnet-onnx"]
    del figures["control_step_us"]["transformer-torch"]["context_len=512"]
    missing = [each for each in check_bars(figures) if each["value"] is None]
    assert len(missing) == 2
    assert all(each["met"] is None for each in missing)


def test_a_sweep_changes_one_size_alone(record: dict[str, Any]) -> None:
    control = record["control_step_us"]
    shown = sweep(control, "fcnet-compiled", "context_len")
    assert [size for size, _ in shown] == [64, 512, 1024]
    assert shown[2][1] == control["fcnet-compiled"]["context_len=1024"]["median_us"]
    assert [size for size, _ in sweep(control, "transformer-torch", "n_layers")] == [2, 4]
    flat = sweep(control, "retnet-torch", "context_len")
    assert {value for _, value in flat} == {control["retnet-torch"]["legged"]["median_us"]}
    assert len(flat) == len(shown)
    assert [size for size, _ in sweep(control, "fcnet-onnx", "context_len")] == [64]
    assert sweep(control, "absent", "n_layers") == []


def test_the_page_shows_bars_and_charts_and_loads_nothing(
    record: dict[str, Any], out: Path
) -> None:
    page = (out / "bench.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 6
    assert all(each["wanted"] in page for each in record["bars"])
    assert "<script" not in page
    assert "<link" not in page


def test_tables_name_every_model_bar_and_note(
    record: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    BENCH.show(record, as_json=False)
    printed = capsys.readouterr().out
    names = [*record["train_step_ms"], *record["control_step_us"], *record["notes"]]
    names += [each["bar"] for each in record["bars"]]
    assert all(name in printed for name in names)


def test_the_report_of_a_run_shows_the_figures_in_its_folder(
    record: dict[str, Any], tmp_path: Path
) -> None:
    run_dir = write_run_folder(tmp_path / "run")
    assert 'id="bench"' not in write_report(run_dir).read_text(encoding="utf-8")
    (run_dir / "bench_learners.json").write_text(json.dumps(record))
    page = write_report(run_dir).read_text(encoding="utf-8")
    assert 'id="bench"' in page
    assert all(each["wanted"] in page for each in record["bars"])


def test_without_the_onnx_packages_the_rest_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with Silent().step("", 1, "") as advance:
        measured, notes = control_step_us(TINY, advance)
    figures: Any = measured
    assert set(figures) == {f"fcnet-{each}" for each in ("compiled", "torch")} | {
        "transformer-torch",
        "retnet-torch",
    }
    fcnet, demo, *baselines = by_runtime(figures)
    assert fcnet["torch"] == figures["fcnet-torch"]["legged"]["median_us"]
    assert (fcnet["onnx"], demo["parameters"]) == (None, PRESETS["fcnet"].parameters)
    assert all(each["compiled"] is None for each in baselines)
    assert len(notes) == 1
    assert "onnxscript" in notes[0]


def test_a_setting_that_the_benchmark_lacks_is_refused(run: Run, tmp_path: Path) -> None:
    refused = run("bench", "learners", "--recorded", "legged.zarr", "--out", tmp_path)
    assert_refused(refused, "unknown setting 'recorded'; allowed: attention, control, training")


@pytest.mark.parametrize(("context_len", "modes"), [(4, 3), (64, 10), (128, 12), (1024, 17)])
def test_modes_of_the_paper(context_len: int, modes: int) -> None:
    assert paper_modes(context_len) == modes
