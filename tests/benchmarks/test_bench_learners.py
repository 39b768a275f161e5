"""The learners' benchmark: its structure, and that every ratio follows from the times shown."""

import copy
import json
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.control_step import (
    DEMO,
    ControlStepConfig,
    by_runtime,
    control_step_us,
    setting_name,
)
from benchmarks.learners import BENCH, check_bars
from gaitforge.flows.progress import Silent
from gaitforge.learners.models.registry import PRESETS

pytestmark = pytest.mark.slow

PARAMETERS = 787_852  # of FCNet at the paper's legged setting (its Table 7)
TINY = ControlStepConfig(
    context_lens=(),
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
        assert main(["learners", "--quick", "--json", "--out", str(out)]) == 0
    return json.loads(printed.getvalue())


def test_what_is_printed_is_saved(record: dict[str, Any], out: Path) -> None:
    assert [path.name for path in out.iterdir()] == ["bench_learners.json"]
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
    }
    assert set(steps["transformer-torch"]) >= {"legged", "context_len=512"}
    others = {"retnet", "dt-legged", "history-mlp-legged", "mlp-legged", "bot"}
    assert set(steps) >= {
        "fcnet-torch",
        "bot-compiled",
        "dt-legged-compiled",
        *(f"{name}-torch" for name in others),
    }
    for settings in steps.values():
        for each in settings.values():
            assert 0 < each["median_us"] <= each["p99_us"]


def test_baselines_have_as_many_parameters_at_every_size(record: dict[str, Any]) -> None:
    steps = record["control_step_us"]
    for name in ("legged", "context_len=512", "context_len=1024"):
        assert steps["fcnet-compiled"][name]["parameters"] == PARAMETERS
    for baseline in ("transformer-torch", "retnet-torch"):
        for name, each in steps[baseline].items():
            fcnet = steps["fcnet-compiled"][name]
            assert each["parameters"] == pytest.approx(fcnet["parameters"], rel=0.05)


def test_bars_follow_from_the_figures_shown(record: dict[str, Any]) -> None:
    train, control = record["train_step_ms"], record["control_step_us"]
    folded, demo = train["fcnet-legged"]["folded"]["median_ms"], setting_name(DEMO)
    compiled = {name: each["median_us"] for name, each in control["fcnet-compiled"].items()}
    baseline = {name: each["median_us"] for name, each in control["transformer-torch"].items()}
    in_c = {
        model: {name: each["median_us"] for name, each in control[f"{model}-c"].items()}
        for model in ("fcnet", "bot")
    }
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
        in_c["bot"]["legged"],
        in_c["fcnet"][demo] / compiled[demo],
        in_c["fcnet"]["legged"] / compiled["legged"],
        in_c["bot"]["legged"] / control["bot-compiled"]["legged"]["median_us"],
        compiled["context_len=1024"] / compiled["legged"],
        compiled["context_len=1024,n_modes=17"] / compiled["legged"],
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


def test_tables_name_every_model_bar_and_note(
    record: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    BENCH.show(record, as_json=False)
    printed = capsys.readouterr().out
    names = [*record["train_step_ms"], *record["control_step_us"], *record["notes"]]
    names += [each["bar"] for each in record["bars"]]
    assert all(name in printed for name in names)


def test_without_the_onnx_packages_the_rest_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with Silent().step("", 1, "") as advance:
        measured, notes = control_step_us(TINY, advance)
    figures: Any = measured
    assert set(figures) == {f"fcnet-{each}" for each in ("compiled", "torch", "c")} | {
        *("transformer-compiled", "transformer-torch", "transformer-c", "retnet-torch"),
    }
    fcnet, demo, *baselines = by_runtime(figures)
    assert fcnet["torch"] == figures["fcnet-torch"]["legged"]["median_us"]
    assert (fcnet["onnx"], demo["parameters"]) == (None, PRESETS["fcnet"].parameters)
    assert [each["compiled"] is None for each in baselines] == [False, True]
    assert len(notes) == 1
    assert "onnxscript" in notes[0]


def test_a_setting_that_the_benchmark_lacks_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["learners", "--set", "parts=3", "--out", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert "unknown setting 'parts'; allowed: control, training" in printed.err
    assert (printed.err.count("\n"), printed.out) == (1, "")
