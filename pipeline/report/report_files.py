"""The files of a run folder, read and checked for its report."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gaitforge.common.errors import amount
from gaitforge.pipeline.report.pages import PICTURES, Record, data_uri

EXPERT = "expert"
PICTURE_INDEX = "pictures.json"
EXPERT_CARD = Path("expert.json")
WALL = Path("wall.json")

_HISTORY = "step loss validation_loss lr steps_per_s elapsed_s"
_CELL = "policy terrain skill level return success survival episodes"
_KEYS = {
    "summary.json": (
        "name plan dataset collect sets expert runs results overall cells wall_s versions "
        "git_revision command"
    ),
    "summary.json: runs": "run learner set score return success parameters train_s",
    "summary.json: cells": _CELL,
    "dataset.json": "control_dt_s groups levels randomisation episode_lengths spectra info",
    "dataset.json: groups": "terrain skill episodes steps return success survival",
    "dataset.json: levels": "level episodes",
    "dataset.json: randomisation": "name unit edges counts",
    "dataset.json: episode_lengths": "edges counts",
    "dataset.json: spectra": "signal unit frequency_hz energy_share channels",
    "plan.json": "experiment",
    "pictures/pictures.json": "renderer sheets",
    "pictures/pictures.json: sheets": (
        "file policy caption skill terrain level command success succeeded episodes"
    ),
    "pictures/pictures.json: film": "file still policy caption",
    "expert.json": "robot",
}
"""File, or file and field -> required keys of the file, or of each record in the field."""


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
        film: of a learner, with `uri` and `still_uri`, the data of the film and of a still; or
            None.
        expert: the expert's card; empty without one.
        stages: seconds of each stage; empty if they were not kept.
        paths: the files, relative to `root`.
    """

    root: Path
    summary: Record
    dataset: Record | None
    training: tuple[TrainingRun, ...]
    sheets: list[Record]
    film: Record | None
    expert: Record
    stages: Mapping[str, float]
    paths: tuple[Path, ...]


def read_run(run_dir: Path) -> RunFiles:
    """Read and check a run folder's files.

    Raises:
        ValueError: a file is missing, is not JSON, or lacks a field; the line names both.
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
    for name in learned:
        paths += _training_files(name)
    sheets, drawn = read_sheets(run_dir)
    film, film_files = _read_film(run_dir)
    drawn += film_files
    cards = [EXPERT_CARD] if (run_dir / EXPERT_CARD).is_file() else []
    expert = _read_object(run_dir, EXPERT_CARD) if cards else {}
    cells = expert.get("evaluation", {}).get("cells", [])
    _check_records(cells, _CELL, f"{EXPERT_CARD}: cells")
    paths += [*drawn[:1], *cards, *drawn[1:], *([WALL] if stages else [])]
    return RunFiles(
        run_dir,
        summary,
        dataset,
        training,
        sheets,
        film,
        expert,
        stages,
        paths=tuple(paths),
    )


def _read_stages(run_dir: Path) -> dict[str, float]:
    """Seconds by stage, over all runs of an interrupted one; empty without the file."""
    seconds: dict[str, float] = {}
    if not (run_dir / WALL).is_file():
        return seconds
    entries = _parse(_read_text(run_dir, WALL), str(WALL), list)
    _check_records(entries, "stage seconds", str(WALL))
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
    sheets = []
    files = [index]
    for sheet in _read_object(folder, index)["sheets"]:
        file = _picture(folder, sheet["file"])
        seed = sheet.get("seed")
        caption = sheet["caption"].removesuffix(f"; seed {seed}")  # in indexes of older runs
        alt = (
            f"{sheet['skill']} on {sheet['terrain']}, level {sheet['level']}: {sheet['command']}; "
            f"{'success' if sheet['success'] else 'no success'}, "
            f"{sheet['succeeded']} of {amount(sheet['episodes'], 'episode')} succeed"
        )
        shown = {"caption": caption, "seed": seed, "uri": data_uri(folder / file), "alt": alt}
        sheets.append({**sheet, **shown})
        files.append(file)
    return sheets, files


def _picture(folder: Path, name: str) -> Path:
    """A file that the index names; ValueError unless it lies beside the index."""
    file = PICTURES / name
    if file.name != name:
        raise ValueError(
            f"{PICTURES / PICTURE_INDEX}: '{name}' is not the name of a file beside it"
        )
    if not (folder / file).is_file():
        raise ValueError(f"the report needs {file}, which {folder} does not have")
    return file


def _read_film(folder: Path) -> tuple[Record | None, list[Path]]:
    """The film of the index with its data, and its files; None and no file without one."""
    index = PICTURES / PICTURE_INDEX
    film = _read_object(folder, index).get("film") if (folder / index).is_file() else None
    if film is None:
        return None, []
    moving = _picture(folder, film["file"])
    still = _picture(folder, film["still"])
    uris = {"uri": data_uri(folder / moving), "still_uri": data_uri(folder / still)}
    return {**film, **uris}, [moving, still]


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
    _check_records(history, _HISTORY, str(path))
    return TrainingRun(policy, _read_object(run_dir, config), history)


def _read_text(run_dir: Path, path: Path) -> str:
    try:
        return (run_dir / path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(
            f"the report needs {path}, which {run_dir} does not have; it is of experiments, as "
            "run, demo and compare make them"
        ) from None


def _read_object(run_dir: Path, path: Path) -> Record:
    """A JSON object with checked keys, also in the records of its fields."""
    record = _parse(_read_text(run_dir, path), str(path))
    for name, keys in _KEYS.items():
        file, _, field = name.partition(": ")
        if file == path.as_posix():
            records = _records(record.get(field) or []) if field else [record]
            _check_records(records, keys, name)
    return record


def _records(value: Any) -> Iterable[Record]:
    """The records in a field: a list, a record by name, or one record."""
    if isinstance(value, list):
        return value
    return value.values() if all(isinstance(item, Mapping) for item in value.values()) else [value]


def _parse(text: str, where: str, kind: type = dict) -> Any:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    if not isinstance(value, kind):
        expected = {dict: "object", list: "list"}[kind]
        raise ValueError(f"{where} must be a JSON {expected}, not a {type(value).__name__}")
    return value


def _check_records(records: Iterable[Record], keys: str, where: str) -> None:
    """Raise a ValueError that names the first field that a record lacks."""
    required = keys.split()
    for record in records:
        missing = [key for key in required if key not in record]
        if missing:
            raise ValueError(f"{where} lacks {missing[0]!r}; it needs {', '.join(required)}")
