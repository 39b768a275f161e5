"""The command line: what it prints, and the one line that wrong input gets."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from collectors.commands import SKILLS
from collectors.terrains import TERRAINS
from datasets import Selection, open_store
from pipeline.cli import build_parser, main

ROOT = Path(__file__).resolve().parents[2]
SMALL_MODEL = '{"hidden_dim":16,"decoder_dim":8,"n_layers":1,"n_modes":2,"context_len":8}'
TINY_GRID = ["--set", "grid.parts=1", "--set", "grid.episodes_per_part=4", "--level", "2"]
TINY_GRID += ["--terrain", "flat", "--skill", "stand,run", "--threads", "1", "--robots", "4"]


@dataclass(frozen=True)
class Outcome:
    """An exit code and what was printed."""

    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


def call(*arguments: str | Path) -> int:
    """`main` in this process, as a shell would see it end."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """run(*arguments) calls the command line and returns its outcome."""

    def in_this_process(*arguments: str | Path) -> Outcome:
        capfd.readouterr()
        code = call(*arguments)
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return in_this_process


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of four episodes, made by the command line."""
    path = tmp_path_factory.mktemp("cli") / "legged.zarr"
    assert call("collect", path, *TINY_GRID) == 0
    return path


@pytest.fixture(scope="module")
def trained(store: Path) -> Path:
    """A run of two training steps, made by the command line."""
    out = store.parent / "run"
    settings = ["batch_size=2", "window_len=8", "held_out_fraction=0"]
    settings += [f"model_overrides={SMALL_MODEL}"]
    overrides = [word for setting in settings for word in ("--set", f"config.{setting}")]
    assert call("train", store, "--out", out, "--steps", "2", *overrides) == 0
    return out


def assert_refused(outcome: Outcome, *complaints: str) -> None:
    """Exit code 2, nothing on standard output, one line on standard error that holds these."""
    assert outcome.code == 2
    assert outcome.out == ""
    assert "Traceback" not in outcome.err
    assert outcome.err.count("\n") == 1, outcome.err
    assert outcome.err.startswith("gaitforge")
    assert "error: " in outcome.err
    for complaint in complaints:
        assert complaint in outcome.err


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
    asked = "demo collect query train evaluate report info verify gc models bench completion"
    assert {*asked.split(), "expert list", "expert train", "expert evaluate"} <= found


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
        (["--terrain", "moon"], ["unknown terrain 'moon'", *TERRAINS]),
        (["--skill", "fly"], ["unknown skill 'fly'", *SKILLS]),
        (
            ["--terrain", "stairs", "--skill", "run"],
            ["none of the skills run is asked for on stairs"],
        ),
        (["--level", "10"], ["level 10 is outside 0-9"]),
        (["--level", "9-5"], ["at least one level"]),
        (["--preset", "huge"], ["unknown preset 'huge'", "legged-60m"]),
        (["--expert", "nobody"], ["no expert 'nobody'", "aliengo-locomotion"]),
        (["--sim", "ode"], ["unknown simulator 'ode'", "mujoco"]),
        (["--parts", "0,99"], ["part 99 is not in the plan, which has parts 0-7"]),
        (["--set", "grid.speed=1"], ["unknown setting 'grid.speed'", "episodes_per_part"]),
        (["--set", "grid.seed=x"], ["setting 'grid.seed' needs a whole number, not 'x'"]),
        (["--set", "grid"], ["--set needs NAME=VALUE, not 'grid'"]),
        (["--set", "grid.parts=-2"], ["at least 1"]),
    ],
    ids=lambda value: " ".join(value) if value[0].startswith("--") else None,
)
def test_a_collection_that_cannot_be_gets_one_line_and_no_store(
    run: Run, tmp_path: Path, arguments: list[str], complaints: list[str]
) -> None:
    assert_refused(run("collect", tmp_path / "x.zarr", *arguments), *complaints)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["query", "info", "verify", "gc", "train"])
