"""One training and one evaluation of a user's own model give the same on every runner."""

import json
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from gaitforge.common.locks import exclusive_lock, is_shared
from gaitforge.common.trust import trusting
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.records import read_record
from gaitforge.flows.runners import prefect_stages
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.stages.stage import WORK_LOCK, RecordedStage
from gaitforge.flows.tasks.policy_sources import run_source
from gaitforge.pipeline.cli.main import main
from gaitforge.pipeline.serve.prefect_server import prefect_api
from tests.flows.making import COLLECT

MODEL = """
from dataclasses import dataclass
from gaitforge.learners.models.mlp import MLPConfig

@dataclass(frozen=True)
class Narrow(MLPConfig):
    hidden_dim: int = 16
"""
TRAIN = ["--model", "own_models:Narrow", "--steps", "3", "--batch-size", "4"]
TRAIN += ["--set", "config.threads=1", "--set", "config.held_out_fraction=0.5"]
EPISODES = ["--terrain", "flat", "--skill", "run", "--episodes", "2", "--set", "robots=2"]
RUNNERS = {"local": [], "dask": ["--workers", "1"], "prefect": []}


def said(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, object]:
    """What a command prints as JSON."""
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_a_training_and_an_evaluation_are_the_same_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_models.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    collect(COLLECT, tmp_path / "walks.zarr", Silent())
    weights, returns = set(), []
    with ExitStack() as server:
        for name, more in RUNNERS.items():
            if name == "prefect":  # one for all commands
                server.enter_context(prefect_api(port=0))
            run = tmp_path / name
            where = ["--runner", name, *more]
            trained = said(capsys, "train", tmp_path / "walks.zarr", "--out", run, *TRAIN, *where)
            assert trained["steps"] == 3
            again = said(capsys, "train", tmp_path / "walks.zarr", "--out", run, *TRAIN, *where)
            assert again["train_s"] == trained["train_s"], "nothing is trained twice"
            with trusting(["own_models:Narrow"]):
                weights.add(run_source(run).weights_hash())
            out = ["--out", str(run / "evaluation.json"), "--trust", "own_models:Narrow"]
            evaluated = said(capsys, "evaluate", run, *EPISODES, *out, *where)
            assert (read_record(run / "evaluation.json") or {})["returns"] == evaluated["returns"]
            returns.append(evaluated["returns"])
    assert len(weights) == 1
    assert returns[0] == returns[1] == returns[2]


def test_a_plan_stays_while_prefect_works_between_two_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[bool] = []

    def look(*_: object) -> None:
        with exclusive_lock(tmp_path / WORK_LOCK):
            held.append(is_shared(tmp_path / WORK_LOCK))

    monkeypatch.setattr(prefect_stages, "_do", look)
    prefect_stages.run_in_flow(tmp_path, [RecordedStage("train", "key", run=print)])
    look()
    assert held == [True, False]
