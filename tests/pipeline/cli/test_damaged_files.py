"""Files that someone edited or a crash cut short: every command that reads them says one line."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gaitforge.common.locks import ProcessIdentity
from gaitforge.flows.records.part_records import ACTIVE, FAILED, Failure, Heartbeat, records_folder
from gaitforge.flows.records.records import to_tree, write_record
from gaitforge.flows.runners.slurm.jobs import Job, write_job
from tests.pipeline.command_line import Run, call
from tests.pipeline.report.run_folder import write_run_folder

OTHERS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.just(10**400),
    st.floats(),
    st.text(max_size=5),
    st.just([]),
    st.just([1]),
    st.just([[]]),
    st.just({}),
    st.just({"a": 1}),
)
Command = tuple[str | Path, ...]


def _places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every value in a tree of JSON, at most a few of a list."""
    yield path
    entries = list(tree.items()) if isinstance(tree, dict) else []
    if isinstance(tree, list):
        entries = list(enumerate(tree[:3]))
    for name, value in entries:
        yield from _places(value, (*path, name))


def _changed(tree: Any, path: tuple[Any, ...], change: Any) -> Any:
    """A tree with another value at a place, or without it where `change` is Ellipsis."""
    if not path:
        return None if change is ... else change
    copy = tree.copy()
    if len(path) == 1 and change is ...:
        del copy[path[0]]
    else:
        copy[path[0]] = _changed(tree[path[0]], path[1:], change)
    return copy


def _damaged(data: st.DataObject, content: bytes, lines: bool) -> bytes:
    """A file's content, cut short or with one value that is another or missing."""
    if data.draw(st.integers(0, 4)) == 0:
        return content[: data.draw(st.integers(0, len(content)))]
    rows = content.decode().splitlines() if lines else [content.decode()]
    number = data.draw(st.integers(0, len(rows) - 1))
    tree = json.loads(rows[number])
    place = data.draw(st.sampled_from(list(_places(tree))))
    rows[number] = json.dumps(_changed(tree, place, data.draw(OTHERS | st.just(...))))
    return "\n".join(rows).encode()


def _check(data: st.DataObject, run: Run, files: list[Path], commands: list[Command]) -> None:
    """Damage one of the files, and see that each command ends with at most one line of error."""
    path = data.draw(st.sampled_from(sorted(files)))
    content = path.read_bytes()
    path.write_bytes(_damaged(data, content, path.suffix == ".jsonl"))
    try:
        for command in commands:
            outcome = run(*command)
            assert outcome.code in (0, 1, 2), command
            if outcome.code == 2:
                [line] = outcome.err.splitlines()
                assert line.startswith("gaitforge")
                assert "error: " in line
    finally:
        path.write_bytes(content)


def _json(folder: Path) -> list[Path]:
    return [*folder.rglob("*.json"), *folder.rglob("*.jsonl")]


fuzzed = settings(
    max_examples=12,
    deadline=None,
    phases=(Phase.generate,),  # a smaller example tells no more, and takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run_folder(tmp_path_factory.mktemp("damaged") / "demo")


@pytest.mark.slow
@fuzzed
@given(data=st.data())
def test_a_report_of_damaged_files_is_one_line(
    data: st.DataObject, reported: Path, run: Run
) -> None:
    _check(data, run, _json(reported), [("report", reported)])


@pytest.fixture(scope="module")
def collected(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a part in work, a failed one, and a job."""
    copy = tmp_path_factory.mktemp("damaged") / store.name
    shutil.copytree(store, copy)
    records = records_folder(copy)
    shutil.copytree(records_folder(store), records)
    beat = Heartbeat("x-00001", ProcessIdentity.of_this(), 1.0, 30, 40)
    write_record(records / ACTIVE / "x-00001.json", beat.to_tree())
    failure = Failure("x-00002", "ValueError: no", "here", 3, 1.0)
    write_record(records / FAILED / "x-00002-1.json", asdict(failure))
    _write_job(copy.with_name(f"{copy.name}.jobs") / "collect-1", "collect", (("a",), ("b",)))
    return copy


def _write_job(folder: Path, kind: str, tasks: tuple[tuple[str, ...], ...]) -> None:
    write_record(folder / "plan.json", {"words": ["models"]})
    write_job(Job(folder, "12", kind, "x.zarr", 1.8e9, "", ("sbatch", "script.sh"), tasks))
    ended = {"code": 1, "host": "here", "restarts": 0, "started": 1, "ended": 2}
    write_record(folder / "exit" / "0.json", {**ended, "told": "", "note": ""})


@pytest.mark.slow
@fuzzed
@given(data=st.data())
def test_the_status_of_a_store_with_damaged_records_is_one_line(
    data: st.DataObject, collected: Path, run: Run
) -> None:
    jobs = collected.with_name(f"{collected.name}.jobs")
    commands: list[Command] = [
        ("status", collected),
        ("plan", collected),
        ("jobs", "list", collected),
        ("jobs", "run", jobs / "collect-1"),
    ]
    _check(data, run, _json(records_folder(collected)) + _json(jobs), commands)


@pytest.fixture(scope="module")
def compared(store: Path, trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment with the plan, and the files of a training and of stages."""
    out = tmp_path_factory.mktemp("damaged") / "compared"
    stage = ("--stage", "report")
    call("compare", store, "--models", "mlp", "--steps", "2", "--out", out, *stage)
    shutil.copytree(trained, out / "train" / "mlp-seed-0")
    names = ["evaluate expert", "train mlp seed 0", "compare", "report"]
    for name in names:
        state = {"key": "1", "runs": [{"started": 1.0, "seconds": 2.0}], "error": ""}
        write_record(out / "stages" / f"{name.replace(' ', '-')}.json", to_tree(state))
    _write_job(out / "jobs" / "report-1", "report", ((),))
    return out


@pytest.mark.slow
@fuzzed
@given(data=st.data())
def test_an_experiment_with_damaged_files_is_one_line(
    data: st.DataObject, compared: Path, run: Run
) -> None:
    [training] = compared.glob("train/*")
    commands: list[Command] = [
        ("status", compared),
        ("status", training),
        ("jobs", "list", compared),
        ("run", compared, "--out", compared, "--runner", "slurm", "--dry-run"),
    ]
    _check(data, run, _json(compared), commands)
