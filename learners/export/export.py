"""Export of trained policies as files that a robot's program can run without this project.

A folder holds the control step with its normalisers in one or more formats (`policy_formats`), and
`policy.json` with its description and examples of inputs and actions.

The product's own formats are `policy.onnx`, an ONNX model, and `policy.pt2`, a `torch.export`
program. Both are checked against torch.
"""

import contextlib
import copy
import io
import json
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from gaitforge.common.errors import disk_failures, missing_package
from gaitforge.common.files import fsync_tree, replace_durably, sha256_file, temporary_name
from gaitforge.learners.control.step_modules import PolicyStep
from gaitforge.learners.export.description import RobotFacts, model_properties, policy_metadata
from gaitforge.learners.export.onnx_policy import DESCRIPTION, MODEL
from gaitforge.learners.export.policy_formats import DEFAULT_FORMATS, policy_format
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.learners.tokens import RETURN_TO_GO

# The product's own formats: a policy's step as an ONNX model and as a `torch.export` program.

# First opset with Gelu and LayerNormalization as single operations (ONNX 1.15).
OPSET = 20
TOLERANCE = 1e-5
_PROGRAM = "policy.pt2"

Step = Callable[[list[np.ndarray]], Sequence[np.ndarray]]
"""A control step: inputs ordered by `PolicyStep.input_names` -> outputs by `output_names`."""


@dataclass(frozen=True)
class KnownAnswers:
    """Inputs and actions of the first steps of an episode.

    observation (T, B, Do); targets: (T, B) of each of `PolicyStep.targets`; action (T, B, A).
    """

    observation: np.ndarray
    targets: dict[str, np.ndarray]
    action: np.ndarray

    def to_json(self, steps: int) -> dict[str, object]:
        """The first `steps` as nested lists: steps, robots, numbers."""
        return {
            "tolerance": TOLERANCE,
            "observation": self.observation[:steps].tolist(),
            **{name: values[:steps].tolist() for name, values in self.targets.items()},
            "action": self.action[:steps].tolist(),
        }


