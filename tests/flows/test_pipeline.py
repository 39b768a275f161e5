"""A pipeline on a tiny plan: what it leaves, what it does not do twice, and what kills cost."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaitforge.collectors.rendering.rendering import Shot
from gaitforge.datasets import open_store
from gaitforge.flows.experiments.claim import Claim
from gaitforge.flows.experiments.plan import Experiment
from gaitforge.flows.progress import Reporter, Silent
from gaitforge.flows.records.records import digest, read_record, to_tree, write_record
from gaitforge.pipeline.cli.main import main
from gaitforge.pipeline.report.experiment import stages_of, write_experiment_report
from gaitforge.pipeline.report.report import write_report
from gaitforge.pipeline.report.results import best_run
from tests.flows.making import (
    DEMO,
    LEAN,
    Counting,
    Interrupting,
    Results,
    Stop,
    results,
    run_experiment,
    unplotted,
)

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
POLICIES = {"expert", "fcnet", "bot"}
RUN_KEYS = {
    *("run", "learner", "seed", "score", "return", "return_ci95", "return_fraction", "success"),
    *("return_fraction_ci95", "success_ci95", "survival", "parameters", "train_s"),
    *("latency_us_median", "latency_us_p99"),
}
CELL_KEYS = {"policy", "terrain", "skill", "level", "return", "success", "survival", "episodes"}
FILES = [
    "dataset.json",
    "legged.zarr.card/card.html",
    "legged.zarr/zarr.json",
    "plan.json",
    "summary.json",
    "results.md",
    *(f"evaluate/{name}.json" for name in POLICIES),
    *(f"train/{name}/config.json" for name in POLICIES - {"expert"}),
]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A pipeline's folder and summary: interrupted in its collection, then run to its end."""
    out = tmp_path_factory.mktemp("demo") / "run"
    with pytest.MonkeyPatch.context() as patch, unplotted():
        patch.setattr("gaitforge.pipeline.report.pictures.draw", grey)
        with pytest.raises(Stop):
            run_pipeline(DEMO, out, Interrupting(after=500))
        assert not (out / "summary.json").exists()
        return out, run_pipeline(DEMO, out, Silent())


def run_pipeline(plan: Experiment, out: Path, reporter: Reporter) -> dict[str, Any]:
    """Run or resume an experiment with its pages; its summary."""
    return run_experiment(Claim("demo", plan), out, reporter, pages=True)


def grey(shots: Sequence[Shot], width_px: int, height_px: int) -> list[np.ndarray]:
    """Frames without OpenGL."""
    return [np.full((len(s.steps), height_px, width_px, 3), 128, np.uint8) for s in shots]


def assert_documented(summary: dict[str, Any]) -> None:
    """The keys that other programs rely on."""
    assert {"dataset", "collect", "sets", "expert", "runs", "results", "overall"} <= set(summary)
    assert {"steps", "episodes", "parts"} <= set(summary["dataset"])
    assert set(summary["collect"]) == {"steps_per_s"}
    assert {run["run"] for run in summary["runs"]} | {"expert"} == POLICIES
    for row in (summary["expert"], *summary["runs"]):
        assert set(row) >= RUN_KEYS
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
    expert = summary["expert"]
    for record in (expert, *summary["runs"]):
        measured = json.loads((out / "evaluate" / f"{record['run']}.json").read_text())
        assert record["return"] == measured["return"]
        assert record["latency_us_median"] <= record["latency_us_p99"]
        assert record["return_fraction"] == pytest.approx(record["return"] / expert["return"])
        assert record["score"] == pytest.approx(100 * record["return_fraction"])
    wall = json.loads((out / "wall.json").read_text())
    # The file has milliseconds, so that two stages in a row may seem to overlap by one.
    rounding = 0.001 * len(wall)
    assert summary["wall_s"] == pytest.approx(sum(row["seconds"] for row in wall), abs=rounding)
    assert [entry["stage"] for entry in wall].count("collect") == 2, "the interrupted run counts"


def test_a_second_call_does_no_work_and_finds_the_same_numbers(
    demo: tuple[Path, dict[str, Any]],
) -> None:
    out, summary = demo
    files = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    counting = Counting()
    assert run_pipeline(DEMO, out, counting) == summary
    assert counting.units == {}
    assert {path: path.stat().st_mtime_ns for path in files} == files


def test_a_stage_whose_output_is_gone_is_done_again_alone(
    demo: tuple[Path, dict[str, Any]],
) -> None:
    out, summary = demo
    before = results(out)
    (out / "evaluate" / "bot.json").unlink()
    counting = Counting()
    again = run_pipeline(DEMO, out, counting)
    assert results(out) == before
    assert again["verdicts"] == summary["verdicts"]
    assert [row["return"] for row in again["runs"]] == [row["return"] for row in summary["runs"]]
    worked = [name.split("  ")[1] for name in counting.units]
    assert "evaluate bot" in worked
    assert not [name for name in worked if name.startswith(("collect", "train", "evaluate fcnet"))]


