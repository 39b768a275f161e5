"""Export of trained policies as files that a robot's program can run without this project.

A folder holds the control step with its normalisers as `policy.onnx` and `policy.pt2`, and
`policy.json` with its description and examples of inputs and actions.

`policy.onnx` is an ONNX model and `policy.pt2` a `torch.export` program. Both are checked against
torch.
"""

import contextlib
import copy
import io
import json
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from gaitforge.common.errors import disk_failures, missing_package
from gaitforge.common.files import fsync_tree, replace_durably, sha256_file, temporary_name
from gaitforge.learners.checkpoint import check_layout
from gaitforge.learners.control.step_modules import PolicyStep, StateTensor
from gaitforge.learners.export.onnx_policy import DESCRIPTION, FORMAT, FORMAT_VERSION, PROGRAMS
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.learners.tokens import RETURN_TO_GO, TARGET

# Formats: a policy's step as an ONNX model and as a `torch.export` program.

# First opset with Gelu and LayerNormalization as single operations (ONNX 1.15).
OPSET = 20
TOLERANCE = 1e-5

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
    program.example_inputs = None  # torch would pickle them
    with _quiet():
        torch.export.save(program, buffer)
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


FORMATS = {"onnx": ("ONNX model", to_onnx, onnx_step), "pt2": ("pt2 program", to_pt2, pt2_step)}
"""Name -> what it is, the function that writes it, and the function that runs it."""


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


# Description of an exported policy for a robot's program.
@dataclass(frozen=True)
class CommandFacts:
    """One number of the command, with its range in training."""

    name: str
    unit: str
    low: float
    high: float


@dataclass(frozen=True)
class FieldFacts:
    """One field of the observation; `meaning` says its frame."""

    start: int
    stop: int
    unit: str
    meaning: str


@dataclass(frozen=True)
class RobotFacts:
    """The robot and the control loop of a policy, joints in the order of `joint_names`.

    A joint's target is default_joint_pos + action_scale * action, with the action clipped to
    +-action_limit and the target to the joint's limits widened by target_margin. The PD law runs
    at least `decimation` times in a control step of `control_dt_s`.
    """

    robot: str
    joint_names: tuple[str, ...]
    default_joint_pos_rad: tuple[float, ...]
    joint_lower_rad: tuple[float, ...]
    joint_upper_rad: tuple[float, ...]
    kp_nm_per_rad: tuple[float, ...]
    kd_nms_per_rad: tuple[float, ...]
    torque_limit_nm: tuple[float, ...]
    action_scale_rad: float
    action_limit: float
    target_margin_rad: float
    control_dt_s: float
    decimation: int
    observation: Mapping[str, FieldFacts]
    command: tuple[CommandFacts, ...]

    @property
    def obs_slices(self) -> dict[str, tuple[int, int]]:
        """Field -> (start, stop)."""
        return {name: (span.start, span.stop) for name, span in self.observation.items()}


def policy_metadata(
    policy: PolicyNetwork,
    card: Mapping[str, Any],
    facts: RobotFacts | None,
    module: PolicyStep,
    source: Mapping[str, Any],
    note: str = "",
) -> dict[str, object]:
    """The description without files and known answers; JSON values.

    Without `facts` the robot's entries are None, and units and meanings of the observation.

    Raises ValueError if the robot has other observations or another number of joints.
    """
    control: dict[str, object] | None = None
    command: list[object] | None = None
    if facts is None:
        slices = sorted(policy.layout.stored_slices.items(), key=lambda item: item[1])
        observation = {
            name: {"start": start, "stop": stop, "unit": None, "meaning": None}
            for name, (start, stop) in slices
        }
    else:
        _check_robot(policy, facts)
        loop = asdict(facts)
        observation = loop.pop("observation")
        command = list(loop.pop("command"))
        control = {k: list(v) if isinstance(v, tuple) else v for k, v in loop.items()}
    targets = module.targets
    returns = {
        "expert_return": policy.return_at(1.0),
        "zero_return": policy.return_at(0.0),
        "unit": "sum of stored rewards",
    }
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "model": dict(card["model"]),
        "parameters": card.get("parameters"),
        "batch_size": module.batch_size,
        "observation": {"dim": module.obs_dim, "fields": observation},
        "command": command,
        "action": {"dim": policy.act_dim, "filter": policy.action_filter},
        "return_to_go": returns if RETURN_TO_GO in targets else None,
        "target": {"labels": policy.condition.labels} if TARGET in targets else None,
        "state": [_state_entry(tensor) for tensor in module.state_tensors],
        "inputs": module.input_names,
        "outputs": module.output_names,
        "control": control,
        "note": note,
        "source": dict(source),
    }


