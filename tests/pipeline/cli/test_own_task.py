"""The how-to's point: collected, trained on, evaluated and compared by the usual commands."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from gaitforge.common.trust import trusting
from gaitforge.datasets import open_store
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.part_records import plan_records
from gaitforge.flows.records.records import read_record
from gaitforge.flows.stages.replay import replay
from tests.pipeline.command_line import Run, assert_refused

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "task.md"
[TASK] = re.findall(r"^```python title=\"[^\"]+\"\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


def test_the_task_of_the_how_to_page_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    (tmp_path / "point.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "point", raising=False)

    def done(*words: str) -> str:
        outcome = run(*words)
        assert outcome.code == 0, outcome.err
        return outcome.out

    done("collect", "data/point.zarr", "--task", "point:PointPlan", "--set", "parts=4")
    [compared] = re.findall(r"^gaitforge (run compare .*)$", PAGE.read_text(), re.M)
    done(*shlex.split(compared))
    store = open_store("data/point.zarr")
    assert len(store.select()) == 4 * 3
    [record] = plan_records("data/point.zarr")
    assert record["kind"] == "point:PointPlan"
    with trusting(["point:PointPlan"]):
        assert replay("data/point.zarr", 3, 0, Silent()) == []
    summary = read_record(Path("runs/point-compared/summary.json")) or {}
    [described], [result] = summary["sets"], summary["results"]
    assert described["zero"] < described["expert"] < 0
    assert result["score"]["mean"] > 50, "the clone does most of what the expert does"
    assert "point" in Path("runs/point-compared/report.html").read_text()

    settings = ("--set", "config.held_out_fraction=0.25")
    short = ("--model", "mlp", "--steps", "3", *settings, "--trust", "point:PointPlan")
    done("train", "data/point.zarr", "--out", "runs/it", *short)
    words = ("--episodes", "7", "--json")
    mine = json.loads(done("evaluate", "runs/it", *words, "--trust", "point:PointPlan"))
    assert (mine["task"], mine["episodes"], mine["policy"]) == ("point:PointPlan", 7, "it")
    assert mine["latency_us_median"] > 0
    assert "point.zarr holds no data of a legged robot's task" in done(
        "export", "runs/it", "out/it"
    )
    exported = json.loads(done("evaluate", "out/it", *words, "--trust", "point:PointPlan"))
    assert exported["return"] == pytest.approx(mine["return"], rel=1e-4)
    assert_refused(run("evaluate", "out/it"), "point:PointPlan", "--trust")
    told = done("evaluate", "out/it", *words[:2], "--trust", "point:PointPlan")
    assert "survival" not in told
    last = told.splitlines()[-1]
    assert last.startswith("evaluated on task point: ")
    assert "7" in last
    own = ("collect", "data/new.zarr", "--task", "point:PointPlan", "--skill", "runn")
    assert_refused(run(*own, "--robot", "nope"), "--skill, --robot have no effect")
    theirs = json.loads(done("evaluate", "damper", "--task", "point:PointPlan", *words))
    assert (theirs["success"], theirs["survival"]) == (1.0, 1.0)
    assert_refused(
        run("evaluate", "x", "--task", "point:PointPlan"), "no policy x; allowed: damper"
    )
