"""The pipeline on a tiny plan: what it leaves, and what it does not do twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectors.rendering.rendering import Shot
from datasets import open_store
from flows.progress import Silent
from flows.records.records import digest, read_record, to_tree, write_record
from flows.stages.demo import DemoPlan, run_demo
from flows.stages.evaluate import EvaluatePlan
from pipeline.report.demo import write_demo_report
from pipeline.report.report import write_report
from tests.flows.making import DEMO, Counting, Interrupting, Stop, without_times

ROOT = Path(__file__).resolve().parents[2]
POLICIES = {"expert", "fcnet", "bot", "fcnet_rc"}
POLICY_KEYS = {
    "return",
    "return_ci95",
    "return_fraction",
    "return_fraction_ci95",
    "success",
    "success_ci95",
    "survival",
    "parameters",
    "train_s",
    "latency_us_median",
    "latency_us_p99",
}
CELL_KEYS = {"policy", "terrain", "skill", "level", "return", "success", "survival", "episodes"}
FILES = [
    "dataset.json",
    "legged.zarr/zarr.json",
    "plan.json",
    "summary.json",
    *(f"evaluate/{name}.json" for name in POLICIES),
    *(f"train/{name}/config.json" for name in POLICIES - {"expert"}),
]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The tiny demo's folder and summary: interrupted in its collection, then run to its end."""
    out = tmp_path_factory.mktemp("demo") / "run"
    with pytest.raises(Stop):
        run_demo(DEMO, out, Interrupting(after=500))
    assert not (out / "summary.json").exists()
    return out, to_tree(run_demo(DEMO, out, Silent()))


def assert_documented(summary: dict[str, Any]) -> None:
    """The keys that other programs rely on."""
    assert {"dataset", "collect", "policies", "cells", "wall_s"} <= set(summary)
    assert {"steps", "episodes", "parts"} <= set(summary["dataset"])
    assert set(summary["collect"]) == {"steps_per_s", "terrain_steps_per_s"}
    assert set(summary["policies"]) == POLICIES
    for record in summary["policies"].values():
        assert set(record) == POLICY_KEYS
    for cell in summary["cells"]:
        assert set(cell) >= CELL_KEYS
    found = {(c["policy"], c["terrain"], c["skill"], c["level"]) for c in summary["cells"]}
    assert found == {(p, "flat", skill, 2) for p in POLICIES for skill in ("stand", "run")}


def test_the_summary_has_the_documented_keys_and_is_the_file(
    demo: tuple[Path, dict[str, Any]],
) -> None:
    out, summary = demo
    assert_documented(summary)
    assert json.loads((out / "summary.json").read_text()) == summary


def test_the_summarys_numbers_are_those_of_the_files_beside_it(
    demo: tuple[Path, dict[str, Any]],
) -> None:
    out, summary = demo
    for name in FILES:
        assert (out / name).is_file(), name
    info = open_store(out / "legged.zarr").info()
    assert summary["dataset"] == asdict(info)
    assert info.episodes == 24, "two parts, and one of corrections"
    assert summary["collect"]["steps_per_s"] > 0
    for name, record in summary["policies"].items():
        measured = json.loads((out / "evaluate" / f"{name}.json").read_text())
        assert record["return"] == measured["return"]
        assert record["latency_us_median"] <= record["latency_us_p99"]
    expert = summary["policies"]["expert"]
    assert expert["return_fraction"] == 1.0
    for record in summary["policies"].values():
        assert record["return_fraction"] == pytest.approx(record["return"] / expert["return"])
    wall = json.loads((out / "wall.json").read_text())
    assert summary["wall_s"] == pytest.approx(sum(entry["seconds"] for entry in wall))
    assert [entry["stage"] for entry in wall].count("collect") == 2, "the interrupted run counts"


