"""Clusters that take fewer jobs than a command has: packed to fit, or refused in a line."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from gaitforge.flows.progress import Reporter, Silent
from gaitforge.flows.records.records import write_record
from gaitforge.flows.runners.slurm import jobs
from gaitforge.flows.runners.slurm.chain import cancel_stages, live_jobs, stage_rows
from gaitforge.flows.runners.slurm.commands import TooManyJobs
from gaitforge.flows.runners.slurm.runner import run_slurm
from gaitforge.flows.runners.slurm.script import SlurmSettings
from gaitforge.flows.runners.slurm.submission import REST, submit_stages
from gaitforge.flows.stages.stage import (
    CommandStage,
    RecordedStage,
    Stage,
    collection_stage,
    find_stage,
    run_stage,
)
from tests.flows.making import COLLECT, GRID
from tests.flows.slurm.test_slurm_answers import calls, slurm_commands

__all__ = ["slurm_commands"]  # a fixture
Commands = Callable[..., Path]
PLAN = replace(COLLECT, grid=replace(GRID, parts=23, episodes_per_part=2))
ONE = SlurmSettings(cpus=1)

# Takes jobs while the sum of their tasks is at most LIMIT; a cancelled job frees its tasks.
SBATCH = """
here="$(dirname "$0")"
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "${@: -1}")
tasks=$((${last:-0} + 1))
used=$(cat "$here"/queue/* 2>/dev/null | awk '{n += $1} END {print n + 0}')
if [ "$((used + tasks))" -gt LIMIT ]; then
  REFUSAL
fi
id=$(($(cat "$here/next" 2>/dev/null || echo 0) + 1))
echo "$id" > "$here/next"
mkdir -p "$here/queue"
echo "$tasks" > "$here/queue/$id"
echo "$id"
"""
SCANCEL = 'rm -f "$(dirname "$0")/queue/${@: -1}"'
SQUEUE = """
here="$(dirname "$0")"
for file in "$here"/queue/*; do
  [ -f "$file" ] || continue
  for k in $(seq 0 $(($(cat "$file") - 1))); do
    echo "$(basename "$file")|$k|PENDING|n/a|N/A|Resources"
  done
done
"""
QOS = """echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2
  echo "sbatch: error: Job violates accounting/QOS policy (job submit limit)" >&2
  exit 1"""
FULL = """echo "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying" >&2
  sleep 1000"""


def cluster(make: Commands, limit: int, refusal: str = QOS, config: str = "") -> Path:
    return make(
        sbatch=SBATCH.replace("LIMIT", str(limit)).replace("REFUSAL", refusal),
        scancel=SCANCEL,
        squeue=SQUEUE,
        scontrol=f"printf '%b' {json.dumps(config)}",
    )


def submitted(folder: Path) -> int:
    return sum(int(path.read_text()) for path in (folder / "queue").glob("*"))


@pytest.mark.parametrize("refusal", [QOS, FULL])
@pytest.mark.parametrize("limit", [1, 2, 7, 22, 23])
def test_parts_are_packed_into_as_many_tasks_as_the_cluster_takes(
    slurm_commands: Commands, tmp_path: Path, limit: int, refusal: str
) -> None:
    folder = cluster(slurm_commands, limit, refusal)
    job = run_slurm(PLAN, tmp_path / "s.zarr", Silent(), None, ONE)
    assert isinstance(job, jobs.Job)
    assert limit / 3 < len(job.tasks) <= limit
    assert [part for task in job.tasks for part in task] == PLAN.part_ids()
    assert submitted(folder) == len(job.tasks)
    [folder] = (tmp_path / "s.zarr.jobs").iterdir()
    assert folder == job.folder


def test_a_cluster_that_takes_nothing_is_told_in_a_line(
    slurm_commands: Commands, tmp_path: Path
) -> None:
    cluster(slurm_commands, 0)
    with pytest.raises(TooManyJobs, match=r"job submit limit.*not even one task") as line:
        run_slurm(PLAN, tmp_path / "s.zarr", Silent(), None, ONE)
    assert "\n" not in str(line.value)
    assert list(tmp_path.iterdir()) == []


CONFIGS = {
    "MaxArraySize            = 101\n": 23,
    "MaxArraySize = 5\n": 5,
    "MaxArraySize = 1\n": 1,
    "MaxArraySize = 0\n": 1,
    "MaxArraySize = 1001\nSchedulerParameters = bf_max_job_test=5,max_array_tasks=4,x=1\n": 4,
    "MaxJobCount = 9\nMaxArraySize = 1001\n": 8,
    "no configuration\n": 23,
}


def test_the_users_limit_is_asked_of_the_accounting(
    slurm_commands: Commands, tmp_path: Path
) -> None:
    config = "AccountingStorageType = accounting_storage/slurmdbd\nMaxArraySize = 1001\n"
    folder = cluster(slurm_commands, 1000, config=config)
    answers = 'case "$*" in *assoc*account=lab*) echo 9;; *qos*name=long*) echo 40;; esac'
    slurm_commands(sacctmgr=answers)
    job = run_slurm(
        PLAN, tmp_path / "s.zarr", Silent(), None, replace(ONE, account="lab", qos="long")
    )
    assert isinstance(job, jobs.Job)
    assert 4 < len(job.tasks) <= 9
    assert len(calls(folder, "sbatch")) == 1
    again = run_slurm(PLAN, tmp_path / "other.zarr", Silent(), None, ONE)
    assert isinstance(again, jobs.Job)
    assert len(again.tasks) == 23, "no limit is known without the account"


@pytest.mark.parametrize(("config", "most"), CONFIGS.items())
def test_the_limits_that_slurm_tells_are_kept_without_a_refusal(
    slurm_commands: Commands, tmp_path: Path, config: str, most: int
) -> None:
    folder = cluster(slurm_commands, 1000, config=config)
    job = run_slurm(PLAN, tmp_path / "s.zarr", Silent(), None, ONE)
    assert isinstance(job, jobs.Job)
    assert most / 2 <= len(job.tasks) <= most
    assert len(calls(folder, "sbatch")) == 1
    script = (job.folder / jobs.SCRIPT).read_text()
    assert ("--array=" in script) == (most > 1)


def stages(out: Path) -> list[Stage]:
    """A collection, seven trainings of it and a report of them."""
    store = collection_stage("collect", PLAN, out / "s.zarr")
    trainings = [
        RecordedStage(
            f"train {k}", "key", run=partial(print), outputs=(out / f"run-{k}",), after=("collect",)
        )
        for k in range(7)
    ]
    names = tuple(stage.name for stage in trainings)
    return [
        store,
        *trainings,
        RecordedStage("report", "key", run=partial(print), outputs=(out / "page",), after=names),
    ]


@pytest.mark.parametrize("limit", [2, 3, 5, 8, 9, 10, 30, 31])
def test_an_experiment_of_more_stages_than_the_limit_is_submitted_whole(
    slurm_commands: Commands, tmp_path: Path, limit: int
) -> None:
    folder = cluster(slurm_commands, limit)
    everything = stages(tmp_path)
    words = ["run", "plan.json", "--out", str(tmp_path)]
    new = submit_stages(tmp_path, everything, words, ONE)
    assert submitted(folder) <= limit
    made = [job for job in new if isinstance(job, jobs.Job)]
    assert submitted(folder) == sum(len(job.tasks) for job in made)
    live = live_jobs(tmp_path, everything)
    assert all(live.values()), "every stage has a job"
    rest = [job for job in made if job.kind == REST]
    assert len(rest) == (limit < 16)
    for job in rest:
        assert json.loads((job.folder / jobs.PLAN).read_text())[jobs.WORDS] == words
        assert made[-1] == job
        before = [other.id for other in made if other != job]
        waits = [word for word in job.command if word.startswith("--dependency")]
        assert waits == [f"--dependency=afterok:{':'.join(sorted(before))}"]
    assert submit_stages(tmp_path, everything, words, ONE) == [], "all are in live jobs"
    assert len(cancel_stages(tmp_path, everything)) == len(made)
    assert submitted(folder) == 0


def test_trainings_of_several_processes_share_no_job(
    slurm_commands: Commands, tmp_path: Path
) -> None:
    folder = cluster(slurm_commands, 4)
    everything = [
        replace(stage, trains=True, device="cuda") if stage.name.startswith("train") else stage
        for stage in stages(tmp_path)
    ]
    with pytest.raises(ValueError, match=r"cluster takes no more jobs.*submit again") as line:
        submit_stages(tmp_path, everything, ["run"], replace(ONE, nodes=2, gpus=1))
    assert "\n" not in str(line.value)
    assert submitted(folder) == 0


def scored(out: Path) -> list[Stage]:
    """Four trainings, an evaluation of each, a page of two, and a report."""
    touch = partial(_touch, out)
    trainings = [
        RecordedStage(
            f"train {k}", "key", run=partial(touch, f"run-{k}"), outputs=(out / f"run-{k}",)
        )
        for k in range(4)
    ]
    evaluations = [
        RecordedStage(f"evaluate {k}", "key", run=partial(touch, f"e-{k}"), after=(f"train {k}",))
        for k in range(4)
    ]
    pages = [
        RecordedStage(f"show {k}", "key", run=partial(touch, f"p-{k}"), after=(f"evaluate {k}",))
        for k in (1, 3)
    ]
    every = (*trainings, *evaluations, *pages)
    names = tuple(stage.name for stage in every)
    return [*every, RecordedStage("report", "key", run=partial(touch, "page"), after=names)]


def _touch(out: Path, name: str, _: Reporter) -> None:
    (out / name).touch()


def dependency(job: jobs.Job) -> str:
    words = [word for word in job.command if word.startswith("--dependency=")]
    return "".join(words).removeprefix("--dependency=")


def end(out: Path, folder: Path, job: jobs.Job, codes: Mapping[int, int]) -> None:
    """Let a job end, whose tasks end with these codes, and do the stages of those that succeed."""
    (folder / "queue" / job.id).unlink()
    for task, code in codes.items():
        record = {"code": code, "restarts": 0, "host": "n0", "started": 1, "ended": 2}
        write_record(job.folder / jobs.EXIT / f"{task}.json", record)
        if code == 0:
            run_stage(out, find_stage(scored(out), job.tasks[task][0]), Silent())


def test_a_task_that_failed_stops_only_what_needs_it_and_is_submitted_again(
    slurm_commands: Commands, tmp_path: Path
) -> None:
    folder = cluster(slurm_commands, 100)
    submit = partial(
        submit_stages, tmp_path, scored(tmp_path), ["run"], replace(ONE, max_parallel=2)
    )
    new = [job for job in submit() if isinstance(job, jobs.Job)]
    kinds = ["train", "evaluate", "show 1", "show 3", "report"]
    assert [job.kind for job in new] == kinds
    train, evaluate, *shows, report = new
    assert train.tasks == (("train 0",), ("train 1",), ("train 2",), ("train 3",))
    for job in (train, evaluate):
        assert "#SBATCH --array=0-3%2\n" in (job.folder / jobs.SCRIPT).read_text()
    assert dependency(evaluate) == f"aftercorr:{train.id}"
    assert [dependency(show) for show in shows] == [f"afterok:{evaluate.id}_{k}" for k in (1, 3)]
    assert dependency(report) == "afterok:" + ":".join(sorted(job.id for job in new[:-1]))
    assert submit() == [], "all are in live jobs"

    end(tmp_path, folder, train, {0: 0, 1: 1, 2: 0, 3: 1})
    rows = {row["stage"]: row for row in stage_rows(tmp_path, scored(tmp_path))}
    assert [rows[f"train {k}"]["state"] for k in range(4)] == ["done", "failed", "done", "failed"]
    assert rows["train 1"]["job"] == f"{train.id}_1"
    assert rows["evaluate 1"]["state"] == "waiting"
    end(tmp_path, folder, evaluate, {0: 0})
    for job in (*shows, report):
        end(tmp_path, folder, job, {})
    for job in (evaluate, *shows, report):
        write_record(job.folder / jobs.CANCELLED, {"time": 1.0})
    again = [job for job in submit() if isinstance(job, jobs.Job)]
    assert [job.kind for job in again] == ["train", "evaluate 2", "evaluate", "show", "report"]
    train, alone, evaluate, show, report = again
    assert train.tasks == (("train 1",), ("train 3",))
    assert [dependency(job) for job in (train, alone)] == ["", ""]
    assert evaluate.tasks == (("evaluate 1",), ("evaluate 3",))
    assert dependency(evaluate) == f"aftercorr:{train.id}"
    assert dependency(show) == f"aftercorr:{evaluate.id}"

    one = find_stage(scored(tmp_path), "train 3")
    assert cancel_stages(tmp_path, [one]) == [train]
    assert calls(folder, "scancel")[-1] == f"{train.id}_1", "its sibling goes on"
    assert set(cancel_stages(tmp_path, scored(tmp_path))) == set(again)
    assert f"{train.id}" in calls(folder, "scancel")


@pytest.mark.parametrize("limit", [2, 3, 8])
def test_an_array_leaves_room_also_where_what_it_waited_for_is_done(
    slurm_commands: Commands, tmp_path: Path, limit: int
) -> None:
    folder = cluster(slurm_commands, limit)
    done = CommandStage("fetch", run=print, done=lambda: True)
    store = replace(collection_stage("collect", PLAN, tmp_path / "s.zarr"), after=("fetch",))
    page = RecordedStage(
        "report", "key", run=partial(print), outputs=(tmp_path / "page",), after=("collect",)
    )
    submit_stages(tmp_path, [done, store, page], ["run"], ONE)
    live = live_jobs(tmp_path, [done, store, page])
    assert [len(live[stage.name]) for stage in (done, store, page)] == [0, 1, 1]
    assert submitted(folder) <= limit


@pytest.mark.parametrize("limit", [1, 2, 9, 40])
def test_one_stage_alone_takes_what_the_cluster_gives(
    slurm_commands: Commands, tmp_path: Path, limit: int
) -> None:
    """It shares no job with the others, and waits for the jobs of those that it needs."""
    folder = cluster(slurm_commands, limit)
    everything = stages(tmp_path)
    submit = partial(submit_stages, tmp_path, everything, ["run"], ONE)
    with pytest.raises(ValueError, match="train 3 needs collect, which is neither done nor"):
        submit(only=everything[4])
    assert submitted(folder) == 0
    [array] = submit(only=everything[0])
    assert isinstance(array, jobs.Job)
    assert [part for task in array.tasks for part in task] == PLAN.part_ids()
    assert submit(only=everything[0]) == [], "it is in a live job"
    if submitted(folder) == limit:
        with pytest.raises(ValueError, match="cluster takes no more jobs"):
            submit(only=everything[4])
        assert submitted(folder) == limit
        return
    [job] = submit(only=everything[4])
    assert isinstance(job, jobs.Job)
    assert f"--dependency=afterok:{array.id}" in job.command
    words = json.loads((job.folder / jobs.PLAN).read_text())[jobs.WORDS]
    assert words == ["run", "--stage", "train 3"]
    live = live_jobs(tmp_path, everything)
    assert [name for name, own in live.items() if own] == ["collect", "train 3"]