def make_known_answers(policy: PolicyNetwork, batch_size: int, steps: int) -> KnownAnswers:
    """Random observations distributed like the data's, and the policy's actions."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(steps, batch_size, policy.layout.obs_dim, generator=generator)
    observation = policy.obs_normaliser.restore(noise)[..., : policy.layout.stored_dim]
    names = policy.condition.inputs if policy.conditioned else ()
    targets = {name: torch.rand(steps, batch_size, generator=generator) for name in names}
    columns = policy.condition.in_control(targets) if targets else None
    condition = None if columns is None else torch.stack(columns, dim=-1)
    if RETURN_TO_GO in targets:
        targets[RETURN_TO_GO] = policy.return_zero + targets[RETURN_TO_GO] * policy.return_scale
    actions = []
    with torch.no_grad():
        state = policy.init_state(batch_size)
        action = torch.zeros(batch_size, policy.act_dim)
        for step in range(steps):
            obs = policy.observation(observation[step], action)
            action, state = policy.step(obs, state, None if condition is None else condition[step])
            actions.append(action.clone())
    return KnownAnswers(
        observation.numpy(),
        {name: values.numpy() for name, values in targets.items()},
        torch.stack(actions).numpy(),
    )


def check_step(step: Step, module: PolicyStep, vector: KnownAnswers, what: str) -> float:
    """The largest error of an episode, relative to actions above 1; ValueError above TOLERANCE."""
    state = {tensor.name: tensor.initial.numpy() for tensor in module.state_tensors}
    worst = 0.0
    for index, observation in enumerate(vector.observation):
        inputs = {"observation": observation, **state}
        inputs |= {name: values[index] for name, values in vector.targets.items()}
        results = step([inputs[name] for name in module.input_names])
        outputs = dict(zip(module.output_names, results, strict=True))
        expected = vector.action[index]
        error = np.abs(outputs["action"] - expected) / np.maximum(1.0, np.abs(expected))
        worst = max(worst, float(error.max()))
        state = {name: outputs[f"next_{name}"] for name in state}
    if not worst <= TOLERANCE:
        raise ValueError(
            f"the {what} differs from the policy by {worst:.1e}, more than {TOLERANCE:.0e}; "
            "it is not written"
        )
    return worst


def trace(module: PolicyStep) -> torch.export.ExportedProgram:
    """The step as a graph of tensor operations."""
    frozen = copy.deepcopy(module).requires_grad_(False)
    with torch.no_grad():
        program = torch.export.export(frozen, module.example_inputs(), strict=False)
    for node in program.graph.nodes:
        # The program must not hold paths of this machine.
        node.meta.pop("stack_trace", None)
        node.meta.pop("nn_module_stack", None)
        node.meta.pop("source_fn_stack", None)
    return program


def to_pt2(program: torch.export.ExportedProgram, *_: object) -> bytes:
    """An archive for `torch.export.load`; arguments as `to_onnx`."""
    buffer = io.BytesIO()
    examples = program.example_inputs
    program.example_inputs = None  # torch would pickle them
    try:
        with _quiet():
            torch.export.save(program, buffer)
    finally:
        program.example_inputs = examples
    return buffer.getvalue()


def pt2_step(content: bytes, _: PolicyStep) -> Step:
    """A function that runs an archive."""
    run = torch.export.load(io.BytesIO(content)).module()

    def step(inputs: list[np.ndarray]) -> list[np.ndarray]:
        with torch.no_grad():
            results = run(*(torch.from_numpy(array.copy()) for array in inputs))
        return [tensor.numpy() for tensor in results]

    return step


def to_onnx(
    program: torch.export.ExportedProgram, module: PolicyStep, metadata: Mapping[str, Any]
) -> bytes:
    """The ONNX model with its weights and metadata.

    The metadata are strings: lists of names and numbers as CSV, other values as JSON.
    """
    onnx, _ = onnx_packages()
    with _quiet():
        exported = torch.onnx.export(
            program,
            (),
            dynamo=True,
            input_names=module.input_names,
            output_names=module.output_names,
            opset_version=OPSET,
            external_data=False,
            verbose=False,
        )
    assert exported is not None, "an export without a file returns the model"
    model = exported.model_proto
    # Runtimes refuse a newer file format than they know, whatever is in the file. torch writes the
    # newest; what only that has (metadata of nodes) is removed below.
    model.ir_version = onnx.helper.find_min_ir_version_for(model.opset_import)
    for part in (model, model.graph, *model.graph.node, *model.graph.value_info):
        part.doc_string = ""
    for part in (model.graph, *model.graph.node, *model.graph.value_info):
        del part.metadata_props[:]
    del model.metadata_props[:]
    properties = {name: _as_text(value) for name, value in metadata.items()}
    onnx.helper.set_model_props(model, properties)
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def onnx_step(content: bytes, module: PolicyStep) -> Step:
    """A function that runs an ONNX model."""
    _, runtime = onnx_packages()
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def step(inputs: list[np.ndarray]) -> Sequence[np.ndarray]:
        return session.run(module.output_names, dict(zip(module.input_names, inputs, strict=True)))

    return step


def onnx_packages() -> tuple[ModuleType, ModuleType]:
    """The packages onnx and onnxruntime; ValueError if they are not installed."""
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401 (torch's exporter writes with it)
    except ImportError as error:
        raise ValueError(missing_package("ONNX export", str(error.name), "onnx")) from None
    return onnx, onnxruntime


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and all(isinstance(item, str | int | float) for item in value):
        return ",".join(item if isinstance(item, str) else repr(item) for item in value)
    return json.dumps(value, allow_nan=False)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's warnings about optional packages and shared weights."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


# The folder of an exported policy.
_CHECKED_STEPS = 160
_STORED_STEPS = 12


@dataclass(frozen=True)
class PolicyExportOptions:
    """The formats with their own options, and the fixed number of robots per step.

    Attributes:
        formats: names of `POLICY_FORMATS`.
        batch_size: robots a step of the ONNX model and of the `torch.export` program.
        settings: format -> its options, for those that do not have their defaults.

    Raises:
        ValueError: no, an unknown or a repeated format, or no robot.
    """

    formats: tuple[str, ...] = DEFAULT_FORMATS
    batch_size: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.formats:
            policy_format(name)
        if not self.formats or len(set(self.formats)) != len(self.formats):
            raise ValueError("give each format once, and at least one")
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")

    def of(self, name: str) -> Any:
        """The options of a format; None for one that has none."""
        return self.settings.get(name) or policy_format(name).new_options()


@dataclass(frozen=True)
class WrittenFiles:
    """The files of a format.

    Attributes:
        files: path below the export's folder, with "/", -> content.
        error: the largest difference from the policy when they ran, relative to actions above 1;
            None if nothing here runs them.
        notes: what the user should know, a line each.
    """

    files: Mapping[str, bytes]
    error: float | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PolicyExport:
    """What the formats write from.

    Attributes:
        policy: on the CPU, in float32, for evaluation.
        facts: the robot and its control loop; None for a policy of no known robot.
        module: the policy's step as a pure function of tensors.
        metadata: the description, without files and known answers.
        robot: its card, for formats that need its kinematics; None if it is not here.
    """

    policy: PolicyNetwork
    facts: RobotFacts | None
    module: PolicyStep
    metadata: Mapping[str, Any]
    robot: Any = None

    @cached_property
    def answers(self) -> KnownAnswers:
        """Random observations of an episode, and the policy's actions."""
        return make_known_answers(self.policy, self.module.batch_size, _CHECKED_STEPS)

    @cached_property
    def program(self) -> torch.export.ExportedProgram:
        """The step as a graph of tensor operations."""
        return trace(self.module)


