"""`--stage` beside the options of runners: that stage alone, by that runner, or nothing."""

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.command_line import Run, assert_refused, tried

Contents = Callable[[], dict[Path, int]]
_TRAIN = "train mlp-seed-0"
_LITTLE = f"--learners mlp --seeds 0 --steps 1 --threads 1 --stage '{_TRAIN}'"
STAGES = f"""
run compare {{store}} --out {{out}} {_LITTLE}
compare {{store}} --out {{out}} {_LITTLE}
dagger {{store}} --out {{out}} --model mlp --steps 1 --stage 'train round-0-mlp'
run demo --out {{out}} --stage collect
"""
"""Commands with stages."""
WHOLE = """
train {store} --model mlp --steps 1 --out {out}
evaluate aliengo-locomotion --episodes 1 --out {out}.json
collect {out} --set grid.parts=1
collect {out} --set grid.parts=1 --new-every-day
expert train --out {out} --steps 1
"""
"""Commands of one stage."""
_STAGES = tried(STAGES, "STAGES")
_WHOLE = tried(WHOLE, "WHOLE")


@pytest.fixture
def contents(tmp_path: Path, store: Path) -> Contents:
    """contents() is every file there is, and beside the shared store, with its time."""
    return lambda: {
        path: path.stat().st_mtime_ns
        for folder in (tmp_path, store.parent)
        for path in folder.rglob("*")
    }


def _words(line: str, store: Path, tmp_path: Path, request: pytest.FixtureRequest) -> list[str]:
    places = {"store": str(store), "out": str(tmp_path / "out")}
    if "{clips}" in line:
        places["clips"] = str(request.getfixturevalue("humanoid_reference"))
    return shlex.split(line.format(**places))


@pytest.mark.parametrize("line", _STAGES + _WHOLE)
@pytest.mark.parametrize("as_json", [False, True])
def test_a_dry_run_shows_the_script_of_what_was_asked_for_and_does_nothing(
    line: str,
    as_json: bool,
    run: Run,
    store: Path,
    tmp_path: Path,
    contents: Contents,
    request: pytest.FixtureRequest,
) -> None:
    words, before = _words(line, store, tmp_path, request), contents()
    more = ["--json"] if as_json else []
    outcome = run(*words, "--runner", "slurm", "--dry-run", "--time", "1:00:00", *more)
    assert outcome.code == 0, outcome.err
    [script] = [job["script"] for job in json.loads(outcome.out)] if as_json else [outcome.out]
    assert script.count("#!/bin/bash") == 1
    assert "--time=1:00:00\n" in script
    assert as_json or outcome.out.startswith("stage "), "a table first"
    assert contents() == before


@pytest.mark.parametrize("line", _STAGES[:2] + _STAGES[4:] + _WHOLE)
def test_cancelling_does_nothing_else(
    line: str,
    run: Run,
    store: Path,
    tmp_path: Path,
    contents: Contents,
    request: pytest.FixtureRequest,
) -> None:
    words, before = _words(line, store, tmp_path, request), contents()
    outcome = run(*words, "--runner", "slurm", "--cancel")
    assert outcome.code == 0, outcome.err
    assert "no job to cancel" in outcome.err
    for more, why in (
        (["--dry-run"], "--dry-run is for submitting jobs, and --cancel submits none"),
        (["--partition", "gpu"], "--partition is for submitting jobs"),
        (["--gpus", "0"], "--gpus is for submitting jobs"),
    ):
        assert_refused(run(*words, "--runner", "slurm", "--cancel", *more), why)
    assert_refused(run(*words, "--cancel"), "--cancel is for --runner slurm")
    assert_refused(run(*words, "--dry-run"), "--dry-run is for --runner slurm")
    follow = run(*words, "--runner", "slurm", "--dry-run", "--follow")
    assert_refused(follow, "--follow follows jobs, and --dry-run submits none")
    assert contents() == before


def test_slurm_gets_the_one_stage_and_refuses_one_that_is_too_early(
    run: Run, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs, asked = tmp_path / "bin", tmp_path / "asked"
    programs.mkdir()
    answers = {"sbatch": f'echo "$@" >> {asked}; echo 77', "squeue": "true", "sacct": "true"}
    for name, answer in answers.items():
        (programs / name).write_text(f"#!/bin/sh\n{answer}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    out = tmp_path / "out"
    words = shlex.split(STAGES.splitlines()[1].format(store=store, out=out))
    early = ["evaluate mlp-seed-0" if word == _TRAIN else word for word in words]
    refused = run(*early, "--runner", "slurm")
    assert_refused(refused, "which is neither done nor in a live job")
    assert not asked.exists()
    outcome = run(*words, "--runner", "slurm", "--partition", "gpu", "--json")
    assert outcome.code == 0, outcome.err
    [job] = json.loads(outcome.out)
    assert job["kind"] == _TRAIN
    assert len(asked.read_text().splitlines()) == 1
    [folder] = (out / "jobs").iterdir()
    assert json.loads((folder / "plan.json").read_text())["words"][-2:] == ["--stage", _TRAIN]
    assert not (out / "train").exists(), "nothing runs here"


@pytest.mark.slow
def test_dask_does_the_one_stage(run: Run, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    line = f"{STAGES.splitlines()[1]} --runner dask --workers 1"
    outcome = run(*shlex.split(line.format(store=store, out=out)))
    assert outcome.code == 0, outcome.err
    stages = [path.stem for path in (out / "stages").glob("*.json")]
    assert stages == [_TRAIN.replace(" ", "-")]


@pytest.mark.parametrize("seed", [["--seed", "3"], ["--set", "grid.seed=3"]])
def test_the_day_is_the_only_seed(run: Run, tmp_path: Path, seed: list[str]) -> None:
    refused = run("collect", tmp_path / "x.zarr", "--new-every-day", *seed)
    assert_refused(refused, "the day is the seed")
