"""The services by their own packages, offline: what a training leaves there, and no key anywhere.

Nothing is sent: the modes are offline, and the packages' own statistics and error reports are off.
"""

import importlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gaitforge.common.run_log import RunLog, logging_to
from tests.pipeline.command_line import SMALL_MODEL, TINY_GRID, Run, call

KEY = "5ecre7Recognisable0123456789abcdef012345"
OFFLINE = {
    "WANDB_MODE": "offline",
    "WANDB_ERROR_REPORTING": "false",
    "SWANLAB_MODE": "offline",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    **dict.fromkeys(("WANDB_API_KEY", "SWANLAB_API_KEY", "MLFLOW_TRACKING_TOKEN", "HF_TOKEN"), KEY),
}
SETTINGS = ["batch_size=2", "window_len=8", "history_every=1", f"model_overrides={SMALL_MODEL}"]
Rows = list[tuple[int, float]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loggers") / "legged.zarr"
    assert call("collect", path, *TINY_GRID) == 0
    return path


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def in_wandb(run: Path) -> None:
    """Its file for a later upload has names and texts that can be read."""
    [path] = run.glob("wandb/offline-run-*/*.wandb")
    assert json.loads((run / "loggers.json").read_text())["id"] in path.name
    # wandb's own process writes the file's end shortly after `finish` has returned.
    latest = time.monotonic() + 60
    while path.read_bytes().count(b"loss/train") < 4:
        assert time.monotonic() < latest, "wandb's file lacks the rows"
        time.sleep(0.05)
    files = {file.name for file in path.parent.glob("files/*")}
    assert {"config.json", "plan.json", "history.jsonl", "metrics.csv"} <= files


def in_mlflow(run: Path) -> Rows:
    """The points of the only run of its store."""
    mlflow: Any = importlib.import_module("mlflow")
    client = mlflow.MlflowClient((run / "mlflow").resolve().as_uri())
    experiment = client.get_experiment_by_name("gaitforge")
    [kept] = client.search_runs([experiment.experiment_id])
    assert kept.info.status == "FINISHED"
    assert kept.data.params["train_config/batch_size"] == "2"
    files = {file.path for file in client.list_artifacts(kept.info.run_id)}
    assert {"config.json", "plan.json", "history.jsonl", "metrics.csv"} <= files
    points = client.get_metric_history(kept.info.run_id, "loss/train")
    return [(point.step, point.value) for point in points]


def in_trackio(run: Path) -> Rows:
    """The rows of the training's only run."""
    storage: Any = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
    # Of the tests before, too: it reads TRACKIO_DIR as it is imported.
    [name] = [name for name in storage.get_runs("gaitforge") if name.startswith(f"{run.name}-")]
    rows = storage.get_logs("gaitforge", name)
    return [(row["step"], row["loss/train"]) for row in rows if "loss/train" in row]


def in_swanlab(run: Path) -> None:
    """Its file for a later upload has names that can be read, and values that cannot."""
    [path] = run.glob("swanlab/run-*/run-*.swanlab")
    assert b"loss/train" in path.read_bytes()
    files = {file.name for file in path.parent.glob("files/*")}
    assert {"config.json", "plan.json", "history.jsonl", "metrics.csv"} <= files


READ: dict[str, Callable[[Path], Rows | None]] = {
    "wandb": in_wandb,
    "mlflow": in_mlflow,
    "swanlab": in_swanlab,
    "trackio": in_trackio,
}


@pytest.mark.parametrize("name", READ)
def test_a_training_is_kept_there_with_its_files_and_without_the_key(
    name: str, run: Run, store: Path, tmp_path: Path
) -> None:
    pytest.importorskip(name)
    out = tmp_path / "run"
    sets = [word for setting in SETTINGS for word in ("--set", f"config.{setting}")]
    done = run("train", store, "--out", out, "--steps", "4", *sets, "--log", name, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["steps"] == 4
    assert "warning: --log" not in done.err
    assert KEY not in done.err
    lines = (out / "history.jsonl").read_text().splitlines()
    losses = [(row["step"], pytest.approx(row["loss"])) for row in map(json.loads, lines)]
    assert len(losses) == 4
    kept = READ[name](out)
    assert kept in (None, losses)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


@pytest.mark.parametrize("name", ["mlflow", "trackio"])
def test_steps_that_a_killed_training_repeats_are_kept_once(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    config = {"train_config": {"batch_size": 2}}
    for file in ("config.json", "plan.json", "history.jsonl", "metrics.csv"):
        (tmp_path / file).write_text("{}")
    with logging_to([name]):
        log = RunLog(tmp_path, config)
        for step in (1, 2, 3):
            log.log(step, {"loss/train": 1.0 / step})
        log.finish("stopped")
        log = RunLog(tmp_path, config, last_step=1)
        for step in (2, 3, 4):
            log.log(step, {"loss/train": 1.0 / step})
        log.finish("finished", tmp_path.glob("*.*"))
    rows = READ[name](tmp_path)
    assert rows == [(step, pytest.approx(1.0 / step)) for step in (1, 2, 3, 4)]


@pytest.mark.parametrize(("name", "complaint"), [
    ("wandb", "--log wandb: there is no key: run wandb login"),
    ("swanlab", "--log swanlab: RuntimeError: Failed to initialize SwanLab in online mode"),
])  # fmt: skip
def test_without_a_key_nothing_is_asked_at_the_terminal(
    name: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(name)
    for variable in ("WANDB_MODE", "WANDB_API_KEY", "SWANLAB_MODE", "SWANLAB_API_KEY"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(ValueError, match=complaint), logging_to([name]):
        RunLog(tmp_path, {})
