"""Job folders and scripts, where there is no Slurm to ask."""

import json
import os
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.collectors.physics import processor_of
from gaitforge.collectors.simulators import backend_names
from gaitforge.datasets import open_store
from gaitforge.flows.experiments.plan import Experiment
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.records.records import to_tree, write_record
from gaitforge.flows.runners.slurm.commands import job_environment, submit_command
from gaitforge.flows.runners.slurm.drafts import Draft, collected
from gaitforge.flows.runners.slurm.jobs import (
    Job,
    find_job,
    find_jobs,
    follow,
    job_state,
    jobs_folder,
    task_states,
    work_sha256,
    write_job,
)
from gaitforge.flows.runners.slurm.runner import run_slurm, run_task
from gaitforge.flows.runners.slurm.script import JobWork, SlurmSettings, batch_script, limit_s
from gaitforge.flows.stages.train import TrainPlan
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.pipeline.cli.main import build_parser, main
from tests.flows.making import COLLECT, GRID

ROOT = Path(__file__).resolve().parents[3]
PLAN = replace(COLLECT, grid=replace(GRID, parts=2, episodes_per_part=4), threads=1)
ROUNDS = int(os.environ.get("GAITFORGE_SIGNAL_ROUNDS", "3"))
ENDED = {"host": "n0", "started": 10, "ended": 30, "told": ""}


