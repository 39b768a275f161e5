"""Trained policies as files that a robot's program can run without this project.

A folder: `policy.onnx` and `policy.pt2`, the control step with its normalisers, state in and state
out; `policy.json`, all about it in full precision, with known answers to check a runtime by.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from datasets.files import fsync_path, fsync_tree, sha256_file
from learners.deploy.export_formats import (
    check_step,
    make_known_answers,
    onnx_packages,
    onnx_properties,
    onnx_step,
    pt2_step,
    to_onnx,
    to_pt2,
    trace,
)
from learners.deploy.export_metadata import (
    RobotFacts,
    known_answers_entry,
    model_properties,
    policy_metadata,
)
from learners.deploy.step_modules import PolicyStep
from learners.policy.policy_network import PolicyNetwork

DESCRIPTION = "policy.json"
FORMATS = {"onnx": "policy.onnx", "pt2": "policy.pt2"}
_CHECKED_STEPS = 160
_STORED_STEPS = 12


@dataclass(frozen=True)
class ExportOptions:
    """Which files, and for how many robots at once (a fixed number: a robot's program has one).

    Raises:
        ValueError: no format, an unknown or a repeated one, or no robot.
    """

    formats: tuple[str, ...] = tuple(FORMATS)
    batch_size: int = 1

    def __post_init__(self) -> None:
        unknown = [name for name in self.formats if name not in FORMATS]
        if unknown or not self.formats or len(set(self.formats)) != len(self.formats):
            wrong = f"unknown format {unknown[0]!r}" if unknown else "give each format once"
            raise ValueError(f"{wrong}; formats are {', '.join(FORMATS)}")
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")


@dataclass(frozen=True)
class ExportResult:
    """What was written: file -> bytes, format -> largest error against torch in the check."""

    folder: Path
    sizes: dict[str, int]
    errors: dict[str, float]
    already_there: bool = False


def export_policy(
    policy: PolicyNetwork,
    card: Mapping[str, Any],
    facts: RobotFacts,
    dst: Path,
    options: ExportOptions | None = None,
    source: Mapping[str, Any] | None = None,
) -> ExportResult:
    """Write a policy's files into the new folder `dst`, all of them or none.

    Args:
        card: of the policy's checkpoint. source: where the policy comes from, plain JSON values.

    Raises:
        ValueError: packages are missing, the policy does not fit the robot, an exported program
            differs from the policy, or `dst` holds something else.
    """
    options = options or ExportOptions()
    if "onnx" in options.formats:
        onnx_packages()
    module = PolicyStep(policy, options.batch_size)
    metadata = policy_metadata(policy, card, facts, module, source or {})
    done = _already_there(dst, metadata, options)
    if done is not None:
        return done
    contents, errors = _programs(policy, module, metadata, options)
    sizes = _write_folder(dst, contents)
    return ExportResult(dst, sizes, errors)


def _programs(
    policy: PolicyNetwork, module: PolicyStep, metadata: dict[str, Any], options: ExportOptions
) -> tuple[dict[str, bytes], dict[str, float]]:
    """File -> content, and each format's error."""
    answers = make_known_answers(policy, options.batch_size, _CHECKED_STEPS)
    program = trace(module)
    contents, errors = {}, {}
    if "onnx" in options.formats:
        properties = onnx_properties(model_properties(metadata))
        content = to_onnx(program, module, properties)
        errors["onnx"] = check_step(onnx_step(content, module), module, answers, "ONNX model")
        contents[FORMATS["onnx"]] = content
    if "pt2" in options.formats:
        content = to_pt2(program)
        errors["pt2"] = check_step(pt2_step(content, module), module, answers, "pt2 program")
        contents[FORMATS["pt2"]] = content
    description = metadata | {
        "files": {name: sha256(content).hexdigest() for name, content in contents.items()},
        "errors": errors,
        "known_answers": known_answers_entry(answers.first(_STORED_STEPS)),
    }
    return contents | {DESCRIPTION: _json_bytes(description)}, errors


def _already_there(
    dst: Path, metadata: Mapping[str, Any], options: ExportOptions
) -> ExportResult | None:
    """The same export from before; None where `dst` is free."""
    if not dst.exists() or (dst.is_dir() and not any(dst.iterdir())):
        return None
    files = {FORMATS[name] for name in options.formats}
    found = _same_export(dst, metadata, files)
    if found is None:
        raise ValueError(f"{dst} exists and holds something else; give a new folder")
    sizes = {name: (dst / name).stat().st_size for name in sorted({*files, DESCRIPTION})}
    return ExportResult(dst, sizes, found["errors"], already_there=True)


def _same_export(
    dst: Path, metadata: Mapping[str, Any], files: set[str]
) -> Mapping[str, Any] | None:
    """The description in `dst`, if it is of this policy and all its files are whole."""
    try:
        found = json.loads((dst / DESCRIPTION).read_text(encoding="utf-8"))
        same = (
            json.loads(_json_bytes(metadata)).items() <= found.items()
            and set(found["files"]) == files
            and {path.name for path in dst.iterdir()} == {*files, DESCRIPTION}
            and all(sha256_file(dst / name) == known for name, known in found["files"].items())
        )
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, AttributeError, KeyError, TypeError):
        return None
    return found if same else None


def _json_bytes(tree: Any) -> bytes:
    return (json.dumps(tree, indent=1, allow_nan=False) + "\n").encode()


def _write_folder(dst: Path, contents: Mapping[str, bytes]) -> dict[str, int]:
    """Make the folder appear whole."""
    dst = dst.absolute()
    temporary = dst.with_name(f".{dst.name}.{os.getpid()}.tmp")
    try:
        dst.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        for name, content in contents.items():
            (temporary / name).write_bytes(content)
        fsync_tree(temporary)
        os.rename(temporary, dst)
        fsync_path(dst.parent)
    except OSError as error:
        raise ValueError(f"cannot write {dst}: {error.strerror}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return {name: len(content) for name, content in contents.items()}
