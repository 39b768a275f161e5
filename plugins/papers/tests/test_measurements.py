"""`gaitforge run` on measurements: from the command line to the page, once."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.command_line import Run, assert_refused

ATTENTION = ["attention.nodes=[4,8]", "attention.sparsity_nodes=[8]", "attention.sparsity=[0.5]"]
ATTENTION += ["attention.masks=6"]
LATENCY = ["control-step.networks=[]", "control-step.n_layers=[1,2]", "control-step.steps=3"]
LATENCY += ["control-step.hidden_dim=[]", "control-step.context_len=[8]", "control-step.warm_up=1"]
LATENCY += ["control-step.exported=false", "train-step.batch_size=1", "train-memory.batch_size=1"]
LATENCY += [f"train-{what}.context_len=[8,16]" for what in ("step", "memory")]
LATENCY += [
    f'train-{what}.networks=["fcnet-legged","retnet-legged"]' for what in ("step", "memory")
]


def sets(*settings: str) -> list[str]:
    """Options; each setting is a measure's."""
    return [word for each in settings for word in ("--set", f"measures.{each}")]


def ran(run: Run, *arguments: Any) -> dict[str, Any]:
    """The record that a run prints."""
    outcome = run("run", *arguments, "--set", "repeats=3", "--json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


@pytest.mark.slow
def test_attention_reaches_its_page_and_nothing_is_done_twice(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "attention"
    record = ran(run, "bot-attention", "--out", out, *sets(*ATTENTION))
    places = [(row["measure"], row["axis"], row["value"], row["series"]) for row in record["rows"]]
    own = [each[3] for each in places if each[:3] == ("attention", "nodes", 8)]
    assert own == ["dense NumPy", "masked NumPy", "dense torch", "masked compiled"]
    assert {each[:3] for each in places} == {
        ("attention", "nodes", 4), ("attention", "nodes", 8),
        ("attention", "sparsity of 8 nodes", 0.5),
    }  # fmt: skip
    for row in record["rows"]:
        assert len(row["figures"]) == 3
        assert 0 < min(row["figures"]) <= row["quartiles"][0] <= row["median"]
    assert record["machines"][0]["cores"] >= 1
    page = (out / "report.html").read_text()
    title = "<h1>Body Transformer (BoT), Figures 6 and 13: masked attention</h1>"
    for text in ("Forward pass of one head: nodes", "Operations: nodes", title):
        assert text in page
    assert re.search(r"masked NumPy [\d.]+\u00a0µs, dense NumPy [\d.]+\u00a0µs", page)
    before = {path: path.stat().st_mtime_ns for path in (out / "measure").iterdir()}
    assert len(before) == 3
    again = run("run", out, "--json")
    assert json.loads(again.out) == record
    assert {path: path.stat().st_mtime_ns for path in before} == before
    *_, last_but_one, last = run("run", out).out.splitlines()
    assert last == f"page: {out / 'report.html'}"
    assert re.search(r"ahead of dense torch; .*µs, .*, p [\d.]+$", last_but_one)
    more = run("run", out, "--set", "measures.attention.nodes=[4,8,16]", "--json")
    assert len(json.loads(more.out)["rows"]) == len(record["rows"]) + 4
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert run("report", out).code == 0
    assert json.loads(run("status", out, "--json").out)["state"] == "complete"


@pytest.mark.slow
def test_latency_is_measured_in_every_runtime_along_every_axis(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "latency"
    record = ran(run, "fcnet-latency", "--out", out, *sets(*LATENCY))
    steps = [row for row in record["rows"] if row["measure"] == "control-step"]
    assert {(row["axis"], row["value"]) for row in steps} == {
        ("n_layers", 1), ("n_layers", 2), ("context_len", 8)
    }  # fmt: skip
    names = {row["series"] for row in steps}
    assert names >= {"fcnet-legged torch", "fcnet-legged compiled", "transformer-legged torch"}
    memory = {(row["series"], row["value"]): row for row in record["rows"]
              if row["measure"] == "train-memory"}  # fmt: skip
    for name in ("fcnet-legged", "retnet-legged"):
        short, long = (memory[name, value] for value in (8, 16))
        assert 1.5 < long["median"] / short["median"] < 3
        assert short["quartiles"] == [short["median"]] * 2, "counted, not timed"
    told = {(row["set"], row["ahead"]) for row in record["verdicts"]}
    assert ("control step, µs: n_layers", "fcnet-legged torch") in told
    page = (out / "report.html").read_text()
    assert "Control step: n layers" in page
    assert "3 to 5 times" in page


@pytest.mark.slow
def test_spectra_take_stores_and_windows_that_fit(run: Run, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "spectra"
    record = ran(run, "fcnet-spectra", store, "--out", out, *sets("spectra.n=[32,4096]"))
    places = {row["axis"]: set() for row in record["rows"]}
    for row in record["rows"]:
        places[row["axis"]].add(row["value"])
    gyro = f"{store.stem} base_ang_vel_body"
    assert places["simple harmonic motion"] == {32, 4096}
    assert places[gyro] == {32, 128}, "an episode has 192 steps"
    assert gyro.replace("_", " ") in (out / "report.html").read_text()
    assert record["plan"]["stores"] == [str(store)]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["bot-attention", "--set", "measures.attention.nodes=[0]"], "must be at least 1"),
        (["bot-attention", "--set", "measures.attention.nodes=8"], "nodes needs a list of int"),
        (["bot-attention", "--set", "measures.attention.heads=2"], "has no 'heads'"),
        (["bot-attention", "--set", "measures.flops={}"], "no measure 'flops'"),
        (["bot-attention", "--set", "repeats=0"], "at least 1"),
        (["bot-attention", "some.zarr"], "takes no stores"),
        (["bot-attention", "--steps", "5"], "--steps has no effect"),
        (["fcnet-latency", "--set", "measures.control-step.hidden_dim=[63]"], "63"),
        (["fcnet-latency", "--set", 'measures.control-step.scaled=["fcnot"]'], "no model 'fcnot'"),
        (["fcnet-spectra", "--size", "full"], "has one size"),
        (["fcnet-spectra", "--set", "measures.spectra.n=[1]"], "2 steps or more"),
        (["fcnet-spectra", "none.zarr"], "none.zarr"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_line(
    run: Run, tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    assert_refused(run("run", *arguments, "--out", tmp_path / "new"), complaint)
    assert not (tmp_path / "new").exists()
