"""Networks in files of other projects: ONNX, which is data, and TorchScript, which is a program.

A TorchScript file can read and overwrite any file of the user. So it runs only where its content,
by SHA-256, is on a list in the user's own configuration folder, which a command line writes
(`gaitforge expert import --trust`, `gaitforge expert trust`) and nothing else.
"""

import hashlib
import io
import os
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gaitforge.common.errors import failures
from gaitforge.common.extensions import load_extra

Arrays = list[np.ndarray]
Normaliser = tuple[np.ndarray, np.ndarray]
Step = Callable[[np.ndarray, Arrays], tuple[np.ndarray, Arrays]]


def load_onnx(module: str) -> Any:
    """A module of the extra `onnx`; raises as `load_extra`."""
    return load_extra(module, "a policy in an ONNX file", "onnx")


class Network(Protocol):
    """A network in a file.

    Attributes:
        state: of a robot at an episode's start, an array for each part; empty without memory.
    """

    state: Arrays

    @property
    def parameters(self) -> int:
        """Number of trained parameters."""
        ...

    @property
    def normaliser(self) -> Normaliser | None:
        """Mean and std (D,) that normalise observations; None without normalisation."""
        ...

    def step(self, inputs: np.ndarray, state: Arrays) -> tuple[np.ndarray, Arrays]:
        """Outputs (N, A) for inputs (N, D), and the state (N, ...) after them."""
        ...


