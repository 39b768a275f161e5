"""Data never name code: no text of a file imports a module that the command line does not name."""

import copy
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.common.trust import (
    VARIABLE,
    UntrustedCodeError,
    is_trusted,
    pieces,
    trust,
    trusted,
    trusting,
)
from gaitforge.datasets import DatasetError
from gaitforge.datasets.catalog.catalog import Manifest, json_sha256
from gaitforge.datasets.layout import CATALOG, ROOT_FILE
from gaitforge.datasets.storage.records import ATTRIBUTE, DIGEST, read_root
from gaitforge.flows.runners.slurm.jobs import read_job, work_sha256
from gaitforge.flows.runners.slurm.script import JobWork, SlurmSettings, batch_script
from gaitforge.pipeline.cli.main import parsed
from gaitforge.pipeline.cli.parsing.runners import named_code
from gaitforge.plugins.gym.environments.environment_id import EnvironmentId
from tests.pipeline.command_line import call

pytest.importorskip("gymnasium")

CANARY = """
from pathlib import Path

SANG = Path(__file__).with_name("sang")
SANG.write_text("imported")


def thing(*arguments, **named):
    SANG.write_text("called")
"""
NAMES = (
    "canary:thing",
    "canary:Thing-v0,max_steps=3",
    "Pendulum-v1,wrapper=canary:thing",
)
"""Texts that name the canary, as a class or function, a registered id, and a wrapper."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the canary's module, a store, a run and an experiment, the present one."""
    folder = tmp_path_factory.mktemp("trust")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        patch.setenv(VARIABLE, "")
        Path("canary.py").write_text(CANARY)
        collect = ["gym", "collect", "s.zarr", "--env", "Pendulum-v1,max_steps=9", "--quality"]
        assert call(*collect, "random", "--steps", "40", "--processes", "1") == 0
        train = ["train", "s.zarr", "--model", "mlp", "--steps", "1", "--batch-size", "2"]
        assert call(*train, "--set", "config.held_out_fraction=0", "--out", "run") == 0
        learners = ["--learners", "mlp", "--steps", "1", "--episodes", "1", "--seeds", "0"]
        # Whether the run is better than chance, so that it can score 100, does not matter here.
        call("run", "compare", "s.zarr", *learners, "--expert", "run", "--out", "many")
        assert Path("many/plan.json").is_file()
        yield folder


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all texts in a JSON value."""
    if isinstance(tree, str):
        yield path
    elif isinstance(tree, dict | list):
        for key, inner in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(inner, (*path, key))


def replaced(tree: Any, path: tuple[Any, ...], text: str) -> Any:
    """A copy of a JSON value with another text at a path."""
    tree = copy.deepcopy(tree)
    inner = tree
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = text
    return tree


def read_json(file: Path) -> Any:
    """A JSON file's value, or a checkpoint's card."""
    if file.suffix == ".json":
        return json.loads(file.read_text())
    return json.loads(_header(file.read_bytes())[0]["__metadata__"]["card"])


def with_json(file: Path, tree: Any) -> bytes:
    """The content of a file with another value, see `read_json`."""
    if file.name == "zarr.json":  # a hostile writer makes the checksum, too
        record = tree["attributes"][ATTRIBUTE]
        own = {name: value for name, value in record.items() if name != DIGEST}
        tree["attributes"][ATTRIBUTE] = own | {DIGEST: json_sha256(own)}
    if file.suffix == ".json":
        return json.dumps(tree).encode()
    header, tensors = _header(file.read_bytes())
    header["__metadata__"]["card"] = json.dumps(tree)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + tensors


@contextmanager
def replacing(file: Path, tree: Any) -> Iterator[None]:
    """Give a file another value for the time of the block; a store's parts have its new schema."""
    catalog = (file.parent / CATALOG).glob("*.parquet") if file.name == ROOT_FILE else ()
    whole = {path: path.read_bytes() for path in (file, *catalog)}
    file.write_bytes(with_json(file, tree))
    try:
        with suppress(DatasetError):  # no schema any more
            for path in whole.keys() - {file}:
                table, schema = pq.read_table(path), read_root(file.parent).schema
                metadata = table.schema.metadata
                commit = replace(Manifest.from_metadata(metadata), schema_hash=schema.hash)
                metadata |= commit.to_metadata()
                pq.write_table(table.replace_schema_metadata(metadata), path)
        yield
    finally:
        for path, content in whole.items():
            path.write_bytes(content)


