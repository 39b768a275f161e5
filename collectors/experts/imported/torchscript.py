"""TorchScript files, as rsl-rl's and legged_gym's exporters write them."""

from pathlib import Path

import numpy as np
import torch

from gaitforge.collectors.experts.imported.networks import Arrays, by_robot

_NORMALISER = ("_mean", "_std")
"""Names of rsl-rl's buffers (rsl_rl/modules/normalization.py)."""
_NONE = np.zeros(0)


class TorchScriptNetwork:
    """A scripted or traced module, called with observations (N, D).

    Its memory is the buffers that a step changes, such as rsl-rl's `hidden_state`; with one, it
    takes a step for each robot. ValueError for a file that is no TorchScript, such as a checkpoint.
    """

    def __init__(self, path: Path, width: int) -> None:
        try:
            self._module = torch.jit.load(path, map_location="cpu").eval()
        except RuntimeError:
            raise ValueError(
                f"{path.name} is no TorchScript file; a checkpoint has to be exported first, as "
                "ONNX or TorchScript (rsl-rl: export_policy_to_onnx, export_policy_to_jit)"
            ) from None
        self._memory: list[torch.Tensor] = []
        buffers = list(self._module.buffers())
        before = [each.clone() for each in buffers]
        try:
            self._step(np.ones((1, width), np.float32), [])
        except (RuntimeError, AttributeError) as error:  # it may give no tensor
            reason = str(error).strip().splitlines()[-1]
            raise ValueError(f"{path.name} cannot read {width} numbers: {reason}") from None
        for buffer, start in zip(buffers, before, strict=True):
            if not torch.equal(buffer, start):
                self._memory.append(buffer)
                buffer.copy_(start)
        self.state: Arrays = [each.numpy().copy() for each in self._memory]
        self.parameters = sum(each.numel() for each in self._module.parameters())
        named = {
            name.rpartition(".")[2]: each.numpy() for name, each in self._module.named_buffers()
        }
        fits = all(named.get(name, _NONE).size == width for name in _NORMALISER)
        mean, std = (named[name].ravel() for name in _NORMALISER) if fits else (_NONE, _NONE)
        self.normaliser = (mean, std) if fits else None

    def step(self, inputs: np.ndarray, state: Arrays) -> tuple[np.ndarray, Arrays]:
        """See `Network.step`."""
        return by_robot(self._step, inputs, state) if state else self._step(inputs, state)

    def _step(self, inputs: np.ndarray, state: Arrays) -> tuple[np.ndarray, Arrays]:
        with torch.inference_mode():
            for buffer, value in zip(self._memory, state, strict=True):
                buffer.copy_(torch.from_numpy(value))
            outputs = self._module(torch.from_numpy(inputs)).numpy()
            return outputs, [buffer.numpy().copy() for buffer in self._memory]
