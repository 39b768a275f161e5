"""`gaitforge export`: what it prints, and the one line that wrong input gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gaitforge.learners.checkpoint import CHECKPOINT
from gaitforge.pipeline.cli.main import main
from tests.learners.making import make_selection

MODEL = '{"hidden_dim":16,"n_layers":1}'


def call(*arguments: str | Path) -> int:
    """`main` in this process, as a shell would see it end."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps."""
    folder = tmp_path_factory.mktemp("cli-export")
    make_selection(folder / "walks.zarr")
    settings = ["config.batch_size=2", "config.window_len=4", f"config.model_overrides={MODEL}"]
    options = [word for setting in settings for word in ("--set", setting)]
    train = ("train", folder / "walks.zarr", "--model", "mlp", "--steps", "2")
    assert call(*train, "--out", folder / "run", *options) == 0
    return folder / "run"


def test_an_export_can_be_evaluated(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    chosen = ("--formats", "onnx", "--batch", "2")
    assert call("export", run, tmp_path / "out", *chosen, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["folder"] == str(tmp_path / "out")
    assert record["bytes"].keys() == {"policy.onnx", "policy.json"}
    assert record["largest_error"]["onnx"] <= 1e-5
    assert not record["already_there"]
    assert json.loads((tmp_path / "out" / "policy.json").read_text())["batch_size"] == 2

    grid = ("--terrain", "flat", "--skill", "stand", "--level", "0", "--episodes", "1")
    assert call("evaluate", tmp_path / "out", *grid, "--threads", "1", "--json") == 0
    cells = json.loads(capsys.readouterr().out)
    assert [cell["policy"] for cell in cells] == ["out"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("RUN", "DST", "--formats", "onnx,tflite"), "unknown format 'tflite'; allowed: onnx"),
        (("RUN", "DST", "--formats", ""), "give each format once; allowed: onnx, pt2"),
        (("RUN", "DST", "--batch", "0"), "needs a whole number of at least 1, not '0'"),
        (("RUN", "DST", "--checkpoint", "first"), "invalid choice: 'first'"),
        (("RUN", "DST", "--robot", "nobody"), "no robot 'nobody'"),
        (("RUN", "TAKEN"), "exists and holds something else; give a new folder"),
        (("NOWHERE", "DST"), "no training run at"),
        (("EMPTY", "DST"), "no checkpoint in"),
        (("CUT", "DST"), "is truncated or damaged"),
        (("RUN",), "export needs RUN DST (a policy) or STORE FORMAT DST"),
    ],
)
def test_wrong_input_gets_one_line_and_exit_code_2(
    arguments: tuple[str, ...],
    message: str,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"RUN": run} | {name: tmp_path / name for name in ("DST", "TAKEN", "EMPTY", "CUT")}
    places["NOWHERE"] = tmp_path / "NOWHERE"
    for name in ("TAKEN", "EMPTY", "CUT"):
        places[name].mkdir()
    (places["TAKEN"] / "notes.txt").write_text("mine")
    (places["CUT"] / CHECKPOINT).write_bytes((run / CHECKPOINT).read_bytes()[:300])
    capsys.readouterr()
    assert call("export", *(places.get(word, word) for word in arguments)) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not places["DST"].exists()