def _header(content: bytes) -> tuple[Any, bytes]:
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + length]), content[8 + length :]


DRY = ("--runner", "slurm", "--dry-run")
SMALL = ("--model", "mlp", "--steps", "1", "--batch-size", "2")
READERS: dict[str, list[tuple[str, ...]]] = {
    "s.zarr/zarr.json": [
        ("train", "s.zarr", *SMALL, "--out", "out"),
        ("run", "compare", "s.zarr", "--out", "out", *DRY),
        ("verify", "s.zarr", "--replay", "1"),
    ],
    "s.zarr.records/plan-*.json": [
        ("train", "s.zarr", *SMALL, "--out", "out"),
        ("verify", "s.zarr", "--replay", "1"),
        ("run", "compare", "s.zarr", "--out", "out", *DRY),
        ("collect", "out/x.zarr", "--plan", "{file}"),
        ("status", "s.zarr"),
        ("plan", "s.zarr"),
    ],
    "run/plan.json": [
        ("evaluate", "run", "--episodes", "1"),
        ("train", "s.zarr", "--plan", "{file}", "--out", "out/run"),
        ("run", "robustness", "run", "--out", "out/many", *DRY),
        ("view", "run", "--out", "out/page.html"),
        ("status", "run"),
    ],
    "run/config.json": [("train", "s.zarr", *SMALL, "--out", "run"), ("status", "run")],
    "run/checkpoint.safetensors": [
        ("evaluate", "run", "--episodes", "1"),
        ("export", "run", "out/exported"),
        ("gym", "collect", "out/y.zarr", "--env", "Pendulum-v1,max_steps=9", "--policies", "run",
         "--steps", "9", "--processes", "1"),
        ("train", "s.zarr", *SMALL, "--out", "run"),
    ],
    "many/plan.json": [
        ("run", "many", *DRY),
        ("run", "many", "--stage", "evaluate expert of pendulum-v1-db1e73"),
        ("status", "many"),
        ("report", "many"),
    ],
}  # fmt: skip
"""File -> commands that read it."""
REFUSED: dict[str, set[str]] = {
    "s.zarr/zarr.json": {"env"},
    "s.zarr.records/plan-*.json": {"env", "kind", "policies"},
    "run/plan.json": {"env", "task", "model"},
    "run/config.json": set(),
    "run/checkpoint.safetensors": {"kind"},
    "many/plan.json": {"expert"},
}
"""File -> names of values that are refused, in some command, as names of code."""


