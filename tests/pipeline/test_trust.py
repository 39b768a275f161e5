"""Data never name code: no text of a file imports a module that the command line does not name."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.common.trust import VARIABLE, is_trusted, pieces, trust, trusted, trusting
from gaitforge.flows.runners.slurm.jobs import read_job, work_sha256
from gaitforge.flows.runners.slurm.script import JobWork, SlurmSettings, batch_script
from tests.pipeline.canary import (
    CANARY,
    DRY,
    SMALL,
    assert_no_text_imports,
    assert_trust_imports,
    code_of,
)
from tests.pipeline.command_line import call

CELL = ("--terrain", "flat", "--skill", "stand", "--episodes", "1", "--threads", "1")
READERS: dict[str, list[tuple[str, ...]]] = {
    "s.zarr/zarr.json": [
        ("train", "s.zarr", *SMALL, "--out", "out"),
        ("run", "compare", "s.zarr", "--out", "out", *DRY),
        ("verify", "s.zarr", "--replay", "1"),
    ],
    "s.zarr.records/plan-*.json": [
        ("verify", "s.zarr", "--replay", "1"),
        ("run", "compare", "s.zarr", "--out", "out", *DRY),
        ("collect", "out/x.zarr", "--plan", "{file}", *DRY),
        ("status", "s.zarr"),
    ],
    "run/plan.json": [
        ("evaluate", "run", *CELL),
        ("train", "s.zarr", "--plan", "{file}", "--out", "out/run"),
        ("status", "run"),
    ],
    "run/checkpoint.safetensors": [
        ("evaluate", "run", *CELL),
        ("train", "s.zarr", *SMALL, "--out", "run"),
    ],
}
"""File -> commands that read it."""
REFUSED: dict[str, set[str]] = {
    "s.zarr/zarr.json": set(),
    "s.zarr.records/plan-*.json": {"kind"},
    "run/plan.json": {"task", "model"},
    "run/checkpoint.safetensors": {"kind"},
}
"""File -> names of values that are refused, in some command, as names of code."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the canary's module, a legged store and a run, the present one."""
    folder = tmp_path_factory.mktemp("trust")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        patch.setenv(VARIABLE, "")
        Path("canary.py").write_text(CANARY)
        cell = ["--terrain", "flat", "--skill", "stand", "--threads", "1"]
        small = ["--set", "grid.parts=1", "--set", "grid.episodes_per_part=2"]
        assert call("collect", "s.zarr", *cell, *small) == 0
        train = ["train", "s.zarr", *SMALL, "--set", "config.held_out_fraction=0"]
        assert call(*train, "--out", "run") == 0
        yield folder


@pytest.mark.long
@pytest.mark.parametrize("name", READERS)
def test_no_text_of_a_file_imports_or_calls_what_it_names(
    place: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert_no_text_imports(place, name, READERS[name], REFUSED[name], capfd)


def test_the_same_text_by_trust_is_imported(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    [file] = place.glob("run/checkpoint.safetensors")
    assert_trust_imports(file, ["evaluate", "run", *CELL], capfd)


WORDS = st.text(st.sampled_from("ab_.:/=,;\"'{}[] \\0é"), max_size=12)


@given(st.lists(WORDS, max_size=4), WORDS)
def test_only_what_was_named_is_trusted_and_it_reaches_other_processes(
    named: list[str], text: str
) -> None:
    before = os.environ.pop(VARIABLE, None)
    try:
        with trusting(named):
            assert set(trusted()) == {part for each in named for part in pieces(each)}
            assert all(map(is_trusted, named))
            assert is_trusted(text) == (set(pieces(text)) <= set(trusted()))
            for part in trusted():  # nothing that only contains it
                longer = f"x{part}"
                assert is_trusted(longer) == (longer in trusted() or not pieces(longer))
        assert VARIABLE not in os.environ
    finally:
        if before is not None:
            os.environ[VARIABLE] = before


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["train", "s.zarr", "--model", "my:Config", "--out", "a:b"], {"my:Config"}),
        (["evaluate", "my:Policy", "--set", "env=e:make,wrapper=w:W,max_steps=3"],
         {"my:Policy", "e:make", "w:W"}),
        (["run", "compare", "s.zarr", "--out", "o", "--set",
          'learners={"g":{"model":"g:G"}}'], {"g:G"}),
        (["train", "s3://bucket/s", "--out", "o", "--trust", "x:Y"], {"x:Y"}),
        (["train", "s.zarr", "--out", "o", "--set", "config.peak_lr=0.01"], {"config.peak_lr"}),
        (["train", "s.zarr", "--out", "o", "--runner", "slurm", "--container", "pyxis:image"],
         set()),
        (["status", "there:it"], set()),
    ],
)  # fmt: skip
def test_a_command_line_trusts_the_code_in_its_options(
    words: list[str], wanted: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there:it").mkdir()
    assert code_of(words) == wanted


def test_a_jobs_script_has_the_trust_of_the_command_that_submits_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "")
    work = JobWork("gaitforge-train", 1, False, False, 3)
    assert "--trust" not in batch_script(tmp_path / "jobs" / "1", work, SlurmSettings(), "9f86d0")
    trust("my:Config", "your.env:make,wrapper=w:W")
    script = batch_script(tmp_path / "jobs" / "1", work, SlurmSettings(), "9f86d0")
    assert "--trust my:Config --trust your.env:make --trust w:W" in script
    assert "PYTHONSAFEPATH=1" in script