def _check_robot(policy: PolicyNetwork, facts: RobotFacts) -> None:
    check_layout(policy.layout, facts.obs_slices, "the policy")
    if policy.act_dim != len(facts.joint_names):
        raise ValueError(
            f"the policy moves {policy.act_dim} joints, but {facts.robot} has "
            f"{len(facts.joint_names)}"
        )


def model_properties(metadata: Mapping[str, Any]) -> dict[str, object]:
    """The description under short names, for the properties of an ONNX file.

    Names as mjlab's runtimes read them; `gaitforge` holds the whole description. Those of a robot
    are absent without one.
    """
    source = metadata["source"]
    fields = metadata["observation"]["fields"]
    return {
        "run_path": source.get("run", ""),
        "observation_names": list(fields),
        "observation_slices": {name: [f["start"], f["stop"]] for name, f in fields.items()},
        **(_robot_properties(metadata) if metadata["control"] else {}),
        "dataset_version": str(source.get("dataset_version", "")),
        "dataset_hash": source.get("dataset_hash", ""),
        "checkpoint_hash": source.get("checkpoint_sha256", ""),
        "format_version": str(metadata["format_version"]),
        "gaitforge": dict(metadata),
    }


def _robot_properties(metadata: Mapping[str, Any]) -> dict[str, object]:
    control = metadata["control"]
    return {
        "joint_names": control["joint_names"],
        "joint_stiffness": control["kp_nm_per_rad"],
        "joint_damping": control["kd_nms_per_rad"],
        "default_joint_pos": control["default_joint_pos_rad"],
        "command_names": [command["name"] for command in metadata["command"]],
        "action_scale": [control["action_scale_rad"]],
        "action_limit": [control["action_limit"]],
        "joint_pos_lower": control["joint_lower_rad"],
        "joint_pos_upper": control["joint_upper_rad"],
        "joint_torque_limit": control["torque_limit_nm"],
        "control_dt": [control["control_dt_s"]],
        "decimation": [control["decimation"]],
        "command_ranges": {
            command["name"]: [command["low"], command["high"]] for command in metadata["command"]
        },
    }


def _state_entry(state: StateTensor) -> dict[str, object]:
    values = state.initial.unique()
    assert values.numel() == 1, "every network starts from a uniform state"
    fill = values.item()
    return {
        "input": state.name,
        "output": f"next_{state.name}",
        "shape": list(state.initial.shape),
        "dtype": str(np.dtype(str(state.initial.dtype).removeprefix("torch."))),
        # JSON has no infinity.
        "fill": fill if torch.isfinite(values).all() else str(fill),
        "batch_axis": state.batch_axis,
        "in_place": state.in_place,
    }


# The folder of an exported policy.
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
    """The written files: file -> bytes, format -> largest error against torch.

    `note` says what the description lacks, in one line; empty for nothing.
    """

    folder: Path
    sizes: dict[str, int]
    errors: dict[str, float]
    already_there: bool = False
    note: str = ""


def export_policy(
    policy: PolicyNetwork,
    card: Mapping[str, Any],
    facts: RobotFacts | None,
    dst: Path,
    options: PolicyExportOptions | None = None,
    source: Mapping[str, Any] | None = None,
    note: str = "",
) -> ExportResult:
    """Write a policy's files into the new folder `dst`, all or none.

    `card` is the checkpoint's, `facts` None for a policy of no known robot, `source` says in JSON
    values where the policy comes from, `note` in words what the description lacks. Raises
    ValueError if packages are missing, the policy does not fit the robot, an exported program
    differs from the policy, or `dst` holds something else.
    """
    options = options or PolicyExportOptions()
    if "onnx" in options.formats:
        onnx_packages()
    module = PolicyStep(policy, options.batch_size)
    metadata = policy_metadata(policy, card, facts, module, source or {}, note)
    done = _already_there(dst, metadata, options)
    if done is not None:
        return replace(done, note=note)
    contents, errors = _programs(policy, module, metadata, options)
    _write_folder(dst, contents)
    sizes = {name: len(content) for name, content in contents.items()}
    return ExportResult(dst, sizes, errors, note=note)


def _programs(
    policy: PolicyNetwork,
    module: PolicyStep,
    metadata: dict[str, object],
    options: PolicyExportOptions,
) -> tuple[dict[str, bytes], dict[str, float]]:
    """File -> content, and format -> error."""
    answers = make_known_answers(policy, options.batch_size, _CHECKED_STEPS)
    program = trace(module)
    contents = {}
    errors = {}
    for name, (label, write, step_of) in FORMATS.items():
        if name in options.formats:
            content = write(program, module, model_properties(metadata))
            errors[name] = check_step(step_of(content, module), module, answers, label)
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
