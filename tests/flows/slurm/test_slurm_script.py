"""A job's script, run with stand-ins for the commands that it calls, which check their words."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gaitforge.flows.runners.slurm.script import JobWork, SlurmSettings, batch_script

HOSTILE = "a:b, \"c\" 'd' $HOME %j `e` \\f é #g"
PLAIN = "plain-é"
# What the commands have in common: whatever a script calls is noted, and the rest is called.
COMMON = """#!{python}
import csv, json, os, sys
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
def note(**known):
    with open({seen!r}, "a") as lines:
        lines.write(json.dumps(dict(known, name=name, workdir=os.getcwd())) + "\\n")
def options(known):
    taken = {{}}
    while words and words[0].startswith("--"):
        option, equals, value = words.pop(0).partition("=")
        assert option in known, option
        taken[option] = value if equals or known[option] else words.pop(0)
    return taken
"""
STAND_INS = {
    # Apptainer reads a mount as a line of CSV; pflag takes the value from the next word.
    "apptainer": """
assert words.pop(0) == "exec"
taken = options({"--nv": True, "--mount": False})
[fields] = csv.reader([taken["--mount"]], strict=True)
mount = dict(field.split("=", 1) for field in fields)
assert mount.pop("type") == "bind" and mount["src"] == mount["dst"], mount
note(mounts=[mount["src"]], image=words.pop(0), nv="--nv" in taken)
os.execvp(words[0], words)
""",
    # Pyxis splits at commas, then at colons.
    "srun": """
taken = options({"--wait": False, "--ntasks": False, "--container-image": False,
                 "--container-mounts": False, "--container-workdir": False})
mounts = [each.split(":") for each in filter(None, taken.get("--container-mounts", "").split(","))]
assert all(len(pair) == 2 and pair[0] == pair[1] for pair in mounts), mounts
assert taken.get("--container-workdir", os.getcwd()) == os.getcwd()
note(mounts=[pair[0] for pair in mounts], image=taken.get("--container-image"),
     ntasks=taken.get("--ntasks"), wait=taken.get("--wait"))
os.execvp(words[0], words)
""",
    "scontrol": """
answers = {"show hostnames n[0-1]": "n0\\nn1",
           "-o show node n0": "NodeName=n0 Arch=x86_64 NodeAddr=10.0.0.7 NodeHostName=n0"}
print(answers[" ".join(words)])
""",
    "python": """
note(words=words, path=os.environ.get("PYTHONPATH"))
""",
}


def run(
    folder: Path, work: JobWork, settings: SlurmSettings, monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Any]]:
    """What the stand-ins noted, in the order of their calls, while a job's script ran well."""
    bin_folder, seen = folder / "bin", folder / "seen"
    bin_folder.mkdir()
    for name, lines in STAND_INS.items():
        text = COMMON.format(python=sys.executable, seen=str(seen)) + lines
        (bin_folder / name).write_text(text)
        (bin_folder / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bin_folder / "python"))
    place = folder / "place"
    job = next(place.glob("*/*/*"))
    (job / "script.sh").write_text(batch_script(job, work, settings, "9f86d0"))
    variables = {"PATH": f"{bin_folder}:{os.environ['PATH']}", "PYTHONPATH": "/here"}
    variables |= {"SLURM_JOB_ID": "20042", "SLURM_JOB_NODELIST": "n[0-1]"}
    if work.array:
        variables |= {"SLURM_ARRAY_JOB_ID": "20040", "SLURM_ARRAY_TASK_ID": "2"}
    done = subprocess.run(
        ["/bin/bash", job / "script.sh"],
        env=variables,
        cwd=place,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b""), done.stdout
    task = 2 if work.array else 0
    assert json.loads((job / "exit" / f"{task}.json").read_text())["code"] == 0
    return [json.loads(line) for line in seen.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["collect", "train", "train fcnet"])
@pytest.mark.parametrize("gpus", [0, 1, 4])
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("container", ["", "apptainer", "pyxis"])
def test_every_job_starts_its_processes_in_its_container(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    container: str,
    nodes: int,
    gpus: int,
    kind: str,
) -> None:
    name = PLAIN if container == "pyxis" else HOSTILE
    middle = "legged.zarr.jobs" if kind == "collect" else "jobs"
    job = tmp_path / "place" / name / middle / f"{kind.replace(' ', '-')}-1"
    job.mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "place")
    image = "lab image's:1.sif"
    settings = SlurmSettings(
        nodes=nodes, gpus=gpus, container=f"{container}:{image}" if container else ""
    )
    work = JobWork(f"gaitforge-{kind.replace(' ', '-')}", 3, kind == "collect", False, 1)
    *starters, python = run(tmp_path, work, settings, monkeypatch)

    task = "2" if kind == "collect" else "0"
    module = ["-m", "gaitforge", "jobs", "run", str(job), "--task", task, "--sha256", "9f86d0"]
    torchrun = ["-m", "torch.distributed.run", f"--nproc-per-node={max(1, gpus)}"]
    if nodes > 1:
        torchrun += ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=10.0.0.7:20042"]
        expected = [*torchrun, "--rdzv-id=20042-0", *module]
    else:
        expected = [*torchrun, "--standalone", *module] if gpus > 1 else module
    assert python["words"] == expected
    assert python["path"] == (None if container else "/here"), "the image's gaitforge runs"
    assert python["workdir"] == str(tmp_path / "place")

    names = [each["name"] for each in starters if each["name"] != "scontrol"]
    srun = ["srun"] if nodes > 1 or container == "pyxis" else []
    assert names == [*srun, *(["apptainer"] if container == "apptainer" else [])]
    last = starters[-1] if starters else {}
    if container:
        assert last["mounts"][0] == str(job.parent.parent)
        assert last["image"] == image
        assert last.get("nv", gpus > 0) == (gpus > 0)
    if container == "pyxis":
        assert last["mounts"][1] == str(tmp_path / "place")
    for each in starters:
        if each["name"] == "srun":
            assert (each["wait"], each["ntasks"]) == (("60", None) if nodes > 1 else (None, "1"))


@pytest.mark.parametrize("sign", [":", ",", " ", "\t", '"', "$", "`", "\\"])
@pytest.mark.parametrize("present", [False, True])
def test_what_pyxis_cannot_mount_is_refused_before_anything_is_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sign: str, present: bool
) -> None:
    odd = tmp_path / f"a{sign}b"
    odd.mkdir()
    monkeypatch.chdir(odd if present else tmp_path)
    place = tmp_path if present else odd
    settings = SlurmSettings(container="pyxis:lab")
    with pytest.raises(ValueError, match="Pyxis cannot mount") as line:
        batch_script(
            place / "jobs" / "train-1", JobWork("w", 1, False, False, 1), settings, "9f86d0"
        )
    assert "\n" not in str(line.value)


def test_a_jobs_own_variables_are_not_those_of_its_setup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tmp_path / "place" / "run" / "jobs" / "train-1"
    job.mkdir(parents=True)
    names = ("folder", "task", "job", "restarts", "started", "place", "endpoint", "max_restarts")
    file = tmp_path / "lab.env"
    file.write_text("".join(f"{name}=x\n" for name in names))
    settings = SlurmSettings(env_file=str(file), setup=("task=7; folder=/nowhere",))
    [python] = run(tmp_path, JobWork("w", 1, False, False, 1), settings, monkeypatch)
    run_words = ["-m", "gaitforge", "jobs", "run", str(job), "--task", "0", "--sha256", "9f86d0"]
    assert python["words"] == run_words
