"""`gaitforge gym evaluate` and `gaitforge gym compare`: what they print, leave and refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.records.records import read_record
from pipeline.report.gym_comparison_page import (
    PAGE_NAME,
    PUBLISHED,
    gym_comparison_page,
    published,
    write_gym_comparison,
)
from tests.collectors.gym.making import make_training
from tests.flows.gym_stores import make_gym_store
from tests.pipeline.command_line import Run, assert_refused, call
from tests.pipeline.report.test_report import PageReader

pytest.importorskip("gymnasium")

OWN = {
    "fcnet": {"model_overrides": {"hidden_dim": 8, "decoder_dim": 8, "n_layers": 1, "n_modes": 2}},
    "dt": {"model_overrides": {"hidden_dim": 8, "n_layers": 1, "context_len": 5}},
}
SETTINGS = [
    "config.window_len=8",
    "config.held_out_fraction=0.3",
    "config.validation_batches=1",
    "config.threads=1",
    "evaluate.environments=2",
    f"own={json.dumps(OWN)}",
]
OPTIONS = ["--steps", "1", "--batch-size", "2", "--episodes", "2", "--seeds", "0-1"]
OPTIONS += [word for setting in SETTINGS for word in ("--set", setting)]

Gym = Callable[..., str]


@pytest.fixture
def gym(run: Run) -> Gym:
    """gym(*arguments) runs `gaitforge gym` and returns what it printed."""

    def in_this_process(*arguments: str | Path) -> str:
        outcome = run("gym", *arguments)
        assert outcome.code == 0, outcome.err
        return outcome.out

    return in_this_process


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gym_store(tmp_path_factory.mktemp("gym-cli") / "hopper.zarr", episodes=8)


@pytest.fixture(scope="module")
def policies(store: Path) -> Path:
    """A finished training of experts."""
    return make_training(store.parent / "experts")


@pytest.fixture(scope="module")
def compared(store: Path) -> Path:
    """The folder of a finished comparison of two sets."""
    out = store.parent / "out"
    chosen = ["--sets", "medium,medium-expert"]
    assert call("gym", "compare", store, *OPTIONS, *chosen, "--out", out) == 0
    return out


def test_the_same_command_again_prints_the_record(store: Path, compared: Path, gym: Gym) -> None:
    printed = gym("compare", store, *OPTIONS, "--sets", "medium", "--out", compared, "--json")
    record = json.loads(printed)
    assert record == read_record(compared / "comparison.json")
    assert list(record["sets"]) == ["medium", "medium-expert"], "the other call's runs stay"
    assert record["plan"]["config"]["steps"] == 1
    assert record["plan"]["evaluate"]["episodes"] == 2


def test_the_table_sets_every_score_beside_the_published_one(
    store: Path, compared: Path, gym: Gym
) -> None:
    lines = gym("compare", store, *OPTIONS, "--sets", "medium", "--out", compared).splitlines()
    assert [line.split()[:2] for line in lines[2:6]] == [
        [name, model] for name in ("medium", "medium-expert") for model in ("fcnet", "dt")
    ]
    for line, (mean, std) in zip(
        lines[2:6], [(57.8, 6.0), (67.6, 1.0), (110.5, 0.5), (107.6, 1.8)], strict=True
    ):
        assert f"{mean}\u00a0±\u00a0{std}" in line
    assert lines[-1] == f"page: {compared / PAGE_NAME}"


def test_the_page_shows_the_records_numbers_and_says_how_the_data_differ(compared: Path) -> None:
    record = read_record(compared / "comparison.json")
    assert record is not None
    text = (compared / PAGE_NAME).read_text()
    page = PageReader(text)
    assert page.loads == []
    assert page.unnamed_charts == 0
    assert page.tags.count("svg") == 1
    assert page.ids == ["result", "differences", "data", "runs", "repeat"]
    row = page.row("medium-expert")
    assert "110.5\u00a0±\u00a00.5" in row
    for result in record["results"]:
        for score in (result["normalised"], result["normalised_asked_best"]):
            shown = f"{score['mean']:,.1f}\u00a0±\u00a0{score['std']:,.1f}"
            assert shown in page.row(result["set"])
    for run in record["runs"]:
        assert f"{run['return']:,.0f}" in page.row(run["run"])
    for words in ("The data are ours", "version 2 on mujoco-py", record["runs"][0]["simulation"]):
        assert words in text


def test_the_same_file_gives_the_same_page(compared: Path) -> None:
    before = (compared / PAGE_NAME).read_bytes()
    assert write_gym_comparison(compared).read_bytes() == before


def test_names_of_the_record_are_escaped_on_the_page(compared: Path) -> None:
    record = dict(read_record(compared / "comparison.json") or {})
    record["store"] = "<script>alert(1)</script>.zarr"
    text = gym_comparison_page(record)
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def test_the_page_does_not_call_imported_data_our_own(compared: Path) -> None:
    record = dict(read_record(compared / "comparison.json") or {})
    assert record["recorded_by"] == "gymnasium"
    for recorded_by, told in (("d4rl", "The data are D4RL’s"), ("", "were recorded elsewhere")):
        text = gym_comparison_page(record | {"recorded_by": recorded_by})
        assert told in text
        assert "The data are ours" not in text
        assert "The scale is ours" not in text


def test_a_task_without_published_scores_has_no_columns_for_them(compared: Path) -> None:
    record = dict(read_record(compared / "comparison.json") or {})
    page = PageReader(gym_comparison_page(record | {"task": "door"}))
    ours = [
        f"{name}, {what}" for name in ("FCNet", "DT") for what in ("ours", "target: best return")
    ]
    assert page.row("set") == ["set", "data, mean", "data, best episode", *ours]


def test_a_policy_of_each_kind_is_evaluated(
    compared: Path, policies: Path, gym: Gym, tmp_path: Path
) -> None:
    asked = ["--env", "Hopper-v5", "--episodes", "2", "--seed", "3", "--json"]
    run = compared / "train" / "medium-fcnet-seed-0"
    kept = tmp_path / "fcnet.json"
    learned = json.loads(
        gym(
            "evaluate", run, *asked, "--policies", policies, "--return-target", "0.5", "--out", kept
        )
    )
    assert learned == read_record(kept)
    assert learned["policy"] == "medium-fcnet-seed-0"
    assert learned["return_target"] == 0.5
    expert = json.loads(gym("evaluate", policies, *asked, "--quality", "medium"))
    assert (expert["policy"], expert["references"]["expert"]) == ("medium", 300.0)
    assert expert["normalised"]["mean"] is not None, "the experts' own returns are known"
    random = json.loads(gym("evaluate", "random", *asked))
    assert random["references"]["expert"] > 3000, "by the policies that ship"
    assert abs(random["normalised"]["mean"]) < 5
    shipped = json.loads(gym("evaluate", "expert", *asked))
    assert shipped["normalised"]["mean"] > 70


def test_sets_of_ones_own_can_be_chosen_in_any_order(store: Path, gym: Gym, tmp_path: Path) -> None:
    sets = ["--set", 'sets={"mine":["expert"],"other":["medium"]}', "--sets", "mine"]
    words = ["--set", 'return_targets={"mine":0.5}', *sets, "--models", "fcnet", "--seeds", "0"]
    record = json.loads(gym("compare", store, *OPTIONS, *words, "--out", tmp_path / "o", "--json"))
    assert [(run["set"], run["return_target"]) for run in record["runs"]] == [("mine", 0.5)]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["evaluate", "{none}", "--env", "Hopper-v5"], "no finished training in"),
        (["evaluate", "random", "--env", "Ant-v5"], "no task 'Ant-v5'"),
        (["evaluate", "random", "--env", "Hopper-v5", "--set", "environments=0"], "at least 1"),
        (["evaluate", "random", "--env", "Hopper-v5", "--set", "env=HalfCheetah-v5"], "--env choo"),
        (
            ["evaluate", "random", "--env", "Hopper-v5", "--set", 'references={"random":0}'],
            "'references' is a group of settings",
        ),
        (["compare", "{none}", "--out", "{none}"], "no store"),
        (
            ["compare", "{store}", "--out", "{none}", "--set", "sets=[1]"],
            "setting 'sets'",
        ),
        (["compare", "{store}", "--out", "{none}", "--sets", "random"], "no set random"),
        (["compare", "{store}", "--out", "{none}", "--models", "rnn"], "no model 'rnn'"),
        (
            ["compare", "{store}", "--out", "{none}", "--set", "own={"],
            "'own' needs JSON",
        ),
        (["compare", "{store}", "--out", "{none}", "--policies", "{none}"], "no finished training"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_is_refused_before_anything_starts(
    run: Run, arguments: list[str], complaint: str, store: Path, tmp_path: Path
) -> None:
    places = {"{none}": tmp_path / "none", "{store}": store}
    assert_refused(run("gym", *(places.get(word, word) for word in arguments)), complaint)
    assert list(tmp_path.iterdir()) == []


def test_published_scores_are_complete() -> None:
    assert len(PUBLISHED) == 9
    assert published("hopper", "medium", "fcnet") == {"mean": 57.8, "std": 6.0}
    assert published("hopper", "medium", "mlp") == {"mean": None, "std": None}
    # The last line of the same table.
    for kind, average in (("fcnet", 75.1), ("dt", 74.7)):
        means = [scores[kind][0] for scores in PUBLISHED.values()]
        assert round(sum(means) / 9, 1) == average
