"""A blind policy by PPO: its training goes on, and its result is used as any trained policy."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gaitforge.collectors.experts.ppo import ExpertTask, ExpertTrainingConfig, TrainingScope
from gaitforge.collectors.legged.observations import POLICY_SLICES
from gaitforge.collectors.legged.rollout import EvaluationGrid
from gaitforge.collectors.robots.robot import load_robots
from gaitforge.common.history import read_history
from gaitforge.datasets import open_store
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.expert_training import run_expert_training
from tests.pipeline.command_line import Run

PER_UPDATE = 16 * 8
SIZES = {"n_layers": 1, "embed_dim": 8, "feedforward_dim": 8, "masking": "mix"}
GRID = EvaluationGrid(("rough",), ("walk",), (2,), 1)
TINY = ExpertTrainingConfig(
    robot="a1",
    model="bot",
    model_overrides=SIZES,
    terrains=("flat", "rough"),
    skills=("walk",),
    action_filter_hz=5.0,
    steps=2 * PER_UPDATE,
    robots=16,
    horizon=8,
    epochs=1,
    mini_batches=2,
    threads=1,
    checkpoint_every_s=0.0,
    keep_every=PER_UPDATE,
)


def test_a_blind_policy_is_trained_further_evaluated_collected_with_and_exported(
    tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "a1"
    policy = run_expert_training(TINY, out, Silent(), GRID)
    assert policy == out / "policy"
    run_expert_training(replace(TINY, steps=3 * PER_UPDATE), out, Silent(), GRID)
    assert [row["steps"] for row in read_history(out)] == [PER_UPDATE * n for n in (1, 2, 3)]
    assert {path.name for path in (out / "kept").iterdir()} == {
        str(PER_UPDATE * n) for n in (1, 2, 3)
    }
    card = json.loads((out / "policy.json").read_text())
    assert (card["terrains"], card["skills"]) == (["flat", "rough"], ["walk"])
    assert {cell["skill"] for cell in card["evaluation"]["cells"]} == {"walk"}

    assert run("export", policy, tmp_path / "robot").code == 0
    scored = run("evaluate", policy, "--episodes", 1, "--json")
    assert {cell["skill"] for cell in json.loads(scored.out)["cells"]} == {"walk"}
    description = json.loads((tmp_path / "robot" / "policy.json").read_text())
    assert description["control"]["robot"] == "a1"
    share = description["action"]["filter"]
    assert share == pytest.approx(1 - np.exp(-2 * np.pi * 5.0 * 0.02))
    cells = ("--robot", "a1", "--terrain", "rough", "--skill", "walk", "--robots", 2)
    driven = ("--policy", policy, "--labeller", "a1-locomotion", "--parts", 1)
    store = tmp_path / "walk.zarr"
    outcome = run("collect", store, *driven, *cells, "--set", "grid.episodes_per_part=2")
    assert outcome.code == 0, outcome.err
    assert set(open_store(store).select().episodes("skill").column("skill").to_pylist()) == {"walk"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_overrides": {**SIZES, "masking": "hard"}}, "model_overrides"),
        ({"skills": ("run",)}, "skills"),
        ({"action_filter_hz": 2.0}, "action_filter_hz"),
        ({"model": "mlp", "model_overrides": {}}, "model"),
    ],
)
def test_another_training_does_not_go_on_in_its_folder(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    short = replace(TINY, steps=PER_UPDATE, keep_every=0)
    run_expert_training(short, tmp_path, Silent(), GRID)
    with pytest.raises(ValueError, match=message):
        run_expert_training(replace(short, **changes), tmp_path, Silent(), GRID)


def test_a_training_executes_filtered_actions() -> None:
    scope = replace(TrainingScope.of(("flat",), ("walk",), blind=True), action_filter=0.25)
    bodies = load_robots("a1")
    with closing(ExpertTask(bodies, 4, 1, seed=0, scope=scope)) as task:
        wanted = torch.full((4, 12), 0.2)
        for step in range(1, 5):
            seen, *_ = task.step(wanted)
            executed = seen["features"][:, slice(*POLICY_SLICES["last_action"])]
            torch.testing.assert_close(executed, wanted * (1 - 0.75**step))


def test_settings_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^stairs: none of the chosen skills is commanded"):
        replace(TINY, terrains=("flat", "stairs"), skills=("crawl", "tilt"), robot="a1")
    with pytest.raises(ValueError, match="unknown skill 'fly'"):
        replace(TINY, skills=("fly",))
    with pytest.raises(ValueError, match="model_overrides need a model"):
        replace(TINY, model="")
    with pytest.raises(ValueError, match="action_filter_hz needs a model"):
        replace(TINY, model="", model_overrides={})
    with pytest.raises(ValueError, match="training of bot starts anew"):
        replace(TINY, start_from="a1-locomotion")


def test_a_run_of_an_earlier_version_goes_on_with_its_own_network(tmp_path: Path) -> None:
    """Its record knows no initial weights, and its preset had other sizes than today's."""
    out = tmp_path / "a1"
    own = replace(TINY, keep_every=0, model_overrides={**SIZES, "masking": "random"})
    run_expert_training(replace(own, initial_weights="torch"), out, Silent(), None)
    for path, keys in ((out / "training.json", ["config"]),
                       (out / "policy" / "config.json", ["model", "config"])):  # fmt: skip
        tree = json.loads(path.read_text())
        inner = tree
        for key in keys:
            inner = inner[key]
        for name in ("initial_weights", "mask_draw"):
            inner.pop(name, None)
        if path.name == "training.json":
            inner["model_overrides"] = {}  # all sizes were the preset's
        path.write_text(json.dumps(tree))
    longer = replace(own, model_overrides={}, steps=3 * PER_UPDATE)
    policy = run_expert_training(longer, out, Silent(), None)
    saved = json.loads((policy / "config.json").read_text())
    assert saved["model"]["config"]["embed_dim"] == SIZES["embed_dim"]
    assert saved["model"]["config"]["mask_draw"] == "pairs"
    assert saved["reinforcement_learning"]["training"]["initial_weights"] == "torch"
    assert [row["steps"] for row in read_history(out)] == [PER_UPDATE * n for n in (1, 2, 3)]


def test_a_training_with_masks_that_do_not_join_the_body_says_so(tmp_path: Path) -> None:
    shallow = replace(TINY, steps=PER_UPDATE, model_overrides={**SIZES, "masking": "hard"})
    heard: list[str] = []
    reporter = Silent()
    reporter.say = heard.append  # type: ignore[method-assign]
    run_expert_training(shallow, tmp_path / "a1", reporter, None)
    assert [line for line in heard if line.startswith("1 masked layer on a body that is 6")]
    heard.clear()
    run_expert_training(replace(TINY, steps=PER_UPDATE, model_overrides={**SIZES, "n_layers": 2}),
                        tmp_path / "mix", reporter, None)  # fmt: skip
    assert not [line for line in heard if "masked layer" in line]