@pytest.fixture
def no_slurm(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which Slurm's commands are not to be found."""
    monkeypatch.setenv("PATH", str(tmp_path_factory.mktemp("bin")))


def job_in(folder: Path, tasks: int = 2, number: str = "7", kind: str = "collect") -> Job:
    """A job folder as a submission leaves it."""
    parts = tuple((f"p-{task}",) for task in range(tasks)) if kind == "collect" else ((),)
    job = Job(folder, number, kind, str(folder.parent), 1.7e9, "main", ("sbatch",), parts)
    write_job(job)
    return job


@pytest.mark.parametrize("plan", [LeggedPlan(), TrainPlan(), Experiment(), PLAN])
def test_a_plan_comes_back_from_its_json(plan: LeggedPlan | TrainPlan | Experiment) -> None:
    assert plan_from_tree(type(plan), json.loads(json.dumps(to_tree(plan)))) == plan


@pytest.mark.parametrize(
    ("tree", "complaint"),
    [
        ({"colour": 3}, "LeggedPlan has no 'colour'; allowed: grid, "),
        ({"robots": "many"}, "LeggedPlan.robots needs int, not 'many'"),
        ({"grid": {"levels": [1, "x"]}}, "LeggedPlan.grid.levels needs int, not 'x'"),
        ({"grid": 5}, "LeggedPlan.grid needs an object"),
        ({"robots": 0}, "robots must be 1 to 100,000, got 0"),
    ],
)
def test_a_tree_that_is_no_plan_is_refused(tree: dict, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        plan_from_tree(LeggedPlan, tree)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("01:00:00", 3600),
        ("2-12", 216000),
        ("2-1:2", 176520),
        ("1-1:1:1", 90061),
    ],
)
def test_a_time_limit_is_read_as_sbatch_reads_it(text: str, seconds: int) -> None:
    assert limit_s(text) == seconds


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"time": "an hour"}, "a time limit looks like"),
        ({"time": "1", "grace_s": 60}, "leaves nothing before the 60 s"),
        ({"partition": "a b"}, "cannot be the value of partition"),
        ({"memory": "8 gigabytes"}, "memory needs a number"),
        ({"cpus": 0}, "both must be at least 1"),
        ({"requeues": -1}, "requeues must not be negative"),
        ({"options": ("account=a b",)}, "is not allowed"),
        ({"options": ("comment=x\n#SBATCH --uid=0",)}, "is not allowed"),
        ({"options": ("export=ALL",)}, "is not allowed"),
        ({"account": "a b"}, "cannot be the value of account"),
        ({"mail": "me"}, "no mail address"),
        ({"container": "lab.sif"}, "apptainer:IMAGE or pyxis:IMAGE"),
    ],
)
def test_settings_that_sbatch_could_not_take_are_refused(changes: dict, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        SlurmSettings(**changes)


@given(
    name=st.text(st.characters(exclude_characters="\0/\n", exclude_categories=["Cs"]), min_size=1),
    nodes=st.integers(1, 3),
    gpus=st.integers(0, 2),
    array=st.booleans(),
    setup=st.lists(st.sampled_from(["module load cuda", "# a comment", "a && b", "x='a b'"])),
    container=st.sampled_from(["", "apptainer:lab.sif", "pyxis:reg#lab/x"]),
    env_file=st.sampled_from(["", "/a b/it's.env"]),
)
def test_every_script_is_bash_and_knows_its_folder(
    name: str,
    nodes: int,
    gpus: int,
    array: bool,
    setup: list[str],
    container: str,
    env_file: str,
) -> None:
    folder = Path("/jobs") / name
    work = JobWork("work", 3, array, retry_errors=array, requeues=2)
    where = {"setup": tuple(setup), "container": container, "env_file": env_file}
    text = batch_script(folder, work, SlurmSettings(nodes=nodes, gpus=gpus, **where), "9f86d0")
    directives = [line for line in text.split("\n") if line.startswith("#SBATCH")]
    assert ("#SBATCH --array=0-2" in directives) == array
    assert f"#SBATCH --nodes={nodes}" in directives
    settings = text[text.index("folder=") : text.index("max_restarts=")]
    shown = subprocess.run(
        ["/bin/bash", "-c", f'{settings} printf %s "$folder"'],
        capture_output=True,
        check=True,
        timeout=10,
    )
    assert shown.stdout.decode() == str(folder)
    subprocess.run(["/bin/bash", "-n", "-c", text], check=True, timeout=10)


@pytest.mark.parametrize("name", ["TERM", "USR2"])
def test_a_signal_while_the_exit_record_is_written_leaves_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    commands = {
        "hostname": f"kill -{name} $PPID; sleep 0.1; echo n0",
        "sync": f"kill -{name} $PPID",
    }
    monkeypatch.setattr("sys.executable", "/bin/true")
    assert run_script(tmp_path, monkeypatch, commands, requeues=0) == 0
    ended = json.loads((tmp_path / "job" / "exit" / "0.json").read_text())
    assert (ended["code"], ended["host"]) == (0, "n0")


def run_script(
    folder: Path, monkeypatch: pytest.MonkeyPatch, commands: dict[str, str], requeues: int
) -> int:
    """The exit code of a job's script where some commands are others than the machine's."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for command, lines in commands.items():
        (bin_folder / command).write_text(f"#!/bin/bash\n{lines}\n")
        (bin_folder / command).chmod(0o755)
    monkeypatch.setenv("PATH", str(bin_folder), prepend=":")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    work = JobWork("work", 1, False, True, requeues)
    text = batch_script(folder / "job", work, SlurmSettings(), "9f86d0")
    words = ["/bin/bash", "-c", text]
    return subprocess.run(words, check=False, capture_output=True, timeout=30).returncode


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize(("name", "told"), [("TERM", "end"), ("USR2", "limit")])
def test_who_is_told_to_end_leaves_a_record_even_if_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, told: str, killed: bool
) -> None:
    """Slurm kills a script soon after its signal: the record of the signal is then the last."""
    work = f"#!/bin/bash\ntrap 'exit 143' TERM\nkill -{name} $PPID\nsleep 1\n"
    if killed:
        work = f"#!/bin/bash\ntrap 'kill -KILL $PPID' TERM\nkill -{name} $PPID\nsleep 1\n"
    (tmp_path / "work").write_text(work)
    (tmp_path / "work").chmod(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "work"))
    assert run_script(tmp_path, monkeypatch, {"squeue": ""}, requeues=0) in (143, -9)
    [file] = (tmp_path / "job" / "exit").glob("*.json")
    ended = json.loads(file.read_text())
    assert (file.name, ended["told"], ended["code"]) == ("0.json", told, 137 if killed else 143)
    assert "not queued again" in ended["note"]
    assert ended["note"].endswith(": run the same command again")
    job = Job(tmp_path / "job", "7", "train", "run", 0.0, "", (), ((),))
    [task] = task_states(job)
    assert (task.state, task.why) == ("failed", ended["note"])


@pytest.mark.parametrize(("refusals", "record"), [(0, "0-0"), (2, "0-0"), (3, "0")])
def test_a_controller_that_refuses_a_requeue_for_a_moment_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusals: int, record: str
) -> None:
    asked = tmp_path / "asked"
    commands = {
        "scontrol": f'echo "$*" >> {asked}; echo "no \\"right\\"" >&2; '
        f'[ "$(wc -l < {asked})" -gt {refusals} ]',
        "sleep": "",
    }
    monkeypatch.setattr("sys.executable", "/bin/false")
    assert run_script(tmp_path, monkeypatch, commands, requeues=1) == 1
    assert asked.read_text().splitlines() == ["requeue 7"] * min(refusals + 1, 3)
    # A record without a run's number says that the task has ended for good.
    written = sorted(path.stem for path in (tmp_path / "job" / "exit").glob("*.json"))
    assert written == [record]
    if refusals == 3:
        ended = json.loads((tmp_path / "job" / "exit" / "0.json").read_text())
        note = "stopped, not queued again (no right): run the same command again"
        assert ended["note"] == note


def test_a_percent_sign_in_a_folder_is_no_pattern_of_slurms() -> None:
    words = submit_command(Path("/a%j/script.sh"), Path("/a%j/task-%a.log"))
    assert "--output=/a%%j/task-%a.log" in words
    assert words[-1] == "/a%j/script.sh"


def test_a_backslash_in_a_logs_folder_is_refused_and_nothing_is_left(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["collect", str(tmp_path / "a\\b" / "legged.zarr"), "--runner", "slurm"]) == 2
    assert "rename what has a backslash" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_job_sees_what_it_needs_of_the_environment_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HUB_TOKEN", "t")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    seen = job_environment(PYTHONPATH="/here")
    assert {"PATH", "PYTHONPATH"} <= seen.keys()
    assert not {"HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "SLURM_JOB_ID"} & seen.keys()
    assert job_environment(("HUB_TOKEN",))["HUB_TOKEN"] == "t"
    with pytest.raises(ValueError, match="ABSENT_TOKEN is to be passed on but is not set"):
        job_environment(("ABSENT_TOKEN",))


@pytest.mark.usefixtures("no_slurm")
def test_without_slurm_nothing_is_submitted_and_nothing_left(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "new" / "legged.zarr"
    assert main(["collect", str(store), "--runner", "slurm"]) == 2
    error = capfd.readouterr().err
    assert "sbatch is not on this machine's PATH; run on a login node" in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_slurm")
def test_a_dry_run_shows_the_script_and_writes_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "legged.zarr"
    options = ["--max-parallel", "2", "--sbatch", "account=lab", "--set", "grid.parts=5"]
    assert main(["collect", str(store), "--runner", "slurm", "--dry-run", *options]) == 0
    shown = capfd.readouterr().out
    assert "#SBATCH --array=0-2%2\n" in shown, "two parts per task, one on each CPU"
    assert "#SBATCH --account=lab\n" in shown
    # 5 parts of 300 episodes of 192 steps.
    assert "at most 288,000 steps, about 0.07 GB and 0.0 CPU hours (230 bytes a step" in shown
    assert "docs/results/collection.md" in shown
    assert len(shown.splitlines()) < 60
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["collect", "s", "--partition", "p"], "--partition is for --runner slurm, not for"),
        (["collect", "s", "--runner", "cron"], "unknown runner 'cron'"),
        (["train", "s", "--out", "r", "--nodes", "2"], "--nodes is for --runner slurm, not for"),
        (["collect", "s", "--runner", "slurm", "--gpus", "1"], "only a training with device=cuda"),
        (["jobs", "list", "nowhere"], "no folder nowhere"),
        (["jobs", "follow", "nowhere"], "no folder nowhere"),
        (["jobs", "cancel", "99"], "no job 99 below"),
        (["jobs", "run", "nowhere"], "nowhere is no job folder"),
    ],
)
def test_wrong_arguments_get_one_line(
    arguments: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capfd.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_slurm")
def test_states_come_from_exit_records_where_slurm_is_not(tmp_path: Path) -> None:
    job = job_in(tmp_path / "legged.zarr.jobs" / "collect-1", tasks=3)
    assert [task.state for task in task_states(job)] == ["unknown"] * 3
    write_record(job.folder / "exit" / "0.json", {"code": 0, "restarts": 1, **ENDED})
    write_record(job.folder / "exit" / "0-0.json", {"code": 137, "restarts": 0, **ENDED})
    write_record(job.folder / "exit" / "1.json", {"code": 2, "restarts": 0, **ENDED})
    write_record(job.folder / "exit" / "2-0.json", {"code": 9, "restarts": 0, **ENDED})
    tasks = task_states(job)
    assert [(task.state, task.code) for task in tasks] == [
        ("done", 0),
        ("failed", 2),
        ("unknown", 9),
    ]
    assert tasks[0].restarts == 1
    assert job_state(tasks) == "unknown"
    write_record(job.folder / "cancelled.json", {"time": 1.0})
    assert [task.state for task in task_states(job)] == ["done", "failed", "cancelled"]


@pytest.mark.usefixtures("no_slurm")
def test_jobs_are_found_by_store_run_folder_and_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    first = job_in(tmp_path / "data" / "legged.zarr.jobs" / "collect-1", number="1")
    second = job_in(tmp_path / "runs" / "fcnet" / "jobs" / "train-1", number="2", kind="train")
    assert find_jobs(tmp_path / "data" / "legged.zarr") == [first]
    assert find_jobs(tmp_path / "runs" / "fcnet") == [second]
    assert find_jobs(second.folder) == [second]
    assert find_jobs(tmp_path) == [first, second]
    assert find_job("2", below=tmp_path) == second
    with pytest.raises(ValueError, match="is not one job but has 2: collect-1, train-1"):
        find_job(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["jobs", "list", "--json"]) == 0
    assert [job["id"] for job in json.loads(capfd.readouterr().out)] == ["1", "2"]


@pytest.mark.usefixtures("no_slurm")
def test_a_finished_jobs_logs_are_followed_to_their_end(tmp_path: Path) -> None:
    job = job_in(tmp_path / "job")
    for task, text in enumerate(["one\ntwo\n", "three\nno end of line"]):
        (job.folder / f"task-{task}.log").write_text(text)
        write_record(job.folder / "exit" / f"{task}.json", {"code": 0, "restarts": 0, **ENDED})
    assert sorted(follow(job)) == [(0, "one"), (0, "two"), (1, "no end of line"), (1, "three")]


def test_a_job_folders_task_runs_anywhere_and_makes_its_own_parts(tmp_path: Path) -> None:
    store, folder = tmp_path / "legged.zarr", tmp_path / "job"
    parts = PLAN.part_ids()
    record = {
        "kind": "collect",
        "task": "legged",
        "target": str(store),
        "store": str(store),
        "plan": to_tree(PLAN),
        "tasks": [parts[:1], [*parts[1:], "other-00001"]],
    }
    write_record(folder / "plan.json", record)
    sha256 = work_sha256(record)
    assert main(["jobs", "run", str(folder), "--task", "0", "--sha256", sha256]) == 0
    assert open_store(store).parts() == parts[:1]
    said = collected(PLAN, store, parts[1:]).line()
    assert "measured in 1 part of this store" in said
    assert "GB free there" in said
    with pytest.raises(ValueError, match="has tasks 0-1, not 2"):
        run_task(folder, 2, Silent(), sha256)
    with pytest.raises(ValueError, match="the expert's or policy's file changed since"):
        run_task(folder, 1, Silent(), sha256)
    assert open_store(store).parts() == parts[:1]


# Children of one process share its imports: a round takes a second.
SIGNALLED_JOBS = """
import json, os, random, sys, time
from pathlib import Path
import numba.np.arraymath, zarr
import gaitforge.collectors.physics.mujoco.backend
import gaitforge.flows.runners.slurm.runner
import gaitforge.flows.tasks.legged
from gaitforge.flows.records.part_records import read_active
from gaitforge.flows.records.part_records import records_folder
from gaitforge.flows.runners.slurm.jobs import work_sha256
from gaitforge.pipeline.cli import jobs
from gaitforge.pipeline.cli.main import main
draw = random.Random(0)
for folder in sorted(Path(sys.argv[1]).iterdir()):
    number = int(folder.name.split("-")[0])
    child = os.fork()
    if child == 0:
        sha256 = work_sha256(json.loads((folder / "job" / "plan.json").read_text()))
        sys.exit(main(["jobs", "run", str(folder / "job"), "--sha256", sha256]))
    while not read_active(records_folder(folder / "legged.zarr")):
        time.sleep(0.01)
    time.sleep(draw.uniform(0, 0.3))
    for _ in range(draw.randint(1, 10)):
        os.kill(child, number)
        time.sleep(draw.uniform(0, 0.03))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.long
def test_any_number_of_signals_ends_a_collecting_task_with_its_code(tmp_path: Path) -> None:
    numbers = [signal.SIGINT, signal.SIGTERM] * ROUNDS
    plan = replace(PLAN, robots=64, grid=replace(PLAN.grid, episodes_per_part=256))
    folders = [tmp_path / f"{number:02d}-{k}" for k, number in enumerate(numbers)]
    for folder in folders:
        store = str(folder / "legged.zarr")
        job = {"kind": "collect", "task": "legged", "target": store, "store": store}
        job["plan"] = to_tree(plan)
        write_record(folder / "job" / "plan.json", {**job, "tasks": [plan.part_ids()]})
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED_JOBS, str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        timeout=300,
        check=True,
    )
    assert done.stdout.split() == [b"130"] * ROUNDS + [b"143"] * ROUNDS
    for folder in folders:
        assert open_store(folder / "legged.zarr").verify() == []


