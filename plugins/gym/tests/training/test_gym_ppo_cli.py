"""A network trained by PPO on a Gymnasium task is evaluated and collected with as any run."""

import json
from pathlib import Path

import numpy as np
import pytest

import gaitforge.plugins.gym.expert_training as stages
from gaitforge.datasets import open_store
from gaitforge.plugins.gym.evaluation import GymEvaluation
from tests.pipeline.command_line import Run, assert_refused

pytest.importorskip("gymnasium")
pytest.importorskip("dm_control")

ENV = "Humanoid-Hill-v0"
TINY = ("environments=4", "horizon=8", "model_overrides.embed_dim=8", "model_overrides.n_layers=1")


@pytest.mark.slow
def test_a_network_is_trained_evaluated_and_collected_with(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "GymEvaluation", lambda env: GymEvaluation(env=env, episodes=2))
    out, store = tmp_path / "hill", tmp_path / "hill.zarr"
    settings = [word for each in TINY for word in ("--set", each)]
    words = ["--env", ENV, "--model", "bot", "--steps", "64", "--out", out, *settings]
    trained = run("expert", "train", *words)
    assert trained.code == 0, trained.err
    assert str(out / "policy") in trained.out
    kept = json.loads((out / "policy" / "evaluation.json").read_text())
    assert (kept["task"], kept["episodes"], kept["score"]) == ("gym", 2, None)

    asked = ("--episodes", "2", "--json")
    evaluated = json.loads(run("evaluate", out / "policy", *asked).out)
    assert evaluated["return"] == kept["return"], "the run knows its task"
    random = json.loads(
        run("evaluate", "random", "--task", "gym", "--set", f"env={ENV}", *asked).out
    )
    assert random["cells"][0]["env"] == ENV
    assert_refused(
        run("evaluate", out / "policy", "--task", "gym", "--set", "env=Humanoid-Mod-v0"),
        "was trained on humanoid-hill, not on humanoid-mod",
    )

    collect = ("gym", "collect", store, "--env", ENV, "--policies", out / "policy", "--json")
    outcome = run(*collect, "--quality", "random,expert", "--steps", "60", "--physics")
    assert outcome.code == 0, outcome.err
    assert [row["quality"] for row in json.loads(outcome.out)] == ["random", "expert"]
    opened = open_store(store)
    slices = opened.schema.field("obs").slices
    assert slices is not None
    assert slices["contact_force"] == (52, 100)
    assert "reference_returns" not in opened.schema.attributes
    assert np.abs(opened.select().read("action")).max() <= 1.0
    assert opened.select().read("info_qpos").shape[1] == 28
    assert_refused(
        run(*collect, "--quality", "medium", "--steps", "60"), "its qualities are random and expert"
    )
    assert_refused(
        run("gym", "collect", store, "--env", ENV), "no policies of Humanoid-Hill-v0 ship"
    )
