"""Names in plans: they stay inside the folder, are told apart, and add nothing to a script."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.datasets import Schema
from gaitforge.flows.experiments.claim import Claim
from gaitforge.flows.experiments.plan import Experiment, check_stages, number_text
from gaitforge.flows.runners.slurm.script import JobWork, SlurmSettings, batch_script
from gaitforge.flows.stages.stage import RecordedStage, Stage
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.pipeline.report.experiment import stages_of
from tests.flows import gym_stores
from tests.flows.gym_stores import make_gym_store

MLP: dict[str, Any] = {"model": "mlp", "steps": 2}
# Text of any kind, and such as leaves a folder, ends a line, or is almost a name.
NAMES = st.one_of(
    st.text(max_size=12),
    st.text("ab-._/ \n\t'\"#$;\\", max_size=8),
    st.from_regex(r"\A\w[\w.-]{0,6}\Z"),
    st.sampled_from(["..", "../a", "/a", "a/../../b", "a\nb", "~", "", "a" * 300, "a\0b"]),
)


def check(stages: list[Stage], out: Path) -> None:
    """Every file of the stages is inside `out`, and of no other stage."""
    files = [path for stage in stages for path in stage.outputs]
    files += [out / "stages" / stage.file_name for stage in stages]
    assert len({str(path) for path in files}) == len(files)
    for path in files:
        assert path.resolve().is_relative_to(out.resolve())
        assert len(path.name.encode()) < 220
    assert len({stage.file_name for stage in stages}) == len(stages)


def listed(make: Callable[[], list[Stage]]) -> list[Stage]:
    """The stages; none where their plan is refused, in one line."""
    try:
        return make()
    except ValueError as error:
        refusal = str(error)
    assert "\n" not in refusal
    return []


def script_of(stage: Stage) -> str:
    work = JobWork(f"gaitforge-{stage.name.replace(' ', '-')}", 1, False, False, 1)
    return batch_script(Path("/a/jobs/b"), work, SlurmSettings(), "9f86d0")


@settings(deadline=None)
@given(NAMES, NAMES)
def test_any_names_of_an_experiment_are_refused_or_stay_in_the_folder(
    data: str, learner: str
) -> None:
    def make() -> list[Stage]:
        plan = Experiment({learner: MLP}, sets={data: ""}, collect=LeggedPlan(), seeds=(0, 1))
        return stages_of(Claim("x", plan), Path("out"))

    check(listed(make), Path("out"))


@settings(deadline=None)
@given(st.text(max_size=40))
def test_a_jobs_name_is_one_word_of_its_own_line(name: str) -> None:
    folder, plain = Path("/a/jobs/b"), JobWork("x", 1, False, False, 1)
    script = batch_script(folder, replace(plain, name=name), SlurmSettings(), "9f86d0").splitlines()
    alike = batch_script(folder, plain, SlurmSettings(), "9f86d0").splitlines()
    changed = [k for k, pair in enumerate(zip(script, alike, strict=True)) if pair[0] != pair[1]]
    assert changed in ([], [2])
    assert len(script[2].split()) == 2


@pytest.mark.parametrize(
    "option", ["wrap=id", "wra=id", "outpu=/x", "a=0-3", "comment=a b", "x=\n"]
)
def test_an_option_of_sbatch_is_no_other_of_ours_by_its_beginning(option: str) -> None:
    with pytest.raises(ValueError, match="is not allowed"):
        SlurmSettings(options=(option,))
    assert SlurmSettings(options=("exclusive", "mem-per-cpu=2G")).options


@given(st.lists(st.one_of(st.floats(allow_nan=False), st.integers()), min_size=2, max_size=2))
def test_numbers_that_differ_have_other_texts_in_names(pair: list[float]) -> None:
    one, other = map(number_text, pair)
    assert (one == other) == (pair[0] == pair[1])
    assert number_text(0.5) == "0.5"
    assert number_text(1_000_001) == "1000001"


def test_values_that_agree_in_six_digits_are_runs_of_their_own(tmp_path: Path) -> None:
    store = make_gym_store(tmp_path / "hopper.zarr")
    plan = Experiment({"mlp": MLP}, vary={"steps": (1_000_001, 1_000_002)})
    names = [stage.name for stage in stages_of(Claim("x", plan, (str(store),)), tmp_path / "out")]
    assert {"train mlp-1000001-seed-0", "train mlp-1000002-seed-0"} < set(names)


def test_two_runs_of_one_name_are_refused_before_the_first_training(tmp_path: Path) -> None:
    store = make_gym_store(tmp_path / "hopper.zarr")
    sets = {"a": "quality = 'expert'", "a-b": "quality = 'medium'"}
    plan = Experiment({"b-c": MLP, "c": MLP}, sets=sets)
    both = "learner 'b-c' on set 'a' .* and learner 'c' on set 'a-b' .* 'hopper-a-b-c-seed-0'"
    with pytest.raises(ValueError, match=both):
        stages_of(Claim("x", plan, (str(store),)), tmp_path / "out")
    collecting = Experiment({"mlp": MLP, "mlp-step-3": MLP}, collect=LeggedPlan(), curve=2)
    with pytest.raises(ValueError, match=r"'mlp-step-3' .* as a file of learner 'mlp'"):
        stages_of(Claim("x", collecting), tmp_path / "out")
    collecting = replace(collecting, learners={"collected": MLP})
    with pytest.raises(ValueError, match=r"'show collected' and .*'show collected'"):
        stages_of(Claim("x", collecting), tmp_path / "out")


def test_stores_of_two_tasks_without_named_sets_have_runs_of_their_own(tmp_path: Path) -> None:
    stores = [make_gym_store(tmp_path / f"{n}.zarr", n) for n in ("Hopper-v5", "Walker2d-v5")]
    claim = Claim("x", Experiment({"mlp": MLP}), tuple(map(str, stores)))
    names = {stage.name for stage in stages_of(claim, tmp_path / "out")}
    assert {"train hopper-mlp-seed-0", "train walker2d-mlp-seed-0"} < names
    alone = {stage.name for stage in stages_of(replace(claim, stores=claim.stores[:1]), tmp_path)}
    assert "train mlp-seed-0" in alone


@pytest.mark.parametrize("task", ["../../../outside", "a\nb", "legged", "x" * 200])
def test_a_task_that_a_store_names_is_a_folder_inside(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def schema(**fields: Any) -> Schema:
        own = {**fields["attributes"], "env": "Hopper-v5"}
        return Schema(**{**fields, "robot": task, "attributes": own})

    monkeypatch.setattr(gym_stores, "Schema", schema)
    store = make_gym_store(tmp_path / "hopper.zarr", references=False)
    plan = Experiment({"mlp": MLP}, sets={"all": ""})
    check(stages_of(Claim("x", plan, (str(store),)), tmp_path / "out"), tmp_path / "out")


def test_stages_that_share_a_file_are_refused() -> None:
    one = RecordedStage("a b", "1", run=print, outputs=(Path("x"),))
    other = RecordedStage("c", "2", run=print, outputs=(Path("x"),))
    with pytest.raises(ValueError, match=r"file of stage 'a b' and a file of stage 'c' .* 'x'"):
        check_stages([one, other])
    with pytest.raises(ValueError, match=r"stage 'a b' and stage 'a-b' .* 'a-b'"):
        check_stages([one, RecordedStage("a-b", "2", run=print)])