def test_an_experiment_asks_for_a_gpu_where_one_is_used(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = ["run", "bot-rl", "--learners", "mlp", "--seeds", "0", "--out", str(tmp_path / "rl")]
    run += ["--device", "cuda", "--steps", "1000"]
    slurm = ["--runner", "slurm", "--gpus", "4", "--partition", "gpu", "--cpu-partition", "cpu"]
    slurm += ["--max-parallel", "1", "--dry-run"]
    assert main([*run, *slurm, "--json"]) == 0
    jobs = json.loads(capfd.readouterr().out)
    # Training and evaluation on each of two tasks, then the summary and the page.
    assert [(job["stage"], job["tasks"], job["gpus"], job["partition"]) for job in jobs] == [
        ("train", 2, 1, "gpu"),
        ("evaluate", 2, 0, "cpu"),
        ("compare", 1, 0, "cpu"),
        ("report", 1, 0, "cpu"),
    ]
    assert jobs[1]["after_task_by_task"] == ["train"]
    for job in jobs:
        assert ("gpus-per-node=1" in job["script"]) == bool(job["gpus"])
        assert ("--array=0-1%1" in job["script"]) == (job["tasks"] == 2)
        assert "torch.distributed" not in job["script"]
    assert main([*run, *slurm, "--scripts", str(tmp_path / "scripts")]) == 0
    table, _, sample = capfd.readouterr().out.partition("#!/bin/bash\n")
    # Two trainings after each other, an evaluation beside the second and one more, two jobs.
    assert "4 jobs of 6 tasks: at most 12 CPU hours, 2 GPU hours, and 5.0 h by the clock" in table
    assert "--job-name=gaitforge-train\n" in sample
    assert "persist()" not in sample
    assert len(f"{table}{sample}".splitlines()) < 60
    names = ["01-train.sh", "02-evaluate.sh", "03-compare.sh", "04-report.sh"]
    scripts = sorted((tmp_path / "scripts").iterdir())
    assert [path.name for path in scripts] == names
    assert [path.read_text() for path in scripts] == [job["script"] for job in jobs]
    assert main([*run, "--where", "level < 3"]) == 2
    assert "--where has no effect" in capfd.readouterr().err


def test_a_collection_has_a_gpu_for_its_simulator_alone_and_no_second_node(tmp_path: Path) -> None:
    simulators = [name for name in backend_names() if processor_of(name) == "cuda"]
    if not simulators:
        pytest.skip("no plug-in brings a simulator on a GPU")
    on_gpu = replace(PLAN, sim=simulators[0])
    for plan, settings in (
        (PLAN, SlurmSettings(gpus=1)),
        (PLAN, SlurmSettings(nodes=2)),
        (on_gpu, SlurmSettings(gpus=2)),
    ):
        with pytest.raises(ValueError, match="nodes 1 and gpus 0, or 1 for"):
            run_slurm(plan, tmp_path / "legged.zarr", Silent(), None, settings)
    asked = SlurmSettings(gpus=1, dry_run=True)
    draft = run_slurm(on_gpu, tmp_path / "legged.zarr", Silent(), None, asked)
    assert isinstance(draft, Draft)
    assert "gpus-per-node=1" in draft.script
    assert list(tmp_path.iterdir()) == []


def test_a_stores_jobs_lie_beside_it() -> None:
    assert jobs_folder(Path("/data/legged.zarr")) == Path("/data/legged.zarr.jobs")


def test_the_guides_commands_are_ones_that_the_program_knows() -> None:
    lines = (ROOT / "docs" / "slurm.md").read_text().splitlines()
    commands = [line.strip() for line in lines if line.startswith("    gaitforge ")]
    assert len(commands) > 4
    for text in commands:
        words = shlex.split(text, comments=True)[1:]
        assert build_parser().parse_args(words).command == words[0]
