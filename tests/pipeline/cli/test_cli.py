"""The command line: what it prints, and the one line that wrong input gets."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from gaitforge.datasets.files import exclusive_lock
from gaitforge.flows.records.records import TRAINING_LOCK
from gaitforge.pipeline.cli.main import build_parser
from tests.pipeline.command_line import SMALL_MODEL, TINY_GRID, Outcome, Run, assert_refused

ROOT = Path(__file__).resolve().parents[3]


def commands(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """The words of every command, from the parser itself."""
    groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not groups:
        yield list(path)
    for group in groups:
        for name, inner in group.choices.items():
            yield from commands(inner, (*path, name))


COMMANDS = list(commands(build_parser()))


def test_the_documented_commands_are_there() -> None:
    found = {" ".join(words) for words in COMMANDS}
    asked = "demo pipeline collect query train evaluate report info verify gc models run"
    assert {*asked.split(), "completion", "expert list", "expert train"} <= found


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(run: Run, words: list[str]) -> None:
    outcome = run(*words, "--help")
    assert outcome.code == 0
    assert outcome.err == ""
    assert f"usage: gaitforge {' '.join(words)}" in outcome.out
    assert "example:  " in outcome.out
    assert f"gaitforge {words[0]}" in outcome.out.split("example:")[1]


def test_the_help_of_all_says_how_to_start(run: Run) -> None:
    outcome = run("--help")
    assert outcome.code == 0
    assert "gaitforge demo --out runs/demo" in outcome.out


def test_the_version_is_that_of_the_package(run: Run) -> None:
    outcome = run("--version")
    assert (outcome.code, outcome.out) == (0, f"gaitforge {version('gaitforge')}\n")


@pytest.mark.parametrize(
    ("arguments", "complaints"),
    [
        ([], ["required: COMMAND"]),
        (["fly"], ["invalid choice: 'fly'", "demo"]),
        (["collect"], ["required: store"]),
        (["train", "x", "--out", "y", "--steps", "-5"], ["at least 1, not '-5'"]),
        (["train", "x", "--out", "y", "--steps", "many"], ["at least 1, not 'many'"]),
        (["expert", "train", "--out", "y", "--steps", "-5"], ["at least 1, not '-5'"]),
        (["evaluate", "x", "--episodes", "0"], ["at least 1, not '0'"]),
        (["collect", "x", "--robots", "0"], ["at least 1, not '0'"]),
        (["collect", "x", "--threads", "-1"], ["at least 1, not '-1'"]),
        (["collect", "x", "--seed", "-1"], ["at least 0, not '-1'"]),
        (["collect", "x", "--level", "high"], ["'high' is not a list like 0,2,5-9"]),
        (["collect", "x", "--level", "1-"], ["'1-' is not a list like 0,2,5-9"]),
        (["completion", "fish"], ["invalid choice: 'fish'", "bash"]),
        (["expert"], ["required: ACTION"]),
        (["demo", "--outt", "x"], ["--outt"]),
    ],
    ids=lambda value: " ".join(value) if value and isinstance(value[0], str) else None,
)
def test_arguments_that_cannot_be_read_get_one_line(
    run: Run, arguments: list[str], complaints: list[str]
) -> None:
    assert_refused(run(*arguments), *complaints, "--help)")


@pytest.mark.parametrize(
    ("arguments", "complaints"),
    [
        (["--model", "transformer-xl"], ["transformer-xl", "fcnet", "bot"]),
        (["--objective", "guess"], ["guess", "bc", "return"]),
        (["--set", "config.peak_lr=-1"], ["peak_lr must be above 0"]),
        (["--set", "config.peak_lr=nan"], ["needs a finite number, not 'nan'"]),
        (["--batch-size", "99999999999"], ["batch_size must be 1 to"]),
        (["--set", "config.threads=999999999"], ["threads must be 1 to 512"]),
        (["--set", "config.betas=0.9"], ["betas must be two numbers"]),
        (["--set", "config.momentum=1"], ["unknown setting 'config.momentum'", "peak_lr"]),
        (["--set", 'config.model_overrides={"depth":3}'], ["depth"]),
        (["--where", "length < 0"], ["no episode"]),
        (["--where", "colour = 1"], ["colour"]),
    ],
    ids=lambda value: value[1] if value[0].startswith("--") else None,
)
def test_a_training_that_cannot_be_gets_one_line_and_no_folder(
    run: Run, store: Path, tmp_path: Path, arguments: list[str], complaints: list[str]
) -> None:
    outcome = run("train", store, "--out", tmp_path / "run", "--steps", "1", *arguments)
    assert_refused(outcome, *complaints)
    assert not (tmp_path / "run").exists()


def test_what_is_not_there_gets_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert_refused(run("evaluate", tmp_path / "gone"), "no training run at", "no expert")
    assert_refused(run("evaluate", tmp_path / "empty"), "empty")
    assert_refused(run("report", tmp_path / "gone"), "no run folder at")
    assert_refused(run("report", tmp_path / "empty"), "the report needs summary.json")
    assert_refused(run("evaluate", "no.safetensors"), "no expert 'no.safetensors'")


@pytest.mark.parametrize("command", ["demo", "collect", "train", "expert train"])
def test_a_folder_that_cannot_be_written_gets_one_line(
    run: Run, store: Path, tmp_path: Path, command: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    below = tmp_path / "file" / "below"
    arguments = {
        "demo": ["demo", "--out", below],
        "collect": ["collect", below, *TINY_GRID],
        "train": ["train", store, "--out", below, "--steps", "1"],
        "expert train": ["expert", "train", "--out", below, "--steps", "1", "--robots", "1"],
    }[command]
    assert_refused(run(*arguments), str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_without_the_right_to_write_gets_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    outcome = run("collect", tmp_path / "locked" / "x.zarr", *TINY_GRID)
    assert_refused(outcome, "Permission denied")


def test_json_of_models_and_experts(run: Run) -> None:
    models = json.loads(run("models", "--json").out)
    assert {"fcnet", "bot"} <= {model["model"] for model in models}
    assert all(model["parameters"] > 0 for model in models)
    experts = json.loads(run("expert", "list", "--json").out)
    assert "aliengo-locomotion" in {expert["name"] for expert in experts}
    assert all(Path(expert["file"]).is_file() for expert in experts)


def test_a_training_run_is_told_and_not_repeated(run: Run, store: Path, trained: Path) -> None:
    assert json.loads((trained / "plan.json").read_text())["plan"]["config"]["steps"] == 2
    settings = json.loads((trained / "plan.json").read_text())["plan"]["config"]
    assert settings["model_overrides"] == json.loads(SMALL_MODEL)
    other = run("train", store, "--out", trained, "--steps", "3")
    assert_refused(other, "run")


def test_two_processes_do_not_train_one_run(run: Run, store: Path, trained: Path) -> None:
    with exclusive_lock(trained / TRAINING_LOCK):
        second = run("train", store, "--out", trained, "--steps", "2")
    assert_refused(second, "another process trains in")


def test_evaluation_of_a_run_and_of_an_expert(run: Run, trained: Path) -> None:
    grid = ["--terrain", "flat", "--skill", "run", "--level", "1", "--episodes", "1"]
    grid += ["--threads", "1", "--json"]
    for policy in (trained, "aliengo-locomotion"):
        outcome = run("evaluate", policy, *grid)
        assert outcome.code == 0
        record = json.loads(outcome.out)
        (cell,) = record["cells"]
        assert (record["task"], record["return"]) == ("legged", cell["return"])
        assert (cell["terrain"], cell["skill"], cell["level"]) == ("flat", "run", 1)
        assert cell["episodes"] == 1
        assert 0.0 <= cell["success"] <= cell["survival"] <= 1.0


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion_prints_a_script_that_knows_the_commands(run: Run, shell: str) -> None:
    outcome = run("completion", shell)
    assert outcome.code == 0
    assert "gaitforge" in outcome.out
    assert "collect" in outcome.out


def test_the_module_runs_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gaitforge", "query", "/nowhere/x.zarr"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert_refused(Outcome(done.returncode, done.stdout, done.stderr), "no store at")


def test_help_of_no_command_loads_torch_prefect_or_matplotlib() -> None:
    program = (
        "import sys; from gaitforge.pipeline.cli.main import build_parser; build_parser(); "
        "print({'torch', 'prefect', 'matplotlib', 'distributed'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_help_of_all_loads_no_command() -> None:
    program = (
        "import sys; from gaitforge.pipeline.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print(sorted(m for m in sys.modules if m.startswith('gaitforge.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = done.stdout.splitlines()[-1]
    assert "gaitforge.pipeline.cli.main" in loaded
    assert "gaitforge.pipeline.cli.store" not in loaded
    assert "numpy" not in loaded
