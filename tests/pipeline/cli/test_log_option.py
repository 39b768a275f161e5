"""`--log`: what a logger gets of a training, and what becomes of one that fails."""

import json
from pathlib import Path
from typing import Any

import pytest

from gaitforge.collectors.training_folder import training_files
from gaitforge.common.history import read_history
from gaitforge.common.run_log import check_loggers, logging_to
from gaitforge.common.trust import UntrustedCodeError, trusting
from gaitforge.pipeline.cli.main import parsed
from tests.pipeline.command_line import SMALL_MODEL, Run, assert_refused

KEY = "Recognisable0123"
LOGGER = """
import json
import os
import signal

class Lines:
    def __init__(self, run):
        self.path = run.folder.parent / "lines.jsonl"
        self.stops = "STOP" in os.environ
        self.write(**{**vars(run), "folder": run.folder.name})

    def write(self, **values):
        with self.path.open("a") as file:
            file.write(json.dumps(values) + "\\n")

    def log(self, step, values):
        self.write(step=step, values=values)
        if self.stops:
            os.kill(os.getpid(), signal.SIGTERM)
            self.stops = False

    def add_file(self, path):
        self.write(file=path.name)

    def finish(self, state):
        self.write(state=state)

class Lost(Lines):
    def log(self, step, values):
        super().log(step, values)
        if step == 2:
            raise ConnectionError("no way to " + os.environ["MY_API_KEY"])

class Closed(Lines):
    def __init__(self, run):
        print("welcome")
        raise ConnectionError("no way to " + os.environ["MY_API_KEY"])
"""
SETTINGS = ["batch_size=2", "window_len=8", "held_out_fraction=0", "history_every=1"]
SETTINGS += [f"model_overrides={SMALL_MODEL}"]


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the loggers of a module `ours_lines` write; a key is in the environment."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "ours_lines.py").write_text(LOGGER)
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    monkeypatch.setenv("MY_API_KEY", KEY)
    return tmp_path / "lines.jsonl"


def written(lines: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.read_text().splitlines()]


def training(store: Path, out: Path, *loggers: str) -> list[str | Path]:
    sets = [word for setting in SETTINGS for word in ("--set", f"config.{setting}")]
    log = ["--log", ",".join(loggers)] if loggers else []
    return ["train", store, "--out", out, "--steps", "4", *sets, *log]


def test_a_training_that_resumes_goes_on_in_the_same_run(
    run: Run, store: Path, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = training(store, lines.parent / "run", "ours_lines:Lines", "tensorboard")
    monkeypatch.setenv("STOP", "yes")
    assert run(*words).code == 143
    first = written(lines)
    begin = first[0]
    assert (begin["name"], begin["group"], begin["last_step"]) == ("run", "", 0)
    assert begin["config"]["train_config"]["batch_size"] == 2
    values = {"loss/train", "optimiser/learning_rate", "speed/control_steps_per_s"}
    assert [row["step"] for row in first if "step" in row] == list(range(1, len(first) - 5))
    assert first[1]["values"].keys() == values
    files = [row["file"] for row in first if "file" in row]
    assert files == ["config.json", "plan.json", "history.jsonl", "metrics.csv"]
    assert first[-1] == {"state": "stopped"}
    monkeypatch.delenv("STOP")
    done = run(*words)
    assert done.code == 0, done.err
    second = written(lines)[len(first) :]
    assert second[0]["id"] == begin["id"]
    assert second[0]["last_step"] == len(first) - 6
    assert [row["step"] for row in second if "step" in row] == [*range(len(first) - 5, 5)]
    assert second[-1] == {"state": "finished"}
    assert list((lines.parent / "run" / "tensorboard").iterdir())
    assert "ours_lines" not in "".join(
        path.read_text() for path in (lines.parent / "run").glob("*.json")
    )


def test_a_logger_that_fails_ends_with_a_warning_and_the_training_is_the_same(
    run: Run, store: Path, lines: Path
) -> None:
    out = lines.parent / "logged"
    done = run(*training(store, out, "ours_lines:Lost"), "--json")
    assert done.code == 0, done.err
    assert done.err.count("warning: --log ours_lines:Lost: ConnectionError: no way to ***;") == 1
    assert [row["step"] for row in written(lines) if "step" in row] == [1, 2]
    assert written(lines)[-1] == {"state": "failed"}
    assert run(*training(store, lines.parent / "plain", "none")).code == 0
    logged, plain = ([row["loss"] for row in read_history(lines.parent / name)]
                     for name in ("logged", "plain"))  # fmt: skip
    assert logged == plain
    assert not (lines.parent / "plain" / "tensorboard").exists()
    assert not (lines.parent / "plain" / "loggers.json").exists()
    refused = run(*training(store, lines.parent / "closed", "ours_lines:Closed"))
    assert refused.code == 2
    assert refused.out == ""
    error = "gaitforge: error: --log ours_lines:Closed: ConnectionError: no way to ***"
    assert refused.err.splitlines()[-1] == error
    files = [path for path in lines.parent.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


def test_a_resumed_training_goes_on_where_a_logger_cannot_begin(
    lines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"steps": 20, "checkpoint_every_s": 60.0}
    row = {"steps": 20, "losses": {"value": 0.5, "kl": None}, "return": 3.0, "cells": {"a": [1]}}
    loggers = ("ours_lines:Closed", "ours_lines:Lines")
    with (
        trusting(loggers),
        logging_to(loggers, "both"),
        training_files(lines.parent, config, 10, lambda row: None) as files,
    ):
        files.append(row)
        files.after_step(20, lambda: None, last=True)
    begin, step, *files, end = written(lines.parent.parent / "lines.jsonl")
    assert (begin["group"], begin["last_step"]) == ("both", 10)
    assert step == {"step": 20, "values": {"losses/value": 0.5, "return": 3.0}}
    assert (files, end) == ([{"file": "history.jsonl"}], {"state": "finished"})
    said = capsys.readouterr()
    assert "--log ours_lines:Closed: ConnectionError: no way to ***; nothing more" in said.err
    assert said.out == ""


def test_loggers_that_cannot_be_used_are_refused_before_anything_is_made(
    run: Run, store: Path, lines: Path
) -> None:
    for loggers, complaint in (
        (["lines"], "unknown logger 'lines'; allowed: tensorboard, "),
        (["none", "tensorboard"], "--log none goes with no other logger"),
        (["subprocess:Popen"], "subprocess:Popen is no logger: it needs a class with log"),
    ):
        assert_refused(run(*training(store, lines.parent / "run", *loggers)), complaint)
    assert not (lines.parent / "run").exists()
    with pytest.raises(UntrustedCodeError):  # as a form of Prefect names it
        check_loggers(["ours_lines:Lines"])


def test_the_jobs_of_an_experiment_get_the_loggers_by_their_command_line(
    store: Path, lines: Path, run: Run
) -> None:
    out = lines.parent / "compare"
    words = ["compare", str(store), "--models", "mlp", "--seeds", "0", "--out", str(out)]
    words += ["--steps", "4", "--log", "tensorboard,ours_lines:Lines"]
    with trusting(["ours_lines:Lines"]):
        arguments = parsed(words)
        work = arguments.begin(arguments)
    assert work.words == ["run", str(out), "--log", "tensorboard,ours_lines:Lines"]
    assert "log" not in (out / "plan.json").read_text()
    refused = run("run", out, "--log", "ours_lines:Lost", "--stage", "nosuch")
    assert_refused(refused, "no stage 'nosuch'")
