"""Collecting the sets of D4RL with trained policies and a replay buffer."""

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaitforge.datasets import Store, open_store
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.flows.progress import Advance, Silent
from gaitforge.flows.records.part_records import read_active, records_folder, records_of_commits
from gaitforge.flows.records.records import write_record
from gaitforge.flows.stages.collect import collect, collect_part, run_in_processes
from gaitforge.flows.stages.transfer import ImportPlan, run_import
from gaitforge.pipeline.cli.main import main
from gaitforge.plugins.gym.evaluation import GymEvaluation
from gaitforge.plugins.gym.task import GymPlan, quality_summary
from gaitforge.plugins.gym.tests.making import RETURNS, actor_weights, make_training
from tests.flows.processes import gaitforge, is_running, part_in_work, soon

pytest.importorskip("gymnasium_robotics")

ALL = ("random", "medium", "medium-replay", "expert")


@pytest.fixture(scope="module")
def hopper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that saw 70 rows until its medium policy."""
    return make_training(tmp_path_factory.mktemp("gym") / "hopper")


@pytest.fixture(scope="module")
def plan(hopper: Path) -> GymPlan:
    return GymPlan("Hopper-v5", str(hopper), ALL, steps=60, part_steps=40)


@pytest.fixture(scope="module")
def store(plan: GymPlan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("collected") / "hopper.zarr"
    records = collect(plan, path, Silent())
    assert [record.part for record in records] == list(plan.parts())
    return path


def rows_of(store: Store, quality: str) -> list[dict[str, Any]]:
    return store.select(quality=quality).episodes().to_pylist()


def test_what_is_stored_of_an_episode(store: Path, hopper: Path) -> None:
    opened = open_store(store)
    schema = opened.schema
    assert schema.names("step") == ["obs", "action", "reward", "info_action_log_probs"]
    assert (schema.robot, schema.control_dt_s) == ("hopper", 0.008)
    assert schema.attributes == {
        "task": "hopper",
        "env": "Hopper-v5",
        "format": "gymnasium",
        "reference_returns": {"random": RETURNS["random"], "expert": RETURNS["expert"]},
    }
    for quality in ALL:
        rows = rows_of(opened, quality)
        reward = opened.select(quality=quality).read("reward").astype(np.float64)
        ends = np.cumsum([row["length"] for row in rows])
        sums = np.add.reduceat(reward, ends - [row["length"] for row in rows])
        for row, total in zip(rows, sums, strict=True):
            assert row["return"] == pytest.approx(total)
            share = (row["return"] + 5.0) / 305.0
            assert row["normalised_return"] == pytest.approx(100 * share)
            assert (row["task"], row["robot"], row["expert"]) == ("hopper", "hopper", quality)
            assert row["success"] != row["terminated"]
            assert (row["seed"] < 0) == (quality == "medium-replay")
            assert row["simulator"] == "mujoco"
            assert row["simulator_version"].startswith("gymnasium 1.")
    episodes = opened.select().episodes()
    assert len(set(episodes.column("episode").to_pylist())) == episodes.num_rows
    assert opened.verify() == []


def test_sets_are_as_long_as_asked_in_whole_episodes(store: Path, plan: GymPlan) -> None:
    opened = open_store(store)
    for quality in ("random", "medium", "expert"):
        rows = rows_of(opened, quality)
        assert all(row["terminated"] for row in rows)
        by_part: dict[str, list[int]] = {}
        for row in rows:
            by_part.setdefault(row["part"], []).append(row["length"])
        wanted = [part.steps for part in plan.parts().values() if part.quality == quality]
        assert sorted(wanted) == [20, 40]
        for lengths, steps in zip(by_part.values(), _targets(plan, by_part), strict=True):
            assert sum(lengths[:-1]) < steps <= sum(lengths)


def test_an_own_environment_with_the_name_of_a_shipped_task_is_evaluated_on_itself() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    pendulum = "gymnasium.envs.classic_control:PendulumEnv"
    gymnasium.register("hopper", pendulum, max_episode_steps=5)
    try:
        schema = GymPlan("hopper", qualities=("random",), steps=5).schema()
        plan = GymEvaluation.of_store(schema)
        assert plan is not None
        assert plan.env == "hopper"
    finally:
        del gymnasium.registry["hopper"]


def _targets(plan: GymPlan, names: dict[str, Any]) -> list[int]:
    return [plan.parts()[name].steps for name in names]


def test_medium_replay_is_the_buffer_with_its_tail_cut_off(store: Path, hopper: Path) -> None:
    selection = open_store(store).select(quality="medium-replay")
    rows = selection.episodes().to_pylist()
    assert sum(row["length"] for row in rows) == 70
    last = max(rows, key=lambda row: row["episode"])
    assert (last["terminated"], last["truncated"]) == (False, False)
    assert sum(not (row["terminated"] or row["truncated"]) for row in rows) == 1
    stored = np.fromfile(hopper / "replay.f32", np.float32).reshape(100, -1)[:70, :11]
    found = selection.read("obs")
    assert {row.tobytes() for row in found} == {row.tobytes() for row in stored}


def test_a_replay_buffer_of_another_training_up_to_any_step(
    plan: GymPlan, hopper: Path, tmp_path: Path
) -> None:
    other = make_training(tmp_path / "other", seed=5)
    stored = np.fromfile(other / "replay.f32", np.float32).reshape(100, -1)
    plan = replace(plan, replay=str(other), replay_steps=33)
    collect(plan, tmp_path / "hopper.zarr", Silent())
    selection = open_store(tmp_path / "hopper.zarr").select(quality="medium-replay")
    found = {row.tobytes() for row in selection.read("obs")}
    assert found == {row.tobytes() for row in stored[:33, :11]}
    with pytest.raises(ValueError, match="has 70 rows, not 71; train for more steps"):
        replace(plan, replay_steps=71).parts()
    with pytest.raises(ValueError, match="no training in"):
        replace(plan, replay=str(tmp_path)).parts()
    with pytest.raises(ValueError, match=r"is of Hopper-v5, not of Walker2d-v5"):
        replace(plan, env="Walker2d-v5", policies="").parts()


def test_more_steps_and_qualities_add_parts(plan: GymPlan, hopper: Path, tmp_path: Path) -> None:
    names = list(plan.parts())
    longer = list(replace(plan, steps=120).parts())
    assert len(set(longer) - set(names)) == 6  # two more of three sets, one of them in place of a
    assert len(set(names) - set(longer)) == 3  # shorter last one
    only = list(replace(plan, qualities=("expert",)).parts())
    assert only == [name for name in names if "-expert-" in name]
    reseeded = set(replace(plan, seed=1).parts()) & set(names)
    assert reseeded == {name for name in names if "-medium-replay-" in name}
    other = make_training(tmp_path / "other", seed=5)
    drawn_by_none = {name for name in names if "-random-" in name}
    assert set(replace(plan, policies=str(other)).parts()) & set(names) == drawn_by_none


def test_a_buffer_is_cut_into_parts_at_ends_of_episodes(
    plan: GymPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gaitforge.plugins.gym.task.REPLAY_PART_STEPS", 40)
    first, second = replace(plan, qualities=("medium-replay",)).parts().values()
    assert 40 <= first.steps < 70
    assert first.steps + second.steps == 70
    assert (first.first, first.stop) == (0, second.first)


def test_a_grown_store_has_no_episode_twice(plan: GymPlan, tmp_path: Path) -> None:
    path = tmp_path / "hopper.zarr"
    plan = replace(plan, qualities=("medium", "medium-replay"))
    for grown in (plan, replace(plan, steps=100), replace(plan, part_steps=30)):
        collect(grown, path, Silent())
    opened = open_store(path)
    drawn = rows_of(opened, "medium")
    assert len({row["part"] for row in drawn}) == 2 + 2 + 2
    assert len({row["seed"] for row in drawn}) == len(drawn)
    replayed = opened.select(quality="medium-replay").read("obs")
    assert len({row.tobytes() for row in replayed}) == len(replayed) == 70


@pytest.mark.slow
def test_a_plan_gives_the_same_bytes_and_is_made_once(
    store: Path, plan: GymPlan, tmp_path: Path
) -> None:
    again = tmp_path / "again.zarr"
    parts = list(plan.parts())
    assert len(collect(plan, again, Silent(), parts[::-1][:3])) == 3
    collect(replace(plan, processes=2), again, Silent())
    assert open_store(again).info().hash == open_store(store).info().hash
    files = {path: path.stat().st_mtime_ns for path in again.rglob("*.parquet")}
    assert collect(plan, again, Silent()) == []
    assert {path: path.stat().st_mtime_ns for path in again.rglob("*.parquet")} == files


def test_an_interrupted_collection_goes_on(store: Path, plan: GymPlan, tmp_path: Path) -> None:
    path = tmp_path / "hopper.zarr"

    def advance(steps: int, note: str) -> None:
        if note == "medium":
            raise KeyboardInterrupt

    class Interrupting(Silent):
        """A reporter whose user gives up in the second quality."""

        @contextmanager
        def step(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
            yield advance

    with pytest.raises(KeyboardInterrupt):
        collect(plan, path, Interrupting())
    assert sorted(open_store(path).parts()) == sorted(list(plan.parts())[:2])
    collect(plan, path, Silent())
    assert open_store(path).info().hash == open_store(store).info().hash


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_the_one_that_started_them(
    number: signal.Signals, plan: GymPlan, tmp_path: Path
) -> None:
    path = tmp_path / "hopper.zarr"
    words = ["--env", "Hopper-v5", "--policies", plan.policies, "--steps", "400000"]
    words += ["--quality", "expert", "--part-steps", "200000", "--processes", "2"]
    program = gaitforge("gym", "collect", path, *words)
    try:
        soon(part_in_work(path))
        soon(lambda: len(read_active(records_folder(path))) == 2)
        workers = [beat.pid for beat in read_active(records_folder(path))]
        assert program.pid not in workers
        os.kill(program.pid, number)
        error = program.communicate(timeout=30)[1]
    finally:
        program.kill()
    assert program.returncode == (130 if number == signal.SIGINT else -number)
    assert "Traceback" not in error
    soon(lambda: not any(is_running(pid) for pid in workers), 60.0)
    assert open_store(path).parts() == []
    collect(replace(plan, qualities=("expert",)), path, Silent())
    assert len(open_store(path).parts()) == 2


@pytest.mark.slow
def test_a_worker_that_fails_is_told_in_a_line(plan: GymPlan, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    broken = make_training(tmp_path / "broken")
    save_file(actor_weights(45, 3, 0), broken / "expert.safetensors")
    wrong = replace(plan, policies=str(broken), qualities=("expert",))
    path = tmp_path / "hopper.zarr"
    with pytest.raises(ValueError, match=r"-expert-000\d failed: \w+"):
        collect(replace(wrong, processes=2), path, Silent())
    lost = partial(_share, partial(collect_part, wrong, tmp_path / "none"))
    assert not run_in_processes(lost, [list(wrong.parts())], lambda: None)


def _share(work: Callable[[str, Advance], Any], parts: Sequence[str], advance: Advance) -> None:
    for part in parts:
        work(part, advance)


def test_a_d4rl_file_of_it_comes_back(store: Path, tmp_path: Path) -> None:
    selection = open_store(store).select(quality=["medium-replay", "expert"])
    for notes in (True, False):
        path = tmp_path / f"hopper-medium-expert-{notes}.hdf5"
        export_selection("d4rl", selection, path, {"notes": notes})
        back = tmp_path / f"back-{notes}.zarr"
        run_import(ImportPlan("d4rl"), str(path), back, Silent())
        found = open_store(back).select()
        for name in ("obs", "action", "reward", "info_action_log_probs", "final_obs"):
            np.testing.assert_array_equal(found.read(name), selection.read(name), strict=True)
        for name in ("length", "terminated", "truncated", "return"):
            ours, theirs = (each.episodes().column(name).to_pylist() for each in (selection, found))
            assert ours == theirs


def test_an_adroit_hand_with_its_physics(tmp_path: Path) -> None:
    folder = make_training(tmp_path / "pen", "AdroitHandPen-v1")
    plan = GymPlan(
        "AdroitHandPen-v1", str(folder), ("random", "expert"), 150, 100, physics=True
    )  # fmt: skip
    path = tmp_path / "pen.zarr"
    collect(plan, path, Silent())
    opened = open_store(path)
    assert opened.schema.field("info_qpos").dtype == "float64"
    assert opened.schema.field("info_qpos").shape == (30,)
    rows = opened.select().episodes().to_pylist()
    assert {row["length"] for row in rows} == {100}
    assert all(row["truncated"] and not row["terminated"] for row in rows)
    assert rows[0]["simulator_version"].startswith("gymnasium_robotics 1.")
    summary = quality_summary(path, list(plan.parts()))
    assert [(row["quality"], row["steps"]) for row in summary] == [("random", 200), ("expert", 200)]
    assert rows[0]["success_known"]
    with pytest.raises(ValueError, match="another schema"):
        collect(replace(plan, physics=False), path, Silent())


def test_a_buffer_does_not_know_whether_a_hand_succeeded(tmp_path: Path) -> None:
    folder = make_training(tmp_path / "pen", "AdroitHandPen-v1")
    plan = GymPlan("AdroitHandPen-v1", str(folder), ("random", "medium-replay"), 1, 1)
    path = tmp_path / "pen.zarr"
    collect(plan, path, Silent())
    rows = open_store(path).select().episodes().to_pylist()
    known = {row["quality"]: row["success_known"] for row in rows}
    assert known == {"random": True, "medium-replay": False}
    drawn, replayed = quality_summary(path, list(plan.parts()))
    assert drawn["success"] in (0.0, 1.0)
    assert replayed["success"] is None


def test_a_plans_file_and_the_record_of_a_collection_are_collected(
    plan: GymPlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_record(tmp_path / "plan.json", replace(plan, qualities=("medium-replay",)))
    path = tmp_path / "hopper.zarr"
    words = ["collect", str(path), "--json", "--plan"]
    assert main([*words, str(tmp_path / "plan.json"), "--task", "gym"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert sum(record["steps"] for record in records) == 70
    [left] = records_folder(path).glob("plan-*.json")
    [part] = open_store(path).parts()
    (records_folder(path) / f"{part}.json").unlink()  # its writer died right after the commit
    assert main([*words, str(left)]) == 0
    assert json.loads(capsys.readouterr().out)[0]["steps"] == 70
    [record] = records_of_commits(open_store(path), path, [part])
    assert (record.part, record.steps) == (part, 70)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"env": "Bee-v5"}, "no task 'Bee-v5' .*allowed:"),
        ({"qualities": ("human",)}, "unknown quality 'human'; allowed: random, medium, medium-re"),
        ({"qualities": ()}, "at least one quality, each of them once"),
        ({"qualities": ("random", "random")}, "at least one quality, each of them once"),
        ({"part_steps": 0}, "part_steps must be at least 1, got 0"),
        ({"processes": -1}, "processes must be 0 to 512, got -1"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"physics": True}, "medium-replay has no simulator state"),
    ],
)
def test_impossible_plans_are_refused(
    changes: dict[str, Any], complaint: str, plan: GymPlan
) -> None:
    with pytest.raises(ValueError, match=complaint):
        replace(plan, **changes)


def test_policies_that_do_not_fit_are_refused(plan: GymPlan, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds policies of Hopper-v5, not of Walker2d-v5"):
        replace(plan, env="Walker2d-v5").parts()
    unfinished = make_training(tmp_path / "unfinished")
    (unfinished / "recipe.json").unlink()
    with pytest.raises(ValueError, match=str(unfinished)):
        collect(replace(plan, policies=str(unfinished)), tmp_path / "x.zarr", Silent())
    assert not (tmp_path / "x.zarr").exists()
