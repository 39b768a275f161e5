"""TorchScript files of rsl-rl's and legged_gym's exporters, once the user trusts them."""

import io
import shlex
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gaitforge.plugins.robots.imported_experts.networks import (
    Arrays,
    by_robot,
    check_torchscript,
    check_trusted,
)

_NORMALISER = ("_mean", "_std")
"""Names of rsl-rl's buffers (rsl_rl/modules/normalization.py)."""
_NONE = np.zeros(0)
_TRIAL_STEPS = 8
_OPAQUE = ("prim::CallMethod", "prim::fork", "prim::awaitable")
"""Calls that an inlined graph does not show."""
_HELD_TYPES = frozenset(
    {torch.float16, torch.float32, torch.float64, torch.bool}
    | {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
)
"""Types of tensors that NumPy has, too."""


class TorchScriptNetwork:
    """A scripted or traced module, called with observations (N, D).

    Its memory is what a step changes in the module, in place or by assignment: tensors, such as
    rsl-rl's `hidden_state`, and numbers. With a memory it takes a step for each robot.

    Raises:
        ValueError: a file that is no TorchScript, such as a checkpoint; one that the user has not
            allowed to run; a module that does not read `width` numbers, or that keeps a memory
            which cannot be set back, such as a list.
    """

    def __init__(self, path: Path, width: int) -> None:
        content = path.read_bytes()
        check_torchscript(content, path)
        remedy = f"`gaitforge expert trust {shlex.quote(str(path.parent))}`"
        check_trusted(content, path, remedy)
        try:
            with warnings.catch_warnings():  # newer versions of torch advise its makers
                warnings.simplefilter("ignore", FutureWarning)
                self._module = torch.jit.load(io.BytesIO(content), map_location="cpu").eval()
        except RuntimeError as error:
            raise ValueError(f"{path.name} cannot be read: {_reason(error)}") from None
        self._name = path.name
        self._memory: list[_Attribute] = []
        attributes = list(_attributes(self._module, path.name))
        try:
            self._try(attributes, width)
        except (RuntimeError, AttributeError, TypeError) as error:  # it may give no tensor
            reason = _reason(error)
            raise ValueError(f"{path.name} cannot read {width} numbers: {reason}") from None
        self._others = [attribute for attribute in attributes if attribute not in self._memory]
        self.state: Arrays = [attribute.array() for attribute in self._memory]
        self.parameters = sum(parameter.numel() for parameter in self._module.parameters())
        named = {
            name.rpartition(".")[2]: buffer.numpy() for name, buffer in self._module.named_buffers()
        }
        fits = all(named.get(name, _NONE).size == width for name in _NORMALISER)
        mean, std = (named[name].ravel() for name in _NORMALISER) if fits else (_NONE, _NONE)
        self.normaliser = (mean, std) if fits else None

    def step(self, inputs: np.ndarray, state: Arrays) -> tuple[np.ndarray, Arrays]:
        """See `Network.step`; ValueError once the module changes what no trial step changed."""
        outputs, after = by_robot(self._step, inputs, state) if state else self._step(inputs, state)
        for attribute in self._others:
            if attribute.written():
                raise ValueError(
                    f"{self._name} changes '{attribute.name}' only after some steps: no memory "
                    "that can be set back at an episode's start; export it as ONNX"
                )
        return outputs, after

    def _try(self, attributes: "list[_Attribute]", width: int) -> None:
        """Find the memory by steps with different inputs, and set the start back."""
        generator = np.random.default_rng(0)
        inputs = [np.ones((1, width)), *generator.normal(size=(_TRIAL_STEPS - 1, 1, width))]
        for values in inputs:
            self._step(values.astype(np.float32), [])
        for attribute in attributes:
            if attribute.assigned or attribute.written() or attribute.differs():
                if not attribute.can_be_held():
                    raise ValueError(
                        f"{self._name} keeps a memory in '{attribute.name}' that cannot be set "
                        "back at an episode's start: allowed are tensors of one shape and type, "
                        "and numbers; export it as ONNX"
                    )
                self._memory.append(attribute)
        for attribute in self._memory:
            attribute.restore(attribute.array())

    def _step(self, inputs: np.ndarray, state: Arrays) -> tuple[np.ndarray, Arrays]:
        with torch.inference_mode():
            for attribute, value in zip(self._memory, state, strict=True):
                attribute.restore(value)
            # A module may return one of its own tensors, which its next step overwrites.
            outputs = self._module(torch.from_numpy(inputs)).numpy().copy()
            return outputs, [attribute.now() for attribute in self._memory]


@dataclass(eq=False)
class _Attribute:
    """A value of a module that its step reads or assigns, not a module.

    Attributes:
        owner: the module; name: of the attribute, with the module's path.
        assigned: whether the code has a statement that assigns it, taken in the trial or not.
        start: its value before the first step. A tensor is kept as the object and as a copy.
    """

    owner: Any
    name: str
    assigned: bool
    start: Any
    copy: Any
    version: int

    @property
    def _last(self) -> str:
        return self.name.rpartition(".")[2]

    def _value(self) -> Any:
        return getattr(self.owner, self._last)

    def differs(self) -> bool:
        """Whether its value is another than at the start."""
        return not _equal(self._value(), self.copy)

    def written(self) -> bool:
        """The same, but by torch's count of writes in place: cheap enough for every step."""
        value = self._value()
        if isinstance(self.start, torch.Tensor) and _same_memory(value, self.start):
            return self.start._version != self.version
        return self.differs()

    def can_be_held(self) -> bool:
        """Whether its value can be kept in an array, for each robot."""
        value = self._value()
        if not isinstance(self.start, torch.Tensor):
            return isinstance(self.start, bool | int | float) and type(value) is type(self.start)
        if not isinstance(value, torch.Tensor) or value.shape != self.start.shape:
            return False
        kinds_fit = value.dtype == self.start.dtype and value.dtype in _HELD_TYPES
        return kinds_fit and self.start.is_contiguous()

    def array(self) -> np.ndarray:
        """The start's value."""
        return self.copy.numpy() if isinstance(self.copy, torch.Tensor) else np.array(self.copy)

    def now(self) -> np.ndarray:
        """The present value; ValueError where its shape or type has changed."""
        if not self.can_be_held():
            raise ValueError(f"the memory '{self.name}' changes its shape or type")
        value = self._value()
        if isinstance(value, torch.Tensor):
            return value.detach().numpy().copy()
        return np.array(value)

    def restore(self, value: np.ndarray) -> None:
        """Set a value, into the tensor of the start: the module may have assigned its input."""
        if isinstance(self.start, torch.Tensor):
            self.start.copy_(torch.from_numpy(np.asarray(value)))
            setattr(self.owner, self._last, self.start)
        else:
            setattr(self.owner, self._last, np.asarray(value).item())


def _attributes(module: Any, file: str) -> Iterator[_Attribute]:
    """What the code of a module reads or assigns; ValueError for calls that it does not show."""
    graph = module.inlined_graph
    if any(graph.findAllNodes(kind) for kind in _OPAQUE):
        raise ValueError(f"{file} calls methods whose memory cannot be seen; export it as ONNX")
    assigned: dict[tuple[str, ...], bool] = {}
    for kind in ("prim::GetAttr", "prim::SetAttr"):
        for node in graph.findAllNodes(kind):
            holder = next(iter(node.inputs()))
            if holder.node().kind() == "prim::CreateObject":
                continue  # an object of this step only
            path = (*_path(holder, file), node.s("name"))
            assigned[path] = assigned.get(path, False) or kind == "prim::SetAttr"
    for path, is_assigned in assigned.items():
        owner = reduce(getattr, path[:-1], module)
        value = getattr(owner, path[-1])
        if isinstance(value, torch.nn.Module):
            continue
        version = value._version if isinstance(value, torch.Tensor) else 0
        yield _Attribute(owner, ".".join(path), is_assigned, value, _copied(value), version)


def _path(value: Any, file: str) -> tuple[str, ...]:
    """The names from the module to a value of its graph that is a module."""
    node = value.node()
    if node.kind() == "prim::Param":
        return ()
    if node.kind() != "prim::GetAttr":
        raise ValueError(f"{file} keeps a memory in an object ({node.kind()}); export it as ONNX")
    return (*_path(next(iter(node.inputs())), file), node.s("name"))


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, list | tuple):
        return [_copied(part) for part in value]
    if isinstance(value, dict):
        return {name: _copied(part) for name, part in value.items()}
    return value


def _equal(value: Any, other: Any) -> bool:
    """Whether two values are the same, to the bit for tensors of the same type."""
    if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
        same = value.dtype == other.dtype and value.shape == other.shape
        return same and torch.equal(value.detach(), other)
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return len(value) == len(other) and all(map(_equal, value, other))
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(_equal(value[k], other[k]) for k in value)
    return type(value) is type(other) and value == other


def _same_memory(value: Any, tensor: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.data_ptr() == tensor.data_ptr()


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
