"""A policy's step as an ONNX model and as a `torch.export` program, checked against torch."""

import contextlib
import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch

from gaitforge.common.errors import missing_package
from gaitforge.learners.control.step_modules import PolicyStep
from gaitforge.learners.policy.conditioning import RETURN_TO_GO
from gaitforge.learners.policy.policy_network import PolicyNetwork

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
        """The first `steps` as lists [step][robot][number]."""
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
