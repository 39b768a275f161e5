"""The player in a run: its stages, and episodes of another simulator's version."""

from pathlib import Path

import pytest

from gaitforge.flows.experiments.claim import Claim
from gaitforge.flows.experiments.plan import Experiment
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.records import write_record
from gaitforge.flows.stages.stage import find_stage, run_stage
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.pipeline.cli.main import main
from gaitforge.pipeline.report.experiment import stages_of
from tests.flows.test_versions import OTHER, PLAN, stores_of_two_versions

MLP = Experiment({"mlp": {"model_overrides": {"hidden_dim": 16, "n_layers": 1}}}, seeds=(0,))


def test_a_page_that_cannot_be_made_fails_its_stage(store: Path, tmp_path: Path) -> None:
    show = find_stage(stages_of(Claim("x", MLP, (str(store),)), tmp_path), "show mlp-seed-0")
    with pytest.raises(ValueError, match=r"show mlp-seed-0: .*mlp-seed-0.json is missing"):
        run_stage(tmp_path, show, Silent())
    assert not show.is_done(tmp_path)
    write_record(tmp_path / "stages" / "show-mlp-seed-0.json", {"key": show.key})
    assert not show.is_done(tmp_path), "there is no page"
    # Of several robots there never is one: the page says why.
    plan = LeggedEvaluation(robot="aliengo,go1", robots=1)
    evaluation = {"plan": plan, "key": {}, "returns": [], "cells": []}
    write_record(tmp_path / "evaluate" / "mlp-seed-0.json", evaluation)
    run_stage(tmp_path, show, Silent())
    assert "of several robots" in show.outputs[0].read_text()
    assert show.is_done(tmp_path)


@pytest.mark.slow
def test_episodes_of_another_version_are_not_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _ = PLAN.part_ids()
    stores = stores_of_two_versions(tmp_path, monkeypatch)
    store = tmp_path / "s.zarr"
    assert main(["dataset", "merge", *map(str, stores), str(store)]) == 0
    for words in ([], ["--with-recorded-versions"]):
        capsys.readouterr()
        assert main(["view", str(store), *words]) == 2, words
        error = capsys.readouterr().err
        assert f"mujoco {OTHER} (part {first})" in error, words
        assert "--with-recorded-versions" in error, words