def write_onnx(export: PolicyExport, _: None) -> WrittenFiles:
    """`policy.onnx`, checked against the policy."""
    content = to_onnx(export.program, export.module, model_properties(export.metadata))
    step = onnx_step(content, export.module)
    error = check_step(step, export.module, export.answers, "ONNX model")
    return WrittenFiles({MODEL: content}, error)


def write_pt2(export: PolicyExport, _: None) -> WrittenFiles:
    """`policy.pt2`, checked against the policy."""
    content = to_pt2(export.program)
    step = pt2_step(content, export.module)
    error = check_step(step, export.module, export.answers, "pt2 program")
    return WrittenFiles({_PROGRAM: content}, error)


@dataclass(frozen=True)
class ExportResult:
    """The written files: file -> bytes, format -> largest error against torch.

    `note` says what the description lacks, in one line; empty for nothing. `format_notes` are what
    the formats say of their files.
    """

    folder: Path
    sizes: dict[str, int]
    errors: dict[str, float]
    already_there: bool = False
    note: str = ""
    format_notes: tuple[str, ...] = ()


def export_policy(
    policy: PolicyNetwork,
    card: Mapping[str, Any],
    facts: RobotFacts | None,
    dst: Path,
    options: PolicyExportOptions | None = None,
    source: Mapping[str, Any] | None = None,
    note: str = "",
    robot: Any = None,
) -> ExportResult:
    """Write a policy's files into the new folder `dst`, all or none.

    `card` is the checkpoint's, `facts` None for a policy of no known robot, `source` says in JSON
    values where the policy comes from, `note` in words what the description lacks; `robot` as in
    `PolicyExport`. Raises
    ValueError if packages are missing, the policy does not fit the robot, an exported program
    differs from the policy, or `dst` holds something else.
    """
    options = options or PolicyExportOptions()
    if "onnx" in options.formats:
        onnx_packages()
    module = PolicyStep(policy, options.batch_size)
    metadata = policy_metadata(policy, card, facts, module, source or {}, note)
    metadata["formats"] = list(options.formats)
    metadata["format_settings"] = {name: asdict(own) for name, own in options.settings.items()}
    done = _already_there(dst, metadata)
    if done is not None:
        return replace(done, note=note)
    export = PolicyExport(policy.eval(), facts, module, metadata, robot)
    contents, errors, notes = _contents(export, options)
    _write_folder(dst, contents)
    sizes = {name: len(content) for name, content in contents.items()}
    return ExportResult(dst, sizes, errors, note=note, format_notes=notes)


def _contents(
    export: PolicyExport, options: PolicyExportOptions
) -> tuple[dict[str, bytes], dict[str, float], tuple[str, ...]]:
    """File -> content, format -> error, and the formats' notes."""
    contents: dict[str, bytes] = {}
    errors: dict[str, float] = {}
    notes: list[str] = []
    for name in options.formats:
        written = policy_format(name).write(export, options.of(name))
        if twice := sorted(contents.keys() & written.files.keys()):
            raise ValueError(f"two of the formats {', '.join(options.formats)} write {twice[0]}")
        contents |= written.files
        notes += written.notes
        if written.error is not None:
            errors[name] = written.error
    description = {
        **export.metadata,
        "files": {name: sha256(content).hexdigest() for name, content in contents.items()},
        "errors": errors,
        "known_answers": export.answers.to_json(_STORED_STEPS),
    }
    return contents | {DESCRIPTION: _json_bytes(description)}, errors, tuple(notes)


def _already_there(dst: Path, metadata: Mapping[str, Any]) -> ExportResult | None:
    """The result of the same export if it is in `dst`, undamaged; None if `dst` is free."""
    if not dst.exists() or (dst.is_dir() and not any(dst.iterdir())):
        return None
    record: Any = None
    try:
        record = json.loads((dst / DESCRIPTION).read_text(encoding="utf-8"))
        names = {path.relative_to(dst).as_posix() for path in dst.rglob("*") if path.is_file()}
        same = (
            json.loads(_json_bytes(metadata)).items() <= record.items()
            and names == {*record["files"], DESCRIPTION}
            and all(sha256_file(dst / name) == digest for name, digest in record["files"].items())
        )
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, AttributeError, KeyError, TypeError):
        same = False
    if not same:
        raise ValueError(f"{dst} exists and holds something else; give a new folder")
    sizes = {name: (dst / name).stat().st_size for name in sorted([*record["files"], DESCRIPTION])}
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
                path = temporary / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            fsync_tree(temporary)
            replace_durably(temporary, dst)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