@pytest.mark.long
@pytest.mark.parametrize("name", READERS)
def test_no_text_of_a_file_imports_or_calls_what_it_names(
    place: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    [file] = place.glob(name)
    tree = read_json(file)
    paths = list(leaves(tree))
    assert paths
    refusals = set[str]()
    for path in paths:
        telling = path[-1] in ("env", "kind", "task", "model", "policies", "policy", "expert")
        for text in NAMES if telling else NAMES[:1]:
            with replacing(file, replaced(tree, path, text)):
                for words in READERS[name]:
                    sys.modules.pop("canary", None)
                    call(*(word.format(file=file) for word in words))
                    assert not Path("sang").exists(), f"{path} = {text}: {words}"
                    error = capfd.readouterr().err
                    assert "Traceback" not in error
                    if "names the code" in error:
                        refusals.add(str(path[-1]))
                    shutil.rmtree("out", ignore_errors=True)
    assert trusted() == []
    assert refusals >= REFUSED[name], "the texts reach what would import them"


def test_the_same_text_on_the_command_line_or_by_trust_is_imported(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    [file] = place.glob("run/checkpoint.safetensors")
    whole, tree = file.read_bytes(), read_json(file)
    file.write_bytes(with_json(file, replaced(tree, ("model", "kind"), NAMES[0])))
    try:
        for more, sings in (
            ((), False),
            (("--trust", NAMES[0]), True),
            (("--trust", "x:y"), False),
        ):
            sys.modules.pop("canary", None)
            Path("sang").unlink(missing_ok=True)
            assert call("evaluate", "run", "--episodes", "1", *more) == 2
            assert Path("sang").exists() == sings
            said = "run names the code 'canary:thing'" in capfd.readouterr().err
            assert said != sings
    finally:
        file.write_bytes(whole)
        Path("sang").unlink(missing_ok=True)
    sys.modules.pop("canary", None)
    assert call("evaluate", "run", "--task", "gym", "--set", f"env={NAMES[1]}") == 2
    assert Path("sang").exists(), "typed in a setting"
    Path("sang").unlink()


def test_training_needs_no_trust_in_the_environment_and_evaluating_does(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    module = "from gymnasium.envs.classic_control.pendulum import PendulumEnv as Own\n"
    (place / "mine.py").write_text(module + "open('sang', 'w').write('imported')\n")
    collect = ["gym", "collect", "own.zarr", "--env", "mine:Own,max_steps=9", "--quality", "random"]
    assert call(*collect, "--steps", "20", "--processes", "1") == 0
    Path("sang").unlink()
    sys.modules.pop("mine")
    train = ["train", "own.zarr", *SMALL, "--set", "config.held_out_fraction=0", "--out", "own"]
    assert call(*train) == 0
    capfd.readouterr()
    assert call("evaluate", "own", "--episodes", "1") == 2
    assert "names the code 'mine:Own'" in capfd.readouterr().err
    assert not Path("sang").exists()
    assert call("evaluate", "own", "--episodes", "1", "--trust", "mine:Own") == 0
    Path("sang").unlink()


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
        (["gym", "collect", "a:b", "--env", "e:make", "--wrapper", "w:W", "--make", "file=x.xml"],
         {"e:make", "w:W", "x.xml", "make.file"}),
        (["run", "compare", "s.zarr", "--out", "o", "--set",
          'learners={"g":{"model":"g:G"}}'], {"g:G"}),
        (["run", "robustness", "my:Policy", "--out", "o"], {"my:Policy"}),
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
    found = {part for text in named_code(parsed(words)) for part in pieces(text)}
    assert found == wanted


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


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Pendulum-v1,max_steps=9,make.g=9.81", ""),
        ("FrozenLake-v1,make.map_name=8x8", ""),
        ("Pendulum-v1,make.file=/etc/passwd", "/etc/passwd"),
        ('Pendulum-v1,make.config={"a":["os.system"]}', "os.system"),
        ('Pendulum-v1,reset.config={"os.system":1}', "os.system"),
        ("os:system,max_steps=1,make.command=id", "os:system"),
    ],
)
def test_settings_of_an_environment_may_not_name_code_or_files(text: str, code: str) -> None:
    settings = EnvironmentId.parse(text)
    if not code:
        settings.check_trusted()
        return
    with pytest.raises(UntrustedCodeError) as error:
        settings.check_trusted()
    assert error.value.text == code
    with trusting([code]):
        settings.check_trusted()


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


@pytest.mark.parametrize("trust", [(), ("--trust",)])
def test_a_flag_of_that_name_names_no_code(trust: tuple[str, ...]) -> None:
    assert named_code(parsed(["expert", "import", "walk.pt", "--name", "walk", *trust])) == []
