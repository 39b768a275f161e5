"""Trained policies that ship: each acts as its run does, and is a run wherever one is asked for."""

import json
from pathlib import Path

import numpy as np
import pytest

from gaitforge.collectors.legged.rollout import EvaluationGrid
from gaitforge.common.files import sha256_file
from gaitforge.flows.progress import Silent
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.flows.tasks.policy_sources import run_source
from gaitforge.learners import run_files
from gaitforge.learners.checkpoint import load_policy
from gaitforge.learners.control.control import TorchStep
from gaitforge.learners.run_files import SHIPPED, shipped_card, shipped_policies
from recipes.ship import ship
from tests.pipeline.command_line import SMALL_MODEL, Run, assert_refused, call

ONE = LeggedEvaluation(EvaluationGrid(("flat",), ("stand",), (2,), episodes=1), threads=1)


def test_a_shipped_policy_acts_as_its_run(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """Of a run that keeps an average of its weights: the average is what acts, in both."""
    settings = [f"model_overrides={SMALL_MODEL}", "batch_size=2", "window_len=8"]
    settings += ["held_out_fraction=0", "ema_decay=0.5"]
    words = [word for setting in settings for word in ("--set", f"config.{setting}")]
    out = tmp_path / "run"
    assert call("train", store, "--out", out, "--steps", "3", *words) == 0
    shipped = tmp_path / "assets" / "mine"
    ship(out, shipped, store, ONE, Silent())
    monkeypatch.setattr(run_files, "SHIPPED", shipped.parent)
    monkeypatch.chdir(tmp_path)
    ours, theirs = (load_policy(each) for each in (out, "mine"))
    steps = [TorchStep(policy, 2) for policy in (ours, theirs)]
    rng = np.random.default_rng(0)
    for _ in range(12):
        obs = rng.standard_normal((2, 70), dtype=np.float32)
        one, other = (step.step(obs, None) for step in steps)
        np.testing.assert_array_equal(one, other)
    assert run_source(out).weights_hash() == run_source(Path("mine")).weights_hash()
    card = json.loads(run("info", "mine", "--json").out)
    assert card["learned_from"]["episodes"] == 4
    assert [(cell["terrain"], cell["episodes"]) for cell in card["results"]["cells"]] == [
        ("flat", 1)
    ]
    with pytest.raises(ValueError, match="exists; remove it"):
        ship(out, shipped, store, ONE, Silent())
    other = tmp_path / "other.zarr"
    assert call("collect", other, "--set", "grid.parts=1", "--set", "grid.episodes_per_part=1") == 0
    with pytest.raises(ValueError, match="is not the dataset"):
        ship(out, tmp_path / "assets" / "wrong", other, ONE, Silent())
    assert sorted(each.name for each in shipped.parent.iterdir()) == ["mine"]


def test_what_ships_is_small_and_says_what_it_is() -> None:
    assert shipped_policies() == ["bot-aliengo", "fcnet-aliengo"]
    files = [file for file in SHIPPED.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 3_000_000
    assert {file.suffix for file in files} == {".json", ".safetensors"}
    assert not [file for file in files if file.suffix == ".json" and '"/' in file.read_text()]
    for name in shipped_policies():
        card = shipped_card(name)
        plan = json.loads((SHIPPED / name / "plan.json").read_text())
        policy = load_policy(name)
        assert card["parameters"] == sum(each.numel() for each in policy.parameters())
        assert card["learned_from"]["dataset"] == plan["dataset"]
        assert (card["robot"], card["licence"]) == ("aliengo", "Apache-2.0")
        cells = card["results"]["cells"]
        assert min(cell["episodes"] for cell in cells) >= 20
        fallen = [cell for cell in cells if cell["survival"] < 0.9]
        assert fallen
        for cell in fallen:
            where = f"{cell['terrain']}, {cell['skill']}, level {cell['level']}: "
            assert any(line.startswith(where) for line in card["limits"])


@pytest.mark.parametrize("name", ["bot-aliengo", "fcnet-aliengo"])
def test_a_shipped_policy_walks_from_an_empty_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    cell = ("--terrain", "flat", "--skill", "rush", "--level", "2", "--episodes", "2")
    done = run("evaluate", name, *cell, "--set", "robots=2", "--json")
    assert done.code == 0, done.err
    [row] = json.loads(done.out)["cells"]
    assert (row["policy"], row["survival"], row["success"]) == (name, 1.0, 1.0)
    assert list(tmp_path.iterdir()) == []


def test_a_shipped_policy_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("export", "fcnet-aliengo", "out", "--formats", "pt2").code == 0
    source = json.loads((tmp_path / "out" / "policy.json").read_text())["source"]
    card = shipped_card("fcnet-aliengo")
    assert source["run"] == "fcnet-aliengo"
    assert source["dataset_version"] == card["learned_from"]["dataset"]
    # What has the name here comes first.
    (tmp_path / "out").rename(tmp_path / "fcnet-aliengo")
    assert run_source(Path("fcnet-aliengo")).kind == "exported"


def test_a_shipped_policy_is_trained_further(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ("--batch-size", "2", "--set", "config.window_len=8", "--steps")
    words = ("train", store, "--start-from", "fcnet-aliengo", *small)
    wrong = run(*words, "1", "--out", "a", "--model", "mlp")
    assert_refused(wrong, "cannot start from fcnet-aliengo: model.kind is fcnet there, mlp here")
    assert run(*words, "1", "--out", "a").code == 0
    record = json.loads((tmp_path / "a" / "plan.json").read_text())
    weights = sha256_file(SHIPPED / "fcnet-aliengo" / "checkpoint.safetensors")
    assert record["start"] == {"run": "fcnet-aliengo", "checkpoint": "last", "sha256": weights}
    more = run(*words, "2", "--out", "a")
    assert_refused(more, "a was planned with 1 step; to go on from its weights: --start-from a")
    assert run("train", store, "--start-from", "./a/", "--out", "b", *small, "2").code == 0
    record = json.loads((tmp_path / "b" / "plan.json").read_text())
    assert record["start"]["run"] == "a"
    compare = ("compare", store, "--models", "mlp", "--steps", "1", "--out", "c", "--episodes", "1")
    wrong = run(*compare, "--set", "settings.start_from=fcnet-aliengo")
    assert_refused(wrong, "this training cannot start from fcnet-aliengo: model.kind")


def test_a_wrong_name_lists_the_shipped_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (("evaluate", "fcnet-aliengoo"), ("export", "fcnet-aliengoo", "out")):
        assert_refused(run(*words), "ship: bot-aliengo, fcnet-aliengo")
    assert_refused(run("evaluate", "fcnet-aliengo", "--checkpoint", "best"), "no best checkpoint")
    assert_refused(run("info", "fcnet-aliengo", "--columns"), "--columns")
