"""A policy of another program in an ONNX file."""

from pathlib import Path

import numpy as np

from gaitforge.learners.control.control import ControlObservation


class OnnxFile:
    """A policy without memory: one input (N, D) float32, its first output the actions (N, A).

    Each robot is computed alone, so that its actions do not depend on the others'.

    Raises:
        ValueError: no such file, missing onnxruntime, or a file with several inputs.
    """

    parameters = 0

    def __init__(self, path: Path, robots: int) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise ValueError(f"{path} needs onnxruntime: pip install onnxruntime") from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        providers = ["CPUExecutionProvider"]
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        except Exception as error:  # onnxruntime has many kinds
            reason = str(error).splitlines()[0]
            raise ValueError(f"{path} cannot be read as ONNX: {reason}") from error
        inputs = [argument.name for argument in self._session.get_inputs()]
        if len(inputs) != 1:
            raise ValueError(
                f"{path} has the inputs {', '.join(inputs)}; allowed: one, the observation. Give a "
                "policy with a memory as module:Class"
            )
        self.name = path.stem
        self._path = path
        self._input = inputs[0]

    def reset(self, ids: np.ndarray) -> None:
        """Nothing to forget."""

    def act(self, observation: ControlObservation) -> np.ndarray:
        """(N, A) float32."""
        rows = np.ascontiguousarray(observation.policy, np.float32)[:, None]
        try:
            acts = [np.asarray(self._session.run(None, {self._input: row})[0]) for row in rows]
            return np.concatenate(acts)
        except Exception as error:  # onnxruntime has many kinds
            reason = " ".join(str(error).split())
            raise ValueError(
                f"{self._path} does not take an observation of size {rows.shape[-1]}: {reason}"
            ) from error
