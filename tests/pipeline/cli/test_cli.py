"""The command line: what it prints, and the one line that wrong input gets."""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from gaitforge.common.locks import exclusive_lock
from gaitforge.datasets import open_store
from gaitforge.flows.records.records import TRAINING_LOCK
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.pipeline.cli.main import SHORT_NAMES, build_parser, parsed
from gaitforge.pipeline.cli.parsing.parser import RUNNERS_TITLE
from tests.pipeline.command_line import SMALL_MODEL, TINY_GRID, Outcome, Run, assert_refused, call

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


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(run: Run, words: list[str]) -> None:
    outcome = run(*words, "--help")
    assert outcome.code == 0
    assert outcome.err == ""
    assert f"usage: gaitforge {' '.join(words)}" in outcome.out
    assert "example:  " in outcome.out
    assert f"gaitforge {words[0]}" in outcome.out.split("example:")[1]
    if "--runner" in outcome.out:
        assert "--json" in outcome.out, "submitted jobs are a table"


def test_commands_stand_under_headings(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    helped = run("--help").out
    assert max(map(len, helped.splitlines())) <= 80
    headings = re.findall(r"^  ([a-z][\w ,]+):$", helped, re.M)
    assert headings[0] == "whole experiments"
    assert headings[-1] == "others"
    assert len(set(headings)) == len(headings)
    listed = set(re.findall(r"^    ([\w-]+)(?=  |$)", helped, re.M))
    assert listed == {words[0] for words in COMMANDS} - set(SHORT_NAMES)
    assert "\n    demo, pipeline, compare, dagger: short names of run PRESET\n" in helped


@pytest.mark.parametrize("command", ["train", "collect", "run", "evaluate"])
def test_a_commands_own_options_come_first(run: Run, command: str) -> None:
    helped = run(command, "--help").out
    places = [
        helped.index(f"\n{title}:") for title in ("options", "general options", RUNNERS_TITLE)
    ]
    assert places == sorted(places)
    assert places[0] < helped.index("\n  --set ") < places[1]
    assert places[1] < helped.index("\n  --json ") < places[2] < helped.index("\n  --runner ")
    assert "--partition" not in helped
    shown = run(command, "--runner", "slurm", "--help").out
    assert places[2] < shown.index("\n  --partition ")
    assert "--scheduler" not in shown


def test_the_help_of_all_and_the_version(run: Run) -> None:
    assert "gaitforge demo --out runs/demo" in run("--help").out
    outcome = run("--version")
    assert (outcome.code, outcome.out) == (0, f"gaitforge {version('gaitforge')}\n")


def test_json_of_models_and_experts(run: Run) -> None:
    models = json.loads(run("models", "--json").out)
    assert {"fcnet", "bot"} <= {model["model"] for model in models}
    assert all(model["parameters"] > 0 for model in models)
    experts = json.loads(run("expert", "list", "--json").out)
    assert "aliengo-locomotion" in {expert["name"] for expert in experts}
    assert all(Path(expert["file"]).is_file() for expert in experts)


def test_a_training_keeps_its_settings_and_its_folder(run: Run, store: Path, trained: Path) -> None:
    record = json.loads((trained / "plan.json").read_text())
    settings = record["plan"]["config"]
    assert settings["steps"] == 2
    assert settings["model_overrides"] == json.loads(SMALL_MODEL)
    grid = {"terrains": ["flat"], "skills": ["stand", "run"], "levels": [2]}
    assert record["evaluation"]["grid"].items() >= grid.items(), "the cells of its episodes"
    assert record["expert"] == "aliengo-locomotion"
    with exclusive_lock(trained / TRAINING_LOCK):
        second = run("train", store, "--out", trained, "--steps", "2")
    assert_refused(second, "another process trains in")


def test_the_expert_of_episodes_is_who_collected_them(tmp_path: Path) -> None:
    path = tmp_path / "weak.zarr"
    assert call("collect", path, *TINY_GRID, "--expert", "aliengo-weak") == 0
    assert LeggedEvaluation().collecting_expert(open_store(path).select()) == "aliengo-weak"


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
    *_, means, where = run("evaluate", trained, "--episodes", "1").out.splitlines()
    assert means.endswith("that of a return needs two episodes per cell")
    assert "()" not in means
    assert where.startswith("evaluated on 2 cells: flat x stand, run, terrain level 2 of 0 to 9, 1")
    several = run("evaluate", trained, "--robot", "go1,aliengo", "--against", "expert")
    assert_refused(several, "--beside names the experts")
    assert_refused(run("evaluate", trained, "--against", "go1-locomotion"), "drives", "--against")


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


def test_help_loads_no_command_and_no_large_package() -> None:
    program = (
        "import sys; from gaitforge.pipeline.cli.main import build_parser, main\n"
        "try: main(['--help'])\n"
        "except SystemExit: early = set(sys.modules)\n"
        "build_parser(); large = {'torch', 'prefect', 'matplotlib', 'distributed'}\n"
        "print(early & {'gaitforge.pipeline.cli.store', 'numpy'} | large & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize("words", [(), ("expert",)])
def test_a_command_of_commands_alone_shows_them(run: Run, words: tuple[str, ...]) -> None:
    outcome = run(*words)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == run(*words, "--help").out


def test_help_of_a_collection_fits_a_page(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert len(run("collect", "--help").out.splitlines()) <= 60


def test_no_help_says_a_default_twice_or_none() -> None:
    for words in COMMANDS:
        parser: argparse.ArgumentParser = build_parser(words)
        for word in words:
            [group] = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
            parser = group.choices[word]
        for action in parser._actions:
            shown = (action.help or "").replace("%(default)s", str(action.default))
            assert shown.count("(default") <= 1, (words, action.dest)
            assert not re.search(r"\(default: (None|False|\[\]|\(\))\)", shown), (
                words,
                action.dest,
            )


EARLIER = {
    "dataset merge a b --json c": "dataset merge a b --json --out c",
    "dataset apply --json a c": "dataset apply a --json --out c",
    "pipeline --seeds 1 c": "pipeline --seeds 1 --out c",
    "pipeline c --seeds 1": "pipeline --out c --seeds 1",
    "expert import a.onnx --name c": "expert import a.onnx --out c",
    "compare a --out b --models mlp": "compare a --out b --learners mlp",
    "export a b --batch 2": "export a b --batch-size 2",
}


@pytest.mark.parametrize("earlier", EARLIER)
def test_earlier_names_of_options_are_kept(earlier: str) -> None:
    left_out = {"words": None, "given": None}
    assert {**vars(parsed(earlier.split())), **left_out} == {
        **vars(parsed(EARLIER[earlier].split())),
        **left_out,
    }
