"""Reads and checks the files of a run folder for a report."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gaitforge.datasets.errors import amount
from gaitforge.pipeline.report.pages import Record, data_uri

EXPERT = "expert"
PICTURES = Path("pictures")
PICTURE_INDEX = "pictures.json"
EXPERT_CARD = Path("expert.json")
WALL = Path("wall.json")


@dataclass(frozen=True)
class TrainingRun:
    """One learned policy's training: its resolved configuration and its history, oldest first."""

    policy: str
    config: Record
    history: tuple[Record, ...]


@dataclass(frozen=True)
class RunFiles:
    """Contents of the files that a report is made from.

    Attributes:
        dataset: None for an experiment on existing stores.
        training: policies that only drove, and each learner's runs if there is one set of episodes.
        sheets: see `read_sheets`.
        expert: the expert's card; empty without one.
        stages: seconds of each stage; empty if they were not kept.
        paths: the files, relative to `root`.
    """

    root: Path
    summary: Record
    dataset: Record | None
    training: tuple[TrainingRun, ...]
    sheets: list[Record]
    expert: Record
    stages: Mapping[str, float]
    paths: tuple[Path, ...]


def read_run(run_dir: Path) -> RunFiles:
    """Read and check a run folder's files.

    Raises:
        ValueError: a file is missing or is not JSON; the line names it.
        KeyError: a file lacks a field.
    """
    if not run_dir.is_dir():
        raise ValueError(f"no run folder at {run_dir}; `gaitforge demo --out DIR` makes one")
    paths = [Path("summary.json"), Path("plan.json")]
    summary, _ = (_read_object(run_dir, path) for path in paths)
    dataset = None
    if summary["dataset"] is not None:
        paths.append(Path("dataset.json"))
        dataset = _read_object(run_dir, paths[-1])
    stages = _read_stages(run_dir)
    trained = [stage.removeprefix("train ") for stage in stages if stage.startswith("train ")]
    runs = [run["run"] for run in summary["runs"]]
    only_drove = [name for name in trained if name not in runs]
    learned = [name for name in only_drove if (run_dir / _training_files(name)[0]).is_file()]
    learned += runs if len(summary["sets"]) == 1 else []
    training = tuple(_read_training(run_dir, policy) for policy in learned)
    for policy in learned:
        paths += _training_files(policy)
    sheets, drawn = read_sheets(run_dir)
    cards = [EXPERT_CARD] if (run_dir / EXPERT_CARD).is_file() else []
    expert = _read_object(run_dir, EXPERT_CARD) if cards else {}
    paths += [*drawn[:1], *cards, *drawn[1:], *([WALL] if stages else [])]
    return RunFiles(run_dir, summary, dataset, training, sheets, expert, stages, tuple(paths))


def _read_stages(run_dir: Path) -> dict[str, float]:
    """Seconds by stage, over all runs of an interrupted one; empty without the file."""
    seconds: dict[str, float] = {}
    if not (run_dir / WALL).is_file():
        return seconds
    entries = _parse(_read_text(run_dir, WALL), str(WALL), list)
    for entry in entries:
        seconds[entry["stage"]] = seconds.get(entry["stage"], 0.0) + entry["seconds"]
    return seconds


def read_sheets(folder: Path) -> tuple[list[Record], list[Path]]:
    """Contact sheets with `uri`, their data, and `alt`, what they show; the files, the index first.

    Both are empty where nothing was drawn.

    Raises:
        ValueError: a picture is missing, or the index is malformed.
    """
    index = PICTURES / PICTURE_INDEX
    if not (folder / index).is_file():
        return [], []
    sheets, files = [], [index]
    for sheet in _read_object(folder, index)["sheets"]:
        file = PICTURES / sheet["file"]
        if file.name != sheet["file"]:
            raise ValueError(f"{index}: '{sheet['file']}' is not the name of a file beside it")
        if not (folder / file).is_file():
            raise ValueError(f"the report needs {file}, which {folder} does not have")
        alt = (
            f"{sheet['skill']} on {sheet['terrain']}, level {sheet['level']}: {sheet['command']}; "
            f"{'success' if sheet['success'] else 'no success'}, "
            f"{sheet['succeeded']} of {amount(sheet['episodes'], 'episode')} succeed"
        )
        sheets.append({**sheet, "uri": data_uri(folder / file), "alt": alt})
        files.append(file)
    return sheets, files


def _training_files(policy: str) -> list[Path]:
    return [Path("train", policy, name) for name in ("history.jsonl", "config.json")]


def _read_training(run_dir: Path, policy: str) -> TrainingRun:
    path, config = _training_files(policy)
    lines = _read_text(run_dir, path).splitlines()
    history = tuple(
        _parse(line, f"{path} line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    )
    if not history:
        raise ValueError(f"{path} in {run_dir} is empty; it needs one JSON object a line")
    return TrainingRun(policy, _read_object(run_dir, config), history)


def _read_text(run_dir: Path, path: Path) -> str:
    try:
        return (run_dir / path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"the report needs {path}, which {run_dir} does not have") from None


def _read_object(run_dir: Path, path: Path) -> Record:
    return _parse(_read_text(run_dir, path), str(path))


def _parse(text: str, where: str, kind: type = dict) -> Any:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    if not isinstance(value, kind):
        expected = {dict: "object", list: "list"}[kind]
        raise ValueError(f"{where} must be a JSON {expected}, not a {type(value).__name__}")
    return value