def test_another_plan_in_the_folder_is_refused(demo: tuple[Path, dict[str, Any]]) -> None:
    out, _ = demo
    before = (out / "summary.json").read_bytes()
    other = replace(DEMO, evaluate={**DEMO.evaluate, "robots": 2})
    with pytest.raises(ValueError, match="holds an experiment with other settings") as refusal:
        run_pipeline(other, out, Silent())
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
    monkeypatch.setattr("gaitforge.pipeline.report.pictures.draw", grey)
    out, _ = demo
    with unplotted():
        page = write_experiment_report(out, Silent()).read_text()
    index = out / "pictures" / "pictures.json"
    record = json.loads(index.read_text())
    best = best_run(json.loads((out / "summary.json").read_text()))
    assert record["film"]["policy"] == best
    assert 'src="data:image/webp;base64,' in page[: page.index("<main>")]
    sheets = {sheet["file"]: sheet for sheet in record["sheets"]}
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
        assert f'<figcaption title="seed {sheet["seed"]}">' in page
        assert sheet["caption"] in page
    before = index.stat().st_mtime_ns
    with unplotted():
        write_experiment_report(out, Silent())
    assert index.stat().st_mtime_ns == before, "drawn once"


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ValueError, match=r"cannot write .* Not a directory") as refusal:
        run_pipeline(DEMO, tmp_path / "file" / "run", Silent())
    assert "\n" not in str(refusal.value)


def test_records_are_read_back_and_digests_follow_the_content(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "record.json"
    assert read_record(path) is None
    write_record(path, DEMO)
    assert read_record(path) == to_tree(DEMO)
    assert digest(DEMO) == digest(replace(DEMO))
    assert digest(DEMO) != digest(replace(DEMO, seeds=(1,)))
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    path.write_text("{")
    with pytest.raises(ValueError, match="cannot be read as JSON"):
        read_record(path)


def test_several_seeds_give_means_in_the_summary_and_on_the_page(
    demo: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gaitforge.pipeline.report.pictures.draw", grey)
    learners = {"fcnet": DEMO.learners["fcnet"]}
    plan = replace(DEMO, corrections=None, learners=learners, seeds=(0, 1))
    with unplotted():
        summary = run_pipeline(plan, tmp_path / "run", Silent())
    [row] = summary["results"]
    assert row["runs"] == ["fcnet-seed-0", "fcnet-seed-1"]
    each = [run["return"] for run in summary["runs"]]
    assert row["return"]["mean"] == pytest.approx(np.mean(each))
    assert row["return"]["std"] == pytest.approx(np.std(each, ddof=1))
    assert "\u00a0±\u00a0" in (tmp_path / "run" / "report.html").read_text()
    assert "\u00a0±\u00a0" not in (demo[0] / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--preset", "huge"], "unknown preset 'huge'; allowed: demo"),
        (["--plan", "PLAN", "--preset", "demo"], "give --plan or --preset, not both"),
        (["--plan", "gone.json"], "no plan at gone.json"),
        (["--learners", "fcnet,rnn"], "no model 'rnn'"),
        (["--terrain", "moon"], "moon"),
        (["--steps", "5", "--set", "learners.fcnet.steps=many"], "fcnet: TrainConfig.steps"),
        (["--set", "learners.fcnet.depth=3"], "TrainConfig has no 'depth'"),
        (["--set", "learners.fcnet.seed=3"], "seeds are the experiment's"),
        (["--set", 'learners={"first":{}}'], "'first' cannot be a name"),
        (["--set", "seeds=1,1"], "needs seeds, each once"),
        (["--set", "first.config.steps=1"], "unknown setting 'first.config.steps'"),
        (["--runner", "cron"], "unknown runner 'cron'; allowed: local, dask, slurm, prefect"),
        (["--follow"], "--follow is for --runner slurm"),
        (["--stage", "collect"], "no experiment in"),
        (["--runner", "slurm", "--cancel"], "no experiment in"),
    ],
)
def test_a_pipeline_that_cannot_be_is_one_line(
    words: list[str],
    complaint: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["pipeline", str(tmp_path / "run"), *words]) == 2
    error = capfd.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are started draw nothing and compute as the undisturbed run did."""
    monkeypatch.setenv("MUJOCO_GL", "disabled")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def plan_file(folder: Path) -> Path:
    write_record(folder / "given.json", LEAN)
    return folder / "given.json"


# Children of one process share its imports, so that kills come while they work.
KILLED_PIPELINES = """
import os, random, signal, sys, time
from pathlib import Path
import gaitforge.pipeline.report.experiment
from gaitforge.pipeline.cli.main import main
from tests.flows.making import unplotted
unplotted().start()
draw, kills, (out, plan) = random.Random(0), 0, sys.argv[1:]
for _ in range(3):
    child = os.fork()
    if child == 0:
        sys.exit(main(["pipeline", out, "--plan", plan]))
    while not Path(out, "plan.json").exists():
        time.sleep(0.01)
    time.sleep(draw.uniform(0, 2))
    os.kill(child, signal.SIGKILL)
    kills += os.waitpid(child, 0)[1] == signal.SIGKILL
assert kills >= 2
sys.exit(main(["pipeline", out]))  # the plan is the folder's
"""


@pytest.mark.long
def test_a_pipeline_killed_at_random_gives_the_results_of_an_undisturbed_one(
    lean_results: Results, tmp_path: Path, processes: None
) -> None:
    out = tmp_path / "run"
    words = [sys.executable, "-c", KILLED_PIPELINES, str(out), str(plan_file(tmp_path))]
    subprocess.run(words, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=280, check=True)
    assert results(out) == lean_results
    assert open_store(out / "legged.zarr").verify() == []


@pytest.mark.long
def test_stages_on_dask_give_the_results_of_one_process(
    lean_results: Results, tmp_path: Path, processes: None
) -> None:
    out = tmp_path / "run"
    words = ["pipeline", str(out), "--plan", str(plan_file(tmp_path)), "--runner", "dask"]
    assert main([*words, "--workers", "2"]) == 0
    assert results(out) == lean_results
    states = [json.loads(path.read_text())["key"] for path in (out / "stages").glob("*.json")]
    assert len(states) == len(stages_of(LEAN, out))
    assert None not in states
