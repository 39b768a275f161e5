"""Export trained policies as files that a robot's program can run without this project.

A folder holds the control step with its normalisers as `policy.onnx` and `policy.pt2`, and
`policy.json` with its description and examples of inputs and actions.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from gaitforge.common.errors import disk_failures
from gaitforge.common.files import fsync_tree, replace_durably, sha256_file, temporary_name
from gaitforge.learners.control.step_modules import PolicyStep
from gaitforge.learners.export import export_formats as formats
from gaitforge.learners.export.export_metadata import RobotFacts, model_properties, policy_metadata
from gaitforge.learners.export.onnx_policy import DESCRIPTION, PROGRAMS
from gaitforge.learners.policy.policy_network import PolicyNetwork

_CHECKED_STEPS = 160
_STORED_STEPS = 12


@dataclass(frozen=True)
class PolicyExportOptions:
    """The formats, and the fixed number of robots per step.

    Raises ValueError for no, an unknown or a repeated format, or no robot.
    """

    formats: tuple[str, ...] = tuple(PROGRAMS)
    batch_size: int = 1

    def __post_init__(self) -> None:
        unknown = [name for name in self.formats if name not in PROGRAMS]
        if unknown or not self.formats or len(set(self.formats)) != len(self.formats):
            wrong = f"unknown format {unknown[0]!r}" if unknown else "give each format once"
            raise ValueError(f"{wrong}; allowed: {', '.join(PROGRAMS)}")
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")


@dataclass(frozen=True)
class ExportResult:
    """The written files: file -> bytes, format -> largest error against torch."""

    folder: Path
    sizes: dict[str, int]
    errors: dict[str, float]
    already_there: bool = False


def export_policy(
    policy: PolicyNetwork,
    card: Mapping[str, Any],
    facts: RobotFacts,
    dst: Path,
    options: PolicyExportOptions | None = None,
    source: Mapping[str, Any] | None = None,
) -> ExportResult:
    """Write a policy's files into the new folder `dst`, all or none.

    `card` is the checkpoint's, `source` says in JSON values where the policy comes from. Raises
    ValueError if packages are missing, the policy does not fit the robot, an exported program
    differs from the policy, or `dst` holds something else.
    """
    options = options or PolicyExportOptions()
    if "onnx" in options.formats:
        formats.onnx_packages()
    module = PolicyStep(policy, options.batch_size)
    metadata = policy_metadata(policy, card, facts, module, source or {})
    done = _already_there(dst, metadata, options)
    if done is not None:
        return done
    contents, errors = _programs(policy, module, metadata, options)
    _write_folder(dst, contents)
    return ExportResult(dst, {name: len(content) for name, content in contents.items()}, errors)


def _programs(
    policy: PolicyNetwork,
    module: PolicyStep,
    metadata: dict[str, object],
    options: PolicyExportOptions,
) -> tuple[dict[str, bytes], dict[str, float]]:
    """File -> content, and format -> error."""
    answers = formats.make_known_answers(policy, options.batch_size, _CHECKED_STEPS)
    program = formats.trace(module)
    contents = {}
    errors = {}
    for name, (label, write, step_of) in formats.FORMATS.items():
        if name in options.formats:
            content = write(program, module, model_properties(metadata))
            errors[name] = formats.check_step(step_of(content, module), module, answers, label)
            contents[PROGRAMS[name]] = content
    description = metadata | {
        "files": {name: sha256(content).hexdigest() for name, content in contents.items()},
        "errors": errors,
        "known_answers": answers.to_json(_STORED_STEPS),
    }
    return contents | {DESCRIPTION: _json_bytes(description)}, errors


def _already_there(
    dst: Path, metadata: Mapping[str, Any], options: PolicyExportOptions
) -> ExportResult | None:
    """The result of the same export if it is in `dst`, undamaged; None if `dst` is free."""
    if not dst.exists() or (dst.is_dir() and not any(dst.iterdir())):
        return None
    files = {PROGRAMS[name] for name in options.formats}
    record: Any = None
    try:
        record = json.loads((dst / DESCRIPTION).read_text(encoding="utf-8"))
        same = (
            json.loads(_json_bytes(metadata)).items() <= record.items()
            and set(record["files"]) == files
            and {path.name for path in dst.iterdir()} == {*files, DESCRIPTION}
            and all(sha256_file(dst / name) == digest for name, digest in record["files"].items())
        )
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, AttributeError, KeyError, TypeError):
        same = False
    if not same:
        raise ValueError(f"{dst} exists and holds something else; give a new folder")
    sizes = {name: (dst / name).stat().st_size for name in sorted({*files, DESCRIPTION})}
    return ExportResult(dst, sizes, record["errors"], already_there=True)


def _json_bytes(tree: Any) -> bytes:
    return (json.dumps(tree, indent=1, allow_nan=False) + "\n").encode()


def _write_folder(dst: Path, contents: Mapping[str, bytes]) -> None:
    """Write the folder under a temporary name and rename it."""
    dst = dst.absolute()
    temporary = temporary_name(dst)
    try:
        with disk_failures(f"cannot write {dst}"):
            dst.parent.mkdir(parents=True, exist_ok=True)
            temporary.mkdir()
            for name, content in contents.items():
                (temporary / name).write_bytes(content)
            fsync_tree(temporary)
            replace_durably(temporary, dst)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