@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        ("missing", "no store at"),
        ("file", "is not a store"),
        ("folder", "is not a store"),
        ("other version", "schema version 99 is not supported; this program reads version"),
    ],
)
def test_a_store_that_cannot_be_opened_gets_one_line(
    run: Run, store: Path, tmp_path: Path, command: str, kind: str, complaint: str
) -> None:
    path = tmp_path / "other.zarr"
    if kind == "file":
        path.write_text("nothing")
    elif kind == "folder":
        path.mkdir()
    elif kind == "other version":
        shutil.copytree(store, path)
        text = (path / "zarr.json").read_text()
        tree = json.loads(text)
        for attributes in tree["attributes"].values():
            attributes["schema_version"] = 99
        (path / "zarr.json").write_text(json.dumps(tree))
    extra = ["--out", str(tmp_path / "run")] if command == "train" else []
    assert_refused(run(command, path, *extra), complaint)
    assert not (tmp_path / "run").exists()


def test_collecting_into_a_store_of_another_version_gets_one_line(
    run: Run, store: Path, tmp_path: Path
) -> None:
    path = tmp_path / "other.zarr"
    shutil.copytree(store, path)
    changed = (
        (path / "zarr.json").read_text().replace('"schema_version": 2', '"schema_version": 99')
    )
    (path / "zarr.json").write_text(changed)
    assert_refused(run("collect", path, *TINY_GRID), "schema version 99 is not supported")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--terrain", "moon"], "moon"),
        (["--skill", "fly"], "fly"),
        (["--level", "7"], "7"),
        (["--where", "return >"], "condition"),
        (["--where", "speed > 3"], "speed"),
        (["--where", "1 = 1; drop table episodes"], "condition"),
        (["--where", "'yes'"], "condition"),
        (["--group-by", "colour"], "colour"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_query_that_cannot_be_gets_one_line(
    run: Run, store: Path, arguments: list[str], complaint: str
) -> None:
    assert_refused(run("query", store, *arguments), complaint)


@pytest.mark.parametrize(
    ("arguments", "complaints"),
    [
        (["--model", "transformer-xl"], ["transformer-xl", "fcnet", "bot"]),
        (["--objective", "guess"], ["guess", "bc", "return"]),
        (["--set", "config.peak_lr=-1"], ["peak_lr must be above 0"]),
        (["--set", "config.peak_lr=nan"], ["peak_lr must be above 0"]),
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
    assert_refused(run("evaluate", tmp_path / "gone"), "no training run at")
    assert_refused(run("evaluate", tmp_path / "empty"), "empty")
    assert_refused(run("report", tmp_path / "gone"), "no run folder at")
    assert_refused(run("report", tmp_path / "empty"), "the report needs summary.json")
    assert_refused(run("expert", "evaluate", "--expert", "nobody"), "no expert 'nobody'")


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


def test_collecting_again_is_no_work_and_shows_the_same_table(run: Run, store: Path) -> None:
    before = open_store(store).info()
    first, second = (run("collect", store, *TINY_GRID, "--json") for _ in range(2))
    assert (first.code, first.out) == (0, second.out)
    assert open_store(store).info() == before
    (row,) = json.loads(first.out)
    assert row["episodes"] == 4
    assert row["steps"] == before["steps"]
    table = run("collect", store, *TINY_GRID)
    assert table.out.splitlines()[0].split() == list(row)
    assert "steps/s" in table.out.splitlines()[-1]


def test_json_and_tables_of_a_store(run: Run, store: Path) -> None:
    info = json.loads(run("info", store, "--json").out)
    assert (info["parts"], info["episodes"]) == (1, 4)
    assert info["hash"] in run("info", store).out
    groups = json.loads(run("query", store, "--json").out)
    assert {(g["terrain"], g["skill"]) for g in groups} == {("flat", "stand"), ("flat", "run")}
    chosen = run("query", store, "--skill", "run", "--where", "friction > 0", "--json")
    assert [g["skill"] for g in json.loads(chosen.out)] == ["run"]
    by_level = json.loads(run("query", store, "--group-by", "level", "--json").out)
    assert [g["level"] for g in by_level] == [2]
    clean = {"faults": [], "parts": 1, "replayed": 0}
    assert json.loads(run("verify", store, "--json").out) == clean
    assert "no fault" in run("verify", store).out
    assert json.loads(run("gc", store, "--json").out) == {"removed": []}


def test_a_selection_is_saved_and_rows_go_to_parquet(run: Run, store: Path, tmp_path: Path) -> None:
    saved, rows = tmp_path / "runs.json", tmp_path / "rows.parquet"
    shown = run("query", store, "--skill", "run", "--save", saved, "--parquet", rows, "--json")
    assert pq.read_table(rows).to_pylist() == json.loads(shown.out)
    opened = open_store(store)
    assert Selection.load(opened, saved).hash == opened.select(skill="run").hash


def test_versions_of_a_store_have_names(run: Run, store: Path, tmp_path: Path) -> None:
    path = tmp_path / "tagged.zarr"
    shutil.copytree(store, path)
    named = json.loads(run("tag", path, "v1", "--json").out)
    assert [tag["tag"] for tag in named] == ["v1"]
    assert json.loads(run("tag", path, "--json").out) == named
    assert json.loads(run("info", path, "--tag", "v1", "--json").out)["hash"] == named[0]["hash"]
    assert run("query", path, "--tag", "v1", "--json").out == run("query", path, "--json").out
    assert run("query", path, "--tag", "v2").code == 2


def test_episodes_of_a_store_are_simulated_again(run: Run, store: Path) -> None:
    shown = run("verify", store, "--replay", "2")
    assert shown.code == 0
    assert "2 episodes repeat bit for bit" in shown.out


def test_a_card_is_written_beside_the_working_folder_or_where_asked(
    run: Run, store: Path, tmp_path: Path
) -> None:
    run("card", store, "--out", tmp_path / "card")
    assert {p.name for p in (tmp_path / "card").iterdir()} == {"card.html", "card.md", "card.json"}
    assert "run" in (tmp_path / "card" / "card.md").read_text()


def test_upkeep_leaves_the_dataset_as_it_is(run: Run, store: Path, tmp_path: Path) -> None:
    path = tmp_path / "kept.zarr"
    shutil.copytree(store, path)
    before = json.loads(run("info", path, "--json").out)["hash"]
    for command in ("compact", "gc", "migrate"):
        assert run(command, path).code == 0
    assert json.loads(run("info", path, "--json").out)["hash"] == before


def test_a_fault_in_a_store_is_shown_with_exit_code_1(
    run: Run, store: Path, tmp_path: Path
) -> None:
    path = tmp_path / "damaged.zarr"
    shutil.copytree(store, path)
    victim = max((p for p in path.rglob("c/*") if p.is_file()), key=lambda p: p.stat().st_size)
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 0xFF
    victim.write_bytes(content)
    shown = run("verify", path)
    assert shown.code == 1
    assert open_store(path).parts()[0] in shown.out
    machine = run("verify", path, "--json")
    assert machine.code == 1
    assert len(json.loads(machine.out)["faults"]) == 1


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


def test_evaluation_of_a_run_and_of_an_expert(run: Run, trained: Path) -> None:
    grid = ["--terrain", "flat", "--skill", "run", "--level", "1", "--episodes", "1"]
    grid += ["--threads", "1", "--json"]
    for arguments in (["evaluate", trained], ["expert", "evaluate"]):
        outcome = run(*arguments, *grid)
        assert outcome.code == 0
        (cell,) = json.loads(outcome.out)
        assert (cell["terrain"], cell["skill"], cell["level"]) == ("flat", "run", 1)
        assert cell["episodes"] == 1
        assert 0.0 <= cell["success"] <= cell["survival"] <= 1.0


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion_prints_a_script_that_knows_the_commands(run: Run, shell: str) -> None:
    outcome = run("completion", shell)
    assert outcome.code == 0
    assert "gaitforge" in outcome.out
    assert "collect" in outcome.out


def process(*arguments: str | Path) -> subprocess.Popen[str]:
    """The command line in a process of its own, which takes interrupts whoever started it."""
    program = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    program += "from pipeline.cli import main; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_module_runs_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", "query", "/nowhere/x.zarr"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert_refused(Outcome(done.returncode, done.stdout, done.stderr), "no store at")


def test_an_interrupted_collection_exits_130_and_leaves_no_torn_part(tmp_path: Path) -> None:
    path = tmp_path / "legged.zarr"
    grid = ["--preset", "legged-1m9", "--robots", "16", "--set", "grid.episodes_per_part=16"]
    running = process("collect", path, *grid)
    # Some parts are in, others in work.
    deadline = time.monotonic() + 60
    while not list(path.glob("catalog/*.parquet")) and time.monotonic() < deadline:
        assert running.poll() is None
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    said = [line for line in err.splitlines() if line.startswith("gaitforge:")]
    assert said == ["gaitforge: interrupted; the same command goes on from here"]
    store = open_store(path)
    assert 1 <= len(store.parts()) < 8
    assert store.verify() == []
    assert store.gc() == []