class OnnxNetwork:
    """An ONNX file whose first input is the observation, whose first output is the action.

    Further inputs are a memory: `h_in` is the last step's output `h_out`, as rsl-rl names them.
    Networks with a memory, or for one robot, take a step for each robot.
    """

    def __init__(self, path: Path, width: int) -> None:
        runtime = load_onnx("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3  # no warnings
        providers = ["CPUExecutionProvider"]
        try:
            self._session = runtime.InferenceSession(str(path), options, providers=providers)
        except Exception as error:  # ONNX Runtime has exceptions of its own for every fault
            raise ValueError(f"{path.name} cannot be read as ONNX: {_line(error)}") from None
        inputs = self._session.get_inputs()
        if not (inputs and inputs[0].shape):
            raise ValueError(f"{path.name} reads no rows of numbers, which an observation is")
        first, *memory = inputs
        self._inputs = [first.name, *(node.name for node in memory)]
        outputs = [node.name for node in self._session.get_outputs()]
        after = [f"{node.name.removesuffix('_in')}_out" for node in memory]
        if lost := [node.name for node in memory if not node.name.endswith("_in")] or [
            name for name in after if name not in outputs
        ]:
            raise ValueError(
                f"{path.name} reads {', '.join(self._inputs)}, gives {', '.join(outputs)}: after "
                f"the observation there may be a memory only, as h_in with h_out, not {lost[0]}"
            )
        if isinstance(first.shape[-1], int) and first.shape[-1] != width:
            raise ValueError(f"{path.name} reads {first.shape[-1]} numbers, the layout has {width}")
        self._outputs = [outputs[0], *after]
        self._one = bool(memory) or not isinstance(first.shape[0], str | None)
        self.state = [np.zeros(_sizes(node.shape), np.float32) for node in memory]
        try:
            self.step(np.ones((1, width), np.float32), [array[None] for array in self.state])
        except Exception as error:  # of ONNX Runtime, see above
            raise ValueError(f"{path.name} cannot read {width} numbers: {_line(error)}") from None
        self._weights = partial(_weights, path, first.name, width)

    @property
    def parameters(self) -> int:
        """See `Network`."""
        return self._weights()[0]

    @property
    def normaliser(self) -> Normaliser | None:
        """See `Network`."""
        return self._weights()[1]

    def step(self, inputs: np.ndarray, state: Arrays) -> tuple[np.ndarray, Arrays]:
        """See `Network.step`."""
        return by_robot(self._step, inputs, state) if self._one else self._step(inputs, state)

    def _step(self, inputs: np.ndarray, state: Arrays) -> tuple[np.ndarray, Arrays]:
        feed = dict(zip(self._inputs, [inputs, *state], strict=True))
        action, *after = self._session.run(self._outputs, feed)
        return action, after


def by_robot(step: Step, inputs: np.ndarray, state: Arrays) -> tuple[np.ndarray, Arrays]:
    """Outputs and state of a step that takes one robot, for N."""
    rows = [step(inputs[i : i + 1], [part[i] for part in state]) for i in range(len(inputs))]
    after = [np.stack([row[1][k] for row in rows]) for k in range(len(state))]
    return np.concatenate([row[0] for row in rows]), after


def _weights(path: Path, observation: str, width: int) -> tuple[int, Normaliser | None]:
    """Number of weights, and the constants subtracted from the observation and divided by."""
    onnx = load_onnx("onnx")
    graph = onnx.load(path).graph
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            weights[node.output[0]] = onnx.numpy_helper.to_array(node.attribute[0].t)
    count = sum(weight.size for weight in weights.values())
    constants = []
    for operation in ("Sub", "Div"):
        for node in graph.node:
            if node.op_type == operation and node.input[0] == observation:
                constant = weights.get(node.input[1], np.zeros(0)).ravel()
                if constant.size == width:
                    constants.append(constant)
                    observation = node.output[0]
    return count, (constants[0], constants[1]) if len(constants) == 2 else None


def _sizes(shape: Sequence[Any]) -> list[int]:
    """A shape for one robot: named dimensions are 1."""
    return [size if isinstance(size, int) else 1 for size in shape]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


_MAX_NAME = 200


def trusted_list() -> Path:
    """The user's list: `gaitforge/trusted-programs` in `XDG_CONFIG_HOME`, or in `~/.config`."""
    configured = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    # The specification of these folders says to ignore a relative path.
    base = configured if configured.is_absolute() else Path.home() / ".config"
    return base / "gaitforge" / "trusted-programs"


def trust_program(content: bytes, name: str) -> None:
    """Allow a program to run, now and later; `name` is for readers of the list.

    Raises:
        ValueError: the list cannot be written.
    """
    if is_trusted(content):
        return
    listed = trusted_list()
    with failures(f"{listed} cannot be written", OSError, error=ValueError):
        listed.parent.mkdir(parents=True, exist_ok=True)
        readable = "".join(letter if letter.isprintable() else "?" for letter in name)[:_MAX_NAME]
        # An edited list may lack its last line's end.
        line = f"\n{hashlib.sha256(content).hexdigest()}  {readable}\n"
        # One short write at the end: commands that trust at the same time lose no line.
        descriptor = os.open(listed, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "ab", buffering=0) as stream:
            stream.write(line.encode())
            os.fsync(stream.fileno())


def is_trusted(content: bytes) -> bool:
    """Whether the user has allowed this program; ValueError for a list that cannot be read."""
    listed = trusted_list()
    with failures(f"{listed} cannot be read", OSError, error=ValueError):
        if not listed.is_file():
            return False
        lines = listed.read_bytes().splitlines()
    digest = hashlib.sha256(content).hexdigest().encode()
    return any(line.split(maxsplit=1)[:1] == [digest] for line in lines)


def check_trusted(content: bytes, path: Path, remedy: str) -> None:
    """Raise ValueError unless the user has allowed this program; `remedy`: what allows it."""
    if not is_trusted(content):
        raise ValueError(
            f"{path} is TorchScript, a program that can read and overwrite any of your files, and "
            f"you have not allowed it to run: only if you know who made it, {remedy}; an ONNX file "
            "needs no such word"
        )


def check_torchscript(content: bytes, path: Path) -> None:
    """Raise ValueError for a file without code, such as a checkpoint; nothing of it runs."""
    try:
        names = zipfile.ZipFile(io.BytesIO(content)).namelist()
    except zipfile.BadZipFile:
        names = []
    # Both kinds are archives with one folder; only TorchScript has code in it.
    if not any(name.split("/")[1:2] == ["code"] for name in names):
        raise ValueError(
            f"{path.name} is no TorchScript file; a checkpoint has to be exported first, as "
            "ONNX or TorchScript (rsl-rl: export_policy_to_onnx, export_policy_to_jit)"
        )
