"""Reads and checks the files of a run folder that a report is made from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]

EXPERT = "expert"
PICTURES = Path("pictures")
PICTURE_INDEX = "pictures.json"
EXPERT_CARD = Path("expert.json")
BENCH = Path("bench_learners.json")

_SUMMARY = "dataset collect policies cells wall_s versions git_revision command"
_DATASET = "control_dt_s groups levels randomisation episode_lengths spectra info"
_POLICY = (
    "return return_fraction success survival parameters train_s latency_us_median latency_us_p99"
)
_CELL = "policy terrain skill level return success survival episodes"
_GROUP = "terrain skill episodes steps return success survival"
_SHEET = "file skill terrain level command success succeeded episodes"
_BENCH = "train_step_ms control_step_us attention bars notes config"
_HISTORY = "step loss validation_loss lr steps_per_s elapsed_s"
_DRAW = "name unit edges counts"
_SPECTRUM = "signal unit frequency_hz energy_share channels"
"""The keys that records of the files must have."""


@dataclass(frozen=True)
class TrainingRun:
    """One learned policy's training: its resolved configuration and its history, oldest first."""

    policy: str
    config: Record
    history: tuple[Record, ...]


@dataclass(frozen=True)
class RunFiles:
    """All that a report is made from, as read; `paths` are the files, relative to `root`.

    `pictures` is None where none were drawn, `expert` where the run holds no card of its expert,
    `bench` where the learners' speeds were not measured into its folder.
    """

    root: Path
    summary: Record
    dataset: Record
    plan: Record
    training: tuple[TrainingRun, ...]
    pictures: Record | None
    expert: Record | None
    bench: Record | None
    paths: tuple[Path, ...]


def read_run(run_dir: Path) -> RunFiles:
    """Read and check a run folder's files.

    Raises:
        ValueError: a file is missing, is not JSON, or lacks a field; the line names both.
    """
    if not run_dir.is_dir():
        raise ValueError(f"no run folder at {run_dir}; `gaitforge demo --out DIR` makes one")
    summary = _read_object(run_dir, Path("summary.json"), _SUMMARY)
    _check_records(summary["policies"].values(), _POLICY, "summary.json: policies")
    _check_records(summary["cells"], _CELL, "summary.json: cells")
    dataset = _read_object(run_dir, Path("dataset.json"), _DATASET)
    for name, keys in (
        ("groups", _GROUP),
        ("levels", "level episodes"),
        ("randomisation", _DRAW),
        ("spectra", _SPECTRUM),
    ):
        _check_records(dataset[name], keys, f"dataset.json: {name}")
    _check_records([dataset["episode_lengths"]], "edges counts", "dataset.json: lengths")
    plan = _read_object(run_dir, Path("plan.json"))
    learned = [name for name in summary["policies"] if name != EXPERT]
    training = tuple(_read_training(run_dir, policy) for policy in learned)
    paths = [Path("summary.json"), Path("dataset.json"), Path("plan.json")]
    for policy in learned:
        paths += [_history_path(policy), _config_path(policy)]
    pictures = _read_pictures(run_dir)
    if pictures is not None:
        sheets = [PICTURES / sheet["file"] for sheet in pictures["sheets"]]
        paths += [PICTURES / PICTURE_INDEX, *sheets]
    expert = bench = None
    if (run_dir / EXPERT_CARD).is_file():
        expert = _read_object(run_dir, EXPERT_CARD, "robot")
        cells = expert.get("evaluation", {}).get("cells", [])
        _check_records(cells, _CELL, f"{EXPERT_CARD}: cells")
        paths.append(EXPERT_CARD)
    if (run_dir / BENCH).is_file():
        bench = _read_object(run_dir, BENCH, _BENCH)
        paths.append(BENCH)
    return RunFiles(
        run_dir, summary, dataset, plan, training, pictures, expert, bench, tuple(paths)
    )


def _read_pictures(run_dir: Path) -> Record | None:
    path = PICTURES / PICTURE_INDEX
    if not (run_dir / path).is_file():
        return None
    record = _read_object(run_dir, path, "renderer sheets")
    _check_records(record["sheets"], _SHEET, f"{path}: sheets")
    for sheet in record["sheets"]:
        if Path(sheet["file"]).name != sheet["file"]:
            raise ValueError(f"{path}: '{sheet['file']}' is not the name of a file beside it")
        if not (run_dir / PICTURES / sheet["file"]).is_file():
            name = PICTURES / sheet["file"]
            raise ValueError(f"the report needs {name}, which {run_dir} does not have")
    return record


def _history_path(policy: str) -> Path:
    return Path("train") / policy / "history.jsonl"


def _config_path(policy: str) -> Path:
    return Path("train") / policy / "config.json"


def _read_training(run_dir: Path, policy: str) -> TrainingRun:
    path = _history_path(policy)
    lines = _read_text(run_dir, path).splitlines()
    history = tuple(
        _parse_object(line, f"{path} line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    )
    if not history:
        raise ValueError(f"{path} in {run_dir} is empty; it needs one JSON object a line")
    _check_records(history, _HISTORY, str(path))
    return TrainingRun(policy, _read_object(run_dir, _config_path(policy)), history)


def _read_text(run_dir: Path, path: Path) -> str:
    try:
        return (run_dir / path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"the report needs {path}, which {run_dir} does not have") from None


def _read_object(run_dir: Path, path: Path, keys: str = "") -> Record:
    record = _parse_object(_read_text(run_dir, path), str(path))
    _check_records([record], keys, str(path))
    return record


def _parse_object(text: str, where: str) -> Record:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be a JSON object, not a {type(value).__name__}")
    return value


def _check_records(records: Iterable[Record], keys: str, where: str) -> None:
    """Raise a ValueError that names the first field that a record lacks."""
    wanted = keys.split()
    for record in records:
        missing = [key for key in wanted if key not in record]
        if missing:
            raise ValueError(f"{where} lacks {missing[0]!r}; it needs {', '.join(wanted)}")