def test_a_second_call_does_no_work_and_finds_the_same_numbers(
    demo: tuple[Path, dict[str, Any]],
) -> None:
    out, summary = demo
    record = json.loads((out / "plan.json").read_text())
    record["plan"]["bot"]["config"].pop("prefix_len", None)  # as an older version wrote it
    write_record(out / "plan.json", record)
    counting = Counting()
    again = to_tree(run_demo(DEMO, out, counting))
    assert without_times(again) == without_times(summary)
    assert sum(counting.units.values()) == 0
    assert not any(name.startswith("evaluate") for name in counting.units)


def test_another_plan_in_the_folder_is_refused(demo: tuple[Path, dict[str, Any]]) -> None:
    out, _ = demo
    before = (out / "summary.json").read_bytes()
    other = replace(DEMO, evaluate=replace(DEMO.evaluate, robots=2))
    with pytest.raises(ValueError, match="holds a demo with other settings") as refusal:
        run_demo(other, out, Silent())
    assert "\n" not in str(refusal.value)
    assert (out / "summary.json").read_bytes() == before


def test_the_report_can_be_written_from_what_the_demo_leaves(
    demo: tuple[Path, dict[str, Any]],
) -> None:
    out, _ = demo
    report = write_report(out)
    assert report == out / "report.html"
    page = report.read_text()
    assert all(name in page for name in POLICIES)


def test_learners_are_drawn_with_a_typical_episode_and_a_typical_failure(
    demo: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without OpenGL: grey frames."""

    def grey(shots: Sequence[Shot], width_px: int, height_px: int) -> list[np.ndarray]:
        return [np.full((len(s.steps), height_px, width_px, 3), 128, np.uint8) for s in shots]

    monkeypatch.setattr("pipeline.report.pictures.draw", grey)
    out, _ = demo
    page = write_demo_report(out, Silent()).read_text()
    index = out / "pictures" / "pictures.json"
    sheets = {sheet["file"]: sheet for sheet in json.loads(index.read_text())["sheets"]}
    drawn = {"stand.png", "run.png"}
    for name in POLICIES - {"expert"}:
        measured = json.loads((out / "evaluate" / f"{name}.json").read_text())
        middle = max(measured["returns"], key=np.mean)  # the upper of two cells and episodes
        drawn.add(f"{name}-median-return.png")
        assert sheets[f"{name}-median-return.png"]["return"] == pytest.approx(max(middle), abs=0.05)
        worst = min(measured["cells"], key=lambda cell: cell["success"])
        if worst["success"] < 1.0:
            drawn.add(f"{name}-typical-failure.png")
            failure = sheets[f"{name}-typical-failure.png"]
            assert not failure["success"]
            assert failure["skill"] == worst["skill"]
    assert set(sheets) == drawn
    assert any("failure" in file for file in drawn)
    for sheet in sheets.values():
        assert "level 2;" in sheet["caption"]
        assert sheet["caption"].endswith(f"seed {sheet['seed']}")
        assert sheet["caption"] in page
    before = index.stat().st_mtime_ns
    write_demo_report(out, Silent())
    assert index.stat().st_mtime_ns == before, "drawn once"


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ValueError, match=r"cannot write .* Not a directory") as refusal:
        run_demo(DEMO, tmp_path / "file" / "run", Silent())
    assert "\n" not in str(refusal.value)


def test_the_shipped_plan_holds_at_least_400_000_steps_in_several_parts() -> None:
    grid = DemoPlan().collect.grid
    assert grid.parts > 1
    assert grid.parts * grid.episodes_per_part * 192 >= 400_000


def test_records_are_read_back_and_digests_follow_the_content(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "record.json"
    assert read_record(path) is None
    write_record(path, EvaluatePlan())
    assert read_record(path) == to_tree(EvaluatePlan())
    assert digest(EvaluatePlan()) == digest(EvaluatePlan())
    assert digest(EvaluatePlan()) != digest(EvaluatePlan(robots=1))
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    path.write_text("{")
    with pytest.raises(ValueError, match="cannot be read as JSON"):
        read_record(path)