@pytest.mark.parametrize("work", ["words", "store"])
def test_a_received_job_folder_starts_nothing(
    work: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "evil.sh"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path / 'sang'}\n")
    program.chmod(0o755)
    record: dict[str, Any] = {"kind": "x", "target": "x", "tasks": [["a"]]}
    record |= {"words": ["sim", "list", "--isaacgym-python", str(program)]}
    if work == "store":
        del record["words"]
        record |= {"task": "canary:thing", "store": str(tmp_path / "sang"), "plan": {}}
    folder = tmp_path / "jobs" / "x"
    folder.mkdir(parents=True)
    own = work_sha256(record)
    other = work_sha256(record | {"words": ["sim", "list"]})
    for plan, sha256 in (
        (record, ""),
        (record, "0"),
        (record, other),
        (record | {"target": "y"}, own),
        (record | {"sha256": own}, ""),
    ):
        (folder / "plan.json").write_text(json.dumps(plan))
        assert call("jobs", "run", str(folder), *(["--sha256", sha256] if sha256 else [])) == 2
        assert "is not what was submitted" in capfd.readouterr().err
        assert not (tmp_path / "sang").exists()
    if work == "words":
        (folder / "plan.json").write_text(json.dumps(record | {"git": "1", "time": 2}))
        assert call("jobs", "run", str(folder), "--sha256", own) == 0
        assert (tmp_path / "sang").exists()


@pytest.mark.parametrize("field", ["id", "cluster"])
@pytest.mark.parametrize("value", ["--user=me", "1 2", "1;x", "-M", 5, None, ["1"]])
def test_a_received_jobs_record_gives_slurm_no_options(
    field: str, value: Any, tmp_path: Path
) -> None:
    record = {"id": "1", "kind": "x", "target": "x", "submitted": 1.0, "partition": ""}
    record |= {"command": [], "tasks": [[]], "cluster": "c", field: value}
    (tmp_path / "job.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match="is damaged"):
        read_job(tmp_path)


@pytest.mark.slow
def test_python_m_does_not_import_from_the_present_folder(tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text("raise SystemExit('the data ran')")
    info = tmp_path / "evil-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gaitforge.models]\nevil = yaml:Config\n")
    command = [sys.executable, "-m", "gaitforge", "models"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "evil" not in done.stdout


def test_a_worker_without_the_variable_gets_the_trust_with_its_task() -> None:
    from gaitforge.flows.runners.dask import run_parts

    sent: list[Callable[[str], object]] = []

    class Client:
        status = "running"

        def submit(self, make: Callable[[str], object], part: str, **_: object) -> Any:
            sent.append(make)
            raise KeyboardInterrupt

    with trusting(["my:Config"]), pytest.raises(KeyboardInterrupt):
        run_parts(Client(), lambda part: trusted(), ["a"], lambda records: None)  # type: ignore
    with trusting([]):
        assert sent[0]("a") == ["my:Config"]
