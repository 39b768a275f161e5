"""Typical mistakes of a first day: one line that names what was wrong and what was meant."""

import shlex
from pathlib import Path

import pytest

from tests.pipeline.command_line import Run, assert_refused, tried

MISTAKES = """
colect x | did you mean 'collect'?
expert lst | did you mean 'list'? allowed: list, train
train {store} --out {new} --stepps 5 | did you mean --steps? | gaitforge train --help
collect {new} --presett demo | did you mean --preset? | gaitforge collect --help
collect {new} --pre demo | did you mean --preset? | gaitforge collect --help
train {store} --out {new} --model fcent | no model 'fcent'; did you mean 'fcnet'? allowed: fcnet
run d4lr {store} --out {new} | unknown preset 'd4lr'; did you mean 'd4rl'? allowed:
collect {new} --preset legged-60M | did you mean 'legged-60m'?
collect {new} --terrain roug | unknown terrain 'roug'; did you mean 'rough'? allowed: flat, rough
collect {new} --skill runn | unknown skill 'runn'; did you mean 'run'?
collect {new} --expert aliengo-locomoton | did you mean 'aliengo-locomotion'?
collect {new} --robot aliengoo | no robot 'aliengoo'; did you mean 'aliengo'?
collect {new} --sim mujocoo | unknown simulator 'mujocoo' | allowed: mujoco
collect {new} --task legged_policy | unknown task 'legged_policy'; did you mean 'legged-policy'?
collect {new} --runner slrum | unknown runner 'slrum'; did you mean 'slurm'?
collect {new} --set grid.prats=3 | did you mean 'grid.parts'?
collect {new} --set prats=3 | unknown setting 'prats'; did you mean 'grid.parts'?
query {store} --where "terain = 'flat'" | unknown column 'terain'; nearest: terrain
query {store} --where 'terrain = flat' | unknown column 'flat' | single quotes
query {store} --where '1; drop table x' | not allowed
train {store} --out {new} --set peak_lr=0.001 | did you mean 'config.peak_lr'?
train {store} --out {new} --set config.peek_lr=0.1 | did you mean 'config.peak_lr'?
train {store} --out {new} --set settings.peek_lr=0.1 | did you mean 'config.peak_lr'?
compare {store} --out {new} --set peak_lr=0.1 | did you mean 'config.peak_lr'?
train {store} --out {new} --set config.peak_lr=fast | needs a number, not 'fast'
train {store} --out {new} --objective retrun | no objective 'retrun' | return
train {store} --out {new} --log tensorbord | unknown logger 'tensorbord' | tensorboard
train {store} --out {new} --device gpu | no device 'gpu'; allowed: cpu, cuda
train {store} --out {new} --model bot-mocapact | actions have size 56, got 12 | gaitforge models
train {trained} --out {new} | is not a store
evaluate {store} | is a store, not a policy | gaitforge train
evaluate {new} | no training run at
export {new} {trained} | no training run at | `gaitforge train` makes a run
query {store} --selection nope.json | no file nope.json
train {store} --out {trained} --model mlp | holds a run with another | model
compare {store} --out {trained} | choose another folder
report {trained} | needs summary.json | it is of experiments
demo --out {file} | {file}
"""
"""A command line, and what its line of error holds."""


@pytest.mark.parametrize("case", tried(MISTAKES, "MISTAKES"))
def test_a_mistake_is_answered_by_what_was_meant(
    case: str, run: Run, store: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "file"
    file.touch()
    places = {"store": store, "trained": trained, "new": tmp_path / "new", "file": file}
    line, *complaints = (part.strip().format(**places) for part in case.split(" | "))
    outcome = run(*shlex.split(line))
    *notes, error = outcome.err.splitlines(keepends=True)
    assert all(note.startswith("held_out_fraction") for note in notes)
    assert_refused(outcome._replace(err=error), *complaints)
